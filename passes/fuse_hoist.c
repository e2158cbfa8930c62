/* fuse_hoist.c - tables made once per step instead of once per layer.
 *
 *     func @layer.fwd(%x) {                 func @layer.fwd(%x, %cos) {
 *         %cos = rope_table {…}       →
 *
 *     %y = call %x {callee=@layer.fwd       %cos = rope_table {…}
 *                   args=">"}               %y = call %x, %cos {… args=">."}
 *
 * A table depends on nothing, so it can be made by the caller and passed on,
 * and by the caller's caller, up to the entry; clean_cse merges them there.
 */
#include "passes/fuse_priv.h"

static bool is_entry(const Module *m, FuncId f)
{
    for (uint32_t i = 0; i < m->entry.n; i++)
        if (m->entry.v[i].i == f.i)
            return true;
    return false;
}

/* Position of a table in the body, or -1. */
static int32_t table_find(Module *m, FuncId f)
{
    const Func *func = func_of(m, f);

    for (uint32_t i = 0; i < func->body.n; i++)
        if (node_of(m, func->body.v[i])->op == OP_ROPE_TABLE)
            return (int32_t)i;
    return -1;
}

/* Appends a whole operand to a call. */
static void call_extend(Module *m, NodeId call, ValueId v)
{
    const Attr *old = attr_find(m, node_of(m, call)->attrs, AK_ARGS);
    uint32_t first = m->args.n, n = node_of(m, call)->nargs;
    int64_t *modes = arena_array(m->arena, int64_t, n + 1u);

    for (uint32_t i = 0; i < n; i++) {
        ValueId arg = node_arg(m, node_of(m, call), i);

        modes[i] = m->list.v[old->as.list.first + i];
        vec_push(&m->args, arg);
    }
    modes[n] = MODE_WHOLE;
    vec_push(&m->args, v);
    node_of(m, call)->arg = first;
    node_of(m, call)->nargs = (uint16_t)(n + 1);
    node_of(m, call)->attrs =
        attrs_with(m, node_of(m, call)->attrs,
                   attr_of_list(m, AK_ARGS, modes, n + 1));
}

static void body_insert(Module *m, FuncId f, uint32_t pos, NodeId n)
{
    Func *func = func_of(m, f);

    vec_push(&func->body, n);
    memmove(func->body.v + pos + 1, func->body.v + pos,
            (func->body.n - 1 - pos) * sizeof *func->body.v);
    func->body.v[pos] = n;
}

/* Makes the table before every call of f in g, once. */
static void callers_extend(Module *m, FuncId g, FuncId f, NodeId table)
{
    ValueId made = {0};

    for (uint32_t i = 0; i < func_of(m, g)->body.n; i++) {
        NodeId id = func_of(m, g)->body.v[i];
        ValueMap none = {0};

        if (node_of(m, id)->op != OP_CALL ||
            attr_func(m, node_of(m, id)->attrs, AK_CALLEE).i != f.i)
            continue;
        if (!made.i) {
            NodeId copy = node_copy(m, (FuncId){0}, table, &none);

            body_insert(m, g, i++, copy);
            made = node_of(m, copy)->res;
        }
        call_extend(m, id, made);
        vmap_free(&none);
    }
}

static void table_hoist(Module *m, FuncId f, uint32_t pos)
{
    Func *func = func_of(m, f);
    NodeId table = func->body.v[pos];
    ValueId res = node_of(m, table)->res, param;
    ValueMap map = {0};

    memmove(func->body.v + pos, func->body.v + pos + 1,
            (func->body.n - 1 - pos) * sizeof *func->body.v);
    func->body.n--;
    param = func_param(m, f, value_of(m, res)->type, NULL);
    value_of(m, param)->layout = value_of(m, res)->layout;
    value_of(m, param)->name = value_of(m, res)->name;
    vmap_set(&map, res, param);
    func_substitute(m, f, &map);
    vmap_free(&map);
    for (uint32_t g = 1; g < m->funcs.n; g++)
        if (m->funcs.v[g].kind == FUNC_GRAPH)
            callers_extend(m, (FuncId){g}, f, table);
}

void fuse_hoist(Module *m)
{
    bool again = true;

    while (again) {
        again = false;
        for (uint32_t f = 1; f < m->funcs.n; f++) {
            int32_t pos = table_find(m, (FuncId){f});

            if (pos < 0 || is_entry(m, (FuncId){f}))
                continue;
            table_hoist(m, (FuncId){f}, (uint32_t)pos);
            again = true;
        }
    }
}
