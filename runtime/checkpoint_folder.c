/* checkpoint_folder.c - the checkpoints that there are, and their names.
 *
 * A checkpoint is complete once its folder has its final name and a state.json.
 * It gets the name last and loses the file first, so whatever moment a run
 * dies at, a folder is complete, or it is seen that it is not:
 *
 *     step-00000020.tmp   ->   step-00000020   ->   without state.json, gone
 *        being written           complete             being removed
 */
#include "runtime/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "step-"
#define UNFINISHED ".tmp"

/* ---- names --------------------------------------------------------------- */

static Status join(const char *folder, const char *name,
                   char out[CHECKPOINT_PATH_BYTES])
{
    if (snprintf(out, CHECKPOINT_PATH_BYTES, "%s/%s", folder, name) >=
        CHECKPOINT_PATH_BYTES)
        return status_make(STATUS_INPUT, "the path %s is too long", folder);
    return STATUS_NONE;
}

static void name_step(int64_t step, char out[64])
{
    snprintf(out, 64, PREFIX "%08lld", (long long)step);
}

Status checkpoint_path(const char *folder, int64_t step,
                       char out[CHECKPOINT_PATH_BYTES])
{
    char name[64];

    name_step(step, name);
    return join(folder, name, out);
}

/* The step of a name, or -1; *out_tail is what follows it. */
static int64_t step_of(const char *name, const char **out_tail)
{
    char *tail;
    long long step;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return -1;
    name += strlen(PREFIX);
    step = strtoll(name, &tail, 10);
    *out_tail = tail;
    return *name >= '0' && *name <= '9' && tail - name >= 8 ? step : -1;
}

/* ---- one folder ---------------------------------------------------------- */

static bool is_complete(const char *dir)
{
    char path[CHECKPOINT_PATH_BYTES];
    Status failed = join(dir, "state.json", path);
    bool complete = !failed && access(path, F_OK) == 0;

    status_drop(failed);
    return complete;
}

/* Calls `fn` with every file of a folder. */
static Status each_file(const char *dir, Status (*fn)(const char *path))
{
    char path[CHECKPOINT_PATH_BYTES];
    Status failed = STATUS_NONE;
    DIR *d = opendir(dir);
    struct dirent *entry;

    if (!d)
        return status_system(errno, "cannot read %s", dir);
    while (!failed && (entry = readdir(d))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        failed = join(dir, entry->d_name, path);
        if (!failed)
            failed = fn(path);
    }
    closedir(d);
    return failed;
}

static Status remove_file(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return status_system(errno, "cannot remove %s", path);
    return STATUS_NONE;
}

static Status remove_folder(const char *dir)
{
    char path[CHECKPOINT_PATH_BYTES];

    STATUS_TRY(join(dir, "state.json", path));
    STATUS_TRY(remove_file(path));
    STATUS_TRY(each_file(dir, remove_file));
    if (rmdir(dir) != 0)
        return status_system(errno, "cannot remove %s", dir);
    return STATUS_NONE;
}

static Status sync_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Status failed = STATUS_NONE;

    if (fd < 0 || fsync(fd) != 0)
        failed = status_system(errno, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return failed;
}

Status checkpoint_sync(const char *dir)
{
    STATUS_TRY(each_file(dir, sync_path));
    return sync_path(dir);
}

/* ---- all of them --------------------------------------------------------- */

typedef Vec(int64_t) Steps;

static int by_step(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;

    return (*a > *b) - (*a < *b);
}

/* The complete ones, ascending; no folder: none. */
static Status list_complete(const char *folder, Steps *out)
{
    char path[CHECKPOINT_PATH_BYTES];
    Status failed = STATUS_NONE;
    DIR *d = opendir(folder);
    struct dirent *entry;

    if (!d && errno != ENOENT)
        return status_system(errno, "cannot read %s", folder);
    while (d && !failed && (entry = readdir(d))) {
        const char *tail = "";
        int64_t step = step_of(entry->d_name, &tail);
        failed = join(folder, entry->d_name, path);
        if (!failed && step >= 0 && !*tail && is_complete(path))
            vec_push(out, step);
    }
    if (d)
        closedir(d);
    if (out->n)
        qsort(out->v, out->n, sizeof *out->v, by_step);
    return failed;
}

Status checkpoint_newest(const char *folder, int64_t *out_step)
{
    Steps steps = {0};
    Status failed = list_complete(folder, &steps);

    if (!failed)
        *out_step = steps.n ? vec_last(&steps) : -1;
    vec_free(&steps);
    return failed;
}

static Status remove_incomplete(const char *path)
{
    const char *name = strrchr(path, '/') + 1, *tail = "";

    if (step_of(name, &tail) < 0)
        return STATUS_NONE;
    if (!strcmp(tail, UNFINISHED) || (!*tail && !is_complete(path)))
        return remove_folder(path);
    return STATUS_NONE;
}

static Status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return status_system(errno, "cannot make %s", path);
    return STATUS_NONE;
}

/* With the folders around it. */
static Status make_folders(const char *path)
{
    char outer[CHECKPOINT_PATH_BYTES];

    for (const char *c = strchr(path + 1, '/'); c; c = strchr(c + 1, '/')) {
        snprintf(outer, sizeof outer, "%.*s", (int)(c - path), path);
        STATUS_TRY(make_folder(outer));
    }
    return make_folder(path);
}

Status checkpoint_unfinished(const char *folder, int64_t step,
                             char out[CHECKPOINT_PATH_BYTES])
{
    char name[64];

    name_step(step, name);
    strcat(name, UNFINISHED);
    return join(folder, name, out);
}

Status checkpoint_begin(const char *folder, int64_t step)
{
    char dir[CHECKPOINT_PATH_BYTES];

    STATUS_TRY(checkpoint_unfinished(folder, step, dir));
    STATUS_TRY(make_folders(folder));
    STATUS_TRY(each_file(folder, remove_incomplete));
    return make_folder(dir);
}

void checkpoint_abandon(const char *folder, int64_t step)
{
    char dir[CHECKPOINT_PATH_BYTES];
    Status failed = checkpoint_unfinished(folder, step, dir);

    if (!failed)
        failed = remove_folder(dir);
    status_drop(failed);
}

static Status write_latest(const char *folder, int64_t step)
{
    char path[CHECKPOINT_PATH_BYTES], name[64];
    Buf text = {0};
    bool ok;

    name_step(step, name);
    STATUS_TRY(join(folder, "latest", path));
    buf_printf(&text, "%s\n", name);
    ok = buf_write_file(&text, path);
    buf_free(&text);
    return ok ? sync_path(folder)
              : status_system(errno, "cannot write %s", path);
}

static Status prune(const char *folder, int64_t keep)
{
    char path[CHECKPOINT_PATH_BYTES];
    Steps steps = {0};
    Status failed = list_complete(folder, &steps);

    for (uint32_t i = 0; !failed && steps.n - i > keep; i++) {
        failed = checkpoint_path(folder, steps.v[i], path);
        if (!failed)
            failed = remove_folder(path);
    }
    vec_free(&steps);
    return failed;
}

Status checkpoint_commit(const char *folder, int64_t step, int64_t keep)
{
    char from[CHECKPOINT_PATH_BYTES], to[CHECKPOINT_PATH_BYTES];

    STATUS_TRY(checkpoint_unfinished(folder, step, from));
    STATUS_TRY(checkpoint_path(folder, step, to));
    if (rename(from, to) != 0)
        return status_system(errno, "cannot rename %s", from);
    STATUS_TRY(sync_path(folder));
    STATUS_TRY(write_latest(folder, step));
    return prune(folder, keep);
}
