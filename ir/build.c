/* build.c - check + infer + append, in one call.
 *
 * A pass that builds a node that makes no sense has a bug, so misuse ends the
 * process with the reason that verify.c would have reported for the same text.
 */
#include "ir/ir_priv.h"

static void must(const Module *m, Op op, const char *wrong)
{
    (void)m;
    if (wrong)
        mc_bug(__FILE__, __LINE__, "building `%s`: %s", op_info[op].name,
               wrong);
}

static NodeId build(Module *m, FuncId f, Op op, const ValueId *args,
                    uint32_t nargs, AttrsId attrs, Loc loc)
{
    int nres = op_results(m, op, attrs);
    TypeId *types = arena_array(m->arena, TypeId, MC_MAX(nres, 1));
    NodeId n;

    must(m, op, op_check(m, op, args, nargs, attrs, types));
    for (int i = 0; i < nres; i++)
        if (!types[i].i)
            must(m, op, "its type does not follow from its operands");
    n = node_new(m, f, op, args, nargs, attrs, types, (uint32_t)nres, loc);
    must(m, op, node_check(m, node_of(m, n)));
    return n;
}

ValueId ir_op(Module *m, FuncId f, Op op, const ValueId *args, uint32_t nargs,
              AttrsId attrs, Loc loc)
{
    return node_of(m, build(m, f, op, args, nargs, attrs, loc))->res;
}

ValueId ir_unary(Module *m, FuncId f, Op op, ValueId x, Loc loc)
{
    return ir_op(m, f, op, &x, 1, (AttrsId){0}, loc);
}

ValueId ir_binary(Module *m, FuncId f, Op op, ValueId x, ValueId y, Loc loc)
{
    return ir_op(m, f, op, (ValueId[]){x, y}, 2, (AttrsId){0}, loc);
}

/* ---- constants, casts, reductions, contractions -------------------------- */

ValueId ir_const(Module *m, FuncId f, double value, Loc loc)
{
    AttrsId attrs =
        attrs_with(m, (AttrsId){0}, attr_of_float(AK_VALUE, value));

    return ir_op(m, f, OP_CONST, NULL, 0, attrs, loc);
}

ValueId ir_ratio(Module *m, FuncId f, int64_t num, int64_t den, bool root,
                 Loc loc)
{
    Attr list[] = {attr_of_int(AK_NUM, num), attr_of_int(AK_DEN, den),
                   attr_of_int(AK_ROOT, 1)};

    return ir_op(m, f, OP_CONST, NULL, 0, attrs_intern(m, list, root ? 3 : 2),
                 loc);
}

ValueId ir_cast(Module *m, FuncId f, ValueId x, DType dtype, Loc loc)
{
    AttrsId attrs =
        attrs_with(m, (AttrsId){0}, attr_of_int(AK_DTYPE, (int64_t)dtype));

    if (value_type(m, x)->dtype == dtype)
        return x;
    return ir_op(m, f, OP_CAST, &x, 1, attrs, loc);
}

/* The dimensions of x that are in `keep`, in the order of x. */
static ValueId reduce(Module *m, FuncId f, Op op, ValueId x, const char *keep,
                      Loc loc)
{
    const Type *t = value_type(m, x);
    char kept[IR_MAX_DIMS + 1] = "";
    size_t n = 0;
    Attr dims;

    for (int i = 0; i < t->ndim; i++)
        if (strchr(keep, t->dim[i]))
            kept[n++] = t->dim[i];
    if (n == t->ndim && t->dtype == DT_F32)
        return x;
    dims = attr_of_sym(AK_DIMS, sym_intern(m->names, kept));
    return ir_op(m, f, op, &x, 1, attrs_with(m, (AttrsId){0}, dims), loc);
}

ValueId ir_sum(Module *m, FuncId f, ValueId x, const char *keep, Loc loc)
{
    return reduce(m, f, OP_SUM, x, keep, loc);
}

ValueId ir_max(Module *m, FuncId f, ValueId x, const char *keep, Loc loc)
{
    return reduce(m, f, OP_MAX, x, keep, loc);
}

ValueId ir_dot(Module *m, FuncId f, ValueId x, ValueId y, const char *dims,
               DType dtype, Loc loc)
{
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(m->names, dims)),
                   attr_of_int(AK_DTYPE, (int64_t)dtype)};

    return ir_op(m, f, OP_DOT, (ValueId[]){x, y}, 2, attrs_intern(m, list, 2),
                 loc);
}

/* ---- state --------------------------------------------------------------- */

static AttrsId state_attrs(Module *m, TensorId t, Field field)
{
    Attr list[] = {attr_of_tensor(AK_TENSOR, t),
                   attr_of_int(AK_FIELD, (int64_t)field)};

    return attrs_intern(m, list, 2);
}

ValueId ir_read(Module *m, FuncId f, TensorId t, Field field, Loc loc)
{
    return ir_op(m, f, OP_READ, NULL, 0, state_attrs(m, t, field), loc);
}

/* The same for what is stored, which may be lines. */
static AttrsId stored_state(Module *m, TensorId t, Field field)
{
    AttrsId attrs = state_attrs(m, t, field);

    return tensor_of(m, t)->flat.i
               ? attrs_with(m, attrs, attr_of_int(AK_FLAT, 1))
               : attrs;
}

ValueId ir_read_stored(Module *m, FuncId f, TensorId t, Field field, Loc loc)
{
    return ir_op(m, f, OP_READ, NULL, 0, stored_state(m, t, field), loc);
}

ValueId ir_read_all(Module *m, FuncId f, TensorId t, Field field,
                    int64_t layers, Loc loc)
{
    AttrsId attrs = attrs_with(m, stored_state(m, t, field),
                               attr_of_int(AK_COUNT, layers));

    return ir_op(m, f, OP_READ, NULL, 0, attrs, loc);
}

/* A stacked value, [l, …], goes to all layers; lines go where they lie. */
static AttrsId stored_attrs(Module *m, TensorId t, Field field, ValueId x)
{
    const Type *type = value_type(m, x);
    bool lines = tensor_of(m, t)->flat.i && type_dim(type, 'w') >= 0;
    AttrsId attrs =
        lines ? stored_state(m, t, field) : state_attrs(m, t, field);

    if (!tensor_of(m, t)->per_layer || type_dim(type, 'l') < 0)
        return attrs;
    return attrs_with(m, attrs, attr_of_int(AK_COUNT, type_size(type, 'l')));
}

void ir_write(Module *m, FuncId f, TensorId t, Field field, ValueId x, Loc loc)
{
    build(m, f, OP_WRITE, &x, 1, stored_attrs(m, t, field, x), loc);
}

void ir_accum(Module *m, FuncId f, TensorId t, Field field, ValueId x, Loc loc)
{
    build(m, f, OP_ACCUM, &x, 1, stored_attrs(m, t, field, x), loc);
}

/* ---- the scan ------------------------------------------------------------ */

Scan call_scan(const Module *m, const Node *n)
{
    return (Scan){
        .callee = attr_func(m, n->attrs, AK_CALLEE),
        .over = (char)attr_int(m, n->attrs, AK_OVER, 0),
        .first = attr_int(m, n->attrs, AK_FIRST, 0),
        .count = attr_int(m, n->attrs, AK_COUNT, 1),
        .reverse = attr_int(m, n->attrs, AK_REVERSE, 0) != 0,
        .step = attr_int(m, n->attrs, AK_STEP, 1),
    };
}

static Attr mode_list(Module *m, AttrKey key, const char *modes)
{
    size_t n = strlen(modes);
    int64_t *list = arena_array(m->arena, int64_t, n + 1);

    for (size_t i = 0; i < n; i++)
        list[i] = call_mode_of(modes[i]);
    return attr_of_list(m, key, list, (uint32_t)n);
}

NodeId ir_call(Module *m, FuncId f, Scan scan, const ValueId *args,
               const char *arg_modes, const char *res_modes, Loc loc)
{
    Attr list[8];
    uint32_t n = 0;

    list[n++] = attr_of_func(AK_CALLEE, scan.callee);
    if (scan.over)
        list[n++] = attr_of_int(AK_OVER, scan.over);
    if (scan.first)
        list[n++] = attr_of_int(AK_FIRST, scan.first);
    list[n++] = attr_of_int(AK_COUNT, scan.count);
    if (scan.reverse)
        list[n++] = attr_of_int(AK_REVERSE, 1);
    if (scan.step > 1)
        list[n++] = attr_of_int(AK_STEP, scan.step);
    list[n++] = mode_list(m, AK_ARGS, arg_modes);
    list[n++] = mode_list(m, AK_RESULTS, res_modes);
    return build(m, f, OP_CALL, args, (uint32_t)strlen(arg_modes),
                 attrs_intern(m, list, n), loc);
}
