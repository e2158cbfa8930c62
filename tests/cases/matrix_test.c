/* matrix_test.c - tests/parity/matrix.txt and named.txt: whether every two
 * strategies meet in a row, and the memory of every row and of every file in
 * configs/models and configs/examples.
 *
 * The comment over a row of the matrix has the value of each factor.
 *
 * The arena, and the one in host memory, is as low as the most bytes alive at
 * one time, exactly.  That a run uses what was planned is checked as the rows
 * are trained (parity/row.sh).
 */
#include "cases.h"

#include <glob.h>

#define PARITY MEGAC_SOURCE_DIR "/tests/parity/"
#define CONFIGS MEGAC_SOURCE_DIR "/configs/"

/* What `megac inspect` prints of the memory of a spec under some sets. */
static json_t *memory_of(const char *spec, const char *sets)
{
    json_t *stages;

    assert_int_equal(case_shell("$MEGAC inspect %s memory --json %s", spec,
                                sets), 0);
    stages = json_loads(case_output(), 0, NULL);
    if (!stages)
        fail_msg("%s %s", spec, sets);
    return stages;
}

static void expect_bound(const char *spec, const char *sets)
{
    json_t *stages = memory_of(spec, sets), *stage;
    size_t i;

    json_array_foreach(stages, i, stage) {
        int64_t total = json_integer_value(case_member(stage, "bytes.total"));
        int64_t bound = json_integer_value(case_member(stage, "lower_bound"));
        int64_t host = json_integer_value(case_member(stage, "bytes.host"));
        if (total != bound)
            fail_msg("%s %s, stage %zu: %lld bytes, bound %lld", spec, sets, i,
                     (long long)total, (long long)bound);
        assert_int_equal(host, json_integer_value(
                                   case_member(stage, "host_lower_bound")));
    }
    json_decref(stages);
}

static void expect_row(char *row)
{
    Arena *a = arena_new();
    char *save = NULL;
    const char *name = strtok_r(row, " \n", &save), *sets = "";
    const char *model = strtok_r(NULL, " \n", &save), *set;

    assert_non_null(name);
    while ((set = strtok_r(NULL, " \n", &save)))
        if (strcmp(set, "--") != 0)
            sets = arena_printf(a, "%s --set '%s'", sets, set);
    expect_bound(arena_printf(a, PARITY "%s.yaml", model), sets);
    arena_free(a);
}

static void expect_rows(const char *path, unsigned rows)
{
    FILE *f = fopen(path, "r");
    char line[4096];
    unsigned n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (line[0] != '#' && line[0] != '\n') {
            expect_row(line);
            n++;
        }
    fclose(f);
    assert_true(n >= rows);
}

static void expect_configs(const char *pattern, size_t files)
{
    glob_t found;

    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= files);
    for (size_t i = 0; i < found.gl_pathc; i++)
        expect_bound(found.gl_pathv[i], "");
    globfree(&found);
}

static void arenas_are_at_the_bound(void **state)
{
    (void)state;
    expect_rows(PARITY "matrix.txt", 50);
    expect_rows(PARITY "named.txt", 20);
    expect_configs(CONFIGS "models/*.yaml", 14);
    expect_configs(CONFIGS "examples/*.yaml", 2);
}

/* ---- pairs --------------------------------------------------------------- */

enum { FACTORS = 24, VALUES = 128, TEXT = 32 };

typedef struct {
    char text[VALUES][TEXT]; /* the values of all factors */
    unsigned factor[VALUES];
    unsigned n, factors, rows;
    bool met[VALUES][VALUES];
} Pairs;

static unsigned value_at(Pairs *p, const char *text, unsigned factor)
{
    unsigned i = 0;

    while (i < p->n && strcmp(p->text[i], text) != 0)
        i++;
    if (i == p->n) {
        assert_true(p->n < VALUES && strlen(text) < TEXT);
        strcpy(p->text[i], text);
        p->factor[p->n++] = factor;
    }
    assert_int_equal(p->factor[i], factor);
    return i;
}

/* "# tp1 zb-v a2a …" */
static void row_count(Pairs *p, char *line)
{
    unsigned value[FACTORS], n = 0;
    char *save = NULL, *word = strtok_r(line, "# \n", &save);

    for (; word; word = strtok_r(NULL, " \n", &save)) {
        assert_true(n < FACTORS);
        value[n] = value_at(p, word, n);
        n++;
    }
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < n; k++)
            p->met[value[i]][value[k]] = true;
    p->factors = n;
    p->rows++;
}

/* "# not together: a2a and window" */
static void exception_count(Pairs *p, const char *words)
{
    char text[2][TEXT];
    unsigned at[2];

    assert_int_equal(sscanf(words, "%31s and %31s", text[0], text[1]), 2);
    for (unsigned i = 0; i < 2; i++) {
        for (at[i] = 0; at[i] < p->n; at[i]++)
            if (!strcmp(p->text[at[i]], text[i]))
                break;
        assert_true(at[i] < p->n);
    }
    p->met[at[0]][at[1]] = p->met[at[1]][at[0]] = true;
}

/* What a row has to set if the comment has a value. */
static void row_keeps(const char *comment, const char *row)
{
    static const char *const rows[][2] = {
        {" interleaved ", " parallel.vpp=2 "},
        {" tp4sp ", " parallel.tp=4 "},
        {" zb-v ", " parallel.schedule=zb-v "},
        {" dualpipe-v ", " parallel.schedule=dualpipe-v "},
        {" a2a+p2p ", " parallel.cp_comm=a2a+p2p "},
        {" many ", " parallel.bucket_elements=3000 "},
        {" zero3 ", " parallel.sharding=optim_grads_params "},
        {" selective ", " training.recompute.granularity=selective "},
        {" bf16 ", " training.precision=bf16 "},
        {" fp16 ", " training.precision=fp16 "},
        {" dropout ", " model.hidden_dropout=0.1 "},
        {" masked", " data.loss_mask=[mask,more-mask] "},
    };

    for (size_t i = 0; i < MC_LEN(rows); i++)
        assert_int_equal(strstr(comment, rows[i][0]) != NULL,
                         strstr(row, rows[i][1]) != NULL);
}

static void pairs_read(Pairs *p)
{
    static const char never[] = "# not together: ";
    FILE *f = fopen(PARITY "matrix.txt", "r");
    char line[4096], comment[4096] = "";

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (!strncmp(line, never, strlen(never))) {
            exception_count(p, line + strlen(never));
        } else if (line[0] == '#') {
            strcpy(comment, line);
            row_count(p, line);
        } else {
            row_keeps(comment, line);
        }
    }
    fclose(f);
}

static void every_two_strategies_meet(void **state)
{
    static Pairs p;

    (void)state;
    pairs_read(&p);
    assert_true(p.factors == 18 && p.n == 57 && p.rows >= 40);
    for (unsigned i = 0; i < p.n; i++)
        for (unsigned k = 0; k < i; k++)
            if (p.factor[i] != p.factor[k] && !p.met[i][k])
                fail_msg("%s and %s never meet", p.text[i], p.text[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_strategies_meet),
        cmocka_unit_test(arenas_are_at_the_bound),
    };

    return cmocka_run_group_tests(tests, case_enter, case_leave);
}
