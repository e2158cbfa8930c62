/* data_map.c - whole files, read-only, mapped into memory.
 *
 * The tokens of a data set do not fit in memory and need not: the kernel pages
 * in what is read.  A file that shrinks while it is mapped ends the process
 * (SIGBUS); sizes are therefore checked against the file once, at opening.
 */
#include "runtime/data_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static Status map_descriptor(int fd, const char *path, DataMap *out_map)
{
    struct stat st;

    if (fstat(fd, &st))
        return status_system(errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return status_make(STATUS_INPUT, "%s: not a regular file", path);
    DataMap map = {.size = (uint64_t)st.st_size};
    if (map.size) {
        void *p = mmap(NULL, map.size, PROT_READ, MAP_SHARED, fd, 0);

        if (p == MAP_FAILED)
            return status_system(errno, "%s: cannot map the file", path);
        map.bytes = p;
    }
    *out_map = map;
    return STATUS_NONE;
}

Status data_map_open(const char *path, DataMap *out_map)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    Status status = map_descriptor(fd, path, out_map);
    close(fd);
    return status;
}

void data_map_close(DataMap *map)
{
    if (map->bytes)
        munmap((void *)map->bytes, map->size);
    *map = (DataMap){0};
}
