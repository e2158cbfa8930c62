/* split_backward.c - gradients of weights apart from those of activations.
 *
 *   stage0.bwd(dy, s…) -> dx        stage0.bwd(dy, s…) -> dx, t…
 *     scan layer.bwd                  scan layer.bwd: stacks t too
 *     accum @embed.grad        →    stage0.weights(s…, t…)
 *                                     scan layer.weights
 *                                     accum @embed.grad
 *
 * Zero-bubble schedules run the two halves of a backward at different times: B
 * hands on what the stage before waits for, W only adds to gradients of
 * parameters and can wait.  W is what leads to an `accum` of a gradient and to
 * nothing else.  What it uses of B becomes a further result of B, unless cheap
 * ops make it again from what the caller can pass to both; a carried parameter
 * cannot be passed again, for between two layers nobody keeps it.
 *
 * Without W's in the schedule nothing changes.
 */
#include "passes/passes.h"

/* The two halves of a function; B is the function itself, changed. */
typedef struct {
    bool done;
    bool empty;             /* nothing is left for B */
    FuncId w;               /* 0: there is nothing for W */
    Vec(uint32_t) kept;     /* per parameter of B: that of the whole */
    Vec(ValueId) saved;     /* B's further results */
    Vec(int32_t) given;     /* per parameter of W: that of the whole, or -1-i:
                               saved value i */
} Halves;

typedef struct {
    Module *m;
    Arena *arena;
    Halves *of;      /* by FuncId */
    uint32_t nfuncs; /* functions from here on are W halves */
} SplitPass;

typedef struct {
    SplitPass *pass;
    Module *m;
    FuncId f;
    Halves *h;
    const bool *carried; /* by parameter */
    bool *in_b, *in_w;   /* by NodeId */
    bool *saved;         /* by ValueId */
    ValueMap map;        /* values of the whole -> W's */
} Halving;

static bool split_call(void *self, FuncId f, NodeId id, ValueMap *map);

/* ---- which half ---------------------------------------------------------- */

static bool is_weights(const SplitPass *p, const Node *n)
{
    TensorId t = attr_tensor(p->m, n->attrs, AK_TENSOR);

    if (n->op == OP_CALL)
        return call_scan(p->m, n).callee.i >= p->nfuncs;
    return n->op == OP_ACCUM && p->m->tensors.v[t.i].parameter &&
           attr_int(p->m, n->attrs, AK_FIELD, FIELD_PARAM) == FIELD_GRAD;
}

static bool has_effect(const SplitPass *p, const Node *n)
{
    const Func *callee;

    if (n->op != OP_CALL)
        return (op_info[n->op].flags & OPF_EFFECT) != 0;
    callee = &p->m->funcs.v[call_scan(p->m, n).callee.i];
    for (uint32_t i = 0; i < callee->body.n; i++)
        if (has_effect(p, &p->m->nodes.v[callee->body.v[i].i]))
            return true;
    return false;
}

/* B runs what it was left with even if only W uses it, as on the first stage:
 * it is due before W is. */
static bool is_half(const SplitPass *p, const Node *n)
{
    const Halves *h;

    if (n->op != OP_CALL)
        return false;
    h = &p->of[call_scan(p->m, n).callee.i];
    return h->done && h->w.i;
}

static bool any_used(const Node *n, const bool *used)
{
    for (uint32_t i = 0; i < n->nres; i++)
        if (used[n->res.i + i])
            return true;
    return false;
}

/* Marks what leads to the roots, from the end; `used` starts with the values
 * that are wanted. */
static void mark(Halving *s, bool weights, bool *used, bool *out)
{
    const Func *f = &s->m->funcs.v[s->f.i];

    for (uint32_t i = f->body.n; i-- > 0;) {
        const Node *n = &s->m->nodes.v[f->body.v[i].i];
        bool root = is_weights(s->pass, n)
                        ? weights
                        : !weights && (has_effect(s->pass, n) ||
                                       is_half(s->pass, n));
        if (s->in_b[f->body.v[i].i] || !(root || any_used(n, used)))
            continue;
        out[f->body.v[i].i] = true;
        for (uint32_t k = 0; k < n->nargs; k++)
            used[node_arg(s->m, n, k).i] = true;
    }
}

static void mark_halves(Halving *s)
{
    Arena *a = s->pass->arena;
    const Func *f = &s->m->funcs.v[s->f.i];
    bool *used = arena_array(a, bool, s->m->values.n);
    bool *used_w = arena_array(a, bool, s->m->values.n);

    s->in_b = arena_array(a, bool, s->m->nodes.n);
    s->in_w = arena_array(a, bool, s->m->nodes.n);
    s->saved = arena_array(a, bool, s->m->values.n);
    for (uint32_t i = 0; i < f->results.n; i++)
        used[f->results.v[i].i] = true;
    mark(s, false, used, s->in_b);
    mark(s, true, used_w, s->in_w);
}

/* ---- what W takes from B ------------------------------------------------- */

static int32_t param_index(const Halving *s, ValueId v)
{
    const Func *f = &s->m->funcs.v[s->f.i];

    for (uint32_t i = 0; i < f->params.n; i++)
        if (f->params.v[i].i == v.i)
            return (int32_t)i;
    return -1;
}

static NodeId def_of(const Halving *s, ValueId v)
{
    return s->m->values.v[v.i].def;
}

/* Costs neither memory nor noticeable time to have again. */
static bool is_free(const Node *n)
{
    return n->op == OP_READ || n->op == OP_HOST ||
           (op_info[n->op].flags & OPF_GENERATOR) != 0;
}

static bool is_cheap(const Halving *s, ValueId v)
{
    const Node *n = &s->m->nodes.v[def_of(s, v).i];

    return is_free(n) || (op_info[n->op].flags & OPF_CHEAP) != 0;
}

/* Whether W has v, or cheap ops make it from what W has. */
static bool follows(const Halving *s, ValueId v)
{
    const Node *n = &s->m->nodes.v[def_of(s, v).i];

    if (s->saved[v.i] || s->in_w[def_of(s, v).i])
        return true;
    if (def_of(s, v).i == 0)
        return !s->carried[param_index(s, v)];
    if (!is_cheap(s, v))
        return false;
    for (uint32_t i = 0; i < n->nargs; i++)
        if (!follows(s, node_arg(s->m, n, i)))
            return false;
    return true;
}

static void save(Halving *s, ValueId v)
{
    s->saved[v.i] = true;
    vec_push(&s->h->saved, v);
}

/* First what is costly, then what does not follow from that. */
static void choose_saved(Halving *s, bool costly)
{
    const Func *f = &s->m->funcs.v[s->f.i];

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &s->m->nodes.v[f->body.v[i].i];
        for (uint32_t k = 0; s->in_w[f->body.v[i].i] && k < n->nargs; k++) {
            ValueId v = node_arg(s->m, n, k);
            bool cheap = def_of(s, v).i && is_cheap(s, v);
            if (cheap != costly && !follows(s, v))
                save(s, v);
        }
    }
}

/* ---- W ------------------------------------------------------------------- */

static ValueId add_param(Halving *s, ValueId v)
{
    Module *m = s->m;
    const Value was = *value_of(m, v);
    ValueId p = func_param(m, s->h->w, was.type, sym_text(m->names, was.name));

    value_of(m, p)->layout = was.layout;
    value_of(m, p)->hint = was.hint;
    vmap_set(&s->map, v, p);
    return p;
}

static int32_t saved_index(const Halving *s, ValueId v)
{
    for (uint32_t i = 0; i < s->h->saved.n; i++)
        if (s->h->saved.v[i].i == v.i)
            return (int32_t)i;
    return -1;
}

/* Makes v available in W. */
static void provide(Halving *s, ValueId v)
{
    NodeId def = def_of(s, v);

    if (vmap_get(&s->map, v).i != v.i)
        return;
    if (s->saved[v.i]) {
        add_param(s, v);
        vec_push(&s->h->given, -1 - saved_index(s, v));
    } else if (def.i == 0) {
        add_param(s, v);
        vec_push(&s->h->given, param_index(s, v));
    } else {
        for (uint32_t i = 0; i < node_of(s->m, def)->nargs; i++)
            provide(s, node_arg(s->m, node_of(s->m, def), i));
        node_copy(s->m, s->h->w, def, &s->map);
    }
}

static bool has_half(const Halving *s, const bool *half)
{
    const Func *f = &s->m->funcs.v[s->f.i];

    for (uint32_t i = 0; i < f->body.n; i++)
        if (half[f->body.v[i].i])
            return true;
    return false;
}

static void build_w(Halving *s)
{
    Module *m = s->m;
    const char *name = sym_text(m->names, func_of(m, s->f)->name);
    int stem = (int)(strlen(name) - strlen(".bwd"));

    if (!has_half(s, s->in_w))
        return;
    s->h->w = func_new(m, arena_printf(m->arena, "%.*s.weights", stem, name),
                       FUNC_GRAPH, func_of(m, s->f)->loc);
    for (uint32_t i = 0; i < func_of(m, s->f)->body.n; i++) {
        NodeId id = func_of(m, s->f)->body.v[i];
        if (!s->in_w[id.i])
            continue;
        for (uint32_t k = 0; k < node_of(m, id)->nargs; k++)
            provide(s, node_arg(m, node_of(m, id), k));
        node_copy(m, s->h->w, id, &s->map);
    }
}

/* ---- B ------------------------------------------------------------------- */

/* A parameter, or what is a result already, is returned as a copy. */
static ValueId as_result(Halving *s, ValueId v)
{
    const Func *f = func_of(s->m, s->f);
    const Value was = *value_of(s->m, v);
    bool copied = was.def.i == 0;
    ValueId copy;

    for (uint32_t i = 0; i < f->results.n; i++)
        copied |= f->results.v[i].i == v.i;
    if (!copied)
        return v;
    copy = ir_unary(s->m, s->f, OP_COPY, v, f->loc);
    value_of(s->m, copy)->layout = was.layout;
    value_of(s->m, copy)->name = was.name;
    return copy;
}

static void keep_nodes(Halving *s)
{
    Func *f = func_of(s->m, s->f);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < f->body.n; i++)
        if (s->in_b[f->body.v[i].i])
            f->body.v[kept++] = f->body.v[i];
    f->body.n = kept;
}

static void keep_params(Halving *s)
{
    Func *f = func_of(s->m, s->f);
    bool *used = arena_array(s->pass->arena, bool, s->m->values.n);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < f->body.n; i++)
        for (uint32_t k = 0; k < s->m->nodes.v[f->body.v[i].i].nargs; k++)
            used[node_arg(s->m, &s->m->nodes.v[f->body.v[i].i], k).i] = true;
    for (uint32_t i = 0; i < f->params.n; i++) {
        if (!used[f->params.v[i].i] && !s->carried[i])
            continue;
        vec_push(&s->h->kept, i);
        f->params.v[kept++] = f->params.v[i];
    }
    f->params.n = kept;
}

static void build_b(Halving *s)
{
    keep_nodes(s);
    for (uint32_t i = 0; i < s->h->saved.n; i++) {
        ValueId result = as_result(s, s->h->saved.v[i]);
        vec_push(&func_of(s->m, s->f)->results, result);
    }
    keep_params(s);
    s->h->empty = func_of(s->m, s->f)->body.n == 0;
}

static const Halves *split_function(SplitPass *p, FuncId f, const bool *carried)
{
    Halving s = {.pass = p, .m = p->m, .f = f, .h = &p->of[f.i],
               .carried = carried};

    if (s.h->done)
        return s.h;
    s.h->done = true;
    func_rebuild(p->m, f, split_call, p);
    mark_halves(&s);
    choose_saved(&s, true);
    choose_saved(&s, false);
    build_w(&s);
    build_b(&s);
    vmap_free(&s.map);
    return s.h;
}

/* ---- calls --------------------------------------------------------------- */

static char over_letter(const Scan *scan)
{
    return scan->over ? scan->over : '.';
}

/* Gives the results of a call their callee's layouts and names. */
static void results_like(Module *m, NodeId call, FuncId callee)
{
    for (uint32_t i = 0; i < node_of(m, call)->nres; i++) {
        const Value in = *value_of(m, func_of(m, callee)->results.v[i]);
        Value *out = value_of(m, node_res(node_of(m, call), i));
        out->layout = in.layout;
        out->name = in.name;
        out->hint = in.hint;
    }
}

static NodeId call_b(SplitPass *p, FuncId f, const Node *n, const Halves *h)
{
    Module *m = p->m;
    Scan scan = call_scan(m, n);
    char args[IR_MAX_VALUES + 1] = "", results[IR_MAX_VALUES + 1] = "";
    ValueId values[IR_MAX_VALUES];
    NodeId made;

    mc_assert(h->kept.n <= IR_MAX_VALUES &&
              n->nres + h->saved.n <= IR_MAX_VALUES);
    for (uint32_t i = 0; i < h->kept.n; i++) {
        values[i] = node_arg(m, n, h->kept.v[i]);
        args[i] = call_mode_letter(call_arg_mode(m, n, h->kept.v[i]));
    }
    for (uint32_t i = 0; i < n->nres; i++)
        results[i] = call_mode_letter(call_res_mode(m, n, i));
    for (uint32_t i = 0; i < h->saved.n; i++)
        results[n->nres + i] = over_letter(&scan);
    made = ir_call(m, f, scan, values, args, results, n->loc);
    results_like(m, made, scan.callee);
    return made;
}

static void call_w(SplitPass *p, FuncId f, const Node *n, const Halves *h,
                   NodeId b)
{
    Module *m = p->m;
    Scan scan = call_scan(m, n);
    char args[IR_MAX_VALUES + 1] = "";
    ValueId values[IR_MAX_VALUES];

    mc_assert(h->given.n <= IR_MAX_VALUES);
    for (uint32_t i = 0; i < h->given.n; i++) {
        int32_t from = h->given.v[i];
        bool given = from >= 0;
        values[i] = given ? node_arg(m, n, (uint32_t)from)
                          : node_res(node_of(m, b),
                                     n->nres + (uint32_t)(-1 - from));
        args[i] = given ? call_mode_letter(call_arg_mode(m, n, (uint32_t)from))
                        : over_letter(&scan);
    }
    scan.callee = h->w;
    ir_call(m, f, scan, values, args, "", n->loc);
}

/* Replaces a call by those of its callee's halves.  What may not run leaves
 * nothing for later: B does it whole. */
static bool split_call(void *self, FuncId f, NodeId id, ValueMap *map)
{
    SplitPass *p = self;
    Module *m = p->m;
    const Node n = *node_of(m, id);
    FuncId callee = call_scan(m, &n).callee;
    bool *carried = arena_array(p->arena, bool, n.nargs + 1);
    const Halves *h;
    NodeId b = {0};

    if (n.op != OP_CALL || call_trips(m, &n) >= 0)
        return false;
    for (uint32_t i = 0; i < n.nargs; i++)
        carried[i] = call_arg_mode(m, &n, i) == MODE_CARRY;
    h = split_function(p, callee, carried);
    if (!h->empty)
        b = call_b(p, f, &n, h);
    for (uint32_t i = 0; i < n.nres; i++)
        vmap_set(map, node_res(&n, i), node_res(node_of(m, b), i));
    if (h->w.i)
        call_w(p, f, &n, h, b);
    return true;
}

static bool is_stage_backward(const SplitPass *p, FuncId f)
{
    for (uint32_t i = 0; i < p->m->stages.n; i++)
        if (p->m->stages.v[i].bwd.i == f.i)
            return true;
    return false;
}

/* The same for the backward of a stage only. */
static bool split_stage(void *self, FuncId f, NodeId id, ValueMap *map)
{
    SplitPass *p = self;
    const Node *n = node_of(p->m, id);

    return n->op == OP_CALL &&
           is_stage_backward(p, call_scan(p->m, n).callee) &&
           split_call(p, f, id, map);
}

/* ---- the pass ------------------------------------------------------------ */

static bool is_split(const Spec *spec)
{
    Arena *a = arena_new();
    Schedule *s = schedule_make(a, spec);
    bool splits = schedule_splits(s);

    schedule_free(s);
    arena_free(a);
    return splits;
}

static void halves_free(Halves *h)
{
    vec_free(&h->kept);
    vec_free(&h->saved);
    vec_free(&h->given);
}

bool pass_split_backward(Module *m, const Spec *spec)
{
    SplitPass p = {.m = m, .nfuncs = m->funcs.n};

    if (!is_split(spec))
        return true;
    p.arena = arena_new();
    p.of = arena_array(p.arena, Halves, p.nfuncs);
    func_rebuild(m, func_find(m, sym_intern(m->names, "micro")), split_stage,
                 &p);
    for (uint32_t i = 0; i < m->stages.n; i++)
        m->stages.v[i].weights = p.of[m->stages.v[i].bwd.i].w;
    for (uint32_t i = 0; i < p.nfuncs; i++)
        halves_free(&p.of[i]);
    arena_free(p.arena);
    clean_dead(m);
    return true;
}
