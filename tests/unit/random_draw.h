/* random_draw.h - for tests: dice, and the settings that they decide.
 *
 * A draw is a list of --set arguments, which random_spec.h fills.  The dice are
 * a function of the seed, so that a seed repeats its draw.
 */
#ifndef MEGAC_TESTS_RANDOM_DRAW_H
#define MEGAC_TESTS_RANDOM_DRAW_H

#include <stdlib.h>

#include "driver/cli.h"

typedef struct {
    uint64_t state;
    Arena *arena;
    CliList sets;
} Draw;

/* SplitMix64 (Steele et al. 2014). */
static inline uint64_t draw_next(Draw *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline bool draw_once_in(Draw *d, uint64_t times)
{
    return draw_next(d) % times == 0;
}

/* One of the words of a list separated by blanks; a word that stands twice
 * comes twice as often. */
static inline const char *draw_word(Draw *d, const char *words)
{
    uint64_t n = 1, at;

    for (const char *c = words; *c; c++)
        n += *c == ' ';
    for (at = draw_next(d) % n; at; words++)
        at -= *words == ' ';
    return arena_strndup(d->arena, words, strcspn(words, " "));
}

static inline int64_t draw_number(Draw *d, const char *words)
{
    return atoi(draw_word(d, words));
}

/* ---- settings ------------------------------------------------------------ */

static inline void draw_put(Draw *d, const char *path, const char *word)
{
    vec_push(&d->sets, arena_printf(d->arena, "%s=%s", path, word));
}

static inline const char *draw_set(Draw *d, const char *path, const char *words)
{
    const char *word = draw_word(d, words);

    draw_put(d, path, word);
    return word;
}

static inline void draw_int(Draw *d, const char *path, int64_t value)
{
    draw_put(d, path, arena_printf(d->arena, "%lld", (long long)value));
}

/* A key, and the words that it may be set to. */
typedef struct {
    const char *path, *words;
} DrawRow;

static inline void draw_rows(Draw *d, const DrawRow *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        draw_set(d, rows[i].path, rows[i].words);
}

/* ---- lists --------------------------------------------------------------- */

/* Appends a word to "", "[a", "[a,b" … */
static inline const char *draw_append(Draw *d, const char *list,
                                      const char *word)
{
    return arena_printf(d->arena, "%s%s%s", list, *list ? "," : "[", word);
}

/* Some of the words, at least one of them, as a list. */
static inline const char *draw_some(Draw *d, const char *words)
{
    const char *list = "";

    while (!*list)
        for (const char *at = words; *at; at += *at == ' ') {
            size_t n = strcspn(at, " ");
            if (draw_once_in(d, 2))
                list = draw_append(d, list, arena_strndup(d->arena, at, n));
            at += n;
        }
    return arena_printf(d->arena, "%s]", list);
}

#endif
