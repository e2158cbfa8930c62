/* random_spec.h - for tests: a spec drawn from the schema's legal space.
 *
 * What depends on nothing is drawn from tables of words.  Degrees come first;
 * what has to suit them is drawn as a multiple or a divisor of them, so that
 * most draws are legal.  Whether all rules hold is left to the frontend: a draw
 * that it rejects, with a reason, is drawn again.
 */
#ifndef MEGAC_TESTS_RANDOM_SPEC_H
#define MEGAC_TESTS_RANDOM_SPEC_H

#include "tests/unit/models.h"
#include "tests/unit/random_draw.h"

/* What later choices have to suit. */
typedef struct {
    int64_t tp, pp, cp, ep, dp, vpp, layers;
    int64_t etp;
    int64_t left;   /* how many times more ranks there may be */
    int64_t heads;  /* ranks that attention splits heads over, at most */
    int64_t m;      /* microbatches … */
    int64_t least;  /* … of a smaller batch */
    bool experts, shared, dense; /* kinds of MLP */
    bool folded;    /* experts on the ranks of the dense layers */
    bool grouped;   /* interleaved: whole groups of microbatches */
    bool fixed;     /* as many microbatches as a file has */
} Shape;

static inline bool draw_is(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

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
    {"model.sliding_window", "0 0 0 1 5 16"},
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
    {"parallel.overlap.p2p", "true true false"},
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

/* ---- degrees ------------------------------------------------------------- */

/* A degree, and with it so many times more ranks; 1 if they are too many. */
static inline int64_t draw_degree(Draw *d, Shape *x, const char *words)
{
    int64_t n = draw_number(d, words);

    if (n > x->left)
        n = 1;
    x->left /= n;
    return n;
}

/* Of a list of sizes one that divides n; 1 if it does not. */
static inline int64_t draw_divisor(Draw *d, const char *words, int64_t n)
{
    int64_t size = draw_number(d, words);

    return n % size ? 1 : size;
}

/* Experts on ranks of their own, or folded over those of tp, cp and dp. */
static inline void draw_expert_grid(Draw *d, Shape *x)
{
    int64_t ranks = x->tp * x->cp * x->dp * x->ep;
    bool given = draw_once_in(d, 2);

    x->etp = x->tp;
    if (given) {
        x->etp = draw_divisor(d, "1 1 2 4", ranks / x->ep);
        draw_int(d, "parallel.etp", x->etp);
    }
    if (x->folded) {
        x->ep = draw_divisor(d, "2 2 3 4 8", ranks / x->etp);
        draw_int(d, "parallel.world_size", ranks * x->pp);
    } else {
        draw_int(d, "parallel.dp", x->dp);
    }
    draw_int(d, "parallel.ep", x->ep);
}

static inline void draw_degrees(Draw *d, Shape *x)
{
    bool sp;

    x->left = draw_number(d, "4 8 8 8 16 16 32");
    x->folded = x->experts && draw_once_in(d, 2);
    x->ep = x->experts && !x->folded ? draw_degree(d, x, "1 2 2 3 4") : 1;
    x->tp = draw_degree(d, x, "1 1 2 2 3 4 8");
    x->pp = draw_degree(d, x, "1 1 2 2 3 4");
    x->cp = draw_degree(d, x, "1 1 1 2 3 4");
    x->dp = draw_degree(d, x, "1 1 2 3 4");
    if (x->experts)
        draw_expert_grid(d, x);
    else
        draw_int(d, "parallel.dp", x->dp);
    draw_int(d, "parallel.tp", x->tp);
    draw_int(d, "parallel.pp", x->pp);
    draw_int(d, "parallel.cp", x->cp);
    sp = x->tp > 1 && (x->ep > 1 || draw_once_in(d, 2));
    draw_put(d, "parallel.sp", sp ? "true" : "false");
}

/* With experts both grids need the same pipelines, which pp at an end gives. */
static inline void draw_order(Draw *d, const Shape *x)
{
    const char *axis[] = {"tp", "cp", "ep", "dp", "pp"};
    uint64_t mixed = x->experts && x->pp > 1 ? 4 : 5;

    if (!draw_once_in(d, 3))
        return;
    for (uint64_t n = mixed; n > 1; n--) {
        uint64_t i = draw_next(d) % n;
        const char *last = axis[n - 1];
        axis[n - 1] = axis[i];
        axis[i] = last;
    }
    draw_put(d, "parallel.order",
             arena_printf(d->arena, "%s-%s-%s-%s-%s", axis[0], axis[1],
                          axis[2], axis[3], axis[4]));
}

/* ---- stages -------------------------------------------------------------- */

static const char draw_file[] =
    MEGAC_SOURCE_DIR "/tests/golden/schedule/bfs-2-2-4.csv";

/* Schedules that fit the number of chunks. */
static inline const char *draw_schedule(Draw *d, Shape *x)
{
    const char *schedules = "auto gpipe 1f1b zb-h1";

    x->vpp = draw_number(d, x->pp == 1   ? "1"
                            : x->pp == 4 ? "1 1 2"
                                         : "1 1 2 2 3");
    if (x->pp == 1)
        schedules = "auto gpipe 1f1b";
    else if (x->vpp == 2)
        schedules = "interleaved interleaved zb-v dualpipe-v";
    else if (x->vpp > 2)
        schedules = "auto interleaved";
    draw_int(d, "parallel.vpp", x->vpp);
    if (x->pp != 2 || x->vpp != 2 || !draw_once_in(d, 4))
        return draw_set(d, "parallel.schedule", schedules);
    draw_put(d, "parallel.schedule", draw_file);
    return draw_file;
}

/* As many microbatches as the schedule takes, and for a smaller batch. */
static inline void draw_microbatches(Draw *d, Shape *x)
{
    const char *schedule = draw_schedule(d, x);
    int64_t group = x->pp + draw_number(d, "0 0 1 2");

    x->least = 1;
    x->m = draw_number(d, "1 2 3 5");
    x->fixed = draw_is(schedule, draw_file);
    x->grouped = x->vpp > 1 && (draw_is(schedule, "interleaved") ||
                                draw_is(schedule, "auto"));
    if (x->fixed)
        x->m = 4;
    if (draw_is(schedule, "dualpipe-v")) {
        x->least = 2 * x->pp;
        x->m = x->least + draw_number(d, "0 1 2");
    }
    if (x->grouped) {
        x->least = group;
        x->m = group + draw_number(d, "0 1 1") * (draw_once_in(d, 2) ? x->pp
                                                                     : group);
        if (group > x->pp)
            draw_int(d, "parallel.microbatch_group", group);
    }
}

/* "Ett|t||t*2L" or [2,1,0,2]: which stage holds how many layers. */
static inline int64_t draw_layout(Draw *d, const Shape *x)
{
    int64_t stages = x->pp * x->vpp, layers = 0;
    const char *text = "E", *list = "";

    for (int64_t i = 0; i < stages; i++) {
        bool empty = i == 0 || i == stages - 1 || i >= x->pp;
        int64_t n = draw_number(d, empty ? "0 1 1 2" : "1 1 1 2");
        if (i == stages - 1 && layers + n == 0)
            n = 1;
        text = arena_printf(d->arena, "%s%s%s", text, i ? "|" : "",
                            n == 2   ? draw_word(d, "tt t*2 (t)*2")
                            : n == 1 ? "t"
                                     : "");
        list = draw_append(d, list, arena_printf(d->arena, "%d", (int)n));
        layers += n;
    }
    draw_put(d, "parallel.pp_layout",
             draw_once_in(d, 3)
                 ? arena_printf(d->arena, "%s]", list)
                 : arena_printf(d->arena, "\"%sL\"", text));
    return layers;
}

/* Embedding and loss in the place of a layer each. */
static inline int64_t draw_accounts(Draw *d, const Shape *x, int64_t even)
{
    int64_t which = draw_number(d, "1 2 3");

    draw_put(d, "parallel.account_for_embedding", which & 1 ? "true" : "false");
    draw_put(d, "parallel.account_for_loss", which & 2 ? "true" : "false");
    even -= (which & 1) + (which >> 1);
    return even > 0 ? even : even + x->pp * x->vpp;
}

/* Splits the model into stages. */
static inline void draw_split(Draw *d, Shape *x)
{
    int64_t each = x->vpp * draw_number(d, "1 1 1 2");
    int64_t first = x->vpp * draw_number(d, "1 2");
    int64_t last = x->vpp * draw_number(d, "1 2");

    x->layers = x->pp > 1 ? x->pp * each : draw_number(d, "1 2 3");
    switch (x->pp > 1 ? draw_next(d) % 7 : 0) {
    case 1:
        x->layers = draw_layout(d, x);
        break;
    case 2:
        draw_int(d, "parallel.pp_first_layers", first);
        x->layers += first - each;
        break;
    case 3:
        draw_int(d, "parallel.pp_last_layers", last);
        x->layers += last - each;
        break;
    case 4:
        draw_int(d, "parallel.pp_first_layers", first);
        draw_int(d, "parallel.pp_last_layers", last);
        x->layers += first + last - 2 * each;
        break;
    case 5:
        x->layers = draw_accounts(d, x, x->layers);
        break;
    default:
        break;
    }
    draw_int(d, "model.num_layers", x->layers);
}

/* ---- the sequence -------------------------------------------------------- */

/* One way of attention; heads are split over `a2a` ranks of cp if mixed. */
static inline const char *draw_way(Draw *d, Shape *x, int64_t a2a)
{
    const char *way = draw_word(d, "p2p all_gather a2a a2a+p2p");
    int64_t parts = draw_is(way, "a2a")       ? x->cp
                    : draw_is(way, "a2a+p2p") ? a2a
                                              : 1;

    x->heads = MC_MAX(x->heads, x->tp * parts);
    return way;
}

/* One way for all layers, or one for each. */
static inline void draw_context(Draw *d, Shape *x)
{
    int64_t a2a = x->cp == 4 ? draw_number(d, "1 2 2 4")
                             : draw_once_in(d, 2) ? 1 : x->cp;
    const char *list = "";

    x->heads = x->tp;
    if (x->cp == 1)
        return;
    draw_put(d, "parallel.cp_sizes",
             arena_printf(d->arena, "[%d,%d]", (int)a2a, (int)(x->cp / a2a)));
    if (!draw_once_in(d, 4)) {
        draw_put(d, "parallel.cp_comm", draw_way(d, x, a2a));
        return;
    }
    for (int64_t i = 0; i < x->layers; i++)
        list = draw_append(d, list, draw_way(d, x, a2a));
    draw_put(d, "parallel.cp_comm", arena_printf(d->arena, "%s]", list));
}

/* Whole zigzag chunks of cp, and whole parts of them for tp. */
static inline void draw_sequence(Draw *d, const Shape *x)
{
    int64_t odd = x->tp % 2 ? 2 * x->tp : x->tp;
    int64_t unit = x->cp > 1 ? x->cp * odd : x->tp;
    int64_t length = unit * draw_number(d, "1 2 3");

    while (length < 6)
        length += unit;
    draw_int(d, "training.seq_length", length);
    draw_int(d, "model.max_position_embeddings",
             length * draw_number(d, "1 2"));
}

static inline bool draw_divides(int64_t a, int64_t b)
{
    return a % b == 0 || b % a == 0;
}

/* Every rank has whole groups, or its share of the queries of one. */
static inline void draw_heads(Draw *d, const Shape *x)
{
    int64_t groups = x->tp, each;

    for (int tries = 0; tries < 8; tries++) {
        int64_t n = draw_number(d, "1 2 3 4 6 8");
        if (draw_divides(n, x->tp) && draw_divides(n, x->heads))
            groups = n;
    }
    each = MC_MAX(x->heads / groups, 1) * draw_number(d, "1 1 2");
    draw_int(d, "model.num_query_groups", groups);
    draw_int(d, "model.num_attention_heads", groups * each);
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
}

#endif
