/* emit_kernels.c - the kernels of all stages, each once.
 *
 * A kernel is named after what it does and a hash of its text, so equal
 * kernels of different functions and stages are one, and a name in a profile
 * leads to a file under out/kernels.
 */
#include "codegen/emit_priv.h"

#include "codegen/kernels.h"

#include <ctype.h>
#include <math.h>
#include <xxhash.h>

const Kernel *kernel_add(KernelTable *t, Kernel k)
{
    for (uint32_t i = 0; i < t->list.n; i++)
        if (strcmp(t->list.v[i].symbol, k.symbol) == 0)
            return &t->list.v[i];
    vec_push(&t->list, k);
    return &vec_last(&t->list);
}

/* Letters and digits of `base`, then a hash of what is to be named. */
static const char *symbol_of(Emit *e, const char *base, const Buf *text)
{
    char *symbol = arena_printf(e->arena, "%s_%08x", base,
                                (uint32_t)XXH3_64bits(text->s, text->len));

    for (char *c = symbol; *c; c++)
        if (!isalnum((unsigned char)*c))
            *c = '_';
    return symbol;
}

/* Prints a kernel under a provisional name, then under its own. */
static const Kernel *kernel_print(Emit *e, const char *base,
                                  void (*print)(Emit *e, const char *name,
                                                Buf *out, KernelInfo *info),
                                  KernelInfo *out_info)
{
    Buf draft = {0}, text = {0};
    Kernel k = {0};

    print(e, "k", &draft, out_info);
    k.symbol = symbol_of(e, base, &draft);
    print(e, k.symbol, &text, out_info);
    k.text = arena_strdup(e->arena, buf_str(&text));
    k.phases = out_info->phases ? out_info->phases : 1;
    k.ptrs = out_info->nptr;
    k.imms = out_info->nimm;
    buf_free(&draft);
    buf_free(&text);
    return kernel_add(e->kernels, k);
}

/* ---- operands of a launch ------------------------------------------------ */

typedef struct {
    Emit *e;
    PlanOperand list[EMIT_MAX_OPERANDS];
    uint32_t n;
} Launch;

static void push(Launch *l, PlanOperand o)
{
    mc_assert(l->n < EMIT_MAX_OPERANDS);
    l->list[l->n++] = o;
}

static void push_args(Launch *l, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        push(l, emit_value(l->e, node_arg(l->e->m, n, i), PLAN_READ));
}

static void push_workspace(Launch *l, int64_t bytes)
{
    if (bytes)
        push(l, emit_scratch(l->e, 0, bytes, PLAN_WRITE));
}

static PlanOperand integer_of(uint32_t expr)
{
    PlanOperand o = plan_integer(0);

    o.expr = expr;
    return o;
}

static uint32_t start_expr(Emit *e, const KernelStart *s)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint32_t n = 0;

    if (!s->axes)
        return emit_start(e, s->value, s->dim);
    for (uint8_t i = 0; i < e->m->mesh.atoms.n; i++)
        if (s->axes >> i & 1)
            atoms[n++] = i;
    return emit_digits(e, atoms, n, 1);
}

static PlanOperand start_operand(Emit *e, const KernelStart *s)
{
    if (s->kind == START_LAYER)
        return emit_layer(e);
    if (s->kind == START_MICROBATCH)
        return emit_microbatch(e);
    return integer_of(start_expr(e, s));
}

static void push_starts(Launch *l, const KernelInfo *info)
{
    for (uint32_t i = 0; i < info->nimm; i++)
        push(l, start_operand(l->e, &info->imm[i]));
}

/* The key of the draws of a node's dropout. */
static void push_draws(Launch *l, const Node *n)
{
    TensorId t = attr_tensor(l->e->m, n->attrs, AK_TENSOR);

    push(l, emit_state(l->e, t, FIELD_PARAM, PLAN_READ));
}

/* ---- row programs -------------------------------------------------------- */

static FuncId row_callee(const Module *m, const Node *n)
{
    return attr_func(m, n->attrs, AK_CALLEE);
}

static void print_row(Emit *e, const char *name, Buf *out, KernelInfo *info)
{
    const Node *n = &e->m->nodes.v[e->node.i];

    row_print(e->m, row_callee(e->m, n), name, NULL, out, info);
}

static void push_accums(Launch *l, const Func *f)
{
    Emit *e = l->e;

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &e->m->nodes.v[f->body.v[i].i];
        Field field;
        TensorId t = effects_target(e->m, n, &field);
        if (n->op == OP_ACCUM)
            push(l, emit_state(e, t, field, PLAN_READ | PLAN_WRITE));
    }
}

/* All dropouts of a program have the same key. */
static void push_row_draws(Launch *l, const Func *f)
{
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &l->e->m->nodes.v[f->body.v[i].i];
        if (n->op != OP_DROPOUT)
            continue;
        push_draws(l, n);
        return;
    }
}

static void const_fill(Emit *e, const Node *n)
{
    double ratio = (double)attr_int(e->m, n->attrs, AK_NUM, 1) /
                   (double)attr_int(e->m, n->attrs, AK_DEN, 1);
    float value = (float)attr_float(e->m, n->attrs, AK_VALUE, ratio);
    uint32_t word;

    if (attr_int(e->m, n->attrs, AK_ROOT, 0))
        value = (float)sqrt(ratio);

    memcpy(&word, &value, sizeof word);
    emit_fill(e, emit_value(e, node_res(n, 0), PLAN_WRITE), word);
}

/* Whether the node only adds what was added while it was made. */
static bool adds_already(const Emit *e, const Node *n)
{
    TensorId t;
    Field f;

    return memplan_accumulates(e->m, n, &t, &f) &&
           e->mem->place[node_arg(e->m, n, 0).i].adds;
}

void emit_row(Emit *e, const Node *n)
{
    Launch l = {.e = e};
    KernelInfo info = {0};
    const Func *f;
    const Kernel *k;

    if (n->op == OP_CONST) {
        const_fill(e, n);
        return;
    }
    if (adds_already(e, n))
        return;
    if (n->op != OP_ROW) {
        emit_fail(e, "%s outside of a row program", op_info[n->op].name);
        return;
    }
    f = &e->m->funcs.v[row_callee(e->m, n).i];
    k = kernel_print(e, sym_text(e->m->names, f->name), print_row, &info);
    push_args(&l, n);
    for (uint32_t i = 0; i < n->nres; i++)
        push(&l, emit_value(e, node_res(n, i), PLAN_WRITE));
    push_accums(&l, f);
    push_workspace(&l, info.workspace);
    push_row_draws(&l, f);
    push_starts(&l, &info);
    emit_launch(e, k, l.list, l.n);
}

/* ---- gathers ------------------------------------------------------------- */

static bool adds(const Emit *e, ValueId v)
{
    return e->mem->place[v.i].adds;
}

static void print_gather(Emit *e, const char *name, Buf *out, KernelInfo *info)
{
    const Node *n = &e->m->nodes.v[e->node.i];

    gather_print(e->m, e->node, name, adds(e, node_res(n, 0)), out, info);
}

static void gather(Emit *e, const Node *n)
{
    Launch l = {.e = e};
    KernelInfo info = {0};
    const Kernel *k = kernel_print(e, op_info[n->op].name, print_gather, &info);

    push_args(&l, n);
    push(&l, emit_value(e, node_res(n, 0),
                        adds(e, node_res(n, 0)) ? PLAN_READ | PLAN_WRITE
                                                : PLAN_WRITE));
    push_workspace(&l, info.workspace);
    push_starts(&l, &info);
    emit_launch(e, k, l.list, l.n);
}

void emit_embed(Emit *e, const Node *n)
{
    gather(e, n);
}

void emit_rows(Emit *e, const Node *n)
{
    gather(e, n);
}

void emit_rope_table(Emit *e, const Node *n)
{
    gather(e, n);
}

/* ---- routes of a mixture of experts -------------------------------------- */

static void print_route(Emit *e, const char *name, Buf *out, KernelInfo *info)
{
    route_print(e->m, e->node, name, out, info);
}

void emit_route(Emit *e, const Node *n)
{
    Launch l = {.e = e};
    KernelInfo info = {0};
    const Kernel *k = kernel_print(e, op_info[n->op].name, print_route, &info);

    push_args(&l, n);
    push(&l, emit_value(e, node_res(n, 0), PLAN_WRITE));
    push_workspace(&l, info.workspace);
    emit_launch(e, k, l.list, l.n);
}

/* ---- attention ----------------------------------------------------------- */

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
    push(l, o);
}

/* A view: whoever reads or writes it knows where it lies. */
void emit_view(Emit *e, const Node *n)
{
    (void)e;
    (void)n;
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
        push(&l, emit_value(e, node_arg(e->m, n, i), PLAN_READ));
    push_workspace(&l, kernel_scratch(e->m, e->node, (int)e->dialect));
    if (attr_find(e->m, n->attrs, AK_RATE))
        push_draws(&l, n);
    push_starts(&l, &info);
    emit_launch(e, k, l.list, l.n);
}

/* ---- what memplan asks --------------------------------------------------- */

static int64_t gather_scratch(const Module *m, NodeId id)
{
    KernelInfo info = {0};
    Buf text = {0};

    gather_print(m, id, "k", false, &text, &info);
    buf_free(&text);
    return info.workspace;
}

static int64_t route_scratch(const Module *m, NodeId id)
{
    KernelInfo info = {0};
    Buf text = {0};

    route_print(m, id, "k", &text, &info);
    buf_free(&text);
    return info.workspace;
}

int64_t kernel_scratch(const Module *m, NodeId id, int dialect)
{
    const Node *n = &m->nodes.v[id.i];
    AttentionSpec a;

    switch (n->op) {
    case OP_ROW:
        return row_workspace(m, row_callee(m, n));
    case OP_EMBED_GRAD:
    case OP_ROWS_GRAD:
        return gather_scratch(m, id);
    case OP_COMBINE:
    case OP_COMBINE_WEIGHT:
        return route_scratch(m, id);
    case OP_ATTENTION_GRAD:
    case OP_ATTENTION_STEP_GRAD:
        a = backward_spec(m, (FuncId){0}, n); /* wherever values lie */
        return attention_workspace(&a, (Dialect)dialect);
    default:
        return comm_scratch(m, n);
    }
}

bool kernel_in_place(const Module *m, const Node *n, uint32_t arg, uint32_t res)
{
    return row_in_place(m, row_callee(m, n), arg, res);
}

MemRules emit_rules(Dialect dialect)
{
    return (MemRules){(int)dialect, kernel_scratch, kernel_in_place};
}
