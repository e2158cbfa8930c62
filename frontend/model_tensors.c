/* model_tensors.c - the parameters as tensors: sizes, state, where it rests.
 *
 * A tensor comes into being when the graph first reads it, by the rows of
 * model_params.c: of one, or of several that lie side by side.
 */
#include "frontend/model_priv.h"

#include <math.h>

int64_t model_size(const Model *x, char dim)
{
    switch (dim) {
    case 's':
        return x->s;
    case 'b':
        return x->b;
    case 'h':
        return x->h;
    case 'g':
        return x->g;
    case 'r':
        return x->r;
    case 'd':
        return x->d;
    case 'f':
        return x->f_;
    case 'e':
        return x->spec->model.moe.num_experts;
    case 'v':
        return x->v;
    case 'p':
        return x->p;
    default:
        mc_bug(__FILE__, __LINE__, "a dimension of the model");
    }
}

TypeId model_type(Model *x, DType dtype, const char *dims)
{
    int64_t size[IR_MAX_DIMS];

    for (size_t i = 0; dims[i]; i++)
        size[i] = model_size(x, dims[i]);
    return type_make(x->m, dtype, dims, size);
}

static void set_fields(Model *x, Tensor *t)
{
    bool sgd = x->spec->training.optimizer.type == OPT_SGD;

    for (int i = 0; i < FIELD_COUNT; i++)
        t->field_dtype[i] = DT_F32;
    t->field_dtype[FIELD_PARAM] = x->compute;
    if (x->spec->training.grad_dtype == GRAD_BF16)
        t->field_dtype[FIELD_GRAD] = t->field_dtype[FIELD_GSUM] = DT_BF16;
    t->fields = 1u << FIELD_PARAM | 1u << FIELD_GRAD | 1u << FIELD_GSUM;
    if (x->compute != DT_F32)
        t->fields |= 1u << FIELD_MASTER;
    if (!sgd)
        t->fields |= 1u << FIELD_M | 1u << FIELD_V;
    else if (x->spec->training.optimizer.momentum > 0)
        t->fields |= 1u << FIELD_M;
}

/* ZeRO (Rajbhandari et al. 2020) is where things rest: 1 shares out what only
 * the optimizer touches, 2 also the gradients, 3 also the parameters. */
static void set_rest(Model *x, Tensor *t, LayoutId use)
{
    static const SpecSharding from[FIELD_COUNT] = {
        [FIELD_PARAM] = SHARD_OPTIM_GRADS_PARAMS,
        [FIELD_MASTER] = SHARD_OPTIM,
        [FIELD_GRAD] = SHARD_OPTIM_GRADS,
        [FIELD_GSUM] = SHARD_OPTIM,
        [FIELD_M] = SHARD_OPTIM,
        [FIELD_V] = SHARD_OPTIM,
        [FIELD_ACC] = SHARD_OPTIM,
    };
    SpecSharding sharding = x->spec->parallel.sharding;
    LayoutId whole = use, share = use;

    if (sharding != SHARD_NONE)
        whole = model_flatten(x, t, use, &share);
    for (int i = 0; i < FIELD_COUNT; i++)
        t->rest[i] = sharding >= from[i] ? share : whole;
}

/* The bias that balances experts is no gradient's business: the optimizer
 * moves it by counts of tokens.  It has one field, f32 and whole. */
static void make_statistic(Model *x, Tensor *t)
{
    t->type = type_as(x->m, t->type, DT_F32);
    t->flat = (TypeId){0};
    t->use = (LayoutId){0};
    t->logical.dtype = DT_F32;
    t->field_dtype[FIELD_PARAM] = DT_F32;
    t->fields = 1u << FIELD_PARAM;
    for (int i = 0; i < FIELD_COUNT; i++)
        t->rest[i] = layout_whole(x->m);
}

/* What follows from the row, for a tensor of the dimensions `dims`. */
static Tensor describe(Model *x, const char *name, const ParamRow *row,
                       const char *dims, TypeId type)
{
    Tensor t = {.name = sym_intern(x->m->names, name), .type = type};

    t.logical = *type_of(x->m, t.type);
    for (uint8_t i = 0; i < t.logical.ndim; i++)
        if (t.logical.dim[i] == 'v' && dims[0] == 'v')
            t.logical.size[i] = x->spec->model.vocab_size;
    t.per_layer = param_per_layer(row);
    t.parameter = true;
    t.decay = row->init == INIT_NORMAL;
    t.init = row->init;
    t.init_std = x->spec->model.init_std;
    if (row->part & PARAM_OUTPUT)
        t.init_std /= sqrt(2.0 * (double)x->layers);
    t.loc = x->loc;
    set_fields(x, &t);
    t.expert = (row->part & PARAM_EXPERT) != 0;
    set_rest(x, &t, model_weight_layout(x, dims, t.expert));
    return t;
}

static TensorId add_param(Model *x, const char *name)
{
    const ParamRow *row = param_row(name);
    Tensor t = describe(x, name, row, row->dims,
                        model_type(x, x->compute, row->dims));

    if (strcmp(name, "embed") == 0 && x->spec->model.tie_embeddings)
        t.tied = mesh_axis(x->m, "embed");
    if (strcmp(name, "router.bias") == 0)
        make_statistic(x, &t);
    t.file = param_export(x, row, &t.logical);
    return tensor_new(x->m, &t);
}

/* ---- side by side -------------------------------------------------------- */

/* Indices of j that a part fills. */
static int64_t part_size(const Model *x, const ParamRow *row)
{
    return strchr(row->dims, 'r') ? model_size(x, 'r') : 1;
}

static TypeId joint_type(Model *x, const JointRow *joint)
{
    const char *dims = joint->dims;
    int64_t size[IR_MAX_DIMS], all = 0;

    for (uint32_t i = 0; i < IR_MAX_PARTS && joint->parts[i]; i++)
        all += part_size(x, param_row(joint->parts[i]));
    for (size_t i = 0; dims[i]; i++)
        size[i] = dims[i] == 'j' ? all : model_size(x, dims[i]);
    return type_make(x->m, x->compute, dims, size);
}

static void add_part(Model *x, Tensor *t, const ParamRow *row)
{
    TensorPart *p = &t->part[t->nparts];
    Type logical;

    p->name = sym_intern(x->m->names, row->name);
    p->at.n = part_size(x, row);
    p->at.dim = strchr(row->dims, 'r') ? 'r' : 0;
    for (uint32_t i = 0; i < t->nparts; i++)
        p->at.first += t->part[i].at.n;
    logical = type_part(&t->logical, p->at);
    p->file = param_export(x, row, &logical);
    t->nparts++;
}

static TensorId add_joint(Model *x, const char *name)
{
    const JointRow *joint = joint_row(name);
    const char *const *parts = joint->parts;
    Tensor t = describe(x, name, param_row(parts[0]), joint->dims,
                        joint_type(x, joint));

    for (uint32_t i = 0; i < IR_MAX_PARTS && parts[i]; i++)
        add_part(x, &t, param_row(parts[i]));
    return tensor_new(x->m, &t);
}

static TensorId joint_tensor(Model *x, const char *name)
{
    TensorId t = tensor_find(x->m, sym_intern(x->m->names, name));

    return t.i ? t : add_joint(x, name);
}

ValueId model_joint(Model *x, const char *name)
{
    TensorId t = joint_tensor(x, name);

    tensor_of(x->m, t)->kinds |= 1u << x->kind;
    return ir_read(x->m, x->f, t, FIELD_PARAM, x->loc);
}

ValueId model_part(Model *x, ValueId whole, const char *name, uint32_t i)
{
    const Tensor *t = tensor_of(x->m, joint_tensor(x, name));
    Span s = t->part[i].at;
    Sym part = t->part[i].name;
    Attr list[] = {attr_of_int(AK_FIRST, s.first), attr_of_int(AK_SIZE, s.n),
                   attr_of_int(AK_DIM, s.dim)};
    ValueId v = ir_op(x->m, x->f, OP_PART, &whole, 1,
                      attrs_intern(x->m, list, s.dim ? 3 : 2), x->loc);

    value_of(x->m, v)->name = part;
    return v;
}

/* ---- in the graph -------------------------------------------------------- */

/* The parameter's value in the function under construction; the tensor is
 * made at its first use. */
ValueId model_param(Model *x, const char *name)
{
    TensorId t = tensor_find(x->m, sym_intern(x->m->names, name));

    if (t.i == 0)
        t = add_param(x, name);
    tensor_of(x->m, t)->kinds |= 1u << x->kind;
    return ir_read(x->m, x->f, t, FIELD_PARAM, x->loc);
}

/* Numbers in f32 that all ranks have. */
static Tensor number_tensor(Model *x, const char *name, const char *dims)
{
    Tensor t = {.name = sym_intern(x->m->names, name), .loc = x->loc};

    t.type = model_type(x, DT_F32, dims);
    t.logical = *type_of(x->m, t.type);
    for (int i = 0; i < FIELD_COUNT; i++) {
        t.field_dtype[i] = DT_F32;
        t.rest[i] = layout_whole(x->m);
    }
    return t;
}

TensorId model_key(Model *x)
{
    TensorId made = tensor_find(x->m, sym_intern(x->m->names, "draws"));
    Tensor t = number_tensor(x, "draws", "");

    t.fields = 1u << FIELD_PARAM;
    return made.i ? made : tensor_new(x->m, &t);
}

TensorId model_metric(Model *x, const char *name, const char *dims,
                      bool per_layer)
{
    TensorId made = tensor_find(x->m, sym_intern(x->m->names, name));
    Tensor t = number_tensor(x, name, dims);

    if (made.i) {
        tensor_of(x->m, made)->kinds |= 1u << x->kind;
        return made;
    }
    t.per_layer = per_layer;
    t.fields = 1u << FIELD_ACC;
    t.kinds = 1u << x->kind;
    return tensor_new(x->m, &t);
}

void model_kinds(Model *x)
{
    LayerTable table = x->spec->layers;
    uint32_t all = (uint32_t)((1ull << table.nkinds) - 1);

    for (uint32_t i = 1; i < x->m->tensors.n; i++) {
        Tensor *t = &x->m->tensors.v[i];
        if (!t->per_layer || t->kinds == all)
            t->kinds = 0;
    }
    for (uint32_t l = 0; table.nkinds > 1 && l < table.n; l++)
        vec_push(&x->m->kind, table.of[l]);
}
