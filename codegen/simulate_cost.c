/* simulate_cost.c - how long one instruction takes by itself.
 *
 * Products and attention take their operations at a fraction of the peak, or
 * their bytes if that is longer; other kernels their bytes at a fraction of
 * the bandwidth.  Both fractions are curves of the hardware over size.
 *
 * Communication takes the bytes that a rank sends, as rings do, at what the
 * slowest link on the way carries.  k ranks of a group that a nearer link
 * joins use k of the farther links at once, as NCCL does: every GPU of a node
 * has a port.  How many ranks a link joins is known from strides alone.
 */
#include "codegen/simulate_priv.h"

#include <math.h>

/* An even load fills the slots of experts that far: they have room for 1.25
 * times as many tokens. */
static const double FILLED = 0.8;

typedef struct {
    Arena *arena;
    const Plan *p;
    const Hardware *h;
    SimStage *stage;
} Costs;

/* ---- on the device ------------------------------------------------------ */

static double moved(const Costs *c, double bytes)
{
    return bytes / (c->h->bandwidth * curve_at(&c->h->rows, bytes));
}

static double peak(const Costs *c, uint32_t dtype)
{
    return c->h->peak[dtype == PLAN_BF16  ? HARDWARE_BF16
                      : dtype == PLAN_F16 ? HARDWARE_FP16
                                          : HARDWARE_FP32];
}

static double gemm_flops(const PlanGemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)(g->k * g->batch) *
           (g->filled ? FILLED : 1.0);
}

static SimCost gemm_cost(const Costs *c, const PlanInstr *in)
{
    const PlanGemm *g = &c->p->gemms.v[in->index];
    double flops = gemm_flops(g);
    double best = peak(c, g->type_a) * curve_at(&c->h->gemm, flops);
    double bytes = (double)plan_instr_bytes(c->p, in);

    return (SimCost){.seconds = MC_MAX(flops / best, moved(c, bytes)),
                     .flops = flops,
                     .counted = 1};
}

static SimCost launch_cost(const Costs *c, const PlanInstr *in)
{
    const PlanKernel *k = &c->p->kernels.v[in->index];
    double flops = k->work.flops;
    double best = peak(c, k->dtype) * curve_at(&c->h->attention, flops);
    double bytes = (double)plan_instr_bytes(c->p, in);

    return (SimCost){.seconds = MC_MAX(flops / best, moved(c, bytes)),
                     .flops = flops,
                     .counted = 1};
}

static SimCost copy_cost(const Costs *c, const PlanInstr *in)
{
    bool host = c->p->streams.v[in->stream].kind == PLAN_STREAM_COPY;
    double bytes = (double)c->p->operands.v[in->operands.first].bytes;

    if (host)
        return (SimCost){.seconds = bytes / c->h->host_bandwidth,
                         .axis = AXIS_HOST};
    return (SimCost){.seconds = moved(c, (double)plan_instr_bytes(c->p, in)),
                     .counted = 1};
}

/* ---- links -------------------------------------------------------------- */

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* How many of the ranks along an atom are sure to be among those that a link
 * joins, which are numbered from a multiple of `ranks` on. */
static uint32_t joined(const PlanAtom *atom, uint32_t size, int64_t ranks)
{
    uint64_t near = gcd((uint64_t)atom->size * atom->stride, (uint64_t)ranks);
    uint64_t n = ranks == INT64_MAX ? size : near / atom->stride;

    return (uint32_t)MC_MIN(MC_MAX(n, 1u), size);
}

typedef struct {
    uint32_t members;
    uint32_t near[HARDWARE_LINKS]; /* by link: members that it joins */
    uint32_t links;                /* how many the group needs */
} Reach;

static void reach_atom(Reach *r, const Hardware *h, const PlanAtom *atom,
                       uint32_t size)
{
    r->members *= size;
    for (uint32_t i = 0; i < h->nlinks; i++)
        r->near[i] *= i + 1 == h->nlinks
                          ? size
                          : joined(atom, size, h->links[i].ranks);
}

static Reach reach_new(void)
{
    return (Reach){.members = 1, .near = {1, 1, 1, 1}};
}

static void reach_end(Reach *r)
{
    while (r->near[r->links] < r->members)
        r->links++;
    r->links++;
}

static Reach group_reach(const Costs *c, const PlanGroup *g)
{
    Reach r = reach_new();

    for (uint32_t k = 0; k < g->atoms.n; k++) {
        const PlanAtom *atom =
            &c->p->atoms.v[c->p->lists.v[g->atoms.first + k]];
        reach_atom(&r, c->h, atom,
                   k == 0 && g->picks.n ? g->picks.n : atom->size);
    }
    reach_end(&r);
    return r;
}

/* ---- communication ------------------------------------------------------ */

/* A ring that sends `bytes` from each rank. */
static double ring_time(const Costs *c, const Reach *r, double bytes)
{
    double slowest = INFINITY;

    for (uint32_t i = 0; i < r->links; i++) {
        const HardwareLink *link = &c->h->links[i];
        uint32_t below = i ? r->near[i - 1] : 1;
        double rate = link->bandwidth * curve_at(&link->efficiency, bytes);
        if (r->near[i] > below)
            slowest = MC_MIN(slowest, rate * below);
    }
    return bytes / slowest;
}

/* Each rank sends `part` to each other one, over the link that joins them. */
static double all_to_all_time(const Costs *c, const Reach *r, double part)
{
    double longest = 0;

    for (uint32_t i = 0; i < r->links; i++) {
        const HardwareLink *link = &c->h->links[i];
        double bytes = part * (r->near[i] - (i ? r->near[i - 1] : 1));
        if (bytes > 0)
            longest = MC_MAX(longest,
                             bytes / (link->bandwidth *
                                      curve_at(&link->efficiency, bytes)));
    }
    return longest;
}

/* One message over the farthest link. */
static double message_time(const Costs *c, const Reach *r, double bytes)
{
    const HardwareLink *link = &c->h->links[r->links - 1];

    return bytes / (link->bandwidth * curve_at(&link->efficiency, bytes));
}

static double rounds_time(const Costs *c, const Reach *r, double rounds)
{
    return c->h->links[r->links - 1].latency * rounds;
}

static double collective_time(const Costs *c, const PlanCollective *coll)
{
    Reach r = group_reach(c, &c->p->groups.v[coll->group]);
    double bytes =
        (double)coll->count * (double)plan_dtype_bytes(coll->dtype);
    double others = r.members - 1.0, rounds = ceil(log2(r.members));

    if (r.members == 1)
        return 0;
    switch (coll->kind) {
    case PLAN_ALL_REDUCE:
        return ring_time(c, &r, 2 * others / r.members * bytes) +
               rounds_time(c, &r, 2 * rounds);
    case PLAN_ALL_TO_ALL:
        return all_to_all_time(c, &r, bytes) + rounds_time(c, &r, 1);
    case PLAN_BROADCAST:
        return ring_time(c, &r, bytes) + rounds_time(c, &r, rounds);
    case PLAN_SHIFT:
        return message_time(c, &r, bytes) + rounds_time(c, &r, 1);
    default:
        return ring_time(c, &r, others * bytes) + rounds_time(c, &r, rounds);
    }
}

/* The row of an axis that the plan calls so; the last row takes the rest. */
static uint8_t axis_row(const Costs *c, const char *name)
{
    SimStage *s = c->stage;
    uint32_t i = 0;

    while (i < s->naxes && strcmp(s->axis[i].name, name) != 0)
        i++;
    if (i == SIM_AXES)
        return SIM_AXES - 1;
    if (i == s->naxes)
        s->axis[s->naxes++].name = arena_strdup(c->arena, name);
    return (uint8_t)i;
}

/* What a group is called; where replicas exchange parts, they hold experts. */
static const char *axis_name(const Plan *p, const PlanCollective *coll)
{
    const char *name = plan_text(p, p->groups.v[coll->group].name);

    return coll->kind == PLAN_ALL_TO_ALL && strcmp(name, "dp") == 0 ? "ep"
                                                                    : name;
}

static SimCost collective_cost(const Costs *c, const PlanInstr *in)
{
    const PlanCollective *coll = &c->p->collectives.v[in->index];

    return (SimCost){.seconds = collective_time(c, coll),
                     .axis = axis_row(c, axis_name(c->p, coll))};
}

static SimCost message_cost(const Costs *c, const PlanInstr *in)
{
    const PlanAtom *atom = &c->p->atoms.v[c->p->peers.v[in->index].atom];
    Reach r = reach_new();

    reach_atom(&r, c->h, atom, atom->size);
    reach_end(&r);
    return (SimCost){
        .seconds = message_time(c, &r, (double)plan_instr_bytes(c->p, in)) +
                   rounds_time(c, &r, 1),
        .axis = AXIS_PP};
}

/* ---- all ---------------------------------------------------------------- */

static SimCost fill_cost(const Costs *c, const PlanInstr *in)
{
    return (SimCost){.seconds = moved(c, (double)plan_instr_bytes(c->p, in)),
                     .counted = 1};
}

static SimCost instr_cost(const Costs *c, const PlanInstr *in)
{
    switch (in->op) {
    case PLAN_LAUNCH:
        return launch_cost(c, in);
    case PLAN_GEMM:
        return gemm_cost(c, in);
    case PLAN_COLLECTIVE:
        return collective_cost(c, in);
    case PLAN_SEND:
    case PLAN_RECV:
        return message_cost(c, in);
    case PLAN_COPY:
        return copy_cost(c, in);
    case PLAN_FILL:
        return fill_cost(c, in);
    default:
        return (SimCost){0};
    }
}

SimCost *sim_costs(Arena *a, const Plan *p, const Hardware *h,
                   SimStage *out_stage)
{
    Costs c = {a, p, h, out_stage};
    SimCost *costs = arena_array(a, SimCost, p->instrs.n);

    out_stage->axis[AXIS_PP].name = "pp";
    out_stage->axis[AXIS_HOST].name = "host";
    out_stage->naxes = AXIS_FIRST_GROUP;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        costs[i] = instr_cost(&c, &p->instrs.v[i]);
    return costs;
}
