/* data.c - the samples of a run: sources, blend, and the batch rule.
 *
 * A Data is a list of streams (an index and its orders) and, if there are
 * several, a blend that says which stream sample i comes from.  Synthetic data
 * has neither: its tokens are computed.
 *
 * A stream's mask is read where its tokens are, by the same order.
 *
 * Nothing here knows ranks or layouts but data_sample_id, one line of
 * arithmetic; that is why changing the layout cannot change the batch.
 */
#include "runtime/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct {
    DataIndex *index;
    DataLegs order;
    DataIndex *mask;      /* or NULL */
    uint64_t mask_before; /* weights before those of a text file's part */
} Stream;

struct Data {
    DataConfig config; /* its pointers are not kept */
    uint32_t streams_n;
    Stream *streams;
    DataBlend blend; /* only if there are several streams */
};

/* ---- opening ------------------------------------------------------------- */

static Status check_config(const DataConfig *c)
{
    if (c->seed < 0 || c->seed > UINT32_MAX)
        return status_make(STATUS_INPUT,
                           "training.seed: %" PRId64
                           " is not between 0 and 2^32-1", c->seed);
    if (c->seq_length < 1 || c->vocab_size < 1 || c->vocab_size > INT32_MAX)
        return status_make(STATUS_INPUT,
                           "seq_length %" PRId64 ", vocab_size %" PRId64
                           ": out of range", c->seq_length, c->vocab_size);
    if (c->kind != DATA_KIND_SYNTHETIC &&
        (c->sources_n < 1 || c->sources_n > INT16_MAX))
        return status_make(STATUS_INPUT, "data: %u sources", c->sources_n);
    for (uint32_t i = 0; i < c->sources_n && c->sources_n > 1; i++)
        if (!(c->sources[i].weight > 0))
            return status_make(STATUS_INPUT,
                               "%s: the weight %g is not positive",
                               c->sources[i].path, c->sources[i].weight);
    return STATUS_NONE;
}

static uint64_t samples_of(const DataConfig *c, double share, uint64_t all)
{
    return c->sources_n > 1 ? data_blend_reserve(share, all) : all;
}

/* Of a source that gives a share of all samples. */
static Status open_tokens(const DataConfig *c, const char *path, double share,
                          Stream *s)
{
    DataOrderSpec spec = {.seq_length = (uint64_t)c->seq_length,
                          .samples = samples_of(c, share, c->samples),
                          .seed = (uint32_t)c->seed};

    if (c->kind == DATA_KIND_TEXT) {
        STATUS_TRY(data_index_open_text(path, c->split, c->part, &s->index));
        spec.end = 1;
    } else {
        STATUS_TRY(data_index_open(path, &s->index));
        STATUS_TRY(status_in(
            data_split_range(c->split, c->part, data_index_sequences(s->index),
                             &spec.first, &spec.end), "%s", path));
    }
    spec.index = s->index;
    return data_legs_build(&spec, samples_of(c, share, c->planned), &s->order);
}

/* How many weights there have to be for a sequence: for a part of a text, as
 * many as the whole has bytes. */
static uint64_t weights_of(const DataConfig *c, const DataIndex *x, uint64_t i)
{
    return c->kind == DATA_KIND_TEXT ? data_index_bytes(x)
                                     : data_index_length(x, i);
}

/* The sequences that are read have as many weights as tokens. */
static Status check_mask(const DataConfig *c, const Stream *s)
{
    const DataOrder *order = &s->order.leg[0]; /* it has all sequences */

    for (uint64_t i = 0; i < order->documents; i++) {
        uint64_t at = order->document[i];

        if (at >= data_index_sequences(s->mask))
            return status_make(STATUS_INPUT,
                               "%s: there is no mask of sequence %" PRIu64
                               " of %s", data_index_path(s->mask), at,
                               data_index_path(s->index));
        if (data_index_length(s->mask, at) != weights_of(c, s->index, at))
            return status_make(STATUS_INPUT,
                               "%s: sequence %" PRIu64 " has %" PRIu64
                               " weights, but %" PRIu64 " tokens in %s",
                               data_index_path(s->mask), at,
                               data_index_length(s->mask, at),
                               weights_of(c, s->index, at),
                               data_index_path(s->index));
    }
    return STATUS_NONE;
}

static Status open_stream(const DataConfig *c, const DataSource *source,
                          double share, Stream *s)
{
    STATUS_TRY(open_tokens(c, source->path, share, s));
    if (!source->mask)
        return STATUS_NONE;
    STATUS_TRY(data_index_open(source->mask, &s->mask));
    if (c->kind == DATA_KIND_TEXT)
        s->mask_before = data_index_pointer(s->index, 0);
    return check_mask(c, s);
}

/* The weights as Megatron hands them on: normalised for the sizes, and once
 * more for the choice. */
static Status open_blend(const DataConfig *c, double *shares, Data *d)
{
    for (uint32_t i = 0; i < c->sources_n; i++)
        shares[i] = c->sources[i].weight;
    data_blend_normalise(shares, c->sources_n);
    for (uint32_t i = 0; i < c->sources_n; i++)
        STATUS_TRY(open_stream(c, &c->sources[i], shares[i], &d->streams[i]));
    data_blend_normalise(shares, c->sources_n);
    return data_blend_build(shares, c->sources_n, c->samples, &d->blend);
}

/* A stream must hold what the blend takes from it. */
static Status check_blend(const Data *d)
{
    for (uint64_t k = 0; k < d->config.samples; k++) {
        const Stream *s = &d->streams[d->blend.source[k]];

        if (d->blend.sample[k] >= data_legs_samples(&s->order))
            return status_make(STATUS_INPUT,
                               "%s: the blend takes more than its %" PRIu64
                               " samples", data_index_path(s->index),
                               data_legs_samples(&s->order));
    }
    return STATUS_NONE;
}

static Status open_sources(const DataConfig *c, Data *d)
{
    if (c->sources_n == 1)
        return open_stream(c, &c->sources[0], 1, &d->streams[0]);
    double *shares = calloc(c->sources_n, sizeof *shares);
    if (!shares)
        return status_make(STATUS_SYSTEM, "out of memory");
    Status status = open_blend(c, shares, d);
    free(shares);
    return status ? status : check_blend(d);
}

static Status open_data(const DataConfig *c, Data *d)
{
    STATUS_TRY(check_config(c));
    d->config = *c;
    d->config.sources = NULL;
    d->config.split = NULL;
    if (c->kind == DATA_KIND_SYNTHETIC)
        return STATUS_NONE;
    d->streams = calloc(c->sources_n, sizeof *d->streams);
    if (!d->streams)
        return status_make(STATUS_SYSTEM, "out of memory");
    d->streams_n = c->sources_n;
    return open_sources(c, d);
}

Status data_open(const DataConfig *config, Data **out_data)
{
    Data *d = calloc(1, sizeof *d);

    if (!d)
        return status_make(STATUS_SYSTEM, "out of memory");
    Status status = open_data(config, d);
    if (status)
        data_close(d);
    else
        *out_data = d;
    return status;
}

void data_close(Data *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->streams_n; i++) {
        data_legs_free(&d->streams[i].order);
        data_index_close(d->streams[i].index);
        data_index_close(d->streams[i].mask);
    }
    data_blend_free(&d->blend);
    free(d->streams);
    free(d);
}

/* ---- samples ------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit. */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void synthesise(const DataConfig *c, uint64_t index, int32_t *out_tokens)
{
    uint64_t part = (uint64_t)c->part << 56; /* apart from all samples of it */
    uint64_t key = mix(mix((uint64_t)c->seed) ^ index ^ part);

    for (uint64_t i = 0; i <= (uint64_t)c->seq_length; i++) {
        uint64_t high = mix(key ^ i) >> 32;

        out_tokens[i] = (int32_t)(high * (uint64_t)c->vocab_size >> 32);
    }
}

/* A token or weight that does not fit. */
static Status outside(const DataIndex *x, uint64_t index, uint64_t sequence,
                      int64_t bad, int64_t limit)
{
    return status_make(STATUS_INPUT,
                       "%s: sample %" PRIu64 ": token %" PRId64
                       " of sequence %" PRIu64
                       " is outside of the vocabulary of %" PRId64,
                       data_index_path(x), index, bad, sequence, limit);
}

/* Where a sample lies: in which stream, and its number there. */
typedef struct {
    const Stream *stream;
    uint64_t index, local;
} Sample;

static Sample locate(const Data *d, uint64_t index)
{
    if (d->streams_n == 1)
        return (Sample){&d->streams[0], index, index};
    return (Sample){&d->streams[d->blend.source[index]], index,
                    d->blend.sample[index]};
}

/* Tokens, or what lies beside them in `x` after `before` others. */
static Status read_sample(const Data *d, const Sample *sample,
                          const DataIndex *x, uint64_t before, int64_t limit,
                          int32_t *out)
{
    uint64_t wanted = (uint64_t)d->config.seq_length + 1, at, offset;
    const Stream *s = sample->stream;
    uint64_t local;
    const DataOrder *order = data_legs_find(&s->order, sample->local, &local);
    int64_t bad = 0;

    data_order_find(order, wanted - 1, local, &at, &offset);
    while (wanted > 0) {
        uint64_t sequence = order->document[at++];
        uint64_t n = data_index_length(s->index, sequence) - offset;

        n = MC_MIN(n, wanted);
        if (data_index_copy(x, sequence, before + offset, n, limit, out,
                            &bad) < n)
            return outside(x, sample->index, sequence, bad, limit);
        out += n;
        wanted -= n;
        offset = 0;
    }
    return STATUS_NONE;
}

static Status check_index(const Data *d, uint64_t index)
{
    if (index < d->config.samples)
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "data: sample %" PRIu64 " of %" PRIu64
                       " was asked for", index, d->config.samples);
}

Status data_sample(const Data *d, uint64_t index, int32_t *out_tokens)
{
    Sample sample;

    STATUS_TRY(check_index(d, index));
    if (d->config.kind == DATA_KIND_SYNTHETIC) {
        synthesise(&d->config, index, out_tokens);
        return STATUS_NONE;
    }
    sample = locate(d, index);
    return read_sample(d, &sample, sample.stream->index, 0,
                       d->config.vocab_size, out_tokens);
}

Status data_sample_mask(const Data *d, uint64_t index, int32_t *out_weights)
{
    Sample sample = {0};

    STATUS_TRY(check_index(d, index));
    if (d->config.kind != DATA_KIND_SYNTHETIC)
        sample = locate(d, index);
    if (sample.stream && sample.stream->mask)
        return read_sample(d, &sample, sample.stream->mask,
                           sample.stream->mask_before, INT32_MAX, out_weights);
    for (int64_t i = 0; i <= d->config.seq_length; i++)
        out_weights[i] = 1;
    return STATUS_NONE;
}

uint64_t data_sample_id(const DataBatch *batch, uint64_t step,
                        uint64_t microbatch, uint64_t dp_index, uint64_t row)
{
    uint64_t mbs = batch->micro_batch_size;

    return step * batch->global_batch_size + microbatch * mbs * batch->dp_size +
           dp_index * mbs + row;
}
