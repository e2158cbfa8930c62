/* safetensors.c - the file format: header in, header out.
 *
 * Reading trusts nothing: the header's length, its JSON, every type, shape and
 * extent are checked against the file's size before a tensor can be found, and
 * extents may neither overlap nor leave gaps.  Tensors are kept sorted by
 * name.  Writing lays the tensors out in that order, in f32.
 */
#include "runtime/state.h"

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

/* The number of elements, or -1. */
static int64_t read_shape(const json_t *shape, SafeTensor *out)
{
    int64_t dims[2] = {0, 0}, n = 1;
    size_t rank = json_array_size(shape);

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
    out->rows = rank == 1 || rank == 2 ? dims[0] : -1;
    out->columns = rank == 2 ? dims[1] : rank == 1 ? 0 : -1;
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

static int by_name(const void *x, const void *y)
{
    const SafeTensor *a = x, *b = y;

    return strcmp(a->name, b->name);
}

static Status check_extents(const char *path, SafeFile *f, uint64_t start)
{
    uint64_t at = start;

    qsort(f->v, f->n, sizeof *f->v, by_begin);
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->v[i].begin != at)
            return damaged(path, f->v[i].name,
                           f->v[i].begin < at
                               ? "its data overlap another tensor's"
                               : "there is a gap before its data");
        at = f->v[i].end;
    }
    if (at != f->bytes)
        return damaged(path, "", "bytes behind the last tensor");
    qsort(f->v, f->n, sizeof *f->v, by_name);
    return STATUS_NONE;
}

static Status read_tensors(const char *path, json_t *header, uint64_t start,
                           SafeFile *f)
{
    const char *name;
    json_t *entry;

    f->v = calloc(json_object_size(header) + 1, sizeof *f->v);
    if (!f->v)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        STATUS_TRY(
            read_tensor(path, name, entry, start, f->bytes, &f->v[f->n]));
        f->n++;
    }
    return check_extents(path, f, start);
}

static Status read_header(const char *path, SafeFile *f)
{
    json_error_t error;
    uint64_t length;
    json_t *header;
    Status s;

    if (f->bytes < LENGTH_BYTES)
        return damaged(path, "", "too short for a safetensors file");
    memcpy(&length, f->map, sizeof length);
    if (length > HEADER_MAX || length > f->bytes - LENGTH_BYTES)
        return damaged(path, "", "its header is longer than the file");
    header = json_loadb(f->map + LENGTH_BYTES, (size_t)length,
                        JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        json_decref(header);
        return status_make(STATUS_INPUT, "%s: its header is no JSON object: %s",
                           path, error.text);
    }
    s = read_tensors(path, header, LENGTH_BYTES + length, f);
    json_decref(header);
    return s;
}

/* ---- files --------------------------------------------------------------- */

static Status map_file(const char *path, SafeFile *f)
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
    f->bytes = (size_t)st.st_size;
    if (f->bytes)
        map = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return status_system(errno, "%s", path);
    f->map = map;
    return STATUS_NONE;
}

Status safe_open(const char *path, SafeFile *out)
{
    SafeFile f = {0};
    Status s = map_file(path, &f);

    if (!s)
        s = read_header(path, &f);
    if (s)
        safe_close(&f);
    else
        *out = f;
    return s;
}

void safe_close(SafeFile *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        free(f->v[i].name);
    free(f->v);
    if (f->map)
        munmap(f->map, f->bytes);
    *f = (SafeFile){0};
}

const SafeTensor *safe_find(const SafeFile *f, const char *name)
{
    SafeTensor key = {0};
    char text[512];

    if (f->n == 0 ||
        snprintf(text, sizeof text, "%s", name) >= (int)sizeof text)
        return NULL;
    key.name = text;
    return bsearch(&key, f->v, f->n, sizeof key, by_name);
}

/* ---- writing ------------------------------------------------------------- */

static void drop_doubles(SafeFile *f)
{
    uint32_t kept = 0;

    qsort(f->v, f->n, sizeof *f->v, by_name);
    for (uint32_t i = 0; i < f->n; i++)
        if (kept && by_name(&f->v[kept - 1], &f->v[i]) == 0)
            free(f->v[i].name);
        else
            f->v[kept++] = f->v[i];
    f->n = kept;
}

static json_t *make_entry(const SafeTensor *t)
{
    json_t *shape = t->columns ? json_pack("[I, I]", (json_int_t)t->rows,
                                           (json_int_t)t->columns)
                               : json_pack("[I]", (json_int_t)t->rows);

    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape,
                     "data_offsets", (json_int_t)t->begin, (json_int_t)t->end);
}

/* The JSON text, padded with blanks so that the data start at a multiple of
 * 64. */
static char *make_header(const SafeFile *f, size_t *out_bytes)
{
    json_t *all = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text, *out = NULL;
    uint64_t length;

    for (uint32_t i = 0; i < f->n; i++)
        json_object_set_new(all, f->v[i].name, make_entry(&f->v[i]));
    text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (!text)
        return NULL;
    length = (strlen(text) + LENGTH_BYTES + 63) / 64 * 64 - LENGTH_BYTES;
    out = malloc(LENGTH_BYTES + (size_t)length);
    if (out) {
        memcpy(out, &length, LENGTH_BYTES);
        memset(out + LENGTH_BYTES, ' ', (size_t)length);
        memcpy(out + LENGTH_BYTES, text, strlen(text));
        *out_bytes = LENGTH_BYTES + (size_t)length;
    }
    free(text);
    return out;
}

Status safe_layout(SafeFile *f, char **out_header, size_t *out_bytes)
{
    uint64_t at = 0;

    drop_doubles(f);
    for (uint32_t i = 0; i < f->n; i++) {
        SafeTensor *t = &f->v[i];
        t->begin = at;
        at += (uint64_t)(t->rows * MC_MAX(t->columns, 1)) * 4;
        t->end = at;
    }
    *out_header = make_header(f, out_bytes);
    if (!*out_header)
        return status_make(STATUS_SYSTEM, "no memory for a header");
    for (uint32_t i = 0; i < f->n; i++) {
        f->v[i].begin += *out_bytes;
        f->v[i].end += *out_bytes;
    }
    f->bytes = (size_t)at + *out_bytes;
    return STATUS_NONE;
}
