/* simulate.c - carries out the plans of all classes on a clock.
 *
 *     the plan of a class ─ walk ─▶ streams, each a queue of what is issued
 *     a stream runs its head when the streams before it have come that far:
 *       kernel       takes its cost
 *       wait         the stream goes on when the event is marked
 *       collective   within a class, its cost; over classes, and messages:
 *                    begins when all sides are there
 *
 * Ends of operations are sums and maxima of others, so they do not depend on
 * the order in which streams are looked at, as long as each runs its own in
 * order.  A class is walked ahead only so far; when nothing can go on, further.
 *
 * Every stream also knows for how long it was late for want of other ranks:
 * what compute waits then is bubble, and otherwise exposed communication.
 */
#include "codegen/simulate_priv.h"

enum { AHEAD = 256 }; /* instructions that are issued and do not run yet */

/* Why a stream is as late as it is. */
typedef struct {
    double from, to; /* it waited for other ranks, */
    double begin;    /* and from here on communicated along `axis`, */
    uint8_t axis, before; /* earlier along another */
} Cause;

typedef struct {
    double time;
    Cause cause;
    bool known;
} Mark;

/* Issued, and not run: an instruction, for EVENT and WAIT with its mark. */
typedef struct {
    uint32_t instr, mark;
} Item;

typedef struct {
    double ready; /* when the operations that start together may start */
    double free;  /* when all have ended that are known to */
    uint32_t open; /* how many are not */
    Cause cause;
    Vec(Item) items;
    uint32_t head;
} Stream;

typedef struct {
    uint32_t pc, end;
    const PlanInstr *call;
    uint32_t left; /* iterations after this one */
} Frame;

typedef struct {
    const Plan *p;
    const SimCost *costs;
    const SimSide *sides;
    SimStage *stage;
    Stream *streams;
    uint32_t *event; /* by event: its latest mark */
    Mark *latest;    /* by event: room to keep these */
    Vec(Mark) marks;
    Frame frames[PLAN_MAX_DEPTH + 1];
    Frame *top;
    uint32_t waiting; /* items in all streams */
    bool ended;
} Rank;

typedef struct {
    const Hardware *h;
    Rank *ranks;
    uint32_t n, ahead;
} Sim;

/* ---- the time that compute loses ---------------------------------------- */

static double overlap(double from, double to, const Cause *c)
{
    return MC_MAX(MC_MIN(to, c->to) - MC_MAX(from, c->from), 0.0);
}

static void expose(SimStage *s, uint8_t axis, double seconds)
{
    s->axis[axis].exposed += seconds;
    *(axis == AXIS_HOST ? &s->host : &s->exposed) += seconds;
}

/* Compute stands still from one time to another. */
static void lose(SimStage *s, double from, double to, const Cause *why)
{
    double late = overlap(from, to, why), rest = to - from - late;
    double last = MC_MIN(to - MC_MAX(from, why->begin), rest);

    s->bubble += late;
    expose(s, why->axis, last);
    expose(s, why->before, rest - last);
}

static void stream_reach(Rank *r, Stream *s, double time, const Cause *why)
{
    if (time <= s->free)
        return;
    if (s == r->streams)
        lose(r->stage, s->free, time, why);
    s->free = time;
    s->cause = *why;
}

/* ---- what is communicated ----------------------------------------------- */

/* An operation that was ready at `ready` runs from `start` to `end`. */
static void operation_end(Rank *r, Stream *s, uint8_t axis, double ready,
                          double start, double end)
{
    Cause why = s->cause;

    if (start > ready)
        why.from = ready, why.to = start;
    why.before = s->cause.axis;
    why.begin = start;
    why.axis = axis;
    r->stage->axis[axis].busy += end - start;
    stream_reach(r, s, end, &why);
}

static bool all_posted(const SimLine *line)
{
    for (uint32_t i = 0; i < line->n; i++)
        if (line->queues[i].head == line->queues[i].posts.n)
            return false;
    return true;
}

/* The first operations in the queues of a line meet. */
static void meet(Sim *x, SimLine *line, const SimCost *cost)
{
    double start = 0;

    for (uint32_t i = 0; i < line->n; i++)
        start = MC_MAX(start,
                       line->queues[i].posts.v[line->queues[i].head].ready);
    for (uint32_t i = 0; i < line->n; i++) {
        SimQueue *q = &line->queues[i];
        const SimPost *post = &q->posts.v[q->head++];
        Rank *r = &x->ranks[line->classes[i]];
        Stream *s = &r->streams[post->stream];
        s->open--;
        operation_end(r, s, post->axis, post->ready, start,
                      start + cost->seconds);
        if (q->head == q->posts.n)
            q->head = q->posts.n = 0;
    }
}

static void communicate(Sim *x, Rank *r, Stream *s, uint32_t instr)
{
    const SimSide *side = &r->sides[instr];
    const SimCost *cost = &r->costs[instr];

    if (!(r->p->instrs.v[instr].flags & PLAN_JOIN))
        s->ready = s->free;
    if (!side->line) {
        operation_end(r, s, cost->axis, s->ready, s->ready,
                      s->ready + cost->seconds);
        return;
    }
    s->open++;
    vec_push(&side->line->queues[side->place].posts,
             ((SimPost){(uint32_t)(s - r->streams), cost->axis, s->ready}));
    if (all_posted(side->line))
        meet(x, side->line, cost);
}

/* ---- streams ------------------------------------------------------------ */

static void compute(Sim *x, Rank *r, Stream *s, const SimCost *cost)
{
    double launch = cost->counted ? x->h->launch : 0.0;

    if (s == r->streams) {
        r->stage->compute += cost->seconds;
        r->stage->launch += launch;
    }
    r->stage->flops += cost->flops;
    s->free += cost->seconds + launch;
}

/* Runs what is at the head of a stream; false if it must wait. */
static bool item_run(Sim *x, Rank *r, Stream *s, Item item)
{
    const PlanInstr *in = &r->p->instrs.v[item.instr];
    Mark *mark = &r->marks.v[item.mark];

    if (s->open && !(in->flags & PLAN_JOIN))
        return false;
    switch (in->op) {
    case PLAN_WAIT:
        if (mark->known)
            stream_reach(r, s, mark->time, &mark->cause);
        return mark->known;
    case PLAN_EVENT:
        *mark = (Mark){s->free, s->cause, true};
        return true;
    case PLAN_COLLECTIVE:
    case PLAN_SEND:
    case PLAN_RECV:
        communicate(x, r, s, item.instr);
        return true;
    case PLAN_COPY:
        if (r->costs[item.instr].axis == AXIS_HOST) {
            operation_end(r, s, AXIS_HOST, s->free, s->free,
                          s->free + r->costs[item.instr].seconds);
            return true;
        }
        break;
    default:
        break;
    }
    compute(x, r, s, &r->costs[item.instr]);
    return true;
}

static bool stream_drain(Sim *x, Rank *r, Stream *s)
{
    uint32_t before = s->head;

    while (s->head < s->items.n && item_run(x, r, s, s->items.v[s->head])) {
        s->head++;
        r->waiting--;
    }
    bool any = s->head > before;
    if (s->head == s->items.n)
        s->head = s->items.n = 0;
    return any;
}

static bool rank_drain(Sim *x, Rank *r)
{
    bool any = false, again = true;

    while (again) {
        again = false;
        for (uint32_t i = 0; r->waiting && i < r->p->streams.n; i++)
            again |= stream_drain(x, r, &r->streams[i]);
        any |= again;
    }
    return any;
}

/* ---- the walk ----------------------------------------------------------- */

static void frame_enter(Rank *r, const PlanInstr *call, uint32_t segment,
                        uint32_t times)
{
    const PlanSegment *s = &r->p->segments.v[segment];

    *++r->top = (Frame){s->instrs.first, s->instrs.first + s->instrs.n, call,
                        times - 1};
}

static void frame_end(Rank *r)
{
    if (r->top->left == 0) {
        r->top--;
        return;
    }
    r->top->left--;
    r->top->pc =
        r->p->segments.v[r->top->call->index].instrs.first;
}

/* The next instruction that is no call; calls whose number of iterations is
 * data, which are for uneven loads, are left out.  False at the end. */
static bool rank_next(Rank *r, uint32_t *out_instr)
{
    while (r->top > r->frames) {
        if (r->top->pc == r->top->end) {
            frame_end(r);
            continue;
        }
        const PlanInstr *in = &r->p->instrs.v[r->top->pc++];
        if (in->op != PLAN_CALL) {
            *out_instr = (uint32_t)(in - r->p->instrs.v);
            return true;
        }
        if (in->aux && !(in->flags & PLAN_TRIPS))
            frame_enter(r, in, in->index, in->aux);
    }
    return false;
}

/* The mark that an EVENT makes, or a WAIT waits for. */
static uint32_t mark_of(Rank *r, const PlanInstr *in)
{
    if (in->op != PLAN_EVENT && in->op != PLAN_WAIT)
        return 0;
    if (in->op == PLAN_EVENT) {
        vec_push(&r->marks, (Mark){0});
        r->event[in->index] = r->marks.n - 1;
    }
    return r->event[in->index];
}

static void issue(Sim *x, Rank *r, uint32_t instr)
{
    const PlanInstr *in = &r->p->instrs.v[instr];
    Stream *s = &r->streams[in->stream];
    Item item = {instr, mark_of(r, in)};

    if (s->head == s->items.n && item_run(x, r, s, item))
        return;
    vec_push(&s->items, item);
    r->waiting++;
}

/* Forgets marks that are not the latest of their events. */
static void marks_trim(Rank *r)
{
    uint32_t n = r->p->job.v[0].events, kept = 1;

    if (r->waiting || r->marks.n < 4 * n + AHEAD)
        return;
    for (uint32_t i = 0; i < n; i++) {
        r->latest[i] = r->marks.v[r->event[i]];
        r->event[i] = kept++;
    }
    memcpy(r->marks.v + 1, r->latest, n * sizeof *r->latest);
    r->marks.n = kept;
}

/* Goes on with a class as far as it can be looked ahead. */
static bool rank_advance(Sim *x, Rank *r)
{
    bool any = rank_drain(x, r);
    uint32_t instr;

    while (r->waiting < x->ahead && !r->ended) {
        r->ended = !rank_next(r, &instr);
        if (!r->ended)
            issue(x, r, instr);
        any = true;
        rank_drain(x, r);
        marks_trim(r);
    }
    return any;
}

static bool finished(const Sim *x)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (!x->ranks[i].ended || x->ranks[i].waiting)
            return false;
    return true;
}

static void run(Sim *x)
{
    while (!finished(x)) {
        bool any = false;

        for (uint32_t i = 0; i < x->n; i++)
            any |= rank_advance(x, &x->ranks[i]);
        if (any)
            continue;
        x->ahead *= 2; /* the plans are free of deadlock */
        mc_assert(x->ahead);
    }
}

/* ---- begin and end ------------------------------------------------------ */

static void rank_init(Arena *a, Rank *r, const Plan *p, SimStage *stage,
                      const SimSide *sides, const Hardware *h)
{
    r->p = p;
    r->stage = stage;
    r->costs = sim_costs(a, p, h, stage);
    r->sides = sides;
    r->streams = arena_array(a, Stream, p->streams.n);
    r->event = arena_array(a, uint32_t, p->job.v[0].events);
    r->latest = arena_array(a, Mark, p->job.v[0].events);
    vec_push(&r->marks, ((Mark){.known = true}));
    r->top = r->frames;
    frame_enter(r, NULL, p->programs.v[0].segment, 1);
}

/* Compute also waits for the streams that end after it; their rest, and then
 * that of the other ranks. */
static void rank_end(Rank *r, double step)
{
    Stream *last = r->streams;

    for (uint32_t i = 0; i < r->p->streams.n; i++)
        if (r->streams[i].free > last->free)
            last = &r->streams[i];
    Cause why = last->cause;
    stream_reach(r, r->streams, last->free, &why);
    r->stage->bubble += step - last->free;
}

static double rank_time(const Rank *r)
{
    double time = 0;

    for (uint32_t i = 0; i < r->p->streams.n; i++)
        time = MC_MAX(time, r->streams[i].free);
    return time;
}

static void rank_free(Rank *r)
{
    for (uint32_t i = 0; i < r->p->streams.n; i++)
        vec_free(&r->streams[i].items);
    vec_free(&r->marks);
}

static void sum_up(const Sim *x, const PlanClass *classes, SimResult *out)
{
    for (uint32_t i = 0; i < x->n; i++)
        out->step = MC_MAX(out->step, rank_time(&x->ranks[i]));
    for (uint32_t i = 0; i < x->n; i++) {
        rank_end(&x->ranks[i], out->step);
        out->flops += out->stages[i].flops * classes[i].n;
        if (out->stages[i].compute > out->stages[out->busiest].compute)
            out->busiest = i;
    }
}

SimResult simulate(Arena *a, const PlanClass *classes, uint32_t n,
                   const Hardware *h)
{
    Sim x = {h, arena_array(a, Rank, n), n, AHEAD};
    SimResult out = {.nstages = n, .stages = arena_array(a, SimStage, n)};
    SimLines lines = {0};

    for (uint32_t i = 0; i < n; i++)
        rank_init(a, &x.ranks[i], classes[i].plan, &out.stages[i],
                  sim_sides(a, &lines, classes, n, i), h);
    run(&x);
    sum_up(&x, classes, &out);
    for (uint32_t i = 0; i < n; i++)
        rank_free(&x.ranks[i]);
    sim_lines_free(&lines);
    return out;
}
