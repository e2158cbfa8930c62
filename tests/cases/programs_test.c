/* programs_test.c - a batch that grows and the loss on other data, on any
 * layout.
 *
 * Both are programs beside the step of training, which share its state.  What
 * is expected comes from one rank, and from data that training sees itself.
 */
#include "cases.h"

#include <math.h>

static const char *const layouts[] = {
    "parallel.dp=2",
    "parallel.pp=2",
    "parallel.pp=2 parallel.vpp=2",
    "parallel.pp=2 parallel.schedule=zb-h1 parallel.tp=2 parallel.sp=true",
    "parallel.cp=2 parallel.tp=2 parallel.sp=true",
    "parallel.dp=2 parallel.pp=2 parallel.sharding=optim_grads_params",
    "training.recompute.granularity=full parallel.pp=4",
};

/* Batches of 2, 4, 6 and 8: after 0, 4, 8 and 12 samples. */
static const char both[] = "training.rampup=[2,2,12] training.steps=6 "
                           "training.eval.interval=2 training.eval.steps=2 "
                           "data.valid=synthetic "
                           "training.lr_schedule.style=linear "
                           "training.lr_schedule.warmup_steps=1 ";

static void any_layout(void **state)
{
    static const int tokens[] = {2, 2, 4, 6, 8, 8};
    char sets[512];

    (void)state;
    case_train("one", both);
    for (int s = 1; s <= 6; s++)
        assert_true(case_metric("one", s, "tokens") == 32 * tokens[s - 1]);
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        snprintf(sets, sizeof sets, "%s%s", both, layouts[i]);
        case_train("many", sets);
        case_same_run("many", "one", 6);
        for (int s = 2; s <= 6; s += 2)
            assert_true(fabs(case_metric("many", s, "valid_loss") -
                             case_metric("one", s, "valid_loss")) < 1e-5);
        assert_int_equal(case_shell("rm -rf many many.saved"), 0);
    }
}

/* The lr counts samples: a warm-up of 1 batch of 8 is over after 4 steps of 2,
 * 2 and 4, and decays over what 6 steps take, 30 samples in 3 whole batches. */
static void rate_by_samples(void **state)
{
    (void)state;
    case_train("rates", both);
    assert_true(case_metric("rates", 1, "lr") == 0);
    assert_true(fabs(case_metric("rates", 2, "lr") - 0.1 * 2 / 8) < 1e-9);
    assert_true(fabs(case_metric("rates", 3, "lr") - 0.1 * 4 / 8) < 1e-9);
    assert_true(fabs(case_metric("rates", 4, "lr") - 0.1) < 1e-9);
    assert_true(fabs(case_metric("rates", 5, "lr") - 0.1 * 10 / 16) < 1e-9);
}

/* With a rate of 0, evaluating on the training data tells each step's loss. */
static void evaluation_is_the_loss(void **state)
{
    (void)state;
    assert_int_equal(case_shell("seq 1 2000 | head -c 2561 >text && "
                                "$MEGAC data pack text -o corpus"), 0);
    case_train("same", "data.train=corpus data.valid=corpus training.steps=4 "
                       "training.optimizer.lr=0 parallel.pp=2 "
                       "training.eval.interval=1 training.eval.steps=1");
    for (int s = 1; s <= 4; s++)
        assert_true(fabs(case_metric("same", s, "valid_loss") -
                         case_metric("same", s, "loss")) < 1e-6);
}

/* A split keeps its validation part from training; evaluating changes nothing
 * in training. */
static void evaluation_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(case_shell("seq 1 2000 | head -c 2561 >a.txt && "
                                "seq 5000 7000 | head -c 2561 >b.txt && "
                                "$MEGAC data pack a.txt b.txt -o both && "
                                "$MEGAC data pack a.txt -o first && "
                                "$MEGAC data pack b.txt -o second"), 0);
    case_train("plain", "data.train=first training.steps=4");
    case_train("split", "data.train=both data.split=1,1 training.steps=4 "
                        "training.eval.interval=2 training.eval.steps=3");
    case_train("apart", "data.train=first data.valid=second training.steps=4 "
                        "training.eval.interval=2 training.eval.steps=3");
    case_same_run("split", "plain", 4);
    case_same_file("split.saved/weights.safetensors",
                   "plain.saved/weights.safetensors", 0);
    for (int s = 2; s <= 4; s += 2)
        assert_true(case_metric("split", s, "valid_loss") ==
                    case_metric("apart", s, "valid_loss"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout),
        cmocka_unit_test(rate_by_samples),
        cmocka_unit_test(evaluation_is_the_loss),
        cmocka_unit_test(evaluation_changes_nothing),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
