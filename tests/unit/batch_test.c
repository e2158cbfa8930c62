/* batch_test.c - how the batch grows.
 *
 * 200 stairs of megatron-core 0.16.1 (tests/oracle/rampup_megatron.py), and the
 * learning rate over samples against its formulas, worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/base.h"
#include "base/batch.h"
#include "base/lr.h"

static int64_t number(const json_t *row, size_t i)
{
    return json_integer_value(json_array_get(row, i));
}

static void megatron_stairs(void **state)
{
    json_t *rows = json_load_file(MEGAC_SOURCE_DIR "/tests/golden/rampup.json",
                                  0, NULL);
    size_t at;
    json_t *row;

    (void)state;
    assert_int_equal(json_array_size(rows), 200);
    json_array_foreach(rows, at, row) {
        BatchRampup r = {number(row, 0), number(row, 1), number(row, 2),
                         number(row, 3)};
        const json_t *sizes = json_array_get(row, 4);
        int64_t consumed = 0;

        for (size_t step = 0; step < 40; step++) {
            assert_int_equal(batch_consumed(&r, (int64_t)step), consumed);
            assert_int_equal(batch_at(&r, consumed), number(sizes, step));
            consumed += number(sizes, step);
        }
    }
    json_decref(rows);
}

static void all_sizes(void **state)
{
    const BatchRampup r = {4, 6, 100, 16}, flat = {8, 0, 0, 8};

    (void)state;
    assert_int_equal(batch_sizes(&r), 3);
    assert_int_equal(batch_size(&r, 1), 10);
    assert_int_equal(batch_sizes(&flat), 1);
    assert_int_equal(batch_at(&flat, 0), 8);
    assert_int_equal(batch_consumed(&flat, INT64_MAX), INT64_MAX);
}

/* 2^29 steps of one sample, and of two after that: no step is counted alone. */
static void long_stairs(void **state)
{
    const int64_t grown = 1 << 29;
    const BatchRampup r = {1, 1, grown, 2};

    (void)state;
    assert_int_equal(batch_alike(&r, 0), grown);
    assert_int_equal(batch_alike(&r, grown - 3), 3);
    assert_int_equal(batch_alike(&r, grown), INT64_MAX);
    for (int64_t i = 0; i < 1000; i++)
        assert_int_equal(batch_consumed(&r, grown + i), grown + 2 * i);
}

/* A warm-up of 2 and a decay of 10 batches of 8: after 4 samples a quarter of
 * the warm-up, after 48 half of the decay. */
static void rate_over_samples(void **state)
{
    const LrSchedule s = {.style = LR_LINEAR, .max = 1.0, .min = 0.5,
                          .warmup = 2, .decay = 10};

    (void)state;
    assert_float_equal(lr_after(&s, 4, 8), 0.25, 1e-12);
    assert_float_equal(lr_after(&s, 48, 8), 0.75, 1e-12);
    assert_float_equal(lr_after(&s, 76, 8), 1.0 - 0.5 * 60 / 64, 1e-12);
    assert_float_equal(lr_after(&s, 84, 8), 0.5, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_stairs),
        cmocka_unit_test(all_sizes),
        cmocka_unit_test(long_stairs),
        cmocka_unit_test(rate_over_samples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
