/* codegen_priv.h - shared inside codegen/ only. */
#ifndef MEGAC_CODEGEN_PRIV_H
#define MEGAC_CODEGEN_PRIV_H

#include "codegen/codegen.h"

/* ---- prelude.c: texts embedded by CMake from the .inc files ------------- */

typedef enum {
    TEXT_PRELUDE_CPU,
    TEXT_PRELUDE_CUDA,
    TEXT_ATTENTION_BLOCK_CPU,
    TEXT_ATTENTION_CPU,
    TEXT_ATTENTION_GRAD_CPU,
    TEXT_ATTENTION_CUDA,
    TEXT_ATTENTION_GRAD_CUDA,
    TEXT_DRAWS,
    TEXT_ATTENTION_DRAWS,
} TextId;

const char *codegen_text(TextId id);

/* Writes `text` with every `@` replaced by `name`_ ("@load" becomes
 * "NAME_load"), and "@" before anything but a letter or digit by `name`. */
void codegen_expand(const char *text, const char *name, Buf *out);

/* ---- cache.c ------------------------------------------------------------ */

/* 128 bits of everything that decides the bytes of an entry. */
typedef struct {
    uint64_t hi, lo;
} CacheKey;

CacheKey cache_key(const void *bytes, size_t n);
/* False if the entry is missing or damaged; a damaged one is removed. */
bool cache_get(CacheKey key, Buf *out);
/* Failure to store is no failure: the next compile pays again. */
void cache_put(CacheKey key, const Buf *bytes);

/* ---- parallel.c --------------------------------------------------------- */

/* Calls job(state, i) for i in [0, n), `threads` at a time, in any order. */
void codegen_parallel(uint32_t n, uint32_t threads,
                      void (*job)(void *state, uint32_t i), void *state);

#endif
