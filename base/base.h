/* base.h - what every other folder stands on: memory, strings, diagnostics.
 *
 * base/ depends on nothing but the C library.  The compiler allocates from
 * arenas and never frees single objects; running out of memory ends the
 * process through mc_oom, the one place that may do so.  The runtime does not
 * use mc_oom: it allocates at load only and reports through Status.
 */
#ifndef MEGAC_BASE_H
#define MEGAC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MC_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MC_MUST_USE __attribute__((warn_unused_result))
#define MC_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define MC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MC_MAX(a, b) ((a) > (b) ? (a) : (b))

/* A bug in megac: prints the place and ends the process with exit code 70. */
#define mc_assert(cond)                                                        \
    ((cond) ? (void)0 : mc_bug(__FILE__, __LINE__, "%s", #cond))
_Noreturn void mc_bug(const char *file, int line, const char *fmt, ...)
    MC_PRINTF(3, 4);
_Noreturn void mc_oom(size_t bytes);

/* ---- arena.c ---------------------------------------------------------- */

/* A bump allocator.  Everything handed out is zeroed, 16-byte aligned and
 * lives until arena_free. */
typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *a);
/* Takes back all that was handed out, and keeps memory for as much again. */
void arena_reset(Arena *a);
void *arena_alloc(Arena *a, size_t bytes);
char *arena_strndup(Arena *a, const char *s, size_t len);
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *fmt, ...) MC_PRINTF(2, 3);
char *arena_vprintf(Arena *a, const char *fmt, va_list ap);
size_t arena_bytes(const Arena *a);

#define arena_new_of(a, T) ((T *)arena_alloc((a), sizeof(T)))
#define arena_array(a, T, n) ((T *)arena_alloc((a), sizeof(T) * (size_t)(n)))

/* ---- vec.c: growable arrays ------------------------------------------- */

/* Vec(int) xs = {0};  vec_push(&xs, 3);  xs.v[i], xs.n;  vec_free(&xs);
 * No pointer into xs.v survives a push. */
#define Vec(T)                                                                 \
    struct {                                                                   \
        T *v;                                                                  \
        uint32_t n, cap;                                                       \
    }
#define vec_push(vec, item)                                                    \
    (*((vec)->n == (vec)->cap ? (void)((vec)->v = vec_grow((vec)->v,           \
           &(vec)->cap, sizeof *(vec)->v)) : (void)0,                          \
       &(vec)->v[(vec)->n++]) = (item))
#define vec_free(vec) \
    (vec_release((vec)->v), (void)memset((vec), 0, sizeof *(vec)))
#define vec_last(vec) ((vec)->v[(vec)->n - 1])

void *vec_grow(void *v, uint32_t *cap, size_t item);
void vec_release(void *v);

/* ---- str.c: text under construction, interned names ------------------- */

/* A growable text, always NUL-terminated once written to. */
typedef struct {
    char *s;
    size_t len, cap;
} Buf;

void buf_printf(Buf *b, const char *fmt, ...) MC_PRINTF(2, 3);
void buf_vprintf(Buf *b, const char *fmt, va_list ap);
void buf_puts(Buf *b, const char *s);
void buf_write(Buf *b, const void *bytes, size_t n);
void buf_free(Buf *b);
const char *buf_str(const Buf *b);

/* Reads a whole file; false (and errno) on failure. */
bool buf_read_file(Buf *b, const char *path);
/* Writes beside `path`, then renames, so that no reader sees half a file. */
bool buf_write_file(const Buf *b, const char *path);

/* An interned string: equal text, equal Sym.  0 is the empty string. */
typedef struct {
    uint32_t i;
} Sym;
typedef struct SymTab SymTab;

SymTab *symtab_new(Arena *a);
void symtab_free(SymTab *t);
Sym sym_intern(SymTab *t, const char *s);
Sym sym_intern_n(SymTab *t, const char *s, size_t len);
const char *sym_text(const SymTab *t, Sym s);

/* Levenshtein distance, for "did you mean". */
unsigned str_distance(const char *a, const char *b);

/* Parses a whole decimal number with `_` separators and Ki/Mi/Gi suffixes
 * (5e-5, 1_000_000, 64Ki); independent of the locale.  False if any character
 * is left over or the value is out of range. */
bool str_to_int(const char *s, int64_t *out);
bool str_to_double(const char *s, double *out);

/* ---- diag.c: errors of the user's making ------------------------------ */

/* A place in the input: line and column count from 1; an index into the
 * Diag's table of places.  0 is "nowhere". */
typedef struct {
    uint32_t i;
} Loc;

typedef struct Diag Diag;

Diag *diag_new(Arena *a);
void diag_free(Diag *d);
/* Whether it only counts from now on, and keeps the code of the first error:
 * for asking if something is right, not why. */
void diag_count_only(Diag *d, bool only);
bool diag_counts_only(const Diag *d);
/* Forgets all messages; sources and places stay. */
void diag_clear(Diag *d);
/* The first error's code and (unless only counted) text; NULL without one. */
const char *diag_first_code(const Diag *d);
const char *diag_first_text(const Diag *d);

/* Registers a text so that messages can quote its lines.  `name` is a file
 * name, or the spelling of where it came from ("--set", "environment"). */
uint32_t diag_source(Diag *d, const char *name, const char *text);
Loc diag_loc(Diag *d, uint32_t source, uint32_t line, uint32_t col);
/* A place with no text behind it, shown as its name alone: "(default)". */
Loc diag_loc_named(Diag *d, const char *name);
/* "llama.yaml:9:25", "--set", "(default)". */
const char *diag_loc_text(Diag *d, Loc loc);
void diag_loc_parts(const Diag *d, Loc loc, const char **out_file,
                    uint32_t *out_line, uint32_t *out_col);

/* Codes are stable: MC0xxx input text, MC01xx model, MC02xx parallel,
 * MC03xx training, MC04xx data, MC05xx target and memory, MC06xx IR text,
 * MC07xx plans and verification, MC08xx files.  docs/DIAGNOSTICS.md lists
 * them. */
void diag_error(Diag *d, Loc loc, const char *code, const char *fmt, ...)
    MC_PRINTF(4, 5);
void diag_verror(Diag *d, Loc loc, const char *code, const char *fmt,
                 va_list ap);
void diag_warn(Diag *d, Loc loc, const char *code, const char *fmt, ...)
    MC_PRINTF(4, 5);
/* Adds a line under the latest message: "help: did you mean `tp`?". */
void diag_help(Diag *d, const char *fmt, ...) MC_PRINTF(2, 3);
/* Adds another place to the latest message: "note: tp = 4 comes from here". */
void diag_note(Diag *d, Loc loc, const char *fmt, ...) MC_PRINTF(3, 4);

unsigned diag_errors(const Diag *d);
/* Prints what was collected (20 errors at most, then how many were left off),
 * in the order of the places, with source line and caret. */
void diag_print(Diag *d, FILE *to);

/* ---- clock.c ---------------------------------------------------------- */
double mc_seconds(void);     /* monotonic */
double mc_cpu_seconds(void); /* that this thread ran */

#endif
