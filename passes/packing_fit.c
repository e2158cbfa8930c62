/* packing_fit.c - good packings, quickly: best-fit in several orders.
 *
 * Each seed places the buffers one after the other into the smallest gap that
 * takes them (the lowest of equal ones), on top if none does.  Two kinds:
 *
 *   by time   what a dynamic allocator would do, forwards and backwards; the
 *             live blocks are a sorted array, so it costs (live blocks) per
 *             buffer.  On periodic plans (1F1B) this is at the bound.
 *   by rank   largest size, area or lifetime first; the blocks placed so far
 *             that overlap in time come from a max-upper tree over the
 *             buffers sorted by start.
 *
 * Seeds stop at the goal, or when they have touched
 * SEED_WORK blocks: on a huge plan the first seed is always finished, the
 * others only if affordable.
 */
#include "passes/packing_priv.h"

#define SEED_WORK UINT64_C(400000000)

/* A range of bytes that is taken. */
typedef struct {
    int64_t offset, end;
    uint32_t buf;
} Block;

typedef struct {
    Packing *p;
    int64_t *offsets; /* of the seed being built */
    Block *blocks;    /* what the next buffer must avoid, by offset */
    Block *spare;     /* as many, for sorting them */
    uint32_t blocks_n;
    PackKey *order;     /* buffers in the order of placement */
    uint32_t *by_start; /* buffers by start */
    uint32_t *place;    /* where a buffer stands in by_start */
    int64_t *tree;      /* latest end of placed buffers, per range */
    uint32_t leaves;
    uint64_t work;
} Fit;

/* ---- one placement ---------------------------------------------------- */

/* The offset of the smallest gap below or between the blocks that takes the
 * buffer; *out_at is the block that it goes before. */
static int64_t best_gap(Fit *f, const PackBuffer *buf, uint32_t *out_at)
{
    int64_t top = 0, best = -1, least = INT64_MAX;
    for (uint32_t i = 0; i < f->blocks_n; i++) {
        int64_t offset = pack_align_up(top, buf->align);
        int64_t spare = f->blocks[i].offset - offset - buf->size;
        if (spare >= 0 && spare < least) {
            least = spare;
            best = offset;
            *out_at = i;
        }
        top = MC_MAX(top, f->blocks[i].end);
    }
    f->work += f->blocks_n;
    if (best >= 0)
        return best;
    *out_at = f->blocks_n;
    return pack_align_up(top, buf->align);
}

/* ---- seeds by time ---------------------------------------------------- */

static void drop_block(Fit *f, int64_t offset)
{
    uint32_t low = 0, high = f->blocks_n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (f->blocks[mid].offset < offset)
            low = mid + 1;
        else
            high = mid;
    }
    f->blocks_n--;
    memmove(f->blocks + low, f->blocks + low + 1,
            sizeof(Block) * (f->blocks_n - low));
}

static void insert_block(Fit *f, uint32_t at, uint32_t b, int64_t offset)
{
    memmove(f->blocks + at + 1, f->blocks + at,
            sizeof(Block) * (f->blocks_n - at));
    f->blocks[at] = (Block){offset, offset + f->p->bufs[b].size, b};
    f->blocks_n++;
}

/* Events in order of time: at equal times ends come first, then large starts
 * before small ones.  Backwards, time is mirrored. */
static void time_events(const Fit *f, bool backwards, PackKey *events)
{
    for (uint32_t i = 0; i < f->p->n; i++) {
        const PackBuffer *buf = &f->p->bufs[i];
        int64_t start = backwards ? buf->upper : -buf->lower;
        int64_t end = backwards ? buf->lower : -buf->upper;
        events[2 * i] = (PackKey){start, buf->size, i};
        events[2 * i + 1] = (PackKey){end, INT64_MAX, i};
    }
    pack_sort(events, 2 * f->p->n);
}

static void seed_by_time(Fit *f, bool backwards)
{
    PackKey *events = arena_array(f->p->arena, PackKey, 2 * (size_t)f->p->n);
    time_events(f, backwards, events);
    f->blocks_n = 0;
    for (uint32_t i = 0; i < 2 * f->p->n; i++) {
        uint32_t b = events[i].buf, at;
        if (events[i].minor == INT64_MAX) {
            drop_block(f, f->offsets[b]);
            continue;
        }
        f->offsets[b] = best_gap(f, &f->p->bufs[b], &at);
        insert_block(f, at, b, f->offsets[b]);
    }
}

/* ---- seeds by rank ---------------------------------------------------- */

static void tree_set(Fit *f, uint32_t at, int64_t upper)
{
    uint32_t node = f->leaves + at;
    f->tree[node] = upper;
    for (node /= 2; node > 0; node /= 2)
        f->tree[node] = MC_MAX(f->tree[2 * node], f->tree[2 * node + 1]);
}

/* Collects the placed buffers that overlap `buf` in time: those before
 * by_start[end] whose own end is later than its start. */
static void collect(Fit *f, uint32_t node, uint32_t first, uint32_t width,
                    uint32_t end, int64_t lower)
{
    if (first >= end || f->tree[node] <= lower)
        return;
    f->work++;
    if (width > 1) {
        uint32_t half = width / 2;
        collect(f, 2 * node, first, half, end, lower);
        collect(f, 2 * node + 1, first + half, half, end, lower);
        return;
    }
    uint32_t b = f->by_start[first];
    int64_t offset = f->offsets[b];
    f->blocks[f->blocks_n++] = (Block){offset, offset + f->p->bufs[b].size, b};
}

/* How many buffers start before `time`. */
static uint32_t starts_before(const Fit *f, int64_t time)
{
    uint32_t low = 0, high = f->p->n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (f->p->bufs[f->by_start[mid]].lower < time)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Two runs, of `middle` blocks and of the rest of n, become one. */
static void merge_runs(const Block *from, uint32_t middle, uint32_t n,
                       Block *to)
{
    uint32_t a = 0, b = middle;
    for (uint32_t i = 0; i < n; i++) {
        bool first = b == n || (a < middle && from[a].offset <= from[b].offset);
        to[i] = first ? from[a++] : from[b++];
    }
}

/* By offset.  Most of the time goes here: qsort takes twice as long. */
static void sort_blocks(Fit *f)
{
    uint32_t n = f->blocks_n;
    for (uint32_t run = 1; run < n; run *= 2) {
        Block *sorted = f->spare;
        for (uint32_t at = 0; at < n; at += 2 * run)
            merge_runs(f->blocks + at, MC_MIN(run, n - at),
                       MC_MIN(2 * run, n - at), sorted + at);
        f->spare = f->blocks;
        f->blocks = sorted;
    }
}

static void place_ranked(Fit *f, uint32_t b)
{
    const PackBuffer *buf = &f->p->bufs[b];
    uint32_t at;
    f->blocks_n = 0;
    collect(f, 1, 0, f->leaves, starts_before(f, buf->upper), buf->lower);
    sort_blocks(f);
    f->offsets[b] = best_gap(f, buf, &at);
    tree_set(f, f->place[b], buf->upper);
}

/* Places all buffers in the order; false when the work is used up first. */
static bool seed_by_rank(Fit *f)
{
    for (uint32_t i = 0; i < 2 * f->leaves; i++)
        f->tree[i] = INT64_MIN;
    for (uint32_t i = 0; i < f->p->n; i++) {
        if (f->work > SEED_WORK)
            return false;
        place_ranked(f, f->order[i].buf);
    }
    return true;
}

typedef PackKey (*RankFn)(const PackBuffer *buf);

static PackKey rank_size(const PackBuffer *buf)
{
    return (PackKey){buf->size, buf->upper - buf->lower, 0};
}

static PackKey rank_lifetime(const PackBuffer *buf)
{
    return (PackKey){buf->upper - buf->lower, buf->size, 0};
}

static PackKey rank_area(const PackBuffer *buf)
{
    return (PackKey){pack_area(buf), buf->size, 0};
}

static void order_by(Fit *f, RankFn rank)
{
    for (uint32_t i = 0; i < f->p->n; i++) {
        f->order[i] = rank(&f->p->bufs[i]);
        f->order[i].buf = i;
    }
    pack_sort(f->order, f->p->n);
}

static PackKey rank_start(const PackBuffer *buf)
{
    return (PackKey){-buf->lower, buf->size, 0};
}

/* ---- all seeds -------------------------------------------------------- */

static Fit fit_new(Packing *p)
{
    Fit f = {.p = p, .leaves = 1};
    while (f.leaves < p->n)
        f.leaves *= 2;
    f.offsets = arena_array(p->arena, int64_t, p->n);
    f.blocks = arena_array(p->arena, Block, p->n);
    f.spare = arena_array(p->arena, Block, p->n);
    f.order = arena_array(p->arena, PackKey, p->n);
    f.by_start = arena_array(p->arena, uint32_t, p->n);
    f.place = arena_array(p->arena, uint32_t, p->n);
    f.tree = arena_array(p->arena, int64_t, 2 * (size_t)f.leaves);
    order_by(&f, rank_start);
    for (uint32_t i = 0; i < p->n; i++) {
        f.by_start[i] = f.order[i].buf;
        f.place[f.order[i].buf] = i;
    }
    return f;
}

void pack_fit(Packing *p)
{
    static const RankFn ranks[] = {rank_size, rank_area, rank_lifetime};
    Fit f = fit_new(p);
    for (int backwards = 0; backwards < 2; backwards++) {
        seed_by_time(&f, backwards);
        if (pack_offer(p, f.offsets))
            return;
    }
    for (uint32_t i = 0; i < MC_LEN(ranks); i++) {
        order_by(&f, ranks[i]);
        if (!seed_by_rank(&f) || pack_offer(p, f.offsets))
            return;
    }
}
