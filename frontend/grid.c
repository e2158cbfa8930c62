/* grid.c - the digits of a rank number, in the order of parallel.order.
 *
 * A rank is a mixed-radix number whose digits are the axes of `order`, fastest
 * first.  The dense grid reads it with the sizes tp, cp, 1, dp, pp; the expert
 * grid reads the same number with etp, 1, ep, edp, pp.  An axis that the order
 * leaves out has one rank, wherever it stands.
 *
 * Source: RankGenerator in megatron/core/parallel_state.py.
 */
#include "frontend/frontend_priv.h"

const char *const grid_names[GRID_AXES] = {"tp", "cp", "ep", "dp", "pp"};

static int axis_find(const char *name, size_t n)
{
    for (int i = 0; i < GRID_AXES; i++)
        if (strlen(grid_names[i]) == n && !memcmp(grid_names[i], name, n))
            return i;
    return -1;
}

const char *grid_order(const char *order, int out_axis[GRID_AXES])
{
    bool seen[GRID_AXES] = {false};
    const char *at = order;
    int n = 0;

    while (*at) {
        size_t length = strcspn(at, "-");
        int axis = axis_find(at, length);

        if (axis < 0 || seen[axis])
            return at;
        seen[axis] = true;
        out_axis[n++] = axis;
        at += length;
        if (*at && !*++at)
            return at - 1;
    }
    for (int axis = 0; axis < GRID_AXES; axis++)
        if (!seen[axis])
            out_axis[n++] = axis;
    return NULL;
}

Grid grid_make(const int64_t size[GRID_AXES], const char *order)
{
    int64_t stride = 1;
    Grid g = {.axis = {0, 1, 2, 3, 4}};

    memcpy(g.size, size, sizeof g.size);
    grid_order(order, g.axis);
    for (int i = 0; i < GRID_AXES; i++) {
        g.stride[g.axis[i]] = stride;
        stride = product_saturated(stride, g.size[g.axis[i]]);
    }
    return g;
}

Grid spec_grid(const Spec *s, bool expert)
{
    const SpecDerived *d = &s->derived;
    int64_t tp = s->parallel.tp, pp = s->parallel.pp;
    int64_t etp = s->parallel.etp ? s->parallel.etp : tp;
    const int64_t dense[] = {tp, s->parallel.cp, 1, d->dense_dp, pp};
    const int64_t experts[] = {etp, 1, s->parallel.ep, d->expert_dp, pp};

    return grid_make(expert ? experts : dense, s->parallel.order);
}
