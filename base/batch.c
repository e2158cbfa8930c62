/* batch.c - the size of the batch as a pure function of what was consumed.
 *
 * The growth is a staircase over samples: of n increments, each is entered
 * after another samples/n samples.  The quotients are those of Megatron's
 * doubles, so that no step is taken one batch earlier or later than there.
 */
#include "base/batch.h"

int64_t batch_sizes(const BatchRampup *r)
{
    return r->start == r->full ? 1 : (r->full - r->start) / r->increment + 1;
}

int64_t batch_size(const BatchRampup *r, int64_t i)
{
    return r->start + i * r->increment;
}

int64_t batch_at(const BatchRampup *r, int64_t consumed)
{
    int64_t increments = batch_sizes(r) - 1;
    double each = (double)r->samples / (double)(increments ? increments : 1);

    if (increments == 0 || consumed > r->samples || r->samples == 0)
        return r->full;
    return batch_size(r, (int64_t)((double)consumed / each));
}

/* By halves, as the batch only grows: `longest` reaches behind the growth. */
int64_t batch_alike(const BatchRampup *r, int64_t consumed)
{
    int64_t batch = batch_at(r, consumed), alike = 1, longest;

    if (batch >= r->full)
        return INT64_MAX;
    longest = (r->samples - consumed) / batch + 2;
    while (longest - alike > 1) {
        int64_t middle = alike + (longest - alike) / 2;
        if (batch_at(r, consumed + (middle - 1) * batch) == batch)
            alike = middle;
        else
            longest = middle;
    }
    return alike;
}

int64_t batch_consumed(const BatchRampup *r, int64_t steps)
{
    int64_t consumed = 0, batch, alike, rest;

    while (steps > 0 && (batch = batch_at(r, consumed)) < r->full) {
        alike = batch_alike(r, consumed);
        alike = alike < steps ? alike : steps;
        consumed += alike * batch;
        steps -= alike;
    }
    if (__builtin_mul_overflow(steps, r->full, &rest) ||
        __builtin_add_overflow(consumed, rest, &consumed))
        return INT64_MAX;
    return consumed;
}
