/* load.c - files, includes, --set and flags, merged into one value per key.
 *
 * Every source is a layer.  A layer that comes later wins key by key: first
 * what a file includes, then the file itself, then each --set, then Megatron's
 * flags, which may also stand alone.  Within a layer a key may appear once.
 * Only when all layers are merged are the values converted, so that a value
 * which was overridden cannot be wrong.
 *
 *     include ──┐
 *     file ─────┼─ merge ─> Raw per key ─> value_parse ─> derive ─> check
 *     --set … ──┤
 *     flags ────┘
 */
#include "frontend/megatron.h"

#include <errno.h>

enum { INCLUDE_DEPTH_MAX = 16 };

typedef struct {
    const Node *node; /* NULL: not given */
    Spelling spelling;
    uint32_t layer;
} Raw;

typedef struct {
    Arena *arena;
    Diag *diag;
    Raw *raw; /* by row */
    uint32_t layer, num_layers;
    int depth;   /* of includes */
    bool broken; /* a text is missing or no YAML: its keys are not known */
} Loader;

/* ---- merging ------------------------------------------------------------ */

static Raw *raw_of(Loader *l, const Key *key)
{
    return &l->raw[key - schema_keys];
}

static void key_merge(Loader *l, const Key *key, const Node *n,
                      const Spelling *spelling)
{
    Raw *raw = raw_of(l, key);

    if (raw->node && raw->layer == l->layer) {
        diag_error(l->diag, n->name_loc, "MC0004", "%s is given twice",
                   key->path);
        diag_note(l->diag, raw->node->name_loc, "the first time is here");
        return;
    }
    *raw = (Raw){n, *spelling, l->layer};
}

/* `moe: null` takes back what an included file said about the section. */
static void section_clear(Loader *l, const char *section)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (path_is_inside(section, schema_keys[i].path))
            l->raw[i].node = NULL;
}

static void section_merge(Loader *l, const char *section, const Node *map);

static void block_merge(Loader *l, const char *path, const Node *n)
{
    if (n->kind == NODE_MAP)
        section_merge(l, path, n);
    else if (node_is_null(n))
        section_clear(l, path);
    else
        diag_error(l->diag, n->loc, "MC0005",
                   "%s must be a block of keys, not a %s", path,
                   n->kind == NODE_LIST ? "list" : "value");
}

static bool is_plain(const Node *n)
{
    return n->kind == NODE_SCALAR && !node_is_null(n);
}

/* Where a name is both a block and Megatron's name of a key (`optimizer`), the
 * value decides. */
static void section_merge(Loader *l, const char *section, const Node *map)
{
    for (const Node *n = map->first; n; n = n->next) {
        char *path = *section ? arena_printf(l->arena, "%s.%s", section,
                                             n->name)
                              : arena_strdup(l->arena, n->name);
        Spelling spelling;
        const Key *key = schema_resolve(section, n->name, &spelling);
        bool block = schema_section(path) && !(key && is_plain(n));
        if (block)
            block_merge(l, path, n);
        else if (key)
            key_merge(l, key, n, &spelling);
        else
            suggest_report(l->diag, section, n);
    }
}

/* ---- files -------------------------------------------------------------- */

static void text_merge(Loader *l, const char *name, const Buf *text);

static const char *file_beside(Loader *l, const char *from, const char *name)
{
    const char *slash = strrchr(from, '/');

    if (*name == '/' || !slash)
        return name;
    return arena_printf(l->arena, "%.*s/%s", (int)(slash - from), from, name);
}

/* The whole path of a file that the value of a key names, beside the text that
 * says so or in the working directory; the name itself if there is none. */
static const char *file_named(Loader *l, const Spec *s, const char *key,
                              const char *name)
{
    const char *from, *path;
    uint32_t line, col;

    diag_loc_parts(l->diag, spec_loc(s, key), &from, &line, &col);
    path = configs_find(l->arena, file_beside(l, from, name), name, NULL, 0);
    if (!path)
        path = configs_find(l->arena, name, name, NULL, 0);
    return path ? configs_absolute(l->arena, path) : name;
}

/* So that what is printed of a Spec means the same wherever it is read. */
static void files_name(Loader *l, Spec *s)
{
    if (strcmp(s->target.hardware, "local") != 0)
        s->target.hardware =
            file_named(l, s, "target.hardware", s->target.hardware);
    if (s->parallel.schedule == SCHED_CSV)
        s->schedule_path =
            file_named(l, s, "parallel.schedule", s->schedule_path);
}

/* The first file that `name` may stand for; NULL if there is none. */
static const char *include_find(Loader *l, const char *from, const char *name)
{
    static const char *const folders[] = {"", "models/", "examples/"};

    return configs_find(l->arena, file_beside(l, from, name), name, folders,
                        MC_LEN(folders));
}

static void include_merge(Loader *l, const char *from, const Node *n)
{
    unsigned before = diag_errors(l->diag);
    const char *path;
    Buf text = {0};

    if (n->kind != NODE_SCALAR || node_is_null(n)) {
        diag_error(l->diag, n->loc, "MC0009", "include takes one file name");
        l->broken = true;
        return;
    }
    path = include_find(l, from, n->text);
    if (!path)
        diag_error(l->diag, n->loc, "MC0009",
                   "no file `%s` beside this one or under %s", n->text,
                   configs_dir());
    else if (l->depth >= INCLUDE_DEPTH_MAX)
        diag_error(l->diag, n->loc, "MC0009",
                   "includes nest too deeply; does a file include itself?");
    else if (!buf_read_file(&text, path))
        diag_error(l->diag, n->loc, "MC0009", "cannot read `%s`: %s", path,
                   strerror(errno));
    else
        text_merge(l, path, &text);
    l->broken |= diag_errors(l->diag) > before;
    buf_free(&text);
}

static void version_check(Loader *l, const Node *n)
{
    int64_t version;

    if (n->kind != NODE_SCALAR || !str_to_int(n->text, &version) ||
        version != 1)
        diag_error(l->diag, n->loc, "MC0005", "version must be 1");
}

/* Takes `version` and `include`, which are no keys of the model, out of a
 * document; at most one of each. */
static const Node *document_take(Loader *l, Node *root, const char *name)
{
    const Node *taken = NULL;
    Node **link = &root->first;

    while (*link) {
        Node *n = *link;
        if (strcmp(n->name, name) != 0) {
            link = &n->next;
            continue;
        }
        *link = n->next;
        if (taken)
            diag_error(l->diag, n->name_loc, "MC0004", "%s is given twice",
                       name);
        taken = n;
    }
    return taken;
}

static void document_merge(Loader *l, const char *name, Node *root)
{
    const Node *version, *include;

    if (root->kind != NODE_MAP) {
        diag_error(l->diag, root->loc, "MC0005",
                   "a specification is a block of keys");
        return;
    }
    version = document_take(l, root, "version");
    include = document_take(l, root, "include");
    if (version)
        version_check(l, version);
    if (include) {
        l->depth++;
        include_merge(l, name, include);
        l->depth--;
    }
    l->layer = ++l->num_layers;
    section_merge(l, "", root);
}

static void text_merge(Loader *l, const char *name, const Buf *text)
{
    Node *root =
        yaml_read_text(l->arena, l->diag, name, buf_str(text), text->len);

    if (root)
        document_merge(l, name, root);
    l->broken |= !root;
}

static void set_merge(Loader *l, const char *argument)
{
    Node *root = yaml_read_set(l->arena, l->diag, argument);

    if (!root)
        return;
    l->layer = ++l->num_layers;
    section_merge(l, "", root);
}

/* ---- Megatron's flags --------------------------------------------------- */

/* A key in the layers so far. */
static const Node *value_below(void *loader, const char *path)
{
    return raw_of(loader, schema_key(path))->node;
}

static void flags_merge(Loader *l, MegatronSource source)
{
    Node *root;

    source.below = value_below;
    source.from = l;
    root = megatron_read(l->arena, l->diag, &source);
    if (root) {
        l->layer = ++l->num_layers;
        section_merge(l, "", root);
    }
    l->broken |= !root;
}

/* ---- values ------------------------------------------------------------- */

/* `swiglu: true` stands for the choice, `untie…: true` for tie…: false. */
static const Node *spelling_apply(Loader *l, const Key *key, const Raw *raw)
{
    const Spelling *s = &raw->spelling;
    bool is_true = raw->node->kind == NODE_SCALAR &&
                   strcasecmp(raw->node->text, "true") == 0;
    bool is_false = raw->node->kind == NODE_SCALAR &&
                    strcasecmp(raw->node->text, "false") == 0;
    Node *n;

    if (!s->word && !s->inverted)
        return raw->node;
    if (!is_true && !(is_false && s->inverted)) {
        diag_error(l->diag, raw->node->loc, "MC0005",
                   "`%.*s` can only be true here; set %s instead", s->len,
                   s->text, key->path);
        return NULL;
    }
    n = arena_new_of(l->arena, Node);
    *n = *raw->node;
    n->text = s->word ? arena_strndup(l->arena, s->word, (size_t)s->word_len)
              : is_true ? "false"
                        : "true";
    return n;
}

static void required_check(Loader *l, Loc file)
{
    for (uint32_t i = 0; i < schema_num_keys; i++)
        if (!schema_keys[i].fallback && !l->raw[i].node)
            diag_error(l->diag, file, "MC0008", "%s is required",
                       schema_keys[i].path);
}

static void key_load(Loader *l, const Key *key, Loc by_default, Spec *s)
{
    const Raw *raw = raw_of(l, key);
    const Node *n = raw->node ? spelling_apply(l, key, raw) : NULL;
    Loc *loc = &s->locs[key - schema_keys];

    *loc = by_default;
    if (n) {
        *loc = n->loc;
        value_parse(l->arena, l->diag, key, n, s);
    } else if (key->fallback) {
        value_set_default(l->arena, l->diag, key, by_default, s);
    }
}

/* Values, then rules; the rules only if every value could be read. */
static Spec *spec_finish(Loader *l, const char *name)
{
    Spec *s = arena_new_of(l->arena, Spec);
    Loc by_default = diag_loc_named(l->diag, "(default)");
    Check check = {l->arena, l->diag, s, by_default};

    if (!diag_errors(l->diag))
        required_check(l, diag_loc_named(l->diag, name));
    s->locs = arena_array(l->arena, Loc, schema_num_keys);
    s->by_default = by_default;
    for (uint32_t i = 0; i < schema_num_keys; i++)
        key_load(l, &schema_keys[i], by_default, s);
    if (diag_errors(l->diag))
        return NULL;
    files_name(l, s);
    stages_build(&check);
    derive_values(s);
    layers_build(&check);
    check_rules(&check);
    check_built(&check);
    return diag_errors(l->diag) ? NULL : s;
}

/* ---- entry -------------------------------------------------------------- */

static Spec *loader_run(Loader *l, const char *name, const Buf *text,
                        const SpecChanges *changes)
{
    const MegatronSource flags = {.args = changes->flags,
                                  .nargs = changes->nflags};

    l->raw = arena_array(l->arena, Raw, schema_num_keys);
    text_merge(l, name, text);
    for (uint32_t i = 0; i < changes->nsets; i++)
        set_merge(l, changes->sets[i]);
    if (flags.nargs)
        flags_merge(l, flags);
    return l->broken ? NULL : spec_finish(l, name);
}

Spec *spec_load_changed(Arena *a, Diag *d, const char *path,
                        const SpecChanges *changes)
{
    Loader l = {.arena = a, .diag = d};
    Buf text = {0};
    Spec *s = NULL;

    if (buf_read_file(&text, path))
        s = loader_run(&l, path, &text, changes);
    else
        diag_error(d, diag_loc_named(d, path), "MC0801", "cannot read: %s",
                   strerror(errno));
    buf_free(&text);
    return s;
}

Spec *spec_load(Arena *a, Diag *d, const char *path, const char *const *sets,
                int nsets)
{
    return spec_load_changed(
        a, d, path, &(SpecChanges){.sets = sets, .nsets = (uint32_t)nsets});
}

Spec *spec_parse(Arena *a, Diag *d, const char *name, const char *text,
                 const char *const *sets, int nsets)
{
    Loader l = {.arena = a, .diag = d};
    Buf copy = {0};
    Spec *s;

    buf_puts(&copy, text);
    s = loader_run(&l, name, &copy,
                   &(SpecChanges){.sets = sets, .nsets = (uint32_t)nsets});
    buf_free(&copy);
    return s;
}

Spec *spec_from_tree(Arena *a, Diag *d, const char *name, Node *root)
{
    Loader l = {.arena = a, .diag = d};

    l.raw = arena_array(a, Raw, schema_num_keys);
    document_merge(&l, name, root);
    return l.broken ? NULL : spec_finish(&l, name);
}
