/* check.h - verification of passes by execution. */
#ifndef MEGAC_PASSES_CHECK_H
#define MEGAC_PASSES_CHECK_H

#include "passes/passes.h"

/* Remembers what the module computed at first (in fp64 and in the prime
 * field), and compares after every pass: fp64 within rounding, the field
 * exactly.  The module should come from spec_shrink. */
typedef struct PassCheck PassCheck;

PassCheck *pass_check_new(Module *m);
/* False after reporting which tensor the pass changed, in any of the module's
 * programs.  A pass that extends the step (by gradients, by the optimizer) must
 * keep the loss alone. */
bool pass_check_after(PassCheck *c, Module *m, const Pass *pass);
void pass_check_free(PassCheck *c);

#endif
