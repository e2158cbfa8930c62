/* schema.c - schema.def and choices.def as arrays, and looking things up.
 *
 * A path such as "model.rope.base" is a section, a dot and a name.  The rows
 * keep the order of schema.def, which is the order of the normal form.
 */
#include "frontend/frontend_priv.h"

#include <strings.h>

#define BUILT NULL
#define LATER(feature) feature
#define REQUIRED NULL

/* ---- the words of the choices ------------------------------------------- */

#define CHOICE(type) static const Option options_##type[] = {
#define CHOICE_OF(type) CHOICE(type)
#define OPTION(enumerator, words, status) {words, (int)enumerator, status},
#define END_CHOICE(type) {NULL, 0, NULL}};
#include "frontend/choices.def"
#undef CHOICE
#undef CHOICE_OF
#undef OPTION
#undef END_CHOICE

#define options_Int NULL
#define options_Float NULL
#define options_Bool NULL
#define options_Text NULL
#define options_IntList NULL
#define options_TextList NULL
#define options_DataList NULL
#define options_LIST_OF(type) options_##type

#define CHOICE(type) kind_##type = KIND_CHOICE,
#define CHOICE_OF(type) CHOICE(type)
#define OPTION(enumerator, words, status)
#define END_CHOICE(type)
enum {
    kind_Int = KIND_INT,
    kind_Float = KIND_FLOAT,
    kind_Bool = KIND_BOOL,
    kind_Text = KIND_TEXT,
    kind_IntList = KIND_INT_LIST,
    kind_TextList = KIND_TEXT_LIST,
    kind_DataList = KIND_DATA_LIST,
#include "frontend/choices.def"
};
#undef CHOICE
#undef CHOICE_OF
#undef OPTION
#undef END_CHOICE
#define kind_LIST_OF(type) KIND_CHOICE_LIST

_Static_assert(sizeof(SpecNorm) == sizeof(int), "choices are stored as int");

/* ---- the rows ----------------------------------------------------------- */

#define ANY {-1e300, 1e300, false, false}
#define IN(least, most) {(double)(least), (double)(most), false, false}
#define GT(bound) {(double)(bound), 1e300, true, false}
#define UNDER(least, bound) {(double)(least), (double)(bound), false, true}

#define SECTION(path, help)
#define END(name)
#define KEY(section, name, type, fallback, range, names, status, help)         \
    {#section "." #name, #section,           #name, (Kind)kind_##type,         \
     options_##type,     offsetof(Spec, section.name), fallback, range,        \
     names,              status,             help},
const Key schema_keys[] = {
#include "frontend/schema.def"
};
#undef SECTION
#undef END
#undef KEY

#define SECTION(path, help) {#path, help},
#define END(name)
#define KEY(section, name, type, fallback, range, names, status, help)
const Section schema_sections[] = {
#include "frontend/schema.def"
};
#undef SECTION
#undef END
#undef KEY

#define SECTION(path, help) {#path, NULL},
#define END(name) {NULL, NULL},
#define KEY(section, name, type, fallback, range, names, status, help)         \
    {NULL, #section "." #name},
const Row schema_rows[] = {
#include "frontend/schema.def"
};
#undef SECTION
#undef END
#undef KEY

const uint32_t schema_num_rows = MC_LEN(schema_rows);
const uint32_t schema_num_keys = MC_LEN(schema_keys);
const uint32_t schema_num_sections = MC_LEN(schema_sections);

/* ---- spellings ---------------------------------------------------------- */

bool spelling_next(const char **cursor, Spelling *out)
{
    const char *s = *cursor + strspn(*cursor, " ");
    const char *end = s + strcspn(s, " ");
    const char *equals;

    *cursor = end;
    *out = (Spelling){0};
    if (s == end)
        return false;
    out->inverted = *s == '!';
    out->hint = *s == '?';
    s += out->inverted || out->hint;
    equals = memchr(s, '=', (size_t)(end - s));
    out->text = s;
    out->len = (int)((equals ? equals : end) - s);
    out->word = equals ? equals + 1 : NULL;
    out->word_len = equals ? (int)(end - equals - 1) : 0;
    return true;
}

bool spelling_is(const Spelling *spelling, const char *name)
{
    size_t len = (size_t)spelling->len;

    return strlen(name) == len && memcmp(spelling->text, name, len) == 0;
}

bool spelling_in(const char *words, const char *name, size_t len)
{
    Spelling s;

    while (spelling_next(&words, &s))
        if ((size_t)s.len == len && memcmp(s.text, name, len) == 0)
            return true;
    return false;
}

bool text_is_listed(const char *const *list, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], text) == 0)
            return true;
    return false;
}

const char *path_name(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot ? dot + 1 : path;
}

bool path_is_inside(const char *section, const char *path)
{
    size_t n = strlen(section);

    return strncmp(section, path, n) == 0 && path[n] == '.';
}

/* ---- looking up --------------------------------------------------------- */

const Key *schema_key(const char *path)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (strcmp(schema_keys[i].path, path) == 0)
            return &schema_keys[i];
    return NULL;
}

const Section *schema_section(const char *path)
{
    for (uint32_t i = 0; i < schema_num_sections; i++)
        if (strcmp(schema_sections[i].path, path) == 0)
            return &schema_sections[i];
    return NULL;
}

/* Whether `inner` is `outer` or lies in it. */
static bool section_contains(const char *outer, const char *inner)
{
    size_t n = strlen(outer);

    return n && strncmp(outer, inner, n) == 0 &&
           (inner[n] == '\0' || inner[n] == '.');
}

static bool key_has_spelling(const Key *key, const char *name, Spelling *out)
{
    const char *cursor = key->names;

    while (spelling_next(&cursor, out))
        if (!out->hint && spelling_is(out, name))
            return true;
    return false;
}

const Key *schema_resolve(const char *section, const char *name,
                          Spelling *out_spelling)
{
    *out_spelling = (Spelling){0};
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (strcmp(schema_keys[i].section, section) == 0 &&
            strcmp(schema_keys[i].name, name) == 0)
            return &schema_keys[i];
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (section_contains(section, schema_keys[i].section) &&
            key_has_spelling(&schema_keys[i], name, out_spelling))
            return &schema_keys[i];
    return NULL;
}

const char *option_word(const Option *options, int value, int *out_len)
{
    for (; options->words; options++)
        if (options->value == value) {
            *out_len = (int)strcspn(options->words, " ");
            return options->words;
        }
    mc_bug(__FILE__, __LINE__, "no word for choice %d", value);
}

static bool option_matches(const Option *option, const char *text)
{
    const char *cursor = option->words;
    size_t len = strlen(text);
    Spelling s;

    while (spelling_next(&cursor, &s)) {
        size_t n = (size_t)s.len;
        if (strncmp(s.text, "FILE", 4) == 0 && len > n - 4 &&
            strncasecmp(text + len - (n - 4), s.text + 4, n - 4) == 0)
            return true;
        if (len == n && strncasecmp(text, s.text, n) == 0)
            return true;
    }
    return false;
}

const Option *option_find(const Option *options, const char *text)
{
    for (; options->words; options++)
        if (option_matches(options, text))
            return options;
    return NULL;
}
