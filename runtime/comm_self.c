/* comm_self.c - a world of one rank.
 *
 * Every group has one member, so a collective is a copy.  A plan of one rank
 * that sends messages is wrong, and is refused when it is opened.
 */
#include "runtime/comm.h"

static const Plan *self_plan(const void *self)
{
    return self;
}

static Status self_open(const Plan *p, uint32_t rank, void **out_self)
{
    (void)rank;
    if (p->job.v->world != 1)
        return status_make(STATUS_INPUT, "a plan for %u ranks needs MPI",
                           p->job.v->world);
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.v[i].op == PLAN_SEND || p->instrs.v[i].op == PLAN_RECV)
            return status_make(STATUS_INPUT, "a plan for one rank sends "
                                             "messages");
    memcpy(out_self, &p, sizeof p);
    return STATUS_NONE;
}

static void self_close(void *self)
{
    (void)self;
}

static Status self_start(void *self, const CommOp *op, uint32_t slot)
{
    const Plan *p = self_plan(self);
    const PlanCollective *c = &p->collectives.v[p->instrs.v[op->instr].index];

    (void)slot;
    if (op->source != op->destination)
        memmove(op->destination, op->source,
                (size_t)c->count * plan_dtype_bytes(c->dtype));
    return STATUS_NONE;
}

static Status self_test(void *self, uint32_t slot, bool *out_done)
{
    (void)self;
    (void)slot;
    *out_done = true;
    return STATUS_NONE;
}

const CommDriver comm_self = {"none", self_open, self_close, self_start,
                              self_test};
