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
        cmocka_unit_test(nothing_is_known_of_this_machine),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
