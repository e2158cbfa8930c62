/* import_hf.c - from Hugging Face's config.json to a Spec.
 *
 *   config.json ─ json_read_text ─> nodes ─ hf.def, hf_rules.c ─> a tree under
 *   megac's own keys, each value at its place in config.json ─ load.c ─> Spec
 *
 * Every key of config.json must be a row of hf.def for its family; what the
 * file leaves out has the default of that row, which is transformers'.  The
 * rules of check.c then hold for an imported model as for any other, and point
 * at config.json.
 */
#include "frontend/hf_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Longer samples than this are rarely what a first training is made with. */
enum { SEQ_LENGTH_MOST = 4096 };

/* ---- what config.json says ----------------------------------------------- */

/* Under any of the names of a row. */
static const Node *given(const Hf *hf, const HfKey *row)
{
    const char *cursor = row->names;
    const Node *found = NULL;
    Spelling s;

    while (!found && spelling_next(&cursor, &s))
        for (const Node *n = hf->config->first; n && !found; n = n->next)
            if (spelling_is(&s, n->name))
                found = n;
    return found;
}

static const Node *row_value(const Hf *hf, const HfKey *row)
{
    const Node *n = given(hf, row);
    Node *made;

    if (n)
        return n;
    made = arena_new_of(hf->arena, Node);
    made->kind = NODE_SCALAR;
    made->text = row->fallback;
    made->loc = made->name_loc = hf->by_family;
    return made;
}

const Node *hf_get(const Hf *hf, const char *name)
{
    const HfKey *row = hf_key(hf->family, name);

    return row && row->use != HF_IGNORE ? row_value(hf, row) : NULL;
}

void hf_put(Hf *hf, const char *path, const char *text, Loc loc)
{
    if (!hf->dense || !path_is_inside("model.moe", path))
        node_put(hf->arena, hf->spec, path, text, loc);
}

/* ---- errors -------------------------------------------------------------- */

static const char *value_text(const Hf *hf, const Node *n)
{
    if (n->kind != NODE_SCALAR)
        return n->kind == NODE_MAP ? "{…}" : "[…]";
    return n->quoted ? arena_printf(hf->arena, "\"%s\"", n->text) : n->text;
}

void hf_reject(const Hf *hf, const char *name, const Node *value,
               const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    diag_error(hf->diag, value->loc, "MC0032", "%s = %s: %s", name,
               value_text(hf, value), arena_vprintf(hf->arena, fmt, ap));
    va_end(ap);
}

static bool type_reject(const Hf *hf, const char *name, const Node *n,
                        const char *expected)
{
    diag_error(hf->diag, n->loc, "MC0005", "%s must be %s, not %s", name,
               expected, value_text(hf, n));
    return false;
}

/* ---- values by kind ------------------------------------------------------ */

static bool is_bool(const Node *n)
{
    return n->kind == NODE_SCALAR && !n->quoted &&
           (!strcmp(n->text, "true") || !strcmp(n->text, "false"));
}

/* Of a row that has no rule, row_import reports it. */
static bool kind_reject(const Hf *hf, const char *name, const Node *n,
                        const char *expected)
{
    if (hf_key(hf->family, name)->use == HF_RULE)
        type_reject(hf, name, n, expected);
    return false;
}

bool hf_int(const Hf *hf, const char *name, int64_t *out)
{
    const Node *n = hf_get(hf, name);

    if (n->kind == NODE_SCALAR && !n->quoted && str_to_int(n->text, out))
        return true;
    return kind_reject(hf, name, n, "an integer");
}

bool hf_bool(const Hf *hf, const char *name, bool *out)
{
    const Node *n = hf_get(hf, name);

    if (!is_bool(n))
        return kind_reject(hf, name, n, "true or false");
    *out = strcmp(n->text, "true") == 0;
    return true;
}

/* Whether a value can be one of `path`; its range is value.c's matter. */
static bool kind_check(const Hf *hf, const HfKey *row, const Node *n)
{
    Kind kind = schema_key(row->path)->kind;
    bool plain = n->kind == NODE_SCALAR && !n->quoted && !node_is_null(n);
    double number;
    int64_t whole;

    if (kind == KIND_BOOL)
        return is_bool(n) || type_reject(hf, row->names, n, "true or false");
    if (kind == KIND_INT && !(plain && str_to_int(n->text, &whole)))
        return type_reject(hf, row->names, n, "an integer");
    if (kind == KIND_FLOAT && !(plain && str_to_double(n->text, &number)))
        return type_reject(hf, row->names, n, "a number");
    return true;
}

/* ---- rows ---------------------------------------------------------------- */

/* Says as much as leaving it out: null, or nothing in it. */
static bool is_nothing(const Node *n)
{
    return n->kind == NODE_SCALAR ? node_is_null(n) : n->first == NULL;
}

static bool only_holds(const HfKey *row, const Node *n)
{
    double value, allowed;

    if (strcmp(row->fallback, "null") == 0 || n->kind != NODE_SCALAR)
        return is_nothing(n) && strcmp(row->fallback, "null") == 0;
    if (strcmp(row->fallback, n->text) == 0)
        return true;
    return !n->quoted && str_to_double(n->text, &value) &&
           str_to_double(row->fallback, &allowed) &&
           !(value < allowed || value > allowed);
}

static void row_copy(Hf *hf, const HfKey *row)
{
    const Node *n = row_value(hf, row);
    const char *text = n->text;

    if (row->use == HF_MAYBE && node_is_null(n))
        return;
    if (!kind_check(hf, row, n))
        return;
    if (row->use == HF_NOT)
        text = strcmp(text, "true") == 0 ? "false" : "true";
    hf_put(hf, row->path, text, n->loc);
}

static void row_import(Hf *hf, const HfKey *row)
{
    const Node *n = row_value(hf, row);

    switch (row->use) {
    case HF_COPY:
    case HF_MAYBE:
    case HF_NOT:
        row_copy(hf, row);
        break;
    case HF_ONLY:
        if (!only_holds(row, n))
            hf_reject(hf, row->names, n, "only %s can be expressed",
                      row->fallback);
        break;
    case HF_RULE:
    case HF_IGNORE:
        break;
    }
}

static void rows_import(Hf *hf)
{
    for (uint32_t i = 0; i < hf_num_facts; i++)
        if (hf_facts[i].families >> hf->family & 1)
            hf_put(hf, hf_facts[i].path, hf_facts[i].value, hf->by_family);
    for (uint32_t i = 0; i < hf_num_keys; i++)
        if (hf_keys[i].families >> hf->family & 1)
            row_import(hf, &hf_keys[i]);
}

/* ---- keys that are no rows ----------------------------------------------- */

static bool is_header(const char *name)
{
    return !strcmp(name, "model_type") || !strcmp(name, "architectures");
}

static void unknown_report(const Hf *hf, const Node *n)
{
    unsigned best = (unsigned)strlen(n->name) / 3 + 1;
    const char *closest = NULL;

    for (uint32_t i = 0; i < hf_num_keys; i++) {
        const HfKey *row = &hf_keys[i];
        unsigned distance = str_distance(n->name, row->names);
        if (row->families >> hf->family & 1 && distance < best) {
            best = distance;
            closest = row->names;
        }
    }
    diag_error(hf->diag, n->name_loc, "MC0031",
               "%s = %s: not known of models of type %s", n->name,
               value_text(hf, n), hf_families[hf->family].type);
    if (closest)
        diag_help(hf->diag, "did you mean `%.*s`?",
                  (int)strcspn(closest, " "), closest);
    else
        diag_help(hf->diag, "if it does not change the model: --ignore %s",
                  n->name);
}

static void keys_check(const Hf *hf, const char *const *ignored, uint32_t n)
{
    for (const Node *k = hf->config->first; k; k = k->next) {
        const HfKey *row = hf_key(hf->family, k->name);
        const Node *other = row && row->use != HF_IGNORE ? given(hf, row) : k;
        if (other != k) {
            diag_error(hf->diag, k->name_loc, "MC0004",
                       "%s means the same as %s", k->name, other->name);
            diag_note(hf->diag, other->name_loc, "the first one is here");
        } else if (!row && !is_header(k->name) &&
                   !text_is_listed(ignored, n, k->name)) {
            unknown_report(hf, k);
        }
    }
}

/* ---- the family ---------------------------------------------------------- */

static void families_help(Diag *d)
{
    Buf all = {0};

    for (uint32_t i = 0; i < hf_num_families; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", hf_families[i].type);
    diag_help(d, "model types that can be imported: %s", buf_str(&all));
    buf_free(&all);
}

static bool type_find(Hf *hf)
{
    const Node *n = node_child(hf->config, "model_type");

    if (!n) {
        diag_error(hf->diag, hf->config->loc, "MC0008",
                   "model_type is required");
        families_help(hf->diag);
        return false;
    }
    hf->family = n->kind == NODE_SCALAR ? hf_family(n->text) : hf_num_families;
    if (hf->family < hf_num_families)
        return true;
    diag_error(hf->diag, n->loc, "MC0030", "model_type %s cannot be imported",
               value_text(hf, n));
    families_help(hf->diag);
    return false;
}

/* Another head than the language model's is another model. */
static void architecture_check(const Hf *hf)
{
    const Node *list = node_child(hf->config, "architectures");
    const HfFamily *family = &hf_families[hf->family];

    if (!list || is_nothing(list))
        return;
    for (const Node *n = list->first; n; n = n->next)
        if (n->kind == NODE_SCALAR && !strcmp(n->text, family->architecture))
            return;
    if (list->first)
        list = list->first;
    diag_error(hf->diag, list->loc, "MC0030",
               "architecture %s cannot be imported", value_text(hf, list));
    diag_help(hf->diag, "of model_type %s: %s", family->type,
              family->architecture);
}

static bool is_dense(const Hf *hf)
{
    for (uint32_t i = 0; i < hf_num_keys; i++)
        if (hf_keys[i].families >> hf->family & 1 &&
            strcmp(hf_keys[i].path, "model.moe.num_experts") == 0)
            return node_is_null(row_value(hf, &hf_keys[i]));
    return true;
}

/* ---- the rest of the specification --------------------------------------- */

static void training_put(Hf *hf)
{
    const Node *n = hf_get(hf, "max_position_embeddings");
    int64_t most;

    if (n->kind != NODE_SCALAR || !str_to_int(n->text, &most))
        return;
    most = MC_MIN(most, SEQ_LENGTH_MOST);
    hf_put(hf, "training.seq_length",
           arena_printf(hf->arena, "%lld", (long long)most), n->loc);
    hf_put(hf, "data.train", "synthetic", n->loc);
}

/* "llama-3.2-1b" of "models/llama-3.2-1b/config.json"; "model" where the folder
 * has no name, or one that no YAML can hold. */
static const char *model_name(Arena *a, const char *path)
{
    char *whole = realpath(path, NULL);
    char *name = arena_strdup(a, whole ? whole : path);
    char *slash = strrchr(name, '/');

    free(whole);
    if (!slash)
        return "model";
    *slash = '\0';
    slash = strrchr(name, '/');
    return slash && slash[1] && text_is_writable(slash + 1) ? slash + 1
                                                            : "model";
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The nodes of config.json, and its family. */
static bool config_read(Hf *hf, const char *name, const char *text, size_t len)
{
    hf->config = json_read_text(hf->arena, hf->diag, name, text, len);
    if (!hf->config)
        return false;
    if (hf->config->kind == NODE_MAP)
        return type_find(hf);
    diag_error(hf->diag, hf->config->loc, "MC0005",
               "a configuration is an object");
    return false;
}

Spec *hf_config_parse(Arena *a, Diag *d, const char *name, const char *text,
                      size_t len, const char *const *ignored,
                      uint32_t nignored)
{
    Hf hf = {.arena = a, .diag = d};

    if (!config_read(&hf, name, text, len))
        return NULL;
    hf.by_family = diag_loc_named(
        d, arena_printf(a, "(default of %s)", hf_families[hf.family].type));
    hf.spec = node_map(a, hf.config->loc);
    architecture_check(&hf);
    keys_check(&hf, ignored, nignored);
    hf.dense = is_dense(&hf);
    hf_layers_find(&hf);
    node_put_node(a, hf.spec, "model.name",
                  node_text(a, model_name(a, name), hf.config->loc));
    rows_import(&hf);
    hf_rules(&hf);
    training_put(&hf);
    return diag_errors(d) ? NULL : spec_from_tree(a, d, name, hf.spec);
}

Spec *hf_config_load(Arena *a, Diag *d, const char *path,
                     const char *const *ignored, uint32_t nignored)
{
    Buf text = {0};
    Spec *s = NULL;

    if (is_folder(path))
        path = arena_printf(a, "%s/config.json", path);
    if (buf_read_file(&text, path))
        s = hf_config_parse(a, d, path, buf_str(&text), text.len, ignored,
                            nignored);
    else
        diag_error(d, diag_loc_named(d, path), "MC0801", "cannot read: %s",
                   strerror(errno));
    buf_free(&text);
    return s;
}
