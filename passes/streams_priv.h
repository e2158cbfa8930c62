/* streams_priv.h - shared by the streams*.c files. */
#ifndef MEGAC_STREAMS_PRIV_H
#define MEGAC_STREAMS_PRIV_H

#include "ir/ir.h"
#include "passes/effects.h"

/* ---- streams_choose.c ---------------------------------------------------- */

/* The function at hand, and what is asked for. */
typedef struct {
    const Module *m;
    FuncId f;
    bool step;                 /* it is a step function */
    bool serial[STREAM_COUNT]; /* collectives of the stream stay on compute */
} StreamChoice;

bool streams_is_message(const Node *n); /* of the pipeline */
bool streams_is_collective(const Node *n);
/* A read or write that moves nothing, but names memory, or lines seen as a
 * tensor. */
bool streams_is_name(const Module *m, const Node *n);
/* The stream for a message, a collective or a move between memories. */
Stream streams_of(const Module *m, const Node *n);
/* Whether the node at `pos` runs beside compute. */
bool streams_is_async(const StreamChoice *c, uint32_t pos);
/* Whether a gradient is reduced there for the step function: the result is only
 * written to its tensor, and nobody in this function waits for it. */
bool streams_is_loose(const StreamChoice *c, uint32_t pos);

/* ---- streams_work.c ------------------------------------------------------ */

bool streams_is_product(const Node *n);
/* Whether `n` works on v, be it as lines or as a tensor. */
bool streams_uses(const Module *m, const Node *n, ValueId v);
/* Where the result of the node at `pos` is first used; the end if nowhere. */
uint32_t streams_first_use(const Module *m, FuncId f, uint32_t pos);
/* Whether a collective is waited for without anything of weight between it and
 * that use.  For what is only written to its tensor nobody waits. */
bool streams_lacks_work(const Module *m, FuncId f, uint32_t pos);

/* ---- streams_extent.c ---------------------------------------------------- */

/* How many indices the dimensions before `dim` have on a rank. */
int64_t streams_outer_size(const Module *m, ValueId v, char dim);

/* ---- streams_overlap.c --------------------------------------------------- */

/* Moves reductions of gradients from a step function into the backward of its
 * last microbatch.  `fx` is of the module as it was before any such. */
void streams_overlap_gradients(Module *m, FuncId step, const Effects *fx);

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

/* ---- streams_blocks.c ---------------------------------------------------- */

/* Takes what moves blocks before and after collectives out of these. */
void streams_split_blocks(Module *m, FuncId f);

/* ---- streams_hoist.c ----------------------------------------------------- */

/* Brings products from further on to collectives that somebody waits for, but
 * for those on streams that are `serial`. */
void streams_hoist_products(Module *m, const Effects *fx, FuncId f,
                            const bool *serial);

/* ---- streams_delay.c ----------------------------------------------------- */

/* Puts products that nobody waits for behind collectives that somebody waits
 * for. */
void streams_delay_products(Module *m, const Effects *fx, FuncId f);

#endif
