/* random_cover.h - for tests: what drawn specs have had so far.
 *
 * Counts, by key of the schema, the values of the normal form, where what has
 * no effect is back at its default.  All choices of all keys that are built
 * have to come up, and of numbers and texts something but the default; a few,
 * listed below with the reason, cannot.
 */
#ifndef MEGAC_TESTS_RANDOM_COVER_H
#define MEGAC_TESTS_RANDOM_COVER_H

/* Not the Node of the IR, which a test may need beside this. */
#define Node FrontendNode
#include "frontend/frontend_priv.h"
#undef Node

typedef struct {
    const char *value;
    uint64_t times;
} Seen;

typedef struct {
    Arena *arena;
    Diag *diag;
    uint64_t specs;
    Vec(Seen) * seen; /* by key */
    bool *moved;      /* by key: away from the default */
} Cover;

/* Keys, or values of a key, that do not come up. */
static const struct {
    const char *path, *value; /* NULL: all of them */
} cover_never[] = {
    {"model.name", NULL},        /* a name in logs */
    {"training.log.interval", NULL},
    {"training.log.jsonl", NULL},
    {"parallel.schedule", "auto"}, /* the normal form has what it means */
    /* always computed again, and so never moved */
    {"training.offload.activations", "layernorm"},
    {"training.offload.activations", "moe_act"},
};

static inline Cover cover_new(void)
{
    Arena *a = arena_new();
    Cover c = {.arena = a, .diag = diag_new(a)};

    c.seen = arena_alloc(a, sizeof *c.seen * schema_num_keys);
    c.moved = arena_array(a, bool, schema_num_keys);
    return c;
}

static inline void cover_free(Cover *c)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        vec_free(&c->seen[i]);
    diag_free(c->diag);
    arena_free(c->arena);
}

static inline void cover_count(Cover *c, uint32_t key, const char *value)
{
    uint32_t i = 0;

    while (i < c->seen[key].n && strcmp(c->seen[key].v[i].value, value) != 0)
        i++;
    if (i == c->seen[key].n)
        vec_push(&c->seen[key],
                 ((Seen){arena_strdup(c->arena, value), 0}));
    c->seen[key].v[i].times++;
}

/* Each element of a list of choices; all else as it stands. */
static inline void cover_value(Cover *c, uint32_t key, const char *value)
{
    char *copy = arena_strdup(c->arena, value), *save = NULL;
    const char *word;

    if (schema_keys[key].kind != KIND_CHOICE_LIST) {
        cover_count(c, key, value);
        return;
    }
    for (word = strtok_r(copy, "[], ", &save); word;
         word = strtok_r(NULL, "[], ", &save))
        cover_count(c, key, word);
}

static inline void cover_add(Cover *c, const Spec *s)
{
    c->specs++;
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        Buf text = {0};
        if (!strcmp(key->section, "model.moe") && !s->model.moe.num_experts)
            continue;
        value_print(key, s, &text);
        cover_value(c, i, buf_str(&text));
        c->moved[i] |= !key->fallback || /* required */
                       !value_is_default(c->arena, c->diag, key, s);
        buf_free(&text);
    }
}

static inline void cover_print(const Cover *c, FILE *to)
{
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        fprintf(to, "%s:", schema_keys[i].path);
        for (uint32_t k = 0; k < c->seen[i].n; k++)
            fprintf(to, " %s %llu", c->seen[i].v[k].value,
                    (unsigned long long)c->seen[i].v[k].times);
        fprintf(to, "\n");
    }
}

/* ---- what is missing ----------------------------------------------------- */

static inline bool cover_excused(const char *path, const char *value)
{
    for (size_t i = 0; i < MC_LEN(cover_never); i++)
        if (!strcmp(cover_never[i].path, path) &&
            (!cover_never[i].value ||
             (value && !strcmp(cover_never[i].value, value))))
            return true;
    return false;
}

/* A word that begins with FILE stands for any path with that ending. */
static inline bool cover_means(const char *word, const char *value)
{
    const char *ending = strchr(word, '.');

    return !strncmp(word, "FILE", 4) ? strstr(value, ending) != NULL
                                     : !strcmp(word, value);
}

static inline bool cover_has(const Cover *c, uint32_t key, const char *word)
{
    for (uint32_t i = 0; i < c->seen[key].n; i++)
        if (cover_means(word, c->seen[key].v[i].value))
            return true;
    return cover_excused(schema_keys[key].path, word);
}

/* Prints what is missing of a key; returns how much. */
static inline uint32_t cover_lacks_word(const Cover *c, uint32_t key,
                                        const char *word)
{
    if (cover_has(c, key, word))
        return 0;
    fprintf(stderr, "never drawn: %s = %s\n", schema_keys[key].path, word);
    return 1;
}

static inline uint32_t cover_lacks(Cover *c, uint32_t key)
{
    const Key *k = &schema_keys[key];
    uint32_t n = 0;

    if (k->feature || cover_excused(k->path, NULL))
        return 0;
    if (k->kind == KIND_BOOL)
        return cover_lacks_word(c, key, "true") +
               cover_lacks_word(c, key, "false");
    for (const Option *o = k->options; o && o->words; o++)
        if (!o->feature)
            n += cover_lacks_word(c, key,
                                  arena_strndup(c->arena, o->words,
                                                strcspn(o->words, " ")));
    if (!k->options && !c->moved[key]) {
        fprintf(stderr, "never drawn: %s but its default\n", k->path);
        n++;
    }
    return n;
}

/* How many choices are missing, each of which is printed. */
static inline uint32_t cover_missing(Cover *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < schema_num_keys; i++)
        n += cover_lacks(c, i);
    return n;
}

#endif
