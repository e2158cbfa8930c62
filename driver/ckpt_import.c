/* ckpt_import.c - `megac ckpt import-hf`: weights of Hugging Face, checked.
 *
 * A run reads such a folder itself (`megac run --load`).  What this adds: it
 * needs no ranks to find out whether the folder is the model of a spec, or of
 * its own config.json, and it leaves one form of it, in one type, with nothing
 * that is no parameter.
 */
#include "driver/ckpt.h"

#include "frontend/hf.h"

static struct {
    const char *output, *shard, *dtype, *spec;
    CliList sets, ignored;
} args;

static const CliOption options[] = {
    {"--output", 'o', "DIR", CLI_TEXT, &args.output, "where the weights go"},
    {"--spec", 0, "SPEC", CLI_TEXT, &args.spec,
     "the model that it must be: a YAML or a compiled program (default: that "
     "of DIR/config.json)"},
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets, "change a value of it"},
    {"--ignore", 0, "KEY", CLI_LIST, &args.ignored,
     "a key of config.json that does not change the model"},
    {"--dtype", 0, "TYPE", CLI_TEXT, &args.dtype,
     "fp32, bf16 or fp16 (default: fp32)"},
    CKPT_SHARD_OPTION(&args.shard),
    CLI_OPTIONS_END,
};

/* Of --spec, or of the folder's config.json. */
static CliExit open_spec(Input *in, const char *path)
{
    if (args.spec)
        return input_open(in, args.spec, &args.sets);
    *in = (Input){.arena = arena_new()};
    in->diag = diag_new(in->arena);
    in->spec = hf_config_load(in->arena, in->diag, path, args.ignored.v,
                              args.ignored.n);
    return in->spec ? CLI_DONE : CLI_INPUT;
}

static Status import(const Input *in, const char *path, SafeCopy *how)
{
    SafeSet set;
    Folder to;
    Status s;

    STATUS_TRY(ckpt_open(path, in, &set));
    s = folder_begin(in->arena, args.output, &to);
    if (!s) {
        how->dir = to.beside;
        s = folder_end(&to, safe_copy(&set, how));
    }
    safe_close(&set);
    STATUS_TRY(s);
    return ckpt_report(to.path, how->stem);
}

static CliExit run(const CliList *operands)
{
    SafeCopy how = {.stem = "model"};
    CliExit code = ckpt_size(args.shard, &how.part_bytes);
    Input in;

    if (!code)
        code = ckpt_dtype(args.dtype, &how.dtype);
    if (code)
        return code;
    if (!args.output)
        return cli_usage("-o DIR is missing");
    if (args.spec ? args.ignored.n : args.sets.n)
        return cli_usage("--set goes with --spec, --ignore with config.json");
    code = open_spec(&in, operands->v[0]);
    if (code == CLI_DONE) {
        Status s = import(&in, operands->v[0], &how);
        code = s ? cli_failed(s) : CLI_DONE;
    }
    input_close(&in);
    return code;
}

const CliCommand ckpt_import_hf = {
    .name = "import-hf",
    .operands = "DIR",
    .help = "check weights of Hugging Face against a model, and copy them",
    .details =
        "DIR is a folder with model.safetensors, or with "
        "model.safetensors.index.json and its parts; with --spec either file "
        "will do too. "
        "Every parameter must be there with its shape, and nothing else but "
        "buffers that transformers once saved, and a head that is equal to a "
        "tied table. `megac run --load` starts from the copy, as from DIR.",
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
