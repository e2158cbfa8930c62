/* check.c - every pass executed before and after.
 *
 * The module as the frontend built it is run once by the reference evaluator,
 * in fp64 and in the prime field; what it leaves behind (parameters, gradients,
 * moments, the loss) must be the same after each pass.  The forward program
 * has no gradients yet, so what a pass adds becomes the measure for the passes
 * after it.
 */
#include "passes/check.h"
#include "ir/eval.h"

#include <math.h>

static const uint64_t SEED = 20240601;
static const double TOLERANCE = 1e-9; /* fp64, relative to a tensor's norm */

struct PassCheck {
    Arena *arena;
    EvalResult *real, *field;
};

PassCheck *pass_check_new(Module *m)
{
    Arena *a = arena_new();
    PassCheck *c = arena_new_of(a, PassCheck);

    c->arena = a;
    c->real = eval_run(a, m, EVAL_FP64, SEED);
    c->field = eval_run(a, m, EVAL_FIELD, SEED);
    return c;
}

/* The loss alone: all that a pass which extends the program must keep. */
static bool same_loss(const Module *m, const EvalResult *old,
                      const EvalResult *now, EvalKind kind)
{
    TensorId loss = tensor_find(m, sym_intern(m->names, "loss"));
    EvalArray a, b;

    if (!eval_get_tensor(old, loss, FIELD_ACC, 0, &a) ||
        !eval_get_tensor(now, loss, FIELD_ACC, 0, &b))
        return false;
    if (kind == EVAL_FIELD)
        return a.at->residue == b.at->residue;
    return fabs(a.at->f - b.at->f) <= TOLERANCE * fabs(a.at->f);
}

static bool same(PassCheck *c, Module *m, EvalResult **old, EvalKind kind,
                 bool extends)
{
    EvalResult *now = eval_run(c->arena, m, kind, SEED);
    double tolerance = kind == EVAL_FIELD ? 0.0 : TOLERANCE;
    bool ok = now && *old;

    if (ok)
        ok = extends ? same_loss(m, *old, now, kind)
                     : eval_equal(m, *old, m, now, m->diag, tolerance);
    *old = now;
    return ok;
}

bool pass_check_after(PassCheck *c, Module *m, const char *pass, bool extends)
{
    bool real = same(c, m, &c->real, EVAL_FP64, extends);
    bool field = same(c, m, &c->field, EVAL_FIELD, extends);

    if (real && field)
        return true;
    diag_error(m->diag, (Loc){0}, "MC0692",
               "pass %s changed what the program computes (%s); this is a bug "
               "in megac",
               pass, real ? "prime field" : "fp64");
    return false;
}

void pass_check_free(PassCheck *c)
{
    if (c)
        arena_free(c->arena);
}
