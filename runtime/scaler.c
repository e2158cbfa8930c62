/* scaler.c - the scale of the loss in f16 training.
 *
 * Small gradients vanish in f16, so the backward starts from a multiple of the
 * loss.  Where that makes one infinite, the step is skipped, and after some
 * such steps the scale is halved; after many good ones it is doubled.
 *
 *     good, good, …   1000 in a row    x 2, and patience is whole again
 *     infinite, infinite               x 1/2, and again with each further one
 *
 * Source: DynamicGradScaler in megatron/core/optimizer/grad_scaler.py, with
 * Megatron's defaults.
 */
#include "runtime/scaler.h"

enum { GROWTH_INTERVAL = 1000, HYSTERESIS = 2 };
static const double INITIAL = 4294967296.0, LEAST = 1.0;

Scaler scaler_new(const PlanTraining *t)
{
    Scaler s = {.scale = t->loss_scale, .patience = HYSTERESIS};

    if (!t->scaled)
        s.scale = 1.0;
    else if (t->loss_scale == 0)
        s = (Scaler){INITIAL, true, 0, HYSTERESIS};
    return s;
}

bool scaler_can_fall(const Scaler *s)
{
    return s->dynamic && s->scale > LEAST;
}

void scaler_update(Scaler *s, bool finite)
{
    if (!s->dynamic)
        return;
    s->good = finite ? s->good + 1 : 0;
    if (!finite && --s->patience <= 0)
        s->scale = MC_MAX(s->scale / 2, LEAST);
    if (s->good == GROWTH_INTERVAL) {
        s->good = 0;
        s->patience = HYSTERESIS;
        s->scale *= 2;
    }
}
