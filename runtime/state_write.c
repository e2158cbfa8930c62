/* state_write.c - weights, gradients and moments to safetensors files.
 *
 * Rank 0 makes the files with their headers, every rank writes what it owns at
 * its places.  Saving writes beside the files, and when all are on the disk
 * rank 0 renames.
 */
#include "runtime/state_priv.h"

#include "runtime/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, PATH_BYTES = 4096 };

/* Files, what is to be in them, and what is behind their names for now. */
typedef struct {
    const StateFiles *files;
    SafeSet set;
    const char *end;
} Target;

/* Gathers neighbouring runs, so that whole tensors are written in large
 * pieces. */
typedef struct {
    const Target *to;
    char path[PATH_BYTES]; /* of the part that is open, … */
    uint32_t part;         /* … its number … */
    int fd;                /* … or -1 */
    uint64_t start;        /* of the tensor, in the file */
    const char *from;
    uint32_t dtype;
    float factor; /* of what is written */
    float *buffer;
    int64_t at, n; /* elements of the tensor in the buffer */
} Writer;

static Status part_path(const Target *to, uint32_t part, const char *end,
                        char *out)
{
    if (snprintf(out, PATH_BYTES, "%s/%s%s", to->files->dir,
                 to->set.part[part].name, end) < PATH_BYTES)
        return STATUS_NONE;
    return status_make(STATUS_INPUT, "the path %s is too long",
                       to->files->dir);
}

static Status flush(Writer *w)
{
    int64_t n = w->n;

    w->n = 0;
    return safe_write(w->path, w->fd, (const char *)w->buffer, (size_t)n * 4,
                      w->start + (uint64_t)w->at * 4);
}

static Status close_part(Writer *w)
{
    Status s = STATUS_NONE;

    if (w->fd >= 0 && close(w->fd) != 0)
        s = status_system(errno, "cannot write %s", w->path);
    w->fd = -1;
    return s;
}

static Status open_part(Writer *w, uint32_t part)
{
    if (w->fd >= 0 && w->part == part)
        return STATUS_NONE;
    STATUS_TRY(close_part(w));
    STATUS_TRY(part_path(w->to, part, w->to->end, w->path));
    w->part = part;
    w->fd = open(w->path, O_WRONLY | O_CLOEXEC);
    return w->fd < 0 ? status_system(errno, "cannot open %s", w->path)
                     : STATUS_NONE;
}

/* Elements i .. i + n - 1 of a run into the buffer. */
static void take(Writer *w, const StateRun *run, int64_t i, int64_t n)
{
    float *to = w->buffer + w->n;
    int64_t local = run->local + i * run->stride;
    bool same = w->dtype == PLAN_F32 && !(w->factor < 1) && !(w->factor > 1);

    if (same && run->stride == 1)
        memcpy(to, w->from + local * 4, (size_t)n * 4);
    else
        for (int64_t k = 0; k < n; k++)
            to[k] = w->factor *
                    plan_fetch(w->dtype, w->from, local + k * run->stride);
    w->n += n;
}

static Status write_run(void *self, const StateRun *run)
{
    enum { CAPACITY = BUFFER_BYTES / 4 };
    Writer *w = self;
    int64_t now;

    for (int64_t i = 0; i < run->n; i += now) {
        if (w->n == CAPACITY || w->at + w->n != run->at + i)
            STATUS_TRY(flush(w));
        if (w->n == 0)
            w->at = run->at + i;
        now = MC_MIN(run->n - i, CAPACITY - w->n);
        take(w, run, i, now);
    }
    return STATUS_NONE;
}

static Status write_slot(const State *s, const PlanTensor *t,
                         const PlanField *field, uint32_t slot, Writer *w)
{
    char name[STATE_NAME_BYTES];

    w->from = state_slot_pointer(s, field, slot);
    for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++) {
        const SafeTensor *place;
        STATUS_TRY(state_export_name(s, t, slot, part, name, sizeof name));
        place = safe_find(&w->to->set, name);
        STATUS_TRY(open_part(w, place->part));
        w->start = place->begin;
        STATUS_TRY(state_walk(s, t, field, part, write_run, w));
        STATUS_TRY(flush(w));
    }
    return STATUS_NONE;
}

static Status write_tensor(const State *s, const PlanTensor *t,
                           const PlanField *field, Writer *w)
{
    w->dtype = field->dtype;
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        STATUS_TRY(write_slot(s, t, field, slot, w));
    return STATUS_NONE;
}

static Status write_owned(const State *s, PlanFieldKind kind, Writer *w)
{
    bool scaled = kind == PLAN_FIELD_GRAD && s->grad_scale > 0;

    w->factor = scaled ? 1 / s->grad_scale : 1;
    for (uint32_t i = 0; i < s->plan->tensors.n; i++) {
        const PlanTensor *t = &s->plan->tensors.v[i];
        const PlanField *field = state_owned_field(s, t, kind);
        if (field)
            STATUS_TRY(write_tensor(s, t, field, w));
    }
    return STATUS_NONE;
}

static Status write_parts(const State *s, const Target *to, PlanFieldKind kind)
{
    Writer w = {.to = to, .fd = -1, .buffer = malloc(BUFFER_BYTES)};
    Status failed, closed;

    if (w.buffer)
        failed = write_owned(s, kind, &w);
    else
        failed = status_make(STATUS_SYSTEM, "no memory to write %s",
                             to->files->dir);
    closed = close_part(&w);
    free(w.buffer);
    if (!failed)
        return closed;
    status_drop(closed);
    return failed;
}

/* Rank 0: the files at their full size. */
static Status create_parts(const Target *to)
{
    char path[PATH_BYTES];

    for (uint32_t i = 0; i < to->set.nparts; i++) {
        STATUS_TRY(part_path(to, i, to->end, path));
        STATUS_TRY(safe_create(path, &to->set.part[i]));
    }
    return STATUS_NONE;
}

static Status write_set(const State *s, Target *to, PlanFieldKind kind)
{
    STATUS_TRY(state_agree(s, kind, to->files->stem, to->files->part_bytes,
                           &to->set));
    if (s->rank == 0)
        STATUS_TRY(create_parts(to));
    STATUS_TRY(comm_mpi_barrier());
    return write_parts(s, to, kind);
}

/* Rank 0. */
static Status write_index(const Target *to)
{
    if (to->set.nparts == 1)
        return STATUS_NONE;
    return safe_write_index(&to->set, to->files->dir, to->files->stem);
}

Status state_write(const State *s, const StateFiles *files, PlanFieldKind kind)
{
    Target to = {.files = files, .end = ""};
    Status failed = write_set(s, &to, kind);

    if (!failed && s->rank == 0)
        failed = write_index(&to);
    safe_close(&to.set);
    return failed;
}

/* ---- writing beside ------------------------------------------------------ */

static Status sync_part(const Target *to, uint32_t part)
{
    Status failed = STATUS_NONE;
    char path[PATH_BYTES];
    int fd;

    STATUS_TRY(part_path(to, part, to->end, path));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        failed = status_system(errno, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return failed;
}

static Status rename_part(const Target *to, uint32_t part)
{
    char beside[PATH_BYTES], path[PATH_BYTES];

    STATUS_TRY(part_path(to, part, to->end, beside));
    STATUS_TRY(part_path(to, part, "", path));
    if (rename(beside, path) != 0)
        return status_system(errno, "cannot rename %s", beside);
    return STATUS_NONE;
}

static void remove_part(const Target *to, uint32_t part)
{
    char path[PATH_BYTES];
    Status failed = part_path(to, part, to->end, path);

    if (!failed)
        unlink(path);
    status_drop(failed);
}

/* The files get their names when all are on the disk; the index is last. */
static Status place(const State *s, const Target *to)
{
    for (uint32_t i = 0; i < to->set.nparts; i++)
        STATUS_TRY(sync_part(to, i));
    STATUS_TRY(comm_mpi_barrier());
    for (uint32_t i = 0; s->rank == 0 && i < to->set.nparts; i++)
        STATUS_TRY(rename_part(to, i));
    return s->rank == 0 ? write_index(to) : STATUS_NONE;
}

Status state_save(const State *s, const StateFiles *files, PlanFieldKind kind)
{
    Target to = {.files = files, .end = ".tmp"};
    Status failed = write_set(s, &to, kind);

    if (!failed)
        failed = place(s, &to);
    for (uint32_t i = 0; failed && i < to.set.nparts; i++)
        remove_part(&to, i);
    safe_close(&to.set);
    return failed;
}
