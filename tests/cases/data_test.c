/* data_test.c - which samples a step sees, and files that outlive a layout.
 *
 * From public bug reports: NVIDIA/Megatron-LM#725 and
 * meta-pytorch/torchft#292 (MC-79, the order of samples depended on the number
 * of replicas), THUDM/Chinese-Transformer-XL#3 and
 * NVIDIA-NeMo/Megatron-Bridge#1331 (MC-76, padded tables in checkpoints).
 */
#include "cases.h"

#include "runtime/state.h"

#include <math.h>

/* ---- MC-79 --------------------------------------------------------------- */

enum { STEPS = 12 }; /* of 16 samples; the file has 80 */

/* 2561 bytes of counting: 80 samples of 32 tokens and the last one's label. */
static void pack_samples(void)
{
    assert_int_equal(case_shell("seq 1 2000 | head -c 2561 >text && "
                                "$MEGAC data pack text -o corpus"), 0);
}

/* With a rate of 0 the weights stand still, so a step's loss tells its samples.
 * No two steps tell the same, but every layout tells the same of each step. */
static void samples_of_each_step(void **state)
{
    static const char *const layouts[] = {
        "parallel.dp=2",
        "parallel.dp=4",
        "parallel.dp=2 training.micro_batch_size=4",
        "parallel.tp=2 parallel.dp=2",
        "parallel.pp=4",
    };
    static const char common[] = "data.train=corpus training.steps=12 "
                                 "training.global_batch_size=16 "
                                 "training.optimizer.lr=0";

    (void)state;
    pack_samples();
    case_train("one", common);
    for (int i = 1; i < STEPS; i++)
        assert_true(fabs(case_metric("one", i, "loss") -
                         case_metric("one", i + 1, "loss")) > 1e-4);
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        char sets[512];
        snprintf(sets, sizeof sets, "%s %s", common, layouts[i]);
        case_train("many", sets);
        case_same_run("many", "one", STEPS);
        assert_int_equal(case_shell("rm -rf many many.saved"), 0);
    }
}

/* Another seed is another order; the same seed is the same order. */
static void the_seed_is_the_order(void **state)
{
    static const char common[] = "data.train=corpus training.steps=2 "
                                 "training.global_batch_size=16";
    char sets[256];

    (void)state;
    pack_samples();
    case_train("a", common);
    case_train("b", common);
    snprintf(sets, sizeof sets, "%s training.seed=4321", common);
    case_compile("c", sets);
    case_run("c", "--load a.saved/weights.safetensors");
    case_compile("d", common);
    case_run("d", "--load a.saved/weights.safetensors");
    case_same_metric("a", "b", "loss", 2, 0);
    assert_true(fabs(case_metric("c", 1, "loss") -
                     case_metric("d", 1, "loss")) > 1e-4);
}

/* Of two documents, the first half of a split is the first document. */
static void a_split_is_a_part(void **state)
{
    static const char common[] = "training.steps=2 ";
    char sets[256];

    (void)state;
    assert_int_equal(case_shell("seq 1 2000 | head -c 2561 >a.txt && "
                                "seq 5000 7000 | head -c 2561 >b.txt && "
                                "$MEGAC data pack a.txt b.txt -o both && "
                                "$MEGAC data pack a.txt -o first"), 0);
    snprintf(sets, sizeof sets, "%sdata.train=first", common);
    case_train("whole", sets);
    snprintf(sets, sizeof sets, "%sdata.train=both data.split=1,1,0",
             common);
    case_train("part", sets);
    case_same_metric("whole", "part", "loss", 2, 0);
}

/* ---- MC-76 --------------------------------------------------------------- */

static void expect_rows(const char *path, const char *name, int64_t rows)
{
    SafeSet f;
    const SafeTensor *t;
    Status failed = safe_open(path, &f);

    if (failed)
        fail_msg("%s", status_text(failed));
    t = safe_find(&f, name);
    assert_non_null(t);
    assert_int_equal(t->rows, rows);
    safe_close(&f);
}

/* 50257 rows, padded to 50304 on one rank and to 51200 on eight. */
static void tables_without_padding(void **state)
{
    static const char one[] = "one.saved/weights.safetensors";

    (void)state;
    case_train("one", "model.vocab_size=50257 model.num_layers=1 "
                      "training.global_batch_size=1 training.steps=1");
    expect_rows(one, "model.embed_tokens.weight", 50257);
    expect_rows(one, "lm_head.weight", 50257);
    case_compile("eight", "model.vocab_size=50257 model.num_layers=1 "
                          "training.global_batch_size=1 training.steps=2 "
                          "parallel.tp=8");
    case_run("eight", "--load one.saved/weights.safetensors --save-step 0 "
                      "--to eight.saved");
    case_same_file("eight.saved/weights.safetensors", one, 0);
    case_run("eight", "--save-step 2 --to eight.saved");
    expect_rows("eight.saved/weights.safetensors", "lm_head.weight", 50257);
    case_run("one", "--load eight.saved/weights.safetensors --save-step 0 "
                    "--to one.saved");
    case_same_file(one, "eight.saved/weights.safetensors", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_of_each_step),
        cmocka_unit_test(the_seed_is_the_order),
        cmocka_unit_test(a_split_is_a_part),
        cmocka_unit_test(tables_without_padding),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
