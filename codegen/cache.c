/* cache.c - compiled code on disk, by content.
 *
 * An entry is named by the hash of everything that decides its bytes, so it is
 * never stale and needs no invalidation.  The file is a header (magic, length,
 * hash of the payload) and the payload; it is written beside and renamed, and
 * checked when read, so a torn or damaged file is only a miss.
 */
#include "codegen/codegen_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

typedef struct {
    char magic[8];
    uint64_t bytes, hi, lo;
} Header;

static const char MAGIC[8] = "MEGACv1";

CacheKey cache_key(const void *bytes, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(bytes, n);

    return (CacheKey){h.high64, h.low64};
}

static bool make_dirs(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return false;
        *p = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

const char *codegen_cache_dir(Arena *a)
{
    const char *own = getenv("MEGAC_CACHE");
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char *dir;

    if (own && *own)
        dir = arena_strdup(a, own);
    else if (xdg && *xdg)
        dir = arena_printf(a, "%s/megac", xdg);
    else if (home && *home)
        dir = arena_printf(a, "%s/.cache/megac", home);
    else
        return NULL;
    return make_dirs(dir) ? dir : NULL;
}

static const char *entry_path(Arena *a, CacheKey key)
{
    const char *dir = codegen_cache_dir(a);

    return dir ? arena_printf(a, "%s/%016llx%016llx.bin", dir,
                              (unsigned long long)key.hi,
                              (unsigned long long)key.lo)
               : NULL;
}

static bool entry_valid(const Buf *file)
{
    Header h;
    CacheKey sum;

    if (file->len < sizeof h)
        return false;
    memcpy(&h, file->s, sizeof h);
    sum = cache_key(file->s + sizeof h, file->len - sizeof h);
    return memcmp(h.magic, MAGIC, sizeof MAGIC) == 0 &&
           h.bytes == file->len - sizeof h && h.hi == sum.hi && h.lo == sum.lo;
}

bool cache_get(CacheKey key, Buf *out)
{
    Arena *a = arena_new();
    const char *path = entry_path(a, key);
    Buf file = {0};
    bool hit = false;

    if (path && buf_read_file(&file, path)) {
        hit = entry_valid(&file);
        if (hit)
            buf_write(out, file.s + sizeof(Header), file.len - sizeof(Header));
        else
            unlink(path);
    }
    buf_free(&file);
    arena_free(a);
    return hit;
}

void cache_put(CacheKey key, const Buf *bytes)
{
    Arena *a = arena_new();
    const char *path = entry_path(a, key);
    CacheKey sum = cache_key(buf_str(bytes), bytes->len);
    Header h = {.bytes = bytes->len, .hi = sum.hi, .lo = sum.lo};
    Buf file = {0};

    if (path) {
        memcpy(h.magic, MAGIC, sizeof MAGIC);
        buf_write(&file, &h, sizeof h);
        buf_write(&file, buf_str(bytes), bytes->len);
        (void)buf_write_file(&file, path);
    }
    buf_free(&file);
    arena_free(a);
}
