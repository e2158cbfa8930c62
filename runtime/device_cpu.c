/* device_cpu.c - the CPU: kernels from a shared object, products by oneDNN.
 *
 * Everything runs to its end before the call returns, so the host thread is
 * the compute stream.  A kernel's function is called on every thread of an
 * OpenMP team, a serial or small one directly; the second phase of a two-phase
 * kernel follows a barrier in the same team.
 */
#include "runtime/device.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>

typedef void KernelFn(void *const *ptr, const int64_t *imm, int tid,
                      int nthreads);

typedef struct {
    KernelFn *phase[2];
    bool serial;
} CpuKernel;

struct Device {
    const Plan *plan;
    char *base;
    void *library;
    CpuKernel *kernels;
    CpuGemms *gemms;
    int threads;
};

/* Work on fewer bytes is done before a team of threads has met. */
enum { PARALLEL_BYTES = 1 << 16 };

/* ---- loading ------------------------------------------------------------- */

static Status find_symbol(Device *d, const char *name, KernelFn **out)
{
    void *symbol = dlsym(d->library, name);

    if (!symbol)
        return status_make(STATUS_INPUT, "the kernels lack the function %s",
                           name);
    memcpy(out, &symbol, sizeof symbol); /* ISO C has no such cast */
    return STATUS_NONE;
}

static Status find_kernel(Device *d, const PlanKernel *k, CpuKernel *out)
{
    const char *symbol = plan_text(d->plan, k->symbol);
    char second[256];

    out->serial = k->serial || d->threads == 1;
    STATUS_TRY(find_symbol(d, symbol, &out->phase[0]));
    if (k->phases == 1)
        return STATUS_NONE;
    if (snprintf(second, sizeof second, "%s_2", symbol) >= (int)sizeof second)
        return status_make(STATUS_INPUT, "the kernel name %s is too long",
                           symbol);
    return find_symbol(d, second, &out->phase[1]);
}

static Status load_kernels(Device *d, const char *path)
{
    const Plan *p = d->plan;

    if (p->kernels.n == 0)
        return STATUS_NONE;
    if (!path)
        return status_make(STATUS_INPUT, "the plan needs kernels");
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d->library)
        return status_make(STATUS_INPUT, "cannot load the kernels: %s",
                           dlerror());
    d->kernels = calloc(p->kernels.n, sizeof *d->kernels);
    if (!d->kernels)
        return status_make(STATUS_SYSTEM, "no memory for the kernels");
    for (uint32_t i = 0; i < p->kernels.n; i++)
        STATUS_TRY(find_kernel(d, &p->kernels.v[i], &d->kernels[i]));
    return STATUS_NONE;
}

static void cpu_close(Device *d)
{
    if (!d)
        return;
    cpu_gemms_free(d->gemms);
    free(d->kernels);
    if (d->library)
        dlclose(d->library);
    device_memory_unmap(d->plan, d->base);
    free(d);
}

static Status open_parts(Device *d, const DeviceConfig *config)
{
    STATUS_TRY(device_memory_map(d->plan, &d->base));
    STATUS_TRY(load_kernels(d, config->kernels));
    return cpu_gemms_new(d->plan, &d->gemms);
}

static Status cpu_open(const DeviceConfig *config, Device **out)
{
    Device *d = calloc(1, sizeof *d);
    Status s;

    if (!d)
        return status_make(STATUS_SYSTEM, "no memory for the device");
    d->plan = config->plan;
    d->threads = MC_MAX(config->threads, 1);
    omp_set_dynamic(0);
    omp_set_num_threads(d->threads);
    s = open_parts(d, config);
    if (s)
        cpu_close(d);
    else
        *out = d;
    return s;
}

/* ---- running ------------------------------------------------------------- */

static char *cpu_memory(Device *d, uint32_t i)
{
    return d->base + d->plan->memories.v[i].start;
}

static void launch_parallel(const CpuKernel *k, void *const *ptr,
                            const int64_t *imm)
{
#pragma omp parallel
    {
        int tid = omp_get_thread_num();
        int n = omp_get_num_threads();

        k->phase[0](ptr, imm, tid, n);
        if (k->phase[1]) {
#pragma omp barrier
            k->phase[1](ptr, imm, tid, n);
        }
    }
}

static Status cpu_launch(Device *d, uint32_t kernel, void *const *ptr,
                         const int64_t *imm, uint64_t bytes)
{
    const CpuKernel *k = &d->kernels[kernel];

    if (!k->serial && bytes >= PARALLEL_BYTES) {
        launch_parallel(k, ptr, imm);
        return STATUS_NONE;
    }
    k->phase[0](ptr, imm, 0, 1);
    if (k->phase[1])
        k->phase[1](ptr, imm, 0, 1);
    return STATUS_NONE;
}

static Status cpu_gemm(Device *d, uint32_t gemm, void *const *operand)
{
    return cpu_gemms_run(d->gemms, gemm, operand);
}

/* The part of `bytes` that belongs to a thread, in whole cache lines. */
static size_t part_start(size_t bytes, int tid, int n)
{
    size_t lines = (bytes + 63) / 64;

    return MC_MIN(lines * (size_t)tid / (size_t)n * 64, bytes);
}

static Status cpu_copy(Device *d, void *to, const void *from, size_t bytes)
{
    if (d->threads == 1 || bytes < PARALLEL_BYTES) {
        memmove(to, from, bytes);
        return STATUS_NONE;
    }
#pragma omp parallel
    {
        int tid = omp_get_thread_num(), n = omp_get_num_threads();
        size_t at = part_start(bytes, tid, n);

        memcpy((char *)to + at, (const char *)from + at,
               part_start(bytes, tid + 1, n) - at);
    }
    return STATUS_NONE;
}

/* `at` is a multiple of 4 bytes into the whole. */
static void fill_part(char *to, uint32_t pattern, size_t at, size_t end)
{
    if (pattern == 0) {
        memset(to + at, 0, end - at);
        return;
    }
    for (; at + sizeof pattern <= end; at += sizeof pattern)
        memcpy(to + at, &pattern, sizeof pattern);
    memcpy(to + at, &pattern, end - at);
}

static Status cpu_fill(Device *d, void *to, uint32_t pattern, size_t bytes)
{
    if (d->threads == 1 || bytes < PARALLEL_BYTES) {
        fill_part(to, pattern, 0, bytes);
        return STATUS_NONE;
    }
#pragma omp parallel
    {
        int tid = omp_get_thread_num(), n = omp_get_num_threads();

        fill_part(to, pattern, part_start(bytes, tid, n),
                  part_start(bytes, tid + 1, n));
    }
    return STATUS_NONE;
}

static Status cpu_sync(Device *d)
{
    (void)d;
    return STATUS_NONE;
}

static Status gemm_ceiling(Device *d, uint32_t gemm, double (*clock)(void),
                           double *out)
{
    return cpu_gemm_ceiling(&d->plan->gemms.v[gemm], clock, out);
}

static Status copy_ceiling(Device *d, double (*clock)(void), double *out)
{
    return cpu_copy_ceiling(d->threads, clock, out);
}

const DeviceDriver device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .memory = cpu_memory,
    .launch = cpu_launch,
    .gemm = cpu_gemm,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .sync = cpu_sync,
    .gemm_ceiling = gemm_ceiling,
    .copy_ceiling = copy_ceiling,
};
