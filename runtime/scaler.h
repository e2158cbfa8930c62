/* scaler.h - the scale of the loss in f16 training. */
#ifndef MEGAC_RUNTIME_SCALER_H
#define MEGAC_RUNTIME_SCALER_H

#include "runtime/plan.h"

typedef struct {
    double scale;
    bool dynamic;
    int64_t good; /* steps since the scale changed or a gradient was infinite */
    int64_t patience; /* infinite gradients until the scale falls */
} Scaler;

/* As the plan says; a scale of 1 that never changes if it says nothing. */
Scaler scaler_new(const PlanTraining *t);
/* After a step whose gradients were finite or not. */
void scaler_update(Scaler *s, bool finite);
/* Whether a smaller scale may help. */
bool scaler_can_fall(const Scaler *s);

#endif
