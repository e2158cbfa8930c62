/* eval_dropout.c - the eval cell of dropout, and the draws it shares with
 * attention's.
 *
 * Draws are data, the same over doubles and in the field: an element is 0 or
 * times the number 1 / (1 - rate).  The key of the step is read from the tensor
 * that holds it, so a rank on which it was not written drops other elements.
 * A forward alone drops nothing: `pipeline` writes it without, before that it
 * is the forward of training.
 */
#include "ir/eval_priv.h"

static bool is_forward_alone(const Eval *e)
{
    uint32_t program = e->opt.program;

    return program && !(e->m->props & PROP_PIPELINED) &&
           e->m->programs.v[program - 1].forward;
}

bool step_draws(EvalStep *s, EvalDraws *out)
{
    const Module *m = s->e->m;
    AttrsId attrs = s->node->attrs;
    TensorId t = attr_tensor(m, attrs, AK_TENSOR);
    double rate = attr_float(m, attrs, AK_RATE, 0);
    EvalValue *key;

    if (is_forward_alone(s->e))
        rate = 0;
    *out = (EvalDraws){.rate = rate,
                       .scale = num_of_double(s->e->opt.kind, 1 / (1 - rate))};
    if (rate == 0)
        return true;
    key = *state_slot(s->e, s->rank, t, FIELD_PARAM, 0);
    if (!key || s->frame->mb < 0) {
        step_fault(s, "MC0752", "there is no %s to draw for",
                   key ? "microbatch" : "step");
        return false;
    }
    out->at.step = (uint32_t)num_index(s->e->opt.kind, key->a.at[0]);
    out->at.layer = s->frame->layer < 0 ? 0 : (uint32_t)s->frame->layer;
    out->at.which = (uint32_t)attr_int(m, attrs, AK_DRAW, 0);
    out->microbatch = s->frame->mb;
    return true;
}

/* Where the element that a walk is at lies in the whole batch. */
static void place_of(EvalStep *s, const EvalArray *out, const Walk *w,
                     const int64_t *start, int64_t microbatch,
                     DropoutPlace *at)
{
    const Type *t = value_type(s->e->m, node_res(s->node, 0));

    at->position = at->other = at->last = 0;
    at->sample = microbatch * type_size(t, 'b');
    for (int d = 0; d < out->ndim; d++) {
        int64_t i = start[d] + w->index[d];

        if (d == out->ndim - 1)
            at->last = i;
        else if (out->dim[d] != 's' && out->dim[d] != 'b')
            at->other = at->other * t->size[d] + i;
        if (out->dim[d] == 'b')
            at->sample += i;
        if (out->dim[d] == 's')
            at->position =
                attr_position(s->e->m, s->node->attrs, t->size[d], i);
    }
}

void eval_dropout(EvalStep *s)
{
    const EvalArray *x = step_arg(s, 0);
    EvalArray *out = step_out(s, 0);
    int64_t start[IR_MAX_DIMS];
    Walk w = walk_of(out);
    EvalDraws draws;

    if (!step_draws(s, &draws))
        return;
    for (int d = 0; d < out->ndim; d++)
        start[d] = step_start(s, node_res(s->node, 0), out->dim[d]);
    walk_add(&w, x);
    for (; w.more; walk_next(&w)) {
        place_of(s, out, &w, start, draws.microbatch, &draws.at);
        if (dropout_keeps(&draws.at, draws.rate))
            out->at[w.off[0]] =
                num_mul(s->e->opt.kind, draws.scale, x->at[w.off[1]]);
    }
}
