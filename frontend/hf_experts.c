/* hf_experts.c - what config.json says about a mixture of experts: which layers
 * have them, which are shared, how the router weighs and chooses.
 */
#include "frontend/hf_priv.h"

enum { LAYERS_MOST = 65536 }; /* the range of model.num_layers */

/* ---- layers -------------------------------------------------------------- */

/* Sets the places that mlp_only_layers names to 0. */
static void dense_layers(const Hf *hf, bool *experts, int64_t layers)
{
    const Node *list = hf_get(hf, "mlp_only_layers");
    int64_t layer;

    if (list->kind != NODE_LIST && !node_is_null(list))
        hf_reject(hf, "mlp_only_layers", list, "a list is expected");
    for (const Node *n = list->first; n; n = n->next) {
        bool ok = n->kind == NODE_SCALAR && str_to_int(n->text, &layer) &&
                  layer >= 0 && layer < layers;
        if (ok)
            experts[layer] = false;
        else
            hf_reject(hf, "mlp_only_layers", n,
                      "a layer from 0 to %lld is expected",
                      (long long)layers - 1);
    }
}

/* transformers counts layers from 1 for decoder_sparse_step … */
static bool qwen_layers(const Hf *hf, bool *experts, int64_t layers)
{
    int64_t step;

    if (!hf_int(hf, "decoder_sparse_step", &step))
        return false;
    if (step < 1) {
        hf_reject(hf, "decoder_sparse_step", hf_get(hf, "decoder_sparse_step"),
                  "at least 1 is expected");
        return false;
    }
    for (int64_t i = 0; i < layers; i++)
        experts[i] = (i + 1) % step == 0;
    dense_layers(hf, experts, layers);
    return true;
}

/* … and from 0 for moe_layer_freq. */
static bool deepseek_layers(const Hf *hf, bool *experts, int64_t layers)
{
    int64_t first, step;

    if (!hf_int(hf, "first_k_dense_replace", &first) ||
        !hf_int(hf, "moe_layer_freq", &step))
        return false;
    if (step < 1) {
        hf_reject(hf, "moe_layer_freq", hf_get(hf, "moe_layer_freq"),
                  "at least 1 is expected");
        return false;
    }
    for (int64_t i = 0; i < layers; i++)
        experts[i] = i >= first && i % step == 0;
    return true;
}

/* Runs as Megatron writes them, "([0]*1+[1]*27)", or 1 for all layers. */
static const char *pattern_text(const Hf *hf, const bool *experts,
                                int64_t layers)
{
    Buf text = {0};
    const char *result;
    int64_t end = 0;

    while (end < layers && experts[end])
        end++;
    if (end == layers)
        return "1";
    for (int64_t i = 0; i < layers; i = end) {
        for (end = i; end < layers && experts[end] == experts[i];)
            end++;
        buf_printf(&text, "%s[%d]*%lld", i ? "+" : "(", experts[i],
                   (long long)(end - i));
    }
    buf_puts(&text, ")");
    result = arena_strdup(hf->arena, buf_str(&text));
    buf_free(&text);
    return result;
}

static bool any_experts(const Hf *hf)
{
    for (int64_t i = 0; i < hf->layers; i++)
        if (hf->experts[i])
            return true;
    return false;
}

void hf_layers_find(Hf *hf)
{
    bool qwen = hf_get(hf, "decoder_sparse_step") != NULL;

    if (hf->dense || (!qwen && !hf_get(hf, "moe_layer_freq")) ||
        !hf_int(hf, "num_hidden_layers", &hf->layers) || hf->layers < 1 ||
        hf->layers > LAYERS_MOST)
        return;
    hf->experts = arena_array(hf->arena, bool, hf->layers);
    if ((qwen ? qwen_layers : deepseek_layers)(hf, hf->experts, hf->layers))
        hf->dense = !any_experts(hf);
}

static void layers_rule(Hf *hf)
{
    const Node *at = hf_get(hf, "mlp_only_layers");

    at = at ? at : hf_get(hf, "first_k_dense_replace");
    if (hf->experts)
        hf_put(hf, "model.moe.layer_freq",
               pattern_text(hf, hf->experts, hf->layers), at->loc);
}

/* DeepSeek's shared experts are one of so many times the width. */
static void shared_count_put(Hf *hf, const Node *n, bool must)
{
    int64_t count, width, product;

    if (!hf_int(hf, "n_shared_experts", &count) ||
        !hf_int(hf, "moe_intermediate_size", &width))
        return;
    if (must && count < 1)
        hf_reject(hf, "n_shared_experts", n, "at least 1 is expected");
    if (__builtin_mul_overflow(count, width, &product))
        product = INT64_MAX;
    hf_put(hf, "model.moe.shared_ffn_hidden_size",
           arena_printf(hf->arena, "%lld", (long long)product), n->loc);
}

/* Families differ in whether there may be none. */
static void shared_rule(Hf *hf)
{
    const Node *count = hf_get(hf, "n_shared_experts");
    const Node *width = hf_get(hf, "shared_expert_intermediate_size");
    bool must = hf_get(hf, "routed_scaling_factor") != NULL;
    int64_t value;

    if (hf->dense)
        return;
    if (count && must && node_is_null(count))
        hf_reject(hf, "n_shared_experts", count, "at least 1 is expected");
    if (count && !node_is_null(count))
        shared_count_put(hf, count, must);
    if (width && hf_int(hf, "shared_expert_intermediate_size", &value) &&
        value < 1)
        hf_reject(hf, "shared_expert_intermediate_size", width,
                  "at least 1 is expected");
}

/* Scores that are sigmoids are normalised, and groups of experts are chosen by
 * the sum of their two best. */
static void sigmoid_rule(Hf *hf)
{
    const Node *groups = hf_get(hf, "n_group");
    bool normalised;
    int64_t n, best, top;

    if (!groups || hf->dense)
        return;
    if (hf_bool(hf, "norm_topk_prob", &normalised) && !normalised)
        hf_reject(hf, "norm_topk_prob", hf_get(hf, "norm_topk_prob"),
                  "only true can be expressed");
    if (node_is_null(groups) || !hf_int(hf, "n_group", &n) || n == 1 ||
        !hf_int(hf, "topk_group", &best) ||
        !hf_int(hf, "num_experts_per_tok", &top))
        return;
    if (top != 2 * best)
        hf_reject(hf, "topk_group", hf_get(hf, "topk_group"),
                  "only half of num_experts_per_tok = %lld can be expressed",
                  (long long)top);
    hf_put(hf, "model.moe.num_groups", groups->text, groups->loc);
    hf_put(hf, "model.moe.group_top_k", hf_get(hf, "topk_group")->text,
           hf_get(hf, "topk_group")->loc);
}

static void balance_rule(Hf *hf)
{
    bool by_sequence;

    if (hf_get(hf, "seq_aux") && hf_bool(hf, "seq_aux", &by_sequence))
        hf_put(hf, "model.moe.balance",
               by_sequence ? "seq_aux_loss" : "aux_loss",
               hf_get(hf, "seq_aux")->loc);
}

void hf_experts_rule(Hf *hf)
{
    layers_rule(hf);
    shared_rule(hf);
    sigmoid_rule(hf);
    balance_rule(hf);
}
