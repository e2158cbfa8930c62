/* state.h - the training state: initial values, saving, loading.
 *
 * State lives in the plan's memory as local parts of logical tensors.  All
 * functions here work by logical index, so that a saved file and an initial
 * model do not depend on the layout.
 */
#ifndef MEGAC_RUNTIME_STATE_H
#define MEGAC_RUNTIME_STATE_H

#include "runtime/plan.h"
#include "runtime/safetensors.h"

#include <stdio.h>

/* A rank's state in this process. */
typedef struct {
    const Plan *plan;
    uint32_t rank;
    void *self;
    char *(*pointer)(void *self, uint64_t address);
    float grad_scale; /* gradients in memory are times this; 0: 1 */
} State;

/* ---- philox.c ------------------------------------------------------------ */

/* The key of a logical tensor ("model.layers.3.…") under a seed. */
uint64_t philox_tensor_key(const char *name, uint64_t seed);
/* Standard normal numbers number first .. first + n - 1 of a key's sequence,
 * by Box and Muller's formula in double precision. */
void philox_normals(uint64_t key, uint64_t first, int64_t n, double *out);

/* ---- state_init.c -------------------------------------------------------- */

/* Fills every field: parameters and masters with the initial distribution,
 * keyed by logical name and index; the others and all padding with zeros. */
MC_MUST_USE Status state_init(const State *s, uint64_t seed);

enum { STATE_NAME_BYTES = 512 };

/* ---- state_walk.c -------------------------------------------------------- */

/* A run of elements that lie side by side in the exported tensor. */
typedef struct {
    int64_t at; /* first element in the exported tensor */
    int64_t n;
    int64_t local;  /* first element in the local part */
    int64_t stride; /* between elements of the local part */
} StateRun;

/* Calls `fn` for every run of the local part, without padding, in the order of
 * the exported tensor: of part `part` if it is exported in parts. */
MC_MUST_USE Status state_walk(const State *s, const PlanTensor *t,
                              const PlanField *f, uint32_t part,
                              Status (*fn)(void *self, const StateRun *run),
                              void *self);
/* How many layers of a tensor are held (1 if it has none); the global number
 * of slot i; its name under `pattern`. */
uint32_t state_slots(const PlanTensor *t);
MC_MUST_USE Status state_slot_name(const State *s, const PlanTensor *t,
                                   PlanStr pattern, uint32_t slot, char *out,
                                   size_t cap);
/* The name under which a part of slot i is exported. */
MC_MUST_USE Status state_export_name(const State *s, const PlanTensor *t,
                                     uint32_t slot, uint32_t part, char *out,
                                     size_t cap);

/* ---- state_file.c, state_write.c ----------------------------------------- */

/* Where a set of tensors goes: DIR/STEM.safetensors, or, if they have more than
 * part_bytes (0: no limit), parts and an index. */
typedef struct {
    const char *dir, *stem;
    uint64_t part_bytes;
} StateFiles;

/* Collective: writes the logical tensors' fields of a kind in f32 under their
 * exported names, beside the files first.  Of parameters the most exact copy is
 * written: the masters, where there are some. */
MC_MUST_USE Status state_save(const State *s, const StateFiles *files,
                              PlanFieldKind kind);
/* The same under the files' own names, and they may not be on the disk yet. */
MC_MUST_USE Status state_write(const State *s, const StateFiles *files,
                               PlanFieldKind kind);
/* Sets the fields of a kind, and with parameters their masters, from a set that
 * was opened, of any layout, in f32, bf16 or f16.  Every exported tensor that
 * has the field must be there with the right shape, and no other (safe_fit);
 * else nothing is changed.  Collective. */
MC_MUST_USE Status state_load(const State *s, SafeSet *set,
                              PlanFieldKind kind);

/* ---- state_replicas.c ---------------------------------------------------- */

/* Collective: an error names a part of the weights or of the optimizer's state
 * of which two ranks hold different bits. */
MC_MUST_USE Status state_compare_replicas(const State *s);

#endif
