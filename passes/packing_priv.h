/* packing_priv.h - shared by packing.c, packing_fit.c and packing_search.c. */
#ifndef MEGAC_PACKING_PRIV_H
#define MEGAC_PACKING_PRIV_H

#include "passes/packing.h"

/* One problem: only buffers that take room, and the best answer so far. */
typedef struct {
    Arena *arena;
    const PackBuffer *bufs;
    uint32_t n;
    int64_t bound;  /* most bytes alive at one time */
    int64_t goal;   /* a packing this low ends the work */
    int64_t height; /* of `best`; INT64_MAX before the first */
    int64_t *best;  /* offset of each buffer */
} Packing;

/* A buffer and what it is sorted by: larger keys first, then by number. */
typedef struct {
    int64_t major, minor;
    uint32_t buf;
} PackKey;

static inline int64_t pack_align_up(int64_t offset, int64_t align)
{
    if (align <= 1)
        return offset;
    return (offset + align - 1) / align * align;
}

/* ---- packing.c -------------------------------------------------------- */
void pack_sort(PackKey *keys, uint32_t n);
/* Keeps `offsets` if it is lower than the best; true once the goal is met. */
bool pack_offer(Packing *p, const int64_t *offsets);

/* ---- packing_fit.c: good packings, quickly ---------------------------- */
void pack_fit(Packing *p);

#endif
