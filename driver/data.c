/* data.c - `megac data`: info and verify of .bin/.idx pairs; pack is in
 * data_pack.c.
 *
 * A data set is named by its prefix; the name of either file will do too.
 */
#include "driver/data.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

static struct {
    int64_t vocab;
    bool json;
    const char *like;
} args;

#define VOCAB_OPTION                                                           \
    {"--vocab-size", 0, "N", CLI_INT, &args.vocab,                             \
     "tokens must be below N (default: 2^31)"}
#define JSON_OPTION                                                            \
    {"--json", 0, NULL, CLI_FLAG, &args.json, "print one JSON array"}

static const CliOption info_options[] = {
    VOCAB_OPTION,
    JSON_OPTION,
    CLI_OPTIONS_END,
};

static const CliOption verify_options[] = {
    VOCAB_OPTION,
    {"--like", 0, "PREFIX", CLI_TEXT, &args.like,
     "sequences must be as long as those of PREFIX, as a mask's are"},
    JSON_OPTION,
    CLI_OPTIONS_END,
};

/* ---- one pair ------------------------------------------------------------ */

char *data_prefix(const char *name)
{
    size_t n = strlen(name);

    if (n > 4 && (!strcmp(name + n - 4, ".bin") ||
                  !strcmp(name + n - 4, ".idx")))
        n -= 4;
    return strndup(name, n);
}

static void describe(const char *prefix, const DataIndex *x,
                     const DataStats *stats)
{
    printf("%s: documents %" PRIu64 ", sequences %" PRIu64 ", tokens %" PRIu64
           " of %s, largest id %" PRId64 ", longest sequence %" PRIu64 "\n",
           prefix, data_index_documents(x), data_index_sequences(x),
           data_index_tokens(x), data_type_name(data_index_type(x)),
           stats->max_token, stats->longest);
}

static json_t *describe_json(const char *prefix, const DataIndex *x,
                             const DataStats *stats)
{
    return json_pack("{ss sI sI sI ss sI sI sI}", "prefix", prefix,
                     "documents", (json_int_t)data_index_documents(x),
                     "sequences", (json_int_t)data_index_sequences(x),
                     "tokens", (json_int_t)data_index_tokens(x),
                     "dtype", data_type_name(data_index_type(x)),
                     "bytes", (json_int_t)data_index_bytes(x),
                     "max_token", (json_int_t)stats->max_token,
                     "longest", (json_int_t)stats->longest);
}

typedef Status (*Reader)(const DataIndex *index, int64_t vocab_size,
                         DataStats *out_stats);

/* Reads one pair and describes it, into `list` if there is one. */
static Status show(const char *prefix, Reader reader, json_t *list)
{
    DataIndex *x;
    DataStats stats;

    STATUS_TRY(data_index_open(prefix, &x));
    Status status = reader(x, args.vocab, &stats);
    if (!status && list)
        json_array_append_new(list, describe_json(prefix, x, &stats));
    else if (!status)
        describe(prefix, x, &stats);
    data_index_close(x);
    return status;
}

/* ---- the commands -------------------------------------------------------- */

/* All pairs are read, also after one that is damaged. */
static CliExit show_all(const CliList *operands, Reader reader)
{
    json_t *list = args.json ? json_array() : NULL;
    CliExit code = CLI_DONE;

    for (uint32_t i = 0; i < operands->n; i++) {
        char *prefix = data_prefix(operands->v[i]);
        Status status = show(prefix, reader, list);

        if (status) {
            CliExit failure = cli_failed(status);
            code = MC_MAX(code, failure);
        }
        free(prefix);
    }
    if (list && code == CLI_DONE) {
        json_dumpf(list, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(list);
    return code;
}

static CliExit run_info(const CliList *operands)
{
    return show_all(operands, data_index_scan);
}

/* Whether every sequence has its counterpart. */
static Status compare_lengths(const DataIndex *x, const DataIndex *like)
{
    uint64_t n = data_index_sequences(x), m = data_index_sequences(like);

    if (n != m)
        return status_make(STATUS_INPUT,
                           "%s has %" PRIu64 " sequences, %s %" PRIu64,
                           data_index_path(x), n, data_index_path(like), m);
    for (uint64_t i = 0; i < n; i++)
        if (data_index_length(x, i) != data_index_length(like, i))
            return status_make(STATUS_INPUT,
                               "sequence %" PRIu64 " of %s has %" PRIu64
                               " tokens, of %s %" PRIu64, i,
                               data_index_path(x), data_index_length(x, i),
                               data_index_path(like),
                               data_index_length(like, i));
    return STATUS_NONE;
}

static Status verify_pair(const DataIndex *x, int64_t vocab, DataStats *out)
{
    DataIndex *like;
    char *prefix;
    Status status;

    STATUS_TRY(data_index_verify(x, vocab, out));
    if (!args.like)
        return STATUS_NONE;
    prefix = data_prefix(args.like);
    status = data_index_open(prefix, &like);
    free(prefix);
    STATUS_TRY(status);
    status = compare_lengths(x, like);
    data_index_close(like);
    return status;
}

static CliExit run_verify(const CliList *operands)
{
    return show_all(operands, verify_pair);
}

static const CliCommand info = {
    .name = "info",
    .operands = "PREFIX…",
    .help = "count documents and tokens of .bin/.idx pairs",
    .options = info_options,
    .operands_min = 1,
    .operands_max = CLI_MANY,
    .run = run_info,
};

static const CliCommand verify = {
    .name = "verify",
    .operands = "PREFIX…",
    .help = "check every field and every token of .bin/.idx pairs",
    .details = "Exits with 1 if a pair is damaged, after saying which file, "
               "field and value. Beyond what every reader checks, sequences "
               "must fill the .bin without gap or overlap.",
    .options = verify_options,
    .operands_min = 1,
    .operands_max = CLI_MANY,
    .run = run_verify,
};

static const CliCommand *const children[] = {&data_pack, &info, &verify, NULL};

const CliCommand cmd_data = {
    .name = "data",
    .help = "make, describe and check Megatron .bin/.idx data sets",
    .children = children,
};
