/* feed.h - the batches of a run, one after the other. */
#ifndef MEGAC_RUNTIME_FEED_H
#define MEGAC_RUNTIME_FEED_H

#include "runtime/plan.h"

typedef struct Feed Feed;

typedef struct {
    int64_t samples;  /* of all ranks */
    double targets;   /* the weight of all of them */
    uint32_t program; /* of the plan that takes it */
} FeedBatch;

/* Opens the data of a run of so many steps. */
MC_MUST_USE Status feed_open(const Plan *plan, uint32_t rank, uint64_t seed,
                             int64_t steps, Feed **out);
void feed_close(Feed *f);
/* Turns to the next batch of training or of evaluation. */
MC_MUST_USE Status feed_next(Feed *f, PlanProgramKind kind, FeedBatch *out);
/* This rank's part of one of its microbatches. */
MC_MUST_USE Status feed_load(Feed *f, PlanBatch what, int64_t microbatch,
                             int32_t *out);

#endif
