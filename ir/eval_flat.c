/* eval_flat.c - lines and what they are of: the eval cells of `flatten` and
 * `unflatten`, and state that lies flat but is used in its own dimensions.
 *
 * A rank that holds one part of a tensor has it in order.  Before layouts, one
 * rank holds the parts of all, and each element has a place of its own.
 */
#include "ir/eval_priv.h"

/* Copies the first elements of one array to the other. */
static void copy_front(const EvalArray *from, EvalArray *to)
{
    int64_t n = MC_MIN(array_elems(from), array_elems(to));

    memcpy(to->at, from->at, sizeof *to->at * (size_t)n);
}

void eval_flatten(EvalStep *s)
{
    copy_front(step_arg(s, 0), step_out(s, 0));
}

void eval_unflatten(EvalStep *s)
{
    copy_front(step_arg(s, 0), step_out(s, 0));
}

/* Where element i of a rank's lines is in what it has of the tensor, or -1. */
static int64_t place_of(const Eval *e, TensorId t, const EvalArray *lines,
                        const EvalArray *shaped, int64_t i)
{
    const Tensor *tensor = &e->m->tensors.v[t.i];
    int64_t all = type_elems(type_of(e->m, tensor->flat));

    if (array_elems(lines) == all)
        return flat_index(e->m, tensor, i);
    return i < array_elems(shaped) ? i : -1;
}

EvalValue *state_shaped(const Eval *e, TensorId t, const EvalValue *lines)
{
    const Tensor *tensor = &e->m->tensors.v[t.i];
    EvalArray shape = eval_shape(e, tensor->type, tensor->use);
    EvalValue *out = value_alloc(&shape);

    for (int64_t i = 0; i < array_elems(&lines->a); i++) {
        int64_t at = place_of(e, t, &lines->a, &shape, i);

        if (at >= 0)
            out->a.at[at] = lines->a.at[i];
    }
    return out;
}

EvalValue *state_lines(const Eval *e, TensorId t, Field f, const EvalValue *x)
{
    const Tensor *tensor = &e->m->tensors.v[t.i];
    EvalArray shape = eval_shape(e, tensor->flat, tensor->rest[f]);
    EvalValue *out = value_alloc(&shape);

    for (int64_t i = 0; i < array_elems(&shape); i++) {
        int64_t at = place_of(e, t, &shape, &x->a, i);

        if (at >= 0)
            out->a.at[i] = x->a.at[at];
    }
    return out;
}
