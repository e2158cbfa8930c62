/* safetensors_set.c - opens one file, or the parts that an index lists.
 *
 * An index is believed in nothing: a part lies beside it, every tensor of a
 * part is listed and in no other part, every name that is listed is there, and
 * the sizes add up.  So a file that is left over from another model, or from
 * another division into parts, is never read as if it belonged.
 */
#include "runtime/safetensors_priv.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the set ------------------------------------------------------------- */

static int by_name(const void *x, const void *y)
{
    const SafeTensor *a = x, *b = y;

    return strcmp(a->name, b->name);
}

void safe_sort(SafeSet *set)
{
    if (set->n)
        qsort(set->v, set->n, sizeof *set->v, by_name);
}

void safe_close(SafeSet *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        free(set->v[i].name);
    for (uint32_t i = 0; i < set->nparts; i++) {
        if (set->part[i].map)
            munmap(set->part[i].map, set->part[i].bytes);
        free(set->part[i].name);
        free(set->part[i].header);
    }
    free(set->v);
    free(set->part);
    free(set->path);
    *set = (SafeSet){0};
}

const SafeTensor *safe_find(const SafeSet *set, const char *name)
{
    uint32_t low = 0, high = set->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, set->v[middle].name);
        if (order == 0)
            return &set->v[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *safe_bytes(const SafeSet *set, const SafeTensor *t)
{
    return set->part[t->part].map + t->begin;
}

uint64_t safe_total(const SafeSet *set)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < set->n; i++)
        sum += set->v[i].end - set->v[i].begin;
    return sum;
}

/* ---- the index ----------------------------------------------------------- */

typedef struct {
    const char *path;
    json_t *map; /* tensor: file */
} Index;

/* Parts lie beside the index, and are named without a folder. */
static Status check_entry(const Index *x, const char *tensor,
                          const json_t *value)
{
    const char *file = json_string_value(value);

    if (!file || !*file)
        return status_make(STATUS_INPUT, "%s: %s is in no file", x->path,
                           tensor);
    if (strchr(file, '/') || !strcmp(file, ".") || !strcmp(file, ".."))
        return status_make(STATUS_INPUT,
                           "%s: %s is in %s, which is no file of this folder",
                           x->path, tensor, file);
    return STATUS_NONE;
}

/* The files that are named, each once: an object of them, the caller's. */
static Status list_files(const Index *x, json_t **out)
{
    json_t *files = json_object(), *value;
    const char *tensor;

    *out = files;
    json_object_foreach(x->map, tensor, value)
    {
        STATUS_TRY(check_entry(x, tensor, value));
        if (json_object_set_new(files, json_string_value(value), json_true()))
            return status_make(STATUS_SYSTEM, "no memory for %s", x->path);
    }
    return STATUS_NONE;
}

static Status add_beside(const Index *x, const char *file, SafeSet *set)
{
    const char *slash = strrchr(x->path, '/');
    int folder = slash ? (int)(slash - x->path) + 1 : 0;
    char *path;
    Status s;

    if (asprintf(&path, "%.*s%s", folder, x->path, file) < 0)
        return status_make(STATUS_SYSTEM, "no memory for %s", file);
    s = safe_add_part(set, path);
    free(path);
    return status_in(s, "a part of %s", x->path);
}

static Status add_files(const Index *x, SafeSet *set)
{
    json_t *files, *value;
    const char *file;
    Status s = list_files(x, &files);

    json_object_foreach(files, file, value)
    {
        if (!s)
            s = add_beside(x, file, set);
    }
    json_decref(files);
    return s;
}

/* Every tensor is where the index says, … */
static Status check_listed(const Index *x, const SafeSet *set)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const SafeTensor *t = &set->v[i];
        const char *file = set->part[t->part].name;
        const char *listed =
            json_string_value(json_object_get(x->map, t->name));
        if (!listed)
            return status_make(STATUS_INPUT,
                               "%s does not list %s, which is in %s", x->path,
                               t->name, file);
        if (strcmp(listed, file) != 0)
            return status_make(STATUS_INPUT,
                               "%s: %s is listed in %s, but also in %s",
                               x->path, t->name, listed, file);
    }
    return STATUS_NONE;
}

/* … and everything that it lists is there. */
static Status check_present(const Index *x, const SafeSet *set)
{
    json_t *value;
    const char *tensor;

    json_object_foreach(x->map, tensor, value)
    {
        if (!safe_find(set, tensor))
            return status_make(STATUS_INPUT, "%s: %s is not in %s", x->path,
                               tensor, json_string_value(value));
    }
    return STATUS_NONE;
}

static Status check_size(const Index *x, const json_t *all, const SafeSet *set)
{
    const json_t *size =
        json_object_get(json_object_get(all, "metadata"), "total_size");
    uint64_t total = safe_total(set);

    if (!size)
        return STATUS_NONE;
    if (json_is_number(size) && json_number_value(size) == (double)total)
        return STATUS_NONE;
    return status_make(STATUS_INPUT,
                       "%s: metadata.total_size is not the size of its "
                       "tensors, %llu bytes",
                       x->path, (unsigned long long)total);
}

static Status read_index(const Index *x, const json_t *all, SafeSet *set)
{
    if (!json_is_object(x->map) || json_object_size(x->map) == 0)
        return status_make(STATUS_INPUT, "%s: no weight_map", x->path);
    STATUS_TRY(add_files(x, set));
    safe_sort(set);
    STATUS_TRY(check_listed(x, set));
    STATUS_TRY(check_present(x, set));
    return check_size(x, all, set);
}

static Status open_index(const char *path, SafeSet *set)
{
    json_error_t error;
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    Index x = {path, json_object_get(all, "weight_map")};
    Status s;

    if (!all)
        return status_make(STATUS_INPUT, "%s:%d: %s", path, error.line,
                           error.text);
    s = read_index(&x, all, set);
    json_decref(all);
    return s;
}

/* ---- opening ------------------------------------------------------------- */

static Status open_file(const char *path, SafeSet *set)
{
    STATUS_TRY(safe_add_part(set, path));
    safe_sort(set);
    return STATUS_NONE;
}

/* Opens `path` as what it is; `set` is to be closed also after a failure. */
static Status open_path(const char *path, SafeSet *set)
{
    size_t n = strlen(path);

    set->path = strdup(path);
    if (!set->path)
        return status_make(STATUS_SYSTEM, "no memory for %s", path);
    return n > 5 && !strcmp(path + n - 5, ".json") ? open_index(path, set)
                                                   : open_file(path, set);
}

static Status keep(Status s, SafeSet *set, SafeSet *out)
{
    if (s)
        safe_close(set);
    else
        *out = *set;
    return s;
}

Status safe_open(const char *path, SafeSet *out)
{
    struct stat st;
    SafeSet set = {0};

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return safe_open_in(path, "model", out);
    return keep(open_path(path, &set), &set, out);
}

/* Of the two spellings of a set there must be one. */
static Status choose(const char *dir, char *file, char *index, char **out)
{
    bool whole = access(file, F_OK) == 0, parts = access(index, F_OK) == 0;

    if (whole && parts)
        return status_make(STATUS_INPUT, "%s: both %s and %s are there", dir,
                           strrchr(file, '/') + 1, strrchr(index, '/') + 1);
    if (!whole && !parts)
        return status_make(STATUS_INPUT, "%s: neither %s nor %s is there", dir,
                           strrchr(file, '/') + 1, strrchr(index, '/') + 1);
    *out = whole ? file : index;
    return STATUS_NONE;
}

Status safe_open_in(const char *dir, const char *stem, SafeSet *out)
{
    char *file = NULL, *index = NULL, *path = NULL;
    SafeSet set = {0};
    Status s;

    if (asprintf(&file, "%s/%s.safetensors", dir, stem) < 0 ||
        asprintf(&index, "%s/%s.safetensors.index.json", dir, stem) < 0)
        s = status_make(STATUS_SYSTEM, "no memory for %s", dir);
    else
        s = choose(dir, file, index, &path);
    if (!s)
        s = open_path(path, &set);
    free(file);
    free(index);
    return keep(s, &set, out);
}
