/* dropout.h - which elements dropout keeps: a function of names, not of ranks.
 *
 * An element's draw is a word of Philox, whose key and counter are where the
 * element is in the whole run: step, layer, which of the layer's dropouts, the
 * sample of the step's batch, the position in the sequence, the other
 * dimensions, the last one.  No rank, no microbatch and no order enters, so
 * every layout drops the same elements, and a value that is computed again is
 * dropped again the same way.
 *
 *     key      step's key               8 * layer + which
 *     counter  last / 4   position   others   sample         word last % 4
 *
 * The element stays if the word is at least rate * 2^32, times 1 / (1 - rate).
 */
#ifndef MEGAC_DROPOUT_H
#define MEGAC_DROPOUT_H

#include <stdbool.h>
#include <stdint.h>

/* Which dropout of a layer; the embedding's belongs to no layer. */
enum { DROP_EMBEDDING, DROP_SCORES, DROP_ATTENTION, DROP_MLP, DROP_KINDS = 8 };

typedef struct {
    uint32_t step;  /* dropout_step_key */
    uint32_t layer; /* of the whole model; 0 outside of layers */
    uint32_t which;
    int64_t sample;   /* of the step: b of all microbatches, in order */
    int64_t position; /* in the sequence */
    int64_t other;    /* row-major index of the other dimensions: the head */
    int64_t last;     /* index along the last dimension */
} DropoutPlace;

bool dropout_keeps(const DropoutPlace *at, double rate);

/* What makes the draws of one step those of no other step of a seed: less than
 * 2^24, so that an f32 holds it.  Steps count from 1. */
uint32_t dropout_step_key(uint64_t seed, int64_t step);

/* Words from here on keep; what is kept is multiplied by 1 / (1 - rate). */
uint32_t dropout_threshold(double rate);

#endif
