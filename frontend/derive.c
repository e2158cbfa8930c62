/* derive.c - the numbers that the YAML leaves open.
 *
 * Afterwards every key that a pass reads holds a final number.  Where a
 * division does not come out, the quotient is rounded down; check.c reports
 * it.  Products saturate, so that absurd degrees are reported and not wrapped.
 */
#include "frontend/frontend_priv.h"

bool spec_gated(const Spec *s)
{
    return s->model.activation == ACT_SWIGLU ||
           s->model.activation == ACT_GEGLU;
}

static void or_else(int64_t *value, int64_t fallback)
{
    if (!*value)
        *value = fallback;
}

/* Megatron's default: 4h, or two thirds of it down to a multiple of 64. */
static int64_t ffn_default(const Spec *s)
{
    int64_t h = s->model.hidden_size;

    return spec_gated(s) ? 4 * h * 2 / 3 / 64 * 64 : 4 * h;
}

static void derive_model(Spec *s)
{
    or_else(&s->model.num_query_groups, s->model.num_attention_heads);
    or_else(&s->model.kv_channels,
            s->model.hidden_size / s->model.num_attention_heads);
    or_else(&s->model.ffn_hidden_size, ffn_default(s));
    or_else(&s->model.max_position_embeddings, s->training.seq_length);
    if (s->model.moe.num_experts)
        or_else(&s->model.moe.ffn_hidden_size, s->model.ffn_hidden_size);
    if (s->model.position_embedding == PE_ROPE)
        s->derived.rotary_dim =
            (int64_t)((double)s->model.kv_channels * s->model.rope.percent);
}

int64_t product_saturated(int64_t a, int64_t b)
{
    int64_t product;

    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static void derive_world(Spec *s)
{
    int64_t tp = s->parallel.tp, pp = s->parallel.pp, cp = s->parallel.cp;
    int64_t ep = s->parallel.ep;
    int64_t etp = s->parallel.etp ? s->parallel.etp : tp;
    int64_t model = product_saturated(product_saturated(tp, pp), cp);
    int64_t whole = product_saturated(model, ep);
    int64_t expert = product_saturated(product_saturated(etp, ep), pp);

    if (!s->parallel.world_size) {
        or_else(&s->parallel.dp, 1);
        s->parallel.world_size = product_saturated(whole, s->parallel.dp);
    } else if (s->parallel.world_size % whole == 0) {
        or_else(&s->parallel.dp, s->parallel.world_size / whole);
    }
    s->derived.dense_dp = s->parallel.world_size / model;
    s->derived.expert_dp = s->parallel.world_size / expert;
}

static void derive_batch(Spec *s)
{
    int64_t step = product_saturated(s->training.micro_batch_size,
                                     MC_MAX(s->derived.dense_dp, 1));

    or_else(&s->training.global_batch_size, step);
    s->derived.microbatches = s->training.global_batch_size / step;
}

static void derive_vocab(Spec *s)
{
    int64_t multiple =
        product_saturated(s->model.vocab_divisor, s->parallel.tp);
    int64_t parts = (s->model.vocab_size - 1) / multiple + 1;

    s->derived.padded_vocab = product_saturated(parts, multiple);
}

/* The largest piece of the logits that exists at once on one rank. */
enum { LOGITS_ELEMENTS = 32 << 20 };

static void derive_head(Spec *s)
{
    int64_t tp = s->parallel.tp, sp = s->parallel.sp ? tp : 1;
    int64_t local =
        s->training.seq_length / product_saturated(s->parallel.cp, sp);
    int64_t row = product_saturated(s->training.micro_batch_size * sp,
                                    s->derived.padded_vocab / tp);
    int64_t n = 1;

    while (n < local &&
           (local % n || product_saturated(local / n, row) > LOGITS_ELEMENTS))
        n++;
    s->derived.head_pieces = n;
}

void derive_values(Spec *s)
{
    derive_model(s);
    derive_world(s);
    derive_batch(s);
    derive_vocab(s);
    derive_head(s);
    or_else(&s->training.lr_schedule.decay_steps, spec_full_steps(s));
    if (s->parallel.schedule == SCHED_AUTO)
        s->parallel.schedule =
            s->parallel.vpp > 1 ? SCHED_INTERLEAVED : SCHED_1F1B;
    if (s->parallel.schedule == SCHED_INTERLEAVED)
        or_else(&s->parallel.microbatch_group, s->parallel.pp);
}
