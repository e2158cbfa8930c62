/* tune_measure.c - the best candidates run on this machine.
 *
 * Each is compiled and run by megac itself, as a user would, in a folder that
 * is removed afterwards; a step takes the median of all but the first, in which
 * pages are touched.  What cannot be run keeps its prediction, behind those
 * that could.
 */
#include "codegen/emit.h"
#include "driver/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEASURED = 3, STEPS = 6 };

extern char **environ;

/* Runs megac with these arguments, what it prints on stdout left out. */
static bool megac(char *const *argv)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null",
                                     O_WRONLY, 0);
    if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, argv, environ) ==
        0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&actions);
    return status == 0;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

/* The median step of a file of metrics but for its first; 0 without any. */
static double median_step(const char *path)
{
    double seconds[STEPS];
    uint32_t n = 0;
    char line[4096];
    FILE *f = fopen(path, "r");

    while (f && n < STEPS && fgets(line, sizeof line, f)) {
        json_t *row = json_loads(line, 0, NULL);
        json_t *step = json_object_get(row, "step_time_s");
        if (step)
            seconds[n++] = json_number_value(step);
        json_decref(row);
    }
    if (f)
        fclose(f);
    if (n < 2)
        return 0;
    qsort(seconds + 1, n - 1, sizeof *seconds, compare_doubles);
    return seconds[1 + (n - 1) / 2];
}

static bool write_spec(const Spec *s, const char *path)
{
    Buf text = {0};
    bool ok;

    spec_print(s, &text);
    ok = buf_write_file(&text, path);
    buf_free(&text);
    return ok;
}

/* Seconds of a step; 0 if it could not be compiled or run. */
static double run_one(Arena *a, const Spec *s, const char *dir)
{
    char *spec = arena_printf(a, "%s/spec.yaml", dir);
    char *out = arena_printf(a, "%s/out", dir);
    char *metrics = arena_printf(a, "%s/metrics.jsonl", dir);
    char *steps = arena_printf(a, "%d", STEPS);
    char *const compile[] = {"megac", "compile", spec, "-o", out, "--set",
                             "training.log.interval=1", NULL};
    char *const train[] = {"megac",   "run",       out,     "--steps",
                           steps,     "--metrics", metrics, NULL};

    unlink(metrics);
    return write_spec(s, spec) && megac(compile) && megac(train)
               ? median_step(metrics)
               : 0;
}

/* The fastest first, then what was not run, as it was. */
static void order_by_measure(Candidates *found, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        Candidate c = found->v[i];
        uint32_t k = i;
        for (; k > 0 && c.measured > 0 &&
               (found->v[k - 1].measured <= 0 ||
                found->v[k - 1].measured > c.measured);
             k--)
            found->v[k] = found->v[k - 1];
        found->v[k] = c;
    }
}

static CliExit check_device(const Search *x)
{
    if (x->space->base->target.backend == BACKEND_CPU ||
        access("/dev/nvidiactl", F_OK) == 0)
        return CLI_DONE;
    return cli_failed(status_make(
        STATUS_INPUT, "--measure runs candidates on this machine, which has no "
                      "GPU for target.backend = cuda"));
}

CliExit measure_best(Search *x)
{
    uint32_t n = MC_MIN(MC_MIN(x->found.n, x->top), MEASURED), ran = 0;
    char dir[] = "/tmp/megac-tune-XXXXXX";
    CliExit code = check_device(x);

    if (code != CLI_DONE)
        return code;
    if (!mkdtemp(dir))
        return cli_failed(status_system(errno, "cannot make %s", dir));
    for (uint32_t i = 0; i < n; i++) {
        x->found.v[i].measured = run_one(x->arena, x->found.v[i].spec, dir);
        ran += x->found.v[i].measured > 0;
    }
    package_remove(dir);
    order_by_measure(&x->found, n);
    return ran ? CLI_DONE
               : cli_failed(status_make(STATUS_RUN,
                                        "none of the best %" PRIu32
                                        " candidates could be run", n));
}
