/* status_test.c - failures as values. */
#include "base/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_success_is_null(void **state)
{
    (void)state;
    assert_null(STATUS_NONE);
    assert_int_equal(status_code(STATUS_NONE), STATUS_OK);
    assert_string_equal(status_text(STATUS_NONE), "");
    assert_null(status_in(STATUS_NONE, "rank %d", 3));
    status_drop(STATUS_NONE);
}

static void test_message_and_context(void **state)
{
    Status s = status_make(STATUS_RUN, "loss is %s", "nan");

    (void)state;
    s = status_in(s, "rank %d", 3);
    assert_int_equal(status_code(s), STATUS_RUN);
    assert_string_equal(status_text(s), "rank 3: loss is nan");
    status_drop(s);
}

static void test_system_error(void **state)
{
    Status s = status_system(ENOSPC, "%s", "a.bin");

    (void)state;
    assert_int_equal(status_code(s), STATUS_SYSTEM);
    assert_string_equal(status_text(s), "a.bin: No space left on device");
    status_drop(s);
}

static Status fails_second(int *calls)
{
    (*calls)++;
    return *calls == 2 ? status_make(STATUS_INPUT, "second") : STATUS_NONE;
}

static Status try_three(int *calls)
{
    STATUS_TRY(fails_second(calls));
    STATUS_TRY(fails_second(calls));
    STATUS_TRY(fails_second(calls));
    return STATUS_NONE;
}

static void test_try_leaves_at_the_first_failure(void **state)
{
    int calls = 0;
    Status s = try_three(&calls);

    (void)state;
    assert_int_equal(calls, 2);
    assert_string_equal(status_text(s), "second");
    status_drop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_success_is_null),
        cmocka_unit_test(test_message_and_context),
        cmocka_unit_test(test_system_error),
        cmocka_unit_test(test_try_leaves_at_the_first_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
