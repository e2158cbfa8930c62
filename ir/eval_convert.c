/* eval_convert.c - the eval cells of `convert` and `only`.
 *
 * `convert` says that a value is the same in another layout and not how it
 * gets there, so its meaning is direct: all ranks that differ in an axis of
 * either layout put their parts together, and each cuts its new part.
 *
 *     parts {h@tp +dp}  -->  whole [s, h]  -->  parts {s@tp}
 */
#include "ir/eval_priv.h"

#include <math.h>

typedef struct {
    const EvalStep *s;
    const Type *type;
    LayoutId from, to;
} Move;

static const Layout *layout_or_whole(const Module *m, LayoutId l)
{
    static const Layout whole;

    return l.i ? layout_of(m, l) : &whole;
}

static AxisSet axes_of(const Module *m, LayoutId l)
{
    const Layout *layout = layout_or_whole(m, l);

    return layout_split_axes(&m->mesh, layout) | layout->partial |
           layout->partial_max;
}

static Move move_of(const EvalStep *s)
{
    const Module *m = s->e->m;
    const Value *from = value_of(s->e->m, node_arg(m, s->node, 0));
    const Value *to = value_of(s->e->m, node_res(s->node, 0));

    return (Move){s, &m->types.v[to->type.i], from->layout, to->layout};
}

AxisSet convert_axes(const EvalStep *s)
{
    Move mv = move_of(s);

    return axes_of(s->e->m, mv.from) | axes_of(s->e->m, mv.to);
}

/* Offset in the whole value of the part that a rank has by a layout. */
static int64_t part_offset(const Move *mv, LayoutId l, const EvalArray *whole,
                           uint32_t rank)
{
    int64_t offset = 0;

    for (int d = 0; d < whole->ndim; d++)
        offset += array_stride(whole, whole->dim[d]) *
                  layout_start(mv->s->e->m, mv->type,
                               layout_or_whole(mv->s->e->m, l), whole->dim[d],
                               rank);
    return offset;
}

static void part_merge(const Move *mv, const EvalRank *r, const EvalArray *part,
                       EvalArray *whole)
{
    EvalKind kind = mv->s->e->opt.kind;
    bool max = layout_or_whole(mv->s->e->m, mv->from)->partial_max != 0;
    int64_t base = part_offset(mv, mv->from, whole, r->id);
    Walk w = walk_of(part);

    walk_add(&w, whole);
    for (; w.more; walk_next(&w)) {
        EvalNum *to = &whole->at[base + w.off[1]], x = part->at[w.off[0]];

        *to = max ? num_max(kind, *to, x) : num_add(kind, *to, x);
    }
}

/* The whole value, each distinct part once. */
EvalValue *convert_whole(const EvalStep *s, EvalRank *const *member,
                         EvalValue *const *offer, uint32_t n)
{
    Move mv = move_of(s);
    EvalArray shape = array_of_type(mv.type);
    EvalValue *whole = value_alloc(&shape);
    const Mesh *mesh = &s->e->m->mesh;
    AxisSet distinct = axes_of(s->e->m, mv.from);
    bool *seen = arena_array(s->e->arena, bool, axes_size(mesh, distinct));

    if (layout_or_whole(s->e->m, mv.from)->partial_max &&
        s->e->opt.kind == EVAL_FP64)
        for (int64_t i = 0; i < array_elems(&shape); i++)
            whole->a.at[i].f = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        bool *mine = &seen[axes_index(mesh, distinct, member[i]->id)];

        if (!*mine)
            part_merge(&mv, member[i], &offer[i]->a, &whole->a);
        *mine = true;
    }
    return whole;
}

/* A rank's part; along new partial axes only coordinate 0 has a share. */
EvalValue *convert_part(const EvalStep *s, const EvalValue *whole,
                        uint32_t rank)
{
    Move mv = move_of(s);
    EvalArray shape = eval_shape(
        s->e, value_of(s->e->m, node_res(s->node, 0))->type, mv.to);
    EvalValue *part = value_alloc(&shape);
    AxisSet partial = layout_or_whole(s->e->m, mv.to)->partial;
    int64_t base = part_offset(&mv, mv.to, &whole->a, rank);
    Walk w = walk_of(&part->a);

    if (partial && axes_index(&s->e->m->mesh, partial, rank))
        return part;
    walk_add(&w, &whole->a);
    for (; w.more; walk_next(&w))
        part->a.at[w.off[0]] = whole->a.at[base + w.off[1]];
    return part;
}

void eval_only(EvalStep *s)
{
    const Module *m = s->e->m;
    AxisSet axes = attr_axes(m, s->node->attrs, AK_AXES);

    if (axes_index(&m->mesh, axes, s->rank->id))
        step_out(s, 0);
    else
        step_bind(s, 0, value_share(step_value(s, 0)));
}
