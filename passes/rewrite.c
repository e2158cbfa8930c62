/* rewrite.c - copying nodes between functions under a map of values. */
#include "passes/passes.h"

void vmap_set(ValueMap *map, ValueId from, ValueId to)
{
    while (map->to.n <= from.i)
        vec_push(&map->to, ((ValueId){0}));
    map->to.v[from.i] = to;
}

ValueId vmap_get(const ValueMap *map, ValueId v)
{
    return v.i < map->to.n && map->to.v[v.i].i ? map->to.v[v.i] : v;
}

void vmap_free(ValueMap *map)
{
    vec_free(&map->to);
}

/* Copies layout, name and hint of one value to its copy. */
static void value_like(Module *m, ValueId from, ValueId to)
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

void func_substitute(Module *m, FuncId f, const ValueMap *map)
{
    Func *fn = func_of(m, f);

    for (uint32_t i = 0; i < fn->body.n; i++) {
        const Node *n = node_of(m, fn->body.v[i]);
        for (uint32_t k = 0; k < n->nargs; k++)
            m->args.v[n->arg + k] = vmap_get(map, m->args.v[n->arg + k]);
    }
    for (uint32_t i = 0; i < fn->results.n; i++)
        fn->results.v[i] = vmap_get(map, fn->results.v[i]);
}
