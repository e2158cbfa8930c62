/* data_priv.h - what the files data*.c share among themselves. */
#ifndef MEGAC_RUNTIME_DATA_PRIV_H
#define MEGAC_RUNTIME_DATA_PRIV_H

#include "runtime/data.h"

#define DATA_IDX_MAGIC "MMIDIDX\0"
#define DATA_IDX_MAGIC_SIZE 9
#define DATA_IDX_HEADER_SIZE 34

/* ---- data_map.c: files mapped into memory ------------------------------ */

typedef struct {
    const uint8_t *bytes; /* NULL if the file is empty */
    uint64_t size;
} DataMap;

MC_MUST_USE Status data_map_open(const char *path, DataMap *out_map);
void data_map_close(DataMap *map);

/* ---- data_rand.c: numpy's legacy generator ----------------------------- */

typedef struct {
    uint32_t key[624];
    uint32_t at;
} DataRand;

/* As numpy.random.RandomState(seed) with an integer seed. */
void data_rand_seed(DataRand *r, uint32_t seed);
uint32_t data_rand_u32(DataRand *r);
/* As RandomState.shuffle on a one-dimensional array. */
void data_rand_shuffle(DataRand *r, uint32_t *v, uint64_t n);

/* ---- data_idx.c --------------------------------------------------------- */

/* A text file as an index of one sequence: the slice of its bytes that `part`
 * of `split` exposes. */
MC_MUST_USE Status data_index_open_text(const char *path, const char *split,
                                        DataPart part, DataIndex **out_index);

/* ---- data_order.c: which tokens a sample holds ------------------------- */

/* Megatron's document, sample and shuffle index.  Sample i begins at token
 * shuffle[i] * seq_length of the concatenation of the sequences
 * document[0..documents). */
typedef struct {
    uint32_t *document; /* [documents] sequence numbers */
    uint64_t *begin;    /* [documents + 1] running sum of their lengths */
    uint32_t *shuffle;  /* [samples] */
    uint64_t documents, samples;
} DataOrder;

/* The sequences [first, end) of an index, in epochs enough for `samples`. */
typedef struct {
    const DataIndex *index;
    uint64_t first, end;
    uint64_t seq_length, samples;
    uint32_t seed;
} DataOrderSpec;

MC_MUST_USE Status data_order_build(const DataOrderSpec *spec,
                                    DataOrder *out_order);
void data_order_free(DataOrder *order);
/* Where sample `index` begins: the position in `document`, and the offset
 * within that sequence. */
void data_order_find(const DataOrder *order, uint64_t seq_length,
                     uint64_t index, uint64_t *out_at, uint64_t *out_offset);

/* ---- data_legs.c: orders one after the other ---------------------------- */

/* Leg 0 is the order of what was planned; the others hold an epoch each. */
typedef struct {
    DataOrder *leg;
    uint32_t n;
} DataLegs;

/* Enough for spec->samples; planned 0: these. */
MC_MUST_USE Status data_legs_build(const DataOrderSpec *spec, uint64_t planned,
                                   DataLegs *out_legs);
void data_legs_free(DataLegs *legs);
uint64_t data_legs_samples(const DataLegs *legs);
/* The leg of sample `index`, and its number there. */
const DataOrder *data_legs_find(const DataLegs *legs, uint64_t index,
                                uint64_t *out_local);

/* ---- data_blend.c: several sources ------------------------------------- */

/* Megatron's BlendedDataset: sample i is sample `sample[i]` of source
 * `source[i]`. */
typedef struct {
    uint16_t *source;
    uint64_t *sample;
} DataBlend;

/* Scales the weights to a sum of 1, rounding as numpy does. */
void data_blend_normalise(double *weights, uint32_t n);
/* How many samples the blend may draw from a source of this share. */
uint64_t data_blend_reserve(double share, uint64_t samples);
MC_MUST_USE Status data_blend_build(const double *shares, uint32_t n,
                                    uint64_t samples, DataBlend *out_blend);
void data_blend_free(DataBlend *blend);

/* ---- data_split.c ------------------------------------------------------ */

/* The range [first, end) of `n` items that `part` of `split` exposes. */
MC_MUST_USE Status data_split_range(const char *split, DataPart part,
                                    uint64_t n, uint64_t *out_first,
                                    uint64_t *out_end);

#endif
