/* json.c - a JSON text as a tree of nodes that know their place.
 *
 * jansson reads the text and reports what is no JSON, but does not say where
 * its values stood; so a cursor passes over the text, which is known to be
 * right by then, along with the values, which are in the order of the text.
 */
#include "frontend/frontend_priv.h"

#include <jansson.h>

typedef struct {
    Arena *arena;
    Diag *diag;
    const char *at;
    uint32_t source, line, col;
} Cursor;

static Loc loc_of(const Cursor *c)
{
    return diag_loc(c->diag, c->source, c->line, c->col);
}

/* Columns count characters, of which UTF-8 has one first byte each. */
static void step(Cursor *c)
{
    bool first = ((unsigned char)c->at[1] & 0xc0) != 0x80;

    if (*c->at == '\n') {
        c->line++;
        c->col = 1;
    } else if (first) {
        c->col++;
    }
    c->at++;
}

/* To the next of anything but blanks and these. */
static void skip(Cursor *c, const char *these)
{
    while (*c->at && (strchr(" \t\r\n", *c->at) || strchr(these, *c->at)))
        step(c);
}

static void skip_string(Cursor *c)
{
    for (step(c); *c->at != '"'; step(c))
        if (*c->at == '\\')
            step(c);
    step(c);
}

/* A number or a word, as it is written. */
static const char *take_plain(Cursor *c)
{
    const char *start = c->at;

    while (*c->at && !strchr(" \t\r\n,]}", *c->at))
        step(c);
    return arena_strndup(c->arena, start, (size_t)(c->at - start));
}

static Node *node_read(Cursor *c, json_t *value);

static void object_read(Cursor *c, json_t *object, Node *map)
{
    const char *name;
    json_t *value;

    step(c);
    json_object_foreach(object, name, value) {
        Loc name_loc;
        Node *child;
        skip(c, ",");
        name_loc = loc_of(c);
        skip_string(c);
        skip(c, ":");
        child = node_read(c, value);
        child->name = arena_strdup(c->arena, name);
        child->name_loc = name_loc;
        node_append(map, child);
    }
    skip(c, "");
    step(c);
}

static void array_read(Cursor *c, json_t *array, Node *list)
{
    size_t i;
    json_t *value;

    step(c);
    json_array_foreach(array, i, value) {
        skip(c, ",");
        node_append(list, node_read(c, value));
    }
    skip(c, "");
    step(c);
}

static Node *node_read(Cursor *c, json_t *value)
{
    Node *n;

    skip(c, "");
    n = node_scalar(c->arena, NULL, loc_of(c));
    if (json_is_object(value)) {
        n->kind = NODE_MAP;
        object_read(c, value, n);
    } else if (json_is_array(value)) {
        n->kind = NODE_LIST;
        array_read(c, value, n);
    } else if (json_is_string(value)) {
        n->quoted = true;
        n->text = arena_strdup(c->arena, json_string_value(value));
        skip_string(c);
    } else {
        n->text = take_plain(c);
    }
    return n;
}

Node *json_read_text(Arena *a, Diag *d, const char *name, const char *text,
                     size_t len)
{
    Cursor c = {.arena = a, .diag = d, .line = 1, .col = 1};
    json_error_t e;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    Node *root = NULL;

    c.at = arena_strndup(a, text, len);
    c.source = diag_source(d, name, c.at);
    if (value) {
        root = node_read(&c, value);
    } else {
        Loc at = diag_loc(d, c.source, (uint32_t)MC_MAX(e.line, 1),
                          (uint32_t)MC_MAX(e.column, 1));
        diag_error(d, at, "MC0001", "this is not JSON: %s", e.text);
    }
    json_decref(value);
    return root;
}
