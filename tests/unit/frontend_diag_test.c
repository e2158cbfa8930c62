/* frontend_diag_test.c - what a user sees: tests/diag/x.yaml -> x.err.
 *
 * x.sets, if it exists, holds one --set argument per line.  MEGAC_REFRESH=1
 * writes the .err files anew; review them as a diff.
 */
#include "frontend/frontend.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { SETS_MAX = 16 };

static int enter_folder(void **state)
{
    char path[512];
    const char *slash = strstr(__FILE__, "tests/unit");

    (void)state;
    snprintf(path, sizeof path, "%.*stests/diag", (int)(slash - __FILE__),
             __FILE__);
    setenv("MEGAC_CONFIGS", "configs", 1);
    return chdir(path);
}

/* "x.yaml" with another ending. */
static const char *beside(Arena *a, const char *yaml, const char *ending)
{
    return arena_printf(a, "%.*s%s", (int)strlen(yaml) - 5, yaml, ending);
}

static int read_sets(Arena *a, const char *yaml, const char **sets)
{
    Buf text = {0};
    int n = 0;
    char *rest, *line;

    if (buf_read_file(&text, beside(a, yaml, ".sets"))) {
        rest = arena_strdup(a, buf_str(&text));
        while ((line = strsep(&rest, "\n")) && *line && n < SETS_MAX)
            sets[n++] = line;
    }
    buf_free(&text);
    return n;
}

/* What megac prints for a file, and whether it was accepted. */
static void run_file(Arena *a, const char *yaml, Buf *out)
{
    const char *sets[SETS_MAX];
    int n = read_sets(a, yaml, sets);
    Diag *d = diag_new(a);
    Spec *s = spec_load(a, d, yaml, sets, n);
    char *shown = NULL;
    size_t len;
    FILE *to = open_memstream(&shown, &len);

    diag_print(d, to);
    fclose(to);
    buf_printf(out, "%s%s\n", shown, s ? "accepted" : "rejected");
    assert_int_equal(s == NULL, diag_errors(d) > 0);
    free(shown);
    diag_free(d);
}

static void check_file(const char *yaml)
{
    Arena *a = arena_new();
    const char *err = beside(a, yaml, ".err");
    Buf got = {0}, want = {0};

    run_file(a, yaml, &got);
    if (getenv("MEGAC_REFRESH"))
        assert_true(buf_write_file(&got, err));
    if (!buf_read_file(&want, err))
        fail_msg("%s is missing", err);
    if (strcmp(buf_str(&got), buf_str(&want)) != 0)
        fail_msg("%s: got\n%s\nwant\n%s", yaml, buf_str(&got), buf_str(&want));
    buf_free(&got);
    buf_free(&want);
    arena_free(a);
}

static void golden_files(void **state)
{
    glob_t files;

    (void)state;
    assert_int_equal(glob("*.yaml", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        check_file(files.gl_pathv[i]);
    globfree(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_files)};

    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
