/* grad_save.c - what a backward needs of its forward.
 *
 *   layer.fwd(x)                      layer.bwd(dy, x, a)
 *     a = dot …      saved              n = norm x         computed again
 *     n = norm x     cheap        →     … n, a …
 *
 * What a backward needs from the forward is saved if it is expensive (a
 * contraction, attention, a parameter of the function).  A cheap value
 * (OPF_CHEAP) is computed again if everything it follows from is saved anyway;
 * otherwise it is saved itself, and the values it follows from are not.
 *
 * training.recompute makes more of it cheap: modules by name, whole layers, or
 * groups of layers, which save the input of their first.  training.offload
 * moves what is saved to host memory and back.
 */
#include "passes/grad_priv.h"

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
    Op op = grad_def_op(m, v);

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
    return (op_info[grad_def_op(g->m, v)].flags & OPF_CHEAP) ||
           asked_again(g, v);
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

    while (grad_def_op(m, v) == OP_PART)
        v = node_arg(m, &m->nodes.v[m->values.v[v.i].def.i], 0);
    best = v;

    least_search(r, v, v, &best);
    return best;
}

/* Full recomputation starts from the layer's input; that of one iteration of
 * some from all that its caller still has, which is not what it carries on. */
static void need_params(Grad *g)
{
    const Func *fwd = func_of(g->m, g->fwd);

    for (uint32_t i = 0; i < fwd->params.n; i++)
        if (!g->info->trips ||
            call_mode_of(g->info->trips[i]) != MODE_CARRY)
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

/* Puts each recomputation in the backward just before its first use. */
static bool place_recomputed(void *self, FuncId bwd, NodeId id,
                             ValueMap *to_real)
{
    Remat *r = self;
    Module *m = r->g->m;

    (void)bwd;
    for (uint32_t k = 0; k < node_of(m, id)->nargs; k++) {
        ValueId stand_in = node_arg(m, node_of(m, id), k);
        ValueId v = stood_for(r->g, stand_in);
        if (v.i == 0)
            continue;
        again(r, v);
        vmap_set(to_real, stand_in, vmap_get(&r->to_bwd, v));
    }
    return false;
}

/* The parameter that v is, if the caller can simply pass it again. */
static int32_t given_again(const Grad *g, ValueId v)
{
    const Func *fwd = &g->m->funcs.v[g->fwd.i];

    if (g->info->scanned && !g->info->trips)
        return -1;
    for (uint32_t i = 0; i < fwd->params.n; i++)
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

static void settle_saved(Grad *g)
{
    uint32_t first = func_of(g->m, g->bwd)->params.n;
    Remat r = {.g = g};

    choose_saved(&r);
    func_rebuild(g->m, g->bwd, place_recomputed, &r);
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
static bool call_plain(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Grad *g = self;
    Module *m = g->m;
    const Node n = *node_of(m, id);
    Scan scan = call_scan(m, &n);
    char args[MAX_CALL + 1], results[2 * MAX_CALL + 1];
    ValueId values[MAX_CALL];
    FuncGrad *callee = &g->pass->of[scan.callee.i];
    NodeId made;

    if (n.op != OP_CALL || !callee->plain.i)
        return false;
    call_modes(m, &n, args, results);
    grad_call_args(m, &n, values);
    results[callee->nresults] = '\0';
    scan.callee = callee->plain;
    made = ir_call(m, f, scan, values, args, results, n.loc);
    results_replace(m, &n, callee->nresults, made, map);
    return true;
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

/* ---- the whole ----------------------------------------------------------- */

void grad_settle_needs(Grad *g)
{
    settle_saved(g);
    if (g->info->again)
        func_rebuild(g->m, g->fwd, call_plain, g);
    if (g->info->plain.i)
        drop_statistics(g);
}
