/* streams_work.c - what is worth the time of a collective.
 *
 * A collective runs beside the nodes between it and the first use of its
 * result.  If there is no product among them, somebody waits: streams_delay.c
 * and streams_hoist.c then look for one before it and behind it.
 */
#include "passes/streams_priv.h"

static const Node *node_at(const Module *m, FuncId f, uint32_t pos)
{
    return &m->nodes.v[m->funcs.v[f.i].body.v[pos].i];
}

bool streams_is_product(const Node *n)
{
    return n->op == OP_DOT || n->op == OP_DOTS || n->op == OP_DOT_FILLED;
}

/* Products, attention, and all that is in a function. */
static bool is_work(const Node *n)
{
    switch (n->op) {
    case OP_CALL:
    case OP_DOTS_SUM:
    case OP_DOTS_ACCUM:
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_STEP_GRAD:
        return true;
    default:
        return streams_is_product(n);
    }
}

bool streams_uses(const Module *m, const Node *n, ValueId v)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (flat_source(m, node_arg(m, n, i)).i == v.i)
            return true;
    return false;
}

uint32_t streams_first_use(const Module *m, FuncId f, uint32_t pos)
{
    ValueId v = node_at(m, f, pos)->res;

    while (++pos < m->funcs.v[f.i].body.n)
        if (node_at(m, f, pos)->op != OP_UNFLATTEN &&
            streams_uses(m, node_at(m, f, pos), v))
            break;
    return pos;
}

bool streams_lacks_work(const Module *m, FuncId f, uint32_t pos)
{
    uint32_t use = streams_first_use(m, f, pos);

    if (use == m->funcs.v[f.i].body.n || node_at(m, f, use)->op == OP_WRITE)
        return false;
    while (++pos < use)
        if (is_work(node_at(m, f, pos)))
            return false;
    return true;
}
