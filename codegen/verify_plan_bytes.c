/* verify_plan_bytes.c - one rank alone: is every byte what it should be?
 *
 * Walks the step in the order of issue, with a map of what happened to every
 * byte, and for every stream `known`: up to which instruction of each stream
 * everything is known to have ended before the next one of this stream begins.
 *
 *     stream 0   k1 -- EVENT 5 -- k2         known[1][0] is k1 after the
 *     stream 1         WAIT 5 -- all_reduce  WAIT, so k2 may not touch what
 *                                            the all_reduce writes
 *
 * Only streams and events order instructions here, as on a GPU; that a CPU's
 * host thread orders more does not count.  The last reader per stream and the
 * last writer of a byte are enough: whoever comes after them comes after the
 * earlier ones.
 *
 * Where the number of iterations is data, verify_plan_trips.c makes what
 * follows hold for any number.
 *
 * A walk is for one rank, or for all ranks of a class that differ in what they
 * read only: it then reads what any of them does.
 */
#include "codegen/verify_plan_priv.h"

static uint32_t *row(const Bytes *b, uint32_t *table, uint32_t i)
{
    return table + (size_t)i * b->streams;
}

/* ---- faults ------------------------------------------------------------ */

static const char *text_of(const Bytes *b, uint32_t number)
{
    return verify_walk_text(b->arena, b->p, b->v->program, b->rank, number);
}

static bool fail_bytes(const Bytes *b, const char *code, const char *what,
                       uint64_t start, uint64_t end)
{
    diag_error(b->v->diag, (Loc){0}, code, "bytes %llu to %llu: %s",
               (unsigned long long)start, (unsigned long long)end, what);
    diag_note(b->v->diag, (Loc){0}, "%s", text_of(b, b->walk.number));
    return false;
}

bool verify_bytes_fail(const Bytes *b, const char *code, const char *what,
                       uint64_t start, uint64_t end, uint32_t other)
{
    fail_bytes(b, code, what, start, end);
    if (other != MAP_NOBODY && other > 0)
        diag_note(b->v->diag, (Loc){0}, "%s", text_of(b, other));
    return false;
}

/* ---- order ------------------------------------------------------------- */

static void learn(const Bytes *b, uint32_t *known, const uint32_t *more)
{
    for (uint32_t i = 0; i < b->streams; i++)
        known[i] = MC_MAX(known[i], more[i]);
}

static void mark_event(Bytes *b, const PlanInstr *in)
{
    uint32_t *mark = row(b, b->marks, in->index);
    memcpy(mark, row(b, b->known, in->stream), sizeof *mark * b->streams);
    mark[in->stream] = b->last[in->stream];
    b->marked[in->index] = true;
    b->joinable[in->stream] = false;
    verify_trips_mark(b, in);
}

static bool wait_event(Bytes *b, const PlanInstr *in)
{
    if (!b->marked[in->index]) {
        diag_error(b->v->diag, (Loc){0}, "MC0710",
                   "waits for event %u, which nothing marked before",
                   in->index);
        diag_note(b->v->diag, (Loc){0}, "%s", text_of(b, b->walk.number));
        return false;
    }
    learn(b, row(b, b->known, in->stream), row(b, b->marks, in->index));
    b->joinable[in->stream] = false;
    return true;
}

/* Every stream knows that all streams have ended. */
static void drain(Bytes *b)
{
    for (uint32_t i = 0; i < b->streams; i++) {
        learn(b, row(b, b->known, i), b->last);
        b->joinable[i] = false;
    }
}

/* What has ended when the instruction begins. */
static const uint32_t *begin(Bytes *b, const PlanInstr *in)
{
    uint32_t s = in->stream, *known = row(b, b->known, s);
    bool message =
        in->op == PLAN_COLLECTIVE || in->op == PLAN_SEND || in->op == PLAN_RECV;
    if (!message || !(in->flags & PLAN_JOIN) || !b->joinable[s])
        b->before[s] = b->last[s];
    known[s] = b->before[s];
    b->last[s] = b->walk.number;
    b->joinable[s] = true;
    return known;
}

/* ---- bytes ------------------------------------------------------------- */

static Extent extent_of(const Bytes *b, uint32_t operand)
{
    const PlanOperand *o = &b->p->operands.v[operand];
    if (o->kind != PLAN_ADDRESS || o->bytes == 0)
        return (Extent){0};
    uint64_t start = (uint64_t)verify_walk_value(&b->walk, operand);
    return (Extent){start, start + o->bytes + b->spread[operand],
                    verify_walk_tag(&b->walk, operand), o->access};
}

static bool read_bytes(Bytes *b, const PlanInstr *in, Extent x,
                       const uint32_t *known)
{
    MapAt at = verify_map_first(b->map, x.start, x.end);
    for (; at.cell; verify_map_step(b->map, &at)) {
        MapCell *c = at.cell;
        if (c->writer == MAP_NOBODY)
            return fail_bytes(b, "MC0707", "read but never written", x.start,
                              x.end);
        if (c->writer > known[c->stream])
            return verify_bytes_fail(b, "MC0706",
                                     "read while they may be written", x.start,
                                     x.end, c->writer);
        if (x.tag && c->tag && x.tag != c->tag)
            return verify_bytes_fail(b, "MC0708",
                                     "read, but they hold another buffer",
                                     x.start, x.end, c->writer);
        verify_trips_read(b, in, &at);
        c->read[in->stream] = b->walk.number;
    }
    return true;
}

/* A reader that may still run, or 0. */
static uint32_t running_reader(const Bytes *b, const MapCell *c,
                               const uint32_t *known)
{
    for (uint32_t i = 0; i < b->streams; i++)
        if (c->read[i] > known[i] && c->read[i] != b->walk.number)
            return c->read[i];
    return 0;
}

static bool write_bytes(Bytes *b, const PlanInstr *in, Extent x,
                        const uint32_t *known, uint32_t agreed)
{
    MapAt first = verify_map_first(b->map, x.start, x.end), at = first;
    for (; at.cell; verify_map_step(b->map, &at)) {
        const MapCell *c = at.cell;
        uint32_t reader = running_reader(b, c, known);
        if (c->writer != MAP_NOBODY && c->writer > known[c->stream])
            return verify_bytes_fail(b, "MC0706", "written by two at a time",
                                     x.start, x.end, c->writer);
        if (reader)
            return verify_bytes_fail(b, "MC0706",
                                     "written while they may be read", x.start,
                                     x.end, reader);
    }
    if (!verify_trips_write(b, x))
        return false;
    verify_map_write(b->map, first, x.tag, b->walk.number, in->stream);
    if (first.cell)
        first.cell->agreed = agreed;
    return true;
}

/* The all-reduce that made all of these bytes, or 0. */
static uint32_t made_by(Bytes *b, Extent x)
{
    MapAt at = verify_map_first(b->map, x.start, x.end);
    uint32_t agreed = at.cell ? at.cell->agreed : 0;

    for (; at.cell; verify_map_step(b->map, &at))
        agreed = at.cell->agreed == agreed ? agreed : 0;
    return agreed;
}

/* What is the same on all ranks of a group: what an all-reduce makes, and
 * copies of it. */
static uint32_t agreed_by(Bytes *b, const PlanInstr *in, const Extent *x)
{
    if (in->op == PLAN_COPY)
        return made_by(b, x[1]);
    if (in->op != PLAN_COLLECTIVE ||
        b->p->collectives.v[in->index].kind != PLAN_ALL_REDUCE)
        return 0;
    vec_push(&b->sums, ((Sum){b->walk.number,
                              b->p->collectives.v[in->index].group}));
    return b->walk.number;
}

/* Kernels and all-reduces may work in place, on exactly the same bytes;
 * nothing else may write what it also reads or writes elsewhere. */
static bool apart(const Bytes *b, const PlanInstr *in, Extent x, Extent y)
{
    if (x.end <= y.start || y.end <= x.start)
        return true;
    if (x.start != y.start || x.end != y.end ||
        (x.access & y.access & PLAN_WRITE))
        return false;
    if (in->op != PLAN_COLLECTIVE)
        return in->op == PLAN_LAUNCH;
    uint32_t kind = b->p->collectives.v[in->index].kind;
    return kind == PLAN_ALL_REDUCE || kind == PLAN_BROADCAST;
}

static bool operands_apart(Bytes *b, const PlanInstr *in, const Extent *x)
{
    for (uint32_t i = 0; i < in->operands.n; i++) {
        if (!(x[i].access & PLAN_WRITE))
            continue;
        for (uint32_t j = 0; j < in->operands.n; j++) {
            bool once = x[j].access & PLAN_WRITE ? j > i : j != i;
            if (once && !apart(b, in, x[i], x[j]))
                return fail_bytes(
                    b, "MC0709", "operands of one instruction overlap",
                    MC_MAX(x[i].start, x[j].start), MC_MIN(x[i].end, x[j].end));
        }
    }
    return true;
}

static bool touch_operands(Bytes *b, const PlanInstr *in)
{
    const uint32_t *known = begin(b, in);
    uint32_t n = in->operands.n, agreed;
    Extent x[PLAN_MAX_ARGS];
    for (uint32_t i = 0; i < n; i++)
        x[i] = extent_of(b, in->operands.first + i);
    if (!operands_apart(b, in, x))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if ((x[i].access & PLAN_READ) && !read_bytes(b, in, x[i], known))
            return false;
    agreed = agreed_by(b, in, x);
    for (uint32_t i = 0; i < n; i++)
        if ((x[i].access & PLAN_WRITE) &&
            !write_bytes(b, in, x[i], known, agreed))
            return false;
    return true;
}

bool verify_bytes_read(Bytes *b, const PlanInstr *in, Extent x)
{
    return read_bytes(b, in, x, row(b, b->known, 0));
}

/* The compute stream reads how many iterations run. */
static bool read_trips(Bytes *b, const PlanInstr *call)
{
    Extent x = extent_of(b, call->operands.first);

    begin(b, call);
    return verify_bytes_read(b, call, x) &&
           verify_trips_begin(b, call, made_by(b, x));
}

/* ---- one walk ---------------------------------------------------------- */

static void record(Bytes *b, const PlanInstr *in)
{
    bool shown = in->op == PLAN_COLLECTIVE || in->op == PLAN_SEND ||
                 in->op == PLAN_RECV || in->op == PLAN_EVENT ||
                 in->op == PLAN_WAIT ||
                 (in->op == PLAN_HOST && in->index == PLAN_HOST_GRADS);
    if (!b->trace || !shown)
        return;
    vec_push(b->trace,
             ((Step){.op = in->op,
                     .join = in->op != PLAN_HOST && (in->flags & PLAN_JOIN),
                     .stream = in->stream,
                     .instr = (uint32_t)(in - b->p->instrs.v),
                     .number = b->walk.number,
                     .decided = b->trips.open ? b->trips.decided : 0,
                     .trip = b->trips.open ? b->trips.trip : 0}));
}

static bool execute(Bytes *b, const PlanInstr *in)
{
    if (b->walk.at == WALK_TRIPS)
        return read_trips(b, in);
    if (b->walk.at == WALK_TRIP_ENDS)
        return verify_trips_end(b, in);
    if (!verify_trips_allow(b, in))
        return false;
    if (in->op == PLAN_EVENT) {
        mark_event(b, in);
        return true;
    }
    if (in->op == PLAN_WAIT)
        return wait_event(b, in);
    if (in->op == PLAN_HOST && in->index == PLAN_HOST_GRADS)
        drain(b);
    return touch_operands(b, in);
}

static void bytes_exist(Bytes *b, const PlanField *f, uint64_t start,
                        int64_t elements)
{
    MapAt at = verify_map_first(b->map, start,
                                start + (uint64_t)elements *
                                            plan_dtype_bytes(f->dtype));
    if (at.cell)
        verify_map_write(b->map, at, plan_state_buffer(f->address), 0, 0);
}

static void field_exists(Bytes *b, const PlanTensor *t, const PlanField *f)
{
    PlanPart part;
    plan_field_part(b->p, t, f, b->rank, &part);
    uint64_t each = plan_dtype_bytes(f->dtype), runs = (uint64_t)part.runs;
    for (uint64_t slot = 0; slot < MC_MAX(t->layers.n, 1); slot++) {
        uint64_t start = f->address + slot * f->layer_stride;
        if (f->held)
            bytes_exist(b, f, start, f->held);
        for (uint64_t i = 0; !f->held && i < runs; i++)
            bytes_exist(b, f,
                        start + f->inside + i * (uint64_t)part.gap * each,
                        part.run);
    }
}

/* Parameters and optimizer state exist before the step; gradients do not. */
static void state_exists(Bytes *b)
{
    for (uint32_t i = 0; i < b->p->tensors.n; i++) {
        const PlanTensor *t = &b->p->tensors.v[i];
        for (uint32_t k = 0; k < t->fields.n; k++) {
            const PlanField *f = &b->p->fields.v[t->fields.first + k];
            if (f->kind != PLAN_FIELD_GRAD)
                field_exists(b, t, f);
        }
    }
}

static void bytes_new(Bytes *b, Arena *a)
{
    size_t streams = b->p->streams.n, events = b->p->job.v->events;
    b->arena = a;
    b->streams = b->p->streams.n;
    b->walk = verify_walk_new(a, b->p, b->v->program, b->rank);
    b->map = verify_map_new(a, plan_end_of_memory(b->p), b->streams);
    b->known = arena_array(a, uint32_t, streams * streams);
    b->last = arena_array(a, uint32_t, streams);
    b->before = arena_array(a, uint32_t, streams);
    b->joinable = arena_array(a, bool, streams);
    b->marks = arena_array(a, uint32_t, events * streams);
    b->marked = arena_array(a, bool, events);
    verify_trips_new(b);
}

bool verify_rank(Verify *v, const PlanClass *of, uint32_t rank,
                 const Reach *reach, Trace *trace)
{
    Bytes b = {.v = v, .p = of->plan, .rank = rank, .trace = trace};
    Arena *a = arena_new();
    const PlanInstr *in;
    bool ok = true;
    bytes_new(&b, a);
    if (reach->spread)
        memcpy(b.walk.constants, reach->low,
               sizeof *reach->low * of->plan->operands.n);
    b.spread = reach->spread ? reach->spread
                             : arena_array(a, uint64_t, of->plan->operands.n);
    state_exists(&b);
    verify_walk_restart(&b.walk);
    while (ok && (in = verify_walk_next(&b.walk))) {
        record(&b, in);
        ok = execute(&b, in);
    }
    if (trace)
        v->stats.instrs += b.walk.number;
    verify_map_free(b.map);
    verify_trips_free(&b);
    vec_free(&b.sums);
    arena_free(a);
    return ok;
}
