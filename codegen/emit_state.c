/* emit_state.c - tensors, their lines, and the host.
 *
 * memplan lets most reads and writes happen in place, and lines lie where what
 * they are of lies; a copy is emitted where it could not.
 */
#include "codegen/emit_priv.h"

static bool in_state(const Emit *e, ValueId v, TensorId t, Field f)
{
    MemPlace place = e->mem->place[v.i];

    return place.base == MEM_STATE && place.index == t.i &&
           place.field == effect_field(e->m, t, f);
}

void emit_read(Emit *e, const Node *n)
{
    Field f;
    TensorId t = effects_target(e->m, n, &f);

    PlanOperand to, from;

    if (in_state(e, node_res(n, 0), t, f))
        return;
    to = emit_value(e, node_res(n, 0), PLAN_WRITE);
    from = emit_state_next(e, t, f,
                           (int)attr_int(e->m, n->attrs, AK_NEXT, 0),
                           PLAN_READ);
    from.bytes = to.bytes; /* without the zeros behind a flat tensor */
    emit_copy(e, to, from);
}

void emit_write(Emit *e, const Node *n)
{
    Field f;
    TensorId t = effects_target(e->m, n, &f);
    ValueId v = node_arg(e->m, n, 0);

    if (!in_state(e, v, t, f))
        emit_copy(e, emit_state(e, t, f, PLAN_WRITE),
                  emit_value(e, v, PLAN_READ));
}

/* Copies what lies elsewhere than it should, as far as both have bytes. */
static void settle(Emit *e, ValueId to, ValueId from)
{
    PlanOperand a = emit_value(e, to, PLAN_WRITE);
    PlanOperand b = emit_value(e, from, PLAN_READ);

    if (memplan_same_place(e->mem->place[to.i], e->mem->place[from.i]))
        return;
    a.bytes = b.bytes = MC_MIN(a.bytes, b.bytes);
    emit_copy(e, a, b);
}

/* Zeros fill up the last line. */
void emit_flatten(Emit *e, const Node *n)
{
    PlanOperand rest = emit_value(e, n->res, PLAN_WRITE);
    uint64_t front =
        (uint64_t)memplan_value_bytes(e->m, node_arg(e->m, n, 0));

    settle(e, n->res, node_arg(e->m, n, 0));
    rest.offset += (int64_t)front;
    rest.bytes -= front;
    if (rest.bytes)
        emit_fill(e, rest, 0);
}

void emit_unflatten(Emit *e, const Node *n)
{
    settle(e, n->res, node_arg(e->m, n, 0));
}

/* To host memory, or from there: an `offload` or `fetch`.  The outermost
 * dimension is not split, so its indices, and the pieces that a scan cuts, lie
 * one behind the other. */
void emit_move(Emit *e, const Node *n)
{
    PlanOperand from = emit_value(e, node_arg(e->m, n, 0), PLAN_READ);
    int64_t index = attr_int(e->m, n->attrs, AK_FIRST, 0) +
                    attr_int(e->m, n->attrs, AK_NEXT, 0);
    int64_t bytes = memplan_value_bytes(e->m, n->res);

    from.offset += index * bytes;
    from.bytes = (uint64_t)bytes;
    emit_copy(e, emit_value(e, n->res, PLAN_WRITE), from);
}

void emit_clear(Emit *e, const Node *n)
{
    Field f;
    TensorId t = effects_target(e->m, n, &f);

    emit_fill(e, emit_state(e, t, f, PLAN_WRITE), 0);
}

/* Its operand was added while it was made; any other is in a row program. */
void emit_accum(Emit *e, const Node *n)
{
    if (!e->mem->place[node_arg(e->m, n, 0).i].adds)
        emit_fail(e, "accum outside of a row program");
}

/* ---- the host ------------------------------------------------------------ */

static uint32_t word_in(const char *word, const char *(*name)(uint32_t),
                        uint32_t n)
{
    uint32_t i = 0;

    while (i < n && strcmp(word, name(i)) != 0)
        i++;
    return i;
}

static const char *node_what(const Emit *e, const Node *n)
{
    return sym_text(e->m->names, attr_sym(e->m, n->attrs, AK_WHAT));
}

static void host_batch(Emit *e, const Node *n)
{
    int64_t mb = attr_int(e->m, n->attrs, AK_MICROBATCH, -1);
    uint32_t which = word_in(node_what(e, n), plan_batch_name, PLAN_BATCHES);
    PlanOperand list[] = {mb < 0 ? emit_microbatch(e) : plan_integer(mb),
                          emit_value(e, node_res(n, 0), PLAN_WRITE)};

    if (which == PLAN_BATCHES)
        emit_fail(e, "there is no batch of %s", node_what(e, n));
    emit_instr(e,
               (PlanInstr){.op = PLAN_HOST,
                           .index = PLAN_HOST_LOAD_BATCH,
                           .aux = which},
               list, 2);
}

static void host_scalar(Emit *e, const Node *n)
{
    PlanOperand to = emit_value(e, node_res(n, 0), PLAN_WRITE);
    uint32_t which = word_in(node_what(e, n), plan_scalar_name, PLAN_SCALARS);

    if (which == PLAN_SCALARS)
        emit_fail(e, "the host has no scalar %s", node_what(e, n));
    emit_instr(
        e,
        (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_SCALAR, .aux = which},
        &to, 1);
}

static void host_metric(Emit *e, const Node *n)
{
    PlanOperand from = emit_value(e, node_arg(e->m, n, 0), PLAN_READ);
    uint32_t which = word_in(node_what(e, n), plan_metric_name, PLAN_METRICS);

    if (which == PLAN_METRICS)
        emit_fail(e, "there is no metric %s", node_what(e, n));
    emit_instr(
        e,
        (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_METRIC, .aux = which},
        &from, 1);
}

void emit_host(Emit *e, const Node *n)
{
    if (n->op == OP_BATCH)
        host_batch(e, n);
    else if (n->op == OP_HOST)
        host_scalar(e, n);
    else
        host_metric(e, n);
}
