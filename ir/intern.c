/* intern.c - one id per distinct object.
 *
 * Types, layouts, attribute lists and the elements of list attributes are each
 * spelled as a few 64-bit words; objects with the same words get the same id.
 * The tables only ever grow, and ids are handed out in order of first use, so
 * nothing printed ever depends on a hash.
 */
#include "ir/ir_priv.h"

#include <stdlib.h>

#define HASH_NONFATAL_OOM 0
#define uthash_fatal(msg) mc_oom(0)
#include <uthash.h>

struct InternEntry {
    const uint64_t *key;
    uint32_t id;
    UT_hash_handle hh;
};

bool intern_find(InternEntry *table, const uint64_t *key, uint32_t n,
                 uint32_t *out_id)
{
    InternEntry *entry;

    HASH_FIND(hh, table, key, n * sizeof *key, entry);
    if (!entry)
        return false;
    *out_id = entry->id;
    return true;
}

void intern_add(Arena *a, InternEntry **table, const uint64_t *key, uint32_t n,
                uint32_t id)
{
    InternEntry *entry = arena_new_of(a, InternEntry);
    uint64_t *copy = arena_array(a, uint64_t, n + 1);

    if (n)
        memcpy(copy, key, n * sizeof *key);
    entry->key = copy;
    entry->id = id;
    HASH_ADD_KEYPTR(hh, *table, copy, n * sizeof *key, entry);
}

void intern_free(InternEntry **table)
{
    HASH_CLEAR(hh, *table);
}
