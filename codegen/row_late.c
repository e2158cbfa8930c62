/* row_late.c - the second kernel of a row program: column sums and after.
 *
 * The first kernel left the sums of each part of the rows in the workspace.
 * For every late value that is stored, a block of columns at a time: add the
 * parts in order, compute what depends on the sums, store.
 */
#include "codegen/row_text.h"

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
    const char *kind = row_is_max(w, v) ? "max" : "sum";
    uint32_t number = row_number(p, i);

    if (v->dims == dims)
        buf_printf(out,
                   "        float all%u[LATE];\n"
                   "        %s_parts(all%u, work + %lld + at0, %lld, %lld, "
                   "count);\n",
                   number, kind, number, (long long)v->sum_at,
                   (long long)p->sums, (long long)p->parts);
    else
        buf_printf(out,
                   "        float all%u[1];\n"
                   "        %s_parts(all%u, work + %lld, %lld, %lld, 1);\n",
                   number, kind, number, (long long)v->sum_at,
                   (long long)p->sums, (long long)p->parts);
    buf_puts(&w->loop, "            const float ");
    row_print_name(w, &w->loop, i, IN_LOOP);
    buf_printf(&w->loop, " = all%u[%s];\n", number,
               v->dims == dims ? "nth" : "0");
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
    row_print_value(w, sink->value);
    row_print_store(w, sink, IN_LOOP, &tail);
    buf_puts(out, "        for (i64 nth = 0; nth < count; nth++) {\n"
                  "            const i64 at = at0 + nth;\n");
    print_late_indices(w, dims, out);
    buf_printf(out, "%s%s            (void)at;\n        }\n    }\n", w->loop.s,
               tail.s);
    w->loop.len = 0;
    row_scopes_close(w, IN_LOOP);
    buf_free(&tail);
    arena_free(a);
}

void row_print_late(Printer *w, Buf *out)
{
    w->late = true;
    row_scopes_close(w, IN_HEAD | IN_ROW | IN_LOOP);
    for (uint32_t i = 0; i < w->p->sinks.n; i++)
        if (w->p->values.v[w->p->sinks.v[i].value].late)
            print_late_sink(w, &w->p->sinks.v[i], out);
}
