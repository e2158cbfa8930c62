/* fuse_views.c - parts and joins that need no kernel.
 *
 *     %q = part %qkv {first=0}            attention reads %qkv where it lies,
 *     %k = part %qkv {first=2}            with the strides of %qkv
 *     %v = part %qkv {first=3}
 *     %o, %lse = attention %q, %k, %v
 *
 *     %dq, %dk, %dv = attention_grad …    writes %dqkv at once
 *     %dqkv = join %dq, %dk, %dv
 *
 * Only attention takes strides.  Any other part becomes a load of a row
 * program, any other join its stores.  What is left in a body after `fuse` is a
 * view: it shares the memory of the whole.
 */
#include "passes/fuse_priv.h"

typedef struct {
    const Module *m;
    uint32_t *uses, *by_attention; /* by ValueId */
    bool *view;                    /* by ValueId */
} Views;

static bool is_attention(Op op)
{
    return op == OP_ATTENTION || op == OP_ATTENTION_GRAD ||
           op == OP_ATTENTION_STEP || op == OP_ATTENTION_STEP_GRAD;
}

static void uses_count(Views *w, const Func *f)
{
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &w->m->nodes.v[f->body.v[i].i];

        for (uint32_t k = 0; k < n->nargs; k++) {
            uint32_t v = node_arg(w->m, n, k).i;

            w->uses[v]++;
            w->by_attention[v] += k < 3 && is_attention((Op)n->op);
        }
    }
    for (uint32_t i = 0; i < f->results.n; i++)
        w->uses[f->results.v[i].i]++;
}

/* The results of one attention_grad, which nobody else sees. */
static bool joins_attention(const Views *w, const Node *n)
{
    NodeId made = w->m->values.v[node_arg(w->m, n, 0).i].def;
    const Node *from = &w->m->nodes.v[made.i];
    bool all = is_attention((Op)from->op) && from->nres == 3 && n->nargs == 3;

    for (uint32_t i = 0; all && i < n->nargs; i++)
        all = node_arg(w->m, n, i).i == node_res(from, i).i &&
              w->uses[node_res(from, i).i] == 1;
    return all;
}

const bool *views_find(const Module *m, FuncId f, Arena *a)
{
    const Func *func = &m->funcs.v[f.i];
    Views w = {.m = m};

    if (!func_has(m, f, OP_PART) && !func_has(m, f, OP_JOIN))
        return NULL;
    w.uses = arena_array(a, uint32_t, m->values.n);
    w.by_attention = arena_array(a, uint32_t, m->values.n);
    w.view = arena_array(a, bool, m->values.n);
    uses_count(&w, func);
    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &m->nodes.v[func->body.v[i].i];

        if (n->op == OP_PART)
            w.view[n->res.i] =
                w.uses[n->res.i] == w.by_attention[n->res.i];
        else if (n->op == OP_JOIN)
            w.view[n->res.i] = joins_attention(&w, n);
    }
    return w.view;
}
