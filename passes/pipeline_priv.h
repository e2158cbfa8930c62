/* pipeline_priv.h - the program of one pipeline rank under construction; shared
 * by pipeline*.c.
 *
 * `micro` is what one microbatch does, `step` all that a step does; both are as
 * `stage` left them, for all ranks.  `main` is what becomes of them here.
 */
#ifndef MEGAC_PIPELINE_PRIV_H
#define MEGAC_PIPELINE_PRIV_H

#include "passes/forward.h"
#include "passes/passes.h"

/* A value that another rank sends to this one. */
typedef struct {
    ValueId value;
    const PipeStage *to;
    uint32_t microbatch;
    double sent; /* when, by the simulated schedule */
    uint32_t number;
} Arrival;

typedef struct {
    Module *m;
    const Schedule *schedule;
    const ScheduleTimes *times;
    FuncId micro, step;
    uint32_t pp;       /* this rank's coordinate */
    bool overlap;      /* messages travel while ranks compute */
    Forward *forward;   /* of a schedule of forwards alone */
    const bool *wanted; /* by NodeId: what is copied of the step; NULL: all */
    FuncId main;
    bool *held;        /* by TensorId */
    bool embedding;    /* one of its stages embeds */
    uint32_t base, count; /* micro's call results: values base … base+count */
    ValueId *local;    /* [microbatch][value - base]: the value here, or 0 */
    ValueId *batch;    /* [microbatch][parameter of micro] */
    Vec(Arrival) arrivals;
    ValueMap map;      /* step's values -> main's */
} Pipe;

/* ---- pipeline_action.c: what the schedule asks for ----------------------- */

/* All actions of this rank, and the messages around them. */
void pipeline_actions(Pipe *p);
/* A value of main like one of micro's or step's: its layout and name. */
ValueId pipeline_named_like(Pipe *p, ValueId made, ValueId like);

/* ---- pipeline_step.c: the rest of the step ------------------------------- */

/* Finds what the stages of this rank hold. */
void pipeline_hold(Pipe *p);
/* Copies a node of the step, if this rank has what it needs. */
void pipeline_copy_node(Pipe *p, NodeId id);
/* By NodeId: the loss, what leads to it, and the clearing of what forwards add
 * to. */
bool *pipeline_loss_nodes(Arena *a, const Module *m, FuncId step);

#endif
