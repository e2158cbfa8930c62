/* eval_attention.c - eval cells of attention, whole or in steps.
 *
 * In the field p[t] = E(scale q k[t]), lse = sum p and o = sum p v / lse, so
 * that partial results merge exactly; over doubles lse is the logarithm.
 *
 * Which keys a query sees follows from positions, which the attribute `zigzag`
 * gives for the index along s.  In a step a query sees only the keys that lie
 * at its own one of `parts`; they came from the part `shift` before.
 */
#include "ir/eval_priv.h"

#include "base/zigzag.h"

#include <math.h>
#include <stdlib.h>

/* ---- attention ---- */

/* What all heads of a node share; t runs over keys. */
typedef struct {
    EvalKind kind;
    int64_t ns, nt, nd;
    bool causal;
    int64_t window; /* or 0 */
    EvalNum scale;
    EvalDraws draws;
    int64_t batch, queries;  /* logical sizes of b and r */
    int64_t start[3];        /* of b, g, r on this rank */
    int64_t *pos, *key_pos;   /* of each query and key */
    int64_t *part, *key_part; /* the parts at which they lie; in steps */
} Head;

typedef struct {
    EvalNum *at;  /* of position 0, channel 0 */
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
        sum = num_add(
            h->kind, sum,
            num_mul(h->kind, x.at[i * x.s + d * x.d], y.at[j * y.s + d * y.d]));
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
    if (h->window && h->pos[i] - h->key_pos[t] >= h->window)
        return false;
    return !h->causal || h->key_pos[t] <= h->pos[i];
}

/* Which head of which sequence the walk is at. */
static void head_draws(Head *h, const Walk *w)
{
    int64_t b = h->start[0] + walk_index(w, 'b');
    int64_t g = h->start[1] + walk_index(w, 'g');
    int64_t r = h->start[2] + walk_index(w, 'r');

    h->draws.at.sample = h->draws.microbatch * h->batch + b;
    h->draws.at.other = g * h->queries + r;
}

/* What is left of the probability p of query i for key t, as dropout has it. */
static EvalNum dropped(const Head *h, int64_t i, int64_t t, EvalNum p)
{
    DropoutPlace at = h->draws.at;

    if (h->draws.rate == 0)
        return p;
    at.position = h->pos[i];
    at.last = h->key_pos[t];
    return dropout_keeps(&at, h->draws.rate)
               ? num_mul(h->kind, h->draws.scale, p)
               : num_of_double(h->kind, 0);
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
    const Module *m = s->e->m;
    int64_t zigzag = attr_int(m, s->node->attrs, AK_ZIGZAG, 1);
    int64_t size = type_size(value_type(m, v), 's');
    int64_t part = size / attr_int(m, s->node->attrs, AK_PARTS, 1);
    int64_t start = step_start(s, v, 's'), *pos = eval_scratch(n, sizeof *pos);

    *out_part = eval_scratch(n, sizeof **out_part);
    for (int64_t i = 0; i < n; i++) {
        (*out_part)[i] = (start + i) / part;
        pos[i] = zigzag_position(size, zigzag,
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
    h->key_pos =
        positions(s, node_arg(m, s->node, 1), h->nt, shift, &h->key_part);
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
        .window = attr_int(m, s->node->attrs, AK_WINDOW, 0),
        .scale = num_of_ratio(kind, 1, type_size(value_type(m, q), 'd'), true),
    };

    h.batch = type_size(value_type(m, q), 'b');
    h.queries = type_size(value_type(m, q), 'r');
    for (int i = 0; i < 3; i++)
        h.start[i] = step_start(s, q, "bgr"[i]);
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
        if (!sees(h, i, t))
            continue;
        p[t] = score(h, q, i, k, t);
        top = h->kind == EVAL_FP64 ? fmax(top, p[t].f) : top;
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

/* What `probability` makes of scores: lse, or the inverse of their sum. */
static EvalNum norm_of(const Head *h, EvalNum lse)
{
    if (h->kind == EVAL_FIELD)
        lse.residue = field_inverse(lse.residue);
    return lse;
}

/* The attention probability from a score (fp64) or E(score) (field). */
static EvalNum probability(const Head *h, EvalNum p, EvalNum norm)
{
    if (h->kind == EVAL_FP64)
        return (EvalNum){.f = exp(p.f - norm.f)};
    return (EvalNum){.residue = field_mul(p.residue, norm.residue)};
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
    const EvalNum *before =
        w->carried ? &w->lse_before.at[i * w->lse_before.s] : NULL;
    EvalNum lse = weights(h, w->q, i, w->k, before, p);
    EvalNum norm = norm_of(h, lse);

    w->lse.at[i * w->lse.s] = lse;
    if (before)
        row_add(h, probability(h, *before, norm), w->o_before, i, w->o, i);
    for (int64_t t = 0; t < h->nt; t++)
        if (sees(h, i, t))
            row_add(h, dropped(h, i, t, probability(h, p[t], norm)), w->v, t,
                    w->o, i);
}

void eval_attention(EvalStep *s)
{
    bool carried = s->node->nargs == 5;
    EvalArray *o = step_out(s, 0), *lse = step_out(s, 1);
    const EvalArray *each[] = {step_arg(s, 0),
                               step_arg(s, 1),
                               step_arg(s, 2),
                               o,
                               lse,
                               carried ? step_arg(s, 3) : o,
                               carried ? step_arg(s, 4) : lse};
    Head h = head_of(s);
    EvalNum *p = eval_scratch(h.nt, sizeof *p);
    Walk w = heads_walk(each[0]);
    bool drawn = step_draws(s, &h.draws);

    for (uint32_t i = 0; i < MC_LEN(each); i++)
        walk_add(&w, each[i]);
    for (; w.more && drawn; walk_next(&w)) {
        Rows r[MC_LEN(each)];

        head_draws(&h, &w);
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

/* One query: ds = p (do·v - do·o) scale, then the three products.  Dropout
 * stands between the probability and what it weighs. */
static void query_grad(const Head *h, const HeadGrad *g, int64_t i, EvalNum *p)
{
    EvalNum minus = num_of_double(h->kind, -1);
    EvalNum delta = num_mul(h->kind, minus, row_dot(h, g->dout, i, g->o, i));
    EvalNum norm = norm_of(h, g->lse.at[i * g->lse.s]);

    weights(h, g->q, i, g->k, NULL, p);
    for (int64_t t = 0; t < h->nt; t++) {
        if (!sees(h, i, t))
            continue;
        EvalNum prob = probability(h, p[t], norm);
        EvalNum dv = dropped(h, i, t, row_dot(h, g->dout, i, g->v, t));
        EvalNum dp = num_add(h->kind, dv, delta);
        EvalNum ds = num_mul(h->kind, num_mul(h->kind, prob, dp), h->scale);

        row_add(h, ds, g->k, t, g->dq, i);
        row_add(h, ds, g->q, i, g->dk, t);
        row_add(h, dropped(h, i, t, prob), g->dout, i, g->dv, t);
    }
}

void eval_attention_grad(EvalStep *s)
{
    const EvalArray *each[9];
    Head h = head_of(s);
    EvalNum *p = eval_scratch(h.nt, sizeof *p);
    Walk w = heads_walk(step_arg(s, 0));
    bool drawn = step_draws(s, &h.draws);

    for (uint32_t i = 0; i < 6; i++)
        each[i] = step_arg(s, i);
    for (uint32_t i = 0; i < 3; i++)
        each[6 + i] = step_out(s, i);
    for (uint32_t i = 0; i < 9; i++)
        walk_add(&w, each[i]);
    for (; w.more && drawn; walk_next(&w)) {
        Rows r[9];

        head_draws(&h, &w);
        for (uint32_t i = 0; i < 9; i++)
            r[i] = rows_of(each[i], w.off[i]);
        HeadGrad g = {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8]};

        for (int64_t i = 0; i < h.ns; i++)
            query_grad(&h, &g, i, p);
    }
    free(p);
    head_free(&h);
}
