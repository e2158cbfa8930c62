/* fuzz_idx.c - any bytes as a .bin/.idx pair: an error or a data set that can
 * be read to the last token, never a crash.
 *
 * The first two bytes are the size of the .bin, the rest is the .idx.
 */
#include "runtime/data.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static char prefix[64];

static void put(const char *suffix, const uint8_t *bytes, size_t n,
                size_t file_size)
{
    char path[80];

    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n ||
        ftruncate(fd, (off_t)file_size))
        abort();
    close(fd);
}

static void remove_files(void)
{
    char path[80];

    snprintf(path, sizeof path, "%s.idx", prefix);
    unlink(path);
    snprintf(path, sizeof path, "%s.bin", prefix);
    unlink(path);
}

static void name_files(void)
{
    if (prefix[0])
        return;
    snprintf(prefix, sizeof prefix, "/tmp/megac-fuzz-idx-%d", (int)getpid());
    atexit(remove_files);
}

/* Reads every token of every sequence. */
static void read_all(const DataIndex *x)
{
    int32_t token;
    int64_t bad;

    for (uint64_t i = 0; i < data_index_sequences(x); i++)
        for (uint64_t at = 0; at < data_index_length(x, i); at++)
            data_index_copy(x, i, at, 1, INT32_MAX, &token, &bad);
}

static void read_samples(void)
{
    DataSource source = {prefix, 1, NULL};
    DataConfig c = {.kind = DATA_KIND_INDEXED, .sources = &source,
                    .sources_n = 1, .seq_length = 7, .vocab_size = INT32_MAX,
                    .samples = 9};
    int32_t tokens[8];
    Data *d;
    Status status = data_open(&c, &d);

    if (!status) {
        for (uint64_t i = 0; i < c.samples && !status; i++)
            status = data_sample(d, i, tokens);
        data_close(d);
    }
    status_drop(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    DataIndex *x;

    if (size < 2)
        return 0;
    name_files();
    put(".bin", bytes, 0, bytes[0] + 256u * bytes[1]);
    put(".idx", bytes + 2, size - 2, size - 2);
    Status status = data_index_open(prefix, &x);
    if (!status) {
        read_all(x);
        data_index_close(x);
        read_samples();
    }
    status_drop(status);
    return 0;
}
