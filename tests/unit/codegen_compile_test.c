/* codegen_compile_test.c - the two in-process compilers and their cache.
 *
 * Each test has a cache folder of its own, so that hits and damage are under
 * its control.
 */
#include "codegen_load.h"

#include <dirent.h>

static const char ADD_ONE[] =
    "void add_one(void *const *ptr, const i64 *imm, int tid, int n)\n"
    "{\n"
    "    i64 *x = ptr[0];\n"
    "    for (i64 i = tid; i < imm[0]; i += n)\n"
    "        x[i] += 1;\n"
    "}\n";
static const char TWICE[] =
    "void twice(void *const *ptr, const i64 *imm, int tid, int n)\n"
    "{\n"
    "    i64 *x = ptr[0];\n"
    "    for (i64 i = tid; i < imm[0]; i += n)\n"
    "        x[i] *= 2;\n"
    "}\n";
static const CodeUnit UNITS[] = {{"add_one", ADD_ONE}, {"twice", TWICE}};

typedef struct {
    char dir[64];
    Arena *arena;
    Diag *diag;
} World;

static int setup(void **state)
{
    World *w = calloc(1, sizeof *w);

    strcpy(w->dir, "/tmp/megac-cache-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    setenv("MEGAC_CACHE", w->dir, 1);
    w->arena = arena_new();
    w->diag = diag_new(w->arena);
    *state = w;
    return 0;
}

/* Calls visit for every file of the cache. */
static int for_entries(const World *w, void (*visit)(const char *path))
{
    DIR *dir = opendir(w->dir);
    struct dirent *e;
    char path[512];
    int count = 0;

    while ((e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", w->dir, e->d_name);
        if (visit)
            visit(path);
        count++;
    }
    closedir(dir);
    return count;
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static int teardown(void **state)
{
    World *w = *state;

    for_entries(w, remove_file);
    rmdir(w->dir);
    diag_free(w->diag);
    arena_free(w->arena);
    free(w);
    return 0;
}

static void check_kernels(const Buf *so)
{
    void *handle = load_bytes(so);
    int64_t x[] = {1, 2, 3}, n = 3;

    kernel_run(kernel_find(handle, "add_one"), (void *[]){x}, &n, 2);
    kernel_run(kernel_find(handle, "twice"), (void *[]){x}, &n, 1);
    assert_int_equal(x[0], 4);
    assert_int_equal(x[1], 6);
    assert_int_equal(x[2], 8);
    dlclose(handle);
}

static bool build(World *w, Buf *out_so)
{
    return codegen_cpu_build(UNITS, MC_LEN(UNITS), "native", 2, w->diag,
                             (Loc){0}, out_so);
}

static void test_units_become_one_object(void **state)
{
    World *w = *state;
    Buf so = {0};

    assert_true(build(w, &so));
    check_kernels(&so);
    buf_free(&so);
}

/* Two objects and the link are kept; the second build gives the same bytes. */
static void test_cache_is_used(void **state)
{
    World *w = *state;
    Buf first = {0}, second = {0};

    assert_true(build(w, &first));
    assert_int_equal(for_entries(w, NULL), 3);
    assert_true(build(w, &second));
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.s, second.s, first.len);
    buf_free(&first);
    buf_free(&second);
}

static void damage(const char *path)
{
    FILE *f = fopen(path, "r+b");

    fseek(f, -1, SEEK_END);
    int last = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(last ^ 0x55, f);
    fclose(f);
}

static void cut(const char *path)
{
    assert_int_equal(truncate(path, 20), 0);
}

static void test_damaged_entries_are_made_again(void **state)
{
    World *w = *state;
    void (*const harms[])(const char *) = {damage, cut};

    for (size_t i = 0; i < MC_LEN(harms); i++) {
        Buf so = {0};
        assert_true(build(w, &so));
        for_entries(w, harms[i]);
        so.len = 0;
        assert_true(build(w, &so));
        check_kernels(&so);
        buf_free(&so);
    }
}

static void test_no_cache_folder_is_no_error(void **state)
{
    World *w = *state;
    Buf so = {0};

    setenv("MEGAC_CACHE", "/proc/no-such-place", 1);
    assert_true(build(w, &so));
    check_kernels(&so);
    buf_free(&so);
}

static void assert_reported(World *w, const char *code, const char *words)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    diag_print(w->diag, f);
    fclose(f);
    assert_true(diag_errors(w->diag) > 0);
    if (!strstr(text, code) || !strstr(text, words))
        print_error("%s", text);
    assert_non_null(strstr(text, code));
    assert_non_null(strstr(text, words));
    free(text);
}

static void test_bad_text_is_reported(void **state)
{
    World *w = *state;
    const CodeUnit bad = {"broken", "int f(void) { return nothing; }\n"};
    Buf so = {0};

    assert_false(
        codegen_cpu_build(&bad, 1, "native", 1, w->diag, (Loc){0}, &so));
    assert_reported(w, "MC0521", "broken.c:1:");
    buf_free(&so);
}

static void test_named_cpu(void **state)
{
    World *w = *state;
    Buf so = {0};

    assert_true(codegen_cpu_build(UNITS, MC_LEN(UNITS), "x86-64-v2", 1, w->diag,
                                  (Loc){0}, &so));
    check_kernels(&so);
    so.len = 0;
    assert_false(
        codegen_cpu_build(UNITS, 1, "no-such-cpu", 1, w->diag, (Loc){0}, &so));
    assert_reported(w, "MC0521", "no-such-cpu");
    buf_free(&so);
}

/* ---- CUDA: skipped where the toolkit is not installed ------------------- */

static void test_cuda_cubins(void **state)
{
    World *w = *state;
    static const char *const archs[] = {"sm_80", "sm_90a", "sm_100"};
    AttentionSpec a = {.name = "attn",
                       .type = ATTN_BF16,
                       .s = 128,
                       .t = 128,
                       .b = 1,
                       .g = 2,
                       .r = 4,
                       .d = 128,
                       .causal = true,
                       .scale = 0.1};
    Buf forward = {0}, backward = {0};

    if (!have_nvrtc())
        skip();
    attention_print_forward(&a, DIALECT_CUDA, &forward);
    attention_print_backward(&a, DIALECT_CUDA, &backward);
    for (size_t i = 0; i < MC_LEN(archs); i++) {
        const CodeUnit units[] = {{"forward", forward.s},
                                  {"backward", backward.s}};
        Buf cubins[2] = {{0}, {0}};
        bool ok = codegen_cuda_build(units, 2, archs[i], 2, w->diag, (Loc){0},
                                     cubins);
        diag_print(w->diag, stderr);
        assert_true(ok);
        for (int k = 0; k < 2; k++) {
            assert_memory_equal(cubins[k].s, "\177ELF", 4);
            buf_free(&cubins[k]);
        }
    }
    assert_int_equal(for_entries(w, NULL), 6);
    buf_free(&forward);
    buf_free(&backward);
}

static void test_cuda_bad_text_is_reported(void **state)
{
    World *w = *state;
    const CodeUnit bad = {"broken", "KERNEL f(const Args a) { nothing; }\n"};
    Buf cubin = {0};

    if (!have_nvrtc())
        skip();
    assert_false(
        codegen_cuda_build(&bad, 1, "sm_80", 1, w->diag, (Loc){0}, &cubin));
    assert_reported(w, "MC0526", "nothing");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_units_become_one_object),
        TEST(test_cache_is_used),
        TEST(test_damaged_entries_are_made_again),
        TEST(test_no_cache_folder_is_no_error),
        TEST(test_bad_text_is_reported),
        TEST(test_named_cpu),
        TEST(test_cuda_cubins),
        TEST(test_cuda_bad_text_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
