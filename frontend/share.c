/* share.c - the same training, shared out among ranks in another way.
 *
 * A loaded Spec was right; a copy of it with other degrees of parallelism,
 * micro batch or recomputation is right if the rules about those hold.  Those
 * are the very rules of check.c, asked without reading YAML again, so that a
 * search can ask them of some hundred thousand copies in a second.  What
 * depends on pp, vpp, schedule and split alone, and what on the other degrees,
 * are steps of their own, because many copies have them in common.
 */
#include "frontend/frontend_priv.h"

const char *spec_split(Arena *a, Diag *d, Spec *s)
{
    Check check = {.arena = a, .diag = d, .spec = s};

    diag_clear(d);
    stages_build(&check);
    return diag_first_code(d);
}

static const char *settle(Arena *a, Diag *d, Spec *s, RuleKind kind)
{
    Check check = {.arena = a, .diag = d, .spec = s};

    diag_clear(d);
    derive_values(s);
    layers_build(&check);
    check_kind(&check, kind);
    return diag_first_code(d);
}

const char *spec_degrees(Arena *a, Diag *d, Spec *s)
{
    Spec copy = *s; /* what is derived depends on keys yet to come */

    return settle(a, d, &copy, RULE_DEGREES);
}

const char *spec_share(Arena *a, Diag *d, Spec *s)
{
    return settle(a, d, s, RULE_BATCH);
}
