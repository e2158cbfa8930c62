/* emit_operand.c - places become operands.
 *
 *     place                in the step function     in a segment
 *     MEM_FRAME +64        address of the frame     register "frame" + 64
 *     MEM_HOST +64         the same in host memory  register "host" + 64
 *     MEM_PARAM 2          –                        register of parameter 2
 *     MEM_RESULT 0         –                        register of result 0
 *     MEM_STATE @q.param   its address              its address, or the
 *                                                   register "@q.param" if the
 *                                                   segment runs once per layer
 *
 * Registers are numbered by a fixed rule, so caller and callee agree without a
 * table.
 */
#include "codegen/emit_priv.h"

/* ---- registers ----------------------------------------------------------- */

/* In a scan's last iteration there is no next layer. */
static bool has_register(const Emit *e, const StateUse *use)
{
    return use->layered && !(e->last && use->next);
}

static uint32_t layered_uses(const Emit *e, FuncId f)
{
    StateUses uses = e->mem->effects.func[f.i].uses;
    uint32_t n = 0;

    for (uint32_t i = 0; i < uses.n; i++)
        n += has_register(e, &uses.v[i]);
    return n;
}

static uint16_t first_state_register(const Emit *e, FuncId f)
{
    const Func *func = &e->m->funcs.v[f.i];

    return (uint16_t)(2 + func->params.n + func->results.n);
}

uint16_t emit_state_register(const Emit *e, FuncId f, TensorId t, Field field,
                             int next)
{
    StateUses uses = e->mem->effects.func[f.i].uses;
    uint16_t reg = first_state_register(e, f);

    for (uint32_t i = 0; i < uses.n; i++) {
        const StateUse *use = &uses.v[i];
        if (!has_register(e, use))
            continue;
        if (use->tensor.i == t.i && use->next == next &&
            use->field == effect_field(e->m, t, field))
            return reg;
        reg++;
    }
    mc_bug(__FILE__, __LINE__, "no register for tensor %u", t.i);
}

static const char *value_name(const Emit *e, ValueId v)
{
    return sym_text(e->m->names, e->m->values.v[v.i].name);
}

static const char *const FIELD_NAMES[FIELD_COUNT] = {
    [FIELD_PARAM] = "param", [FIELD_MASTER] = "master", [FIELD_GRAD] = "grad",
    [FIELD_GSUM] = "gsum",   [FIELD_M] = "m",           [FIELD_V] = "v",
    [FIELD_ACC] = "acc"};

static void register_states(Emit *e, FuncId f)
{
    StateUses uses = e->mem->effects.func[f.i].uses;

    for (uint32_t i = 0; i < uses.n; i++) {
        const StateUse *use = &uses.v[i];
        const char *name =
            sym_text(e->m->names, e->m->tensors.v[use->tensor.i].name);
        if (has_register(e, use))
            plan_add_reg(e->b, PLAN_ADDRESS,
                         arena_printf(e->arena, "@%s.%s%s", name,
                                      FIELD_NAMES[use->field],
                                      use->next ? ".next" : ""));
    }
}

void emit_registers(Emit *e, FuncId f)
{
    const Func *func = &e->m->funcs.v[f.i];

    plan_add_reg(e->b, PLAN_ADDRESS, "frame");
    for (uint32_t i = 0; i < func->params.n; i++)
        plan_add_reg(e->b, PLAN_ADDRESS, value_name(e, func->params.v[i]));
    for (uint32_t i = 0; i < func->results.n; i++)
        plan_add_reg(e->b, PLAN_ADDRESS, value_name(e, func->results.v[i]));
    register_states(e, f);
    if (e->mem->effects.func[f.i].microbatch)
        plan_add_reg(e->b, PLAN_INTEGER, "microbatch");
    if (e->mem->effects.func[f.i].number)
        plan_add_reg(e->b, PLAN_INTEGER, "layer");
    if (e->mem->frame[f.i].host.bytes)
        plan_add_reg(e->b, PLAN_ADDRESS, "host");
}

PlanOperand emit_microbatch(Emit *e)
{
    uint32_t reg = first_state_register(e, e->f) + layered_uses(e, e->f);

    return plan_reg_integer((uint16_t)reg, 0);
}

PlanOperand emit_layer(Emit *e)
{
    const FuncEffects *fx = &e->mem->effects.func[e->f.i];
    uint32_t reg = first_state_register(e, e->f) + layered_uses(e, e->f);

    return fx->layer ? plan_reg_integer((uint16_t)(reg + fx->microbatch), 0)
                     : plan_integer(0);
}

static uint16_t host_register(const Emit *e)
{
    const FuncEffects *fx = &e->mem->effects.func[e->f.i];

    return (uint16_t)(first_state_register(e, e->f) + layered_uses(e, e->f) +
                      fx->microbatch + fx->number);
}

uint64_t emit_state_address(const Emit *e, const MemState *s)
{
    return (uint64_t)(s->address + (s->host ? e->host_start : 0));
}

/* ---- addresses ----------------------------------------------------------- */

static PlanOperand frame_operand(Emit *e, int64_t offset, int64_t bytes,
                                 int access)
{
    if (e->main)
        return plan_address((uint64_t)(e->frame_start + offset),
                            (uint64_t)bytes, access);
    return plan_reg_address(1, offset, (uint64_t)bytes, access);
}

static PlanOperand host_operand(Emit *e, int64_t offset, int64_t bytes,
                                int access)
{
    if (e->main)
        return plan_address((uint64_t)(e->host_frame_start + offset),
                            (uint64_t)bytes, access);
    return plan_reg_address(host_register(e), offset, (uint64_t)bytes, access);
}

PlanOperand emit_param(Emit *e, uint32_t i, int access)
{
    ValueId v = e->m->funcs.v[e->f.i].params.v[i];

    return plan_reg_address((uint16_t)(2 + i), 0,
                            (uint64_t)memplan_value_bytes(e->m, v), access);
}

PlanOperand emit_result(Emit *e, uint32_t i, int access)
{
    const Func *func = &e->m->funcs.v[e->f.i];
    int64_t bytes = memplan_value_bytes(e->m, func->results.v[i]);

    return plan_reg_address((uint16_t)(2 + func->params.n + i), 0,
                            (uint64_t)bytes, access);
}

static PlanOperand state_operand(Emit *e, TensorId t, Field f, int next,
                                 int64_t bytes, int access)
{
    const MemState *s = memplan_state(e->mem, e->pp, t, f);
    PlanOperand o;
    bool layered =
        e->mem->effects.func[e->f.i].layer && e->m->tensors.v[t.i].per_layer;

    if (layered)
        return plan_reg_address(emit_state_register(e, e->f, t, f, next), 0,
                                (uint64_t)bytes, access);
    o = plan_address(emit_state_address(e, s), (uint64_t)bytes, access);
    o.buffer = plan_state_buffer(emit_state_address(e, s));
    return o;
}

/* Bytes of one layer of a field; the gradient's two kinds may differ. */
static int64_t field_bytes(const Emit *e, TensorId t, Field f)
{
    const Tensor *tensor = &e->m->tensors.v[t.i];

    return layout_local_elems(e->m, type_of(e->m, tensor_stored(tensor)),
                              layout_of(e->m, tensor->rest[f])) *
           dtype_bytes(tensor->field_dtype[f]);
}

PlanOperand emit_state(Emit *e, TensorId t, Field f, int access)
{
    return emit_state_next(e, t, f, 0, access);
}

PlanOperand emit_state_next(Emit *e, TensorId t, Field f, int next, int access)
{
    const MemState *s = memplan_state(e->mem, e->pp, t, f);
    bool layer = e->mem->effects.func[e->f.i].layer;
    int64_t bytes = field_bytes(e, t, f);

    if (!layer && s->slots > 1)
        bytes = s->layer_stride * (s->slots - 1) + bytes;
    return state_operand(e, t, f, next, bytes, access);
}

PlanOperand emit_place(Emit *e, MemPlace place, int64_t bytes, int access)
{
    const Func *func = &e->m->funcs.v[e->f.i];

    switch (place.base) {
    case MEM_FRAME:
        return frame_operand(e, place.offset, bytes, access);
    case MEM_HOST:
        return host_operand(e, place.offset, bytes, access);
    case MEM_PARAM:
        return plan_reg_address((uint16_t)(2 + place.index), 0, (uint64_t)bytes,
                                access);
    case MEM_RESULT:
        return plan_reg_address((uint16_t)(2 + func->params.n + place.index), 0,
                                (uint64_t)bytes, access);
    case MEM_STATE:
        return state_operand(e, (TensorId){place.index}, place.field,
                             place.next, bytes, access);
    default:
        mc_bug(__FILE__, __LINE__, "a value of %s has no place",
               sym_text(e->m->names, func->name));
    }
}

/* Buffers of a frame are numbered by value; workspaces follow, by node. */
PlanOperand emit_value(Emit *e, ValueId v, int access)
{
    MemPlace place = e->mem->place[v.i];
    PlanOperand o = emit_place(e, place, memplan_value_bytes(e->m, v), access);

    if (place.base == MEM_FRAME || place.base == MEM_HOST)
        o.buffer = e->mem->buffer[v.i];
    return o;
}

PlanOperand emit_scratch(Emit *e, int64_t offset, int64_t bytes, int access)
{
    PlanOperand o =
        frame_operand(e, e->mem->scratch[e->node.i] + offset, bytes, access);

    o.buffer = e->m->values.n + e->node.i;
    return o;
}

PlanOperand emit_host_scratch(Emit *e, int64_t bytes)
{
    PlanOperand o = host_operand(e, e->mem->host_scratch[e->node.i], bytes,
                                 PLAN_READ | PLAN_WRITE);

    o.buffer = e->m->values.n + e->node.i;
    return o;
}

/* ---- what depends on the rank -------------------------------------------- */

/* Within a plan the stage is known, and with it the coordinates that depend on
 * nothing else. */
static bool is_fixed(const Emit *e, uint8_t atom, int64_t *out_coordinate)
{
    const char *axis = sym_text(e->m->names, e->m->mesh.atoms.v[atom].axis);
    bool last = e->pp + 1 == e->mem->npp;

    *out_coordinate = strcmp(axis, "pp") == 0 ? (int64_t)e->pp : last;
    return strcmp(axis, "pp") == 0 || strcmp(axis, "embed") == 0;
}

uint32_t emit_digits(Emit *e, const uint8_t *atoms, uint32_t n, int64_t unit)
{
    PlanTerm terms[IR_MAX_ATOMS];
    int64_t constant = 0, fixed;
    uint32_t nterms = 0;

    for (uint32_t i = n; i-- > 0;) {
        if (is_fixed(e, atoms[i], &fixed))
            constant += fixed * unit;
        else
            terms[nterms++] =
                (PlanTerm){.atom = e->atom[atoms[i]], .factor = unit};
        unit *= e->m->mesh.atoms.v[atoms[i]].size;
    }
    return plan_add_expr(e->b, constant, terms, nterms);
}

uint32_t emit_start(Emit *e, ValueId v, char dim)
{
    const Value *value = &e->m->values.v[v.i];
    const Layout *layout = layout_of(e->m, value->layout);
    const Split *split = layout_split(layout, dim);

    return emit_digits(
        e, split ? split->atom : NULL, split ? split->n : 0,
        layout_local(e->m, type_of(e->m, value->type), layout, dim));
}
