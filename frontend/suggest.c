/* suggest.c - what the user may have meant by a key that is not there.
 *
 * In this order: a name that is known for another key of the same section; the
 * right key in the wrong section; the closest spelling in the same section;
 * the closest anywhere.  Names of other frameworks take part (`?name` in
 * schema.def), so `intermediate_size` leads to `ffn_hidden_size`.
 */
#include "frontend/frontend_priv.h"

enum { HOMES_SHOWN = 3 };

typedef struct {
    const char *what; /* a key's name, or a section's path */
    const char *section;
    unsigned distance;
} Best;

static unsigned distance_allowed(const char *name)
{
    size_t n = strlen(name);

    return n < 3 ? 0 : n < 6 ? 1 : n < 10 ? 2 : 3;
}

static void best_offer(Best *best, const char *typed, const char *candidate,
                       const char *what, const char *section)
{
    unsigned distance = str_distance(typed, candidate);

    if (distance < best->distance)
        *best = (Best){what, section, distance};
}

/* The closest key among those of `section`, or of all if it is NULL. */
static Best best_find(const char *section, const char *typed)
{
    Best best = {NULL, NULL, distance_allowed(typed) + 1};
    char name[128];
    Spelling s;

    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        const char *cursor = key->names;
        if (section && strcmp(key->section, section) != 0)
            continue;
        best_offer(&best, typed, key->name, key->name, key->section);
        while (spelling_next(&cursor, &s)) {
            snprintf(name, sizeof name, "%.*s", s.len, s.text);
            best_offer(&best, typed, name, key->name, key->section);
        }
    }
    return best;
}

/* The closest block directly inside `section`. */
static void best_block(Best *best, const char *section, const char *typed)
{
    size_t len = strlen(section);

    for (uint32_t i = 0; i < schema_num_sections; i++) {
        const char *path = schema_sections[i].path, *name = path_name(path);
        size_t parent = name > path ? (size_t)(name - path) - 1 : 0;
        if (parent == len && memcmp(section, path, len) == 0)
            best_offer(best, typed, name, name, section);
    }
}

static bool key_is_called(const Key *key, const char *name)
{
    const char *cursor = key->names;
    Spelling s;

    if (strcmp(key->name, name) == 0)
        return true;
    while (spelling_next(&cursor, &s))
        if (spelling_is(&s, name))
            return true;
    return false;
}

/* Reports a known key in the wrong place; false if it is known nowhere. */
static bool misplaced_report(Diag *d, const char *section, const Node *n)
{
    unsigned homes = 0;

    for (uint32_t i = 0; i < schema_num_keys && homes < HOMES_SHOWN; i++) {
        const Key *key = &schema_keys[i];
        if (strcmp(key->section, section) == 0 || !key_is_called(key, n->name))
            continue;
        if (homes++ == 0)
            diag_error(d, n->name_loc, "MC0003", "`%s` does not belong %s%s",
                       n->name, *section ? "under " : "at the top level",
                       section);
        diag_help(d, "it belongs under `%s`, as `%s`", key->section, key->name);
    }
    return homes > 0;
}

static const Key *hint_find(const char *section, const char *name)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (strcmp(schema_keys[i].section, section) == 0 &&
            key_is_called(&schema_keys[i], name))
            return &schema_keys[i];
    return NULL;
}

static void unknown_report(Diag *d, const char *section, const Node *n)
{
    if (*section)
        diag_error(d, n->name_loc, "MC0002", "`%s` has no key `%s`", section,
                   n->name);
    else
        diag_error(d, n->name_loc, "MC0002", "no key `%s` at the top level",
                   n->name);
}

void suggest_report(Diag *d, const char *section, const Node *n)
{
    const Key *hint = hint_find(section, n->name);
    Best best;

    if (!hint && misplaced_report(d, section, n))
        return;
    unknown_report(d, section, n);
    best = best_find(section, n->name);
    best_block(&best, section, n->name);
    if (hint)
        best = (Best){hint->name, hint->section, 0};
    if (!best.what)
        best = best_find(NULL, n->name);
    if (best.what && strcmp(best.section, section) == 0)
        diag_help(d, "did you mean `%s`?", best.what);
    else if (best.what)
        diag_help(d, "did you mean `%s` under `%s`?", best.what, best.section);
}
