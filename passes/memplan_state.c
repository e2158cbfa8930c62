/* memplan_state.c - where the tensors rest.
 *
 * One region per field; within it tensors that are reduced over the same axes
 * and decay alike are neighbours, and the layers of a tensor follow each other
 * without a gap:
 *
 *     params | q.0 q.1 … | k.0 k.1 … | norm.0 norm.1 … |
 *     grads  | q.0 q.1 … | k.0 k.1 … | norm.0 norm.1 … |
 *
 * so that a reduction or an update of a whole class works on one flat range.
 * A stage holds the tensors that its step function reaches.
 */
#include "passes/memplan_priv.h"

#include <stdlib.h>

/* The order of the regions. */
static const Field FIELDS[] = {FIELD_PARAM,  FIELD_GRAD, FIELD_GSUM,
                               FIELD_MASTER, FIELD_M,    FIELD_V,
                               FIELD_ACC};

typedef struct {
    TensorId t;
    bool parameter, decay;
    uint32_t fields;
    AxisSet reduced;
} Class;

static MemState *state_at(const MemPlan *p, uint32_t pp, TensorId t, Field f)
{
    return &p->state[(pp * p->ntensors + t.i) * FIELD_COUNT + f];
}

const MemState *memplan_state(const MemPlan *p, uint32_t pp, TensorId t,
                              Field f)
{
    return state_at(p, pp, t, effect_field(p->m, t, f));
}

static bool on_stage(const Module *m, const PipeStage *s, uint32_t pp)
{
    return s->pp == pp || module_npp(m) == 1;
}

uint32_t memplan_layers(const Module *m, uint32_t pp, TensorId t)
{
    uint32_t n = 0;

    if (!m->tensors.v[t.i].per_layer)
        return 1;
    for (uint32_t i = 0; i < m->stages.n; i++) {
        const PipeStage *s = &m->stages.v[i];
        if (on_stage(m, s, pp))
            n += tensor_layers(m, t, s->first_layer, s->nlayers);
    }
    return n;
}

/* Slots are in the order of chunks, then layers, and so are the stages. */
uint32_t memplan_slot(const Module *m, uint32_t pp, TensorId t, uint32_t layer)
{
    uint32_t slot = 0;

    for (uint32_t i = 0; i < m->stages.n; i++) {
        const PipeStage *s = &m->stages.v[i];
        uint32_t before = layer - s->first_layer;
        if (!on_stage(m, s, pp))
            continue;
        if (before < s->nlayers)
            return slot + tensor_layers(m, t, s->first_layer, before);
        slot += tensor_layers(m, t, s->first_layer, s->nlayers);
    }
    mc_bug(__FILE__, __LINE__, "layer %u is not on stage %u", layer, pp);
}

static int class_compare(const void *left, const void *right)
{
    const Class *a = left, *b = right;

    if (a->parameter != b->parameter)
        return a->parameter ? -1 : 1;
    if (a->reduced != b->reduced)
        return a->reduced < b->reduced ? -1 : 1;
    if (a->decay != b->decay)
        return a->decay ? -1 : 1;
    if (a->fields != b->fields)
        return a->fields < b->fields ? -1 : 1;
    return (a->t.i > b->t.i) - (a->t.i < b->t.i);
}

static bool tensor_held(const Planner *p, uint32_t pp, TensorId t)
{
    StateUses uses = p->fx->func[p->m->entry.v[pp].i].uses;

    if (memplan_layers(p->m, pp, t) == 0)
        return false;
    for (uint32_t i = 0; i < uses.n; i++)
        if (uses.v[i].tensor.i == t.i)
            return true;
    return false;
}

static Class *classes_of(Planner *p, uint32_t pp, uint32_t *out_n)
{
    Class *list = arena_array(p->arena, Class, p->m->tensors.n);
    uint32_t n = 0;

    for (uint32_t i = 1; i < p->m->tensors.n; i++) {
        const Tensor *t = &p->m->tensors.v[i];
        LayoutId rest = t->rest[FIELD_GRAD];
        if (!tensor_held(p, pp, (TensorId){i}))
            continue;
        list[n++] = (Class){(TensorId){i}, t->parameter, t->decay, t->fields,
                            rest.i ? layout_of(p->m, rest)->partial : 0};
    }
    qsort(list, n, sizeof *list, class_compare);
    *out_n = n;
    return list;
}

static int64_t field_bytes(const Module *m, const Tensor *t, Field f)
{
    if (!(t->fields >> f & 1))
        return 0;
    return layout_local_elems(m, type_of(m, tensor_stored(t)),
                              layout_of(m, t->rest[f])) *
           dtype_bytes(t->field_dtype[f]);
}

/* Memory of a field of its own. */
static int64_t slot_bytes(const Module *m, TensorId t, Field f)
{
    return effect_field(m, t, f) == f ? field_bytes(m, &m->tensors.v[t.i], f)
                                      : 0;
}

/* Behind `end`, that of the arena which it belongs to. */
static void field_place(Planner *p, uint32_t pp, TensorId id, Field f,
                        int64_t *end)
{
    int64_t bytes = slot_bytes(p->m, id, f), at;
    uint32_t slots = memplan_layers(p->m, pp, id);
    bool host = (p->m->tensors.v[id.i].host >> f & 1) != 0;

    if (bytes == 0)
        return;
    at = (end[host] + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
    *state_at(p->out, pp, id, f) = (MemState){at, bytes, bytes, slots, host};
    end[host] = at + bytes * slots;
}

void state_plan(Planner *p)
{
    size_t n = (size_t)p->out->npp * p->out->ntensors * FIELD_COUNT;

    p->out->state = arena_array(p->arena, MemState, n);
    for (uint32_t pp = 0; pp < p->out->npp; pp++) {
        uint32_t nclasses;
        Class *classes = classes_of(p, pp, &nclasses);
        int64_t end[2] = {0, 0};
        for (uint32_t f = 0; f < MC_LEN(FIELDS); f++)
            for (uint32_t i = 0; i < nclasses; i++)
                field_place(p, pp, classes[i].t, FIELDS[f], end);
    }
}

int64_t state_end(const MemPlan *p, uint32_t pp, bool host)
{
    int64_t end = 0;

    for (uint32_t t = 1; t < p->ntensors; t++)
        for (uint32_t f = 0; f < FIELD_COUNT; f++) {
            const MemState *s = state_at(p, pp, (TensorId){t}, (Field)f);
            if (s->host == host)
                end = MC_MAX(end, s->address + s->layer_stride * s->slots);
        }
    return (end + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}
