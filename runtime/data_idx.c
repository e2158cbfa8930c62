/* data_idx.c - Megatron's indexed dataset, mapped and checked.
 *
 *     PREFIX.idx, little endian           PREFIX.bin
 *       0  "MMIDIDX\0\0"                    tokens, one after the other
 *       9  u64 version = 1
 *      17  u8  token type
 *      18  u64 N, sequences
 *      26  u64 D, entries of the document table
 *      34  i32 length[N]                  in tokens
 *          i64 pointer[N]                 in bytes into the .bin
 *          i64 document[D]                first sequence of each, then N
 *          i8  mode[N]                    optional, not used here
 *
 * The one idea: every number is checked against the sizes of the two files
 * before it is used, so that afterwards any (sequence, offset) in range is a
 * valid address.  Fields lie unaligned and are read by memcpy; the host is
 * little endian, as all that megac targets are.
 *
 * A text file is presented as an index with a single sequence of bytes.
 */
#include "runtime/data_priv.h"

#include <inttypes.h>
#include <stdlib.h>

struct DataIndex {
    char *idx_path, *bin_path;
    DataMap idx, bin;
    DataType type;
    uint64_t sequences, entries, tokens;
    /* Tables in idx; NULL for text. */
    const uint8_t *length, *pointer, *document;
    uint64_t text_first, text_bytes;
};

/* ---- types -------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t size;
    bool integer;
} types[] = {
#define DATA_TYPE(id, name, size, integer) [DATA_##id] = {name, size, integer},
#include "runtime/data_types.def"
#undef DATA_TYPE
};

const char *data_type_name(DataType type)
{
    return types[type].name;
}

uint32_t data_type_size(DataType type)
{
    return types[type].size;
}

bool data_type_is_integer(DataType type)
{
    return types[type].integer;
}

/* ---- fields -------------------------------------------------------------- */

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static int32_t length_at(const DataIndex *x, uint64_t i)
{
    int32_t v;

    memcpy(&v, x->length + 4 * i, sizeof v);
    return v;
}

static int64_t pointer_at(const DataIndex *x, uint64_t i)
{
    return (int64_t)load_u64(x->pointer + 8 * i);
}

static int64_t document_at(const DataIndex *x, uint64_t i)
{
    return (int64_t)load_u64(x->document + 8 * i);
}

static Status damaged(const DataIndex *x, const char *fmt, ...) MC_PRINTF(2, 3);
static Status damaged(const DataIndex *x, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return status_make(STATUS_INPUT, "%s: %s", x->idx_path, what);
}

/* ---- checks -------------------------------------------------------------- */

static Status check_header(DataIndex *x)
{
    const uint8_t *p = x->idx.bytes;

    if (x->idx.size < DATA_IDX_HEADER_SIZE)
        return damaged(x, "header: the file has %" PRIu64 " bytes, a header %d",
                       x->idx.size, DATA_IDX_HEADER_SIZE);
    if (memcmp(p, DATA_IDX_MAGIC, DATA_IDX_MAGIC_SIZE))
        return damaged(x, "magic: not a Megatron index (MMIDIDX)");
    if (load_u64(p + 9) != 1)
        return damaged(x, "version: %" PRIu64 ", only 1 is known",
                       load_u64(p + 9));
    if (p[17] == 0 || p[17] >= MC_LEN(types))
        return damaged(x, "dtype: unknown code %u", p[17]);
    if (!types[p[17]].integer)
        return damaged(x, "dtype: tokens are %s, not integers",
                       types[p[17]].name);
    x->type = (DataType)p[17];
    x->sequences = load_u64(p + 18);
    x->entries = load_u64(p + 26);
    return STATUS_NONE;
}

/* Places the tables; the counts must account for the size of the file. */
static Status check_size(DataIndex *x)
{
    uint64_t room = x->idx.size - DATA_IDX_HEADER_SIZE;
    const uint8_t *tables = x->idx.bytes + DATA_IDX_HEADER_SIZE;

    if (x->sequences > room / 12)
        return damaged(x, "sequence_count: %" PRIu64
                          " sequences do not fit into %" PRIu64 " bytes",
                       x->sequences, x->idx.size);
    room -= 12 * x->sequences;
    if (x->entries > room / 8)
        return damaged(x, "document_count: %" PRIu64
                          " entries do not fit into %" PRIu64 " bytes",
                       x->entries, x->idx.size);
    room -= 8 * x->entries;
    if (room != 0 && room != x->sequences)
        return damaged(x, "%" PRIu64 " bytes too many at the end", room);
    x->length = tables;
    x->pointer = x->length + 4 * x->sequences;
    x->document = x->pointer + 8 * x->sequences;
    return STATUS_NONE;
}

static Status check_sequence(DataIndex *x, uint64_t i)
{
    int64_t length = length_at(x, i), pointer = pointer_at(x, i);
    uint64_t size = types[x->type].size;

    if (length < 0)
        return damaged(x, "sequence_lengths[%" PRIu64 "]: %" PRId64, i, length);
    if (pointer < 0 || (uint64_t)pointer % size)
        return damaged(x, "sequence_pointers[%" PRIu64 "]: %" PRId64
                          " is not an offset of %s tokens",
                       i, pointer, types[x->type].name);
    if ((uint64_t)pointer > x->bin.size ||
        (uint64_t)length * size > x->bin.size - (uint64_t)pointer)
        return damaged(x, "sequence_pointers[%" PRIu64 "]: tokens at %" PRId64
                          " + %" PRIu64 ", but %s has %" PRIu64 " bytes",
                       i, pointer, (uint64_t)length * size, x->bin_path,
                       x->bin.size);
    x->tokens += (uint64_t)length;
    return STATUS_NONE;
}

static Status check_documents(const DataIndex *x)
{
    int64_t before = 0;

    if (x->entries == 0)
        return damaged(x, "document_count: 0, there is at least one entry");
    if (document_at(x, 0) != 0)
        return damaged(x, "document_indices[0]: %" PRId64 ", not 0",
                       document_at(x, 0));
    for (uint64_t i = 1; i < x->entries; i++) {
        int64_t at = document_at(x, i);

        if (at < before)
            return damaged(x, "document_indices[%" PRIu64 "]: %" PRId64
                              " is below its predecessor %" PRId64,
                           i, at, before);
        before = at;
    }
    if ((uint64_t)before != x->sequences)
        return damaged(x, "document_indices[%" PRIu64 "]: %" PRId64
                          ", not the number of sequences, %" PRIu64,
                       x->entries - 1, before, x->sequences);
    return STATUS_NONE;
}

static Status check(DataIndex *x)
{
    STATUS_TRY(check_header(x));
    STATUS_TRY(check_size(x));
    for (uint64_t i = 0; i < x->sequences; i++)
        STATUS_TRY(check_sequence(x, i));
    return check_documents(x);
}

/* ---- opening ------------------------------------------------------------- */

static Status open_pair(DataIndex *x, const char *prefix)
{
    if (asprintf(&x->idx_path, "%s.idx", prefix) < 0 ||
        asprintf(&x->bin_path, "%s.bin", prefix) < 0)
        return status_make(STATUS_SYSTEM, "out of memory");
    STATUS_TRY(data_map_open(x->idx_path, &x->idx));
    STATUS_TRY(data_map_open(x->bin_path, &x->bin));
    return check(x);
}

Status data_index_open(const char *prefix, DataIndex **out_index)
{
    DataIndex *x = calloc(1, sizeof *x);

    if (!x)
        return status_make(STATUS_SYSTEM, "out of memory");
    Status status = open_pair(x, prefix);
    if (status)
        data_index_close(x);
    else
        *out_index = x;
    return status;
}

static Status open_text(DataIndex *x, const char *path, const char *split,
                        DataPart part)
{
    uint64_t end;

    x->type = DATA_U8;
    x->sequences = x->entries = 1;
    x->bin_path = strdup(path);
    if (!x->bin_path)
        return status_make(STATUS_SYSTEM, "out of memory");
    STATUS_TRY(data_map_open(path, &x->bin));
    STATUS_TRY(data_split_range(split, part, x->bin.size, &x->text_first,
                                &end));
    x->text_bytes = x->tokens = end - x->text_first;
    return STATUS_NONE;
}

Status data_index_open_text(const char *path, const char *split,
                            DataPart part, DataIndex **out_index)
{
    DataIndex *x = calloc(1, sizeof *x);

    if (!x)
        return status_make(STATUS_SYSTEM, "out of memory");
    Status status = open_text(x, path, split, part);
    if (status)
        data_index_close(x);
    else
        *out_index = x;
    return status;
}

void data_index_close(DataIndex *x)
{
    if (!x)
        return;
    data_map_close(&x->idx);
    data_map_close(&x->bin);
    free(x->idx_path);
    free(x->bin_path);
    free(x);
}

/* ---- reading ------------------------------------------------------------- */

DataType data_index_type(const DataIndex *x)
{
    return x->type;
}

uint64_t data_index_sequences(const DataIndex *x)
{
    return x->sequences;
}

uint64_t data_index_documents(const DataIndex *x)
{
    return x->idx.bytes ? x->entries - 1 : 1;
}

uint64_t data_index_tokens(const DataIndex *x)
{
    return x->tokens;
}

const char *data_index_path(const DataIndex *x)
{
    return x->bin_path;
}

uint64_t data_index_length(const DataIndex *x, uint64_t sequence)
{
    return x->length ? (uint64_t)length_at(x, sequence) : x->text_bytes;
}

uint64_t data_index_pointer(const DataIndex *x, uint64_t sequence)
{
    return x->pointer ? (uint64_t)pointer_at(x, sequence) : x->text_first;
}

uint64_t data_index_bytes(const DataIndex *x)
{
    return x->bin.size;
}

/* One copying loop per token type. */
#define COPY(T)                                                                \
    for (uint64_t i = 0; i < n; i++) {                                         \
        T token;                                                               \
        memcpy(&token, p + i * sizeof token, sizeof token);                    \
        int64_t value = (int64_t)token;                                        \
        if (value < 0 || value >= limit) {                                     \
            *out_bad = value;                                                  \
            return i;                                                          \
        }                                                                      \
        out_tokens[i] = (int32_t)value;                                        \
    }                                                                          \
    return n

uint64_t data_index_copy(const DataIndex *x, uint64_t sequence, uint64_t offset,
                         uint64_t n, int64_t limit, int32_t *out_tokens,
                         int64_t *out_bad)
{
    const uint8_t *p = x->bin.bytes + data_index_pointer(x, sequence) +
                       offset * types[x->type].size;

    switch (x->type) {
    case DATA_U8:
        COPY(uint8_t);
    case DATA_I8:
        COPY(int8_t);
    case DATA_I16:
        COPY(int16_t);
    case DATA_U16:
        COPY(uint16_t);
    case DATA_I32:
        COPY(int32_t);
    default:
        COPY(int64_t);
    }
}
