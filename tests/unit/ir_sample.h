/* ir_sample.h - IR text in tests: reading it, and what was reported. */
#ifndef MEGAC_IR_SAMPLE_H
#define MEGAC_IR_SAMPLE_H

#include "ir/ir.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct {
    Arena *arena;
    Diag *diag;
    Module *m; /* NULL if it was rejected */
} Sample;

static inline Sample sample_parse(const char *text)
{
    Sample s = {.arena = arena_new()};

    s.diag = diag_new(s.arena);
    s.m = module_parse(s.arena, s.diag, "t.mir", text);
    return s;
}

static inline void sample_free(Sample *s)
{
    if (s->m)
        module_free(s->m);
    diag_free(s->diag);
    arena_free(s->arena);
}

/* What was reported, in the sample's arena. */
static inline const char *sample_errors(const Sample *s)
{
    char *text = NULL;
    size_t len;
    FILE *to = open_memstream(&text, &len);
    const char *kept;

    diag_print(s->diag, to);
    fclose(to);
    kept = arena_strdup(s->arena, text);
    free(text);
    return kept;
}

/* tests/golden/ir/NAME; the caller frees the buffer. */
static inline Buf golden_read(const char *name)
{
    const char *slash = strstr(__FILE__, "tests/unit");
    Buf path = {0}, text = {0};

    buf_printf(&path, "%.*stests/golden/ir/%s", (int)(slash - __FILE__),
               __FILE__, name);
    if (!buf_read_file(&text, path.s))
        fail_msg("cannot read %s", path.s);
    buf_free(&path);
    return text;
}

/* `text` with the first `from` replaced by `to`; the caller frees it. */
static inline Buf text_with(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    Buf out = {0};

    if (!at)
        fail_msg("`%s` is not in the text", from);
    buf_write(&out, text, (size_t)(at - text));
    buf_puts(&out, to);
    buf_puts(&out, at + strlen(from));
    return out;
}

#endif
