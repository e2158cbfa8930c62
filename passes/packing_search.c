/* packing_search.c - exact search for a packing under a given ceiling.
 *
 * Branch and bound after MiniMalloc (Moffitt, ASPLOS 2023).  Buffers are
 * placed in order of non-decreasing offset, ties by rank, each at the lowest
 * offset that what is placed below it leaves ("canonical" packings: every
 * packing can be pushed down into one of them).  What is cut off:
 *
 *   dominance      a buffer at or above the top that another unplaced buffer
 *                  could have: that one would fit underneath
 *   ceiling        what packing_state.c rules out
 *   decomposition  once no unplaced buffer crosses a border between two
 *                  sections, both sides are solved alone, and the failure of
 *                  one is not retried with every answer of the other
 *   failed states  the unplaced buffers of a part, their lowest offsets and
 *                  which were passed over are all that the outcome depends
 *                  on; what failed once is not searched again (states are
 *                  told apart by 64-bit hashes)
 *
 * The order of ranks decides how soon a packing is met, so several are tried
 * in turn, with doubled limits, until one succeeds, one proves that there is
 * none, or the work is used up.
 */
#include "passes/packing_priv.h"

#include <stdlib.h>

#define FIRST_LIMIT UINT64_C(1000000)

typedef enum { FOUND, NONE, GAVE_UP } Outcome;

/* An unplaced buffer at a node: where it would go, and its rank. */
typedef struct {
    int64_t offset;
    uint32_t rank;
} Choice;

/* lists[at .. at + n) are buffers, by rank, alive in the sections
 * [first, end) only; no other unplaced buffer is alive there. */
typedef struct {
    uint32_t at, n;
    uint32_t first, end;
} Part;

typedef PackKey (*RankFn)(const PackBuffer *buf, int64_t total);

typedef struct {
    PackState s;
    uint64_t limit; /* of s.work */
    RankFn rank;
    PackKey *keys;
    uint32_t *passed;
    uint32_t passed_n;
    Vec(Choice) stack;   /* choices of the nodes on the path */
    Vec(uint32_t) lists; /* buffers of the parts on the path */
} Search;

/* ---- choices ---------------------------------------------------------- */

static int choice_compare(const void *left, const void *right)
{
    const Choice *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Adds a buffer to the hash of a state, in any order. */
static uint64_t state_add(uint64_t state, uint32_t b, int64_t lowest,
                          bool passed)
{
    uint64_t what = (uint64_t)lowest * 2 + passed;
    return state + mix(what * UINT64_C(0x9e3779b97f4a7c15) + b);
}

/* Pushes the unplaced buffers that may come after `last`; collects those
 * passed over.  Returns the lowest top any of them could have. */
static int64_t push_unplaced(Search *q, const Part *part, Choice last,
                             uint64_t *out_state)
{
    int64_t top = INT64_MAX;
    *out_state = 1;
    q->passed_n = 0;
    q->s.work += part->n;
    for (uint32_t rank = 0; rank < part->n; rank++) {
        uint32_t b = q->lists.v[part->at + rank];
        if (q->s.offset[b] != PACK_UNPLACED)
            continue;
        Choice choice = {q->s.lowest[b], rank};
        bool passed = choice_compare(&choice, &last) < 0;
        top = MC_MIN(top, choice.offset + q->s.bufs[b].size);
        *out_state = state_add(*out_state, b, choice.offset, passed);
        if (passed)
            q->passed[q->passed_n++] = b;
        else
            vec_push(&q->stack, choice);
    }
    return top;
}

/* The first offset at which the fullest section would burst. */
static int64_t burst_offset(const Search *q, const Part *part)
{
    int64_t most = 0;
    for (uint32_t i = part->first; i < part->end; i++)
        most = MC_MAX(most, q->s.total[i]);
    return q->s.ceiling - most + 1;
}

/* Keeps the choices from `mark` on that lie below `end`, in order. */
static void sort_choices(Search *q, uint32_t mark, int64_t end)
{
    uint32_t kept = mark;
    for (uint32_t i = mark; i < q->stack.n; i++)
        if (q->stack.v[i].offset < end)
            q->stack.v[kept++] = q->stack.v[i];
    q->stack.n = kept;
    qsort(q->stack.v + mark, kept - mark, sizeof(Choice), choice_compare);
}

/* ---- nodes and parts -------------------------------------------------- */

static Outcome solve_part(Search *q, const Part *of, uint32_t first,
                          uint32_t end);
static Outcome search_node(Search *q, const Part *part, Choice last);

/* After placing b: goes on with the part, or with the pieces it falls into. */
static Outcome search_below(Search *q, const Part *part, Choice last,
                            uint32_t b)
{
    uint32_t from = part->first;
    for (uint32_t i = q->s.sec.first[b]; i + 1 < q->s.sec.end[b]; i++) {
        if (q->s.crossing[i] > 0)
            continue;
        Outcome outcome = solve_part(q, part, from, i + 1);
        if (outcome != FOUND)
            return outcome;
        from = i + 1;
    }
    if (from == part->first)
        return search_node(q, part, last);
    return solve_part(q, part, from, part->end);
}

/* Tries the choices from `mark` to the end of the stack. */
static Outcome search_choices(Search *q, const Part *part, uint32_t mark)
{
    Outcome outcome = NONE;
    uint32_t end = q->stack.n, undo = q->s.trail.n;
    for (uint32_t i = mark; i < end && outcome == NONE; i++) {
        Choice choice = q->stack.v[i];
        uint32_t b = q->lists.v[part->at + choice.rank];
        pack_place(&q->s, b, choice.offset);
        if (pack_touched_fit(&q->s, choice.offset))
            outcome = search_below(q, part, choice, b);
        if (outcome != FOUND)
            pack_undo(&q->s, undo);
    }
    return outcome;
}

static Outcome search_node(Search *q, const Part *part, Choice last)
{
    uint64_t state;
    uint32_t mark = q->stack.n;
    if (q->s.work >= q->limit)
        return GAVE_UP;
    int64_t top = push_unplaced(q, part, last, &state);
    Outcome outcome = NONE;
    if (top == INT64_MAX) {
        outcome = FOUND;
    } else if (!pack_failed(&q->s, state) &&
               pack_passed_fit(&q->s, q->passed, q->passed_n, last.offset)) {
        sort_choices(q, mark, MC_MIN(top, burst_offset(q, part)));
        outcome = search_choices(q, part, mark);
        if (outcome == NONE)
            pack_failed_add(&q->s, state);
    }
    q->stack.n = mark;
    return outcome;
}

static int64_t fullest_total(const PackState *s, uint32_t b)
{
    int64_t most = 0;
    for (uint32_t i = s->sec.first[b]; i < s->sec.end[b]; i++)
        most = MC_MAX(most, s->total[i]);
    return most;
}

/* The unplaced buffers of a part that are alive in [first, end), ranked. */
static Part part_new(Search *q, const Part *of, uint32_t first, uint32_t end)
{
    Part part = {q->lists.n, 0, first, end};
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t b = q->lists.v[of->at + i];
        if (q->s.offset[b] != PACK_UNPLACED || q->s.sec.first[b] < first ||
            q->s.sec.end[b] > end)
            continue;
        q->keys[part.n] = q->rank(&q->s.bufs[b], fullest_total(&q->s, b));
        q->keys[part.n++].buf = b;
    }
    pack_sort(q->keys, part.n);
    for (uint32_t i = 0; i < part.n; i++)
        vec_push(&q->lists, q->keys[i].buf);
    return part;
}

static Outcome solve_part(Search *q, const Part *of, uint32_t first,
                          uint32_t end)
{
    uint32_t mark = q->lists.n;
    Part part = part_new(q, of, first, end);
    Outcome outcome = search_node(q, &part, (Choice){0, 0});
    q->lists.n = mark;
    return outcome;
}

/* All buffers: one part for each stretch of time that nothing crosses. */
static Outcome solve_all(Search *q)
{
    Part all = {0, q->s.n, 0, q->s.sec.sections};
    Outcome outcome = FOUND;
    uint32_t from = 0;
    pack_state_reset(&q->s);
    q->stack.n = q->lists.n = 0;
    for (uint32_t b = 0; b < q->s.n; b++)
        vec_push(&q->lists, b);
    for (uint32_t i = 0; i < all.end && outcome == FOUND; i++) {
        if (q->s.crossing[i] > 0)
            continue;
        outcome = solve_part(q, &all, from, i + 1);
        from = i + 1;
    }
    return outcome;
}

/* ---- ranks ------------------------------------------------------------ */

static int64_t lifetime(const PackBuffer *buf)
{
    return buf->upper - buf->lower;
}

static PackKey rank_lifetime(const PackBuffer *buf, int64_t total)
{
    (void)total;
    return (PackKey){lifetime(buf), pack_area(buf), 0};
}

static PackKey rank_total_area(const PackBuffer *buf, int64_t total)
{
    return (PackKey){total, pack_area(buf), 0};
}

static PackKey rank_total_lifetime(const PackBuffer *buf, int64_t total)
{
    return (PackKey){total, lifetime(buf), 0};
}

static const RankFn ranks[] = {rank_total_lifetime, rank_total_area,
                               rank_lifetime};

/* ---- ceilings --------------------------------------------------------- */

/* Tries the rank orders in turn, with more and more work. */
static Outcome search_ceiling(Search *q, int64_t ceiling, uint64_t work)
{
    uint64_t end = q->s.work + work;
    pack_state_ceiling(&q->s, ceiling);
    for (uint64_t limit = FIRST_LIMIT;; limit *= 2) {
        for (uint32_t i = 0; i < MC_LEN(ranks); i++) {
            q->rank = ranks[i];
            q->limit = MC_MIN(q->s.work + limit, end);
            Outcome outcome = solve_all(q);
            if (outcome != GAVE_UP || q->s.work >= end)
                return outcome;
        }
    }
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Heights are sums of sizes, rounded up to alignments: multiples of this. */
static int64_t height_grain(const Packing *p)
{
    int64_t grain = 0;
    for (uint32_t b = 0; b < p->n; b++) {
        grain = common_divisor(grain, p->bufs[b].size);
        if (p->bufs[b].align > 1)
            grain = common_divisor(grain, p->bufs[b].align);
    }
    return grain;
}

/* The goal first, with half of the work; then halving the distance between
 * the best packing and the lowest ceiling not yet tried. */
static void search_ceilings(Search *q, Packing *p, uint64_t work)
{
    int64_t grain = height_grain(p);
    int64_t ceiling = p->goal, low = p->goal;
    uint64_t end = q->s.work + work;
    while (p->height > low && q->s.work < end) {
        Outcome outcome = search_ceiling(q, ceiling, (end - q->s.work + 1) / 2);
        if (outcome == FOUND && pack_offer(p, q->s.offset))
            return;
        if (outcome == NONE)
            p->bound = ceiling + grain - ceiling % grain;
        if (outcome != FOUND)
            low = ceiling + grain - ceiling % grain;
        ceiling = low + (p->height - low) / grain / 2 * grain;
    }
}

static Search search_new(const Packing *p, const PackSections *sec)
{
    Search q = {.s = pack_state_new(p, sec)};
    q.keys = arena_array(p->arena, PackKey, p->n);
    q.passed = arena_array(p->arena, uint32_t, p->n);
    return q;
}

void pack_search(Packing *p, const PackSections *sec, uint64_t work)
{
    Search q = search_new(p, sec);
    search_ceilings(&q, p, work);
    pack_state_free(&q.s);
    vec_free(&q.stack);
    vec_free(&q.lists);
}
