/* frontend_codes_test.c - docs/DIAGNOSTICS.md lists exactly the codes that
 * the sources report.
 */
#include "base/base.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { CODES = 10000 };

static void read_near(const char *name, Buf *out)
{
    const char *slash = strstr(__FILE__, "tests/unit");
    Buf path = {0};

    buf_printf(&path, "%.*s%s", (int)(slash - __FILE__), __FILE__, name);
    if (!buf_read_file(out, buf_str(&path)))
        fail_msg("cannot read %s", buf_str(&path));
    buf_free(&path);
}

/* Marks MC0123 wherever it stands behind `before`. */
static void mark_codes(const char *text, const char *before, bool *seen)
{
    for (const char *at = text; (at = strstr(at, before));) {
        int code;
        at += strlen(before);
        if (sscanf(at, "MC%4d", &code) == 1 && code >= 0)
            seen[code] = true;
    }
}

static void mark_sources(const char *pattern, bool *seen)
{
    const char *slash = strstr(__FILE__, "tests/unit");
    char path[512];
    glob_t files;

    snprintf(path, sizeof path, "%.*s%s", (int)(slash - __FILE__), __FILE__,
             pattern);
    if (glob(path, 0, NULL, &files) != 0)
        return;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        Buf text = {0};
        assert_true(buf_read_file(&text, files.gl_pathv[i]));
        mark_codes(buf_str(&text), "\"", seen);
        buf_free(&text);
    }
    globfree(&files);
}

static void every_code_is_described(void **state)
{
    static const char *const sources[] = {
        "base/*.c",      "frontend/*.c",    "ir/*.c",     "passes/*.c",
        "codegen/*.c",   "codegen/*/*.c",   "runtime/*.c", "driver/*.c",
        "runtime/*/*.c", "codegen/*/*.cpp",
    };
    static bool used[CODES], described[CODES];
    Buf page = {0};

    (void)state;
    read_near("docs/DIAGNOSTICS.md", &page);
    mark_codes(buf_str(&page), "| ", described);
    for (size_t i = 0; i < MC_LEN(sources); i++)
        mark_sources(sources[i], used);
    assert_true(used[1]);
    for (int code = 0; code < CODES; code++)
        if (used[code] != described[code])
            fail_msg("MC%04d is %s", code,
                     used[code] ? "not described" : "described, but not used");
    buf_free(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_described),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
