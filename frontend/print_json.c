/* print_json.c - the normal form as JSON: the same keys and words as in YAML,
 * in objects, so that programs read it and megac reads it back.
 */
#include "frontend/frontend_priv.h"

#include <jansson.h>
#include <stdlib.h>

enum { DEPTH_MAX = 8 };

/* A null, or a text in which the environment has no part. */
static json_t *text_json(const char *text)
{
    Buf escaped = {0};
    json_t *out;

    if (!text)
        return json_null();
    for (; *text; text++) {
        if (strncmp(text, "${", 2) == 0)
            buf_puts(&escaped, "$");
        buf_write(&escaped, text, 1);
    }
    out = json_string(buf_str(&escaped));
    buf_free(&escaped);
    return out;
}

static json_t *zero_json(const char *word)
{
    return strcmp(word, "null") == 0 ? json_null() : json_string(word);
}

static json_t *option_json(const Key *key, int value)
{
    int len;
    const char *word = option_word(key->options, value, &len);

    return json_stringn(word, (size_t)len);
}

static json_t *data_json(const SpecData *data)
{
    bool weighted = data->weight < 1.0 || data->weight > 1.0;
    json_t *out;

    if (data->kind == DATA_SYNTHETIC)
        return json_string("synthetic");
    out = json_object();
    json_object_set_new(out, data->kind == DATA_TEXT ? "text" : "path",
                        text_json(data->path));
    if (weighted)
        json_object_set_new(out, "weight", json_real(data->weight));
    return out;
}

static json_t *list_json(const Key *key, const void *field)
{
    const SpecIntList *ints = field;
    const SpecTextList *texts = field;
    const SpecChoiceList *choices = field;
    const SpecDataList *data = field;
    uint32_t n = key->kind == KIND_INT_LIST      ? ints->n
                 : key->kind == KIND_TEXT_LIST   ? texts->n
                 : key->kind == KIND_CHOICE_LIST ? choices->n
                                                 : data->n;
    json_t *list = n ? json_array() : json_null();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(
            list, key->kind == KIND_INT_LIST      ? json_integer(ints->v[i])
                  : key->kind == KIND_TEXT_LIST   ? text_json(texts->v[i])
                  : key->kind == KIND_CHOICE_LIST ? option_json(key,
                                                                choices->v[i])
                                                  : data_json(&data->v[i]));
    return list;
}

static json_t *choice_json(const Key *key, const Spec *s)
{
    int value = *(const int *)key_value(key, s);

    if (key == schema_key("parallel.schedule") && value == SCHED_CSV)
        return text_json(s->schedule_path);
    return option_json(key, value);
}

static json_t *value_json(const Key *key, const Spec *s)
{
    const void *field = key_value(key, s);
    const char *word = value_zero_word(key);

    switch (key->kind) {
    case KIND_INT:
        return word && *(const int64_t *)field == 0
                   ? zero_json(word)
                   : json_integer(*(const int64_t *)field);
    case KIND_FLOAT:
        return word && !(*(const double *)field > 0)
                   ? zero_json(word)
                   : json_real(*(const double *)field);
    case KIND_BOOL:
        return json_boolean(*(const bool *)field);
    case KIND_TEXT:
        return text_json(*(const char *const *)field);
    case KIND_CHOICE:
        return choice_json(key, s);
    case KIND_INT_LIST:
    case KIND_TEXT_LIST:
    case KIND_CHOICE_LIST:
    case KIND_DATA_LIST:
        break;
    }
    return list_json(key, field);
}

typedef struct {
    json_t *object[DEPTH_MAX];
    const char *name[DEPTH_MAX];
    uint32_t depth;
} Nest;

static void section_open(Nest *n, const char *path)
{
    n->object[++n->depth] = json_object();
    n->name[n->depth] = path_name(path);
}

/* An empty one is left out. */
static void section_close(Nest *n)
{
    json_t *object = n->object[n->depth];

    if (json_object_size(object))
        json_object_set(n->object[n->depth - 1], n->name[n->depth], object);
    json_decref(object);
    n->depth--;
}

void spec_json(const Spec *s, Buf *out)
{
    Nest nest = {.object = {json_pack("{s:i}", "version", 1)}};
    char *text;

    for (uint32_t i = 0; i < schema_num_rows; i++) {
        const Row *row = &schema_rows[i];
        const Key *key = row->key ? schema_key(row->key) : NULL;
        if (row->open)
            section_open(&nest, row->open);
        else if (!key)
            section_close(&nest);
        else if (spec_key_is_on(s, key))
            json_object_set_new(nest.object[nest.depth], key->name,
                                value_json(key, s));
    }
    text = json_dumps(nest.object[0], JSON_COMPACT | JSON_REAL_PRECISION(15));
    buf_puts(out, text);
    free(text);
    json_decref(nest.object[0]);
}
