/* batch.h - how many samples a step takes, shared by compiler and runtime. */
#ifndef MEGAC_BATCH_H
#define MEGAC_BATCH_H

#include <stdint.h>

/* The batch grows from `start` to `full` in steps of `increment` while the
 * first `samples` samples are consumed; start == full: it does not grow. */
typedef struct {
    int64_t start, increment, samples, full;
} BatchRampup;

/* The sizes that it takes, from 1; size i of them, ascending. */
int64_t batch_sizes(const BatchRampup *r);
int64_t batch_size(const BatchRampup *r, int64_t i);
/* The batch of the step before which so many samples were consumed.  Source:
 * Megatron-LM, core/num_microbatches_calculator.py. */
int64_t batch_at(const BatchRampup *r, int64_t consumed);
/* How many steps from there on have the same batch; INT64_MAX: all others. */
int64_t batch_alike(const BatchRampup *r, int64_t consumed);
/* The samples of the first `steps` steps; saturates. */
int64_t batch_consumed(const BatchRampup *r, int64_t steps);

#endif
