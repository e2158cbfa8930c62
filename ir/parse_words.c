/* parse_words.c - types, layouts and attributes read back. */
#include "ir/parse_priv.h"

#include <ctype.h>

enum { MAX_LIST = 4096 };
static const int64_t max_size = (int64_t)1 << 48;

int parse_choice(Parser *p, const char *const *table, int n, const char *what)
{
    int i = p->kind == TOK_WORD ? word_find(table, n, buf_str(&p->text)) : -1;

    if (i < 0) {
        lex_fail(p, "MC0602", "expected the name of %s", what);
        return 0;
    }
    lex_next(p);
    return i;
}

/* A letter that stands alone. */
static char parse_dim(Parser *p)
{
    const char *s = buf_str(&p->text);
    char dim = s[0];

    if (p->kind != TOK_WORD || !islower((unsigned char)dim) || s[1]) {
        lex_fail(p, "MC0601", "expected the letter of a dimension");
        return 'a';
    }
    lex_next(p);
    return dim;
}

/* ---- types --------------------------------------------------------------- */

DType parse_dtype(Parser *p)
{
    DType dtype = DT_F32;

    if (p->kind != TOK_WORD || !dtype_parse(buf_str(&p->text), &dtype))
        lex_fail(p, "MC0601", "expected a type such as f32 or bf16[s=32]");
    lex_next(p);
    return dtype;
}

static void parse_size(Parser *p, Type *t, int64_t *elems)
{
    char dim = parse_dim(p);
    int64_t size;

    lex_expect(p, '=');
    size = lex_int(p, 1, max_size);
    if (t->ndim == IR_MAX_DIMS || type_dim(t, dim) >= 0) {
        lex_fail(p, "MC0604", "a type has up to %d dimensions, each once",
                 IR_MAX_DIMS);
        return;
    }
    if (__builtin_mul_overflow(*elems, size, elems) || *elems > max_size) {
        lex_fail(p, "MC0604", "the type is too large");
        return;
    }
    t->dim[t->ndim] = dim;
    t->size[t->ndim++] = size;
}

Type parse_plain_type(Parser *p)
{
    Type t = {.dtype = parse_dtype(p)};
    int64_t elems = 1;

    if (!lex_take(p, '['))
        return t;
    do
        parse_size(p, &t, &elems);
    while (lex_take(p, ','));
    lex_expect(p, ']');
    return t;
}

TypeId parse_type(Parser *p)
{
    Type t = parse_plain_type(p);

    return type_intern(p->m, &t);
}

/* ---- atoms: tp, tp.0, cp.tp ---------------------------------------------- */

typedef struct {
    uint8_t atom[IR_MAX_ATOMS];
    uint8_t n;
} AtomList;

static bool add_atom(AtomList *list, uint8_t atom)
{
    for (uint8_t i = 0; i < list->n; i++)
        if (list->atom[i] == atom)
            return false;
    list->atom[list->n++] = atom;
    return true;
}

/* One axis, all its atoms, or only the part that `*s` goes on with. */
static bool read_axis(const Module *m, const char **s, AtomList *list)
{
    size_t len = strcspn(*s, ".");
    char axis[MAX_AXIS_NAME + 1] = "";
    uint8_t atoms[IR_MAX_ATOMS], n;
    bool part, ok = true;

    if (!len || len >= sizeof axis)
        return false;
    memcpy(axis, *s, len);
    n = mesh_axis_atoms(m, axis, atoms);
    *s += len;
    part = **s == '.' && isdigit((unsigned char)(*s)[1]);
    if (!part) {
        for (uint8_t i = 0; i < n; i++)
            ok = add_atom(list, atoms[i]) && ok;
        return ok && n;
    }
    len = (size_t)((*s)[1] - '0');
    *s += 2;
    return !isdigit((unsigned char)**s) && len < n &&
           add_atom(list, atoms[len]);
}

static bool read_atoms(const Module *m, const char *s, AtomList *list)
{
    while (read_axis(m, &s, list)) {
        if (!*s)
            return true;
        if (*s++ != '.')
            return false;
    }
    return false;
}

/* The token at hand, a word or a name with @. */
static AtomList parse_atoms(Parser *p)
{
    AtomList list = {.n = 0};

    if (!read_atoms(p->m, buf_str(&p->text), &list)) {
        lex_fail(p, "MC0602", "`%s` are no axes of the mesh",
                 buf_str(&p->text));
        list.n = 0;
    }
    lex_next(p);
    return list;
}

AxisSet parse_axes(Parser *p)
{
    AtomList list = parse_atoms(p);
    AxisSet set = 0;

    for (uint8_t i = 0; i < list.n; i++)
        set |= (AxisSet)1 << list.atom[i];
    return set;
}

/* ---- layouts ------------------------------------------------------------- */

static void parse_split(Parser *p, Layout *l)
{
    char dim = parse_dim(p);
    AtomList list;

    if (p->kind != TOK_GLOBAL)
        lex_fail(p, "MC0601", "expected @ and the axes that split %c", dim);
    list = parse_atoms(p);
    if (list.n > IR_MAX_SPLIT || layout_split(l, dim) ||
        (l->nsplit == IR_MAX_DIMS))
        lex_fail(p, "MC0604", "%c is split twice, or too often", dim);
    else
        layout_set_split(l, dim, list.atom, list.n);
}

LayoutId parse_layout(Parser *p)
{
    Layout l = {0};

    if (!lex_take(p, '{'))
        return (LayoutId){0};
    while (p->kind != TOK_END && !lex_is(p, '}'))
        if (lex_take(p, '+'))
            l.partial |= parse_axes(p);
        else if (lex_take(p, '^'))
            l.partial_max |= parse_axes(p);
        else
            parse_split(p, &l);
    lex_expect(p, '}');
    return layout_intern(p->m, &l);
}

/* ---- attributes ---------------------------------------------------------- */

FuncId parse_func_ref(Parser *p)
{
    Sym name = {0};
    FuncId f;

    if (p->kind == TOK_GLOBAL)
        name = sym_intern(p->m->names, buf_str(&p->text));
    f = func_find(p->m, name);
    if (!f.i)
        lex_fail(p, "MC0602", "expected the name of a function");
    lex_next(p);
    return f;
}

static TensorId parse_tensor_ref(Parser *p)
{
    Sym name = {0};
    TensorId t;

    if (p->kind == TOK_GLOBAL)
        name = sym_intern(p->m->names, buf_str(&p->text));
    t = tensor_find(p->m, name);
    if (!t.i)
        lex_fail(p, "MC0602", "expected the name of a tensor");
    lex_next(p);
    return t;
}

static Sym parse_sym(Parser *p)
{
    return lex_name(p, p->kind == TOK_STRING ? TOK_STRING : TOK_WORD);
}

static Attr parse_modes(Parser *p, AttrKey key)
{
    int64_t modes[MAX_LIST];
    const char *s = buf_str(&p->text);
    uint32_t n = 0;

    if (p->kind != TOK_STRING || strlen(s) > MAX_LIST)
        lex_fail(p, "MC0601", "expected modes such as \">.l\"");
    for (s = buf_str(&p->text); !p->failed && *s; s++) {
        if (!strchr(".>#", *s) && !islower((unsigned char)*s)) {
            lex_fail(p, "MC0601", "modes are `.`, `>`, `#` and letters");
            break;
        }
        modes[n++] = call_mode_of(*s);
    }
    lex_next(p);
    return attr_of_list(p->m, key, modes, n);
}

static Attr parse_list(Parser *p, AttrKey key, AttrKind kind)
{
    int64_t list[MAX_LIST];
    uint32_t n = 0;

    lex_expect(p, '[');
    while (p->kind != TOK_END && !lex_is(p, ']') && n < MAX_LIST) {
        list[n++] = kind == AV_SYMS ? parse_sym(p).i : parse_tensor_ref(p).i;
        if (!lex_take(p, ','))
            break;
    }
    lex_expect(p, ']');
    return attr_of_list(p->m, key, list, n);
}

static Attr parse_attr_value(Parser *p, AttrKey key)
{
    AttrKind kind = attr_info[key].kind;

    switch (kind) {
    case AV_INT:
        return attr_of_int(key, lex_int(p, INT64_MIN, INT64_MAX));
    case AV_FLOAT:
        return attr_of_float(key, lex_float(p));
    case AV_SYM:
        return attr_of_sym(key, parse_sym(p));
    case AV_FUNC:
        return attr_of_func(key, parse_func_ref(p));
    case AV_TENSOR:
        return attr_of_tensor(key, parse_tensor_ref(p));
    case AV_AXES:
        return attr_of_axes(key, parse_axes(p));
    case AV_DIM:
        return attr_of_int(key, parse_dim(p));
    case AV_DTYPE:
        return attr_of_int(key, (int64_t)parse_dtype(p));
    case AV_FIELD:
        return attr_of_int(
            key, parse_choice(p, field_names, FIELD_COUNT, "a field"));
    case AV_STREAM:
        return attr_of_int(
            key, parse_choice(p, stream_names, STREAM_COUNT, "a stream"));
    case AV_MODES:
        return parse_modes(p, key);
    default:
        return parse_list(p, key, kind);
    }
}

static AttrKey parse_key(Parser *p)
{
    for (int key = 0; key < AK_KEYS; key++)
        if (lex_take_word(p, attr_info[key].name))
            return (AttrKey)key;
    lex_fail(p, "MC0602", "`%s` is no attribute", buf_str(&p->text));
    return (AttrKey)0;
}

AttrsId parse_attrs(Parser *p)
{
    Attr list[AK_KEYS];
    bool seen[AK_KEYS] = {false};
    uint32_t n = 0;

    if (!lex_take(p, '{'))
        return (AttrsId){0};
    do {
        AttrKey key = parse_key(p);

        lex_expect(p, '=');
        if (!p->failed && seen[key])
            lex_fail(p, "MC0603", "`%s` is given twice", attr_info[key].name);
        if (p->failed)
            return (AttrsId){0};
        seen[key] = true;
        list[n++] = parse_attr_value(p, key);
    } while (lex_take(p, ','));
    lex_expect(p, '}');
    return attrs_intern(p->m, list, n);
}
