/* comm_mpi_priv.h - shared by comm_mpi.c and comm_mpi_run.c. */
#ifndef MEGAC_COMM_MPI_PRIV_H
#define MEGAC_COMM_MPI_PRIV_H

#include "runtime/comm.h"

#include <mpi.h>

/* ---- comm_mpi_run.c ------------------------------------------------------ */

/* What MPI says went wrong while doing `what`. */
MC_MUST_USE Status mpi_check(int code, const char *what);

#endif
