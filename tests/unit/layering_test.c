/* layering_test.c - who may include whom, read from the sources.
 *
 * base <- ir <- frontend <- passes; base <- runtime; the plan format, and
 * nothing else of the runtime, <- codegen; the driver sees everything.  A
 * private header stays in its folder, and the headers of a foreign library
 * appear in one folder only.
 */
#include "base/base.h"

#include <fnmatch.h>
#include <ftw.h>
#include <setjmp.h>
#include <cmocka.h>

typedef struct {
    const char *folder;
    const char *may[10]; /* patterns of what may be included with "…" */
} Layer;

/* A header without a folder is generated, and not judged. */
static const Layer layers[] = {
    {"base", {"base/*"}},
    {"ir", {"ir/*", "base/*"}},
    {"frontend", {"frontend/*", "ir/ir.h", "base/*"}},
    {"passes", {"passes/*", "ir/*", "frontend/*", "base/*"}},
    {"runtime", {"runtime/*", "base/*"}},
    {"codegen", {"codegen/*", "passes/*", "ir/*", "frontend/*", "base/*",
                 "runtime/plan.h", "runtime/payload.h"}},
    {"driver", {"*"}},
};

typedef struct {
    const char *header, *folder;
} Foreign;

static const Foreign foreign[] = {
    {"clang/*", "codegen"}, {"llvm/*", "codegen"},  {"nvrtc*", "codegen"},
    {"cuda*", "runtime"},   {"nccl*", "runtime"},   {"cublas*", "runtime"},
    {"mpi*", "runtime"},    {"dnnl*", "runtime"},   {"oneapi/*", "runtime"},
    {"hwloc*", "runtime"},  {"omp.h", "runtime"},   {"yaml.h", "frontend"},
};

static unsigned includes, wrong;

static void complain(const char *path, unsigned line, const char *header)
{
    print_error("%s:%u: may not include %s\n", path, line, header);
    wrong++;
}

static const Layer *layer_of(const char *folder, size_t len)
{
    for (size_t i = 0; i < MC_LEN(layers); i++)
        if (strlen(layers[i].folder) == len &&
            !strncmp(layers[i].folder, folder, len))
            return &layers[i];
    return NULL;
}

static bool may_include(const Layer *l, const char *header)
{
    const char *slash = strchr(header, '/');
    bool own = slash && layer_of(header, (size_t)(slash - header)) == l;

    if (strstr(header, "_priv.h") && !own)
        return false;
    for (size_t i = 0; i < MC_LEN(l->may) && l->may[i]; i++)
        if (!fnmatch(l->may[i], header, 0))
            return true;
    return !slash;
}

static bool may_use(const Layer *l, const char *header)
{
    for (size_t i = 0; i < MC_LEN(foreign); i++)
        if (!fnmatch(foreign[i].header, header, 0))
            return !strcmp(foreign[i].folder, l->folder);
    return true;
}

/* One line of a file; texts of generated code, in quotes, do not count. */
static void judge_line(const Layer *l, const char *path, unsigned number,
                       const char *line)
{
    char header[256], open;

    if (sscanf(line, " # include %c%255[^\">]", &open, header) != 2)
        return;
    includes++;
    if (open == '"' ? !may_include(l, header) : !may_use(l, header))
        complain(path, number, header);
}

static int judge_file(const char *path, const struct stat *st, int type,
                      struct FTW *at)
{
    const char *rest = path + strlen(MEGAC_SOURCE_DIR) + 1;
    const Layer *l = layer_of(rest, strcspn(rest, "/"));
    const char *dot = strrchr(path, '.');
    char line[1024];

    (void)st, (void)at;
    if (type != FTW_F || !dot || !l ||
        (strcmp(dot, ".c") && strcmp(dot, ".h") && strcmp(dot, ".cc")))
        return 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (unsigned n = 1; fgets(line, sizeof line, f); n++)
        judge_line(l, path, n, line);
    fclose(f);
    return 0;
}

static void includes_point_one_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(layers); i++) {
        char path[512];
        unsigned before = includes;
        snprintf(path, sizeof path, "%s/%s", MEGAC_SOURCE_DIR,
                 layers[i].folder);
        assert_int_equal(nftw(path, judge_file, 16, FTW_PHYS), 0);
        assert_true(includes > before + 5);
    }
    assert_int_equal(wrong, 0);
}

/* The judge itself: what must be refused is refused. */
static void wrong_includes_are_found(void **state)
{
    const Layer *runtime = layer_of("runtime", 7), *ir = layer_of("ir", 2);
    const Layer *codegen = layer_of("codegen", 7);

    (void)state;
    assert_false(may_include(runtime, "ir/ir.h"));
    assert_false(may_include(runtime, "codegen/emit.h"));
    assert_false(may_include(ir, "passes/passes.h"));
    assert_false(may_include(codegen, "runtime/exec.h"));
    assert_false(may_include(codegen, "ir/ir_priv.h"));
    assert_true(may_include(codegen, "runtime/plan.h"));
    assert_true(may_include(ir, "ir/ir_priv.h"));
    assert_false(may_use(codegen, "mpi.h"));
    assert_false(may_use(runtime, "llvm/Support/raw_ostream.h"));
    assert_true(may_use(runtime, "dnnl.h"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(includes_point_one_way),
        cmocka_unit_test(wrong_includes_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
