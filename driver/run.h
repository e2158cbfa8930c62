/* run.h - what the files of `megac run` share. */
#ifndef MEGAC_DRIVER_RUN_H
#define MEGAC_DRIVER_RUN_H

#include "driver/cli.h"

/* ---- run_errors.c: what is said about failed ranks ---------------------- */

typedef struct {
    Buf line, block;
    bool in_block;
    int rank;      /* that failed first; -1: none known */
    int exit_code; /* its exit code; 128 + n if signal n ended it */
} RunErrors;

/* The text of `sh -c` under which every rank runs; its "$0" and "$@" are the
 * command. */
extern const char run_wrapper[];

void run_errors_start(RunErrors *e);
/* Takes a piece of mpirun's stderr: passes on what ranks print, keeps back
 * what is said about how they ended. */
void run_errors_take(RunErrors *e, const char *bytes, size_t n);
void run_errors_end(RunErrors *e);

/* ---- run_spawn.c: mpirun ------------------------------------------------- */

/* Runs the command to its end, with its stderr going to `errors`.  `saves`: a
 * SIGTERM becomes a SIGUSR1, which mpirun hands on to the ranks, so that they
 * save; only a second one ends them.  *out_code is its exit code, 128 + n if
 * signal n ended it. */
MC_MUST_USE Status run_spawn(char *const *argv, bool saves, RunErrors *errors,
                             int *out_code);

/* ---- run_memory.c -------------------------------------------------------- */

/* CLI_FIT, and an error, if the ranks of a compiled program need more memory
 * together than this machine has to give. */
CliExit run_check_memory(Arena *a, const char *dir);

#endif
