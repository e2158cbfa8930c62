/* eval_num.c - the scalars of the evaluator: doubles, and the prime field.
 *
 * Sums and products are in eval_priv.h, for the inner loops of all cells.  A
 * random function of a residue is splitmix64's finaliser over the residue and
 * the function's number.
 */
#include "ir/eval_priv.h"

#include <math.h>

/* Of any 128 bits. */
static uint64_t field_fold(U128 x)
{
    uint64_t folded = (uint64_t)(x & FIELD_P) + (uint64_t)(x >> 61 & FIELD_P)
                    + (uint64_t)(x >> 122);

    folded = (folded & FIELD_P) + (folded >> 61);
    return folded >= FIELD_P ? folded - FIELD_P : folded;
}

uint64_t field_neg(uint64_t x)
{
    return x ? FIELD_P - x : 0;
}

static uint64_t field_power(uint64_t x, uint64_t exponent)
{
    uint64_t power = 1;

    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            power = field_mul(power, x);
        x = field_mul(x, x);
    }
    return power;
}

/* Fermat: x^(p-2). */
uint64_t field_inverse(uint64_t x)
{
    return field_power(x, FIELD_P - 2);
}

uint64_t field_of_int(int64_t n)
{
    uint64_t magnitude = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    uint64_t residue = magnitude % FIELD_P;

    return n < 0 ? field_neg(residue) : residue;
}

uint64_t field_of_double(double x)
{
    int exponent;
    double mantissa;

    if (!isfinite(x))
        return field_random(0, signbit(x) ? 1 : 2);
    mantissa = frexp(x, &exponent);
    uint64_t digits = field_of_int((int64_t)ldexp(mantissa, 53));

    exponent -= 53;
    uint64_t scale = field_power(2, (uint64_t)(exponent < 0 ? -exponent
                                                             : exponent));

    return field_mul(digits, exponent < 0 ? field_inverse(scale) : scale);
}

uint64_t hash_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t hash_text(uint64_t seed, const char *text)
{
    uint64_t hash = hash_mix(seed);

    for (; *text; text++)
        hash = hash_mix(hash ^ (unsigned char)*text);
    return hash;
}

double hash_unit(uint64_t hash)
{
    return ldexp((double)(hash >> 11), -53);
}

uint64_t field_random(uint64_t which, uint64_t x)
{
    return hash_mix(x ^ hash_mix(which)) % FIELD_P;
}

EvalNum num_of_double(EvalKind kind, double x)
{
    if (kind == EVAL_FIELD)
        return (EvalNum){.residue = field_of_double(x)};
    return (EvalNum){.f = x};
}

EvalNum num_of_ratio(EvalKind kind, int64_t num, int64_t den, bool root)
{
    double ratio = (double)num / (double)den;

    if (kind == EVAL_FP64)
        return (EvalNum){.f = root ? sqrt(ratio) : ratio};
    uint64_t residue =
        field_mul(field_of_int(num), field_inverse(field_of_int(den)));

    if (root)
        residue = field_random(OP_SQRT, residue);
    return (EvalNum){.residue = residue};
}

EvalNum num_max(EvalKind kind, EvalNum x, EvalNum y)
{
    bool second = kind == EVAL_FIELD ? x.residue < y.residue : x.f < y.f;

    return second ? y : x;
}

int64_t num_index(EvalKind kind, EvalNum x)
{
    if (kind == EVAL_FP64)
        return (int64_t)x.f;
    return x.residue > FIELD_P / 2 ? -(int64_t)(FIELD_P - x.residue)
                                   : (int64_t)x.residue;
}

/* 32 products of 122 bits fit in 127. */
static uint64_t field_dot(int64_t n, const EvalNum *x, const int64_t *xi,
                          const EvalNum *y, const int64_t *yi)
{
    U128 sum = 0;

    for (int64_t k = 0; k < n; k++) {
        sum += (U128)x[xi[k]].residue * y[yi[k]].residue;
        if (k % 32 == 31)
            sum = field_fold(sum);
    }
    return field_fold(sum);
}

EvalNum num_dot(EvalKind kind, int64_t n, const EvalNum *x, const int64_t *xi,
                const EvalNum *y, const int64_t *yi)
{
    double sum = 0;

    if (kind == EVAL_FIELD)
        return (EvalNum){.residue = field_dot(n, x, xi, y, yi)};
    for (int64_t k = 0; k < n; k++)
        sum += x[xi[k]].f * y[yi[k]].f;
    return (EvalNum){.f = sum};
}
