/* device_memory.c - the plan's address space as one anonymous mapping.
 *
 * Pages are reserved, not touched; the kernel zeroes them when first used.
 * Transparent huge pages are asked for, because kernels stream through it.
 */
#include "runtime/device.h"

#include <errno.h>
#include <sys/mman.h>

static size_t mapping_bytes(const Plan *p)
{
    uint64_t bytes = plan_end_of_memory(p);

    return bytes ? (size_t)bytes : 1;
}

Status device_memory_map(const Plan *p, char **out)
{
    size_t n = mapping_bytes(p);
    void *base = mmap(NULL, n, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        return status_system(errno, "cannot reserve the arena of %zu bytes", n);
    (void)madvise(base, n, MADV_HUGEPAGE);
    *out = base;
    return STATUS_NONE;
}

void device_memory_unmap(const Plan *p, char *base)
{
    if (base)
        munmap(base, mapping_bytes(p));
}
