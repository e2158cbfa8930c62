/* explain_time.h - what `megac explain` says about a predicted step. */
#ifndef MEGAC_DRIVER_EXPLAIN_TIME_H
#define MEGAC_DRIVER_EXPLAIN_TIME_H

#include "driver/predict.h"

#include <jansson.h>

void explain_time(const Spec *s, const Prediction *p);
/* What would take a part of the time away, if anything would. */
void explain_time_advice(const Spec *s, const Prediction *p);
/* Adds the prediction to an object. */
void explain_time_json(json_t *out, const Prediction *p);

#endif
