/* cli.c - from argv to a command's variables, by table.
 *
 * Options and operands may be mixed: "megac run out --steps 3".  An option's
 * argument follows it or stands behind "=".  Everything is parsed before the
 * command starts, and a mistake is reported with the nearest name that exists.
 */
#include "driver/cli.h"

#include <errno.h>
#include <stdlib.h>

/* What is being parsed, for messages. */
typedef struct {
    const CliCommand *command;
    const char *path; /* "megac data pack" */
    int argc;
    char **argv;
    int at;
    CliList operands;
} Parse;

static const char *help_path = "megac"; /* whose --help to point at */

/* ---- messages ------------------------------------------------------------ */

CliExit cli_usage(const char *fmt, ...)
{
    va_list ap;

    fputs("megac: error: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nsee `%s --help`\n", help_path);
    return CLI_USAGE;
}

CliExit cli_failed(Status status)
{
    CliExit code = status_code(status) == STATUS_INPUT ? CLI_INPUT : CLI_RUN;

    fprintf(stderr, "megac: error: %s\n", status_text(status));
    status_drop(status);
    return code;
}

CliExit cli_write(Buf *text, const char *path)
{
    if (!path)
        fputs(buf_str(text), stdout);
    else if (!buf_write_file(text, path))
        return cli_failed(status_system(errno, "%s", path));
    return CLI_DONE;
}

/* Keeps the best of the names seen so far, if it is near enough. */
static void suggest(const char *typed, const char *name, const char **best,
                    unsigned *distance)
{
    unsigned d = str_distance(typed, name);

    if (d < *distance && d <= 1 + strlen(name) / 3) {
        *distance = d;
        *best = name;
    }
}

static CliExit unknown(const char *what, const char *typed, const char *best)
{
    if (best)
        return cli_usage("unknown %s `%s`; did you mean `%s`?", what, typed,
                         best);
    return cli_usage("unknown %s `%s`", what, typed);
}

/* ---- options ------------------------------------------------------------- */

static CliExit unknown_option(const Parse *p, const char *typed)
{
    const char *best = NULL;
    unsigned distance = UINT32_MAX;

    for (const CliOption *o = p->command->options; o && o->name; o++)
        suggest(typed, o->name, &best, &distance);
    suggest(typed, "--help", &best, &distance);
    return unknown("option", typed, best);
}

/* Finds "--name" (up to n characters) or "-l". */
static const CliOption *find_option(const CliCommand *c, const char *typed,
                                    size_t n)
{
    for (const CliOption *o = c->options; o && o->name; o++) {
        if (strlen(o->name) == n && !memcmp(o->name, typed, n))
            return o;
        if (n == 2 && typed[0] == '-' && typed[1] == o->letter)
            return o;
    }
    return NULL;
}

static CliExit store(const CliOption *o, const char *value)
{
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->out = true;
        return CLI_DONE;
    case CLI_INT:
        if (!str_to_int(value, o->out) || *(int64_t *)o->out < 0)
            return cli_usage("%s: `%s` is not a whole number", o->name, value);
        return CLI_DONE;
    case CLI_LIST:
        vec_push((CliList *)o->out, value);
        return CLI_DONE;
    case CLI_TEXT:
    case CLI_MAYBE:
        break;
    }
    *(const char **)o->out = value;
    return CLI_DONE;
}

static CliExit parse_option(Parse *p, const char *typed)
{
    size_t n = strcspn(typed, "=");
    const CliOption *o = find_option(p->command, typed, n);
    const char *value = typed[n] ? typed + n + 1 : NULL;

    if (!o) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)MC_MIN(n, 63), typed);
        return unknown_option(p, name);
    }
    if (o->kind == CLI_FLAG && value)
        return cli_usage("%s takes no argument", o->name);
    if (o->kind == CLI_MAYBE && !value)
        value = "";
    if (o->kind != CLI_FLAG && !value) {
        if (p->at == p->argc)
            return cli_usage("%s needs %s", o->name, o->value);
        value = p->argv[p->at++];
    }
    return store(o, value);
}

/* ---- operands ------------------------------------------------------------ */

static CliExit check_operands(const Parse *p)
{
    const CliCommand *c = p->command;

    if (p->operands.n < c->operands_min)
        return cli_usage("`%s` needs %s", p->path, c->operands);
    if (p->operands.n > c->operands_max)
        return cli_usage("`%s` has no use for `%s`", p->path,
                         p->operands.v[c->operands_max]);
    return CLI_DONE;
}

static void take_rest(Parse *p)
{
    CliList *list = p->command->rest ? p->command->rest : &p->operands;

    while (p->at < p->argc)
        vec_push(list, p->argv[p->at++]);
}

static bool asks_for_help(const char *arg)
{
    return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

/* Parses what follows the command's name.  *out_help: help was asked for. */
static CliExit parse(Parse *p, bool *out_help)
{
    while (p->at < p->argc) {
        const char *arg = p->argv[p->at++];
        CliExit code = CLI_DONE;

        if (asks_for_help(arg)) {
            *out_help = true;
            return CLI_DONE;
        }
        if (!strcmp(arg, "--"))
            take_rest(p);
        else if (arg[0] == '-' && arg[1])
            code = parse_option(p, arg);
        else
            vec_push(&p->operands, arg);
        if (code)
            return code;
    }
    return check_operands(p);
}

static CliExit parse_and_run(const CliCommand *command, const char *path,
                             int argc, char **argv)
{
    Parse p = {.command = command, .path = path, .argc = argc, .argv = argv};
    bool help = false;
    CliExit code = parse(&p, &help);

    if (help)
        cli_help(command, path, stdout);
    else if (code == CLI_DONE)
        code = command->run(&p.operands);
    vec_free(&p.operands);
    return code;
}

/* ---- commands ------------------------------------------------------------ */

static CliExit unknown_command(const CliCommand *parent, const char *typed)
{
    const char *best = NULL;
    unsigned distance = UINT32_MAX;

    for (const CliCommand *const *c = parent->children; *c; c++)
        suggest(typed, (*c)->name, &best, &distance);
    return unknown("command", typed, best);
}

static CliExit dispatch_child(const CliCommand *parent, const char *path,
                              int argc, char **argv)
{
    if (argc == 0) {
        cli_help(parent, path, stderr);
        return CLI_USAGE;
    }
    if (asks_for_help(argv[0])) {
        cli_help(parent, path, stdout);
        return CLI_DONE;
    }
    for (const CliCommand *const *c = parent->children; *c; c++) {
        if (!strcmp(argv[0], (*c)->name)) {
            char name[128];
            snprintf(name, sizeof name, "%s %s", path, argv[0]);
            return cli_dispatch(*c, name, argc - 1, argv + 1);
        }
    }
    return unknown_command(parent, argv[0]);
}

CliExit cli_dispatch(const CliCommand *command, const char *path, int argc,
                     char **argv)
{
    help_path = path;
    if (command->children)
        return dispatch_child(command, path, argc, argv);
    return parse_and_run(command, path, argc, argv);
}
