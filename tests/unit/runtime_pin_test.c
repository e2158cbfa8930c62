/* runtime_pin_test.c - each thread has one core, no two the same, and none is
 * left bound where it should not be.  Alone, without MPI. */
#include "runtime/pin.h"

#include <omp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { THREADS_MAX = 64 };

/* Which processors each thread may use. */
static int masks(int threads, cpu_set_t *out)
{
#pragma omp parallel num_threads(threads)
    sched_getaffinity(0, sizeof *out, &out[omp_get_thread_num()]);
    return CPU_COUNT(&out[0]);
}

static int usable(void)
{
    return MC_MIN(pin_default_threads(), THREADS_MAX);
}

static void release(int threads)
{
#pragma omp parallel num_threads(threads)
    pin_release();
}

static void a_core_for_each_thread(void **state)
{
    cpu_set_t mask[THREADS_MAX], all;
    int n = usable();

    (void)state;
    assert_null(pin_threads(PIN_ALWAYS, n, 0));
    assert_int_equal(masks(n, mask), 1);
    CPU_ZERO(&all);
    for (int i = 0; i < n; i++)
        CPU_OR(&all, &all, &mask[i]);
    assert_int_equal(CPU_COUNT(&all), n);
    release(n);
}

/* As many threads as cores are bound unasked; fewer are not. */
static void bound_only_if_cores_are_full(void **state)
{
    cpu_set_t before[THREADS_MAX], mask[THREADS_MAX];
    int n = usable(), allowed = masks(n, before);

    (void)state;
    assert_null(pin_threads(PIN_NEVER, n, 0));
    assert_int_equal(masks(n, mask), allowed);
    if (n > 1) {
        assert_null(pin_threads(PIN_IF_FULL, n - 1, 0));
        assert_int_equal(masks(n - 1, mask), allowed);
    }
    assert_null(pin_threads(PIN_IF_FULL, n, 0));
    assert_int_equal(masks(n, mask), n < THREADS_MAX ? 1 : allowed);
    release(n);
    assert_int_equal(masks(n, mask), allowed);
    assert_true(CPU_EQUAL(&mask[0], &before[0]));
}

static void too_many_threads(void **state)
{
    Status s = pin_threads(PIN_ALWAYS, pin_default_threads() + 1, 0);

    (void)state;
    assert_non_null(s);
    assert_non_null(strstr(status_text(s), "cannot have a core each"));
    status_drop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_for_each_thread),
        cmocka_unit_test(bound_only_if_cores_are_full),
        cmocka_unit_test(too_many_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
