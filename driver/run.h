/* run.h - what the files of `megac run` share. */
#ifndef MEGAC_DRIVER_RUN_H
#define MEGAC_DRIVER_RUN_H

#include "driver/cli.h"

/* ---- run_progress.c: metrics.jsonl as a line on the terminal ------------ */

typedef struct {
    const char *path;
    int64_t total;    /* steps of this run */
    long at;          /* how much of the file has been read */
    bool live;        /* one line, rewritten, instead of many */
    double shown;     /* when the last line was printed */
    double step_time; /* running mean, seconds */
    int64_t step;
    double loss, tokens_per_s;
    bool fresh; /* read since the last line was printed */
} Progress;

/* Lines that are in the file already belong to an earlier run. */
void progress_start(Progress *p, const char *path, int64_t total);
/* Reads what was added and shows the latest step, about once a second. */
void progress_poll(Progress *p);
/* Shows the last step, if that was not done. */
void progress_end(Progress *p);
/* Makes room for a message: ends the live line. */
void progress_clear(const Progress *p);

/* ---- run_errors.c: what mpirun says about failed ranks ------------------ */

typedef struct {
    Buf line, block;
    bool in_block;
    int rank;      /* that failed first; -1: none known */
    int exit_code; /* its exit code; 128 + n if signal n ended it */
    const Progress *progress;
} RunErrors;

/* The text of `sh -c` under which every rank runs; its "$0" and "$@" are the
 * command. */
extern const char run_wrapper[];

void run_errors_start(RunErrors *e, const Progress *progress);
/* Takes a piece of mpirun's stderr: passes on what ranks print, keeps back
 * what is said about how they ended. */
void run_errors_take(RunErrors *e, const char *bytes, size_t n);
void run_errors_end(RunErrors *e);

/* ---- run_spawn.c: mpirun ------------------------------------------------- */

/* Runs the command to its end, with its stderr going to `errors`.
 * *out_code is its exit code, 128 + n if signal n ended it. */
MC_MUST_USE Status run_spawn(char *const *argv, Progress *progress,
                             RunErrors *errors, int *out_code);

#endif
