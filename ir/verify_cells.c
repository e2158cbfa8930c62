/* verify_cells.c - what must hold of a node beyond its result types.
 *
 * Layouts are looked at only where both sides have one, since passes before
 * `layout` leave them out.
 */
#include "ir/ir_priv.h"

const char *verify_any(Module *m, const Node *n)
{
    (void)m, (void)n;
    return NULL;
}

const char *verify_float(Module *m, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++) {
        DType t = value_type(m, node_arg(m, n, i))->dtype;

        if (t != DT_F32 && t != DT_BF16 && t != DT_F16)
            return wrong(m, "operand %u must be floating-point", i + 1);
    }
    return NULL;
}

const char *verify_const(Module *m, const Node *n)
{
    bool ratio = attr_find(m, n->attrs, AK_NUM) &&
                 attr_int(m, n->attrs, AK_DEN, 0) > 0;

    if (!ratio == !attr_find(m, n->attrs, AK_VALUE))
        return "needs either `value`, or `num` and a positive `den`";
    return NULL;
}

const char *verify_batch(Module *m, const Node *n)
{
    const Type *t = value_type(m, n->res);

    if (t->dtype != DT_I32 || t->ndim != 2 || t->dim[0] != 's' ||
        t->dim[1] != 'b')
        return "its result must be i32[s, b]";
    return attr_sym(m, n->attrs, AK_WHAT).i ? NULL
                                            : "needs the attribute `what`";
}

const char *verify_rotate(Module *m, const Node *n)
{
    const Type *t = value_type(m, node_arg(m, n, 0));
    int64_t rotary = attr_int(m, n->attrs, AK_ROTARY, 0);
    int64_t sign = attr_int(m, n->attrs, AK_SIGN, 1);

    if (type_dim(t, 'd') < 0 || rotary < 2 || rotary % 2 ||
        rotary > type_size(t, 'd'))
        return "needs an even `rotary` of at most the size of d";
    if (sign != 1 && sign != -1)
        return "`sign` must be 1 or -1";
    return verify_float(m, n);
}

/* ---- state ------------------------------------------------------------- */

/* An accumulator adds any floating-point value; a write keeps the type. */
static const char *check_stored(Module *m, const Node *n, TypeId field)
{
    TypeId got = value_of(m, node_arg(m, n, 0))->type;
    DType dtype = type_of(m, got)->dtype;
    TypeId want = field;

    if (n->op == OP_ACCUM && (dtype == DT_F32 || dtype == DT_BF16))
        want = type_as(m, field, dtype);
    return got.i == want.i
               ? NULL
               : wrong(m, "its operand must be %s, not %s",
                       type_text(m, want), type_text(m, got));
}

const char *verify_state(Module *m, const Node *n)
{
    TypeId field;
    const char *bad = infer_read(m, OP_READ, NULL, 0, n->attrs, &field);
    const Tensor *t = tensor_of(m, attr_tensor(m, n->attrs, AK_TENSOR));
    int64_t f = attr_int(m, n->attrs, AK_FIELD, 0);

    if (bad)
        return bad;
    if (!(t->fields >> f & 1))
        return wrong(m, "@%s has no field %s", sym_text(m->names, t->name),
                     field_names[f]);
    return n->nargs ? check_stored(m, n, field) : NULL;
}

/* tensor.grad += dot(x, y): the tensor's letters are kept. */
static const char *check_product(Module *m, int64_t tensor, ValueId x,
                                 ValueId y)
{
    char dims[IR_MAX_DIMS + 1] = "";
    TypeId product, grad;
    const Tensor *t;
    const char *bad;

    if (tensor < 1 || tensor >= m->tensors.n)
        return "one of its `tensors` does not exist";
    t = &m->tensors.v[tensor];
    if (!(t->fields >> FIELD_GRAD & 1))
        return wrong(m, "@%s has no gradient", sym_text(m->names, t->name));
    memcpy(dims, type_of(m, t->type)->dim, IR_MAX_DIMS);
    bad = infer_product(m, value_type(m, x), value_type(m, y), dims, DT_F32,
                        &product);
    grad = type_as(m, t->type, DT_F32);
    if (!bad && product.i != grad.i)
        bad = wrong(m, "gives @%s a %s", sym_text(m->names, t->name),
                    type_text(m, product));
    return bad;
}

const char *verify_dots_accum(Module *m, const Node *n)
{
    const Attr *list = attr_find(m, n->attrs, AK_TENSORS);
    const char *bad = NULL;

    if (!list || !n->nargs || list->as.list.n != n->nargs - 1u)
        return "needs `tensors`, one per operand but the last";
    for (uint32_t i = 0; i < list->as.list.n && !bad; i++)
        bad = check_product(m, m->list.v[list->as.list.first + i],
                            node_arg(m, n, i),
                            node_arg(m, n, n->nargs - 1u));
    return bad;
}

/* ---- communication: how the layouts of operand and result differ --------- */

typedef struct {
    Layout from, to;
    AxisSet axes;
    char dim, from_dim;
} Move;

/* `longer` is `shorter` with the atoms of `axes` behind, in any order. */
static bool extends(const Split *longer, const Split *shorter, AxisSet axes)
{
    uint8_t n = shorter ? shorter->n : 0;
    AxisSet rest = 0;

    if (!longer || longer->n <= n ||
        (n && memcmp(longer->atom, shorter->atom, n)))
        return false;
    for (uint8_t i = n; i < longer->n; i++)
        rest |= (AxisSet)1 << longer->atom[i];
    return rest == axes;
}

static bool same_split(const Split *a, const Split *b)
{
    if (!a || !b)
        return a == b;
    return a->n == b->n && !memcmp(a->atom, b->atom, a->n);
}

/* All splits agree except those of the two dimensions. */
static bool others_agree(const Move *mv)
{
    for (char dim = 'a'; dim <= 'z'; dim++)
        if (dim != mv->dim && dim != mv->from_dim &&
            !same_split(layout_split(&mv->from, dim),
                        layout_split(&mv->to, dim)))
            return false;
    return true;
}

static bool moves_split(const Move *mv, Op op)
{
    const Split *before = layout_split(&mv->from, mv->dim);
    const Split *after = layout_split(&mv->to, mv->dim);

    switch (op) {
    case OP_ALL_GATHER:
        return extends(before, after, mv->axes);
    case OP_REDUCE_SCATTER:
    case OP_SLICE:
        return extends(after, before, mv->axes);
    case OP_ALL_TO_ALL:
        return extends(after, before, mv->axes) &&
               extends(layout_split(&mv->from, mv->from_dim),
                       layout_split(&mv->to, mv->from_dim), mv->axes);
    default:
        return same_split(before, after);
    }
}

static bool moves_partial(const Move *mv, Op op)
{
    AxisSet sum = mv->from.partial, max = mv->from.partial_max;
    bool reduces = op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER;

    if ((reduces && (sum & mv->axes) != mv->axes) ||
        (op == OP_ALL_REDUCE_MAX && (max & mv->axes) != mv->axes) ||
        (op == OP_ONLY && (sum & mv->axes)))
        return false;
    if (reduces)
        sum &= ~mv->axes;
    else if (op == OP_ALL_REDUCE_MAX)
        max &= ~mv->axes;
    else if (op == OP_ONLY)
        sum |= mv->axes;
    return mv->to.partial == sum && mv->to.partial_max == max;
}

const char *verify_comm(Module *m, const Node *n)
{
    LayoutId from = value_of(m, node_arg(m, n, 0))->layout;
    LayoutId to = value_of(m, n->res)->layout;
    Move mv = {.axes = attr_axes(m, n->attrs, AK_AXES),
               .dim = (char)attr_int(m, n->attrs, AK_DIM, 0),
               .from_dim = (char)attr_int(m, n->attrs, AK_FROM_DIM, 0)};
    Op op = (Op)n->op;

    if (!mv.axes)
        return "needs the attribute `axes`";
    if ((op == OP_ALL_GATHER || op == OP_REDUCE_SCATTER || op == OP_SLICE ||
         op == OP_ALL_TO_ALL) && !mv.dim)
        return "needs the attribute `dim`";
    if (op == OP_ALL_TO_ALL && !mv.from_dim)
        return "needs the attribute `from`";
    if (!from.i || !to.i)
        return NULL;
    mv.from = *layout_of(m, from);
    mv.to = *layout_of(m, to);
    if (!others_agree(&mv) || !moves_split(&mv, op) ||
        !moves_partial(&mv, op))
        return "does not turn its operand's layout into its result's";
    return NULL;
}

/* ---- calls: call_cells.c has said it all while inferring ------------------ */

const char *verify_call(Module *m, const Node *n)
{
    return verify_any(m, n);
}

const char *verify_row(Module *m, const Node *n)
{
    return verify_any(m, n);
}
