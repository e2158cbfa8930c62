/* streams_bucket.c - neighbouring collectives start together.
 *
 *     %1 = all_reduce !dp %g {axes=dp}        %1 = all_reduce !dp %g {axes=dp}
 *     event !dp {event=0}                     write %1 {tensor=@q}
 *     write %1 {tensor=@q}              →     %h = read @k
 *     %h = read @k                            %2 = all_reduce !dp %h {join=1 …}
 *     %2 = all_reduce !dp %h {axes=dp}        event !dp {event=0}
 *
 * Gradients of many tensors are many messages, and so are the weights of a
 * layer.  Those of one kind over one group that lie next to each other on a
 * stream form a bucket, as long as it has no more elements than asked for: what
 * is `join`ed starts with the one before, not after it, which communication
 * libraries make one operation of.  The mark of any of them is set behind the
 * last.
 */
#include "passes/passes.h"
#include "passes/effects.h"
#include "passes/streams_priv.h"

/* A bucket: from its first collective to its last one so far. */
typedef struct {
    Module *m;
    FuncId f;
    uint32_t first, last; /* positions; first == last: of one */
    bool open;
    int64_t elements;
} Bucket;

static const Node *node_at(const Bucket *b, uint32_t pos)
{
    return &b->m->nodes.v[b->m->funcs.v[b->f.i].body.v[pos].i];
}

static bool can_join(const Node *n)
{
    return n->stream != STREAM_COMPUTE &&
           (n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER ||
            n->op == OP_ALL_GATHER);
}

static int64_t local_elements(const Module *m, ValueId v)
{
    return layout_local_elems(m, value_type(m, v),
                              layout_of(m, m->values.v[v.i].layout));
}

/* Of the larger side: of a gradient or parameter before it is cut. */
static int64_t elements_of(const Module *m, const Node *n)
{
    return MC_MAX(local_elements(m, node_arg(m, n, 0)),
                  local_elements(m, n->res));
}

static bool same_kind(const Bucket *b, const Node *n)
{
    const Node *lead = node_at(b, b->first);

    return n->op == lead->op && n->stream == lead->stream &&
           attr_axes(b->m, n->attrs, AK_AXES) ==
               attr_axes(b->m, lead->attrs, AK_AXES) &&
           value_type(b->m, n->res)->dtype ==
               value_type(b->m, lead->res)->dtype;
}

/* Whether `n` works on what the bucket makes: a result, or a field that one has
 * been written to. */
static bool depends(const Bucket *b, const Node *n)
{
    ValueId v = node_arg(b->m, n, 0);
    const Node *def = &b->m->nodes.v[b->m->values.v[v.i].def.i];
    Field f = FIELD_COUNT, g;
    TensorId t = {0}, u;

    if (def->op == OP_READ)
        t = effects_target(b->m, def, &f);
    for (uint32_t pos = b->first; pos <= b->last; pos++)
        if (node_at(b, pos)->nres && node_at(b, pos)->res.i == v.i &&
            def->op != OP_READ)
            return true;
    for (uint32_t pos = b->first; pos < b->m->funcs.v[b->f.i].body.n; pos++) {
        const Node *w = node_at(b, pos);
        if (w == n)
            return false;
        u = w->op == OP_WRITE ? effects_target(b->m, w, &g) : (TensorId){0};
        if (u.i && u.i == t.i &&
            effect_field(b->m, u, g) == effect_field(b->m, t, f))
            return true;
    }
    return false;
}

/* Moves the marks of the bucket's stream between its members behind `to`;
 * returns where the node that was at `to` is then. */
static uint32_t marks_move(Bucket *b, uint32_t from, uint32_t to)
{
    NodeId *body = func_of(b->m, b->f)->body.v;

    for (uint32_t pos = from; pos < to;) {
        NodeId id = body[pos];
        if (node_at(b, pos)->op != OP_EVENT) {
            pos++;
            continue;
        }
        memmove(body + pos, body + pos + 1, (to - pos) * sizeof *body);
        body[to--] = id;
    }
    return to;
}

static void join(Bucket *b, uint32_t pos)
{
    uint32_t at = marks_move(b, b->last + 1, pos);
    NodeId id = func_of(b->m, b->f)->body.v[at];
    AttrsId attrs =
        attrs_with(b->m, node_of(b->m, id)->attrs, attr_of_int(AK_JOIN, 1));

    node_of(b->m, id)->attrs = attrs;
    b->last = at;
}

/* What may stand between two members: names, and marks of their stream. */
static bool may_stand_between(const Bucket *b, const Node *n)
{
    return n->op == OP_READ || n->op == OP_WRITE || n->op == OP_UNFLATTEN ||
           (n->op == OP_EVENT && b->open &&
            n->stream == node_at(b, b->first)->stream);
}

void streams_fill_buckets(Module *m, FuncId f, int64_t most)
{
    Bucket b = {.m = m, .f = f};

    for (uint32_t pos = 0; pos < func_of(m, f)->body.n; pos++) {
        const Node *n = node_at(&b, pos);
        if (!can_join(n)) {
            b.open = b.open && may_stand_between(&b, n);
            continue;
        }
        int64_t elements = elements_of(m, n);
        if (b.open && same_kind(&b, n) && b.elements + elements <= most &&
            !depends(&b, n)) {
            join(&b, pos);
            b.elements += elements;
        } else {
            b = (Bucket){m, f, pos, pos, true, elements};
        }
    }
}
