/* fuse_outline.c - clusters become row programs, and a new order of the body.
 *
 *     %u = mul %x, %x                 %y = row %x, %w {callee=@f.norm}
 *     %t = sum %u {dims=sb}     →
 *     %r = rsqrt %t                   row @f.norm(%1, %2) { … }
 *     %y = mul %x, %r
 *
 * A cluster keeps of its items what somebody else needs and what that is made
 * of.  Equal programs are one function, however often they occur.
 */
#include "passes/fuse_priv.h"

typedef struct {
    Fusion *x;
    ItemVec *list;    /* by cluster: the items of its row program */
    bool *needed;     /* by item: a result of its cluster's program */
    uint32_t *key;    /* by cluster: place in the body it would like */
    ItemVec *after;   /* by cluster: clusters that wait for it */
    uint32_t *waits;  /* by cluster: how often it occurs in `after` */
    ItemVec ready;    /* clusters that wait for none */
    ValueMap map;     /* old results to those of calls */
    Vec(NodeId) body;
} Outline;

/* ---- what each program contains ----------------------------------------- */

static bool is_const(const Fusion *x, uint32_t item)
{
    return fusion_node(x, item)->op == OP_CONST;
}

/* Computed inside the program of cluster c, not read from memory. */
static bool is_inside(const Fusion *x, uint32_t c, uint32_t item)
{
    return x->cluster[item] == c || x->leaf[item] ||
           items_have(&x->copy[c], item);
}

static void list_append(const Fusion *x, ItemVec *to, uint32_t item,
                        const ItemVec *among)
{
    if (items_have(to, item))
        return;
    for (uint32_t k = 0; k < fusion_node(x, item)->nargs; k++) {
        uint32_t def = fusion_operand(x, item, k);

        if (def && x->leaf[def - 1] && items_have(among, def - 1))
            list_append(x, to, def - 1, among);
    }
    vec_push(to, item);
}

/* Puts each leaf in front of its first use, so that programs which differ in
 * nothing else become equal. */
static void leaves_move(const Fusion *x, ItemVec *list)
{
    ItemVec moved = {0};

    for (uint32_t i = 0; i < list->n; i++)
        if (!x->leaf[list->v[i]])
            list_append(x, &moved, list->v[i], list);
    for (uint32_t i = 0; i < list->n; i++)
        list_append(x, &moved, list->v[i], list);
    vec_free(list);
    *list = moved;
}

static void list_close(Outline *o, uint32_t c)
{
    Fusion *x = o->x;
    ItemVec *list = &o->list[c];

    list->n = 0;
    for (uint32_t i = 0; i < x->member[c].n; i++) {
        uint32_t item = x->member[c].v[i];

        if (o->needed[item] || fusion_node(x, item)->op == OP_ACCUM)
            vec_push(list, item);
    }
    for (uint32_t i = 0; i < list->n; i++)
        for (uint32_t k = 0; k < fusion_node(x, list->v[i])->nargs; k++) {
            uint32_t def = fusion_operand(x, list->v[i], k);

            if (def && is_inside(x, c, def - 1))
                vec_push(list, def - 1);
        }
    items_sort(list);
    leaves_move(x, list);
}

/* Marks what the program of c reads from other programs; whether any is new. */
static bool list_demand(Outline *o, uint32_t c)
{
    Fusion *x = o->x;
    bool any = false;

    for (uint32_t i = 0; i < o->list[c].n; i++) {
        uint32_t item = o->list[c].v[i];

        for (uint32_t k = 0; k < fusion_node(x, item)->nargs; k++) {
            uint32_t def = fusion_operand(x, item, k);

            if (!def || !x->row[def - 1] || is_inside(x, c, def - 1))
                continue;
            any |= !o->needed[def - 1];
            o->needed[def - 1] = true;
        }
    }
    return any;
}

static void lists_make(Outline *o)
{
    Fusion *x = o->x;
    bool again = true;

    for (uint32_t i = 0; i < x->n; i++)
        o->needed[i] = x->row[i] && x->outside[i];
    while (again) {
        again = false;
        for (uint32_t c = 0; c < x->n; c++)
            if (x->member[c].n && x->row[x->member[c].v[0]]) {
                list_close(o, c);
                again |= list_demand(o, c);
            }
    }
}

/* ---- the order of calls and other nodes --------------------------------- */

static void wait_add(Outline *o, uint32_t before, uint32_t c)
{
    if (before == c)
        return;
    vec_push(&o->after[before], c);
    o->waits[c]++;
}

static void waits_of_values(Outline *o, uint32_t c, uint32_t item)
{
    Fusion *x = o->x;

    for (uint32_t k = 0; k < fusion_node(x, item)->nargs; k++) {
        uint32_t def = fusion_operand(x, item, k);

        if (def && !(x->row[item] && is_inside(x, c, def - 1)))
            wait_add(o, x->cluster[def - 1], c);
    }
}

/* Only nodes with a place in the order wait for more than values. */
static void waits_of_order(Outline *o, uint32_t item)
{
    Fusion *x = o->x;

    for (uint32_t k = 0; k < x->succ[item].n; k++)
        if (!x->row[item] || fusion_node(x, item)->op == OP_ACCUM)
            wait_add(o, x->cluster[item], x->cluster[x->succ[item].v[k]]);
}

/* Lines come right behind what they are of, and so do not stand between
 * collectives that could start together. */
static uint32_t first_key(const Fusion *x, uint32_t c)
{
    return fusion_node(x, c)->op == OP_FLATTEN ? 0 : c;
}

static void waits_make(Outline *o)
{
    Fusion *x = o->x;

    for (uint32_t c = 0; c < x->n; c++) {
        const ItemVec *list = &o->list[c];

        o->key[c] = first_key(x, c);
        for (uint32_t i = 0; i < list->n; i++) {
            waits_of_values(o, c, list->v[i]);
            if (x->cluster[list->v[i]] == c)
                o->key[c] = MC_MAX(o->key[c], list->v[i]);
        }
        if (x->member[c].n && !x->row[x->member[c].v[0]])
            waits_of_values(o, c, x->member[c].v[0]);
    }
    for (uint32_t i = 0; i < x->n; i++)
        waits_of_order(o, i);
}

/* ---- one program -------------------------------------------------------- */

/* Parameters are what the list reads, in the order in which it is read. */
static void params_add(Outline *o, uint32_t c, FuncId f, ValueMap *map,
                       ValueId *args, uint32_t *out_nargs)
{
    Fusion *x = o->x;
    Module *m = x->m;
    uint32_t nargs = 0;

    for (uint32_t i = 0; i < o->list[c].n; i++)
        for (uint32_t k = 0; k < fusion_node(x, o->list[c].v[i])->nargs; k++) {
            ValueId v = node_arg(m, fusion_node(x, o->list[c].v[i]), k);
            uint32_t def = fusion_operand(x, o->list[c].v[i], k);
            ValueId param;

            if ((def && items_have(&o->list[c], def - 1)) ||
                vmap_get(map, v).i != v.i)
                continue;
            param = func_param(m, f, value_of(m, v)->type, NULL);
            value_of(m, param)->layout = value_of(m, v)->layout;
            vmap_set(map, v, param);
            args[nargs++] = v;
        }
    *out_nargs = nargs;
}

/* Inside a program names would only keep equal ones apart. */
static void nodes_add(Outline *o, uint32_t c, FuncId f, ValueMap *map)
{
    Module *m = o->x->m;

    for (uint32_t i = 0; i < o->list[c].n; i++) {
        const Node n = *node_of(m, node_copy(m, f, o->x->node[o->list[c].v[i]],
                                             map));

        for (uint32_t r = 0; r < n.nres; r++) {
            value_of(m, node_res(&n, r))->name = (Sym){0};
            value_of(m, node_res(&n, r))->hint = (Sym){0};
        }
    }
}

static void results_add(Outline *o, uint32_t c, FuncId f, const ValueMap *map,
                        ItemVec *out_items)
{
    Module *m = o->x->m;

    for (uint32_t i = 0; i < o->list[c].n; i++) {
        uint32_t item = o->list[c].v[i];

        if (o->x->cluster[item] != c || !o->needed[item])
            continue;
        vec_push(out_items, item);
        vec_push(&func_of(m, f)->results,
                 vmap_get(map, node_res(fusion_node(o->x, item), 0)));
    }
}

/* What a program is called after, if none of its results has a name: the most
 * telling op in it. */
static const struct {
    Op op;
    const char *word;
} telling[] = {
    {OP_EXPSUB, "softmax"}, {OP_ROTATE, "rope"}, {OP_RSQRT, "norm"},
    {OP_SIGMOID, "act"},    {OP_TANH, "act"},    {OP_ERF, "act"},
    {OP_RELU, "act"},       {OP_SQRT, "update"}, {OP_SUM, "sum"},
    {OP_MAX, "max"},        {OP_ACCUM, "accum"},
};

static bool contains(const Outline *o, uint32_t c, Op op)
{
    for (uint32_t i = 0; i < o->list[c].n; i++)
        if (fusion_node(o->x, o->list[c].v[i])->op == op)
            return true;
    return false;
}

static const char *program_word(const Outline *o, uint32_t c)
{
    const Fusion *x = o->x;
    const ItemVec *list = &o->list[c];

    for (uint32_t i = 0; i < list->n; i++) {
        const Node *n = fusion_node(x, list->v[i]);
        Sym name = n->nres ? x->m->values.v[n->res.i].name : (Sym){0};

        if (o->needed[list->v[i]] && x->cluster[list->v[i]] == c && name.i)
            return sym_text(x->m->names, name);
    }
    for (size_t i = 0; i < MC_LEN(telling); i++)
        if (contains(o, c, telling[i].op))
            return telling[i].word;
    return op_info[fusion_node(x, list->v[list->n - 1])->op].name;
}

static const char *program_name(const Outline *o, uint32_t c)
{
    Module *m = o->x->m;
    const char *in = sym_text(m->names, func_of(m, o->x->f)->name);
    const char *word = program_word(o, c);
    char *name = arena_printf(m->arena, "%s.%s", in, word);

    for (int n = 2; func_find(m, sym_intern(m->names, name)).i; n++)
        name = arena_printf(m->arena, "%s.%s.%d", in, word, n);
    return name;
}

/* Two programs walked side by side: which value of one is which of the
 * other. */
typedef struct {
    const Module *m;
    Vec(ValueId) left, right;
} Likeness;

static bool likeness_add(Likeness *s, ValueId left, ValueId right)
{
    const Value *x = &s->m->values.v[left.i], *y = &s->m->values.v[right.i];

    vec_push(&s->left, left);
    vec_push(&s->right, right);
    return x->type.i == y->type.i && x->layout.i == y->layout.i;
}

static bool likeness_has(const Likeness *s, ValueId left, ValueId right)
{
    for (uint32_t i = 0; i < s->left.n; i++)
        if (s->left.v[i].i == left.i)
            return s->right.v[i].i == right.i;
    return false;
}

static bool nodes_alike(Likeness *s, const Node *x, const Node *y)
{
    bool same = x->op == y->op && x->attrs.i == y->attrs.i &&
                x->nargs == y->nargs && x->nres == y->nres;

    for (uint32_t i = 0; same && i < x->nargs; i++)
        same = likeness_has(s, node_arg(s->m, x, i), node_arg(s->m, y, i));
    for (uint32_t i = 0; same && i < x->nres; i++)
        same = likeness_add(s, node_res(x, i), node_res(y, i));
    return same;
}

static bool programs_alike(const Module *m, const Func *f, const Func *g)
{
    Likeness s = {.m = m};
    bool same = g->kind == FUNC_ROW && g->params.n == f->params.n &&
                g->results.n == f->results.n && g->body.n == f->body.n;

    for (uint32_t i = 0; same && i < f->params.n; i++)
        same = likeness_add(&s, f->params.v[i], g->params.v[i]);
    for (uint32_t i = 0; same && i < f->body.n; i++)
        same = nodes_alike(&s, &m->nodes.v[f->body.v[i].i],
                           &m->nodes.v[g->body.v[i].i]);
    for (uint32_t i = 0; same && i < f->results.n; i++)
        same = likeness_has(&s, f->results.v[i], g->results.v[i]);
    vec_free(&s.left);
    vec_free(&s.right);
    return same;
}

/* An earlier program that is the same, in whose favour f is dropped; or f. */
static FuncId program_settle(Module *m, FuncId f)
{
    for (uint32_t i = 1; i < f.i; i++) {
        if (!programs_alike(m, func_of(m, f), &m->funcs.v[i]))
            continue;
        vec_free(&func_of(m, f)->params);
        vec_free(&func_of(m, f)->results);
        vec_free(&func_of(m, f)->body);
        m->funcs.n--;
        return (FuncId){i};
    }
    return f;
}

/* The call in the body; its results take over from the items' values. */
static void call_add(Outline *o, FuncId f, const ValueId *args, uint32_t nargs,
                     const ItemVec *items, Loc loc)
{
    Module *m = o->x->m;
    Attr callee = attr_of_func(AK_CALLEE, f);
    AttrsId attrs = attrs_intern(m, &callee, 1);
    TypeId *types = arena_array(o->x->arena, TypeId, items->n + 1);
    NodeId made;

    for (uint32_t i = 0; i < items->n; i++)
        types[i] = value_of(m, fusion_node(o->x, items->v[i])->res)->type;
    made = node_new(m, (FuncId){0}, OP_ROW, args, nargs, attrs, types,
                    items->n, loc);
    for (uint32_t i = 0; i < items->n; i++) {
        ValueId from = fusion_node(o->x, items->v[i])->res;
        ValueId to = node_res(node_of(m, made), i);

        value_of(m, to)->layout = value_of(m, from)->layout;
        value_of(m, to)->name = value_of(m, from)->name;
        value_of(m, to)->hint = value_of(m, from)->hint;
        vmap_set(&o->map, from, to);
    }
    vec_push(&o->body, made);
}

static void program_emit(Outline *o, uint32_t c)
{
    Module *m = o->x->m;
    const ItemVec *list = &o->list[c];
    Loc loc = fusion_node(o->x, list->v[list->n - 1])->loc;
    ValueId args[64];
    uint32_t nargs;
    ItemVec items = {0};
    ValueMap map = {0};
    FuncId f = func_new(m, program_name(o, c), FUNC_ROW, loc);

    params_add(o, c, f, &map, args, &nargs);
    nodes_add(o, c, f, &map);
    results_add(o, c, f, &map, &items);
    call_add(o, program_settle(m, f), args, nargs, &items, loc);
    vmap_free(&map);
    vec_free(&items);
}

/* ---- the new body ------------------------------------------------------- */

static void cluster_emit(Outline *o, uint32_t c)
{
    Fusion *x = o->x;
    uint32_t item = x->member[c].v[0];

    if (!x->row[item] || (is_const(x, item) && o->needed[item]))
        vec_push(&o->body, x->node[item]);
    else if (o->list[c].n)
        program_emit(o, c);
    for (uint32_t i = 0; i < o->after[c].n; i++)
        if (--o->waits[o->after[c].v[i]] == 0)
            vec_push(&o->ready, o->after[c].v[i]);
}

/* Of all clusters that need not wait, the one that came first. */
static uint32_t ready_take(Outline *o)
{
    uint32_t best = 0, c;

    for (uint32_t i = 1; i < o->ready.n; i++)
        if (o->key[o->ready.v[i]] < o->key[o->ready.v[best]])
            best = i;
    c = o->ready.v[best];
    o->ready.v[best] = vec_last(&o->ready);
    o->ready.n--;
    return c;
}

static void body_make(Outline *o)
{
    Module *m = o->x->m;

    for (uint32_t c = 0; c < o->x->n; c++)
        if (o->x->member[c].n && !o->waits[c])
            vec_push(&o->ready, c);
    while (o->ready.n)
        cluster_emit(o, ready_take(o));
    for (uint32_t c = 0; c < o->x->n; c++)
        mc_assert(!o->waits[c]);
    vec_free(&func_of(m, o->x->f)->body);
    for (uint32_t i = 0; i < o->body.n; i++)
        vec_push(&func_of(m, o->x->f)->body, o->body.v[i]);
    func_substitute(m, o->x->f, &o->map);
}

void fusion_outline(Fusion *x)
{
    Outline o = {
        .x = x,
        .list = arena_array(x->arena, ItemVec, x->n),
        .needed = arena_array(x->arena, bool, x->n),
        .key = arena_array(x->arena, uint32_t, x->n),
        .after = arena_array(x->arena, ItemVec, x->n),
        .waits = arena_array(x->arena, uint32_t, x->n),
    };

    lists_make(&o);
    waits_make(&o);
    body_make(&o);
    for (uint32_t c = 0; c < x->n; c++) {
        vec_free(&o.list[c]);
        vec_free(&o.after[c]);
    }
    vmap_free(&o.map);
    vec_free(&o.ready);
    vec_free(&o.body);
}
