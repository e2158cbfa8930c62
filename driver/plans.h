/* plans.h - the plans of a compiled program. */
#ifndef MEGAC_DRIVER_PLANS_H
#define MEGAC_DRIVER_PLANS_H

#include "driver/cli.h"
#include "codegen/emit.h"
#include "codegen/verify_plan.h"

/* One plan per class of ranks; classes[i].plan is &plans[i]. */
typedef struct {
    Plan *plans;
    PlanClass *classes;
    uint32_t n;
} PlanSet;

/* Reads them by the manifest of the folder.  Free the set in any case. */
MC_MUST_USE Status plans_read(Arena *a, const char *dir, PlanSet *out);
/* Loads what a module was emitted as.  Free the set in any case. */
CliExit plans_make(Arena *a, const Module *m, const EmitOutput *out,
                   PlanSet *set);
void plans_free(PlanSet *set);

#endif
