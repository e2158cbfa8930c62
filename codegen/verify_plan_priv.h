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

typedef struct {
    const Plan *p;
    uint32_t main;      /* the segment to start in */
    int64_t *constants; /* by operand: offset and rank expression */
    WalkFrame frames[PLAN_MAX_DEPTH];
    WalkFrame *top;
    uint32_t number; /* of the current instruction, from 1 */
    uint32_t runs;
} Walk;

/* Walks what `rank` executes of a program.  Lives in `a`. */
Walk verify_walk_new(Arena *a, const Plan *p, uint32_t program, uint32_t rank);
void verify_walk_restart(Walk *w);
/* The next instruction that is not a CALL; NULL at the end of the step. */
const PlanInstr *verify_walk_next(Walk *w);

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
/* Makes the range that begins at `first` one cell without readers. */
void verify_map_write(Map *m, MapAt first, uint32_t tag, uint32_t writer,
                      uint32_t stream);

/* ---- verify_plan_bytes.c: one rank, alone -------------------------------- */

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
