/* fixed.c - what a run may not change when it is resumed.
 *
 * The model is a function and its tensors: neither may become another.  What
 * only steers the training of it may: dropout, the weights of balancing losses,
 * learning rates, batches, layouts.  Data are listed so that a message can name
 * them; whether they changed is seen from the samples themselves.
 *
 *     model.hidden_size = 64
 *     training.optimizer.type = adamw
 */
#include "frontend/frontend_priv.h"

/* Of the model, but no part of the function. */
static const char *const training_keys[] = {
    "model.name",
    "model.vocab_divisor",
    "model.attention_dropout",
    "model.hidden_dropout",
    "model.init_std",
    "model.moe.bias_update_rate",
    "model.moe.balance",
    "model.moe.aux_loss_coeff",
    "model.moe.z_loss_coeff",
    "model.moe.capacity_factor",
    "model.moe.drop_policy",
    "model.moe.dispatcher",
};

static const char *const other_keys[] = {
    "training.seq_length",
    "training.optimizer.type",
    "data.train",
    "data.split",
};

bool spec_key_only_trains(const Key *key)
{
    return text_is_listed(training_keys, MC_LEN(training_keys), key->path);
}

/* Samples may become longer than any before. */
static bool is_fixed(const Spec *s, const Key *key)
{
    const char *path = key->path;

    if (strncmp(path, "model.moe.", 10) == 0 && s->model.moe.num_experts == 0)
        return false;
    if (strncmp(path, "model.", 6) == 0)
        return !spec_key_only_trains(key) &&
               strcmp(path, "model.max_position_embeddings") != 0;
    if (strcmp(path, "training.optimizer.momentum") == 0)
        return s->training.optimizer.type == OPT_SGD;
    return text_is_listed(other_keys, MC_LEN(other_keys), path);
}

void spec_print_fixed(const Spec *s, Buf *out)
{
    for (uint32_t i = 0; i < schema_num_keys; i++) {
        const Key *key = &schema_keys[i];
        if (!is_fixed(s, key))
            continue;
        buf_printf(out, "%s = ", key->path);
        value_print(key, s, out);
        buf_puts(out, "\n");
    }
}
