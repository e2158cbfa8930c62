/* ring.c - attention over a split sequence, keys and values going round.
 *
 *   o, lse = attention q, k, v {axes=cp}
 *
 * becomes one step per part of the sequence, each on the part of the keys that
 * has just arrived from the rank before:
 *
 *   k1 = shift k                 v1 = shift v
 *   o0, lse0 = attention_step q, k, v {shift=0}
 *   k2 = shift k1                v2 = shift v1
 *   o1, lse1 = attention_step q, k1, v1, o0, lse0 {shift=1}
 *   …
 *
 * (Liu et al. 2023, "Ring Attention with Blockwise Transformers").  In the
 * backward the gradients of k and v travel with them and come home after the
 * last step.  A shift is asked for before the step that it can run beside.
 *
 * All of this has a meaning on one logical rank, where a shift rolls the
 * sequence by one part, so the pass runs before layouts are known.
 */
#include "passes/passes.h"

#include "base/zigzag.h"

typedef struct {
    Module *m;
    FuncId f;
    Node node; /* the attention */
    int64_t parts;
    ValueMap *map;
} Ring;

static ValueId shift(Ring *r, ValueId v)
{
    Attr list[] = {
        attr_of_axes(AK_AXES, attr_axes(r->m, r->node.attrs, AK_AXES)),
        attr_of_int(AK_DIM, 's')};
    Sym name = value_of(r->m, v)->name;
    ValueId to = ir_op(r->m, r->f, OP_SHIFT, &v, 1,
                       attrs_intern(r->m, list, MC_LEN(list)), r->node.loc);

    value_of(r->m, to)->name = name;
    return to;
}

/* Those of the attention, as far as a step has them too. */
static AttrsId step_attrs(Ring *r, int64_t step)
{
    static const AttrKey kept[] = {AK_CAUSAL, AK_WINDOW, AK_ZIGZAG,
                                   AK_RATE,   AK_DRAW,   AK_TENSOR};
    Attr list[MC_LEN(kept) + 2];
    uint32_t n = 0;

    for (size_t i = 0; i < MC_LEN(kept); i++) {
        const Attr *a = attr_find(r->m, r->node.attrs, kept[i]);
        if (a)
            list[n++] = *a;
    }
    list[n++] = attr_of_int(AK_PARTS, r->parts);
    list[n++] = attr_of_int(AK_SHIFT, step);
    return attrs_intern(r->m, list, n);
}

/* What stands for result i of the attention from here on. */
static void replace(Ring *r, uint32_t i, ValueId v)
{
    const Value old = *value_of(r->m, node_res(&r->node, i));

    value_of(r->m, v)->name = old.name;
    value_of(r->m, v)->hint = old.hint;
    vmap_set(r->map, node_res(&r->node, i), v);
}

/* Behind a window some steps see nothing: their keys only pass by. */
static bool sees(const Ring *r, int64_t step)
{
    const Type *q = value_type(r->m, node_arg(r->m, &r->node, 0));

    return zigzag_sees(type_size(q, 's'),
                       attr_int(r->m, r->node.attrs, AK_ZIGZAG, 1), r->parts,
                       step, attr_int(r->m, r->node.attrs, AK_WINDOW, 0));
}

/* Operands q, k, v, and from the second step on o and lse so far. */
static void forward(Ring *r)
{
    ValueId args[5], next[2];

    for (uint32_t i = 0; i < 3; i++)
        args[i] = node_arg(r->m, &r->node, i);
    for (int64_t step = 0; step < r->parts; step++) {
        for (uint32_t i = 0; step + 1 < r->parts && i < 2; i++)
            next[i] = shift(r, args[1 + i]);
        if (sees(r, step)) {
            args[3] = ir_op(r->m, r->f, OP_ATTENTION_STEP, args, step ? 5 : 3,
                            step_attrs(r, step), r->node.loc);
            args[4] = (ValueId){args[3].i + 1};
        }
        args[1] = next[0];
        args[2] = next[1];
    }
    replace(r, 0, args[3]);
    replace(r, 1, args[4]);
}

/* v alone at first. */
static ValueId add(Ring *r, ValueId sum, ValueId v)
{
    if (sum.i == 0)
        return v;
    return ir_binary(r->m, r->f, OP_ADD, sum, v, r->node.loc);
}

static ValueId rounded(Ring *r, ValueId v, uint32_t result)
{
    DType dtype = value_type(r->m, node_res(&r->node, result))->dtype;

    return ir_cast(r->m, r->f, v, dtype, r->node.loc);
}

/* The gradients of keys and values, which come after that of queries. */
static void add_to_keys(Ring *r, ValueId *dkv, ValueId made)
{
    for (uint32_t i = 0; i < 2; i++) {
        ValueId more = {made.i + 1 + i};
        dkv[i] = rounded(r, add(r, dkv[i], more), 1 + i);
    }
}

static void backward(Ring *r)
{
    ValueId args[6], next[2], dq = {0}, dkv[2] = {{0}, {0}}, made;

    for (uint32_t i = 0; i < 6; i++)
        args[i] = node_arg(r->m, &r->node, i);
    for (int64_t step = 0; step < r->parts; step++) {
        for (uint32_t i = 0; step + 1 < r->parts && i < 2; i++)
            next[i] = shift(r, args[1 + i]);
        for (uint32_t i = 0; step && i < 2; i++)
            dkv[i] = shift(r, dkv[i]); /* after its keys */
        if (sees(r, step)) {
            made = ir_op(r->m, r->f, OP_ATTENTION_STEP_GRAD, args, 6,
                         step_attrs(r, step), r->node.loc);
            dq = add(r, dq, made);
            add_to_keys(r, dkv, made);
        }
        args[1] = next[0];
        args[2] = next[1];
    }
    replace(r, 0, rounded(r, dq, 0));
    replace(r, 1, shift(r, dkv[0]));
    replace(r, 2, shift(r, dkv[1]));
}

static bool expand(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Module *m = self;
    const Node n = *node_of(m, id);
    AxisSet axes = attr_axes(m, n.attrs, AK_AXES);
    Ring r = {m, f, n, axes_size(&m->mesh, axes), map};

    if (axes && n.op == OP_ATTENTION)
        forward(&r);
    if (axes && n.op == OP_ATTENTION_GRAD)
        backward(&r);
    return axes && (n.op == OP_ATTENTION || n.op == OP_ATTENTION_GRAD);
}

bool pass_ring(Module *m, const Spec *spec)
{
    (void)spec;
    for (uint32_t i = 1; i < m->funcs.n; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            func_rebuild(m, (FuncId){i}, expand, m);
    return true;
}
