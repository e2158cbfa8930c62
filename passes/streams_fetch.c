/* streams_fetch.c - what rests in host memory is fetched in time.
 *
 *     row … {@update.q}                  %m = read {@k.m}             starts
 *     %m = read {@k.m}             →     row … {@update.q}          meanwhile
 *     row %m … {@update.k}               row %m … {@update.k}          waits
 *
 * Each read goes in front of the node that computes before it, so that one
 * tensor's state arrives while the one before is updated, and two of them are
 * on the device at a time.
 */
#include "passes/effects.h"
#include "passes/streams_priv.h"

bool streams_moves_memory(const Module *m, const Node *n)
{
    Field f;
    TensorId t;

    if (n->op == OP_OFFLOAD || n->op == OP_FETCH)
        return true;
    if (n->op != OP_READ && n->op != OP_WRITE)
        return false;
    t = effects_target(m, n, &f);
    return (m->tensors.v[t.i].host >> f & 1) != 0;
}

static const Node *node_at(const Module *m, FuncId f, uint32_t pos)
{
    return &m->nodes.v[m->funcs.v[f.i].body.v[pos].i];
}

/* Whether the two name the same field. */
static bool same_field(const Module *m, const Node *a, const Node *b)
{
    Field f, g;
    TensorId t = effects_target(m, a, &f), u = effects_target(m, b, &g);

    return t.i == u.i && f == g;
}

/* Where a read may go: in front of the last node that computes before it, but
 * behind what writes its field. */
static uint32_t early_place(const Module *m, FuncId f, uint32_t pos)
{
    const Node *read = node_at(m, f, pos);
    uint32_t to = pos;

    while (to > 0) {
        const Node *n = node_at(m, f, to - 1);
        bool name = n->op == OP_READ || n->op == OP_WRITE;
        if (n->op == OP_CALL || (name && same_field(m, read, n)))
            return pos;
        to--;
        if (!name)
            return to;
    }
    return pos;
}

void streams_fetch_early(Module *m, FuncId f)
{
    for (uint32_t pos = 0; pos < func_of(m, f)->body.n; pos++) {
        const Node *n = node_at(m, f, pos);
        NodeId *body = func_of(m, f)->body.v, read = body[pos];
        uint32_t to;
        if (n->op != OP_READ || !streams_moves_memory(m, n))
            continue;
        to = early_place(m, f, pos);
        memmove(body + to + 1, body + to, (pos - to) * sizeof *body);
        body[to] = read;
    }
}
