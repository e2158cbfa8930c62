/* model_spell.c - short spellings for the nodes of a model graph. */
#include "frontend/model_priv.h"

Loc model_at(Model *x, const char *path)
{
    x->loc = spec_loc(x->spec, path);
    return x->loc;
}

ValueId model_unary(Model *x, Op op, ValueId a)
{
    return ir_unary(x->m, x->f, op, a, x->loc);
}

ValueId model_binary(Model *x, Op op, ValueId a, ValueId b)
{
    return ir_binary(x->m, x->f, op, a, b, x->loc);
}

ValueId model_number(Model *x, double value)
{
    return ir_const(x->m, x->f, value, x->loc);
}

ValueId model_ratio(Model *x, int64_t p, int64_t q)
{
    return ir_ratio(x->m, x->f, p, q, false, x->loc);
}

ValueId model_host(Model *x, const char *what)
{
    TypeId scalar = type_make(x->m, DT_F32, "", NULL);
    Attr attr = attr_of_sym(AK_WHAT, sym_intern(x->m->names, what));
    NodeId n = node_new(x->m, x->f, OP_HOST, NULL, 0,
                        attrs_intern(x->m, &attr, 1), &scalar, 1, x->loc);

    return node_res(node_of(x->m, n), 0);
}

ValueId model_round(Model *x, ValueId a)
{
    return ir_cast(x->m, x->f, a, x->compute, x->loc);
}

AttrsId model_positions(Model *x, AttrsId attrs)
{
    int64_t parts = x->spec->parallel.cp;

    return parts == 1 ? attrs
                      : attrs_with(x->m, attrs, attr_of_int(AK_ZIGZAG, parts));
}

AttrsId model_draws(Model *x, AttrsId attrs, double rate, int which)
{
    if (rate == 0)
        return attrs;
    attrs = attrs_with(x->m, attrs, attr_of_float(AK_RATE, rate));
    attrs = attrs_with(x->m, attrs, attr_of_int(AK_DRAW, which));
    return attrs_with(x->m, attrs, attr_of_tensor(AK_TENSOR, model_key(x)));
}

ValueId model_dropout(Model *x, ValueId a, double rate, int which)
{
    AttrsId attrs =
        model_positions(x, model_draws(x, (AttrsId){0}, rate, which));

    return rate == 0 ? a : ir_op(x->m, x->f, OP_DROPOUT, &a, 1, attrs, x->loc);
}

ValueId model_hint(Model *x, ValueId a, const char *hint)
{
    value_of(x->m, a)->hint = sym_intern(x->m->names, hint);
    return a;
}

ValueId model_name(Model *x, ValueId a, const char *name)
{
    value_of(x->m, a)->name = sym_intern(x->m->names, name);
    return a;
}

/* Sum over one dimension. */
ValueId model_sum(Model *x, ValueId a, char dim)
{
    const Type *t = value_type(x->m, a);
    char keep[IR_MAX_DIMS + 1];
    size_t n = 0;

    for (uint8_t i = 0; i < t->ndim; i++)
        if (t->dim[i] != dim)
            keep[n++] = t->dim[i];
    keep[n] = '\0';
    return ir_sum(x->m, x->f, a, keep, x->loc);
}

ValueId model_dot(Model *x, ValueId a, ValueId b, const char *dims)
{
    return ir_dot(x->m, x->f, a, b, dims, x->compute, x->loc);
}

ValueId model_dot_filled(Model *x, ValueId a, ValueId b, ValueId filled,
                         const char *dims)
{
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(x->m->names, dims)),
                   attr_of_int(AK_DTYPE, (int64_t)x->compute)};
    ValueId args[] = {a, b, filled};

    return ir_op(x->m, x->f, OP_DOT_FILLED, args, 3,
                 attrs_intern(x->m, list, 2), x->loc);
}

ValueId model_bias(Model *x, ValueId y, const char *name)
{
    return model_round(x, model_binary(x, OP_ADD, y, model_param(x, name)));
}

uint32_t model_mark(const Model *x)
{
    return x->m->funcs.v[x->f.i].body.n;
}

/* Cheap ops are computed again in any case. */
void model_module(Model *x, uint32_t mark, SpecModule module)
{
    Sym word = sym_intern(x->m->names, spec_module_word(module));
    const uint32_t cheap = OPF_CHEAP | OPF_GENERATOR | OPF_EFFECT;

    for (uint32_t i = mark; i < model_mark(x); i++) {
        NodeId id = func_of(x->m, x->f)->body.v[i];
        const Node *n = node_of(x->m, id);
        AttrsId attrs = n->attrs;
        if (op_info[n->op].flags & cheap || n->nargs == 0 ||
            attr_find(x->m, attrs, AK_MODULE))
            continue;
        attrs = attrs_with(x->m, attrs, attr_of_sym(AK_MODULE, word));
        node_of(x->m, id)->attrs = attrs;
    }
}

FuncId model_begin(Model *x, const char *name, const char *path)
{
    x->f = func_new(x->m, name, FUNC_GRAPH, model_at(x, path));
    return x->f;
}

void model_result(Model *x, ValueId v)
{
    vec_push(&func_of(x->m, x->f)->results, v);
}
