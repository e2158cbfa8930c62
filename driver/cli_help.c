/* cli_help.c - the tables of cli.h as a help text and as a manual.
 *
 * Help lines are filled to 80 columns: the option on the left, its meaning
 * from column 28.  The manual is the same in Markdown, all commands on a page.
 */
#include "driver/cli.h"

enum { WIDTH = 80, INDENT = 28 };

/* Prints one paragraph from column `column`, later lines indented. */
static void fill_line(const char *text, size_t length, int column, int indent,
                      FILE *to)
{
    const char *end = text + length;

    while (text < end) {
        int n = (int)MC_MIN(strcspn(text, " "), (size_t)(end - text));

        if (column > indent && column + 1 + n > WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

/* Paragraphs, one per line of the text. */
static void fill(const char *text, int column, int indent, FILE *to)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        fill_line(text, n, column, indent, to);
        text += n + (text[n] == '\n');
    }
}

/* A left column, then its meaning. */
static void entry(const char *left, const char *help, FILE *to)
{
    int n = fprintf(to, "  %s", left);

    if (n + 2 > INDENT)
        fprintf(to, "\n%*s", INDENT, "");
    else
        fprintf(to, "%*s", INDENT - n, "");
    fill(help, INDENT, INDENT, to);
}

/* "-o, --output DIR", "--dump-ir[=PASS]" */
static const char *option_form(const CliOption *o, char *out, size_t size)
{
    const char *before = o->kind == CLI_MAYBE ? "[=" : o->value ? " " : "";
    const char *after = o->kind == CLI_MAYBE ? "]" : "";
    char letter[8] = "";

    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(out, size, "%s%s%s%s%s", letter, o->name, before,
             o->value ? o->value : "", after);
    return out;
}

static void synopsis(const CliCommand *c, const char *path, FILE *to)
{
    fprintf(to, "%s", path);
    if (c->children)
        fputs(" COMMAND …", to);
    if (c->operands)
        fprintf(to, " %s", c->operands);
    if (c->options)
        fputs(" [OPTIONS]", to);
    if (c->rest)
        fprintf(to, " [-- %s…]", c->rest_value ? c->rest_value : "");
}

void cli_help(const CliCommand *c, const char *path, FILE *to)
{
    char form[64];

    fputs("usage: ", to);
    synopsis(c, path, to);
    fputs("\n\n", to);
    fill(c->help, 0, 0, to);
    if (c->details) {
        fputc('\n', to);
        fill(c->details, 0, 0, to);
    }
    fputc('\n', to);
    for (const CliCommand *const *k = c->children; k && *k; k++)
        entry((*k)->name, (*k)->help, to);
    for (const CliOption *o = c->options; o && o->name; o++)
        entry(option_form(o, form, sizeof form), o->help, to);
    entry("-h, --help", "print this text", to);
}

static void manual_options(const CliCommand *c, FILE *to)
{
    char form[64];

    if (!c->options)
        return;
    fputs("\n| option | |\n|---|---|\n", to);
    for (const CliOption *o = c->options; o->name; o++)
        fprintf(to, "| `%s` | %s |\n", option_form(o, form, sizeof form),
                o->help);
}

void cli_manual(const CliCommand *c, const char *path, FILE *to)
{
    if (!c->children) {
        fprintf(to, "\n## %s\n\n`", path);
        synopsis(c, path, to);
        fprintf(to, "`\n\n");
        fill(c->help, 0, 0, to);
        if (c->details) {
            fputc('\n', to);
            fill(c->details, 0, 0, to);
        }
        manual_options(c, to);
    }
    for (const CliCommand *const *k = c->children; k && *k; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s %s", path, (*k)->name);
        cli_manual(*k, name, to);
    }
}
