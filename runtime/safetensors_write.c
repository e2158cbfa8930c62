/* safetensors_write.c - gives tensors their places in files, and makes these.
 *
 * Tensors lie in the order of their names.  A part is full when the next
 * tensor would make it larger than it may be, as in huggingface_hub; what
 * counts is tensors, not the header.
 */
#include "runtime/safetensors_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, ALIGNMENT = 64, PARTS_MAX = 99999 };

/* ---- places -------------------------------------------------------------- */

static void drop_doubles(SafeSet *set)
{
    uint32_t kept = 0;

    safe_sort(set);
    for (uint32_t i = 0; i < set->n; i++)
        if (kept && strcmp(set->v[kept - 1].name, set->v[i].name) == 0)
            free(set->v[i].name);
        else
            set->v[kept++] = set->v[i];
    set->n = kept;
}

/* Gives each tensor a part and a place among its tensors; the number of
 * parts. */
static uint32_t divide(SafeSet *set, uint64_t part_bytes)
{
    uint64_t at = 0;
    uint32_t part = 0;

    for (uint32_t i = 0; i < set->n; i++) {
        SafeTensor *t = &set->v[i];
        uint64_t bytes = (uint64_t)(t->rows * MC_MAX(t->columns, 1)) *
                         plan_dtype_bytes(t->dtype);
        if (part_bytes && at && at + bytes > part_bytes) {
            part++;
            at = 0;
        }
        t->part = part;
        t->begin = at;
        t->end = at += bytes;
    }
    return part + 1;
}

static Status name_parts(SafeSet *set, const char *stem, uint32_t n)
{
    set->part = calloc(n, sizeof *set->part);
    if (!set->part)
        return status_make(STATUS_SYSTEM, "no memory for %u files", n);
    set->nparts = n;
    for (uint32_t i = 0; i < n; i++) {
        char **name = &set->part[i].name;
        int done = n == 1 ? asprintf(name, "%s.safetensors", stem)
                          : asprintf(name, "%s-%05u-of-%05u.safetensors", stem,
                                     i + 1, n);
        if (done < 0)
            return status_make(STATUS_SYSTEM, "no memory for %u names", n);
    }
    return STATUS_NONE;
}

/* ---- headers ------------------------------------------------------------- */

static json_t *make_entry(const SafeTensor *t)
{
    static const char *const names[] = {
        [PLAN_F32] = "F32", [PLAN_BF16] = "BF16", [PLAN_F16] = "F16"};
    json_t *shape = t->columns ? json_pack("[I, I]", (json_int_t)t->rows,
                                           (json_int_t)t->columns)
                               : json_pack("[I]", (json_int_t)t->rows);

    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", names[t->dtype], "shape",
                     shape, "data_offsets", (json_int_t)t->begin,
                     (json_int_t)t->end);
}

/* The JSON text, padded with blanks so that the data start at a multiple of
 * 64. */
static char *pad_header(const char *text, size_t *out_bytes)
{
    size_t whole = (strlen(text) + LENGTH_BYTES + ALIGNMENT - 1) / ALIGNMENT *
                   ALIGNMENT;
    uint64_t length = whole - LENGTH_BYTES;
    char *out = malloc(whole);

    if (!out)
        return NULL;
    memcpy(out, &length, LENGTH_BYTES);
    memset(out + LENGTH_BYTES, ' ', (size_t)length);
    memcpy(out + LENGTH_BYTES, text, strlen(text));
    *out_bytes = whole;
    return out;
}

/* The tensors first .. end - 1 are those of a part. */
static Status make_header(SafeSet *set, uint32_t first, uint32_t end,
                          SafePart *p)
{
    json_t *all = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text;

    for (uint32_t i = first; i < end; i++)
        json_object_set_new(all, set->v[i].name, make_entry(&set->v[i]));
    text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (text)
        p->header = pad_header(text, &p->header_bytes);
    free(text);
    if (!p->header)
        return status_make(STATUS_SYSTEM, "no memory for a header");
    p->bytes = p->header_bytes;
    for (uint32_t i = first; i < end; i++) {
        set->v[i].begin += p->header_bytes;
        p->bytes = set->v[i].end += p->header_bytes;
    }
    return STATUS_NONE;
}

Status safe_layout(SafeSet *set, const char *stem, uint64_t part_bytes)
{
    uint32_t first = 0, end, n;

    drop_doubles(set);
    n = divide(set, part_bytes);
    if (n > PARTS_MAX)
        return status_make(STATUS_INPUT, "%u files of at most %llu bytes are "
                                         "too many",
                           n, (unsigned long long)part_bytes);
    STATUS_TRY(name_parts(set, stem, n));
    for (uint32_t i = 0; i < n; i++, first = end) {
        end = first;
        while (end < set->n && set->v[end].part == i)
            end++;
        STATUS_TRY(make_header(set, first, end, &set->part[i]));
    }
    return STATUS_NONE;
}

/* ---- files --------------------------------------------------------------- */

static char *index_text(const SafeSet *set)
{
    json_t *map = json_object(), *all;
    char *text;

    for (uint32_t i = 0; i < set->n; i++)
        json_object_set_new(map, set->v[i].name,
                            json_string(set->part[set->v[i].part].name));
    all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                    (json_int_t)safe_total(set), "weight_map", map);
    text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    return text;
}

Status safe_write_index(const SafeSet *set, const char *dir, const char *stem)
{
    char *text = index_text(set);
    Status s = STATUS_NONE;
    Buf path = {0}, all = {0};

    if (!text)
        return status_make(STATUS_SYSTEM, "no memory for an index");
    buf_printf(&path, "%s/%s.safetensors.index.json", dir, stem);
    buf_printf(&all, "%s\n", text);
    if (!buf_write_file(&all, buf_str(&path)))
        s = status_system(errno, "cannot write %s", buf_str(&path));
    buf_free(&path);
    buf_free(&all);
    free(text);
    return s;
}

Status safe_write(const char *path, int fd, const char *bytes, size_t n,
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

/* At its full size, so that a full disk shows at once. */
Status safe_create(const char *path, const SafePart *part)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error;
    Status s;

    if (fd < 0)
        return status_system(errno, "cannot create %s", path);
    error = posix_fallocate(fd, 0, (off_t)part->bytes);
    s = error ? status_system(error, "cannot reserve %zu bytes for %s",
                              part->bytes, path)
              : safe_write(path, fd, part->header, part->header_bytes, 0);
    if (close(fd) != 0 && !s)
        s = status_system(errno, "cannot write %s", path);
    return s;
}
