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
#include "passes/row.h"

int64_t row_local(const Module *m, ValueId v, char dim)
{
    LayoutId l = m->values.v[v.i].layout;

    return l.i ? layout_local(m, value_type(m, v), layout_of(m, l), dim)
               : type_size(value_type(m, v), dim);
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

static bool is_partition(const Node *n)
{
    return n->op == OP_PART || n->op == OP_JOIN;
}

/* Whether a value is only memory that parts are loaded from or stored into. */
static bool is_whole(const RowProgram *p, ValueId v)
{
    return p->partition && type_dim(value_type(p->m, v), 'j') >= 0;
}

static void dims_add(RowProgram *p, ValueId v)
{
    const Type *t = value_type(p->m, v);

    for (int i = 0; i < t->ndim; i++) {
        int64_t size = row_local(p->m, v, t->dim[i]);
        if (size == 1 || dim_find(p, t->dim[i]) >= 0 ||
            (p->partition && t->dim[i] == 'j'))
            continue;
        mc_assert(p->ndims < ROW_MAX_DIMS);
        p->dim[p->ndims] = t->dim[i];
        p->size[p->ndims++] = size;
    }
}

static void value_add(RowProgram *p, ValueId v, NodeId def, uint32_t param)
{
    p->partition |= is_partition(&p->m->nodes.v[def.i]);
    vec_push(&p->values, ((RowValue){.id = v, .def = def, .param = param}));
}

static void values_of_func(RowProgram *p, const Func *f)
{
    for (uint32_t i = 0; i < f->params.n; i++)
        value_add(p, f->params.v[i], (NodeId){0}, i);
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &p->m->nodes.v[f->body.v[i].i];
        for (uint32_t k = 0; k < n->nres; k++)
            value_add(p, node_res(n, k), f->body.v[i], 0);
    }
}

static bool value_known(const RowProgram *p, ValueId v)
{
    for (uint32_t i = 0; i < p->values.n; i++)
        if (p->values.v[i].id.i == v.i)
            return true;
    return false;
}

/* What the nodes make, and as parameters what else they read. */
static void values_of_nodes(RowProgram *p, const NodeId *node, uint32_t n)
{
    uint32_t params = 0;

    for (uint32_t i = 0; i < n; i++) {
        const Node *def = &p->m->nodes.v[node[i].i];
        for (uint32_t k = 0; k < def->nargs; k++)
            if (!value_known(p, node_arg(p->m, def, k)))
                value_add(p, node_arg(p->m, def, k), (NodeId){0}, params++);
        for (uint32_t k = 0; k < def->nres; k++)
            value_add(p, node_res(def, k), node[i], 0);
    }
}

/* The widest value's order is the order of all; it is how memory lies. */
static void dims_collect(RowProgram *p)
{
    ValueId widest = {0};

    for (uint32_t i = 0; i < p->values.n; i++) {
        ValueId v = p->values.v[i].id;
        if (!is_whole(p, v) &&
            (!widest.i ||
             value_type(p->m, v)->ndim > value_type(p->m, widest)->ndim))
            widest = v;
    }
    if (widest.i)
        dims_add(p, widest);
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

/* Pointer `ptr` is for a value; of a join, for each operand at its place. */
static void sinks_add(RowProgram *p, ValueId v, RowSink sink)
{
    const Node *n = &p->m->nodes.v[p->m->values.v[v.i].def.i];

    sink.whole = v;
    sink.value = row_value(p, v);
    if (n->op != OP_JOIN) {
        vec_push(&p->sinks, sink);
        return;
    }
    for (uint32_t i = 0; i < n->nargs; i++) {
        sink.value = row_value(p, node_arg(p->m, n, i));
        sink.at = join_span(p->m, n, i);
        vec_push(&p->sinks, sink);
    }
}

static void sinks_collect(RowProgram *p, const Func *f)
{
    RowSink sink = {.ptr = f->params.n};

    for (uint32_t i = 0; i < f->results.n; i++, sink.ptr++) {
        sink.dtype = value_type(p->m, f->results.v[i])->dtype;
        sinks_add(p, f->results.v[i], sink);
    }
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &p->m->nodes.v[f->body.v[i].i];
        if (n->op != OP_ACCUM)
            continue;
        TensorId t = attr_tensor(p->m, n->attrs, AK_TENSOR);
        int64_t field = attr_int(p->m, n->attrs, AK_FIELD, FIELD_GRAD);
        sink.dtype = p->m->tensors.v[t.i].field_dtype[field];
        sink.accumulate = true;
        sinks_add(p, node_arg(p->m, n, 0), sink);
        sink.ptr++;
    }
    p->ptrs = sink.ptr;
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

/* Parts come from memory and go there; nothing else meets j. */
static const char *partition_refusal(const RowProgram *p, const RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];

    for (uint32_t k = 0; p->partition && k < n->nargs; k++) {
        const RowValue *arg = &p->values.v[row_operand(p, v, k)];
        if (is_whole(p, arg->id) && (n->op != OP_PART || arg->def.i))
            return "a part of what is not in memory";
    }
    if (is_whole(p, v->id) && n->op != OP_JOIN)
        return "parts and the whole in one program";
    return n->op == OP_JOIN && v->late ? "a join of what was reduced over rows"
                                       : NULL;
}

static const char *value_refusal(const RowProgram *p, const RowValue *v)
{
    const Node *n = &p->m->nodes.v[v->def.i];
    const char *partition = partition_refusal(p, v);

    if (!(op_info[n->op].flags & OPF_ROW))
        return "an op that is no part of row programs";
    if (partition)
        return partition;
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

/* A letter has one size, wherever it is more than one. */
static bool sizes_agree(const RowProgram *p, ValueId v)
{
    for (uint32_t d = 0; d < p->ndims; d++) {
        int64_t size = row_local(p->m, v, p->dim[d]);
        if (size > 1 && size != p->size[d])
            return false;
    }
    return true;
}

static const char *program_refusal(const RowProgram *p)
{
    const char *why = NULL;

    for (uint32_t i = 0; i < p->values.n && !why; i++)
        if (!sizes_agree(p, p->values.v[i].id))
            why = "a dimension of two sizes";
        else if (p->values.v[i].def.i)
            why = value_refusal(p, &p->values.v[i]);
    return why;
}

/* What is accumulated is made here, or j is a dimension like others. */
static const char *accum_refusal(const RowProgram *p, const NodeId *node,
                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const Node *accum = &p->m->nodes.v[node[i].i];
        ValueId v;
        if (accum->op != OP_ACCUM)
            continue;
        v = node_arg(p->m, accum, 0);
        if (is_whole(p, v) && !p->values.v[row_value(p, v)].def.i)
            return "parts and the whole in one program";
    }
    return NULL;
}

static void program_analyse(RowProgram *p, const NodeId *node, uint32_t n)
{
    dims_collect(p);
    rows_choose(p);
    phases_assign(p);
    p->refusal = program_refusal(p);
    if (!p->refusal)
        p->refusal = accum_refusal(p, node, n);
}

void row_program_make(const Module *m, FuncId f, RowProgram *out)
{
    const Func *func = &m->funcs.v[f.i];

    *out = (RowProgram){.m = m, .func = f};
    values_of_func(out, func);
    program_analyse(out, func->body.v, func->body.n);
    sinks_collect(out, func);
}

void row_program_free(RowProgram *p)
{
    vec_free(&p->values);
    vec_free(&p->sinks);
}

const char *row_nodes_refusal(const Module *m, const NodeId *node, uint32_t n)
{
    RowProgram p = {.m = m};

    for (uint32_t i = 0; i < n; i++)
        if (!(op_info[m->nodes.v[node[i].i].op].flags & OPF_ROW))
            return "an op that is no part of row programs";
    values_of_nodes(&p, node, n);
    program_analyse(&p, node, n);
    row_program_free(&p);
    return p.refusal;
}

/* ---- letters ------------------------------------------------------------ */

uint32_t row_letters(const Module *m, ValueId v)
{
    const Type *t = value_type(m, v);
    uint32_t letters = 0;

    for (int d = 0; d < t->ndim; d++)
        if (row_local(m, v, t->dim[d]) > 1)
            letters |= 1u << (t->dim[d] - 'a');
    return letters;
}

/* j is not gone through where parts are taken or joined. */
uint32_t row_node_letters(const Module *m, const Node *n)
{
    uint32_t letters = 0;

    for (uint32_t i = 0; i < n->nargs; i++)
        letters |= row_letters(m, node_arg(m, n, i));
    for (uint32_t i = 0; i < n->nres; i++)
        letters |= row_letters(m, node_res(n, i));
    return is_partition(n) ? letters & ~(1u << ('j' - 'a')) : letters;
}
