/* emit.c - one plan per pipeline stage.
 *
 *     for each stage                     PlanBuilder
 *       for each function it calls,        segment, registers
 *       callees first                        copies of returned parameters
 *         for each node                      what the op's cell emits
 *                                            copies of results not in place
 *       the step function last             the main segment
 *
 * Every rank of a stage runs the same plan; what differs between them is an
 * expression of the rank.
 */
#include "codegen/emit_priv.h"

void emit_fail(Emit *e, const char *fmt, ...)
{
    va_list ap;
    Buf node = {0};

    va_start(ap, fmt);
    node_print(e->m, e->node, &node);
    diag_error(e->m->diag, e->m->nodes.v[e->node.i].loc, "MC0530",
               "%s in `%s` of %s", arena_vprintf(e->arena, fmt, ap),
               buf_str(&node),
               sym_text(e->m->names, e->m->funcs.v[e->f.i].name));
    buf_free(&node);
    va_end(ap);
    e->failed = true;
}

Dialect emit_dialect(const Spec *spec)
{
    return spec->target.backend == BACKEND_CUDA ? DIALECT_CUDA : DIALECT_CPU;
}

PlanDtype emit_dtype(DType t)
{
    static const PlanDtype types[] = {
        [DT_NONE] = PLAN_DTYPES, [DT_F32] = PLAN_F32, [DT_BF16] = PLAN_BF16,
        [DT_I32] = PLAN_I32,     [DT_F16] = PLAN_F16, [DT_BOOL] = PLAN_U8};

    return types[t];
}

/* ---- instructions -------------------------------------------------------- */

static uint16_t stream_row(Emit *e, uint16_t stream)
{
    static const char *const names[STREAM_COUNT] = {
        "compute", "tp",       "cp",       "ep",       "dp",      "pp",
        "copy",    "send_fwd", "recv_fwd", "send_bwd", "recv_bwd"};
    PlanStreamKind kind =
        stream == STREAM_COPY ? PLAN_STREAM_COPY : PLAN_STREAM_COMM;

    if (stream == STREAM_COMPUTE)
        return 0;
    return (uint16_t)plan_add_stream(e->b, names[stream], kind);
}

/* The name of what a node makes or touches. */
static const char *node_subject(const Emit *e, const Node *n)
{
    TensorId t = attr_tensor(e->m, n->attrs, AK_TENSOR);

    if (n->nres)
        return sym_text(e->m->names, e->m->values.v[n->res.i].name);
    return t.i ? sym_text(e->m->names, e->m->tensors.v[t.i].name) : "";
}

static uint32_t node_place(Emit *e)
{
    const Node *n = &e->m->nodes.v[e->node.i];
    const char *file = "";
    uint32_t line = 0, col = 0;

    if (e->node.i == 0)
        return 0;
    diag_loc_parts(e->m->diag, n->loc, &file, &line, &col);
    return plan_add_place(e->b, file ? file : "", line, col,
                          op_info[n->op].name, node_subject(e, n));
}

void emit_instr(Emit *e, PlanInstr in, const PlanOperand *operands, uint32_t n)
{
    in.stream = stream_row(e, e->m->nodes.v[e->node.i].stream);
    in.place = node_place(e);
    plan_emit(e->b, in, operands, n);
}

void emit_copy(Emit *e, PlanOperand to, PlanOperand from)
{
    PlanOperand list[] = {to, from};

    emit_instr(e, (PlanInstr){.op = PLAN_COPY}, list, 2);
}

void emit_fill(Emit *e, PlanOperand to, uint32_t word)
{
    emit_instr(e, (PlanInstr){.op = PLAN_FILL, .aux = word}, &to, 1);
}

void emit_launch(Emit *e, const Kernel *k, const PlanOperand *operands,
                 uint32_t n)
{
    uint32_t row = plan_add_kernel_work(
        e->b, (PlanKernel){.phases = k->phases, .serial = k->serial,
                           .ptrs = k->ptrs, .imms = k->imms, .dtype = k->dtype, .work = k->work},
        k->symbol);

    emit_instr(e, (PlanInstr){.op = PLAN_LAUNCH, .index = row}, operands, n);
}

/* ---- functions ----------------------------------------------------------- */

static bool is_param(const Func *f, ValueId v)
{
    for (uint32_t i = 0; i < f->params.n; i++)
        if (f->params.v[i].i == v.i)
            return true;
    return false;
}

/* What is for the next layer has nothing to do in the last iteration. */
static bool is_left_out(const Emit *e, ValueId v)
{
    NodeId def = e->m->values.v[v.i].def;

    return e->last && def.i && effects_ahead(e->m, &e->m->nodes.v[def.i]);
}

/* Results that are not made where the caller wants them.  Returned parameters
 * are copied first thing, before a carry can overwrite them. */
static void results_copy(Emit *e, bool params)
{
    const Func *f = &e->m->funcs.v[e->f.i];

    for (uint32_t i = 0; i < f->results.n; i++) {
        ValueId v = f->results.v[i];
        MemPlace wanted = {.base = MEM_RESULT, .index = i};
        if (is_param(f, v) == params && !is_left_out(e, v) &&
            !memplan_same_place(e->mem->place[v.i], wanted))
            emit_copy(e, emit_result(e, i, PLAN_WRITE),
                      emit_value(e, v, PLAN_READ));
    }
}

/* The step's gradients are complete behind the last node that touches the
 * memory of one to change it. */
static uint32_t gradients_end(const Emit *e)
{
    const Func *f = &e->m->funcs.v[e->f.i];
    uint32_t end = 0;

    for (uint32_t i = 0; i < f->body.n; i++) {
        StateUses uses = e->mem->effects.node[f->body.v[i].i];
        for (uint32_t k = 0; k < uses.n; k++)
            if (uses.v[k].writes && (uses.v[k].field == FIELD_GRAD ||
                                     uses.v[k].field == FIELD_GSUM))
                end = i + 1;
    }
    return end;
}

static void body_emit(Emit *e)
{
    uint32_t complete = e->main ? gradients_end(e) : 0;

    for (uint32_t i = 0; i < e->m->funcs.v[e->f.i].body.n && !e->failed; i++) {
        e->node = e->m->funcs.v[e->f.i].body.v[i];
        e->pos = i;
        const Node *n = &e->m->nodes.v[e->node.i];
        if (!e->last || !effects_ahead(e->m, n))
            emit_cells[n->op](e, n);
        if (i + 1 == complete)
            emit_instr(e,
                       (PlanInstr){.op = PLAN_HOST, .index = PLAN_HOST_GRADS},
                       NULL, 0);
    }
    e->node = (NodeId){0};
}

bool emit_has_ending(const Emit *e, FuncId f)
{
    const FuncEffects *fx = &e->mem->effects.func[f.i];

    for (uint32_t i = 0; i < fx->uses.n; i++)
        if (fx->uses.v[i].next)
            return true;
    return fx->fetches;
}

static void func_emit(Emit *e, FuncId f, bool main, bool last);

static void callees_emit(Emit *e, FuncId f)
{
    for (uint32_t i = 0; i < e->m->funcs.v[f.i].body.n; i++) {
        const Node *n = &e->m->nodes.v[e->m->funcs.v[f.i].body.v[i].i];
        FuncId callee = call_scan(e->m, n).callee;
        if (n->op != OP_CALL)
            continue;
        func_emit(e, callee, false, false);
        if (emit_has_ending(e, callee))
            func_emit(e, callee, false, true);
    }
}

static void func_emit(Emit *e, FuncId f, bool main, bool last)
{
    uint32_t *segment = last ? &e->ending[f.i] : &e->segment[f.i];
    const char *name = sym_text(e->m->names, e->m->funcs.v[f.i].name);

    if (*segment)
        return;
    callees_emit(e, f);
    e->f = f;
    e->main = main;
    e->last = last;
    *segment = 1 + plan_segment_begin(
                       e->b, last ? arena_printf(e->arena, "%s.end", name)
                                  : name);
    if (!main)
        emit_registers(e, f);
    results_copy(e, true);
    body_emit(e);
    results_copy(e, false);
}

/* ---- stages -------------------------------------------------------------- */

static void atoms_emit(Emit *e)
{
    const Mesh *mesh = &e->m->mesh;

    e->atom = arena_array(e->arena, uint32_t, mesh->atoms.n);
    for (uint32_t i = 0; i < mesh->atoms.n; i++) {
        const Atom *a = &mesh->atoms.v[i];
        const char *name = sym_text(e->m->names, a->axis);
        if (strcmp(name, "embed") == 0)
            continue;
        if (a->part)
            name = arena_printf(e->arena, "%s.%u", name, a->part);
        e->atom[i] = plan_add_atom(e->b, name, a->size, a->stride);
        if (strcmp(name, "pp") == 0)
            plan_add_member(e->b, e->atom[i], e->pp);
    }
}

static uint32_t events_count(const Module *m)
{
    int64_t n = 0;

    for (uint32_t i = 1; i < m->nodes.n; i++)
        if (m->nodes.v[i].op == OP_EVENT)
            n = MC_MAX(n, attr_int(m, m->nodes.v[i].attrs, AK_EVENT, 0) + 1);
    return (uint32_t)n;
}

static void program_emit(Emit *e, uint32_t program)
{
    FuncId f = e->m->entry.v[program * e->mem->npp + e->pp];
    const SideProgram *of = program ? &e->m->programs.v[program - 1]
                                : &(SideProgram){e->m->microbatches, false};

    func_emit(e, f, true, false);
    plan_add_program(e->b, of->forward ? PLAN_EVALUATE : PLAN_TRAIN,
                     e->segment[f.i] - 1, of->microbatches);
}

/* Memories do not touch, so that an address tells which one it is in. */
enum { MEMORY_ALIGN = 1 << 16 };

static void memories_emit(Emit *e, const MemReport *r)
{
    e->frame_start = e->mem->frame_start[e->pp];
    e->host_start = (r->total / MEMORY_ALIGN + 1) * MEMORY_ALIGN;
    e->host_frame_start = e->host_start + e->mem->host_frame_start[e->pp];
    plan_add_memory(e->b, "arena", PLAN_MEMORY_DEVICE, 0, (uint64_t)r->total);
    if (r->host)
        plan_add_memory(e->b, "host", PLAN_MEMORY_HOST,
                        (uint64_t)e->host_start, (uint64_t)r->host);
}

static bool stage_emit(Emit *e, Buf *out)
{
    const MemReport *r = &e->mem->report[e->pp];

    e->b = plan_builder_new();
    e->segment = arena_array(e->arena, uint32_t, e->m->funcs.n);
    e->ending = arena_array(e->arena, uint32_t, e->m->funcs.n);
    memories_emit(e, r);
    for (uint32_t i = events_count(e->m); i > 0; i--)
        plan_add_event(e->b);
    atoms_emit(e);
    emit_job(e);
    emit_tensors(e);
    for (uint32_t k = 0; k < module_programs(e->m); k++)
        program_emit(e, k);
    if (!e->failed)
        plan_write(e->b, out);
    plan_builder_free(e->b);
    return !e->failed;
}

static void units_collect(Arena *a, KernelTable *t, EmitOutput *out)
{
    out->units = arena_array(a, CodeUnit, t->list.n);
    out->nunits = t->list.n;
    for (uint32_t i = 0; i < t->list.n; i++)
        out->units[i] = (CodeUnit){t->list.v[i].symbol, t->list.v[i].text};
    vec_free(&t->list);
}

bool emit_plans(Arena *a, const EmitInput *in, EmitOutput *out)
{
    KernelTable kernels = {0};
    Emit e = {.m = in->m,
              .mem = in->mem,
              .spec = in->spec,
              .arena = a,
              .dialect = emit_dialect(in->spec),
              .kernels = &kernels};

    *out = (EmitOutput){.n = in->mem->npp};
    out->plans = arena_array(a, Buf, out->n);
    for (e.pp = 0; e.pp < out->n && !e.failed; e.pp++)
        stage_emit(&e, &out->plans[e.pp]);
    units_collect(a, &kernels, out);
    if (e.failed)
        emit_free(out);
    return !e.failed;
}

void emit_free(EmitOutput *out)
{
    for (uint32_t i = 0; i < out->n; i++)
        buf_free(&out->plans[i]);
}
