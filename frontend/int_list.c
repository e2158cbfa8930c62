/* int_list.c - lists of integers as Python writes them, for Megatron's sake.
 *
 *   ([0]*3+[1]*58)      three zeros, then fifty-eight ones
 *
 *   list  = term {"+" term}
 *   term  = ( "[" [int {"," int}] "]" | "(" list ")" ) {"*" int}
 *
 * What YAML itself reads as a list does not come here.
 */
#include "frontend/frontend_priv.h"

#include <stdlib.h>

enum { MAX_LENGTH = 1 << 16, MAX_DEPTH = 16 };

typedef struct {
    const char *at;
    int depth;
    Vec(int64_t) out;
} Reader;

static bool take(Reader *r, char c)
{
    while (*r->at == ' ')
        r->at++;
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static bool number(Reader *r, int64_t *out)
{
    char *end;

    while (*r->at == ' ')
        r->at++;
    *out = strtoll(r->at, &end, 10);
    if (end == r->at)
        return false;
    r->at = end;
    return true;
}

static bool items(Reader *r)
{
    int64_t v;

    if (take(r, ']'))
        return true;
    do {
        if (!number(r, &v) || r->out.n == MAX_LENGTH)
            return false;
        vec_push(&r->out, v);
    } while (take(r, ','));
    return take(r, ']');
}

/* What was read from `first` on, so many times. */
static bool repeat(Reader *r, uint32_t first)
{
    uint32_t n = r->out.n - first;
    int64_t times;

    if (!number(r, &times) || times < 0 ||
        (n && times > (MAX_LENGTH - first) / n))
        return false;
    if (times == 0)
        r->out.n = first;
    for (int64_t k = 1; k < times; k++)
        for (uint32_t i = 0; i < n; i++) {
            int64_t v = r->out.v[first + i];
            vec_push(&r->out, v);
        }
    return true;
}

static bool list(Reader *r);

static bool term(Reader *r)
{
    uint32_t first = r->out.n;
    bool ok = take(r, '[') ? items(r) : take(r, '(') && list(r) && take(r, ')');

    while (ok && take(r, '*'))
        ok = repeat(r, first);
    return ok;
}

static bool list(Reader *r)
{
    bool ok = r->depth++ < MAX_DEPTH && term(r);

    while (ok && take(r, '+'))
        ok = term(r);
    r->depth--;
    return ok;
}

bool int_list_read(Arena *a, const char *text, SpecIntList *out)
{
    Reader r = {.at = text};
    bool ok = list(&r) && (take(&r, '\0'));

    if (ok) {
        out->n = r.out.n;
        out->v = arena_array(a, int64_t, r.out.n);
        for (uint32_t i = 0; i < r.out.n; i++)
            out->v[i] = r.out.v[i];
    }
    vec_free(&r.out);
    return ok;
}
