/* import.c - `megac import`: a spec from what other programs read.
 *
 * A source makes a Spec; what it gave is printed as YAML in normal form, and
 * everything else is left to megac's defaults.
 */
#include "driver/cli.h"
#include "frontend/hf.h"

#include <errno.h>

static struct {
    const char *hf, *output;
    CliList ignored;
} args;

static const CliOption options[] = {
    {"--hf", 0, "DIR", CLI_TEXT, &args.hf,
     "a folder with Hugging Face's config.json, or that file"},
    {"--ignore", 0, "KEY", CLI_LIST, &args.ignored,
     "a key of config.json that does not change the model"},
    {"--output", 'o', "SPEC", CLI_TEXT, &args.output,
     "the file to write (default: standard output)"},
    CLI_OPTIONS_END,
};

static CliExit write_spec(const Spec *s)
{
    Buf text = {0};
    CliExit code = CLI_DONE;

    spec_print_given(s, &text);
    if (!args.output)
        fputs(buf_str(&text), stdout);
    else if (!buf_write_file(&text, args.output))
        code = cli_failed(status_system(errno, "%s", args.output));
    buf_free(&text);
    return code;
}

static CliExit run(const CliList *operands)
{
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    CliExit code = CLI_INPUT;
    const Spec *s;

    (void)operands;
    if (!args.hf) {
        code = cli_usage("import needs a source: --hf DIR");
    } else {
        s = hf_config_load(a, d, args.hf, args.ignored.v, args.ignored.n);
        diag_print(d, stderr);
        if (s)
            code = write_spec(s);
    }
    diag_free(d);
    arena_free(a);
    return code;
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
        "each as a causal language model.",
    .options = options,
    .run = run,
};
