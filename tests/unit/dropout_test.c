/* dropout_test.c - the draws of dropout are even, independent and named.
 *
 * Expected words come from the definition (base/dropout.h) by another program:
 * the Philox of tests/oracle/oracle.py, which is checked against PyTorch.
 */
#include "base/base.h"
#include "base/dropout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SIDE = 256, DRAWS = SIDE * SIDE };

/* A square of positions and channels around one place. */
static void square(DropoutPlace at, double rate, bool *out)
{
    for (int i = 0; i < DRAWS; i++) {
        at.position = i / SIDE;
        at.last = i % SIDE;
        out[i] = dropout_keeps(&at, rate);
    }
}

static int count(const bool *kept)
{
    int n = 0;

    for (int i = 0; i < DRAWS; i++)
        n += kept[i];
    return n;
}

/* How many of the draws two squares share, within four standard errors of what
 * chance gives. */
static bool independent(const bool *a, const bool *b, double rate)
{
    double same = rate * rate + (1 - rate) * (1 - rate);
    double error = 4 * sqrt(DRAWS * same * (1 - same));
    int n = 0;

    for (int i = 0; i < DRAWS; i++)
        n += a[i] == b[i];
    return fabs(n - DRAWS * same) < error;
}

static void rates_are_kept(void **state)
{
    static const double rates[] = {0.01, 0.1, 0.3, 0.5, 0.9};
    static bool kept[DRAWS];

    (void)state;
    for (size_t i = 0; i < MC_LEN(rates); i++) {
        DropoutPlace at = {.step = dropout_step_key(1, (int64_t)i + 1)};
        double p = 1 - rates[i];

        square(at, rates[i], kept);
        assert_true(fabs(count(kept) - DRAWS * p) <
                    4 * sqrt(DRAWS * p * (1 - p)));
    }
}

/* Steps, layers, dropouts, samples, heads and seeds draw anew; so do
 * neighbours in the sequence and along the last dimension. */
static void names_draw_anew(void **state)
{
    const double rate = 0.3;
    const DropoutPlace at = {.step = dropout_step_key(7, 1), .layer = 2,
                             .which = DROP_MLP, .sample = 1, .other = 3};
    DropoutPlace other[7];
    static bool a[DRAWS], b[DRAWS];

    (void)state;
    for (size_t i = 0; i < MC_LEN(other); i++)
        other[i] = at;
    other[0].step = dropout_step_key(7, 2);
    other[1].step = dropout_step_key(8, 1);
    other[2].layer++;
    other[3].which = DROP_ATTENTION;
    other[4].sample++;
    other[5].other++;
    other[6].layer = 0;
    square(at, rate, a);
    for (size_t i = 0; i < MC_LEN(other); i++) {
        square(other[i], rate, b);
        assert_true(independent(a, b, rate));
    }
    for (int by = 1; by <= SIDE; by *= SIDE) {
        for (int i = 0; i < DRAWS; i++)
            b[i] = a[(i + by) % DRAWS];
        assert_true(independent(a, b, rate));
    }
    square(at, rate, b);
    assert_memory_equal(a, b, sizeof a);
}

/* Whatever the seed, 2^24 steps have 2^24 keys. */
static void steps_have_keys_of_their_own(void **state)
{
    enum { STEPS = 1 << 24 };
    static const uint64_t seeds[] = {0, 1234, UINT64_MAX};
    uint8_t *seen = malloc(STEPS);

    (void)state;
    for (size_t k = 0; k < MC_LEN(seeds); k++) {
        memset(seen, 0, STEPS);
        for (int64_t step = 1; step <= STEPS; step++) {
            uint32_t key = dropout_step_key(seeds[k], step);

            if (key >= STEPS || seen[key]++)
                fail_msg("step %lld of seed %llu", (long long)step,
                         (unsigned long long)seeds[k]);
        }
    }
    free(seen);
}

static void thresholds(void **state)
{
    (void)state;
    assert_int_equal(dropout_threshold(0.5), 0x80000000u);
    assert_int_equal(dropout_threshold(0.25), 0x40000000u);
    assert_int_equal(dropout_threshold(0.1), 429496730u);
    assert_int_equal(dropout_threshold(1 - 1e-12), 0xffffffffu);
}

/* Of step 3 under seed 1234: the word as a share of 2^32. */
static void draws_of_another_program(void **state)
{
    static const struct {
        DropoutPlace at;
        double draw;
    } rows[] = {
        {{0, 0, DROP_EMBEDDING, 0, 0, 0, 0}, 0.014306166674941778},
        {{0, 5, DROP_SCORES, 2, 17, 9, 30}, 0.23850369243882596},
        {{0, 79, DROP_MLP, 31, 8191, 127, 8190}, 0.05126128951087594},
        {{0, 1, DROP_ATTENTION, 0, 3, 1, 5}, 0.6078322476241738},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        DropoutPlace at = rows[i].at;

        at.step = dropout_step_key(1234, 3);
        assert_int_equal(at.step, 7217134);
        assert_true(dropout_keeps(&at, rows[i].draw - 1e-9));
        assert_false(dropout_keeps(&at, rows[i].draw + 1e-9));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_kept),
        cmocka_unit_test(names_draw_anew),
        cmocka_unit_test(steps_have_keys_of_their_own),
        cmocka_unit_test(thresholds),
        cmocka_unit_test(draws_of_another_program),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
