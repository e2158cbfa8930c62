/* replicas_test.c - what several ranks hold stays the same to the bit.
 *
 * From public bug reports: NVIDIA/Megatron-LM#299 (MC-35, two copies of a tied
 * table), NVIDIA-NeMo/RL#3788 (MC-37, replicated parameters under tp).
 */
#include "cases.h"

/* After five steps of a run with clipping and momentum. */
static void copies_stay_equal(void **state)
{
    static const char *const layouts[] = {
        "parallel.pp=2 model.tie_embeddings=true",
        "parallel.pp=4 model.tie_embeddings=true parallel.tp=2",
        "parallel.tp=2 parallel.sp=true model.qk_norm=true",
        "parallel.tp=8 parallel.sp=true",
        "parallel.dp=4",
        "parallel.dp=2 parallel.pp=2 model.tie_embeddings=true "
        "parallel.sharding=optim",
        "parallel.dp=2 parallel.tp=2 parallel.sharding=optim_grads_params",
        "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.sp=true "
        "training.precision=bf16",
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        char sets[256];
        snprintf(sets, sizeof sets,
                 "training.optimizer.type=adamw "
                 "training.optimizer.clip_grad=0.1 %s", layouts[i]);
        case_compile("out", sets);
        case_run("out", "-- --quiet --check-replicas");
        assert_int_equal(case_shell("rm -rf out"), 0);
    }
}

/* Two replicas that started from different seeds are told apart. */
static void other_bits_are_found(void **state)
{
    (void)state;
    case_compile("out", "parallel.dp=2");
    assert_int_equal(case_shell(
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        "timeout 30 mpirun --oversubscribe --bind-to none "
        "-n 1 out/launch --quiet --check-replicas --seed 1 : "
        "-n 1 out/launch --quiet --check-replicas --seed 2"), 3);
    assert_true(case_printed("embed param at 0,0 differs between rank"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_stay_equal),
        cmocka_unit_test(other_bits_are_found),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
