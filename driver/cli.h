/* cli.h - commands and options of the megac program, as tables.
 *
 * A command is one CliCommand in its own file, named in commands.def.  From
 * its option table come the parser, `--help`, and docs/CLI.md, so none of them
 * can disagree.
 */
#ifndef MEGAC_DRIVER_CLI_H
#define MEGAC_DRIVER_CLI_H

#include "base/base.h"
#include "base/status.h"

/* What the process returns; scripts rely on it. */
typedef enum {
    CLI_DONE = 0,
    CLI_INPUT = 1, /* the user's input is wrong */
    CLI_USAGE = 2, /* the command line is */
    CLI_RUN = 3,   /* a run failed */
    CLI_FIT = 4,   /* it does not fit into memory */
    CLI_BUG = 70,  /* megac is wrong */
} CliExit;

typedef Vec(const char *) CliList;

/* What an option does with its argument; `out` points at the type named. */
typedef enum {
    CLI_FLAG,  /* bool: set to true; takes no argument */
    CLI_TEXT,  /* const char * */
    CLI_INT,   /* int64_t, not negative */
    CLI_MAYBE, /* const char *: "--name" gives "", "--name=TEXT" the text */
    CLI_LIST,  /* CliList: one more entry each time it is given */
} CliKind;

typedef struct {
    const char *name;  /* "--output" */
    char letter;       /* 'o', or 0 */
    const char *value; /* what the help calls the argument: "DIR" */
    CliKind kind;
    void *out;
    const char *help;
} CliOption;

typedef struct CliCommand CliCommand;
struct CliCommand {
    const char *name;
    const char *operands; /* for the help: "SPEC" */
    const char *help;     /* one line */
    const char *details;  /* more, or NULL */
    const CliOption *options;          /* up to a row without a name, or NULL */
    const CliCommand *const *children; /* subcommands up to NULL, or NULL */
    uint32_t operands_min, operands_max;
    CliList *rest; /* takes what follows "--"; NULL: those are operands */
    const char *rest_value; /* what the help calls it, or NULL */
    CliExit (*run)(const CliList *operands);
};

#define CLI_MANY UINT32_MAX

#define CLI_OPTIONS_END                                                        \
    {                                                                          \
        NULL, 0, NULL, CLI_FLAG, NULL, NULL                                    \
    }

/* ---- cli.c -------------------------------------------------------------- */

/* Finds the subcommand, parses, runs.  `path` is what was typed so far:
 * "megac". */
CliExit cli_dispatch(const CliCommand *command, const char *path, int argc,
                     char **argv);
/* "megac: error: …", and where to find help; returns CLI_USAGE.  For rules
 * among options that a table cannot say. */
CliExit cli_usage(const char *fmt, ...) MC_PRINTF(1, 2);
/* Prints a failure, frees it, and says how to exit. */
CliExit cli_failed(Status status);
/* Writes a text to a file, or to standard output if `path` is NULL. */
CliExit cli_write(Buf *text, const char *path);

/* ---- cli_help.c --------------------------------------------------------- */

void cli_help(const CliCommand *command, const char *path, FILE *to);
/* docs/CLI.md */
void cli_manual(const CliCommand *command, const char *path, FILE *to);

/* ---- main.c ------------------------------------------------------------- */

#define COMMAND(name) extern const CliCommand cmd_##name;
#include "driver/commands.def"
#undef COMMAND

#endif
