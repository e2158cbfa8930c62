/* checkpoint.h - a run on disk, to go on from under any layout.
 *
 *     FOLDER/latest               "step-00000020", for people and scripts
 *     FOLDER/step-00000010/       complete, if it has a state.json
 *         state.json              where the run stood: CheckpointState
 *         model.safetensors       the weights, as exact as they are held
 *         exp_avg.safetensors     first moments    (sgd: momentum_buffer)
 *         exp_avg_sq.safetensors  second moments
 *     FOLDER/step-00000020.tmp/   being written, or left by a run that died
 *
 * Tensors are whole, in f32, under their exported names (state.h); a large set
 * is in parts (safetensors.h).
 */
#ifndef MEGAC_RUNTIME_CHECKPOINT_H
#define MEGAC_RUNTIME_CHECKPOINT_H

#include "runtime/feed.h"
#include "runtime/scaler.h"
#include "runtime/state.h"

enum { CHECKPOINT_VERSION = 1, CHECKPOINT_PATH_BYTES = 4096 };
/* Larger sets are divided, as huggingface_hub does. */
#define CHECKPOINT_PART_BYTES UINT64_C(5000000000)

/* ---- checkpoint_state.c -------------------------------------------------- */

/* What a run is, between two steps, beside its tensors. */
typedef struct {
    FeedPast past;
    int64_t updates; /* steps that were not skipped, … */
    int64_t learnt;  /* … and their samples */
    int64_t tokens;  /* of all samples that were taken */
    uint64_t seed;
    uint64_t data; /* feed_hash of the samples taken */
    Scaler scaler;
    const char *fixed; /* PlanTraining.fixed */
} CheckpointState;

/* The stem of the set of tensors of a field; NULL: this optimizer has none. */
const char *checkpoint_stem(const PlanTraining *t, PlanFieldKind kind);
/* DIR/state.json. */
MC_MUST_USE Status checkpoint_state_write(const CheckpointState *s,
                                          const char *dir);
MC_MUST_USE Status checkpoint_state_read(const char *dir,
                                         CheckpointState *out);
/* Frees what checkpoint_state_read made. */
void checkpoint_state_drop(CheckpointState *s);
/* Whether a run with `seed` and `fixed` may go on from it; the error names the
 * key and both values. */
MC_MUST_USE Status checkpoint_state_check(const CheckpointState *s,
                                          const char *dir, uint64_t seed,
                                          const char *fixed);
/* The value of a key of `fixed`, as a text of *out_n bytes, or NULL. */
const char *checkpoint_fixed(const char *fixed, const char *key,
                             size_t *out_n);

/* ---- checkpoint_folder.c ------------------------------------------------- */

/* FOLDER/step-00000010 */
MC_MUST_USE Status checkpoint_path(const char *folder, int64_t step,
                                   char out[CHECKPOINT_PATH_BYTES]);
/* The step of the newest complete one; -1 if there is none. */
MC_MUST_USE Status checkpoint_newest(const char *folder, int64_t *out_step);
/* The folder that will become it: FOLDER/step-00000010.tmp */
MC_MUST_USE Status checkpoint_unfinished(const char *folder, int64_t step,
                                         char out[CHECKPOINT_PATH_BYTES]);
/* Makes that folder, and removes what earlier runs left incomplete. */
MC_MUST_USE Status checkpoint_begin(const char *folder, int64_t step);
/* Removes that folder, as well as it can. */
void checkpoint_abandon(const char *folder, int64_t step);
/* Waits until all its files are on the disk. */
MC_MUST_USE Status checkpoint_sync(const char *dir);
/* From here on it is complete, and the newest; of the older ones only so many
 * stay that there are `keep` in all. */
MC_MUST_USE Status checkpoint_commit(const char *folder, int64_t step,
                                     int64_t keep);

/* ---- checkpoint.c -------------------------------------------------------- */

typedef struct {
    const char *folder;
    int64_t keep;
    bool async;     /* train on while the disk is busy */
    int64_t newest; /* the step of the checkpoint that there is, or -1 */
} CheckpointsConfig;

typedef struct Checkpoints Checkpoints;

MC_MUST_USE Status checkpoints_open(const CheckpointsConfig *config,
                                    const State *state, Checkpoints **out);
/* Collective: hands a checkpoint over to the system, once the one before is
 * complete, and leaves it to the background to complete it.  If the step was
 * saved before, nothing is done. */
MC_MUST_USE Status checkpoints_save(Checkpoints *c, const CheckpointState *now);
/* Collective, after every step: lets the background get on.  *out_stop says
 * whether `stop` is true on any rank. */
MC_MUST_USE Status checkpoints_poll(Checkpoints *c, bool stop, bool *out_stop);
/* Collective: waits until nothing is left to do. */
MC_MUST_USE Status checkpoints_finish(Checkpoints *c);
void checkpoints_close(Checkpoints *c);

#endif
