/* emit_attention.c - the kernels of attention, and where their operands lie.
 *
 *     %qkv [s,b,g,j,d]                 attention reads q, k and v there:
 *     %q = part %qkv {first=0 size=4}    k at j = 4, all three with the strides
 *     %k = part %qkv {first=4 size=1}    of %qkv
 *     %o = attention %q, %k, %v
 *
 * A part of a value, and what a join takes, have no memory of their own: the
 * kernel knows the strides of the whole, and is given an address within it.
 */
#include "codegen/emit_priv.h"

#include <math.h>

/* Where a value of attention lies: in memory of its own, or as indices `at` of
 * j in that of another. */
typedef struct {
    ValueId whole;
    Span at;
} Lying;

/* The join in f's body that takes a value, or NULL. */
static const Node *join_of(const Module *m, FuncId f, ValueId v,
                           uint32_t *out_operand)
{
    const Func *func = &m->funcs.v[f.i];

    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &m->nodes.v[func->body.v[i].i];

        for (uint32_t k = 0; n->op == OP_JOIN && k < n->nargs; k++)
            if (node_arg(m, n, k).i == v.i) {
                *out_operand = k;
                return n;
            }
    }
    return NULL;
}

static Lying lying(const Module *m, FuncId f, ValueId v)
{
    const Node *def = &m->nodes.v[m->values.v[v.i].def.i], *join;
    uint32_t operand;

    if (def->op == OP_PART)
        return (Lying){node_arg(m, def, 0), part_span(m, def)};
    join = join_of(m, f, v, &operand);
    return join ? (Lying){join->res, join_span(m, join, operand)}
                : (Lying){v, {0, 0, 0}};
}

static int64_t stride_of(const Module *m, ValueId v, char dim)
{
    int d = type_dim(value_type(m, v), dim);

    return d < 0 ? 0 : strides_dense(m, v).of[d];
}

static AttnStrides attention_strides(const Module *m, FuncId f, ValueId v)
{
    Lying x = lying(m, f, v);

    return (AttnStrides){stride_of(m, x.whole, 's'),
                         stride_of(m, x.whole, 'b'),
                         stride_of(m, x.whole, 'g'),
                         stride_of(m, x.whole, x.at.dim ? 'j' : 'r')};
}

static int64_t local_size(const Module *m, ValueId v, char dim)
{
    const Value *value = &m->values.v[v.i];

    return layout_local(m, type_of(m, value->type), layout_of(m, value->layout),
                        dim);
}

static AttentionSpec attention_spec(const Module *m, FuncId f,
                                    const Node *n)
{
    ValueId q = node_arg(m, n, 0), k = node_arg(m, n, 1);
    DType type = value_type(m, q)->dtype;
    AttentionSpec a = {.type = type == DT_BF16  ? ATTN_BF16
                               : type == DT_F16 ? ATTN_F16
                                                : ATTN_F32,
                       .s = local_size(m, q, 's'),
                       .t = local_size(m, k, 's'),
                       .b = local_size(m, q, 'b'),
                       .g = local_size(m, q, 'g'),
                       .r = local_size(m, q, 'r'),
                       .d = local_size(m, q, 'd'),
                       .q = attention_strides(m, f, q),
                       .k = attention_strides(m, f, k),
                       .v = attention_strides(m, f, node_arg(m, n, 2)),
                       .causal = attr_int(m, n->attrs, AK_CAUSAL, 0) != 0,
                       .window = attr_int(m, n->attrs, AK_WINDOW, 0),
                       .seq = type_size(value_type(m, q), 's'),
                       .parts = attr_int(m, n->attrs, AK_ZIGZAG, 1),
                       .steps = attr_int(m, n->attrs, AK_PARTS, 1),
                       .shift = attr_int(m, n->attrs, AK_SHIFT, 0),
                       .carry = n->nres == 2 && n->nargs == 5,
                       .rate = attr_float(m, n->attrs, AK_RATE, 0),
                       .which = attr_int(m, n->attrs, AK_DRAW, 0),
                       .batch = type_size(value_type(m, q), 'b'),
                       .queries = type_size(value_type(m, q), 'r')};

    a.scale = 1.0 / sqrt((double)a.d);
    return a;
}

static AttentionSpec forward_spec(const Module *m, FuncId f, const Node *n)
{
    AttentionSpec a = attention_spec(m, f, n);

    a.o = attention_strides(m, f, node_res(n, 0));
    a.lse = attention_strides(m, f, node_res(n, 1));
    return a;
}

static AttentionSpec backward_spec(const Module *m, FuncId f, const Node *n)
{
    AttentionSpec a = attention_spec(m, f, n);

    a.o = attention_strides(m, f, node_arg(m, n, 3));
    a.lse = attention_strides(m, f, node_arg(m, n, 4));
    a.d_o = attention_strides(m, f, node_arg(m, n, 5));
    a.dq = attention_strides(m, f, node_res(n, 0));
    a.dk = attention_strides(m, f, node_res(n, 1));
    a.dv = attention_strides(m, f, node_res(n, 2));
    return a;
}

/* Where the queries and keys begin; and for dropout, the heads. */
static KernelStart attention_start(const Module *m, const Node *n, uint32_t i)
{
    const KernelStart starts[] = {
        {.value = node_arg(m, n, 0), .dim = 's'},
        {.value = node_arg(m, n, 1), .dim = 's'},
        {.value = node_arg(m, n, 0), .dim = 'b'},
        {.value = node_arg(m, n, 0), .dim = 'g'},
        {.value = node_arg(m, n, 0), .dim = 'r'},
        {.kind = START_LAYER},
        {.kind = START_MICROBATCH}};

    return starts[i];
}

/* Two products of queries and keys forward, five backward, over the pairs that
 * the mask leaves: of whole chunks in zig-zag order half, in any step of a
 * ring. */
static double attention_flops(const AttentionSpec *a, bool forward)
{
    double keys = (double)a->t * (a->causal ? 0.5 : 1.0);

    if (a->window)
        keys = MC_MIN(keys, (double)a->window);
    return (forward ? 4.0 : 10.0) * keys * (double)(a->s * a->d) *
           (double)(a->b * a->g * a->r);
}

static void print_attention(Emit *e, const char *name, Buf *out,
                            KernelInfo *info)
{
    const Node *n = &e->m->nodes.v[e->node.i];
    bool forward = n->nres == 2;
    AttentionSpec a = forward ? forward_spec(e->m, e->f, n)
                              : backward_spec(e->m, e->f, n);

    a.name = name;
    if (forward)
        attention_print_forward(&a, e->dialect, out);
    else
        attention_print_backward(&a, e->dialect, out);
    info->dtype = value_type(e->m, node_arg(e->m, n, 0))->dtype;
    info->flops = attention_flops(&a, forward);
    info->phases = forward ? 1 : 2;
    info->nptr = (forward ? n->nargs + 2u : 10) + (a.rate > 0);
    info->nimm = a.rate > 0 ? 7 : 2;
    for (uint32_t i = 0; i < info->nimm; i++)
        info->imm[i] = attention_start(e->m, n, i);
}

/* Results that lie in one value are written as that, once. */
static void push_lying(Launch *l, ValueId v, int access)
{
    const Module *m = l->e->m;
    Lying x = lying(m, l->e->f, v);
    PlanOperand o = emit_value(l->e, x.whole, access);
    int64_t offset = x.at.first * stride_of(m, x.whole, 'j') *
                     dtype_bytes(value_type(m, v)->dtype);

    o.offset += offset;
    o.bytes = x.at.first && access == PLAN_WRITE ? 0
                                                 : o.bytes - (uint64_t)offset;
    launch_push(l, o);
}

/* What a forward step continues from comes last. */
void emit_attention(Emit *e, const Node *n)
{
    uint32_t inputs = n->nres == 2 ? 3 : 6;
    Launch l = {.e = e};
    KernelInfo info = {0};
    const Kernel *k =
        kernel_print(e, op_info[n->op].name, print_attention, &info);

    for (uint32_t i = 0; i < inputs; i++)
        push_lying(&l, node_arg(e->m, n, i), PLAN_READ);
    for (uint32_t i = 0; i < n->nres; i++)
        push_lying(&l, node_res(n, i), PLAN_WRITE);
    for (uint32_t i = inputs; i < n->nargs; i++)
        launch_push(&l, emit_value(e, node_arg(e->m, n, i), PLAN_READ));
    launch_workspace(&l, kernel_scratch(e->m, e->node, (int)e->dialect));
    if (attr_find(e->m, n->attrs, AK_RATE))
        launch_draws(&l, n);
    launch_starts(&l, &info);
    emit_launch(e, k, l.list, l.n);
}

/* A view: whoever reads or writes it knows where it lies. */
void emit_view(Emit *e, const Node *n)
{
    (void)e;
    (void)n;
}

int64_t attention_scratch(const Module *m, const Node *n, Dialect dialect)
{
    AttentionSpec a = backward_spec(m, (FuncId){0}, n); /* wherever they lie */

    return attention_workspace(&a, dialect);
}
