/* model_layer.c - one layer: norms, attention, MLP, in primitives. */
#include "frontend/model_priv.h"

/* Over `dim` (h, or d for heads): RMSNorm (Zhang & Sennrich 2019) or LayerNorm
 * (Ba et al. 2016); in f32, rounded once at the end. */
static ValueId norm(Model *x, ValueId a, const char *weight, char dim,
                    SpecNorm kind)
{
    ValueId inv_n = model_ratio(x, 1, model_size(x, dim));
    ValueId mean, var, y;

    if (kind == NORM_LAYERNORM) {
        mean = model_binary(x, OP_MUL, model_sum(x, a, dim), inv_n);
        a = model_binary(x, OP_SUB, a, mean);
    }
    var = model_binary(x, OP_MUL,
                       model_sum(x, model_binary(x, OP_MUL, a, a), dim), inv_n);
    var = model_binary(x, OP_ADD, var,
                       model_number(x, x->spec->model.norm_epsilon));
    y = model_binary(x, OP_MUL, a, model_unary(x, OP_RSQRT, var));
    y = model_binary(x, OP_MUL, y, model_param(x, weight));
    if (kind == NORM_LAYERNORM)
        y = model_binary(
            x, OP_ADD, y,
            model_param(x, arena_printf(x->m->arena, "%s.bias", weight)));
    return model_round(x, y);
}

ValueId model_norm(Model *x, ValueId a, const char *weight)
{
    model_at(x, "model.normalization");
    return model_hint(x, norm(x, a, weight, 'h', x->spec->model.normalization),
                      "residual");
}

static ValueId rope_table(Model *x, const char *what)
{
    const Spec *spec = x->spec;
    static const char *const scaling[] = {"none", "linear", "llama3", "yarn"};
    Sym kind = sym_intern(x->m->names, scaling[spec->model.rope.scaling.type]);
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
                 model_positions(x, attrs_intern(x->m, list, n)), x->loc);
}

static ValueId rope(Model *x, ValueId q, ValueId cosine, ValueId sine)
{
    Attr list[] = {attr_of_int(AK_ROTARY, x->spec->derived.rotary_dim),
                   attr_of_int(AK_SIGN, 1)};
    AttrsId attrs = attrs_intern(x->m, list, MC_LEN(list));
    ValueId turned = ir_op(x->m, x->f, OP_ROTATE, &q, 1, attrs, x->loc);

    return model_round(x, model_binary(x, OP_ADD,
                                       model_binary(x, OP_MUL, q, cosine),
                                       model_binary(x, OP_MUL, turned, sine)));
}

static const LayerKind *layer_kind(const Model *x)
{
    return &x->spec->layers.kinds[x->kind];
}

/* One of q, k, v from the normed input: projection, bias, norm of heads. */
static ValueId head_input(Model *x, ValueId n, const char *weight,
                          const char *dims, const char *head_norm)
{
    ValueId y;

    model_at(x, "model.num_attention_heads");
    y = model_name(x, model_dot(x, n, model_param(x, weight), dims), weight);
    if (x->spec->model.qkv_bias) {
        model_at(x, "model.qkv_bias");
        y = model_bias(x, y, arena_printf(x->m->arena, "%s.bias", weight));
    }
    if (head_norm && x->spec->model.qk_norm) {
        model_at(x, "model.qk_norm");
        y = norm(x, y, head_norm, 'd', NORM_RMSNORM);
    }
    return x->spec->parallel.cp > 1 ? model_hint(x, y, "heads") : y;
}

/* A value has one hint, so what rests as heads needs another name. */
static ValueId attention_input(Model *x, ValueId y, const char *hint)
{
    Sym had = value_of(x->m, y)->hint;

    if (!hint)
        return y;
    if (had.i && strcmp(sym_text(x->m->names, had), hint) != 0)
        y = model_unary(x, OP_COPY, y);
    return model_hint(x, y, hint);
}

/* A window that hides nothing is none. */
static AttrsId attention_attrs(Model *x)
{
    const int64_t window = x->spec->model.sliding_window;
    AxisSet ring = model_ring(x, layer_kind(x)->cp_comm);
    Attr list[3] = {attr_of_int(AK_CAUSAL, 1)};
    uint32_t n = 1;

    if (window && window < x->s)
        list[n++] = attr_of_int(AK_WINDOW, window);
    if (ring)
        list[n++] = attr_of_axes(AK_AXES, ring);
    return model_positions(x, attrs_intern(x->m, list, n));
}

static ValueId attention(Model *x, ValueId n)
{
    ValueId qkv[3], o, y;
    uint32_t mark;

    qkv[0] = head_input(x, n, "q", "sbgrd", "q_norm");
    qkv[1] = head_input(x, n, "k", "sbgd", "k_norm");
    qkv[2] = head_input(x, n, "v", "sbgd", NULL);
    if (x->spec->model.position_embedding == PE_ROPE) {
        model_at(x, "model.rope.base");
        ValueId cosine = rope_table(x, "cos"), sine = rope_table(x, "sin");
        qkv[0] = rope(x, qkv[0], cosine, sine);
        qkv[1] = rope(x, qkv[1], cosine, sine);
    }
    model_at(x, "model.num_attention_heads");
    for (int i = 0; x->spec->parallel.cp > 1 && i < 3; i++)
        qkv[i] = attention_input(
            x, qkv[i], model_attention_hint(layer_kind(x)->cp_comm));
    mark = model_mark(x);
    o = ir_op(x->m, x->f, OP_ATTENTION, qkv, 3, attention_attrs(x), x->loc);
    model_module(x, mark, MODULE_CORE_ATTN);
    if (x->spec->parallel.cp > 1)
        model_hint(x, o, "heads");
    y = model_hint(x, model_dot(x, o, model_param(x, "proj"), "sbh"),
                   "residual");
    if (x->spec->model.linear_bias) {
        model_at(x, "model.linear_bias");
        y = model_bias(x, y, "proj.bias");
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
        return model_binary(x, OP_MUL, u, model_unary(x, OP_SIGMOID, u));
    case ACT_GEGLU:
    case ACT_GELU:
        inner = model_unary(
            x, OP_ERF,
            model_binary(x, OP_MUL, u, model_number(x, 0.70710678118654752)));
        break;
    case ACT_GELU_TANH:
        cube = model_binary(x, OP_MUL, model_binary(x, OP_MUL, u, u), u);
        inner = model_binary(
            x, OP_ADD, u,
            model_binary(x, OP_MUL, cube, model_number(x, 0.044715)));
        inner = model_binary(x, OP_MUL, inner,
                             model_number(x, 0.79788456080286536));
        inner = model_unary(x, OP_TANH, inner);
        break;
    case ACT_RELU:
        return model_unary(x, OP_RELU, u);
    default:
        u = model_unary(x, OP_RELU, u);
        return model_binary(x, OP_MUL, u, u);
    }
    inner = model_binary(x, OP_ADD, inner, model_number(x, 1.0));
    return model_binary(
        x, OP_MUL, model_binary(x, OP_MUL, u, model_ratio(x, 1, 2)), inner);
}

/* An MLP over the dimensions `rows`; its weights' names start with `prefix`. */
typedef struct {
    const char *prefix, *rows;
    bool bias;
} Mlp;

static const char *mlp_name(Model *x, const Mlp *k, const char *name)
{
    return arena_printf(x->m->arena, "%s%s", k->prefix, name);
}

static ValueId mlp_product(Model *x, const Mlp *k, ValueId n, const char *name,
                           char dim)
{
    const char *weight = mlp_name(x, k, name);
    const char *dims = arena_printf(x->m->arena, "%s%c", k->rows, dim);

    model_at(x, "model.ffn_hidden_size");
    return model_dot(x, n, model_param(x, weight), dims);
}

static ValueId mlp_bias(Model *x, const Mlp *k, ValueId y, const char *name)
{
    if (!k->bias)
        return y;
    model_at(x, "model.linear_bias");
    return model_bias(
        x, y, mlp_name(x, k, arena_printf(x->m->arena, "%s.bias", name)));
}

static ValueId mlp_input(Model *x, const Mlp *k, ValueId n, const char *name)
{
    ValueId y = mlp_product(x, k, n, name, 'f');

    model_name(x, y, name);
    return mlp_bias(x, k, y, name);
}

ValueId model_mlp(Model *x, ValueId n, const char *prefix, const char *rows,
                  const char *hint)
{
    Mlp k = {prefix, rows, x->spec->model.linear_bias};
    bool gated = spec_gated(x->spec);
    ValueId gate = gated ? mlp_input(x, &k, n, "gate") : (ValueId){0};
    ValueId up = mlp_input(x, &k, n, "up");
    ValueId act, y;

    model_at(x, "model.activation");
    act = activate(x, gated ? gate : up);
    if (gated)
        act = model_binary(x, OP_MUL, act, up);
    act = model_name(x, model_round(x, act), "act");
    y = model_hint(x, mlp_product(x, &k, act, "down", 'h'), hint);
    return mlp_bias(x, &k, y, "down");
}

static ValueId dense(Model *x, ValueId n)
{
    uint32_t mark = model_mark(x);
    ValueId y = model_mlp(x, n, "", "sb", "residual");

    model_module(x, mark, MODULE_MLP);
    return y;
}

static ValueId residual(Model *x, ValueId a, ValueId b)
{
    model_at(x, "model.hidden_size");
    return model_hint(x, model_round(x, model_binary(x, OP_ADD, a, b)),
                      "residual");
}

FuncId model_layer(Model *x)
{
    const char *name = x->spec->layers.nkinds == 1
                           ? "layer"
                           : arena_printf(x->m->arena, "layer.%u", x->kind);
    FuncId f = model_begin(x, name, "model.num_layers");
    ValueId in = func_param(x->m, f, model_type(x, x->compute, "sbh"), "x");
    ValueId mid, out;

    model_hint(x, in, "residual");
    mid = residual(x, in, attention(x, model_norm(x, in, "norm1")));
    out = model_norm(x, mid, "norm2");
    out = layer_kind(x)->experts ? model_moe(x, out) : dense(x, out);
    out = residual(x, mid, out);
    model_result(x, model_name(x, out, "y"));
    return f;
}
