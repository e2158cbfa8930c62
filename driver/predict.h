/* predict.h - how fast a compiled program would be on its target.hardware. */
#ifndef MEGAC_DRIVER_PREDICT_H
#define MEGAC_DRIVER_PREDICT_H

#include "driver/plans.h"
#include "driver/program.h"

#include "codegen/simulate.h"

typedef struct {
    SimResult sim;
    double tokens_per_s, tokens_per_s_per_gpu;
    double flops; /* that the model needs for a step */
    double mfu;   /* these, of what the hardware could do meanwhile */
} Prediction;

/* Of a spec that names its hardware, from the plans of its program. */
Prediction predict_plans(Arena *a, const Spec *s, const PlanSet *set);
/* Emits the plans of a program first.  Errors are in in->diag when the result
 * is not CLI_DONE. */
CliExit predict(const Input *in, const Program *p, Prediction *out);

#endif
