/* fuse_epilogue.c - what is done to a product's result, by the product itself.
 *
 *     %1 = dot %x, %w
 *     %2 = add %1, %bias              %y = dots %x, %w, %bias, %r
 *     %3 = cast %2 {bf16}        →             {bias=1, residual=1}
 *     %4 = add %r, %3
 *     %y = cast %4 {bf16}
 *
 * An epilogue is taken where nobody else wants what is in between, so the
 * activation of a layer that keeps its input for the backward stays a row
 * program, and becomes one where the input is computed again.  Of a partial sum
 * nothing is taken but a residual that is one too: a bias would count once per
 * rank.  Nor is a residual taken that may still be on its way when all else is
 * there.  Rounding
 * happens once, at the end.
 *
 * The nodes behind the product are left without uses, for clean_dead to drop.
 */
#include "passes/fuse_priv.h"

enum { MAX_PRODUCTS = 8 };

typedef struct {
    Module *m;
    FuncId f;
    Arena *arena;
    uint32_t *uses; /* by ValueId */
    NodeId *user;   /* by ValueId: one that uses it; 0: none, or returned */
} Products;

/* A product and what is found behind it. */
typedef struct {
    Node node;
    uint32_t pos;
    uint32_t n;                    /* results */
    ValueId last[MAX_PRODUCTS];    /* what result i has become so far */
    ValueId bias[MAX_PRODUCTS];
    ValueId residual;              /* only if n is 1 */
    int activation;                /* likewise */
    bool has_bias;
} Chain;

static void uses_find(Products *s)
{
    const Func *f = func_of(s->m, s->f);

    s->uses = arena_array(s->arena, uint32_t, s->m->values.n);
    s->user = arena_array(s->arena, NodeId, s->m->values.n);
    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = node_of(s->m, f->body.v[i]);

        for (uint32_t k = 0; k < n->nargs; k++) {
            s->uses[node_arg(s->m, n, k).i]++;
            s->user[node_arg(s->m, n, k).i] = f->body.v[i];
        }
    }
    for (uint32_t i = 0; i < f->results.n; i++) {
        s->uses[f->results.v[i].i]++;
        s->user[f->results.v[i].i] = (NodeId){0};
    }
}

/* The only use of v, if it is one by `op`; else NULL. */
static const Node *only_user(const Products *s, ValueId v, Op op)
{
    const Node *n = node_of(s->m, s->user[v.i]);

    return s->uses[v.i] == 1 && s->user[v.i].i && n->op == op ? n : NULL;
}

/* ---- operands that can be there in time ---------------------------------- */

static uint32_t position(const Products *s, NodeId id)
{
    const Func *f = func_of(s->m, s->f);
    uint32_t i = 0;

    while (i < f->body.n && f->body.v[i].i != id.i)
        i++;
    return i;
}

/* State read at `to` is what it was at `from`. */
static bool state_keeps(const Products *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        Op op = (Op)node_of(s->m, func_of(s->m, s->f)->body.v[i])->op;

        if (op == OP_WRITE || op == OP_CALL)
            return false;
    }
    return true;
}

/* Whether v is made before `pos`, or is a parameter of the model, perhaps
 * gathered, that can be. */
static bool is_available(const Products *s, ValueId v, uint32_t pos)
{
    NodeId def = value_of(s->m, v)->def;
    const Node *n = node_of(s->m, def);
    uint32_t at = def.i ? position(s, def) : 0;

    if (!def.i || at < pos)
        return true;
    if (n->op == OP_ALL_GATHER || n->op == OP_UNFLATTEN)
        return is_available(s, node_arg(s->m, n, 0), pos);
    return n->op == OP_READ && state_keeps(s, pos, at);
}

/* Moves what makes v in front of the chain's product. */
static void make_available(Products *s, ValueId v, Chain *c)
{
    NodeId def = value_of(s->m, v)->def, *body;
    const Node *n = node_of(s->m, def);
    uint32_t at = def.i ? position(s, def) : 0;

    if (!def.i || at < c->pos)
        return;
    for (uint32_t i = 0; i < n->nargs; i++)
        make_available(s, node_arg(s->m, n, i), c);
    body = func_of(s->m, s->f)->body.v;
    memmove(body + c->pos + 1, body + c->pos, (at - c->pos) * sizeof *body);
    body[c->pos++] = def;
}

/* ---- the links of a chain ------------------------------------------------ */

static const Type *result_type(const Products *s, const Chain *c, uint32_t i)
{
    return value_type(s->m, node_res(&c->node, i));
}

/* v as the product would store it: itself, or rounded to the product's type.
 * 0 if it is wanted otherwise. */
static ValueId rounded(const Products *s, const Chain *c, uint32_t i, ValueId v)
{
    ValueId res = node_res(&c->node, i);
    const Node *cast;

    if (value_of(s->m, v)->type.i != value_of(s->m, res)->type.i) {
        cast = only_user(s, v, OP_CAST);
        v = cast ? cast->res : (ValueId){0};
    }
    return v.i && value_of(s->m, v)->type.i == value_of(s->m, res)->type.i &&
                   value_of(s->m, v)->layout.i == value_of(s->m, res)->layout.i
               ? v : (ValueId){0};
}

/* The other operand of an addition. */
static ValueId addend(const Products *s, const Node *add, ValueId v)
{
    ValueId first = node_arg(s->m, add, 0);

    return first.i == v.i ? node_arg(s->m, add, 1) : first;
}

static bool take_bias(const Products *s, Chain *c, uint32_t i)
{
    const Type *x = value_type(s->m, node_arg(s->m, &c->node, 0));
    const Type *w = value_type(s->m, node_arg(s->m, &c->node, i + 1));
    const Node *add = only_user(s, c->last[i], OP_ADD);
    ValueId next;

    if (!add)
        return false;
    c->bias[i] = addend(s, add, c->last[i]);
    next = rounded(s, c, i, add->res);
    if (!next.i || !bias_fits(x, w, value_type(s->m, c->bias[i])) ||
        !is_available(s, c->bias[i], c->pos))
        return false;
    c->last[i] = next;
    return true;
}

static void mark_makers(const Products *s, ValueId v, bool *marked)
{
    NodeId def = value_of(s->m, v)->def;
    const Node *n = node_of(s->m, def);

    if (!def.i || marked[def.i])
        return;
    marked[def.i] = true;
    for (uint32_t i = 0; i < n->nargs; i++)
        mark_makers(s, node_arg(s->m, n, i), marked);
}

/* Whether v comes from a collective that the product need not wait for. */
static bool travels(const Products *s, const Chain *c, ValueId v)
{
    bool *own = arena_array(s->arena, bool, s->m->nodes.n);
    bool *others = arena_array(s->arena, bool, s->m->nodes.n);

    for (uint32_t i = 0; i < c->node.nargs; i++)
        mark_makers(s, node_arg(s->m, &c->node, i), own);
    mark_makers(s, v, others);
    for (uint32_t i = 1; i < s->m->nodes.n; i++)
        if (others[i] && !own[i] &&
            (op_info[s->m->nodes.v[i].op].flags & OPF_COMM))
            return true;
    return false;
}

static void take_residual(const Products *s, Chain *c)
{
    const Node *add = only_user(s, c->last[0], OP_ADD);
    const Value *res = value_of(s->m, c->node.res);
    ValueId other, next;

    if (!add)
        return;
    other = addend(s, add, c->last[0]);
    next = rounded(s, c, 0, add->res);
    if (!next.i || value_of(s->m, other)->type.i != res->type.i ||
        value_of(s->m, other)->layout.i != res->layout.i ||
        !is_available(s, other, c->pos) || travels(s, c, other))
        return;
    c->residual = other;
    c->last[0] = next;
}

/* ---- activations --------------------------------------------------------- */

typedef struct {
    const Products *s;
    ValueId x;
    uint32_t uses; /* of x, by what has matched */
} Match;

static bool is_number(const Module *m, const Node *n, double number)
{
    if (n->op != OP_CONST || attr_int(m, n->attrs, AK_ROOT, 0))
        return false;
    return number == (attr_find(m, n->attrs, AK_VALUE)
                          ? attr_float(m, n->attrs, AK_VALUE, 0)
                          : (double)attr_int(m, n->attrs, AK_NUM, 0) /
                                (double)attr_int(m, n->attrs, AK_DEN, 1));
}

/* Whether v is the formula at *at, which moves behind it.  Operands come in
 * the formula's order or, of sums and products, in the other. */
static bool matches(Match *t, const char **at, ValueId v, bool root);

static bool operands_match(Match *t, const char **at, const Node *n)
{
    const char *start = *at;
    uint32_t uses = t->uses;

    for (uint32_t turn = 0; turn < n->nargs; turn++) {
        bool all = true;

        *at = start;
        t->uses = uses;
        for (uint32_t i = 0; i < n->nargs && all; i++)
            all = matches(t, at, node_arg(t->s->m, n, (i + turn) % n->nargs),
                          false);
        if (all)
            return true;
    }
    return false;
}

static bool matches(Match *t, const char **at, ValueId v, bool root)
{
    FormulaWord word = formula_word(at);
    const Node *n = node_of(t->s->m, value_of(t->s->m, v)->def);

    if (word.kind == FORMULA_X) {
        t->uses++;
        return v.i == t->x.i;
    }
    if (word.kind == FORMULA_NUMBER)
        return is_number(t->s->m, n, word.number);
    return n->op == word.op && (root || t->s->uses[v.i] == 1) &&
           operands_match(t, at, n);
}

static bool is_activation(const Products *s, ValueId x, ValueId y, int kind)
{
    Match t = {.s = s, .x = x};
    const char *at = activations[kind].formula;

    return matches(&t, &at, y, true) && t.uses == s->uses[x.i];
}

/* Looks for an activation of the last value among the nodes behind. */
static void take_activation(const Products *s, Chain *c)
{
    const Func *f = func_of(s->m, s->f);

    for (uint32_t i = c->pos + 1; i < f->body.n; i++) {
        const Node *n = node_of(s->m, f->body.v[i]);

        for (int k = ACTIVATION_NONE + 1; k < ACTIVATION_COUNT; k++) {
            ValueId next;

            if (n->nres != 1 || !is_activation(s, c->last[0], n->res, k))
                continue;
            next = rounded(s, c, 0, n->res);
            if (!next.i)
                return;
            c->activation = k;
            c->last[0] = next;
            return;
        }
    }
}

/* ---- the product --------------------------------------------------------- */

static bool fits(const Products *s, const Chain *c)
{
    bool all = true;

    for (uint32_t i = 0; i < c->n; i++)
        all = all && value_of(s->m, node_res(&c->node, i))->layout.i &&
              epilogue_fits(value_type(s->m, node_arg(s->m, &c->node, 0)),
                            value_type(s->m, node_arg(s->m, &c->node, i + 1)),
                            result_type(s, c, i));
    return all;
}

static bool is_complete(const Products *s, const Chain *c)
{
    bool all = true;

    for (uint32_t i = 0; i < c->n; i++)
        all = all && !layout_of(s->m, value_of(s->m, node_res(&c->node, i))
                                          ->layout)->partial;
    return all;
}

/* What lies behind the product at c->pos; false if nothing does. */
static bool chain_find(const Products *s, Chain *c)
{
    Chain without = *c;
    bool complete = is_complete(s, c);

    if (!fits(s, c))
        return false;
    c->has_bias = complete;
    for (uint32_t i = 0; i < c->n && c->has_bias; i++)
        c->has_bias = take_bias(s, c, i);
    if (!c->has_bias)
        *c = without;
    if (c->n == 1)
        take_residual(s, c);
    if (c->n == 1 && complete)
        take_activation(s, c);
    return c->has_bias || c->residual.i || c->activation;
}

static AttrsId chain_attrs(const Products *s, const Chain *c)
{
    Module *m = s->m;
    int64_t dims = attr_sym(m, c->node.attrs, AK_DIMS).i;
    Attr list[5];
    uint32_t n = 0;

    list[n++] = c->node.op == OP_DOT ? attr_of_list(m, AK_EACH, &dims, 1)
                                     : *attr_find(m, c->node.attrs, AK_EACH);
    list[n++] = attr_of_int(AK_DTYPE, result_type(s, c, 0)->dtype);
    if (c->has_bias)
        list[n++] = attr_of_int(AK_BIAS, 1);
    if (c->residual.i)
        list[n++] = attr_of_int(AK_RESIDUAL, 1);
    if (c->activation)
        list[n++] = attr_of_sym(
            AK_ACT, sym_intern(m->names, activations[c->activation].name));
    return attrs_intern(m, list, n);
}

static NodeId chain_node(const Products *s, const Chain *c)
{
    ValueId args[2 * MAX_PRODUCTS + 2];
    TypeId types[MAX_PRODUCTS];
    uint32_t n = 0;

    for (uint32_t i = 0; i <= c->n; i++)
        args[n++] = node_arg(s->m, &c->node, i);
    for (uint32_t i = 0; i < c->n; i++) {
        types[i] = value_of(s->m, node_res(&c->node, i))->type;
        if (c->has_bias)
            args[n++] = c->bias[i];
    }
    if (c->residual.i)
        args[n++] = c->residual;
    return node_new(s->m, (FuncId){0}, OP_DOTS, args, n, chain_attrs(s, c),
                    types, c->n, c->node.loc);
}

static void chain_replace(Products *s, Chain *c)
{
    ValueMap map = {0};
    NodeId made;

    for (uint32_t i = 0; i < c->n && c->has_bias; i++)
        make_available(s, c->bias[i], c);
    if (c->residual.i)
        make_available(s, c->residual, c);
    made = chain_node(s, c);
    func_of(s->m, s->f)->body.v[c->pos] = made;
    for (uint32_t i = 0; i < c->n; i++) {
        Value *to = value_of(s->m, node_res(node_of(s->m, made), i));
        const Value *from = value_of(s->m, c->last[i]);

        to->layout = from->layout;
        to->name = from->name.i
                       ? from->name
                       : value_of(s->m, node_res(&c->node, i))->name;
        to->hint = from->hint;
        vmap_set(&map, c->last[i], node_res(node_of(s->m, made), i));
    }
    func_substitute(s->m, s->f, &map);
    vmap_free(&map);
}

/* The product at `pos`, if it is one without an epilogue. */
static bool chain_at(const Products *s, uint32_t pos, Chain *out)
{
    Node n = *node_of(s->m, func_of(s->m, s->f)->body.v[pos]);
    Epilogue e = node_epilogue(s->m, &n);

    if ((n.op != OP_DOT && n.op != OP_DOTS) || has_epilogue(&e) ||
        n.nres > MAX_PRODUCTS)
        return false;
    *out = (Chain){.node = n, .pos = pos, .n = n.nres};
    for (uint32_t i = 0; i < out->n; i++) {
        out->last[i] = node_res(&n, i);
        if (!s->uses[out->last[i].i])
            return false;
    }
    return true;
}

void fuse_epilogues(Module *m, FuncId f)
{
    Products s = {.m = m, .f = f};
    Chain c;

    if (!func_has(m, f, OP_DOT) && !func_has(m, f, OP_DOTS))
        return;
    s.arena = arena_new();
    uses_find(&s);
    for (uint32_t i = 0; i < func_of(m, f)->body.n; i++) {
        if (!chain_at(&s, i, &c) || !chain_find(&s, &c))
            continue;
        chain_replace(&s, &c);
        uses_find(&s);
    }
    arena_free(s.arena);
}
