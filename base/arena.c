/* arena.c - bump allocation by lifetime.
 *
 * Blocks double in size up to 1 MiB; a request larger than a block gets one of
 * its own.  Memory comes zeroed from calloc, and arena_reset clears what was
 * used, so arena_alloc never does.
 */
#include "base/base.h"

#include <stdlib.h>

enum { BLOCK_MIN = 1 << 12, BLOCK_MAX = 1 << 20, ALIGN = 16 };

typedef struct Block {
    struct Block *next;
    size_t used, size;
} Block;

struct Arena {
    Block *top;
    size_t bytes;
};

_Noreturn void mc_oom(size_t bytes)
{
    fprintf(stderr, "megac: out of memory (asked for %zu bytes)\n", bytes);
    exit(70);
}

_Noreturn void mc_bug(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "megac: bug at %s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(70);
}

Arena *arena_new(void)
{
    Arena *a = calloc(1, sizeof *a);

    if (!a)
        mc_oom(sizeof *a);
    return a;
}

void arena_free(Arena *a)
{
    Block *next;

    if (!a)
        return;
    for (Block *b = a->top; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

static size_t head_size(void)
{
    return (sizeof(Block) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* The newest block is the largest of those that double. */
void arena_reset(Arena *a)
{
    Block *top = a->top;

    if (!top)
        return;
    for (Block *b = top->next, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    memset((char *)top + head_size(), 0, top->used);
    top->used = 0;
    top->next = NULL;
    a->bytes = top->size;
}

static void block_push(Arena *a, size_t need)
{
    size_t size = a->top ? MC_MIN(a->top->size * 2, BLOCK_MAX) : BLOCK_MIN;
    Block *b;

    size = MC_MAX(size, need);
    b = calloc(1, head_size() + size);
    if (!b)
        mc_oom(size);
    b->size = size;
    b->next = a->top;
    a->top = b;
    a->bytes += size;
}

void *arena_alloc(Arena *a, size_t bytes)
{
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    char *p;

    if (!a->top || a->top->size - a->top->used < need)
        block_push(a, need);
    p = (char *)a->top + head_size() + a->top->used;
    a->top->used += need;
    return p;
}

char *arena_strndup(Arena *a, const char *s, size_t len)
{
    char *p = arena_alloc(a, len + 1);

    memcpy(p, s, len);
    return p;
}

char *arena_strdup(Arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
{
    va_list again;
    int len;
    char *p;

    va_copy(again, ap);
    len = vsnprintf(NULL, 0, fmt, ap);
    mc_assert(len >= 0);
    p = arena_alloc(a, (size_t)len + 1);
    vsnprintf(p, (size_t)len + 1, fmt, again);
    va_end(again);
    return p;
}

char *arena_printf(Arena *a, const char *fmt, ...)
{
    va_list ap;
    char *p;

    va_start(ap, fmt);
    p = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return p;
}

size_t arena_bytes(const Arena *a)
{
    return a->bytes;
}
