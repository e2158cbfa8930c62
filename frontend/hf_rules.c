/* hf_rules.c - keys of config.json whose meaning depends on other keys.
 *
 * Each rule reads what its family has of such keys and puts the settings that
 * they mean together, or reports why megac has none: which layers see a window,
 * how rotary frequencies are scaled.  Those of experts are in hf_experts.c.
 */
#include "frontend/hf_priv.h"

/* ---- activation and dropout ---------------------------------------------- */

static const struct {
    const char *word; /* transformers': ACT2FN */
    bool gated;       /* the MLP of the family has a gate */
    SpecActivation activation;
} activations[] = {
    {"silu", true, ACT_SWIGLU},
    {"swish", true, ACT_SWIGLU},
    {"gelu", true, ACT_GEGLU},
    {"gelu_new", false, ACT_GELU_TANH},
    {"gelu_pytorch_tanh", false, ACT_GELU_TANH},
    {"gelu", false, ACT_GELU},
    {"silu", false, ACT_SILU},
    {"swish", false, ACT_SILU},
    {"relu", false, ACT_RELU},
    {"relu2", false, ACT_RELU2},
};

const char *hf_activation(bool gated, SpecActivation activation)
{
    for (size_t i = 0; i < MC_LEN(activations); i++)
        if (activations[i].gated == gated &&
            activations[i].activation == activation)
            return activations[i].word;
    return NULL;
}

/* Our word for it. */
static const char *activation_word(const Hf *hf, SpecActivation activation)
{
    int len;
    const char *word = option_word(schema_key("model.activation")->options,
                                   (int)activation, &len);

    return arena_strndup(hf->arena, word, (size_t)len);
}

static void activation_rule(Hf *hf)
{
    bool gated = hf_get(hf, "hidden_act") != NULL;
    const char *name = gated ? "hidden_act" : "activation_function";
    const Node *n = hf_get(hf, name);
    Buf words = {0};

    for (size_t i = 0; i < MC_LEN(activations); i++) {
        if (activations[i].gated != gated)
            continue;
        if (n->kind == NODE_SCALAR && !strcmp(n->text, activations[i].word)) {
            hf_put(hf, "model.activation",
                   activation_word(hf, activations[i].activation), n->loc);
            buf_free(&words);
            return;
        }
        buf_printf(&words, "%s%s", words.len ? ", " : "", activations[i].word);
    }
    hf_reject(hf, name, n, "only %s can be expressed", buf_str(&words));
    buf_free(&words);
}

static bool same_number(const Node *a, const Node *b)
{
    double x, y;

    return a->kind == NODE_SCALAR && b->kind == NODE_SCALAR &&
           str_to_double(a->text, &x) && str_to_double(b->text, &y) &&
           !(x < y || x > y);
}

static void dropout_rule(Hf *hf)
{
    const Node *embedding = hf_get(hf, "embd_pdrop");
    const Node *residual = hf_get(hf, "resid_pdrop");

    if (!embedding || same_number(embedding, residual))
        return;
    hf_reject(hf, "embd_pdrop", embedding,
              "the same share as of residual sums (resid_pdrop) is dropped of "
              "the embedding");
    diag_note(hf->diag, residual->loc, "resid_pdrop = %s",
              residual->kind == NODE_SCALAR ? residual->text : "[…]");
}

/* attention_bias of LLaMA means its output projection too. */
static void bias_rule(Hf *hf)
{
    bool attention, mlp;

    if (!hf_get(hf, "mlp_bias") || !hf_bool(hf, "attention_bias", &attention) ||
        !hf_bool(hf, "mlp_bias", &mlp) || attention == mlp)
        return;
    hf_reject(hf, "attention_bias", hf_get(hf, "attention_bias"),
              "biases of the attention output and of the MLP are there "
              "together or not at all");
    diag_note(hf->diag, hf_get(hf, "mlp_bias")->loc, "mlp_bias = %s",
              mlp ? "true" : "false");
}

/* ---- rotary positions ---------------------------------------------------- */

static const struct {
    const char *word;
    const char *type;
    const char *keys; /* each of which it needs */
} scalings[] = {
    {"default", "none", ""},
    {"linear", "linear", "factor"},
    {"llama3", "llama3",
     "factor low_freq_factor high_freq_factor "
     "original_max_position_embeddings"},
};

static bool is_in(const char *words, const char *name)
{
    return spelling_in(words, name, strlen(name));
}

/* The row of scalings that `map` names; MC_LEN(scalings) after an error.
 * Without a name it is the default. */
static size_t scaling_find(const Hf *hf, const char *key, const Node *map)
{
    const Node *old = node_child(map, "type");
    const Node *n = node_child(map, "rope_type");
    size_t i = 0;

    if (n && old && strcmp(n->text ? n->text : "", old->text ? old->text : ""))
        hf_reject(hf, arena_printf(hf->arena, "%s.type", key), old,
                  "rope_type says otherwise");
    n = n ? n : old;
    if (!n)
        return 0;
    while (i < MC_LEN(scalings) &&
           (n->kind != NODE_SCALAR || strcmp(scalings[i].word, n->text)))
        i++;
    if (i == MC_LEN(scalings))
        hf_reject(hf, arena_printf(hf->arena, "%s.%s", key, n->name), n,
                  "only default, linear, llama3 can be expressed");
    return i;
}

static void scaling_put(Hf *hf, const char *key, const Node *n, size_t kind)
{
    const char *name = arena_printf(hf->arena, "%s.%s", key, n->name);
    double number;

    if (!is_in(scalings[kind].keys, n->name))
        hf_reject(hf, name, n, "not known of rope_type %s",
                  scalings[kind].word);
    else if (n->kind != NODE_SCALAR || n->quoted ||
             !str_to_double(n->text, &number))
        hf_reject(hf, name, n, "a number is expected");
    else
        hf_put(hf,
               arena_printf(hf->arena, "model.rope.scaling.%s", n->name),
               n->text, n->loc);
}

static void scaling_require(const Hf *hf, const char *key, const Node *map,
                            size_t kind)
{
    const char *cursor = scalings[kind].keys;
    Spelling s;

    while (spelling_next(&cursor, &s)) {
        const char *name = arena_strndup(hf->arena, s.text, (size_t)s.len);
        if (!node_child(map, name))
            diag_error(hf->diag, map->loc, "MC0008",
                       "%s.%s is required with rope_type %s", key, name,
                       scalings[kind].word);
    }
}

/* What rotary_put reads. */
static bool is_rotary(const Hf *hf, const char *name)
{
    return is_in("rope_theta partial_rotary_factor", name) && hf_get(hf, name);
}

/* rope_scaling, or rope_parameters, which holds the base too. */
static void scaling_rule(Hf *hf, const char *key, const Node *map)
{
    size_t kind;

    if (map->kind != NODE_MAP) {
        hf_reject(hf, key, map, "an object is expected");
        return;
    }
    kind = scaling_find(hf, key, map);
    if (kind == MC_LEN(scalings))
        return;
    hf_put(hf, "model.rope.scaling.type", scalings[kind].type, map->loc);
    for (const Node *n = map->first; n; n = n->next)
        if (!is_in("rope_type type", n->name) && !is_rotary(hf, n->name))
            scaling_put(hf, key, n, kind);
    scaling_require(hf, key, map, kind);
}

/* Base and share of rotation stand beside rope_scaling, in rope_parameters, or
 * in both. */
static void rotary_put(Hf *hf, const char *name, const Node *map)
{
    const Node *beside = hf_get(hf, name);
    const Node *inside = map->kind == NODE_MAP ? node_child(map, name) : NULL;
    const Node *n = inside ? inside : beside;
    double number;

    if (inside && beside->loc.i != hf->by_family.i &&
        !same_number(inside, beside)) {
        hf_reject(hf, name, beside, "rope_parameters says otherwise");
        diag_note(hf->diag, inside->loc, "here");
    }
    if (n->kind != NODE_SCALAR || n->quoted || !str_to_double(n->text, &number))
        hf_reject(hf, name, n, "a number is expected");
    else
        hf_put(hf, hf_key(hf->family, name)->path, n->text, n->loc);
}

static void rope_rule(Hf *hf)
{
    const Node *scaling = hf_get(hf, "rope_scaling");
    const Node *parameters = hf_get(hf, "rope_parameters");
    bool old, new;

    if (!scaling)
        return;
    old = !node_is_null(scaling);
    new = !node_is_null(parameters);
    if (old && new) {
        hf_reject(hf, "rope_scaling", scaling,
                  "rope_parameters says the same in another way; keep one");
        return;
    }
    rotary_put(hf, "rope_theta", new ? parameters : scaling);
    if (hf_get(hf, "partial_rotary_factor"))
        rotary_put(hf, "partial_rotary_factor", new ? parameters : scaling);
    if (old || new)
        scaling_rule(hf, new ? "rope_parameters" : "rope_scaling",
                     new ? parameters : scaling);
}

/* ---- windows ------------------------------------------------------------- */

static int64_t length(const Node *list)
{
    int64_t n = 0;

    for (const Node *item = list->first; item; item = item->next)
        n++;
    return n;
}

/* What every element of layer_types is; NULL if they differ, which is reported.
 */
static const char *types_all(const Hf *hf, const Node *types)
{
    const char *first = types->first ? types->first->text : NULL;
    const Node *n = types->first;
    int64_t layers;

    if (hf_int(hf, "num_hidden_layers", &layers) && length(types) != layers)
        hf_reject(hf, "layer_types", types, "%lld of %lld layers",
                  (long long)length(types), (long long)layers);
    while (n && first && n->kind == NODE_SCALAR && !strcmp(n->text, first))
        n = n->next;
    if (first && !n && is_in("full_attention sliding_attention", first))
        return first;
    hf_reject(hf, "layer_types", n ? n : types,
              "all layers are full_attention, or all sliding_attention");
    return NULL;
}

/* Whether the first max_window_layers see everything, and the others not. */
static bool later_layers_slide(const Hf *hf)
{
    int64_t full, layers;

    if (!hf_int(hf, "max_window_layers", &full) ||
        !hf_int(hf, "num_hidden_layers", &layers) || full <= 0)
        return true;
    if (full < layers)
        hf_reject(hf, "max_window_layers", hf_get(hf, "max_window_layers"),
                  "all %lld layers see the same window", (long long)layers);
    return false;
}

/* Of Qwen2-MoE, versions of transformers disagree which layers those are. */
static bool layers_slide(const Hf *hf)
{
    if (hf_get(hf, "max_window_layers"))
        return later_layers_slide(hf);
    if (hf_get(hf, "layer_types"))
        hf_reject(hf, "use_sliding_window", hf_get(hf, "use_sliding_window"),
                  "layer_types has to say of which layers");
    return true;
}

/* What use_sliding_window says; families without it always use a window. */
static bool window_is_on(const Hf *hf)
{
    bool use = true;

    return !hf_get(hf, "use_sliding_window") ||
           (hf_bool(hf, "use_sliding_window", &use) && use);
}

/* What layer_types says.  Without use_sliding_window, transformers then has no
 * window for its layers, and fails. */
static bool types_slide(const Hf *hf, const Node *types)
{
    const char *all = types_all(hf, types);
    bool slide = all && !strcmp(all, "sliding_attention");

    if (slide && !window_is_on(hf)) {
        hf_reject(hf, "use_sliding_window", hf_get(hf, "use_sliding_window"),
                  "layer_types says otherwise");
        diag_note(hf->diag, types->loc, "layer_types is all %s", all);
    }
    return slide;
}

static bool window_is_used(const Hf *hf, const Node *window)
{
    const Node *types = hf_get(hf, "layer_types");

    if (types && !node_is_null(types))
        return types_slide(hf, types);
    return !node_is_null(window) && window_is_on(hf) && layers_slide(hf);
}

static void window_rule(Hf *hf)
{
    const Node *n = hf_get(hf, "sliding_window");
    int64_t window;

    if (!n || !window_is_used(hf, n) ||
        !hf_int(hf, "sliding_window", &window))
        return;
    if (window < 1)
        hf_reject(hf, "sliding_window", n, "at least 1 is expected");
    hf_put(hf, "model.sliding_window", n->text, n->loc);
}

/* ---- all ----------------------------------------------------------------- */

void hf_rules(Hf *hf)
{
    static void (*const rules[])(Hf *) = {
        activation_rule, dropout_rule, bias_rule,
        rope_rule,       window_rule,  hf_experts_rule,
    };

    for (size_t i = 0; i < MC_LEN(rules); i++)
        rules[i](hf);
}
