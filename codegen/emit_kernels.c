/* emit_kernels.c - the kernels of all stages, each once.
 *
 * A kernel is named after what it does and a hash of its text, so equal
 * kernels of different functions and stages are one, and a name in a profile
 * leads to a file under out/kernels.
 */
#include "codegen/emit_priv.h"

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

const Kernel *kernel_print(Emit *e, const char *base, KernelPrinter *print,
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
    k.dtype = emit_dtype(out_info->flops > 0 ? out_info->dtype : DT_F32);
    k.work = (PlanWork){out_info->flops, out_info->bytes};
    buf_free(&draft);
    buf_free(&text);
    return kernel_add(e->kernels, k);
}

/* ---- operands of a launch ------------------------------------------------ */

void launch_push(Launch *l, PlanOperand o)
{
    mc_assert(l->n < EMIT_MAX_OPERANDS);
    l->list[l->n++] = o;
}

static void push_args(Launch *l, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        launch_push(l, emit_value(l->e, node_arg(l->e->m, n, i), PLAN_READ));
}

void launch_workspace(Launch *l, int64_t bytes)
{
    if (bytes)
        launch_push(l, emit_scratch(l->e, 0, bytes, PLAN_WRITE));
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

void launch_starts(Launch *l, const KernelInfo *info)
{
    for (uint32_t i = 0; i < info->nimm; i++)
        launch_push(l, start_operand(l->e, &info->imm[i]));
}

void launch_draws(Launch *l, const Node *n)
{
    TensorId t = attr_tensor(l->e->m, n->attrs, AK_TENSOR);

    launch_push(l, emit_state(l->e, t, FIELD_PARAM, PLAN_READ));
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
            launch_push(l, emit_state(e, t, field, PLAN_READ | PLAN_WRITE));
    }
}

/* All dropouts of a program have the same key. */
static void push_row_draws(Launch *l, const Func *f)
{
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &l->e->m->nodes.v[f->body.v[i].i];
        if (n->op != OP_DROPOUT)
            continue;
        launch_draws(l, n);
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
        launch_push(&l, emit_value(e, node_res(n, i), PLAN_WRITE));
    push_accums(&l, f);
    launch_workspace(&l, info.workspace);
    push_row_draws(&l, f);
    launch_starts(&l, &info);
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
    launch_push(&l,
                emit_value(e, node_res(n, 0),
                           adds(e, node_res(n, 0)) ? PLAN_READ | PLAN_WRITE
                                                   : PLAN_WRITE));
    launch_workspace(&l, info.workspace);
    launch_starts(&l, &info);
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
    launch_push(&l, emit_value(e, node_res(n, 0), PLAN_WRITE));
    launch_workspace(&l, info.workspace);
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

    switch (n->op) {
    case OP_ROW:
        return row_workspace(m, row_callee(m, n));
    case OP_EMBED_GRAD:
    case OP_ROWS_GRAD:
        return gather_scratch(m, id);
    case OP_ROUNDS:
    case OP_COMBINE:
    case OP_COMBINE_WEIGHT:
        return route_scratch(m, id);
    case OP_ATTENTION_GRAD:
    case OP_ATTENTION_STEP_GRAD:
        return attention_scratch(m, n, (Dialect)dialect);
    default:
        return 0;
    }
}

bool kernel_in_place(const Module *m, const Node *n, uint32_t arg, uint32_t res)
{
    return row_in_place(m, row_callee(m, n), arg, res);
}

MemRules emit_rules(Dialect dialect)
{
    return (MemRules){(int)dialect, kernel_scratch, kernel_in_place, 0};
}
