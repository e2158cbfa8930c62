/* ranks.c - how context parallelism uses its ranks, and where axes are cut.
 *
 * A border is a number of ranks: those that agree in rank / border belong
 * together.  The dense grid and that of experts number the same ranks, and an
 * axis has to be cut where one of the other grid ends, where heads cannot be
 * split any further, and where a ring begins.  All pieces are whole digits if
 * of two borders one divides the other.
 */
#include "frontend/frontend_priv.h"

CpSplit spec_cp_split(const Spec *s, SpecCpComm comm)
{
    CpSplit split = {1, 1};

    if (comm == CP_A2A)
        split.heads = s->parallel.cp;
    else if (comm == CP_P2P)
        split.ring = s->parallel.cp;
    else if (comm == CP_A2A_P2P && s->parallel.cp_sizes.n == 2)
        split = (CpSplit){s->parallel.cp_sizes.v[0], s->parallel.cp_sizes.v[1]};
    return split;
}

int64_t spec_head_ranks(const Spec *s)
{
    int64_t most = 1;

    for (uint32_t i = 0; i < s->parallel.cp_comm.n; i++) {
        CpSplit split = spec_cp_split(s, (SpecCpComm)s->parallel.cp_comm.v[i]);
        most = MC_MAX(most, split.heads);
    }
    return s->parallel.tp * most;
}

int64_t spec_group_border(const Spec *s, SpecCpComm comm)
{
    int64_t heads = spec_cp_split(s, comm).heads;
    int64_t left = MC_MAX(s->model.num_query_groups / s->parallel.tp, 1);

    return spec_grid(s, false).stride[GRID_CP] * MC_MAX(heads / left, 1);
}

static uint32_t ends(const Grid *g, int64_t *out)
{
    uint32_t n = 0;

    for (int i = 0; i < GRID_AXES; i++)
        if (g->size[i] > 1)
            out[n++] = g->stride[i] * g->size[i];
    return n;
}

uint32_t spec_borders(const Spec *s, int64_t *out)
{
    Grid dense = spec_grid(s, false), expert = spec_grid(s, true);
    int64_t sharing = s->parallel.tp / s->model.num_query_groups;
    uint32_t n = ends(&dense, out);

    out[n++] = dense.stride[GRID_TP] * MC_MAX(sharing, 1);
    for (int comm = CP_P2P; comm <= CP_A2A_P2P; comm++) {
        if (!spec_uses_cp_comm(s, (SpecCpComm)comm))
            continue;
        out[n++] = spec_group_border(s, (SpecCpComm)comm);
        out[n++] =
            dense.stride[GRID_CP] * spec_cp_split(s, (SpecCpComm)comm).heads;
    }
    if (s->model.moe.num_experts)
        n += ends(&expert, out + n);
    mc_assert(n <= SPEC_BORDERS);
    return n;
}

bool spec_uses_cp_comm(const Spec *s, SpecCpComm comm)
{
    for (uint32_t i = 0; i < s->parallel.cp_comm.n; i++)
        if (s->parallel.cp > 1 && s->parallel.cp_comm.v[i] == (int)comm)
            return true;
    return false;
}
