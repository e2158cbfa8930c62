/* data_tokens.c - token files of four formats, read in chunks.
 *
 * A reader turns one chunk of the file into tokens; a document may be larger
 * than memory.  A file that ends within a token is an error, not a token.
 */
#include "driver/data.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>

enum { CHUNK = 1 << 14 };

static Status read_failed(const char *path)
{
    return status_system(errno, "%s", path);
}

/* ---- binary -------------------------------------------------------------- */

static void widen(const uint8_t *bytes, size_t n, size_t width,
                  int32_t *out_tokens)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t v = 0;

        memcpy(&v, bytes + i * width, width);
        out_tokens[i] = (int32_t)v;
    }
}

static Status read_binary(FILE *f, const char *path, size_t width,
                          DataWriter *w, uint64_t *out_n)
{
    uint8_t bytes[CHUNK];
    int32_t tokens[CHUNK];
    size_t got;

    while ((got = fread(bytes, 1, sizeof bytes, f)) > 0) {
        if (got % width)
            return status_make(STATUS_INPUT,
                               "%s: the size is no multiple of %zu bytes",
                               path, width);
        widen(bytes, got / width, width, tokens);
        STATUS_TRY(status_in(data_writer_tokens(w, tokens, got / width), "%s",
                             path));
        *out_n += got / width;
    }
    return ferror(f) ? read_failed(path) : STATUS_NONE;
}

/* ---- decimal ------------------------------------------------------------- */

/* Reads one number after white space; false at the end of the file. */
static Status read_id(FILE *f, const char *path, uint64_t *line,
                      bool *out_found, int32_t *out_id)
{
    int c;
    int64_t value = 0, digits = 0;

    while ((c = getc(f)) != EOF && isspace(c))
        *line += c == '\n';
    for (; c != EOF && isdigit(c) && value <= INT32_MAX; c = getc(f), digits++)
        value = value * 10 + (c - '0');
    if (c != EOF && !isspace(c) && !isdigit(c))
        return status_make(STATUS_INPUT,
                           "%s:%" PRIu64 ": `%c` is not part of a token id",
                           path, *line, c);
    if (value > INT32_MAX)
        return status_make(STATUS_INPUT,
                           "%s:%" PRIu64 ": a token id above 2^31-1", path,
                           *line);
    *line += c == '\n';
    *out_found = digits > 0;
    *out_id = (int32_t)value;
    return STATUS_NONE;
}

static Status read_ids(FILE *f, const char *path, DataWriter *w,
                       uint64_t *out_n)
{
    uint64_t line = 1;
    bool found = true;
    int32_t id;

    while (found) {
        uint64_t at = line;

        STATUS_TRY(read_id(f, path, &line, &found, &id));
        if (found)
            STATUS_TRY(status_in(data_writer_tokens(w, &id, 1),
                                 "%s:%" PRIu64, path, at));
        *out_n += found;
    }
    return ferror(f) ? read_failed(path) : STATUS_NONE;
}

Status data_tokens(const char *path, DataFormat format, DataWriter *w,
                   uint64_t *out_n)
{
    static const size_t widths[] = {1, 2, 4};
    FILE *f = fopen(path, "rb");

    *out_n = 0;
    if (!f)
        return status_make(STATUS_INPUT, "%s: %s", path, strerror(errno));
    Status status = format == DATA_FORMAT_IDS
                        ? read_ids(f, path, w, out_n)
                        : read_binary(f, path, widths[format], w, out_n);
    fclose(f);
    return status;
}
