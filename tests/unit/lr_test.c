/* lr_test.c - learning-rate curves against points computed by hand. */
#include "base/lr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static void expect(const LrSchedule *s, int64_t step, double rate)
{
    assert_float_equal(lr_at(s, step), rate, 1e-9);
}

static LrSchedule warm_cosine(void)
{
    return (LrSchedule){.style = LR_COSINE, .max = 1e-3, .warmup = 22,
                        .decay = 220};
}

/* 220 steps, 22 of warm-up; 3.0154e-5 = 1e-3/2 * (cos(pi*176/198) + 1).
 * (MC-45: areal-project/AReaL#1289) */
static void decay_counts_from_step_zero(void **state)
{
    LrSchedule s = warm_cosine();

    (void)state;
    expect(&s, 0, 0.0);
    expect(&s, 11, 5.0e-4);
    expect(&s, 22, 1.0e-3);
    expect(&s, 121, 5.0e-4);
    expect(&s, 198, 3.01537e-5);
    expect(&s, 220, 0.0);
    s.decay = 198;
    expect(&s, 198, 0.0);
    expect(&s, 210, 0.0);
}

static void constant_and_linear(void **state)
{
    LrSchedule s = {.style = LR_CONSTANT, .max = 0.5, .min = 0.1};

    (void)state;
    expect(&s, 0, 0.5);
    expect(&s, 1000000, 0.5);
    s.style = LR_LINEAR;
    s.decay = 100;
    expect(&s, 0, 0.5);
    expect(&s, 25, 0.4);
    expect(&s, 100, 0.1);
    expect(&s, 101, 0.1);
}

static void warmup_starts_at_init(void **state)
{
    LrSchedule s = warm_cosine();

    (void)state;
    s.init = 1e-4;
    expect(&s, 0, 1e-4);
    expect(&s, 11, 5.5e-4);
    expect(&s, 22, 1e-3);
}

/* max * sqrt(warmup) / sqrt(step), not below min. */
static void inverse_square_root(void **state)
{
    LrSchedule s = {.style = LR_INVERSE_SQRT, .max = 1e-3, .min = 3e-4,
                    .warmup = 100, .decay = 100000};

    (void)state;
    expect(&s, 50, 5e-4);
    expect(&s, 400, 5e-4);
    expect(&s, 10000, 3e-4);
}

/* Stable up to 80, then over 20 steps; half-way coefficients: linear 0.5,
 * cosine 0.5, exponential 2*0.5^0.5 - 1, minus square root 1 - sqrt(0.5). */
static void warmup_stable_decay(void **state)
{
    LrSchedule s = {.style = LR_WSD, .max = 1.0, .warmup = 10, .decay = 100,
                    .wsd = 20};
    static const struct {
        WsdStyle style;
        double half;
    } rows[] = {{WSD_LINEAR, 0.5},
                {WSD_COSINE, 0.5},
                {WSD_EXPONENTIAL, 0.41421356},
                {WSD_MINUS_SQRT, 0.29289322}};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        s.wsd_style = rows[i].style;
        expect(&s, 5, 0.5);
        expect(&s, 80, 1.0);
        assert_float_equal(lr_at(&s, 90), rows[i].half, 1e-7);
        expect(&s, 100, 0.0);
        expect(&s, 200, 0.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decay_counts_from_step_zero),
        cmocka_unit_test(constant_and_linear),
        cmocka_unit_test(warmup_starts_at_init),
        cmocka_unit_test(inverse_square_root),
        cmocka_unit_test(warmup_stable_decay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
