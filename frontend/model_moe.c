/* model_moe.c - a mixture of experts in the place of the MLP.
 *
 *   logits = n · router          [s,b,e], f32
 *   choice = topk(scores)        [s,b,e], 0 or 1: data, no gradient
 *   weight = scores · choice     [s,b,e], perhaps normalised
 *   y      = experts(choice, weight, n), model_experts.c
 *
 * Balancing losses are further sums that the backward starts from.
 */
#include "frontend/model_priv.h"

#include <math.h>

typedef struct {
    Model *x;
    const Spec *spec;
    ValueId logits; /* [s,b,e] */
    ValueId open;   /* exp(logits - max), [s,b,e] */
    ValueId sum;    /* of `open` over e */
    ValueId choice;
} Router;

static ValueId bin(Model *x, Op op, ValueId a, ValueId b)
{
    return model_binary(x, op, a, b);
}

/* ---- the router ---------------------------------------------------------- */

/* In f32, whatever the compute type is: a choice should not be a matter of
 * rounding. */
static void router_logits(Router *r, ValueId n)
{
    Model *x = r->x;
    ValueId w;

    model_at(x, "model.moe.num_experts");
    n = ir_cast(x->m, x->f, n, DT_F32, x->loc);
    w = ir_cast(x->m, x->f, model_param(x, "router"), DT_F32, x->loc);
    r->logits = ir_dot(x->m, x->f, n, w, "sbe", DT_F32, x->loc);
    model_name(x, r->logits, "logits");
}

/* exp(logits) up to a factor that cancels, and its sum. */
static void router_exponentials(Router *r)
{
    Model *x = r->x;
    ValueId top = ir_max(x->m, x->f, r->logits, "sb", x->loc);

    r->open = bin(x, OP_EXPSUB, r->logits, top);
    r->sum = model_sum(x, r->open, 'e');
}

/* The bias counts for the choice only (Wang et al. 2024). */
static ValueId biased(Router *r, ValueId scores)
{
    Model *x = r->x;

    if (!r->spec->model.moe.expert_bias)
        return scores;
    model_at(x, "model.moe.expert_bias");
    return bin(x, OP_ADD, scores, model_param(x, "router.bias"));
}

static ValueId choose(Router *r, ValueId scores)
{
    Model *x = r->x;
    const Spec *s = r->spec;
    Attr list[] = {attr_of_int(AK_TOP_K, s->model.moe.top_k),
                   attr_of_int(AK_GROUPS, s->model.moe.num_groups),
                   attr_of_int(AK_TOP_GROUPS, s->model.moe.group_top_k)};

    scores = biased(r, scores);
    model_at(x, "model.moe.top_k");
    return model_name(
        x,
        ir_op(x->m, x->f, OP_TOPK, &scores, 1,
              attrs_intern(x->m, list, s->model.moe.num_groups ? 3 : 1),
              x->loc),
        "choice");
}

/* Softmax over the chosen logits: the same as softmax over all of them,
 * normalised to what was chosen. */
static ValueId softmax_of_chosen(Router *r)
{
    Model *x = r->x;
    ValueId kept;

    r->choice = choose(r, r->logits);
    kept = bin(x, OP_MUL, r->open, r->choice);
    return bin(x, OP_DIV, kept, model_sum(x, kept, 'e'));
}

static ValueId softmax_of_all(Router *r)
{
    Model *x = r->x;
    ValueId scores = bin(x, OP_DIV, r->open, r->sum);

    r->choice = choose(r, scores);
    return bin(x, OP_MUL, scores, r->choice);
}

/* Normalised over what was chosen if that is more than one (DeepSeek-V3). */
static ValueId sigmoid_scores(Router *r)
{
    Model *x = r->x;
    ValueId scores = model_unary(x, OP_SIGMOID, r->logits);
    ValueId kept, sum;

    r->choice = choose(r, scores);
    kept = bin(x, OP_MUL, scores, r->choice);
    if (r->spec->model.moe.top_k == 1)
        return kept;
    sum = bin(x, OP_ADD, model_sum(x, kept, 'e'), model_number(x, 1e-20));
    return bin(x, OP_DIV, kept, sum);
}

static ValueId router_weight(Router *r)
{
    const Spec *s = r->spec;
    ValueId w;

    model_at(r->x, "model.moe.score");
    router_exponentials(r);
    w = s->model.moe.score == MOE_SIGMOID ? sigmoid_scores(r)
        : s->model.moe.pre_softmax        ? softmax_of_all(r)
                                          : softmax_of_chosen(r);
    model_at(r->x, "model.moe.scaling_factor");
    if (s->model.moe.scaling_factor != 1.0)
        w = bin(r->x, OP_MUL, w,
                model_number(r->x, s->model.moe.scaling_factor));
    return w;
}

/* ---- balance ------------------------------------------------------------- */

/* Adds to one of the losses: x times coeff times num/den over the number of
 * samples, which a growing batch only knows at run time. */
static void add_loss(Model *x, const char *name, ValueId v, double coeff,
                     int64_t num, int64_t den)
{
    v = ir_sum(x->m, x->f, v, "", x->loc);
    v = bin(x, OP_MUL, v, model_number(x, coeff));
    if (x->spec->training.rampup.n == 0)
        den *= x->spec->training.global_batch_size;
    else
        v = bin(x, OP_MUL, v, model_host(x, "inv_batch"));
    v = bin(x, OP_MUL, v, model_ratio(x, num, den));
    ir_accum(x->m, x->f, model_metric(x, name, "", true), FIELD_ACC, v, x->loc);
}

/* What share of a token's scores each expert has. */
static ValueId shares(Router *r)
{
    Model *x = r->x;
    ValueId scores;

    if (r->spec->model.moe.score == MOE_SOFTMAX)
        return bin(x, OP_DIV, r->open, r->sum);
    scores = model_unary(x, OP_SIGMOID, r->logits);
    return bin(x, OP_DIV, scores, model_sum(x, scores, 'e'));
}

/* Tokens that chose each expert among those of one sequence, or of all
 * sequences that a replica has in a microbatch: [b,e]. */
static ValueId counts_of(Router *r)
{
    Model *x = r->x;
    const Spec *s = r->spec;
    ValueId count = model_sum(x, r->choice, 's');
    Attr parts = attr_of_int(AK_B_PARTS, s->derived.dense_dp);

    if (s->model.moe.balance == MOE_SEQ_AUX_LOSS ||
        s->training.micro_batch_size == 1)
        return count;
    return ir_op(x->m, x->f, OP_GROUP_SUM, &count, 1,
                 attrs_intern(x->m, &parts, 1), x->loc);
}

/* coeff E / (k T^2) sum_e P_e C_e for T tokens, where P sums shares and C
 * counts tokens (Fedus et al. 2021, section 2.2): for each sequence, or for
 * what a replica has in a microbatch; averaged over the batch. */
static void balance_loss(Router *r)
{
    Model *x = r->x;
    const Spec *s = r->spec;
    bool each = s->model.moe.balance == MOE_SEQ_AUX_LOSS;
    int64_t group = each ? 1 : s->training.micro_batch_size;
    ValueId share = model_sum(x, shares(r), 's');

    add_loss(x, "aux_loss", bin(x, OP_MUL, share, counts_of(r)),
             s->model.moe.aux_loss_coeff, s->model.moe.num_experts,
             s->model.moe.top_k * x->s * x->s * group);
}

/* The same with C counted over all replicas and the microbatches of the step
 * so far, per token: coeff E / T sum_e P_e C_e / sum_e C_e. */
static void global_balance_loss(Router *r)
{
    Model *x = r->x;
    const Spec *s = r->spec;
    TensorId load = model_metric(x, "expert_load", "e", true);
    ValueId share = ir_sum(x->m, x->f, shares(r), "e", x->loc);
    ValueId count = ir_read(x->m, x->f, load, FIELD_ACC, x->loc);
    ValueId part = bin(x, OP_DIV, count, model_sum(x, count, 'e'));

    add_loss(x, "aux_loss", bin(x, OP_MUL, share, part),
             s->model.moe.aux_loss_coeff, s->model.moe.num_experts, x->s);
}

/* coeff times the mean of (log sum exp logits)^2 (Zoph et al. 2022). */
static void z_loss(Router *r)
{
    Model *x = r->x;
    const Spec *s = r->spec;
    ValueId top, z;

    model_at(x, "model.moe.z_loss_coeff");
    top = ir_max(x->m, x->f, r->logits, "sb", x->loc);
    z = bin(x, OP_LOGADD, r->sum, top);
    add_loss(x, "z_loss", bin(x, OP_MUL, z, z), s->model.moe.z_loss_coeff, 1,
             x->s);
}

static void count_tokens(Router *r)
{
    Model *x = r->x;

    ir_accum(x->m, x->f, model_metric(x, "expert_load", "e", true), FIELD_ACC,
             ir_sum(x->m, x->f, r->choice, "e", x->loc), x->loc);
}

static void balance(Router *r)
{
    const Spec *s = r->spec;
    bool balanced = s->model.moe.aux_loss_coeff > 0.0 &&
                    s->model.moe.balance != MOE_NO_LOSS;

    count_tokens(r);
    model_at(r->x, "model.moe.aux_loss_coeff");
    if (balanced && s->model.moe.balance == MOE_GLOBAL_AUX_LOSS)
        global_balance_loss(r);
    else if (balanced)
        balance_loss(r);
    if (s->model.moe.z_loss_coeff > 0.0)
        z_loss(r);
}

/* ---- the whole ----------------------------------------------------------- */

/* sigmoid(n · w), a factor for each token. */
static ValueId shared_gate(Router *r, ValueId n)
{
    Model *x = r->x;
    ValueId sum;

    model_at(x, "model.moe.shared_gate");
    sum = model_sum(x, bin(x, OP_MUL, n, model_param(x, "shared_gate")), 'h');
    return model_unary(x, OP_SIGMOID, sum);
}

static ValueId shared_experts(Router *r, ValueId n, ValueId y)
{
    Model *x = r->x;
    uint32_t mark = model_mark(x);
    ValueId own;

    if (r->spec->model.moe.shared_ffn_hidden_size == 0)
        return y;
    x->f_ = r->spec->model.moe.shared_ffn_hidden_size;
    own = model_mlp(x, n, "shared.", (ValueId){0}, "residual");
    x->f_ = r->spec->model.ffn_hidden_size;
    model_module(x, mark, MODULE_SHARED_EXPERTS);
    if (r->spec->model.moe.shared_gate)
        own = bin(x, OP_MUL, own, shared_gate(r, n));
    model_at(x, "model.moe.shared_ffn_hidden_size");
    return model_hint(x, model_round(x, bin(x, OP_ADD, y, own)), "residual");
}

ValueId model_moe(Model *x, ValueId n)
{
    Router r = {.x = x, .spec = x->spec};
    uint32_t mark = model_mark(x);
    ValueId y;

    router_logits(&r, n);
    y = router_weight(&r);
    y = model_experts(x, r.choice, y, n);
    balance(&r);
    y = shared_experts(&r, n, y);
    model_module(x, mark, MODULE_MOE);
    return y;
}
