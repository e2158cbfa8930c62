/* philox.h - the counter-based generator Philox4x32-10 (Salmon et al. 2011).
 *
 * It has no state to carry along: 128 random bits are a function of a counter
 * and a key, so whoever knows the two has the same bits.
 */
#ifndef MEGAC_PHILOX_H
#define MEGAC_PHILOX_H

#include <stdint.h>

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
