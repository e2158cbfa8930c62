/* data_pack.c - `megac data pack`: files to a .bin/.idx pair.
 *
 * Every file becomes one document, an empty file none.  The list of files is
 * complete before the first byte is written, and the pair itself is never part
 * of it, so packing a directory into itself gives the same result twice.
 */
#include "driver/data.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct {
    const char *output, *tokens, *dtype, *eod;
    DataFilter filter;
    bool json;
} args;

static const CliOption options[] = {
    {"--output", 'o', "PREFIX", CLI_TEXT, &args.output,
     "write PREFIX.bin and PREFIX.idx"},
    {"--tokens", 0, "FORMAT", CLI_TEXT, &args.tokens,
     "the files hold token ids: uint16 or int32 (binary, little endian), or "
     "ids (decimal numbers between white space); default: text, each byte a "
     "token"},
    {"--append-eod", 0, "ID", CLI_MAYBE, &args.eod,
     "end every document with token ID; default for text: 256, the first "
     "that is no byte"},
    {"--dtype", 0, "TYPE", CLI_TEXT, &args.dtype,
     "store tokens as uint8, uint16 or int32; default: int32 for int32 and "
     "ids, otherwise uint16"},
    {"--include", 0, "GLOB", CLI_LIST, &args.filter.include,
     "of directories, take only the files that match one such pattern"},
    {"--exclude", 0, "GLOB", CLI_LIST, &args.filter.exclude,
     "of directories, leave out the files that match one such pattern"},
    {"--json", 0, NULL, CLI_FLAG, &args.json, "print one JSON object"},
    CLI_OPTIONS_END,
};

/* What the options say. */
typedef struct {
    DataFormat format;
    DataType type;
    int32_t eod;
    bool append_eod;
} Job;

typedef struct {
    uint64_t documents, tokens;
} Totals;

/* ---- options ------------------------------------------------------------- */

static bool find_format(const char *name, DataFormat *out_format)
{
    static const char *const names[] = {"", "uint16", "int32", "ids"};

    for (uint32_t i = 1; i < MC_LEN(names); i++)
        if (!strcmp(name, names[i])) {
            *out_format = (DataFormat)i;
            return true;
        }
    return false;
}

static bool find_type(const char *name, DataType *out_type)
{
    static const DataType types[] = {DATA_U8, DATA_U16, DATA_I32};

    for (uint32_t i = 0; i < MC_LEN(types); i++)
        if (!strcmp(name, data_type_name(types[i]))) {
            *out_type = types[i];
            return true;
        }
    return false;
}

static CliExit read_eod(Job *job)
{
    int64_t id = 256;

    if (!args.eod)
        return CLI_DONE;
    if (!*args.eod && job->format != DATA_FORMAT_BYTES)
        return cli_usage("--append-eod needs =ID for token files");
    if (*args.eod &&
        (!str_to_int(args.eod, &id) || id < 0 || id > INT32_MAX))
        return cli_usage("--append-eod: `%s` is not a token id", args.eod);
    job->append_eod = true;
    job->eod = (int32_t)id;
    return CLI_DONE;
}

static CliExit read_options(Job *job)
{
    job->format = DATA_FORMAT_BYTES;
    if (!args.output)
        return cli_usage("where to? give --output PREFIX");
    if (args.tokens && !find_format(args.tokens, &job->format))
        return cli_usage("--tokens: `%s` is not uint16, int32 or ids",
                         args.tokens);
    job->type = job->format >= DATA_FORMAT_INT32 ? DATA_I32 : DATA_U16;
    if (args.dtype && !find_type(args.dtype, &job->type))
        return cli_usage("--dtype: `%s` is not uint8, uint16 or int32",
                         args.dtype);
    return read_eod(job);
}

/* ---- packing ------------------------------------------------------------- */

/* Whether `path` is one of the files that will be replaced. */
static bool is_output(const char *path, const char *prefix, Arena *a)
{
    static const char *const suffixes[] = {".bin", ".idx", ".bin.tmp",
                                           ".idx.tmp"};
    struct stat file, out;

    if (stat(path, &file))
        return false;
    for (uint32_t i = 0; i < MC_LEN(suffixes); i++)
        if (!stat(arena_printf(a, "%s%s", prefix, suffixes[i]), &out) &&
            out.st_dev == file.st_dev && out.st_ino == file.st_ino)
            return true;
    return false;
}

static void drop_outputs(CliList *files, const char *prefix, Arena *a)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < files->n; i++)
        if (!is_output(files->v[i], prefix, a))
            files->v[kept++] = files->v[i];
    files->n = kept;
}

static Status pack_file(const char *path, const Job *job, DataWriter *w,
                        Totals *totals)
{
    uint64_t n;

    STATUS_TRY(data_tokens(path, job->format, w, &n));
    if (n == 0)
        return STATUS_NONE;
    if (job->append_eod) {
        STATUS_TRY(status_in(data_writer_tokens(w, &job->eod, 1), "%s: eod",
                             path));
        n++;
    }
    totals->documents++;
    totals->tokens += n;
    return data_writer_document(w);
}

/* The list of files, without the pair itself. */
static Status choose(const CliList *operands, const char *prefix, Arena *a,
                     CliList *files)
{
    STATUS_TRY(data_files(operands, &args.filter, a, files));
    drop_outputs(files, prefix, a);
    if (files->n == 0)
        return status_make(STATUS_INPUT, "%s: no file to pack",
                           operands->v[0]);
    return STATUS_NONE;
}

static Status write_all(const CliList *files, const Job *job, DataWriter *w,
                        Totals *totals)
{
    for (uint32_t i = 0; i < files->n; i++)
        STATUS_TRY(pack_file(files->v[i], job, w, totals));
    if (totals->documents == 0)
        return status_make(STATUS_INPUT, "%s: all files are empty",
                           files->v[0]);
    return STATUS_NONE;
}

static Status pack(const CliList *operands, const char *prefix, const Job *job,
                   Arena *a, Totals *totals)
{
    CliList files = {0};
    DataWriter *w = NULL;
    Status status = choose(operands, prefix, a, &files);

    if (!status)
        status = data_writer_open(prefix, job->type, &w);
    if (!status)
        status = write_all(&files, job, w, totals);
    if (status)
        data_writer_drop(w);
    else
        status = data_writer_finish(w);
    vec_free(&files);
    return status;
}

/* ---- the command --------------------------------------------------------- */

static void report(const char *prefix, const Job *job, const Totals *totals)
{
    const char *type = data_type_name(job->type);

    if (!args.json) {
        printf("%s: documents %" PRIu64 ", tokens %" PRIu64 " of %s\n", prefix,
               totals->documents, totals->tokens, type);
        return;
    }
    json_t *o = json_pack("{ss sI sI ss}", "prefix", prefix, "documents",
                          (json_int_t)totals->documents, "tokens",
                          (json_int_t)totals->tokens, "dtype", type);
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

static CliExit run(const CliList *operands)
{
    Job job = {0};
    Totals totals = {0};
    CliExit code = read_options(&job);

    if (code)
        return code;
    Arena *a = arena_new();
    char *prefix = data_prefix(args.output);
    Status status = pack(operands, prefix, &job, a, &totals);
    if (status)
        code = cli_failed(status);
    else
        report(prefix, &job, &totals);
    free(prefix);
    arena_free(a);
    return code;
}

const CliCommand data_pack = {
    .name = "pack",
    .operands = "FILE|DIR…",
    .help = "turn text or token files into a .bin/.idx pair",
    .details = "Every file is one document. Directories are read to the "
               "bottom in the order of their names; hidden files and symbolic "
               "links are left out. Nothing is left behind on failure.",
    .options = options,
    .operands_min = 1,
    .operands_max = CLI_MANY,
    .run = run,
};
