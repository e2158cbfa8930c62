/* batch_test.c - the batch and the scale of gradients belong to the spec, not
 * to the layout: any split into microbatches, replicas and stages gives the
 * same losses, norms, gradients and weights.
 *
 * From public bug reports: huggingface/transformers#34191 and
 * meta-pytorch/torchtune#1875 (MC-32, mean of means), pytorch/torchtitan#1733
 * and deepspeedai/DeepSpeed#7773 (MC-33, sum instead of mean under pipelining),
 * Oneflow-Inc/libai#345 (MC-47, batch changed with the layout),
 * deepspeedai/DeepSpeed#1110 (MC-10, sharded gradients reduced twice under
 * pipelining), NVIDIA-NeMo/Automodel#1482 (MC-46, positions and labels of a
 * sequence that is split).
 */
#include "cases.h"

#include "runtime/state.h"

#include <math.h>

enum { STEPS = 5, SAMPLES = 8 };

/* MC-10, MC-32, MC-33, MC-46, MC-47 */
static void any_split_of_the_batch(void **state)
{
    static const char *const splits[] = {
        "training.micro_batch_size=8",
        "parallel.dp=8",
        "parallel.dp=2 parallel.pp=2",
        "parallel.pp=2",
        "parallel.pp=2 training.micro_batch_size=4",
        "parallel.pp=2 parallel.schedule=gpipe training.micro_batch_size=2",
        "parallel.pp=3 parallel.pp_first_layers=1 parallel.pp_last_layers=1",
        "parallel.pp=2 parallel.vpp=2",
        "parallel.world_size=2",
        "parallel.world_size=2 parallel.tp=2",
        "parallel.cp=4",
        "parallel.cp=4 parallel.cp_comm=a2a",
        "parallel.cp=2 parallel.cp_comm=a2a parallel.tp=2 parallel.sp=true",
        "parallel.cp=2 parallel.cp_comm=all_gather parallel.dp=2",
        "parallel.cp=4 parallel.cp_comm=a2a+p2p parallel.cp_sizes=[2,2]",
        "parallel.pp=2 parallel.dp=2 parallel.sharding=optim",
        "parallel.pp=2 parallel.dp=2 parallel.sharding=optim_grads",
        "parallel.pp=2 parallel.dp=2 parallel.sharding=optim_grads_params",
    };

    (void)state;
    case_train("one", "");
    for (size_t i = 0; i < MC_LEN(splits); i++) {
        case_train("split", splits[i]);
        case_same_run("split", "one", STEPS);
        for (int s = 1; s <= STEPS; s++)
            assert_true(case_metric("split", s, "tokens") == SAMPLES * 32);
        assert_int_equal(case_shell("rm -rf split split.saved"), 0);
    }
}

/* MC-25: 6 microbatches over 4 stages, in one group. */
static void microbatches_in_one_group(void **state)
{
    static const char base[] =
        "model.num_layers=8 training.global_batch_size=6";
    char sets[256];

    (void)state;
    snprintf(sets, sizeof sets,
             "%s parallel.pp=4 parallel.vpp=2 parallel.microbatch_group=6",
             base);
    case_train("six", base);
    case_train("grouped", sets);
    case_same_run("grouped", "six", STEPS);
}

/* ---- one sample at a time ------------------------------------------------ */

/* Adds a file of gradients, times `scale`, to `sum`. */
static void add_gradients(const char *path, float scale, float *sum,
                          uint64_t n)
{
    SafeSet f;
    Status failed = safe_open(path, &f);
    uint64_t at = 0;

    if (failed)
        fail_msg("%s", status_text(failed));
    for (uint32_t i = 0; i < f.n; i++)
        for (uint64_t b = f.v[i].begin; b < f.v[i].end; b += sizeof(float)) {
            float x;
            memcpy(&x, f.part[0].map + b, sizeof x);
            assert_true(at < n);
            sum[at++] += scale * x;
        }
    assert_int_equal(at, n);
    safe_close(&f);
}

/* MC-33: with a rate of 0 the weights stand still, so step k of a batch of one
 * gives sample k's gradient; their mean is the gradient of the batch. */
static void the_mean_of_single_gradients(void **state)
{
    enum { ELEMENTS = 160320 }; /* 2*96*64 + 64 + 4*36992 */
    float *mean = calloc(ELEMENTS, sizeof *mean);
    float *whole = calloc(ELEMENTS, sizeof *whole);
    double square = 0, distance = 0;

    (void)state;
    assert_non_null(mean);
    assert_non_null(whole);
    case_compile("single", "training.global_batch_size=1 "
                           "training.optimizer.lr=0");
    for (int k = 1; k <= SAMPLES; k++) {
        char options[64];
        snprintf(options, sizeof options, "--steps %d --save-step %d --to g",
                 k, k);
        case_run("single", options);
        add_gradients("g/grads.safetensors", 1.0f / SAMPLES, mean, ELEMENTS);
    }
    case_train("batch", "parallel.pp=2 training.optimizer.lr=0");
    add_gradients("batch.saved/grads.safetensors", 1, whole, ELEMENTS);
    for (int i = 0; i < ELEMENTS; i++) {
        double x = (double)whole[i], d = x - (double)mean[i];

        square += x * x;
        distance += d * d;
    }
    assert_true(square > 0);
    assert_true(sqrt(distance / square) < 1e-5);
    free(mean);
    free(whole);
}

/* MC-47: a batch that nobody gave is a microbatch per replica, and printed. */
static void derived_batch_is_printed(void **state)
{
    (void)state;
    assert_int_equal(case_shell("$MEGAC explain t0.yaml --set parallel.dp=2 "
                                "--set training.micro_batch_size=3 "
                                "--set training.global_batch_size=null"), 0);
    assert_true(case_printed("6 samples"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_of_the_batch),
        cmocka_unit_test(microbatches_in_one_group),
        cmocka_unit_test(the_mean_of_single_gradients),
        cmocka_unit_test(derived_batch_is_printed),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
