/* safetensors.c - reads the header of one file.
 *
 * It trusts nothing: the header's length, its JSON, every type, shape and
 * extent are checked against the file's size before a tensor can be found, and
 * extents may neither overlap nor leave gaps.
 */
#include "runtime/safetensors_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MAX = 100000000, LENGTH_BYTES = 8, DIMS_MAX = 8 };

static Status damaged(const char *path, const char *name, const char *what)
{
    return status_make(STATUS_INPUT, "%s: %s%s%s%s", path,
                       *name ? "tensor " : "", name, *name ? ": " : "", what);
}

/* ---- one header entry ---------------------------------------------------- */

static bool read_dtype(const json_t *value, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } types[] = {{"F32", PLAN_F32}, {"BF16", PLAN_BF16}, {"F16", PLAN_F16}};
    const char *text = json_string_value(value);

    for (size_t i = 0; text && i < MC_LEN(types); i++)
        if (strcmp(text, types[i].name) == 0) {
            *out = types[i].dtype;
            return true;
        }
    return false;
}

/* The number of elements, or -1.  No columns mean a vector, so a matrix that
 * has none is neither. */
static int64_t read_shape(const json_t *shape, SafeTensor *out)
{
    int64_t dims[2] = {0, 0}, n = 1;
    size_t rank = json_array_size(shape);
    bool plain;

    if (!json_is_array(shape) || rank > DIMS_MAX)
        return -1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *item = json_array_get(shape, i);
        int64_t size = json_integer_value(item);
        if (!json_is_integer(item) || size < 0 ||
            __builtin_mul_overflow(n, size, &n) || n > (int64_t)1 << 48)
            return -1;
        if (i < 2)
            dims[i] = size;
    }
    plain = rank == 1 || (rank == 2 && dims[1] > 0);
    out->rows = plain ? dims[0] : -1;
    out->columns = plain ? dims[1] : -1;
    return n;
}

static bool read_extent(const json_t *offsets, uint64_t start, uint64_t bytes,
                        SafeTensor *out)
{
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    int64_t from = json_integer_value(begin), to = json_integer_value(end);

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || from < 0 || to < from ||
        (uint64_t)to > bytes - start)
        return false;
    out->begin = start + (uint64_t)from;
    out->end = start + (uint64_t)to;
    return true;
}

/* False types are allowed to be there (dtype PLAN_DTYPES), not to be used. */
static Status read_tensor(const char *path, const char *name,
                          const json_t *entry, uint64_t start, uint64_t bytes,
                          SafeTensor *out)
{
    int64_t elements = read_shape(json_object_get(entry, "shape"), out);

    if (elements < 0)
        return damaged(path, name, "wrong shape");
    if (!read_extent(json_object_get(entry, "data_offsets"), start, bytes, out))
        return damaged(path, name, "its data lie outside the file");
    if (!read_dtype(json_object_get(entry, "dtype"), &out->dtype))
        out->dtype = PLAN_DTYPES;
    else if (out->end - out->begin !=
             (uint64_t)elements * plan_dtype_bytes(out->dtype))
        return damaged(path, name, "its size does not fit its shape and type");
    out->name = strdup(name);
    if (!out->name)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    return STATUS_NONE;
}

/* ---- the header ---------------------------------------------------------- */

static int by_begin(const void *x, const void *y)
{
    const SafeTensor *a = x, *b = y;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Leaves the n tensors in the order of their places. */
static Status check_extents(const char *path, SafeTensor *v, uint32_t n,
                            uint64_t start, uint64_t bytes)
{
    uint64_t at = start;

    qsort(v, n, sizeof *v, by_begin);
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].begin != at)
            return damaged(path, v[i].name,
                           v[i].begin < at
                               ? "its data overlap another tensor's"
                               : "there is a gap before its data");
        at = v[i].end;
    }
    if (at != bytes)
        return damaged(path, "", "bytes behind the last tensor");
    return STATUS_NONE;
}

/* Room for what the header of the newest part lists. */
static Status make_room(const char *path, const json_t *header, SafeSet *set)
{
    size_t n = set->n + json_object_size(header) + 1;
    SafeTensor *v = n < UINT32_MAX ? realloc(set->v, n * sizeof *v) : NULL;

    if (!v)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    set->v = v;
    return STATUS_NONE;
}

static Status read_tensors(const char *path, json_t *header, uint64_t start,
                           uint64_t bytes, SafeSet *set)
{
    uint32_t first = set->n;
    const char *name;
    json_t *entry;

    STATUS_TRY(make_room(path, header, set));
    json_object_foreach(header, name, entry)
    {
        SafeTensor t = {.part = set->nparts - 1};
        if (strcmp(name, "__metadata__") == 0)
            continue;
        STATUS_TRY(read_tensor(path, name, entry, start, bytes, &t));
        set->v[set->n++] = t;
    }
    return check_extents(path, set->v + first, set->n - first, start, bytes);
}

static Status read_header(const char *path, const SafePart *p, SafeSet *set)
{
    json_error_t error;
    uint64_t length;
    json_t *header;
    Status s;

    if (p->bytes < LENGTH_BYTES)
        return damaged(path, "", "too short for a safetensors file");
    memcpy(&length, p->map, sizeof length);
    if (length > HEADER_MAX || length > p->bytes - LENGTH_BYTES)
        return damaged(path, "", "its header is longer than the file");
    header = json_loadb(p->map + LENGTH_BYTES, (size_t)length,
                        JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        json_decref(header);
        return status_make(STATUS_INPUT, "%s: its header is no JSON object: %s",
                           path, error.text);
    }
    s = read_tensors(path, header, LENGTH_BYTES + length, p->bytes, set);
    json_decref(header);
    return s;
}

/* ---- files --------------------------------------------------------------- */

static Status map_file(const char *path, SafePart *p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *map = NULL;

    if (fd < 0)
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return status_make(STATUS_INPUT, "%s: not a file", path);
    }
    p->bytes = (size_t)st.st_size;
    if (p->bytes)
        map = mmap(NULL, p->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return status_system(errno, "%s", path);
    p->map = map;
    return STATUS_NONE;
}

Status safe_add_part(SafeSet *set, const char *path)
{
    const char *slash = strrchr(path, '/');
    SafePart *part = realloc(set->part, (set->nparts + 1) * sizeof *part);

    if (!part)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    set->part = part;
    part += set->nparts++;
    *part = (SafePart){.name = strdup(slash ? slash + 1 : path)};
    if (!part->name)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    STATUS_TRY(map_file(path, part));
    return read_header(path, part, set);
}
