/* check_grid.c - the number of ranks, and their order.
 *
 * The dense and the expert grid are two readings of the same rank number (see
 * grid.c): both must use up the world, and whatever stands between two borders
 * of one grid must be a whole number of pieces of the other.
 */
#include "frontend/frontend_priv.h"

/* ---- the number of ranks ------------------------------------------------- */

static void factors_because(Check *c, const char *const *paths, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_because(c, paths[i]);
}

/* world_size against the dense grid tp*pp*cp*ep*dp. */
static void dense_world_check(Check *c)
{
    static const char *const paths[] = {"parallel.tp", "parallel.pp",
                                        "parallel.cp", "parallel.ep",
                                        "parallel.dp"};
    const Spec *s = c->spec;
    int64_t tp = s->parallel.tp, pp = s->parallel.pp, cp = s->parallel.cp;
    int64_t ep = s->parallel.ep, dp = s->parallel.dp;
    int64_t world = s->parallel.world_size;
    int64_t model = product_saturated(product_saturated(tp, pp), cp);
    int64_t whole = product_saturated(product_saturated(model, ep), dp);

    if (world % model) {
        check_fail(c, "MC0210", "parallel.world_size",
                   "world_size = %lld is not a multiple of tp*pp*cp = "
                   "%lld*%lld*%lld = %lld",
                   (long long)world, (long long)tp, (long long)pp,
                   (long long)cp, (long long)model);
        factors_because(c, paths, 3);
    } else if (dp && world != whole) {
        check_fail(c, "MC0211", "parallel.world_size",
                   "world_size = %lld, but tp*pp*cp*ep*dp = "
                   "%lld*%lld*%lld*%lld*%lld = %lld",
                   (long long)world, (long long)tp, (long long)pp,
                   (long long)cp, (long long)ep, (long long)dp,
                   (long long)whole);
        factors_because(c, paths, 5);
    }
}

static void expert_world_check(Check *c)
{
    static const char *const paths[] = {"parallel.tp", "parallel.etp",
                                        "parallel.ep", "parallel.pp"};
    const Spec *s = c->spec;
    int64_t etp = s->parallel.etp ? s->parallel.etp : s->parallel.tp;
    int64_t ep = s->parallel.ep, pp = s->parallel.pp;
    int64_t world = s->parallel.world_size;
    int64_t grid = product_saturated(product_saturated(etp, ep), pp);

    if ((ep == 1 && !s->parallel.etp) || world % grid == 0)
        return;
    check_fail(c, "MC0212", "parallel.world_size",
               "world_size = %lld is not a multiple of etp*ep*pp = "
               "%lld*%lld*%lld = %lld",
               (long long)world, (long long)etp, (long long)ep, (long long)pp,
               (long long)grid);
    factors_because(c, paths, MC_LEN(paths));
}

static void world_check(Check *c)
{
    int64_t most = (int64_t)schema_key("parallel.world_size")->range.most;

    if (c->spec->parallel.world_size > most)
        check_fail(c, "MC0213", "parallel.dp",
                   "tp*pp*cp*ep*dp is more than %lld ranks", (long long)most);
    dense_world_check(c);
    expert_world_check(c);
}

/* ---- their order --------------------------------------------------------- */

static bool order_names_check(Check *c)
{
    const char *order = c->spec->parallel.order;
    int axis[GRID_AXES];
    const char *wrong = grid_order(order, axis);

    if (!wrong)
        return true;
    check_fail(c, "MC0214", "parallel.order",
               "order = %s: at `%s` there should be one of tp, cp, ep, dp and "
               "pp, each at most once, with - between them",
               order, wrong);
    return false;
}

/* An axis of one rank may be left out. */
static bool order_axes_check(Check *c, bool expert)
{
    const char *const paths[] = {"parallel.tp", "parallel.cp", "parallel.ep",
                                 "parallel.dp", "parallel.pp"};
    Grid g = spec_grid(c->spec, expert);

    for (int i = 0; i < GRID_AXES; i++) {
        if (g.size[i] == 1 || strstr(c->spec->parallel.order, grid_names[i]))
            continue;
        check_fail(c, "MC0215", "parallel.order",
                   "order = %s leaves out %s, which has %lld ranks",
                   c->spec->parallel.order, grid_names[i],
                   (long long)g.size[i]);
        check_because(c, paths[i]);
        return false;
    }
    return true;
}

/* ---- both grids ---------------------------------------------------------- */

static void grids_because(Check *c)
{
    check_because(c, "parallel.tp");
    check_because(c, "parallel.etp");
    check_because(c, "parallel.ep");
}

/* As in Megatron: a pipeline is the same ranks for both grids. */
static bool pipelines_check(Check *c)
{
    Grid dense = spec_grid(c->spec, false), expert = spec_grid(c->spec, true);

    if (c->spec->parallel.pp == 1 ||
        dense.stride[GRID_PP] == expert.stride[GRID_PP])
        return true;
    check_fail(c, "MC0216", "parallel.order",
               "with order = %s, neighbours in a pipeline are %lld ranks apart "
               "in the grid of dense layers, and %lld in that of experts",
               c->spec->parallel.order, (long long)dense.stride[GRID_PP],
               (long long)expert.stride[GRID_PP]);
    grids_because(c);
    diag_help(c->diag, "let parallel.order end in pp");
    return false;
}

/* Where the axes of a grid end, and within tp the ranks of a KV group. */
static uint32_t borders(const Spec *s, const Grid *g, int64_t *out)
{
    int64_t groups = s->model.num_query_groups;
    uint32_t n = 0;

    out[n++] = g->stride[GRID_TP] * MC_MAX(g->size[GRID_TP] / groups, 1);

    for (int i = 0; i < GRID_AXES; i++)
        if (g->size[i] > 1)
            out[n++] = g->stride[i] * g->size[i];
    return n;
}

/* Both grids are cut into common pieces: of two borders one divides the
 * other. */
static void pieces_check(Check *c)
{
    const Spec *s = c->spec;
    Grid grid[] = {spec_grid(s, false), spec_grid(s, true)};
    int64_t dense[GRID_AXES + 1], expert[GRID_AXES + 1];
    uint32_t nd = borders(s, &grid[0], dense);
    uint32_t ne = borders(s, &grid[1], expert);

    for (uint32_t i = 0; i < nd; i++)
        for (uint32_t k = 0; k < ne; k++) {
            if (dense[i] % expert[k] == 0 || expert[k] % dense[i] == 0)
                continue;
            check_fail(c, "MC0243", "parallel.ep",
                       "the grids etp*ep = %lld*%lld and tp*cp*dp = "
                       "%lld*%lld*%lld have no common pieces",
                       (long long)grid[1].size[GRID_TP],
                       (long long)s->parallel.ep, (long long)s->parallel.tp,
                       (long long)s->parallel.cp,
                       (long long)s->derived.dense_dp);
            check_because(c, "parallel.order");
            grids_because(c);
            return;
        }
}

void grid_check(Check *c)
{
    bool experts = c->spec->model.moe.num_experts > 0;
    unsigned before = diag_errors(c->diag);

    world_check(c);
    if (!order_names_check(c) || diag_errors(c->diag) > before ||
        !order_axes_check(c, false))
        return;
    if (experts && order_axes_check(c, true) && pipelines_check(c))
        pieces_check(c);
}
