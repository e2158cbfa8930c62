/* megatron.h - what the files of the Megatron importer share.
 *
 *   text ─ megatron_words.c ─> words ─ megatron_flags.c ─> flags
 *        ─ import_megatron.c ─> nodes under megac's own keys ─ load.c ─> Spec
 */
#ifndef MEGAC_FRONTEND_MEGATRON_H
#define MEGAC_FRONTEND_MEGATRON_H

#include "frontend/frontend_priv.h"

/* ---- megatron_words.c --------------------------------------------------- */

typedef struct {
    const char *text;
    Loc loc;
    bool bare; /* nothing of it was quoted */
} Word;

typedef Vec(Word) Words;

/* A command line as a shell reads it, without running anything: quotes,
 * backslashes, comments, variables of the environment.  False after errors. */
bool words_split(Arena *a, Diag *d, const char *text, Words *out);
/* Arguments that a shell has split. */
bool words_given(Arena *a, Diag *d, const char *const *args, uint32_t n,
                 Words *out);

/* ---- megatron_flags.c: the rows of megatron.def ------------------------- */

typedef enum { ARGS_NONE, ARGS_ONE, ARGS_LIST, ARGS_ANY } FlagArgs;

typedef enum {
    FLAG_KEY,
    FLAG_SWITCH,
    FLAG_CONVERT,
    FLAG_ONLY,
    FLAG_IGNORE,
    FLAG_REJECT
} FlagKind;

/* Why a flag changes nothing. */
typedef enum {
    CLASS_ALWAYS,
    CLASS_KERNELS,
    CLASS_OVERLAP,
    CLASS_STARTUP,
    CLASS_LOGGING,
    CLASS_WATCHING,
    CLASS_RUN,
    CLASS_CHECKPOINT,
    CLASS_LOADING,
    CLASS_TOKENIZER,
    CLASS_ELSEWHERE,
    CLASS_COUNT,
    CLASS_NONE /* it does change something */
} FlagClass;

typedef enum {
    ID_NONE,
#define KEY(names, args, path)
#define SWITCH(names, path, word)
#define CONVERT(id, names, args, text) ID_##id,
#define ONLY(names, args, words, why)
#define IGNORE(class, args, names)
#define REJECT(args, names, why)
#define DEFAULT(path, value, beside)
#include "frontend/megatron.def"
#undef KEY
#undef SWITCH
#undef CONVERT
#undef ONLY
#undef IGNORE
#undef REJECT
#undef DEFAULT
} FlagId;

typedef struct {
    FlagKind kind;
    FlagArgs args;
    FlagClass class; /* of FLAG_IGNORE */
    FlagId id;       /* of FLAG_CONVERT */
    const char *names;
    const char *path; /* of FLAG_KEY and FLAG_SWITCH */
    const char *word; /* what a switch stands for; what FLAG_ONLY accepts */
    const char *text; /* for people: what becomes of it, or why nothing does */
} FlagRow;

typedef struct {
    const char *path, *value;
    const char *beside; /* only if this key is given; "": always */
} FlagDefault;

extern const FlagRow flag_rows[];
extern const uint32_t flag_num_rows;
extern const FlagDefault flag_defaults[];
extern const uint32_t flag_num_defaults;
extern const char *const flag_classes[CLASS_COUNT];

/* A flag of a command line. */
typedef struct {
    const FlagRow *row;
    const char *name; /* as typed, with its dashes */
    Loc loc;
    const Word *values;
    uint32_t n;
    FlagClass ignored; /* why it changes nothing, or CLASS_NONE */
} Flag;

typedef struct {
    Flag *v;
    uint32_t n;
} Flags;

/* The row of "tensor-model-parallel-size"; NULL if there is none. */
const FlagRow *flag_find(const char *name);
/* Of a flag that is given twice the last one counts, as in Megatron.  False
 * after errors. */
bool flags_read(Arena *a, Diag *d, const Word *words, uint32_t n, Flags *out);
/* One warning that lists what changes nothing, by class. */
void flags_report_ignored(Diag *d, const Flags *flags);

/* ---- import_megatron.c -------------------------------------------------- */

/* The value that the layers below have; NULL: none has it. */
typedef const Node *(*ValueBelow)(void *from, const char *path);

typedef struct {
    const char *text; /* a whole command line, or NULL: … */
    const char *const *args; /* … flags that change a file */
    uint32_t nargs;
    ValueBelow below;
    void *from;
} MegatronSource;

/* The settings as a tree of keys; NULL after errors.  A whole command line
 * brings Megatron's defaults along. */
Node *megatron_read(Arena *a, Diag *d, const MegatronSource *source);

/* Flags on their way to settings. */
typedef struct {
    Arena *arena;
    Diag *diag;
    bool whole; /* a whole command line: Megatron's defaults hold */
    Flags flags;
    Node *root;
    Loc start, by_default;
    ValueBelow below;
    void *from;
} Import;

/* The flag of a row, or NULL. */
Flag *import_given(const Import *im, FlagId id);
bool import_has(const Import *im, const char *path);
/* What a key is given so far: by other flags, in the file below; or NULL. */
const Node *import_value(const Import *im, const char *path);
/* Its number, by default too. */
bool import_number(const Import *im, const char *path, int64_t *out);

void import_put(Import *im, const char *path, const char *text, Loc loc);
void import_put_int(Import *im, const char *path, int64_t value, Loc loc);
void import_put_node(Import *im, const char *path, Node *value);
/* The flag's (first) value; what the flag of a row stands for, if given. */
void import_put_value(Import *im, const char *path, const Flag *f);
void import_put_choice(Import *im, FlagId id, const char *path,
                       const char *word);
/* Of a whole command line, where no flag set the key. */
void import_default(Import *im, const char *path, const char *text);

const char *flag_value(const Flag *f);
/* A value greater than 0; reports what is none. */
bool import_int(Import *im, const Flag *f, int64_t *out);
/* Some values of a flag as a list. */
Node *import_list(Import *im, const Word *values, uint32_t n);

void import_reject(Import *im, const Flag *f, const char *why);
void import_no_effect(Import *im, const Flag *f, const char *why);

/* ---- megatron_convert.c, megatron_training.c ---------------------------- */

/* The flags whose meaning depends on others. */
void import_convert(Import *im);
void import_convert_training(Import *im);

#endif
