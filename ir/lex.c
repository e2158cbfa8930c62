/* lex.c - tokens of the textual IR.
 *
 * A word is a run of letters, digits, `_` and `.`; one that starts like a
 * number also takes in the sign of its exponent.  `@`, `%` and `#` start names
 * of things, values and hints.  Everything else but strings is one character.
 * Space and comments (`;` to the end of the line) only separate.
 */
#include "ir/parse_priv.h"

#include <ctype.h>
#include <math.h>

Loc lex_loc(const Parser *p)
{
    return diag_loc(p->m->diag, p->source, p->start.line, p->start.col);
}

void lex_fail(Parser *p, const char *code, const char *fmt, ...)
{
    Buf text = {0};
    va_list ap;

    if (!p->failed) {
        va_start(ap, fmt);
        buf_vprintf(&text, fmt, ap);
        va_end(ap);
        diag_error(p->m->diag, lex_loc(p), code, "%s", text.s);
        buf_free(&text);
    }
    p->failed = true;
    p->kind = TOK_END;
    p->punct = '\0';
    p->text.len = 0;
}

/* ---- characters ---------------------------------------------------------- */

static char peek(const Parser *p)
{
    return *p->place.at;
}

static char take(Parser *p)
{
    char c = *p->place.at++;

    p->place.col++;
    if (c == '\n') {
        p->place.line++;
        p->place.col = 1;
    }
    return c;
}

static void skip_space(Parser *p)
{
    for (;;) {
        while (isspace((unsigned char)peek(p)))
            take(p);
        if (peek(p) != ';')
            return;
        while (peek(p) && peek(p) != '\n')
            take(p);
    }
}

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

static void put(Parser *p, char c)
{
    buf_write(&p->text, &c, 1);
}

static void clear(Parser *p)
{
    buf_write(&p->text, "", 0);
    p->text.len = 0;
    p->text.s[0] = '\0';
}

/* ---- tokens -------------------------------------------------------------- */

static bool starts_number(const Parser *p)
{
    const char *at = p->place.at;

    return isdigit((unsigned char)at[*at == '-']);
}

static void lex_word(Parser *p)
{
    bool number = starts_number(p);

    p->kind = TOK_WORD;
    put(p, take(p));
    while (in_word(peek(p)) ||
           (number && (peek(p) == '-' || peek(p) == '+') &&
            tolower((unsigned char)p->place.at[-1]) == 'e'))
        put(p, take(p));
}

static void lex_sigil(Parser *p, TokenKind kind)
{
    take(p);
    while (in_word(peek(p)))
        put(p, take(p));
    if (!name_is_plain(buf_str(&p->text)))
        lex_fail(p, "MC0601", "a name must follow");
    else
        p->kind = kind;
}

/* \" \\ and \xNN; other escapes are errors. */
static bool lex_escape(Parser *p)
{
    char c = take(p);
    const char *hex = p->place.at;

    if (c == '"' || c == '\\') {
        put(p, c);
        return true;
    }
    if (c != 'x' || hex[0] != '0' + (hex[0] == '1') ||
        !isxdigit((unsigned char)hex[1]))
        return false;
    take(p);
    c = (char)tolower((unsigned char)take(p));
    c = (char)(isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10);
    c = (char)(c + (hex[0] == '1' ? 16 : 0));
    if (c)
        put(p, c);
    return c != '\0';
}

static void lex_string(Parser *p)
{
    take(p);
    p->kind = TOK_STRING;
    while (peek(p) != '"') {
        if (!peek(p) || peek(p) == '\n') {
            lex_fail(p, "MC0601", "the string does not end");
            return;
        }
        if (peek(p) != '\\') {
            put(p, take(p));
            continue;
        }
        take(p);
        if (!peek(p) || !lex_escape(p)) {
            lex_fail(p, "MC0601",
                     "a string knows \\\", \\\\ and \\x01 to \\x1f");
            return;
        }
    }
    take(p);
}

void lex_next(Parser *p)
{
    char c;

    if (p->failed)
        return;
    skip_space(p);
    clear(p);
    p->start = p->place;
    p->punct = '\0';
    p->kind = TOK_END;
    c = peek(p);
    if (c == '@' || c == '%' || c == '#')
        lex_sigil(p, c == '@'   ? TOK_GLOBAL
                     : c == '%' ? TOK_VALUE
                                : TOK_HINT);
    else if (c == '"')
        lex_string(p);
    else if (in_word(c) || (c == '-' && in_word(p->place.at[1])))
        lex_word(p);
    else if (c) {
        p->kind = TOK_PUNCT;
        p->punct = take(p);
    }
}

void lex_rewind(Parser *p, Place to)
{
    p->place = to;
    lex_next(p);
}

/* ---- expectations -------------------------------------------------------- */

bool lex_is(const Parser *p, char punct)
{
    return p->kind == TOK_PUNCT && p->punct == punct;
}

bool lex_is_word(const Parser *p, const char *word)
{
    return p->kind == TOK_WORD && !strcmp(buf_str(&p->text), word);
}

bool lex_take(Parser *p, char punct)
{
    if (!lex_is(p, punct))
        return false;
    lex_next(p);
    return true;
}

bool lex_take_word(Parser *p, const char *word)
{
    if (!lex_is_word(p, word))
        return false;
    lex_next(p);
    return true;
}

void lex_expect(Parser *p, char punct)
{
    if (!lex_take(p, punct))
        lex_fail(p, "MC0601", "expected `%c`", punct);
}

void lex_expect_word(Parser *p, const char *word)
{
    if (!lex_take_word(p, word))
        lex_fail(p, "MC0601", "expected `%s`", word);
}

Sym lex_name(Parser *p, TokenKind kind)
{
    static const char *const what[] = {
        "the end", "a word", "a string", "a name with @",
        "a value", "a hint", "a character"};
    Sym name;

    if (p->kind != kind) {
        lex_fail(p, "MC0601", "expected %s", what[kind]);
        return (Sym){0};
    }
    name = sym_intern(p->m->names, buf_str(&p->text));
    lex_next(p);
    return name;
}

int64_t lex_int(Parser *p, int64_t low, int64_t high)
{
    int64_t value;

    if (p->kind != TOK_WORD || !str_to_int(buf_str(&p->text), &value)) {
        lex_fail(p, "MC0601", "expected a whole number");
        return low;
    }
    if (value < low || value > high) {
        lex_fail(p, "MC0604", "must be from %lld to %lld", (long long)low,
                 (long long)high);
        return low;
    }
    lex_next(p);
    return value;
}

double lex_float(Parser *p)
{
    double value = 0;

    if (lex_is_word(p, "inf"))
        value = INFINITY;
    else if (lex_is_word(p, "-inf"))
        value = -INFINITY;
    else if (lex_is_word(p, "nan"))
        value = NAN;
    else if (p->kind != TOK_WORD || !str_to_double(buf_str(&p->text), &value))
        lex_fail(p, "MC0601", "expected a number");
    lex_next(p);
    return value;
}
