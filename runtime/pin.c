/* pin.c - a core for each compute thread.
 *
 *     node A, 4 cores, ranks 0 and 1, 2 threads each     0: cores 0 1
 *                                                        1: cores 2 3
 *
 * A launcher may have bound the ranks already; so ranks count as sharing cores
 * only if they run on the same host and may use the same set.  Of a core with
 * several hardware threads one is used: products gain nothing from the others.
 *
 * If the threads of all such ranks leave cores free, nothing is bound unless
 * asked for: another run on this machine would choose the same first cores.
 */
#include "runtime/pin.h"

#include "runtime/comm.h"

#include <hwloc.h>
#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

/* What this process may use, as it was before anything was bound. */
typedef struct {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    int cores; /* with a hardware thread in `allowed`; 0: unknown */
    bool loaded;
} Machine;

static Machine machine;

static int count_cores(const Machine *m)
{
    hwloc_obj_t core = NULL;
    int n = 0;

    while ((core = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_CORE,
                                              core)))
        n += hwloc_bitmap_intersects(core->cpuset, m->allowed) != 0;
    return n;
}

/* Once; it stays until the process ends. */
static const Machine *machine_known(void)
{
    if (machine.loaded)
        return &machine;
    machine.loaded = true;
    machine.allowed = hwloc_bitmap_alloc();
    if (!machine.allowed || hwloc_topology_init(&machine.topology) ||
        hwloc_topology_load(machine.topology) ||
        hwloc_get_cpubind(machine.topology, machine.allowed,
                          HWLOC_CPUBIND_PROCESS))
        return &machine;
    machine.cores = count_cores(&machine);
    return &machine;
}

int pin_default_threads(void)
{
    const Machine *m = machine_known();
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    int64_t ranks = 1;

    if (!m->cores)
        return 1;
    if (!local || !str_to_int(local, &ranks) || ranks < 1 ||
        !hwloc_bitmap_isequal(m->allowed, hwloc_topology_get_topology_cpuset(
                                              m->topology)))
        ranks = 1;
    return (int)MC_MAX(m->cores / ranks, 1);
}

/* ---- who shares them ----------------------------------------------------- */

/* "HOST MASK THREADS\n": the same on ranks that share cores, but for the
 * threads. */
static void describe(const Machine *m, int threads, Buf *out)
{
    char host[256] = "", *mask = NULL;

    gethostname(host, sizeof host - 1);
    if (hwloc_bitmap_asprintf(&mask, m->allowed) >= 0)
        buf_printf(out, "%s %s %d\n", host, mask, threads);
    free(mask);
}

/* Threads of ranks that share this one's cores: of those with smaller numbers,
 * and of all. */
static Status count_sharers(const Buf *own, uint32_t rank, int *out_before,
                            int *out_all)
{
    char *all = NULL, *rest, *line;
    size_t same = own->len;

    STATUS_TRY(comm_mpi_gather(buf_str(own), &all));
    while (same > 0 && own->s[same - 1] != ' ')
        same--;
    *out_before = *out_all = 0;
    rest = all;
    for (uint32_t i = 0; (line = strsep(&rest, "\n")) && *line; i++) {
        if (strncmp(line, own->s, same) != 0)
            continue;
        *out_all += atoi(line + same);
        *out_before += i < rank ? atoi(line + same) : 0;
    }
    free(all);
    return STATUS_NONE;
}

/* ---- binding ------------------------------------------------------------- */

/* One hardware thread of the i-th core that may be used. */
static void bind_to_core(const Machine *m, int i)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    hwloc_obj_t core = NULL;

    while (set && (core = hwloc_get_next_obj_by_type(m->topology,
                                                     HWLOC_OBJ_CORE, core))) {
        hwloc_bitmap_and(set, core->cpuset, m->allowed);
        if (!hwloc_bitmap_iszero(set) && i-- == 0)
            break;
    }
    if (core) {
        hwloc_bitmap_singlify(set);
        (void)hwloc_set_cpubind(m->topology, set, HWLOC_CPUBIND_THREAD);
    }
    hwloc_bitmap_free(set);
}

Status pin_threads(PinWhen when, int threads, uint32_t rank)
{
    const Machine *m = machine_known();
    int before = 0, all = 0;
    Buf own = {0};
    Status s;

    describe(m, threads, &own);
    s = count_sharers(&own, rank, &before, &all);
    buf_free(&own);
    if (s)
        return s;
    if (when == PIN_ALWAYS && all > m->cores)
        return status_make(STATUS_RUN,
                           "%d threads cannot have a core each: there are %d",
                           all, m->cores);
    if (when == PIN_NEVER || (when == PIN_IF_FULL && all != m->cores))
        return STATUS_NONE;
#pragma omp parallel num_threads(threads)
    bind_to_core(m, before + omp_get_thread_num());
    return STATUS_NONE;
}

void pin_release(void)
{
    const Machine *m = machine_known();

    if (m->cores)
        (void)hwloc_set_cpubind(m->topology, m->allowed, HWLOC_CPUBIND_THREAD);
}
