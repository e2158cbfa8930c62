/* memplan_priv.h - shared by the memplan_*.c files. */
#ifndef MEGAC_MEMPLAN_PRIV_H
#define MEGAC_MEMPLAN_PRIV_H

#include "passes/memplan.h"

/* Positions are indices into a function's body; parameters are defined at -1
 * and results used at body.n. */
typedef struct {
    const Module *m;
    Arena *arena;
    const MemRules *rules;
    MemPlan *out;
    const Effects *fx;
    /* By ValueId: sets of values that share their memory, as a forest of
     * parents, and at the root the lifetime of the set, both ends included. */
    uint32_t *parent;
    int32_t *first, *last;
    int32_t *def; /* by ValueId: position of the node that makes it, or -1 */
    /* By FuncId, then result: the parameter whose memory a carried result may
     * share, or -1. */
    int32_t **carry;
    bool *planned; /* by FuncId */
    bool *host;    /* by ValueId: it lies in host memory */
    /* By position in the function being planned: when its node may run. */
    int32_t *begin, *done;
} Planner;

/* ---- memplan.c ----------------------------------------------------------- */

/* Bytes that live for one node only: its workspace or its callee's frame. */
int64_t node_scratch(const Planner *p, NodeId id);

/* ---- memplan_state.c ----------------------------------------------------- */

/* Lays out the state of every stage, and says where the frame of one begins. */
void state_plan(Planner *p);
int64_t state_end(const MemPlan *p, uint32_t pp, bool host);

/* ---- memplan_host.c ------------------------------------------------------ */

/* Which values lie in host memory: what `offload` makes, and where calls take
 * it. */
bool *host_values(Arena *a, const Module *m);

/* ---- memplan_share.c ----------------------------------------------------- */

uint32_t value_root(Planner *p, ValueId v);
/* Whether result `res` may take the memory of operand `arg`, which dies. */
bool node_may_share(const Planner *p, const Node *n, uint32_t arg,
                    uint32_t res);
/* Finds lifetimes, and which values of `f` live with the caller, in state, or
 * in each other's memory.  Afterwards a root without a place needs a buffer. */
void share_plan(Planner *p, FuncId f);

/* ---- memplan_report.c ---------------------------------------------------- */

/* After an entry was planned. */
void report_make(Planner *p, uint32_t entry);

static inline MemPlace *place_of(Planner *p, ValueId v)
{
    return &p->out->place[value_root(p, v)];
}

#endif
