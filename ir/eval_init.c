/* eval_init.c - the state before the step.
 *
 * Initial values are functions of seed, tensor name, layer and logical index,
 * so every layout starts from the same model; what lies beside others in one
 * tensor counts as a tensor of its own, wherever it lies.  Padding is zero.
 * Real numbers are spread so that every path matters: biases are not zero,
 * second moments are positive.
 */
#include "ir/eval_priv.h"

/* A tensor without padding need not say its logical sizes. */
const Type *eval_logical(const Module *m, TensorId t)
{
    const Tensor *tensor = &m->tensors.v[t.i];

    return tensor->logical.dtype == DT_NONE ? &m->types.v[tensor->type.i]
                                            : &tensor->logical;
}

/* A spread of (-1, 1) times this, by how the tensor is initialised. */
static double init_spread(const Tensor *t, double *out_centre)
{
    *out_centre = t->init == INIT_ONES ? 1 : 0;
    return 0.2;
}

/* The coordinate of dimension `dim` of element `index`. */
static int64_t coordinate(const Type *t, int64_t index, char dim)
{
    int d = t->ndim - 1;

    for (; d >= 0 && t->dim[d] != dim; d--)
        index /= t->size[d];
    return d < 0 ? 0 : index % t->size[d];
}

/* The seed of a tensor's element, or of that of the part it belongs to. */
static uint64_t element_key(const Eval *e, TensorId t, int64_t *index)
{
    const Tensor *tensor = tensor_of(e->m, t);
    const Type *whole = eval_logical(e->m, t);
    int64_t j = coordinate(whole, *index, 'j'), at = 0;
    const TensorPart *p = tensor->part;
    Type part;

    if (!tensor->nparts)
        return e->tensor_key[t.i];
    while (j >= p->at.first + p->at.n)
        p++;
    part = type_part(whole, p->at);
    for (int d = 0; d < part.ndim; d++)
        at = at * part.size[d] +
             (part.dim[d] == p->at.dim
                  ? j - p->at.first
                  : coordinate(whole, *index, part.dim[d]));
    *index = at;
    return e->part_key[t.i][p - tensor->part];
}

static EvalNum initial_number(const Eval *e, TensorId t, Field f,
                              uint32_t layer, int64_t index)
{
    const Tensor *tensor = tensor_of(e->m, t);
    Field like = f == FIELD_MASTER ? FIELD_PARAM : f;
    int64_t at = index;
    uint64_t hash = hash_mix(element_key(e, t, &at) ^
                             hash_mix((uint64_t)layer));
    double given, centre;

    hash = hash_mix(hash ^ hash_mix((uint64_t)at * FIELD_COUNT + like));
    if (e->opt.state &&
        e->opt.state(e->opt.user, e->m, t, f, layer, index, &given))
        return num_of_double(e->opt.kind, given);
    if (e->opt.kind == EVAL_FIELD)
        return (EvalNum){.residue = hash % FIELD_P};
    double spread = init_spread(tensor, &centre);

    if (f == FIELD_M)
        return (EvalNum){.f = 0.01 * (2 * hash_unit(hash) - 1)};
    if (f == FIELD_V)
        return (EvalNum){.f = 0.001 * (0.1 + hash_unit(hash))};
    return (EvalNum){.f = centre + spread * (2 * hash_unit(hash) - 1)};
}

int64_t state_start(const Eval *e, uint32_t rank, TensorId t, Field f)
{
    const Tensor *tensor = tensor_of(e->m, t);
    EvalArray all = array_of_type(type_of(e->m, tensor_stored(tensor)));
    int64_t start = 0;

    for (int d = 0; d < all.ndim; d++)
        start += array_stride(&all, all.dim[d]) *
                 eval_start(e, rank, tensor_stored(tensor), tensor->rest[f],
                            all.dim[d]);
    return start;
}

int64_t state_element(const Eval *e, TensorId t, int64_t index)
{
    const Tensor *tensor = tensor_of(e->m, t);

    return tensor->flat.i ? flat_index(e->m, tensor, index) : index;
}

/* Row-major index in the logical tensor of one in the tensor, or -1 for
 * padding. */
static int64_t logical_index(const Eval *e, TensorId t, int64_t index)
{
    const Type *padded = type_of(e->m, tensor_of(e->m, t)->type);
    const Type *logical = eval_logical(e->m, t);
    int64_t out = 0, weight = 1;

    for (int d = padded->ndim - 1; d >= 0 && index >= 0; d--) {
        int64_t i = index % padded->size[d];

        if (i >= logical->size[d])
            return -1;
        index /= padded->size[d];
        out += i * weight;
        weight *= logical->size[d];
    }
    return index < 0 ? -1 : out;
}

EvalValue *state_initial(const Eval *e, const EvalRank *r, TensorId t, Field f,
                         uint32_t layer)
{
    const Tensor *tensor = tensor_of(e->m, t);
    EvalArray shape = eval_shape(e, tensor_stored(tensor), tensor->rest[f]);
    EvalArray all = array_of_type(type_of(e->m, tensor_stored(tensor)));
    EvalValue *v = value_alloc(&shape);
    int64_t start = state_start(e, r->id, t, f);
    Walk w = walk_of(&v->a);

    walk_add(&w, &all);
    for (; w.more; walk_next(&w)) {
        int64_t index =
            logical_index(e, t, state_element(e, t, start + w.off[1]));

        if (index >= 0)
            v->a.at[w.off[0]] = initial_number(e, t, f, layer, index);
    }
    return v;
}
