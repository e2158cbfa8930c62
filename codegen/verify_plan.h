/* verify_plan.h - proves that the plans of a run fit together.
 *
 * The last step of every compile, and `megac verify`.  A fault is a bug in
 * megac, not in the user's YAML.
 */
#ifndef MEGAC_VERIFY_PLAN_H
#define MEGAC_VERIFY_PLAN_H

#include "runtime/plan.h"

/* The ranks that run a plan, ascending. */
typedef struct {
    const Plan *plan;
    const uint32_t *ranks;
    uint32_t n;
} PlanClass;

typedef struct {
    /* Of a step of training. */
    uint64_t instrs; /* executed in a step, over the classes */
    uint64_t collectives, messages;
    uint32_t variants; /* different sets of addresses, over the classes */
} PlanVerifyStats;

/* Proves of each program, run by all ranks together, that
 *
 *   - every rank has one plan, and groups and peers know each other;
 *   - the members of a group issue the same collectives in the same order;
 *   - every message has a receiver that expects its size;
 *   - no ranks wait for each other in a circle;
 *   - no two instructions touch the same bytes unless one is known to end
 *     before the other begins, or both read;
 *   - every byte that is read was written before, as the same buffer.
 *
 * Otherwise reports the first fault of each kind of proof to `d` (MC0701 to
 * MC0710), with the instructions and ranks it takes to see it, and returns
 * false.  The plans come from plan_load. */
bool plan_verify(Diag *d, const PlanClass *classes, uint32_t n,
                 PlanVerifyStats *out);

#endif
