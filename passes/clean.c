/* clean.c - dead code, and equal nodes once.
 *
 * Both work function by function.  A node with OPF_EFFECT always stays; a
 * `read` may be merged with an earlier one only if nothing between them could
 * have changed state.
 */
#include "passes/effects.h"
#include "passes/passes.h"

/* ---- dead code ----------------------------------------------------------- */

static bool any_used(const Node *n, const bool *used)
{
    for (uint32_t i = 0; i < n->nres; i++)
        if (used[n->res.i + i])
            return true;
    return false;
}

/* Keeps the nodes that are needed, found from the end. */
static void dead_in(Module *m, Func *fn, bool *used)
{
    uint32_t kept = fn->body.n;

    for (uint32_t i = 0; i < fn->results.n; i++)
        used[fn->results.v[i].i] = true;
    for (uint32_t i = fn->body.n; i-- > 0;) {
        NodeId id = fn->body.v[i];
        const Node *n = node_of(m, id);
        if (!(op_info[n->op].flags & OPF_EFFECT) && !any_used(n, used))
            continue;
        for (uint32_t k = 0; k < n->nargs; k++)
            used[node_arg(m, n, k).i] = true;
        fn->body.v[--kept] = id;
    }
    fn->body.n -= kept;
    for (uint32_t i = 0; kept && i < fn->body.n; i++)
        fn->body.v[i] = fn->body.v[i + kept];
}

static void mark_called(const Module *m, FuncId f, bool *called)
{
    const Func *fn = &m->funcs.v[f.i];

    if (called[f.i])
        return;
    called[f.i] = true;
    for (uint32_t i = 0; i < fn->body.n; i++) {
        const Node *n = &m->nodes.v[fn->body.v[i].i];
        if (n->op == OP_CALL || n->op == OP_ROW)
            mark_called(m, attr_func(m, n->attrs, AK_CALLEE), called);
    }
}

/* Points every reference to a function at its new number. */
static void renumber(Module *m, const uint32_t *now)
{
    for (uint32_t i = 1; i < m->funcs.n; i++)
        for (uint32_t k = 0; k < m->funcs.v[i].body.n; k++) {
            NodeId id = m->funcs.v[i].body.v[k];
            AttrsId attrs = node_of(m, id)->attrs;
            if (!attr_find(m, attrs, AK_CALLEE))
                continue;
            FuncId to = {now[attr_func(m, attrs, AK_CALLEE).i]};
            node_of(m, id)->attrs =
                attrs_with(m, attrs, attr_of_func(AK_CALLEE, to));
        }
    for (uint32_t i = 0; i < m->entry.n; i++)
        m->entry.v[i].i = now[m->entry.v[i].i];
    for (uint32_t i = 0; i < m->stages.n; i++) {
        m->stages.v[i].fwd.i = now[m->stages.v[i].fwd.i];
        m->stages.v[i].bwd.i = now[m->stages.v[i].bwd.i];
        m->stages.v[i].weights.i = now[m->stages.v[i].weights.i];
    }
}

static void drop_uncalled(Module *m)
{
    Arena *scratch = arena_new();
    bool *called = arena_array(scratch, bool, m->funcs.n);
    uint32_t *now = arena_array(scratch, uint32_t, m->funcs.n);
    uint32_t kept = 1;

    for (uint32_t i = 0; i < m->entry.n; i++)
        mark_called(m, m->entry.v[i], called);
    for (uint32_t i = 1; i < m->funcs.n; i++) {
        Func *fn = &m->funcs.v[i];
        if (called[i]) {
            now[i] = kept;
            m->funcs.v[kept++] = *fn;
            continue;
        }
        vec_free(&fn->params);
        vec_free(&fn->results);
        vec_free(&fn->body);
    }
    if (kept < m->funcs.n) {
        m->funcs.n = kept;
        renumber(m, now);
    }
    arena_free(scratch);
}

void clean_dead(Module *m)
{
    Arena *scratch = arena_new();
    bool *used = arena_array(scratch, bool, m->values.n);

    drop_uncalled(m);
    for (uint32_t i = 1; i < m->funcs.n; i++)
        dead_in(m, &m->funcs.v[i], used);
    arena_free(scratch);
}

/* ---- equal nodes --------------------------------------------------------- */

typedef struct {
    NodeId id;
    uint32_t version; /* of state, for reads */
} Seen;

static bool same_layouts(const Module *m, const Node *a, const Node *b)
{
    for (uint32_t i = 0; i < a->nres; i++) {
        const Value *x = &m->values.v[a->res.i + i];
        const Value *y = &m->values.v[b->res.i + i];
        if (x->type.i != y->type.i || x->layout.i != y->layout.i)
            return false;
    }
    return true;
}

static bool same_node(const Module *m, const Node *a, const Node *b)
{
    if (a->op != b->op || a->attrs.i != b->attrs.i || a->nargs != b->nargs ||
        a->nres != b->nres)
        return false;
    for (uint32_t i = 0; i < a->nargs; i++)
        if (node_arg(m, a, i).i != node_arg(m, b, i).i)
            return false;
    return same_layouts(m, a, b);
}

static bool reads_state(const Node *n)
{
    return n->op == OP_READ;
}

/* What spans stages stays: what is equal in one need not be in another. */
static void cse_in(Module *m, Func *fn)
{
    Vec(Seen) seen = {0};
    ValueMap map = {0};
    uint32_t kept = 0, version = 0;

    for (uint32_t i = 0; i < fn->body.n; i++) {
        NodeId id = fn->body.v[i];
        Node *n = node_of(m, id);
        bool merged = false;
        for (uint32_t k = 0; k < n->nargs; k++)
            m->args.v[n->arg + k] = vmap_get(&map, m->args.v[n->arg + k]);
        if (op_info[n->op].flags & OPF_EFFECT)
            version++;
        for (uint32_t k = 0; k < seen.n && !merged; k++) {
            const Node *old = node_of(m, seen.v[k].id);
            merged = same_node(m, old, n) && !effects_span_stages(m, n) &&
                     (!reads_state(n) || seen.v[k].version == version);
            for (uint32_t r = 0; merged && r < n->nres; r++)
                vmap_set(&map, node_res(n, r), node_res(old, r));
        }
        if (merged)
            continue;
        fn->body.v[kept++] = id;
        if (!(op_info[n->op].flags & OPF_EFFECT))
            vec_push(&seen, ((Seen){id, version}));
    }
    fn->body.n = kept;
    for (uint32_t i = 0; i < fn->results.n; i++)
        fn->results.v[i] = vmap_get(&map, fn->results.v[i]);
    vec_free(&seen);
    vmap_free(&map);
}

void clean_cse(Module *m)
{
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            cse_in(m, &m->funcs.v[i]);
}
