/* streams_delay.c - work for the time of a collective.
 *
 *     %w = dot %dy, %a                      %d = dots_sum …
 *     accum %w {tensor=@down}               %x = all_reduce %d      starts
 *     %d = dots_sum …              →        %w = dot %dy, %a        meanwhile
 *     %x = all_reduce %d                    accum %w {tensor=@down}
 *     %y = row %x                           %y = row %x             waits
 *
 * The backward makes gradients of weights that nobody needs soon.  A
 * collective that somebody waits for gets the nearest of those before it to run
 * beside; one each, for a delayed product keeps its operands alive.
 */
#include "passes/effects.h"
#include "passes/memplan.h"
#include "passes/streams_priv.h"

/* A product and, unless it accumulates itself, the node that adds it up. */
typedef struct {
    uint32_t product, sum; /* positions; equal if they are one node */
} Delayed;

typedef struct {
    const Module *m;
    const Effects *fx;
    Func *f;
} Delay;

static const Node *node_at(const Delay *d, uint32_t pos)
{
    return &d->m->nodes.v[d->f->body.v[pos].i];
}

/* The one node before `end` that uses the result of the node at `pos`, if
 * nothing behind uses it either; `end` if there is none. */
static uint32_t only_user(const Delay *d, uint32_t pos, uint32_t end)
{
    uint32_t found = end;

    for (uint32_t i = pos + 1; i < d->f->body.n; i++) {
        if (!streams_uses(d->m, node_at(d, i), node_at(d, pos)->res))
            continue;
        if (found != end || i >= end)
            return end;
        found = i;
    }
    for (uint32_t i = 0; i < d->f->results.n; i++)
        if (d->f->results.v[i].i == node_at(d, pos)->res.i)
            return end;
    return found;
}

/* A product at `pos` that only goes into a gradient, before `end`. */
static bool find_product(const Delay *d, uint32_t pos, uint32_t end,
                         Delayed *out)
{
    const Node *n = node_at(d, pos);
    TensorId t;
    Field f;

    *out = (Delayed){pos, pos};
    if (n->op == OP_DOTS_ACCUM)
        return true;
    if (n->op != OP_DOT && n->op != OP_DOT_FILLED)
        return false;
    out->sum = only_user(d, pos, end);
    return out->sum < end &&
           memplan_accumulates(d->m, node_at(d, out->sum), &t, &f);
}

/* Nothing between the sum and `end` touches what it adds to. */
static bool may_wait(const Delay *d, const Delayed *p, uint32_t end)
{
    StateUses sums = d->fx->node[d->f->body.v[p->sum].i];

    for (uint32_t i = p->sum + 1; i < end; i++) {
        StateUses other = d->fx->node[d->f->body.v[i].i];
        for (uint32_t k = 0; k < sums.n; k++)
            if (effects_find(d->m, other, sums.v[k].tensor, sums.v[k].field))
                return false;
    }
    return true;
}

/* Moves the node at `from` to just behind the one at `to`. */
static void move_behind(Delay *d, uint32_t from, uint32_t to)
{
    NodeId moved = d->f->body.v[from];

    for (uint32_t i = from; i < to; i++)
        d->f->body.v[i] = d->f->body.v[i + 1];
    d->f->body.v[to] = moved;
}

/* The first use of what the latest collective before `pos` makes: until there,
 * products are its own company.  0 if there is none. */
static uint32_t company_end(const Delay *d, uint32_t pos)
{
    uint32_t before = pos, use;
    ValueId made;

    while (before > 0 && !streams_is_collective(node_at(d, before - 1)))
        before--;
    if (before == 0)
        return 0;
    use = before;
    made = node_at(d, before - 1)->res;
    while (use < pos && !streams_uses(d->m, node_at(d, use), made))
        use++;
    return use;
}

static void give_work(Delay *d, uint32_t collective)
{
    uint32_t least = company_end(d, collective);

    for (uint32_t pos = collective; pos-- > least;) {
        Delayed p;
        if (!find_product(d, pos, collective, &p) ||
            !may_wait(d, &p, collective))
            continue;
        if (p.sum != p.product)
            move_behind(d, p.sum, collective);
        move_behind(d, p.product,
                    p.sum != p.product ? collective - 1 : collective);
        return;
    }
}

void streams_delay_products(Module *m, const Effects *fx, FuncId f)
{
    Delay d = {m, fx, func_of(m, f)};

    for (uint32_t pos = 0; pos < d.f->body.n; pos++)
        if (streams_is_collective(node_at(&d, pos)) &&
            streams_lacks_work(m, f, pos))
            give_work(&d, pos);
}
