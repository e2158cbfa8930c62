/* data_write.c - writes a Megatron .bin/.idx pair, byte for byte as its own
 * IndexedDatasetBuilder does.
 *
 * Tokens go straight to PREFIX.bin.tmp; the lengths wait in memory for the
 * .idx, which is written last.  Both are synced before they are renamed, the
 * .idx after the .bin, so that a reader finds the old pair, the new pair, or
 * an error, and a full disk leaves the old pair untouched.  Whatever fails, the
 * writer stays usable only for data_writer_drop.
 */
#include "runtime/data_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { CHUNK = 1024 }; /* tokens packed at a time */

enum { PATH_BIN, PATH_IDX, PATH_BIN_TMP, PATH_IDX_TMP, PATHS };
static const char *const suffixes[PATHS] = {".bin", ".idx", ".bin.tmp",
                                            ".idx.tmp"};

struct DataWriter {
    char *paths[PATHS];
    FILE *bin, *idx;
    DataType type;
    int32_t *lengths; /* of the sequences written */
    uint64_t lengths_n, lengths_cap;
    uint64_t tokens; /* of the sequence under construction */
};

/* ---- opening and dropping ------------------------------------------------ */

static Status open_file(const char *path, FILE **out_file)
{
    *out_file = fopen(path, "wb");
    if (!*out_file)
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    return STATUS_NONE;
}

static Status open_files(const char *prefix, DataWriter *w)
{
    for (int i = 0; i < PATHS; i++)
        if (asprintf(&w->paths[i], "%s%s", prefix, suffixes[i]) < 0)
            return status_make(STATUS_SYSTEM, "out of memory");
    STATUS_TRY(open_file(w->paths[PATH_BIN_TMP], &w->bin));
    return open_file(w->paths[PATH_IDX_TMP], &w->idx);
}

Status data_writer_open(const char *prefix, DataType type,
                        DataWriter **out_writer)
{
    DataWriter *w = calloc(1, sizeof *w);

    if (!w)
        return status_make(STATUS_SYSTEM, "out of memory");
    w->type = type;
    Status status = open_files(prefix, w);
    if (status)
        data_writer_drop(w);
    else
        *out_writer = w;
    return status;
}

static void release(DataWriter *w)
{
    if (w->bin)
        fclose(w->bin);
    if (w->idx)
        fclose(w->idx);
    for (int i = 0; i < PATHS; i++)
        free(w->paths[i]);
    free(w->lengths);
    free(w);
}

void data_writer_drop(DataWriter *w)
{
    if (!w)
        return;
    if (w->bin)
        unlink(w->paths[PATH_BIN_TMP]);
    if (w->idx)
        unlink(w->paths[PATH_IDX_TMP]);
    release(w);
}

/* ---- tokens -------------------------------------------------------------- */

static bool fits(DataType type, int32_t token)
{
    switch (type) {
    case DATA_U8:
        return token >= 0 && token <= UINT8_MAX;
    case DATA_I8:
        return token >= INT8_MIN && token <= INT8_MAX;
    case DATA_U16:
        return token >= 0 && token <= UINT16_MAX;
    case DATA_I16:
        return token >= INT16_MIN && token <= INT16_MAX;
    default:
        return data_type_is_integer(type);
    }
}

/* Packs and writes n tokens, few enough for the chunk.  Little endian: the low
 * bytes of a wider integer are the narrower one. */
static Status put(DataWriter *w, const int32_t *tokens, uint64_t n)
{
    uint8_t chunk[8 * CHUNK];
    uint32_t size = data_type_size(w->type);

    for (uint64_t i = 0; i < n; i++) {
        int64_t token = tokens[i];

        if (!fits(w->type, tokens[i]))
            return status_make(STATUS_INPUT, "token %" PRId64
                               " does not fit %s", token,
                               data_type_name(w->type));
        memcpy(chunk + i * size, &token, size);
    }
    if (fwrite(chunk, size, n, w->bin) != n)
        return status_system(errno, "%s", w->paths[PATH_BIN_TMP]);
    return STATUS_NONE;
}

Status data_writer_tokens(DataWriter *w, const int32_t *tokens, uint64_t n)
{
    if (n > INT32_MAX || w->tokens + n > INT32_MAX)
        return status_make(STATUS_INPUT,
                           "a document of more than 2^31-1 tokens");
    for (uint64_t i = 0; i < n; i += CHUNK)
        STATUS_TRY(put(w, tokens + i, MC_MIN(n - i, CHUNK)));
    w->tokens += n;
    return STATUS_NONE;
}

Status data_writer_document(DataWriter *w)
{
    if (w->lengths_n == w->lengths_cap) {
        uint64_t cap = w->lengths_cap ? 2 * w->lengths_cap : 1024;
        int32_t *lengths = realloc(w->lengths, cap * sizeof *lengths);

        if (!lengths)
            return status_make(STATUS_SYSTEM, "out of memory");
        w->lengths = lengths;
        w->lengths_cap = cap;
    }
    w->lengths[w->lengths_n++] = (int32_t)w->tokens;
    w->tokens = 0;
    return STATUS_NONE;
}

/* ---- the index ----------------------------------------------------------- */

static bool put_u64(FILE *f, uint64_t v)
{
    return fwrite(&v, sizeof v, 1, f) == 1;
}

static bool put_header(const DataWriter *w)
{
    uint8_t code = (uint8_t)w->type;

    return fwrite(DATA_IDX_MAGIC, DATA_IDX_MAGIC_SIZE, 1, w->idx) == 1 &&
           put_u64(w->idx, 1) && fwrite(&code, 1, 1, w->idx) == 1 &&
           put_u64(w->idx, w->lengths_n) && put_u64(w->idx, w->lengths_n + 1);
}

static bool put_tables(const DataWriter *w)
{
    uint64_t n = w->lengths_n, pointer = 0;
    bool ok = fwrite(w->lengths, sizeof *w->lengths, n, w->idx) == n;

    for (uint64_t i = 0; i < n && ok; i++) {
        ok = put_u64(w->idx, pointer);
        pointer += (uint64_t)w->lengths[i] * data_type_size(w->type);
    }
    for (uint64_t i = 0; i <= n && ok; i++)
        ok = put_u64(w->idx, i);
    return ok;
}

/* ---- finishing ----------------------------------------------------------- */

static Status close_file(FILE **file, const char *path)
{
    FILE *f = *file;
    bool ok = fflush(f) == 0 && fsync(fileno(f)) == 0;
    int error = errno;

    *file = NULL;
    if (fclose(f) != 0 && ok)
        return status_system(errno, "%s", path);
    return ok ? STATUS_NONE : status_system(error, "%s", path);
}

static Status move(const DataWriter *w, int from, int to)
{
    if (rename(w->paths[from], w->paths[to]))
        return status_system(errno, "%s", w->paths[to]);
    return STATUS_NONE;
}

static Status finish(DataWriter *w)
{
    if (!put_header(w) || !put_tables(w))
        return status_system(errno, "%s", w->paths[PATH_IDX_TMP]);
    STATUS_TRY(close_file(&w->bin, w->paths[PATH_BIN_TMP]));
    STATUS_TRY(close_file(&w->idx, w->paths[PATH_IDX_TMP]));
    STATUS_TRY(move(w, PATH_BIN_TMP, PATH_BIN));
    return move(w, PATH_IDX_TMP, PATH_IDX);
}

Status data_writer_finish(DataWriter *w)
{
    Status status = finish(w);

    if (status) {
        unlink(w->paths[PATH_BIN_TMP]);
        unlink(w->paths[PATH_IDX_TMP]);
    }
    release(w);
    return status;
}
