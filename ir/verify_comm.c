/* verify_comm.c - how a collective turns one layout into another.
 *
 *   all_gather      d@a.t -> d@a          the last atoms leave the split
 *   reduce_scatter  d@a +t -> d@a.t       a partial sum becomes a split
 *   all_reduce      +t -> nothing         … or vanishes (_max: ^t)
 *   all_to_all      e@a.t -> d@b.t        the atoms move from `from` to `dim`
 *   slice           d@a -> d@a.t          a whole value is cut
 *   only            nothing -> +t         a whole value becomes one addend
 *
 * t are the atoms of `axes`, together the last of the split, so that a rank's
 * part stays contiguous.  Whatever is not named stays as it is.
 */
#include "ir/ir_priv.h"

typedef struct {
    const Layout *from, *to;
    AxisSet axes;
    char dim, from_dim;
} Move;

/* `longer` is `shorter` with the atoms of `axes` behind, in any order. */
static bool extends(const Split *longer, const Split *shorter, AxisSet axes)
{
    uint8_t n = shorter ? shorter->n : 0;
    AxisSet rest = 0;

    if (!longer || longer->n <= n ||
        (n && memcmp(longer->atom, shorter->atom, n)))
        return false;
    for (uint8_t i = n; i < longer->n; i++)
        rest |= (AxisSet)1 << longer->atom[i];
    return rest == axes;
}

/* All splits agree except those of the two dimensions. */
static bool others_agree(const Move *mv)
{
    for (char dim = 'a'; dim <= 'z'; dim++)
        if (dim != mv->dim && dim != mv->from_dim &&
            !split_equal(layout_split(mv->from, dim),
                        layout_split(mv->to, dim)))
            return false;
    return true;
}

static bool moves_split(const Move *mv, Op op)
{
    const Split *before = layout_split(mv->from, mv->dim);
    const Split *after = layout_split(mv->to, mv->dim);

    switch (op) {
    case OP_ALL_GATHER:
        return extends(before, after, mv->axes);
    case OP_REDUCE_SCATTER:
    case OP_SLICE:
        return extends(after, before, mv->axes);
    case OP_ALL_TO_ALL:
        return extends(after, before, mv->axes) &&
               extends(layout_split(mv->from, mv->from_dim),
                       layout_split(mv->to, mv->from_dim), mv->axes);
    default:
        return split_equal(before, after);
    }
}

static bool moves_partial(const Move *mv, Op op)
{
    AxisSet sum = mv->from->partial, max = mv->from->partial_max;
    bool reduces = op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER;

    if ((reduces && (sum & mv->axes) != mv->axes) ||
        (op == OP_ALL_REDUCE_MAX && (max & mv->axes) != mv->axes) ||
        (op == OP_ONLY && (sum & mv->axes)))
        return false;
    if (reduces)
        sum &= ~mv->axes;
    else if (op == OP_ALL_REDUCE_MAX)
        max &= ~mv->axes;
    else if (op == OP_ONLY)
        sum |= mv->axes;
    return mv->to->partial == sum && mv->to->partial_max == max;
}

/* Layouts say nothing of pipeline stages: each runs a program of its own, and
 * reducing over them adds up whatever values they hold. */
static AxisSet stage_axes(const Module *m, Op op)
{
    bool reduces = op == OP_ALL_REDUCE || op == OP_ALL_REDUCE_MAX;

    return reduces ? mesh_axis(m, "pp") | mesh_axis(m, "embed") : 0;
}

const char *comm_layout_problem(const Module *m, const Node *n)
{
    Move mv = {
        .from = layout_of(m, m->values.v[node_arg(m, n, 0).i].layout),
        .to = layout_of(m, m->values.v[n->res.i].layout),
        .axes = attr_axes(m, n->attrs, AK_AXES) & ~stage_axes(m, (Op)n->op),
        .dim = (char)attr_int(m, n->attrs, AK_DIM, 0),
        .from_dim = (char)attr_int(m, n->attrs, AK_FROM_DIM, 0)};
    Op op = (Op)n->op;

    return others_agree(&mv) && moves_split(&mv, op) && moves_partial(&mv, op)
               ? NULL
               : "does not turn its operand's layout into its result's";
}
