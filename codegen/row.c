/* row.c - takes a row program apart: which dimensions make rows, and when
 * each value exists.
 *
 *     x[s,b,h]  w[h]               rows: s, b      within a row: h
 *     q = mul x x                  phase 0, element
 *     t = sum q -> [s,b]           ends phase 0: a reduction of the row
 *     r = rsqrt t                  once per row
 *     y = mul x r                  phase 1, element (x is read again)
 *     d = sum y -> [h]             over rows: a column reduction, late
 *
 * A reduction must lie within a row if its result meets the reduced dimension
 * again; the others lie within a row if they can.  What depends on a column
 * reduction is late: it is computed by the second kernel, after all rows.
 */
#include "codegen/row_priv.h"

int64_t row_local(const Module *m, ValueId v, char dim)
{
    return layout_local(m, value_type(m, v),
                        layout_of(m, m->values.v[v.i].layout), dim);
}

uint32_t row_value(const RowProgram *p, ValueId v)
{
    for (uint32_t i = 0; i < p->values.n; i++)
        if (p->values.v[i].id.i == v.i)
            return i;
    mc_bug(__FILE__, __LINE__, "value %u is not of this row program", v.i);
}

uint32_t row_operand(const RowProgram *p, const RowValue *v, uint32_t i)
{
    const Node *n = &p->m->nodes.v[v->def.i];

    return row_value(p, node_arg(p->m, n, i));
}

int64_t row_elems(const RowProgram *p, DimSet set)
{
    int64_t n = 1;

    for (uint32_t i = 0; i < p->ndims; i++)
        if (set & (1u << i))
            n *= p->size[i];
    return n;
}

int row_fastest(const RowProgram *p)
{
    for (int i = (int)p->ndims - 1; i >= 0; i--)
        if (p->inner & (1u << i))
            return i;
    return -1;
}

/* ---- dimensions and values ---------------------------------------------- */

static int dim_find(const RowProgram *p, char dim)
{
    for (uint32_t i = 0; i < p->ndims; i++)
        if (p->dim[i] == dim)
            return (int)i;
    return -1;
}

static void dims_add(RowProgram *p, ValueId v)
{
    const Type *t = value_type(p->m, v);

    for (int i = 0; i < t->ndim; i++) {
        int64_t size = row_local(p->m, v, t->dim[i]);
        if (size == 1 || dim_find(p, t->dim[i]) >= 0)
            continue;
        mc_assert(p->ndims < ROW_MAX_DIMS);
        p->dim[p->ndims] = t->dim[i];
        p->size[p->ndims++] = size;
    }
}

static void value_add(RowProgram *p, ValueId v, NodeId def, uint32_t param)
{
    vec_push(&p->values, ((RowValue){.id = v, .def = def, .param = param}));
}

static void values_collect(RowProgram *p, const Func *f)
{
    for (uint32_t i = 0; i < f->params.n; i++)
        value_add(p, f->params.v[i], (NodeId){0}, i);
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &p->m->nodes.v[f->body.v[i].i];
        for (uint32_t k = 0; k < n->nres; k++)
            value_add(p, node_res(n, k), f->body.v[i], 0);
    }
}

/* The widest value's order is the order of all; it is how memory lies. */
static void dims_collect(RowProgram *p)
{
    uint32_t widest = 0;

    for (uint32_t i = 1; i < p->values.n; i++)
        if (value_type(p->m, p->values.v[i].id)->ndim >
            value_type(p->m, p->values.v[widest].id)->ndim)
            widest = i;
    dims_add(p, p->values.v[widest].id);
    for (uint32_t i = 0; i < p->values.n; i++)
        dims_add(p, p->values.v[i].id);
}

static DimSet dims_of(const RowProgram *p, ValueId v)
{
    const Type *t = value_type(p->m, v);
    DimSet set = 0;

    for (int i = 0; i < t->ndim; i++) {
        int d = dim_find(p, t->dim[i]);
        if (d >= 0 && row_local(p->m, v, t->dim[i]) > 1)
            set |= 1u << d;
    }
    return set;
}

static void sinks_collect(RowProgram *p, const Func *f)
{
    uint32_t ptr = f->params.n;

    for (uint32_t i = 0; i < f->results.n; i++)
        vec_push(&p->sinks,
                 ((RowSink){row_value(p, f->results.v[i]), ptr++,
                            value_type(p->m, f->results.v[i])->dtype, false}));
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &p->m->nodes.v[f->body.v[i].i];
        if (n->op != OP_ACCUM)
            continue;
        TensorId t = attr_tensor(p->m, n->attrs, AK_TENSOR);
        int64_t field = attr_int(p->m, n->attrs, AK_FIELD, FIELD_GRAD);
        vec_push(&p->sinks,
                 ((RowSink){row_value(p, node_arg(p->m, n, 0)), ptr++,
                            p->m->tensors.v[t.i].field_dtype[field], true}));
    }
}

/* ---- rows --------------------------------------------------------------- */

static bool is_reduction(const Node *n)
{
    return n->op == OP_SUM || n->op == OP_MAX;
}

static DimSet reduced_dims(const RowProgram *p, const RowValue *v)
{
    return p->values.v[row_operand(p, v, 0)].dims & ~v->dims;
}

/* Sets dims and removed of every value; returns the dimensions that must lie
 * within a row. */
static DimSet rows_require(RowProgram *p)
{
    DimSet within = 0;

    for (uint32_t i = 0; i < p->values.n; i++) {
        RowValue *v = &p->values.v[i];
        const Node *n = &p->m->nodes.v[v->def.i];

        v->dims = dims_of(p, v->id);
        for (uint32_t k = 0; v->def.i && k < n->nargs; k++)
            v->removed |= p->values.v[row_operand(p, v, k)].removed;
        within |= v->removed & v->dims;
        if (v->def.i && is_reduction(n))
            v->removed |= reduced_dims(p, v);
        if (v->def.i && n->op == OP_ROTATE && dim_find(p, 'd') >= 0)
            within |= 1u << dim_find(p, 'd');
    }
    return within;
}

static void rows_choose(RowProgram *p)
{
    DimSet all = (1u << p->ndims) - 1;

    p->inner = rows_require(p);
    if (!p->inner && p->ndims)
        p->inner = 1u << (p->ndims - 1);
    p->outer = all & ~p->inner;
    p->rows = row_elems(p, p->outer);
    p->parts = MC_MIN(p->rows, ROW_PARTS);
}

/* ---- phases ------------------------------------------------------------- */

static RowReduce reduce_kind(const RowProgram *p, const RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];
    DimSet reduced;

    if (!v->def.i || !is_reduction(n))
        return REDUCE_NOT;
    reduced = reduced_dims(p, v);
    if (!reduced)
        return REDUCE_NOTHING;
    return reduced & ~p->inner ? REDUCE_COLUMN : REDUCE_ROW;
}

static void phase_of_node(RowProgram *p, RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];

    v->rotated = n->op == OP_ROTATE;
    for (uint32_t k = 0; k < n->nargs; k++) {
        const RowValue *arg = &p->values.v[row_operand(p, v, k)];
        v->phase = MC_MAX(v->phase, arg->phase);
        v->late = v->late || arg->late;
        v->rotated = v->rotated || arg->rotated;
    }
    if (v->reduce == REDUCE_ROW) {
        v->phase++;
        v->rotated = false; /* its result is a number of the row */
    }
}

static void phases_assign(RowProgram *p)
{
    for (uint32_t i = 0; i < p->values.n; i++) {
        RowValue *v = &p->values.v[i];

        v->reduce = reduce_kind(p, v);
        if (v->def.i)
            phase_of_node(p, v);
        if (v->reduce == REDUCE_COLUMN) {
            v->late = true;
            v->sum_at = p->sums;
            p->sums += row_elems(p, v->dims);
        }
        p->phases = MC_MAX(p->phases, v->phase + 1);
    }
}

/* ---- what cannot be printed --------------------------------------------- */

static const char *late_refusal(const RowProgram *p, const RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];

    if (is_reduction(n) || n->op == OP_ROTATE)
        return "a reduction of what was reduced over rows";
    for (uint32_t k = 0; k < n->nargs; k++) {
        const RowValue *arg = &p->values.v[row_operand(p, v, k)];
        if (!arg->late && arg->phase)
            return "a column reduction meets a value of a row";
    }
    return NULL;
}

static const char *rotate_refusal(const RowProgram *p, const RowValue *v)
{
    int d = row_fastest(p);

    if (p->values.v[row_operand(p, v, 0)].rotated)
        return "a rotation of a rotation";
    if (d < 0 || p->dim[d] != 'd')
        return "a rotation along another dimension than the row's fastest";
    return NULL;
}

static const char *column_refusal(const RowProgram *p, const RowValue *v)
{
    int d = row_fastest(p);

    if (p->values.v[row_operand(p, v, 0)].late)
        return "a reduction of what was reduced over rows";
    if ((v->dims & p->inner) && (reduced_dims(p, v) & (1u << d)))
        return "a column reduction over a part of the row";
    return NULL;
}

static const char *value_refusal(const RowProgram *p, const RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];

    if (!(op_info[n->op].flags & OPF_ROW))
        return "an op that is no part of row programs";
    if (v->reduce == REDUCE_ROW && reduced_dims(p, v) != p->inner)
        return "reductions of a row over different dimensions";
    if (n->op == OP_ROTATE && v->dims)
        return rotate_refusal(p, v);
    if (v->late && v->reduce != REDUCE_COLUMN)
        return late_refusal(p, v);
    if (v->reduce == REDUCE_COLUMN)
        return column_refusal(p, v);
    return NULL;
}

static const char *program_refusal(const RowProgram *p)
{
    const char *why = NULL;

    for (uint32_t i = 0; i < p->values.n && !why; i++)
        if (p->values.v[i].def.i)
            why = value_refusal(p, &p->values.v[i]);
    return why;
}

void row_program_make(const Module *m, FuncId f, RowProgram *out)
{
    const Func *func = &m->funcs.v[f.i];

    *out = (RowProgram){.m = m, .func = f};
    values_collect(out, func);
    dims_collect(out);
    rows_choose(out);
    phases_assign(out);
    sinks_collect(out, func);
    out->refusal = program_refusal(out);
}

void row_program_free(RowProgram *p)
{
    vec_free(&p->values);
    vec_free(&p->sinks);
}

/* ---- public ------------------------------------------------------------- */

const char *row_refusal(const Module *m, FuncId f)
{
    RowProgram p;

    row_program_make(m, f, &p);
    row_program_free(&p);
    return p.refusal;
}

int64_t row_workspace(const Module *m, FuncId f)
{
    RowProgram p;

    row_program_make(m, f, &p);
    row_program_free(&p);
    return p.sums * p.parts * 4;
}

/* Whether computing `v` of phase `phase` reads parameter `param`: loads are
 * repeated in each phase, values of the row are kept. */
static bool reads(const RowProgram *p, uint32_t value, uint32_t param)
{
    const RowValue *v = &p->values.v[value];

    if (!v->def.i)
        return v->param == param;
    for (uint32_t k = 0; k < p->m->nodes.v[v->def.i].nargs; k++) {
        uint32_t arg = row_operand(p, v, k);
        RowReduce kind = p->values.v[arg].reduce;
        if (kind != REDUCE_ROW && kind != REDUCE_COLUMN && reads(p, arg, param))
            return true;
    }
    return false;
}

/* Whether anything reads `param` in a later phase than `phase`, at another
 * index, or in the second kernel. */
static bool reads_after(const RowProgram *p, uint32_t param, uint32_t phase)
{
    for (uint32_t i = 0; i < p->values.n; i++) {
        const RowValue *v = &p->values.v[i];
        const Node *n = &p->m->nodes.v[v->def.i];
        bool reduction = v->reduce == REDUCE_ROW || v->reduce == REDUCE_COLUMN;
        uint32_t when = v->phase - (v->reduce == REDUCE_ROW);

        if (!v->def.i || !reads(p, i, param))
            continue;
        if (n->op == OP_ROTATE || (v->late && !reduction))
            return true;
        if (reduction && when > phase)
            return true;
    }
    for (uint32_t i = 0; i < p->sinks.n; i++)
        if (reads(p, p->sinks.v[i].value, param) &&
            p->values.v[p->sinks.v[i].value].phase > phase)
            return true;
    return false;
}

bool row_in_place(const Module *m, FuncId f, uint32_t arg, uint32_t res)
{
    const Func *func = &m->funcs.v[f.i];
    ValueId from = func->params.v[arg], to = func->results.v[res];
    const Type *x = value_type(m, from), *y = value_type(m, to);
    const RowValue *v;
    RowProgram p;
    bool ok;

    row_program_make(m, f, &p);
    v = &p.values.v[row_value(&p, to)];
    ok = x->ndim == y->ndim && memcmp(x->dim, y->dim, x->ndim) == 0 &&
         m->values.v[from.i].layout.i == m->values.v[to.i].layout.i &&
         dtype_bytes(x->dtype) == dtype_bytes(y->dtype) && !v->late &&
         v->dims == (p.inner | p.outer) && !reads_after(&p, arg, v->phase);
    row_program_free(&p);
    return ok;
}
