/* runtime_checkpoint_test.c - folders of checkpoints, and state.json.
 *
 * A folder is tried in every condition in which a run may have died: what is
 * complete is found, and nothing else.
 */
#include "runtime/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char home[] = "/tmp/megac_checkpoint_XXXXXX";
static char folder[64];

static int enter(void **state)
{
    (void)state;
    if (!mkdtemp(home))
        return -1;
    snprintf(folder, sizeof folder, "%s/deep/ck", home);
    return 0;
}

static int leave(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", home);
    return system(command);
}

static void ok(Status s)
{
    if (s)
        fail_msg("%s", status_text(s));
}

static void fails(Status s, const char *message)
{
    assert_int_equal(status_code(s), STATUS_INPUT);
    if (!strstr(status_text(s), message))
        fail_msg("'%s' lacks '%s'", status_text(s), message);
    status_drop(s);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[CHECKPOINT_PATH_BYTES];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool is_there(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static int64_t newest(void)
{
    int64_t step = 99;

    ok(checkpoint_newest(folder, &step));
    return step;
}

/* ---- folders ------------------------------------------------------------- */

static void write_one(int64_t step)
{
    char dir[CHECKPOINT_PATH_BYTES];

    ok(checkpoint_begin(folder, step));
    ok(checkpoint_unfinished(folder, step, dir));
    put(dir, "model.safetensors", "x");
    put(dir, "state.json", "{}");
    ok(checkpoint_sync(dir));
}

static void expect_latest(const char *text)
{
    char path[128];
    Buf latest = {0};

    snprintf(path, sizeof path, "%s/latest", folder);
    assert_true(buf_read_file(&latest, path));
    assert_string_equal(buf_str(&latest), text);
    buf_free(&latest);
}

/* Two are kept; a third leaves only once the new one is complete. */
static void the_newest_are_kept(void **state)
{
    (void)state;
    assert_int_equal(newest(), -1);
    for (int64_t step = 5; step <= 15; step += 5) {
        write_one(step);
        assert_int_equal(newest(), step == 5 ? -1 : step - 5);
        assert_true(step < 15 || is_there("step-00000005"));
        ok(checkpoint_commit(folder, step, 2));
        assert_int_equal(newest(), step);
    }
    assert_false(is_there("step-00000005"));
    assert_true(is_there("step-00000010/model.safetensors"));
    expect_latest("step-00000015\n");
    write_one(123456789);
    ok(checkpoint_commit(folder, 123456789, 2));
    assert_int_equal(newest(), 123456789);
    expect_latest("step-123456789\n");
}

/* Being written, being removed, somebody else's: none is a checkpoint; the
 * first two go when the next one begins. */
static void what_is_incomplete(void **state)
{
    char dir[CHECKPOINT_PATH_BYTES];
    static const char *const others[] = {"step-x", "step-7", "mine",
                                         "step-200000001.kept"};

    (void)state;
    write_one(200000000);
    ok(checkpoint_path(folder, 199999999, dir));
    assert_int_equal(mkdir(dir, 0777), 0);
    put(dir, "model.safetensors", "x");
    for (size_t i = 0; i < MC_LEN(others); i++) {
        snprintf(dir, sizeof dir, "%s/%s", folder, others[i]);
        assert_int_equal(mkdir(dir, 0777), 0);
        put(dir, "state.json", "{}");
    }
    assert_int_equal(newest(), 123456789);
    ok(checkpoint_begin(folder, 200000002));
    assert_false(is_there("step-200000000.tmp"));
    assert_false(is_there("step-199999999"));
    for (size_t i = 0; i < MC_LEN(others); i++)
        assert_true(is_there(others[i]));
    checkpoint_abandon(folder, 200000002);
    assert_false(is_there("step-200000002.tmp"));
    assert_int_equal(newest(), 123456789);
}

/* ---- state.json ---------------------------------------------------------- */

static const CheckpointState sample = {
    .past = {.step = 10, .samples = {160, 32}, .planned = {320, 64}},
    .updates = 9,
    .learnt = 144,
    .tokens = 5120,
    .seed = 4294967295u,
    .data = 0xf00dfacecafebeefu,
    .scaler = {.scale = 65536, .dynamic = true, .good = 3, .patience = -1},
    .fixed = "model.hidden_size = 64\ndata.train = [a = b]\n"};

static void a_state_comes_back(void **state)
{
    CheckpointState back;

    (void)state;
    ok(checkpoint_state_write(&sample, home));
    ok(checkpoint_state_read(home, &back));
    assert_memory_equal(&back.past, &sample.past, sizeof back.past);
    assert_int_equal(back.updates, 9);
    assert_int_equal(back.learnt, 144);
    assert_int_equal(back.tokens, 5120);
    assert_int_equal(back.seed, 4294967295u);
    assert_true(back.data == sample.data);
    assert_true(back.scaler.dynamic && back.scaler.scale > 65535.5 &&
                back.scaler.scale < 65536.5);
    assert_int_equal(back.scaler.good, 3);
    assert_int_equal(back.scaler.patience, -1);
    assert_string_equal(back.fixed, sample.fixed);
    checkpoint_state_drop(&back);
}

static void changes_are_named(void **state)
{
    static const char fixed[] = "model.hidden_size = 64\n";
    static const char more[] = "model.hidden_size = 64\nmodel.qk_norm = true\n";

    (void)state;
    ok(checkpoint_state_check(&sample, "ck", 4294967295u, fixed));
    fails(checkpoint_state_check(&sample, "ck", 7, fixed),
          "ck: training.seed was 4294967295 when it was saved and is 7 now");
    fails(checkpoint_state_check(&sample, "ck", 4294967295u,
                                 "model.hidden_size = 128\n"),
          "model.hidden_size was 64 when it was saved and is 128 now");
    fails(checkpoint_state_check(&sample, "ck", 4294967295u, more),
          "model.qk_norm was not set when it was saved and is true now");
}

/* Each row: what is replaced in a good file, by what, and the complaint. */
static void damaged_states(void **state)
{
    static const struct {
        const char *from, *to, *message;
    } rows[] = {
        {"\"version\": 1", "\"version\": 2", "version 2, but this megac reads"},
        {"\"version\": 1,", "", "`version` is no number"},
        {"\"step\": 10", "\"step\": \"10\"", "`step` is no whole number"},
        {"\"step\": 10", "\"step\": -1", "`step` is no whole number"},
        {"\"train\": 160", "\"trains\": 160", "`samples.train` is no whole"},
        {"\"scale\": 65536.0", "\"scale\": 0.0", "`loss_scale` is no scale"},
        {"\"good\": 3", "\"good\": null", "`loss_scale.good` is no whole"},
        {"\"f00dfacecafebeef\"", "1", "`data` is no hash"},
        {"\"spec\"", "\"specs\"", "`spec` is no object"},
        {"{", "[", "state.json: "},
        {"\"seed\": 4294967295", "\"seed\": 4294967295, \"seed\": 1",
         "duplicate object key"},
    };
    char path[128];
    Buf good = {0};

    (void)state;
    snprintf(path, sizeof path, "%s/state.json", home);
    assert_true(buf_read_file(&good, path));
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        const char *at = strstr(good.s, rows[i].from);
        CheckpointState s;
        Buf bad = {0};

        assert_non_null(at);
        buf_printf(&bad, "%.*s%s%s", (int)(at - good.s), good.s, rows[i].to,
                   at + strlen(rows[i].from));
        put(home, "state.json", buf_str(&bad));
        fails(checkpoint_state_read(home, &s), rows[i].message);
        buf_free(&bad);
    }
    buf_free(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_are_kept),
        cmocka_unit_test(what_is_incomplete),
        cmocka_unit_test(a_state_comes_back),
        cmocka_unit_test(changes_are_named),
        cmocka_unit_test(damaged_states),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
