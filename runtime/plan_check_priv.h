/* plan_check_priv.h - the state of the loader's walk over a plan. */
#ifndef MEGAC_RUNTIME_PLAN_CHECK_PRIV_H
#define MEGAC_RUNTIME_PLAN_CHECK_PRIV_H

#include "runtime/plan_priv.h"

/* All values from low to high. */
typedef struct {
    int64_t low, high;
} PlanSpan;

/* What is known of a segment from the calls seen so far. */
typedef struct {
    uint32_t called, depth; /* depth: longest chain of calls to here */
    double runs;            /* per step */
} PlanReach;

typedef struct {
    const Plan *p;
    const char *table; /* where the walk is */
    uint32_t row;
    Status failed; /* the first fault */
    PlanSpan *exprs;
    PlanSpan *regs;
    PlanReach *segments;
    uint32_t next_dim, next_field, next_split;
    uint32_t next_instr, next_reg, next_operand;
} PlanCheck;

/* Record the fault unless `ok`; false once there is one. */
bool plan_must(PlanCheck *c, bool ok, const char *fmt, ...) MC_PRINTF(3, 4);
bool plan_must_row(PlanCheck *c, uint32_t i, uint32_t n, const char *field);
/* Addresses low to high, each with `bytes` bytes, lie in one memory. */
bool plan_must_address(PlanCheck *c, int64_t low, int64_t high, uint64_t bytes);
int64_t plan_check_group_size(const Plan *p, uint32_t group);

/* plan_check_code.c: the instructions of all segments. */
void plan_check_code(PlanCheck *c);

#endif
