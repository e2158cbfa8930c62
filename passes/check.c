/* check.c - every pass executed before and after.
 *
 * The module as the frontend built it is run once by the reference evaluator,
 * in fp64 and in the prime field; what it leaves behind (parameters, gradients,
 * moments, the loss) must be the same after each pass.  The forward program
 * has no gradients yet, so what a pass adds becomes the measure for the passes
 * after it.
 *
 * A module's text has all that is executed: a pass after which it is the same
 * has changed nothing, and nothing is run again.
 */
#include "passes/check.h"
#include "ir/eval.h"

#include <math.h>

static const uint64_t SEED = 20240601;
static const double TOLERANCE = 1e-9; /* fp64, relative to a tensor's norm */

typedef struct {
    EvalResult *real, *field;
} Run;

struct PassCheck {
    Arena *arena;
    Run *run; /* by program */
    Buf text; /* of the module that they ran */
};

/* Whether the module reads as it did; else what it reads like is kept.  Of what
 * passes have made only this much decides how a module is executed. */
static bool reads_the_same(PassCheck *c, Module *m)
{
    const uint32_t executed = PROP_OPTIMIZER | PROP_LAYOUT | PROP_PIPELINED;
    uint32_t props = m->props;
    Buf text = {0};
    bool same;

    m->props &= executed;
    module_print(m, &text);
    m->props = props;
    same = c->text.s && !strcmp(text.s, c->text.s);
    buf_free(&c->text);
    c->text = text;
    return same;
}

static EvalResult *run(Arena *a, Module *m, EvalKind kind, uint32_t program)
{
    return eval_run_with(a, m, &(EvalOptions){.kind = kind, .seed = SEED,
                                              .program = program});
}

PassCheck *pass_check_new(Module *m)
{
    Arena *a = arena_new();
    PassCheck *c = arena_new_of(a, PassCheck);

    c->arena = a;
    reads_the_same(c, m);
    c->run = arena_array(a, Run, module_programs(m));
    for (uint32_t i = 0; i < module_programs(m); i++)
        c->run[i] = (Run){run(a, m, EVAL_FP64, i), run(a, m, EVAL_FIELD, i)};
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

static bool same(PassCheck *c, Module *m, uint32_t program, EvalKind kind,
                 bool loss_only)
{
    Run *of = &c->run[program];
    EvalResult **old = kind == EVAL_FIELD ? &of->field : &of->real;
    EvalResult *now = run(c->arena, m, kind, program);
    double tolerance = kind == EVAL_FIELD ? 0.0 : TOLERANCE;
    bool ok = now && *old;

    if (ok)
        ok = loss_only ? same_loss(m, *old, now, kind)
                       : eval_equal(*old, now, m->diag, tolerance);
    *old = now;
    return ok;
}

static bool check_program(PassCheck *c, Module *m, uint32_t program,
                          const char *pass, bool loss_only)
{
    bool real = same(c, m, program, EVAL_FP64, loss_only);
    bool field = same(c, m, program, EVAL_FIELD, loss_only);

    if (real && field)
        return true;
    diag_error(m->diag, (Loc){0}, "MC0692",
               "pass %s changed what program %u computes (%s); this is a bug "
               "in megac",
               pass, program, real ? "prime field" : "fp64");
    return false;
}

/* `pipeline` leaves an evaluation nothing but its loss. */
bool pass_check_after(PassCheck *c, Module *m, const Pass *pass)
{
    bool ok = true;

    if (reads_the_same(c, m))
        return true;
    for (uint32_t i = 0; ok && i < module_programs(m); i++) {
        bool forward = i > 0 && m->programs.v[i - 1].forward;
        ok = check_program(c, m, i, pass->name,
                           pass->extends ||
                               (forward && pass->makes & PROP_PIPELINED));
    }
    return ok;
}

void pass_check_free(PassCheck *c)
{
    if (!c)
        return;
    buf_free(&c->text);
    arena_free(c->arena);
}
