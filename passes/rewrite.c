/* rewrite.c - copying nodes, and replacing them, under a map of values. */
#include "passes/passes.h"

/* Lets the map begin at an older value, and a few more before it. */
static void vmap_begin_at(ValueMap *map, uint32_t from)
{
    uint32_t first = from - MC_MIN(from, map->to.n / 2), more, old = map->to.n;

    more = map->first - first;
    for (uint32_t i = 0; i < more; i++)
        vec_push(&map->to, ((ValueId){0}));
    memmove(map->to.v + more, map->to.v, old * sizeof *map->to.v);
    memset(map->to.v, 0, more * sizeof *map->to.v);
    map->first = first;
}

void vmap_set(ValueMap *map, ValueId from, ValueId to)
{
    if (map->to.n == 0)
        map->first = from.i;
    if (from.i < map->first)
        vmap_begin_at(map, from.i);
    while (map->to.n <= from.i - map->first)
        vec_push(&map->to, ((ValueId){0}));
    map->to.v[from.i - map->first] = to;
}

ValueId vmap_get(const ValueMap *map, ValueId v)
{
    uint32_t at = v.i - map->first;

    return at < map->to.n && map->to.v[at].i ? map->to.v[at] : v;
}

void vmap_copy(ValueMap *to, const ValueMap *from)
{
    *to = (ValueMap){.first = from->first};
    for (uint32_t i = 0; i < from->to.n; i++)
        vec_push(&to->to, from->to.v[i]);
}

void vmap_free(ValueMap *map)
{
    vec_free(&map->to);
}

void value_like(Module *m, ValueId from, ValueId to)
{
    const Value old = *value_of(m, from);
    Value *v = value_of(m, to);

    v->layout = old.layout;
    v->name = old.name;
    v->hint = old.hint;
}

NodeId node_copy(Module *m, FuncId f, NodeId n, ValueMap *map)
{
    const Node old = *node_of(m, n);
    ValueId args[IR_MAX_VALUES];
    TypeId types[IR_MAX_VALUES];
    NodeId copy;

    mc_assert(old.nargs <= MC_LEN(args) && old.nres <= MC_LEN(types));
    for (uint32_t i = 0; i < old.nargs; i++)
        args[i] = vmap_get(map, node_arg(m, &old, i));
    for (uint32_t i = 0; i < old.nres; i++)
        types[i] = value_of(m, node_res(&old, i))->type;
    copy = node_new(m, f, (Op)old.op, args, old.nargs, old.attrs, types,
                    old.nres, old.loc);
    node_of(m, copy)->stream = old.stream;
    for (uint32_t i = 0; i < old.nres; i++) {
        ValueId res = node_res(node_of(m, copy), i);
        value_like(m, node_res(&old, i), res);
        vmap_set(map, node_res(&old, i), res);
    }
    return copy;
}

static void node_substitute(Module *m, NodeId id, const ValueMap *map)
{
    const Node *n = node_of(m, id);

    for (uint32_t k = 0; k < n->nargs; k++)
        m->args.v[n->arg + k] = vmap_get(map, m->args.v[n->arg + k]);
}

void func_substitute(Module *m, FuncId f, const ValueMap *map)
{
    Func *fn = func_of(m, f);

    for (uint32_t i = 0; i < fn->body.n; i++)
        node_substitute(m, fn->body.v[i], map);
    for (uint32_t i = 0; i < fn->results.n; i++)
        fn->results.v[i] = vmap_get(map, fn->results.v[i]);
}

bool func_has(const Module *m, FuncId f, Op op)
{
    const Func *func = &m->funcs.v[f.i];

    for (uint32_t i = 0; i < func->body.n; i++)
        if (m->nodes.v[func->body.v[i].i].op == op)
            return true;
    return false;
}

void func_rebuild(Module *m, FuncId f, NodeRewrite *rewrite, void *self)
{
    Func old = *func_of(m, f);
    ValueMap map = {0};

    memset(&func_of(m, f)->body, 0, sizeof old.body);
    for (uint32_t i = 0; i < old.body.n; i++) {
        node_substitute(m, old.body.v[i], &map);
        if (!rewrite(self, f, old.body.v[i], &map))
            vec_push(&func_of(m, f)->body, old.body.v[i]);
    }
    func_substitute(m, f, &map);
    vmap_free(&map);
    vec_free(&old.body);
}

void results_replace(Module *m, const Node *n, uint32_t count, NodeId made,
                     ValueMap *map)
{
    for (uint32_t i = 0; i < count; i++) {
        ValueId from = node_res(n, i), to = node_res(node_of(m, made), i);
        value_like(m, from, to);
        vmap_set(map, from, to);
    }
}

/* "layer.bwd.last", for further ones "layer.bwd.last.2" and so on. */
static const char *copy_name(const Module *m, FuncId from, const char *suffix)
{
    const char *old = sym_text(m->names, m->funcs.v[from.i].name);
    const char *name = arena_printf(m->arena, "%s.%s", old, suffix);

    for (int n = 2; func_find(m, sym_intern(m->names, name)).i; n++)
        name = arena_printf(m->arena, "%s.%s.%d", old, suffix, n);
    return name;
}

FuncId func_copy(Module *m, FuncId from, const char *suffix, ValueMap *map)
{
    FuncId f = func_new(m, copy_name(m, from, suffix), FUNC_GRAPH,
                        func_of(m, from)->loc);

    for (uint32_t i = 0; i < func_of(m, from)->params.n; i++) {
        ValueId old = func_of(m, from)->params.v[i];
        ValueId v = func_param(m, f, value_of(m, old)->type,
                               sym_text(m->names, value_of(m, old)->name));
        value_like(m, old, v);
        vmap_set(map, old, v);
    }
    for (uint32_t i = 0; i < func_of(m, from)->body.n; i++)
        node_copy(m, f, func_of(m, from)->body.v[i], map);
    for (uint32_t i = 0; i < func_of(m, from)->results.n; i++) {
        ValueId old = func_of(m, from)->results.v[i];
        vec_push(&func_of(m, f)->results, vmap_get(map, old));
    }
    return f;
}
