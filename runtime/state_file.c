/* state_file.c - weights, gradients and moments, to and from safetensors files.
 *
 * All ranks agree on the file's layout by gathering the names and shapes of
 * what they own; rank 0 writes the header of FILE.tmp, every rank its own
 * parts at their places, and when all are done rank 0 renames.  Loading maps
 * the file and copies what is held.  state_walk.c knows which elements go
 * where, so layouts do not matter here.
 */
#include "runtime/state.h"
#include "runtime/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

/* The field that is saved: of the weights, the most exact copy. */
static const PlanField *saved_field(const State *s, const PlanTensor *t,
                                    PlanFieldKind kind)
{
    const PlanField *f = NULL;

    if (kind == PLAN_FIELD_PARAM)
        f = plan_tensor_field(s->plan, t, PLAN_FIELD_MASTER);
    if (!f)
        f = plan_tensor_field(s->plan, t, kind);
    return t->export_name ? f : NULL;
}

static bool owns(const State *s, const PlanField *f)
{
    return f && plan_expr_value(s->plan, f->owner, s->rank) == 0;
}

static char *slot_pointer(const State *s, const PlanField *f, uint32_t slot)
{
    return s->pointer(s->self, f->address + slot * f->layer_stride);
}

/* ---- agreeing on the layout ---------------------------------------------- */

/* "rows columns name\n" of each owned tensor. */
static void list_slot(const State *s, const PlanTensor *t, uint32_t slot,
                      FILE *to)
{
    char name[STATE_NAME_BYTES];

    for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++) {
        Status failed =
            state_export_name(s, t, slot, part, name, sizeof name);
        if (!failed)
            fprintf(to, "%lld %lld %s\n", (long long)t->rows,
                    (long long)t->columns, name);
        status_drop(failed);
    }
}

static void list_tensor(const State *s, const PlanTensor *t, FILE *to)
{
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        list_slot(s, t, slot, to);
}

static Status list_owned(const State *s, PlanFieldKind kind, char **out)
{
    size_t n;
    FILE *to = open_memstream(out, &n);

    if (!to)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    for (uint32_t i = 0; i < s->plan->tensors.n; i++) {
        const PlanTensor *t = &s->plan->tensors.v[i];
        if (owns(s, saved_field(s, t, kind)))
            list_tensor(s, t, to);
    }
    if (fclose(to) == 0)
        return STATUS_NONE;
    free(*out);
    return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
}

static Status parse_line(char *line, SafeTensor *out)
{
    long long rows, columns;
    int at = 0;

    if (sscanf(line, "%lld %lld %n", &rows, &columns, &at) != 2 || !at)
        return status_make(STATUS_RUN, "a rank sent a damaged list of tensors");
    *out = (SafeTensor){
        .name = strdup(line + at), .rows = rows, .columns = columns};
    return out->name ? STATUS_NONE
                     : status_make(STATUS_SYSTEM, "no memory for a name");
}

static Status parse_list(char *text, SafeFile *out)
{
    size_t lines = 0;
    char *rest = text, *line;

    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    out->v = calloc(lines + 1, sizeof *out->v);
    if (!out->v)
        return status_make(STATUS_SYSTEM, "no memory for a list of tensors");
    while ((line = strsep(&rest, "\n")) && *line) {
        STATUS_TRY(parse_line(line, &out->v[out->n]));
        out->n++;
    }
    return STATUS_NONE;
}

static Status agree(const State *s, PlanFieldKind kind, SafeFile *f,
                    char **out_header, size_t *out_bytes)
{
    char *own = NULL, *all = NULL;
    Status failed = list_owned(s, kind, &own);

    if (!failed)
        failed = comm_mpi_gather(own, &all);
    if (!failed)
        failed = parse_list(all, f);
    if (!failed)
        failed = safe_layout(f, out_header, out_bytes);
    if (own)
        free(own);
    free(all);
    return failed;
}

/* ---- writing ------------------------------------------------------------- */

/* Gathers neighbouring runs, so that whole tensors are written in large
 * pieces. */
typedef struct {
    const char *path;
    int fd;
    uint64_t start; /* of the tensor, in the file */
    const char *from;
    uint32_t dtype;
    float factor; /* of what is written */
    float *buffer;
    int64_t at, n; /* elements of the tensor in the buffer */
} Writer;

static Status write_all(const char *path, int fd, const char *bytes, size_t n,
                        uint64_t at)
{
    while (n > 0) {
        ssize_t done = pwrite(fd, bytes, n, (off_t)at);
        if (done < 0 && errno != EINTR)
            return status_system(errno, "cannot write %s", path);
        if (done > 0) {
            bytes += done;
            at += (uint64_t)done;
            n -= (size_t)done;
        }
    }
    return STATUS_NONE;
}

static Status flush(Writer *w)
{
    int64_t n = w->n;

    w->n = 0;
    return write_all(w->path, w->fd, (const char *)w->buffer, (size_t)n * 4,
                     w->start + (uint64_t)w->at * 4);
}

static Status write_run(void *self, const StateRun *run)
{
    enum { CAPACITY = BUFFER_BYTES / 4 };
    Writer *w = self;

    for (int64_t i = 0; i < run->n; i++) {
        if (w->n == CAPACITY || w->at + w->n != run->at + i)
            STATUS_TRY(flush(w));
        if (w->n == 0)
            w->at = run->at + i;
        w->buffer[w->n++] =
            w->factor *
            state_fetch(w->dtype, w->from, run->local + i * run->stride);
    }
    return STATUS_NONE;
}

static Status write_slot(const State *s, const PlanTensor *t,
                         const PlanField *field, uint32_t slot,
                         const SafeFile *f, Writer *w)
{
    char name[STATE_NAME_BYTES];

    w->from = slot_pointer(s, field, slot);
    for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++) {
        STATUS_TRY(state_export_name(s, t, slot, part, name, sizeof name));
        w->start = safe_find(f, name)->begin;
        STATUS_TRY(state_walk(s, t, field, part, write_run, w));
        STATUS_TRY(flush(w));
    }
    return STATUS_NONE;
}

static Status write_tensor(const State *s, const PlanTensor *t,
                           const PlanField *field, const SafeFile *f, Writer *w)
{
    w->dtype = field->dtype;
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        STATUS_TRY(write_slot(s, t, field, slot, f, w));
    return STATUS_NONE;
}

static Status write_owned(const State *s, const SafeFile *f, PlanFieldKind kind,
                          Writer *w)
{
    bool scaled = kind == PLAN_FIELD_GRAD && s->grad_scale > 0;

    w->factor = scaled ? 1 / s->grad_scale : 1;
    for (uint32_t i = 0; i < s->plan->tensors.n; i++) {
        const PlanTensor *t = &s->plan->tensors.v[i];
        const PlanField *field = saved_field(s, t, kind);
        if (owns(s, field))
            STATUS_TRY(write_tensor(s, t, field, f, w));
    }
    return STATUS_NONE;
}

/* Rank 0: the file at its full size, so that a full disk shows at once. */
static Status create(const char *path, const SafeFile *f, const char *header,
                     size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error;
    Status s;

    if (fd < 0)
        return status_system(errno, "cannot create %s", path);
    error = posix_fallocate(fd, 0, (off_t)f->bytes);
    s = error ? status_system(error, "cannot reserve %zu bytes for %s",
                              f->bytes, path)
              : write_all(path, fd, header, bytes, 0);
    if (close(fd) != 0 && !s)
        s = status_system(errno, "cannot write %s", path);
    return s;
}

static Status write_parts(const State *s, const char *path, const SafeFile *f,
                          PlanFieldKind kind)
{
    Writer w = {.path = path,
                .fd = open(path, O_WRONLY | O_CLOEXEC),
                .buffer = malloc(BUFFER_BYTES)};
    Status failed;

    if (w.fd < 0)
        failed = status_system(errno, "cannot open %s", path);
    else if (!w.buffer)
        failed = status_make(STATUS_SYSTEM, "no memory to write %s", path);
    else
        failed = write_owned(s, f, kind, &w);
    if (w.fd >= 0)
        close(w.fd);
    free(w.buffer);
    return failed;
}

Status state_write(const State *s, const char *path, PlanFieldKind kind)
{
    char *header = NULL;
    SafeFile f = {0};
    size_t bytes = 0;
    Status failed = agree(s, kind, &f, &header, &bytes);

    if (!failed && s->rank == 0)
        failed = create(path, &f, header, bytes);
    if (!failed)
        failed = comm_mpi_barrier();
    if (!failed)
        failed = write_parts(s, path, &f, kind);
    free(header);
    safe_close(&f);
    return failed;
}

static Status wait_for_disk(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Status failed = STATUS_NONE;

    if (fd < 0 || fsync(fd) != 0)
        failed = status_system(errno, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return failed;
}

Status state_save(const State *s, const char *path, PlanFieldKind kind)
{
    char *beside = NULL;
    Status failed;

    if (asprintf(&beside, "%s.tmp", path) < 0)
        return status_make(STATUS_SYSTEM, "no memory to save %s", path);
    failed = state_write(s, beside, kind);
    if (!failed)
        failed = wait_for_disk(beside);
    if (!failed)
        failed = comm_mpi_barrier();
    if (!failed && s->rank == 0 && rename(beside, path) != 0)
        failed = status_system(errno, "cannot rename %s", beside);
    if (failed)
        unlink(beside);
    free(beside);
    return failed;
}

/* ---- loading ------------------------------------------------------------- */

typedef struct {
    const char *from;
    uint32_t from_dtype, dtype;
    char *to;
} Reader;

typedef struct {
    const char *path;
    SafeFile file;
    PlanFieldKind kind;
} Loading;

static Status read_run(void *self, const StateRun *run)
{
    const Reader *r = self;

    for (int64_t i = 0; i < run->n; i++)
        state_store(r->dtype, r->to, run->local + i * run->stride,
                    state_fetch(r->from_dtype, r->from, run->at + i));
    return STATUS_NONE;
}

static Status find_tensor(const SafeFile *f, const char *path,
                          const PlanTensor *t, const char *name,
                          const SafeTensor **out)
{
    const SafeTensor *found = safe_find(f, name);

    if (!found)
        return status_make(STATUS_INPUT, "%s has no tensor %s", path, name);
    if (found->dtype == PLAN_DTYPES)
        return status_make(STATUS_INPUT,
                           "%s: tensor %s is neither F32, BF16 "
                           "nor F16",
                           path, name);
    if (found->rows != t->rows || found->columns != t->columns)
        return status_make(STATUS_INPUT,
                           "%s: tensor %s is [%lld, %lld], the "
                           "model needs [%lld, %lld]",
                           path, name, (long long)found->rows,
                           (long long)found->columns, (long long)t->rows,
                           (long long)t->columns);
    *out = found;
    return STATUS_NONE;
}

static Status load_part(const State *s, const PlanTensor *t,
                        const PlanField *field, const Loading *from,
                        uint32_t slot, uint32_t part)
{
    char name[STATE_NAME_BYTES];
    const SafeTensor *found = NULL;
    Reader r = {.dtype = field->dtype, .to = slot_pointer(s, field, slot)};

    STATUS_TRY(state_export_name(s, t, slot, part, name, sizeof name));
    STATUS_TRY(find_tensor(&from->file, from->path, t, name, &found));
    r.from = from->file.map + found->begin;
    r.from_dtype = found->dtype;
    return state_walk(s, t, field, part, read_run, &r);
}

static Status load_field(const State *s, const PlanTensor *t,
                         const PlanField *field, const Loading *from)
{
    for (uint32_t slot = 0; slot < state_slots(t); slot++)
        for (uint32_t part = 0; part < plan_export_parts(s->plan, t); part++)
            STATUS_TRY(load_part(s, t, field, from, slot, part));
    return STATUS_NONE;
}

/* Weights are all copies of them. */
static bool is_of(const PlanField *field, PlanFieldKind kind)
{
    return field->kind == kind ||
           (kind == PLAN_FIELD_PARAM && field->kind == PLAN_FIELD_MASTER);
}

static Status load_tensor(const State *s, const PlanTensor *t,
                          const Loading *from)
{
    for (uint32_t i = 0; t->export_name && i < t->fields.n; i++) {
        const PlanField *field = &s->plan->fields.v[t->fields.first + i];
        if (is_of(field, from->kind))
            STATUS_TRY(load_field(s, t, field, from));
    }
    return STATUS_NONE;
}

static Status load_all(const State *s, const Loading *from)
{
    for (uint32_t i = 0; i < s->plan->tensors.n; i++)
        STATUS_TRY(load_tensor(s, &s->plan->tensors.v[i], from));
    return STATUS_NONE;
}

/* A tensor that no rank holds belongs to another, perhaps a deeper model. */
static Status check_strangers(const State *s, const Loading *from)
{
    const SafeFile *f = &from->file;
    char *header = NULL;
    SafeFile model = {0};
    size_t bytes = 0;
    uint32_t n = 0, last = 0;
    Status failed = agree(s, from->kind, &model, &header, &bytes);

    for (uint32_t i = 0; !failed && i < f->n; i++)
        if (!safe_find(&model, f->v[i].name)) {
            last = i;
            n++;
        }
    if (n)
        failed = status_make(STATUS_INPUT,
                             "%s: the model has no tensor %s, and %u more",
                             from->path, f->v[last].name, n - 1);
    free(header);
    safe_close(&model);
    return failed;
}

Status state_load(const State *s, const char *path, PlanFieldKind kind)
{
    Loading from = {.path = path, .kind = kind};
    Status failed;

    STATUS_TRY(safe_open(path, &from.file));
    failed = load_all(s, &from);
    if (!failed)
        failed = check_strangers(s, &from);
    safe_close(&from.file);
    return failed;
}
