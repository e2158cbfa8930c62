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
 * been called for the last time, and that all do so in scans over layers, over
 * different ones; what is otherwise is left alone.
 */
#include "passes/effects.h"
#include "passes/passes.h"
#include "passes/streams_priv.h"

enum { SMALL = 16 };

/* A last call of the step function, and a scan over layers in its callee. */
typedef struct {
    NodeId call, scan;
} Target;

/* A reduction of all layers of one gradient in the step function, and where its
 * layers are completed. */
typedef struct {
    TensorId tensor;
    NodeId read, reduce, write;
    Vec(Target) at;
} Reduction;

/* A function of a layer's backward with some of the reductions in it. */
typedef struct {
    FuncId from, copy;
    const bool *with; /* by reduction */
} Copy;

typedef struct {
    Module *m;
    Arena *arena;
    const Effects *fx;
    FuncId step;
    Vec(Reduction) list;
    Vec(Copy) copies;
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

    return layout_local_elems(o->m, type_of(o->m, tensor_stored(tensor)),
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
    const StateUse *use = effects_find(o->m, o->fx->node[id.i], t, FIELD_GRAD);

    return node_get(o, id)->op == OP_CALL && use && use->writes;
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

/* Notes a scan; of several calls of its function the last stays. */
static bool target_add(const Overlap *o, Reduction *r, Target t)
{
    Scan scan = call_scan(o->m, node_get(o, t.scan));

    if (scan.over != 'l' || scan.step > 1)
        return false;
    for (uint32_t i = 0; i < r->at.n; i++) {
        if (r->at.v[i].scan.i == t.scan.i) {
            r->at.v[i] = t;
            return true;
        }
        if (!disjoint(o, r->at.v[i].scan, t.scan))
            return false;
    }
    vec_push(&r->at, t);
    return true;
}

/* The scans within one call that add to a gradient. */
static bool targets_in(const Overlap *o, Reduction *r, NodeId call)
{
    const Func *func = func_get(o, callee(o, call));

    for (uint32_t i = 0; i < func->body.n; i++)
        if (adds_to(o, func->body.v[i], r->tensor) &&
            !target_add(o, r, (Target){call, func->body.v[i]}))
            return false;
    return true;
}

/* Where a gradient's layers are completed; false if it is not as assumed. */
static bool find_targets(const Overlap *o, Reduction *r)
{
    const Func *step = func_get(o, o->step);

    for (uint32_t i = 0; i < step->body.n; i++)
        if (adds_to(o, step->body.v[i], r->tensor) &&
            !targets_in(o, r, step->body.v[i]))
            return false;
    return r->at.n > 0;
}

static void drop_others(Overlap *o)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < o->list.n; i++) {
        if (find_targets(o, &o->list.v[i]))
            o->list.v[left++] = o->list.v[i];
        else
            vec_free(&o->list.v[i].at);
    }
    o->list.n = left;
}

/* ---- copies -------------------------------------------------------------- */

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
    uint32_t nres = old.nres;
    AttrsId attrs = old.attrs;
    TypeId type = {0};
    NodeId made;

    if (old.op == OP_READ || old.op == OP_WRITE)
        attrs = attrs_without(m, attrs, AK_COUNT);
    if (nres)
        type = type_without(m, value_of(m, old.res)->type, 'l');
    made = node_new(m, f, (Op)old.op, &arg, old.nargs, attrs, &type, nres,
                    old.loc);
    if (nres)
        value_of(m, node_of(m, made)->res)->layout =
            value_of(m, old.res)->layout;
    return nres ? node_of(m, made)->res : (ValueId){0};
}

static void reduce_here(Overlap *o, FuncId f, const bool *with)
{
    for (uint32_t i = 0; i < o->list.n; i++) {
        const Reduction r = o->list.v[i];
        if (!with[i])
            continue;
        ValueId g = copy_for_layer(o, f, r.read, (ValueId){0});
        ValueId sum = copy_for_layer(o, f, r.reduce, g);
        copy_for_layer(o, f, r.write, sum);
    }
}

/* The layer's function with these reductions, made once. */
static FuncId copy_with(Overlap *o, FuncId from, const bool *with)
{
    Copy c = {.from = from, .with = with};
    ValueMap map = {0};

    for (uint32_t i = 0; i < o->copies.n; i++)
        if (o->copies.v[i].from.i == from.i &&
            memcmp(o->copies.v[i].with, with, o->list.n) == 0)
            return o->copies.v[i].copy;
    c.copy = func_copy(o->m, from, "last", &map);
    reduce_here(o, c.copy, with);
    vec_push(&o->copies, c);
    vmap_free(&map);
    return c.copy;
}

/* Which gradients one scan of one call completes; NULL: none. */
static const bool *completed_by(Overlap *o, NodeId call, NodeId scan)
{
    bool *with = arena_array(o->arena, bool, o->list.n), any = false;

    for (uint32_t i = 0; i < o->list.n; i++) {
        const Reduction *r = &o->list.v[i];
        for (uint32_t k = 0; k < r->at.n; k++)
            with[i] |= r->at.v[k].call.i == call.i &&
                       r->at.v[k].scan.i == scan.i;
        any |= with[i];
    }
    return any ? with : NULL;
}

/* Gives a call of the step function a callee of its own, if gradients are
 * complete with it. */
static void call_apply(Overlap *o, NodeId call)
{
    FuncId from = callee(o, call), copy = {0};
    ValueMap map = {0};

    for (uint32_t i = 0; i < func_get(o, from)->body.n; i++) {
        const bool *with = completed_by(o, call, func_get(o, from)->body.v[i]);
        FuncId layer;
        if (!with)
            continue;
        layer = copy_with(o, callee(o, func_get(o, from)->body.v[i]), with);
        if (copy.i == 0)
            copy = func_copy(o->m, from, "last", &map);
        set_callee(o, func_get(o, copy)->body.v[i], layer);
    }
    if (copy.i)
        set_callee(o, call, copy);
    vmap_free(&map);
}

static void calls_apply(Overlap *o)
{
    const Func step = *func_get(o, o->step);

    for (uint32_t i = 0; i < step.body.n; i++)
        if (node_get(o, step.body.v[i])->op == OP_CALL)
            call_apply(o, step.body.v[i]);
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

void streams_overlap_gradients(Module *m, FuncId step, const Effects *fx)
{
    Overlap o = {.m = m, .arena = arena_new(), .fx = fx, .step = step};

    for (uint32_t i = 0; i < func_get(&o, step)->body.n; i++)
        find_reduction(&o, func_get(&o, step)->body.v[i]);
    drop_small(&o);
    drop_others(&o);
    calls_apply(&o);
    drop_moved(&o);
    for (uint32_t i = 0; i < o.list.n; i++)
        vec_free(&o.list.v[i].at);
    vec_free(&o.list);
    vec_free(&o.copies);
    arena_free(o.arena);
}
