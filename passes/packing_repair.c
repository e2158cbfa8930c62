/* packing_repair.c - a packing under the goal, by ejection.
 *
 *     |####|      |####|    b waits and fits nowhere: it takes the place where
 *     |    |  b   |bbbb|    it does the least harm,
 *     |ccc |      |bbbb|
 *     |   d|      |   d|    and what was there, c, waits in turn
 *
 * Guided ejection search, which Nagata and Braeysy (2009) made for routes of
 * vehicles.  Exact search loses itself among hundreds of buffers that each fit
 * in many places; this undoes nothing that does no harm.  Harm is the weight
 * of what is ejected.  A buffer's weight is its size at first and grows each
 * time that it finds no gap, so that what is hard to place comes to rest, and
 * what is easy moves around it.
 *
 * It begins again and again: from the best packing known, less what is too
 * high in it, and from nothing, in several orders; in every second round all
 * of it sinks now and then as low as it can, which joins small gaps.  It proves
 * nothing: where there is no packing that low, the work is used up.
 */
#include "passes/packing_priv.h"

/* Steps from one beginning, and between times of sinking. */
enum { STEPS = 30000, SINK_STEPS = 100 };

/* Weights are sizes in a unit of which the largest buffer has about so many. */
#define WEIGHT_UNITS (INT64_C(1) << 20)

typedef struct {
    Packing *p;
    const PackSections *sec;
    int64_t *offset; /* by buffer: PACK_UNPLACED, or where */
    int64_t *weight; /* by buffer: the harm of ejecting it */
    int64_t unit;
    Vec(uint32_t) waiting; /* the next one to be placed comes last */
    /* The lists of sec->overlaps, what is placed first: by offset and by end.
     * Each is put in order when it is needed. */
    uint32_t *by_start, *by_end;
    PackKey *keys;
    uint64_t random, work;
} Repair;

/* SplitMix64 (Steele et al. 2014). */
static uint64_t next_random(Repair *r)
{
    uint64_t x = r->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* ---- what is in the way ----------------------------------------------- */

static bool is_placed(const Repair *r, uint32_t b)
{
    return r->offset[b] != PACK_UNPLACED;
}

static int64_t start_of(const Repair *r, uint32_t b)
{
    return is_placed(r, b) ? r->offset[b] : INT64_MAX;
}

static int64_t end_of(const Repair *r, uint32_t b)
{
    return is_placed(r, b) ? r->offset[b] + r->p->bufs[b].size : INT64_MAX;
}

/* By insertion: little has moved since a list was in order. */
static void sort_list(const Repair *r, uint32_t *list, uint32_t n,
                      int64_t (*key)(const Repair *r, uint32_t b))
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t b = list[i], at = i;
        int64_t value = key(r, b);
        for (; at > 0 && key(r, list[at - 1]) > value; at--)
            list[at] = list[at - 1];
        list[at] = b;
    }
}

/* The buffers alive with one that is to be placed, and a place that moves up
 * past them: `started` of them begin below its end, `ended` end below its
 * offset, so the others of those begun are in its way. */
typedef struct {
    const uint32_t *starts, *ends;
    uint32_t n, started, ended;
    int64_t offset, harm;
} Sweep;

static void sweep_to(const Repair *r, Sweep *s, int64_t offset, int64_t size)
{
    while (s->started < s->n &&
           start_of(r, s->starts[s->started]) < offset + size)
        s->harm += r->weight[s->starts[s->started++]];
    while (s->ended < s->n && end_of(r, s->ends[s->ended]) <= offset)
        s->harm -= r->weight[s->ends[s->ended++]];
}

static Sweep sweep_new(Repair *r, uint32_t b)
{
    uint32_t at = r->sec->overlaps_at[b];
    uint32_t n = r->sec->overlaps_at[b + 1] - at;
    sort_list(r, r->by_start + at, n, start_of);
    sort_list(r, r->by_end + at, n, end_of);
    r->work += 8 * (uint64_t)n;
    return (Sweep){r->by_start + at, r->by_end + at, n, 0, 0, -1, 0};
}

/* ---- one placement ---------------------------------------------------- */

/* A place: least harm first, then least room left above and below. */
typedef struct {
    int64_t offset, harm, spare;
    uint32_t ties;
} Spot;

/* One of the best places, by chance. */
static void spot_offer(Repair *r, Spot *best, int64_t offset, int64_t harm,
                       int64_t spare)
{
    if (harm > best->harm || (harm == best->harm && spare > best->spare))
        return;
    if (harm < best->harm || spare < best->spare)
        *best = (Spot){offset, harm, spare, 0};
    best->ties++;
    if (next_random(r) % best->ties == 0)
        best->offset = offset;
}

/* Sweeps to `offset`, which must not fall from call to call; where the sweep
 * is already, there is nothing new. */
static void spot_try(Repair *r, Sweep *s, int64_t offset, int64_t size,
                     Spot *best)
{
    int64_t low = 0, high = r->p->goal;
    if (offset == s->offset || offset < 0 || offset + size > high)
        return;
    s->offset = offset;
    sweep_to(r, s, offset, size);
    if (s->ended > 0)
        low = end_of(r, s->ends[s->ended - 1]);
    if (s->started < s->n)
        high = MC_MIN(high, start_of(r, s->starts[s->started]));
    spot_offer(r, best, offset, s->harm, high - low - size);
}

/* Places that touch what is placed, or the bottom or the top. */
static Spot spot_find(Repair *r, uint32_t b)
{
    int64_t size = r->p->bufs[b].size, align = MC_MAX(r->p->bufs[b].align, 1);
    int64_t goal = r->p->goal;
    Sweep above = sweep_new(r, b), below = above;
    Spot best = {PACK_UNPLACED, INT64_MAX, INT64_MAX, 0};
    spot_try(r, &above, 0, size, &best);
    for (uint32_t i = 0; i < above.n && is_placed(r, above.ends[i]); i++)
        spot_try(r, &above, pack_align_up(end_of(r, above.ends[i]), align),
                 size, &best);
    for (uint32_t i = 0; i < below.n && is_placed(r, below.starts[i]); i++) {
        int64_t room = start_of(r, below.starts[i]) - size;
        if (room >= 0)
            spot_try(r, &below, room / align * align, size, &best);
    }
    if (goal >= size)
        spot_try(r, &below, (goal - size) / align * align, size, &best);
    return best;
}

static void eject(Repair *r, uint32_t b, int64_t offset)
{
    const PackSections *sec = r->sec;
    int64_t end = offset + r->p->bufs[b].size;
    for (uint32_t i = sec->overlaps_at[b]; i < sec->overlaps_at[b + 1]; i++) {
        uint32_t other = sec->overlaps[i];
        if (start_of(r, other) >= end || end_of(r, other) <= offset)
            continue;
        r->offset[other] = PACK_UNPLACED;
        vec_push(&r->waiting, other);
    }
}

static int64_t size_weight(const Repair *r, uint32_t b)
{
    return r->p->bufs[b].size / r->unit + 1;
}

/* False if there is no place below the goal at all. */
static bool place(Repair *r, uint32_t b)
{
    Spot spot = spot_find(r, b);
    if (spot.offset == PACK_UNPLACED)
        return false;
    if (spot.harm > 0) {
        r->weight[b] += 3 * size_weight(r, b);
        eject(r, b, spot.offset);
    }
    r->offset[b] = spot.offset;
    return true;
}

/* ---- sinking ---------------------------------------------------------- */

static int64_t rest_on(const Repair *r, uint32_t b)
{
    const PackSections *sec = r->sec;
    int64_t top = 0;
    for (uint32_t i = sec->overlaps_at[b]; i < sec->overlaps_at[b + 1]; i++)
        if (start_of(r, sec->overlaps[i]) < r->offset[b])
            top = MC_MAX(top, end_of(r, sec->overlaps[i]));
    return pack_align_up(top, r->p->bufs[b].align);
}

static void sink(Repair *r)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < r->p->n; b++)
        if (is_placed(r, b))
            r->keys[n++] = (PackKey){-r->offset[b], 0, b};
    pack_sort(r->keys, n);
    for (uint32_t i = 0; i < n; i++)
        r->offset[r->keys[i].buf] = rest_on(r, r->keys[i].buf);
    r->work += r->sec->overlaps_at[r->p->n];
}

/* ---- beginnings ------------------------------------------------------- */

typedef PackKey (*RankFn)(const PackBuffer *buf);

/* What ends last is placed first. */
static PackKey rank_backwards(const PackBuffer *buf)
{
    return (PackKey){-buf->upper, -buf->size, 0};
}

static PackKey rank_forwards(const PackBuffer *buf)
{
    return (PackKey){buf->lower, -buf->size, 0};
}

static PackKey rank_size(const PackBuffer *buf)
{
    return (PackKey){-buf->size, 0, 0};
}

/* All wait, in an order; without one, only what is too high in the best
 * packing. */
static void begin(Repair *r, RankFn rank)
{
    const Packing *p = r->p;
    r->waiting.n = 0;
    for (uint32_t b = 0; b < p->n; b++) {
        bool low = !rank && p->best[b] + p->bufs[b].size <= p->goal;
        r->keys[b] = rank ? rank(&p->bufs[b]) : (PackKey){0};
        r->keys[b].buf = b;
        r->offset[b] = low ? p->best[b] : PACK_UNPLACED;
        r->weight[b] = 10 * size_weight(r, b);
    }
    pack_sort(r->keys, p->n);
    for (uint32_t i = 0; i < p->n; i++)
        if (!is_placed(r, r->keys[i].buf))
            vec_push(&r->waiting, r->keys[i].buf);
}

/* True once nothing waits any more. */
static bool settle(Repair *r, bool sinks)
{
    for (uint32_t step = 1; r->waiting.n > 0 && step < STEPS; step++) {
        if (!place(r, r->waiting.v[--r->waiting.n]))
            return false;
        if (sinks && step % SINK_STEPS == 0)
            sink(r);
    }
    return r->waiting.n == 0;
}

static Repair repair_new(Packing *p, const PackSections *sec)
{
    Repair r = {.p = p, .sec = sec};
    uint32_t pairs = sec->overlaps_at[p->n];
    int64_t largest = 0;
    for (uint32_t b = 0; b < p->n; b++)
        largest = MC_MAX(largest, p->bufs[b].size);
    r.unit = largest / WEIGHT_UNITS + 1;
    r.offset = arena_array(p->arena, int64_t, p->n);
    r.weight = arena_array(p->arena, int64_t, p->n);
    r.keys = arena_array(p->arena, PackKey, p->n);
    r.by_start = arena_array(p->arena, uint32_t, pairs);
    r.by_end = arena_array(p->arena, uint32_t, pairs);
    memcpy(r.by_start, sec->overlaps, sizeof *r.by_start * pairs);
    memcpy(r.by_end, sec->overlaps, sizeof *r.by_end * pairs);
    return r;
}

void pack_repair(Packing *p, const PackSections *sec, uint64_t work)
{
    static const RankFn ranks[] = {NULL, rank_backwards, rank_forwards,
                                   rank_size};
    Repair r = repair_new(p, sec);
    bool done = false;
    for (uint32_t i = 0; !done && r.work < work; i++) {
        begin(&r, ranks[i % MC_LEN(ranks)]);
        done = settle(&r, i / MC_LEN(ranks) % 2 > 0);
    }
    if (done)
        pack_offer(p, r.offset);
    vec_free(&r.waiting);
}
