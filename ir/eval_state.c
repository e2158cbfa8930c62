/* eval_state.c - what lives between steps, and what comes from outside.
 *
 * A field has its initial value when it is first looked at (eval_init.c).
 * Gradients and accumulators start undefined; reading one before it is
 * written, or adding to it before it is cleared, is an error (before the pass
 * `optimizer`, which inserts the clearing, they start as zero).
 */
#include "ir/eval_priv.h"

#include "base/zigzag.h"

/* ---- which rank holds what ---- */

void state_new(Eval *e, EvalRank *r)
{
    r->state = arena_array(e->arena, EvalValue *, e->nstate + 1);
    r->touched = arena_array(e->arena, bool, e->nstate + 1);
}

/* Whether the rank has a layer at all. */
static bool holds_layer(const Eval *e, const EvalRank *r, uint32_t layer)
{
    const Module *m = e->m;

    if (!(m->props & PROP_PIPELINED))
        return true;
    for (uint32_t i = 0; i < m->stages.n; i++)
        if (m->stages.v[i].pp == r->pp &&
            layer - m->stages.v[i].first_layer < m->stages.v[i].nlayers)
            return true;
    return false;
}

/* Later stages of a rank hold later layers. */
uint32_t state_layers(const Eval *e, const EvalRank *r, TensorId t,
                      uint32_t *out)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < e->m->nlayers; l++)
        if (tensor_in_layer(e->m, t, l) && holds_layer(e, r, l))
            out[n++] = l;
    return n;
}

bool state_holds(const Eval *e, const EvalRank *r, TensorId t, uint32_t layer)
{
    return !tensor_of(e->m, t)->per_layer ||
           (tensor_in_layer(e->m, t, layer) && holds_layer(e, r, layer));
}

/* ---- one layer of a field ---- */

/* What a step adds up.  Before `optimizer` nothing clears it yet. */
static bool is_sum(Field f)
{
    return f == FIELD_GRAD || f == FIELD_GSUM || f == FIELD_ACC;
}

static bool starts_undefined(const Module *m, Field f)
{
    return is_sum(f) && m->props & PROP_OPTIMIZER;
}

static EvalValue *zeros(const Eval *e, TensorId t, Field f)
{
    const Tensor *tensor = tensor_of(e->m, t);
    EvalArray shape = eval_shape(e, tensor_stored(tensor), tensor->rest[f]);

    return value_alloc(&shape);
}

EvalValue **state_slot(Eval *e, EvalRank *r, TensorId t, Field f,
                       int64_t layer)
{
    uint32_t at = e->state_of[t.i * FIELD_COUNT + f] + (uint32_t)layer;
    EvalValue **slot = &r->state[at];

    if (!r->touched[at] && !starts_undefined(e->m, f))
        *slot = is_sum(f) ? zeros(e, t, f)
                          : state_initial(e, r, t, f, (uint32_t)layer);
    r->touched[at] = true;
    return slot;
}

/* ---- the state ops ---- */

/* Whether the node works on [l, …], all layers held, and not on one. */
static bool stacked(const EvalStep *s, TensorId t)
{
    if (s->node->op == OP_CLEAR && s->frame->layer < 0)
        return tensor_of(s->e->m, t)->per_layer;
    return attr_find(s->e->m, s->node->attrs, AK_COUNT) != NULL;
}

/* The layers that a state op works on.  Returns how many; 0 after a fault. */
static uint32_t step_layers(EvalStep *s, TensorId t, uint32_t *out)
{
    const Tensor *tensor = tensor_of(s->e->m, t);

    out[0] = 0;
    if (!tensor->per_layer)
        return 1;
    if (stacked(s, t))
        return state_layers(s->e, s->rank, t, out);
    out[0] = (uint32_t)(s->frame->layer +
                        attr_int(s->e->m, s->node->attrs, AK_NEXT, 0));
    if (out[0] < s->e->m->nlayers && state_holds(s->e, s->rank, t, out[0]))
        return 1;
    step_fault(s, "MC0752", "layer %d of @%s is not held here",
               (int)s->frame->layer, sym_text(s->e->m->names, tensor->name));
    return 0;
}

static uint32_t *layers_buffer(EvalStep *s)
{
    return arena_array(s->e->arena, uint32_t, s->e->m->nlayers + 1);
}

static TensorId step_tensor(EvalStep *s, Field *out_field, Field otherwise)
{
    AttrsId attrs = s->node->attrs;

    *out_field = (Field)attr_int(s->e->m, attrs, AK_FIELD, otherwise);
    return attr_tensor(s->e->m, attrs, AK_TENSOR);
}

static void undefined(EvalStep *s, TensorId t, uint32_t layer)
{
    step_fault(s, "MC0752", "@%s (layer %u) is used before it was written",
               sym_text(s->e->m->names, tensor_of(s->e->m, t)->name), layer);
}

/* Whether the node works on what lies flat in the tensor's dimensions. */
static bool is_shaped(const EvalStep *s, TensorId t)
{
    return tensor_of(s->e->m, t)->flat.i &&
           !attr_int(s->e->m, s->node->attrs, AK_FLAT, 0);
}

/* Whether a read is of a layer behind the last one of its scan: nobody looks
 * at what it gives. */
static bool reads_nothing(const EvalStep *s)
{
    const Scan *scan = &s->frame->scan;

    return attr_find(s->e->m, s->node->attrs, AK_NEXT) && scan->over == 'l' &&
           s->frame->done + 1 == scan->count;
}

void eval_read(EvalStep *s)
{
    Field f;
    TensorId t = step_tensor(s, &f, FIELD_PARAM);

    if (reads_nothing(s)) {
        step_out(s, 0);
        return;
    }
    uint32_t *layers = layers_buffer(s), n = step_layers(s, t, layers);
    EvalValue **parts = arena_array(s->e->arena, EvalValue *, n + 1);

    for (uint32_t i = 0; i < n; i++) {
        parts[i] = *state_slot(s->e, s->rank, t, f, layers[i]);
        if (!parts[i]) {
            undefined(s, t, layers[i]);
            return;
        }
    }
    if (!n)
        return;
    if (is_shaped(s, t))
        step_bind(s, 0, state_shaped(s->e, t, parts[0]));
    else
        step_bind(s, 0, stacked(s, t) ? value_concat(parts, n, 'l')
                                      : value_share(parts[0]));
}

/* Whether an array fits one layer of a field as it rests; else a fault. */
static bool state_fits(EvalStep *s, TensorId t, Field f,
                       const EvalArray *given)
{
    const Tensor *tensor = tensor_of(s->e->m, t);
    EvalArray want = eval_shape(s->e, tensor_stored(tensor), tensor->rest[f]);

    if (array_same_shape(&want, given))
        return true;
    Buf text = {0};

    array_print(given, &text);
    buf_puts(&text, " into ");
    array_print(&want, &text);
    step_fault(s, "MC0750", "stores local shape %s", buf_str(&text));
    buf_free(&text);
    return false;
}

/* One layer's worth of the operand; a reference for the caller. */
static EvalValue *layer_part(EvalStep *s, TensorId t, uint32_t i, uint32_t n)
{
    EvalValue *v = step_value(s, 0);

    return stacked(s, t) ? value_piece(v, 'l', i, n, true) : value_share(v);
}

/* The complete gradient lies where the partial sums lay. */
static void forget_grad(EvalStep *s, TensorId t, uint32_t layer)
{
    EvalValue **slot = state_slot(s->e, s->rank, t, FIELD_GRAD, layer);

    value_drop(*slot);
    *slot = NULL;
}

void eval_write(EvalStep *s)
{
    Field f;
    TensorId t = step_tensor(s, &f, FIELD_PARAM);
    uint32_t *layers = layers_buffer(s), n = step_layers(s, t, layers);

    for (uint32_t i = 0; i < n; i++) {
        EvalValue **slot = state_slot(s->e, s->rank, t, f, layers[i]);
        EvalValue *part = layer_part(s, t, i, n);

        if (!part || !state_fits(s, t, f, &part->a)) {
            value_drop(part);
            return;
        }
        value_drop(*slot);
        *slot = part;
        if (f == FIELD_GSUM)
            forget_grad(s, t, layers[i]);
    }
}

/* What an addition goes into; NULL after a fault. */
static EvalArray *state_target(EvalStep *s, TensorId t, Field f, uint32_t layer)
{
    EvalValue **slot = state_slot(s->e, s->rank, t, f, layer);

    if (!*slot) {
        undefined(s, t, layer);
        return NULL;
    }
    *slot = value_own(*slot);
    return &(*slot)->a;
}

/* Adds what is as the field is stored. */
static void add_stored(EvalStep *s, TensorId t, Field f, uint32_t layer,
                       const EvalArray *x)
{
    EvalArray *into =
        state_fits(s, t, f, x) ? state_target(s, t, f, layer) : NULL;

    for (int64_t i = 0, n = array_elems(x); into && i < n; i++)
        into->at[i] = num_add(s->e->opt.kind, into->at[i], x->at[i]);
}

void state_add(EvalStep *s, TensorId t, Field f, uint32_t layer,
               const EvalValue *x)
{
    EvalValue *lines;

    if (!is_shaped(s, t)) {
        add_stored(s, t, f, layer, &x->a);
        return;
    }
    lines = state_lines(s->e, t, f, x);
    add_stored(s, t, f, layer, &lines->a);
    value_drop(lines);
}

void eval_accum(EvalStep *s)
{
    Field f;
    TensorId t = step_tensor(s, &f, FIELD_GRAD);
    uint32_t *layers = layers_buffer(s), n = step_layers(s, t, layers);

    for (uint32_t i = 0; i < n; i++) {
        EvalValue *part = layer_part(s, t, i, n);

        if (part)
            state_add(s, t, f, layers[i], part);
        value_drop(part);
    }
}

void eval_clear(EvalStep *s)
{
    Field f;
    TensorId t = step_tensor(s, &f, FIELD_GRAD);
    uint32_t *layers = layers_buffer(s), n = step_layers(s, t, layers);

    for (uint32_t i = 0; i < n; i++) {
        EvalValue **slot = state_slot(s->e, s->rank, t, f, layers[i]);

        value_drop(*slot);
        *slot = zeros(s->e, t, f);
    }
}

/* ---- from and to the host ---- */

/* Labels are the next tokens; some are masked out with -1. */
static int64_t token(const Eval *e, bool label, int64_t mb, int64_t pos,
                     int64_t sample)
{
    uint64_t hash = hash_mix(e->opt.seed ^ hash_mix((uint64_t)mb));

    hash = hash_mix(hash ^ hash_mix((uint64_t)sample));
    hash = hash_mix(hash ^ hash_mix((uint64_t)(pos + label)));
    if (label && hash >> 60 == 0)
        return -1;
    return (int64_t)((hash >> 8) % (uint64_t)e->vocabulary);
}

/* The position of index `i` of s.  Batches need not say how s is stored: the
 * mesh does, context parallelism being what cuts the sequence. */
static int64_t token_position(const Eval *e, const Value *v, int64_t i)
{
    int64_t parts = axes_size(&e->m->mesh, mesh_axis(e->m, "cp"));

    return zigzag_position(type_size(&e->m->types.v[v->type.i], 's'), parts, i);
}

/* Fills the local part of [m, s, b]; without m it is microbatch `mb`. */
static void batch_fill(Eval *e, uint32_t rank, const Value *v,
                       const char *what, int64_t mb, EvalArray *out)
{
    bool label = !strcmp(what, "labels");
    int64_t s0 = eval_start(e, rank, v->type, v->layout, 's');
    int64_t b0 = eval_start(e, rank, v->type, v->layout, 'b');

    for (Walk w = walk_of(out); w.more; walk_next(&w)) {
        int64_t at = array_dim(out, 'm') < 0 ? mb : walk_index(&w, 'm');
        int64_t pos = token_position(e, v, s0 + walk_index(&w, 's')), given;
        int64_t sample = b0 + walk_index(&w, 'b');

        if (!e->opt.batch ||
            !e->opt.batch(e->opt.user, what, at, pos, sample, &given))
            given = token(e, label, at, pos, sample);
        if (e->opt.kind == EVAL_FIELD)
            out->at[w.off[0]].residue = field_of_int(given);
        else
            out->at[w.off[0]].f = (double)given;
    }
}

void eval_batch(EvalStep *s)
{
    const Module *m = s->e->m;
    const Value *v = value_of(s->e->m, node_res(s->node, 0));
    const char *what = sym_text(m->names, attr_sym(m, s->node->attrs,
                                                   AK_WHAT));
    int64_t mb = attr_int(m, s->node->attrs, AK_MICROBATCH, s->frame->mb);

    batch_fill(s->e, s->rank->id, v, what, mb, step_out(s, 0));
}

void state_bind_inputs(Eval *e, const EvalRank *r, EvalFrame *entry)
{
    const Func *f = func_of(e->m, entry->func);

    for (uint32_t i = 0; i < f->params.n; i++) {
        const Value *v = value_of(e->m, f->params.v[i]);
        EvalArray shape = eval_shape(e, v->type, v->layout);
        EvalValue *made;
        int m = array_dim(&shape, 'm');

        if (m >= 0 && e->microbatches)
            shape.size[m] = e->microbatches;
        made = value_alloc(&shape);
        batch_fill(e, r->id, v, sym_text(e->m->names, v->name), 0, &made->a);
        entry->slot[e->slot_of[f->params.v[i].i]] = made;
    }
}

void eval_host(EvalStep *s)
{
    Eval *e = s->e;
    const char *what = sym_text(e->m->names,
                                attr_sym(e->m, s->node->attrs, AK_WHAT));
    double given = 0.25 + hash_unit(hash_text(e->opt.seed, what)) / 2;

    if (!strcmp(what, "draws"))
        given = dropout_step_key(e->opt.seed, 1);
    if (e->opt.host)
        e->opt.host(e->opt.user, what, &given);
    step_out(s, 0)->at[0] = num_of_double(e->opt.kind, given);
}

void eval_metric(EvalStep *s)
{
    EvalMetric metric = {attr_sym(s->e->m, s->node->attrs, AK_WHAT),
                         step_arg(s, 0)->at[0]};

    vec_push(&s->rank->metrics, metric);
}
