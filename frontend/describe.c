/* describe.c - the schema for editors (JSON Schema, draft 7) and for readers
 * (docs/SCHEMA.md), both straight from the rows.
 *
 * Numbers may be written in forms that YAML takes for text (1_000_000, 64Ki,
 * ${VAR}), so every number also accepts such a string.
 */
#include "frontend/frontend_priv.h"

#include <jansson.h>
#include <stdlib.h>

/* ---- JSON --------------------------------------------------------------- */

/* A whole number without a decimal point. */
static json_t *plain_number(double value)
{
    bool whole = value >= -1e15 && value <= 1e15 &&
                 !(value < (double)(int64_t)value) &&
                 !(value > (double)(int64_t)value);

    return whole ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *number_json(const Key *key, const char *type)
{
    json_t *number = json_pack("{s:s}", "type", type);
    const Range *r = &key->range;
    json_t *any;

    if (r->least > -1e300)
        json_object_set_new(number, r->above ? "exclusiveMinimum" : "minimum",
                            plain_number(r->least));
    if (r->most < 1e300)
        json_object_set_new(number, r->below ? "exclusiveMaximum" : "maximum",
                            plain_number(r->most));
    any = json_pack("[o, {s:s}]", number, "$ref", "#/definitions/number_text");
    if (value_zero_word(key))
        json_array_append_new(any, json_pack("{s:s}", "type", "null"));
    return json_pack("{s:o}", "anyOf", any);
}

static json_t *words_json(const Option *options)
{
    json_t *words = json_array();

    for (; options->words; options++)
        json_array_append_new(
            words, json_stringn(options->words, strcspn(options->words, " ")));
    return json_pack("{s:o}", "enum", words);
}

/* A word or a path: any text, the words being proposed. */
static json_t *choice_json(const Key *key)
{
    for (const Option *o = key->options; o->words; o++)
        if (strncmp(o->words, "FILE", 4) == 0)
            return json_pack("{s:[o, {s:s}]}", "anyOf",
                             words_json(key->options), "type", "string");
    return words_json(key->options);
}

/* One element, or a list of them. */
static json_t *list_json(json_t *element)
{
    json_t *again = json_incref(element);

    return json_pack("{s:[o, {s:s, s:o}, {s:s}]}", "anyOf", element, "type",
                     "array", "items", again, "type", "null");
}

static json_t *text_json(const Key *key)
{
    if (strcmp(key->path, "parallel.pp_layout") == 0)
        return json_pack("{s:[s, s, s]}", "type", "string", "array", "null");
    return json_pack("{s:[s, s, s]}", "type", "string", "number", "null");
}

static json_t *kind_json(const Key *key)
{
    switch (key->kind) {
    case KIND_INT:
        return number_json(key, "integer");
    case KIND_FLOAT:
        return number_json(key, "number");
    case KIND_BOOL:
        return json_pack("{s:s}", "type", "boolean");
    case KIND_TEXT:
        return text_json(key);
    case KIND_CHOICE:
        return choice_json(key);
    case KIND_INT_LIST:
        return list_json(number_json(key, "integer"));
    case KIND_CHOICE_LIST:
        return list_json(words_json(key->options));
    case KIND_TEXT_LIST:
        return list_json(json_pack("{s:[s, s]}", "type", "string", "null"));
    case KIND_DATA_LIST:
        return list_json(json_pack("{s:s}", "$ref", "#/definitions/data"));
    }
    return NULL;
}

static json_t *default_json(const Key *key)
{
    double number;

    if (strcmp(key->fallback, "null") == 0)
        return json_null();
    if (key->kind == KIND_BOOL)
        return json_boolean(strcmp(key->fallback, "true") == 0);
    if (str_to_double(key->fallback, &number))
        return plain_number(number);
    return json_string(key->fallback);
}

static json_t *key_json(const Key *key)
{
    json_t *j = kind_json(key);

    json_object_set_new(j, "description",
                        json_sprintf("%s%s%s", key->help,
                                     key->feature ? "; not built yet: " : "",
                                     key->feature ? key->feature : ""));
    if (key->fallback)
        json_object_set_new(j, "default", default_json(key));
    return j;
}

/* Megatron's names, each a property of its own. */
static void aliases_json(const Key *key, json_t *properties)
{
    const char *cursor = key->names;
    char name[128];
    Spelling s;

    while (spelling_next(&cursor, &s)) {
        snprintf(name, sizeof name, "%.*s", s.len, s.text);
        if (s.hint || json_object_get(properties, name))
            continue;
        json_object_set_new(
            properties, name,
            json_pack("{s:o}", "description",
                      json_sprintf("Megatron's name for %s", key->path)));
    }
}

static json_t *section_json(const char *help)
{
    return json_pack("{s:[s, s], s:s, s:b, s:{}}", "type", "object", "null",
                     "description", help, "additionalProperties", 0,
                     "properties");
}

/* The section of a path inside the root. */
static json_t *section_find(json_t *root, const char *path)
{
    json_t *at = root;

    while (*path) {
        size_t n = strcspn(path, ".");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        at = json_object_get(json_object_get(at, "properties"), name);
        path += n + (path[n] == '.');
    }
    return at;
}

static void row_json(json_t *root, const Row *row)
{
    const char *path = row->key ? row->key : row->open;
    const char *name = path_name(path);
    char parent[128];
    json_t *properties;

    snprintf(parent, sizeof parent, "%.*s",
             (int)(name > path ? name - path - 1 : 0), path);
    properties = json_object_get(section_find(root, parent), "properties");
    if (row->open) {
        json_object_set_new(properties, name,
                            section_json(schema_section(path)->help));
        return;
    }
    json_object_set_new(properties, name, key_json(schema_key(path)));
    aliases_json(schema_key(path), properties);
}

static json_t *definitions_json(void)
{
    return json_pack(
        "{s:{s:s, s:s}, s:{s:[{s:s}, {s:s, s:b, s:{s:{s:s}, s:{s:s}, "
        "s:{s:s}}}]}}",
        "number_text", "type", "string", "pattern",
        "^[-+0-9][-+0-9._eE]*([KMGT]i)?$|^null$|^auto$|^dynamic$|\\$\\{",
        "data", "anyOf", "type", "string", "type", "object",
        "additionalProperties", 0, "properties", "path", "type", "string",
        "text", "type", "string", "weight", "type", "number");
}

void schema_json(Buf *out)
{
    json_t *root = section_json("a megac specification");
    json_t *properties = json_object_get(root, "properties");
    char *text;

    json_object_set_new(root, "$schema",
                        json_string("http://json-schema.org/draft-07/schema#"));
    json_object_set_new(root, "title", json_string("megac"));
    json_object_set_new(root, "type", json_string("object"));
    json_object_set_new(root, "definitions", definitions_json());
    json_object_set_new(properties, "version", json_pack("{s:i}", "const", 1));
    json_object_set_new(properties, "include",
                        json_pack("{s:s}", "type", "string"));
    for (uint32_t i = 0; i < schema_num_rows; i++)
        if (schema_rows[i].open || schema_rows[i].key)
            row_json(root, &schema_rows[i]);
    text = json_dumps(root, JSON_INDENT(2));
    if (!text)
        mc_oom(0);
    buf_puts(out, text);
    buf_puts(out, "\n");
    free(text);
    json_decref(root);
}

/* ---- Markdown ----------------------------------------------------------- */

static void words_markdown(const Option *options, Buf *out)
{
    for (const Option *o = options; o->words; o++)
        buf_printf(out, "%s`%.*s`%s", o == options ? "" : " ",
                   (int)strcspn(o->words, " "), o->words,
                   o->feature ? "\\*" : "");
}

static void range_markdown(const Range *r, Buf *out)
{
    bool low = r->least > -1e300, high = r->most < 1e300;

    if (low)
        buf_printf(out, " %s %.12g", r->above ? ">" : "≥", r->least);
    if (high)
        buf_printf(out, "%s %s %.12g", low ? "," : "", r->below ? "<" : "≤",
                   r->most);
}

static void type_markdown(const Key *key, Buf *out)
{
    static const char *const words[] = {
        [KIND_INT] = "integer",          [KIND_FLOAT] = "number",
        [KIND_BOOL] = "`true` `false`",  [KIND_TEXT] = "text",
        [KIND_INT_LIST] = "integers",    [KIND_TEXT_LIST] = "texts",
        [KIND_DATA_LIST] = "data sets",
        [KIND_CHOICE_LIST] = "list of ", [KIND_CHOICE] = ""};

    buf_puts(out, words[key->kind]);
    if (key->options)
        words_markdown(key->options, out);
    range_markdown(&key->range, out);
}

static void names_markdown(const Key *key, Buf *out)
{
    const char *cursor = key->names, *comma = "";
    Spelling s;

    while (spelling_next(&cursor, &s)) {
        if (s.hint || spelling_is(&s, key->name))
            continue;
        buf_printf(out, "%s`%s%.*s`", comma, s.inverted ? "not " : "", s.len,
                   s.text);
        if (s.word)
            buf_printf(out, " (%.*s)", s.word_len, s.word);
        comma = ", ";
    }
}

static void key_markdown(const Key *key, Buf *out)
{
    buf_printf(out, "| `%s`%s | ", key->name, key->feature ? "\\*" : "");
    type_markdown(key, out);
    buf_printf(out, " | %s%s%s | %s | ", key->fallback ? "`" : "",
               key->fallback ? key->fallback : "required",
               key->fallback ? "`" : "", key->help);
    names_markdown(key, out);
    buf_puts(out, " |\n");
}

static void section_markdown(const Section *section, Buf *out)
{
    buf_printf(out,
               "\n## %s\n\n%s\n\n"
               "| key | values | default | meaning | Megatron's name |\n"
               "|---|---|---|---|---|\n",
               section->path, section->help);
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (strcmp(schema_keys[i].section, section->path) == 0)
            key_markdown(&schema_keys[i], out);
}

void schema_markdown(Buf *out)
{
    buf_puts(out,
             "# The specification\n\n"
             "Generated from `frontend/schema.def`; a test compares the two.\n"
             "\n"
             "A specification is one YAML document with the blocks below.\n"
             "`version: 1` names this form. `include: FILE` puts another file\n"
             "below this one, key by key; FILE is relative to the including\n"
             "file or names something under `configs/`. The files of\n"
             "`target.hardware` and `parallel.schedule` lie beside the one that\n"
             "names them, or in the working directory. `${VAR}` and\n"
             "`${VAR:-default}` take the environment. `--set parallel.tp=4`\n"
             "wins over all files. Numbers accept `5e-5`, `1_000_000` and\n"
             "`64Ki`. A key may also be written with Megatron's name, in its\n"
             "block or in one around it.\n"
             "\n"
             "A star marks what is not built yet: any other value than the\n"
             "default is rejected by name.\n");
    for (uint32_t i = 0; i < schema_num_sections; i++)
        section_markdown(&schema_sections[i], out);
}
