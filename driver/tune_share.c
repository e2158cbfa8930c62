/* tune_share.c - what one rank has to hold and to do, in closed form.
 *
 * Sizes follow from the layouts of frontend/model_mesh.c: weights of attention
 * and MLP are split over tp (keys and values over as many ranks as there are
 * groups), experts over ep and etp; the residual stream is split over cp, and
 * over tp with sp.  Small vectors (norms, biases) are left out.
 */
#include "driver/tune.h"

static double share_slots(const Spec *s, double tokens)
{
    double room = s->model.moe.capacity_factor > 0
                      ? s->model.moe.capacity_factor
                      : 1.25; /* docs/EXPERTS.md: a quarter more */

    return room * (double)s->model.moe.top_k * tokens;
}

static double experts_share(const Spec *s)
{
    double n = 0;

    for (uint32_t l = 0; l < s->layers.n; l++)
        n += s->layers.kinds[s->layers.of[l]].experts;
    return n / (double)s->layers.n;
}

static void share_columns(const Spec *s, Share *x)
{
    double tp = (double)s->parallel.tp;
    double etp = s->parallel.etp ? (double)s->parallel.etp : tp;
    double d = (double)s->model.kv_channels;
    double groups = (double)s->model.num_query_groups;

    x->out = (double)s->model.num_attention_heads * d / tp;
    x->qkv = x->out + 2 * groups * d / MC_MIN(tp, groups);
    x->ffn = (double)s->model.ffn_hidden_size / tp;
    x->gates = spec_gated(s) ? 2 : 1;
    if (s->model.moe.num_experts == 0)
        return;
    x->shared = (double)s->model.moe.shared_ffn_hidden_size / tp;
    x->expert = (double)s->model.moe.ffn_hidden_size / etp;
}

static void share_params(const Spec *s, Share *x)
{
    double h = (double)s->model.hidden_size;
    double experts = (double)s->model.moe.num_experts;
    double inner = (x->gates + 1) * h;

    x->attention_params = h * (x->qkv + x->out);
    x->mlp_params = (1 - x->moe) * inner * x->ffn + x->moe * inner * x->shared +
                    x->moe * h * experts;
    x->expert_params =
        x->moe * inner * x->expert * experts / (double)s->parallel.ep;
    x->embed_params =
        h * (double)s->derived.padded_vocab / (double)s->parallel.tp;
    x->head_params = s->model.tie_embeddings && s->parallel.pp == 1
                         ? 0
                         : x->embed_params;
    if (s->model.position_embedding == PE_LEARNED)
        x->embed_params += h * (double)s->model.max_position_embeddings;
}

Share share_of(const Spec *s)
{
    Share x = {
        .tokens = (double)(s->training.micro_batch_size *
                           s->training.seq_length / s->parallel.cp),
        .moe = experts_share(s),
        .element = s->training.precision == PREC_FP32 ? 4 : 2,
        .replicas = (double)(s->derived.dense_dp * s->parallel.cp),
        .expert_replicas = (double)s->derived.expert_dp,
    };

    x.rows = x.tokens / (s->parallel.sp ? (double)s->parallel.tp : 1);
    if (x.moe > 0)
        x.slots = share_slots(s, x.rows);
    share_columns(s, &x);
    share_params(s, &x);
    return x;
}

int64_t share_layers(const Spec *s, int64_t pp)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < s->stages.n; i++)
        if (s->stages.v[i].pp == pp)
            n += s->stages.v[i].num_layers;
    return n;
}
