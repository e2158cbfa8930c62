/* module.c - the container: functions, tensors, values and nodes.
 *
 * Everything is appended to flat arrays and named by its index; entry 0 of each
 * array is the "none" that index 0 stands for.  Appending may move an array, so
 * no pointer into one survives a call that makes something.  What was appended
 * is never removed: a pass that replaces nodes drops them from a body and
 * leaves them behind.
 *
 * Nothing here judges: build.c checks while building, verify.c afterwards.
 */
#include "ir/ir_priv.h"

#include <ctype.h>

Module *module_new(Arena *a, Diag *d)
{
    Module *m = arena_new_of(a, Module);

    m->arena = a;
    m->diag = d;
    m->names = symtab_new(a);
    m->interned = arena_new_of(a, Interned);
    m->mesh.world = 1;
    vec_push(&m->types, (Type){0});
    vec_push(&m->layouts, (Layout){0});
    vec_push(&m->attr_lists, 0);
    vec_push(&m->tensors, (Tensor){0});
    vec_push(&m->funcs, (Func){0});
    vec_push(&m->nodes, (Node){0});
    vec_push(&m->values, (Value){0});
    return m;
}

static void free_tables(Module *m)
{
    intern_free(&interned_of(m)->types);
    intern_free(&interned_of(m)->layouts);
    intern_free(&interned_of(m)->attrs);
    intern_free(&interned_of(m)->lists);
    symtab_free(m->names);
}

void module_free(Module *m)
{
    for (uint32_t i = 0; i < m->funcs.n; i++) {
        vec_free(&m->funcs.v[i].params);
        vec_free(&m->funcs.v[i].results);
        vec_free(&m->funcs.v[i].body);
    }
    free_tables(m);
    vec_free(&m->mesh.atoms);
    vec_free(&m->types);
    vec_free(&m->layouts);
    vec_free(&m->attrs);
    vec_free(&m->attr_lists);
    vec_free(&m->list);
    vec_free(&m->tensors);
    vec_free(&m->funcs);
    vec_free(&m->nodes);
    vec_free(&m->values);
    vec_free(&m->args);
    vec_free(&m->hints);
    vec_free(&m->kind);
    vec_free(&m->stages);
    vec_free(&m->programs);
    vec_free(&m->entry);
}

/* ---- functions ----------------------------------------------------------- */

FuncId func_new(Module *m, const char *name, FuncKind kind, Loc loc)
{
    Func f = {.kind = kind, .loc = loc};

    mc_assert(name_is_plain(name));
    f.name = sym_intern(m->names, name);
    vec_push(&m->funcs, f);
    return (FuncId){m->funcs.n - 1};
}

FuncId func_find(const Module *m, Sym name)
{
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (m->funcs.v[i].name.i == name.i)
            return (FuncId){i};
    return (FuncId){0};
}

ValueId func_param(Module *m, FuncId f, TypeId t, const char *name)
{
    ValueId v = value_new(m, t, name);

    vec_push(&func_of(m, f)->params, v);
    return v;
}

/* ---- tensors ------------------------------------------------------------- */

TensorId tensor_new(Module *m, const Tensor *t)
{
    mc_assert(name_is_plain(sym_text(m->names, t->name)));
    vec_push(&m->tensors, *t);
    return (TensorId){m->tensors.n - 1};
}

TensorId tensor_find(const Module *m, Sym name)
{
    for (uint32_t i = 1; i < m->tensors.n; i++)
        if (m->tensors.v[i].name.i == name.i)
            return (TensorId){i};
    return (TensorId){0};
}

bool tensor_in_layer(const Module *m, TensorId t, uint32_t layer)
{
    const Tensor *tensor = &m->tensors.v[t.i];
    uint32_t kind = layer < m->kind.n ? m->kind.v[layer] : 0;

    return !tensor->per_layer || !tensor->kinds || (tensor->kinds >> kind & 1);
}

uint32_t tensor_layers(const Module *m, TensorId t, uint32_t first, uint32_t n)
{
    uint32_t count = 0;

    if (!m->tensors.v[t.i].per_layer)
        return 1;
    if (m->tensors.v[t.i].kinds == 0)
        return n;
    for (uint32_t l = first; l < first + n; l++)
        count += tensor_in_layer(m, t, l);
    return count;
}

/* ---- values and nodes ---------------------------------------------------- */

ValueId value_new(Module *m, TypeId t, const char *name)
{
    Value v = {.type = t};

    if (name && *name) {
        mc_assert(name_is_plain(name));
        v.name = sym_intern(m->names, name);
    }
    vec_push(&m->values, v);
    return (ValueId){m->values.n - 1};
}

static ValueId new_results(Module *m, NodeId n, const TypeId *res,
                           uint32_t nres)
{
    ValueId first = {nres ? m->values.n : 0};

    for (uint32_t i = 0; i < nres; i++) {
        ValueId v = value_new(m, res[i], NULL);

        value_of(m, v)->def = n;
    }
    return first;
}

/* `args` may lie in m->args itself, which pushing can move. */
static uint32_t append_args(Module *m, const ValueId *args, uint32_t nargs)
{
    uint32_t first = m->args.n;
    bool inside = m->args.v && args >= m->args.v &&
                  args < m->args.v + m->args.n;
    size_t at = inside ? (size_t)(args - m->args.v) : 0;

    for (uint32_t i = 0; i < nargs; i++) {
        ValueId arg = inside ? m->args.v[at + i] : args[i];

        vec_push(&m->args, arg);
    }
    return first;
}

NodeId node_new(Module *m, FuncId f, Op op, const ValueId *args, uint32_t nargs,
                AttrsId attrs, const TypeId *res, uint32_t nres, Loc loc)
{
    NodeId id = {m->nodes.n};
    Node n = {.op = (uint16_t)op,
              .nargs = (uint16_t)nargs,
              .nres = (uint16_t)nres,
              .attrs = attrs,
              .loc = loc};

    mc_assert(nargs <= UINT16_MAX && nres <= UINT16_MAX);
    n.arg = append_args(m, args, nargs);
    n.res = new_results(m, id, res, nres);
    vec_push(&m->nodes, n);
    if (f.i)
        vec_push(&func_of(m, f)->body, id);
    return id;
}
