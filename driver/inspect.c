/* inspect.c - `megac inspect SPEC|DIR VIEW`: finds the view and prints it. */
#include "driver/views.h"

static struct {
    CliList sets, flags;
    bool json;
} args;

static const CliOption options[] = {
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec, such as parallel.tp=4"},
    {"--json", 0, NULL, CLI_FLAG, &args.json, "print one JSON document"},
    CLI_OPTIONS_END,
};

typedef struct {
    const char *name;
    bool planned;
    ViewJson json;
    ViewText text;
} ViewRow;

static const ViewRow views[] = {
#define VIEW(name, planned, help)                                              \
    {#name, planned, view_##name##_json, view_##name##_text},
#include "driver/views.def"
#undef VIEW
};

static const ViewRow *find_view(const char *name)
{
    for (uint32_t i = 0; i < MC_LEN(views); i++)
        if (!strcmp(views[i].name, name))
            return &views[i];
    return NULL;
}

static void print_json(json_t *document)
{
    json_dumpf(document, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(document);
}

static CliExit show(const ViewRow *row, const Input *in)
{
    static const PassOptions all_passes;
    Program program = {0};
    CliExit code = CLI_DONE;
    View view = {in, &program, &code};

    if (row->planned)
        code = program_build(in, &all_passes, &program);
    if (code == CLI_DONE && args.json)
        print_json(row->json(&view));
    else if (code == CLI_DONE)
        row->text(&view, stdout);
    program_free(&program);
    return code;
}

static CliExit run(const CliList *operands)
{
    const ViewRow *row = find_view(operands->v[1]);
    Input in;

    if (!row)
        return cli_usage("there is no view `%s`", operands->v[1]);
    CliExit code =
        input_open_flags(&in, operands->v[0], &args.sets, &args.flags);
    if (code == CLI_DONE)
        code = show(row, &in);
    input_close(&in);
    return code;
}

const CliCommand cmd_inspect = {
    .name = "inspect",
    .operands = "SPEC|DIR VIEW",
    .help = "show one aspect of a spec or of a compiled program",
    .details = "The views are:\n"
#define VIEW(name, planned, help) "\n- " #name ": " help
#include "driver/views.def"
#undef VIEW
    ,
    .options = options,
    .operands_min = 2,
    .operands_max = 2,
    .rest = &args.flags,
    .rest_value = "MEGATRON-FLAGS",
    .run = run,
};
