/* eval.c - runs a module on all ranks until every rank has finished its step.
 *
 * The ranks take turns.  A rank runs until it ends or its next node has to
 * wait for another rank; a round in which no rank moves is a deadlock.  Sends
 * are buffered, collectives meet once every member of the group has reached a
 * node with the same op and attributes.
 *
 * Before the pass `layout` there is one logical rank that holds everything;
 * before `pipeline` the pipeline coordinates would all do the same, so only
 * coordinate 0 is run.
 */
#include "ir/eval_priv.h"

#include <stdlib.h>

/* ---- side tables of the module ---- */

static void slots_number(Eval *e)
{
    const Module *m = e->m;

    e->slot_of = arena_array(e->arena, uint32_t, m->values.n + 1);
    e->nslots = arena_array(e->arena, uint32_t, m->funcs.n + 1);
    for (uint32_t f = 1; f < m->funcs.n; f++) {
        const Func *func = &m->funcs.v[f];
        uint32_t *n = &e->nslots[f];

        for (uint32_t i = 0; i < func->params.n; i++)
            e->slot_of[func->params.v[i].i] = (*n)++;
        for (uint32_t i = 0; i < func->body.n; i++) {
            const Node *node = &m->nodes.v[func->body.v[i].i];

            for (uint32_t k = 0; k < node->nres; k++)
                e->slot_of[node_res(node, k).i] = (*n)++;
        }
    }
}

/* Seed and name of each part. */
static uint64_t *part_keys(const Eval *e, const Tensor *t)
{
    uint64_t *key = arena_array(e->arena, uint64_t, t->nparts + 1);

    for (uint32_t i = 0; i < t->nparts; i++)
        key[i] = hash_text(e->opt.seed,
                           sym_text(e->m->names, t->part[i].name));
    return key;
}

static void states_number(Eval *e)
{
    const Module *m = e->m;

    e->state_of = arena_array(e->arena, uint32_t,
                              (m->tensors.n + 1) * FIELD_COUNT);
    e->tensor_key = arena_array(e->arena, uint64_t, m->tensors.n + 1);
    e->part_key = arena_array(e->arena, uint64_t *, m->tensors.n + 1);
    for (uint32_t t = 1; t < m->tensors.n; t++) {
        const Tensor *tensor = &m->tensors.v[t];
        const Type *logical = eval_logical(m, (TensorId){t});
        int v = type_dim(logical, 'v');

        e->tensor_key[t] = hash_text(e->opt.seed, sym_text(m->names,
                                                           tensor->name));
        e->part_key[t] = part_keys(e, tensor);
        if (v >= 0)
            e->vocabulary = logical->size[v];
        for (uint32_t f = 0; f < FIELD_COUNT; f++) {
            e->state_of[t * FIELD_COUNT + f] = e->nstate;
            e->nstate += tensor->per_layer ? m->nlayers : 1;
        }
    }
}

static uint32_t pp_coordinate(const Module *m, uint32_t rank)
{
    AxisSet pp = mesh_axis(m, "pp");

    return pp ? axes_index(&m->mesh, pp, rank) : 0;
}

static void ranks_new(Eval *e)
{
    const Module *m = e->m;
    uint32_t world = m->props & PROP_LAYOUT && m->mesh.world ? m->mesh.world
                                                             : 1;

    e->ranks = arena_array(e->arena, EvalRank, world);
    e->rank_index = arena_array(e->arena, uint32_t, world);
    for (uint32_t id = 0; id < world; id++) {
        uint32_t pp = world > 1 ? pp_coordinate(m, id) : 0;

        e->rank_index[id] = UINT32_MAX;
        if (pp && !(m->props & PROP_PIPELINED))
            continue;
        e->rank_index[id] = e->nranks;
        EvalRank *r = &e->ranks[e->nranks++];

        r->id = id;
        r->pp = pp;
        state_new(e, r);
    }
}

static Eval *eval_new(Arena *a, Module *m, const EvalOptions *options)
{
    Eval *e = arena_new_of(a, Eval);

    e->arena = a;
    e->m = m;
    e->opt = *options;
    e->vocabulary = 256;
    if (options->program && !(m->props & PROP_PIPELINED))
        e->microbatches = m->programs.v[options->program - 1].microbatches;
    slots_number(e);
    states_number(e);
    ranks_new(e);
    return e;
}

/* ---- frames and steps ---- */

EvalFrame eval_frame(const Eval *e, FuncId f)
{
    EvalFrame frame = {.func = f, .layer = -1, .mb = -1};
    size_t bytes = sizeof(EvalValue *) * (e->nslots[f.i] + 1);

    frame.scan.count = 1;
    frame.slot = calloc(1, bytes);
    if (!frame.slot)
        mc_oom(bytes);
    return frame;
}

EvalValue *step_value(EvalStep *s, uint32_t i)
{
    ValueId arg = node_arg(s->e->m, s->node, i);

    return s->frame->slot[s->e->slot_of[arg.i]];
}

const EvalArray *step_arg(EvalStep *s, uint32_t i)
{
    return &step_value(s, i)->a;
}

void step_bind(EvalStep *s, uint32_t i, EvalValue *v)
{
    EvalValue **slot = &s->frame->slot[s->e->slot_of[s->node->res.i + i]];

    value_drop(*slot);
    *slot = v;
}

EvalArray eval_shape(const Eval *e, TypeId t, LayoutId l)
{
    const Type *type = &e->m->types.v[t.i];
    EvalArray shape = array_of_type(type);

    if (l.i && e->m->props & PROP_LAYOUT)
        for (int d = 0; d < type->ndim; d++)
            shape.size[d] = layout_local(e->m, type, layout_of(e->m, l),
                                         type->dim[d]);
    return shape;
}

int64_t eval_start(const Eval *e, uint32_t rank, TypeId t, LayoutId l, char dim)
{
    if (!l.i || !(e->m->props & PROP_LAYOUT))
        return 0;
    return layout_start(e->m, &e->m->types.v[t.i], layout_of(e->m, l), dim,
                        rank);
}

int64_t step_start(const EvalStep *s, ValueId id, char dim)
{
    const Value *v = value_of(s->e->m, id);

    return eval_start(s->e, s->rank->id, v->type, v->layout, dim);
}

void *eval_scratch(int64_t n, size_t item)
{
    void *p = calloc((size_t)n + 1, item);

    if (!p)
        mc_oom((size_t)n * item);
    return p;
}

EvalArray *step_out(EvalStep *s, uint32_t i)
{
    const Value *v = value_of(s->e->m, node_res(s->node, i));
    EvalArray shape = eval_shape(s->e, v->type, v->layout);
    EvalValue *made = value_alloc(&shape);

    step_bind(s, i, made);
    return &made->a;
}

void step_block(EvalStep *s)
{
    s->outcome = STEP_BLOCKED;
}

static void report(Eval *e, const EvalRank *r, NodeId n, const char *code,
                   const char *what)
{
    Buf text = {0};

    if (!e->failed) {
        node_print(e->m, n, &text);
        diag_error(e->m->diag, node_of(e->m, n)->loc, code,
                   "rank %u: %s in `%s`", r->id, what, buf_str(&text));
    }
    e->failed = true;
    buf_free(&text);
}

void step_fault(EvalStep *s, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    report(s->e, s->rank, s->id, code, arena_vprintf(s->e->arena, fmt, ap));
    va_end(ap);
    s->outcome = STEP_FAULT;
}

void step_check(EvalStep *s)
{
    for (uint32_t i = 0; i < s->node->nres; i++) {
        ValueId id = node_res(s->node, i);
        const Value *v = value_of(s->e->m, id);
        const EvalValue *got = s->frame->slot[s->e->slot_of[id.i]];
        EvalArray want = eval_shape(s->e, v->type, v->layout);

        if (got && array_same_shape(&got->a, &want))
            continue;
        Buf text = {0};

        if (got)
            array_print(&got->a, &text);
        buf_puts(&text, got ? " instead of " : "nothing instead of ");
        array_print(&want, &text);
        step_fault(s, "MC0750", "result %u has local shape %s", i,
                   buf_str(&text));
        buf_free(&text);
        return;
    }
}

/* Whether every operand has been computed; verify makes sure of that. */
static bool operands_there(EvalStep *s)
{
    for (uint32_t i = 0; i < s->node->nargs; i++) {
        ValueId id = node_arg(s->e->m, s->node, i);

        if (!s->frame->slot[s->e->slot_of[id.i]]) {
            step_fault(s, "MC0750", "operand %u has no value yet", i);
            return false;
        }
    }
    return true;
}

static void node_step(Eval *e, EvalRank *r)
{
    EvalFrame *frame = &vec_last(&r->stack);
    const Func *func = func_of(e->m, frame->func);

    if (frame->pc == func->body.n) {
        scan_advance(e, r);
        return;
    }
    NodeId id = func->body.v[frame->pc];
    EvalStep s = {.e = e, .rank = r, .frame = frame, .id = id,
                  .node = node_of(e->m, id)};

    if (!operands_there(&s))
        return;
    eval_cell[s.node->op](&s);
    r->waiting = s.outcome == STEP_BLOCKED;
    if (s.outcome != STEP_DONE)
        return;
    step_check(&s);
    frame->pc++;
}

/* ---- turns ---- */

/* Runs one rank as far as it gets; whether it moved at all. */
static bool rank_run(Eval *e, EvalRank *r)
{
    bool moved = false;

    while (r->stack.n && !e->failed) {
        node_step(e, r);
        if (r->waiting)
            return moved;
        moved = true;
    }
    return moved;
}

static void deadlock_report(Eval *e)
{
    uint32_t shown = 0;

    for (uint32_t i = 0; i < e->nranks && shown < 8; i++) {
        EvalRank *r = &e->ranks[i];

        if (!r->stack.n)
            continue;
        const EvalFrame *frame = &vec_last(&r->stack);
        NodeId id = func_of(e->m, frame->func)->body.v[frame->pc];
        Buf text = {0};

        if (!shown++) {
            report(e, r, id, "MC0751", "deadlock: no rank can go on; waits");
            continue;
        }
        node_print(e->m, id, &text);
        diag_note(e->m->diag, node_of(e->m, id)->loc, "rank %u waits in `%s`",
                  r->id, buf_str(&text));
        buf_free(&text);
    }
}

static void ranks_run(Eval *e)
{
    bool moved = true, unfinished = true;

    while (moved && unfinished && !e->failed) {
        moved = unfinished = false;
        for (uint32_t i = 0; i < e->nranks && !e->failed; i++) {
            moved |= rank_run(e, &e->ranks[i]);
            unfinished |= e->ranks[i].stack.n > 0;
        }
    }
    if (unfinished && !e->failed)
        deadlock_report(e);
}

static void inboxes_check(Eval *e)
{
    for (uint32_t i = 0; i < e->nranks; i++) {
        const EvalRank *r = &e->ranks[i];

        if (!r->inbox.n || e->failed)
            continue;
        const EvalMessage *left = &r->inbox.v[0];

        diag_error(e->m->diag, (Loc){0}, "MC0753",
                   "rank %u never receives what rank %u sent it (tag %lld, "
                   "chunk %lld, microbatch %lld)", r->id, left->from,
                   (long long)left->tag, (long long)left->chunk,
                   (long long)left->mb);
        e->failed = true;
    }
}

/* ---- freeing ---- */

void eval_frame_drop(const Eval *e, EvalFrame *frame)
{
    const Func *f = func_of(e->m, frame->func);
    int64_t results = frame->scan.count * f->results.n;

    for (uint32_t i = 0; i < e->nslots[frame->func.i]; i++)
        value_drop(frame->slot[i]);
    for (int64_t i = 0; frame->result && i < results; i++)
        value_drop(frame->result[i]);
    free(frame->slot);
    free(frame->result);
}

static void rank_drop(const Eval *e, EvalRank *r)
{
    for (uint32_t i = 0; i < r->stack.n; i++)
        eval_frame_drop(e, &r->stack.v[i]);
    for (uint32_t i = 0; i < r->inbox.n; i++)
        value_drop(r->inbox.v[i].value);
    for (uint32_t i = 0; i < e->nstate; i++)
        value_drop(r->state[i]);
    value_drop(r->offer);
    value_drop(r->taken);
    vec_free(&r->stack);
    vec_free(&r->inbox);
    vec_free(&r->metrics);
}

static void eval_drop(Eval *e)
{
    for (uint32_t i = 0; i < e->nranks; i++)
        rank_drop(e, &e->ranks[i]);
}

/* ---- entry points ---- */

EvalResult *eval_run(Arena *a, Module *m, EvalKind kind, uint64_t seed)
{
    return eval_run_with(a, m, &(EvalOptions){.kind = kind, .seed = seed});
}

EvalResult *eval_run_with(Arena *a, Module *m, const EvalOptions *options)
{
    Eval *e = eval_new(a, m, options);
    EvalResult *result = NULL;

    for (uint32_t i = 0; i < e->nranks; i++) {
        EvalRank *r = &e->ranks[i];
        uint32_t first = options->program * module_npp(m);
        uint32_t entry = m->props & PROP_PIPELINED ? first + r->pp : 0;

        mc_assert(entry < m->entry.n);
        vec_push(&r->stack, eval_frame(e, m->entry.v[entry]));
        state_bind_inputs(e, r, &r->stack.v[0]);
    }
    ranks_run(e);
    inboxes_check(e);
    if (!e->failed)
        result = result_assemble(e);
    eval_drop(e);
    return result;
}

/* An entry frame keeps its results when it ends; eval_func copies them out. */
static void results_copy(Eval *e, FuncId f, const EvalFrame *frame,
                         EvalArray *out)
{
    const Func *func = func_of(e->m, f);

    for (uint32_t i = 0; i < func->results.n; i++) {
        const EvalArray *got =
            &frame->slot[e->slot_of[func->results.v[i].i]]->a;
        size_t n = (size_t)array_elems(got);

        out[i] = *got;
        out[i].at = arena_array(e->arena, EvalNum, n + 1);
        memcpy(out[i].at, got->at, sizeof(EvalNum) * n);
    }
}

bool eval_func(Arena *a, Module *m, FuncId f, const EvalOptions *options,
               uint32_t rank, const EvalArray *args, EvalArray *out_results)
{
    Eval *e = eval_new(a, m, options);
    EvalRank *r = &e->ranks[e->rank_index[rank]];
    EvalFrame frame = eval_frame(e, f);
    const Func *func = func_of(m, f);

    for (uint32_t i = 0; i < func->params.n; i++) {
        EvalValue *v = value_alloc(&args[i]);

        memcpy(v->a.at, args[i].at,
               sizeof(EvalNum) * (size_t)array_elems(&args[i]));
        frame.slot[e->slot_of[func->params.v[i].i]] = v;
    }
    vec_push(&r->stack, frame);
    while (!e->failed && !r->waiting &&
           !(r->stack.n == 1 && r->stack.v[0].pc == func->body.n))
        node_step(e, r);
    if (r->waiting && !e->failed)
        deadlock_report(e);
    if (!e->failed)
        results_copy(e, f, &r->stack.v[0], out_results);
    eval_drop(e);
    return !e->failed;
}
