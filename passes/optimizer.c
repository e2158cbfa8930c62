/* optimizer.c - the second half of a training step.
 *
 *   step(tokens, labels)         step(tokens, labels)
 *     scan micro          →        clear gradients and metrics
 *                                  scan micro
 *                                  gsum = grad     (a partial sum: `layout`
 *                                                   makes it complete)
 *                                  norm of all gsum, clipping
 *                                  update of each parameter
 *                                  metrics
 *
 * In f16 gradients come out times the scale of the loss.  The norm knows
 * whether one of them, on any rank, is infinite: then every field keeps its
 * value.
 *
 * Everything is spelled per logical tensor, for all its layers at once, and in
 * the lines of what lies flat: zeros behind it stay zeros.  The norm adds up
 * sums of squares; which ranks hold copies and which hold parts is the layouts'
 * business, so every element counts once by construction.
 */
#include "passes/passes.h"

typedef struct {
    Module *m;
    const Spec *spec;
    FuncId f;
    Loc loc;
    ValueId lr, bias1, bias2; /* scalars */
    ValueId factor; /* of gradients: clipping, the scale of the loss; 0: 1 */
    ValueId inverse; /* 1/scale of the loss; 0: 1 */
    ValueId good;    /* 0 in a step to be skipped; 0: none is */
} Update;

static ValueId bin(Update *u, Op op, ValueId x, ValueId y)
{
    return ir_binary(u->m, u->f, op, x, y, u->loc);
}

static ValueId num(Update *u, double value)
{
    return ir_const(u->m, u->f, value, u->loc);
}

static ValueId scaled(Update *u, ValueId x, double factor)
{
    return bin(u, OP_MUL, x, num(u, factor));
}

static ValueId host(Update *u, const char *what)
{
    TypeId scalar = type_make(u->m, DT_F32, "", NULL);
    Attr attr = attr_of_sym(AK_WHAT, sym_intern(u->m->names, what));
    NodeId n = node_new(u->m, u->f, OP_HOST, NULL, 0,
                        attrs_intern(u->m, &attr, 1), &scalar, 1, u->loc);

    return node_res(node_of(u->m, n), 0);
}

static void metric(Update *u, const char *what, ValueId x)
{
    Attr attr = attr_of_sym(AK_WHAT, sym_intern(u->m->names, what));

    node_new(u->m, u->f, OP_METRIC, &x, 1, attrs_intern(u->m, &attr, 1), NULL,
             0, u->loc);
}

static ValueId read_field(Update *u, TensorId t, Field field)
{
    if (!tensor_of(u->m, t)->per_layer)
        return ir_read_stored(u->m, u->f, t, field, u->loc);
    return ir_read_all(u->m, u->f, t, field,
                       tensor_layers(u->m, t, 0, u->m->nlayers), u->loc);
}

static bool has_field(const Module *m, TensorId t, Field field)
{
    return (m->tensors.v[t.i].fields >> field & 1) != 0;
}

/* Whether gradients move it. */
static bool is_trained(const Module *m, uint32_t tensor)
{
    return m->tensors.v[tensor].parameter &&
           has_field(m, (TensorId){tensor}, FIELD_GRAD);
}

/* ---- before the microbatches --------------------------------------------- */

static void clear(Update *u, TensorId t, Field field)
{
    Attr list[] = {attr_of_tensor(AK_TENSOR, t),
                   attr_of_int(AK_FIELD, field)};

    node_new(u->m, u->f, OP_CLEAR, NULL, 0, attrs_intern(u->m, list, 2), NULL,
             0, u->loc);
}

static void clear_sums(Update *u)
{
    for (uint32_t i = 1; i < u->m->tensors.n; i++) {
        TensorId t = {i};
        if (has_field(u->m, t, FIELD_GRAD))
            clear(u, t, FIELD_GRAD);
        if (has_field(u->m, t, FIELD_ACC))
            clear(u, t, FIELD_ACC);
    }
}

/* ---- the norm ------------------------------------------------------------ */

static ValueId square_sum(Update *u, TensorId t)
{
    ValueId g = read_field(u, t, FIELD_GSUM);
    ValueId sum = ir_sum(u->m, u->f, bin(u, OP_MUL, g, g), "", u->loc);

    if (tensor_of(u->m, t)->tied)
        value_of(u->m, sum)->hint = sym_intern(u->m->names, "tied");
    return sum;
}

/* The L2 norm over all parameters; the sum of squares carries the hint
 * `total`, for it is still missing the other pipeline stages' part. */
static ValueId gradient_norm(Update *u)
{
    ValueId total = {0};

    for (uint32_t i = 1; i < u->m->tensors.n; i++) {
        if (!is_trained(u->m, i))
            continue;
        ValueId part = square_sum(u, (TensorId){i});
        total = total.i ? bin(u, OP_ADD, total, part) : part;
    }
    value_of(u->m, total)->hint = sym_intern(u->m->names, "total");
    total = ir_unary(u->m, u->f, OP_SQRT, total, u->loc);
    return u->inverse.i ? bin(u, OP_MUL, total, u->inverse) : total;
}

/* min(1, clip / (norm + 1e-6)), as Megatron and PyTorch have it. */
static ValueId clip_factor(Update *u, ValueId norm, double clip)
{
    ValueId factor = bin(u, OP_DIV, num(u, clip),
                         bin(u, OP_ADD, norm, num(u, 1e-6)));

    return bin(u, OP_MIN, factor, num(u, 1.0));
}

/* ---- updates ------------------------------------------------------------- */

/* Writes a field, unless the step is skipped: then it keeps what it has. */
static ValueId store(Update *u, TensorId t, Field field, ValueId v)
{
    if (u->good.i) {
        ValueId args[] = {u->good, v, read_field(u, t, field)};
        v = ir_op(u->m, u->f, OP_SELECT, args, 3, (AttrsId){0}, u->loc);
    }
    ir_write(u->m, u->f, t, field, v, u->loc);
    return v;
}

/* The direction of Adam (Kingma & Ba 2015):
 *   m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g²
 *   (m/bias1) / (sqrt(v/bias2) + eps) */
static ValueId adam(Update *u, TensorId t, ValueId g)
{
    double b1 = u->spec->training.optimizer.beta1;
    double b2 = u->spec->training.optimizer.beta2;
    ValueId m = bin(u, OP_ADD, scaled(u, read_field(u, t, FIELD_M), b1),
                    scaled(u, g, 1.0 - b1));
    ValueId v = bin(u, OP_ADD, scaled(u, read_field(u, t, FIELD_V), b2),
                    scaled(u, bin(u, OP_MUL, g, g), 1.0 - b2));
    ValueId root = ir_unary(u->m, u->f, OP_SQRT, bin(u, OP_DIV, v, u->bias2),
                            u->loc);
    ValueId step = bin(u, OP_DIV, bin(u, OP_DIV, m, u->bias1),
                       bin(u, OP_ADD, root,
                           num(u, u->spec->training.optimizer.eps)));

    store(u, t, FIELD_M, m);
    store(u, t, FIELD_V, v);
    return step;
}

/* m = momentum m + g (Polyak 1964, as PyTorch has it) */
static ValueId momentum(Update *u, TensorId t, ValueId g)
{
    double mu = u->spec->training.optimizer.momentum;

    g = bin(u, OP_ADD, scaled(u, read_field(u, t, FIELD_M), mu), g);
    store(u, t, FIELD_M, g);
    return g;
}

/* What lr times is taken off p.  Weight decay is part of the gradient, but
 * decoupled from it in AdamW (Loshchilov & Hutter 2019). */
static ValueId direction(Update *u, TensorId t, ValueId p, ValueId g,
                         double decay)
{
    bool decoupled = u->spec->training.optimizer.type == OPT_ADAMW;
    ValueId pull = decay > 0.0 ? scaled(u, p, decay) : (ValueId){0};

    if (pull.i && !decoupled)
        g = bin(u, OP_ADD, g, pull);
    if (has_field(u->m, t, FIELD_V))
        g = adam(u, t, g);
    else if (has_field(u->m, t, FIELD_M))
        g = momentum(u, t, g);
    return pull.i && decoupled ? bin(u, OP_ADD, g, pull) : g;
}

static void update(Update *u, TensorId t)
{
    bool master = has_field(u->m, t, FIELD_MASTER);
    double decay = tensor_of(u->m, t)->decay
                       ? u->spec->training.optimizer.weight_decay : 0.0;
    ValueId g = read_field(u, t, FIELD_GSUM);
    ValueId p = read_field(u, t, master ? FIELD_MASTER : FIELD_PARAM);

    if (u->factor.i)
        g = bin(u, OP_MUL, g, u->factor);
    g = direction(u, t, p, g, decay);
    p = bin(u, OP_SUB, p, bin(u, OP_MUL, g, u->lr));
    p = store(u, t, master ? FIELD_MASTER : FIELD_PARAM, p);
    if (!master)
        return;
    p = ir_cast(u->m, u->f, p, tensor_of(u->m, t)->field_dtype[FIELD_PARAM],
                u->loc);
    ir_write(u->m, u->f, t, FIELD_PARAM, p, u->loc);
}

static void complete_gradients(Update *u)
{
    for (uint32_t i = 1; i < u->m->tensors.n; i++)
        if (is_trained(u->m, i))
            ir_write(u->m, u->f, (TensorId){i}, FIELD_GSUM,
                     read_field(u, (TensorId){i}, FIELD_GRAD), u->loc);
}

static void scalars(Update *u, ValueId norm)
{
    double clip = u->spec->training.optimizer.clip_grad;

    u->lr = host(u, "lr");
    if (u->spec->training.optimizer.type != OPT_SGD) {
        u->bias1 = host(u, "adam_bias1");
        u->bias2 = host(u, "adam_bias2");
    }
    u->factor = clip > 0.0 ? clip_factor(u, norm, clip) : (ValueId){0};
    if (!u->inverse.i)
        return;
    u->factor = u->factor.i ? bin(u, OP_MUL, u->factor, u->inverse)
                            : u->inverse;
    u->good = ir_unary(u->m, u->f, OP_FINITE, norm, u->loc);
}

/* ---- balance of experts -------------------------------------------------- */

static ValueId expert_load(Update *u)
{
    TensorId t = tensor_find(u->m, sym_intern(u->m->names, "expert_load"));

    return t.i ? read_field(u, t, FIELD_ACC) : (ValueId){0};
}

/* 1, 0 or -1 */
static ValueId sign_of(Update *u, ValueId x)
{
    ValueId minus = ir_unary(u->m, u->f, OP_NEG, x, u->loc);

    return bin(u, OP_SUB, ir_unary(u->m, u->f, OP_STEP, x, u->loc),
               ir_unary(u->m, u->f, OP_STEP, minus, u->loc));
}

/* bias += rate sign(mean - tokens) (Wang et al. 2024, algorithm 1): experts
 * with few tokens of this step become more attractive.  Compared are the sum
 * and tokens times experts, which are whole numbers: a tie is one on any
 * layout. */
static void update_bias(Update *u)
{
    TensorId t = tensor_find(u->m, sym_intern(u->m->names, "router.bias"));
    ValueId load, all, step;

    if (t.i == 0)
        return;
    load = expert_load(u);
    all = ir_sum(u->m, u->f, load, "l", u->loc);
    load = scaled(u, load, (double)u->spec->model.moe.num_experts);
    step = scaled(u, sign_of(u, bin(u, OP_SUB, all, load)),
                  u->spec->model.moe.bias_update_rate);
    store(u, t, FIELD_PARAM,
          bin(u, OP_ADD, read_field(u, t, FIELD_PARAM), step));
}

/* ---- metrics of experts -------------------------------------------------- */

/* A number that every stage has of its own; a stage without layers has zero. */
static ValueId of_stages(Update *u, ValueId v, const char *hint)
{
    v = bin(u, OP_ADD, v, num(u, 0.0));
    value_of(u->m, v)->hint = sym_intern(u->m->names, hint);
    return v;
}

/* What the layers have added to a balancing loss. */
static void loss_metric(Update *u, const char *name)
{
    TensorId t = tensor_find(u->m, sym_intern(u->m->names, name));
    ValueId v;

    if (t.i == 0)
        return;
    v = ir_sum(u->m, u->f, read_field(u, t, FIELD_ACC), "", u->loc);
    metric(u, name, of_stages(u, v, "total"));
}

/* The tokens of the busiest expert of any layer, as a multiple of the mean. */
static void load_metric(Update *u)
{
    ValueId top = expert_load(u);
    int64_t tokens = u->spec->training.seq_length;

    if (top.i == 0)
        return;
    top = ir_max(u->m, u->f, top, "", u->loc);
    top = of_stages(u, top, "highest");
    if (u->spec->training.rampup.n == 0)
        tokens *= u->spec->training.global_batch_size;
    else
        top = bin(u, OP_MUL, top, host(u, "inv_batch"));
    metric(u, "max_expert_load",
           bin(u, OP_MUL, top,
               ir_ratio(u->m, u->f, u->spec->model.moe.num_experts,
                        tokens * u->spec->model.moe.top_k, false, u->loc)));
}

/* ---- what rests in host memory ------------------------------------------- */

static int64_t elements(const Module *m, uint32_t t)
{
    const Tensor *tensor = &m->tensors.v[t];

    return type_elems(&tensor->logical) *
           (tensor->per_layer
                ? tensor_layers(m, (TensorId){t}, 0, m->nlayers)
                : 1);
}

/* Master copies and moments of the first tensors, as many as come closest to
 * the fraction asked for. */
static void offload_state(Update *u)
{
    const uint32_t fields =
        1u << FIELD_MASTER | 1u << FIELD_M | 1u << FIELD_V;
    double want = 0, have = 0;

    for (uint32_t i = 1; i < u->m->tensors.n; i++)
        if (is_trained(u->m, i))
            want += (double)elements(u->m, i);
    want *= u->spec->training.offload.optimizer;
    for (uint32_t i = 1; i < u->m->tensors.n; i++) {
        Tensor *t = &u->m->tensors.v[i];
        double size = (double)elements(u->m, i);
        if (!is_trained(u->m, i) || have + size / 2 > want)
            continue;
        t->host = t->fields & fields;
        have += size;
    }
}

static TensorId loss_tensor(const Module *m)
{
    return tensor_find(m, sym_intern(m->names, "loss"));
}

bool pass_optimizer(Module *m, const Spec *spec)
{
    Update u = {.m = m, .spec = spec, .f = m->entry.v[0],
                .loc = spec_loc(spec, "training.optimizer.type")};
    Func old = *func_of(m, u.f);
    ValueId norm;

    memset(&func_of(m, u.f)->body, 0, sizeof old.body);
    clear_sums(&u);
    for (uint32_t i = 0; i < old.body.n; i++)
        vec_push(&func_of(m, u.f)->body, old.body.v[i]);
    vec_free(&old.body);
    complete_gradients(&u);
    offload_state(&u);
    if (spec->training.precision == PREC_FP16)
        u.inverse = ir_unary(m, u.f, OP_RECIP, host(&u, "loss_scale"), u.loc);
    norm = gradient_norm(&u);
    scalars(&u, norm);
    for (uint32_t i = 1; i < m->tensors.n; i++)
        if (is_trained(m, i))
            update(&u, (TensorId){i});
    update_bias(&u);
    metric(&u, "loss", ir_read(m, u.f, loss_tensor(m), FIELD_ACC, u.loc));
    metric(&u, "grad_norm", norm);
    loss_metric(&u, "aux_loss");
    loss_metric(&u, "z_loss");
    load_metric(&u);
    return true;
}
