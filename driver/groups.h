/* groups.h - the process groups of a rank layout, as Megatron names them. */
#ifndef MEGAC_DRIVER_GROUPS_H
#define MEGAC_DRIVER_GROUPS_H

#include "base/base.h"

/* The world in its two factorisations:
 * tp*cp*dp*pp = etp*ep*edp*pp = number of ranks. */
typedef struct {
    uint32_t tp, cp, dp, pp;
    uint32_t etp, ep, edp;
    const char *order; /* "tp-cp-ep-dp-pp", fastest axis first */
} GroupSizes;

/* One family: every rank is in exactly one of its groups, except for "embed"
 * and "pos_embed", which leave out the middle stages. */
typedef struct {
    const char *name;
    uint32_t groups, size; /* ranks per group */
    const uint32_t *ranks; /* [groups][size] */
} GroupFamily;

/* Makes all families in the order in which they are printed. */
GroupFamily *groups_make(Arena *a, const GroupSizes *sizes, uint32_t *out_n);
/* "cp_a2a", `heads` neighbours of a cp group, and "cp_p2p", the rings of ranks
 * that are so many apart (cp_comm a2a+p2p). */
void groups_cut(Arena *a, const GroupFamily *cp, uint32_t heads,
                GroupFamily out[2]);

#endif
