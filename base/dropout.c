/* dropout.c - see dropout.h; codegen/draws.inc prints the same draws. */
#include "base/dropout.h"

#include "base/philox.h"

enum { KEY_BITS = 24 };
static const uint32_t KEY_MASK = (1u << KEY_BITS) - 1;

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A permutation of 24 bits for each seed: sums, odd factors and shifts can all
 * be undone, so no two steps share a key. */
uint32_t dropout_step_key(uint64_t seed, int64_t step)
{
    uint64_t hash = mix(seed + 0x9e3779b97f4a7c15u);
    uint32_t key = (uint32_t)((uint64_t)step + hash) & KEY_MASK;

    key = key * 0x9e3779b1u & KEY_MASK;
    key ^= key >> 13;
    key = (key + (uint32_t)(hash >> 32)) * 0x85ebca6bu & KEY_MASK;
    return key ^ key >> 11;
}

uint32_t dropout_threshold(double rate)
{
    double words = rate * 4294967296.0 + 0.5;

    return words >= 4294967295.0 ? UINT32_MAX : (uint32_t)words;
}

bool dropout_keeps(const DropoutPlace *at, double rate)
{
    const uint32_t key[2] = {at->step, at->layer * DROP_KINDS + at->which};
    const uint32_t counter[4] = {
        (uint32_t)(at->last / 4), (uint32_t)at->position, (uint32_t)at->other,
        (uint32_t)at->sample};
    uint32_t word[4];

    philox(counter, key, word);
    return word[at->last % 4] >= dropout_threshold(rate);
}
