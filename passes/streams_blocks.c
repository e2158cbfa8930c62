/* streams_blocks.c - blocks are moved by nodes of their own.
 *
 *     %y = all_to_all %x {dim=e, from=c}      %a = pack %x {dim=e}
 *     …                                  →    %b = all_to_all %a {packed=1 …}
 *     %z = dot %y, %w                         …
 *                                             %y = unpack %b {dim=c}
 *                                             %z = dot %y, %w
 *
 * A collective of the runtime works on contiguous parts (see streams.h).  What
 * lies otherwise is put in order by the compute stream, before it and after it.
 * As nodes of their own these moves leave the collective free to run beside
 * compute; what has arrived is put in order where it is first used.
 */
#include "passes/passes.h"
#include "passes/streams.h"
#include "passes/streams_priv.h"

/* The value with its parts along `dim` as messages have them, or back. */
static ValueId move(Module *m, FuncId f, Op op, ValueId v, const Node *n,
                    AttrKey dim)
{
    Attr list[] = {attr_of_int(AK_DIM, attr_int(m, n->attrs, dim, 0)),
                   attr_of_axes(AK_AXES, attr_axes(m, n->attrs, AK_AXES))};
    ValueId to =
        ir_op(m, f, op, &v, 1, attrs_intern(m, list, MC_LEN(list)), n->loc);

    value_of(m, to)->layout = value_of(m, v)->layout;
    return to;
}

/* A collective that finds and leaves its parts in order. */
static NodeId packed(Module *m, FuncId f, NodeId id, ValueId from)
{
    ValueMap map = {0};
    NodeId made;
    AttrsId attrs;

    vmap_set(&map, node_arg(m, node_of(m, id), 0), from);
    made = node_copy(m, f, id, &map);
    attrs = attrs_with(m, node_of(m, made)->attrs, attr_of_int(AK_PACKED, 1));
    node_of(m, made)->attrs = attrs;
    vmap_free(&map);
    return made;
}

static bool rebuild(void *self, FuncId f, NodeId id, ValueMap *map)
{
    Module *m = self;
    const Node n = *node_of(m, id);
    BlockMoves moves = streams_block_moves(m, &n);
    AttrKey joined = n.op == OP_ALL_TO_ALL ? AK_FROM_DIM : AK_DIM;
    ValueId v;

    if (!moves.before && !moves.after)
        return false;
    v = node_arg(m, &n, 0);
    if (moves.before)
        v = move(m, f, OP_PACK, v, &n, AK_DIM);
    v = node_of(m, packed(m, f, id, v))->res;
    if (moves.after)
        v = move(m, f, OP_UNPACK, v, &n, joined);
    value_like(m, n.res, v);
    vmap_set(map, n.res, v);
    return true;
}

static bool uses(const Module *m, const Node *n, ValueId v)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (node_arg(m, n, i).i == v.i)
            return true;
    return false;
}

/* Puts each unpack in front of what uses it first, or at the end. */
static void sink_unpacks(Module *m, FuncId f)
{
    NodeId *body = func_of(m, f)->body.v;
    uint32_t end = func_of(m, f)->body.n;

    for (uint32_t pos = end; pos-- > 0;) {
        NodeId id = body[pos];
        uint32_t to = pos + 1;
        if (node_of(m, id)->op != OP_UNPACK)
            continue;
        while (to < end && !uses(m, node_of(m, body[to]), node_of(m, id)->res))
            to++;
        memmove(body + pos, body + pos + 1, (to - pos - 1) * sizeof *body);
        body[to - 1] = id;
    }
}

void streams_split_blocks(Module *m, FuncId f)
{
    func_rebuild(m, f, rebuild, m);
    sink_unpacks(m, f);
}
