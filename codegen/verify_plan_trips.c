/* verify_plan_trips.c - what holds however many iterations of a call run.
 *
 * When an iteration of a call with trips is over, the state of the walk becomes
 * one that is true whether it ran or not, so what is proved from there on is
 * proved for both:
 *
 *   before      what streams know and have issued is what they knew and had
 *               issued before: nothing relies on a wait that may not happen
 *   events      what was marked inside counts as never marked
 *   accesses    count as those of the compute stream, at this point: all
 *               streams have ended what they did inside, and it knows
 *   contents    bytes that came to hold another buffer hold none now; what is
 *               still readable was so before, and was written over as itself
 *
 * Bytes written inside were settled before: whatever touched them had ended, as
 * the compute stream knew at the call.
 *
 * A second iteration begins where others do: it finds the same facts about the
 * same bytes as a third would, since the first has changed what it will change.
 * So two are walked, and the proof holds for every number of iterations of
 * every such call.  What moves with the iteration is only read, and all of it
 * was written before the call.
 *
 * Ranks that communicate inside run equally many iterations: their number was
 * made by an all-reduce over a group that contains theirs.
 */
#include "codegen/verify_plan_priv.h"

enum { NO_BUFFER = 2 }; /* a tag that no operand has */

/* ---- the state before an iteration --------------------------------------- */

static void remember(Bytes *b)
{
    Trips *t = &b->trips;
    size_t n = b->streams;

    t->start = b->walk.number;
    memcpy(t->known, b->known, sizeof *t->known * n * n);
    memcpy(t->last, b->last, sizeof *t->last * n);
    memcpy(t->before, b->before, sizeof *t->before * n);
    memcpy(t->joinable, b->joinable, sizeof *t->joinable * n);
    t->touched.n = t->events.n = 0;
}

/* The compute stream has done all of the iteration, or nothing. */
static void restore(Bytes *b)
{
    const Trips *t = &b->trips;
    size_t n = b->streams;

    memcpy(b->known, t->known, sizeof *t->known * n * n);
    memcpy(b->last, t->last, sizeof *t->last * n);
    memcpy(b->before, t->before, sizeof *t->before * n);
    memcpy(b->joinable, t->joinable, sizeof *t->joinable * n);
    b->last[0] = b->walk.number;
    b->joinable[0] = false;
    for (uint32_t i = 0; i < t->events.n; i++)
        b->marked[t->events.v[i]] = false;
}

/* Up to where the compute stream knew a stream to have ended. */
static uint32_t settled(const Trips *t, uint32_t stream)
{
    return stream == 0 ? t->last[0] : t->known[stream];
}

void verify_trips_new(Bytes *b)
{
    size_t n = b->streams;

    b->trips.known = arena_array(b->arena, uint32_t, n * n);
    b->trips.last = arena_array(b->arena, uint32_t, n);
    b->trips.before = arena_array(b->arena, uint32_t, n);
    b->trips.joinable = arena_array(b->arena, bool, n);
}

void verify_trips_free(Bytes *b)
{
    vec_free(&b->trips.touched);
    vec_free(&b->trips.events);
}

/* ---- what may be inside -------------------------------------------------- */

static bool fail(const Bytes *b, const char *what, uint32_t other)
{
    uint32_t rank = b->rank, program = b->v->program;

    diag_error(b->v->diag, (Loc){0}, "MC0711", "%s", what);
    diag_note(b->v->diag, (Loc){0}, "%s",
              verify_walk_text(b->arena, b->p, program, rank,
                               b->walk.number));
    if (other)
        diag_note(b->v->diag, (Loc){0}, "%s",
                  verify_walk_text(b->arena, b->p, program, rank, other));
    return false;
}

/* One operand inside, an address from a register that moves by `stride`: where
 * it gets to in all iterations. */
static bool moving_operand(Bytes *b, const PlanInstr *call, uint32_t argument,
                           uint32_t operand)
{
    const PlanOperand *o = &b->p->operands.v[operand];
    int64_t way = b->p->operands.v[argument].stride * (call->aux - 1);
    int64_t start = verify_walk_value(&b->walk, argument) +
                    b->walk.constants[operand];

    if ((o->access & PLAN_WRITE) || way < 0)
        return fail(b, "what moves with the iteration is not only read", 0);
    return verify_bytes_read(
        b, call,
        (Extent){(uint64_t)start, (uint64_t)(start + way) + o->bytes,
                 verify_walk_tag(&b->walk, argument), PLAN_READ});
}

/* All that an argument that moves leads to. */
static bool moving_argument(Bytes *b, const PlanInstr *call, uint32_t i)
{
    const PlanRange body = b->p->segments.v[call->index].instrs;
    uint32_t argument = call->operands.first + plan_call_skips(call) + i;

    for (uint32_t k = body.first; k < body.first + body.n; k++) {
        const PlanInstr *in = &b->p->instrs.v[k];

        for (uint32_t o = in->operands.first;
             o < in->operands.first + in->operands.n; o++) {
            if (b->p->operands.v[o].base != i + 1)
                continue;
            if (in->op == PLAN_CALL)
                return fail(b, "what moves with the iteration is not only read",
                            0);
            if (!moving_operand(b, call, argument, o))
                return false;
        }
    }
    return true;
}

static bool moving_arguments(Bytes *b, const PlanInstr *call)
{
    uint32_t skip = plan_call_skips(call);

    for (uint32_t i = 0; i < call->operands.n - skip; i++) {
        const PlanOperand *o =
            &b->p->operands.v[call->operands.first + skip + i];

        if (o->kind == PLAN_ADDRESS && o->stride &&
            !moving_argument(b, call, i))
            return false;
    }
    return true;
}

bool verify_trips_begin(Bytes *b, const PlanInstr *call, uint32_t decided)
{
    if (b->trips.open)
        return fail(b, "a call with trips within another", 0);
    if (!moving_arguments(b, call))
        return false;
    b->trips.open = true;
    b->trips.decided = decided;
    b->trips.trip = 0;
    remember(b);
    return true;
}

/* Whether all ranks of group `inner` are in one group `outer`. */
static bool contains(const Plan *p, uint32_t outer, uint32_t inner)
{
    PlanRange all = p->groups.v[outer].atoms, some = p->groups.v[inner].atoms;

    if (p->groups.v[outer].picks.n || p->groups.v[inner].picks.n)
        return false;
    for (uint32_t i = 0; i < some.n; i++) {
        uint32_t k = 0;

        while (k < all.n &&
               p->lists.v[all.first + k] != p->lists.v[some.first + i])
            k++;
        if (k == all.n)
            return false;
    }
    return true;
}

static const Sum *sum_find(const Bytes *b, uint32_t number)
{
    for (uint32_t i = b->sums.n; number && i-- > 0;)
        if (b->sums.v[i].number == number)
            return &b->sums.v[i];
    return NULL;
}

bool verify_trips_allow(const Bytes *b, const PlanInstr *in)
{
    const Sum *sum;

    if (!b->trips.open)
        return true;
    if (in->op == PLAN_SEND || in->op == PLAN_RECV || in->op == PLAN_HOST)
        return fail(b, "nobody else knows whether this runs", 0);
    if (in->op != PLAN_COLLECTIVE)
        return true;
    sum = sum_find(b, b->trips.decided);
    if (sum &&
        contains(b->p, sum->group, b->p->collectives.v[in->index].group))
        return true;
    return fail(b, "the ranks of a group may not agree on whether this runs",
                b->trips.decided);
}

/* ---- what happens inside ------------------------------------------------- */

void verify_trips_mark(Bytes *b, const PlanInstr *in)
{
    if (b->trips.open)
        vec_push(&b->trips.events, in->index);
}

/* The first read by a stream hides an earlier one, which still counts if the
 * iteration does not run. */
void verify_trips_read(Bytes *b, const PlanInstr *in, const MapAt *at)
{
    const MapCell *c = at->cell;

    if (b->trips.open && c->read[in->stream] <= b->trips.start)
        vec_push(&b->trips.touched,
                 ((Touch){.start = c->start,
                          .end = verify_map_end(b->map, at),
                          .stream = in->stream,
                          .before = c->read[in->stream]}));
}

/* A reader from before the iteration that may still run, or 0. */
static uint32_t unsettled_reader(const Bytes *b, const MapCell *c)
{
    const Trips *t = &b->trips;

    for (uint32_t i = 0; i < b->streams; i++)
        if (c->read[i] <= t->start && c->read[i] > settled(t, i))
            return c->read[i];
    return 0;
}

bool verify_trips_write(Bytes *b, Extent x)
{
    const Trips *t = &b->trips;
    MapAt at = verify_map_first(b->map, x.start, x.end);
    bool fresh = false;

    for (; t->open && at.cell; verify_map_step(b->map, &at)) {
        const MapCell *c = at.cell;
        bool writes = c->writer != MAP_NOBODY && c->writer <= t->start &&
                      c->writer > settled(t, c->stream);
        uint32_t other = writes ? c->writer : unsettled_reader(b, c);

        if (other)
            return verify_bytes_fail(
                b, "MC0706", "written where it may not run, but in use before",
                x.start, x.end, other);
        fresh |= c->writer == MAP_NOBODY || c->tag != x.tag;
    }
    if (t->open && x.start < x.end)
        vec_push(&b->trips.touched, ((Touch){.start = x.start,
                                             .end = x.end,
                                             .written = true,
                                             .fresh = fresh}));
    return true;
}

/* ---- what is left of it -------------------------------------------------- */

static bool all_ended(const Bytes *b)
{
    for (uint32_t i = 1; i < b->streams; i++)
        if (b->last[i] > b->trips.start && b->last[i] > b->known[i])
            return fail(b, "goes on when its iteration is over", b->last[i]);
    return true;
}

/* Bytes that were only read are as before, but that the compute stream has read
 * them; false if a reader from before was in the way of a write. */
static bool unread(Bytes *b, const Touch *touch)
{
    const Trips *t = &b->trips;
    MapAt at = verify_map_first(b->map, touch->start, touch->end);

    for (; at.cell; verify_map_step(b->map, &at)) {
        if (at.cell->writer <= t->start) {
            at.cell->read[touch->stream] = touch->before;
            at.cell->read[0] = b->walk.number;
        } else if (touch->before > settled(t, touch->stream)) {
            return verify_bytes_fail(
                b, "MC0706", "written where it may not run, but in use before",
                touch->start, touch->end, touch->before);
        }
    }
    return true;
}

/* The compute stream has written them. */
static void unwrite(Bytes *b, const Touch *touch)
{
    MapAt at = verify_map_first(b->map, touch->start, touch->end);

    for (; at.cell; verify_map_step(b->map, &at)) {
        MapCell *c = at.cell;

        c->writer = b->walk.number;
        c->stream = c->agreed = 0;
        c->tag = touch->fresh ? NO_BUFFER : c->tag;
        memset(c->read, 0, sizeof *c->read * b->streams);
    }
}

/* Reads from the last to the first, so that of several by one stream the
 * earliest is restored; then writes, since bytes that once held another buffer
 * hold none whatever was written later. */
static bool forget(Bytes *b)
{
    const Trips *t = &b->trips;

    for (uint32_t i = t->touched.n; i-- > 0;)
        if (!t->touched.v[i].written && !unread(b, &t->touched.v[i]))
            return false;
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < t->touched.n; i++)
            if (t->touched.v[i].written && t->touched.v[i].fresh == (k == 1))
                unwrite(b, &t->touched.v[i]);
    return true;
}

bool verify_trips_end(Bytes *b, const PlanInstr *call)
{
    if (!all_ended(b) || !forget(b))
        return false;
    restore(b);
    b->trips.open = ++b->trips.trip < verify_walk_times(call);
    remember(b);
    return true;
}
