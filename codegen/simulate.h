/* simulate.h - how long a step takes on given hardware, from its plans.
 *
 * One rank stands for all of its class.  What a rank does on its streams, what
 * it waits for and whom it talks to is taken from the plan as it is; only how
 * long each instruction takes is estimated, by hardware.h.
 */
#ifndef MEGAC_SIMULATE_H
#define MEGAC_SIMULATE_H

#include "codegen/verify_plan.h"
#include "frontend/hardware.h"

enum { SIM_AXES = 16 };

/* What a rank of the class spends the step on, in seconds.  The first five add
 * up to the step. */
typedef struct {
    double compute; /* kernels, products, copies of the compute stream */
    double launch;  /* from one of them to the next */
    double exposed; /* compute waits for bytes that move */
    double host;    /* the same, to or from the host's memory */
    double bubble;  /* compute waits for what other ranks have not done yet */
    /* Of each kind of communication ("tp", "dp", "pp"): how long it takes,
     * and how long compute waits for it. */
    uint32_t naxes;
    struct {
        const char *name; /* of the plan */
        double busy, exposed;
    } axis[SIM_AXES];
    double flops; /* of products and attention, of one rank */
} SimStage;

typedef struct {
    double step;       /* seconds */
    double flops;      /* of all ranks, with what is computed again */
    uint32_t busiest;  /* the class that computes longest */
    uint32_t nstages;
    SimStage *stages;  /* by class */
} SimResult;

/* Simulates the step of training.  The plans are verified; the result lives in
 * `a`. */
SimResult simulate(Arena *a, const PlanClass *classes, uint32_t n,
                   const Hardware *h);

#endif
