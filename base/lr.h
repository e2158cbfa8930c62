/* lr.h - the learning rate of every update, shared by compiler and runtime. */
#ifndef MEGAC_LR_H
#define MEGAC_LR_H

#include <stdint.h>

typedef enum {
    LR_COSINE,
    LR_CONSTANT,
    LR_LINEAR,
    LR_INVERSE_SQRT,
    LR_WSD /* warm-up, stable, decay */
} LrStyle;

typedef enum {
    WSD_EXPONENTIAL,
    WSD_LINEAR,
    WSD_COSINE,
    WSD_MINUS_SQRT
} WsdStyle;

/* Steps are updates.  `decay` is the step at which the rate reaches `min`,
 * counted from the start of training, not from the end of the warm-up. */
typedef struct {
    LrStyle style;
    WsdStyle wsd_style;
    double max, min, init; /* init: the rate at step 0 of a warm-up */
    int64_t warmup, decay;
    int64_t wsd; /* length of the final decay of LR_WSD */
} LrSchedule;

/* The rate of update `step`, counted from 0.  With a warm-up, update 0 has the
 * rate `init`.  Formulas: Megatron-LM, core/optimizer_param_scheduler.py. */
double lr_at(const LrSchedule *schedule, int64_t step);
/* The same after `samples` samples, `batch` of which make a step: between
 * steps everything is counted in samples, as Megatron does. */
double lr_after(const LrSchedule *schedule, int64_t samples, int64_t batch);

#endif
