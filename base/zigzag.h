/* zigzag.h - the order in which context parallelism stores a sequence.
 *
 * A sequence of `size` tokens is cut into 2 * parts chunks, and part r holds
 * chunks r and 2 * parts - 1 - r, so that under a causal mask all parts have
 * the same work.  Stored one part after the other (parts = 2):
 *
 *     index     0  1 |  2  3 |  4  5 |  6  7
 *     position  0  1 |  6  7 |  2  3 |  4  5
 */
#ifndef MEGAC_ZIGZAG_H
#define MEGAC_ZIGZAG_H

#include <stdbool.h>
#include <stdint.h>

/* The position of the token stored at `index`; parts 0 or 1: the index. */
static inline int64_t zigzag_position(int64_t size, int64_t parts,
                                      int64_t index)
{
    int64_t chunk, block;

    if (parts < 2)
        return index;
    chunk = size / (2 * parts);
    block = index / chunk;
    block = block % 2 ? 2 * parts - 1 - block / 2 : block / 2;
    return block * chunk + index % chunk;
}

/* Whether some part has a query that sees a key of the part `shift` before it
 * under a causal mask; with a `window` (0: none), only keys at less than this
 * distance are seen. */
static inline bool zigzag_sees(int64_t size, int64_t parts, int64_t shift,
                               int64_t window)
{
    const int64_t chunk = size / (2 * parts);
    bool sees = false;

    for (int64_t i = 0; i < 4 * parts; i++) {
        int64_t part = i / 4, from = (part + parts - shift) % parts;
        int64_t q = i & 1 ? 2 * parts - 1 - part : part;
        int64_t k = i & 2 ? 2 * parts - 1 - from : from;
        int64_t nearest = q == k ? 0 : (q - k - 1) * chunk + 1;
        sees |= k <= q && (!window || nearest < window);
    }
    return sees;
}

#endif
