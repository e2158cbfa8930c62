/* params.h - the parameters of a model by the names that they have in files. */
#ifndef MEGAC_DRIVER_PARAMS_H
#define MEGAC_DRIVER_PARAMS_H

#include "ir/ir.h"
#include "runtime/safetensors.h"

/* One parameter of one layer: a tensor, or a part of one. */
typedef struct {
    const Tensor *tensor;
    const TensorPart *part; /* or NULL */
    int64_t layer;          /* -1: of no layer */
} Param;

typedef Vec(Param) Params;

/* All of them; free with vec_free. */
Params params_list(const Module *m);
const Export *param_file(const Param *p);
/* Its elements, without padding. */
int64_t param_count(const Param *p);
/* Its name in files, with the layer's number in place of {l}. */
const char *param_name(Arena *a, const Module *m, const Param *p);
/* The names and shapes of all tensors in files, to compare a set with
 * (safe_fit). */
MC_MUST_USE Status params_files(Arena *a, const Module *m, SafeSet *out);

#endif
