/* data_verify.c - reads every token of an index and says what it found.
 *
 * Opening has checked that all addresses are valid.  What is left is whether
 * the pair is what a writer makes: sequences one after the other, a .bin that
 * ends with the last of them, tokens that are ids.  A .bin of another
 * tokenisation, or one that was written on, shows here.
 */
#include "runtime/data_priv.h"

#include <inttypes.h>

enum { CHUNK = 4096 };

/* Reads the tokens of one sequence. */
static Status scan(const DataIndex *x, uint64_t sequence, int64_t limit,
                   DataStats *stats)
{
    uint64_t length = data_index_length(x, sequence);
    int32_t tokens[CHUNK];
    int64_t bad;

    for (uint64_t at = 0; at < length; at += CHUNK) {
        uint64_t n = MC_MIN(length - at, CHUNK);
        uint64_t good = data_index_copy(x, sequence, at, n, limit, tokens,
                                        &bad);

        for (uint64_t i = 0; i < good; i++)
            stats->max_token = MC_MAX(stats->max_token, tokens[i]);
        if (good < n)
            return status_make(STATUS_INPUT,
                               "%s: sequence %" PRIu64 ", position %" PRIu64
                               ": token %" PRId64 " is not in 0 .. %" PRId64,
                               data_index_path(x), sequence, at + good, bad,
                               limit - 1);
    }
    return STATUS_NONE;
}

Status data_index_scan(const DataIndex *x, int64_t vocab_size,
                       DataStats *out_stats)
{
    int64_t limit = vocab_size ? vocab_size : (int64_t)INT32_MAX + 1;
    DataStats stats = {.max_token = -1};

    for (uint64_t i = 0; i < data_index_sequences(x); i++) {
        STATUS_TRY(scan(x, i, limit, &stats));
        stats.longest = MC_MAX(stats.longest, data_index_length(x, i));
    }
    *out_stats = stats;
    return STATUS_NONE;
}

Status data_index_verify(const DataIndex *x, int64_t vocab_size,
                         DataStats *out_stats)
{
    uint64_t size = data_type_size(data_index_type(x)), end = 0;

    for (uint64_t i = 0; i < data_index_sequences(x); i++) {
        uint64_t at = data_index_pointer(x, i);

        if (at != end)
            return status_make(STATUS_INPUT,
                               "%s: sequence %" PRIu64
                               " begins at byte %" PRIu64
                               ", the one before it ends at %" PRIu64,
                               data_index_path(x), i, at, end);
        end += data_index_length(x, i) * size;
    }
    if (end != data_index_bytes(x))
        return status_make(STATUS_INPUT,
                           "%s: %" PRIu64
                           " bytes, of which the index accounts "
                           "for %" PRIu64,
                           data_index_path(x), data_index_bytes(x), end);
    return data_index_scan(x, vocab_size, out_stats);
}
