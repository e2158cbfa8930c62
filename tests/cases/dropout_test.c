/* dropout_test.c - what dropout drops is named by the run, not by its layout.
 *
 * From public bug reports: NVIDIA/Megatron-LM#1256 (MC-52, under sequence
 * parallelism all ranks drew one mask for different tokens),
 * tenstorrent/tt-metal#55947 (replicas shared their masks),
 * pytorch/pytorch#190717 and PaddlePaddle/PaddleFleetX#1005 (recomputation drew
 * anew, so that forward and backward disagreed).
 */
#include "cases.h"

enum { STEPS = 5 };

#define DROPOUT "model.hidden_dropout=0.1 model.attention_dropout=0.1 "
#define SPLIT "parallel.tp=2 parallel.sp=true "

/* MC-52: computed again, but dropped the same way: attention to the last bit,
 * whole layers within the rounding of products in another order. */
static void recomputation_draws_the_same(void **state)
{
    static const struct {
        const char *sets;
        double limit;
    } again[] = {
        {DROPOUT SPLIT "training.recompute.granularity=selective", 0},
        {DROPOUT SPLIT "training.recompute.granularity=full", 1e-6},
    };

    (void)state;
    case_train("saved", DROPOUT SPLIT);
    for (size_t i = 0; i < MC_LEN(again); i++) {
        case_train("again", again[i].sets);
        case_same_file("again.saved/grads.safetensors",
                       "saved.saved/grads.safetensors", again[i].limit);
        assert_int_equal(case_shell("rm -rf again again.saved"), 0);
    }
}

/* MC-52: tokens that are split draw as they do on one rank, and so do
 * replicas, stages, parts of a sequence and microbatches. */
static void layouts_draw_the_same(void **state)
{
    static const char *const layouts[] = {
        DROPOUT "parallel.tp=2",
        DROPOUT "parallel.tp=4 parallel.sp=true",
        DROPOUT "parallel.dp=2 parallel.pp=2 parallel.vpp=2",
        DROPOUT "parallel.cp=2 training.micro_batch_size=4",
    };

    (void)state;
    case_train("one", DROPOUT);
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        case_train("layout", layouts[i]);
        case_same_run("layout", "one", STEPS);
        assert_int_equal(case_shell("rm -rf layout layout.saved"), 0);
    }
}

/* One seed, one run; another seed draws otherwise; and it does drop. */
static void seeds_draw(void **state)
{
    (void)state;
    case_train("kept", "");
    case_train("dropped", DROPOUT);
    case_train("again", DROPOUT);
    case_same_metric("again", "dropped", "loss", STEPS, 0);
    for (int s = 1; s <= STEPS; s++)
        assert_true(case_metric("dropped", s, "loss") !=
                    case_metric("kept", s, "loss"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_draws_the_same),
        cmocka_unit_test(layouts_draw_the_same),
        cmocka_unit_test(seeds_draw),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
