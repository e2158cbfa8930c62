/* eval_route.c - eval cells of a mixture of experts: the choice of experts, and
 * the ways of rows to them and back.
 *
 * Over doubles the choice orders scores by value, as the f32 that they are at
 * run time: tokens that are equal up to the rounding of some layout, like the
 * first and the second of a sequence if they are the same word, are equal.  In
 * the field it orders them by a hash of the residue: routing is data, and any
 * order serves if all layouts share it.
 *
 * The slot of a token in its expert's block is the number of chosen tokens
 * before it on this rank.  Which slot that is differs between layouts; what
 * comes back from it does not.
 */
#include "ir/eval_priv.h"

#include <math.h>
#include <stdlib.h>

/* ---- the choice ---------------------------------------------------------- */

/* One token's scores: those of n experts, in so many groups. */
typedef struct {
    EvalKind kind;
    int64_t n, top_k, groups, top_groups;
    EvalNum *score;
    bool *open; /* may still be chosen */
    bool *chosen;
} Router;

static bool greater(EvalKind kind, EvalNum x, EvalNum y)
{
    if (kind == EVAL_FP64)
        return (float)x.f > (float)y.f;
    return hash_mix(x.residue) > hash_mix(y.residue);
}

/* The best open expert of [from, to), or -1. */
static int64_t best_of(const Router *r, int64_t from, int64_t to)
{
    int64_t best = -1;

    for (int64_t i = from; i < to; i++)
        if (r->open[i] &&
            (best < 0 || greater(r->kind, r->score[i], r->score[best])))
            best = i;
    return best;
}

/* The sum of the best few scores of group g. */
static EvalNum group_score(const Router *r, int64_t g)
{
    int64_t size = r->n / r->groups, from = g * size;
    EvalNum sum = {0};

    memset(r->open + from, true, (size_t)size);
    for (int64_t i = 0; i < r->top_k / r->top_groups; i++) {
        int64_t best = best_of(r, from, from + size);

        sum = num_add(r->kind, sum, r->score[best]);
        r->open[best] = false;
    }
    memset(r->open + from, false, (size_t)size);
    return sum;
}

/* Opens the experts of the best groups. */
static void open_groups(Router *r, EvalNum *sum)
{
    int64_t size = r->n / r->groups;

    for (int64_t g = 0; g < r->groups; g++)
        sum[g] = group_score(r, g);
    for (int64_t k = 0; k < r->top_groups; k++) {
        int64_t best = -1;

        for (int64_t g = 0; g < r->groups; g++)
            if (!r->open[g * size] &&
                (best < 0 || greater(r->kind, sum[g], sum[best])))
                best = g;
        memset(r->open + best * size, true, (size_t)size);
    }
}

static void choose(Router *r, EvalNum *scratch)
{
    memset(r->chosen, false, (size_t)r->n);
    if (r->groups > 1)
        open_groups(r, scratch);
    else
        memset(r->open, true, (size_t)r->n);
    for (int64_t k = 0; k < r->top_k; k++) {
        int64_t best = best_of(r, 0, r->n);

        r->open[best] = false;
        r->chosen[best] = true;
    }
}

static void *scratch_of(int64_t n, size_t item)
{
    void *p = calloc((size_t)n + 1, item);

    if (!p)
        mc_oom((size_t)n * item);
    return p;
}

void eval_topk(EvalStep *s)
{
    const Module *m = s->e->m;
    AttrsId attrs = s->node->attrs;
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    int64_t n = array_size(x, 'e'), rows = array_elems(x) / n;
    EvalNum *sums = scratch_of(n, sizeof *sums);
    Router r = {.kind = s->e->opt.kind,
                .n = n,
                .top_k = attr_int(m, attrs, AK_TOP_K, 1),
                .groups = attr_int(m, attrs, AK_GROUPS, 1),
                .top_groups = attr_int(m, attrs, AK_TOP_GROUPS, 1),
                .open = scratch_of(n, sizeof(bool)),
                .chosen = scratch_of(n, sizeof(bool))};

    for (int64_t row = 0; row < rows; row++) {
        r.score = x->at + row * n;
        choose(&r, sums);
        for (int64_t i = 0; i < n; i++)
            out->at[row * n + i] = num_of_double(r.kind, r.chosen[i]);
    }
    free(sums);
    free(r.open);
    free(r.chosen);
}

/* ---- capacity ------------------------------------------------------------ */

static bool is_chosen(const EvalStep *s, EvalNum x)
{
    return s->e->opt.kind == EVAL_FP64 ? x.f != 0 : x.residue != 0;
}

/* One expert's tokens in one part: offsets into choice and score. */
typedef struct {
    int64_t *choice, *score;
    int64_t n;
} Crowd;

/* How many come before token i: those of a higher score, or earlier. */
static int64_t crowd_rank(EvalStep *s, const Crowd *c, int64_t i)
{
    const EvalNum *score = step_arg(s, 1)->at;
    EvalKind kind = s->e->opt.kind;
    int64_t rank = 0;

    if (!attr_int(s->e->m, s->node->attrs, AK_BY_SCORE, 0))
        return i;
    for (int64_t k = 0; k < c->n; k++) {
        EvalNum mine = score[c->score[i]], other = score[c->score[k]];

        rank += greater(kind, other, mine) ||
                (k < i && !greater(kind, mine, other));
    }
    return rank;
}

static void crowd_fit(EvalStep *s, Crowd *c, EvalArray *out)
{
    int64_t size = attr_int(s->e->m, s->node->attrs, AK_SIZE, 1);

    for (int64_t i = 0; i < c->n; i++)
        if (crowd_rank(s, c, i) < size)
            out->at[c->choice[i]] = num_of_double(s->e->opt.kind, 1);
    c->n = 0;
}

/* Tokens per part along a dimension. */
static int64_t part_size(const EvalStep *s, char dim, AttrKey parts)
{
    const Type *t = value_type(s->e->m, node_arg(s->e->m, s->node, 0));

    return type_size(t, dim) / attr_int(s->e->m, s->node->attrs, parts, 1);
}

void eval_fit(EvalStep *s)
{
    const EvalArray *choice = step_arg(s, 0), *score = step_arg(s, 1);
    EvalArray *out = step_out(s, 0);
    int64_t in_s = part_size(s, 's', AK_S_PARTS);
    int64_t in_b = part_size(s, 'b', AK_B_PARTS);
    const char dims[] = {'e', 'g', 'r', 's', 'b'}; /* g, r: the part */
    int64_t size[] = {array_size(choice, 'e'), array_size(choice, 's') / in_s,
                      array_size(choice, 'b') / in_b, in_s, in_b};
    Crowd c = {.choice = scratch_of(in_s * in_b, sizeof(int64_t)),
               .score = scratch_of(in_s * in_b, sizeof(int64_t))};
    Walk w = walk_dims(dims, size, 5);

    walk_add(&w, choice);
    walk_add(&w, score);
    for (; w.more; walk_next(&w)) {
        int64_t s0 = walk_index(&w, 'g') * in_s,
                b0 = walk_index(&w, 'r') * in_b;
        int64_t at = w.off[0] + s0 * array_stride(choice, 's') +
                     b0 * array_stride(choice, 'b');

        if (is_chosen(s, choice->at[at])) {
            c.choice[c.n] = at;
            c.score[c.n++] = w.off[1] + s0 * array_stride(score, 's') +
                             b0 * array_stride(score, 'b');
        }
        if (walk_index(&w, 's') == in_s - 1 && walk_index(&w, 'b') == in_b - 1)
            crowd_fit(s, &c, out);
    }
    free(c.choice);
    free(c.score);
}

/* ---- rounds -------------------------------------------------------------- */

/* Walks each expert's tokens of each part in their order. */
typedef struct {
    Walk w; /* over e, the part, and the token within it */
    const EvalArray *choice;
    int64_t in_s, in_b; /* tokens of a part along s and b */
    int64_t before;     /* chosen ones of the part before this token */
} Queue;

static Queue queue_of(EvalStep *s)
{
    const char dims[] = {'e', 'g', 'r', 's', 'b'}; /* g, r: the part */
    Queue q = {.choice = step_arg(s, 0),
               .in_s = part_size(s, 's', AK_S_PARTS),
               .in_b = part_size(s, 'b', AK_B_PARTS)};
    int64_t size[] = {array_size(q.choice, 'e'),
                      array_size(q.choice, 's') / q.in_s,
                      array_size(q.choice, 'b') / q.in_b, q.in_s, q.in_b};

    q.w = walk_dims(dims, size, 5);
    walk_add(&q.w, q.choice);
    return q;
}

/* Where the token lies in the choice. */
static int64_t queue_at(Queue *q)
{
    if (walk_index(&q->w, 's') == 0 && walk_index(&q->w, 'b') == 0)
        q->before = 0;
    return q->w.off[0] +
           walk_index(&q->w, 'g') * q->in_s * array_stride(q->choice, 's') +
           walk_index(&q->w, 'r') * q->in_b * array_stride(q->choice, 'b');
}

void eval_turn(EvalStep *s)
{
    EvalKind kind = s->e->opt.kind;
    int64_t size = attr_int(s->e->m, s->node->attrs, AK_SIZE, 1);
    int64_t round = num_index(kind, step_arg(s, 1)->at[0]);
    EvalArray *out = step_out(s, 0);

    for (Queue q = queue_of(s); q.w.more; walk_next(&q.w)) {
        int64_t at = queue_at(&q);

        if (is_chosen(s, q.choice->at[at]) && q.before++ / size == round)
            out->at[at] = num_of_double(kind, 1);
    }
}

void eval_rounds(EvalStep *s)
{
    int64_t size = attr_int(s->e->m, s->node->attrs, AK_SIZE, 1), most = 1;

    for (Queue q = queue_of(s); q.w.more; walk_next(&q.w)) {
        int64_t at = queue_at(&q);

        q.before += is_chosen(s, q.choice->at[at]);
        most = MC_MAX(most, q.before);
    }
    step_out(s, 0)->at[0] =
        num_of_double(s->e->opt.kind, (double)((most - 1) / size));
}

void eval_filled(EvalStep *s)
{
    const EvalArray *choice = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    EvalKind kind = s->e->opt.kind;
    int64_t limit = attr_int(s->e->m, s->node->attrs, AK_LIMIT, 1);
    const char dims[] = {'e', 's', 'b'};
    int64_t size[3], n = 0;

    for (int i = 0; i < 3; i++)
        size[i] = array_size(choice, dims[i]);
    Walk w = walk_dims(dims, size, 3);

    walk_add(&w, choice);
    walk_add(&w, out);
    for (; w.more; walk_next(&w)) {
        n = walk_index(&w, 's') + walk_index(&w, 'b') ? n : 0;
        if (!is_chosen(s, choice->at[w.off[0]]))
            continue;
        EvalNum *part =
            &out->at[w.off[1] + n++ / limit * array_stride(out, 'c')];

        *part = num_add(kind, *part, num_of_double(kind, 1));
    }
}

void eval_group_sum(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    int64_t in_b = part_size(s, 'b', AK_B_PARTS);
    const char dims[] = {'e', 'g', 'b', 'r'}; /* g: the part; r: added */
    int64_t size[] = {array_size(x, 'e'), array_size(x, 'b') / in_b, in_b,
                      in_b};
    Walk w = walk_dims(dims, size, 4);

    walk_add(&w, x);
    walk_add(&w, out);
    for (; w.more; walk_next(&w)) {
        int64_t first = walk_index(&w, 'g') * in_b;
        int64_t from = (first + walk_index(&w, 'r') - walk_index(&w, 'b')) *
                       array_stride(x, 'b');
        EvalNum *sum = &out->at[w.off[1] + first * array_stride(out, 'b')];

        *sum = num_add(s->e->opt.kind, *sum, x->at[w.off[0] + from]);
    }
}

/* ---- the ways ------------------------------------------------------------ */

/* Walks the tokens that chose each expert, with the slot of each. */
typedef struct {
    Walk w; /* over e, s, b; array 0 is the choice */
    int64_t slot;
} Route;

static Route route_of(const EvalArray *choice)
{
    const char dims[] = {'e', 's', 'b'};
    int64_t size[3];
    Route r = {.slot = -1};

    for (int i = 0; i < 3; i++)
        size[i] = array_size(choice, dims[i]);
    r.w = walk_dims(dims, size, 3);
    walk_add(&r.w, choice);
    return r;
}

/* Whether the token here chose the expert here; if so, slot is its slot. */
static bool route_takes(EvalStep *s, Route *r, const EvalArray *choice,
                        int64_t slots)
{
    if (walk_index(&r->w, 's') == 0 && walk_index(&r->w, 'b') == 0)
        r->slot = -1;
    if (!is_chosen(s, choice->at[r->w.off[0]]))
        return false;
    if (++r->slot < slots)
        return true;
    step_fault(s, "MC0752", "an expert has more tokens than slots");
    return false;
}

/* y[j] += factor x[i], over h. */
static void add_row(EvalKind kind, EvalNum factor, const EvalArray *x,
                    int64_t i, const EvalArray *y, int64_t j)
{
    int64_t dx = array_stride(x, 'h'), dy = array_stride(y, 'h');

    for (int64_t h = 0; h < array_size(x, 'h'); h++) {
        EvalNum *sum = &y->at[j + h * dy];

        *sum = num_add(kind, *sum, num_mul(kind, factor, x->at[i + h * dx]));
    }
}

/* Rows between tokens, [s,b], and slots, [e,c], in either direction. */
static void move_rows(EvalStep *s, bool to_slots)
{
    const EvalArray *choice = step_arg(s, 0), *weight = step_arg(s, 1);
    const EvalArray *from = step_arg(s, 2);
    EvalArray *out = step_out(s, 0);
    const EvalArray *token = to_slots ? from : out;
    const EvalArray *block = to_slots ? out : from;
    Route r = route_of(choice);

    walk_add(&r.w, weight);
    walk_add(&r.w, token);
    walk_add(&r.w, block);
    for (; r.w.more; walk_next(&r.w)) {
        if (!route_takes(s, &r, choice, array_size(block, 'c')))
            continue;
        int64_t at = r.w.off[3] + r.slot * array_stride(block, 'c');

        add_row(s->e->opt.kind, weight->at[r.w.off[1]], from,
                to_slots ? r.w.off[2] : at, out, to_slots ? at : r.w.off[2]);
    }
}

void eval_dispatch(EvalStep *s)
{
    move_rows(s, true);
}

void eval_combine(EvalStep *s)
{
    move_rows(s, false);
}

void eval_combine_weight(EvalStep *s)
{
    const EvalArray *choice = step_arg(s, 0), *block = step_arg(s, 1);
    const EvalArray *token = step_arg(s, 2);
    EvalArray *out = step_out(s, 0);
    EvalKind kind = s->e->opt.kind;
    int64_t db = array_stride(block, 'h'), dt = array_stride(token, 'h');
    Route r = route_of(choice);

    walk_add(&r.w, out);
    walk_add(&r.w, block);
    walk_add(&r.w, token);
    for (; r.w.more; walk_next(&r.w)) {
        if (!route_takes(s, &r, choice, array_size(block, 'c')))
            continue;
        const EvalNum *x =
            block->at + r.w.off[2] + r.slot * array_stride(block, 'c');
        EvalNum *sum = &out->at[r.w.off[1]];

        for (int64_t h = 0; h < array_size(block, 'h'); h++)
            *sum = num_add(
                kind, *sum,
                num_mul(kind, x[h * db], token->at[r.w.off[3] + h * dt]));
    }
}
