/* main.c - the megac program: finds the command and runs it.
 *
 * Commands are the rows of commands.def.  What a command prints on stdout is
 * checked to have arrived: output that a full disk swallowed is a failed run,
 * not a success.
 */
#include "driver/cli.h"

static const CliCommand *const commands[] = {
#define COMMAND(name) &cmd_##name,
#include "driver/commands.def"
#undef COMMAND
    NULL,
};

static const CliCommand megac = {
    .name = "megac",
    .help = "A compiler from one YAML file, a transformer and how to "
            "parallelise its training, to one executable per rank.",
    .details = "`megac COMMAND --help` describes a command; `megac --manual` "
               "prints all of it as Markdown, `megac --version` the version. "
               "Exit codes: 0 done, 1 the input is wrong, 2 usage, 3 a run "
               "failed, 4 does not fit, 70 a bug in megac.",
    .children = commands,
};

static CliExit print_manual(void)
{
    puts("# The megac program\n\nPrinted by `megac --manual` from the tables "
         "in driver/; edit those.\n");
    printf("%s\n", megac.details);
    cli_manual(&megac, "megac", stdout);
    return CLI_DONE;
}

static CliExit run(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        puts("megac " MEGAC_VERSION);
        return CLI_DONE;
    }
    if (argc == 2 && !strcmp(argv[1], "--manual"))
        return print_manual();
    return cli_dispatch(&megac, "megac", argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    CliExit code = run(argc, argv);

    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_DONE)
        code = cli_failed(status_make(STATUS_SYSTEM,
                                      "cannot write to standard output"));
    return (int)code;
}
