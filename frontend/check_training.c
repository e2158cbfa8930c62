/* check_training.c - the rules of the optimizer, of a batch that grows, and of
 * what data is for. */
#include "frontend/frontend_priv.h"

/* ---- a batch that grows -------------------------------------------------- */

static bool rampup_sizes_check(Check *c)
{
    const Spec *s = c->spec;
    BatchRampup r = spec_rampup(s);
    int64_t step = s->training.micro_batch_size * s->derived.dense_dp;

    if (s->training.rampup.n != 3) {
        check_fail(c, "MC0308", "training.rampup",
                   "rampup = %s: expected [start, increment, samples]",
                   check_text(c, "training.rampup"));
        return false;
    }
    if (r.start > 0 && r.start < r.full && r.increment > 0 &&
        (r.full - r.start) % r.increment == 0 && r.start % step == 0 &&
        r.increment % step == 0)
        return true;
    check_fail(c, "MC0308", "training.rampup",
               "rampup = %s does not lead to global_batch_size = %lld in "
               "whole increments of multiples of micro_batch_size*dp = %lld",
               check_text(c, "training.rampup"), (long long)r.full,
               (long long)step);
    check_because(c, "training.global_batch_size");
    return false;
}

/* What a schedule asks of the number of microbatches holds for every size. */
static void rampup_schedule_check(Check *c)
{
    Spec *s = c->spec;
    BatchRampup r = spec_rampup(s);
    int64_t whole = s->derived.microbatches;
    uint32_t before = diag_errors(c->diag);

    if (s->schedule_file) {
        check_fail(c, "MC0308", "training.rampup",
                   "a schedule from a file has one number of microbatches, "
                   "but rampup = %s needs others",
                   check_text(c, "training.rampup"));
        check_because(c, "parallel.schedule");
        return;
    }
    for (int64_t i = batch_sizes(&r) - 1; i-- > 0;) {
        s->derived.microbatches = whole * batch_size(&r, i) / r.full;
        schedule_counts_check(c);
        if (diag_errors(c->diag) == before)
            continue;
        diag_note(c->diag, spec_loc(s, "training.rampup"),
                  "of the batch of %lld in rampup = %s",
                  (long long)batch_size(&r, i),
                  check_text(c, "training.rampup"));
        break;
    }
    s->derived.microbatches = whole;
}

static void rampup_check(Check *c)
{
    if (c->spec->training.rampup.n && !diag_errors(c->diag) &&
        rampup_sizes_check(c))
        rampup_schedule_check(c);
}

/* ---- the optimizer ------------------------------------------------------- */

/* A trap on the way from Megatron. */
static void adam_check(Check *c)
{
    double decay = c->spec->training.optimizer.weight_decay;

    if (c->spec->training.optimizer.type != OPT_ADAM || !(decay > 0))
        return;
    diag_warn(c->diag, spec_loc(c->spec, "training.optimizer.type"), "MC0307",
              "type = adam adds weight_decay = %g to the gradient; what "
              "Megatron calls adam is adamw", decay);
}

/* Products add to gradients of their own type or of f32. */
static void grad_dtype_check(Check *c)
{
    if (c->spec->training.grad_dtype != GRAD_BF16 ||
        c->spec->training.precision == PREC_BF16)
        return;
    check_fail(c, "MC0309", "training.grad_dtype",
               "grad_dtype = bf16 needs precision = bf16");
    check_because(c, "training.precision");
}

/* ---- data ---------------------------------------------------------------- */

static const char *kind_name(SpecDataKind kind)
{
    static const char *const kinds[] = {[DATA_PREFIX] = ".bin/.idx files",
                                        [DATA_SYNTHETIC] = "synthetic",
                                        [DATA_TEXT] = "a text file"};

    return kinds[kind];
}

static void blend_check(Check *c, const char *path, const SpecDataList *list)
{
    for (uint32_t i = 0; list->n > 1 && i < list->n; i++) {
        SpecDataKind first = list->v[0].kind, kind = list->v[i].kind;
        if (kind == first && kind != DATA_SYNTHETIC)
            continue;
        check_fail(c, "MC0401", path,
                   "a blend takes files of one kind, but number 1 of "
                   "%s is %s and number %u is %s",
                   path, kind_name(first), i + 1, kind_name(kind));
        return;
    }
}

/* Weights lie beside the tokens they belong to. */
static void mask_check(Check *c)
{
    const SpecDataList *train = &c->spec->data.train;
    bool text = train->n == 1 && train->v[0].kind == DATA_TEXT;

    if (!c->spec->data.loss_mask ||
        (train->n == 1 && train->v[0].kind == DATA_PREFIX) ||
        (text && !c->spec->data.split))
        return;
    check_fail(c, "MC0402", "data.loss_mask",
               "loss_mask weighs the tokens of one file, but data.train is %s",
               train->n > 1 ? "a blend"
               : text       ? "a part of a text file"
                            : "made up");
    check_because(c, "data.train");
}

static void evaluation_check(Check *c)
{
    Spec *s = c->spec;

    if (s->training.eval.interval == 0 && s->data.valid.n) {
        diag_warn(c->diag, spec_loc(s, "data.valid"), "MC0014",
                  "valid has no effect with eval.interval = 0");
    } else if (s->training.eval.interval && !s->data.valid.n &&
               !s->data.split) {
        check_fail(c, "MC0403", "training.eval.interval",
                   "interval = %lld, but there is nothing to evaluate on",
                   (long long)s->training.eval.interval);
        diag_help(c->diag, "give data.valid, or data.split to keep a part of "
                           "data.train");
    } else if (s->data.valid.n && s->data.split) {
        check_fail(c, "MC0403", "data.split",
                   "split = %s keeps a part of data.train for validation, but "
                   "there is data.valid", s->data.split);
        check_because(c, "data.valid");
    }
}

void training_check(Check *c)
{
    rampup_check(c);
    adam_check(c);
    grad_dtype_check(c);
    blend_check(c, "data.train", &c->spec->data.train);
    blend_check(c, "data.valid", &c->spec->data.valid);
    mask_check(c);
    evaluation_check(c);
}
