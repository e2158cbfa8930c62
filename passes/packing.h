/* packing.h - offsets for buffers of known lifetimes in one address range.
 *
 * Pure arithmetic: no IR, no Diag.  memplan is the caller; what does not fit
 * is its error to report.
 */
#ifndef MEGAC_PACKING_H
#define MEGAC_PACKING_H

#include "base/base.h"

/* A rectangle of time and bytes: alive during [lower, upper), at
 * [offset, offset + size).  Two buffers alive at the same time get disjoint
 * bytes.  An empty lifetime or size takes no room. */
typedef struct {
    int64_t lower, upper;
    int64_t size;
    int64_t align;  /* offset is a multiple of it; 0 and 1 mean any */
    int64_t offset; /* the answer */
} PackBuffer;

typedef struct {
    int64_t capacity; /* bytes there are: a packing this low is good enough;
                       * 0 asks for the lowest */
    uint64_t work;    /* buffers that the exact search may look at before
                       * it gives up; 0 means PACK_WORK.  Counted, not timed:
                       * the same input gives the same offsets everywhere. */
} PackOptions;

#define PACK_WORK UINT64_C(1000000000) /* a few seconds */

typedef struct {
    int64_t height;      /* end of the highest buffer */
    int64_t lower_bound; /* most bytes alive at one time */
    bool exact;          /* no packing is lower */
} PackResult;

/* Sets every bufs[i].offset and *out; false if the best packing found is
 * higher than options->capacity (offsets and *out are set all the same).
 * Scratch memory comes from `a`. */
bool pack_solve(Arena *a, PackBuffer *bufs, uint32_t n,
                const PackOptions *options, PackResult *out);

#endif
