/* fuse_simplify.c - what autodiff and resharding leave behind and nobody needs.
 *
 *     cast x {dtype=f32}, x bf16          x, for whoever computes in f32 anyway
 *     cast (cast x {f32}) {bf16}, x bf16  x
 *     mul 1, x                            x
 *     part (join a, b) {first=0}          a
 *     slice (mul a, onehot …) {dim=v}     mul a, onehot made for this part
 *
 * The last one keeps a value that repeats along v, or is 0 but for one index,
 * from ever being whole.
 */
#include "passes/fuse_priv.h"

typedef struct {
    Module *m;
    FuncId f;
    ValueMap map;
    Vec(NodeId) body; /* rebuilt in order */
} Simplify;

static const Node *def_of(const Simplify *s, ValueId v)
{
    return node_of(s->m, value_of(s->m, v)->def);
}

/* ---- casts and ones ----------------------------------------------------- */

/* Computes in f32 whatever its operands are, and takes any of them. */
static bool reads_any_float(const Node *n)
{
    return (op_info[n->op].flags & OPF_ROW) && n->op != OP_COPY &&
           n->op != OP_ONLY && n->op != OP_PART && n->op != OP_JOIN;
}

/* The narrow value behind a cast to f32, else v. */
static ValueId unwidened(const Simplify *s, ValueId v)
{
    const Node *n = def_of(s, v);

    if (n->op != OP_CAST || value_type(s->m, v)->dtype != DT_F32)
        return v;
    return dtype_bytes(value_type(s->m, node_arg(s->m, n, 0))->dtype) == 2
               ? node_arg(s->m, n, 0) : v;
}

static bool is_one(const Simplify *s, ValueId v)
{
    const Node *n = def_of(s, v);

    return n->op == OP_CONST && attr_float(s->m, n->attrs, AK_VALUE, 0) == 1.0;
}

/* The operand of a join that a part takes out again. */
static ValueId part_same_as(const Simplify *s, const Node *n)
{
    const Node *join = def_of(s, node_arg(s->m, n, 0));
    Span part = part_span(s->m, n);

    for (uint32_t i = 0; join->op == OP_JOIN && i < join->nargs; i++) {
        ValueId v = node_arg(s->m, join, i);

        if (join_span(s->m, join, i).first == part.first &&
            value_of(s->m, v)->type.i == value_of(s->m, n->res)->type.i)
            return v;
    }
    return n->res;
}

/* What a node's result is the same as, or the result itself. */
static ValueId same_as(const Simplify *s, const Node *n)
{
    ValueId x;

    if (n->op == OP_PART)
        return part_same_as(s, n);
    if (n->op == OP_CAST) {
        x = node_arg(s->m, n, 0);
        return value_of(s->m, x)->type.i == value_of(s->m, n->res)->type.i
                   ? x : n->res;
    }
    for (uint32_t i = 0; n->op == OP_MUL && i < 2; i++) {
        x = node_arg(s->m, n, 1 - i);
        if (is_one(s, node_arg(s->m, n, i)) &&
            value_of(s->m, x)->type.i == value_of(s->m, n->res)->type.i)
            return x;
    }
    return n->res;
}

/* ---- slices of what can be made in parts -------------------------------- */

static bool is_made_in_parts(const Simplify *s, ValueId v, char dim)
{
    const Node *n = def_of(s, v);

    if (type_dim(value_type(s->m, v), dim) < 0)
        return true;
    if (n->op == OP_NONE || op_info[n->op].flags & OPF_GENERATOR)
        return n->op != OP_NONE;
    if (!strcmp(op_info[n->op].sig, "*") && n->nargs == 2) {
        for (uint32_t i = 0; i < n->nargs; i++)
            if (!is_made_in_parts(s, node_arg(s->m, n, i), dim))
                return false;
        return true;
    }
    return false;
}

/* A copy of what makes v, for the part that `split` of its dimension names. */
static ValueId part_of(Simplify *s, ValueId v, const Split *split)
{
    Module *m = s->m;
    Layout layout = *layout_of(m, value_of(m, v)->layout);
    Node n = *def_of(s, v);
    ValueMap map = {0};
    NodeId made;

    if (type_dim(value_type(m, v), split->dim) < 0)
        return v;
    for (uint32_t i = 0; i < n.nargs; i++)
        vmap_set(&map, node_arg(m, &n, i),
                part_of(s, node_arg(m, &n, i), split));
    made = node_copy(m, (FuncId){0}, value_of(m, v)->def, &map);
    vec_push(&s->body, made);
    layout_set_split(&layout, split->dim, split->atom, split->n);
    value_of(m, node_of(m, made)->res)->layout = layout_intern(m, &layout);
    vmap_free(&map);
    return node_of(m, made)->res;
}

/* The slice's replacement, or its own result. */
static ValueId slice_made(Simplify *s, const Node *n)
{
    char dim = (char)attr_int(s->m, n->attrs, AK_DIM, 0);
    ValueId x = node_arg(s->m, n, 0);
    const Split *split;
    Split copy;

    if (n->op != OP_SLICE || !is_made_in_parts(s, x, dim))
        return n->res;
    split = layout_split(layout_of(s->m, value_of(s->m, n->res)->layout), dim);
    if (!split)
        return n->res;
    copy = *split;
    return part_of(s, x, &copy);
}

/* ---- one function ------------------------------------------------------- */

static void operands_take(Simplify *s, NodeId id)
{
    const Node *n = node_of(s->m, id);

    for (uint32_t i = 0; i < n->nargs; i++) {
        ValueId *arg = &s->m->args.v[n->arg + i];

        *arg = vmap_get(&s->map, *arg);
        if (reads_any_float(n))
            *arg = unwidened(s, *arg);
    }
}

static void node_simplify(Simplify *s, NodeId id)
{
    Node n;
    ValueId same;

    operands_take(s, id);
    n = *node_of(s->m, id);
    if (n.nres != 1) {
        vec_push(&s->body, id);
        return;
    }
    same = same_as(s, &n);
    if (same.i == n.res.i)
        same = slice_made(s, &n);
    if (same.i == n.res.i)
        vec_push(&s->body, id);
    else
        vmap_set(&s->map, n.res, same);
}

void fuse_simplify(Module *m, FuncId f)
{
    Simplify s = {.m = m, .f = f};
    uint32_t n = func_of(m, f)->body.n;

    for (uint32_t i = 0; i < n; i++)
        node_simplify(&s, func_of(m, f)->body.v[i]);
    vec_free(&func_of(m, f)->body);
    for (uint32_t i = 0; i < s.body.n; i++)
        vec_push(&func_of(m, f)->body, s.body.v[i]);
    func_substitute(m, f, &s.map);
    vec_free(&s.body);
    vmap_free(&s.map);
}
