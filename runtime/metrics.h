/* metrics.h - what a run reports while it trains. */
#ifndef MEGAC_RUNTIME_METRICS_H
#define MEGAC_RUNTIME_METRICS_H

#include "runtime/plan.h"

/* One step. */
typedef struct {
    int64_t step; /* counted from 1 */
    double lr, seconds;
    int64_t tokens; /* of the step */
    double valid_loss; /* of the evaluation after the step … */
    bool evaluated;    /* … if there was one */
    double loss_scale;
    bool skipped; /* a gradient was infinite: nothing was updated */
    double targets; /* the weight of all targets, or -1: every token counts */
    float value[PLAN_METRICS];
    bool known[PLAN_METRICS];
} MetricsStep;

typedef struct Metrics Metrics;

typedef struct {
    const char *path; /* of metrics.jsonl; NULL or "": none */
    int64_t before;   /* steps of the run that this one goes on from */
    int64_t steps;    /* of the whole run, for the remaining time */
    int64_t interval; /* steps between lines of progress */
    bool live;        /* progress rewrites one line on stderr */
    bool quiet;       /* no progress */
} MetricsConfig;

/* Begins the file anew, or behind the lines of the steps before. */
MC_MUST_USE Status metrics_open(const MetricsConfig *config, Metrics **out);
MC_MUST_USE Status metrics_step(Metrics *m, const MetricsStep *step);
MC_MUST_USE Status metrics_close(Metrics *m);

#endif
