/* verify_plan_priv.h - shared by the verify_plan*.c files. */
#ifndef MEGAC_VERIFY_PLAN_PRIV_H
#define MEGAC_VERIFY_PLAN_PRIV_H

#include "codegen/verify_plan.h"

/* What a class does that other ranks or streams can notice, in the order in
 * which it is issued. */
typedef struct {
    uint8_t op; /* PLAN_COLLECTIVE, SEND, RECV, EVENT, WAIT, or HOST: a drain */
    bool join;
    uint16_t stream;
    uint32_t instr;  /* row of the plan */
    uint32_t number; /* of the executed instruction, from 1 */
    uint32_t line;   /* the queue of collectives or messages it belongs to */
    uint32_t nth;    /* its place in that queue */
    uint32_t decided; /* inside a call with trips: the number of the all-reduce
                         that says how many iterations run, */
    uint32_t trip;   /* and which of them this is */
    bool started;
} Step;
typedef Vec(Step) Trace;

/* One queue of collectives: a group on a stream, among certain classes; or of
 * messages from one class to another over a channel.  `steps` are rows of the
 * traces: of each class, or of the sender [0] and the receiver [1]. */
typedef struct {
    uint32_t group;   /* row of Verify.groups; UINT32_MAX: messages */
    const char *name; /* of the stream */
    uint32_t channel;
    uint32_t peer[2]; /* messages: rows of the two plans, or UINT32_MAX */
    uint32_t target;  /* messages: whom the sender's first rank sends to */
    uint32_t nclasses;
    const uint32_t *classes;
    Vec(uint32_t) * steps;
} Line;

/* A group as all plans that have it know it. */
typedef struct {
    const Plan *plan;
    uint32_t row;
    uint32_t *members; /* by first member: which classes, see Verify.sets */
} Group;

/* A set of classes, ascending. */
typedef struct {
    uint32_t n;
    uint32_t *classes;
} ClassSet;

typedef struct {
    Diag *diag;
    Arena *arena;
    const PlanClass *classes;
    uint32_t n, world;
    uint32_t program; /* that is being proved */
    uint32_t *class_of; /* by rank */
    Trace *traces;      /* by class */
    Vec(Group) groups;
    Vec(ClassSet) sets; /* row 0 is none */
    Vec(Line) lines;
    PlanVerifyStats stats;
} Verify;

/* ---- verify_plan_walk.c: a class's instructions, calls unrolled --------- */

typedef struct {
    uint32_t pc, end; /* next instruction, end of the segment */
    uint32_t call;    /* the CALL that leads here */
    uint32_t done;    /* finished iterations of it */
    uint32_t run;     /* number of this run of the segment, from 0 */
    int64_t *regs;    /* regs[0] is 0 */
    uint32_t *tags;   /* buffer tags of the registers */
} WalkFrame;

/* Where a walk is. */
typedef enum {
    WALK_INSTR,
    WALK_TRIPS,    /* at a CALL with trips, */
    WALK_TRIP_ENDS /* at the end of one of its iterations */
} WalkAt;

typedef struct {
    const Plan *p;
    uint32_t main;      /* the segment to start in */
    WalkAt at;
    int64_t *constants; /* by operand: offset and rank expression */
    WalkFrame frames[PLAN_MAX_DEPTH];
    WalkFrame *top;
    uint32_t number; /* of the current instruction, from 1 */
    uint32_t runs;
} Walk;

/* Walks what `rank` executes of a program.  Lives in `a`. */
Walk verify_walk_new(Arena *a, const Plan *p, uint32_t program, uint32_t rank);
void verify_walk_restart(Walk *w);
/* The next instruction that is not a CALL, or what Walk.at says of a CALL with
 * trips; NULL at the end of the step. */
const PlanInstr *verify_walk_next(Walk *w);

/* How many iterations of a CALL are walked. */
uint32_t verify_walk_times(const PlanInstr *call);

static inline int64_t verify_walk_value(const Walk *w, uint32_t operand)
{
    return w->constants[operand] + w->top->regs[w->p->operands.v[operand].base];
}

/* What tells buffers apart; 0 is unknown. */
uint32_t verify_walk_tag(const Walk *w, uint32_t operand);

/* "rank 3, main > step > layer.fwd 2 of 4: a.yaml:9:25: gemm, …" for the
 * executed instruction `number`. */
const char *verify_walk_text(Arena *a, const Plan *p, uint32_t program,
                             uint32_t rank, uint32_t number);

/* ---- verify_plan_map.c: what is known about each byte ------------------- */

#define MAP_NOBODY UINT32_MAX

/* The bytes from `start` to the start of the next cell. */
typedef struct {
    uint64_t start;
    uint32_t tag;    /* the buffer they were written as */
    uint32_t writer; /* the last instruction that wrote them, 0 before the
                        step, MAP_NOBODY if they never were */
    uint32_t stream; /* of the writer */
    uint32_t agreed; /* the all-reduce that made them, so that they are the same
                        on all its ranks; 0: none */
    uint32_t read[]; /* by stream: the last instruction that read them since */
} MapCell;

typedef struct Map Map;

/* [0, end) without a writer. */
Map *verify_map_new(Arena *a, uint64_t end, uint32_t streams);
void verify_map_free(Map *m);

/* The cells of [start, end), cut at both ends, one after the other:
 *
 *     at = verify_map_first(m, start, end);
 *     for (; at.cell; verify_map_step(m, &at))
 */
typedef struct {
    MapCell *cell;
    uint32_t chunk, index;
    uint64_t end;
} MapAt;
MapAt verify_map_first(Map *m, uint64_t start, uint64_t end);
void verify_map_step(Map *m, MapAt *at);
/* Where the cell at hand ends. */
uint64_t verify_map_end(const Map *m, const MapAt *at);
/* Makes the range that begins at `first` one cell without readers. */
void verify_map_write(Map *m, MapAt first, uint32_t tag, uint32_t writer,
                      uint32_t stream);

/* ---- verify_plan_bytes.c: one rank, alone -------------------------------- */

/* An all-reduce that was executed. */
typedef struct {
    uint32_t number, group;
} Sum;

/* What happened to bytes within one iteration that may not run. */
typedef struct {
    uint64_t start, end;
    bool written, fresh; /* fresh: as another buffer than they held before */
    uint32_t stream;     /* read: by this stream, */
    uint32_t before;     /* of which this one had read them before */
} Touch;

/* The call with trips that is walked, see verify_plan_trips.c. */
typedef struct {
    bool open;
    uint32_t decided; /* the all-reduce that made the number, or 0 */
    uint32_t trip;
    uint32_t start; /* number of the instruction before the iteration */
    uint32_t *known, *last, *before; /* as they were then */
    bool *joinable;
    Vec(Touch) touched;
    Vec(uint32_t) events; /* marked in the iteration */
} Trips;

typedef struct {
    Verify *v;
    const Plan *p;
    Arena *arena; /* of this walk */
    Walk walk;
    Map *map;
    Trace *trace; /* NULL: recorded before */
    uint32_t rank, streams;
    const uint64_t *spread; /* operand: how much further other ranks read */
    uint32_t *known;  /* [stream][stream] */
    uint32_t *last;   /* stream: its last instruction */
    uint32_t *before; /* stream: the last one before the joined group */
    bool *joinable;   /* stream: a joined operation has a previous one */
    uint32_t *marks;  /* [event][stream]: known at the latest mark */
    bool *marked;     /* event */
    Vec(Sum) sums;
    Trips trips;
} Bytes;

/* The bytes that an operand covers. */
typedef struct {
    uint64_t start, end;
    uint32_t tag;
    uint8_t access;
} Extent;

/* Reports what is wrong with bytes, and the other instruction, if one is
 * meant; returns false. */
bool verify_bytes_fail(const Bytes *b, const char *code, const char *what,
                       uint64_t start, uint64_t end, uint32_t other);
/* The compute stream reads bytes. */
bool verify_bytes_read(Bytes *b, const PlanInstr *in, Extent x);

/* By operand: the lowest of the addresses of all ranks, and how far the
 * highest lies above. */
typedef struct {
    int64_t *low;
    uint64_t *spread;
} Reach;

/* Walks what a rank does; records it unless `trace` is NULL.  With a reach, it
 * is what all ranks of the class do. */
bool verify_rank(Verify *v, const PlanClass *of, uint32_t rank,
                 const Reach *reach, Trace *trace);

/* ---- verify_plan_trips.c: what may not run ------------------------------- */
void verify_trips_new(Bytes *b);
void verify_trips_free(Bytes *b);
/* The instruction at hand is such a call; its number of iterations comes from
 * the all-reduce `decided`, or from none. */
bool verify_trips_begin(Bytes *b, const PlanInstr *call, uint32_t decided);
/* Whether the instruction may stand where it may not run. */
bool verify_trips_allow(const Bytes *b, const PlanInstr *in);
/* It marks an event, reads the cell at hand, is about to write bytes. */
void verify_trips_mark(Bytes *b, const PlanInstr *in);
void verify_trips_read(Bytes *b, const PlanInstr *in, const MapAt *at);
bool verify_trips_write(Bytes *b, Extent x);
/* The end of an iteration of `call`. */
bool verify_trips_end(Bytes *b, const PlanInstr *call);

/* ---- verify_plan_class.c: one class, alone ------------------------------- */
bool verify_bytes(Verify *v, uint32_t class_index);

/* ---- verify_plan_ranks.c: who talks to whom ------------------------------ */
/* Every rank has one class. */
bool verify_ranks(Verify *v);
/* Sorts the steps of all traces into lines. */
bool verify_lines(Verify *v);

/* ---- verify_plan_order.c: the same on all sides -------------------------- */
bool verify_order(Verify *v);

/* ---- verify_plan_wait.c: nobody waits for ever --------------------------- */
bool verify_waits(Verify *v);

/* ---- verify_plan.c --------------------------------------------------------
 */
/* Adds "rank 3, main > …" of a step to the latest message. */
void verify_note(Verify *v, uint32_t class_index, const Step *step);

#endif
