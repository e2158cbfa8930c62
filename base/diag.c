/* diag.c - errors of the user's making, collected and shown in one go.
 *
 * A pass reports what it finds wrong and goes on, so that one run shows up to
 * twenty errors.  diag_print sorts them by place and shows each as
 *
 *     llama.yaml:9:21: error: 32 heads do not split into 5 groups [MC0112]
 *         9 |   num_query_groups: 5
 *           |                     ^
 *         help: take a divisor of 32
 *
 * A place is a row of a table: a source text, a line and a column.  Line 0
 * stands for a text without lines worth counting (the argument of --set, an
 * environment variable): it is quoted whole.  A source without text is a bare
 * name such as "(default)" and quotes nothing.  Quoted bytes that a terminal
 * would obey are shown as `?`, and of a very long line only the part around
 * the caret is shown.
 */
#include "base/base.h"

#include <stdlib.h>

enum { ERRORS_SHOWN = 20, QUOTE_WIDTH = 100, QUOTE_LEAD = 60 };

typedef struct {
    const char *name, *text; /* text is NULL for a bare name */
} Source;

typedef struct {
    uint32_t source, line, col;
} Place;

typedef struct {
    Loc loc; /* 0: a help line, which has no place */
    const char *text;
} Extra;

typedef struct {
    bool is_error;
    Loc loc;
    const char *code, *text;
    uint32_t first_extra, num_extras;
} Message;

struct Diag {
    Arena *arena;
    Vec(Source) sources;
    Vec(Place) places;
    Vec(Message) messages;
    Vec(Extra) extras;
    unsigned errors;
    const char *first_code, *first_text; /* of the first error */
    bool count_only;
};

/* ---- places ------------------------------------------------------------- */

Diag *diag_new(Arena *a)
{
    Diag *d = arena_new_of(a, Diag);

    d->arena = a;
    vec_push(&d->sources, ((Source){"megac", NULL}));
    vec_push(&d->places, ((Place){0, 0, 0}));
    return d;
}

void diag_free(Diag *d)
{
    vec_free(&d->sources);
    vec_free(&d->places);
    vec_free(&d->messages);
    vec_free(&d->extras);
}

uint32_t diag_source(Diag *d, const char *name, const char *text)
{
    Source s = {arena_strdup(d->arena, name), arena_strdup(d->arena, text)};

    vec_push(&d->sources, s);
    return d->sources.n - 1;
}

Loc diag_loc(Diag *d, uint32_t source, uint32_t line, uint32_t col)
{
    mc_assert(source < d->sources.n);
    vec_push(&d->places, ((Place){source, line, col}));
    return (Loc){d->places.n - 1};
}

Loc diag_loc_named(Diag *d, const char *name)
{
    Source s = {arena_strdup(d->arena, name), NULL};

    vec_push(&d->sources, s);
    return diag_loc(d, d->sources.n - 1, 0, 0);
}

static const Place *place(const Diag *d, Loc loc)
{
    mc_assert(loc.i < d->places.n);
    return &d->places.v[loc.i];
}

const char *diag_loc_text(Diag *d, Loc loc)
{
    const Place *p = place(d, loc);
    const char *name = d->sources.v[p->source].name;

    if (!p->line)
        return arena_strdup(d->arena, name);
    return arena_printf(d->arena, "%s:%u:%u", name, p->line, p->col);
}

void diag_loc_parts(const Diag *d, Loc loc, const char **out_file,
                    uint32_t *out_line, uint32_t *out_col)
{
    const Place *p = place(d, loc);

    *out_file = d->sources.v[p->source].name;
    *out_line = p->line;
    *out_col = p->col;
}

/* ---- messages ----------------------------------------------------------- */

void diag_count_only(Diag *d, bool only)
{
    d->count_only = only;
}

bool diag_counts_only(const Diag *d)
{
    return d->count_only;
}

void diag_clear(Diag *d)
{
    d->messages.n = d->extras.n = 0;
    d->errors = 0;
    d->first_code = d->first_text = NULL;
}

const char *diag_first_code(const Diag *d)
{
    return d->first_code;
}

const char *diag_first_text(const Diag *d)
{
    return d->first_text;
}

static void message_add(Diag *d, bool is_error, Loc loc, const char *code,
                        const char *text)
{
    Message m = {is_error, loc, code, text, d->extras.n, 0};

    place(d, loc);
    vec_push(&d->messages, m);
    if (is_error && !d->errors++) {
        d->first_code = code;
        d->first_text = text;
    }
}

static void message_format(Diag *d, bool is_error, Loc loc, const char *code,
                           const char *fmt, va_list ap)
{
    if (!d->count_only)
        message_add(d, is_error, loc, code, arena_vprintf(d->arena, fmt, ap));
    else if (is_error && !d->errors++)
        d->first_code = code;
}

static void extra_add(Diag *d, Loc loc, const char *text)
{
    mc_assert(d->messages.n);
    vec_push(&d->extras, ((Extra){loc, text}));
    vec_last(&d->messages).num_extras++;
}

void diag_error(Diag *d, Loc loc, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    message_format(d, true, loc, code, fmt, ap);
    va_end(ap);
}

void diag_verror(Diag *d, Loc loc, const char *code, const char *fmt,
                 va_list ap)
{
    message_format(d, true, loc, code, fmt, ap);
}

void diag_warn(Diag *d, Loc loc, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    message_format(d, false, loc, code, fmt, ap);
    va_end(ap);
}

void diag_help(Diag *d, const char *fmt, ...)
{
    va_list ap;

    if (d->count_only)
        return;
    va_start(ap, fmt);
    extra_add(d, (Loc){0}, arena_vprintf(d->arena, fmt, ap));
    va_end(ap);
}

void diag_note(Diag *d, Loc loc, const char *fmt, ...)
{
    va_list ap;

    if (d->count_only)
        return;
    va_start(ap, fmt);
    extra_add(d, loc, arena_vprintf(d->arena, fmt, ap));
    va_end(ap);
}

unsigned diag_errors(const Diag *d)
{
    return d->errors;
}

/* ---- printing ----------------------------------------------------------- */

/* The line of a text, counting from 1; line 0 is the first one. */
static const char *line_find(const char *text, uint32_t line, size_t *out_len)
{
    for (; line > 1 && text; line--) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    *out_len = text ? strcspn(text, "\r\n") : 0;
    return text;
}

static bool utf8_continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* The byte at which the col-th character (from 1) of a line begins. */
static size_t column_byte(const char *line, size_t len, uint32_t col)
{
    size_t i = 0;

    for (uint32_t c = 1; c < col && i < len; c++)
        for (i++; i < len && utf8_continues(line[i]);)
            i++;
    return i;
}

static void quote_bytes(FILE *to, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        fputc((c < ' ' && c != '\t') || c == 0x7f ? '?' : c, to);
    }
}

/* One column of space for each character of `s`, tabs staying tabs. */
static void quote_blanks(FILE *to, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!utf8_continues(s[i]))
            fputc(s[i] == '\t' ? '\t' : ' ', to);
}

static void quote_print(const Diag *d, const Place *p, FILE *to)
{
    const char *text = d->sources.v[p->source].text;
    size_t len, caret, from = 0;
    const char *line = text ? line_find(text, p->line, &len) : NULL;

    if (!line)
        return;
    caret = column_byte(line, len, p->col);
    if (len > QUOTE_WIDTH && caret > QUOTE_LEAD)
        from = caret - QUOTE_LEAD;
    while (from && utf8_continues(line[from]))
        from--;
    len = MC_MIN(len - from, QUOTE_WIDTH);
    if (p->line)
        fprintf(to, "%5u | ", p->line);
    else
        fputs("      | ", to);
    quote_bytes(to, line + from, len);
    fputs("\n      | ", to);
    quote_blanks(to, line + from, caret - from);
    fputs("^\n", to);
}

static void headline_print(Diag *d, Loc loc, const char *kind,
                           const char *text, const char *code, FILE *to)
{
    fprintf(to, "%s: %s: %s", diag_loc_text(d, loc), kind, text);
    if (code)
        fprintf(to, " [%s]", code);
    fputc('\n', to);
    quote_print(d, place(d, loc), to);
}

static void message_print(Diag *d, const Message *m, FILE *to)
{
    headline_print(d, m->loc, m->is_error ? "error" : "warning", m->text,
                   m->code, to);
    for (uint32_t i = 0; i < m->num_extras; i++) {
        const Extra *x = &d->extras.v[m->first_extra + i];
        if (x->loc.i)
            headline_print(d, x->loc, "note", x->text, NULL, to);
        else
            fprintf(to, "      help: %s\n", x->text);
    }
}

static int number_compare(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

/* By place; messages of one place stay in the order they were reported,
 * which is the order of their addresses before sorting. */
static int message_compare(const void *left, const void *right, void *diag)
{
    const Message *a = *(Message *const *)left, *b = *(Message *const *)right;
    const Place *p = place(diag, a->loc), *q = place(diag, b->loc);
    int order = number_compare(p->source, q->source);

    if (!order)
        order = number_compare(p->line, q->line);
    if (!order)
        order = number_compare(p->col, q->col);
    return order ? order : (a > b) - (a < b);
}

void diag_print(Diag *d, FILE *to)
{
    uint32_t n = d->messages.n;
    const Message **sorted = arena_array(d->arena, const Message *, n);
    unsigned shown = 0;

    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &d->messages.v[i];
    qsort_r(sorted, n, sizeof *sorted, message_compare, d);
    for (uint32_t i = 0; i < n; i++) {
        if (sorted[i]->is_error && shown++ >= ERRORS_SHOWN)
            continue;
        message_print(d, sorted[i], to);
    }
    if (d->errors > ERRORS_SHOWN)
        fprintf(to, "megac: %u more errors not shown\n",
                d->errors - ERRORS_SHOWN);
}
