/* effects.c - which state and which registers a function needs.
 *
 *     %w = read {tensor=@q}            @q.param read
 *     dots_accum %x, %y {tensors=…}    @q.grad read and written
 *     call {callee=@layer.bwd}         whatever @layer.bwd does
 *
 * Whether a function runs inside a scan over layers comes from its callers, so
 * that is found first, callers before callees; what it does comes from its
 * callees, so that is found second, depth first.  Functions cannot recur.
 */
#include "passes/effects.h"

#include <stdlib.h>

typedef Vec(StateUse) UseVec;

typedef struct {
    const Module *m;
    Arena *arena;
    Effects *out;
} Walk;

static bool same_splits(const Layout *a, const Layout *b)
{
    if (a->nsplit != b->nsplit)
        return false;
    for (uint8_t i = 0; i < a->nsplit; i++)
        if (a->split[i].dim != b->split[i].dim ||
            a->split[i].n != b->split[i].n ||
            memcmp(a->split[i].atom, b->split[i].atom, a->split[i].n) != 0)
            return false;
    return true;
}

Field effect_field(const Module *m, TensorId t, Field f)
{
    const Tensor *x = &m->tensors.v[t.i];
    bool shares =
        f == FIELD_GSUM && same_splits(layout_of(m, x->rest[FIELD_GSUM]),
                                       layout_of(m, x->rest[FIELD_GRAD]));

    return shares ? FIELD_GRAD : f;
}

/* Does no more than to hand on what it gets. */
static bool is_transport(const Node *n)
{
    return (op_info[n->op].flags & OPF_COMM) || n->op == OP_PACK ||
           n->op == OP_UNPACK;
}

bool effects_ahead(const Module *m, const Node *n)
{
    bool ahead = attr_find(m, n->attrs, AK_NEXT) != NULL;

    for (uint32_t i = 0; i < n->nargs && !ahead; i++) {
        NodeId def = m->values.v[node_arg(m, n, i).i].def;
        ahead = is_transport(n) && def.i &&
                effects_ahead(m, &m->nodes.v[def.i]);
    }
    return ahead;
}

TensorId effects_target(const Module *m, const Node *n, Field *out_field)
{
    *out_field = (Field)attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM);
    return attr_tensor(m, n->attrs, AK_TENSOR);
}

bool effects_span_stages(const Module *m, const Node *n)
{
    AxisSet stages = mesh_axis(m, "pp") | mesh_axis(m, "embed");

    return (op_info[n->op].flags & OPF_COMM) &&
           (attr_axes(m, n->attrs, AK_AXES) & stages) != 0;
}

const StateUse *effects_find(const Module *m, StateUses uses, TensorId t,
                             Field field)
{
    for (uint32_t i = 0; i < uses.n; i++)
        if (uses.v[i].tensor.i == t.i &&
            uses.v[i].field == effect_field(m, t, field))
            return &uses.v[i];
    return NULL;
}

/* ---- lists of uses ------------------------------------------------------- */

static void use_add(UseVec *list, StateUse use)
{
    for (uint32_t i = 0; i < list->n; i++) {
        StateUse *old = &list->v[i];
        if (old->tensor.i != use.tensor.i || old->field != use.field ||
            old->next != use.next)
            continue;
        old->reads |= use.reads;
        old->writes |= use.writes;
        return;
    }
    vec_push(list, use);
}

static int use_compare(const void *left, const void *right)
{
    const StateUse *a = left, *b = right;

    if (a->tensor.i != b->tensor.i)
        return a->tensor.i < b->tensor.i ? -1 : 1;
    if (a->field != b->field)
        return a->field < b->field ? -1 : 1;
    return abs(a->next) - abs(b->next);
}

static StateUses uses_seal(Walk *w, UseVec *list)
{
    StateUse *v = arena_array(w->arena, StateUse, list->n);
    StateUses sealed = {v, list->n};

    if (list->n) {
        memcpy(v, list->v, sizeof *v * list->n);
        qsort(v, list->n, sizeof *v, use_compare);
    }
    vec_free(list);
    return sealed;
}

/* ---- one node ------------------------------------------------------------ */

static void tensor_use(Walk *w, const Node *n, bool layer, TensorId t,
                       Field field, UseVec *list)
{
    bool adds = n->op == OP_ACCUM || n->op == OP_DOTS_ACCUM;
    bool writes = adds || n->op == OP_WRITE || n->op == OP_CLEAR;

    use_add(list, (StateUse){t, effect_field(w->m, t, field),
                             layer && w->m->tensors.v[t.i].per_layer,
                             adds || !writes, writes,
                             (int8_t)attr_int(w->m, n->attrs, AK_NEXT, 0)});
}

static StateUses node_uses(Walk *w, const Node *n, bool layer)
{
    Field field;
    TensorId one = effects_target(w->m, n, &field);
    const Attr *many = attr_find(w->m, n->attrs, AK_TENSORS);
    UseVec list = {0};

    if (one.i)
        tensor_use(w, n, layer, one, field, &list);
    for (uint32_t i = 0; many && i < many->as.list.n; i++) {
        int64_t id = w->m->list.v[many->as.list.first + i];
        tensor_use(w, n, layer, (TensorId){(uint32_t)id}, FIELD_GRAD, &list);
    }
    return uses_seal(w, &list);
}

/* Draws of dropout depend on the layer and on the microbatch. */
static bool node_draws(const Module *m, const Node *n)
{
    return attr_find(m, n->attrs, AK_RATE) != NULL;
}

static bool node_needs_microbatch(const Module *m, const Node *n)
{
    return node_draws(m, n) ||
           (n->op == OP_BATCH && attr_int(m, n->attrs, AK_MICROBATCH, -1) < 0);
}

/* ---- functions ----------------------------------------------------------- */

static FuncId node_callee(const Module *m, const Node *n)
{
    if (n->op != OP_CALL && n->op != OP_ROW)
        return (FuncId){0};
    return attr_func(m, n->attrs, AK_CALLEE);
}

/* Marks `f` and all it calls as running inside a scan over layers. */
static void mark_layer(Walk *w, FuncId f)
{
    const Func *func = &w->m->funcs.v[f.i];

    if (w->out->func[f.i].layer)
        return;
    w->out->func[f.i].layer = true;
    for (uint32_t i = 0; i < func->body.n; i++) {
        FuncId callee = node_callee(w->m, &w->m->nodes.v[func->body.v[i].i]);
        if (callee.i)
            mark_layer(w, callee);
    }
}

/* Only through bodies: a node in none may name a function that is gone. */
static void mark_layers(Walk *w)
{
    for (uint32_t f = 1; f < w->m->funcs.n; f++)
        for (uint32_t i = 0; i < w->m->funcs.v[f].body.n; i++) {
            NodeId id = w->m->funcs.v[f].body.v[i];
            const Node *n = &w->m->nodes.v[id.i];
            if (n->op == OP_CALL && call_scan(w->m, n).over == 'l')
                mark_layer(w, call_scan(w->m, n).callee);
        }
}

static void func_effects(Walk *w, FuncId f);

static bool is_layer_scan(const Module *m, NodeId id)
{
    const Node *n = &m->nodes.v[id.i];

    return n->op == OP_CALL && call_scan(m, n).over == 'l';
}

static void node_effects(Walk *w, FuncId f, NodeId id)
{
    const Node *n = &w->m->nodes.v[id.i];
    FuncEffects *own = &w->out->func[f.i];
    FuncId callee = node_callee(w->m, n);

    own->comm |= (op_info[n->op].flags & OPF_COMM) != 0;
    own->fetches |=
        n->op == OP_FETCH && attr_find(w->m, n->attrs, AK_NEXT) != NULL;
    own->microbatch |= node_needs_microbatch(w->m, n);
    own->number |= own->layer && node_draws(w->m, n);
    if (!callee.i) {
        w->out->node[id.i] = node_uses(w, n, own->layer);
        return;
    }
    func_effects(w, callee);
    const FuncEffects *inner = &w->out->func[callee.i];
    w->out->node[id.i] = inner->uses;
    own->comm |= inner->comm;
    if (n->op != OP_CALL || call_scan(w->m, n).over != 'm')
        own->microbatch |= inner->microbatch;
    if (own->layer || !is_layer_scan(w->m, id))
        own->number |= inner->number;
}

/* A use below a scan over layers is, seen from outside, one of all layers, or
 * of those of the layer register from its own on. */
static void merge_uses(Walk *w, FuncId f, NodeId id, UseVec *list)
{
    StateUses uses = w->out->node[id.i];

    for (uint32_t i = 0; i < uses.n; i++) {
        StateUse use = uses.v[i];
        use.layered &= w->out->func[f.i].layer;
        use.next = use.layered && !is_layer_scan(w->m, id) ? use.next : 0;
        use_add(list, use);
    }
}

static void func_effects(Walk *w, FuncId f)
{
    const Func *func = &w->m->funcs.v[f.i];
    UseVec list = {0};

    if (w->out->func[f.i].known)
        return;
    w->out->func[f.i].known = true;
    for (uint32_t i = 0; i < func->body.n; i++) {
        node_effects(w, f, func->body.v[i]);
        merge_uses(w, f, func->body.v[i], &list);
    }
    w->out->func[f.i].uses = uses_seal(w, &list);
}

void effects_compute(Arena *a, const Module *m, Effects *out)
{
    Walk w = {m, a, out};

    out->func = arena_array(a, FuncEffects, m->funcs.n);
    out->node = arena_array(a, StateUses, m->nodes.n);
    mark_layers(&w);
    for (uint32_t f = 1; f < m->funcs.n; f++)
        func_effects(&w, (FuncId){f});
}
