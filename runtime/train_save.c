/* train_save.c - what outlives a run, and how a later one goes on from it.
 *
 * Between two steps a run is its tensors and a few numbers (CheckpointState);
 * all else follows from the plan, the data and the seed.  So a run that goes on
 * from there takes the very steps that the first one would have taken.
 */
#include "runtime/train_priv.h"

#include "runtime/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- --save-step --------------------------------------------------------- */

static Status save_as(const Train *t, const char *stem, PlanFieldKind kind)
{
    StateFiles to = {.dir = t->c.save_dir, .stem = stem};

    if (mkdir(to.dir, 0777) != 0 && errno != EEXIST)
        return status_system(errno, "cannot make %s", to.dir);
    return state_save(&t->state, &to, kind);
}

Status train_save_grads(const Train *t)
{
    return t->step == t->c.save_step ? save_as(t, "grads", PLAN_FIELD_GRAD)
                                     : STATUS_NONE;
}

static Status save_weights(const Train *t)
{
    return t->step == t->c.save_step ? save_as(t, "weights", PLAN_FIELD_PARAM)
                                     : STATUS_NONE;
}

/* ---- going on ------------------------------------------------------------ */

/* A new run must not write among the checkpoints of another. */
static Status refuse_others(const Train *t, int64_t newest)
{
    if (newest < 0 || t->c.rank != 0)
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "%s holds the checkpoint of step %lld: go on from it "
                       "with --resume, or give training.checkpoint.dir "
                       "another folder",
                       t->c.checkpoints, (long long)newest);
}

static Status read_resumed(Train *t, int64_t newest)
{
    const char *fixed = plan_text(t->plan, t->plan->training.v->fixed);

    STATUS_TRY(checkpoint_path(t->c.checkpoints, newest, t->resumed_from));
    STATUS_TRY(checkpoint_state_read(t->resumed_from, &t->resumed));
    if (t->resumed.past.step != newest)
        return status_make(STATUS_INPUT, "%s is of step %lld by its state.json",
                           t->resumed_from, (long long)t->resumed.past.step);
    t->before = newest;
    t->updates = t->resumed.updates;
    t->learnt = t->resumed.learnt;
    if (t->scaler.dynamic && t->resumed.scaler.dynamic)
        t->scaler = t->resumed.scaler;
    return checkpoint_state_check(&t->resumed, t->resumed_from, train_seed(t),
                                  fixed);
}

/* On a file system that is slow to tell, or on several, ranks might otherwise
 * go on from different steps. */
static Status check_same(const Train *t, int64_t newest)
{
    char own[32], *all = NULL, *rest, *line;
    Status s = STATUS_NONE;

    snprintf(own, sizeof own, "%lld\n", (long long)newest);
    STATUS_TRY(comm_mpi_gather(own, &all));
    rest = all;
    while (!s && (line = strsep(&rest, "\n")) && *line)
        if (strtoll(line, NULL, 10) != newest)
            s = status_make(STATUS_RUN,
                            "%s: its newest checkpoint is of step %lld here, "
                            "of step %s for another rank",
                            t->c.checkpoints, (long long)newest, line);
    free(all);
    return s;
}

Status train_resume(Train *t)
{
    int64_t newest = -1;

    if (t->c.checkpoints)
        STATUS_TRY(checkpoint_newest(t->c.checkpoints, &newest));
    if (!t->c.resume)
        return refuse_others(t, newest);
    if (!t->c.checkpoints)
        return status_make(STATUS_INPUT, "--resume: training.checkpoint.dir is "
                                         "not set");
    if (newest < 0)
        return status_make(STATUS_INPUT,
                           "--resume: there is no complete checkpoint in %s",
                           t->c.checkpoints);
    STATUS_TRY(check_same(t, newest));
    return read_resumed(t, newest);
}

static const char *data_name(const char *fixed, size_t *out_n)
{
    const char *name = checkpoint_fixed(fixed, "data.train", out_n);

    if (!name)
        *out_n = 0;
    return name ? name : "";
}

/* The samples that were trained on are the ones that would be now. */
static Status check_data(Train *t)
{
    const char *fixed = plan_text(t->plan, t->plan->training.v->fixed);
    int64_t samples = t->resumed.past.samples[PLAN_TRAIN];
    size_t was_n, is_n;
    const char *was = data_name(t->resumed.fixed, &was_n);
    const char *is = data_name(fixed, &is_n);
    uint64_t hash;

    STATUS_TRY(feed_hash(t->feed, samples, &hash));
    if (hash == t->resumed.data)
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "%s: data.train was %.*s when it was saved and is %.*s "
                       "now: the first %lld samples differ (a new run can "
                       "start from its weights: --load)",
                       t->resumed_from, (int)was_n, was, (int)is_n, is,
                       (long long)samples);
}

/* Loads from a set that was opened, and closes it. */
static Status load_set(const Train *t, SafeSet *set, PlanFieldKind kind)
{
    Status failed = state_load(&t->state, set, kind);

    safe_close(set);
    return failed;
}

static Status load_field(const Train *t, PlanFieldKind kind)
{
    const char *stem = checkpoint_stem(t->plan->training.v, kind);
    SafeSet set;

    if (!stem)
        return STATUS_NONE;
    STATUS_TRY(safe_open_in(t->resumed_from, stem, &set));
    return load_set(t, &set, kind);
}

static Status load_resumed(Train *t)
{
    STATUS_TRY(check_data(t));
    for (int kind = 0; kind < PLAN_FIELDS; kind++)
        STATUS_TRY(load_field(t, (PlanFieldKind)kind));
    if (t->c.rank == 0 && !t->c.quiet)
        fprintf(stderr, "going on from %s\n", t->resumed_from);
    return STATUS_NONE;
}

Status train_load(Train *t)
{
    SafeSet set;

    if (*t->resumed_from)
        return load_resumed(t);
    if (!t->c.load)
        return STATUS_NONE;
    STATUS_TRY(safe_open(t->c.load, &set));
    return load_set(t, &set, PLAN_FIELD_PARAM);
}

/* ---- checkpoints --------------------------------------------------------- */

Status train_open_checkpoints(Train *t)
{
    const PlanTraining *p = t->plan->training.v;
    CheckpointsConfig config = {.folder = t->c.checkpoints,
                                .keep = p->save_keep,
                                .async = p->save_async,
                                .newest = *t->resumed_from ? t->before : -1};

    if (!t->c.checkpoints)
        return STATUS_NONE;
    return checkpoints_open(&config, &t->state, &t->checkpoints);
}

static Status checkpoint(Train *t, int64_t step)
{
    const PlanTraining *p = t->plan->training.v;
    CheckpointState now = {.past = feed_past(t->feed, step),
                           .updates = t->updates,
                           .learnt = t->learnt,
                           .seed = train_seed(t),
                           .scaler = t->scaler,
                           .fixed = plan_text(t->plan, p->fixed)};
    int64_t samples = now.past.samples[PLAN_TRAIN];

    now.tokens = samples * p->seq_length;
    STATUS_TRY(feed_hash(t->feed, samples, &now.data));
    return checkpoints_save(t->checkpoints, &now);
}

static bool is_due(const Train *t)
{
    int64_t interval = t->plan->training.v->save_interval;

    return interval > 0 && t->step % interval == 0;
}

/* The step after which a run was told to end is saved like any last one. */
Status train_save(Train *t, bool *out_end)
{
    *out_end = false;
    STATUS_TRY(save_weights(t));
    if (!t->checkpoints || t->step <= t->before)
        return STATUS_NONE;
    if (is_due(t))
        STATUS_TRY(checkpoint(t, t->step));
    return checkpoints_poll(t->checkpoints, watch_end_wanted(), out_end);
}

Status train_save_last(Train *t, bool ended)
{
    if (!t->checkpoints || t->step <= t->before)
        return STATUS_NONE;
    STATUS_TRY(checkpoint(t, t->step));
    STATUS_TRY(checkpoints_finish(t->checkpoints));
    if (ended && t->c.rank == 0)
        fprintf(stderr, "ended after step %lld, which is saved in %s\n",
                (long long)t->step, t->c.checkpoints);
    return STATUS_NONE;
}
