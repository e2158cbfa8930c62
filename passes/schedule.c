/* schedule.c - the order of forwards and backwards on every pipeline rank.
 *
 * A schedule is a list of actions per rank; each kind is one generator behind
 * schedule_make, and every list goes through one simulator.  Virtual stage i
 * of pp * chunks lives on rank i % pp as chunk i / pp.
 */
#include "passes/passes.h"

typedef void (*Generator)(Schedule *s, uint32_t rank);

static void act(Schedule *s, uint32_t rank, ActionKind kind, uint32_t chunk,
                uint32_t microbatch)
{
    Action a = {kind, chunk, microbatch};

    vec_push(&s->ranks[rank], a);
}

/* GPipe (Huang et al. 2019): all forwards, then all backwards. */
static void gpipe(Schedule *s, uint32_t rank)
{
    for (uint32_t i = 0; i < s->microbatches; i++)
        act(s, rank, ACTION_F, 0, i);
    for (uint32_t i = 0; i < s->microbatches; i++)
        act(s, rank, ACTION_B, 0, i);
}

/* 1F1B (PipeDream-Flush, Narayanan et al. 2021): rank r runs min(pp-r-1, m)
 * forwards ahead, then one forward and one backward in turn. */
static void one_f_one_b(Schedule *s, uint32_t rank)
{
    uint32_t m = s->microbatches;
    uint32_t ahead = MC_MIN(s->pp - rank - 1, m);

    for (uint32_t i = 0; i < ahead; i++)
        act(s, rank, ACTION_F, 0, i);
    for (uint32_t i = ahead; i < m; i++) {
        act(s, rank, ACTION_F, 0, i);
        act(s, rank, ACTION_B, 0, i - ahead);
    }
    for (uint32_t i = m - ahead; i < m; i++)
        act(s, rank, ACTION_B, 0, i);
}

static const struct {
    SpecSchedule kind;
    Generator run;
} generators[] = {
    {SCHED_GPIPE, gpipe},
    {SCHED_1F1B, one_f_one_b},
    {SCHED_AUTO, one_f_one_b},
};

Schedule *schedule_make(Arena *a, const Spec *spec)
{
    Schedule *s = arena_new_of(a, Schedule);

    s->pp = (uint32_t)spec->parallel.pp;
    s->chunks = (uint32_t)spec->parallel.vpp;
    s->microbatches = (uint32_t)spec->derived.microbatches;
    s->ranks = arena_alloc(a, s->pp * sizeof *s->ranks);
    for (size_t i = 0; i < MC_LEN(generators); i++)
        for (uint32_t r = 0;
             generators[i].kind == spec->parallel.schedule && r < s->pp; r++)
            generators[i].run(s, r);
    return s;
}

void schedule_free(Schedule *s)
{
    for (uint32_t i = 0; s && i < s->pp; i++)
        vec_free(&s->ranks[i]);
}

/* ---- the simulator ------------------------------------------------------------ */

typedef struct {
    const Schedule *s;
    double cost[256]; /* by ActionKind */
    double *forward;  /* end of F by [virtual stage][microbatch]; < 0: not yet */
    double *backward;
    double *clock;    /* per rank */
    double *busy;
    uint32_t *next;   /* per rank: first action not run */
    uint32_t *live;
} Sim;

static uint32_t at(const Sim *x, uint32_t stage, uint32_t microbatch)
{
    return stage * x->s->microbatches + microbatch;
}

/* When the action's input is there; < 0 if it is not yet. */
static double ready(const Sim *x, uint32_t rank, const Action *a)
{
    uint32_t last = x->s->pp * x->s->chunks - 1;
    uint32_t stage = a->chunk * x->s->pp + rank;
    double own = x->forward[at(x, stage, a->microbatch)];

    if (a->kind == ACTION_F)
        return stage == 0 ? 0.0
                          : x->forward[at(x, stage - 1, a->microbatch)];
    if (a->kind == ACTION_W)
        return x->backward[at(x, stage, a->microbatch)];
    if (stage == last || own < 0.0)
        return own;
    return x->backward[at(x, stage + 1, a->microbatch)];
}

static void run(Sim *x, uint32_t rank, const Action *a, double start,
                uint32_t *in_flight)
{
    uint32_t i = at(x, a->chunk * x->s->pp + rank, a->microbatch);
    double end = MC_MAX(start, x->clock[rank]) + x->cost[a->kind];

    if (a->kind == ACTION_F) {
        x->forward[i] = end;
        x->live[rank]++;
        in_flight[rank] = MC_MAX(in_flight[rank], x->live[rank]);
    }
    if (a->kind == ACTION_B) {
        x->backward[i] = end;
        x->live[rank]--;
    }
    x->clock[rank] = end;
    x->busy[rank] += x->cost[a->kind];
    x->next[rank]++;
}

static bool advance(Sim *x, uint32_t *in_flight)
{
    bool any = false;

    for (uint32_t r = 0; r < x->s->pp; r++)
        while (x->next[r] < x->s->ranks[r].n) {
            const Action *a = &x->s->ranks[r].v[x->next[r]];
            double start = ready(x, r, a);
            if (start < 0.0)
                break;
            run(x, r, a, start, in_flight);
            any = true;
        }
    return any;
}

static bool finished(const Sim *x, Arena *a, const char **why)
{
    uint32_t n = x->s->pp * x->s->chunks * x->s->microbatches;

    for (uint32_t r = 0; r < x->s->pp; r++)
        if (x->next[r] < x->s->ranks[r].n) {
            const Action *stuck = &x->s->ranks[r].v[x->next[r]];
            *why = arena_printf(a, "rank %u waits for ever before %c of chunk "
                                "%u, microbatch %u",
                                r, (char)stuck->kind, stuck->chunk,
                                stuck->microbatch);
            return false;
        }
    for (uint32_t i = 0; i < n; i++)
        if (x->forward[i] < 0.0 || x->backward[i] < 0.0) {
            *why = arena_printf(a, "virtual stage %u never finishes microbatch "
                                "%u", i / x->s->microbatches,
                                i % x->s->microbatches);
            return false;
        }
    return true;
}

static double *unset(Arena *a, uint32_t n)
{
    double *v = arena_array(a, double, n);

    for (uint32_t i = 0; i < n; i++)
        v[i] = -1.0;
    return v;
}

bool schedule_simulate(Arena *a, const Schedule *s, double f, double b,
                       double w, ScheduleTimes *out, const char **why)
{
    uint32_t n = s->pp * s->chunks * s->microbatches;
    Sim x = {.s = s, .forward = unset(a, n), .backward = unset(a, n)};
    double busiest = 0.0;

    x.cost[ACTION_F] = f;
    x.cost[ACTION_B] = b;
    x.cost[ACTION_W] = w;
    x.clock = arena_array(a, double, s->pp);
    x.busy = arena_array(a, double, s->pp);
    x.next = arena_array(a, uint32_t, s->pp);
    x.live = arena_array(a, uint32_t, s->pp);
    *out = (ScheduleTimes){.in_flight = arena_array(a, uint32_t, s->pp)};
    while (advance(&x, out->in_flight)) {
    }
    if (!finished(&x, a, why))
        return false;
    for (uint32_t r = 0; r < s->pp; r++) {
        out->makespan = MC_MAX(out->makespan, x.clock[r]);
        busiest = MC_MAX(busiest, x.busy[r]);
    }
    out->bubble = 1.0 - busiest / out->makespan;
    return true;
}
