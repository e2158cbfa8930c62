/* verify_plan_order.c - what meets in a line is the same on all sides.
 *
 * MPI and NCCL match collectives of a communicator, and messages between two
 * ranks on one channel, by order alone.  So the n-th of each side must agree,
 * and all sides must have equally many.  What may not run is counted too: it
 * meets what runs if and only if it does itself.
 */
#include "codegen/verify_plan_priv.h"

static const Step *step_at(const Verify *v, const Line *line, uint32_t side,
                           uint32_t nth)
{
    return &v->traces[line->classes[side]].v[line->steps[side].v[nth]];
}

static const PlanOperand *source_at(const Verify *v, const Line *line,
                                    uint32_t side, uint32_t nth)
{
    const Plan *p = v->classes[line->classes[side]].plan;
    uint32_t instr = step_at(v, line, side, nth)->instr;
    return &p->operands.v[p->instrs.v[instr].operands.first];
}

/* Whether both sides carry the same, as far as they know. */
static bool same_content(const Verify *v, const Line *line, uint32_t side,
                         uint32_t nth)
{
    uint32_t x = source_at(v, line, 0, nth)->content;
    uint32_t y = source_at(v, line, side, nth)->content;
    return x == 0 || y == 0 || x == y;
}

/* ---- collectives --------------------------------------------------------- */

static const PlanCollective *collective_at(const Verify *v, const Line *line,
                                           uint32_t side, uint32_t nth)
{
    const Plan *p = v->classes[line->classes[side]].plan;
    uint32_t instr = step_at(v, line, side, nth)->instr;
    return &p->collectives.v[p->instrs.v[instr].index];
}

static bool same_collective(const PlanCollective *x, const PlanCollective *y)
{
    return x->kind == y->kind && x->reduce == y->reduce &&
           x->dtype == y->dtype && x->root == y->root && x->count == y->count;
}

/* The all-reduce that says how many iterations run around a step. */
static const Step *decision_of(const Verify *v, uint32_t c, const Step *step)
{
    const Trace *t = &v->traces[c];
    uint32_t low = 0, high = t->n;

    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;

        if (t->v[mid].number <= step->decided)
            low = mid;
        else
            high = mid;
    }
    return &t->v[low];
}

/* Whether it runs on both sides or on none. */
static bool same_trip(const Verify *v, const Line *line, uint32_t side,
                      uint32_t nth)
{
    const Step *x = step_at(v, line, 0, nth), *y = step_at(v, line, side, nth);
    const Step *dx, *dy;

    if (!x->decided || !y->decided)
        return x->decided == y->decided;
    dx = decision_of(v, line->classes[0], x);
    dy = decision_of(v, line->classes[side], y);
    return x->trip == y->trip && dx->line == dy->line && dx->nth == dy->nth;
}

static bool fail_collective(Verify *v, const Line *line, uint32_t side,
                            uint32_t nth)
{
    const Group *g = &v->groups.v[line->group];
    diag_error(v->diag, (Loc){0}, "MC0703",
               "collective %u of group %s on stream %s is not the same on all "
               "ranks",
               nth, plan_text(g->plan, g->plan->groups.v[g->row].name),
               line->name);
    for (uint32_t k = 0; k <= side; k += side) {
        uint32_t c = line->classes[k];
        if (nth < line->steps[k].n)
            verify_note(v, c, step_at(v, line, k, nth));
        else
            diag_note(v->diag, (Loc){0}, "rank %u issues only %u",
                      v->classes[c].ranks[0], line->steps[k].n);
    }
    return false;
}

static bool line_of_collectives(Verify *v, const Line *line)
{
    for (uint32_t side = 1; side < line->nclasses; side++) {
        uint32_t n = line->steps[0].n, m = line->steps[side].n;
        for (uint32_t i = 0; i < MC_MIN(n, m); i++)
            if (!same_content(v, line, side, i) ||
                !same_trip(v, line, side, i) ||
                !same_collective(collective_at(v, line, 0, i),
                                 collective_at(v, line, side, i)))
                return fail_collective(v, line, side, i);
        if (n != m)
            return fail_collective(v, line, side, MC_MIN(n, m));
    }
    return true;
}

/* ---- messages ------------------------------------------------------------ */

static bool fail_message(Verify *v, const Line *line, uint32_t nth,
                         const char *what)
{
    diag_error(v->diag, (Loc){0}, "MC0704", "message %u on channel %u %s", nth,
               line->channel, what);
    for (uint32_t side = 0; side < 2; side++)
        if (nth < line->steps[side].n)
            verify_note(v, line->classes[side], step_at(v, line, side, nth));
    return false;
}

/* Whoever receives from a rank is whom that rank sends to. */
static bool peers_agree(const Verify *v, const Line *line)
{
    const PlanClass *from = &v->classes[line->classes[0]];
    const PlanClass *to = &v->classes[line->classes[1]];
    for (uint32_t i = 0; i < from->n; i++) {
        uint32_t rank = from->ranks[i];
        uint32_t other = plan_peer_rank(from->plan, line->peer[0], rank);
        if (plan_peer_rank(to->plan, line->peer[1], other) != rank)
            return false;
    }
    return true;
}

static bool line_of_messages(Verify *v, const Line *line)
{
    uint32_t sends = line->steps[0].n, recvs = line->steps[1].n;
    for (uint32_t i = 0; i < MC_MIN(sends, recvs); i++) {
        if (source_at(v, line, 0, i)->bytes != source_at(v, line, 1, i)->bytes)
            return fail_message(v, line, i, "is not as long as expected");
        if (!same_content(v, line, 1, i))
            return fail_message(v, line, i, "is not what is expected");
    }
    if (sends > recvs)
        return fail_message(v, line, recvs, "is never received");
    if (sends < recvs)
        return fail_message(v, line, sends, "is never sent");
    if (!peers_agree(v, line))
        return fail_message(v, line, 0, "does not come from whom it should");
    return true;
}

bool verify_order(Verify *v)
{
    for (uint32_t i = 0; i < v->lines.n; i++) {
        const Line *line = &v->lines.v[i];
        if (line->group == UINT32_MAX ? !line_of_messages(v, line)
                                      : !line_of_collectives(v, line))
            return false;
    }
    return true;
}
