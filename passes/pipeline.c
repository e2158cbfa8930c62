/* pipeline.c - one program per pipeline rank.
 *
 *   step                      main.0                  main.1
 *     scan micro        →       y.0 = stage0.fwd        x.0 = recv
 *     optimizer                 send y.0                d.0, s = stage1.fwd x.0
 *                               y.1 = stage0.fwd        dx.0 = stage1.bwd d.0
 *                               …                       send dx.0 …
 *                               optimizer of its own    optimizer of its own
 *                               tensors                 tensors
 *
 * A rank runs the actions of its schedule in order.  What an action's call uses
 * was computed here, comes from the batch, or is received; what another rank's
 * call uses is sent.  All of that is read off micro's def-use chains.
 *
 * A receive is posted before the action during which its message is sent, at
 * the schedule's own times.  So every send finds its receiver ready, in the
 * order in which messages are sent, and no schedule can block on one.
 *
 * Programs besides the step (see Module.programs) come from the same parts: a
 * step of fewer microbatches follows a schedule of its own, an evaluation runs
 * the forwards and copies what the loss needs.
 *
 * The second half of the step is copied with what this rank does not hold left
 * out: a node without its operand disappears, a sum keeps its other term.  The
 * norm's total is then a sum over stages and is reduced over pp; so is the
 * gradient of a tied table, over its two copies.
 */
#include "passes/forward.h"

#include <stdlib.h>

/* A value that another rank sends to this one. */
typedef struct {
    ValueId value;
    const PipeStage *to;
    uint32_t microbatch;
    double sent; /* when, by the simulated schedule */
    uint32_t number;
} Arrival;

typedef struct {
    Module *m;
    const Schedule *schedule;
    const ScheduleTimes *times;
    FuncId micro, step;
    uint32_t pp;       /* this rank's coordinate */
    Forward *forward;   /* of a schedule of forwards alone */
    const bool *wanted; /* by NodeId: what is copied of the step; NULL: all */
    FuncId main;
    bool *held;        /* by TensorId */
    bool embedding;    /* one of its stages embeds */
    uint32_t base, count; /* micro's call results: values base … base+count */
    ValueId *local;    /* [microbatch][value - base]: the value here, or 0 */
    ValueId *batch;    /* [microbatch][parameter of micro] */
    Vec(Arrival) arrivals;
    ValueMap map;      /* step's values -> main's */
} Pipe;

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

static ValueId named_like(Pipe *p, ValueId made, ValueId like)
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
    *slot = named_like(p, node_res(node_of(p->m, n), 0), v);
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

    return named_like(p, node_res(node_of(p->m, n), 0), v);
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

static void post_receive(Pipe *p, const Arrival *a)
{
    ValueId *slot = local_slot(p, a->microbatch, a->value);

    if (slot->i == 0)
        *slot = receive(p, a->value, a->to, a->microbatch);
}

/* ---- what a rank holds --------------------------------------------------- */

static void hold_tensors(Pipe *p, FuncId f)
{
    const Func *fn = func_of(p->m, f);

    for (uint32_t i = 0; i < fn->body.n; i++) {
        const Node *n = node_of(p->m, fn->body.v[i]);
        if (n->op == OP_CALL)
            hold_tensors(p, call_scan(p->m, n).callee);
        if (attr_find(p->m, n->attrs, AK_TENSOR))
            p->held[attr_tensor(p->m, n->attrs, AK_TENSOR).i] = true;
    }
}

static void hold_stages(Pipe *p)
{
    for (uint32_t i = 0; i < p->m->stages.n; i++) {
        const PipeStage *s = &p->m->stages.v[i];
        if (s->pp != p->pp)
            continue;
        p->embedding = p->embedding || s->embedding;
        hold_tensors(p, s->fwd);
        hold_tensors(p, s->bwd);
        hold_tensors(p, s->weights);
    }
}

/* ---- the rest of the step ------------------------------------------------ */

static const ValueId GONE = {UINT32_MAX};

/* Of how many layers this rank holds a tensor. */
static uint32_t layers_here(const Pipe *p, TensorId t)
{
    const Module *m = p->m;
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->stages.n; i++) {
        const PipeStage *s = &m->stages.v[i];
        if (s->pp == p->pp)
            n += tensor_layers(m, t, s->first_layer, s->nlayers);
    }
    return n;
}

/* The size of l in the results of a node here: what it reads from, or that of
 * an operand. */
static int64_t stacked_here(const Pipe *p, const Node *n)
{
    int64_t size = 1;

    if (n->op == OP_READ)
        return layers_here(p, attr_tensor(p->m, n->attrs, AK_TENSOR));
    for (uint32_t i = 0; i < n->nargs; i++)
        size = MC_MAX(size, type_size(value_type(p->m, node_arg(p->m, n, i)),
                                      'l'));
    return size;
}

static AxisSet axis(const Pipe *p, const char *name)
{
    return mesh_axis(p->m, name);
}

static ValueId over_stages(Pipe *p, Op op, ValueId v, AxisSet axes)
{
    Attr attr = attr_of_axes(AK_AXES, axes);
    const Value old = *value_of(p->m, v);
    NodeId n = node_new(p->m, p->main, op, &v, 1,
                        attrs_intern(p->m, &attr, 1), &old.type, 1,
                        node_of(p->m, old.def)->loc);

    return named_like(p, node_res(node_of(p->m, n), 0), v);
}

static bool has_hint(const Pipe *p, ValueId v, const char *hint)
{
    return strcmp(sym_text(p->m->names, value_of(p->m, v)->hint), hint) == 0;
}

/* The operand that survives if the other is gone, GONE if none does. */
static ValueId surviving(const Pipe *p, const Node *n)
{
    ValueId kept = GONE;

    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId v = vmap_get(&p->map, node_arg(p->m, n, i));
        if (v.i != GONE.i)
            kept = v;
    }
    return kept;
}

static bool lacks_operand(const Pipe *p, const Node *n)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (vmap_get(&p->map, node_arg(p->m, n, i)).i == GONE.i)
            return true;
    return false;
}

static void drop(Pipe *p, const Node *n)
{
    for (uint32_t i = 0; i < n->nres; i++)
        vmap_set(&p->map, node_res(n, i), GONE);
}

static const Tensor *state_tensor(const Pipe *p, const Node *n)
{
    TensorId t = attr_tensor(p->m, n->attrs, AK_TENSOR);

    return attr_find(p->m, n->attrs, AK_TENSOR) ? &p->m->tensors.v[t.i] : NULL;
}

/* Copies a node with this rank's number of layers. */
static NodeId copy_here(Pipe *p, NodeId id)
{
    NodeId copy = node_copy(p->m, p->main, id, &p->map);
    const Node n = *node_of(p->m, copy);
    int64_t layers = stacked_here(p, &n);

    for (uint32_t i = 0; i < n.nres; i++) {
        Value *v = value_of(p->m, node_res(&n, i));
        if (type_dim(type_of(p->m, v->type), 'l') >= 0)
            v->type = type_resized(p->m, v->type, 'l', layers);
    }
    if (attr_find(p->m, n.attrs, AK_COUNT) && n.op != OP_CALL) {
        AttrsId attrs =
            attrs_with(p->m, n.attrs, attr_of_int(AK_COUNT, layers));
        node_of(p->m, copy)->attrs = attrs;
    }
    return copy;
}

/* The gradient of a tied table is also a sum over its two copies. */
static void settle_tied(Pipe *p, NodeId copy)
{
    const Node n = *node_of(p->m, copy);
    const Tensor *t = state_tensor(p, &n);
    AxisSet tied = t ? t->tied : 0;
    int64_t field = attr_int(p->m, n.attrs, AK_FIELD, -1);

    if (tied && n.op == OP_WRITE && field == FIELD_GSUM) {
        ValueId v = node_arg(p->m, &n, 0);
        Node *def = node_of(p->m, value_of(p->m, v)->def);
        if (def->op == OP_ALL_REDUCE) {
            AxisSet all = attr_axes(p->m, def->attrs, AK_AXES) | tied;
            AttrsId attrs = attrs_with(p->m, def->attrs,
                                       attr_of_axes(AK_AXES, all));
            node_of(p->m, value_of(p->m, v)->def)->attrs = attrs;
        } else {
            func_of(p->m, p->main)->body.n--;
            v = over_stages(p, OP_ALL_REDUCE, v, tied);
            p->m->args.v[n.arg] = v;
            vec_push(&func_of(p->m, p->main)->body, copy);
        }
    }
}

/* The norm counts a tied table on the stage of its embedding only, and is a
 * sum over all stages; some metrics are their maximum. */
static void settle_norm(Pipe *p, const Node *old)
{
    AxisSet pp = axis(p, "pp");

    for (uint32_t i = 0; i < old->nres && pp; i++) {
        ValueId was = node_res(old, i);
        if (has_hint(p, was, "tied") && !p->embedding)
            vmap_set(&p->map, was, GONE);
        if (has_hint(p, was, "total"))
            vmap_set(&p->map, was,
                     over_stages(p, OP_ALL_REDUCE, vmap_get(&p->map, was), pp));
        if (has_hint(p, was, "highest"))
            vmap_set(&p->map, was,
                     over_stages(p, OP_ALL_REDUCE_MAX, vmap_get(&p->map, was),
                                 pp));
    }
}

static void copy_step_node(Pipe *p, NodeId id)
{
    const Node n = *node_of(p->m, id);
    const Tensor *t = state_tensor(p, &n);

    if (t && !p->held[attr_tensor(p->m, n.attrs, AK_TENSOR).i]) {
        drop(p, &n);
    } else if (n.op == OP_ADD && lacks_operand(p, &n)) {
        vmap_set(&p->map, node_res(&n, 0), surviving(p, &n));
        if (surviving(p, &n).i != GONE.i)
            settle_norm(p, &n);
    } else if (lacks_operand(p, &n)) {
        drop(p, &n);
    } else {
        settle_tied(p, copy_here(p, id));
        settle_norm(p, &n);
    }
}

static void run_actions(Pipe *p)
{
    const double *end = p->times->end[p->pp];
    uint32_t n = p->schedule->ranks[p->pp].n, next = 0;
    const Action *actions = p->schedule->ranks[p->pp].v;

    for (uint32_t i = 0; i < n; i++)
        expect_messages(p, &actions[i]);
    if (p->arrivals.n)
        qsort(p->arrivals.v, p->arrivals.n, sizeof *p->arrivals.v, by_time);
    for (uint32_t i = 0; i < n; i++) {
        while (next < p->arrivals.n && p->arrivals.v[next].sent < end[i])
            post_receive(p, &p->arrivals.v[next++]);
        run_action(p, &actions[i]);
    }
}

/* main.0, eval.0; of a step with 4 microbatches, main.0.m4. */
static const char *main_name(const Pipe *p)
{
    const char *kind = p->schedule->forward ? "eval" : "main";

    if (p->schedule->forward || p->schedule->microbatches == p->m->microbatches)
        return arena_printf(p->m->arena, "%s.%u", kind, p->pp);
    return arena_printf(p->m->arena, "%s.%u.m%u", kind, p->pp,
                        p->schedule->microbatches);
}

static FuncId build_main(Pipe *p)
{
    Func step = *func_of(p->m, p->step);

    p->main = func_new(p->m, main_name(p), FUNC_GRAPH, step.loc);
    for (uint32_t i = 0; i < step.body.n; i++) {
        if (node_of(p->m, step.body.v[i])->op == OP_CALL)
            run_actions(p);
        else if (!p->wanted || p->wanted[step.body.v[i].i])
            copy_step_node(p, step.body.v[i]);
    }
    return p->main;
}

/* ---- what an evaluation needs of the step -------------------------------- */

static bool clears_metric(const Module *m, const Node *n)
{
    return n->op == OP_CLEAR &&
           attr_int(m, n->attrs, AK_FIELD, FIELD_GRAD) == FIELD_ACC;
}

static bool is_loss(const Module *m, const Node *n)
{
    return n->op == OP_METRIC &&
           strcmp(sym_text(m->names, attr_sym(m, n->attrs, AK_WHAT)),
                  "loss") == 0;
}

/* The loss, what leads to it, and the clearing of what forwards add to. */
static bool *loss_nodes(Arena *a, const Module *m, FuncId step)
{
    const Func *f = &m->funcs.v[step.i];
    bool *wanted = arena_array(a, bool, m->nodes.n);

    for (uint32_t i = f->body.n; i-- > 0;) {
        NodeId id = f->body.v[i];
        const Node *n = &m->nodes.v[id.i];
        wanted[id.i] |= is_loss(m, n) || clears_metric(m, n);
        for (uint32_t k = 0; wanted[id.i] && k < n->nargs; k++)
            wanted[m->values.v[node_arg(m, n, k).i].def.i] = true;
    }
    return wanted;
}

/* ---- the pass ------------------------------------------------------------ */

static void value_range(Pipe *p)
{
    const Func *micro = func_of(p->m, p->micro);
    uint32_t end = 0;

    p->base = UINT32_MAX;
    for (uint32_t i = 0; i < micro->body.n; i++) {
        const Node *n = node_of(p->m, micro->body.v[i]);
        if (n->nres == 0)
            continue;
        p->base = MC_MIN(p->base, n->res.i);
        end = MC_MAX(end, n->res.i + n->nres);
    }
    p->count = end - p->base;
}

static FuncId rank_program(Module *m, const Schedule *schedule,
                           const ScheduleTimes *times, uint32_t pp,
                           Forward *forward)
{
    Arena *scratch = arena_new();
    Pipe p = {.m = m, .schedule = schedule, .times = times, .pp = pp,
              .step = m->entry.v[0]};
    uint32_t mbs = schedule->microbatches;
    FuncId main;

    p.micro = func_find(m, sym_intern(m->names, "micro"));
    value_range(&p);
    p.held = arena_array(scratch, bool, m->tensors.n);
    p.local = arena_array(scratch, ValueId, (size_t)mbs * p.count);
    p.batch = arena_array(scratch, ValueId,
                          (size_t)mbs * func_of(m, p.micro)->params.n);
    hold_stages(&p);
    p.forward = schedule->forward ? forward : NULL;
    if (p.forward)
        p.wanted = loss_nodes(scratch, m, p.step);
    main = build_main(&p);
    vmap_free(&p.map);
    vec_free(&p.arrivals);
    arena_free(scratch);
    return main;
}

typedef Vec(FuncId) Mains;

/* One program for each pipeline rank; false if its schedule does not end. */
static bool add_programs(Module *m, const Spec *spec,
                         const SideProgram *program, Mains *mains)
{
    static const ScheduleCosts unit = {1, 1, 1, 0};
    Arena *scratch = arena_new();
    Spec of = *spec;
    Forward *forward = forward_new(scratch, m);
    Schedule *schedule;
    ScheduleTimes times;
    const char *why = NULL;
    bool ends;

    of.derived.microbatches = program->microbatches;
    schedule = schedule_make(scratch, &of);
    if (program->forward)
        schedule_keep_forward(schedule);
    ends = schedule_simulate(scratch, schedule, unit, &times, &why);
    for (uint32_t pp = 0; ends && pp < schedule->pp; pp++)
        vec_push(mains, rank_program(m, schedule, &times, pp, forward));
    if (!ends)
        diag_error(m->diag, spec_loc(spec, "parallel.schedule"), "MC0235",
                   "the schedule cannot be carried out: %s", why);
    schedule_free(schedule);
    forward_free(forward);
    arena_free(scratch);
    return ends;
}

/* Programs for every rank take the place of the step. */
bool pass_pipeline(Module *m, const Spec *spec)
{
    const SideProgram step = {m->microbatches, false};
    Mains mains = {0};
    bool ok = add_programs(m, spec, &step, &mains);

    for (uint32_t k = 0; ok && k < m->programs.n; k++)
        ok = add_programs(m, spec, &m->programs.v[k], &mains);
    m->entry.n = ok ? 0 : m->entry.n;
    for (uint32_t i = 0; ok && i < mains.n; i++)
        vec_push(&m->entry, mains.v[i]);
    vec_free(&mains);
    if (ok)
        clean_dead(m);
    return ok;
}
