/* folder.c - see folder.h: a folder is filled under another name, which says
 * whose it is if the process dies, and is renamed when all is in it. */
#include "driver/folder.h"

#include "runtime/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether there is nothing in it, or nothing at all. */
static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    uint32_t n = 0;

    if (!dir)
        return errno == ENOENT;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n <= 2; /* itself and the folder around it */
}

static const char *trimmed(Arena *a, const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return arena_strndup(a, path, n);
}

Status folder_begin(Arena *a, const char *path, Folder *out)
{
    Folder f = {.path = trimmed(a, path)};

    if (!is_empty(f.path))
        return status_make(STATUS_INPUT,
                           "%s exists already, and is no empty folder", path);
    f.beside = arena_printf(a, "%s.tmp.%d", f.path, (int)getpid());
    if (mkdir(f.beside, 0777) != 0)
        return status_system(errno, "cannot make %s", f.beside);
    *out = f;
    return STATUS_NONE;
}

Status folder_commit(const Folder *f)
{
    STATUS_TRY(checkpoint_sync(f->beside));
    if (rename(f->beside, f->path) != 0)
        return status_system(errno, "cannot make %s", f->path);
    return STATUS_NONE;
}

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *at)
{
    (void)st, (void)type, (void)at;
    remove(path);
    return 0;
}

void folder_abandon(const Folder *f)
{
    nftw(f->beside, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

Status folder_end(const Folder *f, Status s)
{
    if (!s)
        s = folder_commit(f);
    if (s)
        folder_abandon(f);
    return s;
}

Status folder_write(Arena *a, const Folder *f, const char *name,
                    const Buf *text)
{
    const char *path = arena_printf(a, "%s/%s", f->beside, name);

    return buf_write_file(text, path)
               ? STATUS_NONE
               : status_system(errno, "cannot write %s", path);
}
