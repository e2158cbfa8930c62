/* matrix_test.c - memory of every row of tests/parity/matrix.txt and named.txt.
 *
 * The arena is as low as the most bytes alive at one time, on nine of ten
 * stages exactly; gaps of alignment between buffers of a few bytes may leave a
 * thousandth.  Where stages run in a V, chunks of two sizes live for two lengths
 * of time, and nothing may be as low: three percent.  That a run uses what was
 * planned is checked as the rows are trained (parity/row.sh).
 */
#include "cases.h"

#define PARITY MEGAC_SOURCE_DIR "/tests/parity/"

static unsigned stages_seen, stages_exact;

static bool is_v(const char *row)
{
    return strstr(row, "zb-v") || strstr(row, "dualpipe-v");
}

/* What `megac inspect` prints of the memory of a row's layout. */
static json_t *memory_of(char *row)
{
    Arena *a = arena_new();
    char *save = NULL;
    const char *name = strtok_r(row, " \n", &save), *sets = "";
    const char *model = strtok_r(NULL, " \n", &save), *set;
    json_t *stages;

    while ((set = strtok_r(NULL, " \n", &save)))
        if (strcmp(set, "--") != 0)
            sets = arena_printf(a, "%s --set '%s'", sets, set);
    assert_int_equal(case_shell("$MEGAC inspect " PARITY "%s.yaml memory --json"
                                "%s", model, sets), 0);
    stages = json_loads(case_output(), 0, NULL);
    if (!stages)
        fail_msg("%s", name);
    arena_free(a);
    return stages;
}

static void expect_bound(char *row)
{
    bool v = is_v(row);
    json_t *stages = memory_of(row), *stage;
    size_t i;

    json_array_foreach(stages, i, stage) {
        int64_t total = json_integer_value(case_member(stage, "bytes.total"));
        int64_t bound = json_integer_value(case_member(stage, "lower_bound"));
        stages_seen++;
        stages_exact += total == bound;
        if (total > bound + (v ? bound * 3 / 100 : bound / 1000))
            fail_msg("%s, stage %zu: %lld bytes, bound %lld", row, i,
                     (long long)total, (long long)bound);
    }
    json_decref(stages);
}

static void expect_bounds(const char *path, unsigned rows)
{
    FILE *f = fopen(path, "r");
    char line[4096];
    unsigned n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (line[0] != '#' && line[0] != '\n') {
            expect_bound(line);
            n++;
        }
    fclose(f);
    assert_true(n >= rows);
}

static void arenas_are_at_the_bound(void **state)
{
    (void)state;
    expect_bounds(PARITY "matrix.txt", 50);
    expect_bounds(PARITY "named.txt", 20);
    assert_true(stages_exact * 10 >= stages_seen * 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_are_at_the_bound),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
