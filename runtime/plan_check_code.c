/* plan_check_code.c - checks the instructions of a plan.
 *
 * Segments call only segments of smaller number, so walking them from the last
 * to the first meets every caller before its callees.  Each call widens the
 * span of values of the callee's registers; when a segment's turn comes, its
 * spans are final, and since an operand depends on one register, the two ends
 * of the span are values that really occur.  So an address is refused exactly
 * if some iteration on some rank could leave its memory.
 */
#include "runtime/plan_check_priv.h"

enum { VALUE_BITS = 56 };
#define MAX_RUNS 1e15

/* What the operands of an instruction must be: a letter each, i for an
 * integer, r w b for an address that is read, written, or both. */
typedef struct {
    const char *operands;
    bool compute, comm, copy; /* the kinds of stream it may be on */
} OpShape;

static const OpShape shapes[PLAN_OPS] = {
    [PLAN_LAUNCH] = {NULL, true, false, false},
    [PLAN_GEMM] = {NULL, true, false, false},
    [PLAN_COLLECTIVE] = {"rw", true, true, false},
    [PLAN_SEND] = {"r", true, true, false},
    [PLAN_RECV] = {"w", true, true, false},
    [PLAN_COPY] = {"wr", true, false, true},
    [PLAN_FILL] = {"w", true, false, false},
    [PLAN_EVENT] = {"", true, true, true},
    [PLAN_WAIT] = {"", true, true, true},
    [PLAN_CALL] = {NULL, true, false, false},
    [PLAN_HOST] = {NULL, true, false, false},
};

static const char *const host_shapes[PLAN_HOST_OPS] = {
    [PLAN_HOST_LOAD_BATCH] = "iw",
    [PLAN_HOST_SCALAR] = "w",
    [PLAN_HOST_METRIC] = "r",
    [PLAN_HOST_GRADS] = "",
};

static const PlanOperand *operands_of(const PlanCheck *c, const PlanInstr *in)
{
    return c->p->operands.v + in->operands.first;
}

/* ---- values -------------------------------------------------------------- */

static bool span_add(PlanSpan *a, int64_t low, int64_t high)
{
    int64_t limit = (int64_t)1 << VALUE_BITS;

    return !__builtin_add_overflow(a->low, low, &a->low) &&
           !__builtin_add_overflow(a->high, high, &a->high) &&
           a->low > -limit && a->high < limit;
}

/* All values an operand takes, over calls of its segment and ranks. */
static bool operand_span(PlanCheck *c, const PlanSegment *s,
                         const PlanOperand *o, PlanSpan *out)
{
    PlanSpan expr = c->exprs[o->expr];

    *out = (PlanSpan){o->offset, o->offset};
    if (o->base) {
        uint32_t reg = s->regs.first + o->base - 1;
        if (!plan_must_row(c, o->base - 1u, s->regs.n, "register") ||
            !plan_must(c, c->p->regs.v[reg].kind == o->kind,
                       "an operand and its register differ in kind") ||
            !plan_must(c, span_add(out, c->regs[reg].low, c->regs[reg].high),
                       "overflow"))
            return false;
    }
    return plan_must(c, span_add(out, expr.low, expr.high), "overflow");
}

static bool must_operand(PlanCheck *c, const PlanSegment *s,
                         const PlanOperand *o, char shape)
{
    static const struct {
        char shape;
        uint8_t access;
    } accesses[] = {
        {'r', PLAN_READ}, {'w', PLAN_WRITE}, {'b', PLAN_READ | PLAN_WRITE}};
    PlanSpan span;

    if (!operand_span(c, s, o, &span) ||
        !plan_must(c, o->stride == 0, "a stride outside CALL") ||
        !plan_must(c, (o->kind == PLAN_INTEGER) == (shape == 'i'),
                   "an operand has the wrong kind"))
        return false;
    if (o->kind == PLAN_INTEGER)
        return true;
    for (size_t i = 0; i < MC_LEN(accesses); i++)
        if (accesses[i].shape == shape &&
            !plan_must(c, o->access == accesses[i].access,
                       "an operand has the wrong access"))
            return false;
    return plan_must_address(c, span.low, span.high, o->bytes);
}

static bool must_shape(PlanCheck *c, const PlanSegment *s, const PlanInstr *in,
                       const char *shape)
{
    if (!plan_must(c, in->operands.n == strlen(shape), "%s with %u operands",
                   plan_op_name(in->op), in->operands.n))
        return false;
    for (uint32_t i = 0; i < in->operands.n; i++)
        if (!must_operand(c, s, operands_of(c, in) + i, shape[i]))
            return false;
    return true;
}

static bool must_bytes(PlanCheck *c, const PlanInstr *in, uint32_t operand,
                       int64_t elements, uint32_t dtype)
{
    uint64_t bytes = (uint64_t)elements * plan_dtype_bytes(dtype);

    return plan_must(c, operands_of(c, in)[operand].bytes >= bytes,
                     "%s needs %llu bytes in operand %u, not %llu",
                     plan_op_name(in->op), (unsigned long long)bytes, operand,
                     (unsigned long long)operands_of(c, in)[operand].bytes);
}

/* ---- one function per op ------------------------------------------------- */

static bool check_launch(PlanCheck *c, const PlanSegment *s,
                         const PlanInstr *in)
{
    const PlanKernel *k;
    uint32_t imms = 0;

    if (!plan_must_row(c, in->index, c->p->kernels.n, "kernel"))
        return false;
    k = &c->p->kernels.v[in->index];
    for (uint32_t i = 0; i < in->operands.n; i++) {
        const PlanOperand *o = operands_of(c, in) + i;
        bool integer = o->kind == PLAN_INTEGER;
        imms += integer;
        if (!must_operand(c, s, o, integer ? 'i' : 'a'))
            return false;
    }
    return plan_must(c, imms == k->imms && in->operands.n - imms == k->ptrs,
                     "kernel %s with %u addresses and %u integers",
                     plan_text(c->p, k->symbol), in->operands.n - imms, imms);
}

/* Elements from the first to the last of a batch of stored matrices, or -1. */
static int64_t gemm_extent(int64_t rows, int64_t columns, int64_t ld,
                           int64_t batch, int64_t stride)
{
    int64_t body, rest, all;

    if (__builtin_mul_overflow(rows - 1, ld, &body) ||
        __builtin_mul_overflow(batch - 1, stride, &rest) ||
        __builtin_add_overflow(body, rest, &all) ||
        __builtin_add_overflow(all, columns, &all) ||
        all >= (int64_t)1 << VALUE_BITS)
        return -1;
    return all;
}

static bool must_gemm_bytes(PlanCheck *c, const PlanInstr *in,
                            const PlanGemm *g)
{
    int64_t a = gemm_extent(g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k,
                            g->lda, g->batch, g->stride_a);
    int64_t b = gemm_extent(g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n,
                            g->ldb, g->batch, g->stride_b);
    int64_t d = gemm_extent(g->m, g->n, g->ldc, g->batch, g->stride_c);

    return plan_must(c, a > 0 && b > 0 && d > 0, "overflow") &&
           must_bytes(c, in, 0, a, g->type_a) &&
           must_bytes(c, in, 1, b, g->type_b) &&
           must_bytes(c, in, 2, d, g->type_c) &&
           (!g->bias || must_bytes(c, in, 3, g->n, g->type_bias)) &&
           (!g->residual || must_bytes(c, in, 3u + g->bias, d, g->type_c)) &&
           (!g->filled ||
            must_bytes(c, in, 3, g->batch * (int64_t)g->parts, PLAN_F32));
}

static bool check_gemm(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    /* by accumulation, then by how many operands follow */
    static const char *const gemm_shapes[2][3] = {{"rrw", "rrwr", "rrwrr"},
                                                  {"rrb", "rrbr", "rrbrr"}};
    const PlanGemm *g;

    if (!plan_must_row(c, in->index, c->p->gemms.n, "gemm"))
        return false;
    g = &c->p->gemms.v[in->index];
    return must_shape(c, s, in, 
                      gemm_shapes[g->accumulate][g->bias + g->residual +
                                                 (g->filled != 0)]) &&
           must_gemm_bytes(c, in, g);
}

static bool check_collective(PlanCheck *c, const PlanSegment *s,
                             const PlanInstr *in)
{
    const PlanCollective *k;
    int64_t members, source, destination;

    if (!plan_must_row(c, in->index, c->p->collectives.n, "collective"))
        return false;
    k = &c->p->collectives.v[in->index];
    members = plan_check_group_size(c->p, k->group);
    source = k->count;
    destination = k->count;
    if (k->kind == PLAN_ALL_GATHER || k->kind == PLAN_ALL_TO_ALL)
        destination *= members;
    if (k->kind == PLAN_REDUCE_SCATTER || k->kind == PLAN_ALL_TO_ALL)
        source *= members;
    return must_shape(c, s, in, "rw") &&
           must_bytes(c, in, 0, source, k->dtype) &&
           must_bytes(c, in, 1, destination, k->dtype);
}

static bool check_message(PlanCheck *c, const PlanSegment *s,
                          const PlanInstr *in)
{
    return plan_must_row(c, in->index, c->p->peers.n, "peer") &&
           plan_must(c, in->aux < PLAN_MAX_CHANNELS, "channel is %u",
                     in->aux) &&
           must_shape(c, s, in, shapes[in->op].operands) &&
           plan_must(c, operands_of(c, in)->bytes <= INT32_MAX,
                     "a message of more than 2 GiB");
}

static bool check_copy(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    const PlanOperand *o = operands_of(c, in);

    return must_shape(c, s, in, "wr") &&
           plan_must(c, o[0].bytes == o[1].bytes, "sizes differ");
}

static bool check_event(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    return must_shape(c, s, in, "") &&
           plan_must_row(c, in->index, c->p->job.v->events, "event");
}

static bool check_host(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    const PlanTraining *t = c->p->training.v;
    int64_t ids = t->micro_batch * (t->seq_length / c->p->data.v->parts);
    static const uint32_t limits[PLAN_HOST_OPS] = {
        PLAN_BATCHES, PLAN_SCALARS, PLAN_METRICS, 1};

    if (!plan_must_row(c, in->index, PLAN_HOST_OPS, "host op") ||
        !plan_must_row(c, in->aux, limits[in->index], "aux") ||
        !must_shape(c, s, in, host_shapes[in->index]))
        return false;
    if (in->index == PLAN_HOST_SCALAR || in->index == PLAN_HOST_METRIC)
        return must_bytes(c, in, 0, 1, PLAN_F32);
    return in->index != PLAN_HOST_LOAD_BATCH ||
           must_bytes(c, in, 1, ids, PLAN_I32);
}

/* ---- calls --------------------------------------------------------------- */

/* Widens the span of a register by one call's arguments. */
static void widen(PlanSpan *reg, PlanSpan argument, bool first)
{
    reg->low = first ? argument.low : MC_MIN(reg->low, argument.low);
    reg->high = first ? argument.high : MC_MAX(reg->high, argument.high);
}

static bool check_argument(PlanCheck *c, const PlanSegment *s,
                           const PlanOperand *o, uint32_t count, uint32_t reg,
                           bool first)
{
    int64_t reach;
    PlanSpan span;

    if (!plan_must(c, o->kind == c->p->regs.v[reg].kind,
                   "an argument has the wrong kind") ||
        !operand_span(c, s, o, &span) ||
        !plan_must(
            c,
            !__builtin_mul_overflow(o->stride, (int64_t)count - 1, &reach) &&
                span_add(&span, MC_MIN(reach, 0), MC_MAX(reach, 0)),
            "overflow"))
        return false;
    widen(&c->regs[reg], span, first);
    return true;
}

/* An f32 in memory; it counts exactly up to 2^24. */
static bool check_trips(PlanCheck *c, const PlanSegment *s,
                        const PlanInstr *in)
{
    if (!(in->flags & PLAN_TRIPS))
        return true;
    return plan_must(c, !(in->flags & PLAN_REVERSE), "trips in reverse") &&
           plan_must(c, in->aux <= 1u << 24, "count is %u", in->aux) &&
           plan_must(c, in->operands.n > 0, "trips without an operand") &&
           must_operand(c, s, operands_of(c, in), 'r') &&
           must_bytes(c, in, 0, 1, PLAN_F32);
}

static bool check_call(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    uint32_t self = (uint32_t)(s - c->p->segments.v);
    uint32_t skip = plan_call_skips(in);
    const PlanSegment *callee;
    PlanReach *reach;

    if (!plan_must(c, in->index < self, "segment %u calls segment %u", self,
                   in->index) ||
        !plan_must(c, in->aux > 0, "count is 0") || !check_trips(c, s, in))
        return false;
    callee = &c->p->segments.v[in->index];
    reach = &c->segments[in->index];
    if (!plan_must(c, in->operands.n - skip == callee->regs.n,
                   "%u arguments for %u "
                   "registers",
                   in->operands.n - skip, callee->regs.n))
        return false;
    for (uint32_t i = 0; i < callee->regs.n; i++)
        if (!check_argument(c, s, operands_of(c, in) + skip + i, in->aux,
                            callee->regs.first + i, !reach->called))
            return false;
    reach->called = 1;
    reach->depth = MC_MAX(reach->depth, c->segments[self].depth + 1);
    reach->runs += c->segments[self].runs * in->aux;
    return plan_must(c, reach->depth < PLAN_MAX_DEPTH, "calls too deep") &&
           plan_must(c, reach->runs < MAX_RUNS, "too many iterations");
}

/* ---- the walk ------------------------------------------------------------ */

static bool must_stream(PlanCheck *c, const PlanInstr *in)
{
    const OpShape *shape = &shapes[in->op];
    uint32_t kind = c->p->streams.v[in->stream].kind;
    bool message =
        in->op == PLAN_SEND || in->op == PLAN_RECV || in->op == PLAN_COLLECTIVE;
    uint8_t flags = message               ? PLAN_JOIN
                    : in->op == PLAN_CALL ? PLAN_REVERSE | PLAN_TRIPS
                                          : 0;

    return plan_must(c,
                     kind == PLAN_STREAM_COMPUTE ? shape->compute
                     : kind == PLAN_STREAM_COMM  ? shape->comm
                                                 : shape->copy,
                     "%s on stream %u", plan_op_name(in->op), in->stream) &&
           plan_must(c, (in->flags & ~flags) == 0, "unknown flags");
}

static bool check_one(PlanCheck *c, const PlanSegment *s, const PlanInstr *in)
{
    static bool (*const checks[PLAN_OPS])(PlanCheck *, const PlanSegment *,
                                          const PlanInstr *) = {
        [PLAN_LAUNCH] = check_launch,
        [PLAN_GEMM] = check_gemm,
        [PLAN_COLLECTIVE] = check_collective,
        [PLAN_SEND] = check_message,
        [PLAN_RECV] = check_message,
        [PLAN_COPY] = check_copy,
        [PLAN_FILL] = NULL,
        [PLAN_EVENT] = check_event,
        [PLAN_WAIT] = check_event,
        [PLAN_CALL] = check_call,
        [PLAN_HOST] = check_host,
    };

    if (!must_stream(c, in))
        return false;
    if (in->op == PLAN_FILL)
        return must_shape(c, s, in, "w");
    return checks[in->op](c, s, in);
}

void plan_check_code(PlanCheck *c)
{
    for (uint32_t i = 0; i < c->p->programs.n; i++)
        c->segments[c->p->programs.v[i].segment] =
            (PlanReach){.called = 1, .runs = 1};
    c->table = "instrs";
    for (uint32_t i = c->p->segments.n; i-- > 0;) {
        const PlanSegment *s = &c->p->segments.v[i];
        for (uint32_t k = 0; k < s->instrs.n; k++) {
            c->row = s->instrs.first + k;
            if (!check_one(c, s, &c->p->instrs.v[c->row]))
                return;
        }
    }
}
