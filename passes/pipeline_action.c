/* pipeline_action.c - the actions of one rank, and the messages around them.
 *
 *     F 0 of chunk 1      →      %x = recv {microbatch=0}      posted early
 *                                %y = call @stage1.fwd %x      {over=m first=0}
 *                                send %y {microbatch=0}
 *
 * What an action's call uses was computed here, comes from the batch, or is
 * received; what another rank's call uses is sent.  All of that is read off
 * micro's def-use chains.
 *
 * A receive is posted before the action during which its message is sent, at
 * the schedule's own times.  So every send finds its receiver ready, in the
 * order in which messages are sent, and no schedule can block on one.
 *
 * If messages do not overlap, a rank stands still between two actions until
 * what the first has sent is received, and what has been sent by the begin of
 * the second is here.  It waits for nothing that comes later in the schedule's
 * times, neither at its own place nor at others', so again nobody blocks.
 */
#include "passes/pipeline_priv.h"

#include <stdlib.h>

/* ---- micro's calls ------------------------------------------------------- */

/* The call of micro that runs a stage's forward or backward. */
static NodeId stage_call(const Pipe *p, FuncId f)
{
    const Func *micro = &p->m->funcs.v[p->micro.i];

    for (uint32_t i = 0; i < micro->body.n; i++) {
        const Node *n = &p->m->nodes.v[micro->body.v[i].i];
        if (n->op == OP_CALL && call_scan(p->m, n).callee.i == f.i)
            return micro->body.v[i];
    }
    mc_bug(__FILE__, __LINE__, "a stage that micro does not call");
}

static const PipeStage *stage_of_func(const Pipe *p, FuncId f)
{
    for (uint32_t i = 0; i < p->m->stages.n; i++) {
        const PipeStage *s = &p->m->stages.v[i];
        if (s->fwd.i == f.i || s->bwd.i == f.i || s->weights.i == f.i)
            return s;
    }
    mc_bug(__FILE__, __LINE__, "a function of no stage");
}

static const PipeStage *stage_at(const Pipe *p, uint32_t pp, uint32_t chunk)
{
    for (uint32_t i = 0; i < p->m->stages.n; i++)
        if (p->m->stages.v[i].pp == pp && p->m->stages.v[i].chunk == chunk)
            return &p->m->stages.v[i];
    mc_bug(__FILE__, __LINE__, "an action of no stage");
}

/* The stage that computes one of micro's values. */
static FuncId producer(const Pipe *p, ValueId v)
{
    return call_scan(p->m, node_of(p->m, value_of(p->m, v)->def)).callee;
}

/* Messages of each direction and consumer chunk keep an order of their own. */
static AttrsId message_attrs(Pipe *p, FuncId from, const PipeStage *to,
                             uint32_t peer, uint32_t microbatch)
{
    bool backward = stage_of_func(p, from)->bwd.i == from.i;
    Attr list[] = {attr_of_int(AK_MICROBATCH, microbatch),
                   attr_of_int(AK_PEER, peer),
                   attr_of_int(AK_CHUNK, to->chunk),
                   attr_of_int(AK_TAG, 2 * to->chunk + backward)};

    return attrs_intern(p->m, list, MC_LEN(list));
}

/* ---- one action ---------------------------------------------------------- */

static ValueId *local_slot(Pipe *p, uint32_t mb, ValueId v)
{
    return &p->local[mb * p->count + v.i - p->base];
}

ValueId pipeline_named_like(Pipe *p, ValueId made, ValueId like)
{
    value_of(p->m, made)->layout = value_of(p->m, like)->layout;
    value_of(p->m, made)->name = value_of(p->m, like)->name;
    return made;
}

static ValueId load_batch(Pipe *p, uint32_t param, uint32_t mb)
{
    const Func *micro = func_of(p->m, p->micro);
    ValueId v = micro->params.v[param];
    ValueId *slot = &p->batch[mb * micro->params.n + param];
    TypeId t = value_of(p->m, v)->type;
    Attr list[] = {attr_of_sym(AK_WHAT, value_of(p->m, v)->name),
                   attr_of_int(AK_MICROBATCH, mb)};
    NodeId n;

    if (slot->i)
        return *slot;
    n = node_new(p->m, p->main, OP_BATCH, NULL, 0,
                 attrs_intern(p->m, list, 2), &t, 1,
                 func_of(p->m, p->micro)->loc);
    *slot = pipeline_named_like(p, node_res(node_of(p->m, n), 0), v);
    return *slot;
}

static ValueId receive(Pipe *p, ValueId v, const PipeStage *to, uint32_t mb)
{
    FuncId from = producer(p, v);
    TypeId t = value_of(p->m, v)->type;
    AttrsId attrs =
        message_attrs(p, from, to, stage_of_func(p, from)->pp, mb);
    NodeId n = node_new(p->m, p->main, OP_RECV, NULL, 0, attrs, &t, 1,
                        func_of(p->m, from)->loc);

    return pipeline_named_like(p, node_res(node_of(p->m, n), 0), v);
}

static ValueId operand(Pipe *p, ValueId v, uint32_t mb)
{
    const Func *micro = func_of(p->m, p->micro);

    for (uint32_t i = 0; i < micro->params.n; i++)
        if (micro->params.v[i].i == v.i)
            return load_batch(p, i, mb);
    mc_assert(local_slot(p, mb, v)->i);
    return *local_slot(p, mb, v);
}

/* Sends a result to the rank whose call uses it. */
static void send_result(Pipe *p, ValueId v, ValueId here, uint32_t mb)
{
    Func micro = *func_of(p->m, p->micro);

    for (uint32_t i = 0; i < micro.body.n; i++) {
        const Node n = *node_of(p->m, micro.body.v[i]);
        FuncId callee = call_scan(p->m, &n).callee;
        const PipeStage *to = stage_of_func(p, callee);
        bool runs = !p->forward || to->fwd.i == callee.i;
        for (uint32_t k = 0; runs && k < n.nargs; k++) {
            if (node_arg(p->m, &n, k).i != v.i || to->pp == p->pp)
                continue;
            AttrsId attrs =
                message_attrs(p, producer(p, v), to, to->pp, mb);
            node_new(p->m, p->main, OP_SEND, &here, 1, attrs, NULL, 0, n.loc);
        }
    }
}

/* 0: there is nothing to run. */
static NodeId action_call(const Pipe *p, const Action *a)
{
    const PipeStage *s = stage_at(p, p->pp, a->chunk);
    FuncId f = a->kind == ACTION_F   ? s->fwd
               : a->kind == ACTION_B ? s->bwd
                                     : s->weights;

    return f.i ? stage_call(p, f) : (NodeId){0};
}

/* Whether the forward of another stage takes a value in. */
static bool goes_on(const Pipe *p, ValueId v)
{
    const Func *micro = func_of(p->m, p->micro);

    for (uint32_t i = 0; i < micro->body.n; i++) {
        const Node *n = node_of(p->m, micro->body.v[i]);
        FuncId callee = call_scan(p->m, n).callee;
        if (stage_of_func(p, callee)->fwd.i != callee.i)
            continue;
        for (uint32_t k = 0; k < n->nargs; k++)
            if (node_arg(p->m, n, k).i == v.i)
                return true;
    }
    return false;
}

static void call_forward(Pipe *p, NodeId call, ValueMap *map)
{
    const Node n = *node_of(p->m, call);
    bool keep[IR_MAX_VALUES];

    for (uint32_t i = 0; i < n.nres; i++)
        keep[i] = goes_on(p, node_res(&n, i));
    forward_call(p->forward, p->main, call, keep, map);
}

/* A scan over one microbatch, which so knows its number. */
static void set_microbatch(Pipe *p, NodeId call, uint32_t mb)
{
    AttrsId attrs = attrs_with(p->m, node_of(p->m, call)->attrs,
                               attr_of_int(AK_OVER, 'm'));

    attrs = attrs_with(p->m, attrs, attr_of_int(AK_FIRST, mb));
    node_of(p->m, call)->attrs = attrs;
}

static void run_action(Pipe *p, const Action *a)
{
    NodeId call = action_call(p, a);
    const Node n = *node_of(p->m, call);
    ValueMap map = {0};

    if (call.i == 0)
        return;
    for (uint32_t i = 0; i < n.nargs; i++) {
        ValueId v = node_arg(p->m, &n, i);
        vmap_set(&map, v, operand(p, v, a->microbatch));
    }
    if (p->forward)
        call_forward(p, call, &map);
    else
        set_microbatch(p, node_copy(p->m, p->main, call, &map), a->microbatch);
    for (uint32_t i = 0; i < n.nres; i++) {
        ValueId v = node_res(&n, i), here = vmap_get(&map, v);
        if (here.i != v.i)
            *local_slot(p, a->microbatch, v) = here;
    }
    for (uint32_t i = 0; i < n.nres; i++) {
        ValueId v = node_res(&n, i), here = vmap_get(&map, v);
        if (here.i != v.i)
            send_result(p, v, here, a->microbatch);
    }
    vmap_free(&map);
}

/* ---- messages to come ---------------------------------------------------- */

/* When the stage that computes `v` has done so. */
static double sent_at(const Pipe *p, ValueId v, uint32_t mb)
{
    FuncId f = producer(p, v);
    const PipeStage *s = stage_of_func(p, f);
    size_t i = (size_t)(s - p->m->stages.v) * p->schedule->microbatches + mb;

    return s->fwd.i == f.i ? p->times->forward[i] : p->times->backward[i];
}

static void expect_messages(Pipe *p, const Action *a)
{
    const Node *n = node_of(p->m, action_call(p, a));

    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId v = node_arg(p->m, n, i);
        if (value_of(p->m, v)->def.i == 0 ||
            stage_of_func(p, producer(p, v))->pp == p->pp)
            continue;
        vec_push(&p->arrivals,
                 ((Arrival){v, stage_at(p, p->pp, a->chunk), a->microbatch,
                            sent_at(p, v, a->microbatch), p->arrivals.n}));
    }
}

static int by_time(const void *left, const void *right)
{
    const Arrival *a = left, *b = right;

    if (a->sent != b->sent)
        return a->sent < b->sent ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* Whether the receive stands before action number `i`. */
static bool is_due(const Pipe *p, const Arrival *a, uint32_t i)
{
    return p->overlap ? a->sent < p->times->end[p->pp][i]
                      : a->sent <= p->times->begin[p->pp][i];
}

static void post_receive(Pipe *p, const Arrival *a)
{
    ValueId *slot = local_slot(p, a->microbatch, a->value);

    if (slot->i == 0)
        *slot = receive(p, a->value, a->to, a->microbatch);
}

/* ---- all of them --------------------------------------------------------- */

void pipeline_actions(Pipe *p)
{
    uint32_t n = p->schedule->ranks[p->pp].n, next = 0;
    const Action *actions = p->schedule->ranks[p->pp].v;

    for (uint32_t i = 0; i < n; i++)
        expect_messages(p, &actions[i]);
    if (p->arrivals.n)
        qsort(p->arrivals.v, p->arrivals.n, sizeof *p->arrivals.v, by_time);
    for (uint32_t i = 0; i < n; i++) {
        while (next < p->arrivals.n && is_due(p, &p->arrivals.v[next], i))
            post_receive(p, &p->arrivals.v[next++]);
        run_action(p, &actions[i]);
    }
}
