/* flops_cells.c - floating-point operations of one execution, on logical sizes.
 *
 * A multiply-add counts as two.  Pointwise maths counts one per element,
 * whatever the function.
 */
#include "ir/ir_priv.h"

#include "base/zigzag.h"

double flops_zero(const Module *m, const Node *n)
{
    (void)m, (void)n;
    return 0;
}

/* Elements of the larger of operand and result: a reduction reads its all. */
double flops_elems(const Module *m, const Node *n)
{
    int64_t most = type_elems(value_type(m, n->res));

    for (uint32_t i = 0; i < n->nargs; i++) {
        int64_t elems = type_elems(value_type(m, node_arg(m, n, i)));

        most = MC_MAX(most, elems);
    }
    return (double)most;
}

/* Twice the product of the sizes of all letters of both. */
static double product_flops(const Module *m, ValueId x, ValueId y)
{
    const Type *t = value_type(m, x), *u = value_type(m, y);
    double flops = 2 * (double)type_elems(t);

    for (int i = 0; i < u->ndim; i++)
        if (type_dim(t, u->dim[i]) < 0)
            flops *= (double)u->size[i];
    return flops;
}

double flops_dot(const Module *m, const Node *n)
{
    return product_flops(m, node_arg(m, n, 0), node_arg(m, n, 1));
}

double flops_dots(const Module *m, const Node *n)
{
    uint32_t pairs = n->op == OP_DOTS       ? n->nres
                     : n->op == OP_DOTS_SUM ? n->nargs / 2u
                                            : n->nargs - 1u;
    double flops = 0;

    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t x = n->op == OP_DOTS ? 0 : i;
        uint32_t y = n->op == OP_DOTS       ? i + 1
                     : n->op == OP_DOTS_SUM ? pairs + i
                                            : pairs;

        flops += product_flops(m, node_arg(m, n, x), node_arg(m, n, y));
    }
    return flops;
}

/* How many keys a query sees on average: all, half of them if causal, or a
 * window of them but for the first queries. */
static double keys_seen(const Module *m, const Node *n)
{
    int64_t s = type_size(value_type(m, node_arg(m, n, 0)), 's');
    double all = (double)s;
    double window = (double)attr_int(m, n->attrs, AK_WINDOW, 0);

    if (window > 0 && window < all)
        return window - window * window / (2 * all);
    return attr_int(m, n->attrs, AK_CAUSAL, 0) ? all / 2 : all;
}

/* The steps of a ring, which together see all keys. */
static int64_t ring_steps(const Module *m, const Node *n)
{
    int64_t s = type_size(value_type(m, node_arg(m, n, 0)), 's');
    int64_t parts = attr_int(m, n->attrs, AK_PARTS, 1), steps = 0;
    int64_t zigzag = attr_int(m, n->attrs, AK_ZIGZAG, 1);

    for (int64_t shift = 0; shift < parts; shift++)
        steps += zigzag_sees(s, zigzag, parts, shift,
                             attr_int(m, n->attrs, AK_WINDOW, 0));
    return steps;
}

/* Scores and their product with v: 4 d per head, query and key seen.  The
 * backward recomputes the scores and has four products more: 2.5 times. */
double flops_attention(const Module *m, const Node *n)
{
    bool step = n->op == OP_ATTENTION_STEP || n->op == OP_ATTENTION_STEP_GRAD;
    bool grad = n->op == OP_ATTENTION_GRAD || n->op == OP_ATTENTION_STEP_GRAD;
    const Type *q = value_type(m, node_arg(m, n, 0));
    double flops = 4 * (double)type_elems(q) * keys_seen(m, n);

    if (step)
        flops /= (double)ring_steps(m, n);
    return grad ? 2.5 * flops : flops;
}

static double body_flops(const Module *m, const Node *n)
{
    const Func *f = &m->funcs.v[attr_func(m, n->attrs, AK_CALLEE).i];
    double flops = 0;

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *inner = &m->nodes.v[f->body.v[i].i];

        flops += op_info[inner->op].flops(m, inner);
    }
    return flops;
}

/* What runs only if needed is not counted. */
double flops_call(const Module *m, const Node *n)
{
    if (call_trips(m, n) >= 0)
        return 0;
    return (double)attr_int(m, n->attrs, AK_COUNT, 1) * body_flops(m, n);
}

double flops_row(const Module *m, const Node *n)
{
    return body_flops(m, n);
}
