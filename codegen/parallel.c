/* parallel.c - a counted loop over threads, for compiling units at once.
 *
 * Every thread takes the next index until none is left; jobs write only to
 * their own slot, so the result does not depend on who ran what.
 */
#include "codegen/codegen_priv.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS_MAX = 64 };

typedef struct {
    uint32_t n;
    _Atomic uint32_t next;
    void (*job)(void *state, uint32_t i);
    void *state;
} Work;

static void *work_run(void *arg)
{
    Work *w = arg;
    uint32_t i;

    while ((i = atomic_fetch_add(&w->next, 1)) < w->n)
        w->job(w->state, i);
    return NULL;
}

void codegen_parallel(uint32_t n, uint32_t threads,
                      void (*job)(void *state, uint32_t i), void *state)
{
    Work w = {.n = n, .job = job, .state = state};
    pthread_t helpers[THREADS_MAX];
    uint32_t wanted = MC_MIN(MC_MIN(threads, n), (uint32_t)THREADS_MAX);
    uint32_t started = 0;

    while (started + 1 < wanted &&
           pthread_create(&helpers[started], NULL, work_run, &w) == 0)
        started++;
    work_run(&w);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(helpers[i], NULL);
}
