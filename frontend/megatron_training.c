/* megatron_training.c - flags whose meaning depends on others: the optimizer,
 * steps and samples, evaluation and data.
 *
 * Megatron counts a schedule in samples, megac in steps of the whole batch;
 * between steps both go by samples.  Sources: get_optimizer_param_scheduler
 * and update_train_iters of megatron/training/training.py.
 */
#include "frontend/megatron.h"

#include "base/batch.h"
#include "base/split.h"

#include <math.h>

/* ---- the optimizer ------------------------------------------------------- */

static void optimizer_convert(Import *im)
{
    static const char path[] = "training.optimizer.type";
    const Flag *f = import_given(im, ID_OPTIMIZER);
    const Flag *coupled = import_given(im, ID_NO_DECOUPLED_WEIGHT_DECAY);
    bool sgd = f && strcmp(flag_value(f), "sgd") == 0;
    bool adam = !f || strcmp(flag_value(f), "adam") == 0;

    if (f && !sgd && !adam)
        import_reject(im, f, "megac has adam and sgd");
    else if (f)
        import_put(im, path, sgd ? "sgd" : coupled ? "adam" : "adamw",
                   f->values[0].loc);
    else if (coupled)
        import_put(im, path, "adam", coupled->loc);
    if (coupled && sgd)
        import_no_effect(im, coupled, "with --optimizer sgd");
    if (sgd)
        import_default(im, "training.optimizer.momentum", "0.9");
    else
        import_default(im, "training.optimizer.beta2", "0.999");
}

/* ---- samples and steps --------------------------------------------------- */

/* Samples of a whole step: as given, or a microbatch of each replica. */
static int64_t batch_of(Import *im)
{
    int64_t batch = 0, micro = 1, tp = 1, pp = 1, cp = 1, ep = 1, dp = 1;
    int64_t world = 0;

    if (import_number(im, "training.global_batch_size", &batch))
        return MC_MAX(batch, 1);
    import_number(im, "training.micro_batch_size", &micro);
    import_number(im, "parallel.tp", &tp);
    import_number(im, "parallel.pp", &pp);
    import_number(im, "parallel.cp", &cp);
    import_number(im, "parallel.ep", &ep);
    if (import_number(im, "parallel.world_size", &world))
        dp = world / MC_MAX(product_saturated(tp, product_saturated(pp, cp)),
                            1);
    else if (import_number(im, "parallel.dp", &dp))
        dp = product_saturated(dp, ep);
    else
        dp = ep;
    return MC_MAX(product_saturated(micro, dp), 1);
}

/* A number of steps that need not be whole: the nearest, said aloud. */
static void steps_put(Import *im, const char *path, const Flag *f,
                      double steps)
{
    double whole = round(steps);

    if (fabs(steps - whole) > 1e-9 * (1 + steps))
        diag_warn(im->diag, f->values[0].loc, "MC0027",
                  "%s %s is %.2f steps: %s = %.0f", f->name, flag_value(f),
                  steps, path_name(path), whole);
    import_put_int(im, path, (int64_t)whole, f->values[0].loc);
}

static void samples_convert(Import *im, FlagId id, const char *path)
{
    const Flag *f = import_given(im, id);
    int64_t samples;

    if (!f)
        return;
    if (!str_to_int(flag_value(f), &samples) || samples < 0)
        import_reject(im, f, "expected a number of samples");
    else
        steps_put(im, path, f, (double)samples / (double)batch_of(im));
}

/* [start, increment, samples]; a batch that does not grow otherwise.  What is
 * wrong with the list is reported when it is read for good. */
static BatchRampup rampup_of(const Import *im, int64_t full)
{
    static const char path[] = "training.rampup";
    const Node *n = import_value(im, path);
    Spec *s = arena_new_of(im->arena, Spec);
    Diag *unseen = diag_new(im->arena);
    const SpecIntList *list = &s->training.rampup;
    BatchRampup r = {full, 0, 0, full};

    if (n && value_parse(im->arena, unseen, schema_key(path), n, s) &&
        list->n == 3)
        r = (BatchRampup){list->v[0], list->v[1], list->v[2], full};
    diag_free(unseen);
    return r;
}

/* Whole batches only, as in Megatron's update_train_iters. */
static int64_t steps_of(const BatchRampup *r, int64_t samples)
{
    int64_t steps = 0, consumed = 0, last = MC_MIN(r->samples, samples);
    bool grows = r->start > 0 && r->increment > 0 && r->start < r->full;

    while (grows && consumed <= last) {
        int64_t batch = batch_at(r, consumed);
        int64_t n = MC_MIN(batch_alike(r, consumed),
                           (last - consumed) / batch + 1);
        consumed += n * batch;
        steps += n;
    }
    if (samples > consumed)
        steps += (samples - consumed) / r->full;
    return steps;
}

static void train_samples_convert(Import *im)
{
    const Flag *f = import_given(im, ID_TRAIN_SAMPLES);
    BatchRampup r = rampup_of(im, batch_of(im));
    int64_t samples;

    if (f && import_int(im, f, &samples))
        import_put_int(im, "training.steps", steps_of(&r, samples),
                       f->values[0].loc);
}

static void warmup_fraction_convert(Import *im, const Flag *f,
                                    const char *path)
{
    int64_t steps = 0;
    double share;

    if (!str_to_double(flag_value(f), &share) || share < 0 || share > 1)
        import_reject(im, f, "expected a number from 0 to 1");
    else if (import_number(im, "training.lr_schedule.decay_steps", &steps) ||
             import_number(im, "training.steps", &steps))
        steps_put(im, path, f, share * (double)steps);
}

static bool is_zero(const Flag *f)
{
    return f && strcmp(flag_value(f), "0") == 0;
}

/* A count of 0 stands beside a fraction in many scripts. */
static void warmup_convert(Import *im)
{
    static const char path[] = "training.lr_schedule.warmup_steps";
    const Flag *share = import_given(im, ID_LR_WARMUP_FRACTION);
    const Flag *steps = import_given(im, ID_LR_WARMUP_ITERS);
    const Flag *samples = import_given(im, ID_LR_WARMUP_SAMPLES);

    if (share)
        warmup_fraction_convert(im, share, path);
    if (steps && !(is_zero(steps) && (share || samples)))
        import_put_value(im, path, steps);
    if (samples && !(is_zero(samples) && (share || steps)))
        samples_convert(im, ID_LR_WARMUP_SAMPLES, path);
}

static void steps_convert(Import *im)
{
    train_samples_convert(im);
    samples_convert(im, ID_LR_DECAY_SAMPLES,
                    "training.lr_schedule.decay_steps");
    samples_convert(im, ID_LR_WSD_DECAY_SAMPLES,
                    "training.lr_schedule.wsd_decay_steps");
    warmup_convert(im);
}

/* ---- evaluation and data ------------------------------------------------- */

/* Why nothing can be evaluated, as Megatron then silently does not; NULL: it
 * can.  Without any data both programs make some up. */
static const char *eval_obstacle(const Import *im)
{
    const Flag *split = import_given(im, ID_SPLIT);
    double weights[SPLIT_PARTS];

    if (!im->whole || import_given(im, ID_MOCK_DATA) ||
        import_given(im, ID_VALID_DATA_PATH))
        return NULL;
    if (import_given(im, ID_TRAIN_DATA_PATH))
        return "without --valid-data-path";
    if (import_given(im, ID_DATA_PATH) && split &&
        split_parse(flag_value(split), weights) && !(weights[SPLIT_VALID] > 0))
        return "with this --split, which leaves nothing for validation";
    return NULL;
}

static void eval_convert(Import *im)
{
    const Flag *interval = import_given(im, ID_EVAL_INTERVAL);
    const Flag *iters = import_given(im, ID_EVAL_ITERS);
    const char *obstacle = eval_obstacle(im);

    if (is_zero(iters)) {
        import_put(im, "training.eval.interval", "0", iters->values[0].loc);
    } else if (interval && obstacle) {
        import_no_effect(im, interval, obstacle);
    } else {
        if (interval)
            import_put_value(im, "training.eval.interval", interval);
        if (iters && (interval || !im->whole))
            import_put_value(im, "training.eval.steps", iters);
        else if (iters)
            import_no_effect(im, iters, "without --eval-interval");
        else if (interval)
            import_default(im, "training.eval.steps", "100");
    }
}

/* As a block: a prefix may be called `synthetic`.  `weight` may be NULL. */
static Node *blend_entry(Import *im, const Word *weight, const Word *prefix)
{
    Node *entry = node_map(im->arena, prefix->loc);

    node_put_node(im->arena, entry, "path",
                  node_text(im->arena, prefix->text, prefix->loc));
    if (weight)
        node_put(im->arena, entry, "weight", weight->text, weight->loc);
    return entry;
}

/* One prefix, or weights and prefixes in turn. */
static void blend_put(Import *im, FlagId id, const char *path)
{
    const Flag *f = import_given(im, id);
    double weight;
    Node *list;

    if (f && f->n == 1)
        import_put_node(im, path, blend_entry(im, NULL, &f->values[0]));
    if (!f || f->n == 1)
        return;
    list = node_list(im->arena, f->values[0].loc);
    for (uint32_t i = 0; i < f->n; i += 2) {
        if (i + 1 == f->n || !str_to_double(f->values[i].text, &weight)) {
            import_reject(im, f, "several data sets take a weight each: "
                                 "WEIGHT PREFIX WEIGHT PREFIX …");
            return;
        }
        node_append(list, blend_entry(im, &f->values[i], &f->values[i + 1]));
    }
    import_put_node(im, path, list);
}

static void files_convert(Import *im)
{
    const Flag *split = import_given(im, ID_SPLIT);

    blend_put(im, ID_DATA_PATH, "data.train");
    blend_put(im, ID_TRAIN_DATA_PATH, "data.train");
    blend_put(im, ID_VALID_DATA_PATH, "data.valid");
    if (split)
        import_put_value(im, "data.split", split);
    else if (import_given(im, ID_DATA_PATH))
        import_default(im, "data.split", "969,30,1");
}

/* Made-up data is not split: it has a set for evaluation too. */
static void mock_convert(Import *im, Loc loc)
{
    Flag *split = import_given(im, ID_SPLIT);
    int64_t interval = 0;

    import_put(im, "data.train", "synthetic", loc);
    import_number(im, "training.eval.interval", &interval);
    if (interval > 0)
        import_put(im, "data.valid", "synthetic", loc);
    if (split)
        split->ignored = CLASS_LOADING;
}

/* Without any data Megatron makes some up. */
static void data_convert(Import *im)
{
    const Flag *mock = import_given(im, ID_MOCK_DATA);
    bool files = import_given(im, ID_DATA_PATH) ||
                 import_given(im, ID_TRAIN_DATA_PATH) ||
                 import_given(im, ID_VALID_DATA_PATH);

    if (files || !(mock || im->whole))
        files_convert(im);
    if (mock || (im->whole && !files))
        mock_convert(im, mock ? mock->loc : im->by_default);
}

/* ---- all ----------------------------------------------------------------- */

/* Data last: what is evaluated needs some. */
void import_convert_training(Import *im)
{
    optimizer_convert(im);
    steps_convert(im);
    eval_convert(im);
    data_convert(im);
}
