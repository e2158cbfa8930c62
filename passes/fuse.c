/* fuse.c - row programs, and one product for weights that share an operand.
 *
 *     %u = mul %x, %x                     %y = row %x, %w {callee=@norm}
 *     %t = sum %u {dims=sb}         →     %q, %k, %v = dots %y, %wq, %wk, %wv
 *     %r = rsqrt %t
 *     %n = mul %x, %r                     row @norm(%1, %2) {
 *     %y = mul %n, %w                         …
 *     %q = dot %y, %wq {dims=sbgrd}       }
 *     …
 *
 * Afterwards no op of OPF_ROW stands outside of a row program, but for
 * constants that go into calls.  Assumes layouts on all values and collectives
 * in place; moves nodes only where nobody can see it (fuse_order.c).
 */
#include "passes/fuse_priv.h"

#include <stdlib.h>

/* ---- lists of items ----------------------------------------------------- */

static int item_compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

void items_sort(ItemVec *v)
{
    uint32_t kept = 0;

    if (v->n)
        qsort(v->v, v->n, sizeof *v->v, item_compare);
    for (uint32_t i = 0; i < v->n; i++)
        if (!kept || v->v[kept - 1] != v->v[i])
            v->v[kept++] = v->v[i];
    v->n = kept;
}

bool items_have(const ItemVec *v, uint32_t item)
{
    for (uint32_t i = 0; i < v->n; i++)
        if (v->v[i] == item)
            return true;
    return false;
}

/* ---- one function ------------------------------------------------------- */

/* Made from nothing, or from what is made from nothing; or a part, which is
 * loaded anyway. */
static bool is_leaf(const Fusion *x, uint32_t item)
{
    const Node *n = fusion_node(x, item);
    bool leaf = x->row[item] && n->nargs > 0;

    if (x->row[item] &&
        ((op_info[n->op].flags & OPF_GENERATOR) || n->op == OP_PART))
        return true;
    for (uint32_t i = 0; leaf && i < n->nargs; i++) {
        uint32_t def = fusion_operand(x, item, i);

        leaf = def && x->leaf[def - 1] &&
               fusion_node(x, def - 1)->op != OP_PART;
    }
    return leaf && n->op != OP_SUM && n->op != OP_MAX && n->op != OP_ACCUM;
}

static void outside_mark(Fusion *x)
{
    const Func *f = func_of(x->m, x->f);

    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; !x->row[i] && k < fusion_node(x, i)->nargs; k++)
            if (fusion_operand(x, i, k))
                x->outside[fusion_operand(x, i, k) - 1] = true;
    for (uint32_t i = 0; i < f->results.n; i++)
        if (x->item_of[f->results.v[i].i])
            x->outside[x->item_of[f->results.v[i].i] - 1] = true;
}

static void items_make(Fusion *x)
{
    const Func *f = func_of(x->m, x->f);
    const bool *view = views_find(x->m, x->f, x->arena);

    for (uint32_t i = 0; i < x->n; i++) {
        const Node *n = &x->m->nodes.v[f->body.v[i].i];

        x->node[i] = f->body.v[i];
        x->row[i] = (op_info[n->op].flags & OPF_ROW) &&
                    !(view && view[n->res.i]);
        x->cluster[i] = i;
        vec_push(&x->member[i], i);
        for (uint32_t k = 0; k < n->nres; k++)
            x->item_of[node_res(n, k).i] = i + 1;
        x->leaf[i] = is_leaf(x, i);
    }
    outside_mark(x);
}

static Fusion fusion_new(Module *m, FuncId f, Arena *a, const Effects *fx,
                         uint32_t *item_of)
{
    uint32_t n = func_of(m, f)->body.n;

    return (Fusion){
        .m = m, .f = f, .arena = a, .fx = fx, .n = n,
        .node = arena_array(a, NodeId, n),
        .item_of = item_of,
        .row = arena_array(a, bool, n),
        .leaf = arena_array(a, bool, n),
        .outside = arena_array(a, bool, n),
        .succ = arena_array(a, ItemVec, n),
        .cluster = arena_array(a, uint32_t, n),
        .member = arena_array(a, ItemVec, n),
        .copy = arena_array(a, ItemVec, n),
        .visited = arena_array(a, uint32_t, n),
    };
}

static void fusion_free(Fusion *x)
{
    for (uint32_t i = 0; i < x->n; i++) {
        vec_free(&x->succ[i]);
        vec_free(&x->member[i]);
        vec_free(&x->copy[i]);
    }
}

static void fuse_rows(Module *m, FuncId f, const Effects *fx, uint32_t *item_of)
{
    Arena *a = arena_new();
    Fusion x = fusion_new(m, f, a, fx, item_of);

    items_make(&x);
    fusion_order(&x);
    fusion_group(&x);
    fusion_outline(&x);
    fusion_free(&x);
    arena_free(a);
}

bool pass_fuse(Module *m, const Spec *spec)
{
    Arena *a = arena_new();
    uint32_t nfuncs = m->funcs.n, *item_of;
    Effects fx;

    (void)spec;
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            fuse_simplify(m, (FuncId){i});
    clean_cse(m);
    fuse_hoist(m);
    clean_cse(m);
    clean_dead(m);
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            fuse_dots(m, (FuncId){i});
    clean_dead(m);
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            fuse_epilogues(m, (FuncId){i});
    clean_dead(m);
    effects_compute(a, m, &fx);
    item_of = arena_array(a, uint32_t, m->values.n);
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH && m->funcs.v[i].name.i)
            fuse_rows(m, (FuncId){i}, &fx, item_of);
    arena_free(a);
    return true;
}
