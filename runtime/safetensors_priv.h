/* safetensors_priv.h - shared by safetensors*.c. */
#ifndef MEGAC_RUNTIME_SAFETENSORS_PRIV_H
#define MEGAC_RUNTIME_SAFETENSORS_PRIV_H

#include "runtime/plan.h"
#include "runtime/safetensors.h"

/* Maps a file, checks all of its header, and adds its tensors to the set, in
 * the order of their places. */
MC_MUST_USE Status safe_add_part(SafeSet *set, const char *path);
/* By name: as a set is once it is complete. */
void safe_sort(SafeSet *set);

#endif
