/* train_priv.h - what the files of a training run share. */
#ifndef MEGAC_RUNTIME_TRAIN_PRIV_H
#define MEGAC_RUNTIME_TRAIN_PRIV_H

#include "runtime/checkpoint.h"
#include "runtime/feed.h"
#include "runtime/metrics.h"
#include "runtime/scaler.h"
#include "runtime/state.h"
#include "runtime/train.h"

struct Train {
    TrainConfig c;
    const Plan *plan;
    Device *device;
    Comm *comm;
    Exec *exec;
    Feed *feed;
    Metrics *metrics; /* on the rank that reports */
    State state;
    MetricsStep now;
    FeedBatch batch;
    Scaler scaler;
    bool hopeless; /* a skipped step that no smaller scale would save */
    int64_t updates; /* steps that were not skipped, … */
    int64_t learnt;  /* … and their samples */
    int64_t before;  /* the step that this run goes on from, or 0 */
    volatile int64_t step; /* counted from 1 */
    Vec(double) measured;  /* seconds of steps that are profiled */
    Checkpoints *checkpoints;   /* or NULL: none are wanted */
    CheckpointState resumed;    /* where an earlier run stood */
    char resumed_from[CHECKPOINT_PATH_BYTES]; /* or "" */
};

uint64_t train_seed(const Train *t);

/* ---- train_save.c -------------------------------------------------------- */

/* Before anything is opened: finds the checkpoint to go on from, if the run is
 * to be resumed, and reads where it stood. */
MC_MUST_USE Status train_resume(Train *t);
/* Once data and state are there: loads the tensors. */
MC_MUST_USE Status train_load(Train *t);
MC_MUST_USE Status train_open_checkpoints(Train *t);

/* When gradients are final, for --save-step. */
MC_MUST_USE Status train_save_grads(const Train *t);
/* After a step: what is due is saved.  *out_end: the run was told to end. */
MC_MUST_USE Status train_save(Train *t, bool *out_end);
/* After the last step; `ended`: of a run that was told to end. */
MC_MUST_USE Status train_save_last(Train *t, bool ended);

#endif
