/* tune_time.c - how long a step takes, in closed form.
 *
 *     step = m * (F + B of the slowest stage)      products, attention, rows,
 *          + bubble                                tp, cp and ep collectives
 *          + what is left uncovered of gradients and parameters on their way
 *          + the update
 *
 * Rates and their curves are the hardware's, as the simulator uses them; the
 * bubble is the schedule's formula.  This only has to order candidates well
 * enough that the best are among those that are planned and simulated.
 */
#include "driver/tune.h"

#include <math.h>

/* Forward, gradients of activations, gradients of weights. */
typedef struct {
    double f, b, w;
} Parts;

typedef struct {
    const Spec *s;
    const Share *x;
    const Hardware *hw;
    double peak, h;
    Grid grid, expert_grid;
    Times t;
} Clock;

/* ---- one operation ------------------------------------------------------- */

/* `n` products at once, which share the rows among them: their operations, or
 * reading the weights if there are few rows. */
static double product(const Clock *c, double n, double rows, double columns,
                      double inner)
{
    double flops = 2 * rows * columns * inner;
    double bytes = n * columns * inner * c->x->element;

    if (!(flops > 0))
        return 0;
    return MC_MAX(flops / (c->peak * curve_at(&c->hw->gemm, flops)),
                  bytes / (c->hw->bandwidth * curve_at(&c->hw->rows, bytes))) +
           c->hw->launch;
}

static double rows(const Clock *c, double bytes)
{
    return bytes / (c->hw->bandwidth * curve_at(&c->hw->rows, bytes)) +
           c->hw->launch;
}

/* A ring of `n` ranks that are `stride` apart, each of which sends so many
 * bytes: the slowest link on the way, of which as many are used at once as a
 * nearer one joins ranks. */
static double ring(const Clock *c, double n, double stride, double bytes)
{
    double slowest = 1e300, latency = 0, below = 1;

    for (uint32_t i = 0; i < c->hw->nlinks && below < n; i++) {
        const HardwareLink *link = &c->hw->links[i];
        double near = i + 1 == c->hw->nlinks
                          ? n
                          : MC_MIN(MC_MAX((double)link->ranks / stride, 1), n);
        double rate = link->bandwidth * curve_at(&link->efficiency, bytes);
        if (near > below) {
            slowest = MC_MIN(slowest, rate * below);
            latency = link->latency;
        }
        below = near;
    }
    return bytes / slowest + latency * ceil(log2(n));
}

/* An all-gather or a reduce-scatter of so many bytes in all. */
static double gather(const Clock *c, double n, double stride, double bytes)
{
    return n > 1 ? ring(c, n, stride, bytes * (n - 1) / n) : 0;
}

static double gather_over(const Clock *c, const Grid *g, GridAxis axis,
                          double bytes)
{
    return gather(c, (double)g->size[axis], (double)g->stride[axis], bytes);
}

/* ---- a layer, for one microbatch ----------------------------------------- */

static Parts attention_time(const Clock *c)
{
    const Share *x = c->x;
    double seen = (double)c->s->training.seq_length / 2;
    double in = product(c, 1, x->tokens, x->qkv, c->h);
    double out = product(c, 1, x->tokens, c->h, x->out);

    if (c->s->model.sliding_window)
        seen = MC_MIN(seen, (double)c->s->model.sliding_window);
    double flops = 4 * x->tokens * seen * x->out;
    double core = flops / (c->peak * curve_at(&c->hw->attention, flops)) +
                  c->hw->launch;
    return (Parts){in + out + core, in + out + 2.5 * core, in + out};
}

/* Of `n` MLPs. */
static Parts inner_time(const Clock *c, double n, double tokens,
                        double columns)
{
    double one = product(c, n, tokens, c->x->gates * columns, c->h) +
                 product(c, n, tokens, c->h, columns);

    return (Parts){one, one, one};
}

static void parts_add(Parts *to, Parts p, double times)
{
    to->f += times * p.f;
    to->b += times * p.b;
    to->w += times * p.w;
}

/* Norms, rotations, activations, residuals: each byte is read and written a
 * few times. */
static Parts rows_time(const Clock *c)
{
    const Share *x = c->x;
    double inside = x->gates + 1;
    double dense = x->tokens * inside * x->ffn;
    double experts = x->slots * (inside * x->expert + 4 * c->h) +
                     x->tokens * inside * x->shared;
    double bytes = x->element * (8 * x->rows * c->h + 2 * x->tokens * x->qkv +
                                 (1 - x->moe) * dense + x->moe * experts);
    double f = rows(c, bytes) + 6 * c->hw->launch;

    return (Parts){f, 2 * f, 0};
}

/* Per collective of tp: the residual stream, gathered and scattered again. */
static Parts tensor_time(Clock *c)
{
    double bytes = c->x->tokens * c->h * c->x->element;
    double one = gather_over(c, &c->grid, GRID_TP, bytes);
    double again = c->s->parallel.sp ? 2 * one : 0; /* inputs, for weights */

    return (Parts){4 * one, 4 * one + again, 0};
}

/* Keys and values pass by all ranks of cp, a message to the next one in each
 * step, which attention covers; or all of them are gathered before it.  In the
 * backward their gradients travel too. */
static Parts context_time(Clock *c, const Parts *attention)
{
    const Share *x = c->x;
    double cp = (double)c->s->parallel.cp;
    double bytes = x->tokens * (x->qkv - x->out) * x->element;
    int64_t last = (c->grid.size[GRID_CP] - 1) * c->grid.stride[GRID_CP];
    const HardwareLink *link = hardware_link(c->hw, 0, (uint32_t)last);
    double one = (cp - 1) * (bytes / (link->bandwidth *
                                      curve_at(&link->efficiency, bytes)) +
                             link->latency);

    if (c->s->parallel.cp_comm.v[0] != CP_P2P) {
        one = gather_over(c, &c->grid, GRID_CP, bytes * cp);
        return (Parts){one, 2 * one, 0};
    }
    return (Parts){MC_MAX(one - attention->f, 0.1 * one),
                   MC_MAX(2 * one - attention->b, 0.2 * one), 0};
}

static Parts expert_time(Clock *c)
{
    const Share *x = c->x;
    double bytes = x->slots * c->h * x->element;
    double out = gather_over(c, &c->expert_grid, GRID_EP, bytes);
    double etp = gather_over(c, &c->expert_grid, GRID_TP,
                             bytes * (double)c->expert_grid.size[GRID_TP]);
    double one = x->moe * 2 * (out + etp);

    return (Parts){one, one, 0};
}

/* What recomputation adds to a backward. */
static double again_time(const Clock *c, const Parts *attention,
                         const Parts *inner, const Parts *whole)
{
    const SpecChoiceList *list = &c->s->training.recompute.modules;
    double again = 0;

    if (c->s->training.recompute.granularity == RECOMPUTE_FULL)
        return whole->f;
    if (c->s->training.recompute.granularity == RECOMPUTE_NONE)
        return 0;
    for (uint32_t i = 0; i < list->n; i++)
        again += list->v[i] == MODULE_CORE_ATTN ? attention->f - attention->w
                                                : inner->f;
    return again;
}

/* The MLP of a layer of average kind.  A rank of etp has the rows of all. */
static Parts mlp_time(const Clock *c)
{
    const Share *x = c->x;
    double n = (double)(c->s->model.moe.num_experts / c->s->parallel.ep);
    double rows_in = x->slots * (double)c->expert_grid.size[GRID_TP];
    Parts all = {0};

    parts_add(&all, inner_time(c, 1, x->tokens, x->ffn), 1 - x->moe);
    if (x->moe > 0) {
        parts_add(&all, inner_time(c, n, rows_in, x->expert), x->moe);
        parts_add(&all, inner_time(c, 1, x->tokens, x->shared), x->moe);
    }
    return all;
}

/* Adds a part to the layer, and to the sum over the step that it is of. */
static void layer_add(Parts *layer, Parts p, double times, double *sum)
{
    parts_add(layer, p, 1);
    *sum += times * (p.f + p.b + p.w);
}

static Parts layer_time(Clock *c, double layers)
{
    double times = (double)c->s->derived.microbatches * layers;
    Parts attention = attention_time(c), mlp = mlp_time(c), all = {0};

    layer_add(&all, attention, times, &c->t.compute);
    layer_add(&all, mlp, times, &c->t.compute);
    layer_add(&all, rows_time(c), times, &c->t.compute);
    layer_add(&all, tensor_time(c), times, &c->t.tp);
    layer_add(&all, context_time(c, &attention), times, &c->t.cp);
    layer_add(&all, expert_time(c), times, &c->t.ep);
    all.b += again_time(c, &attention, &mlp, &all);
    return all;
}

/* ---- the pipeline -------------------------------------------------------- */

/* Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023 (zero bubble),
 * table 2; DeepSeek-V3 2024, table 2. */
static double bubble_time(const Spec *s, const Parts *stage)
{
    double wait = (double)(s->parallel.pp - 1);
    double f = stage->f, b = stage->b, w = stage->w;

    switch (s->parallel.schedule) {
    case SCHED_INTERLEAVED:
        return wait * (f + b + w) / (double)s->parallel.vpp;
    case SCHED_ZB_H1:
        return wait * MC_MAX(f + b - w, 0);
    case SCHED_ZB_V:
        return wait * MC_MAX(f + b - 2 * w, 0);
    case SCHED_DUALPIPE_V:
        return wait / 2 * MC_MAX(f + 2 * b - w, 0);
    default:
        return wait * (f + b + w);
    }
}

static double message_time(const Clock *c)
{
    double bytes = c->x->rows * c->h * c->x->element;
    const HardwareLink *link =
        hardware_link(c->hw, 0, (uint32_t)c->grid.stride[GRID_PP]);

    if (c->s->parallel.pp == 1)
        return 0;
    return bytes / (link->bandwidth * curve_at(&link->efficiency, bytes)) +
           link->latency;
}

/* Messages are seen where the pipeline fills and drains; all of them, if they
 * have to wait for compute. */
static double messages_time(const Clock *c)
{
    double one = message_time(c), vpp = (double)c->s->parallel.vpp;
    double each = 2 * (double)c->s->derived.microbatches * vpp;
    double ends = 2 * (double)(c->s->parallel.pp - 1);

    return one * (c->s->parallel.overlap.p2p ? ends : ends + each);
}

/* Of a stage, the head as the last one has it. */
static Parts head_time(const Clock *c)
{
    double one = product(c, 1, c->x->tokens, c->x->head_params / c->h, c->h);

    return (Parts){one, one, one};
}

/* ---- gradients and parameters -------------------------------------------- */

typedef struct {
    double params, replicas, stride;
} Group;

/* Dense weights have their replicas over dp and cp. */
static Group group_of(const Clock *c, double layers, bool experts)
{
    const Share *x = c->x;
    const Grid *g = experts ? &c->expert_grid : &c->grid;
    double dense = layers * (x->attention_params + x->mlp_params) +
                   x->embed_params;

    return (Group){experts ? layers * x->expert_params : dense,
                   experts ? x->expert_replicas : x->replicas,
                   (double)g->stride[experts ? GRID_DP : GRID_CP]};
}

static double uncovered(bool overlaps, double t, double by)
{
    return overlaps ? MC_MAX(t - by, 0.05 * t) : t;
}

/* Gradients that are sharded travel in every microbatch, and the layer before
 * waits for that. */
static double replicas_time(const Clock *c, const Group *g, const Parts *stage)
{
    const Spec *s = c->s;
    double grad = s->training.grad_dtype == GRAD_BF16 ? 2 : 4;
    double scatter = gather(c, g->replicas, g->stride,
                            g->params * grad);
    double collect = gather(c, g->replicas, g->stride,
                            g->params * c->x->element);
    double m = (double)s->derived.microbatches, back = stage->b + stage->w;
    bool grads = s->parallel.overlap.grads, params = s->parallel.overlap.params;

    switch (s->parallel.sharding) {
    case SHARD_NONE:
        return uncovered(grads, 2 * scatter, back);
    case SHARD_OPTIM:
        return uncovered(grads, scatter, back) +
               uncovered(params, collect, stage->f);
    case SHARD_OPTIM_GRADS:
        return m * scatter + uncovered(params, collect, stage->f);
    case SHARD_OPTIM_GRADS_PARAMS:
        return m * (scatter + uncovered(params, collect, back) +
                    uncovered(params, collect, stage->f));
    }
    return 0;
}

/* Gradient, master and moments are read, and written but for the first. */
static double update_time(const Clock *c, const Group *g)
{
    bool sharded = c->s->parallel.sharding != SHARD_NONE;
    double n = g->params / (sharded ? g->replicas : 1);
    double away = c->s->training.offload.optimizer * n * 2 * 12;

    return rows(c, n * (4 + 2 * 12 + c->x->element)) +
           away / c->hw->host_bandwidth;
}

/* ---- together ------------------------------------------------------------ */

static double peak_of(const Spec *s, const Hardware *hw)
{
    static const HardwareType types[] = {[PREC_FP32] = HARDWARE_FP32,
                                         [PREC_BF16] = HARDWARE_BF16,
                                         [PREC_FP16] = HARDWARE_FP16};

    return hw->peak[types[s->training.precision]];
}

static int64_t most_layers(const Spec *s)
{
    int64_t first = share_layers(s, 0);
    int64_t last = share_layers(s, s->parallel.pp - 1);

    return s->parallel.pp > 2
               ? MC_MAX(MC_MAX(first, last), share_layers(s, 1))
               : MC_MAX(first, last);
}

/* The stage of most layers, or that of the head if it takes longer. */
static double slowest_stage(const Clock *c, const Parts *layer,
                            const Parts *stage)
{
    int64_t last = spec_v_shaped(c->s) ? 0 : c->s->parallel.pp - 1;
    Parts with_head = head_time(c);

    parts_add(&with_head, *layer, (double)share_layers(c->s, last));
    return MC_MAX(stage->f + stage->b + stage->w,
                  with_head.f + with_head.b + with_head.w);
}

Times time_estimate(const Spec *s, const Share *x, const Hardware *hw)
{
    Clock c = {.s = s, .x = x, .hw = hw, .peak = peak_of(s, hw),
               .h = (double)s->model.hidden_size,
               .grid = spec_grid(s, false), .expert_grid = spec_grid(s, true)};
    double m = (double)s->derived.microbatches;
    double layers = (double)most_layers(s);
    Parts layer = layer_time(&c, layers), stage = {0};
    Group dense = group_of(&c, layers, false);
    Group experts = group_of(&c, layers, true);

    parts_add(&stage, layer, layers);
    c.t.bubble = bubble_time(s, &stage);
    c.t.pp = messages_time(&c);
    c.t.dp = replicas_time(&c, &dense, &stage) +
             replicas_time(&c, &experts, &stage);
    c.t.optimizer = update_time(&c, &dense) + update_time(&c, &experts);
    c.t.step = m * slowest_stage(&c, &layer, &stage) + c.t.bubble + c.t.pp +
               c.t.dp + c.t.optimizer;
    return c.t;
}
