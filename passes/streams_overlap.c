/* streams_overlap.c - gradients are reduced as soon as they are complete.
 *
 *     call @stage0.bwd              (last)        call @stage0.bwd.last
 *     %g = read @q.grad {count=4}                   call @layer.bwd.last
 *     %r = all_reduce %g             →                …
 *     write %r @q.gsum {count=4}                      %g = read @q.grad
 *                                                     %r = all_reduce %g
 *                                                     write %r @q.gsum
 *
 * The backward of the last microbatch completes a layer's gradients layer by
 * layer, so there they are reduced while the layers below are computed.  That
 * call gets functions of its own; all others stay.  Small tensors (norms,
 * biases) are not worth a message per layer and stay where they were.
 *
 * Assumes that a gradient is complete once every function that adds to it has
 * been called for the last time, and that they do so in one scan over layers
 * each, over different layers; what is otherwise is left alone.
 */
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/streams_priv.h"

enum { SMALL = 16, MAX_TARGETS = 64 };

/* A reduction of all layers of one gradient in the step function. */
typedef struct {
    TensorId tensor;
    NodeId read, reduce, write;
} Reduction;

/* A last call of the step function, and the scan over layers in its callee. */
typedef struct {
    NodeId call, scan;
} Target;

typedef struct {
    Module *m;
    Arena *arena;
    Effects fx;
    FuncId step;
    Vec(Reduction) list;
    Target target[MAX_TARGETS];
    uint32_t ntargets;
} Overlap;

static const Node *node_get(const Overlap *o, NodeId id)
{
    return &o->m->nodes.v[id.i];
}

static const Func *func_get(const Overlap *o, FuncId f)
{
    return &o->m->funcs.v[f.i];
}

/* ---- what is reduced ----------------------------------------------------- */

static bool is_gradient_read(const Overlap *o, const Node *n, TensorId *out)
{
    Field f;

    if (n->op != OP_READ)
        return false;
    *out = effects_target(o->m, n, &f);
    return f == FIELD_GRAD && o->m->tensors.v[out->i].per_layer;
}

/* A sum over replicas: in place, or scattered into the complete gradient's own
 * memory, along what is the outermost dimension of a layer. */
static bool is_reduction(const Overlap *o, const Node *n, TensorId t)
{
    bool in_place = effect_field(o->m, t, FIELD_GSUM) == FIELD_GRAD;
    char dim = (char)attr_int(o->m, n->attrs, AK_DIM, 0);

    if (!(attr_axes(o->m, n->attrs, AK_AXES) & mesh_axis(o->m, "dp")))
        return false;
    if (n->op == OP_ALL_REDUCE)
        return in_place;
    return n->op == OP_REDUCE_SCATTER && !in_place &&
           streams_outer_size(o->m, n->res, dim) ==
               type_size(value_type(o->m, n->res), 'l');
}

/* The only use of a node's result, or none. */
static NodeId only_use(const Overlap *o, NodeId id)
{
    const Func *f = func_get(o, o->step);
    ValueId v = node_get(o, id)->res;
    NodeId found = {0};

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = node_get(o, f->body.v[i]);
        for (uint32_t k = 0; k < n->nargs; k++) {
            if (node_arg(o->m, n, k).i != v.i)
                continue;
            if (found.i)
                return (NodeId){0};
            found = f->body.v[i];
        }
    }
    return found;
}

static void find_reduction(Overlap *o, NodeId id)
{
    Reduction r = {.read = id};
    Field f;

    if (!is_gradient_read(o, node_get(o, id), &r.tensor))
        return;
    r.reduce = only_use(o, id);
    if (!is_reduction(o, node_get(o, r.reduce), r.tensor))
        return;
    r.write = only_use(o, r.reduce);
    if (node_get(o, r.write)->op == OP_WRITE &&
        effects_target(o->m, node_get(o, r.write), &f).i == r.tensor.i &&
        f == FIELD_GSUM)
        vec_push(&o->list, r);
}

static int64_t layer_elems(const Overlap *o, TensorId t)
{
    const Tensor *tensor = &o->m->tensors.v[t.i];

    return layout_local_elems(o->m, type_of(o->m, tensor->type),
                              layout_of(o->m, tensor->rest[FIELD_GRAD]));
}

static void drop_small(Overlap *o)
{
    int64_t most = 0;
    uint32_t left = 0;

    for (uint32_t i = 0; i < o->list.n; i++)
        most = MC_MAX(most, layer_elems(o, o->list.v[i].tensor));
    for (uint32_t i = 0; i < o->list.n; i++)
        if (layer_elems(o, o->list.v[i].tensor) * SMALL >= most)
            o->list.v[left++] = o->list.v[i];
    o->list.n = left;
}

/* ---- where it is completed ----------------------------------------------- */

static bool adds_to(const Overlap *o, NodeId id, TensorId t)
{
    const StateUse *use = effects_find(o->m, o->fx.node[id.i], t, FIELD_GRAD);

    return node_get(o, id)->op == OP_CALL && use && use->writes;
}

/* The one scan over layers of `f` that adds to a gradient; 0 if it is not the
 * only node to do so. */
static NodeId layer_scan(const Overlap *o, FuncId f, TensorId t)
{
    const Func *func = func_get(o, f);
    NodeId found = {0};

    for (uint32_t i = 0; i < func->body.n; i++) {
        if (!adds_to(o, func->body.v[i], t))
            continue;
        if (found.i)
            return (NodeId){0};
        found = func->body.v[i];
    }
    return found.i && call_scan(o->m, node_get(o, found)).over == 'l'
               ? found
               : (NodeId){0};
}

static FuncId callee(const Overlap *o, NodeId call)
{
    return call_scan(o->m, node_get(o, call)).callee;
}

static bool disjoint(const Overlap *o, NodeId a, NodeId b)
{
    Scan x = call_scan(o->m, node_get(o, a)),
         y = call_scan(o->m, node_get(o, b));

    return x.first + x.count <= y.first || y.first + y.count <= x.first;
}

/* Notes a call; of several of one function the last stays. */
static bool target_add(const Overlap *o, Target t, Target *list, uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (callee(o, list[i].call).i == callee(o, t.call).i) {
            list[i] = t;
            return true;
        }
        if (!disjoint(o, list[i].scan, t.scan))
            return false;
    }
    if (*n == MAX_TARGETS)
        return false;
    list[(*n)++] = t;
    return true;
}

/* The last calls that add to a gradient; none if it is not as assumed. */
static uint32_t targets_of(const Overlap *o, TensorId tensor, Target *list)
{
    const Func *step = func_get(o, o->step);
    uint32_t n = 0;

    for (uint32_t i = 0; i < step->body.n; i++) {
        Target t = {step->body.v[i], {0}};
        if (!adds_to(o, t.call, tensor))
            continue;
        t.scan = layer_scan(o, callee(o, t.call), tensor);
        if (!t.scan.i || !target_add(o, t, list, &n))
            return 0;
    }
    return n;
}

static void drop_others(Overlap *o)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < o->list.n; i++) {
        Target list[MAX_TARGETS];
        uint32_t n = targets_of(o, o->list.v[i].tensor, list);
        if (left == 0) {
            o->ntargets = n;
            memcpy(o->target, list, sizeof *list * n);
        }
        if (n > 0 && n == o->ntargets &&
            memcmp(list, o->target, sizeof *list * n) == 0)
            o->list.v[left++] = o->list.v[i];
    }
    o->list.n = left;
}

/* ---- copies -------------------------------------------------------------- */

/* "layer.bwd.last", for other stages "layer.bwd.last.2" and so on. */
static const char *copy_name(const Module *m, FuncId from)
{
    const char *old = sym_text(m->names, m->funcs.v[from.i].name);
    const char *name = arena_printf(m->arena, "%s.last", old);

    for (int n = 2; func_find(m, sym_intern(m->names, name)).i; n++)
        name = arena_printf(m->arena, "%s.last.%d", old, n);
    return name;
}

static FuncId func_copy(Overlap *o, FuncId from, ValueMap *map)
{
    Module *m = o->m;
    FuncId f =
        func_new(m, copy_name(m, from), FUNC_GRAPH, func_of(m, from)->loc);

    for (uint32_t i = 0; i < func_of(m, from)->params.n; i++) {
        ValueId old = func_of(m, from)->params.v[i];
        ValueId v = func_param(m, f, value_of(m, old)->type,
                               sym_text(m->names, value_of(m, old)->name));
        value_of(m, v)->layout = value_of(m, old)->layout;
        value_of(m, v)->hint = value_of(m, old)->hint;
        vmap_set(map, old, v);
    }
    for (uint32_t i = 0; i < func_of(m, from)->body.n; i++)
        node_copy(m, f, func_of(m, from)->body.v[i], map);
    for (uint32_t i = 0; i < func_of(m, from)->results.n; i++) {
        ValueId old = func_of(m, from)->results.v[i];
        vec_push(&func_of(m, f)->results, vmap_get(map, old));
    }
    return f;
}

static void set_callee(Overlap *o, NodeId call, FuncId f)
{
    AttrsId attrs = attrs_with(o->m, node_of(o->m, call)->attrs,
                               attr_of_func(AK_CALLEE, f));

    node_of(o->m, call)->attrs = attrs;
}

/* The same node for one layer: without its count, and without l. */
static ValueId copy_for_layer(Overlap *o, FuncId f, NodeId id, ValueId arg)
{
    Module *m = o->m;
    const Node old = *node_of(m, id);
    Attr list[2];
    uint32_t n = 0, nres = old.nres;
    AttrsId attrs = old.attrs;
    TypeId type = {0};
    NodeId made;

    if (old.op == OP_READ || old.op == OP_WRITE) {
        list[n++] = *attr_find(m, attrs, AK_TENSOR);
        list[n++] = *attr_find(m, attrs, AK_FIELD);
        attrs = attrs_intern(m, list, n);
    }
    if (nres)
        type = type_without(m, value_of(m, old.res)->type, 'l');
    made = node_new(m, f, (Op)old.op, &arg, old.nargs, attrs, &type, nres,
                    old.loc);
    if (nres)
        value_of(m, node_of(m, made)->res)->layout =
            value_of(m, old.res)->layout;
    return nres ? node_of(m, made)->res : (ValueId){0};
}

static void reduce_here(Overlap *o, FuncId f)
{
    for (uint32_t i = 0; i < o->list.n; i++) {
        const Reduction r = o->list.v[i];
        ValueId g = copy_for_layer(o, f, r.read, (ValueId){0});
        ValueId sum = copy_for_layer(o, f, r.reduce, g);
        copy_for_layer(o, f, r.write, sum);
    }
}

static void target_apply(Overlap *o, const Target *t)
{
    ValueMap outer = {{0}}, inner = {{0}};
    const Func *stage = func_get(o, callee(o, t->call));
    uint32_t pos = 0;
    FuncId layer, copy;

    while (stage->body.v[pos].i != t->scan.i)
        pos++;
    layer = func_copy(o, callee(o, t->scan), &inner);
    reduce_here(o, layer);
    copy = func_copy(o, callee(o, t->call), &outer);
    set_callee(o, func_of(o->m, copy)->body.v[pos], layer);
    set_callee(o, t->call, copy);
    vmap_free(&outer);
    vmap_free(&inner);
}

/* ---- the whole ----------------------------------------------------------- */

static bool is_moved(const Overlap *o, NodeId id)
{
    for (uint32_t i = 0; i < o->list.n; i++) {
        const Reduction *r = &o->list.v[i];
        if (id.i == r->read.i || id.i == r->reduce.i || id.i == r->write.i)
            return true;
    }
    return false;
}

static void drop_moved(Overlap *o)
{
    Func *step = func_of(o->m, o->step);
    uint32_t left = 0;

    for (uint32_t i = 0; i < step->body.n; i++)
        if (!is_moved(o, step->body.v[i]))
            step->body.v[left++] = step->body.v[i];
    step->body.n = left;
}

void streams_overlap_gradients(Module *m, FuncId step)
{
    Overlap o = {.m = m, .arena = arena_new(), .step = step};

    effects_compute(o.arena, m, &o.fx);
    for (uint32_t i = 0; i < func_get(&o, step)->body.n; i++)
        find_reduction(&o, func_get(&o, step)->body.v[i]);
    drop_small(&o);
    drop_others(&o);
    for (uint32_t i = 0; i < o.ntargets && o.list.n; i++)
        target_apply(&o, &o.target[i]);
    drop_moved(&o);
    vec_free(&o.list);
    arena_free(o.arena);
}
