/* diag_test.c - how messages look, and in which order. */
#include "base/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct {
    Arena *arena;
    Diag *diag;
} Fixture;

static int setup(void **state)
{
    Fixture *f = malloc(sizeof *f);

    if (!f)
        return -1;
    f->arena = arena_new();
    f->diag = diag_new(f->arena);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    Fixture *f = *state;

    diag_free(f->diag);
    arena_free(f->arena);
    free(f);
    return 0;
}

static void expect(Diag *d, const char *text)
{
    char *shown = NULL;
    size_t len;
    FILE *to = open_memstream(&shown, &len);

    assert_non_null(to);
    diag_print(d, to);
    fclose(to);
    assert_string_equal(shown, text);
    free(shown);
}

/* Asked whether, not why: the code is kept, and nothing is shown. */
static void counted_only(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    Loc at = diag_loc_named(d, "(default)");

    diag_count_only(d, true);
    diag_warn(d, at, "MC0014", "a warning");
    diag_error(d, at, "MC0101", "one");
    diag_note(d, at, "because");
    diag_error(d, at, "MC0102", "two");
    assert_int_equal(diag_errors(d), 2);
    assert_string_equal(diag_first_code(d), "MC0101");
    assert_null(diag_first_text(d));
    expect(d, "");
    diag_clear(d);
    diag_count_only(d, false);
    assert_int_equal(diag_errors(d), 0);
    assert_null(diag_first_code(d));
    diag_error(d, at, "MC0103", "three");
    assert_string_equal(diag_first_text(d), "three");
    expect(d, "(default): error: three [MC0103]\n");
}

/* What was taken back comes zeroed again, and nothing is added for it. */
static void arena_is_used_again(void **state)
{
    Arena *a = arena_new();
    size_t bytes;

    (void)state;
    memset(arena_alloc(a, 3000), 0xff, 3000);
    memset(arena_alloc(a, 100000), 0xff, 100000);
    arena_reset(a);
    bytes = arena_bytes(a);
    for (int round = 0; round < 3; round++) {
        char *p = arena_alloc(a, 90000);
        for (int i = 0; i < 90000; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, 90000);
        arena_reset(a);
    }
    assert_true(bytes >= 100000);
    assert_int_equal(arena_bytes(a), bytes);
    arena_free(a);
}

static void line_and_caret(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    uint32_t s = diag_source(d, "llama.yaml", "model:\n  groups: 5\n");

    diag_error(d, diag_loc(d, s, 2, 11), "MC0112", "%d is odd", 5);
    diag_help(d, "take %d", 4);
    assert_int_equal(diag_errors(d), 1);
    expect(d, "llama.yaml:2:11: error: 5 is odd [MC0112]\n"
              "    2 |   groups: 5\n"
              "      |           ^\n"
              "      help: take 4\n");
}

static void warnings_are_no_errors(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;

    diag_warn(d, diag_loc_named(d, "(default)"), "MC0205", "no effect");
    assert_int_equal(diag_errors(d), 0);
    expect(d, "(default): warning: no effect [MC0205]\n");
}

static void notes_quote_their_own_place(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    uint32_t file = diag_source(d, "a.yaml", "heads: 8\ntp: 3\n");
    uint32_t set = diag_source(d, "--set", "parallel.tp=3");

    diag_error(d, diag_loc(d, file, 1, 8), "MC0201", "8 and 3");
    diag_note(d, diag_loc(d, set, 0, 13), "tp = 3");
    expect(d, "a.yaml:1:8: error: 8 and 3 [MC0201]\n"
              "    1 | heads: 8\n"
              "      |        ^\n"
              "--set: note: tp = 3\n"
              "      | parallel.tp=3\n"
              "      |             ^\n");
}

static void sorted_by_place(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    uint32_t s = diag_source(d, "x", "a\nb\n");
    uint32_t t = diag_source(d, "y", "c\n");

    diag_error(d, diag_loc(d, t, 1, 1), "MC0001", "fourth");
    diag_error(d, diag_loc(d, s, 2, 1), "MC0001", "second");
    diag_error(d, diag_loc(d, s, 2, 1), "MC0001", "third");
    diag_error(d, diag_loc(d, s, 1, 1), "MC0001", "first");
    expect(d, "x:1:1: error: first [MC0001]\n    1 | a\n      | ^\n"
              "x:2:1: error: second [MC0001]\n    2 | b\n      | ^\n"
              "x:2:1: error: third [MC0001]\n    2 | b\n      | ^\n"
              "y:1:1: error: fourth [MC0001]\n    1 | c\n      | ^\n");
}

static void twenty_are_shown(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    Loc loc = diag_loc_named(d, "x");
    Buf text = {0};

    for (int i = 0; i < 23; i++)
        diag_error(d, loc, "MC0001", "error %d", i);
    for (int i = 0; i < 20; i++)
        buf_printf(&text, "x: error: error %d [MC0001]\n", i);
    buf_puts(&text, "megac: 3 more errors not shown\n");
    expect(d, buf_str(&text));
    buf_free(&text);
}

/* Columns count characters, a tab stays a tab, control bytes are masked. */
static void odd_characters(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    uint32_t s = diag_source(d, "x", "\t\303\244\033: q\r\n");

    diag_error(d, diag_loc(d, s, 1, 6), "MC0001", "here");
    expect(d, "x:1:6: error: here [MC0001]\n"
              "    1 | \t\303\244?: q\n"
              "      | \t    ^\n");
}

static void long_lines_are_cut(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    char line[301], quoted[101], blanks[61];

    memset(line, 'a', 300);
    line[300] = '\0';
    line[200] = 'Z';
    memcpy(quoted, line + 140, 100);
    quoted[100] = '\0';
    memset(blanks, ' ', 60);
    blanks[60] = '\0';
    diag_error(d, diag_loc(d, diag_source(d, "x", line), 1, 201), "MC0001",
               "Z");
    Buf text = {0};
    buf_printf(&text,
               "x:1:201: error: Z [MC0001]\n    1 | %s\n      | %s^\n", quoted,
               blanks);
    expect(d, buf_str(&text));
    buf_free(&text);
}

/* A place behind the end of the text or of the line still prints. */
static void places_out_of_range(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    uint32_t s = diag_source(d, "x", "ab");

    diag_error(d, diag_loc(d, s, 1, 9), "MC0001", "one");
    diag_error(d, diag_loc(d, s, 7, 1), "MC0001", "two");
    expect(d, "x:1:9: error: one [MC0001]\n    1 | ab\n      |   ^\n"
              "x:7:1: error: two [MC0001]\n");
}

static void parts_of_a_place(void **state)
{
    Diag *d = ((Fixture *)*state)->diag;
    Loc loc = diag_loc(d, diag_source(d, "x", "ab"), 1, 2);
    const char *file;
    uint32_t line, col;

    diag_loc_parts(d, loc, &file, &line, &col);
    assert_string_equal(file, "x");
    assert_int_equal(line, 1);
    assert_int_equal(col, 2);
    assert_string_equal(diag_loc_text(d, loc), "x:1:2");
    assert_string_equal(diag_loc_text(d, diag_loc_named(d, "--set")), "--set");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(arena_is_used_again), TEST(counted_only),
        TEST(line_and_caret),      TEST(warnings_are_no_errors),
        TEST(sorted_by_place),     TEST(notes_quote_their_own_place),
        TEST(twenty_are_shown),    TEST(odd_characters),
        TEST(long_lines_are_cut),  TEST(places_out_of_range),
        TEST(parts_of_a_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
