/* streams_hoist.c - work from further on for the time of a collective.
 *
 *     %r = all_to_all %d                %r = all_to_all %d            starts
 *     %e = dot %r, %w           →       %p = dots %n, %u           meanwhile
 *     …                                 %e = dot %r, %w                waits
 *     %p = dots %n, %u                  …
 *
 * While tokens travel to their experts, the shared experts can work on those
 * that are here.  In general: if no product stands between a collective and
 * where it is waited for, the nearest one from further on that waits for
 * nothing is put there, together with what leads to that product.  One each,
 * for what is made earlier is held longer.
 */
#include "passes/effects.h"
#include "passes/streams_priv.h"

typedef struct {
    const Module *m;
    const Effects *fx;
    FuncId id;
    Func *f;
    bool *moves; /* by position: it goes with the product */
} Hoist;

static const Node *node_at(const Hoist *h, uint32_t pos)
{
    return &h->m->nodes.v[h->f->body.v[pos].i];
}

/* ---- what may go earlier ------------------------------------------------- */

static StateUses touched(const Hoist *h, uint32_t pos)
{
    return h->fx->node[h->f->body.v[pos].i];
}

static bool writes_state(StateUses uses)
{
    for (uint32_t i = 0; i < uses.n; i++)
        if (uses.v[i].writes)
            return true;
    return false;
}

/* A node that does no more than to make its results; a collective within a
 * stage is one, for all its ranks move it alike. */
static bool is_pure(const Hoist *h, uint32_t pos)
{
    const Node *n = node_at(h, pos);

    if (n->op == OP_CALL || writes_state(touched(h, pos)) ||
        effects_span_stages(h->m, n))
        return false;
    return n->op == OP_ROW || !(op_info[n->op].flags & OPF_EFFECT);
}

/* Whether the node at `other` writes what the one at `pos` reads. */
static bool changes(const Hoist *h, uint32_t other, uint32_t pos)
{
    StateUses reads = touched(h, pos), all = touched(h, other);

    for (uint32_t i = 0; i < reads.n; i++) {
        const StateUse *use =
            effects_find(h->m, all, reads.v[i].tensor, reads.v[i].field);
        if (use && use->writes)
            return true;
    }
    return false;
}

/* The position of what makes `v` in [from, to), or `to`. */
static uint32_t maker(const Hoist *h, ValueId v, uint32_t from, uint32_t to)
{
    while (from < to && v.i - node_at(h, from)->res.i >= node_at(h, from)->nres)
        from++;
    return from;
}

/* Whether the node at `pos` waits for a collective that runs at `from`: the one
 * that is given work, or another. */
static bool waits(const Hoist *h, uint32_t pos, uint32_t from)
{
    for (uint32_t i = 0; i < from; i++)
        if (streams_is_collective(node_at(h, i)) &&
            streams_uses(h->m, node_at(h, pos), node_at(h, i)->res) &&
            streams_first_use(h->m, h->id, i) >= from)
            return true;
    return false;
}

/* Marks the node at `pos` and what leads to it from `from` on; false if one of
 * these waits itself, or has to stay behind `from`. */
static bool may_come(Hoist *h, uint32_t pos, uint32_t from)
{
    const Node *n = node_at(h, pos);

    if (!is_pure(h, pos) || waits(h, pos, from))
        return false;
    for (uint32_t i = from; i < pos; i++)
        if (changes(h, i, pos))
            return false;
    h->moves[pos] = true;
    for (uint32_t i = 0; i < n->nargs; i++) {
        uint32_t at = maker(h, node_arg(h->m, n, i), from, pos);
        if (at < pos && !h->moves[at] && !may_come(h, at, from))
            return false;
    }
    return true;
}

/* ---- moving -------------------------------------------------------------- */

/* Puts the marked nodes of [from, to] in front of the others. */
static void move_marked(Hoist *h, uint32_t from, uint32_t to)
{
    uint32_t at = from;

    for (uint32_t pos = from; pos <= to; pos++) {
        NodeId moved = h->f->body.v[pos];
        if (!h->moves[pos])
            continue;
        for (uint32_t i = pos; i > at; i--)
            h->f->body.v[i] = h->f->body.v[i - 1];
        h->f->body.v[at++] = moved;
    }
}

/* The nearest product behind `from` that can be put there. */
static void bring_product(Hoist *h, uint32_t from)
{
    for (uint32_t pos = from + 1; pos < h->f->body.n; pos++) {
        if (!streams_is_product(node_at(h, pos)))
            continue;
        memset(h->moves, 0, h->f->body.n * sizeof *h->moves);
        if (!may_come(h, pos, from))
            continue;
        move_marked(h, from, pos);
        return;
    }
}

void streams_hoist_products(Module *m, const Effects *fx, FuncId f,
                            const bool *serial)
{
    Arena *scratch = arena_new();
    Hoist h = {.m = m, .fx = fx, .id = f, .f = func_of(m, f)};

    h.moves = arena_array(scratch, bool, h.f->body.n);
    for (uint32_t pos = 0; pos < h.f->body.n; pos++) {
        const Node *n = node_at(&h, pos);
        if (streams_is_collective(n) && !serial[streams_of(m, n)] &&
            streams_lacks_work(m, f, pos))
            bring_product(&h, streams_first_use(m, f, pos));
    }
    arena_free(scratch);
}
