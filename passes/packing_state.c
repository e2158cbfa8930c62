/* packing_state.c - a partial packing: placing, undoing, and what it rules out.
 *
 * The state of the search is `lowest`, the lowest offset left to each buffer.
 * Every change goes through a trail, so that undoing needs no thought.
 *
 * The unplaced buffers of a section exclude each other: they are jobs of one
 * machine, with their lowest offsets as release times.  Starting the earliest
 * released first ends such a schedule soonest; if that is above the ceiling,
 * so is every packing that continues this one.
 *
 * Offsets never fall along a path.  A buffer that was passed over (it could
 * have gone below the last one placed) must therefore be pushed up by a
 * neighbour before it can come again: the shortest path from the buffers that
 * can still be placed says when, and no path means never.
 */
#include "passes/packing_priv.h"

#define LEAST_FAILED 4096u
#define MOST_FAILED (1u << 22)

/* ---- placing and undoing ---------------------------------------------- */

static void change(PackState *s, int64_t *slot, int64_t value)
{
    vec_push(&s->trail, ((PackChange){slot, *slot}));
    *slot = value;
}

void pack_undo(PackState *s, uint32_t mark)
{
    while (s->trail.n > mark) {
        PackChange last = s->trail.v[--s->trail.n];
        *last.slot = last.was;
    }
}

/* Starts a new set of touched sections. */
static void touch_none(PackState *s)
{
    s->stamp++;
    s->touched.n = 0;
}

static void touch(PackState *s, uint32_t b)
{
    for (uint32_t i = s->sec.first[b]; i < s->sec.end[b]; i++) {
        if (s->stamped[i] == s->stamp)
            continue;
        s->stamped[i] = s->stamp;
        vec_push(&s->touched, i);
    }
}

static void push_up(PackState *s, uint32_t b, int64_t top)
{
    change(s, &s->lowest[b], pack_align_up(top, s->bufs[b].align));
    touch(s, b);
}

void pack_place(PackState *s, uint32_t b, int64_t offset)
{
    const PackSections *sec = &s->sec;
    int64_t top = offset + s->bufs[b].size;
    touch_none(s);
    touch(s, b);
    change(s, &s->offset[b], offset);
    for (uint32_t i = sec->first[b]; i < sec->end[b]; i++) {
        change(s, &s->total[i], s->total[i] - s->bufs[b].size);
        if (i + 1 < sec->end[b])
            change(s, &s->crossing[i], s->crossing[i] - 1);
    }
    for (uint32_t i = sec->overlaps_at[b]; i < sec->overlaps_at[b + 1]; i++) {
        uint32_t other = sec->overlaps[i];
        if (s->offset[other] == PACK_UNPLACED && s->lowest[other] < top)
            push_up(s, other, top);
    }
    s->work += sec->overlaps_at[b + 1] - sec->overlaps_at[b];
}

/* ---- the ceiling ------------------------------------------------------ */

/* The unplaced buffers of a section by release time, into `jobs`.  They are
 * also moved to the front of the section's list in that order: the next time
 * it is nearly sorted. */
static void gather_jobs(PackState *s, uint32_t section, int64_t last)
{
    uint32_t first = s->sec.members_at[section];
    uint32_t end = s->sec.members_at[section + 1];
    s->work += end - first;
    s->jobs_n = 0;
    for (uint32_t i = first; i < end; i++) {
        uint32_t b = s->sec.members[i];
        if (s->offset[b] != PACK_UNPLACED)
            continue;
        int64_t release = MC_MAX(MC_MAX(s->lowest[b], last), s->ready[b]);
        uint32_t at = s->jobs_n++;
        s->sec.members[i] = s->sec.members[first + at];
        for (; at > 0 && s->jobs[at - 1].release > release; at--) {
            s->jobs[at] = s->jobs[at - 1];
            s->sec.members[first + at] = s->sec.members[first + at - 1];
        }
        s->jobs[at] = (PackJob){release, s->bufs[b].size};
        s->sec.members[first + at] = b;
    }
}

static bool section_fits(PackState *s, uint32_t section, int64_t last)
{
    int64_t top = 0;
    gather_jobs(s, section, last);
    for (uint32_t i = 0; i < s->jobs_n; i++)
        top = MC_MAX(top, s->jobs[i].release) + s->jobs[i].size;
    return top <= s->ceiling;
}

bool pack_touched_fit(PackState *s, int64_t last)
{
    if (s->stamped[s->burst] == s->stamp && !section_fits(s, s->burst, last))
        return false;
    for (uint32_t i = 0; i < s->touched.n; i++) {
        if (section_fits(s, s->touched.v[i], last))
            continue;
        s->burst = s->touched.v[i];
        return false;
    }
    return true;
}

/* ---- buffers passed over ---------------------------------------------- */

/* The lowest top that an unplaced neighbour of b can have. */
static int64_t ready_after(const PackState *s, uint32_t b)
{
    const PackSections *sec = &s->sec;
    int64_t ready = INT64_MAX;
    for (uint32_t i = sec->overlaps_at[b]; i < sec->overlaps_at[b + 1]; i++) {
        uint32_t other = sec->overlaps[i];
        if (s->offset[other] != PACK_UNPLACED || s->ready[other] == INT64_MAX)
            continue;
        int64_t start = MC_MAX(s->lowest[other], s->ready[other]);
        ready = MC_MIN(ready, start + s->bufs[other].size);
    }
    return ready;
}

/* Shortest paths by relaxation; false if some buffer can never come. */
static bool settle_ready(PackState *s, const uint32_t *passed, uint32_t n)
{
    bool all = true;
    for (bool changed = true; changed;) {
        all = true;
        changed = false;
        for (uint32_t i = 0; i < n; i++) {
            int64_t ready = ready_after(s, passed[i]);
            changed |= ready != s->ready[passed[i]];
            s->ready[passed[i]] = ready;
            all &= ready != INT64_MAX;
        }
        s->work += n;
    }
    return all;
}

bool pack_passed_fit(PackState *s, const uint32_t *passed, uint32_t n,
                     int64_t last)
{
    touch_none(s);
    for (uint32_t i = 0; i < n; i++) {
        s->ready[passed[i]] = INT64_MAX;
        touch(s, passed[i]);
    }
    bool fits = settle_ready(s, passed, n) && pack_touched_fit(s, last);
    for (uint32_t i = 0; i < n; i++)
        s->ready[passed[i]] = 0;
    return fits;
}

/* ---- failed states ---------------------------------------------------- */

static uint64_t *failed_slot(const PackState *s, uint64_t state)
{
    uint32_t at = (uint32_t)state & (s->failed_cap - 1);
    while (s->failed[at] && s->failed[at] != state)
        at = (at + 1) & (s->failed_cap - 1);
    return &s->failed[at];
}

static void failed_grow(PackState *s)
{
    uint64_t *old = s->failed;
    uint32_t cap = s->failed_cap;
    s->failed_cap = cap ? 2 * cap : LEAST_FAILED;
    s->failed = arena_array(s->arena, uint64_t, s->failed_cap);
    for (uint32_t i = 0; i < cap; i++)
        if (old[i])
            *failed_slot(s, old[i]) = old[i];
}

bool pack_failed(const PackState *s, uint64_t state)
{
    return s->failed_n > 0 && *failed_slot(s, state) == state;
}

void pack_failed_add(PackState *s, uint64_t state)
{
    if (2 * s->failed_n >= s->failed_cap) {
        if (s->failed_cap >= MOST_FAILED)
            return;
        failed_grow(s);
    }
    *failed_slot(s, state) = state;
    s->failed_n++;
}

/* ---- the whole -------------------------------------------------------- */

PackState pack_state_new(const Packing *p, const PackSections *sec)
{
    PackState s = {.arena = p->arena, .bufs = p->bufs, .n = p->n, .sec = *sec};
    s.offset = arena_array(p->arena, int64_t, p->n);
    s.lowest = arena_array(p->arena, int64_t, p->n);
    s.ready = arena_array(p->arena, int64_t, p->n);
    s.jobs = arena_array(p->arena, PackJob, p->n);
    s.total = arena_array(p->arena, int64_t, sec->sections);
    s.crossing = arena_array(p->arena, int64_t, sec->sections);
    s.stamped = arena_array(p->arena, uint32_t, sec->sections);
    return s;
}

void pack_state_reset(PackState *s)
{
    s->trail.n = 0;
    memset(s->total, 0, sizeof *s->total * s->sec.sections);
    memset(s->crossing, 0, sizeof *s->crossing * s->sec.sections);
    for (uint32_t b = 0; b < s->n; b++) {
        s->offset[b] = PACK_UNPLACED;
        s->lowest[b] = 0;
        for (uint32_t i = s->sec.first[b]; i < s->sec.end[b]; i++) {
            s->total[i] += s->bufs[b].size;
            s->crossing[i] += i + 1 < s->sec.end[b];
        }
    }
}

void pack_state_ceiling(PackState *s, int64_t ceiling)
{
    s->ceiling = ceiling;
    s->failed_n = 0;
    if (s->failed)
        memset(s->failed, 0, sizeof *s->failed * s->failed_cap);
}

void pack_state_free(PackState *s)
{
    vec_free(&s->touched);
    vec_free(&s->trail);
}
