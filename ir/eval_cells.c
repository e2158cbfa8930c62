/* eval_cells.c - the eval column of ops.def: pointwise maths, reductions and
 * generators.  Contractions and attention are in eval_big.c, collectives in
 * eval_comm.c, calls in eval_scan.c, state in eval_state.c.
 *
 * Each pointwise op is one row: its meaning over doubles and its meaning in
 * the field.  In the field exp(x) and exp(x - shift) are the same random
 * function E(x), log(z) and log(z) + shift the same L(z): the shift cancels.
 */
#include "ir/eval_priv.h"

#include <math.h>

EvalCell *const eval_cell[OP_COUNT] = {
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           grad, eval, emit)                                                   \
    [OP_##NAME] = eval_##eval,
#include "ir/ops.def"
#undef OP
};

static bool in_field(const EvalStep *s)
{
    return s->e->opt.kind == EVAL_FIELD;
}

/* ---- pointwise, one operand ---- */

typedef double Real1(double x);
typedef uint64_t Field1(uint64_t x);

static void map1(EvalStep *s, Real1 *real, Field1 *field)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    bool exact = in_field(s);
    Walk w = walk_of(out);

    walk_add(&w, x);
    walk_rows(&w);
    for (; w.more; walk_next(&w)) {
        const EvalNum *p = x->at + w.off[1];
        EvalNum *to = out->at + w.off[0];

        for (int64_t i = 0; i < w.run; i++, p += w.step[1], to += w.step[0])
            if (exact)
                to->residue = field(p->residue);
            else
                to->f = real(p->f);
    }
}

#define OP1(name, real, field)                                                 \
    static double name##_real(double x)                                        \
    {                                                                          \
        return real;                                                           \
    }                                                                          \
    static uint64_t name##_field(uint64_t x)                                   \
    {                                                                          \
        return field;                                                          \
    }                                                                          \
    void eval_##name(EvalStep *s)                                              \
    {                                                                          \
        map1(s, name##_real, name##_field);                                    \
    }

/* A token is a small integer; -1, the masked label, is the residue p - 1. */
OP1(same, x, x)
OP1(valid, x >= 0, x != FIELD_P - 1)
OP1(neg, -x, field_neg(x))
OP1(exp, exp(x), field_random(OP_EXP, x))
OP1(log, log(x), field_random(OP_LOG, x))
OP1(sqrt, sqrt(x), field_random(OP_SQRT, x))
OP1(rsqrt, 1 / sqrt(x), field_random(OP_RSQRT, x))
OP1(recip, 1 / x, field_inverse(x))
OP1(sigmoid, 1 / (1 + exp(-x)), field_random(OP_SIGMOID, x))
OP1(tanh, tanh(x), field_random(OP_TANH, x))
OP1(erf, erf(x), field_random(OP_ERF, x))
OP1(relu, x > 0 ? x : 0, field_random(OP_RELU, x))
OP1(finite, isfinite(x), ((void)x, UINT64_C(1)))
OP1(step, x > 0, field_random(OP_STEP, x))

/* ---- pointwise, two operands ---- */

typedef double Real2(double x, double y);
typedef uint64_t Field2(uint64_t x, uint64_t y);

static void map2(EvalStep *s, Real2 *real, Field2 *field)
{
    const EvalArray *x = step_arg(s, 0), *y = step_arg(s, 1);
    EvalArray *out = step_out(s, 0);
    bool exact = in_field(s);
    Walk w = walk_of(out);

    walk_add(&w, x);
    walk_add(&w, y);
    walk_rows(&w);
    for (; w.more; walk_next(&w)) {
        const EvalNum *p = x->at + w.off[1], *q = y->at + w.off[2];
        EvalNum *to = out->at + w.off[0];

        for (int64_t i = 0; i < w.run; i++, to += w.step[0]) {
            if (exact)
                to->residue = field(p->residue, q->residue);
            else
                to->f = real(p->f, q->f);
            p += w.step[1];
            q += w.step[2];
        }
    }
}

#define OP2(name, real, field)                                                 \
    static double name##_real(double x, double y)                              \
    {                                                                          \
        return real;                                                           \
    }                                                                          \
    static uint64_t name##_field(uint64_t x, uint64_t y)                       \
    {                                                                          \
        return field;                                                          \
    }                                                                          \
    void eval_##name(EvalStep *s)                                              \
    {                                                                          \
        map2(s, name##_real, name##_field);                                    \
    }

OP2(add, x + y, field_add(x, y))
OP2(sub, x - y, field_add(x, field_neg(y)))
OP2(mul, x * y, field_mul(x, y))
OP2(div, x / y, field_mul(x, field_inverse(y)))
OP2(min, x < y ? x : y, field_random(OP_MIN, field_add(x, y)))
OP2(max2, x > y ? x : y, field_random(OP_MAX2, field_add(x, y)))
OP2(expsub, exp(x - y), ((void)y, field_random(OP_EXP, x)))
OP2(logadd, log(x) + y, ((void)y, field_random(OP_LOG, x)))

/* ---- a choice ---- */

void eval_select(EvalStep *s)
{
    EvalArray *out = step_out(s, 0);
    Walk w = walk_of(out);

    for (uint32_t i = 0; i < 3; i++)
        walk_add(&w, step_arg(s, i));
    for (; w.more; walk_next(&w)) {
        EvalNum chosen = step_arg(s, 0)->at[w.off[1]];
        bool yes = in_field(s) ? chosen.residue != 0 : chosen.f != 0;

        out->at[w.off[0]] = yes ? step_arg(s, 1)->at[w.off[2]]
                                : step_arg(s, 2)->at[w.off[3]];
    }
}

/* ---- reductions ---- */

void eval_sum(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    Walk w = walk_of(x);

    walk_add(&w, out);
    for (; w.more; walk_next(&w))
        out->at[w.off[1]] = num_add(s->e->opt.kind, out->at[w.off[1]],
                                    x->at[w.off[0]]);
}

/* In the field the largest residue, so that partial maxima merge. */
void eval_max(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    Walk w = walk_of(x);

    walk_add(&w, out);
    for (int64_t i = 0; !in_field(s) && i < array_elems(out); i++)
        out->at[i].f = -INFINITY;
    for (; w.more; walk_next(&w))
        out->at[w.off[1]] = num_max(s->e->opt.kind, out->at[w.off[1]],
                                    x->at[w.off[0]]);
}

/* ---- order, rotation ---- */

void eval_nop(EvalStep *s)
{
    (void)s;
}

void eval_rotate(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    int64_t n = attr_int(s->e->m, s->node->attrs, AK_ROTARY,
                         array_size(x, 'd'));
    int64_t sign = attr_int(s->e->m, s->node->attrs, AK_SIGN, 1);
    EvalNum negative = num_of_double(s->e->opt.kind, -1);
    int64_t stride = array_stride(x, 'd');
    Walk w = walk_of(out);

    walk_add(&w, x);
    for (; w.more; walk_next(&w)) {
        int64_t i = walk_index(&w, 'd');
        bool low = i < n / 2;

        if (i >= n)
            continue;
        EvalNum from = x->at[w.off[1] + (low ? n / 2 : -(n / 2)) * stride];

        out->at[w.off[0]] = low == (sign > 0)
                                ? num_mul(s->e->opt.kind, from, negative)
                                : from;
    }
}

/* ---- generators ---- */

void eval_const(EvalStep *s)
{
    const Module *m = s->e->m;
    AttrsId attrs = s->node->attrs;
    EvalKind kind = s->e->opt.kind;
    EvalArray *out = step_out(s, 0);

    if (attr_find(m, attrs, AK_VALUE))
        out->at[0] = num_of_double(kind, attr_float(m, attrs, AK_VALUE, 0));
    else
        out->at[0] = num_of_ratio(kind, attr_int(m, attrs, AK_NUM, 1),
                                  attr_int(m, attrs, AK_DEN, 1),
                                  attr_int(m, attrs, AK_ROOT, 0) != 0);
}

/* First logical index of `dim` of the node's result on this rank. */
static int64_t out_start(EvalStep *s, char dim)
{
    const Value *v = value_of(s->e->m, node_res(s->node, 0));

    return eval_start(s->e, s->rank->id, v->type, v->layout, dim);
}

void eval_onehot(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    char dim = out->dim[out->ndim - 1];
    int64_t start = out_start(s, dim);
    EvalNum one = num_of_double(s->e->opt.kind, 1);
    Walk w = walk_of(out);

    walk_add(&w, x);
    for (; w.more; walk_next(&w))
        if (num_index(s->e->opt.kind, x->at[w.off[1]]) ==
            start + walk_index(&w, dim))
            out->at[w.off[0]] = one;
}

void eval_inrange(EvalStep *s)
{
    EvalArray *out = step_out(s, 0);
    int64_t start = out_start(s, out->dim[0]);
    int64_t limit = attr_int(s->e->m, s->node->attrs, AK_LIMIT, 0);
    EvalNum one = num_of_double(s->e->opt.kind, 1);

    for (int64_t i = 0; i < out->size[0] && start + i < limit; i++)
        out->at[i] = one;
}

void eval_index(EvalStep *s)
{
    EvalArray *out = step_out(s, 0);
    int64_t start = out_start(s, out->dim[0]) +
                    attr_int(s->e->m, s->node->attrs, AK_FIRST, 0);

    for (int64_t i = 0; i < out->size[0]; i++)
        out->at[i] =
            num_of_double(s->e->opt.kind, (double)(start + i));
}

/* Frequency of a pair of channels; Llama 3.1's scaling blends the slow ones
 * (Hugging Face, modeling_rope_utils.py, _compute_llama3_parameters). */
static double rope_frequency(const Module *m, AttrsId attrs, int64_t pair,
                             int64_t rotary)
{
    double base = attr_float(m, attrs, AK_BASE, 10000);
    double f = pow(base, -2.0 * (double)pair / (double)rotary);
    double factor = attr_float(m, attrs, AK_FACTOR, 1);
    const char *how = sym_text(m->names, attr_sym(m, attrs, AK_SCALING));

    if (!strcmp(how, "linear"))
        return f / factor;
    if (strcmp(how, "llama3") != 0)
        return f;
    double low = attr_float(m, attrs, AK_LOW, 1);
    double high = attr_float(m, attrs, AK_HIGH, 4);
    double wavelength = 2 * acos(-1) / f;
    double ratio =
        (double)attr_int(m, attrs, AK_ORIGINAL, 8192) / wavelength;
    double smooth = (ratio - low) / (high - low);

    smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
    return (1 - smooth) * f / factor + smooth * f;
}

/* In the field a table is a random function of position and pair that differs
 * for every set of parameters. */
static uint64_t rope_function(const Module *m, AttrsId attrs)
{
    const double of[] = {attr_float(m, attrs, AK_BASE, 10000),
                         attr_float(m, attrs, AK_FACTOR, 1),
                         attr_float(m, attrs, AK_LOW, 1),
                         attr_float(m, attrs, AK_HIGH, 4),
                         (double)attr_int(m, attrs, AK_ORIGINAL, 8192)};
    uint64_t hash = hash_text(OP_ROPE_TABLE,
                              sym_text(m->names,
                                       attr_sym(m, attrs, AK_SCALING)));

    for (size_t i = 0; i < MC_LEN(of); i++)
        hash = hash_mix(hash ^ field_of_double(of[i]));
    return hash;
}

static EvalNum rope_number(EvalStep *s, uint64_t function, bool cosine,
                           int64_t pos, int64_t i, int64_t rotary)
{
    AttrsId attrs = s->node->attrs;
    int64_t pair = i % (rotary / 2);
    uint64_t at = (uint64_t)pos << 20 | (uint64_t)pair << 1 | cosine;

    if (i >= rotary)
        return num_of_double(s->e->opt.kind, cosine ? 1 : 0);
    if (in_field(s))
        return (EvalNum){.residue = field_random(function, at)};
    double angle = (double)pos * rope_frequency(s->e->m, attrs, pair, rotary);

    return (EvalNum){.f = cosine ? cos(angle) : sin(angle)};
}

void eval_rope_table(EvalStep *s)
{
    const Module *m = s->e->m;
    AttrsId attrs = s->node->attrs;
    EvalArray *out = step_out(s, 0);
    int64_t start = out_start(s, 's');
    int64_t size = attr_int(m, attrs, AK_SIZE, 0);
    int64_t rotary = attr_int(m, attrs, AK_ROTARY, array_size(out, 'd'));
    bool cosine = !strcmp(sym_text(m->names, attr_sym(m, attrs, AK_WHAT)),
                          "cos");

    uint64_t function = rope_function(m, attrs);

    for (Walk w = walk_of(out); w.more; walk_next(&w))
        out->at[w.off[0]] = rope_number(
            s, function, cosine,
            attr_position(m, attrs, size, start + walk_index(&w, 's')),
            walk_index(&w, 'd'), rotary);
}
