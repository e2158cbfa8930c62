/* row_print.c - prints a row program as one kernel, the same text for C and
 * CUDA: the preludes define ROWS, LANES, row_sum and so on.
 *
 *     KERNEL(norm)
 *     {
 *         const float *p0 = ...;                       pointers
 *         ROWS(row, 4096) {
 *             const i64 s = row;                       outer indices
 *             float v3 = 0.0f;
 *             LANES(h, 0, 512) {                       phase 0
 *                 const float v0 = load_f32(p0 + s * 512 + h);
 *                 v3 += v0 * v0;
 *             }
 *             v3 = row_sum(v3);                        a number of the row
 *             LANES(h, 0, 512) { ... }                 phase 1
 *         }
 *     }
 *
 * Values are printed on demand into the innermost scope they need: HEAD for
 * what is the same for all rows, ROW, or LOOP.  A loop computes again what an
 * earlier loop computed; only numbers of the row live on.  All stores of a
 * loop come last, so a result may lie where an operand lies (row_in_place).
 */
#include "codegen/row_priv.h"

typedef enum { IN_HEAD = 1, IN_ROW = 2, IN_LOOP = 4, IN_SHIFT = 8 } Scope;

typedef struct {
    const RowProgram *p;
    const Strides *strides; /* by pointer */
    KernelInfo *info;
    Buf head, row, loop;
    uint8_t *printed;  /* by value: the scopes that have it */
    int64_t shift;     /* of the fastest index, under a rotation */
    int64_t seg_from;  /* the stretch of the fastest dimension being printed */
    bool late;         /* inside the second kernel */
    DimSet late_dims;  /* dimensions of the columns there */
    uint32_t phase;
} Printer;

/* ---- numbers, types, indices -------------------------------------------------- */

static const char *element_type(DType t)
{
    return t == DT_BF16 ? "bf16" : t == DT_I32 ? "i32" : "float";
}

static const char *element_suffix(DType t)
{
    return t == DT_BF16 ? "bf16" : "f32";
}

static void print_float(Buf *out, double x)
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

/* "s * 512 + h": where an element of v lies; dimensions of one index vanish. */
static void print_index(Printer *w, Buf *out, ValueId v, const Strides *st)
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

static int imm_find(KernelInfo *k, KernelStart want)
{
    for (uint32_t i = 0; i < k->nimm; i++)
        if (k->imm[i].value.i == want.value.i && k->imm[i].dim == want.dim &&
            k->imm[i].axes == want.axes)
            return (int)i;
    mc_assert(k->nimm < KERNEL_MAX_IMM);
    k->imm[k->nimm] = want;
    return (int)k->nimm++;
}

/* The immediate that holds the first logical index of `dim` of v, or -1 if
 * it is 0 on every rank. */
int row_start_imm(const Module *m, KernelInfo *k, ValueId v, char dim)
{
    if (!layout_split(layout_of(m, m->values.v[v.i].layout), dim))
        return -1;
    return imm_find(k, (KernelStart){.value = v, .dim = dim});
}

/* ---- scopes ---------------------------------------------------------------------- */

static Scope scope_of(const Printer *w, const RowValue *v)
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

static const char *scope_indent(const Printer *w, Scope s)
{
    if (w->late)
        return "            ";
    if (s == IN_HEAD)
        return "    ";
    if (s == IN_ROW)
        return w->p->sums ? "            " : "        ";
    return w->p->sums ? "                " : "            ";
}

static void scopes_close(Printer *w, unsigned which)
{
    for (uint32_t i = 0; i < w->p->values.n; i++)
        w->printed[i] &= (uint8_t)~which;
}

static void print_name(Buf *out, uint32_t value, Scope s)
{
    buf_printf(out, "v%u%s", value, s == IN_SHIFT ? "r" : "");
}

static void print_value(Printer *w, uint32_t i);

/* The operand's name where it is used now; prints the operand if needed. */
static void operand_name(Printer *w, const RowValue *v, uint32_t k, Buf *out)
{
    uint32_t arg = row_operand(w->p, v, k);

    print_value(w, arg);
    print_name(out, arg, scope_of(w, &w->p->values.v[arg]));
}

/* ---- expressions -------------------------------------------------------------------- */

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
    Buf names[2] = {{0}, {0}};

    for (uint32_t k = 0; k < w->p->m->nodes.v[v->def.i].nargs; k++)
        operand_name(w, v, k, &names[k]);
    for (const char *c = op_text(op); *c; c++)
        if (*c == 'A' || *c == 'B')
            buf_puts(out, buf_str(&names[*c - 'A']));
        else
            buf_write(out, c, 1);
    buf_free(&names[0]);
    buf_free(&names[1]);
}

static void print_load(Printer *w, const RowValue *v, Buf *out)
{
    DType t = value_type(w->p->m, v->id)->dtype;
    Strides st = strides_of(w, v->param, v->id);

    if (t == DT_I32)
        buf_printf(out, "p%u[", v->param);
    else
        buf_printf(out, "load_%s(p%u + ", element_suffix(t), v->param);
    print_index(w, out, v->id, &st);
    buf_puts(out, t == DT_I32 ? "]" : ")");
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
    print_float(out, x);
}

/* The logical index along `dim`. */
static void print_position(Printer *w, const RowValue *v, char dim, Buf *out)
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

    operand_name(w, v, 0, out);
    buf_puts(out, " == (i32)(");
    print_position(w, v, t->dim[t->ndim - 1], out);
    buf_puts(out, ") ? 1.0f : 0.0f");
}

static void print_inrange(Printer *w, const RowValue *v, AttrsId attrs,
                          Buf *out)
{
    print_position(w, v, value_type(w->p->m, v->id)->dim[0], out);
    buf_printf(out, " < %lld ? 1.0f : 0.0f",
               (long long)attr_int(w->p->m, attrs, AK_LIMIT, 0));
}

static void print_cast(Printer *w, const RowValue *v, Buf *out)
{
    DType to = value_type(w->p->m, v->id)->dtype;

    buf_puts(out, to == DT_BF16 ? "f32_of_bf16(bf16_of_f32(" : "(float)(");
    operand_name(w, v, 0, out);
    buf_puts(out, to == DT_BF16 ? "))" : ")");
}

/* The value on the rank whose coordinates are all 0, else 0. */
static void print_only(Printer *w, const RowValue *v, AttrsId attrs, Buf *out)
{
    int imm = imm_find(w->info, (KernelStart){
        .axes = attr_axes(w->p->m, attrs, AK_AXES)});

    buf_printf(out, "IMM(%d) ? 0.0f : ", imm);
    operand_name(w, v, 0, out);
}

static int64_t rotary_of(const Printer *w, const RowValue *v)
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
    int64_t half = rotary_of(w, v) / 2;
    bool low = w->seg_from < half;
    bool minus = low == (attr_int(w->p->m, n->attrs, AK_SIGN, 1) > 0);

    if (w->seg_from >= 2 * half) {
        buf_puts(out, "0.0f");
        return;
    }
    buf_puts(out, minus ? "-" : "");
    w->shift = low ? half : -half;
    operand_name(w, v, 0, out);
    w->shift = 0;
}

static void print_expression(Printer *w, const RowValue *v, Buf *out)
{
    const Node *n = &w->p->m->nodes.v[v->def.i];

    if (!v->def.i)
        print_load(w, v, out);
    else if (v->reduce == REDUCE_NOTHING)
        operand_name(w, v, 0, out);
    else if (n->op == OP_CONST)
        print_const(w->p->m, n->attrs, out);
    else if (n->op == OP_ONEHOT)
        print_onehot(w, v, out);
    else if (n->op == OP_INRANGE)
        print_inrange(w, v, n->attrs, out);
    else if (n->op == OP_ONLY)
        print_only(w, v, n->attrs, out);
    else if (n->op == OP_CAST)
        print_cast(w, v, out);
    else if (n->op == OP_ROTATE)
        print_rotate(w, v, out);
    else
        print_pointwise(w, v, (Op)n->op, out);
}

/* Prints value i into its scope unless it is there already.  Results of
 * reductions are declared by those who sum them up. */
static void print_value(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];
    Scope s = scope_of(w, v);
    Buf expression = {0};
    Buf *out = scope_text(w, s);
    bool whole = value_type(w->p->m, v->id)->dtype == DT_I32;

    if (w->printed[i] & s)
        return;
    w->printed[i] |= (uint8_t)s;
    print_expression(w, v, &expression);
    buf_printf(out, "%sconst %s ", scope_indent(w, s), whole ? "i32" : "float");
    print_name(out, i, s);
    buf_printf(out, " = %s;\n", buf_str(&expression));
    buf_free(&expression);
}

/* ---- stores -------------------------------------------------------------------------- */

/* "if (!(s | b)) ": a value without some dimension is stored once only. */
static void print_guard(const Printer *w, DimSet dims, DimSet among, Buf *out)
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

/* A store or accumulation of a printed value, indented for its scope. */
static void print_store(Printer *w, const RowSink *sink, Scope s, Buf *out)
{
    const RowValue *v = &w->p->values.v[sink->value];
    const char *suffix = element_suffix(sink->dtype);
    Strides st = strides_of(w, sink->ptr, v->id);
    Buf index = {0};

    print_index(w, &index, v->id, &st);
    buf_puts(out, scope_indent(w, s));
    if (!w->late)
        print_guard(w, v->dims,
                    w->p->outer | (s == IN_LOOP ? w->p->inner : 0), out);
    if (s != IN_LOOP)
        buf_puts(out, "ONCE ");
    if (sink->dtype == DT_I32) {
        buf_printf(out, "p%u[%s] = ", sink->ptr, index.s);
        print_name(out, sink->value, s);
        buf_puts(out, ";\n");
    } else {
        buf_printf(out, "store_%s(p%u + %s, ", suffix, sink->ptr, index.s);
        if (sink->accumulate)
            buf_printf(out, "load_%s(p%u + %s) + ", suffix, sink->ptr, index.s);
        print_name(out, sink->value, s);
        buf_puts(out, ");\n");
    }
    buf_free(&index);
}

/* ---- reductions ------------------------------------------------------------------------ */

static bool is_max(const Printer *w, const RowValue *v)
{
    return w->p->m->nodes.v[v->def.i].op == OP_MAX;
}

/* `to = to + x` or the maximum. */
static void print_join(Printer *w, const RowValue *v, const char *to,
                       uint32_t arg, Scope s, Buf *out)
{
    buf_printf(out, is_max(w, v) ? "%s = max_f32(%s, " : "%s = %s + (", to, to);
    print_name(out, arg, s);
    buf_puts(out, ");\n");
}

/* Sums of a column lie densely over its dimensions. */
static void print_column(Printer *w, const RowValue *v, uint32_t i,
                         Buf *out_name)
{
    Strides st = strides_dense(w->p->m, v->id);

    buf_printf(out_name, "sum%u[", i);
    print_index(w, out_name, v->id, &st);
    buf_puts(out_name, "]");
}

/* Whether reduction v takes in whole rows: a number per row comes first. */
static bool sums_rows(const Printer *w, const RowValue *v)
{
    const RowValue *arg = &w->p->values.v[row_operand(w->p, v, 0)];

    return (arg->dims & w->p->inner) && !(v->dims & w->p->inner);
}

/* A reduction inside the loop of its operand's phase. */
static void reduce_in_loop(Printer *w, uint32_t i, Buf *tail)
{
    const RowValue *v = &w->p->values.v[i];
    uint32_t arg = row_operand(w->p, v, 0);
    Buf to = {0};

    print_value(w, arg);
    if (sums_rows(w, v))
        buf_printf(&to, "%s%u", v->reduce == REDUCE_ROW ? "v" : "row", i);
    else
        print_column(w, v, i, &to);
    buf_puts(tail, scope_indent(w, IN_LOOP));
    print_guard(w, w->p->values.v[arg].dims,
                w->p->inner | (sums_rows(w, v) ? 0 : w->p->outer), tail);
    print_join(w, v, to.s, arg, IN_LOOP, tail);
    buf_free(&to);
}

static void declare_total(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];

    buf_printf(&w->row, "%sfloat %s%u = %s;\n", scope_indent(w, IN_ROW),
               v->reduce == REDUCE_ROW ? "v" : "row", i,
               is_max(w, v) ? "-INF" : "0.0f");
}

/* After the loop: the total of the row, and on to the column if it has one. */
static void finish_total(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];
    const char *kind = is_max(w, v) ? "max" : "sum";
    const char *indent = scope_indent(w, IN_ROW);
    Buf to = {0};

    if (v->reduce == REDUCE_ROW) {
        buf_printf(&w->row, "%sv%u = row_%s(v%u);\n", indent, i, kind, i);
        w->printed[i] |= IN_ROW;
        return;
    }
    print_column(w, v, i, &to);
    buf_printf(&w->row, "%srow%u = row_%s(row%u);\n%s", indent, i, kind, i,
               indent);
    print_guard(w, w->p->values.v[row_operand(w->p, v, 0)].dims, w->p->outer,
                &w->row);
    buf_printf(&w->row, is_max(w, v) ? "ONCE %s = max_f32(%s, row%u);\n"
                                     : "ONCE %s = %s + row%u;\n",
               to.s, to.s, i);
    buf_free(&to);
}

/* A column reduction of numbers of the row. */
static void reduce_row_value(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];
    uint32_t arg = row_operand(w->p, v, 0);
    const RowValue *x = &w->p->values.v[arg];
    Buf to = {0};

    print_value(w, arg);
    print_column(w, v, i, &to);
    buf_puts(&w->row, scope_indent(w, IN_ROW));
    print_guard(w, x->dims, w->p->outer, &w->row);
    buf_puts(&w->row, "ONCE ");
    print_join(w, v, to.s, arg, scope_of(w, x), &w->row);
    buf_free(&to);
}

/* ---- one phase ------------------------------------------------------------------------- */

/* Reductions whose operand belongs to the current phase and is an element
 * (or, with `of_row`, a number of the row). */
static bool reduces_now(const Printer *w, uint32_t i, bool of_row)
{
    const RowValue *v = &w->p->values.v[i], *arg;

    if (v->reduce != REDUCE_ROW && v->reduce != REDUCE_COLUMN)
        return false;
    arg = &w->p->values.v[row_operand(w->p, v, 0)];
    return arg->phase == w->phase && of_row == !(arg->dims & w->p->inner);
}

static bool stores_now(const Printer *w, const RowSink *sink, bool of_row)
{
    const RowValue *v = &w->p->values.v[sink->value];

    return !v->late && v->phase == w->phase &&
           of_row == !(v->dims & w->p->inner);
}

/* Statements of the loop; returns whether there are any. */
static bool print_body(Printer *w)
{
    Buf tail = {0};
    bool any;

    for (uint32_t i = 0; i < w->p->values.n; i++)
        if (reduces_now(w, i, false))
            reduce_in_loop(w, i, &tail);
    for (uint32_t i = 0; i < w->p->sinks.n; i++)
        if (stores_now(w, &w->p->sinks.v[i], false)) {
            print_value(w, w->p->sinks.v[i].value);
            print_store(w, &w->p->sinks.v[i], IN_LOOP, &tail);
        }
    any = tail.len > 0;
    buf_puts(&w->loop, buf_str(&tail));
    buf_free(&tail);
    return any;
}

/* The next index after `from` at which a rotation changes sides. */
static int64_t stretch_end(const Printer *w, int64_t from, int64_t size)
{
    int64_t end = size;

    for (uint32_t i = 0; i < w->p->values.n; i++) {
        const RowValue *v = &w->p->values.v[i];
        if (!v->def.i || w->p->m->nodes.v[v->def.i].op != OP_ROTATE)
            continue;
        int64_t rotary = rotary_of(w, v);
        if (from < rotary / 2)
            end = MC_MIN(end, rotary / 2);
        else if (from < rotary)
            end = MC_MIN(end, rotary);
    }
    return end;
}

static void print_stretch(Printer *w, int64_t from, int64_t to)
{
    const RowProgram *p = w->p;
    int fastest = row_fastest(p);

    w->seg_from = from;
    if (print_body(w)) {
        buf_puts(&w->row, scope_indent(w, IN_ROW));
        for (int i = 0; i < fastest; i++)
            if (p->inner & (1u << i))
                buf_printf(&w->row, "for (i64 %c = 0; %c < %lld; %c++) ",
                           p->dim[i], p->dim[i], (long long)p->size[i],
                           p->dim[i]);
        buf_printf(&w->row, "LANES(%c, %lld, %lld) {\n%s%s}\n",
                   p->dim[fastest], (long long)from, (long long)to, w->loop.s,
                   scope_indent(w, IN_ROW));
    }
    w->loop.len = 0;
    scopes_close(w, IN_LOOP | IN_SHIFT);
}

static void print_phase(Printer *w)
{
    const RowProgram *p = w->p;
    int fastest = row_fastest(p);
    int64_t size = fastest < 0 ? 0 : p->size[fastest];

    for (uint32_t i = 0; i < p->values.n; i++)
        if (reduces_now(w, i, false) && sums_rows(w, &p->values.v[i]))
            declare_total(w, i);
    for (int64_t from = 0, to; from < size; from = to) {
        to = stretch_end(w, from, size);
        print_stretch(w, from, to);
    }
    for (uint32_t i = 0; i < p->values.n; i++) {
        if (reduces_now(w, i, false) && sums_rows(w, &p->values.v[i]))
            finish_total(w, i);
        if (reduces_now(w, i, true))
            reduce_row_value(w, i);
    }
    for (uint32_t i = 0; i < p->sinks.n; i++)
        if (stores_now(w, &p->sinks.v[i], true)) {
            print_value(w, p->sinks.v[i].value);
            print_store(w, &p->sinks.v[i], IN_ROW, &w->row);
        }
}

/* ---- the first kernel -------------------------------------------------------------------- */

static void print_pointers(const Printer *w, Buf *out)
{
    const RowProgram *p = w->p;
    uint32_t params = p->m->funcs.v[p->func.i].params.n;

    for (uint32_t i = 0; i < params; i++) {
        const char *t =
            element_type(value_type(p->m, p->values.v[i].id)->dtype);
        buf_printf(out, "    const %s *p%u = (const %s *)PTR(%u);\n", t, i, t,
                   i);
    }
    for (uint32_t i = 0; i < p->sinks.n; i++) {
        const char *t = element_type(p->sinks.v[i].dtype);
        uint32_t ptr = p->sinks.v[i].ptr;
        buf_printf(out, "    %s *p%u = (%s *)PTR(%u);\n", t, ptr, t, ptr);
    }
    if (p->sums)
        buf_printf(out, "    float *work = (float *)PTR(%u);\n",
                   params + p->sinks.n);
}

/* "const i64 s = row / 4, b = row % 4;" */
static void print_outer_indices(const Printer *w, Buf *out)
{
    const RowProgram *p = w->p;
    int64_t step = p->rows;
    bool first = true;

    for (uint32_t i = 0; i < p->ndims; i++) {
        if (!(p->outer & (1u << i)))
            continue;
        step /= p->size[i];
        buf_printf(out, first ? "const i64 %c = row" : ", %c = row", p->dim[i]);
        if (step > 1)
            buf_printf(out, " / %lld", (long long)step);
        if (!first)
            buf_printf(out, " %% %lld", (long long)p->size[i]);
        first = false;
    }
    buf_puts(out, ";\n");
}

static void print_column_starts(const Printer *w, Buf *out)
{
    const RowProgram *p = w->p;

    for (uint32_t i = 0; i < p->values.n; i++) {
        const RowValue *v = &p->values.v[i];
        if (v->reduce != REDUCE_COLUMN)
            continue;
        buf_printf(out,
                   "        float *sum%u = work + part * %lld + %lld;\n"
                   "        LANES(i, 0, %lld) sum%u[i] = %s;\n",
                   i, (long long)p->sums, (long long)v->sum_at,
                   (long long)row_elems(p, v->dims), i,
                   is_max(w, v) ? "-INF" : "0.0f");
    }
    buf_puts(out, "        TEAM_SYNC;\n");
}

static void print_rows(Printer *w, Buf *out)
{
    const RowProgram *p = w->p;

    for (w->phase = 0; w->phase < p->phases; w->phase++)
        print_phase(w);
    buf_puts(out, buf_str(&w->head));
    if (p->sums) {
        buf_printf(out, "    PARTS(part, %lld) {\n", (long long)p->parts);
        print_column_starts(w, out);
        buf_printf(out, "        ROWS_OF(row, part, %lld, %lld) {\n",
                   (long long)p->parts, (long long)p->rows);
    } else {
        buf_printf(out, "    ROWS(row, %lld) {\n", (long long)p->rows);
    }
    if (p->outer) {
        buf_puts(out, scope_indent(w, IN_ROW));
        print_outer_indices(w, out);
    }
    buf_puts(out, buf_str(&w->row));
    buf_puts(out, p->sums ? "        }\n    }\n" : "    }\n");
}

/* Rows of CUDA belong to a warp if they are short, else to a block. */
static void print_open(const Printer *w, const char *name, const char *suffix,
                       Buf *out)
{
    bool wide = row_elems(w->p, w->p->inner) > 1024;

    buf_printf(out, "KERNEL(%s%s)\n{\n", name, suffix);
    buf_printf(out, "    enum { TEAM = %s };\n", wide ? "CUDA_BLOCK" : "WARP");
    print_pointers(w, out);
}

/* ---- the second kernel ----------------------------------------------------------------------- */

/* The column reductions that late value i is made of. */
static void columns_of(const RowProgram *p, uint32_t i, bool *out)
{
    const RowValue *v = &p->values.v[i];

    if (v->reduce == REDUCE_COLUMN) {
        out[i] = true;
        return;
    }
    for (uint32_t k = 0; v->def.i && k < p->m->nodes.v[v->def.i].nargs; k++)
        columns_of(p, row_operand(p, v, k), out);
}

/* "const i64 g = at / 64, d = at % 64;" */
static void print_late_indices(const Printer *w, DimSet dims, Buf *out)
{
    const RowProgram *p = w->p;
    int64_t step = row_elems(p, dims), all = step;

    for (uint32_t i = 0; i < p->ndims; i++) {
        if (!(dims & (1u << i)))
            continue;
        step /= p->size[i];
        buf_printf(out, "            const i64 %c = at", p->dim[i]);
        if (step > 1)
            buf_printf(out, " / %lld", (long long)step);
        if (step * p->size[i] < all)
            buf_printf(out, " %% %lld", (long long)p->size[i]);
        buf_puts(out, ";\n");
    }
}

/* Sums of value i for the block at `at0`; a number is summed for each. */
static void print_late_sum(Printer *w, uint32_t i, DimSet dims, Buf *out)
{
    const RowProgram *p = w->p;
    const RowValue *v = &p->values.v[i];
    const char *kind = is_max(w, v) ? "max" : "sum";

    if (v->dims == dims)
        buf_printf(out,
                   "        float all%u[LATE];\n"
                   "        %s_parts(all%u, work + %lld + at0, %lld, %lld, "
                   "count);\n",
                   i, kind, i, (long long)v->sum_at, (long long)p->sums,
                   (long long)p->parts);
    else
        buf_printf(out,
                   "        float all%u[1];\n"
                   "        %s_parts(all%u, work + %lld, %lld, %lld, 1);\n",
                   i, kind, i, (long long)v->sum_at, (long long)p->sums,
                   (long long)p->parts);
    buf_printf(&w->loop, "            const float v%u = all%u[%s];\n", i, i,
               v->dims == dims ? "j" : "0");
    w->printed[i] |= IN_LOOP;
}

static void print_late_sink(Printer *w, const RowSink *sink, Buf *out)
{
    const RowProgram *p = w->p;
    DimSet dims = p->values.v[sink->value].dims;
    Arena *a = arena_new();
    bool *columns = arena_array(a, bool, p->values.n);
    long long n = row_elems(p, dims);
    Buf tail = {0};

    columns_of(p, sink->value, columns);
    buf_printf(out,
               "    BLOCKS(at0, %lld) {\n"
               "        const i64 count = %lld - at0 < LATE ? %lld - at0 : "
               "LATE;\n",
               n, n, n);
    for (uint32_t i = 0; i < p->values.n; i++)
        if (columns[i])
            print_late_sum(w, i, dims, out);
    print_value(w, sink->value);
    print_store(w, sink, IN_LOOP, &tail);
    buf_puts(out, "        for (i64 j = 0; j < count; j++) {\n"
                  "            const i64 at = at0 + j;\n");
    print_late_indices(w, dims, out);
    buf_printf(out, "%s%s            (void)at;\n        }\n    }\n", w->loop.s,
               tail.s);
    w->loop.len = 0;
    scopes_close(w, IN_LOOP);
    buf_free(&tail);
    arena_free(a);
}

static void print_second(Printer *w, Buf *out)
{
    w->late = true;
    scopes_close(w, IN_HEAD | IN_ROW | IN_LOOP);
    for (uint32_t i = 0; i < w->p->sinks.n; i++)
        if (w->p->values.v[w->p->sinks.v[i].value].late)
            print_late_sink(w, &w->p->sinks.v[i], out);
}

/* ---- public -------------------------------------------------------------------------------------- */

static void print_comment(const RowProgram *p, Buf *out)
{
    Buf ir = {0};

    func_print(p->m, p->func, &ir);
    buf_printf(out, "/*\n%s*/\n", buf_str(&ir));
    buf_free(&ir);
}

void row_print(const Module *m, FuncId f, const char *name,
               const Strides *strides, Buf *out, KernelInfo *out_info)
{
    RowProgram p;
    Printer w = {.p = &p, .strides = strides, .info = out_info};
    Arena *a = arena_new();

    row_program_make(m, f, &p);
    mc_assert(!p.refusal);
    *out_info = (KernelInfo){.phases = p.sums ? 2 : 1,
                             .workspace = p.sums * p.parts * 4,
                             .nptr = m->funcs.v[f.i].params.n + p.sinks.n +
                                     (p.sums > 0)};
    w.printed = arena_array(a, uint8_t, p.values.n);
    print_comment(&p, out);
    print_open(&w, name, "", out);
    print_rows(&w, out);
    buf_puts(out, "}\n");
    if (p.sums) {
        print_open(&w, name, "_2", out);
        print_second(&w, out);
        buf_puts(out, "}\n");
    }
    buf_free(&w.head);
    buf_free(&w.row);
    buf_free(&w.loop);
    arena_free(a);
    row_program_free(&p);
}
