/* yaml.c - a YAML text as a tree of nodes that know their place.
 *
 * libyaml delivers events with marks; the reader descends once over them.
 * What a specification has no use for is rejected rather than half supported:
 * aliases (which also make a small file explode), tags, several documents,
 * keys that are not plain words, nesting deeper than DEPTH_MAX.
 *
 * `${VAR}` and `${VAR:-default}` in a value take the environment; `$${` stands
 * for `${` itself.  What comes out of a plain scalar is plain again, so
 * `${N:-null}` may be null.
 */
#include "frontend/frontend_priv.h"

#include <stdlib.h>
#include <yaml.h>

enum { DEPTH_MAX = 32, TEXT_MAX = 4 << 20 };

typedef struct {
    Arena *arena;
    Diag *diag;
    yaml_parser_t parser;
    const char *text;
    uint32_t source;
    uint32_t shift; /* columns before the text, for --set */
    bool whole;     /* the text has no lines to count */
} Reader;

static Loc loc_at(Reader *r, size_t line, size_t col)
{
    uint32_t column = (uint32_t)(line == 0 ? col + r->shift : col) + 1;

    return diag_loc(r->diag, r->source, r->whole ? 0 : (uint32_t)line + 1,
                    column);
}

static Loc event_loc(Reader *r, const yaml_event_t *e)
{
    return loc_at(r, e->start_mark.line, e->start_mark.column);
}

/* A byte that is no text has an offset but no mark. */
static Loc problem_loc(Reader *r)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = 0, col = 0;

    if (p->error != YAML_READER_ERROR)
        return loc_at(r, p->problem_mark.line, p->problem_mark.column);
    for (size_t i = 0; i < p->problem_offset && r->text[i]; i++) {
        line += r->text[i] == '\n';
        col = r->text[i] == '\n' ? 0 : col + 1;
    }
    return loc_at(r, line, col);
}

static void problem_report(Reader *r)
{
    const yaml_parser_t *p = &r->parser;

    diag_error(r->diag, problem_loc(r), "MC0001", "%s%s%s",
               p->context ? p->context : "", p->context ? ": " : "",
               p->problem ? p->problem : "this is not YAML");
    if (p->context && p->context_mark.line != p->problem_mark.line)
        diag_note(r->diag,
                  loc_at(r, p->context_mark.line, p->context_mark.column),
                  "%s that begins here", p->context);
}

/* ---- the environment ---------------------------------------------------- */

const char *environment_expand(Arena *a, Diag *d, Loc loc, const char *at,
                               Buf *out)
{
    const char *close = strchr(at, '}');
    const char *fallback = strstr(at, ":-");
    const char *value;
    char *name;

    if (!close) {
        diag_error(d, loc, "MC0010", "`${` without a closing `}`");
        diag_help(d, "write `$${` for a literal `${`");
        return NULL;
    }
    if (fallback && fallback > close)
        fallback = NULL;
    name = arena_strndup(a, at, (size_t)((fallback ? fallback : close) - at));
    value = getenv(name);
    if (value)
        buf_puts(out, value);
    else if (fallback)
        buf_write(out, fallback + 2, (size_t)(close - fallback - 2));
    else {
        diag_error(d, loc, "MC0010",
                   "the environment has no variable `%s`", name);
        diag_help(d, "give it a default: `${%s:-value}`", name);
        return NULL;
    }
    return close + 1;
}

static const char *environment_fill(Reader *r, Loc loc, const char *text)
{
    Buf out = {0};
    const char *filled = NULL;

    if (!strstr(text, "${"))
        return text;
    while (text && *text) {
        size_t plain = strcspn(text, "$");
        buf_write(&out, text, plain);
        text += plain;
        if (strncmp(text, "$${", 3) == 0) {
            buf_puts(&out, "${");
            text += 3;
        } else if (strncmp(text, "${", 2) == 0) {
            text = environment_expand(r->arena, r->diag, loc, text + 2, &out);
        } else if (*text) {
            buf_write(&out, text++, 1);
        }
    }
    if (text)
        filled = arena_strdup(r->arena, buf_str(&out));
    buf_free(&out);
    return filled;
}

/* ---- events to nodes ---------------------------------------------------- */

static bool event_next(Reader *r, yaml_event_t *e)
{
    if (yaml_parser_parse(&r->parser, e))
        return true;
    problem_report(r);
    return false;
}

static bool event_reject(Reader *r, const yaml_event_t *e, const char *what)
{
    diag_error(r->diag, event_loc(r, e), "MC0012", "%s", what);
    return false;
}

static bool event_has_tag(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return e->data.scalar.tag != NULL;
    case YAML_SEQUENCE_START_EVENT:
        return e->data.sequence_start.tag != NULL;
    case YAML_MAPPING_START_EVENT:
        return e->data.mapping_start.tag != NULL;
    default:
        return false;
    }
}

/* The text of a scalar; NULL after an error. */
static const char *scalar_text(Reader *r, const yaml_event_t *e)
{
    const char *value = (const char *)e->data.scalar.value;
    size_t len = e->data.scalar.length;

    if (memchr(value, '\0', len)) {
        event_reject(r, e, "a value with a NUL byte");
        return NULL;
    }
    return arena_strndup(r->arena, value, len);
}

static Node *node_read(Reader *r, yaml_event_t *e, int depth);

/* Reads the value behind a key, or the element that `e` begins. */
static bool child_read(Reader *r, Node *parent, yaml_event_t *e, int depth)
{
    const char *name = NULL;
    Loc name_loc = event_loc(r, e);
    Node *child;

    if (parent->kind == NODE_MAP) {
        if (e->type != YAML_SCALAR_EVENT)
            return event_reject(r, e, "a key must be a word");
        name = scalar_text(r, e);
        yaml_event_delete(e);
        if (!name || !event_next(r, e))
            return false;
    }
    child = node_read(r, e, depth + 1);
    if (!child)
        return false;
    child->name = name;
    child->name_loc = name_loc;
    node_append(parent, child);
    return true;
}

static bool children_read(Reader *r, Node *parent, int depth)
{
    yaml_event_t e;

    for (;;) {
        bool ok, end;
        if (!event_next(r, &e))
            return false;
        end = e.type == YAML_SEQUENCE_END_EVENT ||
              e.type == YAML_MAPPING_END_EVENT;
        ok = end || child_read(r, parent, &e, depth);
        yaml_event_delete(&e);
        if (!ok || end)
            return ok;
    }
}

static bool scalar_read(Reader *r, Node *n, const yaml_event_t *e)
{
    n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    n->text = scalar_text(r, e);
    if (n->text)
        n->text = environment_fill(r, n->loc, n->text);
    return n->text != NULL;
}

/* The node that `e` begins; the caller deletes the event. */
static Node *node_read(Reader *r, yaml_event_t *e, int depth)
{
    Node *n = arena_new_of(r->arena, Node);
    bool ok;

    n->loc = event_loc(r, e);
    if (e->type == YAML_ALIAS_EVENT)
        ok = event_reject(r, e, "aliases are not supported; use `include`");
    else if (event_has_tag(e))
        ok = event_reject(r, e, "tags are not supported");
    else if (depth > DEPTH_MAX)
        ok = event_reject(r, e, "nested too deeply");
    else if (e->type == YAML_SCALAR_EVENT)
        ok = scalar_read(r, n, e);
    else {
        n->kind = e->type == YAML_MAPPING_START_EVENT ? NODE_MAP : NODE_LIST;
        ok = children_read(r, n, depth);
    }
    return ok ? n : NULL;
}

/* What an empty text means: a file without keys, or a null given to --set. */
static Node *node_empty(Reader *r)
{
    Node *n = arena_new_of(r->arena, Node);

    n->kind = r->whole ? NODE_SCALAR : NODE_MAP;
    n->text = "";
    n->loc = loc_at(r, 0, 0);
    return n;
}

/* Reads events up to the end of the stream; a second document is an error. */
static Node *document_read(Reader *r)
{
    Node *root = NULL;
    bool ok = true, end = false;

    while (ok && !end) {
        yaml_event_t e;
        if (!event_next(r, &e))
            return NULL;
        end = e.type == YAML_STREAM_END_EVENT;
        if (e.type == YAML_DOCUMENT_START_EVENT && root)
            ok = event_reject(r, &e, "a second document in one file");
        else if (!end && e.type != YAML_STREAM_START_EVENT &&
                 e.type != YAML_DOCUMENT_START_EVENT &&
                 e.type != YAML_DOCUMENT_END_EVENT)
            ok = (root = node_read(r, &e, 0)) != NULL;
        yaml_event_delete(&e);
    }
    if (!ok)
        return NULL;
    return root ? root : node_empty(r);
}

static Node *reader_run(Reader *r, const char *text, size_t len)
{
    Node *root;

    r->text = text;
    if (len > TEXT_MAX) {
        diag_error(r->diag, loc_at(r, 0, 0), "MC0012",
                   "%zu bytes are too many for a specification", len);
        return NULL;
    }
    if (!yaml_parser_initialize(&r->parser))
        mc_oom(sizeof r->parser);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, len);
    root = document_read(r);
    yaml_parser_delete(&r->parser);
    return root;
}

Node *yaml_read_text(Arena *a, Diag *d, const char *name, const char *text,
                     size_t len)
{
    Reader r = {.arena = a, .diag = d};

    r.source = diag_source(d, name, text);
    return reader_run(&r, text, len);
}

/* ---- --set -------------------------------------------------------------- */

static Node *map_around(Reader *r, Node *child, const char *name, size_t len,
                        uint32_t col)
{
    Node *map = arena_new_of(r->arena, Node);

    r->shift = 0;
    child->name = arena_strndup(r->arena, name, len);
    child->name_loc = loc_at(r, 0, col);
    map->kind = NODE_MAP;
    map->loc = child->name_loc;
    node_append(map, child);
    return map;
}

Node *yaml_read_set(Arena *a, Diag *d, const char *argument)
{
    Reader r = {.arena = a, .diag = d, .whole = true};
    const char *equals = strchr(argument, '='), *end, *start;
    Node *n;

    r.source = diag_source(d, "--set", argument);
    if (!equals || equals == argument) {
        diag_error(d, loc_at(&r, 0, 0), "MC0011",
                   "--set takes KEY=VALUE, for instance parallel.tp=4");
        return NULL;
    }
    r.shift = (uint32_t)(equals + 1 - argument);
    n = reader_run(&r, equals + 1, strlen(equals + 1));
    for (end = equals; n; end = start - 1) {
        for (start = end; start > argument && start[-1] != '.';)
            start--;
        n = map_around(&r, n, start, (size_t)(end - start),
                       (uint32_t)(start - argument));
        if (start == argument)
            break;
    }
    return n;
}

bool node_is_null(const Node *n)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};

    if (n->kind != NODE_SCALAR || n->quoted)
        return false;
    for (size_t i = 0; i < MC_LEN(words); i++)
        if (strcmp(n->text, words[i]) == 0)
            return true;
    return false;
}
