/* lr.c - learning-rate schedules as a pure function of the step.
 *
 * Up to `warmup` the rate rises linearly, after `decay` it stays at the
 * minimum, and in between the style gives a coefficient in [0, 1] between the
 * minimum and the maximum.  The inverse square root and the constant are
 * rates of their own.  Nothing is remembered between calls, so a resumed run
 * continues the curve by itself.
 */
#include "base/lr.h"

#include <math.h>

static double cosine_down(double ratio)
{
    return 0.5 * (cos(acos(-1.0) * ratio) + 1.0);
}

static double wsd_coefficient(WsdStyle style, double ratio)
{
    switch (style) {
    case WSD_EXPONENTIAL:
        return 2.0 * pow(0.5, ratio) - 1.0;
    case WSD_LINEAR:
        return 1.0 - ratio;
    case WSD_COSINE:
        return cosine_down(ratio);
    case WSD_MINUS_SQRT:
        return 1.0 - sqrt(ratio);
    }
    return 1.0;
}

/* The share of (max - min) at a step between warm-up and end. */
static double coefficient(const LrSchedule *s, int64_t step)
{
    double span = (double)(s->decay - s->warmup);
    double ratio = span > 0 ? (double)(step - s->warmup) / span : 1.0;
    int64_t fall = s->decay - s->wsd;

    if (s->style == LR_COSINE)
        return cosine_down(ratio);
    if (s->style == LR_LINEAR)
        return 1.0 - ratio;
    if (step <= fall)
        return 1.0;
    ratio = (double)(step - fall) / (double)s->wsd;
    return wsd_coefficient(s->wsd_style, ratio);
}

static double inverse_sqrt(const LrSchedule *s, int64_t step)
{
    double warmup = s->warmup > 1 ? (double)s->warmup : 1.0;
    double rate = s->max * sqrt(warmup / (step > 1 ? (double)step : 1.0));

    return rate > s->min ? rate : s->min;
}

double lr_at(const LrSchedule *s, int64_t step)
{
    if (s->warmup > 0 && step <= s->warmup)
        return s->init +
               (s->max - s->init) * (double)step / (double)s->warmup;
    if (s->style == LR_CONSTANT)
        return s->max;
    if (step > s->decay)
        return s->min;
    if (s->style == LR_INVERSE_SQRT)
        return inverse_sqrt(s, step);
    return s->min + coefficient(s, step) * (s->max - s->min);
}

double lr_after(const LrSchedule *s, int64_t samples, int64_t batch)
{
    LrSchedule by_sample = *s;

    if (samples % batch == 0)
        return lr_at(s, samples / batch);
    by_sample.warmup *= batch;
    by_sample.decay *= batch;
    by_sample.wsd *= batch;
    return lr_at(&by_sample, samples);
}
