/* row.c - what codegen asks of a row program before it is printed: whether it
 * can be, how much workspace it needs, and what may lie where.
 *
 * passes/row.h takes programs apart; the printers follow it.
 */
#include "codegen/row_priv.h"

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
    ok = !(p.partition && type_dim(x, 'j') >= 0) && x->ndim == y->ndim &&
         memcmp(x->dim, y->dim, x->ndim) == 0 &&
         m->values.v[from.i].layout.i == m->values.v[to.i].layout.i &&
         dtype_bytes(x->dtype) == dtype_bytes(y->dtype) && !v->late &&
         v->dims == (p.inner | p.outer) && !reads_after(&p, arg, v->phase);
    row_program_free(&p);
    return ok;
}
