/* checkpoints_test.c - checkpoints that must not be lost, and those that must
 * not be loaded.
 *
 * From the public reports behind MC-79: a run is killed, told to end, or finds
 * its disk full; then it is resumed, perhaps from what is not its own.
 */
#include "cases.h"

static const char four[] = "parallel.tp=2 parallel.pp=2 training.steps=4 "
                           "training.optimizer.type=adamw "
                           "training.checkpoint.interval=2 "
                           "training.checkpoint.dir=ck";

static int enter(void **state)
{
    if (case_enter(state) != 0)
        return -1;
    assert_int_equal(case_shell("seq 1 3000 >text && "
                                "$MEGAC data pack text -o corpus && "
                                "seq 5000 8000 >text && "
                                "$MEGAC data pack text -o others"), 0);
    return 0;
}

static const char *listed(const char *folder)
{
    case_shell("ls %s", folder);
    return case_output();
}

/* ---- what there is ------------------------------------------------------- */

/* Four steps of 8 samples of 32 tokens.  T0's parameters: two tables of 96 x
 * 64; four layers of q and o 64 x 64, k and v 32 x 64, three of 128 x 64, two
 * norms; the last norm. */
static void what_a_checkpoint_is(void **state)
{
    enum { PARAMETERS = 2 * 96 * 64 + 64 +
                        4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 128) };
    json_t *info;

    (void)state;
    case_compile("out", four);
    case_run("out", "");
    assert_int_equal(case_shell("$MEGAC ckpt info out/ck --json"), 0);
    info = json_loads(case_output(), 0, NULL);
    assert_int_equal(json_integer_value(case_member(info, "step")), 4);
    assert_int_equal(json_integer_value(case_member(info, "samples.train")),
                     32);
    assert_int_equal(json_integer_value(case_member(info, "tokens")), 1024);
    assert_int_equal(json_array_size(case_member(info, "sets")), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(
            json_integer_value(case_member(
                json_array_get(case_member(info, "sets"), i), "elements")),
            PARAMETERS);
    json_decref(info);
    assert_int_equal(case_shell("$MEGAC ckpt info out/ck/step-00000002"), 0);
    assert_true(case_printed("step-00000002: step 2, 2 updates, 512 tokens"));
    assert_true(case_printed("exp_avg_sq       39 tensors"));
    assert_int_equal(case_shell("$MEGAC ckpt info out"), 1);
    assert_true(case_printed("out/state.json: unable to open"));
}

/* ---- what is not loaded -------------------------------------------------- */

static void expect_refused(const char *sets, const char *message)
{
    char all[512];

    snprintf(all, sizeof all, "data.train=corpus training.optimizer.type=adamw "
             "training.checkpoint.dir=../out/ck training.steps=6 %s", sets);
    case_compile("other", all);
    assert_int_equal(case_shell("cp -r out/ck before && "
                                "$MEGAC run other --resume"), 1);
    assert_true(case_printed(message));
    assert_int_equal(case_shell("diff -r out/ck before && rm -r before"), 0);
}

static void what_changed_is_named(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "data.train=corpus training.optimizer.type=adamw "
                        "training.steps=2 training.checkpoint.dir=ck");
    case_run("out", "");
    expect_refused("model.ffn_hidden_size=192",
                   "model.ffn_hidden_size was 128 when it was saved and is 192 "
                   "now");
    expect_refused("training.seed=77",
                   "training.seed was 1234 when it was saved and is 77 now");
    expect_refused("training.optimizer.type=sgd",
                   "training.optimizer.type was adamw when it was saved and is "
                   "sgd now");
    expect_refused("data.train=others", "others}] now: the first 16 samples "
                                        "differ");
    assert_int_equal(case_shell("$MEGAC run other"), 1);
    assert_true(case_printed("other/../out/ck holds the checkpoint of step 2"));
}

/* The same data elsewhere are the same data. */
static void data_that_moved(void **state)
{
    (void)state;
    case_compile("out", "data.train=corpus training.steps=2 "
                        "training.checkpoint.dir=../moved");
    case_run("out", "");
    assert_int_equal(case_shell("cp corpus.bin copy.bin && "
                                "cp corpus.idx copy.idx"), 0);
    case_compile("out", "data.train=copy training.steps=3 "
                        "training.checkpoint.dir=../moved");
    case_run("out", "--resume");
}

static void expect_damaged(const char *damage, const char *message)
{
    assert_int_equal(case_shell("rm -rf out/ck; cp -r whole out/ck; "
                                "cd out/ck/step-00000004 && %s", damage), 0);
    assert_int_equal(case_shell("$MEGAC run out --resume --steps 6"), 1);
    assert_true(case_printed(message));
}

static void damaged_checkpoints(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", four);
    case_run("out", "");
    assert_int_equal(case_shell("mv out/ck whole"), 0);
    expect_damaged("rm exp_avg.safetensors",
                   "ck/step-00000004: neither exp_avg.safetensors nor");
    expect_damaged("head -c 5000 model.safetensors >x; mv x model.safetensors",
                   "ck/step-00000004/model.safetensors");
    expect_damaged("echo '{}' >state.json",
                   "ck/step-00000004/state.json: `version` is no number");
    expect_damaged("mv ../step-00000004 ../step-00000005; "
                   "mkdir ../step-00000004",
                   "ck/step-00000005 is of step 4 by its state.json");
    assert_int_equal(case_shell("rm -r out/ck/* && $MEGAC run out --resume"),
                     1);
    assert_true(case_printed("there is no complete checkpoint in out/ck"));
    case_compile("none", "");
    assert_int_equal(case_shell("$MEGAC run none --resume"), 1);
    assert_true(case_printed("none/spec.yaml has no training.checkpoint.dir"));
    assert_int_equal(case_shell("$MEGAC run out --resume --load x"), 2);
}

/* Rank 3 lives in another folder, where the newest is of step 2. */
static void ranks_that_see_different_ones(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out apart"), 0);
    case_compile("out", four);
    case_run("out", "");
    assert_int_equal(
        case_shell("cp -r out apart && rm -r apart/ck/step-00000004\n"
                   "export OMPI_ALLOW_RUN_AS_ROOT=1 "
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
                   "timeout 10 mpirun --oversubscribe --bind-to none -n 4 "
                   "sh -c 'd=out; [ $OMPI_COMM_WORLD_RANK = 3 ] && d=apart\n"
                   "exec $d/launch --quiet --resume'"), 3);
    assert_true(case_printed("its newest checkpoint is of step"));
}

/* ---- what is not lost ---------------------------------------------------- */

/* Compiled anew for another layout, the folder has its old checkpoints. */
static void another_program_in_the_folder(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", four);
    case_run("out", "--steps 2");
    case_compile("out", "parallel.dp=2 training.optimizer.type=adamw "
                        "training.steps=4 training.checkpoint.dir=ck");
    case_run("out", "--resume");
    assert_string_equal(listed("out/ck out/rank-*"),
                        "out/rank-00000\nout/rank-00001\n\nout/ck:\nlatest\n"
                        "step-00000002\nstep-00000004\n");
    assert_int_equal(case_shell("wc -l <out/metrics.jsonl"), 0);
    assert_string_equal(case_output(), "4\n");
}

/* Only what compiling made is replaced; names that are merely like those, in
 * the folder or beside it, are the user's. */
static void folders_of_similar_names(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "");
    assert_int_equal(
        case_shell("cd out && mkdir ck rank-ck profile.ck rank- && "
                   "touch rank-ck/a profile.0 rank-00007 && cd .. && "
                   "cp -r out out.old && cp -r out before && "
                   "rm before/profile.0 before/rank-00007"), 0);
    case_compile("out/", ""); /* as a shell completes it */
    assert_int_equal(case_shell("ls out >is; ls before >was; diff is was && "
                                "[ -e out/rank-ck/a ] && "
                                "[ -e out.old/profile.0 ]"), 0);
    assert_int_equal(case_shell("rm -r out before"), 0);
    case_compile("out", "");
    assert_int_equal(case_shell("ls out | grep ck"), 1);
    assert_int_equal(case_shell("rm -r out.old"), 0);
}

/* As after a compile that was cut off, and a run in the new folder: each has
 * checkpoints, and neither is given up for the other. */
static void checkpoints_on_both_sides(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "");
    assert_int_equal(case_shell("mkdir -p out/ck/new out.megac-old/ck/old && "
                                "$MEGAC compile t0.yaml -o out"), 1);
    assert_true(case_printed("both out.megac-old/ck and out/ck are there"));
    assert_string_equal(listed("-d out*/ck/*"),
                        "out.megac-old/ck/old\nout/ck/new\n");
    assert_int_equal(case_shell("mv out.megac-old/ck out.megac-old/ck2"), 0);
    case_compile("out", "");
    assert_string_equal(listed("-d out*/ck*/*"), "out/ck/new\nout/ck2/old\n");
    assert_int_equal(case_shell("[ -e out.megac-old ]"), 1);
}

/* What is no file keeps no lines to go on from. */
static void metrics_into_a_device(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "training.checkpoint.dir=ck");
    case_run("out", "--steps 1 --metrics /dev/null");
    case_run("out", "--resume --steps 2 --metrics /dev/null");
    case_run("out", "--resume --steps 3 --metrics absent.jsonl");
    assert_int_equal(case_shell("grep -c '\"step\": 3,' absent.jsonl"), 0);
}

/* Until it has saved once more, and a bit longer; then all ranks are killed. */
static void run_and_kill(const char *options, int tenths)
{
    assert_int_equal(
        case_shell("latest() { cat out/ck/latest 2>/dev/null; }\n"
                   "was=$(latest)\n"
                   "$MEGAC run out %s --steps 100000 -- --quiet &\n"
                   "run=$!\n"
                   "until [ \"$(latest)\" != \"$was\" ]; do sleep 0.05; done\n"
                   "sleep 0.%d\n"
                   "for p in /proc/[0-9]*; do\n"
                   "    case $(readlink $p/exe) in $PWD/out/rank-*)\n"
                   "        kill -KILL ${p#/proc/};;\n"
                   "    esac\n"
                   "done\n"
                   "wait $run", options, tenths), 3);
}

/* Killed three times, at moments that nobody chose, a run is where the run that
 * was never killed is, to the bit, with a line for every step. */
static void killed_at_any_moment(const char *async)
{
    char sets[512];

    snprintf(sets, sizeof sets, "%s training.checkpoint.interval=1 "
             "training.checkpoint.async=%s", four, async);
    assert_int_equal(case_shell("rm -rf out whole"), 0);
    case_compile("out", sets);
    run_and_kill("", 5);
    run_and_kill("--resume", 7);
    run_and_kill("--resume", 8);
    case_compile("whole", "parallel.tp=2 parallel.pp=2 "
                          "training.optimizer.type=adamw");
    assert_int_equal(
        case_shell("last=$(sed 's/step-0*//' out/ck/latest)\n"
                   "$MEGAC run out --resume --steps $((last + 3)) -- --quiet\n"
                   "last=$(sed 's/step-0*//' out/ck/latest)\n"
                   "$MEGAC run whole --steps $last --save-step $last "
                   "--to whole -- --quiet\n"
                   "cp out/ck/$(cat out/ck/latest)/model.safetensors killed\n"
                   "for run in out whole; do\n"
                   "    sed 's/, \"lr.*//' $run/metrics.jsonl >$run.steps\n"
                   "done\n"
                   "[ $last -gt 4 ] && diff out.steps whole.steps"), 0);
    case_same_file("killed", "whole/weights.safetensors", 0);
}

static void killed_while_the_disk_is_awaited(void **state)
{
    (void)state;
    killed_at_any_moment("true");
    killed_at_any_moment("false");
}

/* The first one fits on the disk, the second does not. */
static void a_disk_that_fills_up(void **state)
{
    static const char on_disk[] =
        "mount -t tmpfs -o size=%dk tmpfs full && "
        "$MEGAC run full.out -- --quiet; code=$?; "
        "ls full full/step-00000002; exit $code";
    const char *unshare = case_shell("[ $(id -u) = 0 ]") ? "unshare -rm"
                                                         : "unshare -m";
    char command[512];

    (void)state;
    if (case_shell("mkdir full; %s mount -t tmpfs tmpfs full", unshare))
        skip();
    case_compile("full.out", "training.steps=4 training.checkpoint.interval=2 "
                             "training.checkpoint.dir=../full");
    snprintf(command, sizeof command, on_disk, 1000);
    assert_int_equal(case_shell("%s sh -c '%s'", unshare, command), 3);
    assert_true(case_printed("step 4: checkpoint of step 4: cannot reserve"));
    assert_true(case_printed("No space left on device"));
    assert_true(case_printed("full:\nlatest\nstep-00000002\n\n"
                             "full/step-00000002:\nmodel.safetensors\n"
                             "state.json\n"));
}

/* ---- being told to end --------------------------------------------------- */

/* Starts `out`, waits for steps, sends signals by `how`; the run ends with
 * `code`.  After 20 s it is killed. */
static void tell_to_end(const char *how, int code)
{
    assert_int_equal(
        case_shell("rm -rf out/ck out/metrics.jsonl\n"
                   "$MEGAC run out --steps 1000000 -- --quiet &\n"
                   "run=$!\n"
                   "until [ -s out/metrics.jsonl ]; do sleep 0.05; done\n"
                   "%s\n"
                   "(sleep 20; kill -KILL $run) 2>/dev/null &\n"
                   "late=$!\n"
                   "wait $run; code=$?\n"
                   "kill $late\n"
                   "exit $code", how), code);
}

/* The step that is running when the signal comes is the last, and is saved. */
static void expect_saved(void)
{
    assert_int_equal(
        case_shell("last=$(tail -n 1 out/metrics.jsonl | "
                   "sed 's/{\"step\": \\([0-9]*\\).*/\\1/')\n"
                   "[ \"$(printf 'step-%%08d' $last)\" = "
                   "\"$(cat out/ck/latest)\" ] && ls out/ck"), 0);
    assert_null(strstr(case_output(), ".tmp"));
}

#define TELL_RANK(digit)                                                       \
    "for p in /proc/[0-9]*; do\n"                                              \
    "    [ \"$(readlink $p/exe)\" = \"$PWD/out/rank-0000" digit "\" ] &&\n"    \
    "        kill -TERM ${p#/proc/}\n"                                         \
    "done"

static void told_to_end(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "parallel.tp=2 parallel.pp=2 "
                        "training.checkpoint.dir=ck");
    tell_to_end("kill -TERM $run", 0);
    assert_true(case_printed("ended after step"));
    expect_saved();
    tell_to_end(TELL_RANK("1"), 0);
    assert_true(case_printed("ended after step"));
    expect_saved();
    case_run("out", "--resume --steps 1");
}

/* The rank waits for its state.json, a pipe that is filled after the signal. */
static void told_to_end_while_it_loads(void **state)
{
    (void)state;
    assert_int_equal(case_shell("rm -rf out"), 0);
    case_compile("out", "training.checkpoint.dir=ck");
    case_run("out", "--steps 2");
    assert_int_equal(
        case_shell("pipe=out/ck/step-00000002/state.json\n"
                   "mv $pipe kept && mkfifo $pipe\n"
                   "$MEGAC run out --resume --steps 1000000 -- --quiet &\n"
                   "run=$!\n"
                   "exec 3>$pipe\n"
                   TELL_RANK("0") "\n"
                   "cat kept >&3; exec 3>&-\n"
                   "wait $run"), 0);
    assert_true(case_printed("ended after step 3"));
    expect_saved();
}

static void told_to_end_without_checkpoints(void **state)
{
    (void)state;
    case_compile("out", "parallel.tp=2 parallel.pp=2");
    tell_to_end("kill -TERM $run", 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_checkpoint_is),
        cmocka_unit_test(what_changed_is_named),
        cmocka_unit_test(data_that_moved),
        cmocka_unit_test(damaged_checkpoints),
        cmocka_unit_test(ranks_that_see_different_ones),
        cmocka_unit_test(another_program_in_the_folder),
        cmocka_unit_test(folders_of_similar_names),
        cmocka_unit_test(checkpoints_on_both_sides),
        cmocka_unit_test(metrics_into_a_device),
        cmocka_unit_test(killed_while_the_disk_is_awaited),
        cmocka_unit_test(a_disk_that_fills_up),
        cmocka_unit_test(told_to_end),
        cmocka_unit_test(told_to_end_while_it_loads),
        cmocka_unit_test(told_to_end_without_checkpoints),
    };

    return cmocka_run_group_tests(tests, enter, case_leave);
}
