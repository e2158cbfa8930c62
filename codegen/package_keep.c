/* package_keep.c - what stays when an output folder is replaced by a new one.
 *
 * Runs leave metrics and checkpoints in the folder.  They belong to the
 * training, not to the program, and a checkpoint is made to be loaded by the
 * next one.  So whatever `megac compile` did not make itself moves along:
 *
 *     DIR  ->  DIR.megac-old         1. the old folder steps aside
 *     DIR.tmp  ->  DIR               2. the new one takes its place
 *     DIR.megac-old/ckpt  ->  DIR    3. what runs made moves over
 *     DIR.megac-old                  4. is removed
 *
 * Cut off at any point, the next replacement finishes it first.  If a run has
 * made things of the same names by then, that is refused and both stay.
 */
#include "codegen/emit_priv.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* "rank-00003": a prefix and nothing but digits. */
static bool is_numbered(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 && name[n] &&
           !name[n + strspn(name + n, "0123456789")];
}

/* What package.c makes, and tables of profiles, which are of its program. */
static bool is_ours(const char *name)
{
    static const char *const names[] = {"manifest.json", "launch", "kernels",
                                        "spec.yaml",     "hardware.yaml",
                                        "schedule.csv",  "report.html",
                                        "trace.json",    ".",
                                        ".."};

    for (size_t i = 0; i < MC_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return is_numbered(name, "rank-") || is_numbered(name, "profile.");
}

static Status move_one(const char *old, const char *dir, const char *name)
{
    Arena *a = arena_new();
    const char *from = arena_printf(a, "%s/%s", old, name);
    const char *to = arena_printf(a, "%s/%s", dir, name);
    struct stat there;
    Status s = STATUS_NONE;

    if (lstat(to, &there) == 0)
        s = status_make(STATUS_INPUT,
                        "both %s and %s are there: move one of them away",
                        from, to);
    else if (rename(from, to) != 0)
        s = status_system(errno, "cannot move %s to %s", from, to);
    arena_free(a);
    return s;
}

Status package_keep(const char *old, const char *dir)
{
    DIR *d = opendir(old);
    struct dirent *entry;
    Status s = STATUS_NONE;

    if (!d)
        return errno == ENOENT ? STATUS_NONE
                               : status_system(errno, "cannot read %s", old);
    while (!s && (entry = readdir(d)))
        if (!is_ours(entry->d_name))
            s = move_one(old, dir, entry->d_name);
    closedir(d);
    return s;
}
