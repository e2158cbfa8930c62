/* emit_call.c - a scan becomes CALL, its modes become strides.
 *
 *     %y, %all = call @layer %x {args=[>] results=[>, l] count=4}
 *
 *     copy  y <- x                       unless x ends here and has y's bytes
 *     call  layer count 4
 *       frame   callee's frame
 *       x       y          + 0 i         a carry stays in one place …
 *       y       y          + 0 i         … the callee respects that
 *       all     all        + bytes i     the i-th piece
 *       @q      its slot   + stride i    the layer's tensors
 */
#include "codegen/emit_priv.h"

typedef struct {
    Emit *e;
    const Node *n;
    Scan scan;
    PlanOperand list[EMIT_MAX_OPERANDS];
    uint32_t count;
} Call;

static void push(Call *c, PlanOperand o, int64_t stride)
{
    o.stride = stride;
    mc_assert(c->count < EMIT_MAX_OPERANDS);
    c->list[c->count++] = o;
}

/* Bytes of one piece of `v` cut along `dim`, which must be its outermost
 * dimension on a rank for pieces to be contiguous. */
static int64_t piece_bytes(Call *c, ValueId v, char dim)
{
    const Module *m = c->e->m;
    const Value *value = &m->values.v[v.i];
    const Type *t = type_of(m, value->type);

    for (int d = 0; t->dim[d] != dim; d++)
        if (layout_local(m, t, layout_of(m, value->layout), t->dim[d]) > 1)
            emit_fail(c->e, "pieces along %c are not contiguous", dim);
    return memplan_value_bytes(m, v) / c->scan.count;
}

static void argument(Call *c, uint32_t i)
{
    Emit *e = c->e;
    ValueId v = node_arg(e->m, c->n, i);
    int mode = call_arg_mode(e->m, c->n, i);
    ValueId to;

    if (mode == MODE_WHOLE || mode == MODE_TRIPS) {
        push(c, emit_value(e, v, PLAN_READ), 0);
    } else if (mode == MODE_CARRY) {
        to = node_res(c->n, (uint32_t)memplan_carry_result(e->m, c->n, i));
        push(c, emit_value(e, to, PLAN_READ), 0);
    } else {
        push(c, emit_value(e, v, PLAN_READ), piece_bytes(c, v, (char)mode));
    }
}

static void result(Call *c, uint32_t i)
{
    ValueId v = node_res(c->n, i);
    int mode = call_res_mode(c->e->m, c->n, i);
    bool whole = mode == MODE_WHOLE || mode == MODE_CARRY;

    push(c, emit_value(c->e, v, PLAN_WRITE),
         whole ? 0 : piece_bytes(c, v, (char)mode));
}

/* A field of the layer at which this scan begins. */
static PlanOperand first_layer(Call *c, const StateUse *use, const MemState *s)
{
    Emit *e = c->e;
    PlanOperand o;

    if (e->mem->effects.func[e->f.i].layer) {
        o = emit_state(e, use->tensor, use->field, PLAN_READ);
        o.offset += c->scan.first * s->layer_stride;
    } else {
        uint32_t slot = memplan_slot(e->m, e->pp, use->tensor,
                                     (uint32_t)c->scan.first);
        o = plan_address(emit_state_address(e, s) +
                             slot * (uint64_t)s->layer_stride,
                         (uint64_t)s->bytes, PLAN_READ);
        o.buffer = plan_state_buffer(emit_state_address(e, s));
    }
    o.offset += use->next * s->layer_stride;
    return o;
}

/* The tensors of the layer: handed on, or chosen by this scan. */
static void layer_state(Call *c, const StateUse *use)
{
    Emit *e = c->e;
    const MemState *s = memplan_state(e->mem, e->pp, use->tensor, use->field);

    if (c->scan.over == 'l')
        push(c, first_layer(c, use, s), c->scan.step * s->layer_stride);
    else
        push(c, emit_state_next(e, use->tensor, use->field, use->next,
                                PLAN_READ),
             0);
}

/* The number of the layer, counted from this function's own. */
static void layer_number(Call *c)
{
    PlanOperand o = emit_layer(c->e);
    bool scans = c->scan.over == 'l';

    o.offset += scans ? c->scan.first : 0;
    push(c, o, scans ? c->scan.step : 0);
}

static void registers(Call *c, bool last)
{
    Emit *e = c->e;
    const FuncEffects *fx = &e->mem->effects.func[c->scan.callee.i];
    int64_t host = e->mem->frame[c->scan.callee.i].host.bytes;

    for (uint32_t i = 0; i < fx->uses.n; i++)
        if (fx->uses.v[i].layered && !(last && fx->uses.v[i].next))
            layer_state(c, &fx->uses.v[i]);
    if (fx->microbatch && c->scan.over == 'm')
        push(c, plan_integer(c->scan.first), 1);
    else if (fx->microbatch)
        push(c, emit_microbatch(e), 0);
    if (fx->number)
        layer_number(c);
    if (host)
        push(c, emit_host_scratch(e, host), 0);
}

bool emit_lies_where(const Emit *e, ValueId made, ValueId old)
{
    MemPlace result = e->mem->place[made.i], param = e->mem->place[old.i];
    const int32_t *carried = e->mem->carried[e->f.i];

    if (memplan_same_place(param, result))
        return true;
    return carried && param.base == MEM_PARAM && result.base == MEM_RESULT &&
           carried[result.index] == (int32_t)param.index;
}

static void carries_begin(Call *c)
{
    Emit *e = c->e;

    for (uint32_t i = 0; i < c->n->nargs; i++) {
        ValueId from = node_arg(e->m, c->n, i), to;
        if (call_arg_mode(e->m, c->n, i) != MODE_CARRY)
            continue;
        to = node_res(c->n, (uint32_t)memplan_carry_result(e->m, c->n, i));
        if (!emit_lies_where(e, to, from))
            emit_copy(e, emit_value(e, to, PLAN_WRITE),
                      emit_value(e, from, PLAN_READ));
    }
}

/* `count` iterations from `first` on, of the callee or of what it does in the
 * last one. */
static void iterations(Emit *e, const Node *n, bool last, int64_t first,
                       int64_t count)
{
    Call c = {.e = e, .n = n, .scan = call_scan(e->m, n)};
    FuncId callee = c.scan.callee;
    int trips = call_trips(e->m, n);

    if (trips >= 0)
        push(&c, emit_value(e, node_arg(e->m, n, (uint32_t)trips), PLAN_READ),
             0);
    push(&c,
         emit_scratch(e, 0, e->mem->frame[callee.i].device.bytes,
                      PLAN_READ | PLAN_WRITE),
         0);
    for (uint32_t i = 0; i < n->nargs; i++)
        argument(&c, i);
    for (uint32_t i = 0; i < n->nres; i++)
        result(&c, i);
    registers(&c, last);
    for (uint32_t i = 0; i < c.count; i++)
        c.list[i].offset += first * c.list[i].stride;
    emit_instr(
        e,
        (PlanInstr){.op = PLAN_CALL,
                    .flags = (c.scan.reverse ? PLAN_REVERSE : 0) |
                             (trips >= 0 ? PLAN_TRIPS : 0),
                    .index = (last ? e->ending : e->segment)[callee.i] - 1,
                    .aux = (uint32_t)count},
        c.list, c.count);
}

void emit_call(Emit *e, const Node *n)
{
    Scan scan = call_scan(e->m, n);
    Call c = {.e = e, .n = n, .scan = scan};

    carries_begin(&c);
    if (!emit_has_ending(e, scan.callee)) {
        iterations(e, n, false, 0, scan.count);
        return;
    }
    if (scan.count > 1)
        iterations(e, n, false, scan.reverse, scan.count - 1);
    iterations(e, n, true, scan.reverse ? 0 : scan.count - 1, 1);
}
