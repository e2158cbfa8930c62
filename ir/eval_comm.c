/* eval_comm.c - eval cells of collectives and messages.
 *
 * A rank that reaches a collective posts its operand and waits.  Whoever
 * arrives last finds all others of the group posted at a node with the same op
 * and attributes, computes every member's result, and all go on.  The order
 * within a group is the order of axes_members, as at run time.
 *
 * A send never waits: the message lies in the receiver's inbox.  Messages of
 * one sender and tag are received in the order in which they were sent.
 */
#include "ir/eval_priv.h"

/* ---- collectives ---- */

typedef struct {
    EvalStep *s;
    EvalRank **member;
    EvalValue **offer;
    uint32_t n;
    char dim, from;
} Meeting;

/* Result of member i; NULL if the operand does not fit. */
typedef EvalValue *Combine(const Meeting *g, uint32_t i);

static bool same_collective(const EvalStep *s, const EvalRank *r)
{
    const Node *other = node_of(s->e->m, r->posted);

    if (s->node->op == OP_CONVERT && r->posted.i != s->id.i)
        return false;
    return r->posted.i && other->op == s->node->op &&
           other->attrs.i == s->node->attrs.i && r->offer &&
           array_same_shape(&r->offer->a, &s->rank->offer->a);
}

/* Whether all members have posted; fills the meeting. */
static bool meet(EvalStep *s, Meeting *g)
{
    Eval *e = s->e;
    AxisSet axes = s->node->op == OP_CONVERT
                       ? convert_axes(s)
                       : attr_axes(e->m, s->node->attrs, AK_AXES);
    uint32_t *ids;

    g->n = axes_size(&e->m->mesh, axes);
    ids = arena_array(e->arena, uint32_t, g->n);
    g->member = arena_array(e->arena, EvalRank *, g->n);
    g->offer = arena_array(e->arena, EvalValue *, g->n);
    axes_members(&e->m->mesh, axes, s->rank->id, ids);
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t at = e->rank_index[ids[i]];

        if (at == UINT32_MAX || !same_collective(s, &e->ranks[at]))
            return false;
        g->member[i] = &e->ranks[at];
        g->offer[i] = g->member[i]->offer;
    }
    return true;
}

static void post(EvalStep *s)
{
    if (s->rank->posted.i)
        return;
    s->rank->posted = s->id;
    s->rank->offer = value_share(step_value(s, 0));
}

/* Gives every member its result. */
static void settle(const Meeting *g, Combine *combine)
{
    for (uint32_t i = 0; i < g->n; i++)
        g->member[i]->taken = combine(g, i);
    for (uint32_t i = 0; i < g->n; i++) {
        value_drop(g->member[i]->offer);
        g->member[i]->offer = NULL;
        if (!g->member[i]->taken)
            step_fault(g->s, "MC0750", "dimension %c cannot be divided by %u",
                       g->dim, g->n);
    }
}

static void collective(EvalStep *s, Combine *combine)
{
    const Module *m = s->e->m;
    Meeting g = {.s = s,
                 .dim = (char)attr_int(m, s->node->attrs, AK_DIM, 0),
                 .from = (char)attr_int(m, s->node->attrs, AK_FROM_DIM, 0)};

    post(s);
    if (!s->rank->taken && meet(s, &g))
        settle(&g, combine);
    if (!s->rank->taken) {
        if (s->outcome != STEP_FAULT)
            step_block(s);
        return;
    }
    step_bind(s, 0, s->rank->taken);
    s->rank->taken = NULL;
    s->rank->posted = (NodeId){0};
}

typedef EvalNum Merge(EvalKind kind, EvalNum x, EvalNum y);

static EvalValue *fold(const Meeting *g, Merge *merge)
{
    EvalValue *all = value_own(value_share(g->offer[0]));
    EvalKind kind = g->s->e->opt.kind;

    for (uint32_t i = 1; i < g->n; i++)
        for (int64_t k = 0, n = array_elems(&all->a); k < n; k++)
            all->a.at[k] = merge(kind, all->a.at[k], g->offer[i]->a.at[k]);
    return all;
}

static EvalValue *combine_sum(const Meeting *g, uint32_t i)
{
    return i ? value_share(g->member[0]->taken) : fold(g, num_add);
}

static EvalValue *combine_max(const Meeting *g, uint32_t i)
{
    return i ? value_share(g->member[0]->taken) : fold(g, num_max);
}

static EvalValue *combine_gather(const Meeting *g, uint32_t i)
{
    return i ? value_share(g->member[0]->taken)
             : value_concat(g->offer, g->n, g->dim);
}

static EvalValue *combine_scatter(const Meeting *g, uint32_t i)
{
    EvalValue *all = fold(g, num_add);
    EvalValue *piece = value_piece(all, g->dim, i, g->n, false);

    value_drop(all);
    return piece;
}

static EvalValue *combine_exchange(const Meeting *g, uint32_t i)
{
    EvalValue **piece = arena_array(g->s->e->arena, EvalValue *, g->n);
    EvalValue *all = NULL;
    uint32_t n = 0;

    while (n < g->n &&
           (piece[n] = value_piece(g->offer[n], g->dim, i, g->n, false)))
        n++;
    if (n == g->n)
        all = value_concat(piece, g->n, g->from);
    while (n)
        value_drop(piece[--n]);
    return all;
}

static EvalValue *combine_convert(const Meeting *g, uint32_t i)
{
    EvalValue *whole = convert_whole(g->s, g->member, g->offer, g->n);
    EvalValue *part = convert_part(g->s, whole, g->member[i]->id);

    value_drop(whole);
    return part;
}

void eval_all_reduce(EvalStep *s)
{
    collective(s, combine_sum);
}

void eval_all_reduce_max(EvalStep *s)
{
    collective(s, combine_max);
}

void eval_all_gather(EvalStep *s)
{
    collective(s, combine_gather);
}

void eval_reduce_scatter(EvalStep *s)
{
    collective(s, combine_scatter);
}

void eval_all_to_all(EvalStep *s)
{
    collective(s, combine_exchange);
}

static EvalValue *combine_shift(const Meeting *g, uint32_t i)
{
    return value_share(g->offer[(i + g->n - 1) % g->n]);
}

/* On one rank that has all parts. */
static void roll(EvalStep *s, char dim, int64_t by)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    int64_t n = array_size(x, dim), stride = array_stride(x, dim);
    Walk w = walk_of(out);

    walk_add(&w, x);
    for (; w.more; walk_next(&w)) {
        int64_t i = walk_index(&w, dim), from = (i + n - by) % n;

        out->at[w.off[0]] = x->at[w.off[1] + (from - i) * stride];
    }
}

void eval_shift(EvalStep *s)
{
    Module *m = s->e->m;
    char dim = (char)attr_int(m, s->node->attrs, AK_DIM, 0);
    AxisSet axes = attr_axes(m, s->node->attrs, AK_AXES);
    int64_t size = type_size(value_type(m, node_res(s->node, 0)), dim);

    if (array_size(step_arg(s, 0), dim) < size)
        collective(s, combine_shift);
    else
        roll(s, dim, size / axes_size(&m->mesh, axes));
}

void eval_convert(EvalStep *s)
{
    collective(s, combine_convert);
}

void eval_slice(EvalStep *s)
{
    const Module *m = s->e->m;
    AxisSet axes = attr_axes(m, s->node->attrs, AK_AXES);
    char dim = (char)attr_int(m, s->node->attrs, AK_DIM, 0);
    uint32_t i = axes_index(&m->mesh, axes, s->rank->id);
    uint32_t n = axes_size(&m->mesh, axes);
    EvalValue *piece = value_piece(step_value(s, 0), dim, i, n, false);

    if (piece)
        step_bind(s, 0, piece);
    else
        step_fault(s, "MC0750", "dimension %c cannot be divided by %u", dim,
                   n);
}

/* ---- messages ---- */

/* The rank at pipeline coordinate `peer`, otherwise like this one. */
static uint32_t peer_rank(const EvalStep *s)
{
    const Module *m = s->e->m;
    AxisSet pp = mesh_axis(m, "pp");
    uint32_t n = axes_size(&m->mesh, pp);
    uint32_t *ids = arena_array(s->e->arena, uint32_t, n);
    int64_t peer = attr_int(m, s->node->attrs, AK_PEER, 0);

    axes_members(&m->mesh, pp, s->rank->id, ids);
    mc_assert(peer >= 0 && peer < n);
    return ids[peer];
}

static EvalMessage message_of(const EvalStep *s, uint32_t from)
{
    const Module *m = s->e->m;
    AttrsId attrs = s->node->attrs;

    return (EvalMessage){
        .from = from,
        .tag = attr_int(m, attrs, AK_TAG, 0),
        .chunk = attr_int(m, attrs, AK_CHUNK, 0),
        .mb = attr_int(m, attrs, AK_MICROBATCH, s->frame->mb),
    };
}

void eval_send(EvalStep *s)
{
    EvalRank *to = &s->e->ranks[s->e->rank_index[peer_rank(s)]];
    EvalMessage msg = message_of(s, s->rank->id);

    msg.value = value_share(step_value(s, 0));
    vec_push(&to->inbox, msg);
}

static EvalValue *inbox_take(EvalRank *r, uint32_t i)
{
    EvalValue *v = r->inbox.v[i].value;

    r->inbox.n--;
    memmove(&r->inbox.v[i], &r->inbox.v[i + 1],
            sizeof *r->inbox.v * (r->inbox.n - i));
    return v;
}

void eval_recv(EvalStep *s)
{
    EvalRank *r = s->rank;
    EvalMessage want = message_of(s, peer_rank(s));
    uint32_t i = 0;

    while (i < r->inbox.n && (r->inbox.v[i].from != want.from ||
                              r->inbox.v[i].tag != want.tag))
        i++;
    if (i == r->inbox.n) {
        step_block(s);
        return;
    }
    const EvalMessage *got = &r->inbox.v[i];

    if (got->chunk != want.chunk || got->mb != want.mb)
        step_fault(s, "MC0753", "receives chunk %lld, microbatch %lld instead",
                   (long long)got->chunk, (long long)got->mb);
    else
        step_bind(s, 0, inbox_take(r, i));
}
