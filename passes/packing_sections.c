/* packing_sections.c - who is alive with whom, for the exact search.
 *
 *   buffer a  |------------|               section 0: a b
 *   buffer b     |---|                     section 1: a c d
 *   buffer c            |---------|        section 2: c e
 *   buffer d         |------|
 *   buffer e                  |--------|
 *
 * A set of live buffers that is part of another one constrains nothing more,
 * so only the maximal sets count: those just before an end that follows a
 * start.  There are at most as many sections as buffers, and a buffer's
 * sections are neighbours.
 */
#include "passes/packing_priv.h"

/* Numbers the sections along the sweep. */
static void find_sections(const Packing *p, PackSections *s)
{
    PackKey *events = pack_events(p->arena, p->bufs, p->n);
    bool started = false;
    for (uint32_t i = 0; i < 2 * p->n; i++) {
        uint32_t b = events[i].buf;
        if (!events[i].minor) {
            s->first[b] = s->sections;
            started = true;
            continue;
        }
        s->sections += started;
        s->end[b] = s->sections;
        started = false;
    }
}

/* Turns counts at [i + 1] into starts of lists. */
static void sum_up(uint32_t *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        at[i + 1] += at[i];
}

static void list_members(const Packing *p, PackSections *s)
{
    s->members_at = arena_array(p->arena, uint32_t, s->sections + 1);
    for (uint32_t b = 0; b < p->n; b++)
        for (uint32_t i = s->first[b]; i < s->end[b]; i++)
            s->members_at[i + 1]++;
    sum_up(s->members_at, s->sections);
    s->members = arena_array(p->arena, uint32_t, s->members_at[s->sections]);
    uint32_t *fill = arena_array(p->arena, uint32_t, s->sections);
    for (uint32_t b = 0; b < p->n; b++)
        for (uint32_t i = s->first[b]; i < s->end[b]; i++)
            s->members[s->members_at[i] + fill[i]++] = b;
}

/* Buffers by their first section. */
static PackKey *by_first(const Packing *p, const PackSections *s)
{
    PackKey *order = arena_array(p->arena, PackKey, p->n);
    for (uint32_t b = 0; b < p->n; b++)
        order[b] = (PackKey){-(int64_t)s->first[b], 0, b};
    pack_sort(order, p->n);
    return order;
}

/* Calls for every pair that is alive together: adds to `at` when `list` is
 * NULL, fills the list otherwise; false beyond `most` pairs. */
static bool each_pair(const Packing *p, const PackSections *s,
                      const PackKey *order, uint64_t most, uint32_t *fill,
                      uint32_t *list)
{
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t a = order[i].buf;
        for (uint32_t j = i + 1; j < p->n; j++) {
            uint32_t b = order[j].buf;
            if (s->first[b] >= s->end[a])
                break;
            if (++pairs > most)
                return false;
            if (list) {
                list[fill[a]] = b;
                list[fill[b]] = a;
            }
            fill[a]++;
            fill[b]++;
        }
    }
    return true;
}

static bool list_overlaps(const Packing *p, uint64_t most, PackSections *s)
{
    PackKey *order = by_first(p, s);
    s->overlaps_at = arena_array(p->arena, uint32_t, p->n + 1);
    if (!each_pair(p, s, order, most, s->overlaps_at + 1, NULL))
        return false;
    sum_up(s->overlaps_at, p->n);
    s->overlaps = arena_array(p->arena, uint32_t, s->overlaps_at[p->n]);
    uint32_t *fill = arena_array(p->arena, uint32_t, p->n);
    memcpy(fill, s->overlaps_at, sizeof *fill * p->n);
    return each_pair(p, s, order, most, fill, s->overlaps);
}

bool pack_sections(const Packing *p, uint64_t most_pairs, PackSections *out)
{
    *out = (PackSections){0};
    out->first = arena_array(p->arena, uint32_t, p->n);
    out->end = arena_array(p->arena, uint32_t, p->n);
    find_sections(p, out);
    if (!list_overlaps(p, most_pairs, out))
        return false;
    list_members(p, out);
    return true;
}
