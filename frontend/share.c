/* share.c - the same training, shared out among ranks in another way.
 *
 * A loaded Spec was right; a copy of it with other degrees of parallelism,
 * micro batch or recomputation is right if the rules about those hold.  Those
 * are the very rules of check.c, asked without reading YAML again, so that a
 * search can ask them of some hundred thousand copies in a second.  What only
 * depends on pp, vpp, schedule and split is a step of its own, because many
 * copies have it in common.
 */
#include "frontend/frontend_priv.h"

const char *spec_split(Arena *a, Diag *d, Spec *s)
{
    Check check = {.arena = a, .diag = d, .spec = s};

    diag_clear(d);
    stages_build(&check);
    return diag_first_code(d);
}

const char *spec_share(Arena *a, Diag *d, Spec *s)
{
    Check check = {.arena = a, .diag = d, .spec = s};

    diag_clear(d);
    derive_values(s);
    layers_build(&check);
    check_shares(&check);
    return diag_first_code(d);
}
