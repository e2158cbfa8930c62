/* streams_sink.c - what a collective has summed is added up later.
 *
 *     %g = reduce_scatter %d                %g = reduce_scatter %d      starts
 *     row %g {@accum}                       %e = dot …               meanwhile
 *     %e = dot …                  →         row %g {@accum}              waits
 *     %h = reduce_scatter %e                %h = reduce_scatter %e      starts
 *     row %h {@accum}                       …
 *
 * Nobody in a layer needs its gradients, so each waits until the next is ready:
 * by then the collective has run beside the compute nodes between, and no more
 * than two gradients are whole at a time.
 */
#include "passes/effects.h"
#include "passes/memplan.h"
#include "passes/streams_priv.h"

typedef struct {
    const Module *m;
    const Effects *fx;
    Func *f;
} Sink;

static const Node *node_at(const Sink *s, uint32_t pos)
{
    return &s->m->nodes.v[s->f->body.v[pos].i];
}

static bool uses(const Sink *s, const Node *n, ValueId v)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (node_arg(s->m, n, i).i == v.i)
            return true;
    return false;
}

/* Whether the node at `pos` does no more than to add up what the collective
 * before it has summed, which nobody else uses. */
static bool is_sum_of_collective(const Sink *s, uint32_t pos)
{
    const Node *n = node_at(s, pos), *maker;
    TensorId t;
    Field f;
    uint32_t users = 0;

    if (!memplan_accumulates(s->m, n, &t, &f) || pos == 0)
        return false;
    maker = node_at(s, pos - 1);
    if (!(op_info[maker->op].flags & OPF_COMM) || !uses(s, n, maker->res))
        return false;
    for (uint32_t i = pos; i < s->f->body.n; i++)
        users += uses(s, node_at(s, i), maker->res);
    return users == 1;
}

static bool touches_same(const Sink *s, uint32_t pos, uint32_t other)
{
    StateUses a = s->fx->node[s->f->body.v[pos].i];
    StateUses b = s->fx->node[s->f->body.v[other].i];

    for (uint32_t i = 0; i < a.n; i++)
        if (effects_find(s->m, b, a.v[i].tensor, a.v[i].field))
            return true;
    return false;
}

/* Where the sum at `pos` goes: in front of the node there. */
static uint32_t place_of(const Sink *s, uint32_t pos, uint32_t limit)
{
    uint32_t to = pos + 1;

    while (to < limit && !touches_same(s, pos, to))
        to++;
    return to;
}

static void move(Sink *s, uint32_t from, uint32_t before)
{
    NodeId moved = s->f->body.v[from];

    for (uint32_t i = from; i + 1 < before; i++)
        s->f->body.v[i] = s->f->body.v[i + 1];
    s->f->body.v[before - 1] = moved;
}

void streams_sink_sums(Module *m, const Effects *fx, FuncId f)
{
    Sink s = {m, fx, func_of(m, f)};
    uint32_t limit = s.f->body.n;

    for (uint32_t pos = s.f->body.n; pos-- > 0;) {
        if (!is_sum_of_collective(&s, pos))
            continue;
        move(&s, pos, place_of(&s, pos, limit));
        limit = pos - 1;
    }
}
