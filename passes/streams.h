/* streams.h - what runs beside what. */
#ifndef MEGAC_STREAMS_H
#define MEGAC_STREAMS_H

#include "ir/ir.h"

/* Whether the message at `pos` of f's body starts together with the one
 * before it, so that opposite messages cannot block each other. */
bool streams_joined(const Module *m, FuncId f, uint32_t pos);

/* For every position of f's body, the span of positions during which its node
 * may be running: a node on the compute stream, its own; a message or
 * collective on another stream, from the mark it waits for to the wait for its
 * own mark. */
void streams_extents(const Module *m, FuncId f, int32_t *out_begin,
                     int32_t *out_done);

#endif
