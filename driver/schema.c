/* schema.c - `megac schema`: the JSON Schema of the YAML, for editors. */
#include "driver/cli.h"
#include "frontend/frontend.h"

static struct {
    bool markdown;
} args;

static const CliOption options[] = {
    {"--markdown", 0, NULL, CLI_FLAG, &args.markdown,
     "print the reference page of the keys instead"},
    CLI_OPTIONS_END,
};

static CliExit run(const CliList *operands)
{
    Buf text = {0};

    (void)operands;
    if (args.markdown)
        schema_markdown(&text);
    else
        schema_json(&text);
    fputs(buf_str(&text), stdout);
    buf_free(&text);
    return CLI_DONE;
}

const CliCommand cmd_schema = {
    .name = "schema",
    .help = "print the JSON Schema (draft 7) of the YAML",
    .details = "Editors complete and check a spec that begins with "
               "`# yaml-language-server: $schema=megac.schema.json`.",
    .options = options,
    .run = run,
};
