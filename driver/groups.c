/* groups.c - which ranks talk to which.
 *
 * A rank is a mixed-radix number whose digits are the axes of `order`, fastest
 * first.  The dense grid reads it with the sizes tp, cp, 1, dp, pp; the expert
 * grid reads the same number with etp, 1, ep, edp, pp.  A family is a set of
 * axes: its groups are the assignments of the other axes, its members those of
 * its own, both with the leftmost axis fastest.
 *
 * Source: RankGenerator in megatron/core/parallel_state.py.
 */
#include "driver/groups.h"

enum { AXIS_TP, AXIS_CP, AXIS_EP, AXIS_DP, AXIS_PP, AXES };
static const char *const axis_names[AXES] = {"tp", "cp", "ep", "dp", "pp"};

/* The axes of one grid, fastest first. */
typedef struct {
    uint32_t size[AXES], stride[AXES];
    int axis[AXES];
} Grid;

/* A family as a row: in which grid, over which axes. */
static const struct {
    const char *name;
    bool expert;
    unsigned axes;
} families[] = {
#define OVER(axis) (1u << AXIS_##axis)
    {"tp", false, OVER(TP)},
    {"cp", false, OVER(CP)},
    {"dp", false, OVER(DP)},
    {"dp_cp", false, OVER(DP) | OVER(CP)},
    {"pp", false, OVER(PP)},
    {"tp_pp", false, OVER(TP) | OVER(PP)},
    {"ep", true, OVER(EP)},
    {"etp", true, OVER(TP)},
    {"edp", true, OVER(DP)},
#undef OVER
};

/* ---- grids --------------------------------------------------------------- */

static int axis_find(const char *name, size_t n)
{
    for (int i = 0; i < AXES; i++)
        if (strlen(axis_names[i]) == n && !memcmp(axis_names[i], name, n))
            return i;
    return -1;
}

/* The axes of `order`, then those it leaves out. */
static void order_axes(const char *order, int *out_axis)
{
    bool seen[AXES] = {false};
    int n = 0;

    while (*order) {
        size_t length = strcspn(order, "-");
        int axis = axis_find(order, length);

        if (axis >= 0 && !seen[axis]) {
            seen[axis] = true;
            out_axis[n++] = axis;
        }
        order += length + (order[length] == '-');
    }
    for (int axis = 0; axis < AXES; axis++)
        if (!seen[axis])
            out_axis[n++] = axis;
}

static Grid grid_make(const GroupSizes *s, bool expert)
{
    const uint32_t dense[AXES] = {s->tp, s->cp, 1, s->dp, s->pp};
    const uint32_t experts[AXES] = {s->etp, 1, s->ep, s->edp, s->pp};
    uint32_t stride = 1;
    Grid g;

    memcpy(g.size, expert ? experts : dense, sizeof g.size);
    order_axes(s->order, g.axis);
    for (int i = 0; i < AXES; i++) {
        g.stride[g.axis[i]] = stride;
        stride *= g.size[g.axis[i]];
    }
    return g;
}

/* ---- families ------------------------------------------------------------ */

/* How many assignments the chosen axes have. */
static uint32_t count(const Grid *g, unsigned axes)
{
    uint32_t n = 1;

    for (int i = 0; i < AXES; i++)
        if (axes >> i & 1)
            n *= g->size[i];
    return n;
}

/* The part of a rank that assignment number `index` of the axes gives. */
static uint32_t place(const Grid *g, unsigned axes, uint32_t index)
{
    uint32_t rank = 0;

    for (int i = 0; i < AXES; i++) {
        int axis = g->axis[i];

        if (axes >> axis & 1) {
            rank += index % g->size[axis] * g->stride[axis];
            index /= g->size[axis];
        }
    }
    return rank;
}

static GroupFamily family_make(Arena *a, const Grid *g, const char *name,
                               unsigned axes)
{
    unsigned others = ~axes & ((1u << AXES) - 1);
    GroupFamily f = {name, count(g, others), count(g, axes), NULL};
    uint32_t *ranks = arena_array(a, uint32_t, f.groups * f.size);

    for (uint32_t i = 0; i < f.groups; i++)
        for (uint32_t k = 0; k < f.size; k++)
            ranks[i * f.size + k] = place(g, others, i) + place(g, axes, k);
    f.ranks = ranks;
    return f;
}

/* The first and the last rank of each pipeline: both hold a tied embedding. */
static GroupFamily embed_make(Arena *a, const GroupFamily *pp)
{
    GroupFamily f = {"embed", pp->groups, MC_MIN(pp->size, 2), NULL};
    uint32_t *ranks = arena_array(a, uint32_t, f.groups * f.size);

    for (uint32_t i = 0; i < f.groups; i++) {
        ranks[i * f.size] = pp->ranks[i * pp->size];
        ranks[i * f.size + f.size - 1] = pp->ranks[(i + 1) * pp->size - 1];
    }
    f.ranks = ranks;
    return f;
}

GroupFamily *groups_make(Arena *a, const GroupSizes *sizes, uint32_t *out_n)
{
    uint32_t n = MC_LEN(families);
    GroupFamily *f = arena_array(a, GroupFamily, n + 1);
    const Grid grids[] = {grid_make(sizes, false), grid_make(sizes, true)};

    for (uint32_t i = 0; i < n; i++) {
        f[i] = family_make(a, &grids[families[i].expert], families[i].name,
                           families[i].axes);
        if (!strcmp(f[i].name, "pp"))
            f[n] = embed_make(a, &f[i]);
    }
    *out_n = n + 1;
    return f;
}
