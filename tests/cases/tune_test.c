/* tune_test.c - what `megac tune` proposes, and what it says if nothing fits.
 *
 * From public bug reports: pytorch/helion#2039 and PaddlePaddle/Paddle#54460
 * (MC-82, candidates that broke rules or were changed in silence),
 * alpa-projects/alpa#882 (MC-85, no solution and no reason).
 */
#include "cases.h"

#include <math.h>
#include <unistd.h>

/* 12 heads in 4 groups, 10 layers: 8 ranks of tp have no whole heads, and 4
 * stages no whole layers. */
static const char spec[] =
    "version: 1\n"
    "model: {num_layers: 10, hidden_size: 96, num_attention_heads: 12,\n"
    "  num_query_groups: 4, kv_channels: 8, ffn_hidden_size: 96,\n"
    "  vocab_size: 96}\n"
    "training: {seq_length: 32, micro_batch_size: 1, global_batch_size: 64,\n"
    "  precision: fp32, optimizer: {type: sgd, lr: 0.1, weight_decay: 0.0},\n"
    "  lr_schedule: {style: constant}}\n"
    "data: {train: synthetic}\n";

/* So slow that all but launches takes its time. */
static const char machine[] =
    "version: 1\n"
    "name: an abacus\n"
    "memory: 80e9\n"
    "bandwidth: 1e9\n"
    "host_bandwidth: 1e9\n"
    "launch: 1e-6\n"
    "peak: {fp32: 1e9, bf16: 2e9, fp16: 2e9}\n"
    "links:\n"
    "  - {ranks: 8, bandwidth: 1e8, latency: 1e-5}\n";

#define TUNE                                                                   \
    "$MEGAC tune mc82.yaml --gpus 8 --hardware ./abacus.yaml --top 4 "         \
    "--vary tp,pp,vpp,cp,dp,mbs,recompute"

static void write_text(const char *path, const char *text)
{
    Buf b = {0};

    buf_puts(&b, text);
    assert_true(buf_write_file(&b, path));
    buf_free(&b);
}

static int64_t number(json_t *spec_json, const char *path)
{
    return json_integer_value(case_member(spec_json, path));
}

static json_t *read_json(const char *path)
{
    json_t *document = json_load_file(path, 0, NULL);

    assert_non_null(document);
    return document;
}

/* ---- MC-82 --------------------------------------------------------------- */

/* Degrees by the case's own arithmetic. */
static void check_degrees(json_t *s)
{
    int64_t tp = number(s, "parallel.tp"), pp = number(s, "parallel.pp");
    int64_t cp = number(s, "parallel.cp"), dp = number(s, "parallel.dp");

    assert_int_equal(tp * pp * cp * dp, 8);
    assert_int_not_equal(tp, 8);
    assert_int_equal(10 % (pp * number(s, "parallel.vpp")), 0);
    assert_int_equal(number(s, "training.global_batch_size"), 64);
    assert_int_equal(number(s, "model.num_layers"), 10);
    assert_int_equal(number(s, "model.num_attention_heads"), 12);
    assert_int_equal(number(s, "model.num_query_groups"), 4);
    assert_int_equal(number(s, "model.hidden_size"), 96);
}

/* What `explain` says of a spec is what was proposed: to the byte, and in time
 * but for the digits of the JSON. */
static void check_explained(const char *path, json_t *row)
{
    double step = json_real_value(case_member(row, "step_time_s"));
    json_t *said;

    assert_int_equal(case_shell("$MEGAC explain %s --json >said.json", path),
                     0);
    said = read_json("said.json");
    assert_int_equal(number(said, "memory_bytes"), number(row, "memory_bytes"));
    assert_true(json_is_true(case_member(said, "fits")));
    assert_true(fabs(json_real_value(case_member(said, "step_time_s")) -
                     step) <= 1e-12 * step);
    json_decref(said);
}

static void proposals_compile_unchanged(void **state)
{
    json_t *list, *row;
    double before = 0;
    size_t i;

    (void)state;
    assert_int_equal(case_shell(TUNE " --json >tuned.json"), 0);
    list = read_json("tuned.json");
    assert_int_equal(json_array_size(list), 4);
    json_array_foreach(list, i, row) {
        json_t *s = case_member(row, "spec");
        double step = json_real_value(case_member(row, "step_time_s"));

        check_degrees(s);
        assert_int_equal(json_dump_file(s, "one.json", 0), 0);
        assert_int_equal(case_shell("$MEGAC compile one.json --plan-only"), 0);
        check_explained("one.json", row);
        assert_int_equal(number(row, "rank"), (int64_t)i + 1);
        assert_true(step >= before);
        before = step;
    }
    json_decref(list);
}

/* The second time, and the first of them as a file. */
static void the_best_is_written(void **state)
{
    json_t *list;

    (void)state;
    assert_int_equal(case_shell(TUNE " --json -o best.yaml >again.json && "
                                "cmp tuned.json again.json"), 0);
    list = read_json("again.json");
    assert_int_equal(case_shell("$MEGAC compile best.yaml --plan-only"), 0);
    check_explained("best.yaml", json_array_get(list, 0));
    json_decref(list);
}

static void what_is_dropped_is_counted(void **state)
{
    (void)state;
    assert_int_equal(case_shell(TUNE), 0);
    assert_true(case_printed("MC0201  such as: num_attention_heads = 12 is not "
                             "a multiple of tp = 8"));
    assert_true(case_printed("MC0220  such as: num_layers = 10 is not a "
                             "multiple of"));
}

/* ---- MC-85 --------------------------------------------------------------- */

#define NONE                                                                   \
    "$MEGAC tune none.yaml --gpus 2 --hardware h100-sxm --memory 24 "          \
    "-o best.yaml --vary tp,pp,mbs,recompute"

/* 70,553,706,496 parameters of 2 bytes, with gradients, masters and two
 * moments of 4: 635 GB on each of two ranks before anything is computed. */
static void nothing_fits(void **state)
{
    const char *needs;
    double gb = 0;

    (void)state;
    write_text("none.yaml", "version: 1\n"
                            "include: llama3-70b\n"
                            "parallel: {tp: 1, pp: 1, sp: false}\n"
                            "training: {global_batch_size: 8}\n");
    unlink("best.yaml");
    assert_int_equal(case_shell(NONE), 4);
    assert_true(case_printed("llama3-70b does not fit on 2 GPUs with 24.0 GB"));
    needs = strstr(case_output(), "it needs ");
    assert_non_null(needs);
    assert_int_equal(sscanf(needs, "it needs %lf GB of 24.0 GB", &gb), 1);
    assert_true(gb > 635 && gb < 1.1 * 635);
    assert_true(case_printed("are optimizer state"));
    assert_true(case_printed("help: "));
    assert_true(case_printed("GB fits on "));
    assert_int_not_equal(access("best.yaml", F_OK), 0);
}

/* ---- what is wrong ------------------------------------------------------- */

static void wrong_input_is_said(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC tune mc82.yaml"), 2);
    assert_true(case_printed("needs --gpus N"));
    assert_int_equal(case_shell("$MEGAC tune mc82.yaml --gpus 8"), 1);
    assert_true(case_printed("name a machine with --hardware"));
    assert_int_equal(case_shell(TUNE ",xp"), 2);
    assert_true(case_printed("--vary: `xp` is none of"));
    assert_int_equal(
        case_shell("sed 's/, global_batch_size: 64//' mc82.yaml >batch.yaml; "
                   "$MEGAC tune batch.yaml --gpus 8 --hardware h100-sxm"), 1);
    assert_true(case_printed("global_batch_size is required"));
}

/* ---- --measure ----------------------------------------------------------- */

static void the_best_are_run(void **state)
{
    json_t *list;

    (void)state;
    assert_int_equal(
        case_shell("$MEGAC tune mc82.yaml --gpus 2 --hardware ./abacus.yaml "
                   "--top 2 --vary tp,dp,mbs --measure --json >measured.json"),
        0);
    list = read_json("measured.json");
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(json_real_value(case_member(json_array_get(list, i),
                                                "measured_step_time_s")) > 0);
    json_decref(list);
    if (access("/dev/nvidiactl", F_OK) == 0)
        return;
    assert_int_equal(
        case_shell("$MEGAC tune mc82.yaml --gpus 2 --hardware ./abacus.yaml "
                   "--vary tp,dp --measure --set target.backend=cuda --set "
                   "target.arch=sm_90a"), 1);
    assert_true(case_printed("no GPU for target.backend = cuda"));
}

static int enter(void **state)
{
    if (case_enter(state))
        return -1;
    write_text("mc82.yaml", spec);
    write_text("abacus.yaml", machine);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposals_compile_unchanged),
        cmocka_unit_test(the_best_is_written),
        cmocka_unit_test(what_is_dropped_is_counted),
        cmocka_unit_test(nothing_fits),
        cmocka_unit_test(wrong_input_is_said),
        cmocka_unit_test(the_best_are_run),
    };

    return cmocka_run_group_tests(tests, enter, case_leave);
}
