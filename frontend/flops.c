/* flops.c - the operations that a model needs for a step, as they are counted
 * to say how well hardware is used.
 *
 * Two per weight and token forward, four backward; attention over the pairs
 * that its mask leaves.  What is computed again, padding, norms, softmax, the
 * router and the rows of the embedding do not count (Megatron-LM's
 * num_floating_point_operations).
 */
#include "frontend/frontend_priv.h"

/* Weights that a token meets in the MLP or the experts of a layer. */
static double mlp_weights(const Spec *s, int64_t layer)
{
    double matrices = spec_gated(s) ? 3 : 2;
    double h = (double)s->model.hidden_size, width;

    if (!spec_layer(s, layer)->experts)
        return matrices * h * (double)s->model.ffn_hidden_size;
    width = (double)(s->model.moe.ffn_hidden_size * s->model.moe.top_k +
                     s->model.moe.shared_ffn_hidden_size);
    return matrices * h * width;
}

static double attention_weights(const Spec *s)
{
    int64_t heads = 2 * s->model.num_attention_heads +
                    2 * s->model.num_query_groups;

    return (double)s->model.hidden_size *
           (double)(heads * s->model.kv_channels);
}

/* Products of a token's queries with keys, and of weights with values. */
static double attention_pairs(const Spec *s)
{
    double keys = (double)s->training.seq_length / 2;

    if (s->model.sliding_window)
        keys = MC_MIN(keys, (double)s->model.sliding_window);
    return 2 * keys *
           (double)(s->model.num_attention_heads * s->model.kv_channels);
}

double spec_flops(const Spec *s)
{
    double each = (double)s->model.hidden_size * (double)s->model.vocab_size;

    for (int64_t l = 0; l < s->model.num_layers; l++)
        each += mlp_weights(s, l) + attention_weights(s) + attention_pairs(s);
    return 6 * each * (double)spec_tokens(s);
}

int64_t spec_tokens(const Spec *s)
{
    return s->training.global_batch_size * s->training.seq_length;
}
