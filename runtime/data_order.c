/* data_order.c - the order of samples of one source, as Megatron's GPTDataset.
 *
 *     document   the sequences, once per epoch, shuffled
 *     sample i   tokens [i*seq, i*seq + seq] of their concatenation
 *     shuffle    a permutation of the samples
 *
 * Megatron stores where every sample begins; since samples follow each other
 * at distance seq, a running sum over the documents and a binary search say
 * the same in less memory.
 *
 * If the last epoch is needed to less than 80 %, it is shuffled apart from the
 * others, so that every document is seen before any is repeated too often.
 * Source: megatron/core/datasets/gpt_dataset.py,
 * _build_document_sample_shuffle_indices.
 */
#include "runtime/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>

/* The counts that decide everything else. */
typedef struct {
    uint64_t tokens; /* of one epoch */
    uint64_t epochs;
    uint64_t documents, samples; /* of all epochs */
    uint64_t first_documents;    /* shuffled on their own; the rest apart */
    uint64_t first_samples;
} Counts;

static uint64_t samples_in(uint64_t tokens, uint64_t seq)
{
    return tokens ? (tokens - 1) / seq : 0;
}

/* Whether the last epoch is shuffled on its own. */
static bool last_is_separate(const DataOrderSpec *s, const Counts *c)
{
    if (c->epochs == 1)
        return false;
    uint64_t before = samples_in((c->epochs - 1) * c->tokens, s->seq_length);
    uint64_t from_last = s->samples - before;
    uint64_t per_epoch = samples_in(c->tokens, s->seq_length);
    return from_last < (uint64_t)(0.80 * (double)per_epoch);
}

static Status count(const DataOrderSpec *s, Counts *c)
{
    const char *path = data_index_path(s->index);
    uint64_t n = s->end - s->first;

    for (uint64_t i = s->first; i < s->end; i++)
        c->tokens += data_index_length(s->index, i);
    if (c->tokens == 0)
        return status_make(STATUS_INPUT, "%s: there are no tokens to read",
                           path);
    if (s->samples >= UINT32_MAX || s->end >= UINT32_MAX ||
        s->seq_length > INT32_MAX)
        return status_make(STATUS_INPUT, "%s: more than 2^32 samples", path);
    uint64_t wanted = s->samples * s->seq_length + 1;
    c->epochs = (wanted + c->tokens - 1) / c->tokens;
    /* epochs * tokens < wanted + tokens, far below 2^64 */
    c->samples = samples_in(c->epochs * c->tokens, s->seq_length);
    if (c->samples >= UINT32_MAX || c->epochs > UINT32_MAX / n)
        return status_make(STATUS_INPUT, "%s: more than 2^32 samples", path);
    c->documents = c->epochs * n;
    bool separate = last_is_separate(s, c);
    c->first_documents = c->documents - (separate ? n : 0);
    c->first_samples = separate ? samples_in((c->epochs - 1) * c->tokens,
                                             s->seq_length)
                                : c->samples;
    return STATUS_NONE;
}

/* Fills and shuffles in the order in which Megatron draws its random numbers:
 * documents of the first epochs, of the last, samples likewise. */
static void fill(const DataOrderSpec *s, const Counts *c, DataOrder *o)
{
    uint64_t n = s->end - s->first, sum = 0;
    DataRand rand;

    data_rand_seed(&rand, s->seed);
    for (uint64_t i = 0; i < c->documents; i++)
        o->document[i] = (uint32_t)(s->first + i % n);
    data_rand_shuffle(&rand, o->document, c->first_documents);
    data_rand_shuffle(&rand, o->document + c->first_documents,
                      c->documents - c->first_documents);
    for (uint64_t i = 0; i < c->samples; i++)
        o->shuffle[i] = (uint32_t)i;
    data_rand_shuffle(&rand, o->shuffle, c->first_samples);
    data_rand_shuffle(&rand, o->shuffle + c->first_samples,
                      c->samples - c->first_samples);
    for (uint64_t i = 0; i < c->documents; i++) {
        o->begin[i] = sum;
        sum += data_index_length(s->index, o->document[i]);
    }
    o->begin[c->documents] = sum;
}

Status data_order_build(const DataOrderSpec *spec, DataOrder *out_order)
{
    Counts c = {0};

    STATUS_TRY(count(spec, &c));
    DataOrder o = {.documents = c.documents, .samples = c.samples};
    o.document = malloc(c.documents * sizeof *o.document);
    o.begin = malloc((c.documents + 1) * sizeof *o.begin);
    o.shuffle = malloc((c.samples + 1) * sizeof *o.shuffle);
    if (!o.document || !o.begin || !o.shuffle) {
        data_order_free(&o);
        return status_make(STATUS_SYSTEM,
                           "%s: out of memory for the order of %" PRIu64
                           " samples",
                           data_index_path(spec->index), c.samples);
    }
    fill(spec, &c, &o);
    *out_order = o;
    return STATUS_NONE;
}

void data_order_free(DataOrder *order)
{
    free(order->document);
    free(order->begin);
    free(order->shuffle);
    *order = (DataOrder){0};
}

void data_order_find(const DataOrder *o, uint64_t seq_length, uint64_t index,
                     uint64_t *out_at, uint64_t *out_offset)
{
    uint64_t token = (uint64_t)o->shuffle[index] * seq_length;
    uint64_t low = 0, high = o->documents;

    /* begin[low] <= token < begin[high] */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (o->begin[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    *out_at = low;
    *out_offset = token - o->begin[low];
}
