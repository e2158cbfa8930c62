/* hf_write.c - from a Spec to Hugging Face's config.json.
 *
 * A family can express a model if the config.json that it would write reads
 * back to the same model, so that is what is tried, family by family:
 *
 *   Spec ─ hf.def ─> config.json ─ import_hf.c ─> Spec, the same?
 *
 * How a model is trained (dropout, balancing of experts, padding) is no part of
 * what it is, and is not compared.
 */
#include "frontend/hf_priv.h"

/* ---- values -------------------------------------------------------------- */

/* The value of a key as JSON; a Float always looks like one. */
static void value_write(const Spec *s, const char *path, Buf *out)
{
    const Key *key = schema_key(path);
    size_t start = out->len;

    value_print(key, s, out);
    if (key->kind == KIND_FLOAT && !strpbrk(out->s + start, ".en"))
        buf_puts(out, ".0");
}

static void activation_write(const Spec *s, const HfKey *row, Buf *out)
{
    const char *word = hf_activation(
        strcmp(row->names, "hidden_act") == 0, s->model.activation);

    buf_printf(out, "\"%s\"", word ? word : row->fallback);
}

static void path_write(const Spec *s, const HfKey *row, Buf *out)
{
    value_write(s, row->path, out);
}

static void scaling_write(const Spec *s, const HfKey *row, Buf *out)
{
    static const char section[] = "model.rope.scaling.";
    bool llama3 = s->model.rope.scaling.type == ROPE_LLAMA3;

    (void)row;
    if (s->model.rope.scaling.type == ROPE_NONE) {
        buf_puts(out, "null");
        return;
    }
    buf_printf(out, "{\"rope_type\": \"%s\"", llama3 ? "llama3" : "linear");
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        bool used = llama3 || !strcmp(key->name, "factor");
        if (strncmp(key->path, section, strlen(section)) != 0 ||
            key->kind == KIND_CHOICE || !used)
            continue;
        buf_printf(out, ", \"%s\": ", key->name);
        value_write(s, key->path, out);
    }
    buf_puts(out, "}");
}

static void window_write(const Spec *s, const HfKey *row, Buf *out)
{
    if (s->model.sliding_window)
        value_write(s, row->path, out);
    else
        buf_puts(out, "null");
}

static void use_window_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)row;
    buf_puts(out, s->model.sliding_window ? "true" : "false");
}

static void full_layers_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)row;
    buf_printf(out, "%lld",
               s->model.sliding_window ? 0LL : (long long)s->model.num_layers);
}

static void types_write(const Spec *s, const HfKey *row, Buf *out)
{
    if (!s->model.sliding_window) {
        buf_puts(out, row->fallback);
        return;
    }
    for (int64_t l = 0; l < s->model.num_layers; l++)
        buf_printf(out, "%s\"sliding_attention\"", l ? ", " : "[");
    buf_puts(out, "]");
}

static void fallback_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)s;
    buf_puts(out, row->fallback);
}

static void dense_layers_write(const Spec *s, const HfKey *row, Buf *out)
{
    const char *comma = "";

    (void)row;
    buf_puts(out, "[");
    for (int64_t l = 0; l < s->model.num_layers; l++) {
        if (spec_layer(s, l)->experts)
            continue;
        buf_printf(out, "%s%lld", comma, (long long)l);
        comma = ", ";
    }
    buf_puts(out, "]");
}

/* The first layer with experts that is not below `from`. */
static int64_t experts_from(const Spec *s, int64_t from)
{
    while (from < s->model.num_layers && !spec_layer(s, from)->experts)
        from++;
    return from;
}

static void first_experts_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)row;
    buf_printf(out, "%lld", (long long)experts_from(s, 0));
}

/* How far apart they are; of a single one, far enough for no second. */
static void every_experts_write(const Spec *s, const HfKey *row, Buf *out)
{
    int64_t first = experts_from(s, 0), next = experts_from(s, first + 1);
    int64_t step = next - first;

    (void)row;
    if (next >= s->model.num_layers)
        step = first ? first : s->model.num_layers;
    buf_printf(out, "%lld", (long long)step);
}

static void shared_write(const Spec *s, const HfKey *row, Buf *out)
{
    int64_t shared = s->model.moe.shared_ffn_hidden_size;

    if (shared)
        buf_printf(out, "%lld",
                   (long long)(shared / s->model.moe.ffn_hidden_size));
    else
        buf_puts(out, row->fallback);
}

static void balance_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)row;
    buf_puts(out,
             s->model.moe.balance == MOE_SEQ_AUX_LOSS ? "true" : "false");
}

static void groups_write(const Spec *s, const HfKey *row, Buf *out)
{
    bool all = strcmp(row->names, "n_group") == 0;

    buf_printf(out, "%lld",
               (long long)MC_MAX(all ? s->model.moe.num_groups
                                     : s->model.moe.group_top_k, 1));
}

static void true_write(const Spec *s, const HfKey *row, Buf *out)
{
    (void)s;
    (void)row;
    buf_puts(out, "true");
}

/* Of keys with a rule.  Those without a row here say what others say. */
static const struct {
    const char *name;
    void (*write)(const Spec *s, const HfKey *row, Buf *out);
} writers[] = {
    {"hidden_act", activation_write},
    {"activation_function", activation_write},
    {"embd_pdrop", path_write},
    {"rope_theta", path_write},
    {"partial_rotary_factor", path_write},
    {"rope_scaling", scaling_write},
    {"sliding_window", window_write},
    {"use_sliding_window", use_window_write},
    {"max_window_layers", full_layers_write},
    {"layer_types", types_write},
    {"decoder_sparse_step", fallback_write},
    {"mlp_only_layers", dense_layers_write},
    {"first_k_dense_replace", first_experts_write},
    {"moe_layer_freq", every_experts_write},
    {"n_shared_experts", shared_write},
    {"seq_aux", balance_write},
    {"norm_topk_prob", true_write},
    {"n_group", groups_write},
    {"topk_group", groups_write},
};

/* ---- a file -------------------------------------------------------------- */

static void key_write(Buf *out, const HfKey *row)
{
    buf_printf(out, ",\n  \"%.*s\": ", (int)strcspn(row->names, " "),
               row->names);
}

static void rule_write(const Spec *s, const HfKey *row, Buf *out)
{
    for (size_t i = 0; i < MC_LEN(writers); i++) {
        if (strcmp(row->names, writers[i].name) != 0)
            continue;
        key_write(out, row);
        writers[i].write(s, row, out);
    }
}

static bool is_off(const Spec *s, const HfKey *row)
{
    return s->model.moe.num_experts == 0 &&
           path_is_inside("model.moe", row->path);
}

static void row_write(const Spec *s, const HfKey *row, Buf *out)
{
    if (row->use == HF_RULE)
        rule_write(s, row, out);
    if (row->use != HF_COPY && row->use != HF_MAYBE && row->use != HF_NOT)
        return;
    key_write(out, row);
    if (is_off(s, row))
        buf_puts(out, row->fallback);
    else if (row->use == HF_NOT)
        buf_puts(out, *(const bool *)key_value(schema_key(row->path), s)
                          ? "false"
                          : "true");
    else
        value_write(s, row->path, out);
}

/* The tokens that begin and end a text are not known here. */
static void family_write(const Spec *s, uint32_t family, const char *dtype,
                         Buf *out)
{
    buf_printf(out, "{\n  \"model_type\": \"%s\"", hf_families[family].type);
    buf_printf(out, ",\n  \"architectures\": [\"%s\"]",
               hf_families[family].architecture);
    buf_printf(out, ",\n  \"torch_dtype\": \"%s\"", dtype);
    buf_puts(out, ",\n  \"bos_token_id\": null,\n  \"eos_token_id\": null");
    for (uint32_t i = 0; i < hf_num_keys; i++)
        if (hf_keys[i].families >> family & 1)
            row_write(s, &hf_keys[i], out);
    buf_puts(out, "\n}\n");
}

/* ---- is it the same model? ----------------------------------------------- */

/* Of no layer. */
static bool is_unused(const Spec *s, const Key *key)
{
    if (strcmp(key->path, "model.ffn_hidden_size") != 0)
        return false;
    for (int64_t l = 0; l < s->model.num_layers; l++)
        if (!spec_layer(s, l)->experts)
            return false;
    return true;
}

static bool layers_same(const Spec *a, const Spec *b)
{
    for (int64_t l = 0; l < a->model.num_layers; l++)
        if (spec_layer(a, l)->experts != spec_layer(b, l)->experts)
            return false;
    return true;
}

static bool value_same(const Spec *a, const Spec *b, const Key *key)
{
    Buf left = {0}, right = {0};
    bool same;

    if (strcmp(key->path, "model.moe.layer_freq") == 0)
        return a->model.num_layers != b->model.num_layers || layers_same(a, b);
    value_print(key, a, &left);
    value_print(key, b, &right);
    same = strcmp(buf_str(&left), buf_str(&right)) == 0;
    buf_free(&left);
    buf_free(&right);
    return same;
}

static bool key_differs(const Spec *a, const Spec *b, const Key *key)
{
    return path_is_inside("model", key->path) && !spec_key_only_trains(key) &&
           !is_unused(a, key) && !value_same(a, b, key);
}

static uint32_t differences(const Spec *a, const Spec *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < schema_num_keys; i++)
        n += key_differs(a, b, &schema_keys[i]);
    return n;
}

static void differences_report(Diag *d, const Spec *s, const Spec *closest,
                               const char *type)
{
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        Buf ours = {0}, theirs = {0};
        if (!key_differs(s, closest, key))
            continue;
        value_print(key, s, &ours);
        value_print(key, closest, &theirs);
        diag_error(d, spec_loc(s, key->path), "MC0033",
                   "%s = %s: no model of transformers has this beside the "
                   "rest; the closest, %s, has %s",
                   key->path, buf_str(&ours), type, buf_str(&theirs));
        buf_free(&ours);
        buf_free(&theirs);
    }
}

typedef struct {
    const Spec *s, *closest;
    uint32_t differences, family;
} Search;

/* Writes the text if it reads back to the same model; else notes how close it
 * comes.  What is reported meanwhile is about that text, and no one's. */
static void family_try(Arena *a, Search *search, uint32_t family,
                       const char *dtype, Buf *out)
{
    Diag *own = diag_new(a);
    Buf text = {0};
    const Spec *back;
    uint32_t n;

    family_write(search->s, family, dtype, &text);
    back = hf_config_parse(a, own, "config.json", buf_str(&text), text.len,
                           NULL, 0);
    n = back ? differences(search->s, back) : UINT32_MAX;
    if (n == 0)
        buf_write(out, text.s, text.len);
    if (n < search->differences)
        *search = (Search){search->s, back, n, family};
    buf_free(&text);
    diag_free(own);
}

bool hf_config_write(Arena *a, Diag *d, const Spec *s, const char *dtype,
                     Buf *out)
{
    Search search = {.s = s, .differences = UINT32_MAX};

    for (uint32_t i = 0; i < hf_num_families && search.differences; i++)
        family_try(a, &search, i, dtype, out);
    if (search.differences && search.closest)
        differences_report(d, s, search.closest,
                           hf_families[search.family].type);
    else if (search.differences)
        diag_error(d, spec_loc(s, "model.name"), "MC0033",
                   "no family of transformers has a model like this one");
    return search.differences == 0;
}
