/* data.h - token datasets: reading, writing, and the order of the samples.
 *
 * A sample is seq_length + 1 tokens; consecutive samples of a stream overlap by
 * one, so inputs are tokens[0..seq) and targets tokens[1..seq].  Which tokens
 * sample number i holds depends on the DataConfig alone and never on the
 * parallel layout; data_sample_id says which samples a rank reads.
 *
 * Everything is checked when it is opened.  A damaged file is a Status that
 * names the file and the field, never a crash.
 */
#ifndef MEGAC_RUNTIME_DATA_H
#define MEGAC_RUNTIME_DATA_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- data.c: the samples of a run -------------------------------------- */

typedef enum {
    DATA_KIND_SYNTHETIC, /* a pure function of (seed, sample, position) */
    DATA_KIND_TEXT,      /* one file whose bytes are the tokens */
    DATA_KIND_INDEXED,   /* Megatron .bin/.idx pairs, blended by weight */
} DataKind;

typedef enum {
    DATA_TRAIN,
    DATA_VALID,
    DATA_TEST,
    DATA_PARTS,
} DataPart;

typedef struct {
    const char *path; /* a prefix of .bin/.idx, or the text file */
    double weight;    /* relative; only looked at if there are several */
    const char *mask; /* a prefix of .bin/.idx, or NULL: every token counts */
} DataSource;

typedef struct {
    DataKind kind;
    const DataSource *sources; /* none if synthetic, one if text */
    uint32_t sources_n;
    const char *split; /* "969,30,1", or NULL: every part is the whole */
    DataPart part;
    int64_t seed; /* 0 .. 2^32-1 */
    int64_t seq_length;
    int64_t vocab_size; /* a token outside 0 .. vocab_size-1 is an error */
    /* How many samples the whole run reads, steps * global_batch_size of the
     * spec.  It decides the number of epochs, and with it the order. */
    uint64_t samples;
    /* Of a run that is resumed, the `samples` that it began with, which decide
     * the order instead; what goes beyond them follows epoch by epoch.  0: as
     * many as `samples`. */
    uint64_t planned;
} DataConfig;

typedef struct Data Data;

/* Opens every source and builds the order.  Touches no token.
 *
 * A mask is a data set like its source: sequence for sequence as long, a whole
 * text file being one sequence.  In place of each token it has the weight of
 * that token's loss where it is the target. */
MC_MUST_USE Status data_open(const DataConfig *config, Data **out_data);
void data_close(Data *data);

/* Copies the seq_length + 1 tokens of sample `index` (< config.samples).
 * Reads only; may be called from several threads. */
MC_MUST_USE Status data_sample(const Data *data, uint64_t index,
                               int32_t *out_tokens);

/* The same of its mask: seq_length + 1 weights, all 1 without one. */
MC_MUST_USE Status data_sample_mask(const Data *data, uint64_t index,
                                    int32_t *out_weights);

/* The number of the sample in row `row` of the micro-batch that the ranks with
 * data-parallel coordinate `dp_index` read in `step`: the samples of a
 * micro-batch are consecutive over (dp_index, row), as in Megatron's sampler,
 * so those of a step are [step*gbs, (step+1)*gbs) on every layout. */
typedef struct {
    uint64_t global_batch_size, micro_batch_size, dp_size;
} DataBatch;

uint64_t data_sample_id(const DataBatch *batch, uint64_t step,
                        uint64_t microbatch, uint64_t dp_index, uint64_t row);

/* ---- data_idx.c: Megatron's indexed dataset ---------------------------- */

/* The codes of the .idx header. */
typedef enum {
    DATA_U8 = 1,
    DATA_I8 = 2,
    DATA_I16 = 3,
    DATA_I32 = 4,
    DATA_I64 = 5,
    DATA_F64 = 6,
    DATA_F32 = 7,
    DATA_U16 = 8,
} DataType;

const char *data_type_name(DataType type);
/* Bytes per token. */
uint32_t data_type_size(DataType type);
bool data_type_is_integer(DataType type);

/* A .bin/.idx pair, mapped into memory.  A sequence is a run of tokens; a
 * document is one or more sequences. */
typedef struct DataIndex DataIndex;

MC_MUST_USE Status data_index_open(const char *prefix, DataIndex **out_index);
void data_index_close(DataIndex *index);

DataType data_index_type(const DataIndex *index);
uint64_t data_index_sequences(const DataIndex *index);
uint64_t data_index_documents(const DataIndex *index);
uint64_t data_index_tokens(const DataIndex *index);
/* The file that holds the tokens. */
const char *data_index_path(const DataIndex *index);
/* The size of that file. */
uint64_t data_index_bytes(const DataIndex *index);
/* In tokens. */
uint64_t data_index_length(const DataIndex *index, uint64_t sequence);
/* Where a sequence begins, in bytes. */
uint64_t data_index_pointer(const DataIndex *index, uint64_t sequence);
/* Copies n tokens as long as they lie in [0, limit); returns how many did, and
 * the first that did not in *out_bad. */
uint64_t data_index_copy(const DataIndex *index, uint64_t sequence,
                         uint64_t offset, uint64_t n, int64_t limit,
                         int32_t *out_tokens, int64_t *out_bad);

/* ---- data_verify.c ----------------------------------------------------- */

typedef struct {
    int64_t max_token; /* -1 if there is none */
    uint64_t longest;  /* tokens of the longest sequence */
} DataStats;

/* Reads every token; one outside of 0 .. vocab_size-1 (2^31-1 if that is 0) is
 * an error that says where it stands. */
MC_MUST_USE Status data_index_scan(const DataIndex *index, int64_t vocab_size,
                                   DataStats *out_stats);
/* Also checks that the sequences fill the .bin without gap or overlap. */
MC_MUST_USE Status data_index_verify(const DataIndex *index,
                                     int64_t vocab_size, DataStats *out_stats);

/* ---- data_write.c ------------------------------------------------------ */

/* Writes PREFIX.bin.tmp and PREFIX.idx.tmp and renames both at the end, the
 * .idx last; a writer that is dropped leaves nothing behind. */
typedef struct DataWriter DataWriter;

/* `type` is one of the integer types. */
MC_MUST_USE Status data_writer_open(const char *prefix, DataType type,
                                    DataWriter **out_writer);
/* Appends tokens to the sequence under construction. */
MC_MUST_USE Status data_writer_tokens(DataWriter *w, const int32_t *tokens,
                                      uint64_t n);
/* Ends the sequence, and with it a document. */
MC_MUST_USE Status data_writer_document(DataWriter *w);
/* Flushes, syncs, renames; frees the writer, also on failure. */
MC_MUST_USE Status data_writer_finish(DataWriter *w);
/* Frees the writer and removes what it has written. */
void data_writer_drop(DataWriter *w);

#endif
