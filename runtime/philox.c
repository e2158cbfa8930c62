/* philox.c - normal numbers as a function of (seed, tensor, index).
 *
 * A counter-based generator has no state to carry along, so every rank draws
 * exactly the numbers of the elements it holds, on every layout alike.  One
 * block of 128 bits makes two uniform doubles, hence two normal ones: element
 * 2j and 2j+1 share block j.
 */
#include "runtime/state.h"

#include "base/philox.h"

#include <math.h>
#include <xxhash.h>

uint64_t philox_tensor_key(const char *name, uint64_t seed)
{
    return XXH3_64bits_withSeed(name, strlen(name), seed);
}

/* 53 random bits to (0, 1]. */
static double uniform(uint32_t low, uint32_t high)
{
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;

    return ((double)bits + 1.0) * 0x1p-53;
}

static void normal_pair(uint64_t key, uint64_t block, double out[2])
{
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, r[4];

    philox(c, k, r);
    double radius = sqrt(-2.0 * log(uniform(r[0], r[1])));
    double angle = 2.0 * M_PI * uniform(r[2], r[3]);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

void philox_normals(uint64_t key, uint64_t first, int64_t n, double *out)
{
    double pair[2];

    for (int64_t i = 0; i < n; i++) {
        uint64_t index = first + (uint64_t)i;
        if (i == 0 || index % 2 == 0)
            normal_pair(key, index / 2, pair);
        out[i] = pair[index % 2];
    }
}
