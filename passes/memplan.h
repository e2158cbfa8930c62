/* memplan.h - an address for every byte before anything runs.
 *
 * The arena of a rank holds the state at its bottom and one frame above it:
 *
 *     0            address of @q.param        frame of the step function
 *     | params | grads | master, m, v | acc |  values … | callee's frame | …
 *
 * What is offloaded has a second arena in host memory, laid out likewise: the
 * state that rests there, and above it a second frame.
 *
 * Every function has a frame, packed once from the lifetimes of its values;
 * a call's frame is one more temporary of its caller.  Parameters and results
 * belong to the caller and come as addresses, so one compiled layer serves
 * every layer and microbatch.  What a place says is all there is to know:
 * whoever needs a value somewhere else than at its place copies it.
 */
#ifndef MEGAC_MEMPLAN_H
#define MEGAC_MEMPLAN_H

#include "ir/ir.h"
#include "passes/effects.h"

enum { MEM_ALIGN = 64 };

typedef enum {
    MEM_NONE,
    MEM_FRAME,  /* in the frame of its function */
    MEM_HOST,   /* in its frame in host memory */
    MEM_PARAM,  /* where the caller put parameter `index` */
    MEM_RESULT, /* where the caller wants result `index` */
    MEM_STATE   /* in tensor `index`, field `field` */
} MemBase;

typedef struct {
    MemBase base;
    Field field;
    uint32_t index;
    int64_t offset; /* bytes; MEM_FRAME and MEM_HOST only */
    int8_t next; /* MEM_STATE: of the layer so many further on */
    bool adds; /* MEM_STATE: made by adding to what is there, for an `accum` */
} MemPlace;

/* Layer slot j lies at address + j * layer_stride, from the start of its arena.
 * A tensor without layers has one slot; a tensor that the stage does not hold
 * has none. */
typedef struct {
    int64_t address, layer_stride, bytes; /* bytes of one slot */
    uint32_t slots;
    bool host; /* in the arena in host memory */
} MemState;

/* A frame, and the most bytes alive in it at one time, those in the frames of
 * its callees included: no frame is smaller. */
typedef struct {
    int64_t bytes, lower_bound;
} MemExtent;

typedef struct {
    MemExtent device, host;
} MemFrame;

/* The arena of one pipeline stage, by class; they add up to `total`. */
typedef struct {
    int64_t params, grads, optimizer, activations, workspace, comm, total;
    int64_t host; /* the arena in host memory, which is no part of the total */
    int64_t lower_bound; /* state and the most bytes alive at one time */
    int64_t host_lower_bound;
    uint32_t in_flight;  /* most microbatches between forward and backward */
} MemReport;

typedef struct {
    const Module *m;
    MemPlace *place;   /* by ValueId */
    uint32_t *buffer;  /* by ValueId: equal for values that share memory */
    int64_t *scratch;  /* by NodeId: its workspace or callee's frame, an offset
                          in the frame of its function */
    int64_t *host_scratch; /* by NodeId: the callee's frame in host memory */
    int32_t **carried; /* by FuncId, then result: the parameter whose memory it
                          has in every call, or -1; NULL: nobody calls it */
    MemFrame *frame;   /* by FuncId */
    MemState *state;   /* see memplan_state */
    MemReport *report; /* by pp coordinate: of its largest program */
    int64_t *frame_start;      /* by pp coordinate: where its programs' */
    int64_t *host_frame_start; /* frames lie, and those in host memory */
    Effects effects;
    uint32_t npp, ntensors;
} MemPlan;

/* What memplan must know of kernels it does not make. */
typedef struct {
    int dialect; /* handed to `scratch` */
    /* Bytes of workspace of a node, 0 for most. */
    int64_t (*scratch)(const Module *m, NodeId n, int dialect);
    /* Whether result `res` of a row program may overwrite operand `arg`. */
    bool (*in_place)(const Module *m, const Node *n, uint32_t arg,
                     uint32_t res);
    /* What packing a frame may take, in units of PACK_WORK; 0: as much as a
     * compile spends. */
    uint64_t work;
} MemRules;

/* ---- memplan.c ----------------------------------------------------------- */

/* Plans a pipelined, fused module.  The result lives in `a`. */
MemPlan *memplan_make(Arena *a, const Module *m, const MemRules *rules);

/* Bytes of a value on one rank. */
int64_t memplan_value_bytes(const Module *m, ValueId v);
bool memplan_same_place(MemPlace a, MemPlace b);

/* The field that a node only adds its operand to, as `accum` does: itself or a
 * row program that does nothing else. */
bool memplan_accumulates(const Module *m, const Node *n, TensorId *out_tensor,
                         Field *out_field);

/* Result number that carry argument `arg` of a call continues in, or -1. */
int memplan_carry_result(const Module *m, const Node *call, uint32_t arg);

/* ---- memplan_state.c ----------------------------------------------------- */

const MemState *memplan_state(const MemPlan *p, uint32_t pp, TensorId t,
                              Field f);
/* Of how many layers pp coordinate `pp` holds a tensor, 1 if it is of none,
 * and which slot is that of one of them. */
uint32_t memplan_layers(const Module *m, uint32_t pp, TensorId t);
uint32_t memplan_slot(const Module *m, uint32_t pp, TensorId t, uint32_t layer);

/* ---- memplan_report.c ---------------------------------------------------- */

/* Whether each stage fits into `capacity` bytes; reports those that do not at
 * `where`, with their largest terms (MC0501). */
bool memplan_fits(const Module *m, const MemPlan *p, int64_t capacity,
                  Loc where);

#endif
