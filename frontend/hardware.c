/* hardware.c - reads a description of a machine.
 *
 *     memory: 80e9                      a field of Hardware each, by the tables
 *     peak: {bf16: 312e12, …}           below; blocks have tables of their own
 *     links: [{ranks: 8, …}, …]
 *     efficiency: {gemm: [[1e9, 0.5], …]}
 *
 * Nothing has a default but efficiencies, which are then 1: a machine that is
 * described in part would be predicted wrongly without a word.
 */
#include "frontend/frontend_priv.h"

#include <errno.h>
#include <glob.h>
#include <math.h>

typedef enum {
    FIELD_NUMBER, /* double, greater than 0 */
    FIELD_COUNT,  /* int64_t, greater than 0; "all" is INT64_MAX */
    FIELD_TEXT,
    FIELD_CURVE,
    FIELD_BLOCK,
    FIELD_LINKS
} FieldKind;

typedef struct Field Field;
struct Field {
    const char *name; /* NULL ends a table */
    FieldKind kind;
    bool optional;
    size_t offset;
    const Field *inside; /* of FIELD_BLOCK, at the same offset */
};

#define AT(type, member) offsetof(type, member)

static const Field peak_fields[] = {
    {"fp32", FIELD_NUMBER, false, AT(Hardware, peak[HARDWARE_FP32]), NULL},
    {"bf16", FIELD_NUMBER, false, AT(Hardware, peak[HARDWARE_BF16]), NULL},
    {"fp16", FIELD_NUMBER, false, AT(Hardware, peak[HARDWARE_FP16]), NULL},
    {NULL, FIELD_NUMBER, false, 0, NULL}};

static const Field efficiency_fields[] = {
    {"gemm", FIELD_CURVE, true, AT(Hardware, gemm), NULL},
    {"attention", FIELD_CURVE, true, AT(Hardware, attention), NULL},
    {"rows", FIELD_CURVE, true, AT(Hardware, rows), NULL},
    {NULL, FIELD_NUMBER, false, 0, NULL}};

static const Field link_fields[] = {
    {"ranks", FIELD_COUNT, false, AT(HardwareLink, ranks), NULL},
    {"bandwidth", FIELD_NUMBER, false, AT(HardwareLink, bandwidth), NULL},
    {"latency", FIELD_NUMBER, false, AT(HardwareLink, latency), NULL},
    {"efficiency", FIELD_CURVE, true, AT(HardwareLink, efficiency), NULL},
    {NULL, FIELD_NUMBER, false, 0, NULL}};

static const Field hardware_fields[] = {
    {"version", FIELD_BLOCK, true, 0, NULL},
    {"name", FIELD_TEXT, false, AT(Hardware, name), NULL},
    {"memory", FIELD_COUNT, false, AT(Hardware, memory), NULL},
    {"bandwidth", FIELD_NUMBER, false, AT(Hardware, bandwidth), NULL},
    {"host_bandwidth", FIELD_NUMBER, false, AT(Hardware, host_bandwidth), NULL},
    {"launch", FIELD_NUMBER, false, AT(Hardware, launch), NULL},
    {"peak", FIELD_BLOCK, false, 0, peak_fields},
    {"links", FIELD_LINKS, false, 0, NULL},
    {"efficiency", FIELD_BLOCK, true, 0, efficiency_fields},
    {NULL, FIELD_NUMBER, false, 0, NULL}};

/* ---- values ------------------------------------------------------------- */

static bool reject(Diag *d, const Node *n, const char *name, const char *what)
{
    bool scalar = n->kind == NODE_SCALAR;

    diag_error(d, n->loc, "MC0005", "%s%s%s must be %s", name,
               scalar ? " = " : "", scalar ? n->text : "", what);
    return false;
}

static bool number_read(Diag *d, const Node *n, const char *name, double *out)
{
    double value;

    if (n->kind != NODE_SCALAR || !str_to_double(n->text, &value) ||
        !(value > 0) || !isfinite(value))
        return reject(d, n, name, "a number greater than 0");
    *out = value;
    return true;
}

static bool count_read(Diag *d, const Node *n, const char *name, int64_t *out)
{
    double value;

    if (n->kind == NODE_SCALAR && strcmp(n->text, "all") == 0) {
        *out = INT64_MAX;
        return true;
    }
    if (!number_read(d, n, name, &value))
        return false;
    if (value < 1 || value > 1e18 || value != floor(value))
        return reject(d, n, name, "a whole number");
    *out = (int64_t)value;
    return true;
}

static bool point_read(Diag *d, const Node *n, const char *name, Curve *c)
{
    double *size = &c->size[c->n], *value = &c->value[c->n];

    if (c->n == CURVE_POINTS)
        return reject(d, n, name, "a curve of at most 16 points");
    if (n->kind != NODE_LIST || !n->first || !n->first->next ||
        n->first->next->next)
        return reject(d, n, name, "pairs [size, fraction]");
    if (!number_read(d, n->first, name, size) ||
        !number_read(d, n->first->next, name, value))
        return false;
    if (*value > 1)
        return reject(d, n->first->next, name, "at most 1");
    if (c->n && *size <= size[-1])
        return reject(d, n->first, name, "sizes that ascend");
    c->n++;
    return true;
}

static bool curve_read(Diag *d, const Node *n, const char *name, Curve *out)
{
    if (n->kind != NODE_LIST)
        return reject(d, n, name, "a list of pairs [size, fraction]");
    for (const Node *point = n->first; point; point = point->next)
        if (!point_read(d, point, name, out))
            return false;
    return true;
}

/* ---- blocks ------------------------------------------------------------- */

static bool block_read(Diag *d, const Node *n, const char *name,
                       const Field *fields, void *out);

static bool link_read(Diag *d, const Node *n, Hardware *h)
{
    HardwareLink *link = &h->links[h->nlinks];

    if (h->nlinks == HARDWARE_LINKS)
        return reject(d, n, "links", "a list of at most 4");
    if (!block_read(d, n, "links", link_fields, link))
        return false;
    if (h->nlinks && link->ranks <= link[-1].ranks) {
        diag_error(d, n->loc, "MC0006",
                   "links: each must join more ranks than the one before");
        return false;
    }
    h->nlinks++;
    return true;
}

static bool links_read(Diag *d, const Node *n, Hardware *h)
{
    if (n->kind != NODE_LIST || !n->first)
        return reject(d, n, "links", "a list of blocks {ranks, bandwidth, "
                                     "latency}");
    for (const Node *link = n->first; link; link = link->next)
        if (!link_read(d, link, h))
            return false;
    return true;
}

static bool text_read(Diag *d, const Node *n, const char *name,
                      const char **out)
{
    if (n->kind != NODE_SCALAR || node_is_null(n))
        return reject(d, n, name, "a text");
    *out = n->text;
    return true;
}

static bool version_read(Diag *d, const Node *n)
{
    return (n->kind == NODE_SCALAR && strcmp(n->text, "1") == 0) ||
           reject(d, n, "version", "1");
}

static bool field_read(Diag *d, const Node *n, const Field *f, void *out)
{
    void *at = (char *)out + f->offset;

    switch (f->kind) {
    case FIELD_NUMBER:
        return number_read(d, n, f->name, at);
    case FIELD_COUNT:
        return count_read(d, n, f->name, at);
    case FIELD_TEXT:
        return text_read(d, n, f->name, at);
    case FIELD_CURVE:
        return curve_read(d, n, f->name, at);
    case FIELD_LINKS:
        return links_read(d, n, out);
    case FIELD_BLOCK:
        return f->inside ? block_read(d, n, f->name, f->inside, out)
                         : version_read(d, n);
    }
    return false;
}

static const Field *field_find(const Field *fields, const char *name)
{
    for (; fields->name; fields++)
        if (strcmp(fields->name, name) == 0)
            return fields;
    return NULL;
}

static bool unknown_report(Diag *d, const Node *n, const char *block,
                           const Field *fields)
{
    const char *closest = NULL;
    unsigned distance = 4;

    for (; fields->name; fields++)
        if (str_distance(n->name, fields->name) < distance) {
            distance = str_distance(n->name, fields->name);
            closest = fields->name;
        }
    diag_error(d, n->name_loc, "MC0002", "`%s` has no key `%s`", block,
               n->name);
    if (closest)
        diag_help(d, "did you mean `%s`?", closest);
    return false;
}

static bool given_once(Diag *d, const Node *map, const Node *n)
{
    for (const Node *before = map->first; before != n; before = before->next)
        if (strcmp(before->name, n->name) == 0) {
            diag_error(d, n->name_loc, "MC0004", "%s is given twice", n->name);
            diag_note(d, before->name_loc, "the first time is here");
            return false;
        }
    return true;
}

static bool all_given(Diag *d, const Node *map, const char *block,
                      const Field *fields)
{
    bool ok = true;

    for (; fields->name; fields++) {
        const Node *n = map->first;
        while (n && strcmp(n->name, fields->name) != 0)
            n = n->next;
        if (n || fields->optional)
            continue;
        diag_error(d, map->loc, "MC0008", "%s of `%s` is required",
                   fields->name, block);
        ok = false;
    }
    return ok;
}

static bool block_read(Diag *d, const Node *map, const char *name,
                       const Field *fields, void *out)
{
    bool ok = true;

    if (map->kind != NODE_MAP)
        return reject(d, map, name, "a block of keys");
    for (const Node *n = map->first; n; n = n->next) {
        const Field *f = field_find(fields, n->name);
        ok = (f ? given_once(d, map, n) && field_read(d, n, f, out)
                : unknown_report(d, n, name, fields)) && ok;
    }
    return all_given(d, map, name, fields) && ok;
}

/* ---- entry -------------------------------------------------------------- */

const Hardware *hardware_parse(Arena *a, Diag *d, const char *name,
                               const char *text)
{
    Node *root = yaml_read_text(a, d, name, text, strlen(text));
    Hardware *h = arena_new_of(a, Hardware);

    return root && block_read(d, root, "hardware", hardware_fields, h) ? h
                                                                      : NULL;
}

/* Lists the descriptions that ship with megac, and the closest. */
static void names_help(Arena *a, Diag *d, const char *typed)
{
    glob_t found = {0};
    unsigned distance = 4;
    const char *closest = NULL;
    Buf all = {0};

    glob(arena_printf(a, "%s/hardware/*.yaml", configs_dir()), 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *file = strrchr(found.gl_pathv[i], '/') + 1;
        char *name = arena_strndup(a, file, strlen(file) - strlen(".yaml"));
        buf_printf(&all, "%s%s", i ? ", " : "", name);
        if (str_distance(typed, name) < distance) {
            distance = str_distance(typed, name);
            closest = name;
        }
    }
    if (closest)
        diag_help(d, "did you mean `%s`?", closest);
    if (all.len)
        diag_help(d, "a file, or one of: %s", buf_str(&all));
    globfree(&found);
    buf_free(&all);
}

const Hardware *hardware_load(Arena *a, Diag *d, const char *name, Loc where)
{
    static const char *const folder = "hardware/";
    const char *path = configs_find(a, name, name, &folder, 1);
    const Hardware *h = NULL;
    Buf text = {0};

    if (!path) {
        diag_error(d, where, "MC0503", "no description of hardware `%s`", name);
        names_help(a, d, name);
    } else if (!buf_read_file(&text, path)) {
        diag_error(d, where, "MC0801", "cannot read %s: %s", path,
                   strerror(errno));
    } else {
        h = hardware_parse(a, d, path, buf_str(&text));
    }
    buf_free(&text);
    return h;
}

/* ---- questions ---------------------------------------------------------- */

double curve_at(const Curve *c, double size)
{
    uint32_t i = 0;

    while (i < c->n && c->size[i] < size)
        i++;
    if (c->n == 0)
        return 1;
    if (i == 0 || i == c->n)
        return c->value[i ? i - 1 : 0];
    double part = log(size / c->size[i - 1]) /
                  log(c->size[i] / c->size[i - 1]);
    return c->value[i - 1] + part * (c->value[i] - c->value[i - 1]);
}

const HardwareLink *hardware_link(const Hardware *h, uint32_t first,
                                  uint32_t last)
{
    uint32_t i = 0;

    while (i + 1 < h->nlinks &&
           first / h->links[i].ranks != last / h->links[i].ranks)
        i++;
    return &h->links[i];
}
