/* packing_priv.h - shared by the packing*.c files. */
#ifndef MEGAC_PACKING_PRIV_H
#define MEGAC_PACKING_PRIV_H

#include "passes/packing.h"

/* One problem: only buffers that take room, and the best answer so far. */
typedef struct {
    Arena *arena;
    const PackBuffer *bufs;
    uint32_t n;
    int64_t bound;  /* no packing is lower */
    int64_t goal;   /* a packing this low ends the work */
    int64_t height; /* of `best`; INT64_MAX before the first */
    int64_t *best;  /* offset of each buffer */
} Packing;

/* A buffer and what it is sorted by: larger keys first, then by number. */
typedef struct {
    int64_t major, minor;
    uint32_t buf;
} PackKey;

/* Time cut into sections, each a maximal set of buffers alive together; a
 * buffer is in the sections [first, end).  Lists of item i lie in
 * list[list_at[i]] to list[list_at[i + 1]]. */
typedef struct {
    uint32_t sections;
    uint32_t *first, *end;
    uint32_t *members_at, *members;   /* section: its buffers */
    uint32_t *overlaps_at, *overlaps; /* buffer: those alive with it */
} PackSections;

static inline int64_t pack_align_up(int64_t offset, int64_t align)
{
    if (align <= 1)
        return offset;
    return (offset + align - 1) / align * align;
}

/* Bytes times lifetime, to sort by: a double is exact enough, and cannot
 * overflow. */
static inline int64_t pack_area(const PackBuffer *buf)
{
    double area = (double)buf->size * (double)(buf->upper - buf->lower);
    return (int64_t)MC_MIN(area, (double)(INT64_MAX / 2));
}

/* ---- packing.c -------------------------------------------------------- */
void pack_sort(PackKey *keys, uint32_t n);
/* Starts and ends of all lifetimes in order of time, ends first at equal
 * times; minor is 1 for an end.  2 n events. */
PackKey *pack_events(Arena *a, const PackBuffer *bufs, uint32_t n);
/* Keeps `offsets` if it is lower than the best; true once the goal is met. */
bool pack_offer(Packing *p, const int64_t *offsets);

/* ---- packing_fit.c: good packings, quickly ---------------------------- */
void pack_fit(Packing *p);

/* ---- packing_sections.c ----------------------------------------------- */
/* False if the buffers overlap in more than `most_pairs` pairs. */
bool pack_sections(const Packing *p, uint64_t most_pairs, PackSections *out);

/* ---- packing_state.c: a partial packing ------------------------------- */

enum { PACK_UNPLACED = -1 };

/* What a placement changed, to undo it. */
typedef struct {
    int64_t *slot;
    int64_t was;
} PackChange;

typedef struct {
    int64_t release, size;
} PackJob;

typedef struct {
    Arena *arena;
    const PackBuffer *bufs;
    uint32_t n;
    PackSections sec;
    int64_t ceiling;
    uint64_t work;     /* buffers looked at */
    int64_t *offset;   /* buffer: PACK_UNPLACED, or where */
    int64_t *lowest;   /* buffer: lowest offset left to it */
    int64_t *ready;    /* buffer passed over: when it can come again, or 0 */
    int64_t *total;    /* section: bytes unplaced */
    int64_t *crossing; /* section: unplaced buffers also in the next one */
    uint32_t burst;    /* section that did not fit last */
    PackJob *jobs;
    uint32_t jobs_n;
    Vec(uint32_t) touched; /* sections changed by the last placement */
    uint32_t *stamped;     /* section: stamp of the last touch */
    uint32_t stamp;
    Vec(PackChange) trail; /* all changes since the root */
    uint64_t *failed;      /* open-addressed set of hashes of states */
    uint32_t failed_n, failed_cap;
} PackState;

PackState pack_state_new(const Packing *p, const PackSections *sec);
void pack_state_free(PackState *s);
/* Nothing is placed. */
void pack_state_reset(PackState *s);
/* Sets the ceiling and forgets the failed states, which depend on it. */
void pack_state_ceiling(PackState *s, int64_t ceiling);

void pack_place(PackState *s, uint32_t b, int64_t offset);
/* Back to when trail.n was `mark`. */
void pack_undo(PackState *s, uint32_t mark);

/* Whether the sections touched last can stay under the ceiling; nothing will
 * be placed below `last` any more. */
bool pack_touched_fit(PackState *s, int64_t last);
/* Whether the buffers passed over can still come, under the ceiling. */
bool pack_passed_fit(PackState *s, const uint32_t *passed, uint32_t n,
                     int64_t last);

bool pack_failed(const PackState *s, uint64_t state);
void pack_failed_add(PackState *s, uint64_t state);

/* ---- packing_search.c: exact search ----------------------------------- */
/* Lowers p->best and raises p->bound as far as `work` allows. */
void pack_search(Packing *p, const PackSections *sec, uint64_t work);

/* ---- packing_repair.c: ejection --------------------------------------- */
/* Lowers p->best to the goal, or leaves it. */
void pack_repair(Packing *p, const PackSections *sec, uint64_t work);

#endif
