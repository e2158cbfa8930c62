/* half.h - floats of 16 bits: IEEE 754 half precision (1 sign, 5 exponent, 10
 * fraction bits) and bfloat16, the upper half of an f32. */
#ifndef MEGAC_HALF_H
#define MEGAC_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float half_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exact.  The product moves the exponent, also of what is subnormal. */
static inline float half_widen(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t wide = rest >= 0x7c00u << 13
                        ? rest | 0x7f800000 /* infinite, or no number */
                        : half_bits(half_float(rest) * 0x1p112f);

    return half_float(sign | wide);
}

/* To the nearest, ties to even; from 65520 on it is infinite. */
static inline uint16_t half_narrow(float x)
{
    uint32_t bits = half_bits(x), sign = bits >> 16 & 0x8000;

    bits &= 0x7fffffff;
    if (bits >= 0x47800000) /* 65536 */
        return (uint16_t)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) /* 2^-14: the last bit is 2^-24, as of 0.5f */
        return (uint16_t)(sign |
                          (half_bits(half_float(bits) + 0.5f) - 0x3f000000));
    bits += 0xc8000fff + (bits >> 13 & 1); /* another bias, and half a bit */
    return (uint16_t)(sign | bits >> 13);
}

static inline float bf16_widen(uint16_t x)
{
    return half_float((uint32_t)x << 16);
}

/* To the nearest, ties to even; what is no number stays none. */
static inline uint16_t bf16_narrow(float x)
{
    uint32_t bits = half_bits(x);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
