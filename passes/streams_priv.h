/* streams_priv.h - shared by the streams*.c files. */
#ifndef MEGAC_STREAMS_PRIV_H
#define MEGAC_STREAMS_PRIV_H

#include "ir/ir.h"
#include "passes/effects.h"

/* ---- streams_extent.c ---------------------------------------------------- */

/* How many indices the dimensions before `dim` have on a rank. */
int64_t streams_outer_size(const Module *m, ValueId v, char dim);

/* ---- streams_overlap.c --------------------------------------------------- */

/* Moves reductions of gradients from a step function into the backward of its
 * last microbatch. */
void streams_overlap_gradients(Module *m, FuncId step);

/* ---- streams_bucket.c ---------------------------------------------------- */

/* Lets neighbouring collectives start together, up to `most` elements. */
void streams_fill_buckets(Module *m, FuncId f, int64_t most);

/* ---- streams_sink.c ------------------------------------------------------ */

/* Adds up what collectives have summed as late as the next such collective. */
void streams_sink_sums(Module *m, const Effects *fx, FuncId f);

/* ---- streams_fetch.c ----------------------------------------------------- */

/* Whether a node copies between the memory of the device and the host's. */
bool streams_moves_memory(const Module *m, const Node *n);
/* Lets reads from host memory begin one node earlier. */
void streams_fetch_early(Module *m, FuncId f);

/* ---- streams_delay.c ----------------------------------------------------- */

/* Puts products that nobody waits for behind collectives that somebody waits
 * for. */
void streams_delay_products(Module *m, const Effects *fx, FuncId f);

#endif
