/* clean.c - dead code, and equal nodes once.
 *
 * Both work function by function.  A node with OPF_EFFECT always stays; a
 * `read` may be merged with an earlier one only if nothing between them could
 * have changed state.
 */
#include "passes/passes.h"

/* ---- dead code -------------------------------------------------------------- */

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
    memmove(fn->body.v, fn->body.v + kept,
            (fn->body.n - kept) * sizeof *fn->body.v);
    fn->body.n -= kept;
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

/* An unreachable function becomes an empty one without a name. */
static void drop_uncalled(Module *m)
{
    Arena *scratch = arena_new();
    bool *called = arena_array(scratch, bool, m->funcs.n);

    for (uint32_t i = 0; i < m->entry.n; i++)
        mark_called(m, m->entry.v[i], called);
    for (uint32_t i = 1; i < m->funcs.n; i++) {
        Func *fn = &m->funcs.v[i];
        if (called[i])
            continue;
        vec_free(&fn->params);
        vec_free(&fn->results);
        vec_free(&fn->body);
        fn->name = (Sym){0};
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

/* ---- equal nodes --------------------------------------------------------------- */

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
            m->args.v[n->arg + k] = map_get(&map, m->args.v[n->arg + k]);
        if (op_info[n->op].flags & OPF_EFFECT)
            version++;
        for (uint32_t k = 0; k < seen.n && !merged; k++) {
            const Node *old = node_of(m, seen.v[k].id);
            merged = same_node(m, old, n) &&
                     (!reads_state(n) || seen.v[k].version == version);
            for (uint32_t r = 0; merged && r < n->nres; r++)
                map_set(&map, node_res(n, r), node_res(old, r));
        }
        if (merged)
            continue;
        fn->body.v[kept++] = id;
        if (!(op_info[n->op].flags & OPF_EFFECT))
            vec_push(&seen, ((Seen){id, version}));
    }
    fn->body.n = kept;
    for (uint32_t i = 0; i < fn->results.n; i++)
        fn->results.v[i] = map_get(&map, fn->results.v[i]);
    vec_free(&seen);
    map_free(&map);
}

void clean_cse(Module *m)
{
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            cse_in(m, &m->funcs.v[i]);
}
