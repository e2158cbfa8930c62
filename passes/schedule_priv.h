/* schedule_priv.h - shared by the schedule*.c files. */
#ifndef MEGAC_SCHEDULE_PRIV_H
#define MEGAC_SCHEDULE_PRIV_H

#include "passes/passes.h"

/* Appends the actions of one pipeline rank. */
typedef void (*ScheduleGenerator)(Schedule *s, uint32_t rank);

static inline void schedule_act(Schedule *s, uint32_t rank, ActionKind kind,
                                uint32_t chunk, uint32_t microbatch)
{
    Action a = {kind, chunk, microbatch, false};

    vec_push(&s->ranks[rank], a);
}

/* ---- schedule_zero.c ----------------------------------------------------- */
void schedule_zb_h1(Schedule *s, uint32_t rank);
void schedule_zb_v(Schedule *s, uint32_t rank);
void schedule_dualpipe_v(Schedule *s, uint32_t rank);

#endif
