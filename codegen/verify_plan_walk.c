/* verify_plan_walk.c - what a rank executes in a step, one by one.
 *
 * Calls are unrolled while walking: a stack of frames holds the registers of
 * the running segments, so nothing is ever written out.  Along with the
 * registers go the tags of the buffers that they point into.  A tag is a
 * buffer number of the plan, mixed with the run of the segment if it is local
 * to one.
 *
 * Of a call with trips two iterations are walked, see verify_plan_trips.c;
 * where it is reached, and where each of them ends, counts as an instruction.
 *
 * Instructions are numbered as they are executed.  Every proof refers to them
 * by number; when one fails, a second walk up to that number says where it is.
 */
#include "codegen/verify_plan_priv.h"

static uint32_t most_registers(const Plan *p)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->segments.n; i++)
        most = MC_MAX(most, p->segments.v[i].regs.n);
    return most + 1;
}

static void enter(Walk *w, WalkFrame *frame, uint32_t segment)
{
    PlanRange instrs = w->p->segments.v[segment].instrs;
    frame->pc = instrs.first;
    frame->end = instrs.first + instrs.n;
    frame->run = w->runs++;
}

Walk verify_walk_new(Arena *a, const Plan *p, uint32_t program, uint32_t rank)
{
    Walk w = {.p = p, .main = p->programs.v[program].segment};
    uint32_t regs = most_registers(p);
    w.constants = arena_array(a, int64_t, p->operands.n);
    for (uint32_t i = 0; i < p->operands.n; i++)
        w.constants[i] = p->operands.v[i].offset +
                         plan_expr_value(p, p->operands.v[i].expr, rank);
    for (uint32_t i = 0; i < PLAN_MAX_DEPTH; i++) {
        w.frames[i].regs = arena_array(a, int64_t, regs);
        w.frames[i].tags = arena_array(a, uint32_t, regs);
    }
    return w;
}

void verify_walk_restart(Walk *w)
{
    w->number = w->runs = 0;
    w->at = WALK_INSTR;
    w->top = w->frames;
    enter(w, w->top, w->main);
}

uint32_t verify_walk_tag(const Walk *w, uint32_t operand)
{
    const PlanOperand *o = &w->p->operands.v[operand];
    if (o->buffer == 0)
        return w->top->tags[o->base];
    if (o->buffer >= PLAN_STATE)
        return o->buffer;
    uint64_t x = ((uint64_t)w->top->run << 32 | o->buffer) *
                 UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 33) | 1;
}

/* Fills the registers of iteration frame->done; the caller is below. */
static void set_registers(Walk *w, WalkFrame *frame)
{
    const PlanInstr *call = &w->p->instrs.v[frame->call];
    uint32_t skip = plan_call_skips(call);
    int64_t i =
        call->flags & PLAN_REVERSE ? call->aux - 1 - frame->done : frame->done;
    w->top = frame - 1;
    for (uint32_t k = 0; k < call->operands.n - skip; k++) {
        uint32_t o = call->operands.first + skip + k;
        frame->regs[k + 1] =
            verify_walk_value(w, o) + i * w->p->operands.v[o].stride;
        frame->tags[k + 1] = verify_walk_tag(w, o);
    }
    w->top = frame;
    enter(w, frame, call->index);
}

static void push_call(Walk *w, uint32_t call)
{
    WalkFrame *frame = w->top + 1;
    frame->call = call;
    frame->done = 0;
    set_registers(w, frame);
}

uint32_t verify_walk_times(const PlanInstr *call)
{
    return call->flags & PLAN_TRIPS ? MC_MIN(call->aux, 2u) : call->aux;
}

/* At the end of a segment: its next iteration, or back to the caller. */
static bool pop(Walk *w)
{
    WalkFrame *frame = w->top;
    if (frame == w->frames)
        return false;
    if (++frame->done < verify_walk_times(&w->p->instrs.v[frame->call]))
        set_registers(w, frame);
    else
        w->top--;
    return true;
}

/* The call with trips whose iteration is over here, or NULL. */
static const PlanInstr *ended_trip(const Walk *w)
{
    const PlanInstr *call = &w->p->instrs.v[w->top->call];
    return w->top != w->frames && (call->flags & PLAN_TRIPS) ? call : NULL;
}

static const PlanInstr *give(Walk *w, const PlanInstr *in, WalkAt at)
{
    w->number++;
    w->at = at;
    return in;
}

const PlanInstr *verify_walk_next(Walk *w)
{
    if (w->at == WALK_TRIPS)
        push_call(w, w->top->pc - 1);
    else if (w->at == WALK_TRIP_ENDS)
        pop(w);
    for (w->at = WALK_INSTR;;) {
        if (w->top->pc == w->top->end) {
            const PlanInstr *call = ended_trip(w);
            if (call)
                return give(w, call, WALK_TRIP_ENDS);
            if (!pop(w))
                return NULL;
            continue;
        }
        const PlanInstr *in = &w->p->instrs.v[w->top->pc++];
        if (in->op != PLAN_CALL)
            return give(w, in, WALK_INSTR);
        if (in->flags & PLAN_TRIPS)
            return give(w, in, WALK_TRIPS);
        push_call(w, w->top->pc - 1);
    }
}

/* ---- in words ---------------------------------------------------------- */

static void path_text(const Walk *w, Buf *out)
{
    const Plan *p = w->p;
    buf_puts(out, plan_text(p, p->segments.v[w->main].name));
    for (const WalkFrame *f = w->frames + 1; f <= w->top; f++) {
        const PlanInstr *call = &p->instrs.v[f->call];
        uint32_t i =
            call->flags & PLAN_REVERSE ? call->aux - 1 - f->done : f->done;
        buf_printf(out, " > %s", plan_text(p, p->segments.v[call->index].name));
        if (call->aux > 1)
            buf_printf(out, " %u of %u", i, call->aux);
    }
}

const char *verify_walk_text(Arena *a, const Plan *p, uint32_t program,
                             uint32_t rank, uint32_t number)
{
    Walk w = verify_walk_new(a, p, program, rank);
    Buf path = {0};
    char text[512];
    verify_walk_restart(&w);
    while (w.number < number && verify_walk_next(&w))
        ;
    plan_instr_text(p, w.top->pc - 1, text, sizeof text);
    path_text(&w, &path);
    const char *whole =
        arena_printf(a, "rank %u, %s: %s", rank, buf_str(&path), text);
    buf_free(&path);
    return whole;
}
