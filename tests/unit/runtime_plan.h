/* runtime_plan.h - the common part of the small plans in runtime tests. */
#ifndef MEGAC_TESTS_RUNTIME_PLAN_H
#define MEGAC_TESTS_RUNTIME_PLAN_H

#include "runtime/exec.h"

#include <stdlib.h>

/* A builder for `world` ranks with an arena of `bytes` and nothing else. */
static inline PlanBuilder *tiny_builder(uint32_t world, uint64_t bytes)
{
    PlanBuilder *b = plan_builder_new();

    plan_job(b)->world = world;
    *plan_training(b) = (PlanTraining){.global_batch = 1,
                                       .micro_batch = 1,
                                       .seq_length = 1,
                                       .microbatches = 1};
    *plan_data(b) = (PlanData){.vocab = 2, .shards = 1, .parts = 1};
    plan_add_memory(b, "arena", PLAN_MEMORY_DEVICE, 0, bytes);
    return b;
}

/* Writes and loads what was built; a complaint ends the test program. */
static inline Plan tiny_load(PlanBuilder *b)
{
    Buf out = {0};
    Plan p;
    Status s;

    plan_write(b, &out);
    s = plan_load(out.s, out.len, &p);
    if (s) {
        fprintf(stderr, "%s\n", status_text(s));
        exit(1);
    }
    buf_free(&out);
    plan_builder_free(b);
    return p;
}

#endif
