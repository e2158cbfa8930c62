/* configs.c - the files that ship with megac, found by name.
 *
 * A name stands for a file as it is written, or for one in a folder of
 * configs/, with or without its ".yaml".
 */
#include "frontend/frontend_priv.h"

#include <stdlib.h>
#include <sys/stat.h>

#ifndef MEGAC_CONFIGS
#define MEGAC_CONFIGS "configs"
#endif

/* A device would never end. */
static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

const char *configs_dir(void)
{
    const char *dir = getenv("MEGAC_CONFIGS");

    return dir ? dir : MEGAC_CONFIGS;
}

const char *configs_absolute(Arena *a, const char *path)
{
    char *whole = realpath(path, NULL);
    const char *result = arena_strdup(a, whole ? whole : path);

    free(whole);
    return result;
}

const char *configs_find(Arena *a, const char *path, const char *name,
                         const char *const *folders, size_t nfolders)
{
    if (is_file(path))
        return path;
    for (size_t i = 0; i < 2 * nfolders; i++) {
        path = arena_printf(a, "%s/%s%s%s", configs_dir(), folders[i / 2],
                            name, i % 2 ? "" : ".yaml");
        if (is_file(path))
            return path;
    }
    return NULL;
}
