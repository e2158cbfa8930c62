/* prefetch.c - weights are gathered while the layer before is computed.
 *
 *     %y = call @layer.fwd %x            %g0 = call @layer.fwd.first
 *       {over=l, count=4}                %y, %_ = call @layer.fwd.ahead %x, %g0
 *                                          {over=l, count=4, args=">>"}
 *     func @layer.fwd(%x) {         →
 *         %w = read @q                   func @layer.fwd.ahead(%x, %g) {
 *         %g = all_gather %w                 %w = read @q {next=1}
 *         %y = dot %x, %g                    %n = all_gather %w
 *         return %y                          %y = dot %x, %g
 *     }                                      return %y, %n
 *                                        }
 *
 * What the body of a scan communicates about state alone (a parameter that
 * rests in shards is gathered) need not wait for its iteration.  What depends
 * on the layer is communicated one iteration earlier and carried over; the
 * first layer's before the scan, and in the last iteration there is nothing to
 * do.  What does not depend on the layer is communicated once, before the scan.
 * So there are two layers' gathered weights at any time: those in use, and
 * those to come.
 *
 * Assumes that a `read` and the collectives on it are free to move where the
 * scan does not write the field.
 */
#include "passes/effects.h"
#include "passes/passes.h"

enum { MAX_HEADS = 48 };

/* The body of a scan, and what becomes of it. */
typedef struct {
    FuncId from;
    bool reverse;
    ValueId head[MAX_HEADS]; /* gathered values that others in the body use: */
    uint32_t nahead, n;      /* first those of the layer, then the others */
    FuncId ahead, first;
} Rotation;

typedef struct {
    Module *m;
    Effects fx;
    Vec(Rotation) made;
} Prefetch;

/* ---- what can go ahead --------------------------------------------------- */

static bool is_collective(const Node *n)
{
    return (op_info[n->op].flags & OPF_COMM) && n->op != OP_SEND &&
           n->op != OP_RECV;
}

static const Node *def_of(const Module *m, ValueId v)
{
    return &m->nodes.v[m->values.v[v.i].def.i];
}

/* The read that `v` is, or that collectives make it of; NULL for others. */
static const Node *source_of(const Module *m, ValueId v)
{
    const Node *n = def_of(m, v);

    while (is_collective(n) && n->nargs == 1)
        n = def_of(m, node_arg(m, n, 0));
    return n->op == OP_READ ? n : NULL;
}

static bool may_move(const Prefetch *p, FuncId f, const Node *read)
{
    Field field;
    TensorId t = effects_target(p->m, read, &field);
    const StateUse *use = effects_find(p->m, p->fx.func[f.i].uses, t, field);

    return !use->writes;
}

static bool is_of_layer(const Module *m, ValueId v, char over)
{
    Field f;
    TensorId t = effects_target(m, source_of(m, v), &f);

    return over == 'l' && m->tensors.v[t.i].per_layer;
}

static bool is_listed(const Rotation *r, ValueId v)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->head[i].i == v.i)
            return true;
    return false;
}

/* Notes operand `v` of a node if it has been communicated and could have been
 * earlier, unless the node itself goes ahead with it. */
static void note_head(const Prefetch *p, Rotation *r, const Node *user,
                      ValueId v)
{
    const Node *read = source_of(p->m, v);

    if (is_collective(def_of(p->m, v)) && read && !is_collective(user) &&
        !is_listed(r, v) && r->n < MAX_HEADS && may_move(p, r->from, read))
        r->head[r->n++] = v;
}

/* Those of the layer first. */
static void sort_heads(const Module *m, Rotation *r, char over)
{
    ValueId old[MAX_HEADS];
    uint32_t n = 0;

    memcpy(old, r->head, sizeof old);
    for (uint32_t i = 0; i < r->n; i++)
        if (is_of_layer(m, old[i], over))
            r->head[n++] = old[i];
    r->nahead = n;
    for (uint32_t i = 0; i < r->n; i++)
        if (!is_of_layer(m, old[i], over))
            r->head[n++] = old[i];
}

static void find_heads(const Prefetch *p, Rotation *r, char over)
{
    const Func *body = &p->m->funcs.v[r->from.i];

    for (uint32_t i = 0; i < body->body.n; i++) {
        const Node *n = &p->m->nodes.v[body->body.v[i].i];
        for (uint32_t k = 0; k < n->nargs; k++)
            note_head(p, r, n, node_arg(p->m, n, k));
    }
    sort_heads(p->m, r, over);
}

/* ---- the new functions --------------------------------------------------- */

/* The nodes that make `v`, again in `f`, for the layer `next` further on. */
static ValueId make_again(Module *m, FuncId f, ValueId v, int64_t next,
                          ValueMap *map)
{
    NodeId def = value_of(m, v)->def, copy;

    if (vmap_get(map, v).i != v.i)
        return vmap_get(map, v);
    for (uint32_t i = 0; i < node_of(m, def)->nargs; i++)
        make_again(m, f, node_arg(m, node_of(m, def), i), next, map);
    copy = node_copy(m, f, def, map);
    if (next && node_of(m, copy)->op == OP_READ) {
        AttrsId attrs = attrs_with(m, node_of(m, copy)->attrs,
                                   attr_of_int(AK_NEXT, next));
        node_of(m, copy)->attrs = attrs;
    }
    return vmap_get(map, v);
}

/* Gathers what the first iteration finds gathered. */
static FuncId build_first(Module *m, const Rotation *r)
{
    const char *name = arena_printf(
        m->arena, "%s.first",
        sym_text(m->names, func_of(m, r->ahead)->name));
    FuncId f = func_new(m, name, FUNC_GRAPH, func_of(m, r->from)->loc);
    ValueMap map = {0};

    for (uint32_t i = 0; i < r->nahead; i++) {
        ValueId v = make_again(m, f, r->head[i], 0, &map);
        vec_push(&func_of(m, f)->results, v);
    }
    vmap_free(&map);
    return f;
}

/* Puts the last `n` nodes of the body in front of the others. */
static void body_rotate(Func *f, uint32_t n)
{
    Vec(NodeId) old = {0};
    uint32_t kept = f->body.n - n;

    for (uint32_t i = 0; i < f->body.n; i++)
        vec_push(&old, f->body.v[i]);
    for (uint32_t i = 0; i < n; i++)
        f->body.v[i] = old.v[kept + i];
    for (uint32_t i = 0; i < kept; i++)
        f->body.v[n + i] = old.v[i];
    vec_free(&old);
}

/* The body with what is gathered as further parameters, and the next layer's
 * as further results. */
static FuncId build_ahead(Module *m, const Rotation *r)
{
    ValueMap copies = {0}, given = {0}, next = {0};
    FuncId f = func_copy(m, r->from, "ahead", &copies);
    uint32_t count = func_of(m, f)->body.n;

    for (uint32_t i = 0; i < r->n; i++) {
        const Value old = *value_of(m, r->head[i]);
        ValueId param = func_param(m, f, old.type, NULL);
        value_of(m, param)->layout = old.layout;
        vmap_set(&given, vmap_get(&copies, r->head[i]), param);
    }
    func_substitute(m, f, &given);
    for (uint32_t i = 0; i < r->nahead; i++) {
        ValueId v =
            make_again(m, f, r->head[i], r->reverse ? -1 : 1, &next);
        vec_push(&func_of(m, f)->results, v);
    }
    body_rotate(func_of(m, f), func_of(m, f)->body.n - count);
    vmap_free(&copies);
    vmap_free(&given);
    vmap_free(&next);
    return f;
}

static const Rotation *rotate(Prefetch *p, Scan scan)
{
    Rotation r = {.from = scan.callee, .reverse = scan.reverse};

    for (uint32_t i = 0; i < p->made.n; i++)
        if (p->made.v[i].from.i == r.from.i &&
            p->made.v[i].reverse == r.reverse)
            return &p->made.v[i];
    find_heads(p, &r, scan.over);
    if (r.n) {
        r.ahead = build_ahead(p->m, &r);
        r.first = r.nahead ? build_first(p->m, &r) : (FuncId){0};
    }
    vec_push(&p->made, r);
    return &vec_last(&p->made);
}

/* ---- calls --------------------------------------------------------------- */

static void layouts_like(Module *m, NodeId call)
{
    FuncId callee = call_scan(m, node_of(m, call)).callee;

    for (uint32_t i = 0; i < node_of(m, call)->nres; i++) {
        ValueId inner = func_of(m, callee)->results.v[i];
        value_of(m, node_res(node_of(m, call), i))->layout =
            value_of(m, inner)->layout;
    }
}

/* What is gathered when the scan begins. */
static void gather_first(Prefetch *p, FuncId f, const Rotation *r, Scan scan,
                         Loc loc, ValueId *out)
{
    Module *m = p->m;
    Scan once = {
        .callee = r->first, .over = 'l', .first = scan.first, .count = 1};
    char modes[MAX_HEADS + 1];
    ValueMap map = {0};
    NodeId call;

    if (scan.reverse)
        once.first += scan.count - 1;
    memset(modes, '.', r->nahead);
    modes[r->nahead] = '\0';
    if (r->nahead) {
        call = ir_call(m, f, once, NULL, "", modes, loc);
        layouts_like(m, call);
        for (uint32_t i = 0; i < r->nahead; i++)
            out[i] = node_res(node_of(m, call), i);
    }
    for (uint32_t i = r->nahead; i < r->n; i++)
        out[i] = make_again(m, f, r->head[i], 0, &map);
    vmap_free(&map);
}

enum { MAX_CALL = 128 };

/* The call of the rotated body; its first results are the old call's. */
static void call_ahead(Prefetch *p, FuncId f, NodeId old, const Rotation *r,
                       ValueMap *map)
{
    Module *m = p->m;
    const Node n = *node_of(m, old);
    Scan scan = call_scan(m, &n);
    char args[MAX_CALL + 1], results[MAX_CALL + 1];
    ValueId values[MAX_CALL];
    NodeId made;

    mc_assert(n.nargs + r->n <= MAX_CALL && n.nres + r->n <= MAX_CALL);
    call_modes(m, &n, args, results);
    for (uint32_t i = 0; i < n.nargs; i++)
        values[i] = node_arg(m, &n, i);
    gather_first(p, f, r, scan, n.loc, values + n.nargs);
    memset(args + n.nargs, '>', r->nahead);
    memset(args + n.nargs + r->nahead, '.', r->n - r->nahead);
    memset(results + n.nres, '>', r->nahead);
    args[n.nargs + r->n] = results[n.nres + r->nahead] = '\0';
    scan.callee = r->ahead;
    made = ir_call(m, f, scan, values, args, results, n.loc);
    layouts_like(m, made);
    results_replace(m, &n, n.nres, made, map);
}

static bool rotate_call(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Prefetch *p = self;
    const Node *n = node_of(p->m, id);
    const Rotation *r = NULL;

    if (n->op == OP_CALL && call_scan(p->m, n).count > 1)
        r = rotate(p, call_scan(p->m, n));
    if (r && r->n)
        call_ahead(p, f, id, r, map);
    return r && r->n;
}

bool pass_prefetch(Module *m, const Spec *spec)
{
    Arena *scratch = arena_new();
    Prefetch p = {.m = m};
    uint32_t nfuncs = m->funcs.n;

    effects_compute(scratch, m, &p.fx);
    if (spec && !spec->parallel.overlap.params)
        nfuncs = 0;
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            func_rebuild(m, (FuncId){i}, rotate_call, &p);
    clean_dead(m);
    vec_free(&p.made);
    arena_free(scratch);
    return true;
}
