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

/* ---- plan_check.c -------------------------------------------------------- */

enum { PLAN_EXTENT_BITS = 46 }; /* sizes are below 2^46 */

/* Each records the fault, if there is one, and is false once there is one.
 * `field` names what was looked at. */
bool plan_must(PlanCheck *c, bool ok, const char *fmt, ...) MC_PRINTF(3, 4);
bool plan_must_row(PlanCheck *c, uint32_t i, uint32_t n, const char *field);
bool plan_must_range(PlanCheck *c, PlanRange r, uint32_t n, const char *field);
/* Rows that belong to one owner each follow each other without a gap. */
bool plan_must_follow(PlanCheck *c, PlanRange r, uint32_t n, uint32_t *next,
                      const char *field);
bool plan_must_text(PlanCheck *c, PlanStr s, const char *field);
bool plan_must_positive(PlanCheck *c, int64_t value, const char *field);
bool plan_must_finite(PlanCheck *c, double value, const char *field);
/* Addresses low to high, each with `bytes` bytes, lie in one memory. */
bool plan_must_address(PlanCheck *c, int64_t low, int64_t high, uint64_t bytes);
/* A list of disjoint atoms; the product of their sizes. */
bool plan_must_atoms(PlanCheck *c, PlanRange r, int64_t *out_size);
/* Of a group that was checked: the number of members. */
int64_t plan_check_group_size(const Plan *p, uint32_t group);

/* ---- plan_check_state.c: one row each ------------------------------------ */

bool plan_check_training(PlanCheck *c, const PlanTraining *t);
bool plan_check_source(PlanCheck *c, const PlanSource *s);
bool plan_check_data(PlanCheck *c, const PlanData *d);
bool plan_check_dim(PlanCheck *c, const PlanDim *d);
bool plan_check_split(PlanCheck *c, const PlanSplit *s);
bool plan_check_field(PlanCheck *c, const PlanField *f);
bool plan_check_tensor(PlanCheck *c, const PlanTensor *t);

/* ---- plan_check_code.c --------------------------------------------------- */

/* The instructions of all segments. */
void plan_check_code(PlanCheck *c);

#endif
