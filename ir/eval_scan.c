/* eval_scan.c - the op `call`: a function run `count` times as a scan.
 *
 *     caller   %y, %all = call %x, %w {callee=@f count=3 …}
 *                 |  cut mapped arguments, pass carries on
 *     frame    iteration 0, 1, 2 (or 2, 1, 0): results kept in frame.result
 *                 |  last carry, stacked results side by side
 *     caller   next node
 *
 * A call with trips keeps to the first of its iterations.  `row` is a call that
 * runs once and passes everything whole.
 */
#include "ir/eval_priv.h"

#include <stdlib.h>

static int64_t iteration(const EvalFrame *frame)
{
    return frame->scan.reverse ? frame->trips - 1 - frame->done : frame->done;
}

static bool is_row(const Eval *e, NodeId call)
{
    return node_of(e->m, call)->op == OP_ROW;
}

static int arg_mode(const Eval *e, NodeId call, uint32_t i)
{
    return is_row(e, call) ? MODE_WHOLE
                           : call_arg_mode(e->m, node_of(e->m, call), i);
}

static int res_mode(const Eval *e, NodeId call, uint32_t i)
{
    return is_row(e, call) ? MODE_WHOLE
                           : call_res_mode(e->m, node_of(e->m, call), i);
}

/* The result that the k-th carry argument pairs with. */
static uint32_t carry_result(const Eval *e, NodeId call, uint32_t k)
{
    uint32_t i = 0;

    for (;; i++)
        if (res_mode(e, call, i) == MODE_CARRY && k-- == 0)
            return i;
}

static bool type_has(const Eval *e, ValueId v, char dim)
{
    return type_dim(value_type(e->m, v), dim) >= 0;
}

/* What the k-th carry argument is in the iteration about to start. */
static EvalValue *carried(const Eval *e, const EvalFrame *frame, uint32_t k,
                          EvalValue *initial)
{
    const Func *f = func_of(e->m, frame->func);
    int64_t before = iteration(frame) + (frame->scan.reverse ? 1 : -1);

    if (frame->done == 0)
        return initial;
    return frame->result[before * f->results.n +
                         carry_result(e, frame->call, k)];
}

static void fault(Eval *e, EvalRank *r, EvalFrame *caller, NodeId call,
                  uint32_t i)
{
    EvalStep s = {.e = e, .rank = r, .frame = caller, .id = call,
                  .node = node_of(e->m, call)};

    step_fault(&s, "MC0750", "argument %u cannot be cut into %lld pieces", i,
               (long long)vec_last(&r->stack).scan.count);
}

/* Binds the parameters of the iteration that is about to start. */
static void params_bind(Eval *e, EvalRank *r)
{
    EvalFrame *frame = &vec_last(&r->stack);
    EvalFrame *caller = &r->stack.v[r->stack.n - 2];
    const Func *f = func_of(e->m, frame->func);
    const Node *call = node_of(e->m, frame->call);
    uint32_t carries = 0;

    for (uint32_t i = 0; i < f->params.n && !e->failed; i++) {
        ValueId param = f->params.v[i];
        int mode = arg_mode(e, frame->call, i);
        EvalValue *given = caller->slot[e->slot_of[node_arg(e->m, call, i).i]];
        EvalValue **slot = &frame->slot[e->slot_of[param.i]];

        if (mode == MODE_CARRY)
            given = carried(e, frame, carries++, given);
        if (mode <= MODE_TRIPS)
            *slot = value_share(given);
        else
            *slot = value_piece(given, (char)mode, iteration(frame),
                                frame->scan.count,
                                !type_has(e, param, (char)mode));
        if (!*slot)
            fault(e, r, caller, frame->call, i);
    }
}

/* The number of a parameter, or that of all of them. */
static uint32_t param_number(const Func *f, ValueId v)
{
    uint32_t i = 0;

    while (i < f->params.n && f->params.v[i].i != v.i)
        i++;
    return i;
}

/* What parameter number `i` is `next` iterations further on; NULL if it is not
 * cut. */
static EvalValue *next_piece(const EvalStep *s, uint32_t i, int64_t next)
{
    const EvalFrame *frame = s->frame, *caller = frame - 1;
    const Func *f = func_of(s->e->m, frame->func);
    int mode;
    ValueId given;

    if (!frame->call.i || i == f->params.n)
        return NULL;
    mode = arg_mode(s->e, frame->call, i);
    given = node_arg(s->e->m, node_of(s->e->m, frame->call), i);
    if (mode == MODE_WHOLE || mode == MODE_CARRY)
        return NULL;
    return value_piece(caller->slot[s->e->slot_of[given.i]], (char)mode,
                       iteration(frame) + next, frame->scan.count,
                       !type_has(s->e, f->params.v[i], (char)mode));
}

static void bind_fetched(EvalStep *s, EvalValue *piece)
{
    if (piece)
        step_bind(s, 0, piece);
    else
        step_fault(s, "MC0750", "fetches what no scan has");
}

/* Behind the last iteration there is nothing, and nobody looks at it. */
static void fetch_next(EvalStep *s, int64_t next)
{
    ValueId v = node_arg(s->e->m, s->node, 0);
    const Func *f = func_of(s->e->m, s->frame->func);

    if (s->frame->done + 1 == s->frame->scan.count) {
        step_out(s, 0);
        return;
    }
    bind_fetched(s, next_piece(s, param_number(f, v), next));
}

void eval_fetch(EvalStep *s)
{
    const EvalValue *v = step_value(s, 0);
    const Attr *first = attr_find(s->e->m, s->node->attrs, AK_FIRST);
    int64_t next = attr_int(s->e->m, s->node->attrs, AK_NEXT, 0);

    if (next)
        fetch_next(s, next);
    else if (first)
        bind_fetched(s, value_piece(v, v->a.dim[0], first->as.i, v->a.size[0],
                                    true));
    else
        step_bind(s, 0, value_share(step_value(s, 0)));
}

static void iteration_start(Eval *e, EvalRank *r)
{
    EvalFrame *frame = &vec_last(&r->stack);

    for (uint32_t i = 0; i < e->nslots[frame->func.i]; i++) {
        value_drop(frame->slot[i]);
        frame->slot[i] = NULL;
    }
    frame->pc = 0;
    if (frame->scan.over == 'l')
        frame->layer = frame->base + frame->scan.first +
                       iteration(frame) * frame->scan.step;
    if (frame->scan.over == 'm')
        frame->mb = frame->scan.first + iteration(frame);
    params_bind(e, r);
}

/* The results of a whole call, from those of its iterations. */
static EvalValue *result_of(const Eval *e, const EvalFrame *frame, uint32_t i)
{
    const Func *f = func_of(e->m, frame->func);
    int64_t count = frame->scan.count;
    int64_t last = frame->scan.reverse ? 0 : frame->trips - 1;
    int mode = res_mode(e, frame->call, i);

    if (mode == MODE_WHOLE || mode == MODE_CARRY)
        return value_share(frame->result[last * f->results.n + i]);
    EvalValue **pieces = calloc((size_t)count, sizeof *pieces);

    if (!pieces)
        mc_oom((size_t)count * sizeof *pieces);
    for (int64_t k = 0; k < count; k++)
        pieces[k] = frame->result[k * f->results.n + i];
    EvalValue *all = value_concat(pieces, count, (char)mode);

    free(pieces);
    return all;
}

/* Pops the finished frame and binds the results in its caller. */
static void call_return(Eval *e, EvalRank *r)
{
    EvalFrame done = vec_last(&r->stack);
    EvalFrame *caller = &r->stack.v[--r->stack.n - 1];
    const Node *call = node_of(e->m, done.call);

    EvalStep s = {.e = e, .rank = r, .frame = caller, .node = call,
                  .id = done.call};

    for (uint32_t i = 0; i < call->nres; i++)
        step_bind(&s, i, result_of(e, &done, i));
    step_check(&s);
    caller->pc++;
    eval_frame_drop(e, &done);
}

void scan_advance(Eval *e, EvalRank *r)
{
    EvalFrame *frame = &vec_last(&r->stack);
    const Func *f = func_of(e->m, frame->func);
    int64_t at = iteration(frame);

    if (!frame->call.i) { /* an entry: the step is over */
        eval_frame_drop(e, frame);
        r->stack.n--;
        return;
    }
    for (uint32_t i = 0; i < f->results.n; i++)
        frame->result[at * f->results.n + i] =
            value_share(frame->slot[e->slot_of[f->results.v[i].i]]);
    if (++frame->done < frame->trips)
        iteration_start(e, r);
    else
        call_return(e, r);
}

static void call_push(EvalStep *s, Scan scan, int64_t trips)
{
    EvalFrame frame = eval_frame(s->e, scan.callee);
    size_t results = (size_t)scan.count *
                     func_of(s->e->m, scan.callee)->results.n;

    frame.layer = s->frame->layer;
    frame.base = MC_MAX(s->frame->layer, 0);
    frame.mb = s->frame->mb;
    frame.call = s->id;
    frame.scan = scan;
    frame.trips = trips;
    frame.result = calloc(results + 1, sizeof(EvalValue *));
    if (!frame.result)
        mc_oom(results * sizeof(EvalValue *));
    vec_push(&s->rank->stack, frame);
    s->outcome = STEP_PUSHED;
    iteration_start(s->e, s->rank);
}

/* No iteration: carries pass through, stacks are empty. */
static void call_nothing(EvalStep *s)
{
    uint32_t args = 0;

    for (uint32_t i = 0; i < s->node->nres; i++) {
        if (res_mode(s->e, s->id, i) != MODE_CARRY) {
            step_out(s, i);
            continue;
        }
        while (arg_mode(s->e, s->id, args) != MODE_CARRY)
            args++;
        step_bind(s, i, value_share(step_value(s, args++)));
    }
}

/* How many iterations run: all, or as many as an operand says. */
static int64_t trips_of(EvalStep *s, const Scan *scan)
{
    int i = call_trips(s->e->m, s->node);
    int64_t trips;

    if (i < 0)
        return scan->count;
    trips = num_index(s->e->opt.kind, step_arg(s, (uint32_t)i)->at[0]);
    if (trips < 0 || trips > scan->count)
        step_fault(s, "MC0756", "is to run %lld of %lld iterations",
                   (long long)trips, (long long)scan->count);
    return trips;
}

void eval_call(EvalStep *s)
{
    Scan scan = call_scan(s->e->m, s->node);
    int64_t trips;

    if (scan.over == 'm' && s->e->microbatches)
        scan.count = s->e->microbatches;
    trips = trips_of(s, &scan);
    if (s->outcome == STEP_FAULT)
        return;
    if (trips)
        call_push(s, scan, trips);
    else
        call_nothing(s);
}

void eval_row(EvalStep *s)
{
    call_push(s, (Scan){.callee = attr_func(s->e->m, s->node->attrs,
                                            AK_CALLEE),
                        .count = 1},
              1);
}
