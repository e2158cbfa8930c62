/* inspect.c - `megac inspect SPEC|DIR VIEW`: finds the view and prints it. */
#include "driver/views.h"

static struct {
    CliList sets;
    bool json;
} args;

static const CliOption options[] = {
    {"--set", 0, "KEY=VALUE", CLI_LIST, &args.sets,
     "change a value of the spec, such as parallel.tp=4"},
    {"--json", 0, NULL, CLI_FLAG, &args.json, "print one JSON document"},
    CLI_OPTIONS_END,
};

static const struct {
    const char *name;
    ViewJson json;
    ViewText text;
} views[] = {
#define VIEW(name, help) {#name, view_##name##_json, view_##name##_text},
#include "driver/views.def"
#undef VIEW
};

static int find_view(const char *name)
{
    for (uint32_t i = 0; i < MC_LEN(views); i++)
        if (!strcmp(views[i].name, name))
            return (int)i;
    return -1;
}

static void print_json(json_t *document)
{
    json_dumpf(document, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(document);
}

static CliExit run(const CliList *operands)
{
    int view = find_view(operands->v[1]);
    Input input;

    if (view < 0)
        return cli_usage("there is no view `%s`", operands->v[1]);
    CliExit code = input_open(&input, operands->v[0], &args.sets);
    if (code == CLI_DONE && args.json)
        print_json(views[view].json(&input));
    else if (code == CLI_DONE)
        views[view].text(&input, stdout);
    input_close(&input);
    return code;
}

const CliCommand cmd_inspect = {
    .name = "inspect",
    .operands = "SPEC|DIR VIEW",
    .help = "show one aspect of a spec or of a compiled program",
    .details = "The views are:\n"
#define VIEW(name, help) "\n- " #name ": " help
#include "driver/views.def"
#undef VIEW
    ,
    .options = options,
    .operands_min = 2,
    .operands_max = 2,
    .run = run,
};
