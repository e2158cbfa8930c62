/* streams_choose.c - which nodes leave the compute stream, and for which one.
 *
 * A message of the pipeline, and a copy to or from host memory, always does.  A
 * collective does if there is something to run beside: work between it and the
 * first use of its result, or a collective of its kind that it can start with.
 * Its stream is that of its axis, but tokens that go to their experts, whatever
 * axes those are laid over, have one of their own.
 */
#include "passes/effects.h"
#include "passes/streams_priv.h"

/* ---- which stream -------------------------------------------------------- */

bool streams_is_message(const Node *n)
{
    return n->op == OP_SEND || n->op == OP_RECV;
}

bool streams_is_collective(const Node *n)
{
    return (op_info[n->op].flags & OPF_COMM) && !streams_is_message(n);
}

bool streams_is_name(const Module *m, const Node *n)
{
    return n->op == OP_UNFLATTEN ||
           ((n->op == OP_READ || n->op == OP_WRITE) &&
            !streams_moves_memory(m, n));
}

/* What takes no time, or nearly: at most it puts zeros behind lines. */
static bool is_light(const Module *m, const Node *n)
{
    return streams_is_name(m, n) || n->op == OP_FLATTEN;
}

/* Odd channels carry gradients backward (see pipeline_action.c). */
static Stream message_stream(const Module *m, const Node *n)
{
    bool backward = attr_int(m, n->attrs, AK_TAG, 0) & 1;

    if (n->op == OP_SEND)
        return backward ? STREAM_SEND_BWD : STREAM_SEND_FWD;
    return backward ? STREAM_RECV_BWD : STREAM_RECV_FWD;
}

/* Tokens on their way to experts, or back: slots of experts, and tokens (not
 * heads, which attention exchanges) that leave their replica or their part of
 * the sequence. */
static bool is_for_experts(const Module *m, const Node *n)
{
    const Type *t = value_type(m, node_arg(m, n, 0));
    AxisSet beyond = mesh_axis(m, "dp") | mesh_axis(m, "cp");

    if (type_dim(t, 'c') >= 0)
        return true;
    return (attr_axes(m, n->attrs, AK_AXES) & beyond) &&
           type_dim(t, 's') >= 0 && type_dim(t, 'g') < 0;
}

Stream streams_of(const Module *m, const Node *n)
{
    static const struct {
        const char *axis;
        Stream stream;
    } axes[] = {{"dp", STREAM_DP},
                {"embed", STREAM_DP},
                {"pp", STREAM_PP},
                {"cp", STREAM_CP}};
    AxisSet set = attr_axes(m, n->attrs, AK_AXES);

    if (streams_is_message(n))
        return message_stream(m, n);
    if (streams_moves_memory(m, n))
        return STREAM_COPY;
    if (is_for_experts(m, n))
        return STREAM_EP;
    for (size_t i = 0; i < MC_LEN(axes); i++)
        if (set & mesh_axis(m, axes[i].axis))
            return axes[i].stream;
    return STREAM_TP;
}

/* ---- what runs beside compute -------------------------------------------- */

static const Node *node_at(const StreamChoice *c, uint32_t pos)
{
    return &c->m->nodes.v[c->m->funcs.v[c->f.i].body.v[pos].i];
}

static uint32_t body_size(const StreamChoice *c)
{
    return c->m->funcs.v[c->f.i].body.n;
}

static bool uses(const StreamChoice *c, const Node *n, const Node *maker)
{
    for (uint32_t i = 0; i < n->nargs; i++)
        if (flat_source(c->m, node_arg(c->m, n, i)).i - maker->res.i <
            maker->nres)
            return true;
    return false;
}

/* Whether there is work between a collective and its first use. */
static bool has_slack(const StreamChoice *c, uint32_t pos)
{
    const Node *n = node_at(c, pos);

    while (++pos < body_size(c))
        if (!is_light(c->m, node_at(c, pos)))
            return !uses(c, node_at(c, pos), n);
    return false;
}

static bool is_sum(const Node *n)
{
    return n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER;
}

bool streams_is_loose(const StreamChoice *c, uint32_t pos)
{
    const Node *n = node_at(c, pos);

    if (c->step || !is_sum(n) || streams_of(c->m, n) != STREAM_DP)
        return false;
    while (++pos < body_size(c))
        if (uses(c, node_at(c, pos), n) && node_at(c, pos)->op != OP_WRITE)
            return false;
    return true;
}

/* Whether only names stand between it and a collective of its kind that runs
 * beside compute: the two can start together. */
static bool has_company(const StreamChoice *c, uint32_t pos)
{
    const Node *n = node_at(c, pos);

    while (pos-- > 0) {
        const Node *before = node_at(c, pos);
        if (!is_light(c->m, before))
            return before->op == n->op && before->stream == streams_of(c->m, n);
    }
    return false;
}

/* Whether its stream would have to finish earlier what is needed later, and
 * nothing of weight is computed meanwhile. */
static bool hurries(const StreamChoice *c, uint32_t pos)
{
    Stream stream = streams_of(c->m, node_at(c, pos));
    uint32_t use = streams_first_use(c->m, c->f, pos);

    if (c->step || !streams_lacks_work(c->m, c->f, pos))
        return false;
    for (uint32_t i = 0; i < pos; i++)
        if (node_at(c, i)->stream == stream && node_at(c, i)->nres &&
            streams_first_use(c->m, c->f, i) > use)
            return true;
    return false;
}

/* What spans stages runs beside compute in all of them, or else their ranks
 * would disagree on the stream. */
bool streams_is_async(const StreamChoice *c, uint32_t pos)
{
    const Node *n = node_at(c, pos);

    if (streams_is_message(n) || streams_moves_memory(c->m, n) ||
        streams_is_loose(c, pos))
        return true;
    return streams_is_collective(n) && !c->serial[streams_of(c->m, n)] &&
           (effects_span_stages(c->m, n) || has_company(c, pos) ||
            (has_slack(c, pos) && !hurries(c, pos)));
}
