/* data_legs.c - the order of samples of a run that became longer than planned.
 *
 * Megatron's order depends on how many samples the whole run takes, so a run
 * that is resumed keeps the number that it began with.  What goes beyond the
 * epochs of that order follows in legs of one epoch, each shuffled on its own
 * with a seed of its own: what came before never moves.
 *
 *     planned 100 samples of 80    | 160 samples, two epochs | 80 | 80 | ...
 */
#include "runtime/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>

static Status add_leg(const DataOrderSpec *spec, uint64_t samples,
                      DataLegs *legs)
{
    DataOrder *grown =
        realloc(legs->leg, (legs->n + 1) * sizeof *legs->leg);
    DataOrderSpec own = *spec;

    if (!grown)
        return status_make(STATUS_SYSTEM, "%s: out of memory for its order",
                           data_index_path(spec->index));
    legs->leg = grown;
    own.samples = samples;
    own.seed += legs->n;
    STATUS_TRY(data_order_build(&own, &legs->leg[legs->n]));
    legs->n++;
    return STATUS_NONE;
}

uint64_t data_legs_samples(const DataLegs *legs)
{
    uint64_t later = legs->n > 1 ? legs->leg[1].samples : 0;

    return legs->leg[0].samples + (legs->n - 1) * later;
}

Status data_legs_build(const DataOrderSpec *spec, uint64_t planned,
                       DataLegs *out)
{
    DataLegs legs = {0};
    Status failed = add_leg(spec, planned ? planned : spec->samples, &legs);

    while (!failed && data_legs_samples(&legs) < spec->samples)
        failed = add_leg(spec, 1, &legs); /* no less than an epoch */
    if (failed)
        data_legs_free(&legs);
    else
        *out = legs;
    return failed;
}

void data_legs_free(DataLegs *legs)
{
    for (uint32_t i = 0; i < legs->n; i++)
        data_order_free(&legs->leg[i]);
    free(legs->leg);
    *legs = (DataLegs){0};
}

const DataOrder *data_legs_find(const DataLegs *legs, uint64_t index,
                                uint64_t *out_local)
{
    uint64_t first = legs->leg[0].samples;

    if (index < first || legs->n == 1) {
        *out_local = index;
        return &legs->leg[0];
    }
    *out_local = (index - first) % legs->leg[1].samples;
    return &legs->leg[1 + (index - first) / legs->leg[1].samples];
}
