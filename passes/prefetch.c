/* prefetch.c - weights are gathered, and what was saved in host memory fetched,
 * while the layer before is computed.
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
 * The same holds for what the backward fetches from host memory, of a parameter
 * that the scan cuts: `fetch {next=-1}` is of the piece for the next iteration,
 * `fetch {first=3}` of the last layer's, before the scan.
 *
 * A scan that may run no iteration gathers for itself.
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
    ValueId head[MAX_HEADS]; /* values that others in the body use: first those
                                gathered of the layer, then those fetched, */
    uint32_t nread, nahead, n; /* then those gathered of no layer */
    FuncId ahead, first;
} Rotation;

typedef struct {
    Module *m;
    bool params; /* weights are gathered ahead, as the spec asks */
    Effects fx;
    Vec(Rotation) made;
} Prefetch;

/* What may be a head. */
typedef enum { HEAD_NONE, HEAD_LAYER, HEAD_FETCHED, HEAD_WHOLE } HeadKind;

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

/* What has been communicated, and could have been earlier. */
static HeadKind gathered_kind(const Prefetch *p, FuncId f, ValueId v,
                              char over)
{
    const Node *read = source_of(p->m, v);
    TensorId t;
    Field field;

    if (!p->params || !read || !may_move(p, f, read))
        return HEAD_NONE;
    t = effects_target(p->m, read, &field);
    return over == 'l' && p->m->tensors.v[t.i].per_layer ? HEAD_LAYER
                                                         : HEAD_WHOLE;
}

static HeadKind head_kind(const Prefetch *p, FuncId f, ValueId v, Scan scan)
{
    const Node *def = def_of(p->m, v);

    if (is_collective(def))
        return gathered_kind(p, f, v, scan.over);
    if (def->op == OP_FETCH && scan.over == 'l' &&
        !p->m->values.v[node_arg(p->m, def, 0).i].def.i)
        return HEAD_FETCHED;
    return HEAD_NONE;
}

static bool is_listed(const Rotation *r, ValueId v)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->head[i].i == v.i)
            return true;
    return false;
}

/* Notes operands of a node that are heads of this kind, unless the node itself
 * goes ahead with them. */
static void note_heads(const Prefetch *p, Rotation *r, const Node *user,
                       Scan scan, HeadKind kind)
{
    for (uint32_t i = 0; i < user->nargs && !is_collective(user); i++) {
        ValueId v = node_arg(p->m, user, i);
        if (head_kind(p, r->from, v, scan) == kind && !is_listed(r, v) &&
            r->n < MAX_HEADS)
            r->head[r->n++] = v;
    }
}

static void find_kind(const Prefetch *p, Rotation *r, Scan scan, HeadKind kind)
{
    const Func *body = &p->m->funcs.v[r->from.i];

    for (uint32_t i = 0; i < body->body.n; i++)
        note_heads(p, r, &p->m->nodes.v[body->body.v[i].i], scan, kind);
}

static void find_heads(const Prefetch *p, Rotation *r, Scan scan)
{
    find_kind(p, r, scan, HEAD_LAYER);
    r->nread = r->n;
    find_kind(p, r, scan, HEAD_FETCHED);
    r->nahead = r->n;
    find_kind(p, r, scan, HEAD_WHOLE);
}

/* ---- the new functions --------------------------------------------------- */

/* The nodes that make `v`, again in `f`, for the layer `next` further on. */
static ValueId make_again(Module *m, FuncId f, ValueId v, int64_t next,
                          ValueMap *map)
{
    NodeId def = value_of(m, v)->def, copy;

    if (def.i == 0 || vmap_get(map, v).i != v.i)
        return vmap_get(map, v);
    for (uint32_t i = 0; i < node_of(m, def)->nargs; i++)
        make_again(m, f, node_arg(m, node_of(m, def), i), next, map);
    copy = node_copy(m, f, def, map);
    if (next && (node_of(m, copy)->op == OP_READ ||
                 node_of(m, copy)->op == OP_FETCH)) {
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

    for (uint32_t i = 0; i < r->nread; i++) {
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

/* Lets what is made for the next layer start from the copy's parameters. */
static void map_params(const Module *m, FuncId from, FuncId to, ValueMap *map)
{
    const Func *old = &m->funcs.v[from.i], *copy = &m->funcs.v[to.i];

    for (uint32_t i = 0; i < old->params.n; i++)
        vmap_set(map, old->params.v[i], copy->params.v[i]);
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
    map_params(m, r->from, f, &next);
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
    find_heads(p, &r, scan);
    if (r.n) {
        r.ahead = build_ahead(p->m, &r);
        r.first = r.nread ? build_first(p->m, &r) : (FuncId){0};
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

/* What is gathered of the first layer when the scan begins. */
static void gather_first(Prefetch *p, FuncId f, const Rotation *r, Scan scan,
                         Loc loc, ValueId *out)
{
    Scan once = {
        .callee = r->first, .over = 'l', .first = scan.first, .count = 1};
    char modes[MAX_HEADS + 1];
    NodeId call;

    if (r->nread == 0)
        return;
    if (scan.reverse)
        once.first += scan.count - 1;
    memset(modes, '.', r->nread);
    modes[r->nread] = '\0';
    call = ir_call(p->m, f, once, NULL, "", modes, loc);
    layouts_like(p->m, call);
    for (uint32_t i = 0; i < r->nread; i++)
        out[i] = node_res(node_of(p->m, call), i);
}

/* The operand of the scan that becomes the parameter `param` of its body. */
static ValueId operand_of(const Module *m, const Node *call, ValueId param)
{
    const Func *body = &m->funcs.v[call_scan(m, call).callee.i];
    uint32_t i = 0;

    while (body->params.v[i].i != param.i)
        i++;
    return node_arg(m, call, i);
}

/* What the first iteration finds fetched: of what the scan cuts, its piece. */
static ValueId fetch_first(Prefetch *p, FuncId f, const Node *call,
                           ValueId head)
{
    Module *m = p->m;
    Scan scan = call_scan(m, call);
    ValueId v = operand_of(m, call, node_arg(m, def_of(m, head), 0));
    Attr first = attr_of_int(AK_FIRST, scan.reverse ? scan.count - 1 : 0);
    Loc loc = def_of(m, head)->loc;

    v = ir_op(m, f, OP_FETCH, &v, 1, attrs_intern(m, &first, 1), loc);
    value_like(m, head, v);
    return v;
}

/* What the rotated body gets besides. */
static void begin_scan(Prefetch *p, FuncId f, const Rotation *r,
                       const Node *call, ValueId *out)
{
    ValueMap map = {0};

    gather_first(p, f, r, call_scan(p->m, call), call->loc, out);
    for (uint32_t i = r->nread; i < r->nahead; i++)
        out[i] = fetch_first(p, f, call, r->head[i]);
    for (uint32_t i = r->nahead; i < r->n; i++)
        out[i] = make_again(p->m, f, r->head[i], 0, &map);
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
    begin_scan(p, f, r, &n, values + n.nargs);
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

    if (n->op == OP_CALL && call_scan(p->m, n).count > 1 &&
        call_trips(p->m, n) < 0)
        r = rotate(p, call_scan(p->m, n));
    if (r && r->n)
        call_ahead(p, f, id, r, map);
    return r && r->n;
}

bool pass_prefetch(Module *m, const Spec *spec)
{
    Arena *scratch = arena_new();
    Prefetch p = {.m = m, .params = !spec || spec->parallel.overlap.params};
    uint32_t nfuncs = m->funcs.n;

    effects_compute(scratch, m, &p.fx);
    for (uint32_t i = 1; i < nfuncs; i++)
        if (m->funcs.v[i].kind == FUNC_GRAPH)
            func_rebuild(m, (FuncId){i}, rotate_call, &p);
    clean_dead(m);
    vec_free(&p.made);
    arena_free(scratch);
    return true;
}
