/* state_priv.h - shared by state_file.c and state_write.c. */
#ifndef MEGAC_RUNTIME_STATE_PRIV_H
#define MEGAC_RUNTIME_STATE_PRIV_H

#include "runtime/state.h"

/* The field that this rank saves of a tensor, or NULL: of the weights, the most
 * exact copy. */
const PlanField *state_owned_field(const State *s, const PlanTensor *t,
                                   PlanFieldKind kind);
char *state_slot_pointer(const State *s, const PlanField *f, uint32_t slot);
/* Collective: the tensors of which any rank saves a field, with their places in
 * files (safe_layout). */
MC_MUST_USE Status state_agree(const State *s, PlanFieldKind kind,
                               const char *stem, uint64_t part_bytes,
                               SafeSet *out);

#endif
