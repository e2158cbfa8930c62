/* model.h - the model graph of a Spec. */
#ifndef MEGAC_FRONTEND_MODEL_H
#define MEGAC_FRONTEND_MODEL_H

#include "frontend/frontend.h"
#include "ir/ir.h"

/* The forward program of one training step: functions step, micro, embed,
 * layer, head and head.chunk over logical tensors.  Never fails for a Spec
 * that passed its checks. */
Module *model_build(Arena *a, Diag *d, const Spec *spec);

#endif
