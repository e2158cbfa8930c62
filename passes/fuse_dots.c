/* fuse_dots.c - products that share an operand, or whose results are added.
 *
 *     %q = dot %x, %wq                %q, %k = dots %x, %wq, %wk
 *     %k = dot %x, %wk           →
 *
 *     %a = dot %dq, %wq               %dx = dots_sum %dq, %dk, %wq, %wk
 *     %b = dot %dk, %wk          →
 *     %dx = add %a, %b
 *
 *     %gq = dot %dq, %x               dots_accum %dq, %dk, %x {tensors=[…]}
 *     accum %gq {tensor=@q}      →
 *     %gk = dot %dk, %x
 *     accum %gk {tensor=@k}
 *
 * What is replaced is left in the body without uses, for clean_dead to drop.
 */
#include "passes/fuse_priv.h"

enum { MAX_DOTS = 8 };

typedef struct {
    Module *m;
    FuncId f;
    Arena *arena;
    uint32_t *uses;     /* by ValueId */
} Dots;

static Node at(const Dots *d, uint32_t i)
{
    return *node_of(d->m, func_of(d->m, d->f)->body.v[i]);
}

static const Value *result_of(const Dots *d, const Node *n)
{
    return value_of(d->m, n->res);
}

static void uses_count(Dots *d)
{
    const Func *f = func_of(d->m, d->f);

    d->uses = arena_array(d->arena, uint32_t, d->m->values.n);
    for (uint32_t i = 0; i < f->body.n; i++)
        for (uint32_t k = 0; k < at(d, i).nargs; k++) {
            Node n = at(d, i);

            d->uses[node_arg(d->m, &n, k).i]++;
        }
    for (uint32_t i = 0; i < f->results.n; i++)
        d->uses[f->results.v[i].i]++;
}

/* Position in the body of the node that defines v, or -1. */
static int32_t position(const Dots *d, ValueId v)
{
    const Func *f = func_of(d->m, d->f);

    for (uint32_t i = 0; i < f->body.n; i++)
        if (f->body.v[i].i == value_of(d->m, v)->def.i)
            return (int32_t)i;
    return -1;
}

static void body_insert(Dots *d, uint32_t pos, NodeId n)
{
    Func *f = func_of(d->m, d->f);

    vec_push(&f->body, n);
    memmove(f->body.v + pos + 1, f->body.v + pos,
            (f->body.n - 1 - pos) * sizeof *f->body.v);
    f->body.v[pos] = n;
}

static void replace(Dots *d, ValueId from, ValueId to)
{
    ValueMap map = {0};

    value_of(d->m, to)->layout = value_of(d->m, from)->layout;
    value_of(d->m, to)->name = value_of(d->m, from)->name;
    value_of(d->m, to)->hint = value_of(d->m, from)->hint;
    vmap_set(&map, from, to);
    func_substitute(d->m, d->f, &map);
    vmap_free(&map);
}

/* ---- one operand, several weights --------------------------------------- */

/* A parameter as it rests, or gathered before `pos`, here or by a caller. */
static bool is_weight(const Dots *d, ValueId w, uint32_t pos)
{
    ValueId lines = flat_source(d->m, w);
    int32_t def = position(d, lines);
    Op op = def < 0 ? OP_READ : (Op)at(d, (uint32_t)def).op;

    if (def >= (int32_t)pos && (op != OP_READ || lines.i != w.i))
        return false;
    return op == OP_READ || op == OP_ALL_GATHER;
}

/* Whether two products with one operand sum over the same of its letters, as
 * those with weights do and the gradient of a weight does not. */
static bool same_sum(const Dots *d, const Node *a, const Node *b)
{
    const Type *x = value_type(d->m, node_arg(d->m, a, 0));
    const Type *y = value_type(d->m, a->res), *z = value_type(d->m, b->res);

    for (uint8_t i = 0; i < x->ndim; i++)
        if ((type_dim(y, x->dim[i]) < 0) != (type_dim(z, x->dim[i]) < 0))
            return false;
    return true;
}

static bool writes_state(const Node *n)
{
    return n->op == OP_WRITE || n->op == OP_CALL;
}

/* The products with the operand of the one at `first`, it included; stops
 * where a read could not be moved up. */
static uint32_t dots_collect(const Dots *d, uint32_t first, uint32_t *out)
{
    const Func *f = func_of(d->m, d->f);
    Node lead = at(d, first);
    uint32_t n = 0;

    for (uint32_t i = first; i < f->body.n && n < MAX_DOTS; i++) {
        Node other = at(d, i);

        if (writes_state(&other))
            break;
        if (other.op == OP_DOT &&
            node_arg(d->m, &other, 0).i == node_arg(d->m, &lead, 0).i &&
            result_of(d, &other)->type.i && same_sum(d, &lead, &other) &&
            value_type(d->m, other.res)->dtype ==
                value_type(d->m, lead.res)->dtype &&
            is_weight(d, node_arg(d->m, &other, 1), first))
            out[n++] = i;
    }
    return n;
}

/* Moves the reads of the weights in front of `pos`; returns the new `pos`. */
static uint32_t reads_hoist(Dots *d, const ValueId *weight, uint32_t n,
                            uint32_t pos)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t def = position(d, weight[i]);
        NodeId *body = func_of(d->m, d->f)->body.v;

        if (def < (int32_t)pos)
            continue;
        NodeId read = body[def];

        memmove(body + pos + 1, body + pos,
                ((uint32_t)def - pos) * sizeof *body);
        body[pos++] = read;
    }
    return pos;
}

static void dots_make(Dots *d, uint32_t first, const uint32_t *list, uint32_t n)
{
    Module *m = d->m;
    Node lead = at(d, first);
    ValueId args[MAX_DOTS + 1] = {node_arg(m, &lead, 0)}, old[MAX_DOTS];
    int64_t dims[MAX_DOTS];
    TypeId types[MAX_DOTS];
    Attr attrs[2];
    NodeId made;

    for (uint32_t i = 0; i < n; i++) {
        Node dot = at(d, list[i]);

        args[i + 1] = node_arg(m, &dot, 1);
        old[i] = dot.res;
        types[i] = value_of(m, dot.res)->type;
        dims[i] = attr_sym(m, dot.attrs, AK_DIMS).i;
    }
    attrs[0] = attr_of_list(m, AK_EACH, dims, n);
    attrs[1] = attr_of_int(AK_DTYPE, value_type(m, lead.res)->dtype);
    first = reads_hoist(d, args + 1, n, first);
    made = node_new(m, (FuncId){0}, OP_DOTS, args, n + 1,
                    attrs_intern(m, attrs, 2), types, n, lead.loc);
    body_insert(d, first, made);
    for (uint32_t i = 0; i < n; i++)
        replace(d, old[i], node_res(node_of(m, made), i));
}

static void dots_fuse(Dots *d)
{
    uint32_t list[MAX_DOTS];

    uses_count(d);
    for (uint32_t i = 0; i < func_of(d->m, d->f)->body.n; i++) {
        uint32_t n;

        if (at(d, i).op != OP_DOT || !d->uses[at(d, i).res.i])
            continue;
        n = dots_collect(d, i, list);
        if (n < 2)
            continue;
        dots_make(d, i, list, n);
        uses_count(d);
    }
}

/* ---- sums of products --------------------------------------------------- */

/* A product, or a sum of products made here, that only `sum` uses. */
static bool is_term(const Dots *d, const Node *sum, ValueId v)
{
    const Value *value = value_of(d->m, v);
    const Node *n = node_of(d->m, value->def);
    const Type *a = value_type(d->m, v), *b = value_type(d->m, sum->res);

    return value->def.i && (n->op == OP_DOT || n->op == OP_DOTS_SUM) &&
           d->uses[v.i] == 1 && n->nargs < MAX_DOTS &&
           value->layout.i == result_of(d, sum)->layout.i &&
           a->ndim == b->ndim && !memcmp(a->dim, b->dim, a->ndim);
}

/* Appends the operands of a term: inputs to xs, weights to ws. */
static void term_add(const Dots *d, ValueId v, ValueId *xs, ValueId *ws,
                     uint32_t *n)
{
    const Node *term = node_of(d->m, value_of(d->m, v)->def);
    uint32_t half = term->nargs / 2u;

    for (uint32_t i = 0; i < half; i++) {
        xs[*n] = node_arg(d->m, term, i);
        ws[(*n)++] = node_arg(d->m, term, half + i);
    }
}

static void sum_make(Dots *d, uint32_t pos)
{
    Module *m = d->m;
    Node sum = at(d, pos);
    Node first = *node_of(m, value_of(m, node_arg(m, &sum, 0))->def);
    ValueId args[4 * MAX_DOTS], ws[2 * MAX_DOTS];
    TypeId type = value_of(m, sum.res)->type;
    Attr attrs[] = {
        attr_of_sym(AK_DIMS, attr_sym(m, first.attrs, AK_DIMS)),
        attr_of_int(AK_DTYPE, value_type(m, sum.res)->dtype)};
    uint32_t n = 0;
    NodeId made;

    term_add(d, node_arg(m, &sum, 0), args, ws, &n);
    term_add(d, node_arg(m, &sum, 1), args, ws, &n);
    memcpy(args + n, ws, n * sizeof *ws);
    made = node_new(m, (FuncId){0}, OP_DOTS_SUM, args, 2 * n,
                    attrs_intern(m, attrs, 2), &type, 1, sum.loc);
    func_of(m, d->f)->body.v[pos] = made;
    replace(d, sum.res, node_of(m, made)->res);
}

static void sums_fuse(Dots *d)
{
    uses_count(d);
    for (uint32_t i = 0; i < func_of(d->m, d->f)->body.n; i++) {
        Node n = at(d, i);

        if (n.op != OP_ADD || !is_term(d, &n, node_arg(d->m, &n, 0)) ||
            !is_term(d, &n, node_arg(d->m, &n, 1)))
            continue;
        sum_make(d, i);
        uses_count(d);
    }
}

/* ---- products added to gradients ---------------------------------------- */

/* The product that the `accum` at `pos` adds, and nothing else uses. */
static bool is_gradient(const Dots *d, uint32_t pos, Node *out_dot)
{
    Node accum = at(d, pos);
    ValueId v;
    TensorId t;

    if (accum.op != OP_ACCUM ||
        attr_int(d->m, accum.attrs, AK_FIELD, FIELD_GRAD) != FIELD_GRAD)
        return false;
    v = node_arg(d->m, &accum, 0);
    t = attr_tensor(d->m, accum.attrs, AK_TENSOR);
    if (!value_of(d->m, v)->def.i || d->uses[v.i] != 1)
        return false;
    *out_dot = *node_of(d->m, value_of(d->m, v)->def);
    return out_dot->op == OP_DOT &&
           value_type(d->m, v)->dtype == DT_F32 &&
           value_of(d->m, v)->layout.i ==
               tensor_of(d->m, t)->rest[FIELD_GRAD].i;
}

/* The gradients that share the second operand of the one at `first`, up to the
 * first node that reads or clears state. */
static uint32_t gradients_collect(const Dots *d, uint32_t first, uint32_t *out)
{
    const Func *f = func_of(d->m, d->f);
    Node lead, dot;
    uint32_t n = 0;

    if (!is_gradient(d, first, &lead))
        return 0;
    for (uint32_t i = first; i < f->body.n && n < MAX_DOTS - 1; i++) {
        Node other = at(d, i);

        if (writes_state(&other) || other.op == OP_CLEAR)
            break;
        if (is_gradient(d, i, &dot) &&
            node_arg(d->m, &dot, 1).i == node_arg(d->m, &lead, 1).i)
            out[n++] = i;
    }
    return n;
}

static void gradients_make(Dots *d, const uint32_t *list, uint32_t n)
{
    Module *m = d->m;
    ValueId args[MAX_DOTS + 1];
    int64_t tensors[MAX_DOTS];
    Attr attr;
    NodeId made;
    Loc loc = at(d, list[0]).loc;

    for (uint32_t i = 0; i < n; i++) {
        Node accum = at(d, list[i]);
        Node dot = *node_of(m, value_of(m, node_arg(m, &accum, 0))->def);

        args[i] = node_arg(m, &dot, 0);
        args[n] = node_arg(m, &dot, 1);
        tensors[i] = attr_tensor(m, accum.attrs, AK_TENSOR).i;
    }
    attr = attr_of_list(m, AK_TENSORS, tensors, n);
    made = node_new(m, (FuncId){0}, OP_DOTS_ACCUM, args, n + 1,
                    attrs_intern(m, &attr, 1), NULL, 0, loc);
    func_of(m, d->f)->body.v[list[n - 1]] = made;
    for (uint32_t i = n - 1; i-- > 0;) {
        Func *f = func_of(m, d->f);

        memmove(f->body.v + list[i], f->body.v + list[i] + 1,
                (f->body.n - 1 - list[i]) * sizeof *f->body.v);
        f->body.n--;
    }
}

static void gradients_fuse(Dots *d)
{
    uint32_t list[MAX_DOTS];

    uses_count(d);
    for (uint32_t i = 0; i < func_of(d->m, d->f)->body.n; i++) {
        uint32_t n = gradients_collect(d, i, list);

        if (n < 2)
            continue;
        gradients_make(d, list, n);
        uses_count(d);
    }
}

void fuse_dots(Module *m, FuncId f)
{
    Dots d = {.m = m, .f = f};

    if (!func_has(m, f, OP_DOT))
        return;
    d.arena = arena_new();
    sums_fuse(&d);
    gradients_fuse(&d);
    dots_fuse(&d);
    arena_free(d.arena);
}
