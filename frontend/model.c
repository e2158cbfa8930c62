/* model.c - from a Spec to the forward program of one training step.
 *
 * Each kind of block is one function, however many layers the model has:
 *
 *   step(tokens[m,s,b], labels)   scan over microbatches of
 *     micro(tokens[s,b], labels)  embed, scan over layers of `layer`, head
 *       head                      final norm, scan over token chunks of
 *         head.chunk              logits and cross-entropy, which adds to @loss
 *
 * Everything pointwise is spelled in primitives; what is fused into one kernel
 * is decided later.  Parallelism enters in two places only: the mesh, and the
 * layouts of weights and of the hint `residual`.  All sizes are logical; b is
 * the microbatch of all replicas together.
 */
#include "frontend/frontend.h"
#include "frontend/model.h"

#include <math.h>

/* The largest piece of the logits that exists at once on one rank. */
enum { LOGITS_ELEMENTS = 32 << 20 };

typedef struct {
    const Spec *spec;
    Module *m;
    FuncId f; /* the function under construction */
    Loc loc;  /* the YAML key that the next nodes come from */
    DType compute;
    bool gpt2; /* Hugging Face names of the GPT-2 family */
    int64_t s, b, h, g, r, d, f_, v, p, layers;
} Model;

static Loc at(Model *x, const char *path)
{
    x->loc = spec_loc(x->spec, path);
    return x->loc;
}

/* ---- the mesh and the layouts of weights -------------------------------- */

static uint32_t add_axis(Model *x, const char *name, int64_t size,
                         uint32_t stride)
{
    Sym axis = sym_intern(x->m->names, name);

    if (size > 1)
        mesh_atom(&x->m->mesh, axis, 0, (uint32_t)size, stride, false);
    return stride * (uint32_t)size;
}

/* With fewer KV groups than tp, tp is cut in two: groups are split over the
 * significant part, the queries of one group over the other. */
static uint32_t add_tp(Model *x, int64_t tp)
{
    Sym axis = sym_intern(x->m->names, "tp");
    uint32_t inner = x->g < tp ? (uint32_t)(tp / x->g) : 1;

    if (inner == 1 || x->g == 1)
        return add_axis(x, "tp", tp, 1);
    mesh_atom(&x->m->mesh, axis, 0, (uint32_t)x->g, inner, false);
    mesh_atom(&x->m->mesh, axis, 1, inner, 1, false);
    return (uint32_t)tp;
}

static void build_mesh(Model *x)
{
    const Spec *spec = x->spec;
    int64_t pp = spec->parallel.pp;
    uint32_t stride = add_tp(x, spec->parallel.tp);

    stride = add_axis(x, "cp", spec->parallel.cp, stride);
    stride = add_axis(x, "dp", spec->derived.dense_dp, stride);
    add_axis(x, "pp", pp, stride);
    if (spec->model.tie_embeddings && pp > 1)
        add_axis(x, "embed", 2, stride * (uint32_t)(pp - 1));
    x->m->mesh.world = stride * (uint32_t)pp;
}

/* Appends a whole axis to the split of `dim`. */
static void split_over(Model *x, Layout *l, char dim, const char *axis)
{
    uint8_t atoms[IR_MAX_ATOMS];
    const Split *old = layout_split(l, dim);
    uint8_t n = 0;

    for (; old && n < old->n; n++)
        atoms[n] = old->atom[n];
    n = (uint8_t)(n + mesh_axis_atoms(x->m, axis, atoms + n));
    if (n > 0)
        layout_set_split(l, dim, atoms, n);
}

/* Heads: g over as much of tp as there are groups, r over the rest. */
static void split_heads(Model *x, Layout *l, bool queries)
{
    uint8_t atoms[IR_MAX_ATOMS];
    uint8_t n = mesh_axis_atoms(x->m, "tp", atoms);

    if (n == 0)
        return;
    if (x->g == 1) {
        if (queries)
            layout_set_split(l, 'r', atoms, n);
        return;
    }
    layout_set_split(l, 'g', atoms, 1);
    if (n > 1 && queries)
        layout_set_split(l, 'r', atoms + 1, (uint8_t)(n - 1));
}

static LayoutId weight_layout(Model *x, const char *dims)
{
    Layout l = {0};

    if (strchr(dims, 'g'))
        split_heads(x, &l, strchr(dims, 'r') != NULL);
    if (strchr(dims, 'f'))
        split_over(x, &l, 'f', "tp");
    if (strchr(dims, 'v'))
        split_over(x, &l, 'v', "tp");
    return layout_intern(x->m, &l);
}

/* How a sharded field rests: its first dimension that the replicas divide is
 * split over them too.  A tensor without one stays whole. */
static LayoutId shard_layout(Model *x, LayoutId use, const Type *t)
{
    Layout l = *layout_of(x->m, use);
    int64_t replicas = x->spec->derived.dense_dp * x->spec->parallel.cp;

    for (uint8_t i = 0; i < t->ndim; i++) {
        if (layout_local(x->m, t, &l, t->dim[i]) % replicas)
            continue;
        split_over(x, &l, t->dim[i], "dp");
        split_over(x, &l, t->dim[i], "cp");
        break;
    }
    return layout_intern(x->m, &l);
}

static void build_hints(Model *x)
{
    Layout l = {0};
    NamedLayout batch = {sym_intern(x->m->names, "batch"), {0}};
    NamedLayout residual = {sym_intern(x->m->names, "residual"), {0}};
    NamedLayout total = {sym_intern(x->m->names, "total"), layout_whole(x->m)};

    split_over(x, &l, 'b', "dp");
    split_over(x, &l, 's', "cp");
    batch.layout = layout_intern(x->m, &l);
    vec_push(&x->m->hints, batch);
    if (x->spec->parallel.sp)
        split_over(x, &l, 's', "tp");
    residual.layout = layout_intern(x->m, &l);
    vec_push(&x->m->hints, residual);
    vec_push(&x->m->hints, total);
}

/* ---- tensors ------------------------------------------------------------ */

/* One row per parameter: what it is called here and in both families of
 * Hugging Face files, its dimensions, how it starts. */
typedef struct {
    const char *name, *llama, *gpt2;
    const char *dims;
    InitKind init;
    bool output; /* its std is divided by sqrt(2 * layers) */
    uint8_t rows; /* how many leading dims are rows of the file's matrix */
} ParamRow;

static const ParamRow param_rows[] = {
    {"embed", "model.embed_tokens.weight", "transformer.wte.weight", "vh",
     INIT_NORMAL, false, 1},
    {"positions", "model.embed_positions.weight", "transformer.wpe.weight",
     "ph", INIT_NORMAL, false, 1},
    {"norm1", "input_layernorm.weight", "ln_1.weight", "h", INIT_ONES, false,
     1},
    {"norm1.bias", "input_layernorm.bias", "ln_1.bias", "h", INIT_ZEROS, false,
     1},
    {"q", "self_attn.q_proj.weight", "attn.c_attn.weight", "grdh", INIT_NORMAL,
     false, 3},
    {"k", "self_attn.k_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     false, 2},
    {"v", "self_attn.v_proj.weight", "attn.c_attn.weight", "gdh", INIT_NORMAL,
     false, 2},
    {"q.bias", "self_attn.q_proj.bias", "attn.c_attn.bias", "grd", INIT_ZEROS,
     false, 3},
    {"k.bias", "self_attn.k_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS,
     false, 2},
    {"v.bias", "self_attn.v_proj.bias", "attn.c_attn.bias", "gd", INIT_ZEROS,
     false, 2},
    {"q_norm", "self_attn.q_norm.weight", "attn.q_norm.weight", "d", INIT_ONES,
     false, 1},
    {"k_norm", "self_attn.k_norm.weight", "attn.k_norm.weight", "d", INIT_ONES,
     false, 1},
    {"proj", "self_attn.o_proj.weight", "attn.c_proj.weight", "hgrd",
     INIT_NORMAL, true, 1},
    {"proj.bias", "self_attn.o_proj.bias", "attn.c_proj.bias", "h", INIT_ZEROS,
     false, 1},
    {"norm2", "post_attention_layernorm.weight", "ln_2.weight", "h", INIT_ONES,
     false, 1},
    {"norm2.bias", "post_attention_layernorm.bias", "ln_2.bias", "h",
     INIT_ZEROS, false, 1},
    {"gate", "mlp.gate_proj.weight", "mlp.c_gate.weight", "fh", INIT_NORMAL,
     false, 1},
    {"up", "mlp.up_proj.weight", "mlp.c_fc.weight", "fh", INIT_NORMAL, false,
     1},
    {"gate.bias", "mlp.gate_proj.bias", "mlp.c_gate.bias", "f", INIT_ZEROS,
     false, 1},
    {"up.bias", "mlp.up_proj.bias", "mlp.c_fc.bias", "f", INIT_ZEROS, false, 1},
    {"down", "mlp.down_proj.weight", "mlp.c_proj.weight", "hf", INIT_NORMAL,
     true, 1},
    {"down.bias", "mlp.down_proj.bias", "mlp.c_proj.bias", "h", INIT_ZEROS,
     false, 1},
    {"norm", "model.norm.weight", "transformer.ln_f.weight", "h", INIT_ONES,
     false, 1},
    {"norm.bias", "model.norm.bias", "transformer.ln_f.bias", "h", INIT_ZEROS,
     false, 1},
    {"head", "lm_head.weight", "lm_head.weight", "vh", INIT_NORMAL, false, 1},
};

static int64_t dim_size(const Model *x, char dim)
{
    switch (dim) {
    case 's': return x->s;
    case 'b': return x->b;
    case 'h': return x->h;
    case 'g': return x->g;
    case 'r': return x->r;
    case 'd': return x->d;
    case 'f': return x->f_;
    case 'v': return x->v;
    case 'p': return x->p;
    default: mc_bug(__FILE__, __LINE__, "a dimension of the model");
    }
}

static TypeId type_dims(Model *x, DType dtype, const char *dims)
{
    int64_t size[IR_MAX_DIMS];

    for (size_t i = 0; dims[i]; i++)
        size[i] = dim_size(x, dims[i]);
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
    file->row_offset = row->name[0] == 'q' ? 0 : row->name[0] == 'k' ? q
                                                                     : q + kv;
}

static void export_row(Model *x, const ParamRow *row, Tensor *t)
{
    const char *own = x->gpt2 ? row->gpt2 : row->llama;
    const char *prefix = !per_layer(row) ? ""
                         : x->gpt2       ? "transformer.h.{l}."
                                         : "model.layers.{l}.";
    const char *full = arena_printf(x->m->arena, "%s%s", prefix, own);

    t->file.name = sym_intern(x->m->names, full);
    t->file.rows = 1;
    for (uint8_t i = 0; i < t->logical.ndim; i++) {
        if (i < row->rows)
            t->file.rows *= t->logical.size[i];
        else
            t->file.cols = MC_MAX(t->file.cols, 1) * t->logical.size[i];
    }
    t->file.fused_rows = t->file.rows;
    if (x->gpt2)
        export_gpt2(x, row, &t->file);
}

static void set_fields(Model *x, Tensor *t)
{
    bool adam = x->spec->training.optimizer.type == OPT_ADAMW;

    for (int i = 0; i < FIELD_COUNT; i++)
        t->field_dtype[i] = DT_F32;
    t->field_dtype[FIELD_PARAM] = x->compute;
    t->fields = 1u << FIELD_PARAM | 1u << FIELD_GRAD | 1u << FIELD_GSUM;
    if (x->compute != DT_F32)
        t->fields |= 1u << FIELD_MASTER;
    if (adam)
        t->fields |= 1u << FIELD_M | 1u << FIELD_V;
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
    LayoutId shard = shard_layout(x, use, type_of(x->m, t->type));

    for (int i = 0; i < FIELD_COUNT; i++)
        t->rest[i] = x->spec->parallel.sharding >= from[i] ? shard : use;
}

static TensorId add_param(Model *x, const char *name)
{
    const ParamRow *row = param_rows;
    Tensor t = {0};

    while (strcmp(row->name, name) != 0)
        row++;
    t.name = sym_intern(x->m->names, name);
    t.type = type_dims(x, x->compute, row->dims);
    t.logical = *type_of(x->m, t.type);
    for (uint8_t i = 0; i < t.logical.ndim; i++)
        if (t.logical.dim[i] == 'v' && row->dims[0] == 'v')
            t.logical.size[i] = x->spec->model.vocab_size;
    t.per_layer = per_layer(row);
    t.parameter = true;
    t.decay = row->init == INIT_NORMAL;
    t.init = row->init;
    t.init_std = x->spec->model.init_std;
    if (row->output)
        t.init_std /= sqrt(2.0 * (double)x->layers);
    t.loc = x->loc;
    set_fields(x, &t);
    set_rest(x, &t, weight_layout(x, row->dims));
    if (strcmp(name, "embed") == 0 && x->spec->model.tie_embeddings)
        t.tied = mesh_axis(x->m, "embed");
    export_row(x, row, &t);
    return tensor_new(x->m, &t);
}

/* The parameter's value in the function under construction; the tensor is
 * made at its first use. */
static ValueId param(Model *x, const char *name)
{
    TensorId t = tensor_find(x->m, sym_intern(x->m->names, name));

    if (t.i == 0)
        t = add_param(x, name);
    return ir_read(x->m, x->f, t, FIELD_PARAM, x->loc);
}

static TensorId add_metric(Model *x, const char *name)
{
    Tensor t = {0};

    t.name = sym_intern(x->m->names, name);
    t.type = type_make(x->m, DT_F32, "", NULL);
    t.logical = *type_of(x->m, t.type);
    t.fields = 1u << FIELD_ACC;
    for (int i = 0; i < FIELD_COUNT; i++) {
        t.field_dtype[i] = DT_F32;
        t.rest[i] = layout_whole(x->m);
    }
    t.loc = x->loc;
    return tensor_new(x->m, &t);
}

/* ---- small spellings ---------------------------------------------------- */

static ValueId un(Model *x, Op op, ValueId a)
{
    return ir_unary(x->m, x->f, op, a, x->loc);
}

static ValueId bin(Model *x, Op op, ValueId a, ValueId b)
{
    return ir_binary(x->m, x->f, op, a, b, x->loc);
}

static ValueId num(Model *x, double value)
{
    return ir_const(x->m, x->f, value, x->loc);
}

static ValueId ratio(Model *x, int64_t p, int64_t q)
{
    return ir_ratio(x->m, x->f, p, q, false, x->loc);
}

static ValueId round_to(Model *x, ValueId a)
{
    return ir_cast(x->m, x->f, a, x->compute, x->loc);
}

static ValueId hinted(Model *x, ValueId a, const char *hint)
{
    value_of(x->m, a)->hint = sym_intern(x->m->names, hint);
    return a;
}

static ValueId named(Model *x, ValueId a, const char *name)
{
    value_of(x->m, a)->name = sym_intern(x->m->names, name);
    return a;
}

/* Sum over one dimension. */
static ValueId sum_over(Model *x, ValueId a, char dim)
{
    const Type *t = value_type(x->m, a);
    char keep[IR_MAX_DIMS + 1];
    size_t n = 0;

    for (uint8_t i = 0; i < t->ndim; i++)
        if (t->dim[i] != dim)
            keep[n++] = t->dim[i];
    keep[n] = '\0';
    return ir_sum(x->m, x->f, a, keep, x->loc);
}

static ValueId dot(Model *x, ValueId a, ValueId b, const char *dims)
{
    return ir_dot(x->m, x->f, a, b, dims, x->compute, x->loc);
}

static ValueId add_bias(Model *x, ValueId y, const char *name)
{
    return round_to(x, bin(x, OP_ADD, y, param(x, name)));
}

/* ---- blocks ------------------------------------------------------------- */

/* Over `dim` (h, or d for heads): RMSNorm (Zhang & Sennrich 2019) or LayerNorm
 * (Ba et al. 2016); in f32, rounded once at the end. */
static ValueId norm(Model *x, ValueId a, const char *weight, char dim,
                    SpecNorm kind)
{
    ValueId inv_n = ratio(x, 1, dim_size(x, dim));
    ValueId mean, var, y;

    if (kind == NORM_LAYERNORM) {
        mean = bin(x, OP_MUL, sum_over(x, a, dim), inv_n);
        a = bin(x, OP_SUB, a, mean);
    }
    var = bin(x, OP_MUL, sum_over(x, bin(x, OP_MUL, a, a), dim), inv_n);
    var = bin(x, OP_ADD, var, num(x, x->spec->model.norm_epsilon));
    y = bin(x, OP_MUL, a, un(x, OP_RSQRT, var));
    y = bin(x, OP_MUL, y, param(x, weight));
    if (kind == NORM_LAYERNORM)
        y = bin(x, OP_ADD, y,
                param(x, arena_printf(x->m->arena, "%s.bias", weight)));
    return round_to(x, y);
}

static ValueId block_norm(Model *x, ValueId a, const char *weight)
{
    at(x, "model.normalization");
    return hinted(x, norm(x, a, weight, 'h', x->spec->model.normalization),
                  "residual");
}

static ValueId rope_table(Model *x, const char *what)
{
    const Spec *spec = x->spec;
    static const char *const scaling[] = {"none", "linear", "llama3", "yarn"};
    Sym kind = sym_intern(x->m->names,
                          scaling[spec->model.rope.scaling.type]);
    Attr list[] = {
        attr_of_sym(AK_WHAT, sym_intern(x->m->names, what)),
        attr_of_int(AK_ROTARY, spec->derived.rotary_dim),
        attr_of_int(AK_SIZE, x->s),
        attr_of_int(AK_CHANNELS, x->d),
        attr_of_float(AK_BASE, spec->model.rope.base),
        attr_of_sym(AK_SCALING, kind),
        attr_of_float(AK_FACTOR, spec->model.rope.scaling.factor),
        attr_of_float(AK_LOW, spec->model.rope.scaling.low_freq_factor),
        attr_of_float(AK_HIGH, spec->model.rope.scaling.high_freq_factor),
        attr_of_int(AK_ORIGINAL,
                    spec->model.rope.scaling.original_max_position_embeddings),
    };
    uint32_t n = spec->model.rope.scaling.type == ROPE_NONE ? 6 : MC_LEN(list);

    return ir_op(x->m, x->f, OP_ROPE_TABLE, NULL, 0,
                 attrs_intern(x->m, list, n), x->loc);
}

static ValueId rope(Model *x, ValueId q, ValueId cosine, ValueId sine)
{
    Attr list[] = {attr_of_int(AK_ROTARY, x->spec->derived.rotary_dim),
                   attr_of_int(AK_SIGN, 1)};
    AttrsId attrs = attrs_intern(x->m, list, MC_LEN(list));
    ValueId turned = ir_op(x->m, x->f, OP_ROTATE, &q, 1, attrs, x->loc);

    return round_to(x, bin(x, OP_ADD, bin(x, OP_MUL, q, cosine),
                           bin(x, OP_MUL, turned, sine)));
}

/* One of q, k, v from the normed input: projection, bias, norm of heads. */
static ValueId head_input(Model *x, ValueId n, const char *weight,
                          const char *dims, const char *head_norm)
{
    ValueId y;

    at(x, "model.num_attention_heads");
    y = named(x, dot(x, n, param(x, weight), dims), weight);
    if (x->spec->model.qkv_bias) {
        at(x, "model.qkv_bias");
        y = add_bias(x, y, arena_printf(x->m->arena, "%s.bias", weight));
    }
    if (head_norm && x->spec->model.qk_norm) {
        at(x, "model.qk_norm");
        y = norm(x, y, head_norm, 'd', NORM_RMSNORM);
    }
    return y;
}

/* Marks the node of a value as part of a module of training.recompute. */
static ValueId in_module(Model *x, ValueId v, SpecModule module)
{
    NodeId def = value_of(x->m, v)->def;
    Sym word = sym_intern(x->m->names, spec_module_word(module));
    AttrsId attrs = attrs_with(x->m, node_of(x->m, def)->attrs,
                               attr_of_sym(AK_MODULE, word));

    node_of(x->m, def)->attrs = attrs;
    return v;
}

static ValueId attention(Model *x, ValueId n)
{
    Attr causal = attr_of_int(AK_CAUSAL, 1);
    ValueId qkv[3], o, y;

    qkv[0] = head_input(x, n, "q", "sbgrd", "q_norm");
    qkv[1] = head_input(x, n, "k", "sbgd", "k_norm");
    qkv[2] = head_input(x, n, "v", "sbgd", NULL);
    if (x->spec->model.position_embedding == PE_ROPE) {
        at(x, "model.rope.base");
        ValueId cosine = rope_table(x, "cos"), sine = rope_table(x, "sin");
        qkv[0] = rope(x, qkv[0], cosine, sine);
        qkv[1] = rope(x, qkv[1], cosine, sine);
    }
    at(x, "model.num_attention_heads");
    o = ir_op(x->m, x->f, OP_ATTENTION, qkv, 3, attrs_intern(x->m, &causal, 1),
              x->loc);
    in_module(x, o, MODULE_CORE_ATTN);
    y = hinted(x, dot(x, o, param(x, "proj"), "sbh"), "residual");
    if (x->spec->model.linear_bias) {
        at(x, "model.linear_bias");
        y = add_bias(x, y, "proj.bias");
    }
    return y;
}

/* x * sigmoid(x); the Gaussian error linear unit (Hendrycks & Gimpel 2016),
 * exact or by its tanh approximation; relu and its square. */
static ValueId activate(Model *x, ValueId u)
{
    ValueId inner, cube;

    switch (x->spec->model.activation) {
    case ACT_SWIGLU:
    case ACT_SILU:
        return bin(x, OP_MUL, u, un(x, OP_SIGMOID, u));
    case ACT_GEGLU:
    case ACT_GELU:
        inner = un(x, OP_ERF, bin(x, OP_MUL, u, num(x, 0.70710678118654752)));
        break;
    case ACT_GELU_TANH:
        cube = bin(x, OP_MUL, bin(x, OP_MUL, u, u), u);
        inner = bin(x, OP_ADD, u, bin(x, OP_MUL, cube, num(x, 0.044715)));
        inner = bin(x, OP_MUL, inner, num(x, 0.79788456080286536));
        inner = un(x, OP_TANH, inner);
        break;
    case ACT_RELU:
        return un(x, OP_RELU, u);
    default:
        u = un(x, OP_RELU, u);
        return bin(x, OP_MUL, u, u);
    }
    inner = bin(x, OP_ADD, inner, num(x, 1.0));
    return bin(x, OP_MUL, bin(x, OP_MUL, u, ratio(x, 1, 2)), inner);
}

static ValueId mlp_input(Model *x, ValueId n, const char *weight)
{
    ValueId y;

    at(x, "model.ffn_hidden_size");
    y = named(x, dot(x, n, param(x, weight), "sbf"), weight);
    in_module(x, y, MODULE_MLP);
    if (!x->spec->model.linear_bias)
        return y;
    at(x, "model.linear_bias");
    return add_bias(x, y, arena_printf(x->m->arena, "%s.bias", weight));
}

static ValueId mlp(Model *x, ValueId n)
{
    bool gated = spec_gated(x->spec);
    ValueId gate = gated ? mlp_input(x, n, "gate") : (ValueId){0};
    ValueId up = mlp_input(x, n, "up");
    ValueId act, y;

    at(x, "model.activation");
    act = activate(x, gated ? gate : up);
    if (gated)
        act = bin(x, OP_MUL, act, up);
    act = named(x, round_to(x, act), "act");
    at(x, "model.ffn_hidden_size");
    y = hinted(x, dot(x, act, param(x, "down"), "sbh"), "residual");
    if (x->spec->model.linear_bias) {
        at(x, "model.linear_bias");
        y = add_bias(x, y, "down.bias");
    }
    return y;
}

static ValueId residual(Model *x, ValueId a, ValueId b)
{
    at(x, "model.hidden_size");
    return hinted(x, round_to(x, bin(x, OP_ADD, a, b)), "residual");
}

static FuncId begin(Model *x, const char *name, const char *path)
{
    x->f = func_new(x->m, name, FUNC_GRAPH, at(x, path));
    return x->f;
}

static void result(Model *x, ValueId v)
{
    vec_push(&func_of(x->m, x->f)->results, v);
}

static FuncId build_layer(Model *x)
{
    FuncId f = begin(x, "layer", "model.num_layers");
    ValueId in = func_param(x->m, f, type_dims(x, x->compute, "sbh"), "x");
    ValueId mid, out;

    hinted(x, in, "residual");
    mid = residual(x, in, attention(x, block_norm(x, in, "norm1")));
    out = residual(x, mid, mlp(x, block_norm(x, mid, "norm2")));
    result(x, named(x, out, "y"));
    return f;
}

static FuncId build_embed(Model *x)
{
    FuncId f = begin(x, "embed", "model.vocab_size");
    ValueId tokens = func_param(x->m, f, type_dims(x, DT_I32, "sb"), "tokens");
    ValueId args[2] = {tokens, param(x, "embed")};
    ValueId y = ir_op(x->m, f, OP_EMBED, args, 2, (AttrsId){0}, x->loc);

    hinted(x, y, "residual");
    if (x->spec->model.position_embedding == PE_LEARNED) {
        Attr size = attr_of_int(AK_SIZE, x->s);
        at(x, "model.position_embedding");
        ValueId table = param(x, "positions");
        ValueId rows = ir_op(x->m, f, OP_ROWS, &table, 1,
                             attrs_intern(x->m, &size, 1), x->loc);
        y = hinted(x, round_to(x, bin(x, OP_ADD, y, rows)), "residual");
    }
    result(x, y);
    return f;
}

/* ---- the head ----------------------------------------------------------- */

/* Into how many pieces of the local sequence the logits are cut. */
static int64_t head_chunks(const Model *x)
{
    const Spec *spec = x->spec;
    int64_t split = spec->parallel.cp * (spec->parallel.sp ? spec->parallel.tp
                                                           : 1);
    int64_t local = x->s / split;
    int64_t row = spec->training.micro_batch_size * (x->v / spec->parallel.tp) *
                  (spec->parallel.sp ? spec->parallel.tp : 1);

    for (int64_t n = 1; n < local; n++)
        if (local % n == 0 && local / n * row <= LOGITS_ELEMENTS)
            return n;
    return local;
}

/* Logits of padded vocabulary rows are pushed to -1e30 before the maximum and
 * weigh exactly nothing in the sum. */
static ValueId masked(Model *x, ValueId logits, ValueId in_range)
{
    ValueId out = bin(x, OP_SUB, in_range, num(x, 1.0));

    return bin(x, OP_ADD, logits, bin(x, OP_MUL, out, num(x, 1e30)));
}

static ValueId vocab_op(Model *x, Op op, const ValueId *args, uint32_t nargs)
{
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(x->m->names, "v")),
                   attr_of_int(AK_SIZE, x->v),
                   attr_of_int(AK_LIMIT, x->spec->model.vocab_size)};
    uint32_t n = op == OP_INRANGE ? 3 : 2;

    return ir_op(x->m, x->f, op, args, nargs, attrs_intern(x->m, list, n),
                 x->loc);
}

/* Sum of token losses over this piece, times 1/(valid targets of the global
 * batch): log sum exp(logits) - logits[label], with a shift that cancels. */
static ValueId cross_entropy(Model *x, ValueId logits, ValueId labels)
{
    bool padded = x->v != x->spec->model.vocab_size;
    ValueId in_range = {0}, open = logits, top, e, sum, target, loss;
    TypeId scalar = type_make(x->m, DT_F32, "", NULL);
    Attr what = attr_of_sym(AK_WHAT, sym_intern(x->m->names, "inv_targets"));
    NodeId host;

    if (padded) {
        in_range = vocab_op(x, OP_INRANGE, NULL, 0);
        open = masked(x, logits, in_range);
    }
    top = ir_max(x->m, x->f, open, "sb", x->loc);
    e = bin(x, OP_EXPSUB, open, top);
    if (padded)
        e = bin(x, OP_MUL, e, in_range);
    sum = ir_sum(x->m, x->f, e, "sb", x->loc);
    target = bin(x, OP_MUL, logits, vocab_op(x, OP_ONEHOT, &labels, 1));
    target = ir_sum(x->m, x->f, target, "sb", x->loc);
    loss = bin(x, OP_SUB, bin(x, OP_LOGADD, sum, top), target);
    loss = bin(x, OP_MUL, loss, un(x, OP_VALID, labels));
    loss = ir_sum(x->m, x->f, loss, "", x->loc);
    host = node_new(x->m, x->f, OP_HOST, NULL, 0, attrs_intern(x->m, &what, 1),
                    &scalar, 1, x->loc);
    return bin(x, OP_MUL, loss, node_res(node_of(x->m, host), 0));
}

static FuncId build_chunk(Model *x, int64_t chunks, TensorId loss)
{
    FuncId f = begin(x, "head.chunk", "model.vocab_size");
    TypeId whole = type_dims(x, x->compute, "sbh");
    TypeId ids = type_dims(x, DT_I32, "sb");
    TypeId part = type_resized(x->m, whole, 's', x->s / chunks);
    TypeId ids_part = type_resized(x->m, ids, 's', x->s / chunks);
    ValueId n = func_param(x->m, f, part, "x");
    ValueId labels = func_param(x->m, f, ids_part, "labels");
    bool tied = x->spec->model.tie_embeddings;
    ValueId logits = dot(x, n, param(x, tied ? "embed" : "head"), "sbv");

    hinted(x, n, "residual");
    hinted(x, labels, "batch");
    ir_accum(x->m, f, loss, FIELD_ACC,
             cross_entropy(x, named(x, logits, "logits"), labels), x->loc);
    return f;
}

static FuncId build_head(Model *x, TensorId loss)
{
    int64_t chunks = head_chunks(x);
    FuncId chunk = build_chunk(x, chunks, loss);
    FuncId f = begin(x, "head", "model.vocab_size");
    ValueId in = func_param(x->m, f, type_dims(x, x->compute, "sbh"), "x");
    ValueId labels = func_param(x->m, f, type_dims(x, DT_I32, "sb"), "labels");
    Scan scan = {chunk, 's', 0, chunks, false};
    ValueId args[2];

    hinted(x, in, "residual");
    args[0] = block_norm(x, in, "norm");
    args[1] = labels;
    ir_call(x->m, f, scan, args, "ss", "", x->loc);
    return f;
}

/* ---- the whole ---------------------------------------------------------- */

static FuncId build_micro(Model *x, TensorId loss)
{
    FuncId embed = build_embed(x);
    FuncId layer = build_layer(x);
    FuncId head = build_head(x, loss);
    FuncId f = begin(x, "micro", "training.micro_batch_size");
    TypeId ids = type_dims(x, DT_I32, "sb");
    ValueId tokens = func_param(x->m, f, ids, "tokens");
    ValueId labels = func_param(x->m, f, ids, "labels");
    Scan once = {embed, 0, 0, 1, false};
    Scan layers = {layer, 'l', 0, x->layers, false};
    NodeId n = ir_call(x->m, f, once, &tokens, ".", ".", x->loc);
    ValueId y = node_res(node_of(x->m, n), 0);
    ValueId args[2];

    n = ir_call(x->m, f, layers, &y, ">", ">", x->loc);
    args[0] = node_res(node_of(x->m, n), 0);
    args[1] = labels;
    once.callee = head;
    ir_call(x->m, f, once, args, "..", "", x->loc);
    return f;
}

static FuncId build_step(Model *x, FuncId micro)
{
    FuncId f = begin(x, "step", "training.global_batch_size");
    TypeId ids = type_dims(x, DT_I32, "sb");
    TypeId all = type_with_first(x->m, ids, 'm', x->m->microbatches);
    ValueId args[2];
    Scan scan = {micro, 'm', 0, x->m->microbatches, false};

    args[0] = hinted(x, func_param(x->m, f, all, "tokens"), "batch");
    args[1] = hinted(x, func_param(x->m, f, all, "labels"), "batch");
    ir_call(x->m, f, scan, args, "mm", "", x->loc);
    return f;
}

static void build_stages(Model *x)
{
    StageTable table = x->spec->stages;

    for (uint32_t i = 0; i < table.n; i++) {
        const Stage *s = &table.v[i];
        PipeStage row = {0};
        row.pp = (uint32_t)s->pp;
        row.chunk = (uint32_t)s->chunk;
        row.first_layer = (uint32_t)s->first_layer;
        row.nlayers = (uint32_t)s->num_layers;
        row.embedding = s->has_embedding;
        row.head = s->has_head;
        vec_push(&x->m->stages, row);
    }
}

static Model model_sizes(Module *m, const Spec *spec)
{
    Model x = {0};

    x.m = m;
    x.spec = spec;
    x.compute = spec->training.precision == PREC_FP32 ? DT_F32 : DT_BF16;
    x.gpt2 = spec->model.position_embedding == PE_LEARNED;
    x.s = spec->training.seq_length;
    x.b = spec->training.micro_batch_size * spec->derived.dense_dp;
    x.h = spec->model.hidden_size;
    x.g = spec->model.num_query_groups;
    x.r = spec->model.num_attention_heads / spec->model.num_query_groups;
    x.d = spec->model.kv_channels;
    x.f_ = spec->model.ffn_hidden_size;
    x.v = spec->derived.padded_vocab;
    x.p = spec->model.max_position_embeddings;
    x.layers = spec->model.num_layers;
    return x;
}

Module *model_build(Arena *a, Diag *d, const Spec *spec)
{
    Module *m = module_new(a, d);
    Model x = model_sizes(m, spec);
    TensorId loss;

    m->nlayers = (uint32_t)x.layers;
    m->microbatches = (uint32_t)spec->derived.microbatches;
    build_mesh(&x);
    build_hints(&x);
    build_stages(&x);
    loss = add_metric(&x, "loss");
    vec_push(&m->entry, build_step(&x, build_micro(&x, loss)));
    m->props = PROP_INFERRED;
    return m;
}
