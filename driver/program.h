/* program.h - from a spec to a planned module: what `megac compile` makes
 * before it emits anything, and what most views look at. */
#ifndef MEGAC_DRIVER_PROGRAM_H
#define MEGAC_DRIVER_PROGRAM_H

#include "driver/input.h"
#include "passes/memplan.h"
#include "passes/passes.h"

typedef struct {
    Module *m;
    const MemPlan *mem; /* NULL if the passes were stopped before the end */
} Program;

/* Errors are in in->diag when the result is not CLI_DONE; free in any case. */
CliExit program_build(const Input *in, const PassOptions *options,
                      Program *out);
/* The same, but addresses are found quickly: a rank may need a little more
 * memory than in a compile. */
CliExit program_sketch(const Input *in, Program *out);
void program_free(Program *p);

#endif
