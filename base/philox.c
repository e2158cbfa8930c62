/* philox.c - Philox4x32-10, as the authors' Random123 has it: ten rounds of two
 * multiplications, each of which mixes one half of the counter into the other,
 * while the key walks in steps of the golden ratio and of sqrt(3) - 1.
 */
#include "base/philox.h"

#include <string.h>

static uint32_t mul_high(uint32_t a, uint32_t b, uint32_t *out_low)
{
    uint64_t product = (uint64_t)a * b;

    *out_low = (uint32_t)product;
    return (uint32_t)(product >> 32);
}

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint32_t low0, low1;
        uint32_t high0 = mul_high(0xD2511F53u, c[0], &low0);
        uint32_t high1 = mul_high(0xCD9E8D57u, c[2], &low1);
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}
