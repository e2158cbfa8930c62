/* safetensors_copy.c - writes the tensors of a set once more, in another type
 * or in other parts.
 *
 * Tensors pass through a buffer, piece by piece, so that a set may be larger
 * than the memory.
 */
#include "runtime/safetensors_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 1 << 18 /* numbers */, WIDEST = 4 };

/* The same tensors in the type that is wanted. */
static Status describe(const SafeSet *from, uint32_t dtype, SafeSet *out)
{
    out->v = calloc(from->n + 1, sizeof *out->v);
    if (!out->v)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    for (uint32_t i = 0; i < from->n; i++) {
        const SafeTensor *t = &from->v[i];
        if (t->rows < 0 || t->dtype == PLAN_DTYPES)
            return status_make(STATUS_INPUT,
                               "%s: tensor %s is no vector or matrix of F32, "
                               "BF16 or F16",
                               from->path, t->name);
        out->v[out->n] = (SafeTensor){
            .name = strdup(t->name),
            .dtype = dtype == PLAN_DTYPES ? t->dtype : dtype,
            .rows = t->rows,
            .columns = t->columns};
        if (!out->v[out->n++].name)
            return status_make(STATUS_SYSTEM, "no memory for a name");
    }
    return STATUS_NONE;
}

/* ---- one tensor ---------------------------------------------------------- */

typedef struct {
    const SafeSet *from;
    char *buffer;
    const char *path; /* of the part that is written */
    int fd;
} Copy;

/* What is finite stays so: a type must be able to hold it. */
static Status convert(const Copy *c, const SafeTensor *t, uint32_t dtype,
                      int64_t first, int64_t n)
{
    const char *bytes = safe_bytes(c->from, t);

    for (int64_t i = 0; i < n; i++) {
        float value = plan_fetch(t->dtype, bytes, first + i);
        plan_store(dtype, c->buffer, i, value);
        if (isfinite(value) && !isfinite(plan_fetch(dtype, c->buffer, i)))
            return status_make(STATUS_INPUT,
                               "%s: tensor %s has %g, which is too large for "
                               "%s",
                               c->from->path, t->name, (double)value,
                               plan_dtype_name(dtype));
    }
    return STATUS_NONE;
}

static Status copy_tensor(const Copy *c, const SafeTensor *to)
{
    const SafeTensor *t = safe_find(c->from, to->name);
    size_t width = plan_dtype_bytes(to->dtype);
    int64_t n = (int64_t)((to->end - to->begin) / width);

    if (t->dtype == to->dtype)
        return safe_write(c->path, c->fd, safe_bytes(c->from, t),
                          (size_t)n * width, to->begin);
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t piece = MC_MIN(n - i, (int64_t)PIECE);
        STATUS_TRY(convert(c, t, to->dtype, i, piece));
        STATUS_TRY(safe_write(c->path, c->fd, c->buffer,
                              (size_t)piece * width,
                              to->begin + (uint64_t)i * width));
    }
    return STATUS_NONE;
}

/* ---- one part ------------------------------------------------------------ */

static Status copy_tensors(const Copy *c, const SafeSet *to, uint32_t part)
{
    for (uint32_t i = 0; i < to->n; i++)
        if (to->v[i].part == part)
            STATUS_TRY(copy_tensor(c, &to->v[i]));
    if (fsync(c->fd) != 0)
        return status_system(errno, "cannot write %s", c->path);
    return STATUS_NONE;
}

static Status copy_to(Copy *c, const char *path, const SafeSet *to,
                      uint32_t part)
{
    Status s;

    STATUS_TRY(safe_create(path, &to->part[part]));
    c->path = path;
    c->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (c->fd < 0)
        return status_system(errno, "cannot open %s", path);
    s = copy_tensors(c, to, part);
    if (close(c->fd) != 0 && !s)
        s = status_system(errno, "cannot write %s", path);
    return s;
}

static Status copy_part(Copy *c, const char *dir, const SafeSet *to,
                        uint32_t part)
{
    char *path;
    Status s;

    if (asprintf(&path, "%s/%s", dir, to->part[part].name) < 0)
        return status_make(STATUS_SYSTEM, "no memory to write %s", dir);
    s = copy_to(c, path, to, part);
    free(path);
    return s;
}

static Status copy_parts(Copy *c, const char *dir, const SafeSet *to)
{
    c->buffer = malloc((size_t)PIECE * WIDEST);
    if (!c->buffer)
        return status_make(STATUS_SYSTEM, "no memory to write %s", dir);
    for (uint32_t i = 0; i < to->nparts; i++)
        STATUS_TRY(copy_part(c, dir, to, i));
    return STATUS_NONE;
}

Status safe_copy(const SafeSet *from, const SafeCopy *how)
{
    Copy c = {.from = from};
    SafeSet to = {0};
    Status s = describe(from, how->dtype, &to);

    if (!s)
        s = safe_layout(&to, how->stem, how->part_bytes);
    if (!s)
        s = copy_parts(&c, how->dir, &to);
    if (!s && to.nparts > 1)
        s = safe_write_index(&to, how->dir, how->stem);
    free(c.buffer);
    safe_close(&to);
    return s;
}
