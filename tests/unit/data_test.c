/* data_test.c - datasets against Megatron's own, and against damage.
 *
 * The golden numbers come from megatron-core run by tests/oracle/
 * data_golden.py: what its builder writes for documents given by a formula,
 * and what its GPTDataset and BlendedDataset return for them.
 */
#include "runtime/data.h"
#include "runtime/data_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct {
    int salt;
    const char *suffix;
    size_t size;
    uint64_t hash; /* FNV-1a of the file */
} GoldenFile;

typedef struct {
    uint32_t sources;
    const char *split;
    int part;
    int64_t seed, seq;
    uint64_t samples;
    int32_t first[4], last[4]; /* tokens of the first and the last sample */
    uint64_t hash;             /* of all tokens of all samples */
} GoldenOrder;

#include "tests/unit/data_golden.h"

enum { SOURCES = 11 };
static char home[] = "/tmp/megac-data-XXXXXX";
static char prefixes[SOURCES][64];

/* ---- helpers ------------------------------------------------------------- */

static void ok(Status status)
{
    if (status)
        fail_msg("%s", status_text(status));
}

/* The status is a failure whose message holds `part`. */
static void fails(Status status, StatusCode code, const char *part)
{
    assert_int_equal(status_code(status), code);
    if (!strstr(status_text(status), part))
        fail_msg("\"%s\" does not say \"%s\"", status_text(status), part);
    status_drop(status);
}

static uint64_t fnv(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static const uint64_t fnv_start = 0xcbf29ce484222325u;

/* Document i as data_golden.py makes it. */
static uint64_t document(int salt, uint64_t i, int32_t *out)
{
    uint64_t n = i * 7919 % 53 + (i % 5 == 0 ? 40 : 0);

    for (uint64_t at = 0; at < n; at++)
        out[at] = (int32_t)(((uint64_t)salt * 10007 + i * 211 + at * 17) %
                            50000);
    return n;
}

static void write_source(int salt)
{
    int32_t tokens[128];
    DataWriter *w;

    ok(data_writer_open(prefixes[salt], salt % 2 ? DATA_I32 : DATA_U16, &w));
    for (uint64_t i = 0; i < 120 + (uint64_t)salt; i++) {
        ok(data_writer_tokens(w, tokens, document(salt, i, tokens)));
        ok(data_writer_document(w));
    }
    ok(data_writer_finish(w));
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(home))
        return -1;
    for (int i = 0; i < SOURCES; i++) {
        snprintf(prefixes[i], sizeof prefixes[i], "%s/d%d", home, i);
        write_source(i);
    }
    return 0;
}

static int tear_down(void **state)
{
    char command[80];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", home);
    return system(command);
}

static char *path_of(const char *prefix, const char *suffix)
{
    static char path[256];

    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    return path;
}

static const char *in_home(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static void put_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static Buf get_file(const char *path)
{
    Buf b = {0};

    assert_true(buf_read_file(&b, path));
    return b;
}

static DataConfig config_of(const GoldenOrder *g, const DataSource *sources)
{
    return (DataConfig){.kind = DATA_KIND_INDEXED, .sources = sources,
                        .sources_n = g->sources, .split = g->split,
                        .part = (DataPart)g->part, .seed = g->seed,
                        .seq_length = g->seq, .vocab_size = 50000,
                        .samples = g->samples};
}

/* ---- against Megatron ---------------------------------------------------- */

static void test_files_are_megatrons(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(golden_files); i++) {
        const GoldenFile *g = &golden_files[i];
        Buf b = get_file(path_of(prefixes[g->salt], g->suffix));

        assert_int_equal(b.len, g->size);
        assert_int_equal(fnv(fnv_start, b.s, b.len), g->hash);
        buf_free(&b);
    }
}

static void check_order(const GoldenOrder *g)
{
    DataSource sources[SOURCES];
    int32_t tokens[5001];
    uint64_t hash = fnv_start;
    Data *d;

    for (int i = 0; i < SOURCES; i++)
        sources[i] = (DataSource){prefixes[i], golden_weights[i], NULL};
    DataConfig c = config_of(g, sources);
    ok(data_open(&c, &d));
    for (uint64_t i = 0; i < g->samples; i++) {
        ok(data_sample(d, i, tokens));
        hash = fnv(hash, tokens, (size_t)(g->seq + 1) * sizeof *tokens);
        if (i == 0)
            assert_memory_equal(tokens, g->first, sizeof g->first);
    }
    assert_memory_equal(tokens, g->last, sizeof g->last);
    assert_int_equal(hash, g->hash);
    data_close(d);
}

static void test_order_is_megatrons(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(golden_orders); i++)
        check_order(&golden_orders[i]);
}

static void test_shuffle_is_numpys(void **state)
{
    uint32_t v[MC_LEN(golden_shuffle)];
    DataRand r;

    (void)state;
    for (uint32_t i = 0; i < MC_LEN(v); i++)
        v[i] = i;
    data_rand_seed(&r, 1234);
    data_rand_shuffle(&r, v, MC_LEN(v));
    assert_memory_equal(v, golden_shuffle, sizeof v);
}

/* The 10000th output of MT19937 with seed 5489 is given by the C++ standard,
 * [rand.predef]. */
static void test_generator_is_mt19937(void **state)
{
    DataRand r;
    uint32_t last = 0;

    (void)state;
    data_rand_seed(&r, 5489);
    for (int i = 0; i < 10000; i++)
        last = data_rand_u32(&r);
    assert_int_equal(last, 4123659995u);
}

/* ---- batches ------------------------------------------------------------- */

/* Whatever dp and the micro-batch size, a step reads the same samples, and
 * micro-batch t, whole over dp, the same range (by hand: gbs 16). */
static void test_batch_does_not_depend_on_layout(void **state)
{
    static const uint64_t layouts[][2] = {{1, 1}, {2, 1}, {4, 1}, {4, 2},
                                          {1, 16}, {8, 2}};

    (void)state;
    for (size_t l = 0; l < MC_LEN(layouts); l++) {
        DataBatch b = {16, layouts[l][1], layouts[l][0]};
        uint64_t wide = b.dp_size * b.micro_batch_size, next = 64;

        for (uint64_t t = 0; t < 16 / wide; t++)
            for (uint64_t dp = 0; dp < b.dp_size; dp++)
                for (uint64_t row = 0; row < b.micro_batch_size; row++)
                    assert_int_equal(data_sample_id(&b, 4, t, dp, row), next++);
        assert_int_equal(next, 80);
    }
}

/* Reading on where one epoch ends goes on with the next. */
static void test_samples_run_over_the_epoch(void **state)
{
    uint8_t bytes[101];
    int32_t tokens[11];
    bool seen[3][10] = {{false}};
    Data *d;

    (void)state;
    for (int i = 0; i < 101; i++)
        bytes[i] = (uint8_t)i;
    put_file(in_home("text"), bytes, sizeof bytes);
    DataSource source = {in_home("text"), 1, NULL};
    DataConfig c = {.kind = DATA_KIND_TEXT, .sources = &source,
                    .sources_n = 1, .seed = 7, .seq_length = 10,
                    .vocab_size = 256, .samples = 12};
    ok(data_open(&c, &d));
    for (uint64_t i = 0; i < 12; i++) {
        ok(data_sample(d, i, tokens));
        int epoch = i < 10 ? 0 : 1, at = tokens[0] / 10;
        assert_false(seen[epoch][at]);
        seen[epoch][at] = true;
        for (int k = 0; k < 11; k++)
            assert_int_equal(tokens[k], (tokens[0] + k) % 101);
    }
    fails(data_sample(d, 12, tokens), STATUS_INPUT, "sample 12 of 12");
    data_close(d);
}

/* ---- longer than planned ------------------------------------------------- */

/* The first `n` samples of two configurations are the same. */
static void expect_same_start(const DataConfig *c, const DataConfig *other,
                              uint64_t n)
{
    int32_t a[5001], b[5001];
    Data *x, *y;

    ok(data_open(c, &x));
    ok(data_open(other, &y));
    for (uint64_t i = 0; i < n; i++) {
        ok(data_sample(x, i, a));
        ok(data_sample(y, i, b));
        assert_memory_equal(a, b, (size_t)(c->seq_length + 1) * sizeof *a);
    }
    data_close(x);
    data_close(y);
}

/* 80 samples of 10 tokens: a run planned for 64 that goes on to 200 has the
 * same first 64, ends the epoch (64..79), and takes every sample once in each
 * further one.  Going on again moves nothing. */
static void test_longer_than_planned(void **state)
{
    int32_t tokens[11];
    uint8_t bytes[801];
    int seen[80] = {0};
    Data *d;

    (void)state;
    for (int i = 0; i < 801; i++)
        bytes[i] = (uint8_t)(i % 10 ? 128 : i / 10);
    put_file(in_home("long"), bytes, sizeof bytes);
    DataSource source = {in_home("long"), 1, NULL};
    DataConfig begun = {.kind = DATA_KIND_TEXT, .sources = &source,
                        .sources_n = 1, .seed = 7, .seq_length = 10,
                        .vocab_size = 256, .samples = 64};
    DataConfig longer = begun, longest = begun;
    longer.planned = longest.planned = 64;
    longer.samples = 200;
    longest.samples = 400;
    expect_same_start(&begun, &longer, 64);
    expect_same_start(&longer, &longest, 200);
    ok(data_open(&longer, &d));
    for (uint64_t i = 0; i < 160; i++) {
        ok(data_sample(d, i, tokens));
        assert_in_range(tokens[0], 0, 79);
        assert_int_equal(seen[tokens[0]]++, i / 80);
    }
    data_close(d);
}

/* The same of blends; and what was planned counts, not what is asked for. */
static void test_longer_blends(void **state)
{
    (void)state;
    for (size_t i = 0; i < MC_LEN(golden_orders); i++) {
        const GoldenOrder *g = &golden_orders[i];
        DataSource sources[SOURCES];

        for (int k = 0; k < SOURCES; k++)
            sources[k] = (DataSource){prefixes[k], golden_weights[k], NULL};
        DataConfig begun = config_of(g, sources), on = begun;
        on.planned = begun.samples;
        on.samples = 3 * begun.samples;
        expect_same_start(&begun, &on, begun.samples);
        on.samples = begun.samples / 2 + 1;
        expect_same_start(&begun, &on, on.samples);
    }
}

static void test_text_is_split_by_bytes(void **state)
{
    uint8_t bytes[1000];
    int32_t tokens[5];
    Data *d;

    (void)state;
    for (int i = 0; i < 1000; i++)
        bytes[i] = i < 900 ? 'a' : 'b';
    put_file(in_home("halves"), bytes, sizeof bytes);
    DataSource source = {in_home("halves"), 1, NULL};
    DataConfig c = {.kind = DATA_KIND_TEXT, .sources = &source,
                    .sources_n = 1, .split = "9, 1", .part = DATA_VALID,
                    .seq_length = 4, .vocab_size = 256, .samples = 24};
    ok(data_open(&c, &d));
    for (uint64_t i = 0; i < 24; i++) {
        ok(data_sample(d, i, tokens));
        for (int k = 0; k < 5; k++)
            assert_int_equal(tokens[k], 'b');
    }
    data_close(d);
}

/* A function of seed, sample and position, spread over the vocabulary. */
static void test_synthetic_tokens(void **state)
{
    DataConfig c = {.kind = DATA_KIND_SYNTHETIC, .seed = 1, .seq_length = 999,
                    .vocab_size = 10, .samples = 1000000};
    int32_t a[1000], b[1000];
    int counts[10] = {0};
    Data *d;

    (void)state;
    ok(data_open(&c, &d));
    ok(data_sample(d, 3, a));
    ok(data_sample(d, 4, b));
    assert_memory_not_equal(a, b, sizeof a);
    data_close(d);
    c.samples = 5; /* does not matter */
    ok(data_open(&c, &d));
    ok(data_sample(d, 3, b));
    assert_memory_equal(a, b, sizeof a);
    data_close(d);
    for (int i = 0; i < 1000; i++)
        counts[a[i]]++;
    for (int i = 0; i < 10; i++)
        assert_in_range(counts[i], 60, 140); /* 100, sigma 9.5 */
    c.seed = 2;
    ok(data_open(&c, &d));
    ok(data_sample(d, 3, b));
    assert_memory_not_equal(a, b, sizeof a);
    data_close(d);
}

/* ---- damage -------------------------------------------------------------- */

/* A small pair: documents {1 2 3}, {}, {4 5}, of uint16. */
static Buf small_index(const char *prefix)
{
    static const int32_t tokens[] = {1, 2, 3, 4, 5};
    DataWriter *w;

    ok(data_writer_open(prefix, DATA_U16, &w));
    ok(data_writer_tokens(w, tokens, 3));
    ok(data_writer_document(w));
    ok(data_writer_document(w));
    ok(data_writer_tokens(w, tokens + 3, 2));
    ok(data_writer_document(w));
    ok(data_writer_finish(w));
    return get_file(path_of(prefix, ".idx"));
}

/* Each row overwrites one byte of the index; offsets from data_idx.c. */
static void test_every_field_is_checked(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *message;
    } rows[] = {
        {0, 'X', "magic"},
        {9, 2, "version: 2"},
        {17, 0, "dtype: unknown code 0"},
        {17, 9, "dtype: unknown code 9"},
        {17, 7, "dtype: tokens are float32"},
        {18, 200, "sequence_count: 200"},
        {25, 255, "sequence_count"},
        {26, 200, "document_count: 200"},
        {33, 255, "document_count"},
        {26, 3, "8 bytes too many"},
        {37, 255, "sequence_lengths[0]: -"},
        {42, 3, "sequence_pointers[2]"},
        {54, 1, "sequence_pointers[1]: 1 is not an offset of uint16"},
        {69, 128, "sequence_pointers[2]: -"},
        {62, 8, "sequence_pointers[2]: tokens at 8 + 4"},
        {70, 1, "document_indices[0]: 1"},
        {78, 9, "document_indices[2]: 2 is below"},
        {94, 4, "document_indices[3]: 4, not the number of sequences"},
    };
    const char *prefix = in_home("bad");
    Buf good = small_index(prefix);
    DataIndex *x;

    (void)state;
    assert_int_equal(good.len, 34 + 3 * 12 + 4 * 8);
    for (size_t i = 0; i < MC_LEN(rows); i++) {
        char kept = good.s[rows[i].at];

        good.s[rows[i].at] = (char)rows[i].value;
        put_file(path_of(prefix, ".idx"), good.s, good.len);
        fails(data_index_open(prefix, &x), STATUS_INPUT, rows[i].message);
        good.s[rows[i].at] = kept;
    }
    buf_free(&good);
}

static void test_every_truncation_is_an_error(void **state)
{
    const char *prefix = in_home("cut");
    Buf good = small_index(prefix);
    DataIndex *x;

    (void)state;
    for (size_t n = 0; n < good.len; n++) {
        put_file(path_of(prefix, ".idx"), good.s, n);
        fails(data_index_open(prefix, &x), STATUS_INPUT, "cut.idx");
    }
    put_file(path_of(prefix, ".idx"), good.s, good.len);
    put_file(path_of(prefix, ".bin"), "123456789", 9);
    fails(data_index_open(prefix, &x), STATUS_INPUT, "cut.bin has 9 bytes");
    buf_free(&good);
}

static void test_missing_files(void **state)
{
    DataIndex *x;

    (void)state;
    fails(data_index_open("/nonexistent/x", &x), STATUS_INPUT,
          "/nonexistent/x.idx: No such file");
    Buf good = small_index(in_home("alone"));
    buf_free(&good);
    assert_int_equal(unlink(path_of(in_home("alone"), ".bin")), 0);
    fails(data_index_open(in_home("alone"), &x), STATUS_INPUT, "alone.bin");
}

static void test_token_outside_of_vocabulary(void **state)
{
    DataSource source = {prefixes[0], 1, NULL};
    DataConfig c = {.kind = DATA_KIND_INDEXED, .sources = &source,
                    .sources_n = 1, .seq_length = 16, .vocab_size = 20000,
                    .samples = 200};
    int32_t tokens[17];
    Status status = STATUS_NONE;
    char sample[64];
    Data *d;

    (void)state;
    ok(data_open(&c, &d));
    uint64_t i = 0;
    for (; i < c.samples && !status; i++)
        status = data_sample(d, i, tokens);
    snprintf(sample, sizeof sample, "d0.bin: sample %d: token ", (int)i - 1);
    fails(status, STATUS_INPUT, sample);
    data_close(d);
}

static void expect_open_fails(DataConfig c, const char *message)
{
    Data *d;

    fails(data_open(&c, &d), STATUS_INPUT, message);
}

static void test_bad_configurations(void **state)
{
    DataSource sources[2] = {{prefixes[0], 1, NULL}, {prefixes[1], 0, NULL}};
    DataConfig c = {.kind = DATA_KIND_INDEXED, .sources = sources,
                    .sources_n = 1, .seq_length = 16, .vocab_size = 50000,
                    .samples = 20};

    (void)state;
    static const char *const splits[] = {"", "a", "1,,2", "1;2", "1,2,3,4",
                                         "-1,2", "0,0,0"};
    for (size_t i = 0; i < MC_LEN(splits); i++) {
        c.split = splits[i];
        expect_open_fails(c, "data.split");
    }
    c.split = "100,0,0";
    c.part = DATA_VALID;
    expect_open_fails(c, "leaves nothing for validation");
    c.split = NULL;
    c.sources_n = 2;
    expect_open_fails(c, "weight 0 is not positive");
    c.sources_n = 1;
    c.seed = -1;
    expect_open_fails(c, "training.seed");
    put_file(in_home("empty"), "", 0);
    DataSource empty = {in_home("empty"), 1, NULL};
    expect_open_fails((DataConfig){.kind = DATA_KIND_TEXT, .sources = &empty,
                                   .sources_n = 1, .seq_length = 1,
                                   .vocab_size = 256, .samples = 1},
                      "there are no tokens");
}

/* ---- token types --------------------------------------------------------- */

/* What fits a type comes back as it was written, and a negative token is never
 * read as an id. */
static void round_trip(DataType type, int32_t low, int32_t high)
{
    int32_t tokens[] = {low, 0, 1, high}, back[4];
    int64_t bad = 0;
    DataWriter *w;
    DataIndex *x;
    DataStats stats;

    ok(data_writer_open(in_home("typed"), type, &w));
    ok(data_writer_tokens(w, tokens, 4));
    ok(data_writer_document(w));
    ok(data_writer_finish(w));
    ok(data_index_open(in_home("typed"), &x));
    assert_int_equal(data_index_type(x), type);
    assert_int_equal(data_index_bytes(x), 4 * data_type_size(type));
    assert_int_equal(
        data_index_copy(x, 0, 1, 3, (int64_t)INT32_MAX + 1, back, &bad), 3);
    assert_memory_equal(back, tokens + 1, 3 * sizeof *back);
    if (low < 0) {
        char message[64];
        snprintf(message, sizeof message, "position 0: token %d", low);
        fails(data_index_verify(x, 0, &stats), STATUS_INPUT, message);
    } else {
        ok(data_index_verify(x, 0, &stats));
        assert_int_equal(stats.max_token, high);
        assert_int_equal(stats.longest, 4);
    }
    data_index_close(x);
}

static void test_all_integer_types(void **state)
{
    (void)state;
    round_trip(DATA_U8, 0, UINT8_MAX);
    round_trip(DATA_I8, INT8_MIN, INT8_MAX);
    round_trip(DATA_I16, INT16_MIN, INT16_MAX);
    round_trip(DATA_U16, 0, UINT16_MAX);
    round_trip(DATA_I32, INT32_MIN, INT32_MAX);
    round_trip(DATA_I64, -1, INT32_MAX);
}

/* Sequences that overlap are readable, but no writer makes them. */
static void test_verify_wants_no_gap(void **state)
{
    const char *prefix = in_home("gap");
    Buf index = small_index(prefix);
    DataStats stats;
    DataIndex *x;

    (void)state;
    index.s[34 + 3 * 4 + 2 * 8] = 2; /* third pointer: 6 -> 2 */
    put_file(path_of(prefix, ".idx"), index.s, index.len);
    ok(data_index_open(prefix, &x));
    fails(data_index_verify(x, 0, &stats), STATUS_INPUT,
          "sequence 2 begins at byte 2, the one before it ends at 6");
    data_index_close(x);
    buf_free(&index);
}

/* ---- writing ------------------------------------------------------------- */

static void test_tokens_must_fit(void **state)
{
    static const int32_t tokens[] = {65535, 65536};
    DataWriter *w;

    (void)state;
    ok(data_writer_open(in_home("narrow"), DATA_U16, &w));
    fails(data_writer_tokens(w, tokens, 2), STATUS_INPUT,
          "token 65536 does not fit uint16");
    data_writer_drop(w);
    assert_int_equal(access(path_of(in_home("narrow"), ".bin.tmp"), F_OK), -1);
    assert_int_equal(access(path_of(in_home("narrow"), ".idx.tmp"), F_OK), -1);
}

/* /dev/full refuses every byte: nothing may be renamed. */
static void test_full_disk(void **state)
{
    const char *prefix = in_home("full");
    int32_t tokens[4096] = {0};
    DataWriter *w;

    (void)state;
    if (symlink("/dev/full", path_of(prefix, ".bin.tmp")))
        skip();
    ok(data_writer_open(prefix, DATA_U8, &w));
    Status status = data_writer_tokens(w, tokens, MC_LEN(tokens));
    if (!status)
        status = data_writer_document(w);
    if (!status)
        fails(data_writer_finish(w), STATUS_SYSTEM, "No space left");
    else
        data_writer_drop(w);
    status_drop(status);
    assert_int_equal(access(path_of(prefix, ".bin"), F_OK), -1);
    assert_int_equal(access(path_of(prefix, ".idx"), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator_is_mt19937),
        cmocka_unit_test(test_shuffle_is_numpys),
        cmocka_unit_test(test_files_are_megatrons),
        cmocka_unit_test(test_order_is_megatrons),
        cmocka_unit_test(test_batch_does_not_depend_on_layout),
        cmocka_unit_test(test_samples_run_over_the_epoch),
        cmocka_unit_test(test_longer_than_planned),
        cmocka_unit_test(test_longer_blends),
        cmocka_unit_test(test_text_is_split_by_bytes),
        cmocka_unit_test(test_synthetic_tokens),
        cmocka_unit_test(test_every_field_is_checked),
        cmocka_unit_test(test_every_truncation_is_an_error),
        cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_token_outside_of_vocabulary),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_all_integer_types),
        cmocka_unit_test(test_verify_wants_no_gap),
        cmocka_unit_test(test_tokens_must_fit),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
