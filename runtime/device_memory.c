/* device_memory.c - the plan's address space as one mapping.
 *
 * Pages are reserved, not touched; the kernel zeroes them when first used.
 * Transparent huge pages are asked for, because kernels stream through it.
 * Host memory, to which a plan offloads, is the same memory on a CPU: it lies
 * in a file without a name, so that it can leave memory and is gone with the
 * rank.
 */
#include "runtime/device.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t mapping_bytes(const Plan *p)
{
    uint64_t bytes = plan_end_of_memory(p);

    return bytes ? (size_t)bytes : 1;
}

static Status open_unnamed(uint64_t bytes, int *out_fd)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/megac-XXXXXX",
                     folder ? folder : "/tmp");

    if (n >= (int)sizeof path)
        return status_make(STATUS_SYSTEM, "the path in TMPDIR is too long");
    *out_fd = mkstemp(path);
    if (*out_fd < 0)
        return status_system(errno, "cannot make a file like %s", path);
    unlink(path);
    if (ftruncate(*out_fd, (off_t)bytes) == 0)
        return STATUS_NONE;
    close(*out_fd);
    return status_system(errno, "cannot make a file of %llu bytes",
                         (unsigned long long)bytes);
}

/* Puts a file in the place of one memory; the mapping keeps it. */
static Status map_file(char *base, const PlanMemory *m)
{
    Status s = STATUS_NONE;
    int fd;

    STATUS_TRY(open_unnamed(m->bytes, &fd));
    if (mmap(base + m->start, (size_t)m->bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        s = status_system(errno, "cannot map %llu bytes of host memory",
                          (unsigned long long)m->bytes);
    close(fd);
    return s;
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
    for (uint32_t i = 0; i < p->memories.n; i++)
        if (p->memories.v[i].kind == PLAN_MEMORY_HOST && p->memories.v[i].bytes)
            STATUS_TRY(map_file(base, &p->memories.v[i]));
    return STATUS_NONE;
}

void device_memory_unmap(const Plan *p, char *base)
{
    if (base)
        munmap(base, mapping_bytes(p));
}
