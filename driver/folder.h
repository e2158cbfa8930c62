/* folder.h - an output folder that appears whole, or not at all. */
#ifndef MEGAC_DRIVER_FOLDER_H
#define MEGAC_DRIVER_FOLDER_H

#include "base/base.h"
#include "base/status.h"

typedef struct {
    const char *path;   /* what it will be called */
    const char *beside; /* what it is called while it is filled */
} Folder;

/* Makes a folder beside `path`, which may exist only as an empty folder. */
MC_MUST_USE Status folder_begin(Arena *a, const char *path, Folder *out);
/* Waits until its files are on the disk, then gives it its name. */
MC_MUST_USE Status folder_commit(const Folder *f);
/* Removes it again, with all files that it has. */
void folder_abandon(const Folder *f);
/* Commits after success, abandons after a failure, which it hands on. */
MC_MUST_USE Status folder_end(const Folder *f, Status s);
MC_MUST_USE Status folder_write(Arena *a, const Folder *f, const char *name,
                                const Buf *text);

#endif
