/* feed.c - which samples the step that is running takes.
 *
 * There is one stream of batches for training, whose size may grow, and one for
 * evaluation.  feed_next moves to the next batch of either; what HOST
 * instructions load afterwards comes from it.
 *
 *     training     | 1 | 2 | 3   | 4   |      samples, in order
 *     evaluation           | 1 | 2 |          of data of its own
 */
#include "runtime/feed.h"

#include "base/zigzag.h"
#include "runtime/data.h"

#include <stdlib.h>
#include <xxhash.h>

typedef struct {
    Data *data;
    const PlanData *row;
    int64_t next; /* the first sample that was not taken yet */
    int64_t planned; /* see DataConfig */
} Source;

struct Feed {
    const Plan *plan;
    uint32_t rank;
    Source source[2]; /* by PlanProgramKind */
    int32_t *sample;  /* seq_length + 1 tokens */
    const Source *now;
    FeedBatch batch;
    int64_t first; /* sample of it */
};

/* ---- opening ------------------------------------------------------------- */

static Status open_data(const Feed *f, uint64_t seed, uint64_t samples,
                        const DataSource *sources, Source *s)
{
    const PlanData *d = s->row;
    DataConfig config = {
        .kind = (DataKind)d->kind,
        .sources = sources,
        .sources_n = d->sources.n,
        .split = d->split ? plan_text(f->plan, d->split) : NULL,
        .part = d->valid ? DATA_VALID : DATA_TRAIN,
        .seed = (int64_t)seed,
        .seq_length = f->plan->training.v->seq_length,
        .vocab_size = d->vocab,
        .samples = samples,
        .planned = (uint64_t)s->planned,
    };

    return data_open(&config, &s->data);
}

static Status open_source(const Feed *f, uint64_t seed, int64_t samples,
                          Source *s)
{
    PlanRange r = s->row->sources;
    DataSource *sources = calloc((size_t)r.n + 1, sizeof *sources);
    Status failed;

    if (!sources)
        return status_make(STATUS_SYSTEM, "no memory for the datasets");
    for (uint32_t i = 0; i < r.n; i++) {
        const PlanSource *source = &f->plan->sources.v[r.first + i];
        sources[i] = (DataSource){
            plan_text(f->plan, source->path), source->weight,
            source->mask ? plan_text(f->plan, source->mask) : NULL};
    }
    failed = open_data(f, seed, (uint64_t)samples, sources, s);
    free(sources);
    return failed;
}

/* Those that are left to train, after what lies behind; with another batch
 * than that had, at most. */
static int64_t training_samples(const PlanTraining *t, int64_t steps,
                                const FeedPast *past)
{
    int64_t before = past->samples[PLAN_TRAIN], samples;

    if (batch_consumed(&t->rampup, past->step) == before)
        return batch_consumed(&t->rampup, steps);
    if (__builtin_mul_overflow(steps - past->step, t->global_batch, &samples) ||
        __builtin_add_overflow(samples, before, &samples))
        return INT64_MAX;
    return samples;
}

/* Every evaluation of so many steps takes as many whole batches. */
static int64_t evaluation_samples(const PlanTraining *t, int64_t steps,
                                  const FeedPast *past)
{
    int64_t times = steps / t->eval_interval - past->step / t->eval_interval;
    int64_t samples;

    if (__builtin_mul_overflow(times, t->eval_steps, &samples) ||
        __builtin_mul_overflow(samples, t->global_batch, &samples) ||
        __builtin_add_overflow(samples, past->samples[PLAN_EVALUATE],
                               &samples))
        return INT64_MAX;
    return samples;
}

static Status open_kind(Feed *f, uint64_t seed, int64_t steps,
                        const FeedPast *past, PlanProgramKind kind)
{
    const PlanTraining *t = f->plan->training.v;
    Source *s = &f->source[kind];
    int64_t samples = kind == PLAN_TRAIN
                          ? training_samples(t, steps, past)
                          : evaluation_samples(t, steps, past);

    if (samples == INT64_MAX)
        return status_make(STATUS_INPUT, "%lld steps are too many",
                           (long long)steps);
    s->row = &f->plan->data.v[kind];
    s->next = past->samples[kind];
    s->planned = past->planned[kind] ? past->planned[kind] : samples;
    return open_source(f, seed, samples, s);
}

static Status open_all(Feed *f, uint64_t seed, int64_t steps,
                       const FeedPast *past)
{
    const PlanTraining *t = f->plan->training.v;

    f->sample = calloc((size_t)t->seq_length + 1, sizeof *f->sample);
    if (!f->sample)
        return status_make(STATUS_SYSTEM, "no memory for a sample");
    STATUS_TRY(open_kind(f, seed, steps, past, PLAN_TRAIN));
    if (f->plan->data.n == 2 && t->eval_interval)
        return open_kind(f, seed, steps, past, PLAN_EVALUATE);
    return STATUS_NONE;
}

Status feed_open(const Plan *plan, uint32_t rank, uint64_t seed, int64_t steps,
                 const FeedPast *past, Feed **out)
{
    Feed *f = calloc(1, sizeof *f);
    Status s;

    if (!f)
        return status_make(STATUS_SYSTEM, "no memory for the datasets");
    f->plan = plan;
    f->rank = rank;
    steps = MC_MAX(MC_MAX(steps, plan->training.v->steps), past->step);
    s = open_all(f, seed, steps, past);
    if (s)
        feed_close(f);
    else
        *out = f;
    return s;
}

void feed_close(Feed *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < MC_LEN(f->source); i++)
        data_close(f->source[i].data);
    free(f->sample);
    free(f);
}

/* ---- the next batch ------------------------------------------------------ */

/* Every rank weighs the targets of the whole batch, which needs no message. */
static Status count_targets(Feed *f)
{
    int64_t seq = f->plan->training.v->seq_length;
    double sum = 0;

    f->batch.targets = (double)f->batch.samples * (double)seq;
    if (!f->now->row->masked)
        return STATUS_NONE;
    for (int64_t i = 0; i < f->batch.samples; i++) {
        STATUS_TRY(data_sample_mask(f->now->data, (uint64_t)(f->first + i),
                                    f->sample));
        for (int64_t s = 1; s <= seq; s++)
            sum += f->sample[s];
    }
    f->batch.targets = sum;
    return STATUS_NONE;
}

static Status find_program(Feed *f, PlanProgramKind kind)
{
    int64_t each = f->plan->training.v->micro_batch * f->now->row->shards;

    for (uint32_t i = 0; i < f->plan->programs.n; i++) {
        const PlanProgram *p = &f->plan->programs.v[i];
        f->batch.program = i;
        if (p->kind == kind && p->microbatches * each == f->batch.samples)
            return STATUS_NONE;
    }
    return status_make(STATUS_INPUT, "the plan has no program for %lld samples",
                       (long long)f->batch.samples);
}

Status feed_next(Feed *f, PlanProgramKind kind, FeedBatch *out)
{
    const PlanTraining *t = f->plan->training.v;
    Source *s = &f->source[kind];

    f->now = s;
    f->first = s->next;
    f->batch.samples =
        kind == PLAN_TRAIN ? batch_at(&t->rampup, s->next) : t->global_batch;
    STATUS_TRY(find_program(f, kind));
    STATUS_TRY(count_targets(f));
    s->next += f->batch.samples;
    *out = f->batch;
    return STATUS_NONE;
}

/* ---- going on ------------------------------------------------------------ */

FeedPast feed_past(const Feed *f, int64_t step)
{
    FeedPast past = {.step = step};

    for (size_t i = 0; i < MC_LEN(f->source); i++) {
        past.samples[i] = f->source[i].next;
        past.planned[i] = f->source[i].planned;
    }
    return past;
}

/* The first, the middle and the last: another order differs in one of them. */
Status feed_hash(Feed *f, int64_t samples, uint64_t *out)
{
    const int64_t ids[] = {0, samples / 2, samples - 1};
    size_t bytes = ((size_t)f->plan->training.v->seq_length + 1) *
                   sizeof *f->sample;
    uint64_t hash = 0;

    for (size_t i = 0; samples > 0 && i < MC_LEN(ids); i++) {
        STATUS_TRY(data_sample(f->source[PLAN_TRAIN].data, (uint64_t)ids[i],
                               f->sample));
        hash = XXH3_64bits_withSeed(f->sample, bytes, hash);
    }
    *out = hash;
    return STATUS_NONE;
}

/* ---- loading ------------------------------------------------------------- */

/* This rank's part of a sample into column `row` of an [s, b] array.  Labels
 * and what goes with them are those of the next position. */
static void put_sample(const Feed *f, int64_t row, int64_t next, int32_t *out)
{
    const PlanTraining *t = f->plan->training.v;
    const PlanData *d = f->now->row;
    int64_t seq = t->seq_length, local = seq / d->parts;
    int64_t first = local * plan_expr_value(f->plan, d->part, f->rank);

    for (int64_t s = 0; s < local; s++)
        out[s * t->micro_batch + row] =
            f->sample[zigzag_position(seq, d->parts, first + s) + next];
}

static Status read_sample(const Feed *f, PlanBatch what, uint64_t id)
{
    return what == PLAN_BATCH_LOSS_MASK
               ? data_sample_mask(f->now->data, id, f->sample)
               : data_sample(f->now->data, id, f->sample);
}

Status feed_load(Feed *f, PlanBatch what, int64_t microbatch, int32_t *out)
{
    const PlanTraining *t = f->plan->training.v;
    const PlanData *d = f->now->row;
    DataBatch batch = {(uint64_t)f->batch.samples, (uint64_t)t->micro_batch,
                       d->shards};
    uint64_t shard = (uint64_t)plan_expr_value(f->plan, d->shard, f->rank);

    for (int64_t row = 0; row < t->micro_batch; row++) {
        uint64_t id = data_sample_id(&batch, 0, (uint64_t)microbatch, shard,
                                     (uint64_t)row);
        STATUS_TRY(read_sample(f, what, (uint64_t)f->first + id));
        put_sample(f, row, what != PLAN_BATCH_TOKENS, out);
    }
    return STATUS_NONE;
}
