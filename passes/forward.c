/* forward.c - the forward alone, for evaluation.
 *
 *   stage1.fwd(x, labels) -> dx, s…      stage1.eval(x, labels)
 *     scan layer.fwd: stacks s     →       scan layer.fwd.eval
 *     scan head.chunk                      scan head.chunk.eval
 *       accum @loss.acc                      accum @loss.acc
 *       accum @head.grad, dx
 *
 * A forward of training keeps what its backward needs, and that of the head
 * computes gradients on the way.  Its copy here returns what the next stage
 * takes in, adds to metrics, and does what leads to either, but for dropout.
 */
#include "passes/forward.h"

struct Forward {
    Module *m;
    Arena *arena;
    Vec(ForwardFunc) made; /* from which function, with which results */
};

static FuncId func_forward(Forward *x, FuncId f, const bool *keep);

/* ---- what stays ---------------------------------------------------------- */

static bool is_metric_state(const Module *m, const Node *n)
{
    return attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM) == FIELD_ACC;
}

static bool has_effect(const Module *m, const Node *n)
{
    const Func *callee;

    if (n->op != OP_CALL)
        return (op_info[n->op].flags & OPF_EFFECT) != 0 &&
               (!attr_find(m, n->attrs, AK_TENSOR) || is_metric_state(m, n));
    callee = &m->funcs.v[call_scan(m, n).callee.i];
    for (uint32_t i = 0; i < callee->body.n; i++)
        if (has_effect(m, &m->nodes.v[callee->body.v[i].i]))
            return true;
    return false;
}

static bool any_used(const Node *n, const bool *used)
{
    for (uint32_t i = 0; i < n->nres; i++)
        if (used[n->res.i + i])
            return true;
    return false;
}

/* Marks, from the end, the values that are needed and the nodes that stay. */
static void mark(const Module *m, const Func *f, const bool *keep, bool *used,
                 bool *stays)
{
    for (uint32_t i = 0; i < f->results.n; i++)
        used[f->results.v[i].i] |= keep[i];
    for (uint32_t pos = f->body.n; pos-- > 0;) {
        const Node *n = &m->nodes.v[f->body.v[pos].i];
        stays[pos] = has_effect(m, n) || any_used(n, used);
        for (uint32_t i = 0; stays[pos] && i < n->nargs; i++)
            used[node_arg(m, n, i).i] = true;
    }
}

/* ---- calls --------------------------------------------------------------- */

void forward_call(Forward *x, FuncId into, NodeId call, const bool *keep,
                  ValueMap *map)
{
    Module *m = x->m;
    const Node n = *node_of(m, call);
    ValueId *args = arena_array(x->arena, ValueId, n.nargs + 1u);
    TypeId *types = arena_array(x->arena, TypeId, n.nres + 1u);
    int64_t *modes = arena_array(x->arena, int64_t, n.nres + 1u);
    FuncId callee = func_forward(x, call_scan(m, &n).callee, keep);
    AttrsId attrs = attrs_with(m, n.attrs, attr_of_func(AK_CALLEE, callee));
    uint16_t nres = 0;
    NodeId copy;

    for (uint32_t i = 0; i < n.nargs; i++)
        args[i] = vmap_get(map, node_arg(m, &n, i));
    for (uint32_t i = 0; i < n.nres; i++) {
        if (!keep[i])
            continue;
        modes[nres] = call_res_mode(m, &n, i);
        types[nres++] = value_of(m, node_res(&n, i))->type;
    }
    attrs = attrs_with(m, attrs, attr_of_list(m, AK_RESULTS, modes, nres));
    copy = node_new(m, into, OP_CALL, args, n.nargs, attrs, types, nres, n.loc);
    nres = 0;
    for (uint32_t i = 0; i < n.nres; i++) {
        ValueId to = {node_of(m, copy)->res.i + nres};
        nres += keep[i];
        if (keep[i])
            value_like(m, node_res(&n, i), to);
        if (keep[i])
            vmap_set(map, node_res(&n, i), to);
    }
}

/* What is used, and every carry, which its next iteration takes in. */
static void copy_call(Forward *x, FuncId into, NodeId call, const bool *used,
                      ValueMap *map)
{
    const Node n = *node_of(x->m, call);
    bool *keep = arena_array(x->arena, bool, n.nres + 1u);

    for (uint32_t i = 0; i < n.nres; i++)
        keep[i] = used[n.res.i + i] ||
                  call_res_mode(x->m, &n, i) == MODE_CARRY;
    forward_call(x, into, call, keep, map);
}

/* ---- functions ----------------------------------------------------------- */

static const ForwardFunc *find(const Forward *x, FuncId f, const bool *keep)
{
    size_t n = x->m->funcs.v[f.i].results.n * sizeof *keep;

    for (uint32_t i = 0; i < x->made.n; i++)
        if (x->made.v[i].of.i == f.i && !memcmp(x->made.v[i].keep, keep, n))
            return &x->made.v[i];
    return NULL;
}

static void copy_params(Module *m, const Func *old, FuncId to, ValueMap *map)
{
    for (uint32_t i = 0; i < old->params.n; i++) {
        ValueId was = old->params.v[i];
        ValueId p = func_param(m, to, value_of(m, was)->type, NULL);
        value_like(m, was, p);
        vmap_set(map, was, p);
    }
}

/* A node that stays; nothing is dropped in an evaluation. */
static void copy_node(Forward *x, FuncId into, NodeId id, ValueMap *map)
{
    static const AttrKey draws[] = {AK_RATE, AK_DRAW, AK_TENSOR};
    Module *m = x->m;
    NodeId copy = node_copy(m, into, id, map);
    AttrsId attrs = node_of(m, copy)->attrs;

    if (!attr_find(m, attrs, AK_RATE))
        return;
    for (size_t i = 0; i < MC_LEN(draws); i++)
        attrs = attrs_without(m, attrs, draws[i]);
    if (node_of(m, copy)->op == OP_DROPOUT) {
        Attr f32 = attr_of_int(AK_DTYPE, DT_F32);

        node_of(m, copy)->op = OP_CAST;
        attrs = attrs_intern(m, &f32, 1);
    }
    node_of(m, copy)->attrs = attrs;
}

static FuncId forward_of(Forward *x, FuncId f, const bool *keep)
{
    Module *m = x->m;
    const Func old = *func_of(m, f);
    bool *used = arena_array(x->arena, bool, m->values.n);
    bool *stays = arena_array(x->arena, bool, old.body.n + 1u);
    const char *name = arena_printf(m->arena, "%s.eval",
                                    sym_text(m->names, old.name));
    FuncId to = func_new(m, name, FUNC_GRAPH, old.loc);
    ValueMap map = {0};

    mark(m, &old, keep, used, stays);
    copy_params(m, &old, to, &map);
    for (uint32_t pos = 0; pos < old.body.n; pos++) {
        NodeId id = old.body.v[pos];
        if (stays[pos] && node_of(m, id)->op == OP_CALL)
            copy_call(x, to, id, used, &map);
        else if (stays[pos])
            copy_node(x, to, id, &map);
    }
    for (uint32_t i = 0; i < old.results.n; i++)
        if (keep[i])
            vec_push(&func_of(m, to)->results,
                     vmap_get(&map, old.results.v[i]));
    vmap_free(&map);
    return to;
}

static FuncId func_forward(Forward *x, FuncId f, const bool *keep)
{
    const ForwardFunc *known = find(x, f, keep);
    uint32_t n = x->m->funcs.v[f.i].results.n;
    bool *copy;
    FuncId to;

    if (known)
        return known->f;
    copy = arena_array(x->arena, bool, n + 1u);
    memcpy(copy, keep, n * sizeof *copy);
    to = forward_of(x, f, keep);
    vec_push(&x->made, ((ForwardFunc){f, to, copy}));
    return to;
}

Forward *forward_new(Arena *a, Module *m)
{
    Forward *x = arena_new_of(a, Forward);

    x->m = m;
    x->arena = a;
    return x;
}

void forward_free(Forward *x)
{
    vec_free(&x->made);
}
