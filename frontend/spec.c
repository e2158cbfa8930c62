/* spec.c - questions to a finished Spec, and its shrunken twin.
 *
 * spec_shrink keeps everything that makes one program differ from another
 * (degrees, the split into stages, switches, the ratio of heads to groups to
 * tp, whether the vocabulary is padded) and takes the smallest legal number
 * for the rest, so that the evaluator can run all ranks of it in memory.
 */
#include "frontend/frontend_priv.h"

Loc spec_loc(const Spec *s, const char *path)
{
    const Key *key = schema_key(path);

    mc_assert(key);
    return s->locs[key - schema_keys];
}

void spec_set_loc(Spec *s, const char *path, Loc loc)
{
    s->locs[schema_key(path) - schema_keys] = loc;
}

LrSchedule spec_lr(const Spec *s)
{
    return (LrSchedule){
        .style = s->training.lr_schedule.style,
        .wsd_style = s->training.lr_schedule.wsd_decay_style,
        .max = s->training.optimizer.lr,
        .min = s->training.optimizer.min_lr,
        .init = s->training.lr_schedule.init_lr,
        .warmup = s->training.lr_schedule.warmup_steps,
        .decay = s->training.lr_schedule.decay_steps,
        .wsd = s->training.lr_schedule.wsd_decay_steps,
    };
}

BatchRampup spec_rampup(const Spec *s)
{
    const SpecIntList *r = &s->training.rampup;
    int64_t full = s->training.global_batch_size;

    if (r->n != 3)
        return (BatchRampup){full, 0, 0, full};
    return (BatchRampup){r->v[0], r->v[1], r->v[2], full};
}

int64_t spec_full_steps(const Spec *s)
{
    BatchRampup r = spec_rampup(s);
    bool grows = s->training.rampup.n == 3 && r.start > 0 && r.increment > 0 &&
                 r.start < r.full;

    if (!grows)
        return s->training.steps;
    return MC_MAX(batch_consumed(&r, s->training.steps) / r.full, 1);
}

bool spec_v_shaped(const Spec *s)
{
    return s->parallel.schedule == SCHED_ZB_V ||
           s->parallel.schedule == SCHED_DUALPIPE_V;
}

StageTable stage_table(const Spec *s)
{
    return s->stages;
}

/* ---- shrinking ---------------------------------------------------------- */

enum {
    SMALL_HIDDEN = 8,
    SMALL_HEAD = 4,
    SMALL_SEQ = 4,
    SMALL_LAYERS = 2,      /* per chunk */
    SMALL_MICROBATCH = 2,
    SMALL_ACCUMULATION = 4, /* microbatches */
    SMALL_DIVISOR = 4
};

/* Groups that divide these ranks stay; more become one per rank.  Queries per
 * group: one stays one, more become as few as keep heads a multiple. */
static void heads_shrink(Spec *s)
{
    bool grouped = s->model.num_attention_heads > s->model.num_query_groups;
    int64_t ranks = spec_head_ranks(s);
    int64_t groups = MC_MIN(s->model.num_query_groups, ranks);

    s->model.num_query_groups = groups;
    s->model.num_attention_heads = grouped ? MC_MAX(ranks, 2 * groups) : groups;
}

/* The smallest head whose rotated part is whole pairs. */
static void channels_shrink(Spec *s)
{
    bool rope = s->model.position_embedding == PE_ROPE;

    for (int64_t d = SMALL_HEAD; d < s->model.kv_channels; d *= 2) {
        int64_t rotated = (int64_t)((double)d * s->model.rope.percent);
        if (!rope || (rotated >= 2 && rotated % 2 == 0)) {
            s->model.kv_channels = d;
            return;
        }
    }
}

static void vocab_shrink(Spec *s)
{
    bool padded = s->derived.padded_vocab > s->model.vocab_size;

    s->model.vocab_divisor = SMALL_DIVISOR;
    s->model.vocab_size = 2 * SMALL_DIVISOR * s->parallel.tp - (padded ? 3 : 0);
}

/* Groups of layers, and blocks that are computed again, stay such. */
static void recompute_shrink(Spec *s)
{
    s->training.recompute.num_layers =
        MC_MIN(s->training.recompute.num_layers, SMALL_LAYERS);
}

/* Of layers in groups, two groups and a smaller one. */
static int64_t few_layers(const Spec *s, int64_t layer)
{
    return spec_layer(s, layer)->group > 1 ? 2 * SMALL_LAYERS + 1
                                           : SMALL_LAYERS;
}

/* Which layers of a stage stay: two of each run of one kind, unless the same
 * three kinds have stood in a row before. */
static bool layer_stays(const Spec *s, const Stage *stage, int64_t i)
{
    const uint8_t *of = s->layers.of + stage->first_layer;

    if (i < few_layers(s, stage->first_layer))
        return true;
    if (of[i] == of[i - 1] && of[i] == of[i - 2])
        return false;
    for (int64_t k = 2; k < i; k++)
        if (memcmp(&of[k - 2], &of[i - 2], 3) == 0)
            return false;
    return true;
}

/* A list per layer keeps the elements of the layers that stay. */
static void lists_shrink(Arena *a, Spec *s, const int64_t *kept)
{
    int64_t n = s->model.num_layers;
    int64_t *freq = arena_array(a, int64_t, n);
    int *comm = arena_array(a, int, n);

    for (int64_t i = 0; i < n; i++) {
        freq[i] = spec_layer(s, kept[i])->experts;
        comm[i] = (int)spec_layer(s, kept[i])->cp_comm;
    }
    if (s->model.moe.num_experts)
        s->model.moe.layer_freq = (SpecIntList){freq, (uint32_t)n};
    if (s->parallel.cp_comm.n > 1)
        s->parallel.cp_comm = (SpecChoiceList){comm, (uint32_t)n};
}

/* A few layers per chunk, as a layout. */
static void layers_shrink(Arena *a, Spec *s)
{
    int64_t *kept = arena_array(a, int64_t, s->model.num_layers);
    Buf layout = {0};

    s->model.num_layers = 0;
    for (uint32_t i = 0; i < s->stages.n; i++) {
        const Stage *stage = &s->stages.v[i];
        buf_puts(&layout, i ? "|" : "E");
        for (int64_t l = 0; l < stage->num_layers; l++) {
            if (!layer_stays(s, stage, l))
                continue;
            kept[s->model.num_layers++] = stage->first_layer + l;
            buf_puts(&layout, "t");
        }
    }
    lists_shrink(a, s, kept);
    buf_puts(&layout, "L");
    s->parallel.pp_layout = arena_strdup(a, buf_str(&layout));
    s->parallel.pp_first_layers = s->parallel.pp_last_layers = 0;
    s->parallel.account_for_embedding = s->parallel.account_for_loss = false;
    buf_free(&layout);
}

/* Interleaved, groups stay larger than pp if they are, and the last one
 * shorter. */
static int64_t groups_shrink(Spec *s)
{
    int64_t m = s->derived.microbatches, pp = s->parallel.pp;
    int64_t group = s->parallel.microbatch_group;
    int64_t small = group > pp ? pp + 1 : pp;

    s->parallel.microbatch_group = small;
    if (m % group)
        return small + pp;
    return m == group ? small : 2 * small;
}

static int64_t microbatches_shrink(Spec *s)
{
    if (s->parallel.schedule == SCHED_INTERLEAVED)
        return groups_shrink(s);
    if (s->schedule_file)
        return s->derived.microbatches;
    if (s->parallel.schedule == SCHED_ZB_H1 || spec_v_shaped(s))
        return MC_MIN(s->derived.microbatches, 2 * s->parallel.pp);
    return MC_MIN(s->derived.microbatches, SMALL_ACCUMULATION);
}

/* One smaller batch, with as few microbatches as the schedule takes. */
static void rampup_shrink(Arena *a, Spec *s, int64_t m)
{
    int64_t step = s->training.micro_batch_size * s->derived.dense_dp;
    BatchRampup r = spec_rampup(s);
    int64_t least = batch_size(&r, 0) * m / r.full;
    int64_t list[] = {0, 0, 1};

    if (s->training.rampup.n == 0)
        return;
    if (s->parallel.schedule == SCHED_INTERLEAVED)
        least = MC_MIN(s->parallel.microbatch_group, m - 1);
    else if (s->parallel.schedule == SCHED_DUALPIPE_V)
        least = 2 * s->parallel.pp;
    list[0] = MC_MAX(least, 1) * step;
    list[1] = m * step - list[0];
    s->training.rampup.n = list[1] > 0 ? 3 : 0;
    s->training.rampup.v = arena_array(a, int64_t, 3);
    memcpy(s->training.rampup.v, list, sizeof list);
}

static void batch_shrink(Arena *a, Spec *s)
{
    int64_t mbs = MC_MIN(s->training.micro_batch_size, SMALL_MICROBATCH);
    int64_t m = microbatches_shrink(s);
    int64_t split = s->parallel.cp > 1 ? 2 * s->parallel.cp : 1;
    int64_t parts = s->parallel.sp ? split * s->parallel.tp : split;
    int64_t seq = s->derived.head_pieces > 1 && split == 1 ? 2 * parts : 1;

    s->training.micro_batch_size = mbs;
    rampup_shrink(a, s, m);
    s->training.global_batch_size = m * mbs * s->derived.dense_dp;
    seq = MC_MAX(seq, SMALL_SEQ);
    s->training.seq_length = (seq + parts - 1) / parts * parts;
    s->model.max_position_embeddings = s->training.seq_length;
}

/* A window that hides keys still does, also across chunks. */
static void window_shrink(Spec *small, const Spec *s)
{
    if (s->model.sliding_window < s->training.seq_length)
        small->model.sliding_window = MC_MIN(s->model.sliding_window,
                                             small->training.seq_length / 2);
}

/* A few experts per rank; group-limited routing keeps its proportions. */
static void experts_shrink(Spec *s)
{
    int64_t etp = s->parallel.etp ? s->parallel.etp : s->parallel.tp;

    if (!s->model.moe.num_experts)
        return;
    s->model.moe.ffn_hidden_size = 2 * etp;
    if (s->model.moe.shared_ffn_hidden_size)
        s->model.moe.shared_ffn_hidden_size = 2 * s->parallel.tp;
    if (s->model.moe.num_groups)
        return;
    s->model.moe.num_experts = MC_MIN(s->model.moe.num_experts,
                                      MC_MAX(2 * s->parallel.ep, 4));
    s->model.moe.top_k = MC_MIN(s->model.moe.top_k, 2);
}

Spec *spec_shrink(Arena *a, const Spec *s)
{
    Spec *small = arena_new_of(a, Spec);
    Diag *d = diag_new(a);
    Check check = {a, d, small, {0}};

    *small = *s;
    small->model.hidden_size = SMALL_HIDDEN;
    small->model.ffn_hidden_size = 2 * s->parallel.tp;
    experts_shrink(small);
    heads_shrink(small);
    channels_shrink(small);
    recompute_shrink(small);
    vocab_shrink(small);
    layers_shrink(a, small);
    batch_shrink(a, small);
    window_shrink(small, s);
    mc_assert(stages_build(&check));
    derive_values(small);
    small->derived.head_pieces = MC_MIN(s->derived.head_pieces, 2);
    layers_build(&check);
    diag_free(d);
    return small;
}

const char *spec_module_word(SpecModule module)
{
    const Option *o = schema_key("training.recompute.modules")->options;

    while (o->value != (int)module)
        o++;
    return o->words;
}
