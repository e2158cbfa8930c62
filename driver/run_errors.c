/* run_errors.c - separates what ranks say from what is said about them.
 *
 * Each rank runs under a shell that, if it fails, adds one line with its rank
 * and exit code (run_wrapper).  The first such line is the reason of the
 * failure; the others were ended because of it.  mpirun tells the same in
 * notices framed by dashes, in many words and not always; those are dropped.
 * Everything else is passed on.
 */
#include "driver/run.h"

#include <stdlib.h>

void run_errors_start(RunErrors *e)
{
    *e = (RunErrors){.rank = -1, .exit_code = -1};
}

/* ---- notices ------------------------------------------------------------- */

#define RANK_EXIT "megac-rank-exit"

/* Both get SIGUSR1; it is meant for the rank. */
const char run_wrapper[] =
    "trap : USR1; \"$0\" \"$@\"; code=$?; [ $code -eq 0 ] || "
    "echo \"" RANK_EXIT " $OMPI_COMM_WORLD_RANK $code\" >&2; exit $code";

static void first_failure(RunErrors *e, int rank, int exit_code)
{
    if (e->rank < 0) {
        e->rank = rank;
        e->exit_code = exit_code;
    }
}

static bool read_rank_exit(RunErrors *e, const char *line)
{
    int rank, code;

    if (sscanf(line, RANK_EXIT " %d %d", &rank, &code) != 2)
        return false;
    first_failure(e, rank, code);
    return true;
}

/* MPI_Abort ends the shell before it can add its line. */
static void read_abort(RunErrors *e, const char *notice)
{
    const char *rank = strstr(notice, "MPI_ABORT was invoked on rank ");
    const char *code = strstr(notice, "errorcode ");

    if (rank && code)
        first_failure(e, (int)strtol(rank + 30, NULL, 10),
                      (int)strtol(code + 10, NULL, 10));
}

static bool has_any(const char *text, const char *const *marks)
{
    for (; *marks; marks++)
        if (strstr(text, *marks))
            return true;
    return false;
}

/* Whether mpirun only tells that a rank ended, or that it was told to. */
static bool is_known(const char *notice)
{
    static const char *const marks[] = {
        "Primary job", "exited with non-zero status", "exited on signal",
        "MPI_ABORT was invoked", "was killed without first calling finalize",
        NULL};

    return has_any(notice, marks);
}

/* Lines outside of a frame that say nothing about the run: what mpirun notes
 * about its own notices, and the shell about a signal. */
static bool is_noise(const char *line)
{
    static const char *const marks[] = {
        "ORTE_ERROR_LOG", "has sent help message", "have sent help message",
        "orte_base_help_aggregate", NULL};

    return (line[0] == '[' && has_any(line, marks)) ||
           !strncmp(line, "mpirun: Forwarding signal", 25) ||
           !strcmp(line, "Killed\n") || !strcmp(line, "Terminated\n");
}

/* ---- lines --------------------------------------------------------------- */

static bool is_frame(const char *line)
{
    return strspn(line, "-") >= 60 && line[strspn(line, "-")] == '\n';
}

static void end_block(RunErrors *e)
{
    read_abort(e, buf_str(&e->block));
    if (!is_known(buf_str(&e->block)))
        fputs(buf_str(&e->block), stderr);
    buf_free(&e->block);
    e->in_block = false;
}

static void take_line(RunErrors *e, const char *line)
{
    if (is_frame(line) && e->in_block) {
        end_block(e);
    } else if (is_frame(line)) {
        e->in_block = true;
    } else if (e->in_block) {
        buf_puts(&e->block, line);
    } else if (!read_rank_exit(e, line) && !is_noise(line)) {
        fputs(line, stderr);
    }
}

void run_errors_take(RunErrors *e, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_write(&e->line, &bytes[i], 1);
        if (bytes[i] == '\n') {
            take_line(e, buf_str(&e->line));
            e->line.len = 0;
        }
    }
    if (e->line.len && e->line.s[0] == '\r') { /* progress, rewritten */
        fputs(buf_str(&e->line), stderr);
        e->line.len = 0;
    }
}

void run_errors_end(RunErrors *e)
{
    if (e->line.len)
        take_line(e, buf_str(&e->line));
    end_block(e);
    buf_free(&e->line);
}
