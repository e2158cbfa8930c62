/* streams.h - what runs beside what. */
#ifndef MEGAC_STREAMS_H
#define MEGAC_STREAMS_H

#include "ir/ir.h"

/* Whether the message at `pos` of f's body starts together with the one
 * before it, so that opposite messages cannot block each other. */
bool streams_joined(const Module *m, FuncId f, uint32_t pos);

/* A collective of the runtime works on contiguous parts.  If its dimension is
 * not the outermost one on a rank, it is done in `pieces`, one for each index
 * of the dimensions before it (for each layer of a stack), or, if these would
 * be small or many, blocks are moved by the compute stream before it or after
 * it: by nodes of their own, once the collective has the attribute `packed`. */
typedef struct {
    bool before, after;
    int64_t pieces; /* 1: all at once */
} BlockMoves;
BlockMoves streams_block_moves(const Module *m, const Node *n);

/* For every position of f's body, the span of positions during which its node
 * may be running: a node on the compute stream, its own; a message or
 * collective on another stream, from the mark it waits for to the wait for its
 * own mark. */
void streams_extents(const Module *m, FuncId f, int32_t *out_begin,
                     int32_t *out_done);

#endif
