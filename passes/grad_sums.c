/* grad_sums.c - gradients of which replicas have shares, summed over a scan.
 *
 *   call @head.chunk %n, %labels       %g = call @head.chunk %n, %labels, 0
 *     {over=s, args="ss"}         →      {over=s, args="ss>", results=">"}
 *                                      accum %g @head.grad
 *
 *   in it: accum %d @head.grad         in it: %s = add %sum, %d; return %s
 *
 * To add to such a gradient is to scatter it, so what iterations add to the
 * same elements is first summed on the rank.  The sum starts from zeros and is
 * carried along; a hint says that it is one over the replicas too.
 */
#include "passes/grad_priv.h"

/* One sum that a function carries. */
typedef struct {
    TensorId tensor;
    ValueId param;
} Carry;

typedef struct {
    bool done;
    Vec(Carry) carried;
} Callee;

typedef struct {
    Module *m;
    Callee *of; /* by FuncId */
} Sums;

/* ---- the callee ---------------------------------------------------------- */

/* What is held between iterations: split as the tensor is where it is used, a
 * sum over those that will have shares. */
static LayoutId sum_layout(Module *m, const Tensor *t)
{
    Layout l = *layout_of(m, t->use);
    AxisSet used = layout_split_axes(&m->mesh, &l);

    l.partial = ~used & layout_split_axes(
                            &m->mesh, layout_of(m, t->rest[FIELD_GRAD]));
    return layout_intern(m, &l);
}

static Sym sum_hint(Module *m, const Tensor *t)
{
    NamedLayout hint = {.name = sym_intern(
                            m->names, arena_printf(m->arena, "sum.%s",
                                                   sym_text(m->names,
                                                            t->name)))};

    for (uint32_t i = 0; i < m->hints.n; i++)
        if (m->hints.v[i].name.i == hint.name.i)
            return hint.name;
    hint.layout = sum_layout(m, t);
    vec_push(&m->hints, hint);
    return hint.name;
}

static bool is_shared_sum(const Module *m, const Node *n)
{
    const Tensor *t;

    if (n->op != OP_ACCUM ||
        attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM) != FIELD_GRAD)
        return false;
    t = &m->tensors.v[attr_tensor(m, n->attrs, AK_TENSOR).i];
    return !t->per_layer && flat_is_shared(m, t, FIELD_GRAD);
}

static bool carry_sum(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Sums *s = self;
    Module *m = s->m;
    const Node n = *node_of(m, id);
    Carry c = {.tensor = attr_tensor(m, n.attrs, AK_TENSOR)};
    ValueId d, sum;
    TypeId type;

    (void)map;
    if (!is_shared_sum(m, &n))
        return false;
    d = node_arg(m, &n, 0);
    type = type_as(m, value_of(m, d)->type, DT_F32);
    c.param = func_param(m, f, type, "sum");
    value_of(m, c.param)->hint = sum_hint(m, tensor_of(m, c.tensor));
    sum = ir_binary(m, f, OP_ADD, c.param, d, n.loc);
    vec_push(&func_of(m, f)->results, sum);
    vec_push(&s->of[f.i].carried, c);
    return true;
}

/* ---- the call ------------------------------------------------------------ */

/* Zeros: indices below 0, of each dimension. */
static ValueId zeros(Module *m, FuncId f, TypeId type, Loc loc)
{
    const Type t = *type_of(m, type);
    ValueId out = {0};

    for (uint8_t i = 0; i < t.ndim; i++) {
        char dim[] = {t.dim[i], '\0'};
        Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(m->names, dim)),
                       attr_of_int(AK_SIZE, t.size[i]),
                       attr_of_int(AK_LIMIT, 0)};
        ValueId v = ir_op(m, f, OP_INRANGE, NULL, 0, attrs_intern(m, list, 3),
                          loc);
        out = i ? ir_binary(m, f, OP_MUL, out, v, loc) : v;
    }
    return out;
}

static NodeId call_with_sums(Module *m, FuncId f, const Node *n,
                             const Callee *callee)
{
    char args[MAX_CALL + 1], results[2 * MAX_CALL + 1];
    ValueId values[MAX_CALL];
    uint32_t nargs = n->nargs, nres = n->nres;

    mc_assert(nargs + callee->carried.n < MAX_CALL);
    call_modes(m, n, args, results);
    grad_call_args(m, n, values);
    for (uint32_t i = 0; i < callee->carried.n; i++) {
        TypeId type = value_of(m, callee->carried.v[i].param)->type;
        values[nargs] = zeros(m, f, type, n->loc);
        args[nargs++] = results[nres++] = '>';
    }
    args[nargs] = results[nres] = '\0';
    return ir_call(m, f, call_scan(m, n), values, args, results, n->loc);
}

static bool extend_call(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Sums *s = self;
    Module *m = s->m;
    const Node n = *node_of(m, id);
    Scan scan = n.op == OP_CALL ? call_scan(m, &n) : (Scan){0};
    Callee *callee = &s->of[scan.callee.i];
    NodeId made;

    if (scan.count < 2)
        return false;
    if (!callee->done)
        func_rebuild(m, scan.callee, carry_sum, s);
    callee->done = true;
    if (callee->carried.n == 0)
        return false;
    made = call_with_sums(m, f, &n, callee);
    results_replace(m, &n, n.nres, made, map);
    for (uint32_t i = 0; i < callee->carried.n; i++)
        ir_accum(m, f, callee->carried.v[i].tensor, FIELD_GRAD,
                 node_res(node_of(m, made), n.nres + i), n.loc);
    return true;
}

void grad_carry_sums(Module *m)
{
    uint32_t n = m->funcs.n;
    Sums s = {.m = m, .of = arena_array(m->arena, Callee, n)};

    for (uint32_t f = 1; f < n; f++)
        func_rebuild(m, (FuncId){f}, extend_call, &s);
    for (uint32_t f = 0; f < n; f++)
        vec_free(&s.of[f].carried);
}
