/* hardware_test.c - named hardware: what does not fit is an error before
 * anything is written, and what is predicted is the same wherever it is said.
 *
 * From alpa-projects/alpa#882 (MC-85, "no solution" without a reason) and
 * PaddlePaddle/Paddle#54460 (MC-82, another time than the one reported).
 */
#include "cases.h"

/* A machine of the given memory. */
static void describe(const char *file, const char *memory)
{
    FILE *to = fopen(file, "w");

    assert_non_null(to);
    fprintf(to,
            "name: %s\nmemory: %s\nbandwidth: 1e11\nhost_bandwidth: 1e10\n"
            "launch: 1e-6\npeak: {fp32: 1e12, bf16: 2e12, fp16: 2e12}\n"
            "links: [{ranks: all, bandwidth: 1e10, latency: 1e-6}]\n",
            file, memory);
    fclose(to);
}

/* T0 has 160,320 parameters; they and gradients, of 4 bytes each, alone need
 * 1,282,560. */
static void too_small_is_an_error(void **state)
{
    (void)state;
    describe("small.yaml", "1_282_000");
    assert_int_equal(case_shell("$MEGAC compile t0.yaml -o small --set "
                                "target.hardware=small.yaml"), 4);
    assert_true(case_printed("[MC0501]"));
    assert_true(case_printed("hidden_size: 64"));
    assert_true(case_printed("parameters 0.00 GiB"));
    assert_true(case_printed("small.yaml has that much for a rank"));
    assert_int_equal(case_shell("test ! -e small"), 0);
    assert_int_equal(case_shell("$MEGAC explain t0.yaml --set "
                                "target.hardware=small.yaml"), 0);
    assert_true(case_printed("does not fit into"));
}

static double step_of(const char *file, const char *key)
{
    json_t *root = json_load_file(file, 0, NULL);

    assert_non_null(root);
    double step = json_real_value(json_object_get(root, key));
    json_decref(root);
    return step;
}

static void predictions_agree(void **state)
{
    static const char set[] = "target.hardware=large.yaml";

    (void)state;
    describe("large.yaml", "1e9");
    case_compile("one", set);
    case_compile("two", set);
    assert_int_equal(case_shell("$MEGAC explain t0.yaml --json --set %s "
                                ">explain.json", set), 0);
    double step = step_of("explain.json", "step_time_s");
    assert_true(step > 0);
    assert_true(step_of("one/manifest.json", "predicted_step_s") == step);
    assert_true(step_of("two/manifest.json", "predicted_step_s") == step);
    assert_int_equal(case_shell("$MEGAC explain one --json >folder.json"), 0);
    assert_true(step_of("folder.json", "step_time_s") == step);
}

/* Stage and letter of eight microbatches: "0F0,0F1,…". */
static void cells_write(FILE *to, const char *cell, const char *end)
{
    for (int i = 0; i < 8; i++)
        fprintf(to, "%s%d%s", cell, i, i < 7 ? "," : end);
}

/* t0.yaml on two stages, with a machine and a schedule that lie beside it. */
static void lab_write(void)
{
    FILE *to;

    assert_int_equal(case_shell("mkdir -p lab/deep"), 0);
    describe("lab/mine.yaml", "1e9");
    to = fopen("lab/mine.csv", "w");
    assert_non_null(to);
    cells_write(to, "0F", ",");
    cells_write(to, "0B", "\n");
    cells_write(to, "1F", ",");
    cells_write(to, "1B", "\n");
    fclose(to);
    assert_int_equal(case_shell("printf 'include: ../t0.yaml\nparallel: "
                                "{pp: 2, schedule: mine.csv}\ntarget: "
                                "{hardware: mine.yaml}\n' >lab/s.yaml"), 0);
}

/* Both are found from any directory; what was compiled no longer needs them. */
static void files_lie_beside_the_spec(void **state)
{
    (void)state;
    lab_write();
    assert_int_equal(case_shell("cd lab/deep && $MEGAC inspect ../s.yaml "
                                "schedule"), 0);
    assert_int_equal(case_shell("$MEGAC compile lab/s.yaml -o lab/out && "
                                "mkdir moved && mv lab/out moved && rm -r lab"),
                     0);
    assert_int_equal(case_shell("grep -q 'schedule: schedule.csv' "
                                "moved/out/spec.yaml && $MEGAC explain "
                                "moved/out"), 0);
    assert_true(case_printed("predicted step on lab/mine.yaml"));
    assert_int_equal(case_shell("cd moved && $MEGAC run out --steps 1"), 0);
    assert_int_equal(case_shell("$MEGAC compile moved/out -o moved/out"), 0);
    assert_int_equal(case_shell("cd moved && $MEGAC inspect out layout"), 0);
}

static void nothing_is_known_of_this_machine(void **state)
{
    (void)state;
    case_compile("local", "");
    assert_int_equal(case_shell("grep predicted local/manifest.json"), 1);
    assert_int_equal(case_shell("$MEGAC explain t0.yaml"), 0);
    assert_false(case_printed("predicted"));
    assert_true(case_printed("this machine has"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_small_is_an_error),
        cmocka_unit_test(predictions_agree),
        cmocka_unit_test(files_lie_beside_the_spec),
        cmocka_unit_test(nothing_is_known_of_this_machine),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
