/* check_training.c - the rules of the optimizer and of a batch that grows. */
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

void training_check(Check *c)
{
    rampup_check(c);
    adam_check(c);
    grad_dtype_check(c);
}
