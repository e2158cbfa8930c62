/* megatron_convert.c - flags whose meaning depends on others: the model, the
 * ranks, memory.
 *
 * Each function is one subject.  Source: validate_args and
 * core_transformer_config_from_args of megatron/training/arguments.py.
 */
#include "frontend/megatron.h"

/* ---- the model ----------------------------------------------------------- */

/* Fused with its bias, Megatron's gelu is the one by tanh. */
static void activation_convert(Import *im)
{
    static const char path[] = "model.activation";
    Flag *unfused = import_given(im, ID_NO_BIAS_GELU_FUSION);
    bool fused = !unfused && !import_given(im, ID_DISABLE_BIAS_LINEAR);

    import_put_choice(im, ID_SWIGLU, path, "swiglu");
    import_put_choice(im, ID_SQUARED_RELU, path, "relu2");
    import_put_choice(im, ID_OPENAI_GELU, path, "gelu_tanh");
    if (unfused && (import_has(im, path) || !im->whole))
        unfused->ignored = CLASS_KERNELS;
    import_default(im, path, fused ? "gelu_tanh" : "gelu");
}

/* The bias of q, k and v goes with the others, and may stay alone. */
static void bias_convert(Import *im)
{
    import_put_choice(im, ID_DISABLE_BIAS_LINEAR, "model.linear_bias", "false");
    import_put_choice(im, ID_ADD_QKV_BIAS, "model.qkv_bias", "true");
    if (!import_has(im, "model.qkv_bias"))
        import_put_choice(im, ID_DISABLE_BIAS_LINEAR, "model.qkv_bias",
                          "false");
    import_default(im, "model.linear_bias", "true");
    import_default(im, "model.qkv_bias", "true");
}

static void groups_convert(Import *im)
{
    static const char path[] = "model.num_query_groups";
    const Flag *grouped = import_given(im, ID_GROUP_QUERY_ATTENTION);
    const Flag *groups = import_given(im, ID_NUM_QUERY_GROUPS);

    if (groups && (grouped || !im->whole))
        import_put_value(im, path, groups);
    else if (groups)
        import_no_effect(im, groups, "without --group-query-attention");
    else if (grouped)
        import_put(im, path, "1", grouped->loc);
}

static void position_convert(Import *im)
{
    static const char path[] = "model.position_embedding";
    const Flag *type = import_given(im, ID_POSITION_EMBEDDING_TYPE);
    const char *word = type ? flag_value(type) : "";
    bool known = strcmp(word, "learned_absolute") == 0 ||
                 strcmp(word, "rope") == 0 || strcmp(word, "none") == 0;

    if (known)
        import_put_value(im, path, type);
    else if (type)
        import_reject(im, type, "megac has learned_absolute, rope and none");
    import_put_choice(im, ID_USE_ROTARY_POSITION_EMBEDDINGS, path, "rope");
}

/* Means nothing with rope, and no longer anything without. */
static void no_position_convert(Import *im)
{
    const Flag *type = import_given(im, ID_POSITION_EMBEDDING_TYPE);
    Flag *f = import_given(im, ID_NO_POSITION_EMBEDDING);
    bool rope = import_given(im, ID_USE_ROTARY_POSITION_EMBEDDINGS) ||
                (type && strcmp(flag_value(type), "rope") == 0);

    if (f && rope)
        f->ignored = CLASS_ALWAYS;
    else if (f)
        import_reject(im, f, "use --position-embedding-type none");
}

static void rope_convert(Import *im)
{
    const Flag *f = import_given(im, ID_ROTARY_INTERPOLATION);

    if (!f)
        return;
    import_put(im, "model.rope.scaling.type", "linear", f->loc);
    import_put_value(im, "model.rope.scaling.factor", f);
}

/* "(left, right)": a token sees `left` before it, and itself. */
static void window_convert(Import *im)
{
    const Flag *f = import_given(im, ID_WINDOW_SIZE);
    int left, right, end = 0;

    if (!f)
        return;
    if (sscanf(flag_value(f), " ( %d , %d ) %n", &left, &right, &end) < 2)
        sscanf(flag_value(f), " %d , %d %n", &left, &right, &end);
    if (end == 0 || flag_value(f)[end] || left < 0 || right != 0)
        import_reject(im, f, "expected (LEFT, 0): attention is causal");
    else
        import_put_int(im, "model.sliding_window", (int64_t)left + 1,
                       f->values[0].loc);
}

/* ---- the vocabulary ------------------------------------------------------ */

static void padded_convert(Import *im)
{
    const Flag *f = import_given(im, ID_PADDED_VOCAB_SIZE);
    int64_t rows, tp = 1, tokens = 0;

    if (!f || !import_int(im, f, &rows))
        return;
    import_number(im, "parallel.tp", &tp);
    if (tp < 1 || rows % tp) {
        import_reject(im, f, "not a multiple of --tensor-model-parallel-size");
        return;
    }
    if (import_number(im, "model.vocab_size", &tokens) && tokens > rows) {
        import_reject(im, f, "smaller than --vocab-size");
        return;
    }
    import_put_int(im, "model.vocab_divisor", rows / tp, f->values[0].loc);
    if (!import_has(im, "model.vocab_size"))
        import_put_value(im, "model.vocab_size", f);
}

/* The size of published files stands in for the files. */
static void tokenizer_convert(Import *im)
{
    static const struct {
        const char *type, *size;
    } known[] = {{"GPT2BPETokenizer", "50257"}, {"Llama2Tokenizer", "32000"}};
    Flag *f = import_given(im, ID_TOKENIZER_TYPE);

    if (!f)
        return;
    f->ignored = CLASS_TOKENIZER;
    if (!im->whole || import_has(im, "model.vocab_size"))
        return;
    for (size_t i = 0; i < MC_LEN(known); i++) {
        if (strcmp(flag_value(f), known[i].type) != 0)
            continue;
        f->ignored = CLASS_NONE;
        import_put(im, "model.vocab_size", known[i].size, f->values[0].loc);
        diag_warn(im->diag, f->values[0].loc, "MC0026",
                  "--vocab-size is not given: vocab_size = %s, of the "
                  "published files of %s",
                  known[i].size, known[i].type);
    }
}

static void vocab_convert(Import *im)
{
    import_put_choice(im, ID_NO_PAD_VOCAB_SIZE, "model.vocab_divisor", "1");
    padded_convert(im);
    tokenizer_convert(im);
}

static void dispatcher_convert(Import *im)
{
    const Flag *f = import_given(im, ID_MOE_TOKEN_DISPATCHER_TYPE);

    if (f && strcmp(flag_value(f), "flex") == 0)
        import_put(im, "model.moe.dispatcher", "alltoall", f->values[0].loc);
    else if (f)
        import_put_value(im, "model.moe.dispatcher", f);
}

/* ---- ranks --------------------------------------------------------------- */

static void virtual_stages_convert(Import *im)
{
    const Flag *f = import_given(im, ID_LAYERS_PER_VIRTUAL_STAGE);
    int64_t each, layers = 0, pp = 1;

    if (!f || !import_int(im, f, &each))
        return;
    import_number(im, "model.num_layers", &layers);
    import_number(im, "parallel.pp", &pp);
    if (import_has(im, "parallel.pp_first_layers") ||
        import_has(im, "parallel.pp_last_layers"))
        import_reject(im, f, "stages are of different sizes; use "
                             "--num-virtual-stages-per-pipeline-rank");
    else if (pp < 1 || layers < 1 || layers % pp || layers / pp % each)
        import_reject(im, f,
                      arena_printf(im->arena,
                                   "num_layers = %lld over pp = %lld stages "
                                   "are no multiple of it",
                                   (long long)layers, (long long)pp));
    else
        import_put_int(im, "parallel.vpp", layers / pp / each,
                       f->values[0].loc);
}

static void fsdp_convert(Import *im, const Flag *fsdp)
{
    const Flag *strategy = import_given(im, ID_SHARDING_STRATEGY);

    if (strategy)
        import_put_value(im, "parallel.sharding", strategy);
    else
        import_put(im, "parallel.sharding", "optim_grads_params", fsdp->loc);
}

static void fsdp2_convert(Import *im, const Flag *fsdp)
{
    const Flag *gathered = import_given(im, ID_FSDP2_NO_RESHARD);

    import_put(im, "parallel.sharding",
               gathered ? "optim_grads" : "optim_grads_params", fsdp->loc);
}

/* FSDP has a sharded optimizer of its own, whatever the other flag says. */
static void sharding_convert(Import *im)
{
    const Flag *fsdp = import_given(im, ID_USE_MEGATRON_FSDP);
    const Flag *fsdp2 = import_given(im, ID_USE_TORCH_FSDP2);
    const Flag *strategy = import_given(im, ID_SHARDING_STRATEGY);
    Flag *optim = import_given(im, ID_USE_DISTRIBUTED_OPTIMIZER);

    if (fsdp || (strategy && !im->whole))
        fsdp_convert(im, fsdp);
    else if (strategy)
        import_no_effect(im, strategy, "without --use-megatron-fsdp");
    if (fsdp2)
        fsdp2_convert(im, fsdp2);
    else if (import_given(im, ID_FSDP2_NO_RESHARD))
        import_no_effect(im, import_given(im, ID_FSDP2_NO_RESHARD),
                         "without --use-torch-fsdp2");
    if (optim && import_has(im, "parallel.sharding"))
        optim->ignored = CLASS_ALWAYS;
    else if (optim)
        import_put(im, "parallel.sharding", "optim", optim->loc);
}

/* ---- memory -------------------------------------------------------------- */

static void recompute_convert(Import *im)
{
    static const char granularity[] = "training.recompute.granularity";
    static const char path[] = "training.recompute.modules";
    const Flag *modules = import_given(im, ID_RECOMPUTE_MODULES);
    const Flag *moe = import_given(im, ID_MOE_LAYER_RECOMPUTE);
    Word plain = {"core_attn", moe ? moe->loc : (Loc){0}, true};
    Node *list;

    import_put_choice(im, ID_RECOMPUTE_ACTIVATIONS, granularity, "selective");
    if (moe && !import_has(im, granularity))
        import_put(im, granularity, "selective", moe->loc);
    if (!modules && !moe)
        return;
    list = import_list(im, modules ? modules->values : &plain,
                       modules ? modules->n : 1);
    if (moe)
        node_append(list, node_scalar(im->arena, "moe", moe->loc));
    import_put_node(im, path, list);
}

static void optimizer_offload_convert(Import *im)
{
    static const char path[] = "training.offload.optimizer";
    const Flag *on = import_given(im, ID_OPTIMIZER_CPU_OFFLOAD);
    const Flag *share = import_given(im, ID_OPTIMIZER_OFFLOAD_FRACTION);

    if (share && (on || !im->whole))
        import_put_value(im, path, share);
    else if (share)
        import_no_effect(im, share, "without --optimizer-cpu-offload");
    else if (on)
        import_put(im, path, "1", on->loc);
}

static void activation_offload_convert(Import *im)
{
    const Flag *on = import_given(im, ID_ACTIVATION_OFFLOADING);
    const Flag *modules = import_given(im, ID_OFFLOAD_MODULES);

    if (modules && (on || !im->whole))
        import_put_node(im, "training.offload.activations",
                        import_list(im, modules->values, modules->n));
    else if (modules)
        import_no_effect(im, modules,
                         "without --fine-grained-activation-offloading");
    else if (on)
        import_reject(im, on, "name what moves: --offload-modules");
}

/* ---- all ----------------------------------------------------------------- */

void import_convert(Import *im)
{
    activation_convert(im);
    bias_convert(im);
    groups_convert(im);
    position_convert(im);
    no_position_convert(im);
    rope_convert(im);
    window_convert(im);
    vocab_convert(im);
    dispatcher_convert(im);
    virtual_stages_convert(im);
    sharding_convert(im);
    recompute_convert(im);
    optimizer_offload_convert(im);
    activation_offload_convert(im);
    import_convert_training(im);
}
