/* parse_decl.c - declarations read back: the mirror of print_decl.c. */
#include "ir/parse_priv.h"

#include <ctype.h>

enum { MAX_COUNT = 1 << 30 };

static uint32_t parse_count(Parser *p)
{
    return (uint32_t)lex_int(p, 0, MAX_COUNT);
}

/* `key=` and a count. */
static uint32_t parse_entry(Parser *p, const char *key)
{
    lex_expect_word(p, key);
    lex_expect(p, '=');
    return parse_count(p);
}

/* ---- module {layers=4, microbatches=2, props=[inferred]} ----------------- */

/* [0, 1, 1] */
static void parse_kinds(Parser *p)
{
    lex_expect(p, '=');
    lex_expect(p, '[');
    do
        vec_push(&p->m->kind, (uint8_t)lex_int(p, 0, IR_MAX_KINDS - 1));
    while (!p->failed && lex_take(p, ','));
    lex_expect(p, ']');
    lex_expect(p, ',');
}

static void parse_header(Parser *p)
{
    lex_expect(p, '{');
    p->m->nlayers = parse_entry(p, "layers");
    lex_expect(p, ',');
    if (lex_take_word(p, "kinds"))
        parse_kinds(p);
    p->m->microbatches = parse_entry(p, "microbatches");
    lex_expect(p, ',');
    lex_expect_word(p, "props");
    lex_expect(p, '=');
    lex_expect(p, '[');
    while (p->kind == TOK_WORD) {
        p->m->props |=
            1u << parse_choice(p, prop_names, PROP_NAMES, "a property");
        if (!lex_take(p, ','))
            break;
    }
    lex_expect(p, ']');
    lex_expect(p, '}');
}

/* ---- mesh world=4 {tp=2:1 expert ep.0=2:2} ------------------------------- */

/* "tp" or "tp.1": the axis and its part. */
static Sym parse_axis(Parser *p, uint32_t *out_part)
{
    const char *s = buf_str(&p->text);
    size_t len = strcspn(s, ".");
    bool whole = !s[len];
    bool digit = !whole && isdigit((unsigned char)s[len + 1]) && !s[len + 2];
    Sym axis;

    *out_part = 0;
    if (p->kind != TOK_WORD || !isalpha((unsigned char)*s) ||
        len > MAX_AXIS_NAME || !(whole || digit)) {
        lex_fail(p, "MC0601", "expected an axis such as tp or tp.0");
        return (Sym){0};
    }
    if (digit)
        *out_part = (uint32_t)(s[len + 1] - '0');
    axis = sym_intern_n(p->m->names, s, len);
    lex_next(p);
    return axis;
}

/* The next part of the latest axis, or part 0 of a new one. */
static bool part_follows(const Mesh *mesh, Sym axis, uint32_t part)
{
    if (mesh->atoms.n && vec_last(&mesh->atoms).axis.i == axis.i)
        return part == vec_last(&mesh->atoms).part + 1;
    for (uint32_t i = 0; i < mesh->atoms.n; i++)
        if (mesh->atoms.v[i].axis.i == axis.i)
            return false;
    return part == 0;
}

static void parse_atom(Parser *p)
{
    bool expert = lex_take_word(p, "expert");
    uint32_t part, size, stride, span;
    Sym axis = parse_axis(p, &part);

    lex_expect(p, '=');
    size = (uint32_t)lex_int(p, 1, MAX_COUNT);
    lex_expect(p, ':');
    stride = (uint32_t)lex_int(p, 1, MAX_COUNT);
    span = size * stride;
    if (lex_take(p, '/'))
        span = (uint32_t)lex_int(p, stride, MAX_COUNT);
    if (p->failed)
        return;
    if ((uint64_t)size * stride > MAX_COUNT)
        lex_fail(p, "MC0604", "the axis has too many ranks");
    else if (p->m->mesh.atoms.n == IR_MAX_ATOMS)
        lex_fail(p, "MC0604", "a mesh has at most %d axes", IR_MAX_ATOMS);
    else if (!part_follows(&p->m->mesh, axis, part))
        lex_fail(p, "MC0603", "parts of an axis stand together, from 0 on");
    else {
        uint8_t i = mesh_atom(&p->m->mesh, axis, part, size, stride, expert);
        p->m->mesh.atoms.v[i].span = span;
    }
}

static void parse_mesh(Parser *p)
{
    uint32_t world = (lex_expect_word(p, "world"), lex_expect(p, '='),
                      (uint32_t)lex_int(p, 1, MAX_COUNT));

    if (p->m->mesh.atoms.n)
        lex_fail(p, "MC0603", "there is a mesh already");
    lex_expect(p, '{');
    while (p->kind == TOK_WORD)
        parse_atom(p);
    lex_expect(p, '}');
    p->m->mesh.world = world;
}

/* ---- layout #residual {s@tp} --------------------------------------------- */

static void parse_hint(Parser *p)
{
    NamedLayout hint = {.name = lex_name(p, TOK_HINT)};

    hint.layout = parse_layout(p);
    vec_push(&p->m->hints, hint);
}

/* ---- tensor @w : bf16[f=32, h=16] { … } ---------------------------------- */

static void parse_init(Parser *p, Tensor *t)
{
    t->init = (InitKind)parse_choice(p, init_names, MC_LEN(init_names),
                                     "an initialisation");
    if (p->kind == TOK_WORD &&
        (isdigit((unsigned char)*p->text.s) || *p->text.s == '-'))
        t->init_std = lex_float(p);
}

static int64_t parse_extent(Parser *p, const char *key)
{
    lex_expect_word(p, key);
    lex_expect(p, '=');
    return lex_int(p, 0, INT64_MAX);
}

/* Of the part before it, if there is one. */
static void parse_export(Parser *p, Tensor *t)
{
    Export *file = t->nparts ? &t->part[t->nparts - 1].file : &t->file;

    file->name = lex_name(p, TOK_STRING);
    file->rows = parse_extent(p, "rows");
    file->cols = parse_extent(p, "cols");
    if (lex_is_word(p, "of")) {
        file->fused_rows = parse_extent(p, "of");
        file->row_offset = parse_extent(p, "at");
    }
    file->transpose = lex_take_word(p, "transpose");
}

static void parse_part(Parser *p, Tensor *t)
{
    TensorPart part = {.name = lex_name(p, TOK_GLOBAL)};

    part.at.first = parse_extent(p, "first");
    part.at.n = parse_extent(p, "size");
    part.at.dim = lex_take_word(p, "r") ? 'r' : 0;
    if (t->nparts == IR_MAX_PARTS)
        lex_fail(p, "MC0604", "a tensor has at most %d parts", IR_MAX_PARTS);
    else
        t->part[t->nparts++] = part;
}

static void parse_field(Parser *p, Tensor *t)
{
    int f = parse_choice(p, field_names, FIELD_COUNT,
                         "a field or property of a tensor");

    t->fields |= 1u << f;
    t->field_dtype[f] = parse_dtype(p);
    t->rest[f] = parse_layout(p);
    if (lex_take_word(p, "host"))
        t->host |= 1u << f;
}

static void parse_flat(Parser *p, Tensor *t)
{
    t->flat = parse_type(p);
    t->use = parse_layout(p);
}

static void parse_kind_set(Parser *p, Tensor *t)
{
    lex_expect(p, '[');
    do
        t->kinds |= 1u << lex_int(p, 0, IR_MAX_KINDS - 1);
    while (!p->failed && lex_take(p, ','));
    lex_expect(p, ']');
}

static void parse_property(Parser *p, Tensor *t)
{
    if (lex_take_word(p, "parameter"))
        t->parameter = true;
    else if (lex_take_word(p, "layers"))
        t->per_layer = true;
    else if (lex_take_word(p, "kinds"))
        parse_kind_set(p, t);
    else if (lex_take_word(p, "decay"))
        t->decay = true;
    else if (lex_take_word(p, "expert"))
        t->expert = true;
    else if (lex_take_word(p, "tied"))
        t->tied = parse_axes(p);
    else if (lex_take_word(p, "logical"))
        t->logical = parse_plain_type(p);
    else if (lex_take_word(p, "flat"))
        parse_flat(p, t);
    else if (lex_take_word(p, "init"))
        parse_init(p, t);
    else if (lex_take_word(p, "file"))
        parse_export(p, t);
    else if (lex_take_word(p, "part"))
        parse_part(p, t);
    else
        parse_field(p, t);
}

static void parse_tensor(Parser *p)
{
    Tensor t = {.loc = lex_loc(p)};

    t.name = lex_name(p, TOK_GLOBAL);
    if (!p->failed && tensor_find(p->m, t.name).i)
        lex_fail(p, "MC0603", "there is a tensor of that name already");
    lex_expect(p, ':');
    t.type = parse_type(p);
    t.logical = *type_of(p->m, t.type);
    lex_expect(p, '{');
    while (p->kind == TOK_WORD)
        parse_property(p, &t);
    lex_expect(p, '}');
    if (!p->failed)
        tensor_new(p->m, &t);
}

bool parse_decl(Parser *p)
{
    if (lex_take_word(p, "module"))
        parse_header(p);
    else if (lex_take_word(p, "mesh"))
        parse_mesh(p);
    else if (lex_take_word(p, "layout"))
        parse_hint(p);
    else if (lex_take_word(p, "tensor"))
        parse_tensor(p);
    else
        return false;
    return true;
}

/* ---- stage {pp=0, chunk=0, first=0, layers=4, head, fwd=@f} -------------- */

static void parse_stage_word(Parser *p, PipeStage *s)
{
    if (lex_take_word(p, "embedding"))
        s->embedding = true;
    else if (lex_take_word(p, "head"))
        s->head = true;
    else if (lex_take_word(p, "fwd"))
        s->fwd = (lex_expect(p, '='), parse_func_ref(p));
    else if (lex_take_word(p, "bwd"))
        s->bwd = (lex_expect(p, '='), parse_func_ref(p));
    else if (lex_take_word(p, "weights"))
        s->weights = (lex_expect(p, '='), parse_func_ref(p));
    else
        lex_fail(p, "MC0602", "a stage does not have that");
}

static void parse_stage(Parser *p)
{
    PipeStage s = {0};

    lex_expect(p, '{');
    s.pp = parse_entry(p, "pp");
    lex_expect(p, ',');
    s.chunk = parse_entry(p, "chunk");
    lex_expect(p, ',');
    s.first_layer = parse_entry(p, "first");
    lex_expect(p, ',');
    s.nlayers = parse_entry(p, "layers");
    while (lex_take(p, ','))
        parse_stage_word(p, &s);
    lex_expect(p, '}');
    vec_push(&p->m->stages, s);
}

static void parse_program(Parser *p)
{
    SideProgram x = {0};

    lex_expect(p, '{');
    x.microbatches = parse_entry(p, "microbatches");
    if (lex_take(p, ',')) {
        x.forward = lex_take_word(p, "forward");
        if (!x.forward)
            lex_fail(p, "MC0602", "a program does not have that");
    }
    lex_expect(p, '}');
    vec_push(&p->m->programs, x);
}

bool parse_tail(Parser *p)
{
    if (lex_take_word(p, "stage")) {
        parse_stage(p);
    } else if (lex_take_word(p, "program")) {
        parse_program(p);
    } else if (lex_take_word(p, "entry")) {
        FuncId f = parse_func_ref(p);

        vec_push(&p->m->entry, f);
    } else {
        return false;
    }
    return true;
}
