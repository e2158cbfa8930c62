/* compile.c - kernels for the host: units of C to one shared object.
 *
 * Each unit becomes an object by megac-clang.so (loaded at the first miss of
 * the cache), all objects become a shared object by lld.  Both steps are
 * cached: an edited model recompiles only the kernels that changed, and an
 * unchanged one loads neither Clang nor the linker.
 *
 * The key of "native" holds what CPUID reports, since a cache may lie on a
 * file system that different machines share.
 */
#include "codegen/codegen_priv.h"
#include "codegen/cpu/clang.h"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern char **environ;

typedef struct {
    const CodeUnit *units;
    const char *cpu;
    ClangCompileFn *compile;
    CacheKey *keys;
    Buf *objects, *logs;
    bool *ok;
} Build;

/* ---- keys --------------------------------------------------------------- */

static void machine_print(Buf *out)
{
#if defined(__x86_64__)
    static const struct {
        unsigned leaf, sub;
    } leaves[] = {{1, 0}, {7, 0}, {7, 1}, {0x80000001u, 0}};

    for (size_t i = 0; i < MC_LEN(leaves); i++) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        __get_cpuid_count(leaves[i].leaf, leaves[i].sub, &a, &b, &c, &d);
        if (leaves[i].leaf == 1)
            b = 0; /* holds the number of the core that asks */
        buf_printf(out, " %x.%x.%x.%x", a, b, c, d);
    }
#else
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    buf_puts(out, host);
#endif
}

static CacheKey unit_key(const CodeUnit *unit, const char *cpu)
{
    Buf b = {0};
    CacheKey key;

    buf_printf(&b, "object %s clang 19 %s", MEGAC_VERSION, cpu);
    if (strcmp(cpu, "native") == 0)
        machine_print(&b);
    buf_printf(&b, "\n%s\n%s\n%s", unit->name, codegen_prelude(DIALECT_CPU),
               unit->text);
    key = cache_key(b.s, b.len);
    buf_free(&b);
    return key;
}

static CacheKey link_key(const CacheKey *units, uint32_t n)
{
    Buf b = {0};
    CacheKey key;

    buf_puts(&b, "shared object\n");
    buf_write(&b, units, n * sizeof *units);
    key = cache_key(b.s, b.len);
    buf_free(&b);
    return key;
}

/* ---- Clang -------------------------------------------------------------- */

static const char *module_path(Arena *a)
{
    char exe[4096];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;

    if (len < 0)
        return "megac-clang.so";
    exe[len] = '\0';
    slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    return arena_printf(a, "%s/megac-clang.so", exe);
}

static ClangCompileFn *module_load(Diag *d, Loc where)
{
    Arena *a = arena_new();
    const char *path = module_path(a);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ClangCompileFn *fn = NULL;

    if (module)
        *(void **)&fn = dlsym(module, CLANG_COMPILE_SYMBOL);
    if (!fn) {
        diag_error(d, where, "MC0520", "cannot load the C compiler: %s",
                   dlerror());
        diag_help(d, "megac-clang.so lies beside the program megac and needs "
                     "the libraries of Clang 19 (Debian: libclang-cpp19)");
    }
    arena_free(a);
    return fn;
}

static void buf_sink(void *to, const void *bytes, size_t n)
{
    buf_write(to, bytes, n);
}

static void compile_one(void *state, uint32_t i)
{
    Build *b = state;
    ClangJob job = {b->units[i].name,           codegen_prelude(DIALECT_CPU),
                    b->units[i].text,           b->cpu,
                    {buf_sink, &b->objects[i]}, {buf_sink, &b->logs[i]}};

    if (b->ok[i])
        return;
    b->ok[i] = b->compile(&job) == 1;
    if (b->ok[i])
        cache_put(b->keys[i], &b->objects[i]);
}

static bool report_failures(const Build *b, uint32_t n, Diag *d, Loc where)
{
    bool all = true;

    for (uint32_t i = 0; i < n; i++) {
        if (b->ok[i])
            continue;
        all = false;
        diag_error(d, where, "MC0521",
                   "the generated kernel %s does not compile for %s\n%s",
                   b->units[i].name, b->cpu, buf_str(&b->logs[i]));
    }
    return all;
}

static bool compile_all(Build *b, uint32_t n, uint32_t threads, Diag *d,
                        Loc where)
{
    bool all = true;

    for (uint32_t i = 0; i < n; i++) {
        b->ok[i] = cache_get(b->keys[i], &b->objects[i]);
        all = all && b->ok[i];
    }
    if (all)
        return true;
    b->compile = module_load(d, where);
    if (!b->compile)
        return false;
    codegen_parallel(n, threads, compile_one, b);
    return report_failures(b, n, d, where);
}

/* ---- the linker --------------------------------------------------------- */

/* Runs a program found on PATH; its exit status, or -1 if there is none. */
static int run_program(char *const argv[])
{
    pid_t pid;
    int status;

    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool link_files(char **argv)
{
    static char *const linkers[] = {"ld.lld-19", "ld.lld", "ld"};

    for (size_t i = 0; i < MC_LEN(linkers); i++) {
        int status;
        argv[0] = linkers[i];
        status = run_program(argv);
        if (status != -1 && status != 127)
            return status == 0;
    }
    return false;
}

static bool link_in(Arena *a, const char *dir, const Build *b, uint32_t n,
                    Buf *out_so)
{
    char **argv = arena_array(a, char *, n + 8);
    uint32_t k = 1;
    bool ok = true;

    argv[k++] = "-shared";
    argv[k++] = "--hash-style=gnu";
    argv[k++] = "-o";
    argv[k++] = arena_printf(a, "%s/kernels.so", dir);
    for (uint32_t i = 0; i < n; i++) {
        argv[k] = arena_printf(a, "%s/%u.o", dir, i);
        ok = ok && buf_write_file(&b->objects[i], argv[k++]);
    }
    ok = ok && link_files(argv) && buf_read_file(out_so, argv[4]);
    for (uint32_t i = 4; i < k; i++)
        unlink(argv[i]);
    return ok;
}

static bool link_all(const Build *b, uint32_t n, Diag *d, Loc where,
                     Buf *out_so)
{
    Arena *a = arena_new();
    const char *tmp = getenv("TMPDIR");
    char *dir = arena_printf(a, "%s/megac-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    bool ok = false;

    if (!mkdtemp(dir)) {
        diag_error(d, where, "MC0522", "cannot make the directory %s: %s", dir,
                   strerror(errno));
    } else {
        ok = link_in(a, dir, b, n, out_so);
        rmdir(dir);
        if (!ok) {
            diag_error(d, where, "MC0523", "cannot link the kernels");
            diag_help(d, "needs ld.lld-19, ld.lld or ld on PATH (Debian: "
                         "lld-19), and space for temporary files");
        }
    }
    arena_free(a);
    return ok;
}

/* ---- both --------------------------------------------------------------- */

static bool build_missing(Build *b, uint32_t n, uint32_t threads, Diag *d,
                          Loc where, Buf *out_so)
{
    bool ok = compile_all(b, n, threads, d, where) &&
              link_all(b, n, d, where, out_so);

    if (ok)
        cache_put(link_key(b->keys, n), out_so);
    for (uint32_t i = 0; i < n; i++) {
        buf_free(&b->objects[i]);
        buf_free(&b->logs[i]);
    }
    return ok;
}

bool codegen_cpu_build(const CodeUnit *units, uint32_t n, const char *cpu,
                       uint32_t threads, Diag *d, Loc where, Buf *out_so)
{
    Arena *a = arena_new();
    Build b = {.units = units,
               .cpu = cpu,
               .keys = arena_array(a, CacheKey, n),
               .objects = arena_array(a, Buf, n),
               .logs = arena_array(a, Buf, n),
               .ok = arena_array(a, bool, n)};
    bool ok;

    for (uint32_t i = 0; i < n; i++)
        b.keys[i] = unit_key(&units[i], cpu);
    ok = cache_get(link_key(b.keys, n), out_so) ||
         build_missing(&b, n, threads, d, where, out_so);
    arena_free(a);
    return ok;
}
