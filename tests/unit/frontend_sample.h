/* frontend_sample.h - a small Llama as text, and parsing it in a test. */
#ifndef MEGAC_FRONTEND_SAMPLE_H
#define MEGAC_FRONTEND_SAMPLE_H

#include "frontend/frontend.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char sample_text[] = "version: 1\n"
                                  "model:\n"
                                  "  num_layers: 4\n"
                                  "  hidden_size: 64\n"
                                  "  num_attention_heads: 8\n"
                                  "  num_query_groups: 4\n"
                                  "  ffn_hidden_size: 128\n"
                                  "  vocab_size: 96\n"
                                  "training:\n"
                                  "  seq_length: 32\n"
                                  "  global_batch_size: 8\n"
                                  "  precision: fp32\n";

typedef struct {
    Arena *arena;
    Diag *diag;
    Spec *spec;
    char *shown; /* what diag_print printed */
} Sample;

/* Parses `text` with --set arguments, which end with NULL. */
static inline Sample sample_parse_text(const char *text,
                                       const char *const *sets)
{
    Sample s = {.arena = arena_new()};
    size_t len;
    FILE *to = open_memstream(&s.shown, &len);
    int n = 0;

    while (sets[n])
        n++;
    s.diag = diag_new(s.arena);
    s.spec = spec_parse(s.arena, s.diag, "t.yaml", text, sets, n);
    diag_print(s.diag, to);
    fclose(to);
    return s;
}

static inline void sample_free(Sample *s)
{
    diag_free(s->diag);
    arena_free(s->arena);
    free(s->shown);
}

#define sample_parse(...)                                                      \
    sample_parse_text(sample_text, (const char *const[]){__VA_ARGS__, NULL})

/* The sample with these sets must be accepted; result in `s`. */
#define sample_accept(s, ...)                                                  \
    Sample s = sample_parse(__VA_ARGS__);                                      \
    if (!s.spec)                                                               \
    fail_msg("%s", s.shown)

/* It must be rejected with a message that contains `message`. */
static inline void sample_reject_text(const char *text,
                                      const char *const *sets,
                                      const char *message)
{
    Sample s = sample_parse_text(text, sets);

    assert_null(s.spec);
    if (!strstr(s.shown, message))
        fail_msg("expected `%s` in\n%s", message, s.shown);
    sample_free(&s);
}

#define sample_reject(message, ...)                                            \
    sample_reject_text(sample_text,                                            \
                       (const char *const[]){__VA_ARGS__, NULL}, message)

#endif
