/* nvrtc.c - kernels for a GPU: units of CUDA C++ to cubins.
 *
 * NVRTC is loaded at run time through a table of symbols, so that megac builds
 * and runs without the CUDA toolkit; only `--target cuda` asks for it.  The
 * declarations below are NVRTC's stable C interface (CUDA 11 and later).  No
 * GPU is needed: the architecture is named.
 */
#include "codegen/codegen_priv.h"

#include <dlfcn.h>

typedef struct _nvrtcProgram *Program;

#define NVRTC_SYMBOLS(X)                                                       \
    X(nvrtcVersion, (int *major, int *minor))                                  \
    X(nvrtcCreateProgram,                                                      \
      (Program * program, const char *text, const char *name, int headers,     \
       const char *const *header_text, const char *const *header_names))       \
    X(nvrtcCompileProgram,                                                     \
      (Program program, int count, const char *const *options))                \
    X(nvrtcGetProgramLogSize, (Program program, size_t * size))                \
    X(nvrtcGetProgramLog, (Program program, char *log))                        \
    X(nvrtcGetCUBINSize, (Program program, size_t * size))                     \
    X(nvrtcGetCUBIN, (Program program, char *cubin))                           \
    X(nvrtcDestroyProgram, (Program * program))

typedef struct {
#define X(name, params) int(*name) params;
    NVRTC_SYMBOLS(X)
#undef X
} Nvrtc;

typedef struct {
    const Nvrtc *lib;
    const CodeUnit *units;
    const char *arch;
    CacheKey *keys;
    Buf *cubins, *logs;
    bool *ok;
} Build;

static void *library_open(void)
{
    static const char *const names[] = {
        "libnvrtc.so.13",
        "libnvrtc.so.12",
        "libnvrtc.so.11.2",
        "libnvrtc.so",
        "/usr/local/cuda/lib64/libnvrtc.so",
    };
    void *so = NULL;

    for (size_t i = 0; i < MC_LEN(names) && !so; i++)
        so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return so;
}

/* Fills the table; names the first thing that is missing. */
static bool nvrtc_load(Nvrtc *lib, Diag *d, Loc where)
{
    void *so = library_open();
    const char *missing = NULL;

    if (!so) {
        diag_error(d, where, "MC0524",
                   "cannot load NVRTC, which compiles "
                   "kernels for CUDA: %s",
                   dlerror());
        diag_help(d, "install the CUDA toolkit 12 or later (libnvrtc), or add "
                     "its folder to LD_LIBRARY_PATH; a GPU is not needed");
        return false;
    }
#define X(name, params)                                                        \
    *(void **)&lib->name = dlsym(so, #name);                                   \
    if (!lib->name)                                                            \
        missing = #name;
    NVRTC_SYMBOLS(X)
#undef X
    if (missing)
        diag_error(d, where, "MC0525", "this NVRTC is too old: it has no %s",
                   missing);
    return !missing;
}

static CacheKey unit_key(const Nvrtc *lib, const CodeUnit *unit,
                         const char *arch)
{
    int major = 0, minor = 0;
    Buf b = {0};
    CacheKey key;

    lib->nvrtcVersion(&major, &minor);
    buf_printf(&b, "cubin %s nvrtc %d.%d %s\n%s\n%s\n%s", MEGAC_VERSION, major,
               minor, arch, unit->name, codegen_prelude(DIALECT_CUDA),
               unit->text);
    key = cache_key(b.s, b.len);
    buf_free(&b);
    return key;
}

static void log_read(const Nvrtc *lib, Program program, Buf *out)
{
    size_t size = 0;
    Arena *a = arena_new();

    if (lib->nvrtcGetProgramLogSize(program, &size) == 0 && size > 1) {
        char *log = arena_alloc(a, size);
        if (lib->nvrtcGetProgramLog(program, log) == 0)
            buf_puts(out, log);
    }
    arena_free(a);
}

static bool cubin_read(const Nvrtc *lib, Program program, Buf *out)
{
    size_t size = 0;
    Arena *a = arena_new();
    char *cubin;
    bool ok = false;

    if (lib->nvrtcGetCUBINSize(program, &size) == 0 && size > 0) {
        cubin = arena_alloc(a, size);
        ok = lib->nvrtcGetCUBIN(program, cubin) == 0;
        if (ok)
            buf_write(out, cubin, size);
    }
    arena_free(a);
    return ok;
}

static bool compile_text(const Nvrtc *lib, const char *name, const char *text,
                         const char *arch_option, Buf *out_cubin, Buf *out_log)
{
    const char *options[] = {arch_option, "--std=c++17",
                             "--extra-device-vectorization"};
    Program program;
    bool ok;

    if (lib->nvrtcCreateProgram(&program, text, name, 0, NULL, NULL) != 0)
        return false;
    ok = lib->nvrtcCompileProgram(program, (int)MC_LEN(options), options) == 0;
    log_read(lib, program, out_log);
    ok = ok && cubin_read(lib, program, out_cubin);
    lib->nvrtcDestroyProgram(&program);
    return ok;
}

static void compile_one(void *state, uint32_t i)
{
    Build *b = state;
    Buf text = {0}, option = {0};

    if (b->ok[i])
        return;
    buf_printf(&text, "%s#line 1\n%s", codegen_prelude(DIALECT_CUDA),
               b->units[i].text);
    buf_printf(&option, "--gpu-architecture=%s", b->arch);
    b->ok[i] = compile_text(b->lib, b->units[i].name, text.s, option.s,
                            &b->cubins[i], &b->logs[i]);
    if (b->ok[i])
        cache_put(b->keys[i], &b->cubins[i]);
    buf_free(&text);
    buf_free(&option);
}

static bool report(const Build *b, uint32_t n, Diag *d, Loc where)
{
    bool all = true;

    for (uint32_t i = 0; i < n; i++) {
        if (!b->ok[i])
            diag_error(d, where, "MC0526",
                       "the generated kernel %s does not compile for %s:\n%s",
                       b->units[i].name, b->arch, buf_str(&b->logs[i]));
        all = all && b->ok[i];
        buf_free(&b->logs[i]);
    }
    return all;
}

bool codegen_cuda_build(const CodeUnit *units, uint32_t n, const char *arch,
                        uint32_t threads, Diag *d, Loc where, Buf *out_cubins)
{
    Nvrtc lib;
    Arena *a = arena_new();
    Build b = {.lib = &lib,
               .units = units,
               .arch = arch,
               .keys = arena_array(a, CacheKey, n),
               .cubins = out_cubins,
               .logs = arena_array(a, Buf, n),
               .ok = arena_array(a, bool, n)};
    bool ok = nvrtc_load(&lib, d, where);

    for (uint32_t i = 0; ok && i < n; i++) {
        b.keys[i] = unit_key(&lib, &units[i], arch);
        b.ok[i] = cache_get(b.keys[i], &out_cubins[i]);
    }
    if (ok) {
        codegen_parallel(n, threads, compile_one, &b);
        ok = report(&b, n, d, where);
    }
    arena_free(a);
    return ok;
}
