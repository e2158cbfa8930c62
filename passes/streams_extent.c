/* streams_extent.c - how long a node may be running.
 *
 *     compute  a   event 1          b      wait 2   c
 *     dp               wait 1   all_reduce   event 2
 *                      |--------------------------|   its span
 *
 * Whatever memory the all_reduce touches belongs to it for the whole span.
 * Without a wait behind it, it may run until the function ends, where streams
 * join.
 */
#include "passes/streams.h"

static const Node *node_at(const Module *m, const Func *f, uint32_t pos)
{
    return &m->nodes.v[f->body.v[pos].i];
}

static bool is_message(const Node *n)
{
    return n->op == OP_SEND || n->op == OP_RECV;
}

bool streams_joined(const Module *m, FuncId f, uint32_t pos)
{
    const Func *func = &m->funcs.v[f.i];

    return pos > 0 && is_message(node_at(m, func, pos)) &&
           is_message(node_at(m, func, pos - 1)) &&
           node_at(m, func, pos)->stream == node_at(m, func, pos - 1)->stream;
}

/* The compute stream goes on after a message's own position as soon as it is
 * done, so a run of joined messages is one node. */
static void span_joined(const Module *m, FuncId f, uint32_t pos,
                        int32_t *out_begin, int32_t *out_done)
{
    uint32_t begin = pos, done = pos;

    while (streams_joined(m, f, begin))
        begin--;
    while (done + 1 < m->funcs.v[f.i].body.n &&
           streams_joined(m, f, done + 1))
        done++;
    *out_begin = (int32_t)begin;
    *out_done = (int32_t)done;
}

void streams_extents(const Module *m, FuncId f, int32_t *out_begin,
                     int32_t *out_done)
{
    for (uint32_t pos = 0; pos < m->funcs.v[f.i].body.n; pos++)
        span_joined(m, f, pos, &out_begin[pos], &out_done[pos]);
}
