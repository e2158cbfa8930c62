/* comm_mpi_run.c - the ranks of a run, as Open MPI starts and ends them.
 *
 * Apart from what a plan communicates, the program of a rank wants to know who
 * it is, to wait for the others, to collect a few words of each, and to end all
 * of them when it fails.  Without MPI it is alone, which is no error.
 */
#include "runtime/comm_mpi_priv.h"

#include <stdlib.h>

Status mpi_check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (code == MPI_SUCCESS)
        return STATUS_NONE;
    MPI_Error_string(code, text, &n);
    return status_make(STATUS_RUN, "%s failed: %s", what, text);
}

static bool running(void)
{
    int started = 0, stopped = 0;

    MPI_Initialized(&started);
    MPI_Finalized(&stopped);
    return started && !stopped;
}

Status comm_mpi_start(uint32_t *out_rank, uint32_t *out_world)
{
    int rank, world, level;

    STATUS_TRY(
        mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level),
                  "starting MPI"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    STATUS_TRY(mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI"));
    STATUS_TRY(mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI"));
    *out_rank = (uint32_t)rank;
    *out_world = (uint32_t)world;
    return STATUS_NONE;
}

void comm_mpi_stop(void)
{
    if (running())
        MPI_Finalize();
}

_Noreturn void comm_mpi_abort(int code)
{
    if (running())
        MPI_Abort(MPI_COMM_WORLD, code);
    exit(code);
}

Status comm_mpi_barrier(void)
{
    if (!running())
        return STATUS_NONE;
    return mpi_check(MPI_Barrier(MPI_COMM_WORLD), "waiting for all ranks");
}

Status comm_mpi_any(unsigned own, unsigned *out_all)
{
    *out_all = own;
    if (!running())
        return STATUS_NONE;
    return mpi_check(MPI_Allreduce(&own, out_all, 1, MPI_UNSIGNED, MPI_BOR,
                                   MPI_COMM_WORLD),
                     "asking all ranks");
}

/* The lengths of all texts; their sum. */
static Status gather_lengths(int own, int *lengths, int *offsets, int world,
                             size_t *out_total)
{
    *out_total = 0;
    STATUS_TRY(mpi_check(
        MPI_Allgather(&own, 1, MPI_INT, lengths, 1, MPI_INT, MPI_COMM_WORLD),
        "gathering lengths"));
    for (int i = 0; i < world; i++) {
        offsets[i] = (int)*out_total;
        *out_total += (size_t)lengths[i];
    }
    if (*out_total > INT32_MAX)
        return status_make(STATUS_SYSTEM, "too much text to gather");
    return STATUS_NONE;
}

static Status gather_text(const char *own, int *lengths, int *offsets,
                          int world, char **out_all)
{
    int n = (int)strlen(own);
    size_t total;
    char *all;

    STATUS_TRY(gather_lengths(n, lengths, offsets, world, &total));
    all = malloc(total + 1);
    if (!all)
        return status_make(STATUS_SYSTEM, "no memory for texts");
    all[total] = '\0';
    *out_all = all;
    return mpi_check(MPI_Allgatherv(own, n, MPI_CHAR, all, lengths, offsets,
                                    MPI_CHAR, MPI_COMM_WORLD),
                     "gathering texts");
}

Status comm_mpi_gather(const char *own, char **out_all)
{
    int world = 1, *numbers;
    char *all = NULL;
    Status s;

    if (running())
        MPI_Comm_size(MPI_COMM_WORLD, &world);
    else
        all = strdup(own);
    numbers = malloc(2 * (size_t)world * sizeof *numbers);
    s = !numbers || (!running() && !all)
            ? status_make(STATUS_SYSTEM, "no memory for texts")
        : all ? STATUS_NONE
              : gather_text(own, numbers, numbers + world, world, &all);
    free(numbers);
    if (s)
        free(all);
    else
        *out_all = all;
    return s;
}
