/* train.c - the loop over steps, and what HOST instructions ask for.
 *
 * Every step runs one of the plan's programs.  Around it: the batch, the
 * numbers that change from step to step (learning rate, Adam's bias
 * corrections), metrics, and saving.  A loss that is not a number ends the
 * run, after its line in metrics.jsonl.
 */
#include "runtime/train_priv.h"

#include "base/dropout.h"

#include <math.h>
#include <stdlib.h>

uint64_t train_seed(const Train *t)
{
    return t->c.seed >= 0 ? (uint64_t)t->c.seed : t->plan->training.v->seed;
}

static Status load_batch(void *self, PlanBatch what, int64_t microbatch,
                         int32_t *out)
{
    return feed_load(((Train *)self)->feed, what, microbatch, out);
}

/* ---- numbers ------------------------------------------------------------- */

static double learning_rate(const Train *t)
{
    const PlanTraining *p = t->plan->training.v;

    return lr_after(&p->lr, t->learnt, p->global_batch);
}

static float scalar(void *self, PlanScalar what)
{
    const Train *t = self;
    const PlanTraining *p = t->plan->training.v;

    switch (what) {
    case PLAN_SCALAR_LR:
        return (float)learning_rate(t);
    case PLAN_SCALAR_ADAM_BIAS1:
        return (float)(1.0 - pow(p->beta1, (double)(t->updates + 1)));
    case PLAN_SCALAR_ADAM_BIAS2:
        return (float)(1.0 - pow(p->beta2, (double)(t->updates + 1)));
    case PLAN_SCALAR_INV_TARGETS:
        return t->batch.targets > 0 ? (float)(1.0 / t->batch.targets) : 0.0f;
    case PLAN_SCALAR_LOSS_SCALE:
        return (float)t->scaler.scale;
    case PLAN_SCALAR_INV_BATCH:
        return (float)(1.0 / (double)t->batch.samples);
    case PLAN_SCALAR_STEP:
        return (float)t->step;
    case PLAN_SCALAR_DRAWS:
        return (float)dropout_step_key(train_seed(t), t->step);
    case PLAN_SCALARS:
        break;
    }
    return 0.0f;
}

static Status metric(void *self, PlanMetric what, float value)
{
    Train *t = self;

    t->now.value[what] = value;
    t->now.known[what] = true;
    return STATUS_NONE;
}

static Status grads_final(void *self)
{
    return train_save_grads(self);
}

/* ---- opening ------------------------------------------------------------- */

static char *state_pointer(void *self, uint64_t address)
{
    return exec_pointer(((Train *)self)->exec, address);
}

static bool reports(const Train *t)
{
    const PlanJob *job = t->plan->job.v;

    return job->has_reporter &&
           plan_expr_value(t->plan, job->reporter, t->c.rank) == 0;
}

static Status open_metrics(Train *t)
{
    const PlanTraining *p = t->plan->training.v;
    MetricsConfig config = {.path = t->c.metrics,
                            .before = t->before,
                            .steps = t->c.steps,
                            .interval = p->log_interval,
                            .live = t->c.live,
                            .quiet = t->c.quiet};

    if (!config.path)
        config.path = plan_text(t->plan, p->metrics);
    return reports(t) ? metrics_open(&config, &t->metrics) : STATUS_NONE;
}

static Status open_executor(Train *t)
{
    DeviceConfig device = {t->plan, t->c.kernels, t->c.threads};
    ExecConfig config = {.plan = t->plan,
                         .rank = t->c.rank,
                         .driver = t->c.device,
                         .host = {t, load_batch, scalar, metric, grads_final},
                         .clock = t->c.profile ? t->c.clock : NULL};

    STATUS_TRY(t->c.device->open(&device, &t->device));
    STATUS_TRY(
        comm_new(t->plan, t->c.rank, t->c.comm, t->c.patience, &t->comm));
    config.device = t->device;
    config.comm = t->comm;
    return exec_new(&config, &t->exec);
}

static Status make_state(Train *t)
{
    const PlanMemory *arena = &t->plan->memories.v[0];

    t->state = (State){t->plan, t->c.rank, t, state_pointer, 1};
    if (t->c.measure_memory)
        memory_paint(exec_pointer(t->exec, 0), arena->bytes);
    STATUS_TRY(state_init(&t->state, train_seed(t)));
    return train_load(t);
}

/* What is to be saved must lie ahead. */
static Status check_save_step(const Train *t)
{
    if (t->c.save_step > t->c.steps)
        return status_make(STATUS_INPUT,
                           "step %lld is to be saved, but the "
                           "last one is %lld",
                           (long long)t->c.save_step, (long long)t->c.steps);
    if (t->c.save_step >= 0 && t->c.save_step < t->before)
        return status_make(STATUS_INPUT,
                           "step %lld is to be saved, but the run goes on "
                           "from step %lld",
                           (long long)t->c.save_step, (long long)t->before);
    return STATUS_NONE;
}

static Status open_all(Train *t)
{
    t->scaler = scaler_new(t->plan->training.v);
    STATUS_TRY(train_resume(t));
    STATUS_TRY(check_save_step(t));
    STATUS_TRY(feed_open(t->plan, t->c.rank, train_seed(t), t->c.steps,
                         &t->resumed.past, &t->feed));
    STATUS_TRY(open_executor(t));
    STATUS_TRY(make_state(t));
    STATUS_TRY(train_open_checkpoints(t));
    return open_metrics(t);
}

Status train_open(const TrainConfig *config, Train **out)
{
    Train *t = calloc(1, sizeof *t);
    Status s;

    if (!t)
        return status_make(STATUS_SYSTEM, "no memory for training");
    t->c = *config;
    t->plan = config->plan;
    if (t->c.steps < 0)
        t->c.steps = t->plan->training.v->steps;
    s = open_all(t);
    if (s)
        train_close(t);
    else
        *out = t;
    return s;
}

void train_close(Train *t)
{
    if (!t)
        return;
    status_drop(metrics_close(t->metrics));
    checkpoints_close(t->checkpoints);
    checkpoint_state_drop(&t->resumed);
    exec_free(t->exec);
    comm_free(t->comm);
    if (t->device)
        t->c.device->close(t->device);
    feed_close(t->feed);
    vec_free(&t->measured);
    free(t);
}

/* ---- running ------------------------------------------------------------- */

/* The mean loss of all targets of the evaluation that is due after some steps,
 * where the loss is known. */
static Status evaluate(Train *t)
{
    const PlanTraining *p = t->plan->training.v;
    MetricsStep step = t->now;
    double sum = 0, targets = 0;

    if (p->eval_interval == 0 || t->step % p->eval_interval != 0)
        return STATUS_NONE;
    for (int64_t i = 0; i < p->eval_steps; i++) {
        STATUS_TRY(feed_next(t->feed, PLAN_EVALUATE, &t->batch));
        STATUS_TRY(status_in(exec_run(t->exec, t->batch.program),
                             "evaluation after it"));
        sum += (double)t->now.value[PLAN_METRIC_LOSS] * t->batch.targets;
        targets += t->batch.targets;
    }
    t->now = step;
    t->now.evaluated = true;
    t->now.valid_loss = targets > 0 ? sum / targets : 0;
    return STATUS_NONE;
}

static Status report(Train *t)
{
    float loss = t->now.value[PLAN_METRIC_LOSS];

    if (t->metrics)
        STATUS_TRY(metrics_step(t->metrics, &t->now));
    if (t->now.skipped && !t->hopeless)
        return STATUS_NONE;
    if (t->now.known[PLAN_METRIC_LOSS] && !isfinite(loss))
        return status_make(STATUS_RUN, "the loss is %f", (double)loss);
    return STATUS_NONE;
}

/* Every rank knows the norm, and so whether this was an update. */
static void scale(Train *t)
{
    bool finite = !t->plan->training.v->scaled ||
                  isfinite(t->now.value[PLAN_METRIC_GRAD_NORM]);

    t->now.loss_scale = t->scaler.scale;
    t->now.skipped = !finite;
    t->hopeless = !finite && !scaler_can_fall(&t->scaler);
    scaler_update(&t->scaler, finite);
    if (!finite)
        return;
    t->updates++;
    t->learnt += t->batch.samples;
}

/* The first step, which finds caches and pages cold, is profiled only if
 * there is no other. */
static void profile_step(Train *t, double seconds)
{
    if (!t->c.profile)
        return;
    if (t->step == t->before + 1 && t->c.steps > t->step)
        exec_times_reset(t->exec);
    else
        vec_push(&t->measured, seconds);
}

static Status one_step(Train *t)
{
    double start = mc_seconds(), clock = t->c.clock();

    t->now = (MetricsStep){0};
    STATUS_TRY(feed_next(t->feed, PLAN_TRAIN, &t->batch));
    t->state.grad_scale = (float)t->scaler.scale;
    STATUS_TRY(exec_run(t->exec, t->batch.program));
    profile_step(t, t->c.clock() - clock);
    t->now.step = t->step;
    t->now.seconds = mc_seconds() - start;
    t->now.lr = learning_rate(t);
    t->now.tokens = t->batch.samples * t->plan->training.v->seq_length;
    t->now.targets = t->plan->data.v->masked ? t->batch.targets : -1;
    scale(t);
    STATUS_TRY(evaluate(t));
    return report(t);
}

static int by_size(const void *x, const void *y)
{
    const double *a = x, *b = y;

    return (*a > *b) - (*a < *b);
}

static Status write_profile(Train *t)
{
    uint32_t n = t->measured.n;
    ProfileConfig config = {.path = t->c.profile,
                            .driver = t->c.device,
                            .device = t->device,
                            .clock = t->c.clock,
                            .steps = n};

    if (n == 0)
        return STATUS_NONE;
    qsort(t->measured.v, n, sizeof(double), by_size);
    config.step = t->measured.v[n / 2];
    return profile_write(t->exec, t->plan, &config);
}

static void print_memory(const Train *t)
{
    const PlanMemory *arena = &t->plan->memories.v[0];
    uint64_t highest, touched;

    memory_measure(exec_pointer(t->exec, 0), arena->bytes, &highest, &touched);
    printf("{\"rank\": %u, \"arena\": %llu, \"highest\": %llu, "
           "\"touched\": %llu}\n",
           t->c.rank, (unsigned long long)arena->bytes,
           (unsigned long long)highest, (unsigned long long)touched);
    fflush(stdout);
}

static Status step_and_save(Train *t, bool *out_end)
{
    STATUS_TRY(one_step(t));
    return train_save(t, out_end);
}

/* Up to the last step, or to the one in which the run is told to end. */
static Status all_steps(Train *t)
{
    bool end = false;

    t->step = t->before;
    STATUS_TRY(train_save(t, &end)); /* step 0: the initial weights */
    while (!end && t->step < t->c.steps) {
        t->step++;
        STATUS_TRY(status_in(step_and_save(t, &end), "step %lld",
                             (long long)t->step));
    }
    return train_save_last(t, end);
}

Status train_run(Train *t)
{
    STATUS_TRY(all_steps(t));
    if (t->c.measure_memory)
        print_memory(t);
    if (t->c.check_replicas)
        STATUS_TRY(state_compare_replicas(&t->state));
    if (t->c.profile)
        return write_profile(t);
    return STATUS_NONE;
}

int64_t train_step(const Train *t)
{
    return t->step;
}

uint32_t train_instr(const Train *t)
{
    return t->exec ? exec_instr(t->exec) : 0;
}
