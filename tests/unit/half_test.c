/* half_test.c - f16 training without its kernels: conversions against the
 * compiler's own type, the scale of the loss against megatron-core 0.16.1
 * (tests/oracle/scaler_megatron.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "base/half.h"
#include "runtime/scaler.h"

__extension__ typedef _Float16 Half;

static uint16_t bits_of(Half h)
{
    uint16_t bits;

    memcpy(&bits, &h, sizeof bits);
    return bits;
}

/* All 65536 of them. */
static void every_half(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        Half h;
        float x = half_widen(bits);

        memcpy(&h, &bits, sizeof h);
        if (isnan((float)h)) {
            assert_true(isnan(x) && isnan(half_widen(half_narrow(x))));
            continue;
        }
        assert_true(x == (float)h && signbit(x) == signbit((float)h));
        assert_int_equal(half_narrow(x), bits);
    }
}

/* Between and beyond them: every 97th float, and all ties. */
static void every_kind_of_float(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < UINT64_C(1) << 32; i += 97 * 64) {
        float x = half_float((uint32_t)i);
        if (!isnan(x))
            assert_int_equal(half_narrow(x), bits_of((Half)x));
    }
    for (uint32_t i = 0; i < 0x7c00; i++) {
        float tie = (half_widen((uint16_t)i) + half_widen((uint16_t)(i + 1))) /
                    2;
        if (!isinf(tie))
            assert_int_equal(half_narrow(tie), bits_of((Half)tie));
    }
    assert_int_equal(half_narrow(65519.9f), 0x7bff);
    assert_int_equal(half_narrow(-65520.0f), 0xfc00);
}

static void megatron_scales(void **state)
{
    json_t *rows = json_load_file(MEGAC_SOURCE_DIR "/tests/golden/scaler.json",
                                  0, NULL);
    const PlanTraining dynamic = {.scaled = 1};
    size_t r, k;
    json_t *row, *part;

    (void)state;
    assert_int_equal(json_array_size(rows), 40);
    json_array_foreach(rows, r, row) {
        Scaler s = scaler_new(&dynamic);
        json_array_foreach(row, k, part) {
            json_int_t steps = json_integer_value(json_array_get(part, 0));
            bool finite = json_integer_value(json_array_get(part, 1)) != 0;
            while (steps-- > 0)
                scaler_update(&s, finite);
            assert_true(s.scale == json_number_value(json_array_get(part, 2)));
        }
    }
    json_decref(rows);
}

/* A given scale stays; without f16 there is none. */
static void fixed_scales(void **state)
{
    Scaler s = scaler_new(&(PlanTraining){.scaled = 1, .loss_scale = 512});

    (void)state;
    for (int i = 0; i < 5; i++)
        scaler_update(&s, false);
    assert_true(s.scale == 512 && !scaler_can_fall(&s));
    assert_true(scaler_new(&(PlanTraining){0}).scale == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half),
        cmocka_unit_test(every_kind_of_float),
        cmocka_unit_test(megatron_scales),
        cmocka_unit_test(fixed_scales),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
