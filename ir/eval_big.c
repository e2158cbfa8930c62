/* eval_big.c - eval cells of contractions, embeddings and attention.
 *
 * A contraction walks the result; for the contracted dimensions the offsets
 * into both operands are the same for every element of the result and are
 * listed once.
 *
 * Attention in the field: p[t] = E(scale q k[t]), lse = sum p and
 * o = sum p v / lse, so that partial results merge exactly; over doubles lse
 * is the logarithm.
 */
#include "ir/eval_priv.h"

#include "base/zigzag.h"

#include <math.h>
#include <stdlib.h>

static void *scratch(int64_t n, size_t item)
{
    void *p = calloc((size_t)n + 1, item);

    if (!p)
        mc_oom((size_t)n * item);
    return p;
}

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
    int64_t *xi = scratch(n, sizeof *xi), *yi = scratch(n, sizeof *yi);

    for (; inner.more; walk_next(&inner), k++) {
        xi[k] = inner.off[0];
        yi[k] = inner.off[1];
    }
    Walk w = walk_of(out);

    walk_add(&w, x);
    walk_add(&w, y);
    for (; w.more; walk_next(&w)) {
        EvalNum *sum = &out->at[w.off[0]];

        *sum = num_add(kind, *sum, num_dot(kind, k, x->at + w.off[1], xi,
                                           y->at + w.off[2], yi));
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
    for (uint32_t i = 0; i < s->node->nres; i++)
        product(s, step_arg(s, 0), step_arg(s, i + 1), step_out(s, i));
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
        uint32_t layer = tensor_of(s->e->m, t)->per_layer
                             ? (uint32_t)s->frame->layer : 0;
        EvalArray *into = state_target(s, t, FIELD_GRAD, layer);

        if (into)
            product(s, step_arg(s, i), step_arg(s, n), into);
    }
}

/* ---- embeddings ---- */

static int64_t start_of(const EvalStep *s, ValueId id, char dim)
{
    const Value *v = value_of(s->e->m, id);

    return eval_start(s->e, s->rank->id, v->type, v->layout, dim);
}

/* The rows of the table that this rank holds; others contribute zero. */
void eval_embed(EvalStep *s)
{
    const EvalArray *tokens = step_arg(s, 0), *table = step_arg(s, 1);
    int64_t start = start_of(s, node_arg(s->e->m, s->node, 1), 'v');
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
    int64_t start = start_of(s, node_res(s->node, 0), 'v');
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
    return (RowPlace){s, start_of(s, rows, 's'),
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

/* ---- attention ---- */

/* What all heads of a node share; t runs over keys. */
typedef struct {
    EvalKind kind;
    int64_t ns, nt, nd;
    bool causal;
    EvalNum scale;
    int64_t *pos, *key_pos;   /* of each query and key */
    int64_t *part, *key_part; /* the parts at which they lie; in steps */
} Head;

typedef struct {
    EvalNum *at; /* of position 0, channel 0 */
    int64_t s, d; /* strides */
} Rows;

static Rows rows_of(const EvalArray *a, int64_t off)
{
    return (Rows){a->at + off, array_stride(a, 's'), array_stride(a, 'd')};
}

static EvalNum row_dot(const Head *h, Rows x, int64_t i, Rows y, int64_t j)
{
    EvalNum sum = {0};

    for (int64_t d = 0; d < h->nd; d++)
        sum = num_add(h->kind, sum,
                      num_mul(h->kind, x.at[i * x.s + d * x.d],
                              y.at[j * y.s + d * y.d]));
    return sum;
}

/* y[j] += factor * x[i] */
static void row_add(const Head *h, EvalNum factor, Rows x, int64_t i, Rows y,
                    int64_t j)
{
    for (int64_t d = 0; d < h->nd; d++) {
        EvalNum *sum = &y.at[j * y.s + d * y.d];

        *sum = num_add(h->kind, *sum,
                       num_mul(h->kind, factor, x.at[i * x.s + d * x.d]));
    }
}

static bool sees(const Head *h, int64_t i, int64_t t)
{
    if (h->part && h->part[i] != h->key_part[t])
        return false;
    return !h->causal || h->key_pos[t] <= h->pos[i];
}

static EvalNum score(const Head *h, Rows q, int64_t i, Rows k, int64_t t)
{
    return num_mul(h->kind, h->scale, row_dot(h, q, i, k, t));
}

/* Positions of what this rank has of a value, once it has come from `shift`
 * parts before; and the parts at which it lies. */
static int64_t *positions(const EvalStep *s, ValueId v, int64_t n,
                          int64_t shift, int64_t **out_part)
{
    int64_t parts = attr_int(s->e->m, s->node->attrs, AK_ZIGZAG, 1);
    int64_t size = type_size(value_type(s->e->m, v), 's'), part = size / parts;
    int64_t start = start_of(s, v, 's'), *pos = scratch(n, sizeof *pos);

    *out_part = scratch(n, sizeof **out_part);
    for (int64_t i = 0; i < n; i++) {
        (*out_part)[i] = (start + i) / part;
        pos[i] = zigzag_position(size, parts,
                                 (start + i + size - shift * part) % size);
    }
    return pos;
}

static void head_places(EvalStep *s, Head *h)
{
    const Module *m = s->e->m;
    bool step = s->node->op == OP_ATTENTION_STEP ||
                s->node->op == OP_ATTENTION_STEP_GRAD;
    int64_t shift = attr_int(m, s->node->attrs, AK_SHIFT, 0);

    h->pos = positions(s, node_arg(m, s->node, 0), h->ns, 0, &h->part);
    h->key_pos = positions(s, node_arg(m, s->node, 1), h->nt, shift,
                           &h->key_part);
    if (step)
        return;
    free(h->part);
    free(h->key_part);
    h->part = h->key_part = NULL;
}

static Head head_of(EvalStep *s)
{
    const Module *m = s->e->m;
    ValueId q = node_arg(m, s->node, 0);
    EvalKind kind = s->e->opt.kind;
    Head h = {
        .kind = kind,
        .ns = array_size(step_arg(s, 0), 's'),
        .nt = array_size(step_arg(s, 1), 's'),
        .nd = array_size(step_arg(s, 0), 'd'),
        .causal = attr_int(m, s->node->attrs, AK_CAUSAL, 0) != 0,
        .scale = num_of_ratio(kind, 1, type_size(value_type(m, q), 'd'), true),
    };

    head_places(s, &h);
    return h;
}

static void head_free(Head *h)
{
    free(h->pos);
    free(h->key_pos);
    free(h->part);
    free(h->key_part);
}

/* p[t], not yet divided by their sum; returns lse as it is stored.  `before`:
 * the lse of other keys, or NULL. */
static EvalNum weights(const Head *h, Rows q, int64_t i, Rows k,
                       const EvalNum *before, EvalNum *p)
{
    double top = before ? before->f : -INFINITY, sum = 0;
    uint64_t total = before ? before->residue : 0;

    for (int64_t t = 0; t < h->nt; t++) {
        p[t] = score(h, q, i, k, t);
        if (h->kind == EVAL_FP64 && sees(h, i, t))
            top = fmax(top, p[t].f);
    }
    if (before)
        sum = exp(before->f - top);
    for (int64_t t = 0; t < h->nt; t++) {
        if (!sees(h, i, t))
            continue;
        if (h->kind == EVAL_FP64) {
            sum += exp(p[t].f - top);
        } else {
            p[t].residue = field_random(OP_EXP, p[t].residue);
            total = field_add(total, p[t].residue);
        }
    }
    if (h->kind == EVAL_FIELD)
        return (EvalNum){.residue = total};
    return (EvalNum){.f = top + log(sum)};
}

/* The attention probability from a score (fp64) or E(score) (field). */
static EvalNum probability(const Head *h, EvalNum p, EvalNum lse)
{
    if (h->kind == EVAL_FP64)
        return (EvalNum){.f = exp(p.f - lse.f)};
    return (EvalNum){.residue = field_mul(p.residue,
                                          field_inverse(lse.residue))};
}

/* A walk over the heads: every dimension of q but s and d. */
static Walk heads_walk(const EvalArray *q)
{
    char dim[WALK_DIMS];
    int64_t size[WALK_DIMS];
    int n = 0;

    for (int d = 0; d < q->ndim; d++)
        if (q->dim[d] != 's' && q->dim[d] != 'd') {
            dim[n] = q->dim[d];
            size[n++] = q->size[d];
        }
    return walk_dims(dim, size, n);
}

typedef struct {
    Rows q, k, v, o, lse, o_before, lse_before;
    bool carried;
} HeadForward;

static void query_forward(const Head *h, const HeadForward *w, int64_t i,
                          EvalNum *p)
{
    const EvalNum *before = w->carried
                                ? &w->lse_before.at[i * w->lse_before.s] : NULL;
    EvalNum lse = weights(h, w->q, i, w->k, before, p);

    w->lse.at[i * w->lse.s] = lse;
    if (before)
        row_add(h, probability(h, *before, lse), w->o_before, i, w->o, i);
    for (int64_t t = 0; t < h->nt; t++)
        if (sees(h, i, t))
            row_add(h, probability(h, p[t], lse), w->v, t, w->o, i);
}

void eval_attention(EvalStep *s)
{
    bool carried = s->node->nargs == 5;
    EvalArray *o = step_out(s, 0), *lse = step_out(s, 1);
    const EvalArray *each[] = {step_arg(s, 0), step_arg(s, 1), step_arg(s, 2),
                               o, lse,
                               carried ? step_arg(s, 3) : o,
                               carried ? step_arg(s, 4) : lse};
    Head h = head_of(s);
    EvalNum *p = scratch(h.nt, sizeof *p);
    Walk w = heads_walk(each[0]);

    for (uint32_t i = 0; i < MC_LEN(each); i++)
        walk_add(&w, each[i]);
    for (; w.more; walk_next(&w)) {
        Rows r[MC_LEN(each)];

        for (uint32_t i = 0; i < MC_LEN(each); i++)
            r[i] = rows_of(each[i], w.off[i]);
        HeadForward f = {r[0], r[1], r[2], r[3], r[4], r[5], r[6], carried};

        for (int64_t i = 0; i < h.ns; i++)
            query_forward(&h, &f, i, p);
    }
    free(p);
    head_free(&h);
}

typedef struct {
    Rows q, k, v, o, lse, dout, dq, dk, dv;
} HeadGrad;

/* One query: ds = p (do·v - do·o) scale, then the three products. */
static void query_grad(const Head *h, const HeadGrad *g, int64_t i, EvalNum *p)
{
    EvalNum minus = num_of_double(h->kind, -1);
    EvalNum delta = num_mul(h->kind, minus, row_dot(h, g->dout, i, g->o, i));

    weights(h, g->q, i, g->k, NULL, p);
    for (int64_t t = 0; t < h->nt; t++) {
        if (!sees(h, i, t))
            continue;
        EvalNum prob = probability(h, p[t], g->lse.at[i * g->lse.s]);
        EvalNum dp = num_add(h->kind, row_dot(h, g->dout, i, g->v, t), delta);
        EvalNum ds = num_mul(h->kind, num_mul(h->kind, prob, dp), h->scale);

        row_add(h, ds, g->k, t, g->dq, i);
        row_add(h, ds, g->q, i, g->dk, t);
        row_add(h, prob, g->dout, i, g->dv, t);
    }
}

void eval_attention_grad(EvalStep *s)
{
    const EvalArray *each[9];
    Head h = head_of(s);
    EvalNum *p = scratch(h.nt, sizeof *p);
    Walk w = heads_walk(step_arg(s, 0));

    for (uint32_t i = 0; i < 6; i++)
        each[i] = step_arg(s, i);
    for (uint32_t i = 0; i < 3; i++)
        each[6 + i] = step_out(s, i);
    for (uint32_t i = 0; i < 9; i++)
        walk_add(&w, each[i]);
    for (; w.more; walk_next(&w)) {
        Rows r[9];

        for (uint32_t i = 0; i < 9; i++)
            r[i] = rows_of(each[i], w.off[i]);
        HeadGrad g = {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8]};

        for (int64_t i = 0; i < h.ns; i++)
            query_grad(&h, &g, i, p);
    }
    free(p);
    head_free(&h);
}
