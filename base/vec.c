/* vec.c - the one growing step behind Vec(T). */
#include "base/base.h"

#include <stdlib.h>

void *vec_grow(void *v, uint32_t *cap, size_t item)
{
    uint32_t grown = *cap ? *cap * 2 : 8;

    mc_assert(grown > *cap);
#ifdef MEGAC_HOSTILE
    /* Every growth moves the array, so that a stale pointer is found. */
    void *moved = malloc(grown * item);
    if (moved && v) {
        memcpy(moved, v, *cap * item);
        memset(v, 0xa5, *cap * item);
        free(v);
    }
    v = moved;
#else
    v = realloc(v, grown * item);
#endif
    if (!v)
        mc_oom(grown * item);
    *cap = grown;
    return v;
}

void vec_release(void *v)
{
    free(v);
}
