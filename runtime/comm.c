/* comm.c - streams of communication, moved on by the host thread.
 *
 * Each stream is a ring of entries: operations, marks of events, and holds
 * (waits for an event of another stream).  An entry starts when all before it
 * have finished, or, with PLAN_JOIN, together with the one before it.  Marks
 * and holds take effect when they come to the front.  Nothing ever waits for a
 * stream but comm_wait on stream 0 and a full ring, so an order of operations
 * that is free of deadlock on real streams is free of it here.
 */
#include "runtime/comm.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

typedef enum { ENTRY_OP, ENTRY_MARK, ENTRY_HOLD } EntryKind;

typedef struct {
    EntryKind kind;
    bool join, started, done;
    uint32_t event;
    uint64_t ticket; /* which mark of the event */
    CommOp op;
} Entry;

/* Entries head .. tail-1 are unfinished; numbers run on, slot = number %
 * COMM_SLOTS. */
typedef struct {
    Entry *ring;
    uint64_t head, next, tail; /* next: the first one not yet started */
} Stream;

typedef struct {
    uint64_t marked, reached;
} Event;

struct Comm {
    const Plan *plan;
    const CommDriver *driver;
    void *self;
    Stream *streams;
    Event *events;
    double patience;
    uint64_t unfinished; /* entries in all rings */
    uint64_t progress;   /* grows with everything that happens */
};

static Entry *entry_at(const Stream *s, uint64_t number)
{
    return &s->ring[number % COMM_SLOTS];
}

static uint32_t slot_of(const Comm *c, const Stream *s, uint64_t number)
{
    return (uint32_t)(s - c->streams) * COMM_SLOTS +
           (uint32_t)(number % COMM_SLOTS);
}

/* ---- moving on ----------------------------------------------------------- */

/* Tests the started operations and drops those at the front that are done. */
static Status finish_entries(Comm *c, Stream *s)
{
    for (uint64_t i = s->head; i < s->next; i++) {
        Entry *e = entry_at(s, i);
        if (!e->done)
            STATUS_TRY(c->driver->test(c->self, slot_of(c, s, i), &e->done));
    }
    while (s->head < s->next && entry_at(s, s->head)->done) {
        s->head++;
        c->unfinished--;
        c->progress++;
    }
    return STATUS_NONE;
}

/* Whether the next entry's turn has come. */
static bool may_start(const Stream *s)
{
    if (s->next == s->tail)
        return false;
    return s->head == s->next || entry_at(s, s->next)->join;
}

static Status start_entry(Comm *c, Stream *s, bool *out_started)
{
    Entry *e = entry_at(s, s->next);
    Event *event = &c->events[e->event];

    *out_started = e->kind != ENTRY_HOLD || event->reached >= e->ticket;
    if (!*out_started)
        return STATUS_NONE;
    if (e->kind == ENTRY_OP)
        STATUS_TRY(c->driver->start(c->self, &e->op, slot_of(c, s, s->next)));
    if (e->kind == ENTRY_MARK)
        event->reached = MC_MAX(event->reached, e->ticket);
    e->done = e->kind != ENTRY_OP;
    s->next++;
    c->progress++;
    return STATUS_NONE;
}

static Status move_stream(Comm *c, Stream *s)
{
    bool moved = true;

    STATUS_TRY(finish_entries(c, s));
    while (moved && may_start(s)) {
        STATUS_TRY(start_entry(c, s, &moved));
        if (moved)
            STATUS_TRY(finish_entries(c, s));
    }
    return STATUS_NONE;
}

Status comm_poll(Comm *c)
{
    if (!c->unfinished)
        return STATUS_NONE;
    for (uint32_t i = 0; i < c->plan->streams.n; i++)
        if (c->streams[i].head < c->streams[i].tail)
            STATUS_TRY(move_stream(c, &c->streams[i]));
    return STATUS_NONE;
}

/* ---- waiting ------------------------------------------------------------- */

/* How long a wait has seen no progress. */
typedef struct {
    uint64_t progress;
    double since;
    unsigned polls;
} Patience;

static Status stuck(const Comm *c, double seconds)
{
    char text[256];

    for (uint32_t i = 0; i < c->plan->streams.n; i++) {
        const Stream *s = &c->streams[i];
        if (s->head == s->tail || entry_at(s, s->head)->kind != ENTRY_OP)
            continue;
        plan_instr_text(c->plan, entry_at(s, s->head)->op.instr, text,
                        sizeof text);
        return status_make(STATUS_RUN, "no answer for %.0f s in %s", seconds,
                           text);
    }
    return status_make(STATUS_RUN, "no progress for %.0f s", seconds);
}

/* Gives the processor away, the longer nothing happens the more willingly:
 * other ranks, or the peer itself, may need it. */
static void rest(unsigned polls)
{
    enum { EAGER = 200, YIELDING = 4000, SLEEP_NS = 20000 };

    if (polls > YIELDING)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    else if (polls > EAGER)
        sched_yield();
}

/* One round of a wait; fails when patience has run out. */
static Status wait_round(Comm *c, Patience *w)
{
    STATUS_TRY(comm_poll(c));
    if (w->progress != c->progress) {
        *w = (Patience){.progress = c->progress};
        return STATUS_NONE;
    }
    rest(++w->polls);
    if (w->polls % 1024 || c->patience <= 0)
        return STATUS_NONE;
    if (w->since == 0)
        w->since = mc_seconds();
    double waited = mc_seconds() - w->since;
    return waited > c->patience ? stuck(c, waited) : STATUS_NONE;
}

static Status drain_stream(Comm *c, const Stream *s)
{
    Patience w = {.progress = c->progress};

    while (s->head < s->tail)
        STATUS_TRY(wait_round(c, &w));
    return STATUS_NONE;
}

Status comm_drain(Comm *c)
{
    Patience w = {.progress = c->progress};

    while (c->unfinished)
        STATUS_TRY(wait_round(c, &w));
    return STATUS_NONE;
}

/* ---- appending ----------------------------------------------------------- */

static Status append(Comm *c, uint16_t stream, Entry entry)
{
    Stream *s = &c->streams[stream];
    Patience w = {.progress = c->progress};

    while (s->tail - s->head == COMM_SLOTS)
        STATUS_TRY(wait_round(c, &w));
    *entry_at(s, s->tail++) = entry;
    c->unfinished++;
    return move_stream(c, s);
}

Status comm_append(Comm *c, const CommOp *op)
{
    const PlanInstr *in = &c->plan->instrs.v[op->instr];
    Entry e = {
        .kind = ENTRY_OP, .op = *op, .join = (in->flags & PLAN_JOIN) != 0};

    STATUS_TRY(append(c, in->stream, e));
    return in->stream == 0 ? drain_stream(c, &c->streams[0]) : STATUS_NONE;
}

Status comm_mark(Comm *c, uint16_t stream, uint32_t event)
{
    Event *e = &c->events[event];
    Entry entry = {.kind = ENTRY_MARK, .event = event, .ticket = ++e->marked};

    if (c->streams[stream].head < c->streams[stream].tail)
        return append(c, stream, entry);
    e->reached = e->marked;
    return STATUS_NONE;
}

Status comm_wait(Comm *c, uint16_t stream, uint32_t event)
{
    const Event *e = &c->events[event];
    Entry entry = {.kind = ENTRY_HOLD, .event = event, .ticket = e->marked};
    Patience w = {.progress = c->progress};

    if (e->reached >= e->marked)
        return STATUS_NONE;
    if (stream != 0)
        return append(c, stream, entry);
    while (e->reached < entry.ticket)
        STATUS_TRY(wait_round(c, &w));
    return STATUS_NONE;
}

/* ---- making -------------------------------------------------------------- */

static Status make_streams(Comm *c)
{
    Entry *rings =
        calloc((size_t)c->plan->streams.n * COMM_SLOTS, sizeof *rings);

    c->streams = calloc(c->plan->streams.n, sizeof *c->streams);
    c->events = calloc((size_t)c->plan->job.v->events + 1, sizeof *c->events);
    if (!rings || !c->streams || !c->events) {
        free(rings);
        return status_make(STATUS_SYSTEM, "no memory for streams");
    }
    for (uint32_t i = 0; i < c->plan->streams.n; i++)
        c->streams[i].ring = rings + (size_t)i * COMM_SLOTS;
    return STATUS_NONE;
}

Status comm_new(const Plan *p, uint32_t rank, const CommDriver *driver,
                double patience, Comm **out)
{
    Comm *c = calloc(1, sizeof *c);
    Status s;

    if (!c)
        return status_make(STATUS_SYSTEM, "no memory for streams");
    c->plan = p;
    c->driver = driver;
    c->patience = patience;
    s = make_streams(c);
    if (!s)
        s = driver->open(p, rank, &c->self);
    if (s)
        comm_free(c);
    else
        *out = c;
    return s;
}

void comm_free(Comm *c)
{
    if (!c)
        return;
    if (c->self)
        c->driver->close(c->self);
    if (c->streams)
        free(c->streams[0].ring);
    free(c->streams);
    free(c->events);
    free(c);
}
