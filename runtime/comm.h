/* comm.h - messages between ranks: streams of operations over a driver.
 *
 * The executor's host thread is the only thread.  It appends operations to
 * streams; the Comm (comm.c) starts each when its turn has come and asks the
 * driver which have finished.  A driver (MPI, or none for a single rank) only
 * knows how to start an operation and how to test it.
 */
#ifndef MEGAC_RUNTIME_COMM_H
#define MEGAC_RUNTIME_COMM_H

#include "runtime/plan.h"

enum { COMM_SLOTS = 256 }; /* operations of a stream that may be unfinished */

/* A COLLECTIVE, SEND or RECV with its addresses. */
typedef struct {
    uint32_t instr; /* row of the plan */
    void *source, *destination;
    size_t bytes; /* of a message */
} CommOp;

/* `slot` names the operation until test says it is done: slots of stream s
 * are s * COMM_SLOTS and the following. */
typedef struct {
    const char *name;
    Status (*open)(const Plan *p, uint32_t rank, void **out_self);
    void (*close)(void *self);
    Status (*start)(void *self, const CommOp *op, uint32_t slot);
    Status (*test)(void *self, uint32_t slot, bool *out_done);
} CommDriver;

extern const CommDriver comm_self; /* comm_self.c: one rank */
extern const CommDriver comm_mpi;  /* comm_mpi.c */

/* ---- comm.c -------------------------------------------------------------- */

typedef struct Comm Comm;

/* `patience` is how many seconds an operation may take without any progress
 * before it counts as stuck; 0 waits for ever. */
MC_MUST_USE Status comm_new(const Plan *p, uint32_t rank,
                            const CommDriver *driver, double patience,
                            Comm **out);
void comm_free(Comm *c);

/* On stream 0 the operation is finished on return. */
MC_MUST_USE Status comm_append(Comm *c, const CommOp *op);
/* EVENT and WAIT.  On stream 0, comm_wait returns once the mark is reached. */
MC_MUST_USE Status comm_mark(Comm *c, uint16_t stream, uint32_t event);
MC_MUST_USE Status comm_wait(Comm *c, uint16_t stream, uint32_t event);
/* Lets unfinished operations move on; cheap if there are none. */
MC_MUST_USE Status comm_poll(Comm *c);
/* Returns once every stream is empty. */
MC_MUST_USE Status comm_drain(Comm *c);

/* ---- comm_mpi_run.c: the run as a whole ---------------------------------- */

/* Starts MPI; the rank and the number of ranks. */
MC_MUST_USE Status comm_mpi_start(uint32_t *out_rank, uint32_t *out_world);
void comm_mpi_stop(void);
/* Ends every rank of the run with this exit code. */
_Noreturn void comm_mpi_abort(int code);

/* What saving and reporting need; without MPI there is one rank. */
MC_MUST_USE Status comm_mpi_barrier(void);
/* The bits that are set on any rank. */
MC_MUST_USE Status comm_mpi_any(unsigned own, unsigned *out_all);
/* The texts of all ranks, one after the other, on every rank; free it. */
MC_MUST_USE Status comm_mpi_gather(const char *own, char **out_all);

#endif
