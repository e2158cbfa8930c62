/* exec.c - the loop over instructions.
 *
 * When the executor is made, every operand is folded to one constant for this
 * rank: rank expressions are evaluated and absolute addresses become pointers.
 * What remains at run time is constant + register.  Registers that hold
 * addresses hold pointers, so a value is ready for use wherever it arrives.
 * Register 0 is always 0, which makes "no register" cost nothing.
 *
 * The plan was checked when it was loaded; nothing is checked again here.
 */
#include "runtime/exec.h"

#include <stdlib.h>

typedef struct {
    int64_t constant;
    uint32_t base;
    uint32_t integer;
} Value;

struct Exec {
    ExecConfig c;
    Value *values;   /* one per operand of the plan */
    int64_t *regs;   /* the registers of all running segments */
    int64_t *top;    /* first free one */
    void **pointers; /* arguments of the instruction being run */
    int64_t *integers;
    char **memories;
    volatile uint32_t instr;
    uint64_t count;
    uint64_t *bytes; /* by instruction: what its addresses cover */
    ExecTime *times;
};

/* ---- binding ------------------------------------------------------------- */

char *exec_pointer(const Exec *e, uint64_t address)
{
    const Plan *p = e->c.plan;

    for (uint32_t i = 0; i < p->memories.n; i++) {
        const PlanMemory *m = &p->memories.v[i];
        if (address >= m->start && address <= m->start + m->bytes)
            return e->memories[i] + (address - m->start);
    }
    return NULL;
}

static void bind_operand(Exec *e, uint32_t i)
{
    const PlanOperand *o = &e->c.plan->operands.v[i];
    int64_t value = o->offset +
                    plan_expr_value(e->c.plan, o->expr, e->c.rank);

    if (o->kind == PLAN_ADDRESS && o->base == 0)
        value = (int64_t)(intptr_t)exec_pointer(e, (uint64_t)value);
    e->values[i] = (Value){value, o->base, o->kind == PLAN_INTEGER};
}

/* Room for the deepest chain of calls and the longest argument list. */
static Status allocate(Exec *e)
{
    const Plan *p = e->c.plan;
    size_t regs = 1, args = 1;

    for (uint32_t i = 0; i < p->segments.n; i++)
        regs = MC_MAX(regs, (size_t)p->segments.v[i].regs.n + 1);
    for (uint32_t i = 0; i < p->instrs.n; i++)
        args = MC_MAX(args, (size_t)p->instrs.v[i].operands.n);
    e->values = calloc((size_t)p->operands.n + 1, sizeof *e->values);
    e->regs = calloc(regs * PLAN_MAX_DEPTH, sizeof *e->regs);
    e->pointers = calloc(args, sizeof *e->pointers);
    e->integers = calloc(args, sizeof *e->integers);
    e->memories = calloc(p->memories.n, sizeof *e->memories);
    e->bytes = calloc((size_t)p->instrs.n + 1, sizeof *e->bytes);
    if (e->c.clock)
        e->times = calloc((size_t)p->instrs.n + 1, sizeof *e->times);
    if (!e->values || !e->regs || !e->pointers || !e->integers ||
        !e->memories || !e->bytes || (e->c.clock && !e->times))
        return status_make(STATUS_SYSTEM, "no memory for the executor");
    return STATUS_NONE;
}

Status exec_new(const ExecConfig *config, Exec **out)
{
    Exec *e = calloc(1, sizeof *e);
    Status s;

    if (!e)
        return status_make(STATUS_SYSTEM, "no memory for the executor");
    e->c = *config;
    s = allocate(e);
    if (s) {
        exec_free(e);
        return s;
    }
    for (uint32_t i = 0; i < e->c.plan->memories.n; i++)
        e->memories[i] = e->c.driver->memory(e->c.device, i);
    for (uint32_t i = 0; i < e->c.plan->operands.n; i++)
        bind_operand(e, i);
    for (uint32_t i = 0; i < e->c.plan->instrs.n; i++)
        e->bytes[i] = plan_instr_bytes(config->plan, &config->plan->instrs.v[i]);
    *out = e;
    return STATUS_NONE;
}

void exec_free(Exec *e)
{
    if (!e)
        return;
    free(e->values);
    free(e->regs);
    free(e->pointers);
    free(e->integers);
    free(e->memories);
    free(e->bytes);
    free(e->times);
    free(e);
}

/* ---- one function per op ------------------------------------------------- */

static int64_t integer(const Value *v, const int64_t *regs)
{
    return v->constant + regs[v->base];
}

static void *pointer(const Value *v, const int64_t *regs)
{
    return (void *)(intptr_t)(v->constant + regs[v->base]);
}

static Status run_launch(Exec *e, const PlanInstr *in, const Value *v,
                         const int64_t *regs)
{
    void **ptr = e->pointers;
    int64_t *imm = e->integers;

    for (const Value *end = v + in->operands.n; v < end; v++)
        if (v->integer)
            *imm++ = integer(v, regs);
        else
            *ptr++ = pointer(v, regs);
    return e->c.driver->launch(e->c.device, in->index, e->pointers,
                               e->integers,
                               e->bytes[in - e->c.plan->instrs.v]);
}

static Status run_gemm(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs)
{
    for (uint32_t i = 0; i < in->operands.n; i++)
        e->pointers[i] = pointer(&v[i], regs);
    return e->c.driver->gemm(e->c.device, in->index, e->pointers);
}

static Status run_message(Exec *e, const PlanInstr *in, const Value *v,
                          const int64_t *regs)
{
    const PlanOperand *o = &e->c.plan->operands.v[in->operands.first];
    CommOp op = {.instr = (uint32_t)(in - e->c.plan->instrs.v),
                 .source = pointer(&v[0], regs), .bytes = o->bytes};

    op.destination = in->op == PLAN_COLLECTIVE ? pointer(&v[1], regs)
                                               : op.source;
    return comm_append(e->c.comm, &op);
}

static Status run_copy(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs)
{
    const PlanOperand *o = &e->c.plan->operands.v[in->operands.first];

    return e->c.driver->copy(e->c.device, pointer(&v[0], regs),
                             pointer(&v[1], regs), o->bytes);
}

static Status run_fill(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs)
{
    const PlanOperand *o = &e->c.plan->operands.v[in->operands.first];

    return e->c.driver->fill(e->c.device, pointer(v, regs), in->aux,
                             o->bytes);
}

static Status run_event(Exec *e, const PlanInstr *in, const Value *v,
                        const int64_t *regs)
{
    (void)v;
    (void)regs;
    return in->op == PLAN_EVENT ? comm_mark(e->c.comm, in->stream, in->index)
                                : comm_wait(e->c.comm, in->stream, in->index);
}

static Status run_host(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs)
{
    const ExecHost *h = &e->c.host;
    float x;

    STATUS_TRY(e->c.driver->sync(e->c.device));
    switch ((PlanHostOp)in->index) {
    case PLAN_HOST_LOAD_BATCH:
        return h->load_batch(h->self, (PlanBatch)in->aux,
                             integer(&v[0], regs), pointer(&v[1], regs));
    case PLAN_HOST_SCALAR:
        x = h->scalar(h->self, (PlanScalar)in->aux);
        memcpy(pointer(&v[0], regs), &x, sizeof x);
        return STATUS_NONE;
    case PLAN_HOST_METRIC:
        memcpy(&x, pointer(&v[0], regs), sizeof x);
        return h->metric(h->self, (PlanMetric)in->aux, x);
    case PLAN_HOST_GRADS:
        STATUS_TRY(comm_drain(e->c.comm));
        return h->grads(h->self);
    case PLAN_HOST_OPS:
        break;
    }
    return STATUS_NONE;
}

/* ---- segments ------------------------------------------------------------ */

static Status run_segment(Exec *e, uint32_t segment, const int64_t *regs);

/* How many iterations run.  The number is on the device: whoever issues has to
 * wait for it. */
static Status trips_of(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs, uint32_t *out)
{
    float trips;

    *out = in->aux;
    if (!(in->flags & PLAN_TRIPS))
        return STATUS_NONE;
    STATUS_TRY(e->c.driver->sync(e->c.device));
    memcpy(&trips, pointer(v, regs), sizeof trips);
    if (!(trips >= 0 && trips <= (float)in->aux))
        return status_make(STATUS_RUN, "is to run %g of %u iterations",
                           (double)trips, in->aux);
    *out = (uint32_t)trips;
    return STATUS_NONE;
}

static Status run_call(Exec *e, const PlanInstr *in, const Value *v,
                       const int64_t *regs)
{
    uint32_t skip = plan_call_skips(in), trips;
    uint32_t nargs = in->operands.n - skip;
    const PlanOperand *o = &e->c.plan->operands.v[in->operands.first + skip];
    int64_t *own = e->top;
    Status s = trips_of(e, in, v, regs, &trips);

    v += skip;
    e->top += nargs + 1;
    own[0] = 0;
    for (uint32_t n = 0; n < trips && !s; n++) {
        int64_t i = in->flags & PLAN_REVERSE ? in->aux - 1 - n : n;
        for (uint32_t k = 0; k < nargs; k++)
            own[k + 1] = integer(&v[k], regs) + i * o[k].stride;
        s = run_segment(e, in->index, own);
    }
    e->top = own;
    return s;
}

typedef Status RunFn(Exec *e, const PlanInstr *in, const Value *v,
                     const int64_t *regs);

static RunFn *const run_op[PLAN_OPS] = {
    [PLAN_LAUNCH] = run_launch,      [PLAN_GEMM] = run_gemm,
    [PLAN_COLLECTIVE] = run_message, [PLAN_SEND] = run_message,
    [PLAN_RECV] = run_message,       [PLAN_COPY] = run_copy,
    [PLAN_FILL] = run_fill,          [PLAN_EVENT] = run_event,
    [PLAN_WAIT] = run_event,         [PLAN_CALL] = run_call,
    [PLAN_HOST] = run_host,
};

static Status run_measured(Exec *e, const PlanInstr *in, const Value *v,
                           const int64_t *regs)
{
    ExecTime *t = &e->times[in - e->c.plan->instrs.v];
    double start = e->c.clock();
    Status s = run_op[in->op](e, in, v, regs);
    double seconds = e->c.clock() - start;

    t->best = t->runs ? MC_MIN(t->best, seconds) : seconds;
    t->seconds += seconds;
    t->runs++;
    return s;
}

static Status run_segment(Exec *e, uint32_t segment, const int64_t *regs)
{
    const Plan *p = e->c.plan;
    PlanRange range = p->segments.v[segment].instrs;
    bool profile = e->c.clock != NULL;

    for (uint32_t i = range.first; i < range.first + range.n; i++) {
        const PlanInstr *in = &p->instrs.v[i];
        const Value *v = e->values + in->operands.first;
        e->instr = i;
        e->count++;
        STATUS_TRY(profile ? run_measured(e, in, v, regs)
                           : run_op[in->op](e, in, v, regs));
        if (in->op != PLAN_CALL)
            STATUS_TRY(comm_poll(e->c.comm));
    }
    return STATUS_NONE;
}

static Status run_program(Exec *e, uint32_t program)
{
    e->top = e->regs + 1;
    e->regs[0] = 0;
    STATUS_TRY(run_segment(e, e->c.plan->programs.v[program].segment,
                           e->regs));
    STATUS_TRY(e->c.driver->sync(e->c.device));
    return comm_drain(e->c.comm);
}

Status exec_run(Exec *e, uint32_t program)
{
    char text[256];
    Status s = run_program(e, program);

    if (!s)
        return STATUS_NONE;
    plan_instr_text(e->c.plan, e->instr, text, sizeof text);
    return status_in(s, "at %s", text);
}

Status exec_step(Exec *e)
{
    return exec_run(e, 0);
}

uint32_t exec_instr(const Exec *e)
{
    return e->instr;
}

uint64_t exec_count(const Exec *e)
{
    return e->count;
}

const ExecTime *exec_times(const Exec *e)
{
    return e->times;
}

void exec_times_reset(Exec *e)
{
    if (e->times)
        memset(e->times, 0, e->c.plan->instrs.n * sizeof *e->times);
}

uint64_t exec_bytes(const Exec *e, uint32_t instr)
{
    return e->bytes[instr];
}
