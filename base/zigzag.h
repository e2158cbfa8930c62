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

/* Whether two positions can be less than `window` apart (0: none), the key not
 * behind the query: one in chunk q, one in chunk k. */
static inline bool chunk_sees(int64_t q, int64_t k, int64_t chunk,
                              int64_t window)
{
    int64_t nearest = q == k ? 0 : (q - k - 1) * chunk + 1;

    return k <= q && (!window || nearest < window);
}

/* A ring of `steps` ranks of which each has parts / steps neighbouring parts:
 * whether some query sees, under a causal mask, a key of the rank `shift`
 * before; with a `window` (0: none), only keys at less than this distance are
 * seen. */
static inline bool zigzag_sees(int64_t size, int64_t parts, int64_t steps,
                               int64_t shift, int64_t window)
{
    const int64_t chunk = size / (2 * parts), each = parts / steps;

    for (int64_t q = 0; q < parts; q++)
        for (int64_t i = 0; i < each; i++) {
            int64_t k = (q / each + steps - shift) % steps * each + i;
            int64_t q_end = 2 * parts - 1 - q, k_end = 2 * parts - 1 - k;
            if (chunk_sees(q, k, chunk, window) ||
                chunk_sees(q, k_end, chunk, window) ||
                chunk_sees(q_end, k, chunk, window) ||
                chunk_sees(q_end, k_end, chunk, window))
                return true;
        }
    return false;
}

#endif
