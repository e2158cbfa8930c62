/* half_test.c - training in f16: the scale of the loss, and steps that are
 * skipped because of it; gradients in bf16.
 *
 * At Megatron's first scale, 2^32, a gradient of this model is infinite, so the
 * first steps are skipped until the scale has fallen far enough.
 */
#include "cases.h"

#include <math.h>

static const char *const layouts[] = {
    "parallel.tp=2 parallel.sp=true",
    "parallel.dp=2 parallel.pp=2",
    "parallel.cp=2",
    "parallel.dp=2 parallel.sharding=optim_grads_params",
    "parallel.pp=2 parallel.schedule=zb-h1 parallel.tp=2",
};

static const char fixed[] = "training.precision=fp16 training.loss_scale=4096 "
                            "training.optimizer.type=adamw "
                            "training.optimizer.lr=0.001 ";

/* Roundings differ by layout, so losses are close and no more. */
static void any_layout(void **state)
{
    char sets[512];

    (void)state;
    case_train("one", fixed);
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        snprintf(sets, sizeof sets, "%s%s", fixed, layouts[i]);
        case_compile("many", sets);
        case_run("many", "");
        case_same_metric("many", "one", "loss", 5, 5e-3);
        case_same_metric("many", "one", "grad_norm", 5, 2e-2);
        case_run("many", "--steps 1 -- --check-replicas");
        assert_int_equal(case_shell("rm -rf many"), 0);
    }
}

/* The scale cancels: gradients are those of f32 within the digits of f16. */
static void the_scale_cancels(void **state)
{
    (void)state;
    case_train("half", "training.precision=fp16 training.loss_scale=4096");
    case_train("other", "training.precision=fp16 training.loss_scale=128");
    case_train("full", "");
    case_same_metric("half", "full", "loss", 5, 5e-3);
    case_same_metric("half", "full", "grad_norm", 5, 2e-2);
    case_same_file("half.saved/grads.safetensors",
                   "other.saved/grads.safetensors", 5e-3);
    case_same_file("half.saved/grads.safetensors",
                   "full.saved/grads.safetensors", 1e-2);
    assert_true(case_metric("half", 3, "loss_scale") == 4096);
    assert_true(case_metric("full", 3, "loss_scale") == 1);
}

/* All ranks skip the same steps, which change nothing; the rate and Adam's
 * corrections wait; then training goes on. */
static void skipped_steps(void **state)
{
    static const char sets[] = "training.precision=fp16 training.steps=30 "
                               "training.optimizer.type=adamw "
                               "training.lr_schedule.warmup_steps=10 "
                               "training.lr_schedule.style=linear "
                               "parallel.pp=2 parallel.dp=2";
    int first = 1;

    (void)state;
    case_compile("skips", sets);
    case_run("skips", "--steps 3 --save-step 0 --to before");
    case_run("skips", "--steps 3 --save-step 3 --to after "
                      "-- --check-replicas");
    case_same_file("after/weights.safetensors", "before/weights.safetensors",
                   0);
    case_run("skips", "");
    while (case_metric("skips", first, "skipped") != 0)
        first++;
    assert_in_range(first, 4, 25);
    for (int s = 1; s <= first; s++)
        assert_true(case_metric("skips", s, "lr") == 0);
    assert_true(case_metric("skips", 2, "loss_scale") == 0x1p32);
    assert_true(case_metric("skips", first, "loss_scale") ==
                ldexp(1, 34 - first));
    assert_true(fabs(case_metric("skips", first + 1, "lr") - 0.01) < 1e-9);
}

/* Gradients accumulated and reduced in bf16 take half the memory, and are close
 * to those of f32. */
static void gradients_in_bf16(void **state)
{
    static const char wide[] = "training.precision=bf16 parallel.dp=2 "
                               "parallel.tp=2";
    char narrow[256];
    json_t *a, *b;

    (void)state;
    snprintf(narrow, sizeof narrow, "%s training.grad_dtype=bf16", wide);
    case_train("wide", wide);
    case_train("narrow", narrow);
    case_same_metric("narrow", "wide", "loss", 5, 1e-2);
    case_same_file("narrow.saved/grads.safetensors",
                   "wide.saved/grads.safetensors", 2e-2);
    a = case_inspect("memory", wide);
    b = case_inspect("memory", narrow);
    assert_true(json_integer_value(case_member(json_array_get(a, 0),
                                               "bytes.grads")) ==
                2 * json_integer_value(case_member(json_array_get(b, 0),
                                                   "bytes.grads")));
    json_decref(a);
    json_decref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout),
        cmocka_unit_test(the_scale_cancels),
        cmocka_unit_test(skipped_steps),
        cmocka_unit_test(gradients_in_bf16),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
