/* failures_test.c - what is damaged, missing, full or killed: the reason is
 * said, the exit code tells who has to act, nothing half-written stays.
 *
 * The program has four ranks: two stages of two.  Exit code 1 is wrong input,
 * 3 a run that failed.
 */
#include "cases.h"

#include "runtime/payload.h"

#include <sys/stat.h>

static const char four[] = "parallel.tp=2 parallel.pp=2 data.train=corpus";

static int enter(void **state)
{
    if (case_enter(state) != 0)
        return -1;
    assert_int_equal(case_shell("seq 1 3000 >text && "
                                "$MEGAC data pack text -o corpus"), 0);
    case_compile("good", four);
    return 0;
}

/* ---- ranks --------------------------------------------------------------- */

#define MPIRUN                                                                 \
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"       \
    "timeout 10 mpirun --oversubscribe --bind-to none "

static void wrong_number_of_ranks(void **state)
{
    (void)state;
    assert_int_equal(case_shell(MPIRUN "-n 3 good/launch --quiet"), 3);
    assert_true(case_printed("was compiled for 4 ranks, but 3 were started"));
    assert_int_equal(case_shell(MPIRUN "-n 5 good/launch --quiet"), 3);
    assert_true(case_printed("rank 4: no good/rank-00004, compiled for 4 "
                             "ranks"));
    assert_int_equal(case_shell("good/launch --quiet"), 3);
    assert_true(case_printed("was compiled for 4 ranks, but 1 was started"));
}

/* Waits for the second step, kills rank 2, and times the end of the run. */
static const char kill_rank_2[] =
    "$MEGAC run good --steps 1000000 -- --quiet &\n"
    "run=$!\n"
    "until [ -s good/metrics.jsonl ]; do sleep 0.1; done\n"
    "for p in /proc/[0-9]*; do\n"
    "    [ \"$(readlink $p/exe)\" = \"$PWD/good/rank-00002\" ] || continue\n"
    "    kill -KILL ${p#/proc/}\n"
    "done\n"
    "begin=$(date +%%s)\n"
    "wait $run\n"
    "code=$?\n"
    "[ $(($(date +%%s) - begin)) -le 10 ] || echo too late\n"
    "exit $code";

static void a_killed_rank_ends_the_run(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -f good/metrics.jsonl"), 0);
    assert_int_equal(case_shell(kill_rank_2), 3);
    assert_true(case_printed("rank 2 was ended by signal 9"));
    assert_null(strstr(case_output(), "too late"));
}

/* ---- executables --------------------------------------------------------- */

typedef enum { IN_PLAN, IN_KERNELS, IN_TRAILER } Part;

static uint64_t middle(const PayloadTrailer *t, Part part, uint64_t end)
{
    switch (part) {
    case IN_PLAN: return t->plan_offset + t->plan_bytes / 2;
    case IN_KERNELS: return t->kernels_offset + t->kernels_bytes / 2;
    default: return end - sizeof *t + 7; /* plan_offset */
    }
}

/* A copy of the program in `bad` with one bit of rank 2's file flipped. */
static void flip(Part part)
{
    Buf file = {0};
    PayloadTrailer t;
    uint64_t at;

    assert_int_equal(case_shell("rm -rf bad; cp -r good bad; "
                                "rm bad/rank-00002"), 0);
    assert_true(buf_read_file(&file, "good/rank-00002"));
    memcpy(&t, file.s + file.len - sizeof t, sizeof t);
    at = middle(&t, part, file.len);
    file.s[at] = (char)(file.s[at] ^ 0x20);
    assert_true(buf_write_file(&file, "bad/rank-00002"));
    assert_int_equal(chmod("bad/rank-00002", 0755), 0);
    buf_free(&file);
}

static void expect_refused(const char *message, int code)
{
    assert_int_equal(case_shell("$MEGAC run bad"), code);
    assert_true(case_printed("rank 2:"));
    assert_true(case_printed(message));
    assert_null(strstr(case_output(), "step 1/"));
}

static void a_flipped_bit(void **state)
{
    (void)state;
    flip(IN_PLAN);
    expect_refused("bad/rank-00002: damaged plan: its contents do not match "
                   "its hash", 1);
    assert_int_equal(case_shell("$MEGAC inspect bad plan"), 1);
    assert_true(case_printed("bad/rank-00002: damaged plan"));
    assert_int_equal(case_shell("$MEGAC verify bad"), 1);
    flip(IN_KERNELS);
    expect_refused("bad/rank-00002 are damaged", 1);
    flip(IN_TRAILER);
    expect_refused("bad/rank-00002 is damaged", 1);
}

static void other_executables(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf bad; cp -r good bad; rm bad/rank-00002;"
                                "head -c 100000 good/rank-00000 "
                                ">bad/rank-00002; chmod +x bad/rank-00002"),
                     0);
    assert_int_not_equal(case_shell("$MEGAC run bad"), 0);
    assert_int_equal(case_shell("ln -f good/rank-00000 bad/rank-00002"), 0);
    expect_refused("was started with the program of other ranks (pp0)", 3);
    case_compile("other",
                 "parallel.tp=2 parallel.pp=2 model.ffn_hidden_size=64");
    assert_int_equal(case_shell("ln -f other/rank-00002 bad/rank-00002"), 0);
    expect_refused("the executable of another compilation", 3);
    assert_int_equal(case_shell("rm bad/rank-00002"), 0);
    expect_refused("no bad/rank-00002, compiled for 4 ranks", 3);
}

/* ---- data ---------------------------------------------------------------- */

static void half_of(const char *suffix)
{
    assert_int_equal(case_shell("cp corpus.%s kept && head -c $(($(stat -c %%s "
                                "kept) / 2)) kept >corpus.%s", suffix, suffix),
                     0);
}

static void data_that_is_cut(void **state)
{
    (void)state;
    half_of("bin");
    assert_int_equal(case_shell("$MEGAC run good"), 1);
    assert_true(case_printed("corpus.idx: sequence_pointers[0]: tokens at 0 + "
                             "27786, but corpus.bin has 13893 bytes"));
    assert_int_equal(case_shell("mv kept corpus.bin"), 0);
    half_of("idx");
    assert_int_equal(case_shell("$MEGAC run good"), 1);
    assert_true(case_printed("corpus.idx: header: the file has 31 bytes"));
    assert_int_equal(case_shell("rm corpus.idx; $MEGAC run good"), 1);
    assert_true(case_printed("corpus.idx: No such file or directory"));
    assert_int_equal(case_shell("mv kept corpus.idx; $MEGAC run good"), 0);
}

/* '0' is token 48. */
static void tokens_outside_of_the_vocabulary(void **state)
{
    (void)state;
    case_compile("small", "data.train=corpus model.vocab_size=48");
    assert_int_equal(case_shell("$MEGAC run small"), 1);
    assert_true(case_printed("corpus.bin"));
    assert_true(case_printed("is outside of the vocabulary of 48"));
}

/* ---- weights ------------------------------------------------------------- */

/* Weights of another model are refused, in both directions. */
static void weights_of_another_model(void **state)
{
    (void)state;
    case_train("four", "");
    case_compile("deeper", "model.num_layers=5");
    case_compile("flatter", "model.num_layers=3 parallel.pp=3");
    assert_int_equal(case_shell("$MEGAC run deeper --load "
                                "four.saved/weights.safetensors"), 1);
    assert_true(case_printed("four.saved/weights.safetensors has no tensor "
                             "model.layers.4."));
    assert_int_equal(case_shell("$MEGAC run flatter --load "
                                "four.saved/weights.safetensors"), 1);
    assert_true(case_printed("four.saved/weights.safetensors: the model has no "
                             "tensor model.layers.3."));
    assert_int_equal(case_shell("$MEGAC run four --load nothing.safetensors"),
                     1);
    assert_true(case_printed("nothing.safetensors: No such file"));
}

/* ---- full disks ---------------------------------------------------------- */

/* Runs a command with `full` a disk of 200 KB; false if this user may not
 * mount one. */
static bool on_full_disk(const char *command, int *out_code)
{
    const char *unshare = case_shell("[ $(id -u) = 0 ]") ? "unshare -rm"
                                                         : "unshare -m";
    if (case_shell("mkdir -p full; %s mount -t tmpfs tmpfs full", unshare))
        return false;
    *out_code = case_shell("%s sh -c 'mount -t tmpfs -o size=200k tmpfs full; "
                           "%s; code=$?; ls full >left; exit $code'", unshare,
                           command);
    return true;
}

static void expect_full(const char *command, int expected, const char *left)
{
    Buf files = {0};
    int code;

    if (!on_full_disk(command, &code))
        skip();
    assert_true(case_printed("No space left on device"));
    assert_int_equal(code, expected);
    assert_true(buf_read_file(&files, "left"));
    assert_string_equal(buf_str(&files), left);
    buf_free(&files);
}

static void a_full_disk(void **state)
{
    (void)state;
    expect_full("$MEGAC compile t0.yaml -o full/out", 3, "");
    expect_full("$MEGAC run good --save-step 1 --to full", 3, "");
    expect_full("$MEGAC data pack good/rank-00000 -o full/corpus", 3, "");
}

static void devices_that_take_nothing(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC inspect t0.yaml groups --json "
                                ">/dev/full"), 3);
    assert_true(case_printed("cannot write to standard output"));
    assert_int_equal(case_shell("$MEGAC compile t0.yaml --stop-after=grad "
                                "--dump-ir=grad >/dev/full"), 3);
    assert_int_equal(case_shell("$MEGAC run good --metrics /dev/full"), 3);
    assert_true(case_printed("cannot write /dev/full"));
}

/* What stood there before stays as it was. */
static void a_failed_compile_keeps_the_old(void **state)
{
    (void)state;
    assert_int_equal(case_shell("cp -r good before\n"
                                "trap '' XFSZ; ulimit -f 100\n"
                                "$MEGAC compile t0.yaml -o good"), 3);
    assert_true(case_printed("File too large"));
    assert_int_equal(case_shell("diff -r good before && rm -r before && "
                                "ls -d good.*"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_number_of_ranks),
        cmocka_unit_test(a_killed_rank_ends_the_run),
        cmocka_unit_test(a_flipped_bit),
        cmocka_unit_test(other_executables),
        cmocka_unit_test(data_that_is_cut),
        cmocka_unit_test(tokens_outside_of_the_vocabulary),
        cmocka_unit_test(weights_of_another_model),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(devices_that_take_nothing),
        cmocka_unit_test(a_failed_compile_keeps_the_old),
    };

    return cmocka_run_group_tests(tests, enter, case_leave);
}
