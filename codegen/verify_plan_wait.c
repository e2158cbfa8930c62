/* verify_plan_wait.c - plays a step of all classes until it ends or sticks.
 *
 * Each class has a host thread and streams, as in the executor: the host
 * issues in order, computes itself, and stands still at a WAIT of stream 0 or
 * while stream 0 communicates; another stream starts an entry when all before
 * it have ended.  Nothing is buffered: a message ends when both ends have
 * started, a collective when all members have.  That is the strictest of all
 * machines, and since starting something never takes a possibility away from
 * somebody else, the order of play does not matter: if this game ends, every
 * run ends.
 *
 * If it sticks, each standing operation waits for one that another class has
 * not started, because it stands at an operation itself; following that from
 * anywhere leads into the circle.
 */
#include "codegen/verify_plan_priv.h"

typedef struct {
    Vec(uint32_t) queue; /* rows of the trace */
    uint32_t head, next; /* first unfinished, first not started */
} Stream;

typedef struct {
    uint32_t marked, reached;
    uint32_t stream; /* of the latest mark */
} Event;

typedef struct {
    Trace *trace;
    uint32_t pc;
    Stream *streams;
    uint32_t nstreams;
    Event *events;
} Player;

typedef struct {
    Verify *v;
    Player *players;
    bool moved;
} Game;

/* ---- streams ------------------------------------------------------------ */

static Step *step_of(const Player *p, uint32_t stream, uint32_t at)
{
    return &p->trace->v[p->streams[stream].queue.v[at]];
}

static bool idle(const Player *p, uint32_t stream)
{
    return p->streams[stream].head == p->streams[stream].queue.n;
}

static Step *partner(const Game *g, const Step *step, uint32_t side)
{
    const Line *line = &g->v->lines.v[step->line];
    uint32_t c = line->classes[side];
    return &g->players[c].trace->v[line->steps[side].v[step->nth]];
}

/* The first class that has not started its part, or UINT32_MAX. */
static uint32_t missing_side(const Game *g, const Step *step)
{
    const Line *line = &g->v->lines.v[step->line];
    for (uint32_t side = 0; side < line->nclasses; side++)
        if (!partner(g, step, side)->started)
            return side;
    return UINT32_MAX;
}

static bool ended(const Game *g, const Step *step)
{
    if (step->op == PLAN_EVENT || step->op == PLAN_WAIT)
        return true;
    return missing_side(g, step) == UINT32_MAX;
}

/* Starts the next entry of a stream if its turn has come. */
static bool start_next(Game *g, Player *p, uint32_t stream)
{
    Stream *s = &p->streams[stream];
    if (s->next == s->queue.n)
        return false;
    Step *step = step_of(p, stream, s->next);
    if (s->head != s->next && !step->join)
        return false;
    Event *event = &p->events[step->line];
    if (step->op == PLAN_WAIT && event->reached < step->nth)
        return false;
    if (step->op == PLAN_EVENT)
        event->reached = MC_MAX(event->reached, step->nth);
    step->started = true;
    s->next++;
    g->moved = true;
    return true;
}

static void move_stream(Game *g, Player *p, uint32_t stream)
{
    Stream *s = &p->streams[stream];
    do {
        while (s->head < s->next && ended(g, step_of(p, stream, s->head))) {
            s->head++;
            g->moved = true;
        }
    } while (start_next(g, p, stream));
}

/* ---- the host ----------------------------------------------------------- */

static bool all_idle(const Player *p)
{
    for (uint32_t i = 0; i < p->nstreams; i++)
        if (!idle(p, i))
            return false;
    return true;
}

/* Of a mark or wait, `line` is the event and `nth` which mark of it. */
static void number_event(const Game *g, const Player *p, Step *step)
{
    const Plan *plan = g->v->classes[p - g->players].plan;
    step->line = plan->instrs.v[step->instr].index;
    step->nth = p->events[step->line].marked;
}

/* Issues one step; false if the host has to stand still before it. */
static bool issue(Game *g, Player *p)
{
    Step *step = &p->trace->v[p->pc];
    bool queued = true;
    if (!idle(p, 0) || (step->op == PLAN_HOST && !all_idle(p)))
        return false;
    if (step->op == PLAN_EVENT || step->op == PLAN_WAIT)
        number_event(g, p, step);
    if (step->op == PLAN_EVENT) {
        Event *event = &p->events[step->line];
        *event = (Event){++step->nth, event->reached, step->stream};
        queued = !idle(p, step->stream);
        if (!queued)
            event->reached = step->nth;
    }
    if (step->op == PLAN_WAIT) {
        queued = p->events[step->line].reached < step->nth;
        if (queued && step->stream == 0)
            return false;
    }
    if (queued && step->op != PLAN_HOST)
        vec_push(&p->streams[step->stream].queue, p->pc);
    p->pc++;
    g->moved = true;
    return true;
}

static void move_player(Game *g, Player *p)
{
    do {
        for (uint32_t i = 0; i < p->nstreams; i++)
            if (!idle(p, i))
                move_stream(g, p, i);
    } while (p->pc < p->trace->n && issue(g, p));
}

/* ---- circles ------------------------------------------------------------ */

/* A started operation that has not ended. */
typedef struct {
    uint32_t class_index, row;
} Standing;

/* What the head of a stream waits for, through events of other streams. */
static uint32_t standing_row(const Player *p, uint32_t stream)
{
    const Step *step = step_of(p, stream, p->streams[stream].head);
    while (step->op == PLAN_WAIT) {
        stream = p->events[step->line].stream;
        step = step_of(p, stream, p->streams[stream].head);
    }
    return (uint32_t)(step - p->trace->v);
}

/* What keeps a class from starting trace row `row`. */
static uint32_t obstacle(const Player *p, uint32_t row)
{
    const Step *step = &p->trace->v[row];
    if (row < p->pc)
        return standing_row(p, step->stream);
    if (p->pc < p->trace->n && p->trace->v[p->pc].op == PLAN_WAIT && idle(p, 0))
        return standing_row(p, p->events[p->trace->v[p->pc].line].stream);
    for (uint32_t i = 0; i < p->nstreams; i++)
        if (!idle(p, i))
            return standing_row(p, i);
    mc_bug(__FILE__, __LINE__, "a class stands for no reason");
}

static Standing next_standing(const Game *g, Standing at)
{
    const Step *step = &g->players[at.class_index].trace->v[at.row];
    const Line *line = &g->v->lines.v[step->line];
    uint32_t side = missing_side(g, step);
    uint32_t c = line->classes[side];
    uint32_t row = line->steps[side].v[step->nth];
    return (Standing){c, obstacle(&g->players[c], row)};
}

static Standing first_standing(const Game *g)
{
    for (uint32_t c = 0; c < g->v->n; c++)
        for (uint32_t i = 0; i < g->players[c].nstreams; i++)
            if (!idle(&g->players[c], i))
                return (Standing){c, standing_row(&g->players[c], i)};
    mc_bug(__FILE__, __LINE__, "nobody stands");
}

static bool same_standing(Standing x, Standing y)
{
    return x.class_index == y.class_index && x.row == y.row;
}

/* Two walkers, one twice as fast, meet inside the circle. */
static void report_circle(const Game *g)
{
    Standing slow = first_standing(g), fast = slow;
    do {
        slow = next_standing(g, slow);
        fast = next_standing(g, next_standing(g, fast));
    } while (!same_standing(slow, fast));
    diag_error(g->v->diag, (Loc){0}, "MC0705",
               "ranks wait for each other in a circle");
    do {
        verify_note(g->v, slow.class_index,
                    &g->players[slow.class_index].trace->v[slow.row]);
        slow = next_standing(g, slow);
    } while (!same_standing(slow, fast));
}

/* ---- the game ----------------------------------------------------------- */

static void game_new(Game *g)
{
    Arena *a = g->v->arena;
    g->players = arena_array(a, Player, g->v->n);
    for (uint32_t c = 0; c < g->v->n; c++) {
        const Plan *p = g->v->classes[c].plan;
        g->players[c] = (Player){
            .trace = &g->v->traces[c],
            .streams = arena_array(a, Stream, p->streams.n),
            .nstreams = p->streams.n,
            .events = arena_array(a, Event, p->job.v->events),
        };
    }
}

static void game_free(Game *g)
{
    for (uint32_t c = 0; c < g->v->n; c++)
        for (uint32_t i = 0; i < g->players[c].nstreams; i++)
            vec_free(&g->players[c].streams[i].queue);
}

static bool game_over(const Game *g)
{
    for (uint32_t c = 0; c < g->v->n; c++)
        if (g->players[c].pc < g->players[c].trace->n ||
            !all_idle(&g->players[c]))
            return false;
    return true;
}

bool verify_waits(Verify *v)
{
    Game g = {.v = v, .moved = true};
    game_new(&g);
    while (g.moved) {
        g.moved = false;
        for (uint32_t c = 0; c < v->n; c++)
            move_player(&g, &g.players[c]);
    }
    bool over = game_over(&g);
    if (!over)
        report_circle(&g);
    game_free(&g);
    return over;
}
