/* check.h - verification of passes by execution. */
#ifndef MEGAC_PASSES_CHECK_H
#define MEGAC_PASSES_CHECK_H

#include "ir/ir.h"

/* Remembers what the module computed at first (in fp64 and in the prime
 * field), and compares after every pass: fp64 within rounding, the field
 * exactly.  The module should come from spec_shrink. */
typedef struct PassCheck PassCheck;

PassCheck *pass_check_new(Module *m);
/* False after reporting which pass changed which tensor.  A pass that extends
 * the program (by gradients, by the optimizer) must keep the loss alone. */
bool pass_check_after(PassCheck *c, Module *m, const char *pass, bool extends);
void pass_check_free(PassCheck *c);

#endif
