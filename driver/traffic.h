/* traffic.h - what the ranks of a stage say to others in one step. */
#ifndef MEGAC_DRIVER_TRAFFIC_H
#define MEGAC_DRIVER_TRAFFIC_H

#include "driver/program.h"

/* Equal operations of a step, added up.  `bytes` is the whole buffer of one
 * execution on one rank: all parts of a gather or scatter, one message of a
 * send. */
typedef struct {
    Op op;
    AxisSet axes; /* the group; that of the stages for messages */
    int64_t bytes, per_step;
    const char *tensor; /* the state or value that moves; may be "" */
} Traffic;

/* Walks the program of a stage.  The rows live in `a`. */
const Traffic *traffic_make(Arena *a, const Program *p, uint32_t pp,
                            uint32_t *out_n);
/* "tp", "pp", "tp.dp"; of a cut axis "cp.1" */
const char *traffic_axis(Arena *a, const Module *m, const Traffic *t);

#endif
