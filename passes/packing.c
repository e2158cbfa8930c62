/* packing.c - the offset solver: bound, seeds, exact search.
 *
 * The problem is two-dimensional: every buffer is a rectangle whose extent in
 * time is given and whose position in memory is to be chosen, without overlap
 * and as low as possible.  It is NP-hard, yet the instances that a compiler
 * meets have a tight and cheap lower bound, the most bytes alive at one time,
 * and most of them can be packed exactly at it.  So the work stops at the
 * first packing that meets the bound (or the capacity, where the caller gives
 * one): quick best-fit seeds (packing_fit.c), exact search below the best seed
 * (packing_search.c), and ejection where that does not end (packing_repair.c).
 *
 * Everything is deterministic: ties go to the lower buffer number and the
 * search is limited in steps, not in seconds.
 */
#include "passes/packing_priv.h"

#include <stdlib.h>

#define MOST_PAIRS UINT64_C(8000000)
#define FIRST_PART UINT64_C(4000000)
#define LAST_PART UINT64_C(64000000)

static int key_compare(const void *left, const void *right)
{
    const PackKey *a = left, *b = right;
    if (a->major != b->major)
        return a->major > b->major ? -1 : 1;
    if (a->minor != b->minor)
        return a->minor > b->minor ? -1 : 1;
    return (a->buf > b->buf) - (a->buf < b->buf);
}

void pack_sort(PackKey *keys, uint32_t n)
{
    qsort(keys, n, sizeof *keys, key_compare);
}

bool pack_offer(Packing *p, const int64_t *offsets)
{
    int64_t height = 0;
    for (uint32_t i = 0; i < p->n; i++)
        height = MC_MAX(height, offsets[i] + p->bufs[i].size);
    if (height < p->height) {
        p->height = height;
        memcpy(p->best, offsets, sizeof *offsets * p->n);
    }
    return p->height <= p->goal;
}

PackKey *pack_events(Arena *a, const PackBuffer *bufs, uint32_t n)
{
    PackKey *events = arena_array(a, PackKey, 2 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
        events[2 * i] = (PackKey){-bufs[i].lower, 0, i};
        events[2 * i + 1] = (PackKey){-bufs[i].upper, 1, i};
    }
    pack_sort(events, 2 * n);
    return events;
}

/* The most bytes alive at one time. */
static int64_t live_bound(Arena *a, const PackBuffer *bufs, uint32_t n)
{
    PackKey *events = pack_events(a, bufs, n);
    int64_t live = 0, most = 0;
    for (uint32_t i = 0; i < 2 * n; i++) {
        int64_t size = bufs[events[i].buf].size;
        live += events[i].minor ? -size : size;
        most = MC_MAX(most, live);
    }
    return most;
}

static bool takes_room(const PackBuffer *buf)
{
    return buf->size > 0 && buf->lower < buf->upper;
}

/* Copies the buffers that take room; out_index says which they are. */
static Packing packing_new(Arena *a, const PackBuffer *bufs, uint32_t n,
                           uint32_t *out_index)
{
    PackBuffer *kept = arena_array(a, PackBuffer, n);
    Packing p = {.arena = a, .bufs = kept, .height = INT64_MAX};
    for (uint32_t i = 0; i < n; i++) {
        if (!takes_room(&bufs[i]))
            continue;
        out_index[p.n] = i;
        kept[p.n++] = bufs[i];
    }
    p.best = arena_array(a, int64_t, p.n);
    p.bound = live_bound(a, kept, p.n);
    return p;
}

/* Ejection finds what can be met, exact search proves what cannot and lowers
 * the rest: in turn, with more and more work, and in the end with all that is
 * left, of which ejection needs no more than before. */
static void improve(Packing *p, uint64_t work)
{
    PackSections sec;
    if (p->height <= p->goal || !pack_sections(p, MOST_PAIRS, &sec))
        return;
    for (uint64_t part = FIRST_PART; work > 0; part *= 4) {
        uint64_t now = part > LAST_PART ? work : MC_MIN(part, work);
        uint64_t ejection = MC_MIN(now / 2, LAST_PART);
        work -= now;
        if (p->bound <= p->goal)
            pack_repair(p, &sec, ejection);
        if (p->height > MC_MAX(p->goal, p->bound))
            pack_search(p, &sec, now - ejection);
        if (p->height <= MC_MAX(p->goal, p->bound))
            return;
    }
}

bool pack_solve(Arena *a, PackBuffer *bufs, uint32_t n,
                const PackOptions *options, PackResult *out)
{
    uint32_t *index = arena_array(a, uint32_t, n);
    Packing p = packing_new(a, bufs, n, index);
    p.goal = MC_MAX(p.bound, options->capacity);
    int64_t live = p.bound;
    pack_fit(&p);
    improve(&p, options->work ? options->work : PACK_WORK);
    for (uint32_t i = 0; i < n; i++)
        bufs[i].offset = 0;
    for (uint32_t i = 0; i < p.n; i++)
        bufs[index[i]].offset = p.best[i];
    *out = (PackResult){p.height, live, p.height <= p.bound};
    return options->capacity == 0 || p.height <= options->capacity;
}
