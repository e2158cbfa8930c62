/* mask_test.c - the mean over valid targets, of the whole batch and of nothing
 * else, however it is split.
 *
 * A target is not valid if its label is negative; for these the labels come
 * from here, and the evaluator runs the step.  A file's mask weighs targets;
 * those run for real.
 * From public bug reports: NVIDIA/Megatron-LM#1764 (MC-31, a rank without any
 * valid target divided by zero), huggingface/transformers#34191 and
 * pytorch/torchtitan#2206 (MC-32, the mean of means).
 */
#include "cases.h"

#include "frontend/model.h"
#include "ir/eval.h"
#include "passes/passes.h"

#include <math.h>

/* Valid are the first `first` targets of the batch's first sample and the
 * first `last` ones of its last. */
typedef struct {
    int64_t first, last;
    double inverse; /* 1 / number of valid targets; 0: there are none */
} Mask;

enum { SAMPLES = 4, SEQ = 32 };

/* Sample number from microbatch and row, whatever the size of microbatches. */
static bool masked_batch(void *user, const char *what, int64_t mb, int64_t s,
                         int64_t b, int64_t *out)
{
    const Mask *mask = ((void **)user)[0];
    const Spec *spec = ((void **)user)[1];
    int64_t rows = spec->training.micro_batch_size * spec->parallel.dp;
    int64_t sample = mb * rows + b;
    int64_t valid = sample == 0             ? mask->first
                    : sample == SAMPLES - 1 ? mask->last
                                            : 0;
    int64_t token = (13 * sample + 7 * s + s * s) % 96;

    *out = strcmp(what, "labels") != 0 ? token
           : s < valid                 ? (token + 5) % 96
                                       : -1;
    return true;
}

static bool masked_host(void *user, const char *what, double *out)
{
    const Mask *mask = ((void **)user)[0];

    *out = mask->inverse;
    return strcmp(what, "inv_targets") == 0;
}

/* A module and what one step of it left. */
typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m;
    EvalResult *result;
} Step;

static Step step_run(EvalKind kind, Mask mask, const char *until,
                     const char *const *sets, int n)
{
    Step s = {.arena = arena_new()};
    const PassOptions options = {.stop_after = until};
    Spec *spec;

    s.diag = diag_new(s.arena);
    spec = spec_load(s.arena, s.diag, "t0.yaml", sets, n);
    assert_non_null(spec);
    s.m = model_build(s.arena, s.diag, spec);
    assert_true(passes_run(s.m, spec, &options));
    s.result = eval_run_with(s.arena, s.m, &(EvalOptions){
        .kind = kind, .seed = 3, .user = (void *[]){&mask, spec},
        .batch = masked_batch, .host = masked_host});
    diag_print(s.diag, stderr);
    assert_non_null(s.result);
    return s;
}

static void step_free(Step *s)
{
    module_free(s->m);
    diag_free(s->diag);
    arena_free(s->arena);
}

static double loss_of(const Step *s)
{
    EvalNum loss = {0};

    assert_true(eval_get_metric(s->result, "loss", &loss));
    return loss.f;
}

/* ---- layouts ------------------------------------------------------------- */

static const char *const one_rank[] = {"training.micro_batch_size=4",
                                       "training.global_batch_size=4",
                                       "model.num_layers=2"};

static const char *const layouts[][6] = {
    {"training.micro_batch_size=1"},
    {"parallel.dp=4"},
    {"parallel.dp=2", "parallel.pp=2"},
    {"parallel.tp=2", "parallel.sp=true", "training.micro_batch_size=2"},
    {"parallel.dp=4", "parallel.sharding=optim_grads"},
};

static void equals_one_rank(Mask mask, const char *const *layout)
{
    const char *sets[8] = {"training.micro_batch_size=1",
                           "training.global_batch_size=4",
                           "model.num_layers=2"};
    int n = 3;
    Step one, many;

    for (int k = 0; k < 5 && layout[k]; k++)
        sets[n++] = layout[k];
    one = step_run(EVAL_FP64, mask, "optimizer", one_rank, 3);
    many = step_run(EVAL_FP64, mask, "pipeline", sets, n);
    if (!eval_equal(one.result, many.result, many.diag, 1e-9)) {
        diag_print(many.diag, stderr);
        fail_msg("%s differs", layout[0]);
    }
    step_free(&one);
    step_free(&many);
}

/* MC-31: only the first 4 of 128 targets are valid, so most ranks have none;
 * MC-32: 5 in one sample, 1 in another. */
static void ranks_without_targets(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(layouts); i++) {
        equals_one_rank((Mask){4, 0, 1.0 / 4}, layouts[i]);
        equals_one_rank((Mask){5, 1, 1.0 / 6}, layouts[i]);
    }
}

/* MC-32: (10 + 4) / 6 and not (10/5 + 4/1) / 2. */
static void the_mean_of_all_targets(void **state)
{
    Step both, first, last;

    (void)state;
    both = step_run(EVAL_FP64, (Mask){5, 1, 1.0 / 6}, "optimizer", one_rank, 3);
    first = step_run(EVAL_FP64, (Mask){5, 0, 1.0 / 5}, "optimizer", one_rank,
                     3);
    last = step_run(EVAL_FP64, (Mask){0, 1, 1}, "optimizer", one_rank, 3);
    assert_true(fabs(loss_of(&first) - loss_of(&last)) > 1e-3);
    assert_true(fabs(6 * loss_of(&both) - 5 * loss_of(&first) -
                     loss_of(&last)) < 1e-9);
    step_free(&both);
    step_free(&first);
    step_free(&last);
}

/* MC-31: without any valid target the loss and the norm are 0, not NaN. */
static void no_target_at_all(void **state)
{
    EvalNum norm = {0};
    Step s;

    (void)state;
    s = step_run(EVAL_FP64, (Mask){0}, "optimizer", one_rank, 3);
    assert_true(loss_of(&s) == 0);
    assert_true(eval_get_metric(s.result, "grad_norm", &norm));
    assert_true(norm.f == 0);
    step_free(&s);
}

/* ---- masks from files ---------------------------------------------------- */

static const char files[] = "data.train=corpus data.loss_mask=mask "
                            "training.optimizer.lr=0.05 ";

/* 257 tokens, 8 samples of 32 targets, and weights: `pattern` is an awk
 * expression of i, the position from 0. */
static void pack_masked(const char *pattern)
{
    assert_int_equal(
        case_shell("awk 'BEGIN {for (i = 0; i < 257; i++) "
                   "print (i * i * 7 + i) %% 95}' >tokens && "
                   "awk 'BEGIN {for (i = 0; i < 257; i++) print %s}' >weights "
                   "&& $MEGAC data pack tokens --tokens ids -o corpus && "
                   "$MEGAC data pack weights --tokens ids --dtype uint8 "
                   "-o mask", pattern), 0);
}

static void train_masked(const char *out, const char *sets)
{
    char all[256];

    snprintf(all, sizeof all, "%s%s", files, sets);
    case_train(out, all);
}

/* MC-31, MC-32: a ragged mask, most ranks without any target, on any split. */
static void masks_on_any_split(void **state)
{
    static const char *const splits[] = {
        "training.micro_batch_size=8",
        "parallel.dp=8",
        "parallel.cp=4",
        "parallel.cp=4 parallel.cp_comm=a2a",
        "parallel.cp=4 parallel.cp_comm=all_gather",
        "parallel.cp=4 parallel.cp_comm=a2a+p2p parallel.cp_sizes=[2,2]",
        "parallel.dp=2 parallel.pp=2",
        "parallel.tp=2 parallel.sp=true parallel.pp=2",
        "parallel.dp=4 parallel.sharding=optim_grads",
    };

    (void)state;
    pack_masked("(i % 32 < 5 && i / 32 % 3 == 0) * (1 + i % 2)");
    train_masked("one", "");
    for (size_t i = 0; i < MC_LEN(splits); i++) {
        train_masked("split", splits[i]);
        case_same_run("split", "one", 5);
        assert_int_equal(case_shell("rm -rf split split.saved"), 0);
    }
}

/* The loss of the first step under a mask, and the weight of its targets. */
static double masked_loss(const char *pattern, double *out_targets)
{
    pack_masked(pattern);
    train_masked("masked", "");
    *out_targets = case_metric("masked", 1, "targets");
    return case_metric("masked", 1, "loss");
}

/* MC-32, with weights: (n a + 3 m b) / (n + 3 m) for n targets of weight 1 and
 * mean loss a, m of weight 3 and mean loss b.  Weights are relative. */
static void weights_are_weights(void **state)
{
    double n, m, both, twice;
    double a = masked_loss("i % 8 == 1", &n);
    double b = masked_loss("i % 16 == 3", &m);
    double mean = masked_loss("(i % 8 == 1) + 3 * (i % 16 == 3)", &both);
    double same = masked_loss("2 * (i % 8 == 1)", &twice);

    (void)state;
    assert_true(n == 32 && m == 16 && both == 80 && twice == 64);
    assert_true(fabs(a - b) > 1e-3);
    assert_true(fabs(mean - (n * a + 3 * m * b) / both) < 1e-5);
    assert_true(fabs(same - a) < 1e-6);
}

/* MC-31: a batch without any target. */
static void no_target_in_the_file(void **state)
{
    double targets;

    (void)state;
    assert_true(masked_loss("0", &targets) == 0);
    assert_true(targets == 0);
    assert_true(case_metric("masked", 5, "grad_norm") == 0);
}

/* ---- blends and parts ---------------------------------------------------- */

/* A second set of as many other tokens, and its weights. */
static void pack_second(const char *pattern)
{
    assert_int_equal(
        case_shell("awk 'BEGIN {for (i = 0; i < 257; i++) "
                   "print (i * i * 3 + 5 * i) %% 95}' >tokens && "
                   "awk 'BEGIN {for (i = 0; i < 257; i++) print %s}' >weights "
                   "&& $MEGAC data pack tokens --tokens ids -o second && "
                   "$MEGAC data pack weights --tokens ids --dtype uint8 "
                   "-o second-mask", pattern), 0);
}

/* The loss of the first step of both sets, as many samples of one as of the
 * other, under `masks`. */
static double blended_loss(const char *masks, double *out_targets)
{
    char sets[256];

    snprintf(sets, sizeof sets, "data.train=[corpus,second] data.loss_mask=%s",
             masks);
    case_train("blend", sets);
    *out_targets = masks[0] == '[' ? case_metric("blend", 1, "targets") : 0;
    return case_metric("blend", 1, "loss");
}

/* Of 8 samples of 32 targets 4 come from either set: where nothing of one
 * counts, the loss is the mean over the other, and the mean of these two is
 * that over all. */
static void each_path_of_a_blend(void **state)
{
    double n, m, none, a, b, all;

    (void)state;
    pack_masked("0");
    pack_second("0");
    b = blended_loss("[mask,null]", &n);
    a = blended_loss("[null,second-mask]", &m);
    all = blended_loss("null", &none);
    assert_true(n == 128 && m == 128);
    assert_true(fabs(a - b) > 1e-3);
    assert_true(fabs(all - (a + b) / 2) < 1e-5);
    assert_true(blended_loss("[mask,second-mask]", &none) == 0 && none == 0);
}

/* Trains on the first three quarters of a text, and validates with the last;
 * bytes i count where an expression of awk says so. */
static void train_parts(const char *count)
{
    assert_int_equal(
        case_shell("awk 'BEGIN {for (i = 0; i < 1028; i++) "
                   "printf \"%%c\", 33 + (i * i * 7 + i) %% 60}' >text && "
                   "awk 'BEGIN {for (i = 0; i < 1028; i++) print (%s)}' "
                   ">weights && $MEGAC data pack weights --tokens ids "
                   "--dtype uint8 -o mask", count), 0);
    case_train("parts", "data.train={\"text\":\"text\"} data.loss_mask=mask "
                        "data.split=3,1 training.eval.interval=1 "
                        "training.eval.steps=1");
}

/* Each part finds its own weights. */
static void parts_of_a_text(void **state)
{
    (void)state;
    train_parts("i < 771");
    assert_true(case_metric("parts", 1, "targets") == 8 * 32);
    assert_true(case_metric("parts", 1, "loss") > 1);
    assert_true(case_metric("parts", 1, "valid_loss") == 0);
    train_parts("i >= 771");
    assert_true(case_metric("parts", 1, "targets") == 0);
    assert_true(case_metric("parts", 1, "loss") == 0);
    assert_true(case_metric("parts", 1, "valid_loss") > 1);
}

/* A mask that does not lie beside the tokens. */
static void mask_of_other_tokens(void **state)
{
    (void)state;
    pack_masked("1");
    assert_int_equal(case_shell("$MEGAC data verify mask --like corpus.idx"),
                     0);
    assert_int_equal(case_shell("head -256 weights >short && $MEGAC data pack "
                                "short --tokens ids -o mask"), 0);
    assert_int_equal(case_shell("$MEGAC data verify mask --like corpus"), 1);
    assert_true(case_printed("sequence 0 of mask.bin has 256 tokens, of "
                             "corpus.bin 257"));
    case_compile("wrong", files);
    assert_int_equal(case_shell("$MEGAC run wrong"), 1);
    assert_true(case_printed("mask.bin: sequence 0 has 256 weights, but 257 "
                             "tokens in corpus.bin"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_without_targets),
        cmocka_unit_test(the_mean_of_all_targets),
        cmocka_unit_test(no_target_at_all),
        cmocka_unit_test(masks_on_any_split),
        cmocka_unit_test(weights_are_weights),
        cmocka_unit_test(no_target_in_the_file),
        cmocka_unit_test(each_path_of_a_blend),
        cmocka_unit_test(parts_of_a_text),
        cmocka_unit_test(mask_of_other_tokens),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
