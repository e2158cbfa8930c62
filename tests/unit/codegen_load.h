/* codegen_load.h - for tests: compile kernel text and call it here. */
#ifndef MEGAC_TESTS_CODEGEN_LOAD_H
#define MEGAC_TESTS_CODEGEN_LOAD_H

#include "codegen/codegen.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

/* A shared object from memory; the test fails if it does not load. */
static inline void *load_bytes(const Buf *so)
{
    char path[] = "/tmp/megac-test-XXXXXX";
    int fd = mkstemp(path);
    void *handle;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, so->s, so->len), (ssize_t)so->len);
    close(fd);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        print_error("%s\n", dlerror());
    unlink(path);
    assert_non_null(handle);
    return handle;
}

static inline void *load_units(const CodeUnit *units, uint32_t n)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    Buf so = {0};
    void *handle;
    bool ok = codegen_cpu_build(units, n, "native", 2, d, (Loc){0}, &so);

    diag_print(d, stderr);
    assert_true(ok);
    handle = load_bytes(&so);
    buf_free(&so);
    diag_free(d);
    arena_free(a);
    return handle;
}

static inline void *load_text(const char *name, const char *text)
{
    return load_units(&(CodeUnit){name, text}, 1);
}

static inline KernelFn *kernel_find(void *so, const char *name)
{
    KernelFn *fn;

    *(void **)&fn = dlsym(so, name);
    assert_non_null(fn);
    return fn;
}

/* Runs all shares one after the other, last first. */
static inline void kernel_run(KernelFn *fn, void *const *ptr,
                              const int64_t *imm, int nthreads)
{
    for (int tid = nthreads - 1; tid >= 0; tid--)
        fn(ptr, imm, tid, nthreads);
}

/* Tests of CUDA text are skipped where the toolkit is not installed. */
static inline bool have_nvrtc(void)
{
    void *so = dlopen("libnvrtc.so.13", RTLD_LAZY);

    so = so ? so : dlopen("libnvrtc.so.12", RTLD_LAZY);
    so = so ? so : dlopen("/usr/local/cuda/lib64/libnvrtc.so", RTLD_LAZY);
    return so != NULL;
}

/* Uniform in [-1, 1), the same on every machine. */
static inline float random_unit(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / 8388608.0 - 1.0);
}

#endif
