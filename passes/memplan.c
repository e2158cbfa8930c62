/* memplan.c - an address for every byte before anything runs.
 *
 * A function is planned after those it calls, because their frames are
 * temporaries of its own:
 *
 *     time    %x = …            |%x        |
 *             %y = call @f %x   |%x %y @f  |   @f's frame lives for one node
 *             … %y              |   %y     |
 *
 * Values that memplan_share.c gave no other home become rectangles of time
 * (positions in the body) and bytes, and packing.c places them.  The step
 * function's frame starts where the state of its stage ends, as do those of
 * the stage's other programs, one of which runs at a time.
 */
#include "passes/memplan_priv.h"

#include "passes/packing.h"

/* Per frame, a second; best fit is at the bound nearly always. */
enum { SEARCH_WORK = 200000000 };

int64_t memplan_value_bytes(const Module *m, ValueId v)
{
    const Value *value = &m->values.v[v.i];

    return layout_local_elems(m, type_of(m, value->type),
                              layout_of(m, value->layout)) *
           dtype_bytes(type_of(m, value->type)->dtype);
}

bool memplan_same_place(MemPlace a, MemPlace b)
{
    return a.base == b.base && a.field == b.field && a.index == b.index &&
           a.offset == b.offset && a.next == b.next;
}

/* ---- buffers of one frame ------------------------------------------------ */

typedef struct {
    bool scratch;
    uint32_t owner; /* the node whose scratch it is, or the root value */
} Owner;

typedef struct {
    Planner *p;
    bool host; /* of the frame in host memory */
    Vec(PackBuffer) bufs;
    Vec(Owner) owners;
    int64_t *change; /* by position + 1: bytes that begin or end to live */
} Frame;

static int64_t aligned(int64_t bytes)
{
    return (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Whole cache lines: what alignment costs is no waste of the packing.  What
 * takes `need.bytes` has `need.lower_bound` alive in it at one time. */
static void frame_add(Frame *fr, Owner owner, MemExtent need, int32_t first,
                      int32_t last)
{
    PackBuffer buf = {first, (int64_t)last + 1, aligned(need.bytes), MEM_ALIGN,
                      0};

    vec_push(&fr->bufs, buf);
    vec_push(&fr->owners, owner);
    fr->change[first + 1] += aligned(need.lower_bound);
    fr->change[last + 2] -= aligned(need.lower_bound);
}

static MemExtent extent_of(int64_t bytes)
{
    return (MemExtent){bytes, bytes};
}

/* What lives for one node only: its workspace or its callee's frame. */
static MemExtent scratch_of(const Planner *p, NodeId id, bool host)
{
    const Node *n = &p->m->nodes.v[id.i];
    const MemFrame *callee;

    if (n->op != OP_CALL)
        return extent_of(host ? 0 : p->rules->scratch(p->m, id,
                                                      p->rules->dialect));
    callee = &p->out->frame[call_scan(p->m, n).callee.i];
    return host ? callee->host : callee->device;
}

int64_t node_scratch(const Planner *p, NodeId id)
{
    return scratch_of(p, id, false).bytes;
}

static void collect_node(Frame *fr, NodeId id, uint32_t pos)
{
    Planner *p = fr->p;
    const Node *n = &p->m->nodes.v[id.i];
    MemExtent scratch = scratch_of(p, id, fr->host);

    if (scratch.bytes)
        frame_add(fr, (Owner){true, id.i}, scratch, p->begin[pos],
                  p->done[pos]);
    for (uint32_t i = 0; i < n->nres; i++) {
        ValueId v = node_res(n, i);
        if (value_root(p, v) == v.i && p->host[v.i] == fr->host &&
            p->out->place[v.i].base == MEM_NONE)
            frame_add(fr, (Owner){false, v.i},
                      extent_of(memplan_value_bytes(p->m, v)), p->first[v.i],
                      p->last[v.i]);
    }
}

static int64_t most_alive(const Frame *fr, const Func *func)
{
    int64_t live = 0, most = 0;

    for (uint32_t i = 0; i < func->body.n + 2; i++) {
        live += fr->change[i];
        most = MC_MAX(most, live);
    }
    return most;
}

static void frame_apply(Frame *fr)
{
    MemPlan *out = fr->p->out;

    for (uint32_t i = 0; i < fr->bufs.n; i++) {
        int64_t offset = fr->bufs.v[i].offset;
        uint32_t owner = fr->owners.v[i].owner;
        if (fr->owners.v[i].scratch)
            (fr->host ? out->host_scratch : out->scratch)[owner] = offset;
        else
            out->place[owner] =
                (MemPlace){.base = fr->host ? MEM_HOST : MEM_FRAME,
                           .offset = offset};
    }
}

/* Values that share a root take its place. */
static void frame_spread(Planner *p, const Func *func)
{
    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        const Node *n = &p->m->nodes.v[func->body.v[pos].i];
        for (uint32_t i = 0; i < n->nres; i++) {
            ValueId v = node_res(n, i);
            p->out->place[v.i] = *place_of(p, v);
        }
    }
}

static MemExtent frame_pack(Planner *p, const Func *func, bool host)
{
    PackOptions options = {.work = p->rules->work ? p->rules->work
                                                  : SEARCH_WORK};
    Frame fr = {.p = p, .host = host};
    PackResult packed;
    MemExtent extent;

    fr.change = arena_array(p->arena, int64_t, func->body.n + 3);
    for (uint32_t pos = 0; pos < func->body.n; pos++)
        collect_node(&fr, func->body.v[pos], pos);
    pack_solve(p->arena, fr.bufs.v, fr.bufs.n, &options, &packed);
    frame_apply(&fr);
    extent = (MemExtent){packed.height, most_alive(&fr, func)};
    vec_free(&fr.bufs);
    vec_free(&fr.owners);
    return extent;
}

static void frames_pack(Planner *p, FuncId f)
{
    const Func *func = &p->m->funcs.v[f.i];
    MemFrame *frame = &p->out->frame[f.i];

    share_plan(p, f);
    frame->device = frame_pack(p, func, false);
    frame->host = frame_pack(p, func, true);
    frame_spread(p, func);
}

static void func_plan(Planner *p, FuncId f)
{
    const Func *func = &p->m->funcs.v[f.i];

    if (p->planned[f.i] || func->kind == FUNC_ROW)
        return;
    p->planned[f.i] = true;
    for (uint32_t i = 0; i < func->body.n; i++) {
        const Node *n = &p->m->nodes.v[func->body.v[i].i];
        if (n->op == OP_CALL)
            func_plan(p, call_scan(p->m, n).callee);
    }
    frames_pack(p, f);
}

/* ---- carried results ----------------------------------------------------- */

static void carry_note(Planner *p, const Node *n)
{
    FuncId callee = call_scan(p->m, n).callee;
    int32_t **carry = &p->carry[callee.i];

    if (!*carry) {
        *carry = arena_array(p->arena, int32_t, n->nres);
        for (uint32_t r = 0; r < n->nres; r++)
            (*carry)[r] = -1;
    }
    for (uint32_t i = 0; i < n->nargs; i++)
        if (call_arg_mode(p->m, n, i) == MODE_CARRY)
            (*carry)[memplan_carry_result(p->m, n, i)] = (int32_t)i;
}

/* The same if it is so in all calls. */
static void carried_note(Planner *p, const Node *n)
{
    FuncId callee = call_scan(p->m, n).callee;
    int32_t **all = &p->out->carried[callee.i];
    int32_t *here = arena_array(p->arena, int32_t, n->nres);

    for (uint32_t r = 0; r < n->nres; r++)
        here[r] = -1;
    for (uint32_t i = 0; i < n->nargs; i++)
        if (call_arg_mode(p->m, n, i) == MODE_CARRY)
            here[memplan_carry_result(p->m, n, i)] = (int32_t)i;
    for (uint32_t r = 0; *all && r < n->nres; r++)
        if ((*all)[r] != here[r])
            (*all)[r] = -1;
    if (!*all)
        *all = here;
}

static void carries_find(Planner *p)
{
    p->out->carried = arena_array(p->arena, int32_t *, p->m->funcs.n);
    p->carry = arena_array(p->arena, int32_t *, p->m->funcs.n);
    for (uint32_t f = 1; f < p->m->funcs.n; f++) {
        const Func *func = &p->m->funcs.v[f];
        for (uint32_t i = 0; i < func->body.n; i++) {
            const Node *n = &p->m->nodes.v[func->body.v[i].i];
            if (n->op != OP_CALL)
                continue;
            carry_note(p, n);
            carried_note(p, n);
        }
    }
}

/* ---- the whole ----------------------------------------------------------- */

static Planner planner_new(Arena *a, const Module *m, const MemRules *rules)
{
    MemPlan *out = arena_new_of(a, MemPlan);
    Planner p = {
        .m = m, .arena = a, .rules = rules, .out = out, .fx = &out->effects};

    out->m = m;
    out->npp = module_npp(m);
    out->ntensors = m->tensors.n;
    out->place = arena_array(a, MemPlace, m->values.n);
    out->scratch = arena_array(a, int64_t, m->nodes.n);
    out->host_scratch = arena_array(a, int64_t, m->nodes.n);
    out->frame = arena_array(a, MemFrame, m->funcs.n);
    out->report = arena_array(a, MemReport, out->npp);
    out->frame_start = arena_array(a, int64_t, out->npp);
    out->host_frame_start = arena_array(a, int64_t, out->npp);
    p.parent = arena_array(a, uint32_t, m->values.n);
    p.first = arena_array(a, int32_t, m->values.n);
    p.last = arena_array(a, int32_t, m->values.n);
    p.def = arena_array(a, int32_t, m->values.n);
    p.planned = arena_array(a, bool, m->funcs.n);
    p.host = host_values(a, m);
    effects_compute(a, m, &out->effects);
    return p;
}

MemPlan *memplan_make(Arena *a, const Module *m, const MemRules *rules)
{
    Planner p = planner_new(a, m, rules);

    carries_find(&p);
    state_plan(&p);
    for (uint32_t i = 0; i < m->entry.n; i++) {
        func_plan(&p, m->entry.v[i]);
        report_make(&p, i);
    }
    p.out->buffer = arena_array(a, uint32_t, m->values.n);
    for (uint32_t v = 1; v < m->values.n; v++)
        p.out->buffer[v] = value_root(&p, (ValueId){v});
    return p.out;
}
