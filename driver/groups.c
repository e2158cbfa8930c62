/* groups.c - which ranks talk to which.
 *
 * A family is a set of axes of one of the two grids (frontend/grid.c): its
 * groups are the assignments of the other axes, its members those of its own,
 * both with the fastest axis of the order first.
 *
 * Source: RankGenerator in megatron/core/parallel_state.py.
 */
#include "driver/groups.h"

#include "frontend/frontend.h"

/* A family as a row: in which grid, over which axes. */
static const struct {
    const char *name;
    bool expert;
    unsigned axes;
} families[] = {
#define OVER(axis) (1u << GRID_##axis)
    {"tp", false, OVER(TP)},
    {"cp", false, OVER(CP)},
    {"dp", false, OVER(DP)},
    {"dp_cp", false, OVER(DP) | OVER(CP)},
    {"pp", false, OVER(PP)},
    {"tp_pp", false, OVER(TP) | OVER(PP)},
    {"tp_cp", false, OVER(TP) | OVER(CP)},
    {"tp_dp", false, OVER(TP) | OVER(DP)},
    {"tp_dp_cp", false, OVER(TP) | OVER(DP) | OVER(CP)},
    {"ep", true, OVER(EP)},
    {"etp", true, OVER(TP)},
    {"tp_ep", true, OVER(TP) | OVER(EP)},
    {"tp_ep_pp", true, OVER(TP) | OVER(EP) | OVER(PP)},
    {"edp", true, OVER(DP)},
#undef OVER
};

/* ---- families ------------------------------------------------------------ */

/* How many assignments the chosen axes have. */
static uint32_t count(const Grid *g, unsigned axes)
{
    int64_t n = 1;

    for (int i = 0; i < GRID_AXES; i++)
        if (axes >> i & 1)
            n *= g->size[i];
    return (uint32_t)n;
}

/* The part of a rank that assignment number `index` of the axes gives. */
static uint32_t place(const Grid *g, unsigned axes, int64_t index)
{
    int64_t rank = 0;

    for (int i = 0; i < GRID_AXES; i++) {
        int axis = g->axis[i];

        if (axes >> axis & 1) {
            rank += index % g->size[axis] * g->stride[axis];
            index /= g->size[axis];
        }
    }
    return (uint32_t)rank;
}

static GroupFamily family_make(Arena *a, const Grid *g, const char *name,
                               unsigned axes)
{
    unsigned others = ~axes & ((1u << GRID_AXES) - 1);
    GroupFamily f = {name, count(g, others), count(g, axes), NULL};
    uint32_t *ranks = arena_array(a, uint32_t, f.groups * f.size);

    for (uint32_t i = 0; i < f.groups; i++)
        for (uint32_t k = 0; k < f.size; k++)
            ranks[i * f.size + k] = place(g, others, i) + place(g, axes, k);
    f.ranks = ranks;
    return f;
}

/* The first and the last rank of each pipeline hold a tied embedding; the
 * first alone the learned positions. */
static GroupFamily ends_make(Arena *a, const GroupFamily *pp, const char *name,
                             uint32_t ends)
{
    GroupFamily f = {name, pp->groups, MC_MIN(pp->size, ends), NULL};
    uint32_t *ranks = arena_array(a, uint32_t, f.groups * f.size);

    for (uint32_t i = 0; i < f.groups; i++) {
        const uint32_t *all = &pp->ranks[i * pp->size];

        ranks[i * f.size + f.size - 1] = all[pp->size - 1];
        ranks[i * f.size] = all[0];
    }
    f.ranks = ranks;
    return f;
}

GroupFamily *groups_make(Arena *a, const GroupSizes *s, uint32_t *out_n)
{
    const int64_t dense[] = {s->tp, s->cp, 1, s->dp, s->pp};
    const int64_t experts[] = {s->etp, 1, s->ep, s->edp, s->pp};
    const Grid grids[] = {grid_make(dense, s->order),
                          grid_make(experts, s->order)};
    uint32_t n = MC_LEN(families);
    GroupFamily *f = arena_array(a, GroupFamily, n + 2);

    for (uint32_t i = 0; i < n; i++) {
        f[i] = family_make(a, &grids[families[i].expert], families[i].name,
                           families[i].axes);
        if (!strcmp(f[i].name, "pp")) {
            f[n] = ends_make(a, &f[i], "embed", 2);
            f[n + 1] = ends_make(a, &f[i], "pos_embed", 1);
        }
    }
    *out_n = n + 2;
    return f;
}

/* `size` members of each group, `apart` of each other. */
static GroupFamily part_make(Arena *a, const GroupFamily *whole,
                             const char *name, uint32_t size, uint32_t apart)
{
    uint32_t each = whole->size / size;
    GroupFamily f = {name, whole->groups * each, size, NULL};
    uint32_t *ranks = arena_array(a, uint32_t, f.groups * f.size);

    for (uint32_t i = 0; i < f.groups; i++) {
        const uint32_t *all = &whole->ranks[i / each * whole->size];
        uint32_t nth = i % each;
        uint32_t first = nth / apart * apart * size + nth % apart;

        for (uint32_t k = 0; k < size; k++)
            ranks[i * size + k] = all[first + k * apart];
    }
    f.ranks = ranks;
    return f;
}

void groups_cut(Arena *a, const GroupFamily *cp, uint32_t heads,
                GroupFamily out[2])
{
    out[0] = part_make(a, cp, "cp_a2a", heads, 1);
    out[1] = part_make(a, cp, "cp_p2p", cp->size / heads, heads);
}
