/* data_blend.c - several sources by weight, as Megatron's BlendedDataset.
 *
 * Sample k comes from the source that lags furthest behind its share:
 * the maximum of share * max(k, 1) - taken, the earlier source on a tie.  The
 * choice for sample k does not depend on how many follow.
 *
 * The shares are sums of doubles that have to be equal to numpy's to the last
 * bit, or a tie would fall the other way; hence numpy's pairwise summation.
 */
#include "runtime/data_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* numpy.sum: eight accumulators per block of up to 128, halves above that. */
static double pairwise_sum(const double *v, uint64_t n)
{
    double sum = 0, part[8];
    uint64_t i;

    if (n < 8) {
        for (i = 0; i < n; i++)
            sum += v[i];
        return sum;
    }
    if (n > 128) {
        uint64_t half = n / 2 - n / 2 % 8;

        return pairwise_sum(v, half) + pairwise_sum(v + half, n - half);
    }
    memcpy(part, v, sizeof part);
    for (i = 8; i < n - n % 8; i++)
        part[i % 8] += v[i];
    sum = ((part[0] + part[1]) + (part[2] + part[3])) +
          ((part[4] + part[5]) + (part[6] + part[7]));
    for (; i < n; i++)
        sum += v[i];
    return sum;
}

void data_blend_normalise(double *weights, uint32_t n)
{
    double sum = pairwise_sum(weights, n);

    for (uint32_t i = 0; i < n; i++)
        weights[i] /= sum;
}

uint64_t data_blend_reserve(double share, uint64_t samples)
{
    return (uint64_t)ceil(ceil((double)samples * share) * 1.005);
}

/* The source that lags furthest behind. */
static uint32_t laggard(const double *shares, const uint64_t *taken,
                        uint32_t n, uint64_t k)
{
    double worst = -HUGE_VAL, at = (double)MC_MAX(k, 1);
    uint32_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        double lag = shares[i] * at - (double)taken[i];

        if (lag > worst) {
            worst = lag;
            best = i;
        }
    }
    return best;
}

Status data_blend_build(const double *shares, uint32_t n, uint64_t samples,
                        DataBlend *out_blend)
{
    DataBlend b = {.source = malloc(samples * sizeof *b.source + 1),
                   .sample = malloc(samples * sizeof *b.sample + 1)};
    uint64_t *taken = calloc(n, sizeof *taken);

    if (!b.source || !b.sample || !taken) {
        free(taken);
        data_blend_free(&b);
        return status_make(STATUS_SYSTEM,
                           "out of memory for a blend of %" PRIu64 " samples",
                           samples);
    }
    for (uint64_t k = 0; k < samples; k++) {
        uint32_t i = laggard(shares, taken, n, k);

        b.source[k] = (uint16_t)i;
        b.sample[k] = taken[i]++;
    }
    free(taken);
    *out_blend = b;
    return STATUS_NONE;
}

void data_blend_free(DataBlend *blend)
{
    free(blend->source);
    free(blend->sample);
    *blend = (DataBlend){0};
}
