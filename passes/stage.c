/* stage.c - forward and backward functions of every pipeline stage.
 *
 *   micro                        micro
 *     x0 = embed.fwd               y0, s0… = stage0.fwd(tokens)
 *     xL = scan layer.fwd    →     dy1, s1… = stage1.fwd(y0, labels)
 *     dxL = head                   dy0 = stage1.bwd(dy1, s1…)
 *     dx0 = scan layer.bwd               stage0.bwd(dy0, s0…, tokens)
 *     embed.bwd
 *
 * micro has five sections, cut at its scans over layers: one, or one for each
 * run of layers of one kind, forward and again backward.  A stage takes the
 * sections its row of the stage table gives it, and of the scans its own range
 * of layers.
 * What a backward uses of its forward becomes a result of the one and a
 * parameter of the other; micro itself becomes the calls in data-flow order, so
 * its def-use chains are the pipeline's messages.
 */
#include "passes/passes.h"

typedef struct {
    uint32_t first, end;
} Range;

typedef struct {
    Module *m;
    FuncId micro;
    Func old;       /* micro's former body */
    Range fwd, bwd; /* positions of the scans over layers */
} Cut;

/* One function of one stage. */
typedef struct {
    Cut *cut;
    FuncId f;
    ValueMap map;         /* micro's values -> this function's */
    Vec(ValueId) imports; /* micro's values that are parameters here */
} Part;

/* Scans of one direction follow each other, each taking what the one before
 * carries on. */
static bool range_extend(Range *r, uint32_t at)
{
    bool follows = r->end == 0 || r->end == at;

    r->first = r->end ? r->first : at;
    r->end = at + 1;
    return follows;
}

static bool find_scans(Cut *c)
{
    bool follow = true;

    for (uint32_t i = 0; i < c->old.body.n; i++) {
        const Node *n = node_of(c->m, c->old.body.v[i]);
        Scan scan;
        if (n->op != OP_CALL)
            continue;
        scan = call_scan(c->m, n);
        if (scan.over == 'l')
            follow &= range_extend(scan.reverse ? &c->bwd : &c->fwd, i);
    }
    return follow && c->fwd.end && c->bwd.end;
}

static Node body_node(const Cut *c, uint32_t i)
{
    return *node_of(c->m, c->old.body.v[i]);
}

/* What goes into the first scan of a direction, and comes out of the last. */
static ValueId carried_in(const Cut *c, Range r)
{
    const Node n = body_node(c, r.first);

    return node_arg(c->m, &n, 0);
}

static ValueId carried_out(const Cut *c, Range r)
{
    const Node n = body_node(c, r.end - 1);

    return node_res(&n, 0);
}

/* ---- building one part --------------------------------------------------- */

/* The value in this function, imported as a parameter if need be.  `t` is its
 * type here: stacked values hold this stage's layers only. */
static ValueId import(Part *p, ValueId v, TypeId t)
{
    Module *m = p->cut->m;
    ValueId here = vmap_get(&p->map, v);

    if (here.i != v.i)
        return here;
    here = func_param(m, p->f, t, sym_text(m->names, value_of(m, v)->name));
    value_of(m, here)->layout = value_of(m, v)->layout;
    value_of(m, here)->hint = value_of(m, v)->hint;
    vmap_set(&p->map, v, here);
    vec_push(&p->imports, v);
    return here;
}

/* The layers of a scan that a stage holds; count 0: none.  Groups of layers
 * belong to one stage. */
static Scan scan_here(Scan scan, const PipeStage *s)
{
    int64_t first = MC_MAX(scan.first, (int64_t)s->first_layer);
    int64_t end =
        MC_MIN(scan.first + scan.count, (int64_t)s->first_layer + s->nlayers);

    if (scan.step > 1) {
        scan.count = scan.first == first && end > first ? scan.count : 0;
        return scan;
    }
    scan.first = first;
    scan.count = MC_MAX(end - first, 0);
    return scan;
}

/* A value that a scan over layers stacked holds this stage's layers only. */
static TypeId type_here(Part *p, ValueId v, const PipeStage *s)
{
    Module *m = p->cut->m;
    const Value was = *value_of(m, v);
    const Node *def = node_of(m, was.def);

    return type_dim(type_of(m, was.type), 'l') < 0
               ? was.type
               : type_resized(m, was.type, 'l',
                              scan_here(call_scan(m, def), s).count);
}

static void copy_section(Part *p, uint32_t from, uint32_t to,
                         const PipeStage *s)
{
    Module *m = p->cut->m;

    for (uint32_t i = from; i < to; i++) {
        const Node n = body_node(p->cut, i);
        for (uint32_t k = 0; k < n.nargs; k++) {
            ValueId v = node_arg(m, &n, k);
            import(p, v, type_here(p, v, s));
        }
        node_copy(m, p->f, p->cut->old.body.v[i], &p->map);
    }
}

/* The part of one scan that this stage runs, from the carried value `in`;
 * returns what it carries on. */
static ValueId copy_scan(Part *p, uint32_t at, const PipeStage *s, ValueId in)
{
    Module *m = p->cut->m;
    const Node n = body_node(p->cut, at);
    Scan scan = scan_here(call_scan(m, &n), s);
    char args[IR_MAX_VALUES + 1], res[IR_MAX_VALUES + 1];
    ValueId values[IR_MAX_VALUES];
    NodeId made;

    if (scan.count == 0)
        return in;
    call_modes(m, &n, args, res);
    values[0] = in;
    for (uint32_t k = 1; k < n.nargs; k++) {
        ValueId v = node_arg(m, &n, k);
        values[k] = import(p, v, type_here(p, v, s));
    }
    made = ir_call(m, p->f, scan, values, args, res, n.loc);
    for (uint32_t k = 0; k < n.nres; k++) {
        ValueId from = node_res(&n, k), to = node_res(node_of(m, made), k);
        value_of(m, to)->layout = value_of(m, from)->layout;
        value_of(m, to)->name = value_of(m, from)->name;
        value_of(m, to)->hint = value_of(m, from)->hint;
        vmap_set(&p->map, from, to);
    }
    return node_res(node_of(m, made), 0);
}

/* The scans over this stage's layers only; a stage without any passes on what
 * would be carried through. */
static void copy_scans(Part *p, Range r, const PipeStage *s)
{
    ValueId in = carried_in(p->cut, r);
    ValueId at = import(p, in, value_of(p->cut->m, in)->type);

    for (uint32_t i = r.first; i < r.end; i++)
        at = copy_scan(p, i, s, at);
    vmap_set(&p->map, carried_out(p->cut, r), at);
}

static Part part_open(Cut *c, uint32_t index, const char *kind)
{
    Part p = {.cut = c};
    char *name = arena_printf(c->m->arena, "stage%u.%s", index, kind);

    p.f = func_new(c->m, name, FUNC_GRAPH, func_of(c->m, c->micro)->loc);
    return p;
}

/* A stage without layers passes its parameter on: as a copy, for a result is
 * memory of its own. */
static void part_result(Part *p, ValueId v)
{
    Module *m = p->cut->m;
    ValueId here = vmap_get(&p->map, v);
    const Value was = *value_of(m, here);

    if (was.def.i == 0) {
        here = ir_unary(m, p->f, OP_COPY, here, func_of(m, p->f)->loc);
        value_of(m, here)->layout = was.layout;
        value_of(m, here)->name = was.name;
        value_of(m, here)->hint = was.hint;
    }
    vec_push(&func_of(m, p->f)->results, here);
}

static Part build_forward(Cut *c, uint32_t index)
{
    const PipeStage s = c->m->stages.v[index];
    Part p = part_open(c, index, "fwd");

    if (s.embedding)
        copy_section(&p, 0, c->fwd.first, &s);
    copy_scans(&p, c->fwd, &s);
    if (s.head)
        copy_section(&p, c->fwd.end, c->bwd.first, &s);
    else
        part_result(&p, carried_out(c, c->fwd));
    return p;
}

static Part build_backward(Cut *c, uint32_t index)
{
    const PipeStage s = c->m->stages.v[index];
    Part p = part_open(c, index, "bwd");

    copy_scans(&p, c->bwd, &s);
    if (s.embedding)
        copy_section(&p, c->bwd.end, c->old.body.n, &s);
    else
        part_result(&p, carried_out(c, c->bwd));
    return p;
}

/* ---- joining forward and backward ---------------------------------------- */

static bool is_micro_param(const Cut *c, ValueId v)
{
    for (uint32_t i = 0; i < c->old.params.n; i++)
        if (c->old.params.v[i].i == v.i)
            return true;
    return false;
}

/* Further results of the forward: what the backward imports and the forward
 * computes. */
static void export_saved(Part *fwd, const Part *bwd)
{
    for (uint32_t i = 0; i < bwd->imports.n; i++) {
        ValueId v = bwd->imports.v[i];
        if (!is_micro_param(fwd->cut, v) && vmap_get(&fwd->map, v).i != v.i)
            part_result(fwd, v);
    }
}

/* ---- the new micro ------------------------------------------------------- */

/* Calls a part; `at` maps micro's former values to those of the new body. */
static NodeId call_part(Cut *c, Part *p, ValueMap *at)
{
    Module *m = c->m;
    Scan once = {.callee = p->f, .count = 1};
    char args[IR_MAX_VALUES + 1], res[IR_MAX_VALUES + 1];
    ValueId values[IR_MAX_VALUES];
    uint32_t nres = func_of(m, p->f)->results.n;
    NodeId n;

    mc_assert(p->imports.n <= IR_MAX_VALUES && nres <= IR_MAX_VALUES);
    memset(args, '.', p->imports.n);
    memset(res, '.', nres);
    args[p->imports.n] = res[nres] = '\0';
    for (uint32_t i = 0; i < p->imports.n; i++)
        values[i] = vmap_get(at, p->imports.v[i]);
    n = ir_call(m, c->micro, once, values, args, res, func_of(m, p->f)->loc);
    for (uint32_t i = 0; i < nres; i++) {
        ValueId inner = func_of(m, p->f)->results.v[i];
        ValueId outer = node_res(node_of(m, n), i);
        value_of(m, outer)->layout = value_of(m, inner)->layout;
        value_of(m, outer)->name = value_of(m, inner)->name;
    }
    return n;
}

/* After the call, micro's value v is result i of it. */
static void bind(Cut *c, ValueMap *at, NodeId call, uint32_t i, ValueId v)
{
    vmap_set(at, v, node_res(node_of(c->m, call), i));
}

static void call_forward(Cut *c, Part *fwd, const Part *bwd, bool head,
                         ValueMap *at)
{
    NodeId n = call_part(c, fwd, at);
    uint32_t i = 0;

    if (!head)
        bind(c, at, n, i++, carried_out(c, c->fwd));
    for (uint32_t k = 0; k < bwd->imports.n; k++) {
        ValueId v = bwd->imports.v[k];
        if (!is_micro_param(c, v) && vmap_get(&fwd->map, v).i != v.i)
            bind(c, at, n, i++, v);
    }
}

static void call_all(Cut *c, Part *fwd, Part *bwd)
{
    Module *m = c->m;
    uint32_t n = m->stages.n;
    ValueId dx = carried_out(c, c->bwd), dy = carried_in(c, c->bwd);
    ValueMap flow = {0};
    ValueMap *saved = arena_array(m->arena, ValueMap, n);

    /* Between stages the carried value changes its name: what one stage's scan
     * returns is what the next one's takes in. */
    for (uint32_t i = 0; i < n; i++) {
        ValueMap at;

        vmap_copy(&at, &flow);
        call_forward(c, &fwd[i], &bwd[i], m->stages.v[i].head, &at);
        saved[i] = at;
        if (!m->stages.v[i].head)
            vmap_set(&flow, carried_in(c, c->fwd),
                     vmap_get(&at, carried_out(c, c->fwd)));
    }
    for (uint32_t i = n; i-- > 0;) {
        NodeId call;
        if (!m->stages.v[i].head)
            vmap_set(&saved[i], dy, vmap_get(&flow, dx));
        call = call_part(c, &bwd[i], &saved[i]);
        if (!m->stages.v[i].embedding)
            bind(c, &flow, call, 0, dx);
        vmap_free(&saved[i]);
    }
    vmap_free(&flow);
}

static void part_free(Part *p)
{
    vmap_free(&p->map);
    vec_free(&p->imports);
}

static FuncId micro_of(const Module *m)
{
    return func_find(m, sym_intern(m->names, "micro"));
}

bool pass_stage(Module *m, const Spec *spec)
{
    Cut c = {.m = m, .micro = micro_of(m)};
    Part *fwd = arena_array(m->arena, Part, m->stages.n);
    Part *bwd = arena_array(m->arena, Part, m->stages.n);

    (void)spec;
    mc_assert(c.micro.i);
    c.old = *func_of(m, c.micro);
    mc_assert(find_scans(&c));
    memset(&func_of(m, c.micro)->body, 0, sizeof c.old.body);
    for (uint32_t i = 0; i < m->stages.n; i++) {
        fwd[i] = build_forward(&c, i);
        bwd[i] = build_backward(&c, i);
        export_saved(&fwd[i], &bwd[i]);
        m->stages.v[i].fwd = fwd[i].f;
        m->stages.v[i].bwd = bwd[i].f;
    }
    call_all(&c, fwd, bwd);
    for (uint32_t i = 0; i < m->stages.n; i++) {
        part_free(&fwd[i]);
        part_free(&bwd[i]);
    }
    vec_free(&c.old.body);
    clean_dead(m);
    return true;
}
