/* import_megatron.c - Megatron-LM's command line as settings of megac.
 *
 * Flags become nodes of YAML under megac's own keys, with the flag as their
 * place, and go the way of every other setting: load.c merges them, value.c
 * reads them, check.c judges them.  Most flags are a key or a choice by the
 * table; what depends on several flags is in megatron_convert.c.
 *
 * A whole command line brings Megatron's defaults along where megac's differ,
 * so that the result means what Megatron would do.  Flags that change a file
 * bring nothing but themselves.
 */
#include "frontend/megatron.h"

/* ---- settings ------------------------------------------------------------ */

static const Node *node_of(const Import *im, const char *path)
{
    const Node *n = im->root;

    for (const char *dot; n && (dot = strchr(path, '.')); path = dot + 1)
        n = node_child(n, arena_strndup(im->arena, path,
                                        (size_t)(dot - path)));
    return n ? node_child(n, path) : NULL;
}

bool import_has(const Import *im, const char *path)
{
    return node_of(im, path) != NULL;
}

/* Two flags may say the same; if they do not, load.c reports the second. */
void import_put_node(Import *im, const char *path, Node *value)
{
    const Node *before = node_of(im, path);

    if (before && before->kind == NODE_SCALAR && value->kind == NODE_SCALAR &&
        strcmp(before->text, value->text) == 0)
        return;
    node_put_node(im->arena, im->root, path, value);
}

void import_put(Import *im, const char *path, const char *text, Loc loc)
{
    import_put_node(im, path, node_scalar(im->arena, text, loc));
}

void import_put_int(Import *im, const char *path, int64_t value, Loc loc)
{
    import_put(im, path, arena_printf(im->arena, "%lld", (long long)value),
               loc);
}

/* Where a key holds a text, any word is one; an empty one says nothing. */
void import_put_value(Import *im, const char *path, const Flag *f)
{
    bool text = schema_key(path)->kind == KIND_TEXT && *flag_value(f);

    import_put_node(im, path,
                    (text ? node_text : node_scalar)(im->arena, flag_value(f),
                                                     f->values[0].loc));
}

void import_put_choice(Import *im, FlagId id, const char *path,
                       const char *word)
{
    const Flag *f = import_given(im, id);

    if (f)
        import_put(im, path, word, f->loc);
}

void import_default(Import *im, const char *path, const char *text)
{
    if (im->whole && !import_has(im, path))
        import_put(im, path, text, im->by_default);
}

Node *import_list(Import *im, const Word *values, uint32_t n)
{
    Node *list = node_list(im->arena, values[0].loc);

    for (uint32_t i = 0; i < n; i++)
        node_append(list,
                    node_scalar(im->arena, values[i].text, values[i].loc));
    return list;
}

/* ---- flags --------------------------------------------------------------- */

Flag *import_given(const Import *im, FlagId id)
{
    for (uint32_t i = 0; i < im->flags.n; i++)
        if (im->flags.v[i].row->id == id)
            return &im->flags.v[i];
    return NULL;
}

const char *flag_value(const Flag *f)
{
    return f->values[0].text;
}

bool import_int(Import *im, const Flag *f, int64_t *out)
{
    if (str_to_int(flag_value(f), out) && *out > 0)
        return true;
    import_reject(im, f, "expected a number greater than 0");
    return false;
}

void import_reject(Import *im, const Flag *f, const char *why)
{
    diag_error(im->diag, f->n ? f->values[0].loc : f->loc, "MC0025",
               "%s%s%s: %s", f->name, f->n ? " " : "",
               f->n ? f->values[0].text : "", why);
}

void import_no_effect(Import *im, const Flag *f, const char *why)
{
    diag_warn(im->diag, f->loc, "MC0014", "%s has no effect %s", f->name, why);
}

const Node *import_value(const Import *im, const char *path)
{
    const Node *n = node_of(im, path);

    return n || !im->below ? n : im->below(im->from, path);
}

bool import_number(const Import *im, const char *path, int64_t *out)
{
    const Node *n = import_value(im, path);
    const char *text = n && n->kind == NODE_SCALAR ? n->text
                                                   : schema_key(path)->fallback;

    return text && str_to_int(text, out);
}

static bool is_number(const char *text, const char *other)
{
    double x, y;

    return str_to_double(text, &x) && str_to_double(other, &y) &&
           !(x < y || x > y);
}

static void only_take(Import *im, Flag *f)
{
    const char *cursor = f->row->word, *text = f->values[0].text;
    Spelling s;

    f->ignored = CLASS_ALWAYS;
    while (spelling_next(&cursor, &s)) {
        const char *word = arena_strndup(im->arena, s.text, (size_t)s.len);
        if (strcmp(word, text) == 0 || is_number(word, text))
            return;
    }
    import_reject(im, f, f->row->text);
}

static void key_take(Import *im, const Flag *f)
{
    Kind kind = schema_key(f->row->path)->kind;
    bool list = kind == KIND_INT_LIST || kind == KIND_CHOICE_LIST;

    if (list && f->row->args == ARGS_LIST)
        import_put_node(im, f->row->path, import_list(im, f->values, f->n));
    else if (f->n > 1)
        import_reject(im, f, "megac takes one value");
    else
        import_put_value(im, f->row->path, f);
}

static void flag_apply(Import *im, Flag *f)
{
    switch (f->row->kind) {
    case FLAG_KEY:
        key_take(im, f);
        break;
    case FLAG_SWITCH:
        import_put(im, f->row->path, f->row->word, f->loc);
        break;
    case FLAG_ONLY:
        only_take(im, f);
        break;
    case FLAG_IGNORE:
        f->ignored = f->row->class;
        break;
    case FLAG_REJECT:
        import_reject(im, f, f->row->text);
        break;
    case FLAG_CONVERT:
        break;
    }
}

/* ---- the launcher -------------------------------------------------------- */

/* The number behind --nnodes or --nnodes=; 0: this word is another. */
static int64_t launcher_number(Import *im, const Words *words, uint32_t i,
                               const char *name)
{
    const char *text = words->v[i].text;
    size_t n = strlen(name);
    int64_t value = 0;

    if (strncmp(text, name, n) != 0 || (text[n] && text[n] != '='))
        return 0;
    text = text[n]             ? text + n + 1
           : i + 1 < words->n ? words->v[i + 1].text
                               : "";
    if (!str_to_int(text, &value) || value < 1) {
        diag_error(im->diag, words->v[i].loc, "MC0022",
                   "%s takes a number here, not `%s`", name, text);
        return 0;
    }
    return value;
}

/* Only pretrain_gpt.py has these flags with this meaning. */
static void program_check(Import *im, const Word *program)
{
    static const char *const others[] = {"bert", "ict",    "mamba", "retro",
                                         "t5",   "vision", "vlm"};
    const char *slash = strrchr(program->text, '/');
    const char *name = slash ? slash + 1 : program->text, *kind = name;

    if (strcmp(name, "pretrain_gpt.py") == 0)
        return;
    if (strncmp(name, "pretrain_", 9) == 0)
        kind += 9;
    for (size_t i = 0; kind > name && i < MC_LEN(others); i++)
        if (strncmp(kind, others[i], strlen(others[i])) == 0) {
            diag_error(im->diag, program->loc, "MC0025",
                       "%s: the model is no GPT", program->text);
            return;
        }
    diag_warn(im->diag, program->loc, "MC0026",
              "%s is taken for pretrain_gpt.py", program->text);
}

static bool is_program(const Word *w)
{
    size_t len = strlen(w->text);

    return len > 3 && strcmp(w->text + len - 3, ".py") == 0;
}

/* How many ranks the launcher starts: of its options the last ones count. */
static void world_put(Import *im, const Words *words, uint32_t n)
{
    static const char *const names[] = {"--nnodes", "--nproc-per-node",
                                        "--nproc_per_node"};
    int64_t nodes = 1, ranks = 1, number;
    const Word *last = NULL;

    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < MC_LEN(names); k++)
            if ((number = launcher_number(im, words, i, names[k]))) {
                *(k ? &ranks : &nodes) = number;
                last = &words->v[i];
            }
    if (last)
        import_put_int(im, "parallel.world_size",
                       product_saturated(nodes, ranks), last->loc);
}

/* How many words stand before the flags: torchrun and its options, up to the
 * Python program. */
static uint32_t launcher_take(Import *im, const Words *words)
{
    uint32_t n = 0;

    if (words->n == 0 || words->v[0].text[0] == '-')
        return 0;
    while (n < words->n && !is_program(&words->v[n]))
        n++;
    if (n == words->n)
        return 0;
    world_put(im, words, n);
    program_check(im, &words->v[n]);
    return n + 1;
}

/* ---- a whole command line ------------------------------------------------ */

static const char *flag_of(const char *path)
{
    for (uint32_t i = 0; i < flag_num_rows; i++)
        if (flag_rows[i].path && strcmp(flag_rows[i].path, path) == 0)
            return flag_rows[i].names;
    return NULL;
}

static void required_check(Import *im)
{
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        const char *name = key->fallback ? NULL : flag_of(key->path);
        if (!name || import_has(im, key->path))
            continue;
        diag_error(im->diag, im->start, "MC0008", "--%.*s is required",
                   (int)strcspn(name, " "), name);
        if (strcmp(key->path, "model.vocab_size") == 0)
            diag_help(im->diag, "the tokenizer's own files are not read");
    }
}

static bool default_applies(const Import *im, const FlagDefault *row)
{
    return !*row->beside || import_has(im, row->beside);
}

static void defaults_put(Import *im)
{
    for (uint32_t i = 0; i < flag_num_defaults; i++)
        if (default_applies(im, &flag_defaults[i]))
            import_default(im, flag_defaults[i].path, flag_defaults[i].value);
}

/* What Megatron would have refused to go without. */
static void open_report(Import *im)
{
    static const char *const paths[] = {"training.optimizer.lr",
                                        "training.micro_batch_size",
                                        "training.steps"};

    for (size_t i = 0; i < MC_LEN(paths); i++)
        if (!import_has(im, paths[i])) {
            const char *name = flag_of(paths[i]);
            diag_warn(im->diag, im->start, "MC0026",
                      "--%.*s is not given: %s = %s",
                      (int)strcspn(name, " "), name, path_name(paths[i]),
                      schema_key(paths[i])->fallback);
        }
    if (import_has(im, "parallel.world_size"))
        return;
    diag_warn(im->diag, im->start, "MC0026",
              "the number of ranks is not given: dp = 1");
    diag_help(im->diag, "put `torchrun --nproc-per-node N pretrain_gpt.py` "
                        "before the flags, or set parallel.world_size");
}

static void whole_finish(Import *im)
{
    required_check(im);
    open_report(im);
    defaults_put(im);
}

/* ---- entry --------------------------------------------------------------- */

static bool source_words(Import *im, const MegatronSource *source, Words *out)
{
    if (source->text)
        return words_split(im->arena, im->diag, source->text, out);
    return words_given(im->arena, im->diag, source->args, source->nargs, out);
}

static void import_run(Import *im, const Words *words)
{
    uint32_t skipped = im->whole ? launcher_take(im, words) : 0;
    bool complete;

    if (words->n)
        im->start = words->v[0].loc;
    complete = flags_read(im->arena, im->diag, words->v + skipped,
                          words->n - skipped, &im->flags);
    for (uint32_t i = 0; i < im->flags.n; i++)
        flag_apply(im, &im->flags.v[i]);
    if (!complete)
        return;
    import_convert(im);
    if (im->whole)
        whole_finish(im);
    flags_report_ignored(im->diag, &im->flags);
}

Node *megatron_read(Arena *a, Diag *d, const MegatronSource *source)
{
    Import im = {.arena = a, .diag = d, .whole = source->text != NULL,
                 .below = source->below, .from = source->from};
    unsigned before = diag_errors(d);
    Words words = {0};

    im.by_default = diag_loc_named(d, "(Megatron's default)");
    im.root = node_map(a, im.by_default);
    if (source_words(&im, source, &words))
        import_run(&im, &words);
    vec_free(&words);
    return diag_errors(d) > before ? NULL : im.root;
}

Spec *spec_import_megatron(Arena *a, Diag *d, const char *text)
{
    Node *root = megatron_read(a, d, &(MegatronSource){.text = text});

    return root ? spec_from_tree(a, d, "--megatron", root) : NULL;
}
