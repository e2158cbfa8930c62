/* grad_trips.c - the backward of a call whose number of iterations is data.
 *
 *   %y = call @f %y0, %x, %n         %dx = call @f.bwd %dy, 0, %x, %n
 *     {args=">.#", results=">"}        {args=".>.#", results=">"}
 *
 * How often it runs is not known when memory is planned, so nothing is saved:
 * each iteration is computed again from what it was given.  What it carries on
 * must only be added to, so iterations do not depend on each other and its
 * cotangent passes through; the cotangents of what all iterations share are
 * summed from one to the next, in f32, starting from zero.
 */
#include "passes/grad_priv.h"

static bool is_carry(const FuncGrad *info, uint32_t param)
{
    return call_mode_of(info->trips[param]) == MODE_CARRY;
}

/* The value that casts make `v` of. */
static ValueId uncast(const Module *m, ValueId v)
{
    const Node *n = &m->nodes.v[m->values.v[v.i].def.i];

    while (n->op == OP_CAST) {
        v = node_arg(m, n, 0);
        n = &m->nodes.v[m->values.v[v.i].def.i];
    }
    return v;
}

/* The cotangent of the k-th carried parameter is that of the k-th result. */
static void check_carry(Grad *g, uint32_t param, uint32_t result)
{
    const Func *fwd = func_of(g->m, g->fwd), *bwd = func_of(g->m, g->bwd);
    ValueId c = grad_sum_of(g, fwd->params.v[param]);

    if (!c.i || uncast(g->m, c).i != bwd->params.v[result].i)
        diag_error(g->m->diag, fwd->loc, "MC0693",
                   "@%s carries more from iteration to iteration than a sum",
                   sym_text(g->m->names, fwd->name));
}

/* The sum over iterations goes through as a parameter and a result. */
static void add_sum(Grad *g, ValueId param, ValueId c)
{
    Module *m = g->m;
    TypeId type = type_as(m, value_of(m, param)->type, DT_F32);
    const char *name = arena_printf(
        m->arena, "d%s", sym_text(m->names, value_of(m, param)->name));
    ValueId before = func_param(m, g->bwd, type, name);

    c = ir_binary(m, g->bwd, OP_ADD, before, c, func_of(m, g->fwd)->loc);
    vec_push(&func_of(m, g->bwd)->results, c);
}

void grad_trips_close(Grad *g)
{
    uint32_t carries = 0, sums = 0;

    for (uint32_t i = 0; i < func_of(g->m, g->fwd)->params.n; i++) {
        ValueId param = func_of(g->m, g->fwd)->params.v[i];
        ValueId c = grad_sum_of(g, param);
        bool sum = c.i && !is_carry(g->info, i);

        if (is_carry(g->info, i))
            check_carry(g, i, carries++);
        if (sum)
            add_sum(g, param, c);
        vec_push(&g->info->cotangent, sum ? (int32_t)sums++ : -1);
    }
}

/* Zeros in the shape of v. */
static ValueId zeros_like(Grad *g, ValueId v, Loc loc)
{
    ValueId zero = ir_const(g->m, g->bwd, 0, loc);
    ValueId args[] = {zero, grad_need(g, v), zero};

    return ir_op(g->m, g->bwd, OP_SELECT, args, 3, (AttrsId){0}, loc);
}

/* Each result's cotangent, the sums so far, and what the forward was given. */
static NodeId call_backward(Grad *g, const Node *n, const FuncGrad *callee)
{
    Scan scan = call_scan(g->m, n);
    char modes[MAX_CALL + 1], results[MAX_CALL + 1];
    ValueId args[MAX_CALL];
    uint32_t nargs = 0, nres = 0;

    for (; nargs < n->nres; nargs++) {
        args[nargs] = grad_of(g, node_res(n, nargs));
        modes[nargs] = '.';
    }
    for (uint32_t i = 0; i < n->nargs; i++) {
        if (callee->cotangent.v[i] < 0)
            continue;
        args[nargs] = zeros_like(g, node_arg(g->m, n, i), n->loc);
        modes[nargs++] = results[nres++] = '>';
    }
    for (uint32_t i = 0; i < callee->saved.n; i++, nargs++) {
        uint32_t given = (uint32_t)callee->given.v[i];

        args[nargs] = grad_need(g, node_arg(g->m, n, given));
        modes[nargs] = callee->trips[given];
    }
    modes[nargs] = results[nres] = '\0';
    scan.callee = callee->bwd;
    return ir_call(g->m, g->bwd, scan, args, modes, results, n->loc);
}

void grad_trips_call(Grad *g, const Node *n)
{
    const FuncGrad *callee = &g->pass->of[call_scan(g->m, n).callee.i];
    NodeId made = call_backward(g, n, callee);
    uint32_t result = 0;

    for (uint32_t i = 0; i < n->nargs; i++) {
        int32_t sum = callee->cotangent.v[i];

        if (is_carry(callee, i))
            grad_flow(g, node_arg(g->m, n, i),
                      grad_of(g, node_res(n, result++)));
        else if (sum >= 0)
            grad_flow(g, node_arg(g->m, n, i),
                      node_res(node_of(g->m, made), (uint32_t)sum));
    }
}
