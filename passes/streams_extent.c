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
#include "passes/streams_priv.h"

static const Node *node_at(const Module *m, const Func *f, uint32_t pos)
{
    return &m->nodes.v[f->body.v[pos].i];
}

static bool is_message(const Node *n)
{
    return n->op == OP_SEND || n->op == OP_RECV;
}

enum { MANY_PIECES = 256, SMALL_PIECE = 4096 }; /* elements */

int64_t streams_outer_size(const Module *m, ValueId v, char dim)
{
    const Type *t = value_type(m, v);
    const Layout *l = layout_of(m, m->values.v[v.i].layout);
    int64_t size = 1;

    for (uint8_t i = 0; i < t->ndim && t->dim[i] != dim; i++)
        size *= layout_local(m, t, l, t->dim[i]);
    return size;
}

/* For a gather or scatter whose smaller value is `part`. */
static int64_t piece_count(const Module *m, ValueId part, char dim)
{
    const Layout *l = layout_of(m, m->values.v[part.i].layout);
    int64_t elems = layout_local_elems(m, value_type(m, part), l);
    int64_t pieces = streams_outer_size(m, part, dim);

    return pieces <= MANY_PIECES && elems / pieces >= SMALL_PIECE ? pieces : 1;
}

BlockMoves streams_block_moves(const Module *m, const Node *n)
{
    char dim = (char)attr_int(m, n->attrs, AK_DIM, 0);
    char from = (char)attr_int(m, n->attrs, AK_FROM_DIM, 0);
    BlockMoves moves = {false, false, 1};

    if (attr_int(m, n->attrs, AK_PACKED, 0))
        return moves;
    if (n->op == OP_ALL_GATHER) {
        moves.pieces = piece_count(m, node_arg(m, n, 0), dim);
        moves.after =
            moves.pieces == 1 && streams_outer_size(m, n->res, dim) > 1;
    } else if (n->op == OP_REDUCE_SCATTER) {
        moves.pieces = piece_count(m, n->res, dim);
        moves.before = moves.pieces == 1 &&
                       streams_outer_size(m, node_arg(m, n, 0), dim) > 1;
    } else if (n->op == OP_ALL_TO_ALL) {
        moves.before = streams_outer_size(m, node_arg(m, n, 0), dim) > 1;
        moves.after = streams_outer_size(m, n->res, from) > 1;
    }
    return moves;
}

bool streams_joined(const Module *m, FuncId f, uint32_t pos)
{
    const Func *func = &m->funcs.v[f.i];

    return pos > 0 && is_message(node_at(m, func, pos)) &&
           is_message(node_at(m, func, pos - 1)) &&
           node_at(m, func, pos)->stream == node_at(m, func, pos - 1)->stream;
}

/* The latest mark of the compute stream that `stream` waited for before `pos`:
 * its position, or -1. */
static int32_t span_begin(const Module *m, const Func *f, uint32_t pos)
{
    uint16_t stream = node_at(m, f, pos)->stream;
    int64_t event = -1;

    while (pos-- > 0) {
        const Node *n = node_at(m, f, pos);
        if (n->op == OP_WAIT && n->stream == stream && event < 0)
            event = attr_int(m, n->attrs, AK_EVENT, 0);
        if (n->op == OP_EVENT && n->stream == STREAM_COMPUTE && event >= 0 &&
            attr_int(m, n->attrs, AK_EVENT, 0) == event)
            return (int32_t)pos;
    }
    return -1;
}

/* The first wait of the compute stream for a mark that `stream` makes behind
 * `pos`: its position, or the end. */
static int32_t span_done(const Module *m, const Func *f, uint32_t pos)
{
    uint16_t stream = node_at(m, f, pos)->stream;
    int64_t event = -1;

    for (pos++; pos < f->body.n; pos++) {
        const Node *n = node_at(m, f, pos);
        if (n->op == OP_EVENT && n->stream == stream && event < 0)
            event = attr_int(m, n->attrs, AK_EVENT, 0);
        if (n->op == OP_WAIT && n->stream == STREAM_COMPUTE && event >= 0 &&
            attr_int(m, n->attrs, AK_EVENT, 0) == event)
            return (int32_t)pos;
    }
    return (int32_t)f->body.n;
}

void streams_extents(const Module *m, FuncId f, int32_t *out_begin,
                     int32_t *out_done)
{
    const Func *func = &m->funcs.v[f.i];

    for (uint32_t pos = 0; pos < func->body.n; pos++) {
        const Node *n = node_at(m, func, pos);
        bool compute = n->stream == STREAM_COMPUTE || n->op == OP_EVENT ||
                       n->op == OP_WAIT;
        out_begin[pos] = compute ? (int32_t)pos : span_begin(m, func, pos);
        out_done[pos] = compute ? (int32_t)pos : span_done(m, func, pos);
    }
}
