/* value.c - from a node of the YAML to a field of the Spec.
 *
 * Driven by the row's kind: check the type, check the range, store.  An Int or
 * Float whose default is a word (null, auto, dynamic) holds 0 for that word.
 * The default of a row goes the same way as the user's text.
 */
#include "frontend/frontend_priv.h"

void *key_field(const Key *key, Spec *s)
{
    return (char *)s + key->offset;
}

const void *key_value(const Key *key, const Spec *s)
{
    return (const char *)s + key->offset;
}

const char *value_zero_word(const Key *key)
{
    bool numeric = key->kind == KIND_INT || key->kind == KIND_FLOAT;
    const char *word = key->fallback;

    return numeric && word && word[0] >= 'a' && word[0] <= 'z' ? word : NULL;
}

/* ---- errors ------------------------------------------------------------- */

static bool type_reject(Diag *d, const Key *key, const Node *n,
                        const char *expected)
{
    if (n->kind == NODE_SCALAR)
        diag_error(d, n->loc, "MC0005", "%s must be %s, not `%s`", key->path,
                   expected, n->text);
    else
        diag_error(d, n->loc, "MC0005", "%s must be %s, not a %s", key->path,
                   expected, n->kind == NODE_MAP ? "block" : "list");
    return false;
}

static bool range_check(Diag *d, const Key *key, const Node *n, double value)
{
    const Range *r = &key->range;
    bool low = r->above ? !(value > r->least) : !(value >= r->least);
    bool high = r->below ? !(value < r->most) : !(value <= r->most);

    if (low)
        diag_error(d, n->loc, "MC0006", "%s = %s must be %s %.12g", key->path,
                   n->text, r->above ? "greater than" : ">=", r->least);
    else if (high)
        diag_error(d, n->loc, "MC0006", "%s = %s must be %s %.12g", key->path,
                   n->text, r->below ? "less than" : "<=", r->most);
    return !low && !high;
}

static void options_help(Diag *d, const Option *options, const char *typed)
{
    const char *closest = NULL;
    unsigned distance = 4;
    Buf all = {0};

    for (; options->words; options++) {
        char word[64];
        snprintf(word, sizeof word, "%.*s",
                 (int)strcspn(options->words, " "), options->words);
        buf_printf(&all, "%s%s", all.len ? ", " : "", word);
        if (str_distance(typed, word) < distance) {
            distance = str_distance(typed, word);
            closest = options->words;
        }
    }
    if (closest && strlen(typed) > 2)
        diag_help(d, "did you mean `%.*s`?", (int)strcspn(closest, " "),
                  closest);
    diag_help(d, "one of: %s", buf_str(&all));
    buf_free(&all);
}

/* ---- scalars ------------------------------------------------------------ */

static bool bool_parse(Diag *d, const Key *key, const Node *n, bool *out)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"true", true},   {"True", true},   {"TRUE", true},
                 {"false", false}, {"False", false}, {"FALSE", false}};

    for (size_t i = 0; n->kind == NODE_SCALAR && i < MC_LEN(words); i++)
        if (strcmp(n->text, words[i].word) == 0) {
            *out = words[i].value;
            return true;
        }
    return type_reject(d, key, n, "true or false");
}

/* A null is allowed, and means the default, where the default is a word. */
static bool is_zero_word(const Key *key, const Node *n)
{
    const char *word = value_zero_word(key);

    return word && n->kind == NODE_SCALAR &&
           (node_is_null(n) || strcmp(n->text, word) == 0);
}

static bool int_parse(Diag *d, const Key *key, const Node *n, int64_t *out)
{
    int64_t value;

    if (is_zero_word(key, n)) {
        *out = 0;
        return true;
    }
    if (n->kind != NODE_SCALAR || !str_to_int(n->text, &value))
        return type_reject(d, key, n, "an integer");
    if (!range_check(d, key, n, (double)value))
        return false;
    *out = value;
    return true;
}

static bool float_parse(Diag *d, const Key *key, const Node *n, double *out)
{
    double value;

    if (is_zero_word(key, n)) {
        *out = 0;
        return true;
    }
    if (n->kind != NODE_SCALAR || !str_to_double(n->text, &value))
        return type_reject(d, key, n, "a number");
    if (!range_check(d, key, n, value))
        return false;
    *out = value;
    return true;
}

static bool choice_parse(Diag *d, const Key *key, const Node *n, int *out)
{
    const Option *option;

    if (n->kind != NODE_SCALAR)
        return type_reject(d, key, n, "a word");
    option = option_find(key->options, n->text);
    if (option) {
        *out = option->value;
        return true;
    }
    diag_error(d, n->loc, "MC0007", "%s has no choice `%s`", key->path,
               n->text);
    options_help(d, key->options, n->text);
    return false;
}

/* ---- texts -------------------------------------------------------------- */

/* [3, 4, 2] as "Ettt|tttt|ttL", one number of layers per stage. */
static const char *layout_from_list(Arena *a, Diag *d, const Key *key,
                                    const Node *n)
{
    Buf text = {0};
    const char *result = NULL;
    const Node *item = n->first;

    for (; item; item = item->next) {
        int64_t count;
        if (item->kind != NODE_SCALAR || !str_to_int(item->text, &count) ||
            count < 0 || count > 65536) {
            type_reject(d, key, item, "a number of layers");
            break;
        }
        buf_puts(&text, item == n->first ? "E" : "|");
        if (count)
            buf_printf(&text, "t*%lld", (long long)count);
    }
    buf_puts(&text, "L");
    if (!item)
        result = arena_strdup(a, buf_str(&text));
    buf_free(&text);
    return result;
}

static bool text_parse(Arena *a, Diag *d, const Key *key, const Node *n,
                       const char **out)
{
    if (key == schema_key("parallel.pp_layout") && n->kind == NODE_LIST) {
        *out = layout_from_list(a, d, key, n);
        return *out != NULL;
    }
    if (n->kind != NODE_SCALAR)
        return type_reject(d, key, n, "a text");
    if (node_is_null(n) && (!key->fallback || strcmp(key->fallback, "null")))
        return type_reject(d, key, n, "a text");
    *out = node_is_null(n) ? NULL : n->text;
    return true;
}

/* ---- lists -------------------------------------------------------------- */

static uint32_t children_count(const Node *n)
{
    uint32_t count = 0;

    for (const Node *c = n->first; c; c = c->next)
        count++;
    return count;
}

/* A scalar counts as a list of one. */
static const Node *list_first(const Node *n, uint32_t *out_n)
{
    *out_n = n->kind == NODE_LIST ? children_count(n) : 1;
    if (node_is_null(n))
        *out_n = 0;
    return n->kind == NODE_LIST ? n->first : n;
}

static bool int_list_check(Diag *d, const Key *key, const Node *n,
                           const SpecIntList *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (!range_check(d, key, n, (double)list->v[i]))
            return false;
    return true;
}

static bool int_list_parse(Arena *a, Diag *d, const Key *key, const Node *n,
                           SpecIntList *out)
{
    uint32_t count;
    const Node *item = list_first(n, &count);
    int64_t *v = arena_array(a, int64_t, count);

    if (n->kind == NODE_SCALAR && int_list_read(a, n->text, out))
        return int_list_check(d, key, n, out);
    for (uint32_t i = 0; i < count; i++, item = item->next)
        if (!int_parse(d, key, item, &v[i]))
            return false;
    *out = (SpecIntList){v, count};
    return true;
}

static bool text_list_parse(Arena *a, Diag *d, const Key *key, const Node *n,
                            SpecTextList *out)
{
    uint32_t count;
    const Node *item = list_first(n, &count);
    const char **v = arena_array(a, const char *, count);

    for (uint32_t i = 0; i < count; i++, item = item->next)
        if (!text_parse(a, d, key, item, &v[i]))
            return false;
    *out = (SpecTextList){v, count};
    return true;
}

static bool choice_list_parse(Arena *a, Diag *d, const Key *key, const Node *n,
                              SpecChoiceList *out)
{
    uint32_t count;
    const Node *item = list_first(n, &count);
    int *v = arena_array(a, int, count);

    for (uint32_t i = 0; i < count; i++, item = item->next)
        if (!choice_parse(d, key, item, &v[i]))
            return false;
    *out = (SpecChoiceList){v, count};
    return true;
}

/* One field of {path: P, weight: W} or {text: FILE}. */
static bool data_field_parse(Diag *d, const Key *key, const Node *n,
                             SpecData *out)
{
    bool is_text = strcmp(n->name, "text") == 0;
    bool is_path = is_text || strcmp(n->name, "path") == 0;

    if (strcmp(n->name, "weight") == 0) {
        if (n->kind == NODE_SCALAR && str_to_double(n->text, &out->weight) &&
            out->weight > 0)
            return true;
        return type_reject(d, key, n, "a weight greater than 0");
    }
    if (!is_path) {
        diag_error(d, n->name_loc, "MC0002", "%s has no field `%s`", key->path,
                   n->name);
        diag_help(d, "one of: path, text, weight");
        return false;
    }
    if (out->path) {
        diag_error(d, n->name_loc, "MC0004", "`%s` names a second file",
                   n->name);
        return false;
    }
    if (n->kind != NODE_SCALAR || node_is_null(n))
        return type_reject(d, key, n, "a file name");
    out->path = n->text;
    out->kind = is_text ? DATA_TEXT : DATA_PREFIX;
    return true;
}

static bool data_parse(Diag *d, const Key *key, const Node *n, SpecData *out)
{
    *out = (SpecData){DATA_PREFIX, NULL, 1.0};
    if (n->kind == NODE_LIST || node_is_null(n))
        return type_reject(d, key, n, "a path or {path, weight}");
    if (n->kind == NODE_SCALAR) {
        bool synthetic = strcmp(n->text, "synthetic") == 0;
        out->kind = synthetic ? DATA_SYNTHETIC : DATA_PREFIX;
        out->path = synthetic ? NULL : n->text;
        return true;
    }
    for (const Node *field = n->first; field; field = field->next)
        if (!data_field_parse(d, key, field, out))
            return false;
    return out->path || type_reject(d, key, n, "a path or {path, weight}");
}

static bool data_list_parse(Arena *a, Diag *d, const Key *key, const Node *n,
                            SpecDataList *out)
{
    uint32_t count;
    const Node *item = list_first(n, &count);
    SpecData *v = arena_array(a, SpecData, count);

    for (uint32_t i = 0; i < count; i++, item = item->next)
        if (!data_parse(d, key, item, &v[i]))
            return false;
    *out = (SpecDataList){v, count};
    return true;
}

/* Keeps the path, where a choice is a file. */
static bool file_note(const Key *key, const Node *n, Spec *s)
{
    if (*(const int *)key_value(key, s) == SCHED_CSV &&
        key == schema_key("parallel.schedule"))
        s->schedule_path = n->text;
    return true;
}

bool value_parse(Arena *a, Diag *d, const Key *key, const Node *n, Spec *s)
{
    void *field = key_field(key, s);

    switch (key->kind) {
    case KIND_INT:
        return int_parse(d, key, n, field);
    case KIND_FLOAT:
        return float_parse(d, key, n, field);
    case KIND_BOOL:
        return bool_parse(d, key, n, field);
    case KIND_TEXT:
        return text_parse(a, d, key, n, field);
    case KIND_INT_LIST:
        return int_list_parse(a, d, key, n, field);
    case KIND_TEXT_LIST:
        return text_list_parse(a, d, key, n, field);
    case KIND_DATA_LIST:
        return data_list_parse(a, d, key, n, field);
    case KIND_CHOICE:
        return choice_parse(d, key, n, field) && file_note(key, n, s);
    case KIND_CHOICE_LIST:
        return choice_list_parse(a, d, key, n, field);
    }
    return false;
}

bool value_set_default(Arena *a, Diag *d, const Key *key, Loc loc, Spec *s)
{
    Node n = {.kind = NODE_SCALAR, .text = key->fallback, .loc = loc};

    return value_parse(a, d, key, &n, s);
}
