/* checkpoint.c - checkpoints that are completed while training goes on.
 *
 * All ranks write their parts of the state into the files between two steps,
 * which fills the system's cache.  Then a thread of each waits for the disk,
 * while training goes on.  At the end of each step the ranks tell each other
 * in one number whether one still waits; when none does, rank 0 puts the
 * checkpoint in its place, in its thread too:
 *
 *     step 10 | 11      | 12      | 13
 *        save   waiting   placing   idle
 *
 * The same number says that a rank was told to end.
 */
#include "runtime/checkpoint.h"
#include "runtime/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* What a rank tells the others. */
enum { TOLD_TO_END = 1, BUSY = 2, FAILED = 4 };

typedef enum { IDLE, WAITING, PLACING } Phase;

struct Checkpoints {
    CheckpointsConfig c;
    const State *state;
    Phase phase;
    int64_t step; /* of the newest, complete or not */
    char dir[CHECKPOINT_PATH_BYTES]; /* of the one that is not */
    pthread_t thread;
    bool threaded;
    atomic_bool busy; /* false: the thread has ended and `failed` is final */
    Status failed;
};

/* ---- the thread ---------------------------------------------------------- */

static Status wait_for_disk(Checkpoints *c)
{
    return checkpoint_sync(c->dir);
}

static Status place(Checkpoints *c)
{
    return checkpoint_commit(c->c.folder, c->step, c->c.keep);
}

static void *thread_main(void *self)
{
    Checkpoints *c = self;

    c->failed = c->phase == WAITING ? wait_for_disk(c) : place(c);
    atomic_store(&c->busy, false);
    return NULL;
}

/* Turns to a phase, which needs the thread or not. */
static Status begin_phase(Checkpoints *c, Phase phase, bool threaded)
{
    c->phase = phase;
    c->threaded = threaded;
    if (!threaded)
        return STATUS_NONE;
    atomic_store(&c->busy, true);
    if (pthread_create(&c->thread, NULL, thread_main, c) == 0)
        return STATUS_NONE;
    c->threaded = false;
    atomic_store(&c->busy, false);
    return status_make(STATUS_SYSTEM, "cannot start a thread to save");
}

/* Its failure, once. */
static Status end_phase(Checkpoints *c)
{
    Status failed;

    if (c->threaded)
        pthread_join(c->thread, NULL);
    c->threaded = false;
    failed = c->failed;
    c->failed = STATUS_NONE;
    return failed;
}

/* ---- from step to step --------------------------------------------------- */

static unsigned own_bits(const Checkpoints *c, bool stop)
{
    bool busy = atomic_load(&c->busy);

    return (stop ? TOLD_TO_END : 0u) | (busy ? BUSY : 0u) |
           (!busy && c->failed ? FAILED : 0u);
}

/* No rank is busy.  Where one failed, it ends the run; the others only do not
 * complete what it lacks. */
static Status next_phase(Checkpoints *c, bool any_failed)
{
    Phase was = c->phase;

    STATUS_TRY(end_phase(c));
    if (was == WAITING && !any_failed)
        return begin_phase(c, PLACING, c->state->rank == 0);
    c->phase = IDLE;
    return STATUS_NONE;
}

Status checkpoints_poll(Checkpoints *c, bool stop, bool *out_stop)
{
    unsigned all = 0;

    STATUS_TRY(comm_mpi_any(own_bits(c, stop), &all));
    *out_stop = all & TOLD_TO_END;
    if (c->phase == IDLE || all & BUSY)
        return STATUS_NONE;
    return status_in(next_phase(c, all & FAILED), "checkpoint of step %lld",
                     (long long)c->step);
}

Status checkpoints_finish(Checkpoints *c)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    bool stop;

    while (c->phase != IDLE) {
        STATUS_TRY(checkpoints_poll(c, false, &stop));
        if (c->phase != IDLE)
            nanosleep(&moment, NULL);
    }
    return STATUS_NONE;
}

/* ---- saving -------------------------------------------------------------- */

static Status write_field(Checkpoints *c, PlanFieldKind kind)
{
    StateFiles to = {
        .dir = c->dir,
        .stem = checkpoint_stem(c->state->plan->training.v, kind),
        .part_bytes = CHECKPOINT_PART_BYTES};

    return to.stem ? state_write(c->state, &to, kind) : STATUS_NONE;
}

/* Once it is left, all files have their names, on all ranks. */
static Status write_all(Checkpoints *c, const CheckpointState *now)
{
    if (c->state->rank == 0)
        STATUS_TRY(checkpoint_begin(c->c.folder, c->step));
    STATUS_TRY(comm_mpi_barrier());
    for (int kind = 0; kind < PLAN_FIELDS; kind++)
        STATUS_TRY(write_field(c, (PlanFieldKind)kind));
    if (c->state->rank == 0)
        STATUS_TRY(checkpoint_state_write(now, c->dir));
    return comm_mpi_barrier();
}

static Status save(Checkpoints *c, const CheckpointState *now)
{
    Status failed;

    c->step = now->past.step;
    STATUS_TRY(checkpoint_unfinished(c->c.folder, c->step, c->dir));
    failed = write_all(c, now);
    if (failed && c->state->rank == 0)
        checkpoint_abandon(c->c.folder, c->step);
    return failed ? failed : begin_phase(c, WAITING, true);
}

Status checkpoints_save(Checkpoints *c, const CheckpointState *now)
{
    if (now->past.step == c->step)
        return STATUS_NONE;
    STATUS_TRY(checkpoints_finish(c));
    STATUS_TRY(status_in(save(c, now), "checkpoint of step %lld",
                         (long long)now->past.step));
    return c->c.async ? STATUS_NONE : checkpoints_finish(c);
}

/* ---- opening ------------------------------------------------------------- */

Status checkpoints_open(const CheckpointsConfig *config, const State *state,
                        Checkpoints **out)
{
    Checkpoints *c = calloc(1, sizeof *c);

    if (!c)
        return status_make(STATUS_SYSTEM, "no memory for checkpoints");
    c->c = *config;
    c->state = state;
    c->step = config->newest;
    *out = c;
    return STATUS_NONE;
}

void checkpoints_close(Checkpoints *c)
{
    if (c)
        status_drop(end_phase(c));
    free(c);
}
