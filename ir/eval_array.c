/* eval_array.c - dense arrays with named dimensions, and how to walk them.
 *
 * The one idea: dimensions are matched by letter, so a walk over some list of
 * dimensions gives each array a stride per dimension, 0 where the array lacks
 * it.  Broadcasting, reductions, contractions and transposes are then all the
 * same loop.
 */
#include "ir/eval_priv.h"

#include <stdlib.h>

/* ---- shapes ---- */

int array_dim(const EvalArray *a, char dim)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d] == dim)
            return d;
    return -1;
}

int64_t array_size(const EvalArray *a, char dim)
{
    int d = array_dim(a, dim);

    return d < 0 ? 1 : a->size[d];
}

int64_t array_elems(const EvalArray *a)
{
    int64_t n = 1;

    for (int d = 0; d < a->ndim; d++)
        n *= a->size[d];
    return n;
}

bool array_same_shape(const EvalArray *a, const EvalArray *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d] != b->dim[d] || a->size[d] != b->size[d])
            return false;
    return true;
}

EvalArray array_of_type(const Type *t)
{
    EvalArray a = {.ndim = t->ndim};

    memcpy(a.dim, t->dim, sizeof a.dim);
    memcpy(a.size, t->size, sizeof a.size);
    return a;
}

void array_print(const EvalArray *shape, Buf *out)
{
    buf_puts(out, "[");
    for (int d = 0; d < shape->ndim; d++)
        buf_printf(out, "%s%c=%lld", d ? "," : "", shape->dim[d],
                   (long long)shape->size[d]);
    buf_puts(out, "]");
}

/* ---- walks ---- */

Walk walk_dims(const char *dim, const int64_t *size, int ndim)
{
    Walk w = {.ndim = ndim, .more = true};

    for (int d = 0; d < ndim; d++) {
        w.dim[d] = dim[d];
        w.size[d] = size[d];
        w.more &= size[d] > 0;
    }
    return w;
}

Walk walk_of(const EvalArray *a)
{
    Walk w = walk_dims(a->dim, a->size, a->ndim);

    walk_add(&w, a);
    return w;
}

void walk_add(Walk *w, const EvalArray *a)
{
    int64_t stride = 1;
    uint32_t i = w->narrays++;

    mc_assert(i < WALK_ARRAYS);
    for (int d = a->ndim - 1; d >= 0; d--) {
        for (int k = 0; k < w->ndim; k++)
            if (w->dim[k] == a->dim[d])
                w->stride[i][k] = stride;
        stride *= a->size[d];
    }
}

/* Whether dimension d goes on where the run ends, in every array. */
static bool follows_on(const Walk *w, int d)
{
    for (uint32_t i = 0; i < w->narrays; i++)
        if (w->stride[i][d] != w->step[i] * w->run)
            return false;
    return true;
}

void walk_rows(Walk *w)
{
    w->run = 1;
    if (w->ndim == 0)
        return;
    w->ndim--;
    for (uint32_t i = 0; i < w->narrays; i++)
        w->step[i] = w->stride[i][w->ndim];
    w->run = w->size[w->ndim];
    while (w->ndim > 0 && follows_on(w, w->ndim - 1))
        w->run *= w->size[--w->ndim];
}

void walk_next(Walk *w)
{
    for (int d = w->ndim - 1; d >= 0; d--) {
        if (++w->index[d] < w->size[d]) {
            for (uint32_t i = 0; i < w->narrays; i++)
                w->off[i] += w->stride[i][d];
            return;
        }
        w->index[d] = 0;
        for (uint32_t i = 0; i < w->narrays; i++)
            w->off[i] -= w->stride[i][d] * (w->size[d] - 1);
    }
    w->more = false;
}

int64_t walk_index(const Walk *w, char dim)
{
    for (int d = 0; d < w->ndim; d++)
        if (w->dim[d] == dim)
            return w->index[d];
    return 0;
}

/* ---- counted values ---- */

EvalValue *value_alloc(const EvalArray *shape)
{
    size_t bytes = sizeof(EvalNum) * (size_t)array_elems(shape);
    EvalValue *v = calloc(1, sizeof *v + bytes);

    if (!v)
        mc_oom(sizeof *v + bytes);
    v->refs = 1;
    v->a = *shape;
    v->a.at = (EvalNum *)(v + 1);
    return v;
}

EvalValue *value_share(EvalValue *v)
{
    v->refs++;
    return v;
}

void value_drop(EvalValue *v)
{
    if (v && --v->refs == 0)
        free(v);
}

EvalValue *value_own(EvalValue *v)
{
    if (v->refs == 1)
        return v;
    EvalValue *copy = value_alloc(&v->a);

    memcpy(copy->a.at, v->a.at, sizeof(EvalNum) * (size_t)array_elems(&v->a));
    value_drop(v);
    return copy;
}

static EvalArray shape_without(EvalArray a, int at)
{
    for (int d = at; d + 1 < a.ndim; d++) {
        a.dim[d] = a.dim[d + 1];
        a.size[d] = a.size[d + 1];
    }
    a.ndim--;
    return a;
}

static EvalArray shape_with_first(EvalArray a, char dim, int64_t size)
{
    for (int d = a.ndim; d > 0; d--) {
        a.dim[d] = a.dim[d - 1];
        a.size[d] = a.size[d - 1];
    }
    a.dim[0] = dim;
    a.size[0] = size;
    a.ndim++;
    return a;
}

/* Elements from one index of dimension d to the next: the block below it. */
static int64_t block_below(const EvalArray *a, int d)
{
    int64_t n = 1;

    for (int k = d + 1; k < a->ndim; k++)
        n *= a->size[k];
    return n;
}

int64_t array_stride(const EvalArray *a, char dim)
{
    int d = array_dim(a, dim);

    return d < 0 ? 0 : block_below(a, d);
}

EvalValue *value_piece(const EvalValue *v, char dim, int64_t i, int64_t n,
                       bool drop)
{
    int at = array_dim(&v->a, dim);
    EvalArray shape = v->a;

    if (at < 0 || i < 0 || i >= n || shape.size[at] % n ||
        (drop && shape.size[at] != n))
        return NULL;
    shape.size[at] /= n;
    int64_t run = shape.size[at] * block_below(&shape, at);
    int64_t outer = run ? array_elems(&shape) / run : 0;

    if (drop)
        shape = shape_without(shape, at);
    EvalValue *piece = value_alloc(&shape);

    for (int64_t o = 0; o < outer; o++)
        memcpy(piece->a.at + o * run, v->a.at + (o * n + i) * run,
               sizeof(EvalNum) * (size_t)run);
    return piece;
}

EvalValue *value_concat(EvalValue *const *v, int64_t n, char dim)
{
    EvalArray shape = v[0]->a;
    int at = array_dim(&shape, dim);

    if (at < 0) {
        shape = shape_with_first(shape, dim, 1);
        at = 0;
    }
    int64_t run = shape.size[at] * block_below(&shape, at);
    int64_t outer = run ? array_elems(&shape) / run : 0;

    shape.size[at] *= n;
    EvalValue *all = value_alloc(&shape);

    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n; i++)
            memcpy(all->a.at + (o * n + i) * run, v[i]->a.at + o * run,
                   sizeof(EvalNum) * (size_t)run);
    return all;
}
