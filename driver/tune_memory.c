/* tune_memory.c - the bytes of the heaviest rank, in closed form.
 *
 * What rests through the step (parameters, gradients, optimizer state) and what
 * a backward is waited for with: for each microbatch in flight and each layer
 *
 *     input of the layer and of its MLP      2 h   per row of the residual
 *     q, k, v, and what attention gives      qkv + out, and 4 bytes per head
 *     what goes into the MLP's activation    gates * ffn
 *     of experts: rows in, rows out, inner   2 h + gates * expert, per slot
 *
 * less what is computed again.  Of temporaries only those are counted that are
 * sure to be there, so this is a bound from below: what exceeds the memory here
 * need not be planned.
 */
#include "driver/tune.h"

const char *const bytes_names[BYTES_TERMS] = {
    "parameters",  "gradients", "optimizer state",
    "activations", "workspace", "communication"};

/* ---- state --------------------------------------------------------------- */

static double grad_bytes(const Spec *s)
{
    return s->training.grad_dtype == GRAD_BF16 ? 2 : 4;
}

/* A master beside weights of half precision, and the moments. */
static double optimizer_bytes(const Spec *s)
{
    double master = s->training.precision == PREC_FP32 ? 0 : 4;
    bool momentum = s->training.optimizer.momentum > 0;

    if (s->training.optimizer.type != OPT_SGD)
        return master + 8;
    return master + (momentum ? 4 : 0);
}

/* Of `n` parameters with so many replicas. */
static void state_add(const Spec *s, const Share *x, double n, double replicas,
                      Bytes *out)
{
    double kept = n * (1 - s->training.offload.optimizer);
    double grad = grad_bytes(s);
    SpecSharding by = s->parallel.sharding;

    out->term[BYTES_PARAMS] +=
        n * x->element / (by == SHARD_OPTIM_GRADS_PARAMS ? replicas : 1);
    if (by == SHARD_NONE || by == SHARD_OPTIM)
        out->term[BYTES_GRADS] += n * grad; /* the sum of this rank */
    if (by != SHARD_NONE)
        out->term[BYTES_GRADS] += n * grad / replicas;
    out->term[BYTES_OPTIMIZER] +=
        kept * optimizer_bytes(s) / (by == SHARD_NONE ? 1 : replicas);
}

/* ---- activations --------------------------------------------------------- */

static bool computes_again(const Spec *s, SpecModule module)
{
    const SpecChoiceList *list = &s->training.recompute.modules;

    if (s->training.recompute.granularity != RECOMPUTE_SELECTIVE)
        return false;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->v[i] == (int)module)
            return true;
    return false;
}

static double attention_saved(const Spec *s, const Share *x)
{
    double heads = x->out / (double)s->model.kv_channels;
    double saved = x->tokens * x->qkv * x->element;

    if (!computes_again(s, MODULE_CORE_ATTN))
        saved += x->tokens * (x->out * x->element + 4 * heads);
    return saved;
}

static double mlp_saved(const Spec *s, const Share *x)
{
    double h = (double)s->model.hidden_size, dense = 0, experts = 0;

    if (!computes_again(s, MODULE_MLP))
        dense = x->tokens * x->gates * x->ffn;
    if (x->moe > 0 && !computes_again(s, MODULE_MOE))
        experts = x->slots * (2 * h + x->gates * x->expert);
    if (x->moe > 0 && !computes_again(s, MODULE_SHARED_EXPERTS))
        experts += x->tokens * x->gates * x->shared;
    return x->element * ((1 - x->moe) * dense + x->moe * experts);
}

static double layer_input(const Spec *s, const Share *x)
{
    return x->rows * (double)s->model.hidden_size * x->element;
}

static double layer_whole(const Spec *s, const Share *x)
{
    return 2 * layer_input(s, x) + attention_saved(s, x) + mlp_saved(s, x);
}

/* Of one layer and microbatch.  Layers in groups keep one input each group. */
static double layer_saved(const Spec *s, const Share *x)
{
    double input = layer_input(s, x), whole = layer_whole(s, x);

    if (s->training.recompute.granularity != RECOMPUTE_FULL)
        return whole;
    if (s->training.recompute.method == RECOMPUTE_UNIFORM)
        return input / (double)s->training.recompute.num_layers;
    double layers = (double)s->model.num_layers / (double)s->stages.n;
    double again =
        MC_MIN((double)s->training.recompute.num_layers / layers, 1);
    return again * input + (1 - again) * whole;
}

/* ---- temporaries --------------------------------------------------------- */

/* The gradient of an MLP's inside beside two of the residual stream; and all of
 * a layer that is computed again. */
static double temporaries(const Spec *s, const Share *x)
{
    double inner = (1 - x->moe) * x->tokens * (x->gates + 1) * x->ffn +
                   x->moe * x->slots * (x->gates + 1) * x->expert;
    double stream = 2 * x->tokens * (double)s->model.hidden_size;
    double bytes = x->element * (inner + stream);

    if (s->training.recompute.granularity == RECOMPUTE_FULL)
        bytes += layer_whole(s, x);
    return bytes;
}

/* Gradients of a layer before they are scattered. */
static double gathered(const Spec *s, const Share *x)
{
    double n = x->attention_params + x->mlp_params + x->expert_params;

    return s->parallel.sharding >= SHARD_OPTIM_GRADS ? 0.75 * n * grad_bytes(s)
                                                     : 0;
}

/* Offloaded state comes back a tensor at a time, of all layers of the rank, and
 * goes again: the largest is what goes into the MLP. */
static double updated(const Spec *s, const Share *x, double layers)
{
    double n = layers * (1 - x->moe) * x->gates * x->ffn *
               (double)s->model.hidden_size;
    bool sharded = s->parallel.sharding != SHARD_NONE;

    return 1.4 * s->training.offload.optimizer * n * optimizer_bytes(s) /
           (sharded ? x->replicas : 1);
}

/* ---- the schedule -------------------------------------------------------- */

/* Microbatches that a rank holds, each in all of its chunks: their backward is
 * to come, or that of their weights (waiting). */
typedef struct {
    double held, waiting;
} Flight;

static Flight in_flight(const Spec *s, int64_t rank)
{
    int64_t m = s->derived.microbatches, pp = s->parallel.pp;
    int64_t vpp = s->parallel.vpp;
    int64_t ahead = 2 * (pp - 1 - rank) +
                    (vpp - 1) * s->parallel.microbatch_group + 1;
    double all = (double)MC_MIN(pp, m), r = (double)rank;

    switch (s->parallel.schedule) {
    case SCHED_INTERLEAVED:
        return (Flight){(double)MC_MIN(ahead, m * vpp) / (double)vpp, 0};
    case SCHED_GPIPE:
        return (Flight){(double)m, 0};
    case SCHED_1F1B:
        return (Flight){(double)MC_MIN(pp - rank, m), 0};
    case SCHED_ZB_H1:
        return (Flight){all, MC_MIN(r + 1, all)};
    case SCHED_ZB_V:
        return (Flight){all, MC_MIN(r + 0.5, all)};
    case SCHED_DUALPIPE_V:
        return (Flight){all + 0.5, (r + 1) / 2};
    default:
        return (Flight){1, 0};
    }
}

/* Weights that wait keep what goes into their layers, however it would be
 * computed again, and at least two fifths as much of gradients. */
static double activations(const Spec *s, const Share *x, int64_t rank)
{
    Flight f = in_flight(s, rank);
    Spec plain = *s;

    plain.training.recompute.granularity = RECOMPUTE_NONE;
    return (f.held - f.waiting) * layer_saved(s, x) +
           (f.waiting > 0 ? 1.4 * f.waiting * layer_whole(&plain, x) : 0);
}

/* ---- together ------------------------------------------------------------ */

static Bytes rank_bytes(const Spec *s, const Share *x, int64_t rank)
{
    double layers = (double)share_layers(s, rank);
    double dense = layers * (x->attention_params + x->mlp_params);
    Bytes b = {0};

    if (rank == 0)
        dense += x->embed_params;
    if (rank == (spec_v_shaped(s) ? 0 : s->parallel.pp - 1))
        dense += x->head_params;
    state_add(s, x, dense, x->replicas, &b);
    state_add(s, x, layers * x->expert_params, x->expert_replicas, &b);
    b.term[BYTES_ACTIVATIONS] = layers * activations(s, x, rank);
    b.term[BYTES_WORKSPACE] = temporaries(s, x) + gathered(s, x);
    b.term[BYTES_WORKSPACE] =
        MC_MAX(b.term[BYTES_WORKSPACE],
               updated(s, x, layers) - b.term[BYTES_ACTIVATIONS]);
    for (int i = 0; i < BYTES_TERMS; i++)
        b.total += b.term[i];
    return b;
}

/* The first and the last, which have tables, and their neighbours, which may
 * have more layers. */
Bytes memory_bound(const Spec *s, const Share *x)
{
    int64_t pp = s->parallel.pp;
    const int64_t ranks[] = {0, 1, pp - 2, pp - 1};
    Bytes most = {0};

    for (size_t i = 0; i < MC_LEN(ranks); i++) {
        Bytes b = {0};
        if (ranks[i] >= 0 && ranks[i] < pp)
            b = rank_bytes(s, x, ranks[i]);
        if (b.total > most.total)
            most = b;
    }
    return most;
}
