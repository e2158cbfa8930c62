/* data_rand.c - the generator behind numpy.random.RandomState.
 *
 * Megatron shuffles with RandomState(seed).shuffle, which numpy froze for ever:
 * MT19937 seeded by Knuth's recurrence, and Fisher-Yates from the back, each
 * index drawn by masking and rejecting.  The same numbers here make the same
 * sample order from the same seed.
 *
 * Source: Matsumoto and Nishimura 1998; numpy/random/src/mt19937 and
 * legacy_seeding, _shuffle_raw, random_interval in numpy/random.
 */
#include "runtime/data_priv.h"

enum { N = MC_LEN(((DataRand *)0)->key), M = 397 };

void data_rand_seed(DataRand *r, uint32_t seed)
{
    for (uint32_t i = 0; i < N; i++) {
        r->key[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
    }
    r->at = N;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);

    return (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
}

static void refill(DataRand *r)
{
    for (uint32_t i = 0; i < N; i++)
        r->key[i] = r->key[(i + M) % N] ^ twist(r->key[i], r->key[(i + 1) % N]);
    r->at = 0;
}

uint32_t data_rand_u32(DataRand *r)
{
    if (r->at == N)
        refill(r);
    uint32_t y = r->key[r->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* Uniform on [0, max], max < 2^32. */
static uint32_t interval(DataRand *r, uint32_t max)
{
    uint32_t mask = UINT32_MAX >> __builtin_clz(max), value;

    do
        value = data_rand_u32(r) & mask;
    while (value > max);
    return value;
}

void data_rand_shuffle(DataRand *r, uint32_t *v, uint64_t n)
{
    for (uint64_t i = n; i-- > 1;) {
        uint32_t j = interval(r, (uint32_t)i), t = v[j];

        v[j] = v[i];
        v[i] = t;
    }
}
