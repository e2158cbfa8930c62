/* memplan_host.c - which values lie in host memory.
 *
 *     func @layer.fwd(%x) {              func @stage.fwd
 *         %h = offload %a                    %y, %all = call @layer.fwd …
 *         return %y, %h          →           return %y, %all
 *     }                                  func @main: call @stage.bwd %all
 *
 * A value that `offload` made stays where it is on its way from the forward to
 * the backward: callers hold it, stacked over layers, and hand it on, until it
 * is fetched.  A function is called with the same kind of operands everywhere.
 */
#include "passes/memplan_priv.h"

static bool mark(bool *host, ValueId v)
{
    bool news = !host[v.i];

    host[v.i] = true;
    return news;
}

static bool mark_call(const Module *m, const Node *n, bool *host)
{
    const Func *f = &m->funcs.v[call_scan(m, n).callee.i];
    bool news = false;

    for (uint32_t i = 0; i < n->nres; i++)
        if (host[f->results.v[i].i])
            news |= mark(host, node_res(n, i));
    for (uint32_t i = 0; i < n->nargs; i++)
        if (host[node_arg(m, n, i).i])
            news |= mark(host, f->params.v[i]);
    return news;
}

static bool mark_body(const Module *m, const Func *f, bool *host)
{
    bool news = false;

    for (uint32_t i = 0; i < f->body.n; i++) {
        const Node *n = &m->nodes.v[f->body.v[i].i];
        if (n->op == OP_OFFLOAD)
            news |= mark(host, n->res);
        if (n->op == OP_CALL)
            news |= mark_call(m, n, host);
    }
    return news;
}

bool *host_values(Arena *a, const Module *m)
{
    bool *host = arena_array(a, bool, m->values.n);
    bool news = true;

    while (news) {
        news = false;
        for (uint32_t i = 1; i < m->funcs.n; i++)
            if (m->funcs.v[i].kind == FUNC_GRAPH)
                news |= mark_body(m, &m->funcs.v[i], host);
    }
    return host;
}
