/* rowgroup.h - which nodes can be one row program. */
#ifndef MEGAC_PASSES_ROWGROUP_H
#define MEGAC_PASSES_ROWGROUP_H

#include "ir/ir.h"

/* NULL if the nodes, in an order in which they can run, fit into one kernel
 * that passes over rows; else why not.  Operands that none of them defines are
 * read from memory. */
const char *rowgroup_refusal(const Module *m, const NodeId *node, uint32_t n);

/* Letters with more than one index on a rank, bit 0 for 'a': of one value, and
 * of all that a node touches. */
uint32_t rowgroup_dims(const Module *m, ValueId v);
uint32_t rowgroup_space(const Module *m, const Node *n);

#endif
