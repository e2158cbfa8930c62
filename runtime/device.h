/* device.h - what the executor asks of the machine that computes.
 *
 * A driver fills in one DeviceDriver; its state is the opaque Device.  All
 * allocation happens in open.  Work is issued in order on the compute stream;
 * `sync` returns once all of it is done.  Addresses of the plan are turned
 * into pointers once, when the executor is made, so a driver may place each
 * memory of the plan where it likes.
 */
#ifndef MEGAC_RUNTIME_DEVICE_H
#define MEGAC_RUNTIME_DEVICE_H

#include "runtime/plan.h"

typedef struct Device Device;

typedef struct {
    const Plan *plan;
    const char *kernels; /* shared object with their functions, or NULL */
    int threads;
} DeviceConfig;

typedef struct {
    const char *name;
    Status (*open)(const DeviceConfig *config, Device **out);
    void (*close)(Device *d);
    /* Where memory `i` of the plan lies. */
    char *(*memory)(Device *d, uint32_t i);
    /* bytes: what the addresses cover, a measure of the work */
    Status (*launch)(Device *d, uint32_t kernel, void *const *ptr,
                     const int64_t *imm, uint64_t bytes);
    /* operand: A, B, C and the bias, if the row has one */
    Status (*gemm)(Device *d, uint32_t gemm, void *const *operand);
    Status (*copy)(Device *d, void *to, const void *from, size_t bytes);
    Status (*fill)(Device *d, void *to, uint32_t pattern, size_t bytes);
    Status (*sync)(Device *d);
    /* Ceilings for profiles, measured now; NULL: the device has none.  The
     * fewest seconds for a product's shape, in whatever layout suits it, and
     * the bytes per second, read and written, of a large copy. */
    Status (*gemm_ceiling)(Device *d, uint32_t gemm, double (*clock)(void),
                           double *out);
    Status (*copy_ceiling)(Device *d, double (*clock)(void), double *out);
} DeviceDriver;

extern const DeviceDriver device_cpu;  /* device_cpu.c: oneDNN, OpenMP */
extern const DeviceDriver device_null; /* device_null.c: counts, does nothing */

/* device_memory.c: one zeroed mapping for all memories of a plan that are
 * ordinary memory; addresses are offsets in it. */
MC_MUST_USE Status device_memory_map(const Plan *p, char **out);
void device_memory_unmap(const Plan *p, char *base);

/* device_null.c: calls of each op since open. */
uint64_t device_null_count(const Device *d, PlanOp op);

/* device_cpu_gemm.c */
typedef struct CpuGemms CpuGemms;
MC_MUST_USE Status cpu_gemms_new(const Plan *p, CpuGemms **out);
void cpu_gemms_free(CpuGemms *g);
MC_MUST_USE Status cpu_gemms_run(CpuGemms *g, uint32_t gemm,
                                 void *const *operand);

/* device_cpu_ceiling.c: what DeviceDriver asks, for the threads that OpenMP is
 * set to. */
MC_MUST_USE Status cpu_gemm_ceiling(const PlanGemm *g, double (*clock)(void),
                                    double *out);
MC_MUST_USE Status cpu_copy_ceiling(int threads, double (*clock)(void),
                                    double *out);

#endif
