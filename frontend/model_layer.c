/* model_layer.c - one layer: norms, attention, MLP, in primitives. */
#include "frontend/model_priv.h"

#include "base/dropout.h"

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

/* Of what lies side by side only q and k turn: 1 and 0 are cosine and sine of
 * v, exactly. */
static void rope_mask(Model *x, ValueId joint, ValueId *cosine, ValueId *sine)
{
    int64_t n = type_size(value_type(x->m, joint), 'j');
    Attr list[] = {attr_of_sym(AK_DIMS, sym_intern(x->m->names, "j")),
                   attr_of_int(AK_SIZE, n), attr_of_int(AK_LIMIT, n - 1)};
    ValueId turns = ir_op(x->m, x->f, OP_INRANGE, NULL, 0,
                          attrs_intern(x->m, list, MC_LEN(list)), x->loc);
    ValueId rests = model_binary(x, OP_SUB, model_number(x, 1.0), turns);

    *sine = model_binary(x, OP_MUL, *sine, turns);
    *cosine = model_binary(x, OP_ADD, model_binary(x, OP_MUL, *cosine, turns),
                           rests);
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

static ValueId heads(Model *x, ValueId y)
{
    return x->spec->parallel.cp > 1 ? model_hint(x, y, "heads") : y;
}

static ValueId head_norm(Model *x, ValueId y, const char *weight)
{
    if (!x->spec->model.qk_norm)
        return y;
    model_at(x, "model.qk_norm");
    return norm(x, y, weight, 'd', NORM_RMSNORM);
}

/* One of q, k, v from the normed input: projection and bias. */
static ValueId head_input(Model *x, ValueId n, const char *weight,
                          const char *dims)
{
    ValueId y;

    model_at(x, "model.num_attention_heads");
    y = model_name(x, model_dot(x, n, model_param(x, weight), dims), weight);
    if (x->spec->model.qkv_bias) {
        model_at(x, "model.qkv_bias");
        y = model_bias(x, y, arena_printf(x->m->arena, "%s.bias", weight));
    }
    return y;
}

/* All three by one product. */
static ValueId joint_input(Model *x, ValueId n)
{
    ValueId y;

    model_at(x, "model.num_attention_heads");
    y = model_name(x, model_dot(x, n, model_joint(x, "qkv"), "sbgjd"), "qkv");
    if (x->spec->model.qkv_bias) {
        model_at(x, "model.qkv_bias");
        y = model_round(x, model_binary(x, OP_ADD, y,
                                        model_joint(x, "qkv.bias")));
    }
    return y;
}

static bool turns(const Model *x)
{
    return x->spec->model.position_embedding == PE_ROPE;
}

/* How the inputs of attention rest; NULL: as they come. */
static const char *attention_hint(const Model *x)
{
    return x->spec->parallel.cp > 1
               ? model_attention_hint(layer_kind(x)->cp_comm)
               : NULL;
}

/* A value has one hint, so what rests as heads needs another name; a part rests
 * where the whole does. */
static ValueId attention_input(Model *x, ValueId y)
{
    const char *hint = attention_hint(x);
    Sym had = value_of(x->m, y)->hint;
    bool part = node_of(x->m, value_of(x->m, y)->def)->op == OP_PART;

    if (!hint)
        return y;
    if (part || (had.i && strcmp(sym_text(x->m->names, had), hint) != 0))
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
    return model_draws(x, model_positions(x, attrs_intern(x->m, list, n)),
                       x->spec->model.attention_dropout, DROP_SCORES);
}

/* The rotation of what lies side by side, and how it rests. */
static ValueId joint_turned(Model *x, ValueId y)
{
    ValueId cosine, sine;

    if (turns(x)) {
        model_at(x, "model.rope.base");
        cosine = rope_table(x, "cos");
        sine = rope_table(x, "sin");
        rope_mask(x, y, &cosine, &sine);
        y = rope(x, y, cosine, sine);
    }
    model_at(x, "model.num_attention_heads");
    return model_joins_heads(x, attention_hint(x)) ? attention_input(x, y) : y;
}

/* Norms of heads and the rotation, one by one. */
static void turned(Model *x, ValueId *qkv)
{
    qkv[0] = head_norm(x, qkv[0], "q_norm");
    qkv[1] = head_norm(x, qkv[1], "k_norm");
    if (turns(x)) {
        model_at(x, "model.rope.base");
        ValueId cosine = rope_table(x, "cos"), sine = rope_table(x, "sin");
        qkv[0] = rope(x, qkv[0], cosine, sine);
        qkv[1] = rope(x, qkv[1], cosine, sine);
    }
    model_at(x, "model.num_attention_heads");
}

/* q, k, v as parts of one value where all three are split alike; that goes
 * through the rotation as a whole, but not through norms. */
static void attention_inputs(Model *x, ValueId n, ValueId *qkv)
{
    bool joint = model_joins_heads(x, NULL), norms = x->spec->model.qk_norm;
    ValueId y;

    if (joint) {
        y = heads(x, joint_input(x, n));
        y = norms ? y : joint_turned(x, y);
        for (uint32_t i = 0; i < 3; i++)
            qkv[i] = model_part(x, y, "qkv", i);
    } else {
        qkv[0] = heads(x, head_input(x, n, "q", "sbgrd"));
        qkv[1] = heads(x, head_input(x, n, "k", "sbgd"));
        qkv[2] = heads(x, head_input(x, n, "v", "sbgd"));
    }
    if (norms || !joint)
        turned(x, qkv);
    for (int i = 0; i < 3; i++)
        if (norms || !joint || !model_joins_heads(x, attention_hint(x)))
            qkv[i] = attention_input(x, qkv[i]);
}

static ValueId attention(Model *x, ValueId n)
{
    ValueId qkv[3], o, y;
    uint32_t mark;

    attention_inputs(x, n, qkv);
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
    ValueId filled; /* of experts: which rows are in use */
    bool bias;
} Mlp;

static const char *mlp_name(Model *x, const Mlp *k, const char *name)
{
    return arena_printf(x->m->arena, "%s%s", k->prefix, name);
}

/* The product of n with a weight, [rows, dims]. */
static ValueId mlp_product(Model *x, const Mlp *k, ValueId n, ValueId weight,
                           const char *dims)
{
    const char *all = arena_printf(x->m->arena, "%s%s", k->rows, dims);

    return k->filled.i ? model_dot_filled(x, n, weight, k->filled, all)
                       : model_dot(x, n, weight, all);
}

static const char *mlp_bias_name(Model *x, const Mlp *k, const char *name)
{
    model_at(x, "model.linear_bias");
    return mlp_name(x, k, arena_printf(x->m->arena, "%s.bias", name));
}

static ValueId mlp_bias(Model *x, const Mlp *k, ValueId y, const char *name)
{
    return k->bias ? model_bias(x, y, mlp_bias_name(x, k, name)) : y;
}

/* One product and its bias. */
static ValueId mlp_input(Model *x, const Mlp *k, ValueId n, const char *name)
{
    ValueId y;

    model_at(x, "model.ffn_hidden_size");
    y = mlp_product(x, k, n, model_param(x, mlp_name(x, k, name)), "f");
    model_name(x, y, name);
    return mlp_bias(x, k, y, name);
}

/* gate and up by one product; its bias too lies side by side. */
static void mlp_joint(Model *x, const Mlp *k, ValueId n, ValueId *gate,
                      ValueId *up)
{
    const char *weight = mlp_name(x, k, "gate_up");
    ValueId y;

    model_at(x, "model.ffn_hidden_size");
    y = mlp_product(x, k, n, model_joint(x, weight), "jf");
    model_name(x, y, "gate_up");
    if (k->bias)
        y = model_round(
            x, model_binary(x, OP_ADD, y,
                            model_joint(x, mlp_bias_name(x, k, "gate_up"))));
    *gate = model_part(x, y, weight, 0);
    *up = model_part(x, y, weight, 1);
}

/* act(gate) * up */
static ValueId mlp_gated(Model *x, const Mlp *k, ValueId n)
{
    ValueId gate, up;

    mlp_joint(x, k, n, &gate, &up);
    model_at(x, "model.activation");
    return model_binary(x, OP_MUL, activate(x, gate), up);
}

static ValueId mlp_plain(Model *x, const Mlp *k, ValueId n)
{
    ValueId up = mlp_input(x, k, n, "up");

    model_at(x, "model.activation");
    return activate(x, up);
}

ValueId model_mlp(Model *x, ValueId n, const char *prefix, ValueId filled,
                  const char *hint)
{
    Mlp k = {prefix, filled.i ? "ec" : "sb", filled,
             x->spec->model.linear_bias};
    ValueId act = spec_gated(x->spec) ? mlp_gated(x, &k, n)
                                      : mlp_plain(x, &k, n);
    ValueId y;

    act = model_name(x, model_round(x, act), "act");
    model_at(x, "model.ffn_hidden_size");
    y = mlp_product(x, &k, act, model_param(x, mlp_name(x, &k, "down")), "h");
    return mlp_bias(x, &k, model_hint(x, y, hint), "down");
}

static ValueId dense(Model *x, ValueId n)
{
    uint32_t mark = model_mark(x);
    ValueId y = model_mlp(x, n, "", (ValueId){0}, "residual");

    model_module(x, mark, MODULE_MLP);
    return y;
}

/* `which` is the dropout of b. */
static ValueId residual(Model *x, ValueId a, ValueId b, int which)
{
    model_at(x, "model.hidden_dropout");
    b = model_dropout(x, b, x->spec->model.hidden_dropout, which);
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
    mid = residual(x, in, attention(x, model_norm(x, in, "norm1")),
                   DROP_ATTENTION);
    out = model_norm(x, mid, "norm2");
    out = layer_kind(x)->experts ? model_moe(x, out) : dense(x, out);
    out = residual(x, mid, out, DROP_MLP);
    model_result(x, model_name(x, out, "y"));
    return f;
}
