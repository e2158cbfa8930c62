/* grad_cells.c - the `grad` column of ops.def: one rule per op.
 *
 * A cell reads the cotangent of the node's result with grad_of and adds to the
 * cotangents of its operands with grad_flow.  Broadcasting in the forward is
 * summation in the backward: `onto` sums away what an operand does not have.
 */
#include "passes/grad.h"

/* ---- spellings ----------------------------------------------------------- */

static ValueId un(Grad *g, const Node *n, Op op, ValueId x)
{
    return ir_unary(grad_module(g), grad_func(g), op, x, n->loc);
}

static ValueId bin(Grad *g, const Node *n, Op op, ValueId x, ValueId y)
{
    return ir_binary(grad_module(g), grad_func(g), op, x, y, n->loc);
}

static ValueId num(Grad *g, const Node *n, double value)
{
    return ir_const(grad_module(g), grad_func(g), value, n->loc);
}

static ValueId half(Grad *g, const Node *n)
{
    return ir_ratio(grad_module(g), grad_func(g), 1, 2, false, n->loc);
}

static ValueId arg(Grad *g, const Node *n, uint32_t i)
{
    return node_arg(grad_module(g), n, i);
}

static ValueId need_arg(Grad *g, const Node *n, uint32_t i)
{
    return grad_need(g, arg(g, n, i));
}

static ValueId need_res(Grad *g, const Node *n)
{
    return grad_need(g, node_res(n, 0));
}

static void letters_of(const Type *t, char *out)
{
    memcpy(out, t->dim, t->ndim);
    out[t->ndim] = '\0';
}

/* Adds `c`, a cotangent with the result's dimensions, to operand i: dimensions
 * that the operand lacks are summed; one that even `c` lacks, being constant
 * along it, counts its size. */
static void onto(Grad *g, const Node *n, uint32_t i, ValueId c)
{
    Module *m = grad_module(g);
    const Type *to = value_type(m, arg(g, n, i));
    const Type *full = value_type(m, node_res(n, 0));
    char keep[IR_MAX_DIMS + 1] = "";
    int64_t times = 1;
    bool sums = false;

    for (uint8_t k = 0; k < full->ndim; k++)
        if (type_dim(to, full->dim[k]) < 0 &&
            type_dim(value_type(m, c), full->dim[k]) < 0)
            times *= full->size[k];
    const Type *have = value_type(m, c);
    for (uint8_t k = 0, at = 0; k < have->ndim; k++) {
        if (type_dim(to, have->dim[k]) >= 0)
            keep[at++] = have->dim[k];
        else
            sums = true;
        keep[at] = '\0';
    }
    if (sums)
        c = ir_sum(m, grad_func(g), c, keep, n->loc);
    if (times > 1)
        c = bin(g, n, OP_MUL, c,
                ir_ratio(m, grad_func(g), times, 1, false, n->loc));
    grad_flow(g, arg(g, n, i), c);
}

/* ---- no gradient --------------------------------------------------------- */

static void grad_zero(Grad *g, const Node *n)
{
    (void)g;
    (void)n;
}

static void grad_none(Grad *g, const Node *n)
{
    diag_error(grad_module(g)->diag, n->loc, "MC0691",
               "op %s has no gradient", op_info[n->op].name);
}

/* ---- pointwise ----------------------------------------------------------- */

static void grad_same(Grad *g, const Node *n)
{
    onto(g, n, 0, grad_of(g, node_res(n, 0)));
}

static void grad_cast(Grad *g, const Node *n)
{
    grad_same(g, n);
}

static void grad_neg(Grad *g, const Node *n)
{
    onto(g, n, 0, un(g, n, OP_NEG, grad_of(g, node_res(n, 0))));
}

/* Adds the result's cotangent times a derivative to operand 0. */
static void chain(Grad *g, const Node *n, ValueId derivative)
{
    onto(g, n, 0, bin(g, n, OP_MUL, grad_of(g, node_res(n, 0)), derivative));
}

static void grad_exp(Grad *g, const Node *n)
{
    chain(g, n, need_res(g, n));
}

static void grad_log(Grad *g, const Node *n)
{
    onto(g, n, 0,
         bin(g, n, OP_DIV, grad_of(g, node_res(n, 0)), need_arg(g, n, 0)));
}

static void grad_sqrt(Grad *g, const Node *n)
{
    chain(g, n, bin(g, n, OP_DIV, half(g, n), need_res(g, n)));
}

/* d x^(-1/2) = -1/2 x^(-3/2) */
static void grad_rsqrt(Grad *g, const Node *n)
{
    ValueId y = need_res(g, n);
    ValueId cube = bin(g, n, OP_MUL, bin(g, n, OP_MUL, y, y), y);

    chain(g, n, un(g, n, OP_NEG, bin(g, n, OP_MUL, cube, half(g, n))));
}

static void grad_recip(Grad *g, const Node *n)
{
    ValueId y = need_res(g, n);

    chain(g, n, un(g, n, OP_NEG, bin(g, n, OP_MUL, y, y)));
}

static void grad_sigmoid(Grad *g, const Node *n)
{
    ValueId y = need_res(g, n);

    chain(g, n, bin(g, n, OP_MUL, y, bin(g, n, OP_SUB, num(g, n, 1.0), y)));
}

static void grad_tanh(Grad *g, const Node *n)
{
    ValueId y = need_res(g, n);
    ValueId square = bin(g, n, OP_MUL, y, y);

    chain(g, n, bin(g, n, OP_SUB, num(g, n, 1.0), square));
}

/* d erf(x) = 2/sqrt(pi) exp(-x^2) */
static void grad_erf(Grad *g, const Node *n)
{
    ValueId x = need_arg(g, n, 0);
    ValueId e = un(g, n, OP_EXP, un(g, n, OP_NEG, bin(g, n, OP_MUL, x, x)));

    chain(g, n, bin(g, n, OP_MUL, e, num(g, n, 1.1283791670955126)));
}

static void grad_relu(Grad *g, const Node *n)
{
    chain(g, n, un(g, n, OP_STEP, need_arg(g, n, 0)));
}

static void grad_add(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    onto(g, n, 0, c);
    onto(g, n, 1, c);
}

static void grad_sub(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    onto(g, n, 0, c);
    onto(g, n, 1, un(g, n, OP_NEG, c));
}

static void grad_mul(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    if (grad_wants(g, arg(g, n, 0)))
        onto(g, n, 0, bin(g, n, OP_MUL, c, need_arg(g, n, 1)));
    if (grad_wants(g, arg(g, n, 1)))
        onto(g, n, 1, bin(g, n, OP_MUL, c, need_arg(g, n, 0)));
}

static void grad_div(Grad *g, const Node *n)
{
    ValueId c = bin(g, n, OP_DIV, grad_of(g, node_res(n, 0)),
                    need_arg(g, n, 1));

    onto(g, n, 0, c);
    onto(g, n, 1, un(g, n, OP_NEG, bin(g, n, OP_MUL, c, need_res(g, n))));
}

static void grad_expsub(Grad *g, const Node *n)
{
    chain(g, n, need_res(g, n));
}

static void grad_logadd(Grad *g, const Node *n)
{
    grad_log(g, n);
}

static void grad_rotate(Grad *g, const Node *n)
{
    Module *m = grad_module(g);
    ValueId c = grad_of(g, node_res(n, 0));
    int64_t sign = attr_int(m, n->attrs, AK_SIGN, 1);
    AttrsId turned = attrs_with(m, n->attrs, attr_of_int(AK_SIGN, -sign));

    onto(g, n, 0, ir_op(m, grad_func(g), OP_ROTATE, &c, 1, turned, n->loc));
}

/* The same draws, made again: nothing is saved. */
static void grad_dropout(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    onto(g, n, 0, ir_op(grad_module(g), grad_func(g), OP_DROPOUT, &c, 1,
                        n->attrs, n->loc));
}

/* ---- side by side -------------------------------------------------------- */

/* The next part of `whole` along j from `first` on, and where it is in the
 * forward. */
static const Node *part_at(Grad *g, ValueId whole, int64_t first)
{
    Module *m = grad_module(g);
    const Func *f = func_of(m, grad_forward(g));

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = node_of(m, f->body.v[i]);

        if (n->op == OP_PART && node_arg(m, n, 0).i == whole.i &&
            part_span(m, n).first == first && grad_of(g, n->res).i)
            return node_of(m, f->body.v[i]);
    }
    mc_bug(__FILE__, __LINE__, "nothing flows to a part");
}

/* The parts of a value make up its cotangent together; the first of them, which
 * comes last, knows all. */
static void grad_part(Grad *g, const Node *n)
{
    Module *m = grad_module(g);
    ValueId whole = arg(g, n, 0), parts[IR_MAX_PARTS];
    const Type *t = value_type(m, whole);
    char dims[IR_MAX_DIMS + 1];
    uint32_t nparts = 0;
    Attr attr;

    if (part_span(m, n).first > 0)
        return;
    letters_of(t, dims);
    for (int64_t next = 0; next < type_size(t, 'j');) {
        const Node *part = part_at(g, whole, next);

        mc_assert(nparts < IR_MAX_PARTS);
        next += part_span(m, part).n;
        parts[nparts++] = grad_of(g, part->res);
    }
    attr = attr_of_sym(AK_DIMS, sym_intern(m->names, dims));
    grad_flow(g, whole, ir_op(m, grad_func(g), OP_JOIN, parts, nparts,
                              attrs_intern(m, &attr, 1), n->loc));
}

static void grad_join(Grad *g, const Node *n)
{
    Module *m = grad_module(g);
    ValueId c = grad_of(g, node_res(n, 0));

    for (uint32_t i = 0; i < n->nargs; i++) {
        Span s = join_span(m, n, i);
        Attr list[] = {attr_of_int(AK_FIRST, s.first),
                       attr_of_int(AK_SIZE, s.n), attr_of_int(AK_DIM, s.dim)};

        grad_flow(g, arg(g, n, i),
                  ir_op(m, grad_func(g), OP_PART, &c, 1,
                        attrs_intern(m, list, s.dim ? 3 : 2), n->loc));
    }
}

/* ---- reductions ---------------------------------------------------------- */

/* Constant along what was summed. */
static void grad_sum(Grad *g, const Node *n)
{
    grad_flow(g, arg(g, n, 0), grad_of(g, node_res(n, 0)));
}

/* ---- contractions -------------------------------------------------------- */

static bool is_read(Module *m, ValueId v)
{
    return node_of(m, value_of(m, v)->def)->op == OP_READ;
}

/* dx = dot(dy, w), with x's dimensions; a parameter's gradient is f32. */
static void dot_operand(Grad *g, const Node *n, uint32_t i, ValueId c)
{
    Module *m = grad_module(g);
    ValueId x = arg(g, n, i), other = need_arg(g, n, 1 - i);
    DType dtype = is_read(m, x) ? DT_F32 : value_type(m, x)->dtype;
    char dims[IR_MAX_DIMS + 1];

    letters_of(value_type(m, x), dims);
    grad_flow(g, x, ir_dot(m, grad_func(g), c, other, dims, dtype, n->loc));
}

/* The slots that matter are the same in both directions. */
static void filled_operand(Grad *g, const Node *n, uint32_t i, ValueId c)
{
    Module *m = grad_module(g);
    ValueId x = arg(g, n, i);
    ValueId args[] = {c, need_arg(g, n, 1 - i), need_arg(g, n, 2)};
    DType dtype = is_read(m, x) ? DT_F32 : value_type(m, x)->dtype;
    char dims[IR_MAX_DIMS + 1];
    Attr list[2];

    letters_of(value_type(m, x), dims);
    list[0] = attr_of_sym(AK_DIMS, sym_intern(m->names, dims));
    list[1] = attr_of_int(AK_DTYPE, (int64_t)dtype);
    grad_flow(g, x, ir_op(m, grad_func(g), OP_DOT_FILLED, args, 3,
                          attrs_intern(m, list, 2), n->loc));
}

static void grad_dot_filled(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    filled_operand(g, n, 0, c);
    filled_operand(g, n, 1, c);
}

static void grad_dot(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    mc_assert(value_type(grad_module(g), c)->ndim ==
              value_type(grad_module(g), node_res(n, 0))->ndim);
    dot_operand(g, n, 0, c);
    dot_operand(g, n, 1, c);
}

/* A table's gradient: f32, with the table's dimensions. */
static void table_grad(Grad *g, const Node *n, Op op, ValueId table,
                       const ValueId *args, uint32_t nargs)
{
    Module *m = grad_module(g);
    TypeId t = type_as(m, value_of(m, table)->type, DT_F32);
    Attr size = attr_of_int(AK_SIZE, type_of(m, t)->size[0]);
    NodeId made = node_new(m, grad_func(g), op, args, nargs,
                           attrs_with(m, n->attrs, size), &t, 1, n->loc);

    grad_flow(g, table, node_res(node_of(m, made), 0));
}

static void grad_embed(Grad *g, const Node *n)
{
    ValueId args[2] = {need_arg(g, n, 0), grad_of(g, node_res(n, 0))};

    table_grad(g, n, OP_EMBED_GRAD, arg(g, n, 1), args, 2);
}

static void grad_rows(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    table_grad(g, n, OP_ROWS_GRAD, arg(g, n, 0), &c, 1);
}

static void grad_attention(Grad *g, const Node *n)
{
    Module *m = grad_module(g);
    ValueId args[6] = {need_arg(g, n, 0), need_arg(g, n, 1), need_arg(g, n, 2),
                       need_res(g, n), grad_need(g, node_res(n, 1)),
                       grad_of(g, node_res(n, 0))};
    TypeId types[3];
    NodeId made;

    for (uint32_t i = 0; i < 3; i++)
        types[i] = value_of(m, arg(g, n, i))->type;
    made = node_new(m, grad_func(g), OP_ATTENTION_GRAD, args, 6, n->attrs,
                    types, 3, n->loc);
    for (uint32_t i = 0; i < 3; i++)
        grad_flow(g, arg(g, n, i), node_res(node_of(m, made), i));
}

/* ---- mixture of experts -------------------------------------------------- */

/* Its own transpose. */
static void grad_group_sum(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0));

    grad_flow(g, arg(g, n, 0),
              ir_op(grad_module(g), grad_func(g), OP_GROUP_SUM, &c, 1, n->attrs,
                    n->loc));
}

/* One of the three ways of rows; the result is a cotangent of `like`. */
static ValueId routed(Grad *g, const Node *n, Op op, ValueId choice,
                      ValueId second, ValueId third, ValueId like)
{
    Module *m = grad_module(g);
    ValueId args[] = {choice, second, third};
    Attr size = attr_of_int(AK_SIZE, type_size(value_type(m, like), 'c'));

    return ir_op(m, grad_func(g), op, args, 3,
                 op == OP_DISPATCH ? attrs_intern(m, &size, 1) : (AttrsId){0},
                 n->loc);
}

/* dx = combine(dout), dweight = <dout, x> */
static void grad_dispatch(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0)), choice = need_arg(g, n, 0);

    grad_flow(g, arg(g, n, 2),
              routed(g, n, OP_COMBINE, choice, need_arg(g, n, 1), c,
                     arg(g, n, 2)));
    if (grad_wants(g, arg(g, n, 1)))
        grad_flow(g, arg(g, n, 1),
                  routed(g, n, OP_COMBINE_WEIGHT, choice, c,
                         need_arg(g, n, 2), arg(g, n, 1)));
}

/* dblock = dispatch(dy), dweight = <block, dy> */
static void grad_combine(Grad *g, const Node *n)
{
    ValueId c = grad_of(g, node_res(n, 0)), choice = need_arg(g, n, 0);

    grad_flow(g, arg(g, n, 2),
              routed(g, n, OP_DISPATCH, choice, need_arg(g, n, 1), c,
                     arg(g, n, 2)));
    if (grad_wants(g, arg(g, n, 1)))
        grad_flow(g, arg(g, n, 1),
                  routed(g, n, OP_COMBINE_WEIGHT, choice, need_arg(g, n, 2), c,
                         arg(g, n, 1)));
}

/* The scale of the loss, that the host chooses. */
static ValueId scale_of(Grad *g, const Node *n)
{
    Module *m = grad_module(g);
    TypeId scalar = type_make(m, DT_F32, "", NULL);
    Attr attr = attr_of_sym(AK_WHAT, sym_intern(m->names, "loss_scale"));
    NodeId host = node_new(m, grad_func(g), OP_HOST, NULL, 0,
                           attrs_intern(m, &attr, 1), &scalar, 1, n->loc);

    return node_res(node_of(m, host), 0);
}

/* ---- state and structure ------------------------------------------------- */

/* What a step has counted so far is data. */
static void grad_read(Grad *g, const Node *n)
{
    Module *m = grad_module(g);

    if (attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM) == FIELD_ACC)
        return;
    ir_accum(m, grad_func(g), attr_tensor(m, n->attrs, AK_TENSOR), FIELD_GRAD,
             grad_of(g, node_res(n, 0)), n->loc);
}

/* Losses are what the backward starts from, with 1 or the scale that keeps
 * gradients within f16; statistics have no gradient. */
static void grad_accum(Grad *g, const Node *n)
{
    if (grad_is_objective(grad_module(g), n))
        grad_flow(g, arg(g, n, 0), grad_scaled(g) ? scale_of(g, n)
                                                  : num(g, n, 1.0));
}

static void grad_call(Grad *g, const Node *n)
{
    grad_call_node(g, n);
}

const GradCell grad_cells[OP_COUNT] = {
    NULL,
#define OP(NAME, text, nargs, nres, sig, linear, flags, verify, infer, flops,  \
           grad, eval, emit)                                                   \
    grad_##grad,
#include "ir/ops.def"
#undef OP
};
