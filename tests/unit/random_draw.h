/* random_draw.h - for tests: a spec drawn from the schema's legal space.
 *
 * Most keys are drawn from a table of words.  What others depend on - degrees,
 * stages, experts - is drawn in code, so that most draws are legal; a draw that
 * is not must be rejected with a reason.  Keys rejected as not built yet are
 * left out, and come in by themselves once they are built.
 */
#ifndef MEGAC_TESTS_RANDOM_DRAW_H
#define MEGAC_TESTS_RANDOM_DRAW_H

#include <stdlib.h>

#include "driver/compile.h"
#include "tests/unit/models.h"

enum { DRAW_RANKS = 32 };

typedef struct {
    uint64_t state;
    Arena *arena;
    CliList sets;
    int64_t left; /* how many times more ranks there may be */
} Draw;

/* SplitMix64 (Steele et al. 2014). */
static inline uint64_t draw_next(Draw *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One of the words of a list separated by blanks. */
static inline const char *draw_word(Draw *d, const char *words)
{
    uint64_t n = 1, at;

    for (const char *c = words; *c; c++)
        n += *c == ' ';
    for (at = draw_next(d) % n; at; words++)
        at -= *words == ' ';
    return arena_strndup(d->arena, words, strcspn(words, " "));
}

static inline int64_t draw_number(Draw *d, const char *words)
{
    return atoi(draw_word(d, words));
}

static inline void draw_put(Draw *d, const char *path, const char *word)
{
    vec_push(&d->sets, arena_printf(d->arena, "%s=%s", path, word));
}

static inline const char *draw_set(Draw *d, const char *path, const char *words)
{
    const char *word = draw_word(d, words);

    draw_put(d, path, word);
    return word;
}

static inline void draw_int(Draw *d, const char *path, int64_t value)
{
    draw_put(d, path, arena_printf(d->arena, "%lld", (long long)value));
}

/* A degree, and with it so many times more ranks, or 1. */
static inline int64_t draw_degree(Draw *d, const char *words)
{
    int64_t n = draw_number(d, words);

    if (n > d->left)
        n = 1;
    d->left /= n;
    return n;
}

/* ---- keys that are drawn as they stand ----------------------------------- */

static const struct {
    const char *path, *words;
} draw_rows[] = {
    {"model.hidden_size", "16 24 64"},
    {"model.kv_channels", "4 8 16"},
    {"model.vocab_size", "50 96 257"},
    {"model.vocab_divisor", "1 8 16"},
    {"model.normalization", "rmsnorm layernorm"},
    {"model.activation", "swiglu geglu gelu gelu_tanh silu relu relu2"},
    {"model.position_embedding", "rope rope learned none"},
    {"model.tie_embeddings", "true false"},
    {"model.qkv_bias", "true false"},
    {"model.linear_bias", "true false"},
    {"model.qk_norm", "true false"},
    {"model.sliding_window", "0 0 0 1 5 16"},
    {"model.attention_dropout", "0.0 0.0 0.1"},
    {"model.hidden_dropout", "0.0 0.0 0.1"},
    {"training.seq_length", "8 16 24 32"},
    {"training.precision", "fp32 fp32 bf16 bf16 fp16"},
    {"training.grad_dtype", "fp32 fp32 fp32 bf16"},
    {"training.optimizer.type", "sgd adamw adam"},
    {"training.optimizer.momentum", "0 0.9"},
    {"training.optimizer.weight_decay", "0 0.1"},
    {"training.optimizer.clip_grad", "0 1.0"},
    {"training.recompute.granularity", "none none selective full"},
    {"training.recompute.modules",
     "[core_attn] [layernorm] [mlp] [mlp,core_attn] [moe] [moe_act,layernorm]"},
    {"training.recompute.method", "uniform block"},
    {"training.recompute.num_layers", "1 1 2"},
    {"training.offload.activations", "null null [mlp] [core_attn,mlp]"},
    {"training.offload.optimizer", "0.0 0.0 0.5 1.0"},
    {"parallel.sharding", "no_shard optim optim_grads optim_grads_params"},
};

/* ---- degrees and stages -------------------------------------------------- */

/* Schedules that fit the number of chunks. */
static inline int64_t draw_chunks(Draw *d, int64_t pp)
{
    int64_t vpp = pp > 1 ? draw_number(d, "1 1 1 2 2 3") : 1;
    const char *schedules = "auto gpipe 1f1b zb-h1";

    if (vpp == 2)
        schedules = "interleaved zb-v dualpipe-v";
    else if (vpp > 2)
        schedules = "auto";
    draw_int(d, "parallel.vpp", vpp);
    draw_set(d, "parallel.schedule", pp > 1 ? schedules : "auto gpipe 1f1b");
    return vpp;
}

/* "Et|tt||tL": what of `stages` stages holds how many of the layers. */
static inline int64_t draw_layout(Draw *d, int64_t stages)
{
    const char *text = "E";
    int64_t layers = 0;

    for (int64_t i = 0; i < stages; i++) {
        int64_t n = draw_number(d, "0 1 1 1 2 3");
        text = arena_printf(d->arena, "%s%s%.*s", text, i ? "|" : "", (int)n,
                            "ttt");
        layers += n;
    }
    if (layers == 0) {
        layers = 1;
        text = arena_printf(d->arena, "%st", text);
    }
    draw_put(d, "parallel.pp_layout",
             arena_printf(d->arena, "\"%sL\"", text));
    return layers;
}

/* Splits the model into stages; returns how many layers it has. */
static inline int64_t draw_split(Draw *d, int64_t pp, int64_t vpp)
{
    int64_t each = draw_number(d, "1 1 2 3"), even = pp * vpp * each;
    int64_t first = draw_number(d, "1 2") * vpp;

    switch (pp > 1 ? draw_next(d) % 6 : 0) {
    case 1:
        return draw_layout(d, pp * vpp);
    case 2:
        draw_int(d, "parallel.pp_first_layers", first);
        return even - each * vpp + first;
    case 3:
        draw_int(d, "parallel.pp_last_layers", first);
        return even - each * vpp + first;
    case 4:
        draw_put(d, "parallel.account_for_embedding", "true");
        draw_put(d, "parallel.account_for_loss", "true");
        return MC_MAX(even - 2, 1);
    default:
        return even;
    }
}

static inline void draw_order(Draw *d)
{
    const char *axis[] = {"tp", "cp", "ep", "dp", "pp"};

    if (draw_next(d) % 3)
        return;
    for (uint64_t n = 5; n > 1; n--) {
        uint64_t i = draw_next(d) % n;
        const char *last = axis[n - 1];
        axis[n - 1] = axis[i];
        axis[i] = last;
    }
    draw_put(d, "parallel.order",
             arena_printf(d->arena, "%s-%s-%s-%s-%s", axis[0], axis[1],
                          axis[2], axis[3], axis[4]));
}

/* One way for all layers, or one for each. */
static inline void draw_context(Draw *d, int64_t cp, int64_t layers)
{
    const char *ways = "p2p p2p all_gather a2a a2a a2a+p2p";
    const char *list = "[";

    if (cp == 1)
        return;
    draw_set(d, "parallel.cp_sizes",
             cp == 4 ? "[2,2] [2,2] [4,1] [1,4]" : "[2,1] [1,2]");
    if (draw_next(d) % 4) {
        draw_set(d, "parallel.cp_comm", ways);
        return;
    }
    for (int64_t i = 0; i < layers; i++) {
        list = arena_printf(d->arena, "%s%s%s", list, i ? "," : "",
                            draw_word(d, ways));
    }
    draw_put(d, "parallel.cp_comm", arena_printf(d->arena, "%s]", list));
}

/* ---- experts ------------------------------------------------------------- */

static const struct {
    const char *path, *words;
} draw_expert_rows[] = {
    {"model.moe.num_experts", "4 8"},
    {"model.moe.ffn_hidden_size", "16 32"},
    {"model.moe.top_k", "1 2 2"},
    {"model.moe.pre_softmax", "true false"},
    {"model.moe.scaling_factor", "1.0 2.5"},
    {"model.moe.balance", "none aux_loss seq_aux_loss global_aux_loss"},
    {"model.moe.aux_loss_coeff", "0.0 0.01"},
    {"model.moe.z_loss_coeff", "0.0 0.001"},
    {"model.moe.shared_ffn_hidden_size", "0 16"},
    {"model.moe.dispatcher", "alltoall allgather"},
    {"model.moe.capacity_factor", "null null 0.5 1.5"},
    {"model.moe.drop_policy", "probs position"},
    {"model.moe.layer_freq", "1 1 1 2"},
};

/* Experts on ranks of their own, or folded over those of tp, cp and dp. */
static inline void draw_expert_grid(Draw *d, int64_t dense, int64_t dp)
{
    if (draw_next(d) % 2) {
        draw_int(d, "parallel.ep", draw_degree(d, "1 2 4"));
        draw_int(d, "parallel.dp", dp);
        return;
    }
    draw_int(d, "parallel.world_size", dense * dp);
    draw_set(d, "parallel.ep", "1 2 2 4");
    draw_set(d, "parallel.etp", "null null 1 2");
}

static inline void draw_experts(Draw *d, int64_t dense, int64_t dp)
{
    for (size_t i = 0; i < MC_LEN(draw_expert_rows); i++)
        draw_set(d, draw_expert_rows[i].path, draw_expert_rows[i].words);
    if (!strcmp(draw_set(d, "model.moe.score", "softmax sigmoid"), "sigmoid"))
        draw_set(d, "model.moe.expert_bias", "true false");
    if (draw_next(d) % 4 == 0) {
        draw_int(d, "model.moe.num_groups", 2);
        draw_int(d, "model.moe.group_top_k", 1);
    }
    draw_expert_grid(d, dense, dp);
}

/* ---- all of it ----------------------------------------------------------- */

static inline void draw_sizes(Draw *d, int64_t tp, int64_t layers)
{
    int64_t groups = draw_number(d, "1 2 4 8");

    draw_int(d, "model.num_query_groups", groups);
    draw_int(d, "model.num_attention_heads", groups * draw_number(d, "1 2 4"));
    draw_int(d, "model.ffn_hidden_size", tp * draw_number(d, "16 24"));
    draw_int(d, "model.num_layers", layers);
    draw_int(d, "model.max_position_embeddings", 64);
}

/* Steps of a few microbatches, all ranks together. */
static inline void draw_batch(Draw *d, int64_t pp, int64_t vpp, int64_t dp)
{
    int64_t mbs = draw_number(d, "1 2 3");
    int64_t m = draw_number(d, vpp > 1 ? "1 2 3 4 5 8 9" : "1 2 3 5");

    draw_int(d, "training.micro_batch_size", mbs);
    draw_int(d, "training.global_batch_size", mbs * dp * m);
    if (draw_next(d) % 3 == 0) {
        draw_put(d, "data.train", "tokens");
        draw_set(d, "data.loss_mask", "null mask");
    }
    if (draw_next(d) % 4 == 0) {
        draw_put(d, "training.eval.interval", "2");
        draw_put(d, "data.valid", "synthetic");
    }
    if (m > 1 && draw_next(d) % 3 == 0)
        draw_put(d, "training.rampup", arena_printf(d->arena, "[%lld,%lld,100]",
                                                    (long long)(mbs * dp),
                                                    (long long)(mbs * dp)));
    if (vpp > 1 && m >= pp && draw_next(d) % 2)
        draw_int(d, "parallel.microbatch_group", m);
}

static inline void draw_spec(Draw *d)
{
    bool experts = draw_next(d) % 3 == 0;
    int64_t tp, pp, cp, dp, vpp, layers;

    d->left = DRAW_RANKS;
    tp = draw_degree(d, "1 1 2 4 8");
    pp = draw_degree(d, "1 1 2 3 4");
    cp = draw_degree(d, "1 1 1 2 4");
    dp = draw_degree(d, "1 1 2 3 4");
    vpp = draw_chunks(d, pp);
    layers = draw_split(d, pp, vpp);
    draw_int(d, "parallel.tp", tp);
    draw_int(d, "parallel.pp", pp);
    draw_int(d, "parallel.cp", cp);
    draw_set(d, "parallel.sp", tp > 1 ? "true true false" : "false");
    draw_context(d, cp, layers);
    draw_order(d);
    for (size_t i = 0; i < MC_LEN(draw_rows); i++)
        draw_set(d, draw_rows[i].path, draw_rows[i].words);
    if (experts)
        draw_experts(d, tp * pp * cp, dp);
    else
        draw_int(d, "parallel.dp", dp);
    draw_sizes(d, tp, layers);
    draw_batch(d, pp, vpp, dp);
}

/* ---- what is not built yet ----------------------------------------------- */

/* Takes out the keys that a message says are not built yet. */
static inline bool draw_forget(Draw *d, const char *messages)
{
    uint32_t kept = 0, had = d->sets.n;

    for (uint32_t i = 0; i < had; i++) {
        size_t n = strcspn(d->sets.v[i], "=");
        const char *at = messages;
        bool unbuilt = false;
        while (!unbuilt && (at = strstr(at, "error: "))) {
            size_t line = strcspn(at += 7, "\n");
            const char *why = strstr(at, "not built yet");
            unbuilt = why && why < at + line &&
                      strncmp(at, d->sets.v[i], n) == 0;
        }
        if (!unbuilt)
            d->sets.v[kept++] = d->sets.v[i];
    }
    d->sets.n = kept;
    return kept < had;
}

/* The spec; NULL, and what was printed about it. */
static inline Spec *draw_parse(Draw *d, Diag **out_diag)
{
    for (;;) {
        char *text = NULL;
        size_t n;
        FILE *to = open_memstream(&text, &n);
        Diag *diag = *out_diag = diag_new(d->arena);
        Spec *s = spec_parse(d->arena, diag, "model", MODEL_T0, d->sets.v,
                             (int)d->sets.n);
        diag_print(diag, to);
        fclose(to);
        bool again = !s && draw_forget(d, text);
        free(text);
        if (!again)
            return s;
        diag_free(diag);
    }
}

#endif
