/* hardware_test.c - descriptions of machines: those that ship are complete,
 * others are rejected at the line that is wrong.  Numbers are data sheets' or
 * worked out by hand.
 */
#include "frontend/hardware.h"

#include <glob.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char good[] = "version: 1\n"
                           "name: test\n"
                           "memory: 1e9\n"
                           "bandwidth: 1e12\n"
                           "host_bandwidth: 1e10\n"
                           "launch: 1e-6\n"
                           "peak: {fp32: 1e12, bf16: 2e12, fp16: 3e12}\n"
                           "links:\n"
                           "  - {ranks: 4, bandwidth: 1e11, latency: 1e-6}\n"
                           "  - {ranks: all, bandwidth: 1e10, latency: 5e-6}\n"
                           "efficiency:\n"
                           "  gemm: [[1e6, 0.2], [1e8, 0.8]]\n";

static const Hardware *parse(Arena *a, Diag *d, const char *text)
{
    return hardware_parse(a, d, "h.yaml", text);
}

static void values_are_read(void **state)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    const Hardware *h = parse(a, d, good);

    (void)state;
    assert_non_null(h);
    assert_string_equal(h->name, "test");
    assert_int_equal(h->memory, 1000000000);
    assert_float_equal(h->peak[HARDWARE_BF16], 2e12, 0);
    assert_float_equal(h->peak[HARDWARE_FP16], 3e12, 0);
    assert_int_equal(h->nlinks, 2);
    assert_int_equal(h->links[1].ranks, INT64_MAX);
    assert_float_equal(h->links[1].latency, 5e-6, 0);
    assert_int_equal(h->gemm.n, 2);
    assert_int_equal(h->rows.n, 0);
    diag_free(d);
    arena_free(a);
}

/* 1e7 lies in the middle between 1e6 and 1e8 over the logarithm. */
static void curves_are_straight(void **state)
{
    Curve c = {2, {1e6, 1e8}, {0.2, 0.8}}, none = {0};

    (void)state;
    assert_float_equal(curve_at(&c, 1), 0.2, 1e-12);
    assert_float_equal(curve_at(&c, 1e6), 0.2, 1e-12);
    assert_float_equal(curve_at(&c, 1e7), 0.5, 1e-12);
    assert_float_equal(curve_at(&c, 1e8), 0.8, 1e-12);
    assert_float_equal(curve_at(&c, 1e9), 0.8, 1e-12);
    assert_float_equal(curve_at(&none, 5), 1, 0);
}

static void links_join_domains(void **state)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    const Hardware *h = parse(a, d, good);

    (void)state;
    assert_ptr_equal(hardware_link(h, 0, 3), &h->links[0]);
    assert_ptr_equal(hardware_link(h, 5, 6), &h->links[0]);
    assert_ptr_equal(hardware_link(h, 3, 4), &h->links[1]);
    assert_ptr_equal(hardware_link(h, 0, 9999), &h->links[1]);
    diag_free(d);
    arena_free(a);
}

/* ---- what is wrong ------------------------------------------------------ */

/* `good` with one text in the place of another. */
static const char *altered(Arena *a, const char *from, const char *to)
{
    const char *at = strstr(good, from);

    assert_non_null(at);
    return arena_printf(a, "%.*s%s%s", (int)(at - good), good, to,
                        at + strlen(from));
}

static void faults_are_named(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } rows[] = {
        {"bandwidth: 1e12", "bandwith: 1e12", "did you mean `bandwidth`?"},
        {"launch: 1e-6", "launch: -1",
         "h.yaml:6:9: error: launch = -1 must be"},
        {"launch: 1e-6\n", "", "launch of `hardware` is required"},
        {"memory: 1e9", "memory: 0.5", "memory = 0.5 must be a whole number"},
        {"name: test", "name: test\nname: t", "name is given twice"},
        {", fp16: 3e12", "", "fp16 of `peak` is required"},
        {"ranks: all", "ranks: 4", "each must join more ranks"},
        {"[1e8, 0.8]", "[1e5, 0.8]", "gemm = 1e5 must be sizes that ascend"},
        {"[1e8, 0.8]", "[1e8, 1.2]", "gemm = 1.2 must be at most 1"},
        {"[1e8, 0.8]", "[1e8]", "gemm must be pairs [size, fraction]"},
        {"version: 1", "version: 2", "version = 2 must be 1"},
    };

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        char *text = NULL;
        size_t size;
        FILE *to = open_memstream(&text, &size);

        assert_null(parse(a, d, altered(a, rows[i].from, rows[i].to)));
        diag_print(d, to);
        fclose(to);
        if (!strstr(text, rows[i].says))
            fail_msg("no \"%s\" in: %s", rows[i].says, text);
        free(text);
        diag_free(d);
        arena_free(a);
    }
}

/* ---- what ships --------------------------------------------------------- */

/* Memory, dense bf16 and bandwidth of NVIDIA's data sheets. */
static void shipped_are_complete(void **state)
{
    static const struct {
        const char *name;
        double memory, bf16, bandwidth;
    } rows[] = {{"a100-80g", 80e9, 312e12, 2.039e12},
                {"h100-sxm", 80e9, 989e12, 3.35e12},
                {"h200-sxm", 141e9, 989e12, 4.8e12},
                {"b200", 180e9, 2250e12, 8e12}};

    (void)state;
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);
        const Hardware *h = hardware_load(a, d, rows[i].name, (Loc){0});

        assert_non_null(h);
        assert_float_equal((double)h->memory, rows[i].memory, 0);
        assert_float_equal(h->peak[HARDWARE_BF16], rows[i].bf16, 0);
        assert_float_equal(h->bandwidth, rows[i].bandwidth, 0);
        diag_free(d);
        arena_free(a);
    }
}

static void every_file_loads(void **state)
{
    glob_t files;

    (void)state;
    assert_int_equal(glob(MEGAC_SOURCE_DIR "/configs/hardware/*.yaml", 0, NULL,
                          &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        Arena *a = arena_new();
        Diag *d = diag_new(a);

        assert_non_null(hardware_load(a, d, files.gl_pathv[i], (Loc){0}));
        diag_free(d);
        arena_free(a);
    }
    globfree(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(curves_are_straight),
        cmocka_unit_test(links_join_domains),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(shipped_are_complete),
        cmocka_unit_test(every_file_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
