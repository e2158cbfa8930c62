/* train.h - one rank's training run. */
#ifndef MEGAC_RUNTIME_TRAIN_H
#define MEGAC_RUNTIME_TRAIN_H

#include "runtime/exec.h"

typedef struct {
    const Plan *plan;
    uint32_t rank;
    const DeviceDriver *device;
    const CommDriver *comm;
    const char *kernels; /* shared object, or NULL */
    int threads;
    int64_t steps;     /* how many to run; -1: what the plan says */
    int64_t save_step; /* save after this step; -1: never */
    const char *save_dir;
    const char *load;    /* safetensors to start from, or NULL */
    const char *checkpoints; /* their folder, or NULL */
    bool resume;         /* from the newest of them */
    const char *metrics; /* file, or NULL: what the plan says */
    const char *profile; /* file for the time of every instruction, or NULL */
    double (*clock)(void); /* for the profile */
    int64_t seed;        /* -1: what the plan says */
    double patience;     /* seconds without progress before it is stuck */
    bool live, quiet, measure_memory, check_replicas;
} TrainConfig;

typedef struct Train Train;

/* Opens device, communication and data, and makes the initial state. */
MC_MUST_USE Status train_open(const TrainConfig *config, Train **out);
/* All steps.  A failure says in which step, and where. */
MC_MUST_USE Status train_run(Train *t);
void train_close(Train *t);

/* For watch.c, in a signal handler: what is being done. */
int64_t train_step(const Train *t);
uint32_t train_instr(const Train *t);

/* ---- memory.c: how much of the arena a run really uses ------------------- */

void memory_paint(char *arena, uint64_t bytes);
/* Bytes up to the last one touched since, and how many were touched. */
void memory_measure(const char *arena, uint64_t bytes, uint64_t *out_highest,
                    uint64_t *out_touched);

/* ---- profile.c ----------------------------------------------------------- */

typedef struct {
    const char *path;
    const DeviceDriver *driver;
    Device *device;
    double (*clock)(void);
    int64_t steps; /* that the times are of */
    double step;   /* seconds of one, the median */
} ProfileConfig;

/* A table of what was run by time, the heaviest first. */
MC_MUST_USE Status profile_write(const Exec *e, const Plan *p,
                                 const ProfileConfig *config);

/* ---- watch.c: dying loudly ----------------------------------------------- */

/* From here on, a fatal signal names rank, step and instruction, and the
 * process does not outlive its parent. */
void watch_start(const Plan *p, uint32_t rank);
void watch_train(const Train *t);
/* From here on SIGTERM and SIGUSR1 only make watch_end_wanted true. */
void watch_end(void);
bool watch_end_wanted(void);

#endif
