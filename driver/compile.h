/* compile.h - the steps of `megac compile` that other commands take too. */
#ifndef MEGAC_DRIVER_COMPILE_H
#define MEGAC_DRIVER_COMPILE_H

#include "codegen/emit.h"
#include "codegen/verify_plan.h"
#include "driver/program.h"

/* Errors are in in->diag when the result is not CLI_DONE. */

/* Executes a shrunken copy of the spec before and after each pass. */
CliExit compile_verify_passes(const Input *in);
/* Proves that the plans of all stages fit together. */
CliExit compile_verify_plans(const Input *in, const Module *m,
                             const EmitOutput *out, PlanVerifyStats *stats);
/* CLI_FIT if a rank needs more memory than the hardware that the spec names
 * has, or this machine. */
CliExit compile_check_memory(const Input *in, const Program *p);

#endif
