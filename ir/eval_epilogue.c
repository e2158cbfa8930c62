/* eval_epilogue.c - biases, residuals and activations of a product.
 *
 * An activation is computed from its formula, op by op, so that in the field
 * it is the very same function as the nodes that `fuse` replaced by it.
 */
#include "ir/eval_priv.h"

#include <math.h>

static void add_array(const EvalStep *s, EvalArray *out, const EvalArray *x)
{
    Walk w = walk_of(out);

    walk_add(&w, x);
    for (; w.more; walk_next(&w))
        out->at[w.off[0]] = num_add(s->e->opt.kind, out->at[w.off[0]],
                                    x->at[w.off[1]]);
}

static EvalNum random_function(EvalKind kind, Op op, EvalNum x)
{
    if (kind == EVAL_FIELD)
        return (EvalNum){.residue = field_random(op, x.residue)};
    return (EvalNum){.f = op == OP_TANH ? tanh(x.f) : x.f > 0 ? x.f : 0};
}

static EvalNum formula_value(EvalKind kind, const char **at, EvalNum x)
{
    FormulaWord word = formula_word(at);
    EvalNum first, second;

    if (word.kind == FORMULA_X)
        return x;
    if (word.kind == FORMULA_NUMBER)
        return num_of_double(kind, word.number);
    first = formula_value(kind, at, x);
    if (op_info[word.op].nargs == 1)
        return random_function(kind, word.op, first);
    second = formula_value(kind, at, x);
    return word.op == OP_ADD ? num_add(kind, first, second)
                             : num_mul(kind, first, second);
}

static void activate(const EvalStep *s, EvalArray *out, int activation)
{
    for (int64_t i = 0; activation && i < array_elems(out); i++) {
        const char *at = activations[activation].formula;

        out->at[i] = formula_value(s->e->opt.kind, &at, out->at[i]);
    }
}

void eval_epilogue(EvalStep *s, uint32_t i, EvalArray *out)
{
    const Node *n = s->node;
    Epilogue e = node_epilogue(s->e->m, n);

    if (e.bias)
        add_array(s, out, step_arg(s, 1u + n->nres + i));
    if (e.residual)
        add_array(s, out, step_arg(s, (uint32_t)n->nargs - n->nres + i));
    activate(s, out, e.activation);
}
