/* safetensors_fit.c - compares a set with the tensors of a model.
 *
 * Files of Hugging Face hold a little more, or a little less, than a model's
 * parameters: GPT-2's first files have no "transformer." in front; old ones
 * keep masks and rotary frequencies; a tied head may be written out once more;
 * GLM-4.5's hold a layer that predicts the next token but one.  Those are put
 * right here, and nothing else is: what is left must be the model, name for
 * name.
 */
#include "runtime/safetensors_priv.h"

#include <stdlib.h>

static const char head_name[] = "lm_head.weight";
static const char *const table_names[] = {"model.embed_tokens.weight",
                                          "transformer.wte.weight"};
static const char prefix[] = "transformer.";

/* Buffers that transformers once saved; the ends of their names. */
static const char *const no_parameters[] = {
    ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};

enum { NAMED = 4 }; /* how many names a message lists */

/* ---- putting right ------------------------------------------------------- */

static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && !strcmp(name + n - m, end);
}

static bool no_parameter(const char *name)
{
    for (size_t i = 0; i < MC_LEN(no_parameters); i++)
        if (has_end(name, no_parameters[i]))
            return true;
    return false;
}

static Status add_prefix(SafeSet *set, const SafeSet *model)
{
    for (uint32_t i = 0; i < set->n; i++) {
        char *name = set->v[i].name, *full;
        if (safe_find(model, name))
            continue;
        if (asprintf(&full, "%s%s", prefix, name) < 0)
            return status_make(STATUS_SYSTEM, "no memory for a name");
        if (safe_find(model, full) && !safe_find(set, full)) {
            set->v[i].name = full;
            full = name;
        }
        free(full);
    }
    safe_sort(set);
    return STATUS_NONE;
}

/* The table that a head beside it must be equal to: of a model that has no
 * head. */
static const char *tied_table(const SafeSet *model)
{
    for (size_t i = 0; i < MC_LEN(table_names); i++)
        if (safe_find(model, table_names[i]) && !safe_find(model, head_name))
            return table_names[i];
    return NULL;
}

static Status check_head(const SafeSet *set, const SafeSet *model)
{
    const char *name = tied_table(model);
    const SafeTensor *head = safe_find(set, head_name);
    const SafeTensor *table = name ? safe_find(set, name) : NULL;

    if (!head || !table)
        return STATUS_NONE;
    if (head->dtype == table->dtype && head->rows == table->rows &&
        head->columns == table->columns &&
        head->end - head->begin == table->end - table->begin &&
        !memcmp(safe_bytes(set, head), safe_bytes(set, table),
                head->end - head->begin))
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "%s: %s and %s are not the same, but the model has one "
                       "tensor for both (model.tie_embeddings: true)",
                       set->path, head_name, name);
}

static bool has_prefix(const SafeSet *set, const char *name, size_t n)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (!strncmp(set->v[i].name, name, n))
            return true;
    return false;
}

/* Whether a name is of a layer for predicting further tokens, behind all those
 * of the model: it joins the last state and the next embedding by an eh_proj.
 * transformers leaves it out as well. */
static bool of_next_token(const SafeSet *set, const SafeSet *model,
                          const char *name)
{
    char joins[64];
    int n = 0; /* the length of "model.layers.46." */

    (void)sscanf(name, "model.layers.%*[0-9].%n", &n);
    if (!n || snprintf(joins, sizeof joins, "%.*seh_proj.weight", n, name) >=
                  (int)sizeof joins)
        return false;
    return safe_find(set, joins) && !has_prefix(model, name, (size_t)n);
}

/* What the model may lack.  A head that is still here is the table again. */
static bool is_other(const SafeSet *set, const SafeSet *model, const char *name)
{
    return !safe_find(model, name) &&
           (no_parameter(name) || of_next_token(set, model, name) ||
            (tied_table(model) && !strcmp(name, head_name)));
}

/* Decides on all names before any is gone. */
static Status drop_others(SafeSet *set, const SafeSet *model)
{
    bool *drop = calloc(set->n + 1u, sizeof *drop);
    uint32_t kept = 0;

    if (!drop)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    for (uint32_t i = 0; i < set->n; i++)
        drop[i] = is_other(set, model, set->v[i].name);
    for (uint32_t i = 0; i < set->n; i++)
        if (drop[i])
            free(set->v[i].name);
        else
            set->v[kept++] = set->v[i];
    set->n = kept;
    free(drop);
    return STATUS_NONE;
}

/* ---- comparing ----------------------------------------------------------- */

/* The names in `a` that are not in `b`: how many, and the first of them as
 * text. */
static uint32_t list_missing(const SafeSet *a, const SafeSet *b, Buf *text)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n; i++)
        if (!safe_find(b, a->v[i].name) && n++ < NAMED)
            buf_printf(text, "%s%s", n > 1 ? ", " : "", a->v[i].name);
    if (n > NAMED)
        buf_printf(text, " and %u more", n - NAMED);
    return n;
}

static Status check_missing(const SafeSet *set, const SafeSet *model)
{
    Status s = STATUS_NONE;
    Buf names = {0};
    uint32_t n = list_missing(model, set, &names);
    bool head = n == 1 && safe_find(model, head_name) &&
                !safe_find(set, head_name);

    if (n)
        s = status_make(STATUS_INPUT, "%s has no tensor %s%s", set->path,
                        buf_str(&names),
                        head ? " (with model.tie_embeddings: true the model "
                               "would have no head of its own)"
                             : "");
    buf_free(&names);
    return s;
}

static Status check_strangers(const SafeSet *set, const SafeSet *model)
{
    Status s = STATUS_NONE;
    Buf names = {0};

    if (list_missing(set, model, &names))
        s = status_make(STATUS_INPUT, "%s: the model has no tensor %s",
                        set->path, buf_str(&names));
    buf_free(&names);
    return s;
}

static const char *shape_text(const SafeTensor *t, char out[64])
{
    if (t->rows < 0)
        snprintf(out, 64, "no vector or matrix");
    else if (t->columns)
        snprintf(out, 64, "[%lld, %lld]", (long long)t->rows,
                 (long long)t->columns);
    else
        snprintf(out, 64, "[%lld]", (long long)t->rows);
    return out;
}

/* Says nothing of a tensor that is missing. */
static Status check_tensor(const SafeSet *set, const SafeTensor *model)
{
    const SafeTensor *t = safe_find(set, model->name);
    char is[64], needs[64];

    if (!t)
        return STATUS_NONE;
    if (t->dtype == PLAN_DTYPES)
        return status_make(STATUS_INPUT,
                           "%s: tensor %s is neither F32, BF16 nor F16",
                           set->path, t->name);
    if (t->rows == model->rows && t->columns == model->columns)
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "%s: tensor %s is %s, the model needs %s", set->path,
                       t->name, shape_text(t, is), shape_text(model, needs));
}

Status safe_fit(SafeSet *set, const SafeSet *model)
{
    STATUS_TRY(add_prefix(set, model));
    STATUS_TRY(check_head(set, model));
    STATUS_TRY(drop_others(set, model));
    for (uint32_t i = 0; i < model->n; i++)
        STATUS_TRY(check_tensor(set, &model->v[i]));
    STATUS_TRY(check_missing(set, model));
    return check_strangers(set, model);
}
