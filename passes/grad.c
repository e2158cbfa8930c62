/* grad.c - backward functions.
 *
 *   layer(x) -> y      becomes   layer.fwd(x) -> y, saved…
 *                                layer.bwd(dy, saved…) -> dx
 *
 * A function that adds to the loss is not split: its backward follows its
 * forward in the same body, and its results become the cotangents of its
 * parameters.  So micro, head and head.chunk run forward and backward in one
 * go, the logits are never kept, and only layers save anything.
 */
#include "passes/grad_priv.h"

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

Op grad_def_op(const Module *m, ValueId v)
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

ValueId grad_sum_of(Grad *g, ValueId v)
{
    return *slot(g, v, true);
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
    if (grad_def_op(g->m, v) != OP_READ && value_type(g->m, c)->dtype != dtype)
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

bool grad_scaled(const Grad *g)
{
    return g->pass->spec &&
           g->pass->spec->training.precision == PREC_FP16;
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

void grad_call_args(Module *m, const Node *n, ValueId *out)
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
    grad_call_args(p->m, n, values);
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

/* Of iterations that may not run nothing can be saved. */
static void note_trips(GradPass *p, const Node *n)
{
    FuncGrad *callee = &p->of[call_scan(p->m, n).callee.i];
    char *args = arena_alloc(p->m->arena, n->nargs + 1u);
    char results[MAX_CALL + 1];

    if (call_trips(p->m, n) < 0)
        return;
    call_modes(p->m, n, args, results);
    callee->trips = args;
    callee->again = true;
}

/* Layers of one function are of one kind.  Within a group that is computed
 * again every layer saves what it needs, but not in the forward. */
static void note_scan(GradPass *p, FuncId f, const Node *n)
{
    Scan scan = call_scan(p->m, n);
    FuncGrad *callee = &p->of[scan.callee.i];
    bool grouped = scan.over == 'l' && p->of[f.i].again;
    ValueMap map = {0};

    callee->scanned = scan.over != 0;
    callee->again =
        scan.over == 'l' && !grouped && spec_layer(p->spec, scan.first)->again;
    if (grouped && !callee->plain.i)
        callee->plain = func_copy(p->m, scan.callee, "plain", &map);
    vmap_free(&map);
    note_trips(p, n);
}

/* Has a call pass on what the backward needs. */
static bool extend_call(void *self, FuncId f, NodeId id, ValueMap *map)
{
    GradPass *p = self;
    const Node n = *node_of(p->m, id);

    if (n.op != OP_CALL)
        return false;
    note_scan(p, f, &n);
    grad_function(p, call_scan(p->m, &n).callee);
    results_replace(p->m, &n, n.nres, call_forward(p, f, &n), map);
    return true;
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
static void flow_scan(Grad *g, const Node *n)
{
    Scan scan = call_scan(g->m, n);
    FuncGrad *callee = &g->pass->of[scan.callee.i];
    char modes[MAX_CALL + 1], res_modes[MAX_CALL + 1] = "";
    char fwd_args[MAX_CALL + 1], fwd_res[2 * MAX_CALL + 1];
    ValueId args[MAX_CALL];
    uint32_t nargs = 0, nres = 0, further = callee->nresults;
    NodeId made;

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

void grad_call_node(Grad *g, const Node *n)
{
    const FuncGrad *callee = &g->pass->of[call_scan(g->m, n).callee.i];

    if (callee->joint)
        flow_joint(g, n, callee);
    else if (callee->trips)
        grad_trips_call(g, n);
    else
        flow_scan(g, n);
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
    func_rebuild(p->m, f, extend_call, p);
    count = func_of(p->m, f)->body.n;
    if (!info->joint)
        open_backward(&g);
    reverse_nodes(&g, count);
    if (info->trips)
        grad_trips_close(&g);
    else
        close_backward(&g);
    if (!info->joint)
        grad_settle_needs(&g);
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
    grad_carry_sums(m);
    for (uint32_t i = 0; i < before; i++) {
        vec_free(&p.of[i].saved);
        vec_free(&p.of[i].given);
        vec_free(&p.of[i].cotangent);
    }
    clean_cse(m);
    clean_dead(m);
    return diag_errors(m->diag) == errors;
}
