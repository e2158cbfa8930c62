/* plan_payload.c - rank executables: a program with a plan and kernels behind.
 *
 * ELF ignores what follows its last section, so appending is linking.  Reading
 * starts at the trailer, the last bytes of the file; the kernels go to a
 * memfd, because dlopen wants a file of their own.
 */
#include "runtime/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- writing ------------------------------------------------------------- */

static bool put(FILE *to, const void *bytes, size_t n)
{
    return n == 0 || fwrite(bytes, 1, n, to) == n;
}

static bool copy_file(FILE *to, const char *path, uint64_t *out_bytes)
{
    char chunk[1 << 16];
    FILE *from = fopen(path, "rb");
    size_t n;
    bool ok = from != NULL;

    *out_bytes = 0;
    while (ok && (n = fread(chunk, 1, sizeof chunk, from)) > 0) {
        ok = put(to, chunk, n);
        *out_bytes += n;
    }
    ok = ok && !ferror(from);
    if (from)
        fclose(from);
    return ok;
}

static bool put_zeros(FILE *to, uint64_t *at, uint64_t align)
{
    while (*at % align) {
        if (fputc(0, to) == EOF)
            return false;
        ++*at;
    }
    return true;
}

/* Plan and kernels start at multiples of 4096. */
static bool put_payload(FILE *to, const char *program, const PayloadParts *p)
{
    PayloadTrailer t = {.plan_bytes = p->plan_bytes,
                        .kernels_bytes = p->kernels_bytes,
                        .kernels_hash = XXH3_64bits(p->kernels,
                                                    p->kernels_bytes),
                        .run = p->run};
    uint64_t at;

    memcpy(t.magic, PAYLOAD_MAGIC, sizeof t.magic);
    if (!copy_file(to, program, &at) || !put_zeros(to, &at, 4096))
        return false;
    t.plan_offset = at;
    at += p->plan_bytes;
    if (!put(to, p->plan, p->plan_bytes) || !put_zeros(to, &at, 4096))
        return false;
    t.kernels_offset = at;
    return put(to, p->kernels, p->kernels_bytes) && put(to, &t, sizeof t);
}

Status payload_write(const char *path, const char *program,
                     const PayloadParts *parts)
{
    char *beside = NULL;
    Status s = STATUS_NONE;
    FILE *to;
    bool ok;

    if (asprintf(&beside, "%s.tmp", path) < 0)
        return status_make(STATUS_SYSTEM, "no memory to write %s", path);
    to = fopen(beside, "wb");
    ok = to && put_payload(to, program, parts);
    if (to)
        ok = fclose(to) == 0 && ok;
    if (!ok || chmod(beside, 0755) != 0 || rename(beside, path) != 0)
        s = status_system(errno, "cannot write %s", path);
    if (s)
        unlink(beside);
    free(beside);
    return s;
}

/* ---- reading ------------------------------------------------------------- */

static Status read_at(int fd, const char *path, void *to, size_t n, uint64_t at)
{
    char *bytes = to;

    while (n > 0) {
        ssize_t got = pread(fd, bytes, n, (off_t)at);
        if (got == 0)
            return status_make(STATUS_INPUT, "%s is cut short", path);
        if (got < 0 && errno != EINTR)
            return status_system(errno, "cannot read %s", path);
        if (got > 0) {
            bytes += got;
            at += (uint64_t)got;
            n -= (size_t)got;
        }
    }
    return STATUS_NONE;
}

static Status read_part(int fd, const char *path, uint64_t at, uint64_t n,
                        char **out)
{
    *out = malloc((size_t)n + 1);
    if (!*out)
        return status_make(STATUS_SYSTEM, "no memory for the payload of %s",
                           path);
    return read_at(fd, path, *out, (size_t)n, at);
}

static Status write_memory_file(const char *bytes, size_t n, Payload *out)
{
    int fd = memfd_create("megac-kernels", MFD_CLOEXEC);

    if (fd < 0)
        return status_system(errno, "cannot make a file for the kernels");
    while (n > 0) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno != EINTR)
            return status_system(errno, "cannot unpack the kernels");
        if (done > 0) {
            bytes += done;
            n -= (size_t)done;
        }
    }
    snprintf(out->kernels, sizeof out->kernels, "/proc/self/fd/%d", fd);
    return STATUS_NONE;
}

static bool inside(uint64_t at, uint64_t n, uint64_t end)
{
    return at <= end && n <= end - at;
}

static Status read_trailer(int fd, const char *path, PayloadTrailer *out,
                           bool *out_found)
{
    struct stat st;
    uint64_t end;

    *out_found = false;
    if (fstat(fd, &st) != 0)
        return status_system(errno, "cannot read %s", path);
    if (st.st_size < (off_t)sizeof *out)
        return STATUS_NONE;
    end = (uint64_t)st.st_size - sizeof *out;
    STATUS_TRY(read_at(fd, path, out, sizeof *out, end));
    if (memcmp(out->magic, PAYLOAD_MAGIC, sizeof out->magic) != 0)
        return STATUS_NONE;
    *out_found = true;
    if (!inside(out->plan_offset, out->plan_bytes, end) ||
        !inside(out->kernels_offset, out->kernels_bytes, end))
        return status_make(STATUS_INPUT, "the payload of %s is damaged", path);
    return STATUS_NONE;
}

/* The kernels are machine code: what a flipped bit would do is anybody's
 * guess. */
static Status read_kernels(int fd, const char *path, const PayloadTrailer *t,
                           Payload *out)
{
    char *kernels;
    Status s = read_part(fd, path, t->kernels_offset, t->kernels_bytes,
                         &kernels);

    if (!s && XXH3_64bits(kernels, (size_t)t->kernels_bytes) != t->kernels_hash)
        s = status_make(STATUS_INPUT, "the kernels in %s are damaged", path);
    if (!s)
        s = write_memory_file(kernels, (size_t)t->kernels_bytes, out);
    free(kernels);
    return s;
}

static Status read_parts(int fd, const char *path, Payload *out)
{
    PayloadTrailer t;
    bool found;

    STATUS_TRY(read_trailer(fd, path, &t, &found));
    if (!found)
        return STATUS_NONE;
    out->run = t.run;
    out->plan_bytes = (size_t)t.plan_bytes;
    STATUS_TRY(read_part(fd, path, t.plan_offset, t.plan_bytes, &out->plan));
    return t.kernels_bytes ? read_kernels(fd, path, &t, out) : STATUS_NONE;
}

Status payload_read(const char *path, Payload *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Status s;

    *out = (Payload){0};
    if (fd < 0)
        return status_system(errno, "cannot open %s", path);
    s = read_parts(fd, path, out);
    close(fd);
    if (s) {
        free(out->plan);
        *out = (Payload){0};
    }
    return s;
}
