/* streams.c - which nodes run beside the compute stream, and what orders them.
 *
 *     %g = read @q.grad                 %g = read @q.grad
 *     %r = all_reduce %g                event {event=0}
 *     write %r @q.gsum             →    wait {event=0, on=dp}
 *     …                                 %r = all_reduce %g !dp
 *     %s = row %r' {@square_sum}        event {event=1} !dp
 *                                       write %r @q.gsum
 *                                       …
 *                                       wait {event=1}
 *                                       %s = row %r' {@square_sum}
 *
 * A message, and a collective whose result is not needed at once, goes to the
 * stream of its axis.  It starts after the compute nodes before it and has
 * ended before the first compute node that touches what it touches, and before
 * its function returns.  Since a stream is in order, waiting for one of its
 * nodes covers those before it, and a mark of the compute stream serves all
 * asynchronous nodes up to the next compute node; no other events are made.
 *
 * Reads and writes of state are names for memory, not work, so what is pending
 * passes through them: from a value to a field, and from a field to a value.
 * So are lines that are seen as a tensor.
 */
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/streams.h"
#include "passes/streams_priv.h"

/* An asynchronous node: the number-th of its stream; number 0: none. */
typedef struct {
    Stream stream;
    uint32_t number;
} Ticket;

typedef struct {
    TensorId tensor;
    Field field;
    Ticket ticket;
} PendingState;

/* What must be inserted around a node. */
typedef struct {
    NodeId node;
    bool start;      /* async: first after compute nodes */
    Stream stream;   /* where it is asynchronous, or leaves something so */
    uint32_t number; /* there, or 0 */
    uint32_t wait[STREAM_COUNT]; /* before it: for which number of a stream */
} Step;

typedef struct {
    Module *m;
    const Effects *fx;
    FuncId f;
    StreamChoice choice;
    Ticket *value;   /* by ValueId: what is pending for it */
    StateUse *alias; /* by ValueId: the field it names, or 0 */
    Vec(PendingState) state;
    Vec(Step) steps;
    Vec(uint32_t) at[STREAM_COUNT]; /* step of each number, from 1 */
    uint32_t issued[STREAM_COUNT], waited[STREAM_COUNT];
    uint32_t packed[STREAM_COUNT]; /* number of the latest that was packed */
    bool computed[STREAM_COUNT]; /* compute nodes since it last started */
    bool attached[STREAM_COUNT]; /* has nodes that end with the function */
    bool grads_overlap;          /* as the spec asks */
    bool messages_serial;        /* likewise: compute waits for messages */
    Stream *loose; /* by FuncId: stream on which it leaves reductions, or 0 */
    bool *settled; /* by FuncId: ... and computes nothing once that started */
    bool *closed;  /* by FuncId: it may not run, so nobody can wait for it */
    bool *ordered; /* by FuncId */
    uint32_t mark; /* event of the compute stream's latest mark plus 1, or 0
                      if compute nodes follow it */
    uint32_t nevents;
} Streams;

static const Node *node_get(const Streams *s, NodeId id)
{
    return &s->m->nodes.v[id.i];
}

static NodeId def_of(const Streams *s, ValueId v)
{
    return s->m->values.v[v.i].def;
}

/* ---- what is pending ----------------------------------------------------- */

static PendingState *pending_state(Streams *s, TensorId t, Field f)
{
    for (uint32_t i = 0; i < s->state.n; i++) {
        PendingState *p = &s->state.v[i];
        if (p->tensor.i == t.i && p->field == f)
            return p;
    }
    return NULL;
}

static void state_pend(Streams *s, TensorId t, Field f, Ticket ticket)
{
    PendingState *p = pending_state(s, t, f);

    if (p)
        p->ticket = ticket;
    else
        vec_push(&s->state, ((PendingState){t, f, ticket}));
}

/* The compute stream must not pass this step before `t` has ended. */
static void require(Streams *s, Step *step, Ticket t)
{
    if (t.number <= s->waited[t.stream])
        return;
    step->wait[t.stream] = MC_MAX(step->wait[t.stream], t.number);
    s->waited[t.stream] = t.number;
}

static void require_state(Streams *s, Step *step, TensorId t, Field f)
{
    PendingState *p = pending_state(s, t, f);

    if (p)
        require(s, step, p->ticket);
}

/* The tensor, and the field whose memory the node's field lives in. */
static TensorId memory_of(const Streams *s, const Node *n, Field *out_field)
{
    TensorId t = effects_target(s->m, n, out_field);

    *out_field = effect_field(s->m, t, *out_field);
    return t;
}

static bool still_pending(const Streams *s, Ticket t)
{
    return t.number > s->waited[t.stream];
}

/* ---- one function's steps ------------------------------------------------ */

static void step_read(Streams *s, const Node *n)
{
    Field f;
    TensorId t = memory_of(s, n, &f);
    PendingState *p = pending_state(s, t, f);

    s->alias[n->res.i] = (StateUse){.tensor = t, .field = f, .reads = true};
    if (p)
        s->value[n->res.i] = p->ticket;
}

static void step_view(Streams *s, const Node *n)
{
    ValueId lines = node_arg(s->m, n, 0);

    s->alias[n->res.i] = s->alias[lines.i];
    s->value[n->res.i] = s->value[lines.i];
}

static void step_write(Streams *s, Step *step, const Node *n)
{
    Field f;
    TensorId t = memory_of(s, n, &f);
    Ticket ticket = s->value[node_arg(s->m, n, 0).i];

    if (still_pending(s, ticket))
        state_pend(s, t, f, ticket);
    else
        require_state(s, step, t, f);
}

/* What an operand names is being read, so nobody may change it yet. */
static void operand_pend(Streams *s, ValueId v, Ticket ticket)
{
    StateUse *named = &s->alias[v.i];

    if (named->tensor.i)
        state_pend(s, named->tensor, named->field, ticket);
}

/* Whether what left last can be overwritten once `n` begins: a send, or a write
 * to host memory, ends before the next one on its stream does, or its buffer
 * could not be used again until something else waits. */
static bool ends_before(const Streams *s, const Node *n, Stream stream)
{
    if (n->op == OP_SEND)
        return !s->messages_serial;
    return n->op == OP_WRITE && s->computed[stream];
}

static void step_async(Streams *s, Step *step, const Node *n, Stream stream)
{
    Ticket before = {stream, s->issued[stream]};
    Ticket ticket = {stream, ++s->issued[stream]};

    if (ends_before(s, n, stream))
        require(s, step, before);
    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId v = node_arg(s->m, n, i);
        if (s->value[v.i].stream != stream)
            require(s, step, s->value[v.i]);
        operand_pend(s, v, ticket);
    }
    for (uint32_t i = 0; i < n->nres; i++)
        s->value[node_res(n, i).i] = ticket;
    for (int i = 0; i < STREAM_COUNT; i++)
        s->computed[stream] |= step->wait[i] != 0;
    if (n->nargs && node_get(s, def_of(s, node_arg(s->m, n, 0)))->op == OP_PACK)
        s->packed[stream] = ticket.number;
    step->number = ticket.number;
    step->stream = stream;
    step->start = s->computed[stream];
    s->computed[stream] = false;
}

/* What a callee leaves running is, from here on, one node of that stream. */
static void step_leaves(Streams *s, Step *step, const Node *n)
{
    FuncId callee = call_scan(s->m, n).callee;
    Stream stream = s->loose[callee.i];
    StateUses touched = s->fx->node[step->node.i];
    Ticket ticket = {stream, s->issued[stream] + 1};

    if (stream == STREAM_COMPUTE)
        return;
    s->issued[stream]++;
    s->computed[stream] = !s->settled[callee.i];
    step->stream = stream;
    step->number = ticket.number;
    for (uint32_t i = 0; i < touched.n; i++)
        if (touched.v[i].writes && (touched.v[i].field == FIELD_GRAD ||
                                    touched.v[i].field == FIELD_GSUM))
            state_pend(s, touched.v[i].tensor, touched.v[i].field, ticket);
}

/* Nothing is computed while messages of the pipeline travel. */
static void require_messages(Streams *s, Step *step)
{
    static const Stream lines[] = {STREAM_SEND_FWD, STREAM_RECV_FWD,
                                   STREAM_SEND_BWD, STREAM_RECV_BWD};

    for (size_t i = 0; i < MC_LEN(lines); i++)
        require(s, step, (Ticket){lines[i], s->issued[lines[i]]});
}

/* What was packed has left before something else is packed, which so can lie in
 * the same place. */
static void require_packed(Streams *s, Step *step)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        require(s, step, (Ticket){(Stream)i, s->packed[i]});
}

static void step_compute(Streams *s, Step *step, const Node *n)
{
    StateUses touched = s->fx->node[step->node.i];

    if (s->messages_serial)
        require_messages(s, step);
    if (n->op == OP_PACK)
        require_packed(s, step);
    for (uint32_t i = 0; i < n->nargs; i++)
        require(s, step, s->value[node_arg(s->m, n, i).i]);
    for (uint32_t i = 0; i < touched.n; i++)
        require_state(s, step, touched.v[i].tensor, touched.v[i].field);
    for (int i = 0; i < STREAM_COUNT; i++)
        s->computed[i] = true;
    if (n->op == OP_CALL)
        step_leaves(s, step, n);
}

static void step_add(Streams *s, uint32_t pos)
{
    Step step = {.node = s->m->funcs.v[s->f.i].body.v[pos]};
    Node *n = node_of(s->m, step.node);

    if (n->op == OP_UNFLATTEN) {
        step_view(s, n);
    } else if (streams_is_name(s->m, n) && n->op == OP_READ) {
        step_read(s, n);
    } else if (streams_is_name(s->m, n)) {
        step_write(s, &step, n);
    } else if (streams_is_async(&s->choice, pos)) {
        n->stream = (uint16_t)streams_of(s->m, n);
        s->attached[n->stream] |= !streams_is_loose(&s->choice, pos);
        step_async(s, &step, n, (Stream)n->stream);
    } else {
        step_compute(s, &step, n);
    }
    if (step.number)
        vec_push(&s->at[step.stream], s->steps.n);
    vec_push(&s->steps, step);
}

/* Streams join where a function ends, but for what it leaves to the step
 * function to wait for, if it certainly runs. */
static void step_end(Streams *s)
{
    Step end = {.node = {0}};

    for (int i = 0; i < STREAM_COUNT; i++) {
        if (s->choice.step || s->closed[s->f.i] || s->attached[i] ||
            !s->issued[i])
            require(s, &end, (Ticket){(Stream)i, s->issued[i]});
        else
            s->loose[s->f.i] = (Stream)i;
    }
    s->settled[s->f.i] = !s->computed[s->loose[s->f.i]];
    vec_push(&s->steps, end);
}

/* ---- events -------------------------------------------------------------- */

static void order_insert(Streams *s, Op op, uint32_t event, Stream stream,
                         Loc loc)
{
    Attr list[] = {attr_of_int(AK_EVENT, event), attr_of_int(AK_ON, stream)};
    AttrsId attrs = attrs_intern(s->m, list, op == OP_WAIT ? 2 : 1);
    NodeId n = node_new(s->m, s->f, op, NULL, 0, attrs, NULL, 0, loc);

    node_of(s->m, n)->stream = (uint16_t)stream;
}

/* Whether two messages on one stream follow each other with nothing between. */
static bool runs_on(const Streams *s, const Step *step, const Step *next)
{
    const Node *n = node_get(s, step->node), *m = node_get(s, next->node);

    return next->number && !next->start && streams_is_message(n) &&
           streams_is_message(m) && n->stream == m->stream;
}

/* The last of a run of messages that are started together. */
static uint32_t run_end(const Streams *s, uint32_t at)
{
    while (at + 1 < s->steps.n &&
           runs_on(s, &s->steps.v[at], &s->steps.v[at + 1]))
        at++;
    return at;
}

/* Events by the step after which they are marked; 0: none, else plus 1. */
static uint32_t *events_number(Streams *s)
{
    uint32_t *event = arena_array(s->m->arena, uint32_t, s->steps.n);

    for (uint32_t i = 0; i < s->steps.n; i++)
        for (int st = 0; st < STREAM_COUNT; st++) {
            uint32_t number = s->steps.v[i].wait[st], at;
            if (!number)
                continue;
            at = run_end(s, s->at[st].v[number - 1]);
            if (!event[at])
                event[at] = ++s->nevents;
        }
    return event;
}

static void waits_insert(Streams *s, const uint32_t *event, const Step *step,
                         Loc loc)
{
    for (int st = 0; st < STREAM_COUNT; st++) {
        uint32_t at;
        if (!step->wait[st])
            continue;
        at = run_end(s, s->at[st].v[step->wait[st] - 1]);
        order_insert(s, OP_WAIT, event[at] - 1, STREAM_COMPUTE, loc);
    }
}

static bool has_waits(const Step *step)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        if (step->wait[i])
            return true;
    return false;
}

/* Lets a stream start after all compute nodes so far; their mark serves every
 * stream that starts before the next one. */
static void start_insert(Streams *s, Stream stream, Loc loc)
{
    if (!s->mark) {
        s->mark = ++s->nevents;
        order_insert(s, OP_EVENT, s->mark - 1, STREAM_COMPUTE, loc);
    }
    order_insert(s, OP_WAIT, s->mark - 1, stream, loc);
}

static void step_insert(Streams *s, const uint32_t *event, uint32_t i)
{
    const Step *step = &s->steps.v[i];
    const Node *n = node_get(s, step->node);
    Stream stream = step->stream;
    Loc loc = n->loc;

    if (has_waits(step) ||
        (n->stream == STREAM_COMPUTE && !streams_is_name(s->m, n)))
        s->mark = 0;
    waits_insert(s, event, step, loc);
    if (step->start)
        start_insert(s, stream, loc);
    if (step->node.i)
        vec_push(&func_of(s->m, s->f)->body, step->node);
    if (event[i])
        order_insert(s, OP_EVENT, event[i] - 1, stream, loc);
}

/* ---- functions ----------------------------------------------------------- */

static void func_begin(Streams *s, FuncId f)
{
    s->f = s->choice.f = f;
    s->choice.step = false;
    for (uint32_t i = 0; i < s->m->entry.n; i++)
        s->choice.step |= s->m->entry.v[i].i == f.i;
    s->steps.n = s->state.n = s->mark = 0;
    memset(s->issued, 0, sizeof s->issued);
    memset(s->waited, 0, sizeof s->waited);
    memset(s->attached, 0, sizeof s->attached);
    memset(s->packed, 0, sizeof s->packed);
    for (int i = 0; i < STREAM_COUNT; i++) {
        s->computed[i] = true;
        s->at[i].n = 0;
    }
}

static void func_order(Streams *s, FuncId f);

static void callees_order(Streams *s, FuncId f)
{
    for (uint32_t pos = 0; pos < s->m->funcs.v[f.i].body.n; pos++) {
        const Node *n = node_get(s, s->m->funcs.v[f.i].body.v[pos]);
        if (n->op == OP_CALL)
            func_order(s, call_scan(s->m, n).callee);
    }
}

/* A function after those it calls, of which it must know what they leave. */
static void func_order(Streams *s, FuncId f)
{
    uint32_t *event;

    if (s->ordered[f.i] || s->m->funcs.v[f.i].kind != FUNC_GRAPH)
        return;
    s->ordered[f.i] = true;
    callees_order(s, f);
    if (s->grads_overlap)
        streams_sink_sums(s->m, s->fx, f);
    streams_delay_products(s->m, s->fx, f);
    streams_hoist_products(s->m, s->fx, f, s->choice.serial);
    streams_fetch_early(s->m, f);
    func_begin(s, f);
    for (uint32_t pos = 0; pos < s->m->funcs.v[f.i].body.n; pos++)
        step_add(s, pos);
    step_end(s);
    event = events_number(s);
    vec_free(&func_of(s->m, f)->body);
    for (uint32_t i = 0; i < s->steps.n; i++)
        step_insert(s, event, i);
}

static void mark_closed(Streams *s, FuncId f)
{
    for (uint32_t i = 0; i < s->m->funcs.v[f.i].body.n; i++) {
        const Node *n = node_get(s, s->m->funcs.v[f.i].body.v[i]);

        if (n->op == OP_CALL && call_trips(s->m, n) >= 0)
            s->closed[call_scan(s->m, n).callee.i] = true;
    }
}

/* As Megatron-LM has it: at least enough to keep a ring of dp ranks busy. */
static int64_t bucket_elements(const Spec *spec)
{
    int64_t least = 40000000;

    if (spec && spec->parallel.bucket_elements)
        return spec->parallel.bucket_elements;
    return spec ? MC_MAX(least, 1000000 * spec->derived.dense_dp) : least;
}

bool pass_streams(Module *m, const Spec *spec)
{
    Arena *a = arena_new();
    Effects fx;
    Streams s = {.m = m, .fx = &fx, .choice = {.m = m},
                 .grads_overlap = !spec || spec->parallel.overlap.grads,
                 .messages_serial = spec && !spec->parallel.overlap.p2p};

    s.choice.serial[STREAM_TP] = spec && !spec->parallel.overlap.tp;
    s.choice.serial[STREAM_EP] = spec && !spec->parallel.overlap.ep;
    effects_compute(a, m, &fx);
    for (uint32_t i = 0; s.grads_overlap && i < m->entry.n; i++)
        streams_overlap_gradients(m, m->entry.v[i], &fx);
    for (uint32_t f = 1; f < m->funcs.n; f++)
        if (m->funcs.v[f].kind == FUNC_GRAPH)
            streams_split_blocks(m, (FuncId){f});
    effects_compute(a, m, &fx);
    s.value = arena_array(a, Ticket, m->values.n);
    s.alias = arena_array(a, StateUse, m->values.n);
    s.loose = arena_array(a, Stream, m->funcs.n);
    s.settled = arena_array(a, bool, m->funcs.n);
    s.ordered = arena_array(a, bool, m->funcs.n);
    s.closed = arena_array(a, bool, m->funcs.n);
    for (uint32_t f = 1; f < m->funcs.n; f++)
        mark_closed(&s, (FuncId){f});
    for (uint32_t f = 1; f < m->funcs.n; f++)
        func_order(&s, (FuncId){f});
    for (uint32_t f = 1; f < m->funcs.n; f++)
        streams_fill_buckets(m, (FuncId){f}, bucket_elements(spec));
    vec_free(&s.steps);
    vec_free(&s.state);
    for (int i = 0; i < STREAM_COUNT; i++)
        vec_free(&s.at[i]);
    arena_free(a);
    return true;
}
