/* row_value.c - the text of single values: loads, expressions, stores.
 *
 * A value is printed on demand, once per scope, after its operands; the scope
 * follows from its dimensions.  Under a rotation the operands are printed again
 * with a shifted index and `_r` behind their names.
 */
#include "codegen/row_text.h"

#include <ctype.h>

/* ---- numbers, types, indices -------------------------------------------- */

const char *row_element_type(DType t)
{
    return t == DT_BF16  ? "bf16"
           : t == DT_F16 ? "f16"
           : t == DT_I32 ? "i32"
                         : "float";
}

const char *row_element_suffix(DType t)
{
    return t == DT_BF16 ? "bf16" : t == DT_F16 ? "f16" : "f32";
}

void row_print_float(Buf *out, double x)
{
    char text[40];

    if (__builtin_isinf(x)) {
        buf_puts(out, x > 0 ? "INF" : "-INF");
        return;
    }
    snprintf(text, sizeof text, "%.9g", x);
    buf_printf(out, "%s%sf", text, strpbrk(text, ".e") ? "" : ".0");
}

static bool is_fastest(const RowProgram *p, char dim)
{
    int d = row_fastest(p);

    return d >= 0 && p->dim[d] == dim;
}

void row_print_index(Printer *w, Buf *out, ValueId v, const Strides *st)
{
    const Type *t = value_type(w->p->m, v);
    const char *plus = "";

    for (int i = 0; i < t->ndim; i++) {
        char dim = t->dim[i];
        if (row_local(w->p->m, v, dim) == 1)
            continue;
        if (w->shift && is_fastest(w->p, dim))
            buf_printf(out, "%s(%c + %lld)", plus, dim, (long long)w->shift);
        else
            buf_printf(out, "%s%c", plus, dim);
        if (st->of[i] != 1)
            buf_printf(out, " * %lld", (long long)st->of[i]);
        plus = " + ";
    }
    if (!*plus)
        buf_puts(out, "0");
}

Strides strides_dense(const Module *m, ValueId v)
{
    const Type *t = value_type(m, v);
    Strides st = {{0}};
    int64_t step = 1;

    for (int i = t->ndim - 1; i >= 0; i--) {
        st.of[i] = step;
        step *= row_local(m, v, t->dim[i]);
    }
    return st;
}

static Strides strides_of(const Printer *w, uint32_t ptr, ValueId v)
{
    return w->strides ? w->strides[ptr] : strides_dense(w->p->m, v);
}

/* Strides of a part's dimensions within the value that it is a part of. */
static Strides strides_of_part(const Printer *w, uint32_t ptr, ValueId part,
                               ValueId whole, Span at, int64_t *out_offset)
{
    const Type *t = value_type(w->p->m, part);
    const Type *all = value_type(w->p->m, whole);
    Strides st = strides_of(w, ptr, whole), out = {{0}};

    for (int d = 0; d < t->ndim; d++) {
        char dim = at.dim && t->dim[d] == at.dim ? 'j' : t->dim[d];
        out.of[d] = st.of[type_dim(all, dim)];
    }
    *out_offset = at.first * st.of[type_dim(all, 'j')];
    return out;
}

/* The same as row_print_index, for a part. */
static void print_part_index(Printer *w, Buf *out, uint32_t ptr, ValueId part,
                             ValueId whole, Span at)
{
    int64_t offset;
    Strides st = strides_of_part(w, ptr, part, whole, at, &offset);

    row_print_index(w, out, part, &st);
    if (offset)
        buf_printf(out, " + %lld", (long long)offset);
}

int row_imm(KernelInfo *k, KernelStart want)
{
    for (uint32_t i = 0; i < k->nimm; i++)
        if (k->imm[i].kind == want.kind &&
            k->imm[i].value.i == want.value.i && k->imm[i].dim == want.dim &&
            k->imm[i].axes == want.axes)
            return (int)i;
    mc_assert(k->nimm < KERNEL_MAX_IMM);
    k->imm[k->nimm] = want;
    return (int)k->nimm++;
}

/* Whether two values start at the same index of `dim` on every rank. */
static bool same_start(const Module *m, ValueId a, ValueId b, char dim)
{
    const Value *x = &m->values.v[a.i], *y = &m->values.v[b.i];

    return x->layout.i == y->layout.i &&
           type_size(type_of(m, x->type), dim) ==
               type_size(type_of(m, y->type), dim);
}

/* The immediate that holds the first logical index of `dim` of v, or -1 if
 * it is 0 on every rank. */
int row_start_imm(const Module *m, KernelInfo *k, ValueId v, char dim)
{
    if (!layout_split(layout_of(m, m->values.v[v.i].layout), dim))
        return -1;
    for (uint32_t i = 0; i < k->nimm; i++)
        if (k->imm[i].value.i && k->imm[i].dim == dim &&
            same_start(m, k->imm[i].value, v, dim))
            return (int)i;
    return row_imm(k, (KernelStart){.value = v, .dim = dim});
}

/* ---- scopes ------------------------------------------------------------- */

Scope row_scope(const Printer *w, const RowValue *v)
{
    if (w->late)
        return IN_LOOP;
    if (v->dims & w->p->inner)
        return w->shift ? IN_SHIFT : IN_LOOP;
    if (v->dims || v->phase)
        return IN_ROW;
    return IN_HEAD;
}

static Buf *scope_text(Printer *w, Scope s)
{
    return s == IN_HEAD ? &w->head : s == IN_ROW ? &w->row : &w->loop;
}

const char *row_indent(const Printer *w, Scope s)
{
    if (w->late)
        return "            ";
    if (s == IN_HEAD)
        return "    ";
    if (s == IN_ROW)
        return w->p->sums ? "            " : "        ";
    return w->p->sums ? "                " : "            ";
}

void row_scopes_close(Printer *w, unsigned which)
{
    for (uint32_t i = 0; i < w->p->values.n; i++)
        w->printed[i] &= (uint8_t)~which;
}

uint32_t row_number(const RowProgram *p, uint32_t value)
{
    uint32_t params = p->m->funcs.v[p->func.i].params.n;

    return value < params ? value : value - params + 1;
}

static bool is_identifier(const char *s)
{
    for (const char *c = s; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_')
            return false;
    return *s != '\0';
}

void row_print_name(const Printer *w, Buf *out, uint32_t value, Scope s)
{
    const RowValue *v = &w->p->values.v[value];
    const char *name =
        sym_text(w->p->m->names, w->p->m->values.v[v->id.i].name);

    buf_printf(out, "%c%u", v->def.i ? 'v' : 'x', row_number(w->p, value));
    if (is_identifier(name) && !isdigit((unsigned char)*name))
        buf_printf(out, "_%s", name);
    buf_puts(out, s == IN_SHIFT ? "_r" : "");
}

/* The operand's name where it is used now; prints the operand if needed. */
void row_operand_name(Printer *w, const RowValue *v, uint32_t k, Buf *out)
{
    uint32_t arg = row_operand(w->p, v, k);

    row_print_value(w, arg);
    row_print_name(w, out, arg, row_scope(w, &w->p->values.v[arg]));
}

/* ---- expressions -------------------------------------------------------- */

static const char *op_text(Op op)
{
    static const char *const texts[OP_COUNT] = {
#define ROW_OP(op, text) [OP_##op] = text,
#include "codegen/row_ops.def"
#undef ROW_OP
    };

    mc_assert(texts[op]);
    return texts[op];
}

static void print_pointwise(Printer *w, const RowValue *v, Op op, Buf *out)
{
    Buf names[3] = {{0}, {0}, {0}};

    for (uint32_t k = 0; k < w->p->m->nodes.v[v->def.i].nargs; k++)
        row_operand_name(w, v, k, &names[k]);
    for (const char *c = op_text(op); *c; c++)
        if (*c >= 'A' && *c <= 'C')
            buf_puts(out, buf_str(&names[*c - 'A']));
        else
            buf_write(out, c, 1);
    for (size_t i = 0; i < MC_LEN(names); i++)
        buf_free(&names[i]);
}

static void print_load(Printer *w, const RowValue *v, Buf *out)
{
    DType t = value_type(w->p->m, v->id)->dtype;
    Strides st = strides_of(w, v->param, v->id);

    if (t == DT_I32)
        buf_printf(out, "p%u[", v->param);
    else
        buf_printf(out, "load_%s(p%u + ", row_element_suffix(t), v->param);
    row_print_index(w, out, v->id, &st);
    buf_puts(out, t == DT_I32 ? "]" : ")");
}

/* A part is loaded from the parameter that it is a part of. */
static void print_part(Printer *w, const RowValue *v, Buf *out)
{
    const Node *n = &w->p->m->nodes.v[v->def.i];
    const RowValue *whole = &w->p->values.v[row_operand(w->p, v, 0)];
    DType t = value_type(w->p->m, v->id)->dtype;

    buf_printf(out, "load_%s(p%u + ", row_element_suffix(t), whole->param);
    print_part_index(w, out, whole->param, v->id, whole->id,
                     part_span(w->p->m, n));
    buf_puts(out, ")");
}

static void print_const(const Module *m, AttrsId attrs, Buf *out)
{
    double x = attr_float(m, attrs, AK_VALUE, 0.0);

    if (attr_find(m, attrs, AK_NUM)) {
        x = (double)attr_int(m, attrs, AK_NUM, 0) /
            (double)attr_int(m, attrs, AK_DEN, 1);
        if (attr_int(m, attrs, AK_ROOT, 0))
            x = __builtin_sqrt(x);
    }
    row_print_float(out, x);
}

/* The logical index along `dim`. */
void row_print_position(Printer *w, const RowValue *v, char dim, Buf *out)
{
    int imm = row_start_imm(w->p->m, w->info, v->id, dim);
    bool one = row_local(w->p->m, v->id, dim) == 1;
    bool shifted = w->shift && is_fastest(w->p, dim);

    if (imm >= 0)
        buf_printf(out, "IMM(%d) + ", imm);
    if (shifted)
        buf_printf(out, "%lld + ", (long long)w->shift);
    buf_printf(out, "%c", one ? '0' : dim);
}

static void print_onehot(Printer *w, const RowValue *v, Buf *out)
{
    const Type *t = value_type(w->p->m, v->id);

    row_operand_name(w, v, 0, out);
    buf_puts(out, " == (i32)(");
    row_print_position(w, v, t->dim[t->ndim - 1], out);
    buf_puts(out, ") ? 1.0f : 0.0f");
}

uint32_t row_range(const Printer *w)
{
    const RowProgram *p = w->p;
    int fastest = row_fastest(p);
    uint32_t range = 0;

    for (uint32_t i = p->values.n; i-- > 0 && fastest >= 0;) {
        Op op = (Op)p->m->nodes.v[p->values.v[i].def.i].op;

        if (op == OP_ROTATE)
            return 0;
        if (op == OP_INRANGE && p->values.v[i].dims == 1u << fastest)
            range = i;
    }
    return range;
}

void row_print_edge(Printer *w, uint32_t range, Buf *out)
{
    const RowProgram *p = w->p;
    const RowValue *v = &p->values.v[range];
    int fastest = row_fastest(p);
    int imm = row_start_imm(p->m, w->info, v->id, p->dim[fastest]);
    int64_t limit = attr_int(p->m, p->m->nodes.v[v->def.i].attrs, AK_LIMIT, 0);

    if (imm >= 0)
        buf_printf(out, "clipped(%lld - IMM(%d), %lld)", (long long)limit, imm,
                   (long long)p->size[fastest]);
    else
        buf_printf(out, "%lld", (long long)MC_MIN(limit, p->size[fastest]));
}

static void print_inrange(Printer *w, const RowValue *v, AttrsId attrs,
                          Buf *out)
{
    uint32_t range = row_range(w);

    if (range && v == &w->p->values.v[range] && !w->late && !w->shift) {
        buf_puts(out, w->beyond ? "0.0f" : "1.0f");
        return;
    }
    row_print_position(w, v, value_type(w->p->m, v->id)->dim[0], out);
    buf_printf(out, " < %lld ? 1.0f : 0.0f",
               (long long)attr_int(w->p->m, attrs, AK_LIMIT, 0));
}

static void print_index(Printer *w, const RowValue *v, AttrsId attrs, Buf *out)
{
    buf_puts(out, "(float)(");
    row_print_position(w, v, value_type(w->p->m, v->id)->dim[0], out);
    buf_printf(out, " + %lld)",
               (long long)attr_int(w->p->m, attrs, AK_FIRST, 0));
}

static void print_cast(Printer *w, const RowValue *v, Buf *out)
{
    DType to = value_type(w->p->m, v->id)->dtype;

    if (to == DT_BF16 || to == DT_F16)
        buf_printf(out, "narrowed_%s(", row_element_suffix(to));
    else
        buf_puts(out, "(float)(");
    row_operand_name(w, v, 0, out);
    buf_puts(out, ")");
}

/* The value on the rank whose coordinates are all 0, else 0. */
static void print_only(Printer *w, const RowValue *v, AttrsId attrs, Buf *out)
{
    int imm = row_imm(
        w->info, (KernelStart){.axes = attr_axes(w->p->m, attrs, AK_AXES)});

    buf_printf(out, "IMM(%d) ? 0.0f : ", imm);
    row_operand_name(w, v, 0, out);
}

int64_t row_rotary(const Printer *w, const RowValue *v)
{
    const Node *n = &w->p->m->nodes.v[v->def.i];

    return attr_int(w->p->m, n->attrs, AK_ROTARY,
                    row_local(w->p->m, v->id, 'd'));
}

/* The fastest loop is printed in stretches (see stretch_end) that lie on one
 * side of the rotation; the operand is printed again, shifted. */
static void print_rotate(Printer *w, const RowValue *v, Buf *out)
{
    const Node *n = &w->p->m->nodes.v[v->def.i];
    int64_t half = row_rotary(w, v) / 2;
    bool low = w->seg_from < half;
    bool minus = low == (attr_int(w->p->m, n->attrs, AK_SIGN, 1) > 0);

    if (w->seg_from >= 2 * half) {
        buf_puts(out, "0.0f");
        return;
    }
    buf_puts(out, minus ? "-" : "");
    w->shift = low ? half : -half;
    row_operand_name(w, v, 0, out);
    w->shift = 0;
}

static void print_expression(Printer *w, const RowValue *v, Buf *out)
{
    const Node *n = &w->p->m->nodes.v[v->def.i];

    if (!v->def.i)
        print_load(w, v, out);
    else if (v->reduce == REDUCE_NOTHING)
        row_operand_name(w, v, 0, out);
    else if (n->op == OP_PART)
        print_part(w, v, out);
    else if (n->op == OP_CONST)
        print_const(w->p->m, n->attrs, out);
    else if (n->op == OP_ONEHOT)
        print_onehot(w, v, out);
    else if (n->op == OP_INRANGE)
        print_inrange(w, v, n->attrs, out);
    else if (n->op == OP_INDEX)
        print_index(w, v, n->attrs, out);
    else if (n->op == OP_ONLY)
        print_only(w, v, n->attrs, out);
    else if (n->op == OP_DROPOUT)
        row_print_dropout(w, v, n->attrs, out);
    else if (n->op == OP_CAST)
        print_cast(w, v, out);
    else if (n->op == OP_ROTATE)
        print_rotate(w, v, out);
    else
        print_pointwise(w, v, (Op)n->op, out);
}

/* Prints value i into its scope unless it is there already.  Results of
 * reductions are declared by those who sum them up. */
void row_print_value(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];
    Scope s = row_scope(w, v);
    Buf expression = {0};
    Buf *out = scope_text(w, s);
    bool whole = value_type(w->p->m, v->id)->dtype == DT_I32;

    if (w->printed[i] & s)
        return;
    w->printed[i] |= (uint8_t)s;
    print_expression(w, v, &expression);
    buf_printf(out, "%sconst %s ", row_indent(w, s), whole ? "i32" : "float");
    row_print_name(w, out, i, s);
    buf_printf(out, " = %s;\n", buf_str(&expression));
    buf_free(&expression);
}

/* ---- stores ------------------------------------------------------------- */

void row_print_guard(const Printer *w, DimSet dims, DimSet among, Buf *out)
{
    const char *open = "if (!(";

    for (uint32_t i = 0; i < w->p->ndims; i++)
        if (among & ~dims & (1u << i)) {
            buf_printf(out, "%s%c", open, w->p->dim[i]);
            open = " | ";
        }
    if (open[0] == ' ')
        buf_puts(out, ")) ");
}

/* Whether the value was rounded to the type it is stored in. */
static bool is_exact(const Printer *w, const RowSink *sink)
{
    const RowValue *v = &w->p->values.v[sink->value];

    return dtype_bytes(sink->dtype) == 2 && !sink->accumulate && v->def.i &&
           w->p->m->nodes.v[v->def.i].op == OP_CAST &&
           value_type(w->p->m, v->id)->dtype == sink->dtype;
}

void row_print_store(Printer *w, const RowSink *sink, Scope s, Buf *out)
{
    const RowValue *v = &w->p->values.v[sink->value];
    const char *suffix = row_element_suffix(sink->dtype);
    Strides st = strides_of(w, sink->ptr, v->id);
    Buf index = {0};

    if (sink->whole.i == v->id.i)
        row_print_index(w, &index, v->id, &st);
    else
        print_part_index(w, &index, sink->ptr, v->id, sink->whole, sink->at);
    buf_puts(out, row_indent(w, s));
    if (!w->late)
        row_print_guard(w, v->dims,
                        w->p->outer | (s == IN_LOOP ? w->p->inner : 0), out);
    if (s != IN_LOOP)
        buf_puts(out, "ONCE ");
    if (sink->dtype == DT_I32) {
        buf_printf(out, "p%u[%s] = ", sink->ptr, index.s);
        row_print_name(w, out, sink->value, s);
        buf_puts(out, ";\n");
    } else {
        buf_printf(out, "store_%s%s(p%u + %s, ", suffix,
                   is_exact(w, sink) ? "_exact" : "", sink->ptr, index.s);
        if (sink->accumulate)
            buf_printf(out, "load_%s(p%u + %s) + ", suffix, sink->ptr, index.s);
        row_print_name(w, out, sink->value, s);
        buf_puts(out, ");\n");
    }
    buf_free(&index);
}

bool row_is_max(const Printer *w, const RowValue *v)
{
    return w->p->m->nodes.v[v->def.i].op == OP_MAX;
}
