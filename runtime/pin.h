/* pin.h - which cores the compute threads of a rank run on. */
#ifndef MEGAC_RUNTIME_PIN_H
#define MEGAC_RUNTIME_PIN_H

#include "base/status.h"

/* Without being told: a thread per core that this rank may use, or its share
 * if it shares them with other ranks of the node. */
int pin_default_threads(void);

typedef enum {
    PIN_IF_FULL, /* if the ranks' threads are as many as their cores */
    PIN_ALWAYS,  /* an error if there are too few cores */
    PIN_NEVER
} PinWhen;

/* Binds each of the `threads` compute threads (OpenMP's) to a core of its own.
 * Ranks of a node that may use the same cores share them in the order of their
 * numbers; every rank has to call this, after MPI has started if there are
 * several.  A thread that is made later inherits the binding of its maker and
 * begins with pin_release. */
MC_MUST_USE Status pin_threads(PinWhen when, int threads, uint32_t rank);

/* The calling thread may run wherever the process could at first. */
void pin_release(void);

#endif
