/* eval_join.c - the eval cells of `part` and `join`: the same walk, one reading
 * and one writing some of the indices of j.
 */
#include "ir/eval_priv.h"

/* Walks `part`, the indices `s` of `whole`, and calls them equal; `out` says
 * which of the two takes the other's elements. */
static void copy_span(const EvalArray *part, const EvalArray *whole, Span s,
                      bool out)
{
    int64_t stride = array_stride(whole, 'j');
    Walk w = walk_of(part);

    walk_add(&w, whole);
    for (; w.more; walk_next(&w)) {
        int64_t j = s.first + (s.dim ? walk_index(&w, s.dim) : 0);
        EvalNum *inner = &whole->at[w.off[1] + j * stride];

        if (out)
            *inner = part->at[w.off[0]];
        else
            part->at[w.off[0]] = *inner;
    }
}

void array_part(const EvalArray *whole, Span s, EvalArray *out_part)
{
    copy_span(out_part, whole, s, false);
}

void eval_part(EvalStep *s)
{
    array_part(step_arg(s, 0), part_span(s->e->m, s->node), step_out(s, 0));
}

void eval_join(EvalStep *s)
{
    EvalArray *out = step_out(s, 0);

    for (uint32_t i = 0; i < s->node->nargs; i++)
        copy_span(step_arg(s, i), out, join_span(s->e->m, s->node, i), true);
}
