/* grad.c - backward functions.
 *
 *   layer(x) -> y      becomes   layer.fwd(x) -> y, saved…
 *                                layer.bwd(dy, saved…) -> dx
 *
 * A function that adds to the loss is not split: its backward follows its
 * forward in the same body, and its results become the cotangents of its
 * parameters.  So micro, head and head.chunk run forward and backward in one
 * go, the logits are never kept, and only layers save anything.
 *
 * What a backward needs from the forward is saved if it is expensive (a
 * contraction, attention, a parameter of the function).  A cheap value
 * (OPF_CHEAP) is computed again if everything it follows from is saved anyway;
 * otherwise it is saved itself, and the values it follows from are not.
 */
#include "passes/grad.h"
#include "passes/passes.h"

/* How the backward of a function is called. */
typedef struct {
    bool done, joint;
    bool scanned; /* its call repeats it, so its parameters vary */
    bool again;   /* a layer, or a group of them, of which only the input is
                     saved */
    FuncId plain; /* of a group's layer: as it is when nothing is saved */
    FuncId bwd;
    uint32_t nresults;    /* of the forward, before saved values were added */
    Vec(ValueId) saved;   /* forward values, in the order of bwd's parameters */
    Vec(int32_t) given;   /* per saved value: the forward's parameter that the
                             caller passes again, or -1: a further result */
    Vec(int32_t) cotangent; /* per parameter: index of its cotangent among the
                               backward's (joint: forward's) results, or -1 */
} FuncGrad;

typedef struct {
    Module *m;
    const Spec *spec;
    FuncGrad *of; /* by FuncId */
} GradPass;

struct Grad {
    GradPass *pass;
    Module *m;
    FuncId fwd, bwd; /* the same function if joint */
    FuncGrad *info;
    Vec(ValueId) sum;    /* by forward ValueId: cotangent so far */
    Vec(ValueId) hold;   /* by forward ValueId: its stand-in in bwd */
    Vec(ValueId) needed; /* forward values with a stand-in */
};

/* ---- what cells see ------------------------------------------------------ */

Module *grad_module(Grad *g)
{
    return g->m;
}

FuncId grad_func(Grad *g)
{
    return g->bwd;
}

FuncId grad_forward(const Grad *g)
{
    return g->fwd;
}

static ValueId *slot(Grad *g, ValueId v, bool cotangent)
{
    if (cotangent) {
        while (g->sum.n <= v.i)
            vec_push(&g->sum, ((ValueId){0}));
        return &g->sum.v[v.i];
    }
    while (g->hold.n <= v.i)
        vec_push(&g->hold, ((ValueId){0}));
    return &g->hold.v[v.i];
}

ValueId grad_need(Grad *g, ValueId v)
{
    ValueId *stand_in = slot(g, v, false);

    if (g->info->joint)
        return v;
    if (stand_in->i == 0) {
        const Value old = *value_of(g->m, v);
        *stand_in = value_new(g->m, old.type, sym_text(g->m->names, old.name));
        value_of(g->m, *stand_in)->hint = old.hint;
        vec_push(&g->needed, v);
    }
    return *stand_in;
}

static Op def_op(const Module *m, ValueId v)
{
    return (Op)m->nodes.v[m->values.v[v.i].def.i].op;
}

bool grad_wants(const Grad *g, ValueId v)
{
    const Node *n = &g->m->nodes.v[g->m->values.v[v.i].def.i];
    uint32_t flags = op_info[n->op].flags;

    if (value_type(g->m, v)->dtype == DT_I32 || n->op == OP_HOST ||
        n->op == OP_VALID || (flags & OPF_GENERATOR))
        return false;
    for (uint32_t i = 0; (flags & OPF_CHEAP) && i < n->nargs; i++)
        if (grad_wants(g, node_arg(g->m, n, i)))
            return true;
    return !(flags & OPF_CHEAP) || n->nargs == 0;
}

void grad_flow(Grad *g, ValueId v, ValueId contribution)
{
    ValueId *sum = slot(g, v, true);

    if (!grad_wants(g, v))
        return;
    if (sum->i)
        contribution = ir_binary(g->m, g->bwd, OP_ADD, *sum, contribution,
                                 (Loc){0});
    *slot(g, v, true) = contribution;
}

/* Whether a cotangent that already rests somewhere is wanted elsewhere too. */
static bool needs_other_hint(const Module *m, ValueId c, Sym hint)
{
    Sym has = m->values.v[c.i].hint;

    return hint.i && has.i && has.i != hint.i;
}

ValueId grad_of(Grad *g, ValueId v)
{
    ValueId c = *slot(g, v, true);
    const Value forward = *value_of(g->m, v);
    DType dtype = type_of(g->m, forward.type)->dtype;
    const char *name;

    if (c.i == 0)
        return c;
    if (def_op(g->m, v) != OP_READ && value_type(g->m, c)->dtype != dtype)
        c = ir_cast(g->m, g->bwd, c, dtype, (Loc){0});
    if (needs_other_hint(g->m, c, forward.hint))
        c = ir_unary(g->m, g->bwd, OP_COPY, c, (Loc){0});
    if (forward.hint.i)
        value_of(g->m, c)->hint = forward.hint;
    if (forward.name.i && value_of(g->m, c)->name.i == 0) {
        name = arena_printf(g->m->arena, "d%s",
                            sym_text(g->m->names, forward.name));
        value_of(g->m, c)->name = sym_intern(g->m->names, name);
    }
    *slot(g, v, true) = c;
    return c;
}

/* ---- the forward's side of calls ----------------------------------------- */

static void grad_function(GradPass *p, FuncId f);

static const char *accumulated(const Module *m, const Node *n)
{
    TensorId t = attr_tensor(m, n->attrs, AK_TENSOR);

    return n->op == OP_ACCUM ? sym_text(m->names, m->tensors.v[t.i].name) : "";
}

bool grad_is_loss(const Module *m, const Node *n)
{
    return strcmp(accumulated(m, n), "loss") == 0;
}

bool grad_is_objective(const Module *m, const Node *n)
{
    static const char *const losses[] = {"loss", "aux_loss", "z_loss"};

    for (size_t i = 0; i < MC_LEN(losses); i++)
        if (strcmp(accumulated(m, n), losses[i]) == 0)
            return true;
    return false;
}

static bool reaches_loss(const Module *m, FuncId f)
{
    const Func *fn = &m->funcs.v[f.i];

    for (uint32_t i = 0; i < fn->body.n; i++) {
        const Node *n = &m->nodes.v[fn->body.v[i].i];
        if (grad_is_loss(m, n))
            return true;
        if (n->op == OP_CALL && reaches_loss(m, call_scan(m, n).callee))
            return true;
    }
    return false;
}

enum { MAX_CALL = 64 };

static void call_args(Module *m, const Node *n, ValueId *out)
{
    mc_assert(n->nargs < MAX_CALL);
    for (uint32_t i = 0; i < n->nargs; i++)
        out[i] = node_arg(m, n, i);
}

/* The call again, now with the callee's saved values (stacked over a scan) or,
 * for a joint callee, its parameters' cotangents as further results. */
static NodeId call_forward(GradPass *p, FuncId f, const Node *n)
{
    Scan scan = call_scan(p->m, n);
    FuncGrad *callee = &p->of[scan.callee.i];
    char args[MAX_CALL + 1], results[2 * MAX_CALL + 1];
    ValueId values[MAX_CALL];
    size_t at;

    call_modes(p->m, n, args, results);
    call_args(p->m, n, values);
    at = n->nres;
    if (callee->joint) {
        for (uint32_t i = 0; i < callee->cotangent.n; i++)
            if (callee->cotangent.v[i] >= 0)
                results[at++] = args[i];
    } else {
        for (uint32_t i = 0; i < callee->saved.n; i++)
            if (callee->given.v[i] < 0)
                results[at++] = scan.over ? scan.over : '.';
    }
    results[at] = '\0';
    return ir_call(p->m, f, scan, values, args, results, n->loc);
}

/* Layers of one function are of one kind.  Within a group that is computed
 * again every layer saves what it needs, but not in the forward. */
static void note_scan(GradPass *p, FuncId f, Scan scan)
{
    FuncGrad *callee = &p->of[scan.callee.i];
    bool grouped = scan.over == 'l' && p->of[f.i].again;
    ValueMap map = {0};

    callee->scanned = scan.over != 0;
    callee->again =
        scan.over == 'l' && !grouped && spec_layer(p->spec, scan.first)->again;
    if (grouped && !callee->plain.i)
        callee->plain = func_copy(p->m, scan.callee, "plain", &map);
    vmap_free(&map);
}

/* Rebuilds the body so that every call passes on what the backward needs. */
static void forward_calls(GradPass *p, FuncId f)
{
    Module *m = p->m;
    Func old = *func_of(m, f);
    ValueMap map = {0};

    memset(&func_of(m, f)->body, 0, sizeof old.body);
    for (uint32_t i = 0; i < old.body.n; i++) {
        const Node n = *node_of(m, old.body.v[i]);
        NodeId made;
        if (n.op != OP_CALL) {
            vec_push(&func_of(m, f)->body, old.body.v[i]);
            continue;
        }
        note_scan(p, f, call_scan(m, &n));
        grad_function(p, call_scan(m, &n).callee);
        made = call_forward(p, f, &n);
        for (uint32_t k = 0; k < n.nres; k++) {
            ValueId from = node_res(&n, k), to = node_res(node_of(m, made), k);
            value_of(m, to)->name = value_of(m, from)->name;
            value_of(m, to)->hint = value_of(m, from)->hint;
            vmap_set(&map, from, to);
        }
    }
    func_substitute(m, f, &map);
    vmap_free(&map);
    vec_free(&old.body);
}

/* ---- the backward's side of calls ---------------------------------------- */

static void flow_joint(Grad *g, const Node *n, const FuncGrad *callee)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (callee->cotangent.v[i] >= 0)
            grad_flow(g, node_arg(g->m, n, i),
                      node_res(n, (uint32_t)callee->cotangent.v[i]));
}

/* layer.bwd runs over the layers in reverse: carries stay carries, saved
 * values are cut where they were stacked. */
void grad_call_node(Grad *g, const Node *n)
{
    Scan scan = call_scan(g->m, n);
    FuncGrad *callee = &g->pass->of[scan.callee.i];
    char modes[MAX_CALL + 1], res_modes[MAX_CALL + 1] = "";
    char fwd_args[MAX_CALL + 1], fwd_res[2 * MAX_CALL + 1];
    ValueId args[MAX_CALL];
    uint32_t nargs = 0, nres = 0, further = callee->nresults;
    NodeId made;

    if (callee->joint) {
        flow_joint(g, n, callee);
        return;
    }
    call_modes(g->m, n, fwd_args, fwd_res);
    for (uint32_t i = 0; i < callee->nresults; i++, nargs++) {
        args[nargs] = grad_of(g, node_res(n, i));
        mc_assert(args[nargs].i);
        modes[nargs] = fwd_res[i];
    }
    for (uint32_t i = 0; i < callee->saved.n; i++, nargs++) {
        int32_t given = callee->given.v[i];
        args[nargs] = grad_need(g, given >= 0
                                       ? node_arg(g->m, n, (uint32_t)given)
                                       : node_res(n, further));
        modes[nargs] = given >= 0 ? fwd_args[given] : fwd_res[further++];
    }
    modes[nargs] = '\0';
    for (uint32_t i = 0; i < n->nargs; i++)
        if (callee->cotangent.v[i] >= 0)
            res_modes[nres++] = fwd_args[i];
    res_modes[nres] = '\0';
    scan.callee = callee->bwd;
    scan.reverse = scan.count > 1 || scan.over;
    made = ir_call(g->m, g->bwd, scan, args, modes, res_modes, n->loc);
    for (uint32_t i = 0; i < n->nargs; i++)
        if (callee->cotangent.v[i] >= 0)
            grad_flow(g, node_arg(g->m, n, i),
                      node_res(node_of(g->m, made),
                               (uint32_t)callee->cotangent.v[i]));
}

/* ---- what to save, what to compute again --------------------------------- */

typedef struct {
    Grad *g;
    Vec(bool) saved; /* by forward ValueId */
    ValueMap to_bwd; /* forward value -> its value in the backward */
} Remat;

static bool is_saved(const Remat *r, ValueId v)
{
    return v.i < r->saved.n && r->saved.v[v.i];
}

static void mark_saved(Remat *r, ValueId v, bool saved)
{
    while (r->saved.n <= v.i)
        vec_push(&r->saved, false);
    r->saved.v[v.i] = saved;
}

static void save(Remat *r, ValueId v)
{
    ValueId stand_in = grad_need(r->g, v);

    mark_saved(r, v, true);
    vec_push(&r->g->info->saved, v);
    vec_push(&func_of(r->g->m, r->g->bwd)->params, stand_in);
    vmap_set(&r->to_bwd, v, stand_in);
}

/* Counts of a step change between a forward and its backward, so what was read
 * of them is kept. */
static bool is_count(const Module *m, ValueId v)
{
    const Node *n = &m->nodes.v[m->values.v[v.i].def.i];

    return n->op == OP_READ &&
           attr_int(m, n->attrs, AK_FIELD, FIELD_PARAM) == FIELD_ACC;
}

/* Free: costs neither memory nor noticeable time to have again. */
static bool is_free(const Module *m, ValueId v)
{
    Op op = def_op(m, v);

    return (op == OP_READ && !is_count(m, v)) || op == OP_HOST ||
           (op_info[op].flags & OPF_GENERATOR) != 0;
}

/* Shared experts are part of a mixture. */
static bool is_part_of(const char *module, SpecModule asked)
{
    return strcmp(module, spec_module_word(asked)) == 0 ||
           (asked == MODULE_MOE &&
            strcmp(module, spec_module_word(MODULE_SHARED_EXPERTS)) == 0);
}

static bool in_modules(const Module *m, const Node *n, SpecChoiceList list)
{
    const char *word = sym_text(m->names, attr_sym(m, n->attrs, AK_MODULE));

    for (uint32_t i = 0; i < list.n; i++)
        if (is_part_of(word, (SpecModule)list.v[i]))
            return true;
    return false;
}

/* Whether the user wants v computed again although it is expensive:
 * everything in a layer, or what belongs to a module of recompute.modules. */
static bool asked_again(const Grad *g, ValueId v)
{
    const Spec *spec = g->pass->spec;
    const Node *n = &g->m->nodes.v[g->m->values.v[v.i].def.i];
    if (!g->info->scanned || n->op == OP_NONE || is_count(g->m, v))
        return false;
    if (g->info->again)
        return true;
    if (spec->training.recompute.granularity != RECOMPUTE_SELECTIVE)
        return false;
    return in_modules(g->m, n, spec->training.recompute.modules);
}

/* Computed again in the backward rather than saved, if that is possible. */
static bool is_cheap(const Grad *g, ValueId v)
{
    return (op_info[def_op(g->m, v)].flags & OPF_CHEAP) || asked_again(g, v);
}

/* Whether v can be computed from saved values by cheap ops alone. */
static bool follows_from_saved(const Remat *r, ValueId v)
{
    const Module *m = r->g->m;
    const Node *n = &m->nodes.v[m->values.v[v.i].def.i];

    if (is_saved(r, v) || (is_free(m, v) && n->nargs == 0))
        return true;
    if (!is_cheap(r->g, v) && !is_free(m, v))
        return false;
    for (uint32_t i = 0; i < n->nargs; i++)
        if (!follows_from_saved(r, node_arg(m, n, i)))
            return false;
    return true;
}

static bool by_index_after(const ValueId *a, const ValueId *b)
{
    return a->i > b->i;
}

/* Values are numbered in order of definition. */
static void sort_needed(Grad *g)
{
    for (uint32_t i = 1; i < g->needed.n; i++)
        for (uint32_t k = i; k > 0 && by_index_after(&g->needed.v[k - 1],
                                                     &g->needed.v[k]);
             k--) {
            ValueId swap = g->needed.v[k];
            g->needed.v[k] = g->needed.v[k - 1];
            g->needed.v[k - 1] = swap;
        }
}

static int64_t value_bytes(const Module *m, ValueId v)
{
    return type_elems(value_type(m, v)) * dtype_bytes(value_type(m, v)->dtype);
}

/* Whether v could be computed again if u were saved too. */
static bool follows_from(Remat *r, ValueId v, ValueId u)
{
    bool follows;

    if (is_saved(r, u))
        return false;
    mark_saved(r, u, true);
    follows = follows_from_saved(r, v);
    mark_saved(r, u, false);
    return follows;
}

/* Looks for a value smaller than *best from which v follows, among what `at`
 * is made of by cheap ops. */
static void least_search(Remat *r, ValueId v, ValueId at, ValueId *best)
{
    const Module *m = r->g->m;
    const Node *n = &m->nodes.v[m->values.v[at.i].def.i];

    for (uint32_t i = 0; is_cheap(r->g, at) && i < n->nargs; i++) {
        ValueId u = node_arg(m, n, i);

        if (value_bytes(m, u) < value_bytes(m, *best) && follows_from(r, v, u))
            *best = u;
        least_search(r, v, u, best);
    }
}

/* What to save so that v is at hand: v itself, or something smaller: the bf16
 * value that a norm starts from rather than its f32 distance from the mean.  A
 * part rests in what it is a part of. */
static ValueId least_saved(Remat *r, ValueId v)
{
    const Module *m = r->g->m;
    ValueId best;

    while (def_op(m, v) == OP_PART)
        v = node_arg(m, &m->nodes.v[m->values.v[v.i].def.i], 0);
    best = v;

    least_search(r, v, v, &best);
    return best;
}

/* Full recomputation starts from the layer's input. */
static void need_params(Grad *g)
{
    const Func *fwd = func_of(g->m, g->fwd);

    for (uint32_t i = 0; i < fwd->params.n; i++)
        grad_need(g, fwd->params.v[i]);
}

static void choose_saved(Remat *r)
{
    Grad *g = r->g;
    uint32_t n;

    if (g->info->again)
        need_params(g);
    sort_needed(g);
    n = g->needed.n;
    for (uint32_t i = 0; i < n; i++)
        if (!is_cheap(g, g->needed.v[i]) && !is_free(g->m, g->needed.v[i]))
            save(r, g->needed.v[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!is_saved(r, g->needed.v[i]) &&
            !follows_from_saved(r, g->needed.v[i]))
            save(r, least_saved(r, g->needed.v[i]));
}

/* Emits what v follows from, then v, unless the backward has it already. */
static void again(Remat *r, ValueId v)
{
    Module *m = r->g->m;
    NodeId def = value_of(m, v)->def;

    if (vmap_get(&r->to_bwd, v).i != v.i)
        return;
    mc_assert(def.i);
    for (uint32_t i = 0; i < node_of(m, def)->nargs; i++)
        again(r, node_arg(m, node_of(m, def), i));
    node_copy(m, r->g->bwd, def, &r->to_bwd);
}

/* The forward value for which `v` stands in, or 0. */
static ValueId stood_for(const Grad *g, ValueId v)
{
    for (uint32_t i = 0; i < g->needed.n; i++)
        if (g->hold.v[g->needed.v[i].i].i == v.i)
            return g->needed.v[i];
    return (ValueId){0};
}

/* Rebuilds the backward's body with each recomputation just before its first
 * use. */
static void place_recomputed(Remat *r)
{
    Grad *g = r->g;
    Module *m = g->m;
    Func old = *func_of(m, g->bwd);
    ValueMap to_real = {0};

    memset(&func_of(m, g->bwd)->body, 0, sizeof old.body);
    for (uint32_t i = 0; i < old.body.n; i++) {
        NodeId id = old.body.v[i];
        for (uint32_t k = 0; k < node_of(m, id)->nargs; k++) {
            ValueId stand_in = node_arg(m, node_of(m, id), k);
            ValueId v = stood_for(g, stand_in);
            if (v.i == 0)
                continue;
            again(r, v);
            vmap_set(&to_real, stand_in, vmap_get(&r->to_bwd, v));
        }
        vec_push(&func_of(m, g->bwd)->body, id);
    }
    func_substitute(m, g->bwd, &to_real);
    vmap_free(&to_real);
    vec_free(&old.body);
}

/* The parameter that v is, if the caller can simply pass it again. */
static int32_t given_again(const Grad *g, ValueId v)
{
    const Func *fwd = &g->m->funcs.v[g->fwd.i];

    for (uint32_t i = 0; !g->info->scanned && i < fwd->params.n; i++)
        if (fwd->params.v[i].i == v.i)
            return (int32_t)i;
    return -1;
}

/* Puts the last node of a body in front of position `pos`. */
static void last_node_to(Func *f, uint32_t pos)
{
    NodeId moved = vec_last(&f->body);

    memmove(f->body.v + pos + 1, f->body.v + pos,
            (f->body.n - 1 - pos) * sizeof moved);
    f->body.v[pos] = moved;
}

/* Whether the user wants a saved value of a layer in host memory: its node
 * belongs to a module of offload.activations. */
static bool asked_offload(const Grad *g, ValueId v)
{
    const Node *n = &g->m->nodes.v[g->m->values.v[v.i].def.i];

    return g->info->scanned && n->op != OP_NONE &&
           in_modules(g->m, n, g->pass->spec->training.offload.activations);
}

/* The forward saves `v` in host memory, as soon as it exists; the backward,
 * whose parameter `param` it is, fetches it first thing. */
static ValueId offload(Grad *g, ValueId v, ValueId *param)
{
    Module *m = g->m;
    const Value saved = *value_of(m, v);
    NodeId def = saved.def;
    Loc loc = node_of(m, def)->loc;
    uint32_t at = 0;
    ValueMap map = {0};
    ValueId away, back, name;

    while (func_of(m, g->fwd)->body.v[at].i != def.i)
        at++;
    away = ir_op(m, g->fwd, OP_OFFLOAD, &v, 1, (AttrsId){0}, loc);
    last_node_to(func_of(m, g->fwd), at + 1);
    name = value_new(m, saved.type, sym_text(m->names, saved.name));
    back = ir_op(m, g->bwd, OP_FETCH, &name, 1, (AttrsId){0}, loc);
    last_node_to(func_of(m, g->bwd), 0);
    value_of(m, back)->hint = saved.hint;
    vmap_set(&map, *param, back);
    func_substitute(m, g->bwd, &map);
    vmap_free(&map);
    *param = name;
    return away;
}

static void settle_needs(Grad *g)
{
    uint32_t first = func_of(g->m, g->bwd)->params.n;
    Remat r = {.g = g};

    choose_saved(&r);
    place_recomputed(&r);
    for (uint32_t i = 0; i < g->info->saved.n; i++) {
        ValueId v = g->info->saved.v[i];
        int32_t given = given_again(g, v);
        vec_push(&g->info->given, given);
        if (given < 0 && asked_offload(g, v)) {
            ValueId param = func_of(g->m, g->bwd)->params.v[first + i];
            v = offload(g, v, &param);
            func_of(g->m, g->bwd)->params.v[first + i] = param;
        }
        if (given < 0)
            vec_push(&func_of(g->m, g->fwd)->results, v);
    }
    vec_free(&r.saved);
    vmap_free(&r.to_bwd);
}

/* ---- groups of layers ---------------------------------------------------- */

/* The forward of a group calls its layers as they are: what they would save is
 * computed again in the backward. */
static void call_plain(Grad *g)
{
    Module *m = g->m;
    Func old = *func_of(m, g->fwd);
    ValueMap map = {0};

    memset(&func_of(m, g->fwd)->body, 0, sizeof old.body);
    for (uint32_t i = 0; i < old.body.n; i++) {
        const Node n = *node_of(m, old.body.v[i]);
        Scan scan = call_scan(m, &n);
        char args[MAX_CALL + 1], results[2 * MAX_CALL + 1];
        ValueId values[MAX_CALL];
        FuncGrad *callee = &g->pass->of[scan.callee.i];
        NodeId made;
        if (n.op != OP_CALL || !callee->plain.i) {
            vec_push(&func_of(m, g->fwd)->body, old.body.v[i]);
            continue;
        }
        call_modes(m, &n, args, results);
        call_args(m, &n, values);
        results[callee->nresults] = '\0';
        scan.callee = callee->plain;
        made = ir_call(m, g->fwd, scan, values, args, results, n.loc);
        for (uint32_t k = 0; k < callee->nresults; k++) {
            value_of(m, node_res(node_of(m, made), k))->hint =
                value_of(m, node_res(&n, k))->hint;
            vmap_set(&map, node_res(&n, k), node_res(node_of(m, made), k));
        }
    }
    func_substitute(m, g->fwd, &map);
    vmap_free(&map);
    vec_free(&old.body);
}

/* Statistics count once: in the forward, not when it is repeated. */
static void drop_statistics(Grad *g)
{
    Func *fwd = func_of(g->m, g->fwd);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < fwd->body.n; i++) {
        const Node *n = node_of(g->m, fwd->body.v[i]);
        if (n->op != OP_ACCUM ||
            attr_int(g->m, n->attrs, AK_FIELD, 0) != FIELD_ACC)
            fwd->body.v[kept++] = fwd->body.v[i];
    }
    fwd->body.n = kept;
}

/* ---- one function -------------------------------------------------------- */

static void reverse_nodes(Grad *g, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        const Node n = *node_of(g->m, func_of(g->m, g->fwd)->body.v[i]);
        bool flows = n.nres == 0 || n.op == OP_CALL;
        for (uint32_t k = 0; k < n.nres; k++)
            flows = flows || grad_of(g, node_res(&n, k)).i;
        if (flows)
            grad_cells[n.op](g, &n);
    }
}

/* Cotangents of results come in as parameters; cotangents of parameters go out
 * as results. */
static void open_backward(Grad *g)
{
    Module *m = g->m;
    const char *name = sym_text(m->names, func_of(m, g->fwd)->name);
    char *bwd = arena_printf(m->arena, "%s.bwd", name);
    char *fwd = arena_printf(m->arena, "%s.fwd", name);

    g->bwd = func_new(m, bwd, FUNC_GRAPH, func_of(m, g->fwd)->loc);
    func_of(m, g->fwd)->name = sym_intern(m->names, fwd);
    for (uint32_t i = 0; i < func_of(m, g->fwd)->results.n; i++) {
        ValueId y = func_of(m, g->fwd)->results.v[i];
        const Value like = *value_of(m, y);
        char *dy = arena_printf(m->arena, "d%s",
                                sym_text(m->names, like.name));
        ValueId c = func_param(m, g->bwd, like.type, dy);
        value_of(m, c)->hint = like.hint;
        grad_flow(g, y, c);
    }
}

static void close_backward(Grad *g)
{
    Func *fwd = func_of(g->m, g->fwd);
    uint32_t base = g->info->joint ? fwd->results.n : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < func_of(g->m, g->fwd)->params.n; i++) {
        ValueId p = func_of(g->m, g->fwd)->params.v[i];
        ValueId c = grad_of(g, p);
        int32_t index = c.i ? (int32_t)(base + count++) : -1;
        vec_push(&g->info->cotangent, index);
        if (c.i)
            vec_push(&func_of(g->m, g->bwd)->results, c);
    }
}

static void grad_function(GradPass *p, FuncId f)
{
    FuncGrad *info = &p->of[f.i];
    Grad g = {.pass = p, .m = p->m, .fwd = f, .bwd = f, .info = info};
    uint32_t count;

    if (info->done)
        return;
    info->done = true;
    info->joint = reaches_loss(p->m, f);
    info->nresults = func_of(p->m, f)->results.n;
    forward_calls(p, f);
    count = func_of(p->m, f)->body.n;
    if (!info->joint)
        open_backward(&g);
    reverse_nodes(&g, count);
    close_backward(&g);
    if (!info->joint)
        settle_needs(&g);
    if (info->again)
        call_plain(&g);
    if (info->plain.i)
        drop_statistics(&g);
    info->bwd = g.bwd;
    vec_free(&g.sum);
    vec_free(&g.hold);
    vec_free(&g.needed);
}

bool pass_grad(Module *m, const Spec *spec)
{
    /* Functions made on the way are backward ones and need no entry. */
    GradPass p = {m, spec, arena_array(m->arena, FuncGrad, m->funcs.n)};
    unsigned errors = diag_errors(m->diag);
    uint32_t before = m->funcs.n;

    grad_function(&p, m->entry.v[0]);
    for (uint32_t i = 0; i < before; i++) {
        vec_free(&p.of[i].saved);
        vec_free(&p.of[i].given);
        vec_free(&p.of[i].cotangent);
    }
    clean_cse(m);
    clean_dead(m);
    return diag_errors(m->diag) == errors;
}
