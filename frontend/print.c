/* print.c - the normal form: a Spec as the YAML that reads back to it.
 *
 * Every key is printed, in the order of schema.def, derived numbers included.
 * Only a section that is off (moe without experts) is left out.  Texts that a
 * YAML reader could take for something else are quoted, and `${` is escaped.
 */
#include "frontend/frontend_priv.h"

/* The shortest decimal text that reads back to the same double. */
static void float_print(double value, Buf *out)
{
    char text[40];

    if (value >= 1.0 && value < 1e9 && value <= (double)(int64_t)value) {
        buf_printf(out, "%lld", (long long)value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        double back;
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (str_to_double(text, &back) && !(back < value || back > value))
            break;
    }
    buf_puts(out, text);
}

static bool text_is_plain(const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyz"
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
    Node as_node = {.kind = NODE_SCALAR, .text = text};
    double number;

    return text[strspn(text, safe)] == '\0' && text[0] != '-' &&
           !node_is_null(&as_node) && !str_to_double(text, &number);
}

/* As a double-quoted scalar where a plain one might mean something else. */
static void text_print(const char *text, Buf *out)
{
    if (!text) {
        buf_puts(out, "null");
        return;
    }
    if (text_is_plain(text)) {
        buf_puts(out, text);
        return;
    }
    buf_puts(out, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < ' ' || c == 0x7f)
            buf_printf(out, "\\x%02x", c);
        else if (strncmp(text, "${", 2) == 0)
            buf_puts(out, "$$");
        else
            buf_write(out, text, 1);
    }
    buf_puts(out, "\"");
}

static void data_print(const SpecData *data, Buf *out)
{
    bool weighted = data->weight < 1.0 || data->weight > 1.0;

    if (data->kind == DATA_SYNTHETIC) {
        buf_puts(out, "synthetic");
        return;
    }
    buf_puts(out, data->kind == DATA_TEXT ? "{text: " : "{path: ");
    text_print(data->path, out);
    if (weighted) {
        buf_puts(out, ", weight: ");
        float_print(data->weight, out);
    }
    buf_puts(out, "}");
}

static void choice_print(const Key *key, int value, Buf *out)
{
    int len;
    const char *word = option_word(key->options, value, &len);

    buf_write(out, word, (size_t)len);
}

static void list_print(const Key *key, const void *field, Buf *out)
{
    const SpecIntList *ints = field;
    const SpecTextList *texts = field;
    const SpecChoiceList *choices = field;
    const SpecDataList *data = field;
    uint32_t n = key->kind == KIND_INT_LIST      ? ints->n
                 : key->kind == KIND_TEXT_LIST   ? texts->n
                 : key->kind == KIND_CHOICE_LIST ? choices->n
                                                 : data->n;

    if (n == 0) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "[");
    for (uint32_t i = 0; i < n; i++) {
        buf_puts(out, i ? ", " : "");
        if (key->kind == KIND_INT_LIST)
            buf_printf(out, "%lld", (long long)ints->v[i]);
        else if (key->kind == KIND_TEXT_LIST)
            text_print(texts->v[i], out);
        else if (key->kind == KIND_CHOICE_LIST)
            choice_print(key, choices->v[i], out);
        else
            data_print(&data->v[i], out);
    }
    buf_puts(out, "]");
}

void value_print(const Key *key, const Spec *s, Buf *out)
{
    const void *field = key_value(key, s);
    const char *word = value_zero_word(key);

    switch (key->kind) {
    case KIND_INT:
        if (word && *(const int64_t *)field == 0)
            buf_puts(out, word);
        else
            buf_printf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case KIND_FLOAT:
        if (word && !(*(const double *)field > 0))
            buf_puts(out, word);
        else
            float_print(*(const double *)field, out);
        break;
    case KIND_BOOL:
        buf_puts(out, *(const bool *)field ? "true" : "false");
        break;
    case KIND_TEXT:
        text_print(*(const char *const *)field, out);
        break;
    case KIND_CHOICE:
        if (key == schema_key("parallel.schedule") &&
            s->parallel.schedule == SCHED_CSV)
            text_print(s->schedule_path, out);
        else
            choice_print(key, *(const int *)field, out);
        break;
    case KIND_INT_LIST:
    case KIND_TEXT_LIST:
    case KIND_CHOICE_LIST:
    case KIND_DATA_LIST:
        list_print(key, field, out);
        break;
    }
}

const char *spec_text(Arena *a, const Spec *s, const char *path)
{
    Buf text = {0};
    const char *copy;

    value_print(schema_key(path), s, &text);
    copy = arena_strdup(a, buf_str(&text));
    buf_free(&text);
    return copy;
}

bool value_is_default(Arena *a, Diag *d, const Key *key, const Spec *s)
{
    Spec *plain = arena_new_of(a, Spec);
    Buf left = {0}, right = {0};
    bool same;

    value_set_default(a, d, key, (Loc){0}, plain);
    value_print(key, s, &left);
    value_print(key, plain, &right);
    same = strcmp(buf_str(&left), buf_str(&right)) == 0;
    buf_free(&left);
    buf_free(&right);
    return same;
}

/* ---- the whole ---------------------------------------------------------- */

/* Which keys are printed. */
typedef bool (*Shown)(const Spec *s, const Key *key);

bool spec_key_is_on(const Spec *s, const Key *key)
{
    return strcmp(key->section, "model.moe") != 0 ||
           s->model.moe.num_experts > 0;
}

static bool is_given(const Spec *s, const Key *key)
{
    return s->locs[key - schema_keys].i != s->by_default.i;
}

static bool section_is_shown(const Spec *s, const char *section, Shown shown)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (path_is_inside(section, schema_keys[i].path) &&
            shown(s, &schema_keys[i]))
            return true;
    return false;
}

static void line_print(const Spec *s, const Key *key, int indent, Buf *out)
{
    buf_printf(out, "%*s%s: ", indent, "", key->name);
    value_print(key, s, out);
    buf_puts(out, "\n");
}

static void print_shown(const Spec *s, Shown shown, Buf *out)
{
    int indent = 0;

    buf_puts(out, "version: 1\n");
    for (uint32_t i = 0; i < schema_num_rows; i++) {
        const Row *row = &schema_rows[i];
        const Key *key = row->key ? schema_key(row->key) : NULL;
        if (key && shown(s, key))
            line_print(s, key, indent, out);
        if (row->open && section_is_shown(s, row->open, shown))
            buf_printf(out, "%*s%s:\n", indent, "", path_name(row->open));
        if (!key)
            indent += row->open ? 2 : -2;
    }
}

void spec_print(const Spec *s, Buf *out)
{
    print_shown(s, spec_key_is_on, out);
}

void spec_print_given(const Spec *s, Buf *out)
{
    print_shown(s, is_given, out);
}
