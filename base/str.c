/* str.c - text buffers, interned names, numbers from text.
 *
 * Number parsing never consults the locale: a decimal comma in the user's
 * environment must not change what `lr: 5e-5` means.
 */
#include "base/base.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#define HASH_NONFATAL_OOM 0
#define uthash_fatal(msg) mc_oom(0)
#include <uthash.h>

/* ---- Buf --------------------------------------------------------------- */

static void buf_reserve(Buf *b, size_t extra)
{
    size_t need = b->len + extra + 1;
    size_t cap = b->cap ? b->cap : 256;

    if (need <= b->cap)
        return;
    while (cap < need)
        cap *= 2;
    b->s = realloc(b->s, cap);
    if (!b->s)
        mc_oom(cap);
    b->cap = cap;
}

void buf_write(Buf *b, const void *bytes, size_t n)
{
    buf_reserve(b, n);
    memcpy(b->s + b->len, bytes, n);
    b->len += n;
    b->s[b->len] = '\0';
}

void buf_puts(Buf *b, const char *s)
{
    buf_write(b, s, strlen(s));
}

void buf_vprintf(Buf *b, const char *fmt, va_list ap)
{
    va_list again;
    int len;

    va_copy(again, ap);
    len = vsnprintf(NULL, 0, fmt, ap);
    mc_assert(len >= 0);
    buf_reserve(b, (size_t)len);
    vsnprintf(b->s + b->len, (size_t)len + 1, fmt, again);
    b->len += (size_t)len;
    va_end(again);
}

void buf_printf(Buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_free(Buf *b)
{
    free(b->s);
    *b = (Buf){0};
}

const char *buf_str(const Buf *b)
{
    return b->s ? b->s : "";
}

bool buf_read_file(Buf *b, const char *path)
{
    char chunk[1 << 14];
    FILE *f = fopen(path, "rb");
    size_t got;
    bool ok;

    if (!f)
        return false;
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_write(b, chunk, got);
    ok = !ferror(f);
    fclose(f);
    return ok;
}

bool buf_write_file(const Buf *b, const char *path)
{
    Buf beside = {0};
    FILE *f;
    bool ok;

    buf_printf(&beside, "%s.%ld.tmp", path, (long)getpid());
    f = fopen(beside.s, "wb");
    ok = f && fwrite(buf_str(b), 1, b->len, f) == b->len;
    if (f)
        ok = fclose(f) == 0 && ok;
    ok = ok && rename(beside.s, path) == 0;
    if (!ok) {
        int why = errno;
        unlink(beside.s);
        errno = why;
    }
    buf_free(&beside);
    return ok;
}

/* ---- interned names ---------------------------------------------------- */

typedef struct {
    const char *text;
    uint32_t id;
    UT_hash_handle hh;
} SymEntry;

struct SymTab {
    Arena *arena;
    SymEntry *by_text;
    Vec(const char *) texts;
};

SymTab *symtab_new(Arena *a)
{
    SymTab *t = arena_new_of(a, SymTab);

    t->arena = a;
    sym_intern(t, "");
    return t;
}

void symtab_free(SymTab *t)
{
    HASH_CLEAR(hh, t->by_text);
    vec_free(&t->texts);
}

Sym sym_intern_n(SymTab *t, const char *s, size_t len)
{
    SymEntry *e = NULL;

    HASH_FIND(hh, t->by_text, s, len, e);
    if (!e) {
        e = arena_new_of(t->arena, SymEntry);
        e->text = arena_strndup(t->arena, s, len);
        e->id = t->texts.n;
        vec_push(&t->texts, e->text);
        HASH_ADD_KEYPTR(hh, t->by_text, e->text, len, e);
    }
    return (Sym){e->id};
}

Sym sym_intern(SymTab *t, const char *s)
{
    return sym_intern_n(t, s, strlen(s));
}

const char *sym_text(const SymTab *t, Sym s)
{
    mc_assert(s.i < t->texts.n);
    return t->texts.v[s.i];
}

/* ---- small helpers ------------------------------------------------------ */

unsigned str_distance(const char *a, const char *b)
{
    size_t n = strlen(b);
    unsigned row[128];

    if (n >= MC_LEN(row))
        return UINT32_MAX;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; *a; a++, i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            unsigned above = row[j];
            unsigned change = diagonal + (*a != b[j - 1]);
            row[j] = MC_MIN(change, 1 + MC_MIN(above, row[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

static locale_t c_locale(void)
{
    static locale_t c;

    if (!c)
        c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return c;
}

/* Copies `s` without `_` separators; false if it does not fit or if an
 * underscore is not between two digits. */
static bool strip_underscores(const char *s, char *out, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; s[i]; i++) {
        if (s[i] == '_') {
            bool inside = i > 0 && s[i - 1] >= '0' && s[i - 1] <= '9' &&
                          s[i + 1] >= '0' && s[i + 1] <= '9';
            if (!inside)
                return false;
            continue;
        }
        if (n + 1 >= cap)
            return false;
        out[n++] = s[i];
    }
    out[n] = '\0';
    return n > 0;
}

static bool suffix_factor(const char *suffix, double *out)
{
    static const struct {
        const char *text;
        double factor;
    } table[] = {{"", 1.0}, {"Ki", 1024.0}, {"Mi", 1048576.0},
                 {"Gi", 1073741824.0}, {"Ti", 1099511627776.0}};

    for (size_t i = 0; i < MC_LEN(table); i++)
        if (strcmp(suffix, table[i].text) == 0) {
            *out = table[i].factor;
            return true;
        }
    return false;
}

bool str_to_double(const char *s, double *out)
{
    char plain[64], *end;
    double value, factor;

    if (!strip_underscores(s, plain, sizeof plain))
        return false;
    if (!strchr("+-.0123456789", plain[0]) || strpbrk(plain, "xXnN"))
        return false;
    errno = 0;
    value = strtod_l(plain, &end, c_locale());
    if (end == plain || !suffix_factor(end, &factor))
        return false;
    if (errno == ERANGE && (value > 1.0 || value < -1.0))
        return false;
    *out = value * factor;
    return true;
}

bool str_to_int(const char *s, int64_t *out)
{
    double value;
    char plain[64], *end;
    long long whole;

    if (!strip_underscores(s, plain, sizeof plain))
        return false;
    errno = 0;
    whole = strtoll(plain, &end, 10);
    if (end != plain && *end == '\0' && errno == 0) {
        *out = whole;
        return true;
    }
    if (!str_to_double(s, &value) || value < -9e15 || value > 9e15)
        return false;
    if (value != (double)(int64_t)value)
        return false;
    *out = (int64_t)value;
    return true;
}
