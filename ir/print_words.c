/* print_words.c - types, layouts, attributes and names as text.
 *
 *   bf16[s=32, b=1, h=64]     a type; a scalar is its dtype alone
 *   {s@cp.tp b@dp +tp}        a layout: s split over cp, then tp; b over dp;
 *                             a partial sum over tp (`^tp`: partial maximum)
 *   {dims=sbf, dtype=f32}     attributes, in the order of attrs.def
 *
 * An axis in parts is written whole (`tp`) where all its parts stand together
 * in order, else part by part (`tp.0`).
 */
#include "ir/ir_priv.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- types --------------------------------------------------------------- */

void type_print_plain(const Type *t, Buf *out)
{
    buf_puts(out, dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        buf_printf(out, "%s%c=%lld", i ? ", " : "[", t->dim[i],
                   (long long)t->size[i]);
    if (t->ndim)
        buf_puts(out, "]");
}

void type_print(const Module *m, TypeId t, Buf *out)
{
    type_print_plain(type_of(m, t), out);
}

const char *type_text(Module *m, TypeId t)
{
    Buf buf = {0};
    const char *text;

    type_print(m, t, &buf);
    text = arena_strdup(m->arena, buf_str(&buf));
    buf_free(&buf);
    return text;
}

/* ---- atoms --------------------------------------------------------------- */

/* Parts of the axis of atom `a`. */
uint32_t axis_parts(const Mesh *mesh, const Atom *a)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < mesh->atoms.n; i++)
        n += mesh->atoms.v[i].axis.i == a->axis.i;
    return n;
}

/* How many atoms from list[0] on are a whole axis in order; 0: none. */
static uint32_t whole_axis(const Mesh *mesh, const uint8_t *list, uint32_t n)
{
    const Atom *a = &mesh->atoms.v[list[0]];
    uint32_t parts = axis_parts(mesh, a), i = 0;

    for (; i < parts && i < n; i++)
        if (mesh->atoms.v[list[i]].axis.i != a->axis.i ||
            mesh->atoms.v[list[i]].part != i)
            return 0;
    return i == parts ? parts : 0;
}

static void print_atoms(const Module *m, const uint8_t *list, uint32_t n,
                        Buf *out)
{
    for (uint32_t i = 0; i < n;) {
        const Atom *a = &m->mesh.atoms.v[list[i]];
        uint32_t whole = whole_axis(&m->mesh, list + i, n - i);

        buf_printf(out, "%s%s", i ? "." : "", sym_text(m->names, a->axis));
        if (!whole)
            buf_printf(out, ".%u", a->part);
        i += whole ? whole : 1;
    }
}

static uint32_t list_atoms(const Module *m, AxisSet set, uint8_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->mesh.atoms.n; i++)
        if (set >> i & 1)
            out[n++] = (uint8_t)i;
    return n;
}

void axes_print(const Module *m, AxisSet set, Buf *out)
{
    uint8_t list[IR_MAX_ATOMS];

    print_atoms(m, list, list_atoms(m, set, list), out);
}

/* ---- layouts ------------------------------------------------------------- */

static void print_partial(const Module *m, char sign, AxisSet set, Buf *out)
{
    if (!set)
        return;
    buf_printf(out, "%s%c", out->s[out->len - 1] == '{' ? "" : " ", sign);
    axes_print(m, set, out);
}

void layout_print(const Module *m, LayoutId l, Buf *out)
{
    const Layout *layout = layout_of(m, l);

    buf_puts(out, "{");
    for (uint32_t i = 0; i < layout->nsplit; i++) {
        const Split *s = &layout->split[i];

        buf_printf(out, "%s%c@", i ? " " : "", s->dim);
        print_atoms(m, s->atom, s->n, out);
    }
    print_partial(m, '+', layout->partial, out);
    print_partial(m, '^', layout->partial_max, out);
    buf_puts(out, "}");
}

/* ---- numbers and strings ------------------------------------------------- */

void float_print(double f, Buf *out)
{
    char text[40] = "nan";

    for (int digits = 15; digits <= 17 && !isnan(f); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, f);
        if (strtod(text, NULL) == f)
            break;
    }
    buf_puts(out, text);
}

static bool is_word(const char *s)
{
    return isalpha((unsigned char)*s) && name_is_plain(s);
}

void string_print(const char *s, Buf *out)
{
    buf_puts(out, "\"");
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            buf_printf(out, "\\%c", *s);
        else if ((unsigned char)*s < ' ')
            buf_printf(out, "\\x%02x", (unsigned)(unsigned char)*s);
        else
            buf_write(out, s, 1);
    buf_puts(out, "\"");
}

static void print_word(const char *s, Buf *out)
{
    if (is_word(s))
        buf_puts(out, s);
    else
        string_print(s, out);
}

/* ---- attributes ---------------------------------------------------------- */

static void print_list(const Module *m, const Attr *a, AttrKind kind, Buf *out)
{
    buf_puts(out, kind == AV_MODES ? "\"" : "[");
    for (uint32_t i = 0; i < a->as.list.n; i++) {
        int64_t v = m->list.v[a->as.list.first + i];

        buf_puts(out, i && kind != AV_MODES ? ", " : "");
        if (kind == AV_MODES)
            buf_printf(out, "%c", call_mode_letter((int)v));
        else if (kind == AV_SYMS)
            print_word(sym_text(m->names, (Sym){(uint32_t)v}), out);
        else
            buf_printf(out, "@%s", sym_text(m->names, m->tensors.v[v].name));
    }
    buf_puts(out, kind == AV_MODES ? "\"" : "]");
}

static void print_global(const Module *m, Sym name, Buf *out)
{
    buf_printf(out, "@%s", sym_text(m->names, name));
}

static void print_value(const Module *m, const Attr *a, Buf *out)
{
    AttrKind kind = attr_info[a->key].kind;

    if (kind == AV_INT)
        buf_printf(out, "%lld", (long long)a->as.i);
    else if (kind == AV_FLOAT)
        float_print(a->as.f, out);
    else if (kind == AV_SYM)
        print_word(sym_text(m->names, a->as.sym), out);
    else if (kind == AV_FUNC)
        print_global(m, m->funcs.v[a->as.func.i].name, out);
    else if (kind == AV_TENSOR)
        print_global(m, m->tensors.v[a->as.tensor.i].name, out);
    else if (kind == AV_AXES)
        axes_print(m, a->as.axes, out);
    else if (kind == AV_DIM)
        buf_printf(out, "%c", (int)a->as.i);
    else if (kind == AV_DTYPE)
        buf_puts(out, dtype_name((DType)a->as.i));
    else if (kind == AV_FIELD)
        buf_puts(out, field_names[a->as.i]);
    else if (kind == AV_STREAM)
        buf_puts(out, stream_names[a->as.i]);
    else
        print_list(m, a, kind, out);
}

void attrs_print(const Module *m, AttrsId attrs, Buf *out)
{
    for (uint32_t i = 0; i < attrs_count(m, attrs); i++) {
        const Attr *a = attrs_at(m, attrs, i);

        buf_printf(out, "%s%s=", i ? ", " : "{", attr_info[a->key].name);
        print_value(m, a, out);
    }
    if (attrs.i)
        buf_puts(out, "}");
}
