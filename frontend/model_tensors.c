/* model_tensors.c - the parameters: names, dimensions, state, file.
 *
 * One row per parameter says what it is called here and in both families of
 * Hugging Face files, its dimensions and how it starts.  A tensor comes into
 * being when the graph first reads it.
 */
#include "frontend/model_priv.h"

#include <math.h>

/* OUTPUT: its std is divided by sqrt(2 * layers).  EXPERT: it belongs to one
 * expert, and is where that is. */
enum { OUTPUT = 1, EXPERT = 2 };

/* One row per parameter: what it is called here and in both families of
 * Hugging Face files, its dimensions, how it starts. */
typedef struct {
    const char *name, *llama, *gpt2;
    const char *dims;
    InitKind init;
    uint8_t part; /* OUTPUT, EXPERT */
    uint8_t rows; /* how many leading dims are rows of the file's matrix */
} ParamRow;

static const ParamRow param_rows[] = {
    {"embed", "model.embed_tokens.weight", "transformer.wte.weight", "vh",
     INIT_NORMAL, 0, 1},
    {"positions", "model.embed_positions.weight", "transformer.wpe.weight",
     "ph", INIT_NORMAL, 0, 1},
    {"norm1", "input_layernorm.weight", "ln_1.weight", "h", INIT_ONES, 0, 1},
    {"norm1.bias", "input_layernorm.bias", "ln_1.bias", "h", INIT_ZEROS, 0, 1},
    {"q", "self_attn.q_proj.weight", "attn.c_attn.weight", "grdh", INIT_NORMAL,
     0, 3},
    {"k", "self_attn.k_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     0, 2},
    {"v", "self_attn.v_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     0, 2},
    {"q.bias", "self_attn.q_proj.bias", "attn.c_attn.bias", "grd", INIT_ZEROS,
     0, 3},
    {"k.bias", "self_attn.k_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS, 0,
     2},
    {"v.bias", "self_attn.v_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS, 0,
     2},
    {"q_norm", "self_attn.q_norm.weight", "attn.q_norm.weight", "d", INIT_ONES,
     0, 1},
    {"k_norm", "self_attn.k_norm.weight", "attn.k_norm.weight", "d", INIT_ONES,
     0, 1},
    {"proj", "self_attn.o_proj.weight", "attn.c_proj.weight", "hgrd",
     INIT_NORMAL, OUTPUT, 1},
    {"proj.bias", "self_attn.o_proj.bias", "attn.c_proj.bias", "h", INIT_ZEROS,
     0, 1},
    {"norm2", "post_attention_layernorm.weight", "ln_2.weight", "h", INIT_ONES,
     0, 1},
    {"norm2.bias", "post_attention_layernorm.bias", "ln_2.bias", "h",
     INIT_ZEROS, 0, 1},
    {"gate", "mlp.gate_proj.weight", "mlp.c_gate.weight", "fh", INIT_NORMAL, 0,
     1},
    {"up", "mlp.up_proj.weight", "mlp.c_fc.weight", "fh", INIT_NORMAL, 0, 1},
    {"gate.bias", "mlp.gate_proj.bias", "mlp.c_gate.bias", "f", INIT_ZEROS, 0,
     1},
    {"up.bias", "mlp.up_proj.bias", "mlp.c_fc.bias", "f", INIT_ZEROS, 0, 1},
    {"down", "mlp.down_proj.weight", "mlp.c_proj.weight", "hf", INIT_NORMAL,
     OUTPUT, 1},
    {"down.bias", "mlp.down_proj.bias", "mlp.c_proj.bias", "h", INIT_ZEROS, 0,
     1},
    {"router", "mlp.gate.weight", "mlp.gate.weight", "eh", INIT_NORMAL, 0, 1},
    {"router.bias", "mlp.gate.e_score_correction_bias",
     "mlp.gate.e_score_correction_bias", "e", INIT_ZEROS, 0, 1},
    {"experts.gate", "mlp.experts.{e}.gate_proj.weight",
     "mlp.experts.{e}.gate_proj.weight", "efh", INIT_NORMAL, EXPERT, 2},
    {"experts.up", "mlp.experts.{e}.up_proj.weight",
     "mlp.experts.{e}.up_proj.weight", "efh", INIT_NORMAL, EXPERT, 2},
    {"experts.down", "mlp.experts.{e}.down_proj.weight",
     "mlp.experts.{e}.down_proj.weight", "ehf", INIT_NORMAL, OUTPUT | EXPERT,
     2},
    {"experts.gate.bias", "mlp.experts.{e}.gate_proj.bias",
     "mlp.experts.{e}.gate_proj.bias", "ef", INIT_ZEROS, EXPERT, 2},
    {"experts.up.bias", "mlp.experts.{e}.up_proj.bias",
     "mlp.experts.{e}.up_proj.bias", "ef", INIT_ZEROS, EXPERT, 2},
    {"experts.down.bias", "mlp.experts.{e}.down_proj.bias",
     "mlp.experts.{e}.down_proj.bias", "eh", INIT_ZEROS, EXPERT, 2},
    {"shared.gate.bias", "mlp.shared_experts.gate_proj.bias",
     "mlp.shared_experts.gate_proj.bias", "f", INIT_ZEROS, 0, 1},
    {"shared.up.bias", "mlp.shared_experts.up_proj.bias",
     "mlp.shared_experts.up_proj.bias", "f", INIT_ZEROS, 0, 1},
    {"shared.down.bias", "mlp.shared_experts.down_proj.bias",
     "mlp.shared_experts.down_proj.bias", "h", INIT_ZEROS, 0, 1},
    {"shared.gate", "mlp.shared_experts.gate_proj.weight",
     "mlp.shared_experts.gate_proj.weight", "fh", INIT_NORMAL, 0, 1},
    {"shared.up", "mlp.shared_experts.up_proj.weight",
     "mlp.shared_experts.up_proj.weight", "fh", INIT_NORMAL, 0, 1},
    {"shared.down", "mlp.shared_experts.down_proj.weight",
     "mlp.shared_experts.down_proj.weight", "hf", INIT_NORMAL, OUTPUT, 1},
    {"shared_gate", "mlp.shared_expert_gate.weight",
     "mlp.shared_expert_gate.weight", "h", INIT_NORMAL, 0, 0},
    {"norm", "model.norm.weight", "transformer.ln_f.weight", "h", INIT_ONES, 0,
     1},
    {"norm.bias", "model.norm.bias", "transformer.ln_f.bias", "h", INIT_ZEROS,
     0, 1},
    {"head", "lm_head.weight", "lm_head.weight", "vh", INIT_NORMAL, 0, 1},
};

/* What lies side by side along j, as one tensor that one product multiplies;
 * whatever else is true of the parts is true of all of them. */
static const struct {
    const char *name, *dims, *parts[IR_MAX_PARTS];
} joint_rows[] = {
    {"qkv", "gjdh", {"q", "k", "v"}},
    {"qkv.bias", "gjd", {"q.bias", "k.bias", "v.bias"}},
    {"gate_up", "jfh", {"gate", "up"}},
    {"gate_up.bias", "jf", {"gate.bias", "up.bias"}},
    {"experts.gate_up", "ejfh", {"experts.gate", "experts.up"}},
    {"experts.gate_up.bias", "ejf", {"experts.gate.bias", "experts.up.bias"}},
    {"shared.gate_up", "jfh", {"shared.gate", "shared.up"}},
    {"shared.gate_up.bias", "jf", {"shared.gate.bias", "shared.up.bias"}},
};

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

static bool per_layer(const ParamRow *row)
{
    return strncmp(row->llama, "model.", 6) != 0 &&
           strncmp(row->llama, "lm_head", 7) != 0;
}

/* GPT-2 keeps its linear weights transposed, and q, k, v side by side. */
static void export_gpt2(Model *x, const ParamRow *row, Export *file)
{
    bool linear = per_layer(row) && strlen(row->dims) > 1 && file->cols > 0;
    int64_t q = x->g * x->r * x->d, kv = x->g * x->d;

    file->transpose = linear;
    if (!strstr(row->gpt2, "c_attn"))
        return;
    file->fused_rows = q + 2 * kv;
    file->row_offset = row->name[0] == 'q'   ? 0
                       : row->name[0] == 'k' ? q
                                             : q + kv;
}

/* Mixtral has names of its own; it is what normalises after top-k and has
 * neither norms of heads nor shared experts. */
static const char *mixtral_name(const Model *x, const ParamRow *row)
{
    static const char *const names[][2] = {
        {"router", "block_sparse_moe.gate.weight"},
        {"experts.gate", "block_sparse_moe.experts.{e}.w1.weight"},
        {"experts.down", "block_sparse_moe.experts.{e}.w2.weight"},
        {"experts.up", "block_sparse_moe.experts.{e}.w3.weight"},
    };
    const Spec *s = x->spec;

    if (s->model.qk_norm || s->model.moe.shared_ffn_hidden_size ||
        s->model.moe.pre_softmax || s->model.moe.score != MOE_SOFTMAX)
        return NULL;
    for (size_t i = 0; i < MC_LEN(names); i++)
        if (strcmp(row->name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* Qwen2-MoE has one shared expert, with a gate of its own. */
static const char *qwen2_name(const Model *x, const ParamRow *row)
{
    static const char plural[] = "mlp.shared_experts.";
    size_t n = strlen(plural);

    if (!x->spec->model.moe.shared_gate || strncmp(row->llama, plural, n) != 0)
        return NULL;
    return arena_printf(x->m->arena, "mlp.shared_expert.%s", row->llama + n);
}

static const char *family_name(const Model *x, const ParamRow *row)
{
    const char *own = mixtral_name(x, row);

    if (x->gpt2)
        return row->gpt2;
    own = own ? own : qwen2_name(x, row);
    return own ? own : row->llama;
}

/* `t` is the logical type of what the row is about. */
static Export export_row(Model *x, const ParamRow *row, const Type *t)
{
    const char *own = family_name(x, row);
    uint8_t first = strstr(own, "{e}") ? 1 : 0; /* each expert by itself */
    const char *prefix = !per_layer(row) ? ""
                         : x->gpt2       ? "transformer.h.{l}."
                                         : "model.layers.{l}.";
    const char *full = arena_printf(x->m->arena, "%s%s", prefix, own);

    Export file = {.name = sym_intern(x->m->names, full), .rows = 1};

    for (uint8_t i = first; i < t->ndim; i++) {
        if (i < row->rows)
            file.rows *= t->size[i];
        else
            file.cols = MC_MAX(file.cols, 1) * t->size[i];
    }
    file.fused_rows = file.rows;
    if (x->gpt2)
        export_gpt2(x, row, &file);
    return file;
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

/* ZeRO (Rajbhandari et al. 2020) is where things rest: 1 shards what only the
 * optimizer touches, 2 also the gradients, 3 also the parameters. */
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
    LayoutId shard =
        model_shard_layout(x, use, type_of(x->m, t->type), t->expert);

    for (int i = 0; i < FIELD_COUNT; i++)
        t->rest[i] = x->spec->parallel.sharding >= from[i] ? shard : use;
}

/* The bias that balances experts is no gradient's business: the optimizer
 * moves it by counts of tokens.  It has one field, f32 and whole. */
static void make_statistic(Model *x, Tensor *t)
{
    t->type = type_as(x->m, t->type, DT_F32);
    t->logical.dtype = DT_F32;
    t->field_dtype[FIELD_PARAM] = DT_F32;
    t->fields = 1u << FIELD_PARAM;
    for (int i = 0; i < FIELD_COUNT; i++)
        t->rest[i] = layout_whole(x->m);
}

static const ParamRow *param_row(const char *name)
{
    const ParamRow *row = param_rows;

    while (strcmp(row->name, name) != 0)
        row++;
    return row;
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
    t.per_layer = per_layer(row);
    t.parameter = true;
    t.decay = row->init == INIT_NORMAL;
    t.init = row->init;
    t.init_std = x->spec->model.init_std;
    if (row->part & OUTPUT)
        t.init_std /= sqrt(2.0 * (double)x->layers);
    t.loc = x->loc;
    set_fields(x, &t);
    t.expert = (row->part & EXPERT) != 0;
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
    t.file = export_row(x, row, &t.logical);
    return tensor_new(x->m, &t);
}

/* ---- side by side -------------------------------------------------------- */

static uint32_t joint_row(const char *name)
{
    uint32_t i = 0;

    while (strcmp(joint_rows[i].name, name) != 0)
        i++;
    return i;
}

/* Indices of j that a part fills. */
static int64_t part_size(const Model *x, const ParamRow *row)
{
    return strchr(row->dims, 'r') ? model_size(x, 'r') : 1;
}

static TypeId joint_type(Model *x, uint32_t joint)
{
    const char *dims = joint_rows[joint].dims;
    int64_t size[IR_MAX_DIMS], all = 0;

    for (uint32_t i = 0; i < IR_MAX_PARTS && joint_rows[joint].parts[i]; i++)
        all += part_size(x, param_row(joint_rows[joint].parts[i]));
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
    p->file = export_row(x, row, &logical);
    t->nparts++;
}

static TensorId add_joint(Model *x, const char *name)
{
    uint32_t joint = joint_row(name);
    const char *const *parts = joint_rows[joint].parts;
    Tensor t = describe(x, name, param_row(parts[0]), joint_rows[joint].dims,
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

/* Where state rests in shards, what is gathered should lie without gaps: the
 * dimension that is split comes first. */
bool model_joins(const Model *x, const char *name)
{
    const SpecDerived *d = &x->spec->derived;

    return joint_rows[joint_row(name)].dims[0] != 'j' ||
           x->spec->parallel.sharding == SHARD_NONE ||
           d->dense_dp * x->spec->parallel.cp == 1;
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
