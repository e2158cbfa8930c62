/* eval_big.c - eval cells of contractions and embeddings.
 *
 * A contraction walks the result; for the contracted dimensions the offsets
 * into both operands are the same for every element of the result and are
 * listed once.
 */
#include "ir/eval_priv.h"

#include <stdlib.h>

/* ---- contractions ---- */

/* A walk over the dimensions of x and y that out lacks; arrays x, y. */
static Walk contracted_walk(const EvalArray *x, const EvalArray *y,
                            const EvalArray *out)
{
    char dim[WALK_DIMS];
    int64_t size[WALK_DIMS];
    int n = 0;

    for (int d = 0; d < x->ndim; d++)
        if (array_dim(out, x->dim[d]) < 0) {
            dim[n] = x->dim[d];
            size[n++] = x->size[d];
        }
    for (int d = 0; d < y->ndim; d++)
        if (array_dim(out, y->dim[d]) < 0 && array_dim(x, y->dim[d]) < 0) {
            dim[n] = y->dim[d];
            size[n++] = y->size[d];
        }
    Walk w = walk_dims(dim, size, n);

    walk_add(&w, x);
    walk_add(&w, y);
    return w;
}

/* out += x · y, contracted over the letters that out lacks. */
static void contract(EvalKind kind, const EvalArray *x, const EvalArray *y,
                     EvalArray *out)
{
    Walk inner = contracted_walk(x, y, out);
    int64_t n = 1, k = 0;

    for (int d = 0; d < inner.ndim; d++)
        n *= inner.size[d];
    int64_t *xi = eval_scratch(n, sizeof *xi);
    int64_t *yi = eval_scratch(n, sizeof *yi);

    for (; inner.more; walk_next(&inner), k++) {
        xi[k] = inner.off[0];
        yi[k] = inner.off[1];
    }
    Walk w = walk_of(out);

    walk_add(&w, x);
    walk_add(&w, y);
    walk_rows(&w);
    for (; w.more; walk_next(&w)) {
        const EvalNum *p = x->at + w.off[1], *q = y->at + w.off[2];
        EvalNum *sum = out->at + w.off[0];

        for (int64_t i = 0; i < w.run; i++, sum += w.step[0]) {
            *sum = num_add(kind, *sum, num_dot(kind, k, p, xi, q, yi));
            p += w.step[1];
            q += w.step[2];
        }
    }
    free(xi);
    free(yi);
}

/* Shared letters must have equal local sizes. */
static bool agree(EvalStep *s, const EvalArray *x, const EvalArray *y)
{
    for (int d = 0; d < x->ndim; d++)
        if (array_dim(y, x->dim[d]) >= 0 &&
            array_size(y, x->dim[d]) != x->size[d]) {
            step_fault(s, "MC0750", "operands disagree on %c: %lld and %lld",
                       x->dim[d], (long long)x->size[d],
                       (long long)array_size(y, x->dim[d]));
            return false;
        }
    return true;
}

static void product(EvalStep *s, const EvalArray *x, const EvalArray *y,
                    EvalArray *out)
{
    if (agree(s, x, y) && agree(s, x, out) && agree(s, y, out))
        contract(s->e->opt.kind, x, y, out);
}

void eval_dot(EvalStep *s)
{
    product(s, step_arg(s, 0), step_arg(s, 1), step_out(s, 0));
}

void eval_dots(EvalStep *s)
{
    for (uint32_t i = 0; i < s->node->nres; i++) {
        EvalArray *out = step_out(s, i);

        product(s, step_arg(s, 0), step_arg(s, i + 1), out);
        eval_epilogue(s, i, out);
    }
}

void eval_dots_sum(EvalStep *s)
{
    uint32_t n = s->node->nargs / 2;
    EvalArray *out = step_out(s, 0);

    for (uint32_t i = 0; i < n; i++)
        product(s, step_arg(s, i), step_arg(s, n + i), out);
}

void eval_dots_accum(EvalStep *s)
{
    const Module *m = s->e->m;
    const Attr *tensors = attr_find(m, s->node->attrs, AK_TENSORS);
    uint32_t n = s->node->nargs - 1u;

    for (uint32_t i = 0; i < n && s->outcome == STEP_DONE; i++) {
        TensorId t = {(uint32_t)m->list.v[tensors->as.list.first + i]};
        const Tensor *tensor = tensor_of(s->e->m, t);
        EvalArray shape =
            eval_shape(s->e, tensor->type, tensor->flat.i
                                               ? tensor->use
                                               : tensor->rest[FIELD_GRAD]);
        EvalValue *sum = value_alloc(&shape);

        product(s, step_arg(s, i), step_arg(s, n), &sum->a);
        state_add(s, t, FIELD_GRAD,
                  tensor->per_layer ? (uint32_t)s->frame->layer : 0, sum);
        value_drop(sum);
    }
}

/* ---- embeddings ---- */

/* The rows of the table that this rank holds; others contribute zero. */
void eval_embed(EvalStep *s)
{
    const EvalArray *tokens = step_arg(s, 0), *table = step_arg(s, 1);
    int64_t start = step_start(s, node_arg(s->e->m, s->node, 1), 'v');
    int64_t rows = array_size(table, 'v'), stride = array_stride(table, 'v');
    EvalArray *out = step_out(s, 0);
    Walk w = walk_of(out);

    walk_add(&w, tokens);
    walk_add(&w, table);
    for (; w.more; walk_next(&w)) {
        int64_t row = num_index(s->e->opt.kind, tokens->at[w.off[1]]) - start;

        if (row >= 0 && row < rows)
            out->at[w.off[0]] = table->at[w.off[2] + row * stride];
    }
}

void eval_embed_grad(EvalStep *s)
{
    const EvalArray *tokens = step_arg(s, 0), *dy = step_arg(s, 1);
    int64_t start = step_start(s, node_res(s->node, 0), 'v');
    EvalArray *out = step_out(s, 0);
    int64_t rows = array_size(out, 'v'), stride = array_stride(out, 'v');
    Walk w = walk_of(dy);

    walk_add(&w, tokens);
    walk_add(&w, out);
    for (; w.more; walk_next(&w)) {
        int64_t row = num_index(s->e->opt.kind, tokens->at[w.off[1]]) - start;
        EvalNum *sum = &out->at[w.off[2] + row * stride];

        if (row >= 0 && row < rows)
            *sum = num_add(s->e->opt.kind, *sum, dy->at[w.off[0]]);
    }
}

/* Where in a table of positions the rows of s lie. */
typedef struct {
    const EvalStep *s;
    int64_t start, size, stride;
} RowPlace;

static RowPlace row_place(const EvalStep *s, ValueId rows,
                          const EvalArray *table)
{
    return (RowPlace){s, step_start(s, rows, 's'),
                      type_size(value_type(s->e->m, rows), 's'),
                      array_stride(table, 'p')};
}

static int64_t row_offset(const RowPlace *r, int64_t i)
{
    return r->stride * attr_position(r->s->e->m, r->s->node->attrs, r->size,
                                     r->start + i);
}

void eval_rows(EvalStep *s)
{
    const EvalArray *table = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    RowPlace rows = row_place(s, node_res(s->node, 0), table);
    Walk w = walk_of(out);

    walk_add(&w, table);
    for (; w.more; walk_next(&w))
        out->at[w.off[0]] =
            table->at[w.off[1] + row_offset(&rows, walk_index(&w, 's'))];
}

void eval_rows_grad(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    RowPlace rows = row_place(s, node_arg(s->e->m, s->node, 0), out);
    Walk w = walk_of(x);

    walk_add(&w, out);
    for (; w.more; walk_next(&w))
        out->at[w.off[1] + row_offset(&rows, walk_index(&w, 's'))] =
            x->at[w.off[0]];
}
