/* plan_pipeline.h - a hand-made step of 8 ranks (tp 2, dp 2, pp 2), small but
 * with everything that a real plan has: layers and microbatches as calls, a
 * 1F1B pipeline with joined messages, all-reduces beside the compute stream,
 * tied embeddings across the stages, an optimizer.
 *
 * Every instruction has a name, and one of them can be changed on its way into
 * the plan: that is a mutation.
 */
#ifndef MEGAC_TESTS_PLAN_PIPELINE_H
#define MEGAC_TESTS_PLAN_PIPELINE_H

#include "codegen/verify_plan.h"

enum { WORLD = 8, STAGES = 2, LAYERS = 2, X = 256, W_BYTES = 512 };

/* The arena. */
enum {
    W = 0,
    GRAD = 1024,
    MOMENT = 2048,
    EMB = 3072,
    EMB_GRAD = 3328,
    STATE_END = 4096,
    FRAME = 4096,
    ACTS = 8192, /* two slots of 1024: input, after layer 0, after layer 1 */
    DY = 10240,
    TOKENS = 12288,
    LOSS = 12352,
    LR = 12416,
    NORM = 12480,
    PART = 12544,
    WHOLE = 12608,
    ARENA = 16384
};

/* What lies where, as the verifier may tell it apart. */
enum {
    B_NORMED = 1,
    B_PRODUCT,
    B_ACTS, /* + microbatch */
    B_DY = 7,
    B_TOKENS = 11,
    B_LOSS,
    B_LR,
    B_NORM,
    B_PART,
    B_WHOLE
};

enum { COMPUTE, TP, PP, DP };
enum {
    E_TP_IN,
    E_TP_OUT,
    E_PP_IN,
    E_PP_OUT,
    E_DP_IN,
    E_DP_OUT,
    E_SPARE,
    EVENTS
};

/* Rows of the collectives table. */
enum {
    C_TP_SUM,
    C_DP_SUM,
    C_EMB_SUM,
    C_NORM_SUM,
    C_INF_MAX,
    C_GATHER,
    /* for mutations */
    C_EMB_SHORT,
    C_EMB_BF16,
    C_EMB_MAX,
    C_EMB_OVER_DP,
    C_EMB_BROADCAST,
    C_EMB_ROOT /* must follow */
};
enum { P_STAGE, P_DP, P_TP };

/* What messages and collectives carry; messages: the microbatch + 1. */
enum { CARRIES_EMB = 10, CARRIES_NORM, CARRIES_SQUARES };

/* ---- mutations ---------------------------------------------------------- */

typedef enum {
    NOTHING,
    DROP,
    TWICE,
    AFTER,  /* comes right after `other` */
    OFFSET, /* of operand `operand`, += value; likewise the next ones */
    BYTES,
    STRIDE,
    BASE,
    EXPR,
    BUFFER,
    COUNT, /* CALL */
    CHANNEL,
    REVERSED,
    INDEX, /* = value; likewise the next ones */
    INDEX_BY_STAGE,
    STREAM,
    UNJOIN,
    PICKS, /* the embedding group has fewer members */
    ATOMS  /* the group of all ranks lacks an atom */
} Action;

typedef struct {
    const char *name;
    int stage; /* STAGES: both */
    const char *target;
    Action action;
    const char *other;
    uint32_t operand;
    int64_t value;
    const char *code; /* what is reported */
} Mutation;

typedef struct {
    PlanInstr in;
    PlanOperand operands[8];
    uint32_t n;
    const char *name;
} Held;

typedef struct {
    PlanBuilder *b;
    int stage;
    const Mutation *mutation;
    Action action; /* on this stage */
    Held held;
    bool holding;
    uint32_t kernel[8]; /* by number of addresses */
    uint32_t gemm, gemm_add, tp_expr, seg[3];
} Ctx;

static void pass(Ctx *c, const Held *h)
{
    PlanInstr in = h->in;
    in.place = plan_add_place(c->b, "tiny.yaml", 3, 1, h->name, "");
    plan_emit(c->b, in, h->operands, h->n);
}

static void edit(const Mutation *m, int stage, Held *h)
{
    PlanOperand *o = &h->operands[m->operand];
    switch (m->action) {
    case OFFSET:
        o->offset += m->value;
        break;
    case BYTES:
        o->bytes = (uint64_t)((int64_t)o->bytes + m->value);
        break;
    case STRIDE:
        o->stride += m->value;
        break;
    case BASE:
        o->base = (uint16_t)m->value;
        break;
    case EXPR:
        o->expr = (uint32_t)m->value;
        break;
    case BUFFER:
        o->buffer = (uint32_t)m->value;
        break;
    case COUNT:
        h->in.aux += (uint32_t)m->value;
        break;
    case CHANNEL:
        h->in.aux += (uint32_t)m->value;
        break;
    case REVERSED:
        h->in.flags ^= PLAN_REVERSE;
        break;
    case INDEX:
        h->in.index = (uint32_t)m->value;
        break;
    case INDEX_BY_STAGE:
        h->in.index = (uint32_t)(m->value + stage);
        break;
    case STREAM:
        h->in.stream = (uint16_t)m->value;
        break;
    case UNJOIN:
        h->in.flags = 0;
        break;
    default:
        break;
    }
}

/* Every instruction comes through here. */
static void put(Ctx *c, const char *name, PlanInstr in,
                const PlanOperand *operands, uint32_t n)
{
    const Mutation *m = c->mutation;
    bool here = c->action != NOTHING && m->target;
    Held h = {.in = in, .n = n, .name = name};
    if (n)
        memcpy(h.operands, operands, sizeof *operands * n);
    if (here && strncmp(name, m->target, strlen(m->target)) == 0) {
        edit(m, c->stage, &h);
        c->holding = m->action == AFTER;
        c->held = h;
        if (m->action == DROP || m->action == AFTER)
            return;
        if (m->action == TWICE)
            pass(c, &h);
    }
    pass(c, &h);
    if (here && c->holding && strcmp(name, m->other) == 0) {
        c->holding = false;
        pass(c, &c->held);
    }
}

/* ---- short forms -------------------------------------------------------- */

static PlanOperand tagged(PlanOperand o, uint32_t buffer)
{
    o.buffer = buffer;
    return o;
}

static PlanOperand at(uint64_t address, uint64_t bytes, int access,
                      uint32_t buffer)
{
    return tagged(plan_address(address, bytes, access), buffer);
}

static PlanOperand reg(uint16_t base, int64_t offset, uint64_t bytes,
                       int access, uint32_t buffer)
{
    return tagged(plan_reg_address(base, offset, bytes, access), buffer);
}

static PlanOperand state(uint64_t address, uint64_t bytes, int access)
{
    return at(address, bytes, access, plan_state_buffer(address));
}

static PlanOperand stride(PlanOperand o, int64_t bytes)
{
    o.stride = bytes;
    return o;
}

static void launch(Ctx *c, const char *name, const PlanOperand *o, uint32_t n)
{
    put(c, name, (PlanInstr){.op = PLAN_LAUNCH, .index = c->kernel[n]}, o, n);
}

/* `to` goes on when `from` has come this far. */
static void fence(Ctx *c, const char *mark, const char *wait, uint16_t from,
                  uint16_t to, uint32_t event)
{
    put(c, mark, (PlanInstr){.op = PLAN_EVENT, .stream = from, .index = event},
        NULL, 0);
    put(c, wait, (PlanInstr){.op = PLAN_WAIT, .stream = to, .index = event},
        NULL, 0);
}

static void collective(Ctx *c, const char *name, uint16_t stream, uint32_t row,
                       uint32_t content, PlanOperand from, PlanOperand to)
{
    from.content = content;
    put(c, name,
        (PlanInstr){.op = PLAN_COLLECTIVE, .stream = stream, .index = row},
        (PlanOperand[]){from, to}, 2);
}

/* ---- segments ----------------------------------------------------------- */

static void tp_sum(Ctx *c)
{
    fence(c, "mark tp in", "wait tp in", COMPUTE, TP, E_TP_IN);
    collective(c, "tp sum", TP, C_TP_SUM, 0, reg(1, X, X, PLAN_READ, B_PRODUCT),
               reg(1, X, X, PLAN_WRITE, B_PRODUCT));
    fence(c, "mark tp out", "wait tp out", TP, COMPUTE, E_TP_OUT);
}

/* y = x + sum over tp of norm(x) w */
static void layer_fwd(Ctx *c)
{
    c->seg[0] = plan_segment_begin(c->b, "layer.fwd");
    plan_add_reg(c->b, PLAN_ADDRESS, "frame");
    plan_add_reg(c->b, PLAN_ADDRESS, "x");
    plan_add_reg(c->b, PLAN_ADDRESS, "y");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.param");
    launch(c, "norm",
           (PlanOperand[]){reg(2, 0, X, PLAN_READ, 0),
                           reg(1, 0, X, PLAN_WRITE, B_NORMED)},
           2);
    put(c, "product", (PlanInstr){.op = PLAN_GEMM, .index = c->gemm},
        (PlanOperand[]){reg(1, 0, X, PLAN_READ, B_NORMED),
                        reg(4, 0, W_BYTES, PLAN_READ, 0),
                        reg(1, X, X, PLAN_WRITE, B_PRODUCT)},
        3);
    tp_sum(c);
    launch(c, "add",
           (PlanOperand[]){reg(2, 0, X, PLAN_READ, 0),
                           reg(1, X, X, PLAN_READ, B_PRODUCT),
                           reg(3, 0, X, PLAN_WRITE, 0)},
           3);
}

/* grad += norm(x) dy;  dy += sum over tp of dy w */
static void layer_bwd(Ctx *c)
{
    c->seg[1] = plan_segment_begin(c->b, "layer.bwd");
    plan_add_reg(c->b, PLAN_ADDRESS, "frame");
    plan_add_reg(c->b, PLAN_ADDRESS, "x");
    plan_add_reg(c->b, PLAN_ADDRESS, "dy");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.param");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.grad");
    launch(c, "norm again",
           (PlanOperand[]){reg(2, 0, X, PLAN_READ, 0),
                           reg(1, 0, X, PLAN_WRITE, B_NORMED)},
           2);
    put(c, "weight grad", (PlanInstr){.op = PLAN_GEMM, .index = c->gemm_add},
        (PlanOperand[]){reg(1, 0, X, PLAN_READ, B_NORMED),
                        reg(3, 0, X, PLAN_READ, 0),
                        reg(5, 0, W_BYTES, PLAN_READ | PLAN_WRITE, 0)},
        3);
    put(c, "input grad", (PlanInstr){.op = PLAN_GEMM, .index = c->gemm},
        (PlanOperand[]){reg(3, 0, X, PLAN_READ, 0),
                        reg(4, 0, W_BYTES, PLAN_READ, 0),
                        reg(1, X, X, PLAN_WRITE, B_PRODUCT)},
        3);
    tp_sum(c);
    launch(c, "add grad",
           (PlanOperand[]){reg(3, 0, X, PLAN_READ, 0),
                           reg(1, X, X, PLAN_READ, B_PRODUCT),
                           reg(3, 0, X, PLAN_WRITE, 0)},
           3);
}

static void optimizer(Ctx *c)
{
    c->seg[2] = plan_segment_begin(c->b, "optimizer");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.param");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.grad");
    plan_add_reg(c->b, PLAN_ADDRESS, "@w.m");
    launch(c, "adam",
           (PlanOperand[]){reg(1, 0, W_BYTES, PLAN_READ | PLAN_WRITE, 0),
                           reg(2, 0, W_BYTES, PLAN_READ, 0),
                           reg(3, 0, W_BYTES, PLAN_READ | PLAN_WRITE, 0),
                           at(LR, 4, PLAN_READ, 0), at(NORM, 4, PLAN_READ, 0)},
           5);
}

/* ---- the main segment --------------------------------------------------- */

static PlanOperand acts_at(int m, int layer, int access)
{
    return at(ACTS + 1024 * (uint64_t)(m % 2) + X * (uint64_t)layer, X, access,
              B_ACTS + (uint32_t)m);
}

static PlanOperand dy_at(int m, int access)
{
    return at(DY, X, access, B_DY + (uint32_t)m);
}

static void load(Ctx *c, int m)
{
    put(c, "load", (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_LOAD_BATCH},
        (PlanOperand[]){plan_integer(m), at(TOKENS, 64, PLAN_WRITE, B_TOKENS)},
        2);
    PlanOperand part = at(TOKENS, 32, PLAN_READ, B_TOKENS);
    part.expr = c->tp_expr;
    launch(c, "embed",
           (PlanOperand[]){part, state(EMB, X, PLAN_READ),
                           acts_at(m, 0, PLAN_WRITE)},
           3);
}

static void forward(Ctx *c, int m)
{
    static const char *const names[] = {"forward 0", "forward 1", "forward 2",
                                        "forward 3"};
    if (c->stage == 0)
        load(c, m);
    put(c, names[m],
        (PlanInstr){.op = PLAN_CALL, .index = c->seg[0], .aux = LAYERS},
        (PlanOperand[]){plan_address(FRAME, 1024, PLAN_READ | PLAN_WRITE),
                        stride(acts_at(m, 0, PLAN_READ), X),
                        stride(acts_at(m, 1, PLAN_WRITE), X),
                        stride(state(W, W_BYTES, PLAN_READ), W_BYTES)},
        4);
}

static void backward(Ctx *c, int m)
{
    static const char *const names[] = {"backward 0", "backward 1",
                                        "backward 2", "backward 3"};
    if (c->stage == 1)
        launch(c, "loss",
               (PlanOperand[]){acts_at(m, 2, PLAN_READ), dy_at(m, PLAN_WRITE),
                               at(LOSS, 4, PLAN_READ | PLAN_WRITE, B_LOSS)},
               3);
    put(c, names[m],
        (PlanInstr){.op = PLAN_CALL,
                    .index = c->seg[1],
                    .aux = LAYERS,
                    .flags = PLAN_REVERSE},
        (PlanOperand[]){plan_address(FRAME, 1024, PLAN_READ | PLAN_WRITE),
                        stride(acts_at(m, 0, PLAN_READ), X),
                        dy_at(m, PLAN_READ),
                        stride(state(W, W_BYTES, PLAN_READ), W_BYTES),
                        stride(state(GRAD, W_BYTES, PLAN_READ), W_BYTES)},
        5);
    if (c->stage == 0)
        launch(c, "grad of embed",
               (PlanOperand[]){dy_at(m, PLAN_READ),
                               state(EMB_GRAD, X, PLAN_READ | PLAN_WRITE)},
               2);
}

/* Activations go down on channel 0, gradients up on channel 1. */
static void message(Ctx *c, const char *name, bool send, int m, bool join)
{
    bool down = send == (c->stage == 0);
    int access = send ? PLAN_READ : PLAN_WRITE;
    PlanOperand o = down ? acts_at(m, c->stage == 0 ? LAYERS : 0, access)
                         : dy_at(m, access);
    o.content = (uint32_t)m + 1;
    put(c, name,
        (PlanInstr){.op = send ? PLAN_SEND : PLAN_RECV,
                    .stream = PP,
                    .index = P_STAGE,
                    .aux = down ? 0 : 1,
                    .flags = join ? PLAN_JOIN : 0},
        &o, 1);
}

static void pp_begin(Ctx *c)
{
    fence(c, "mark pp in", "wait pp in", COMPUTE, PP, E_PP_IN);
}

static void pp_end(Ctx *c)
{
    fence(c, "mark pp out", "wait pp out", PP, COMPUTE, E_PP_OUT);
}

/* F0 F1 B0 F2 B1 F3 B2 B3 */
static void stage_0(Ctx *c)
{
    static const char *const sends[] = {"send x0", "send x1", "send x2",
                                        "send x3"};
    static const char *const recvs[] = {"recv d0", "recv d1", "recv d2",
                                        "recv d3"};
    forward(c, 0);
    pp_begin(c);
    message(c, sends[0], true, 0, false);
    for (int m = 1; m < 4; m++) {
        forward(c, m);
        pp_begin(c);
        message(c, sends[m], true, m, false);
        message(c, recvs[m - 1], false, m - 1, true);
        pp_end(c);
        backward(c, m - 1);
    }
    pp_begin(c);
    message(c, recvs[3], false, 3, false);
    pp_end(c);
    backward(c, 3);
}

/* F0 B0 F1 B1 F2 B2 F3 B3 */
static void stage_1(Ctx *c)
{
    static const char *const sends[] = {"send d0", "send d1", "send d2",
                                        "send d3"};
    static const char *const recvs[] = {"recv x0", "recv x1", "recv x2",
                                        "recv x3"};
    put(c, "zero loss", (PlanInstr){.op = PLAN_FILL},
        (PlanOperand[]){at(LOSS, 4, PLAN_WRITE, B_LOSS)}, 1);
    pp_begin(c);
    message(c, recvs[0], false, 0, false);
    for (int m = 0; m < 4; m++) {
        pp_end(c);
        forward(c, m);
        backward(c, m);
        pp_begin(c);
        message(c, sends[m], true, m, false);
        if (m < 3)
            message(c, recvs[m + 1], false, m + 1, true);
    }
    pp_end(c);
    launch(c, "tied grad",
           (PlanOperand[]){dy_at(3, PLAN_READ),
                           state(EMB_GRAD, X, PLAN_READ | PLAN_WRITE)},
           2);
}

static void reduce_grads(Ctx *c)
{
    PlanOperand grads = state(GRAD, LAYERS * W_BYTES, PLAN_READ);
    PlanOperand to = grads;
    to.access = PLAN_WRITE;
    fence(c, "mark dp in", "wait dp in", COMPUTE, DP, E_DP_IN);
    collective(c, "dp sum", DP, C_DP_SUM, 0, grads, to);
    collective(c, "emb sum", DP, C_EMB_SUM, CARRIES_EMB,
               state(EMB_GRAD, X, PLAN_READ), state(EMB_GRAD, X, PLAN_WRITE));
    fence(c, "mark dp out", "wait dp out", DP, COMPUTE, E_DP_OUT);
    launch(c, "sum of squares",
           (PlanOperand[]){grads, at(NORM, 4, PLAN_WRITE, B_NORM)}, 2);
    collective(c, "norm sum", COMPUTE, C_NORM_SUM, CARRIES_NORM,
               at(NORM, 4, PLAN_READ, B_NORM), at(NORM, 4, PLAN_WRITE, B_NORM));
    collective(c, "square sum", COMPUTE, C_NORM_SUM, CARRIES_SQUARES,
               at(NORM, 4, PLAN_READ, B_NORM), at(NORM, 4, PLAN_WRITE, B_NORM));
    collective(c, "inf max", COMPUTE, C_INF_MAX, 0,
               at(NORM, 4, PLAN_READ, B_NORM), at(NORM, 4, PLAN_WRITE, B_NORM));
    launch(c, "part",
           (PlanOperand[]){state(EMB, X, PLAN_READ),
                           at(PART, 64, PLAN_WRITE, B_PART)},
           2);
    collective(c, "gather", COMPUTE, C_GATHER, 0,
               at(PART, 64, PLAN_READ, B_PART),
               at(WHOLE, 128, PLAN_WRITE, B_WHOLE));
}

static void update(Ctx *c)
{
    put(c, "grads", (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_GRADS},
        NULL, 0);
    put(c, "lr", (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_SCALAR},
        (PlanOperand[]){at(LR, 4, PLAN_WRITE, B_LR)}, 1);
    put(c, "update",
        (PlanInstr){.op = PLAN_CALL, .index = c->seg[2], .aux = LAYERS},
        (PlanOperand[]){stride(state(W, W_BYTES, PLAN_READ), W_BYTES),
                        stride(state(GRAD, W_BYTES, PLAN_READ), W_BYTES),
                        stride(state(MOMENT, W_BYTES, PLAN_READ), W_BYTES)},
        3);
    launch(c, "update emb",
           (PlanOperand[]){state(EMB, X, PLAN_READ | PLAN_WRITE),
                           state(EMB_GRAD, X, PLAN_READ),
                           at(WHOLE, 128, PLAN_READ, B_WHOLE)},
           3);
    if (c->stage == 1)
        put(c, "metric",
            (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_METRIC},
            (PlanOperand[]){at(LOSS, 4, PLAN_READ, B_LOSS)}, 1);
}

static void main_segment(Ctx *c)
{
    plan_segment_begin(c->b, "main");
    put(c, "zero grads", (PlanInstr){.op = PLAN_FILL},
        (PlanOperand[]){state(GRAD, LAYERS * W_BYTES, PLAN_WRITE)}, 1);
    put(c, "zero emb grads", (PlanInstr){.op = PLAN_FILL},
        (PlanOperand[]){state(EMB_GRAD, X, PLAN_WRITE)}, 1);
    if (c->stage == 0)
        stage_0(c);
    else
        stage_1(c);
    reduce_grads(c);
    update(c);
}

/* ---- tables ------------------------------------------------------------- */

static void collectives(const Ctx *c, uint32_t tp, uint32_t dp, uint32_t emb,
                        uint32_t all)
{
    const PlanCollective rows[] = {
        [C_TP_SUM] = {.group = tp, .count = 64},
        [C_DP_SUM] = {.group = dp, .count = 256},
        [C_EMB_SUM] = {.group = emb, .count = 64},
        [C_NORM_SUM] = {.group = all, .count = 1},
        [C_GATHER] = {.kind = PLAN_ALL_GATHER, .group = tp, .count = 16},
        [C_INF_MAX] = {.group = all, .count = 1, .reduce = PLAN_MAX},
        [C_EMB_SHORT] = {.group = emb, .count = 32},
        [C_EMB_BF16] = {.group = emb, .count = 64, .dtype = PLAN_BF16},
        [C_EMB_MAX] = {.group = emb, .count = 64, .reduce = PLAN_MAX},
        [C_EMB_BROADCAST] = {.group = emb, .count = 64, .kind = PLAN_BROADCAST},
        [C_EMB_ROOT] = {.group = emb,
                        .count = 64,
                        .kind = PLAN_BROADCAST,
                        .root = c->action != PICKS},
        [C_EMB_OVER_DP] = {.group = dp, .count = 64},
    };
    for (uint32_t i = 0; i < MC_LEN(rows); i++)
        mc_assert(plan_add_collective(c->b, &rows[i]) <= i);
}

static void tensor(PlanBuilder *b, const char *name, uint32_t layers,
                   int64_t elements, const uint64_t *addresses,
                   const uint32_t *kinds, uint32_t n)
{
    PlanTensor t = {
        .name = plan_add_text(b, name), .rows = elements, .row_dims = 1};
    PlanSplit whole = {0, 0};
    t.export_name = t.name;
    if (layers > 1)
        t.layers = plan_add_list(b, (uint32_t[]){0, 1}, layers);
    plan_add_tensor(b, &t);
    plan_add_dim(b, "e", elements, elements);
    for (uint32_t i = 0; i < n; i++) {
        PlanField f = {.kind = kinds[i],
                       .address = addresses[i],
                       .layer_stride = layers > 1 ? W_BYTES : 0};
        plan_add_field(b, &f, &whole);
    }
}

static void tables(Ctx *c)
{
    PlanBuilder *b = c->b;
    uint32_t tp = plan_add_atom(b, "tp", 2, 1);
    uint32_t dp = plan_add_atom(b, "dp", 2, 2);
    uint32_t pp = plan_add_atom(b, "pp", 2, 4);
    plan_add_member(b, pp, (uint32_t)c->stage);
    collectives(c, plan_add_group(b, "tp", &tp, 1, NULL, 0),
                plan_add_group(b, "dp", &dp, 1, NULL, 0),
                plan_add_group(b, "embed", &pp, 1, (uint32_t[]){0, 1},
                               c->action == PICKS ? 1 : 2),
                plan_add_group(b, "all", (uint32_t[]){pp, dp, tp},
                               c->action == ATOMS ? 2 : 3, NULL, 0));
    plan_add_peer(b, "other stage", pp, 1);
    plan_add_peer(b, "dp neighbour", dp, 1);
    plan_add_peer(b, "tp neighbour", tp, 1);
    c->tp_expr = plan_add_expr(b, 0, &(PlanTerm){tp, 0, 32}, 1);
    plan_add_stream(b, "tp", PLAN_STREAM_COMM);
    plan_add_stream(b, "pp", PLAN_STREAM_COMM);
    plan_add_stream(b, "dp", PLAN_STREAM_COMM);
    for (uint32_t i = 0; i < EVENTS; i++)
        plan_add_event(b);
    for (uint32_t n = 1; n < MC_LEN(c->kernel); n++) {
        char symbol[16];
        snprintf(symbol, sizeof symbol, "k%u", n);
        c->kernel[n] = plan_add_kernel(b, symbol, 1, false, n, 0);
    }
    PlanGemm g = {
        .m = 4, .n = 8, .k = 8, .batch = 1, .lda = 8, .ldb = 8, .ldc = 8};
    c->gemm = plan_add_gemm(b, &g);
    g.accumulate = 1;
    c->gemm_add = plan_add_gemm(b, &g);
    tensor(b, "w.{l}", LAYERS, 128, (uint64_t[]){W, GRAD, MOMENT},
           (uint32_t[]){PLAN_FIELD_PARAM, PLAN_FIELD_GRAD, PLAN_FIELD_M}, 3);
    tensor(b, "emb", 1, 64, (uint64_t[]){EMB, EMB_GRAD},
           (uint32_t[]){PLAN_FIELD_PARAM, PLAN_FIELD_GRAD}, 2);
}

/* The plan of a stage, changed by the mutation if there is one. */
static Plan pipeline_plan(int stage, const Mutation *mutation)
{
    PlanBuilder *b = plan_builder_new();
    Ctx c = {.b = b, .stage = stage, .mutation = mutation};
    if (mutation && (mutation->stage == STAGES || mutation->stage == stage))
        c.action = mutation->action;
    Buf out = {0};
    Plan p;
    plan_job(b)->world = WORLD;
    *plan_training(b) = (PlanTraining){.global_batch = 4,
                                       .micro_batch = 1,
                                       .seq_length = 16,
                                       .microbatches = 4};
    *plan_data(b) = (PlanData){.vocab = 256, .shards = 1, .parts = 1};
    plan_add_memory(b, "arena", PLAN_MEMORY_DEVICE, 0, ARENA);
    tables(&c);
    layer_fwd(&c);
    layer_bwd(&c);
    optimizer(&c);
    main_segment(&c);
    plan_write(b, &out);
    plan_builder_free(b);
    Status s = plan_load(out.s, out.len, &p);
    if (s)
        mc_bug(__FILE__, __LINE__, "%s", status_text(s));
    buf_free(&out);
    return p;
}

#endif
