/* data_files.c - the files below directories, in an order that depends on
 * their names alone, so that the same tree packs to the same bytes anywhere.
 */
#include "driver/data.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct {
    const DataFilter *filter;
    Arena *a;
    CliList *files;
    size_t root; /* characters of the operand in front of each path */
} Walk;

static bool matches(const CliList *patterns, const char *below)
{
    const char *name = strrchr(below, '/');

    name = name ? name + 1 : below;
    for (uint32_t i = 0; i < patterns->n; i++) {
        const char *p = patterns->v[i];

        if (!fnmatch(p, strchr(p, '/') ? below : name, FNM_PATHNAME))
            return true;
    }
    return false;
}

static bool wanted(const Walk *w, const char *path)
{
    const char *below = path + w->root;
    const DataFilter *f = w->filter;

    return (f->include.n == 0 || matches(&f->include, below)) &&
           !matches(&f->exclude, below);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_hidden(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static Status walk(const Walk *w, const char *dir);

/* One entry of a directory. */
static Status visit(const Walk *w, const char *path)
{
    struct stat st;

    if (lstat(path, &st))
        return status_system(errno, "%s", path);
    if (S_ISDIR(st.st_mode))
        return walk(w, path);
    if (S_ISREG(st.st_mode) && wanted(w, path))
        vec_push(w->files, path);
    return STATUS_NONE;
}

static Status walk(const Walk *w, const char *dir)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, not_hidden, by_bytes);
    Status status = STATUS_NONE;

    if (n < 0)
        return status_system(errno, "%s", dir);
    for (int i = 0; i < n; i++) {
        if (!status)
            status = visit(w, arena_printf(w->a, "%s/%s", dir,
                                           entries[i]->d_name));
        free(entries[i]);
    }
    free(entries);
    return status;
}

static Status operand(Walk *w, const char *name)
{
    struct stat st;
    size_t n = strlen(name);

    if (stat(name, &st))
        return status_make(STATUS_INPUT, "%s: %s", name, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        vec_push(w->files, name);
        return STATUS_NONE;
    }
    while (n > 1 && name[n - 1] == '/')
        n--;
    w->root = n + 1;
    return walk(w, arena_strndup(w->a, name, n));
}

Status data_files(const CliList *operands, const DataFilter *filter, Arena *a,
                  CliList *out_files)
{
    Walk w = {.filter = filter, .a = a, .files = out_files};

    for (uint32_t i = 0; i < operands->n; i++)
        STATUS_TRY(operand(&w, operands->v[i]));
    return STATUS_NONE;
}
