/* random_spec.h - for tests: a spec drawn from the schema's legal space.
 *
 * What depends on nothing is drawn from tables of words, the rest such that it
 * suits what was drawn before, so that most draws are legal.  Whether all rules
 * hold is left to the frontend.
 */
#ifndef MEGAC_TESTS_RANDOM_SPEC_H
#define MEGAC_TESTS_RANDOM_SPEC_H

#include "tests/unit/models.h"
#include "tests/unit/random_layout.h"

/* ---- keys that are drawn as they stand ----------------------------------- */

static const DrawRow draw_free_rows[] = {
    {"model.hidden_size", "16 24 40"},
    {"model.norm_epsilon", "1e-5 1e-6"},
    {"model.vocab_size", "50 96 257"},
    {"model.vocab_divisor", "1 8 128"},
    {"model.normalization", "rmsnorm layernorm"},
    {"model.activation", "swiglu geglu gelu gelu_tanh silu relu relu2"},
    {"model.tie_embeddings", "true false"},
    {"model.qkv_bias", "true false"},
    {"model.linear_bias", "true false"},
    {"model.qk_norm", "true false"},
    {"model.sliding_window", "0 0 0 1 5 20"},
    {"model.attention_dropout", "0.0 0.0 0.0 0.1"},
    {"model.hidden_dropout", "0.0 0.0 0.0 0.1"},
    {"model.init_std", "0.02 0.1"},
    {"training.seed", "1234 7"},
    {"training.steps", "1000 700"},
    {"training.optimizer.lr", "3e-4 0.1"},
    {"training.optimizer.weight_decay", "0 0.1"},
    {"training.optimizer.clip_grad", "0 1.0"},
    {"training.offload.optimizer", "0.0 0.0 0.0 0.5 1.0"},
    {"parallel.sharding", "no_shard optim optim_grads optim_grads_params"},
    {"parallel.overlap.grads", "true true false"},
    {"parallel.overlap.params", "true true false"},
    {"parallel.overlap.p2p", "true true false"},
    {"parallel.overlap.tp", "true true false"},
    {"parallel.overlap.ep", "true true false"},
    {"parallel.bucket_elements", "null null 100 3000"},
    {"target.threads", "auto 2"},
};

static inline void draw_positions(Draw *d)
{
    const char *scaling;

    draw_set(d, "model.kv_channels", "4 8 16");
    if (!draw_is(draw_set(d, "model.position_embedding",
                          "rope rope rope learned none"), "rope"))
        return;
    draw_set(d, "model.rope.base", "10000 500000");
    draw_set(d, "model.rope.percent", "1.0 1.0 0.5");
    scaling = draw_set(d, "model.rope.scaling.type", "none linear llama3");
    if (!draw_is(scaling, "none"))
        draw_set(d, "model.rope.scaling.factor", "8.0 2.0");
    if (!draw_is(scaling, "llama3"))
        return;
    draw_set(d, "model.rope.scaling.low_freq_factor", "1.0 2.0");
    draw_set(d, "model.rope.scaling.high_freq_factor", "4.0 8.0");
    draw_set(d, "model.rope.scaling.original_max_position_embeddings",
             "8192 16");
}

static inline void draw_precision(Draw *d)
{
    const char *precision =
        draw_set(d, "training.precision", "fp32 fp32 bf16 bf16 fp16");

    if (draw_is(precision, "bf16"))
        draw_set(d, "training.grad_dtype", "fp32 bf16");
    if (draw_is(precision, "fp16"))
        draw_set(d, "training.loss_scale", "dynamic 1024");
}

static inline void draw_optimizer(Draw *d)
{
    if (draw_is(draw_set(d, "training.optimizer.type", "sgd adamw adam"),
                "sgd")) {
        draw_set(d, "training.optimizer.momentum", "0 0.9");
        return;
    }
    draw_set(d, "training.optimizer.beta1", "0.9 0.8");
    draw_set(d, "training.optimizer.beta2", "0.95 0.999");
    draw_set(d, "training.optimizer.eps", "1e-8 1e-6");
}

static inline void draw_rates(Draw *d)
{
    const char *style = draw_set(d, "training.lr_schedule.style",
                                 "cosine constant linear inverse_sqrt wsd");

    if (!draw_is(draw_set(d, "training.lr_schedule.warmup_steps", "0 10"),
                 "0"))
        draw_set(d, "training.lr_schedule.init_lr", "0 1e-5");
    if (draw_is(style, "constant"))
        return;
    draw_set(d, "training.optimizer.min_lr", "0 1e-5");
    draw_set(d, "training.lr_schedule.decay_steps", "null 500");
    if (!draw_is(style, "wsd"))
        return;
    draw_set(d, "training.lr_schedule.wsd_decay_steps", "50");
    draw_set(d, "training.lr_schedule.wsd_decay_style",
             "exponential linear cosine minus_sqrt");
}

/* ---- experts ------------------------------------------------------------- */

static const DrawRow draw_expert_rows[] = {
    {"model.moe.scaling_factor", "1.0 2.5"},
    {"model.moe.balance", "none aux_loss seq_aux_loss global_aux_loss"},
    {"model.moe.aux_loss_coeff", "0.0 0.01 0.01"},
    {"model.moe.z_loss_coeff", "0.0 0.001"},
    {"model.moe.dispatcher", "alltoall allgather"},
};

/* Every second layer, a list, or all. */
static inline void draw_freq(Draw *d, Shape *x)
{
    const char *list = "";
    int64_t with = 0;

    x->dense = false;
    switch (draw_next(d) % 4) {
    case 0:
        draw_int(d, "model.moe.layer_freq", 2);
        x->dense = x->layers > 1;
        return;
    case 1:
        for (int64_t i = 0; i < x->layers; i++) {
            bool one = (i == x->layers - 1 && !with) || draw_once_in(d, 2);
            list = draw_append(d, list, one ? "1" : "0");
            with += one;
        }
        draw_put(d, "model.moe.layer_freq",
                 arena_printf(d->arena, "%s]", list));
        x->dense = with < x->layers;
        return;
    default:
        return;
    }
}

/* Of n experts the best k; with groups, k of the best ones. */
static inline void draw_router(Draw *d, int64_t n)
{
    const char *score = draw_set(d, "model.moe.score", "softmax sigmoid");
    const char *before = draw_set(d, "model.moe.pre_softmax", "true false");
    bool one = draw_is(score, "sigmoid") || draw_is(before, "true");
    int64_t k = draw_number(d, one ? "1 2 2 3" : "2 2 3");

    if (draw_is(score, "sigmoid") &&
        draw_is(draw_set(d, "model.moe.expert_bias", "true false"), "true"))
        draw_set(d, "model.moe.bias_update_rate", "1e-3 0.1");
    if (n % 2 == 0 && k < 3 && draw_once_in(d, 3)) {
        draw_int(d, "model.moe.num_groups", 2);
        draw_int(d, "model.moe.group_top_k", draw_once_in(d, 2) ? k : 1);
    }
    draw_int(d, "model.moe.top_k", k);
}

static inline void draw_experts(Draw *d, Shape *x)
{
    int64_t n = x->ep * draw_number(d, "1 2 4"), shared;

    while (n < 4)
        n += x->ep;
    draw_int(d, "model.moe.num_experts", n);
    draw_int(d, "model.moe.ffn_hidden_size", x->etp * draw_number(d, "8 16"));
    shared = x->tp * draw_number(d, "0 0 8");
    draw_int(d, "model.moe.shared_ffn_hidden_size", shared);
    x->shared = shared > 0;
    if (x->shared)
        draw_set(d, "model.moe.shared_gate", "true false");
    if (!draw_is(draw_set(d, "model.moe.capacity_factor", "null null 0.5 1.5"),
                 "null"))
        draw_set(d, "model.moe.drop_policy", "probs position");
    draw_rows(d, draw_expert_rows, MC_LEN(draw_expert_rows));
    draw_router(d, n);
    draw_freq(d, x);
}

/* ---- memory -------------------------------------------------------------- */

/* Modules that the layers have, of which the backward needs something. */
static inline const char *draw_modules(Draw *d, const Shape *x)
{
    return arena_printf(d->arena, "core_attn%s%s%s", x->dense ? " mlp" : "",
                        x->experts ? " moe" : "",
                        x->shared ? " shared_experts" : "");
}

/* Those of the words that a list does not have. */
static inline const char *draw_without(Draw *d, const char *words,
                                       const char *list)
{
    const char *rest = "";

    for (const char *at = words; *at; at += *at == ' ') {
        const char *word = arena_strndup(d->arena, at, strcspn(at, " "));
        if (!strstr(list, word))
            rest = arena_printf(d->arena, "%s%s%s", rest, *rest ? " " : "",
                                word);
        at += strlen(word);
    }
    return rest;
}

/* What is computed again, and what moves of the rest. */
static inline void draw_memory(Draw *d, const Shape *x)
{
    const char *how = draw_set(d, "training.recompute.granularity",
                               "none none selective selective full");
    const char *rest = draw_modules(d, x), *again;

    if (draw_is(how, "selective")) {
        again = draw_some(d, arena_printf(d->arena, "%s layernorm%s", rest,
                                          x->experts ? " moe_act" : ""));
        draw_put(d, "training.recompute.modules", again);
        rest = draw_without(d, rest, again);
    } else if (draw_is(how, "full")) {
        draw_set(d, "training.recompute.num_layers", "1 1 2 3");
        if (draw_is(draw_set(d, "training.recompute.method", "uniform block"),
                    "uniform"))
            rest = "";
    }
    if (*rest && draw_once_in(d, 3))
        draw_put(d, "training.offload.activations", draw_some(d, rest));
}

/* ---- batches and data ---------------------------------------------------- */

static inline void draw_batch(Draw *d, const Shape *x)
{
    int64_t mbs = draw_number(d, "1 1 2 3");
    int64_t each = mbs * x->dp * (x->folded ? 1 : x->ep);
    int64_t more = x->m - x->least;

    draw_int(d, "training.micro_batch_size", mbs);
    draw_int(d, "training.global_batch_size", each * x->m);
    if (more <= 0 || x->fixed || !draw_once_in(d, 4))
        return;
    if (!x->grouped && draw_once_in(d, 2))
        more = 1;
    draw_put(d, "training.rampup",
             arena_printf(d->arena, "[%lld,%lld,100]",
                          (long long)(each * x->least),
                          (long long)(each * more)));
}

/* Where tokens come from, and which of them count. */
static inline void draw_data(Draw *d)
{
    static const DrawRow kinds[] = {
        {"synthetic", "null"},
        {"tokens", "null mask"},
        {"[tokens,more]", "null [mask,more-mask] [null,more-mask]"},
        {"{\"text\":\"text\"}", "null text-mask"},
    };
    const DrawRow *kind = &kinds[draw_once_in(d, 2) ? 0 : draw_next(d) % 4];

    draw_put(d, "data.train", kind->path);
    draw_set(d, "data.loss_mask", kind->words);
    if (!draw_once_in(d, 4))
        return;
    draw_set(d, "training.eval.interval", "2 10");
    draw_set(d, "training.eval.steps", "10 1");
    if (kind == kinds || draw_once_in(d, 2))
        draw_set(d, "data.valid", "synthetic tokens");
    else
        draw_set(d, "data.split", "969,30,1 90,10");
}

static inline void draw_target(Draw *d)
{
    if (draw_once_in(d, 5)) {
        draw_put(d, "target.backend", "cuda");
        draw_set(d, "target.arch", "sm_80 sm_90a");
    }
}

/* What changes no program: saving, and the machine to predict for. */
static inline void draw_around(Draw *d)
{
    draw_set(d, "target.hardware", "local local h100-sxm a100-80g");
    if (!draw_once_in(d, 3))
        return;
    draw_put(d, "training.checkpoint.dir", "ck");
    draw_set(d, "training.checkpoint.interval", "0 1 100");
    draw_set(d, "training.checkpoint.keep", "1 3 10");
    draw_set(d, "training.checkpoint.async", "true false");
}

/* ---- all of it ----------------------------------------------------------- */

static inline void draw_spec(Draw *d)
{
    Shape x = {.experts = draw_once_in(d, 3), .dense = true};

    d->sets.n = 0;
    draw_degrees(d, &x);
    draw_microbatches(d, &x);
    draw_split(d, &x);
    draw_context(d, &x);
    draw_order(d, &x);
    draw_sequence(d, &x);
    draw_heads(d, &x);
    draw_int(d, "model.ffn_hidden_size", x.tp * draw_number(d, "8 16"));
    if (x.experts)
        draw_experts(d, &x);
    draw_rows(d, draw_free_rows, MC_LEN(draw_free_rows));
    draw_positions(d);
    draw_precision(d);
    draw_optimizer(d);
    draw_rates(d);
    draw_memory(d, &x);
    draw_batch(d, &x);
    draw_data(d);
    draw_target(d);
    draw_around(d);
}

#endif
