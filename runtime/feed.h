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

/* Where an earlier run stopped, by PlanProgramKind.  All 0: nowhere. */
typedef struct {
    int64_t step;       /* the last one that was trained */
    int64_t samples[2]; /* that were taken */
    int64_t planned[2]; /* for how many the order was made */
} FeedPast;

/* Opens the data of a run up to step `steps`, after what lies behind it. */
MC_MUST_USE Status feed_open(const Plan *plan, uint32_t rank, uint64_t seed,
                             int64_t steps, const FeedPast *past, Feed **out);
void feed_close(Feed *f);
/* Turns to the next batch of training or of evaluation. */
MC_MUST_USE Status feed_next(Feed *f, PlanProgramKind kind, FeedBatch *out);
/* What will lie behind it after step `step`. */
FeedPast feed_past(const Feed *f, int64_t step);
/* A hash of some of the training samples before number `samples`: the same
 * data in the same order have the same. */
MC_MUST_USE Status feed_hash(Feed *f, int64_t samples, uint64_t *out);
/* This rank's part of one of its microbatches. */
MC_MUST_USE Status feed_load(Feed *f, PlanBatch what, int64_t microbatch,
                             int32_t *out);

#endif
