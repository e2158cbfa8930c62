/* verify_cells.c - what must hold of a node beyond its result types.
 *
 * Layouts are not looked at: verify_layout.c does, once they are there.
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

const char *verify_topk(Module *m, const Node *n)
{
    int64_t experts = type_size(value_type(m, node_arg(m, n, 0)), 'e');
    int64_t k = attr_int(m, n->attrs, AK_TOP_K, 0);
    int64_t groups = attr_int(m, n->attrs, AK_GROUPS, 1);
    int64_t best = attr_int(m, n->attrs, AK_TOP_GROUPS, 1);

    if (k < 1 || k > experts)
        return "needs a `top_k` of at most the number of experts";
    if (groups < 1 || experts % groups || best < 1 || best > groups ||
        k % best || k / best > experts / groups)
        return "its `groups` do not divide the experts, or its `top_groups` "
               "the choice";
    return verify_float(m, n);
}

const char *verify_fit(Module *m, const Node *n)
{
    const Type *t = value_type(m, node_arg(m, n, 0));
    int64_t s_parts = attr_int(m, n->attrs, AK_S_PARTS, 1);
    int64_t b_parts = attr_int(m, n->attrs, AK_B_PARTS, 1);

    if (attr_int(m, n->attrs, AK_SIZE, 0) < 1)
        return "needs a positive `size`";
    if (s_parts < 1 || b_parts < 1 || type_size(t, 's') % s_parts ||
        type_size(t, 'b') % b_parts)
        return "its `s_parts` and `b_parts` do not divide the tokens";
    return NULL;
}

const char *verify_rounds(Module *m, const Node *n)
{
    const Type *t = value_type(m, node_arg(m, n, 0));

    if (type_dim(t, 's') != 0 || type_dim(t, 'b') != 1 ||
        type_dim(t, 'e') != 2 || t->ndim != 3)
        return "its operand must be a choice [s, b, e]";
    return verify_fit(m, n);
}

const char *verify_filled(Module *m, const Node *n)
{
    return attr_int(m, n->attrs, AK_LIMIT, 0) < 1 ? "needs a positive `limit`"
                                                  : NULL;
}

/* Parts of the slots of the operands. */
const char *verify_dot_filled(Module *m, const Node *n)
{
    const Type *x = value_type(m, node_arg(m, n, 0));
    const Type *filled = value_type(m, node_arg(m, n, 2));

    if (type_dim(x, 'e') < 0 || type_dim(x, 'c') < 0 || filled->ndim != 2 ||
        type_size(filled, 'e') != type_size(x, 'e') ||
        type_dim(filled, 'c') != 1 ||
        type_size(x, 'c') % type_size(filled, 'c'))
        return "its last operand does not count slots of its first";
    return NULL;
}

const char *verify_group_sum(Module *m, const Node *n)
{
    int64_t parts = attr_int(m, n->attrs, AK_B_PARTS, 0);

    if (parts < 1 || type_size(value_type(m, n->res), 'b') % parts)
        return "its `b_parts` do not divide b";
    return verify_float(m, n);
}

/* ---- state --------------------------------------------------------------- */

/* An accumulator adds any floating-point value; a write keeps the type. */
static const char *check_stored(Module *m, const Node *n, TypeId field)
{
    TypeId got = value_of(m, node_arg(m, n, 0))->type;
    DType dtype = type_of(m, got)->dtype;
    TypeId want = field;

    if (n->op == OP_ACCUM && (dtype == DT_F32 || dtype == DT_BF16 ||
                             dtype == DT_F16))
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

    if (bad || !n->nargs)
        return bad;
    if (n->op == OP_WRITE && !attr_int(m, n->attrs, AK_FLAT, 0) &&
        m->tensors.v[attr_tensor(m, n->attrs, AK_TENSOR).i].flat.i)
        return "replaces the lines of a tensor only `flat`";
    return check_stored(m, n, field);
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

/* ---- dropout ------------------------------------------------------------- */

/* The key of the step's draws is a scalar that lives in a tensor. */
static const char *check_draws(Module *m, const Node *n)
{
    double rate = attr_float(m, n->attrs, AK_RATE, 0);
    TensorId t = attr_tensor(m, n->attrs, AK_TENSOR);

    if (!(rate > 0 && rate < 1))
        return "needs a `rate` between 0 and 1";
    if (!t.i || t.i >= m->tensors.n ||
        type_of(m, m->tensors.v[t.i].type)->ndim ||
        !(m->tensors.v[t.i].fields >> FIELD_PARAM & 1))
        return "needs a `tensor` that holds the key of its draws";
    return NULL;
}

const char *verify_dropout(Module *m, const Node *n)
{
    const char *bad = check_draws(m, n);

    return bad ? bad : verify_float(m, n);
}

/* ---- attention ----------------------------------------------------------- */

const char *verify_attention(Module *m, const Node *n)
{
    bool windowed = attr_find(m, n->attrs, AK_WINDOW) != NULL;

    if (windowed && (attr_int(m, n->attrs, AK_WINDOW, 0) < 1 ||
                     !attr_int(m, n->attrs, AK_CAUSAL, 0)))
        return "its `window` must be positive, and the mask causal";
    return attr_find(m, n->attrs, AK_RATE) ? check_draws(m, n) : NULL;
}

/* Parts are whole ones of the storage order, and a step is one of as many. */
static const char *steps_problem(Module *m, const Node *n)
{
    int64_t parts = attr_int(m, n->attrs, AK_PARTS, 0);
    int64_t shift = attr_int(m, n->attrs, AK_SHIFT, 0);

    if (parts < 1 || attr_int(m, n->attrs, AK_ZIGZAG, 1) % parts)
        return "needs `parts` that divide those of `zigzag`";
    return shift >= 0 && shift < parts ? verify_attention(m, n)
                                       : "needs a `shift` below `parts`";
}

const char *verify_attention_step(Module *m, const Node *n)
{
    return n->nargs == 3 || n->nargs == 5
               ? steps_problem(m, n)
               : "takes q, k, v and perhaps o and lse";
}

const char *verify_attention_step_grad(Module *m, const Node *n)
{
    return steps_problem(m, n);
}

/* ---- memory -------------------------------------------------------------- */

const char *verify_fetch(Module *m, const Node *n)
{
    bool cut = attr_find(m, n->attrs, AK_NEXT) != NULL;

    return cut && value_of(m, node_arg(m, n, 0))->def.i
               ? "`next` is for a parameter"
               : NULL;
}

/* ---- communication ------------------------------------------------------- */

const char *verify_comm(Module *m, const Node *n)
{
    bool moves = n->op == OP_ALL_GATHER || n->op == OP_REDUCE_SCATTER ||
                 n->op == OP_SLICE || n->op == OP_ALL_TO_ALL ||
                 n->op == OP_SHIFT || n->op == OP_PACK || n->op == OP_UNPACK;

    if (!attr_axes(m, n->attrs, AK_AXES))
        return "needs the attribute `axes`";
    if (moves && !attr_find(m, n->attrs, AK_DIM))
        return "needs the attribute `dim`";
    if (n->op == OP_ALL_TO_ALL && !attr_find(m, n->attrs, AK_FROM_DIM))
        return "needs the attribute `from`";
    return NULL;
}

/* ---- calls: call_cells.c has said it all while inferring ----------------- */

const char *verify_call(Module *m, const Node *n)
{
    return verify_any(m, n);
}

const char *verify_row(Module *m, const Node *n)
{
    return verify_any(m, n);
}
