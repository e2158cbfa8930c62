/* pipeline_step.c - what one rank keeps of the rest of the step.
 *
 *     %a = read @embed.gsum {…}            (another rank's)
 *     %b = read @q.gsum {count=4}    →     %b = read @q.gsum {count=2}
 *     %s = add %a', %b'                    (%b' itself)
 *     %t = add %s, %c     "total"          %t = add %b', %c
 *                                          %u = all_reduce %t {axes=pp}
 *
 * The second half of the step is copied with what this rank does not hold left
 * out: a node without its operand disappears, a sum keeps its other term.  The
 * norm's total is then a sum over stages and is reduced over pp; so is the
 * gradient of a tied table, over its two copies.
 */
#include "passes/pipeline_priv.h"

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

void pipeline_hold(Pipe *p)
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

    return pipeline_named_like(p, node_res(node_of(p->m, n), 0), v);
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

void pipeline_copy_node(Pipe *p, NodeId id)
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

bool *pipeline_loss_nodes(Arena *a, const Module *m, FuncId step)
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
