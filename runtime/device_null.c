/* device_null.c - a device that only counts.
 *
 * Tests look at the counts; with it, the time of a step is the executor's own
 * overhead.  Its memory is real, so the host ops of a plan still work.
 */
#include "runtime/device.h"

#include <stdlib.h>

struct Device {
    const Plan *plan;
    char *base;
    uint64_t count[PLAN_OPS];
};

static Status null_open(const DeviceConfig *config, Device **out)
{
    Device *d = calloc(1, sizeof *d);
    Status s;

    if (!d)
        return status_make(STATUS_SYSTEM, "no memory for the device");
    d->plan = config->plan;
    s = device_memory_map(d->plan, &d->base);
    if (s)
        free(d);
    else
        *out = d;
    return s;
}

static void null_close(Device *d)
{
    if (d)
        device_memory_unmap(d->plan, d->base);
    free(d);
}

static char *null_memory(Device *d, uint32_t i)
{
    return d->base + d->plan->memories.v[i].start;
}

static Status null_launch(Device *d, uint32_t kernel, void *const *ptr,
                          const int64_t *imm, uint64_t bytes)
{
    (void)bytes;
    (void)kernel;
    (void)ptr;
    (void)imm;
    d->count[PLAN_LAUNCH]++;
    return STATUS_NONE;
}

static Status null_gemm(Device *d, uint32_t gemm, void *const *operand)
{
    (void)gemm;
    (void)operand;
    d->count[PLAN_GEMM]++;
    return STATUS_NONE;
}

static Status null_copy(Device *d, void *to, const void *from, size_t bytes)
{
    (void)to;
    (void)from;
    (void)bytes;
    d->count[PLAN_COPY]++;
    return STATUS_NONE;
}

static Status null_fill(Device *d, void *to, uint32_t pattern, size_t bytes)
{
    (void)to;
    (void)pattern;
    (void)bytes;
    d->count[PLAN_FILL]++;
    return STATUS_NONE;
}

static Status null_sync(Device *d)
{
    (void)d;
    return STATUS_NONE;
}

uint64_t device_null_count(const Device *d, PlanOp op)
{
    return d->count[op];
}

const DeviceDriver device_null = {
    .name = "null",
    .open = null_open,
    .close = null_close,
    .memory = null_memory,
    .launch = null_launch,
    .gemm = null_gemm,
    .copy = null_copy,
    .fill = null_fill,
    .sync = null_sync,
};
