/* opt.c - `megac opt`: runs any passes on a module in textual form.
 *
 * A module knows its mesh, its stages and its state; what it does not know
 * (the optimizer's constants, the schedule) comes from a spec.
 */
#include "driver/input.h"
#include "passes/check.h"
#include "passes/passes.h"

#include <errno.h>

static struct {
    const char *passes, *spec, *output;
    CliList sets;
    bool verify_each;
} args;

static const CliOption options[] = {
    {"--passes", 0, "LIST", CLI_TEXT, &args.passes,
     "the passes to run, in this order, separated by commas (default: none)"},
    {"--spec", 0, "SPEC", CLI_TEXT, &args.spec,
     "where passes find settings that are not in the module"},
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets, "change a value of it"},
    {"--verify-each", 0, NULL, CLI_FLAG, &args.verify_each,
     "execute the module before and after each pass, and compare"},
    {"--output", 'o', "FILE", CLI_TEXT, &args.output,
     "write the module there (default: standard output)"},
    CLI_OPTIONS_END,
};

/* Settings of no importance, for modules that need none. */
static const char some_spec[] = "version: 1\n"
                                "model: {num_layers: 1, hidden_size: 64,\n"
                                "  num_attention_heads: 1, vocab_size: 128}\n"
                                "training: {seq_length: 64}\n";

/* ---- passes -------------------------------------------------------------- */

static bool run_one(const Pass *p, Module *m, const Spec *spec,
                    PassCheck *check)
{
    return pass_run(p, m, spec) &&
           (!check || pass_check_after(check, m, p));
}

static CliExit run_passes(Module *m, const Spec *spec, Arena *a)
{
    PassCheck *check = args.verify_each ? pass_check_new(m) : NULL;
    const char *at = args.passes ? args.passes : "";
    CliExit code = CLI_DONE;

    while (*at && code == CLI_DONE) {
        size_t n = strcspn(at, ",");
        const char *name = arena_strndup(a, at, n);
        const Pass *p = pass_find(name);

        if (!p)
            code = cli_usage("there is no pass `%s`", name);
        else if (!run_one(p, m, spec, check))
            code = CLI_INPUT;
        at += n + (at[n] == ',');
    }
    pass_check_free(check);
    return code;
}

/* ---- the command --------------------------------------------------------- */

static const Spec *load_spec(Arena *a, Diag *d)
{
    if (!args.spec)
        return spec_parse(a, d, "(default)", some_spec, args.sets.v,
                          (int)args.sets.n);
    return spec_load(a, d, args.spec, args.sets.v, (int)args.sets.n);
}

static CliExit write_module(const Module *m)
{
    Buf text = {0};
    CliExit code;

    module_print(m, &text);
    code = cli_write(&text, args.output);
    buf_free(&text);
    return code;
}

static CliExit transform(Arena *a, Diag *d, const char *path, const char *text)
{
    Module *m = module_parse(a, d, path, text);
    const Spec *spec = load_spec(a, d);
    CliExit code = CLI_INPUT;

    if (m && spec && module_verify(m))
        code = run_passes(m, spec, a);
    diag_print(d, stderr);
    if (code == CLI_DONE)
        code = write_module(m);
    if (m)
        module_free(m);
    return code;
}

static CliExit run(const CliList *operands)
{
    const char *path = operands->v[0];
    Buf text = {0};

    if (!buf_read_file(&text, path))
        return cli_failed(
            status_make(STATUS_INPUT, "%s: %s", path, strerror(errno)));
    Arena *a = arena_new();
    Diag *d = diag_new(a);
    CliExit code = transform(a, d, path, buf_str(&text));
    diag_free(d);
    arena_free(a);
    buf_free(&text);
    return code;
}

const CliCommand cmd_opt = {
    .name = "opt",
    .operands = "FILE.mir",
    .help = "run passes on a module in textual form",
    .details = "The passes, in the order in which `megac compile` runs them:\n"
#define PASS(name, needs, makes, extends, help) "\n- " #name ": " help
#include "passes/passes.def"
#undef PASS
    ,
    .options = options,
    .operands_min = 1,
    .operands_max = 1,
    .run = run,
};
