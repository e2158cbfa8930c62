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
 *                 ADD_TO(v3, v0 * v0);
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
#include "codegen/row_text.h"

/* ---- reductions --------------------------------------------------------- */

/* `to += x`, or the maximum of both; `to` is the total of a row if `total`. */
static void print_join(Printer *w, const RowValue *v, const char *to,
                       bool total, uint32_t arg, Buf *out)
{
    if (row_is_max(w, v))
        buf_printf(out, "%s = %s(%s, ", to, total ? "top_of" : "max_f32", to);
    else
        buf_printf(out, "ADD_TO(%s, ", to);
    row_print_name(w, out, arg, IN_LOOP);
    buf_puts(out, ");\n");
}

/* Sums of a column lie densely over its dimensions. */
static void print_column(Printer *w, const RowValue *v, uint32_t i,
                         Buf *out_name)
{
    Strides st = strides_dense(w->p->m, v->id);

    buf_printf(out_name, "sum%u[", row_number(w->p, i));
    row_print_index(w, out_name, v->id, &st);
    buf_puts(out_name, "]");
}

/* Whether reduction v takes in whole rows: a number per row comes first. */
static bool sums_rows(const Printer *w, const RowValue *v)
{
    const RowValue *arg = &w->p->values.v[row_operand(w->p, v, 0)];

    return (arg->dims & w->p->inner) && !(v->dims & w->p->inner);
}

/* The variable that gathers a row: the value itself, or a step to a column. */
static void print_total(const Printer *w, uint32_t i, Buf *out)
{
    const RowValue *v = &w->p->values.v[i];

    if (row_is_max(w, v))
        buf_printf(out, "top%u", row_number(w->p, i));
    else if (v->reduce == REDUCE_ROW)
        row_print_name(w, out, i, IN_ROW);
    else
        buf_printf(out, "row%u", row_number(w->p, i));
}

/* A reduction inside the loop of its operand's phase. */
static void reduce_in_loop(Printer *w, uint32_t i, Buf *tail)
{
    const RowValue *v = &w->p->values.v[i];
    uint32_t arg = row_operand(w->p, v, 0);
    Buf to = {0};

    row_print_value(w, arg);
    if (sums_rows(w, v))
        print_total(w, i, &to);
    else
        print_column(w, v, i, &to);
    buf_puts(tail, row_indent(w, IN_LOOP));
    row_print_guard(w, w->p->values.v[arg].dims,
                    w->p->inner | (sums_rows(w, v) ? 0 : w->p->outer), tail);
    print_join(w, v, to.s, sums_rows(w, v), arg, tail);
    buf_free(&to);
}

static void declare_total(Printer *w, uint32_t i)
{
    bool max = row_is_max(w, &w->p->values.v[i]);

    buf_printf(&w->row, "%s%s ", row_indent(w, IN_ROW), max ? "Top" : "float");
    print_total(w, i, &w->row);
    buf_printf(&w->row, " = %s;\n", max ? "TOP_NONE" : "0.0f");
}

/* The total of a row goes on to its column. */
static void add_to_column(Printer *w, uint32_t i, const char *total)
{
    const RowValue *v = &w->p->values.v[i];
    const RowValue *arg = &w->p->values.v[row_operand(w->p, v, 0)];
    Buf to = {0};

    print_column(w, v, i, &to);
    buf_puts(&w->row, row_indent(w, IN_ROW));
    row_print_guard(w, arg->dims, w->p->outer, &w->row);
    buf_printf(&w->row,
               row_is_max(w, v) ? "ONCE %s = max_f32(%s, %s);\n"
                                : "ONCE %s = %s + %s;\n",
               to.s, to.s, total);
    buf_free(&to);
}

/* Turns the order of a maximum into the value; `total` is its name after. */
static void finish_max(Printer *w, uint32_t i, Buf *total)
{
    Buf name = {0};

    if (w->p->values.v[i].reduce == REDUCE_ROW)
        row_print_name(w, &name, i, IN_ROW);
    else
        buf_printf(&name, "row%u", row_number(w->p, i));
    buf_printf(&w->row, "%sconst float %s = row_max(top_value(%s));\n",
               row_indent(w, IN_ROW), name.s, total->s);
    buf_free(total);
    *total = name;
}

/* After the loop: what all lanes gathered. */
static void finish_total(Printer *w, uint32_t i)
{
    const RowValue *v = &w->p->values.v[i];
    Buf total = {0};

    print_total(w, i, &total);
    if (row_is_max(w, v))
        finish_max(w, i, &total);
    else
        buf_printf(&w->row, "%s%s = row_sum(%s);\n", row_indent(w, IN_ROW),
                   total.s, total.s);
    if (v->reduce == REDUCE_ROW)
        w->printed[i] |= IN_ROW;
    else
        add_to_column(w, i, total.s);
    buf_free(&total);
}

/* A column reduction of numbers of the row. */
static void reduce_row_value(Printer *w, uint32_t i)
{
    uint32_t arg = row_operand(w->p, &w->p->values.v[i], 0);
    Buf name = {0};

    row_print_value(w, arg);
    row_print_name(w, &name, arg, row_scope(w, &w->p->values.v[arg]));
    add_to_column(w, i, name.s);
    buf_free(&name);
}

/* ---- one phase ---------------------------------------------------------- */

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
            row_print_value(w, w->p->sinks.v[i].value);
            row_print_store(w, &w->p->sinks.v[i], IN_LOOP, &tail);
        }
    any = tail.len > 0;
    buf_puts(&w->loop, buf_str(&tail));
    buf_free(&tail);
    return any;
}

/* Whether the loop of this phase computes a rotation. */
static bool rotates_now(const Printer *w)
{
    const RowProgram *p = w->p;
    bool any = false;

    for (uint32_t i = 0; i < p->values.n; i++)
        if (reduces_now(w, i, false))
            any |= p->values.v[row_operand(p, &p->values.v[i], 0)].rotated;
    for (uint32_t i = 0; i < p->sinks.n; i++)
        if (stores_now(w, &p->sinks.v[i], false))
            any |= p->values.v[p->sinks.v[i].value].rotated;
    return any;
}

/* The next index after `from` at which a rotation changes sides. */
static int64_t stretch_end(const Printer *w, int64_t from, int64_t size)
{
    int64_t end = size;

    if (!rotates_now(w))
        return end;
    for (uint32_t i = 0; i < w->p->values.n; i++) {
        const RowValue *v = &w->p->values.v[i];
        if (!v->def.i || w->p->m->nodes.v[v->def.i].op != OP_ROTATE)
            continue;
        int64_t rotary = row_rotary(w, v);
        if (from < rotary / 2)
            end = MC_MIN(end, rotary / 2);
        else if (from < rotary)
            end = MC_MIN(end, rotary);
    }
    return end;
}

/* The loop over what was printed; empties it. */
static void print_loop(Printer *w, const char *from, const char *to)
{
    const RowProgram *p = w->p;
    int fastest = row_fastest(p);

    buf_puts(&w->row, row_indent(w, IN_ROW));
    for (int i = 0; i < fastest; i++)
        if (p->inner & (1u << i))
            buf_printf(&w->row, "for (i64 %c = 0; %c < %lld; %c++) ", p->dim[i],
                       p->dim[i], (long long)p->size[i], p->dim[i]);
    buf_printf(&w->row, "LANES(%c, %s, %s) {\n%s%s}\n", p->dim[fastest], from,
               to, w->loop.s, row_indent(w, IN_ROW));
    w->loop.len = 0;
    row_scopes_close(w, IN_LOOP | IN_SHIFT);
}

/* Indices [from, to) of the fastest dimension.  What is inside a range and what
 * lies beyond it are two loops, in which the range is a constant. */
static void print_stretch(Printer *w, int64_t from, int64_t to)
{
    uint32_t range = row_range(w);
    Buf first = {0}, edge = {0}, last = {0};

    buf_printf(&first, "%lld", (long long)from);
    buf_printf(&last, "%lld", (long long)to);
    w->seg_from = from;
    w->beyond = false;
    if (!print_body(w)) {
        w->loop.len = 0;
        row_scopes_close(w, IN_LOOP | IN_SHIFT);
    } else if (range && w->printed[range] & IN_LOOP) {
        row_print_edge(w, range, &edge);
        print_loop(w, first.s, edge.s);
        w->beyond = true;
        print_body(w);
        print_loop(w, edge.s, last.s);
    } else {
        print_loop(w, first.s, last.s);
    }
    buf_free(&first);
    buf_free(&edge);
    buf_free(&last);
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
            row_print_value(w, p->sinks.v[i].value);
            row_print_store(w, &p->sinks.v[i], IN_ROW, &w->row);
        }
}

/* ---- the first kernel --------------------------------------------------- */

static void print_pointers(const Printer *w, Buf *out)
{
    const RowProgram *p = w->p;
    uint32_t params = p->m->funcs.v[p->func.i].params.n;

    for (uint32_t i = 0; i < params; i++) {
        const char *t =
            row_element_type(value_type(p->m, p->values.v[i].id)->dtype);
        buf_printf(out, "    const %s *p%u = (const %s *)PTR(%u);\n", t, i, t,
                   i);
    }
    for (uint32_t i = 0; i < p->sinks.n; i++) {
        const char *t = row_element_type(p->sinks.v[i].dtype);
        uint32_t ptr = p->sinks.v[i].ptr;
        if (i > 0 && p->sinks.v[i - 1].ptr == ptr)
            continue; /* a join's */
        buf_printf(out, "    %s *p%u = (%s *)PTR(%u);\n", t, ptr, t, ptr);
    }
    if (p->sums)
        buf_printf(out, "    float *work = (float *)PTR(%u);\n", p->ptrs);
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
        uint32_t number = row_number(p, i);
        if (v->reduce != REDUCE_COLUMN)
            continue;
        buf_printf(out,
                   "        float *sum%u = work + part * %lld + %lld;\n"
                   "        LANES(i, 0, %lld) sum%u[i] = %s;\n",
                   number, (long long)p->sums, (long long)v->sum_at,
                   (long long)row_elems(p, v->dims), number,
                   row_is_max(w, v) ? "-INF" : "0.0f");
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
        buf_puts(out, row_indent(w, IN_ROW));
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

    buf_printf(out, "KERNEL(%s%s)\n{\n    EXACT\n", name, suffix);
    buf_printf(out, "    enum { TEAM = %s };\n", wide ? "CUDA_BLOCK" : "WARP");
    print_pointers(w, out);
}

/* ---- public ------------------------------------------------------------- */

static void print_comment(const RowProgram *p, Buf *out)
{
    Buf ir = {0};

    func_print(p->m, p->func, &ir);
    buf_printf(out, "/*\n%s*/\n", buf_str(&ir));
    buf_free(&ir);
}

static bool has_dropout(const RowProgram *p)
{
    bool any = false;

    for (uint32_t i = 0; i < p->values.n; i++)
        any |= p->m->nodes.v[p->values.v[i].def.i].op == OP_DROPOUT;
    return any;
}

void row_print(const Module *m, FuncId f, const char *name,
               const Strides *strides, Buf *out, KernelInfo *out_info)
{
    RowProgram p;
    Printer w = {.p = &p, .strides = strides, .info = out_info};
    Arena *a = arena_new();
    bool draws;

    row_program_make(m, f, &p);
    draws = has_dropout(&p);
    mc_assert(!p.refusal);
    *out_info = (KernelInfo){.phases = p.sums ? 2 : 1,
                             .workspace = p.sums * p.parts * 4,
                             .nptr = p.ptrs + (p.sums > 0) + draws};
    if (draws)
        codegen_expand(codegen_text(TEXT_DRAWS), name, out);
    w.name = name;
    w.key_ptr = out_info->nptr - 1;
    w.printed = arena_array(a, uint8_t, p.values.n);
    print_comment(&p, out);
    print_open(&w, name, "", out);
    print_rows(&w, out);
    buf_puts(out, "}\n");
    if (p.sums) {
        print_open(&w, name, "_2", out);
        row_print_late(&w, out);
        buf_puts(out, "}\n");
    }
    buf_free(&w.head);
    buf_free(&w.row);
    buf_free(&w.loop);
    arena_free(a);
    row_program_free(&p);
}
