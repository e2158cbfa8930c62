/* run_memory.c - whether all ranks together fit into this machine.
 *
 * `megac compile` holds one rank against one machine, for it cannot know where
 * the others will run.  Here they all run, so the sum is known; found out by
 * the kernel's killer, the answer would come minutes later and name nobody.
 */
#include "driver/plans.h"
#include "driver/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static uint64_t bytes_of_plan(const Plan *p)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->memories.n; i++)
        if (p->memories.v[i].kind == PLAN_MEMORY_DEVICE)
            bytes += p->memories.v[i].bytes;
    return bytes;
}

/* What the machine can give without swapping, in bytes: Linux' own estimate. */
static Status available(uint64_t *out_bytes)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    bool found = false;

    if (!f)
        return status_system(errno, "cannot read /proc/meminfo");
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %" SCNu64 " kB", out_bytes) == 1;
    fclose(f);
    *out_bytes *= 1024;
    return found ? STATUS_NONE
                 : status_make(STATUS_SYSTEM, "/proc/meminfo: no MemAvailable");
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

static CliExit too_much(const PlanSet *set, uint64_t sum, uint64_t there)
{
    fprintf(stderr, "megac: error: the ranks need %.1f GiB together, and this "
                    "machine has %.1f GiB to give\n", gib(sum), gib(there));
    for (uint32_t i = 0; i < set->n; i++)
        fprintf(stderr, "  %s: %" PRIu32 " ranks of %.3f GiB\n",
                plan_text(&set->plans[i], set->plans[i].job.v->class_name),
                set->classes[i].n, gib(bytes_of_plan(&set->plans[i])));
    return CLI_FIT;
}

CliExit run_check_memory(Arena *a, const char *dir)
{
    PlanSet set;
    uint64_t there = 0, sum = 0;
    Status status = plans_read(a, dir, &set);

    for (uint32_t i = 0; i < set.n; i++)
        sum += set.classes[i].n * bytes_of_plan(set.classes[i].plan);
    if (!status)
        status = available(&there);
    CliExit code = status         ? cli_failed(status)
                   : sum <= there ? CLI_DONE
                                  : too_much(&set, sum, there);
    plans_free(&set);
    return code;
}
