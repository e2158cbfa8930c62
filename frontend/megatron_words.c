/* megatron_words.c - a command line as words, as a shell would split it.
 *
 * What people have is a piece of a shell script: quotes, lines continued by a
 * backslash, comments, variables.  All of that is read here, and nothing is
 * run: `$(…)` and backquotes are errors, and so are the words between commands
 * (`|`, `&&`, `>`).  A variable takes the environment, as in the YAML; outside
 * quotes its value may be several words.
 */
#include "frontend/megatron.h"

#include <ctype.h>

typedef struct {
    Arena *arena;
    Diag *diag;
    const char *text, *at;
    uint32_t source;
    Words *out;
    Buf word;
    bool open, bare; /* a word has begun; nothing of it was quoted */
    Loc start;
} Splitter;

/* ---- places -------------------------------------------------------------- */

static Loc loc_of(Splitter *s, const char *at)
{
    uint32_t line = 1, col = 1;

    for (const char *c = s->text; c < at; c++) {
        bool continues = ((unsigned char)*c & 0xc0) == 0x80;
        line += *c == '\n';
        col = *c == '\n' ? 1 : col + !continues;
    }
    return diag_loc(s->diag, s->source, line, col);
}

static bool reject(Splitter *s, const char *at, const char *what)
{
    diag_error(s->diag, loc_of(s, at), "MC0020", "%s", what);
    return false;
}

/* ---- words --------------------------------------------------------------- */

static bool word_push(Diag *d, Words *out, const Word *w)
{
    if (text_is_writable(w->text)) {
        vec_push(out, *w);
        return true;
    }
    diag_error(d, w->loc, "MC0020", "a character that YAML cannot hold");
    return false;
}

static void word_begin(Splitter *s, const char *at)
{
    if (s->open)
        return;
    s->open = s->bare = true;
    s->start = loc_of(s, at);
    s->word.len = 0;
    buf_puts(&s->word, "");
}

static bool is_between_commands(const char *text)
{
    static const char *const words[] = {"|", "||", "&", "&&", ";", "<"};

    for (size_t i = 0; i < MC_LEN(words); i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    text += isdigit((unsigned char)*text) != 0;
    return *text == '>';
}

static bool word_end(Splitter *s)
{
    Word w = {NULL, s->start, s->bare};

    if (!s->open)
        return true;
    s->open = false;
    w.text = arena_strndup(s->arena, s->word.s, s->word.len);
    if (s->bare && is_between_commands(w.text)) {
        diag_error(s->diag, s->start, "MC0020",
                   "`%s` is for a shell, and nothing is run here", w.text);
        return false;
    }
    return word_push(s->diag, s->out, &w);
}

/* ---- variables ----------------------------------------------------------- */

/* The value of a variable; outside quotes its blanks end words. */
static bool value_add(Splitter *s, const char *dollar, const Buf *value,
                      bool quoted)
{
    for (size_t i = 0; i < value->len; i++) {
        bool blank = isspace((unsigned char)value->s[i]);
        if (blank && !quoted && !word_end(s))
            return false;
        if (blank && !quoted)
            continue;
        word_begin(s, dollar);
        buf_write(&s->word, &value->s[i], 1);
    }
    return true;
}

/* At `$`: ${NAME}, ${NAME:-default} or $NAME. */
static bool variable_read(Splitter *s, bool quoted)
{
    const char *dollar = s->at++, *end = s->at;
    Loc loc = loc_of(s, dollar);
    Buf value = {0};
    bool ok;

    if (*end == '(')
        return reject(s, dollar, "`$(…)` is for a shell, and nothing is run "
                                 "here");
    while (isalnum((unsigned char)*end) || *end == '_')
        end++;
    if (*s->at == '{') {
        end = environment_expand(s->arena, s->diag, loc, s->at + 1, &value);
    } else if (end == s->at) {
        buf_puts(&value, "$");
    } else {
        char *name = arena_printf(s->arena, "%.*s}", (int)(end - s->at), s->at);
        if (!environment_expand(s->arena, s->diag, loc, name, &value))
            end = NULL;
    }
    ok = end && value_add(s, dollar, &value, quoted);
    s->at = end ? end : s->at;
    buf_free(&value);
    return ok;
}

/* ---- characters ---------------------------------------------------------- */

/* At `\`: the next character as it is, or a line that goes on. */
static void backslash_read(Splitter *s, bool quoted)
{
    const char *at = s->at++;

    if (*s->at == '\r' && s->at[1] == '\n')
        s->at++;
    if (*s->at == '\n') {
        s->at++;
        return;
    }
    word_begin(s, at);
    if (quoted && !strchr("\\\"$`", *s->at))
        buf_puts(&s->word, "\\");
    if (*s->at)
        buf_write(&s->word, s->at++, 1);
}

static bool quotes_read(Splitter *s)
{
    const char *open = s->at++;

    word_begin(s, open);
    s->bare = false;
    while (*s->at && *s->at != *open) {
        if (*open == '"' && *s->at == '\\')
            backslash_read(s, true);
        else if (*open == '"' && *s->at == '`')
            return reject(s, s->at, "backquotes are for a shell, and nothing "
                                    "is run here");
        else if (*open != '"' || *s->at != '$')
            buf_write(&s->word, s->at++, 1);
        else if (!variable_read(s, true))
            return false;
    }
    if (!*s->at)
        return reject(s, open, "a quote that is not closed");
    s->at++;
    return true;
}

static bool character_read(Splitter *s)
{
    char c = *s->at;

    if (c == '\'' || c == '"')
        return quotes_read(s);
    if (c == '$')
        return variable_read(s, false);
    if (c == '`')
        return reject(s, s->at, "backquotes are for a shell, and nothing is "
                                "run here");
    if (c == '\\') {
        backslash_read(s, false);
        return true;
    }
    if (isspace((unsigned char)c)) {
        s->at++;
        return word_end(s);
    }
    if (c == '#' && !s->open) {
        s->at += strcspn(s->at, "\n");
        return true;
    }
    word_begin(s, s->at);
    buf_write(&s->word, s->at++, 1);
    return true;
}

bool words_split(Arena *a, Diag *d, const char *text, Words *out)
{
    Splitter s = {.arena = a, .diag = d, .text = text, .at = text, .out = out};
    bool ok = true;

    s.source = diag_source(d, "--megatron", text);
    while (ok && *s.at)
        ok = character_read(&s);
    ok = ok && word_end(&s);
    buf_free(&s.word);
    return ok;
}

/* ---- arguments ----------------------------------------------------------- */

bool words_given(Arena *a, Diag *d, const char *const *args, uint32_t n,
                 Words *out)
{
    Buf text = {0};
    uint32_t source, col = 1;
    bool ok = true;

    for (uint32_t i = 0; i < n; i++)
        buf_printf(&text, "%s%s", i ? " " : "", args[i]);
    source = diag_source(d, "Megatron flags", buf_str(&text));
    for (uint32_t i = 0; i < n; i++) {
        Word w = {arena_strdup(a, args[i]), diag_loc(d, source, 0, col), true};
        ok &= word_push(d, out, &w);
        for (const char *c = args[i]; *c; c++)
            col += ((unsigned char)*c & 0xc0) != 0x80;
        col++;
    }
    buf_free(&text);
    return ok;
}
