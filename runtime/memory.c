/* memory.c - paints the arena, and later looks where the paint is gone.
 *
 * The paint is a word that training hardly ever writes (1.3e36 as a float), so
 * that whole words show whether they were written.  Painted memory also makes
 * a read of a byte that nobody wrote visible in the loss.
 */
#include "runtime/train.h"

enum { PAINT = 0x7b };

void memory_paint(char *arena, uint64_t bytes)
{
    memset(arena, PAINT, (size_t)bytes);
}

static bool touched_word(const char *at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (at[i] != PAINT)
            return true;
    return false;
}

void memory_measure(const char *arena, uint64_t bytes, uint64_t *out_highest,
                    uint64_t *out_touched)
{
    *out_highest = 0;
    *out_touched = 0;
    for (uint64_t at = 0; at < bytes; at += 4) {
        uint64_t n = MC_MIN(bytes - at, 4);
        if (!touched_word(arena + at, n))
            continue;
        *out_touched += n;
        *out_highest = at + n;
    }
}
