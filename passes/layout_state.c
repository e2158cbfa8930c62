/* layout_state.c - a layout for what is read, written and added up.
 *
 *     %w = read @q                 %s = read @q {flat=1} : [n, w] {n@tp.dp}
 *     %y = dot %x, %w              %a = convert %s : {n@tp}
 *     accum %g @q.grad      →      %w = unflatten %a : [f, h] {f@tp}
 *                                  %y = dot %x, %w
 *                                  %l = flatten %g : [n, w] {n@tp +dp}
 *                                  accum (convert %l) @q.grad {flat=1}
 *
 * State is used as it rests, but for the lines of which replicas have shares
 * (ir/flat.c): the model wants the tensor, and adds to all of its gradient.
 * The optimizer works on lines anyway.
 */
#include "passes/layout_priv.h"

/* A node `flatten` or `unflatten` of v; the result is named as v is. */
static ValueId reshape(Place *p, Op op, ValueId v, TypeId like, LayoutId layout)
{
    Module *m = p->m;
    Type type = *type_of(m, like);
    Value old = *value_of(m, v);
    TypeId to;
    NodeId n;

    type.dtype = type_of(m, old.type)->dtype;
    to = type_intern(m, &type);
    n = node_new(m, p->f, op, &v, 1, (AttrsId){0}, &to, 1,
                 node_of(m, old.def)->loc);
    v = node_res(node_of(m, n), 0);
    value_of(m, v)->layout = layout;
    value_of(m, v)->name = old.name;
    return v;
}

/* From here on the node names the lines of its tensor. */
static void name_lines(Module *m, NodeId id)
{
    AttrsId attrs =
        attrs_with(m, node_of(m, id)->attrs, attr_of_int(AK_FLAT, 1));

    node_of(m, id)->attrs = attrs;
}

/* The first accumulation settles how a gradient rests: split as the tensor
 * says, a sum over what is left. */
static void settle_grad(Place *p, TensorId t, Field field, ValueId v)
{
    Tensor *tensor = tensor_of(p->m, t);
    Layout l = *layout_of(p->m, tensor->rest[field]);

    if (p->grad_rests[t.i])
        return;
    l.partial = place_sum(p->m, v) & ~layout_split_axes(&p->m->mesh, &l);
    tensor->rest[field] = layout_intern(p->m, &l);
    p->grad_rests[t.i] = true;
}

/* The lines of a gradient, as large a sum as it is. */
static ValueId flatten(Place *p, const Tensor *t, Field field, ValueId v)
{
    Module *m = p->m;
    Layout shaped = tensor_layout(m, t, field);
    Layout lines = *layout_of(m, flat_gathered(m, t, t->rest[field]));

    lines.partial = place_sum(m, v) & ~layout_split_axes(&m->mesh, &lines);
    shaped.partial = lines.partial;
    v = place_convert(p, v, layout_intern(m, &shaped));
    return reshape(p, OP_FLATTEN, v, t->flat, layout_intern(m, &lines));
}

void place_accum(Place *p, NodeId id)
{
    Module *m = p->m;
    const Node n = *node_of(m, id);
    TensorId t = attr_tensor(m, n.attrs, AK_TENSOR);
    Field field = (Field)attr_int(m, n.attrs, AK_FIELD, 0);
    ValueId v = node_arg(m, &n, 0);
    Tensor tensor;
    Layout to;

    settle_grad(p, t, field, v);
    tensor = *tensor_of(m, t);
    to = tensor_layout(m, &tensor, field);
    if (flat_is_shared(m, &tensor, field)) {
        v = flatten(p, &tensor, field, v);
        to = *layout_of(m, tensor.rest[field]);
        name_lines(m, id);
    }
    place_set_arg(p, id, 0, place_convert(p, v, layout_intern(m, &to)));
}

void place_state(Place *p, NodeId id)
{
    Module *m = p->m;
    const Node n = *node_of(m, id);
    const Tensor *t = tensor_of(m, attr_tensor(m, n.attrs, AK_TENSOR));
    Field field = (Field)attr_int(m, n.attrs, AK_FIELD, 0);
    bool lines = attr_int(m, n.attrs, AK_FLAT, 0) != 0;
    Layout shaped = tensor_layout(m, t, field);
    LayoutId rest = lines ? t->rest[field] : layout_intern(m, &shaped);

    if (n.op == OP_READ)
        value_of(m, node_res(&n, 0))->layout = rest;
    if (n.op == OP_WRITE)
        place_set_arg(p, id, 0, place_convert(p, node_arg(m, &n, 0), rest));
}

void place_gather(Place *p, NodeId id)
{
    Module *m = p->m;
    const Node n = *node_of(m, id);
    Field field = (Field)attr_int(m, n.attrs, AK_FIELD, 0);
    Tensor t = *tensor_of(m, attr_tensor(m, n.attrs, AK_TENSOR));
    Layout use = tensor_layout(m, &t, field);
    ValueId v = n.res, lines;
    Type type = *type_of(m, t.flat);

    if (attr_int(m, n.attrs, AK_FLAT, 0) || !flat_is_shared(m, &t, field))
        return;
    type.dtype = t.field_dtype[field];
    name_lines(m, id);
    value_of(m, v)->type = type_intern(m, &type);
    value_of(m, v)->layout = t.rest[field];
    lines = place_convert(p, v, flat_gathered(m, &t, t.rest[field]));
    vmap_set(&p->now, v,
             reshape(p, OP_UNFLATTEN, lines, t.type, layout_intern(m, &use)));
}
