/* schedule_sim.c - a schedule carried out with given costs.
 *
 * Every rank runs its list in order, an action as soon as its input is there:
 * the forward of the stage before, the backward of the stage after, or its own
 * forward.  Messages take no time.  What comes out is when each action ends,
 * how long ranks wait, and how many microbatches they hold; or who waits for
 * ever, or what is never computed.
 */
#include "passes/schedule_priv.h"

typedef struct {
    const Schedule *s;
    ScheduleCosts cost;
    ScheduleTimes *out;
    double *clock;    /* per rank */
    double *busy;
    uint32_t *next;   /* per rank: first action not run */
    uint32_t *live;   /* per rank: forwards whose backward is to come */
    bool splits;      /* some backward is in two parts */
} Sim;

static uint32_t stage_of(const Sim *x, uint32_t rank, const Action *a)
{
    return schedule_stage(x->s, rank, a->chunk);
}

static uint32_t at(const Sim *x, uint32_t stage, uint32_t microbatch)
{
    return stage * x->s->microbatches + microbatch;
}

static double *end_of(const Sim *x, ActionKind kind)
{
    return kind == ACTION_F   ? x->out->forward
           : kind == ACTION_B ? x->out->backward
                              : x->out->weights;
}

/* When the action's input is there; < 0 if it is not yet. */
static double ready(const Sim *x, uint32_t rank, const Action *a)
{
    uint32_t stage = stage_of(x, rank, a), mb = a->microbatch;
    double own = x->out->forward[at(x, stage, mb)];

    if (a->kind == ACTION_F)
        return stage == 0 ? 0.0 : x->out->forward[at(x, stage - 1, mb)];
    if (a->kind == ACTION_W)
        return x->out->backward[at(x, stage, mb)];
    if (stage == x->s->pp * x->s->chunks - 1 || own < 0.0)
        return own;
    return x->out->backward[at(x, stage + 1, mb)];
}

static double cost_of(const Sim *x, ActionKind kind)
{
    if (kind == ACTION_F)
        return x->cost.f;
    if (kind == ACTION_W)
        return x->cost.w;
    return x->splits ? x->cost.b : x->cost.b + x->cost.w;
}

/* How many actions from this one on run at once: a forward with the parts of
 * the backward after it, or one. */
static uint32_t together(const Sim *x, const Action *a)
{
    return a->beside && x->cost.both > 0.0 ? 2u + x->splits : 1;
}

/* Notes that an action has run; the rank is busy until then. */
static void run(Sim *x, uint32_t rank, const Action *a, double begin,
                double end)
{
    ScheduleTimes *out = x->out;

    end_of(x, a->kind)[at(x, stage_of(x, rank, a), a->microbatch)] = end;
    if (a->kind == ACTION_F)
        x->live[rank]++;
    if (a->kind == (x->splits ? ACTION_W : ACTION_B))
        x->live[rank]--;
    out->in_flight[rank] = MC_MAX(out->in_flight[rank], x->live[rank]);
    out->begin[rank][x->next[rank]] = begin;
    out->end[rank][x->next[rank]++] = end;
    x->clock[rank] = end;
}

/* Runs what comes next on a rank, if its input is there. */
static bool step(Sim *x, uint32_t rank)
{
    const Action *a = &x->s->ranks[rank].v[x->next[rank]];
    uint32_t n = together(x, a);
    double begin = x->clock[rank];
    double cost = n > 1 ? x->cost.both : cost_of(x, a->kind);

    for (uint32_t i = 0; i < MC_MIN(n, 2); i++) {
        double start = ready(x, rank, &a[i]);
        if (start < 0.0)
            return false;
        begin = MC_MAX(begin, start);
    }
    for (uint32_t i = 0; i < n; i++)
        run(x, rank, &a[i], begin, begin + cost);
    x->busy[rank] += cost;
    return true;
}

static bool advance(Sim *x)
{
    bool any = false;

    for (uint32_t r = 0; r < x->s->pp; r++)
        while (x->next[r] < x->s->ranks[r].n && step(x, r))
            any = true;
    return any;
}

/* ---- what can be wrong --------------------------------------------------- */

static bool all_ran(const Sim *x, Arena *a, const char **why)
{
    for (uint32_t r = 0; r < x->s->pp; r++)
        if (x->next[r] < x->s->ranks[r].n) {
            const Action *stuck = &x->s->ranks[r].v[x->next[r]];
            *why = arena_printf(a, "rank %u waits for ever before %c of chunk "
                                "%u, microbatch %u",
                                r, (char)stuck->kind, stuck->chunk,
                                stuck->microbatch);
            return false;
        }
    return true;
}

static bool all_done(const Sim *x, Arena *a, const char **why)
{
    uint32_t n = x->s->pp * x->s->chunks * x->s->microbatches;

    for (uint32_t i = 0; i < n; i++)
        if (x->out->forward[i] < 0.0 ||
            (!x->s->forward && x->out->backward[i] < 0.0) ||
            (x->splits && x->out->weights[i] < 0.0)) {
            *why = arena_printf(a, "virtual stage %u never finishes microbatch "
                                "%u", i / x->s->microbatches,
                                i % x->s->microbatches);
            return false;
        }
    return true;
}

/* ---- the figures --------------------------------------------------------- */

static double *unset(Arena *a, uint32_t n)
{
    double *v = arena_array(a, double, n);

    for (uint32_t i = 0; i < n; i++)
        v[i] = -1.0;
    return v;
}

static void times_init(Arena *a, const Schedule *s, ScheduleTimes *out)
{
    uint32_t n = s->pp * s->chunks * s->microbatches;

    *out = (ScheduleTimes){.in_flight = arena_array(a, uint32_t, s->pp),
                           .forward = unset(a, n), .backward = unset(a, n),
                           .weights = unset(a, n),
                           .begin = arena_array(a, double *, s->pp),
                           .end = arena_array(a, double *, s->pp)};
    for (uint32_t r = 0; r < s->pp; r++) {
        out->begin[r] = arena_array(a, double, s->ranks[r].n + 1);
        out->end[r] = arena_array(a, double, s->ranks[r].n + 1);
    }
}

static void times_sum(const Sim *x)
{
    ScheduleTimes *out = x->out;
    double busiest = 0.0;

    for (uint32_t r = 0; r < x->s->pp; r++) {
        double waited = x->clock[r] - out->begin[r][0] - x->busy[r];
        out->makespan = MC_MAX(out->makespan, x->clock[r]);
        out->idle = MC_MAX(out->idle, waited);
        busiest = MC_MAX(busiest, x->busy[r]);
    }
    out->bubble = 1.0 - busiest / out->makespan;
}

bool schedule_simulate(Arena *a, const Schedule *s, ScheduleCosts cost,
                       ScheduleTimes *out, const char **why)
{
    Sim x = {.s = s, .cost = cost, .out = out, .splits = schedule_splits(s)};

    times_init(a, s, out);
    x.clock = arena_array(a, double, s->pp);
    x.busy = arena_array(a, double, s->pp);
    x.next = arena_array(a, uint32_t, s->pp);
    x.live = arena_array(a, uint32_t, s->pp);
    while (advance(&x)) {
    }
    if (!all_ran(&x, a, why) || !all_done(&x, a, why))
        return false;
    times_sum(&x);
    return true;
}

bool schedule_splits(const Schedule *s)
{
    for (uint32_t r = 0; r < s->pp; r++)
        for (uint32_t i = 0; i < s->ranks[r].n; i++)
            if (s->ranks[r].v[i].kind == ACTION_W)
                return true;
    return false;
}
