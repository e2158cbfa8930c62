/* megatron_flags.c - from words to flags, by the table megatron.def.
 *
 * Follows Python's argparse as Megatron sets it up: names are exact, never
 * abbreviated; a value follows its flag or stands behind `=`; a list ends at
 * the next word that begins with a dash and is no number; the last of two
 * equal flags counts.
 */
#include "frontend/megatron.h"

#include <ctype.h>

/* ---- the table ----------------------------------------------------------- */

#define NONE ARGS_NONE
#define ONE ARGS_ONE
#define LIST ARGS_LIST
#define ANY ARGS_ANY
#define KEY(names, args, path)                                                 \
    {FLAG_KEY, args, CLASS_NONE, ID_NONE, names, path, NULL, NULL},
#define SWITCH(names, path, word)                                              \
    {FLAG_SWITCH, NONE, CLASS_NONE, ID_NONE, names, path, word, NULL},
#define CONVERT(id, names, args, text)                                         \
    {FLAG_CONVERT, args, CLASS_NONE, ID_##id, names, NULL, NULL, text},
#define ONLY(names, args, words, why)                                          \
    {FLAG_ONLY, args, CLASS_NONE, ID_NONE, names, NULL, words, why},
#define IGNORE(class, args, names)                                             \
    {FLAG_IGNORE, args, CLASS_##class, ID_NONE, names, NULL, NULL, NULL},
#define REJECT(args, names, why)                                               \
    {FLAG_REJECT, args, CLASS_NONE, ID_NONE, names, NULL, NULL, why},
#define DEFAULT(path, value, beside)
const FlagRow flag_rows[] = {
#include "frontend/megatron.def"
};
#undef KEY
#undef SWITCH
#undef CONVERT
#undef ONLY
#undef IGNORE
#undef REJECT
#undef DEFAULT

#define KEY(names, args, path)
#define SWITCH(names, path, word)
#define CONVERT(id, names, args, text)
#define ONLY(names, args, words, why)
#define IGNORE(class, args, names)
#define REJECT(args, names, why)
#define DEFAULT(path, value, beside) {path, value, beside},
const FlagDefault flag_defaults[] = {
#include "frontend/megatron.def"
};
#undef KEY
#undef SWITCH
#undef CONVERT
#undef ONLY
#undef IGNORE
#undef REJECT
#undef DEFAULT

const uint32_t flag_num_rows = MC_LEN(flag_rows);
const uint32_t flag_num_defaults = MC_LEN(flag_defaults);

const char *const flag_classes[CLASS_COUNT] = {
    [CLASS_ALWAYS] = "always so here",
    [CLASS_KERNELS] = "how the same is computed",
    [CLASS_OVERLAP] = "when communication runs, which megac plans",
    [CLASS_STARTUP] = "PyTorch's processes, communicators and memory",
    [CLASS_LOGGING] = "logs and profiles; megac writes metrics.jsonl",
    [CLASS_WATCHING] = "watching and restarting a run",
    [CLASS_RUN] = "said when it runs: megac run --steps, --resume, --load",
    [CLASS_CHECKPOINT] = "how Megatron writes and reads checkpoints",
    [CLASS_LOADING] = "how Megatron reads data",
    [CLASS_TOKENIZER] = "text to tokens; megac data pack writes tokens",
    [CLASS_ELSEWHERE] = "no part of pretraining a GPT",
};

/* ---- names --------------------------------------------------------------- */

static const FlagRow *row_find(const char *name, size_t n)
{
    for (uint32_t i = 0; i < flag_num_rows; i++)
        if (spelling_in(flag_rows[i].names, name, n))
            return &flag_rows[i];
    return NULL;
}

const FlagRow *flag_find(const char *name)
{
    return row_find(name, strlen(name));
}

/* How far a name is from what was typed: an abbreviation is nearest. */
static unsigned name_distance(const char *typed, const char *name)
{
    if (strncmp(typed, name, strlen(typed)) == 0)
        return 0;
    return str_distance(typed, name);
}

static void unknown_report(Diag *d, const Word *w, const char *name)
{
    unsigned best = 1 + (unsigned)strlen(name) / 3;
    char closest[128] = "";

    for (uint32_t i = 0; i < flag_num_rows; i++) {
        const char *cursor = flag_rows[i].names;
        Spelling s;
        while (spelling_next(&cursor, &s)) {
            char known[128];
            snprintf(known, sizeof known, "%.*s", s.len, s.text);
            if (name_distance(name, known) >= best)
                continue;
            best = name_distance(name, known);
            memcpy(closest, known, sizeof closest);
        }
    }
    diag_error(d, w->loc, "MC0021", "Megatron has no flag `--%s`", name);
    if (*closest)
        diag_help(d, "did you mean `--%s`?", closest);
}

/* ---- words to flags ------------------------------------------------------ */

typedef struct {
    Arena *arena;
    Diag *diag;
    const Word *words;
    uint32_t n, at;
} Reader;

/* A dash begins a flag, unless a number follows it. */
static bool is_flag(const char *text)
{
    return text[0] == '-' && text[1] && !isdigit((unsigned char)text[1]) &&
           text[1] != '.';
}

static bool count_check(Reader *r, const Flag *f, bool joined)
{
    static const char *const wanted[] = {
        [ARGS_NONE] = "no value", [ARGS_ONE] = "a value",
        [ARGS_LIST] = "one value or more", [ARGS_ANY] = ""};
    FlagArgs args = f->row->args;
    bool ok = args == ARGS_NONE   ? !joined
              : args == ARGS_ANY ? true
                                 : f->n > 0;

    if (!ok)
        diag_error(r->diag, f->loc, "MC0022", "%s takes %s", f->name,
                   wanted[args]);
    return ok;
}

/* The values behind a flag; behind `=` there is one. */
static void values_take(Reader *r, Flag *f, const char *joined)
{
    Word *value = arena_new_of(r->arena, Word);
    uint32_t most = f->row->args == ARGS_NONE  ? 0
                    : f->row->args == ARGS_ONE ? 1
                                               : UINT32_MAX;

    f->values = &r->words[r->at];
    if (joined) {
        *value = (Word){joined, f->loc, false};
        f->values = value;
        f->n = 1;
        return;
    }
    while (r->at < r->n && f->n < most && !is_flag(r->words[r->at].text)) {
        f->n++;
        r->at++;
    }
}

static bool flag_take(Reader *r, Flag *out)
{
    const Word *w = &r->words[r->at++];
    const char *name = w->text + 2, *equals = strchr(w->text, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(w->text) - 2;

    *out = (Flag){.loc = w->loc, .ignored = CLASS_NONE};
    out->name = arena_strndup(r->arena, w->text, len + 2);
    out->row = row_find(name, len);
    if (out->row) {
        values_take(r, out, equals ? equals + 1 : NULL);
        return count_check(r, out, equals != NULL);
    }
    unknown_report(r->diag, w, out->name + 2);
    while (r->at < r->n && !is_flag(r->words[r->at].text))
        r->at++;
    return false;
}

/* The earlier of two equal flags goes. */
static void flag_add(Reader *r, Flags *flags, const Flag *f)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < flags->n; i++) {
        if (strcmp(flags->v[i].name, f->name) != 0) {
            flags->v[kept++] = flags->v[i];
            continue;
        }
        diag_warn(r->diag, flags->v[i].loc, "MC0023",
                  "%s is given twice: the last one counts", f->name);
        diag_note(r->diag, f->loc, "the last one is here");
    }
    flags->v[kept++] = *f;
    flags->n = kept;
}

bool flags_read(Arena *a, Diag *d, const Word *words, uint32_t n, Flags *out)
{
    Reader r = {a, d, words, n, 0};
    bool ok = true;

    *out = (Flags){arena_array(a, Flag, n), 0};
    while (r.at < n) {
        const Word *w = &words[r.at];
        Flag f;
        if (strncmp(w->text, "--", 2) != 0 || !w->text[2]) {
            diag_error(d, w->loc, "MC0022", "`%s` belongs to no flag", w->text);
            r.at++;
            ok = false;
        } else if (flag_take(&r, &f)) {
            flag_add(&r, out, &f);
        } else {
            ok = false;
        }
    }
    return ok;
}

/* ---- what changes nothing ------------------------------------------------ */

static void class_report(Diag *d, const Flags *flags, FlagClass class)
{
    Buf names = {0};

    for (uint32_t i = 0; i < flags->n; i++)
        if (flags->v[i].ignored == class)
            buf_printf(&names, " %s", flags->v[i].name);
    if (names.len)
        diag_help(d, "%s:%s", flag_classes[class], buf_str(&names));
    buf_free(&names);
}

void flags_report_ignored(Diag *d, const Flags *flags)
{
    uint32_t count = 0;
    Loc first = {0};

    for (uint32_t i = flags->n; i-- > 0;)
        if (flags->v[i].ignored != CLASS_NONE) {
            first = flags->v[i].loc;
            count++;
        }
    if (!count)
        return;
    diag_warn(d, first, "MC0024", "%u flag%s no difference here", count,
              count > 1 ? "s make" : " makes");
    for (int c = 0; c < CLASS_COUNT; c++)
        class_report(d, flags, (FlagClass)c);
}
