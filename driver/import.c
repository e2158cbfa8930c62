/* import.c - `megac import`: a spec from what other programs read.
 *
 * A source makes a Spec; what it gave is printed as YAML in normal form, and
 * everything else is left to megac's defaults.
 */
#include "driver/cli.h"
#include "frontend/hf.h"

static struct {
    const char *hf, *megatron, *output;
    CliList ignored;
    bool list;
} args;

static const CliOption options[] = {
    {"--hf", 0, "DIR", CLI_TEXT, &args.hf,
     "a folder with Hugging Face's config.json, or that file"},
    {"--ignore", 0, "KEY", CLI_LIST, &args.ignored,
     "a key of config.json that does not change the model"},
    {"--megatron", 0, "FLAGS", CLI_TEXT, &args.megatron,
     "a command line of Megatron-LM, or its flags alone"},
    {"--list", 0, NULL, CLI_FLAG, &args.list,
     "print what becomes of each of Megatron's flags, as Markdown"},
    {"--output", 'o', "SPEC", CLI_TEXT, &args.output,
     "the file to write (default: standard output)"},
    CLI_OPTIONS_END,
};

static CliExit write_spec(const Spec *s)
{
    Buf text = {0};
    CliExit code;

    spec_print_given(s, &text);
    code = cli_write(&text, args.output);
    buf_free(&text);
    return code;
}

static CliExit import(void)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    CliExit code = CLI_INPUT;
    const Spec *s =
        args.hf ? hf_config_load(a, d, args.hf, args.ignored.v, args.ignored.n)
                : spec_import_megatron(a, d, args.megatron);

    diag_print(d, stderr);
    if (s)
        code = write_spec(s);
    diag_free(d);
    arena_free(a);
    return code;
}

static CliExit list_flags(void)
{
    Buf text = {0};

    megatron_markdown(&text);
    fputs(buf_str(&text), stdout);
    buf_free(&text);
    return CLI_DONE;
}

static CliExit run(const CliList *operands)
{
    int sources = (args.hf != NULL) + (args.megatron != NULL) + args.list;

    (void)operands;
    if (sources != 1)
        return cli_usage("import needs one source: --hf DIR or --megatron "
                         "FLAGS");
    if (args.ignored.n && !args.hf)
        return cli_usage("--ignore is for --hf");
    if (args.list && args.output)
        return cli_usage("--list prints; it takes no --output");
    return args.list ? list_flags() : import();
}

const CliCommand cmd_import = {
    .name = "import",
    .help = "make a spec from the configuration of another program",
    .details =
        "`--hf` reads config.json as transformers does, with the defaults of "
        "the model type for what it leaves out. Every key is used, known not "
        "to change the model, or an error that names it. Model types: "
#define FAMILY(id, type, architecture) type ", "
#define FACT(families, path, value)
#define KEY(families, names, path, use, fallback)
#define IGNORE(families, names)
#include "frontend/hf.def"
        "each as a causal language model.\n"
        "`--megatron` reads a command line as a shell splits it and Megatron "
        "understands it, with Megatron's defaults for what it leaves out; it "
        "may begin with `torchrun … pretrain_gpt.py`. Every flag is used, "
        "known not to change what is computed, or an error that names it.",
    .options = options,
    .run = run,
};
