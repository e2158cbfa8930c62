/* frontend_priv.h - what the files of frontend/ share. */
#ifndef MEGAC_FRONTEND_PRIV_H
#define MEGAC_FRONTEND_PRIV_H

#include "frontend/frontend.h"

/* ---- schema.c: the rows of schema.def and choices.def ------------------- */

typedef enum {
    KIND_INT,
    KIND_FLOAT,
    KIND_BOOL,
    KIND_TEXT,
    KIND_INT_LIST,
    KIND_TEXT_LIST,
    KIND_DATA_LIST,
    KIND_CHOICE,
    KIND_CHOICE_LIST
} Kind;

typedef struct {
    double least, most;
    bool above, below; /* the bound itself is excluded */
} Range;

typedef struct {
    const char *words;   /* the first is the normal form; NULL ends a table */
    int value;
    const char *feature; /* what is missing for it; NULL: nothing */
} Option;

typedef struct {
    const char *path, *section, *name;
    Kind kind;
    const Option *options; /* of KIND_CHOICE and KIND_CHOICE_LIST */
    size_t offset;         /* in Spec */
    const char *fallback;  /* NULL: the key is required */
    Range range;
    const char *names;
    const char *feature; /* what is missing for other values than fallback */
    const char *help;
} Key;

typedef struct {
    const char *path, *help;
} Section;

/* schema.def line by line: a section opens, a key, or (both NULL) an end. */
typedef struct {
    const char *open, *key; /* paths */
} Row;

/* One of the names of a key, cut out of the cell `names`. */
typedef struct {
    const char *text, *word; /* word: the choice that `true` stands for */
    int len, word_len;
    bool inverted; /* true means false */
    bool hint;     /* not accepted, only recognised */
} Spelling;

extern const Key schema_keys[];
extern const uint32_t schema_num_keys;
extern const Section schema_sections[];
extern const uint32_t schema_num_sections;
extern const Row schema_rows[];
extern const uint32_t schema_num_rows;

/* "base" of "model.rope.base". */
const char *path_name(const char *path);
/* Whether a path is one of a section, or of a section in it. */
bool path_is_inside(const char *section, const char *path);

bool spelling_next(const char **cursor, Spelling *out);
bool spelling_is(const Spelling *spelling, const char *name);
/* Whether a name is one of the spellings in a cell; one of a list's texts. */
bool spelling_in(const char *words, const char *name, size_t len);
bool text_is_listed(const char *const *list, size_t n, const char *text);

const Key *schema_key(const char *path);
const Section *schema_section(const char *path);
/* The key that `name` means inside `section`, by its own name or by one of
 * Megatron's; the latter also in a block around the key's.  NULL if none. */
const Key *schema_resolve(const char *section, const char *name,
                          Spelling *out_spelling);
/* A value's word as printed, and the option that a text names. */
const char *option_word(const Option *options, int value, int *out_len);
const Option *option_find(const Option *options, const char *text);

/* ---- yaml.c: text to a tree of nodes ------------------------------------ */

typedef enum { NODE_SCALAR, NODE_LIST, NODE_MAP } NodeKind;

typedef struct Node {
    NodeKind kind;
    bool quoted;
    Loc loc;
    const char *text; /* of a scalar, environment filled in */
    const char *name; /* its key, if the parent is a map */
    Loc name_loc;
    struct Node *first, *last, *next; /* children; the next sibling */
} Node;

/* NULL after errors.  An empty document is an empty map. */
Node *yaml_read_text(Arena *a, Diag *d, const char *name, const char *text,
                     size_t len);
/* "a.b=c" as the map {a: {b: c}}. */
Node *yaml_read_set(Arena *a, Diag *d, const char *argument);
bool node_is_null(const Node *n);
/* Appends what `${name}` or `${name:-default}` stands for; `at` is just behind
 * the `${`.  Returns the rest of the text, or NULL after an error. */
const char *environment_expand(Arena *a, Diag *d, Loc loc, const char *at,
                               Buf *out);

/* ---- json.c: JSON to the same nodes -------------------------------------- */

/* NULL after errors. */
Node *json_read_text(Arena *a, Diag *d, const char *name, const char *text,
                     size_t len);

/* ---- node.c: trees without a text --------------------------------------- */

Node *node_map(Arena *a, Loc loc);
Node *node_list(Arena *a, Loc loc);
Node *node_scalar(Arena *a, const char *text, Loc loc);
/* Whether YAML can hold a text: UTF-8, no control characters behind ASCII's,
 * no marks of byte order. */
bool text_is_writable(const char *text);
/* A text and nothing else: `null` is no null. */
Node *node_text(Arena *a, const char *text, Loc loc);
void node_append(Node *parent, Node *child);
/* NULL if the map has none of that name. */
const Node *node_child(const Node *map, const char *name);
/* Puts a value under "model.rope.base", with the blocks around it. */
void node_put(Arena *a, Node *root, const char *path, const char *text,
              Loc loc);
void node_put_node(Arena *a, Node *root, const char *path, Node *value);

/* load.c: the same from a tree of keys. */
Spec *spec_from_tree(Arena *a, Diag *d, const char *name, Node *root);

/* ---- configs.c: files that ship with megac ------------------------------ */

/* Where configs/ lies: the installed one unless MEGAC_CONFIGS says otherwise.
 */
const char *configs_dir(void);
/* `path` if there is such a file, else that of `name` in the first of the
 * folders ("models/") that has it; NULL if none does. */
const char *configs_find(Arena *a, const char *path, const char *name,
                         const char *const *folders, size_t nfolders);
/* The path from the root, without links; `path` itself if it cannot be told. */
const char *configs_absolute(Arena *a, const char *path);

/* ---- suggest.c ---------------------------------------------------------- */

/* Reports a key that `section` does not know, with the closest one. */
void suggest_report(Diag *d, const char *section, const Node *n);

/* ---- value.c ------------------------------------------------------------ */

/* The field of a row. */
void *key_field(const Key *key, Spec *s);
const void *key_value(const Key *key, const Spec *s);
/* Stores a node's value; reports and returns false if it has the wrong type
 * or is out of range. */
bool value_parse(Arena *a, Diag *d, const Key *key, const Node *n, Spec *s);
bool value_set_default(Arena *a, Diag *d, const Key *key, Loc loc, Spec *s);
/* The word that stands for 0, or NULL if the default is a number. */
const char *value_zero_word(const Key *key);

/* int_list.c: "([0]*3+[1]*58)"; false if it is no such list. */
bool int_list_read(Arena *a, const char *text, SpecIntList *out);

/* ---- print.c ------------------------------------------------------------ */

/* The value as YAML, for the normal form and for messages. */
void value_print(const Key *key, const Spec *s, Buf *out);
/* Whether a key is part of the normal form; not where nothing in its section
 * matters. */
bool spec_key_is_on(const Spec *s, const Key *key);
bool value_is_default(Arena *a, Diag *d, const Key *key, const Spec *s);

/* ---- fixed.c ------------------------------------------------------------ */

/* Whether a key of the model only steers its training. */
bool spec_key_only_trains(const Key *key);

/* ---- derive.c, check.c, stages.c ---------------------------------------- */

typedef struct {
    Arena *arena;
    Diag *diag;
    Spec *spec;
    Loc by_default; /* of every value that nobody gave */
} Check;

/* NULL after errors. */
ScheduleFile *schedule_file_read(Check *c);
/* Every stage runs every microbatch of a step once, in whole or in parts. */
bool schedule_file_check(Check *c);

/* Fills in what the YAML leaves open; divisions that do not come out are left
 * for check_rules to report. */
void derive_values(Spec *s);
/* INT64_MAX where the product does not fit. */
int64_t product_saturated(int64_t a, int64_t b);

/* layers.c: fills s->layers. */
void layers_build(Check *c);

/* Reports every broken rule. */
void check_rules(Check *c);
typedef enum { RULE_MODEL, RULE_DEGREES, RULE_BATCH } RuleKind;

/* Reports the first broken rule of a kind. */
void check_kind(Check *c, RuleKind kind);
/* Reports values whose feature is missing. */
void check_built(Check *c);

/* check_grid.c: the number of ranks and their order. */
void grid_check(Check *c);

/* What the schedule asks of derived.microbatches. */
void schedule_counts_check(Check *c);
/* check_training.c: the rules of batch and optimizer. */
void training_check(Check *c);
/* check_data.c: blends, masks, splits, evaluation. */
void data_check(Check *c);
/* check_cp.c: the rules of context parallelism. */
void cp_check(Check *c);
/* Once nothing else is wrong: the axes of ranks have common pieces. */
void borders_check(Check *c);

/* check_moe.c: the same for a mixture of experts: the model, its ranks, what is
 * computed again. */
void moe_model_check(Check *c);
void moe_ranks_check(Check *c);
void moe_recompute_check(Check *c);
/* Whether no layer has a module. */
bool moe_lacks_module(const Spec *s, SpecModule module);

/* check_memory.c: of recomputation and offloading. */
void memory_check(Check *c);

/* For a value that another key brought about. */
void spec_set_loc(Spec *s, const char *path, Loc loc);

/* Fills s->stages (and vpp from a layout), or reports why there is no such
 * split. */
bool stages_build(Check *c);
/* Reports an error at a key; check_because adds the place of another one. */
void check_fail(Check *c, const char *code, const char *path, const char *fmt,
                ...) MC_PRINTF(4, 5);
void check_because(Check *c, const char *path);
/* The value of a key as YAML. */
const char *check_text(Check *c, const char *path);

#endif
