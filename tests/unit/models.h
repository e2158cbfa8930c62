/* models.h - the two base models of the parity and equivalence tests, and the
 * layouts they are tried in. */
#ifndef MEGAC_TESTS_MODELS_H
#define MEGAC_TESTS_MODELS_H

/* A small Llama: RMSNorm, SwiGLU, RoPE, grouped queries, untied. */
static const char MODEL_T0[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 8,\n"
    "  num_query_groups: 4, kv_channels: 8, ffn_hidden_size: 128,\n"
    "  vocab_size: 96, normalization: rmsnorm, activation: swiglu,\n"
    "  position_embedding: rope}\n"
    "training: {seq_length: 32, micro_batch_size: 1, global_batch_size: 4,\n"
    "  precision: fp32, optimizer: {type: sgd, lr: 0.1, weight_decay: 0.0}}\n"
    "data: {train: synthetic}\n";

/* The same sizes in the GPT-2 family: LayerNorm, GELU, learned positions,
 * biases everywhere, tied. */
static const char MODEL_G0[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 8,\n"
    "  num_query_groups: 8, kv_channels: 8, ffn_hidden_size: 128,\n"
    "  vocab_size: 96, max_position_embeddings: 32,\n"
    "  normalization: layernorm, activation: gelu_tanh,\n"
    "  position_embedding: learned, qkv_bias: true, linear_bias: true,\n"
    "  tie_embeddings: true}\n"
    "training: {seq_length: 32, micro_batch_size: 1, global_batch_size: 4,\n"
    "  precision: fp32, optimizer: {type: adamw, lr: 0.01}}\n"
    "data: {train: synthetic}\n";

/* The small Llama with eight experts in the place of the MLP, two for each
 * token. */
static const char MODEL_M0[] =
    "version: 1\n"
    "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 8,\n"
    "  num_query_groups: 4, kv_channels: 8, ffn_hidden_size: 128,\n"
    "  vocab_size: 96, normalization: rmsnorm, activation: swiglu,\n"
    "  position_embedding: rope,\n"
    "  moe: {num_experts: 8, top_k: 2, ffn_hidden_size: 64,\n"
    "    aux_loss_coeff: 0.01}}\n"
    "training: {seq_length: 32, micro_batch_size: 1, global_batch_size: 8,\n"
    "  precision: fp32, optimizer: {type: sgd, lr: 0.1, weight_decay: 0.0}}\n"
    "data: {train: synthetic}\n";

#define DROPOUT "model.hidden_dropout=0.2", "model.attention_dropout=0.3"

static const char *const EXPERT_LAYOUTS[][6] = {
    {NULL},
    {"parallel.dp=2"},
    {"parallel.ep=2"},
    {"parallel.ep=4"},
    {"parallel.ep=4", "parallel.dp=2"},
    {"parallel.ep=2", "model.moe.dispatcher=allgather"},
    {"parallel.tp=2"},
    {"parallel.tp=2", "parallel.sp=true"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.etp=1"},
    {"parallel.tp=2", "parallel.etp=1"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2",
     "model.moe.dispatcher=allgather"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2", "parallel.etp=1",
     "parallel.world_size=4"},
    {"parallel.tp=4", "parallel.sp=true", "parallel.ep=4", "parallel.etp=1",
     "parallel.world_size=4"},
    {"parallel.ep=2", "parallel.dp=2", "parallel.pp=2"},
    {"parallel.cp=2", "parallel.ep=2", "training.global_batch_size=8"},
    {"parallel.cp=2", "parallel.ep=2", "parallel.world_size=2"},
    {"parallel.cp=2", "parallel.cp_comm=a2a", "parallel.tp=2",
     "parallel.sp=true", "parallel.ep=2", "training.global_batch_size=8"},
    {"parallel.ep=2", "parallel.sharding=optim"},
    {"parallel.ep=2", "training.rampup=[2, 2, 100]", "parallel.pp=2",
     "model.moe.z_loss_coeff=0.1", "training.eval.interval=1",
     "data.valid=synthetic"},
    {"parallel.ep=2", "parallel.dp=2", "parallel.sharding=optim_grads_params"},
    {"parallel.ep=2", "parallel.dp=3", "parallel.sharding=optim_grads_params",
     "training.global_batch_size=6", "model.linear_bias=true",
     "model.moe.shared_ffn_hidden_size=40"},
    {"parallel.ep=2", "parallel.dp=3", "parallel.sharding=optim_grads",
     "training.global_batch_size=6", "parallel.tp=2", "parallel.sp=true"},
    {"parallel.ep=2", "model.moe.score=sigmoid", "model.moe.num_groups=4",
     "model.moe.group_top_k=2", "model.moe.z_loss_coeff=0.1",
     "model.moe.scaling_factor=2.5"},
    {"parallel.ep=2", "model.moe.pre_softmax=true",
     "model.moe.shared_ffn_hidden_size=64", "training.precision=bf16"},
    {"parallel.ep=2", "model.moe.capacity_factor=0.5"},
    {"parallel.ep=2", "parallel.pp=2", "model.moe.score=sigmoid",
     "model.moe.expert_bias=true", "parallel.sharding=optim_grads_params",
     "training.recompute.granularity=full"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2",
     "model.moe.capacity_factor=0.7", "model.moe.drop_policy=position",
     "model.moe.dispatcher=allgather"},
    {"parallel.cp=2", "parallel.ep=2", "parallel.world_size=2",
     "parallel.cp_comm=a2a"},
    {"parallel.tp=8", "parallel.sp=true", "parallel.ep=4", "parallel.etp=2",
     "parallel.world_size=16"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2", "parallel.pp=2",
     "parallel.order=tp-ep-dp-pp"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2",
     "parallel.cp=2", "parallel.order=cp-tp-ep-dp"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2", "parallel.dp=2",
     "parallel.order=dp-ep-tp"},
    {"parallel.cp=2", "parallel.ep=2", "parallel.world_size=2",
     "parallel.cp_comm=all_gather"},
    {"parallel.cp=4", "parallel.ep=4", "parallel.world_size=4",
     "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]"},
    {"parallel.cp=2", "parallel.ep=2", "parallel.world_size=2",
     "parallel.cp_comm=[p2p, p2p, a2a, all_gather]",
     "model.moe.layer_freq=2"},
    {"parallel.ep=2", "parallel.dp=2", "training.micro_batch_size=2",
     "training.global_batch_size=16", "parallel.tp=2", "parallel.sp=true"},
    {"parallel.ep=2", "parallel.pp=2", "model.moe.balance=global_aux_loss",
     "training.recompute.granularity=full", "parallel.tp=2",
     "parallel.sp=true"},
    {"parallel.ep=2", "parallel.cp=2", "model.moe.balance=global_aux_loss",
     "training.micro_batch_size=2", "training.global_batch_size=16",
     "model.moe.score=sigmoid"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.ep=2",
     "model.linear_bias=true", "model.moe.shared_ffn_hidden_size=64",
     "parallel.sharding=optim_grads_params"},
    {"parallel.tp=2", "parallel.etp=1", "model.linear_bias=true",
     "model.moe.capacity_factor=0.5"},
    {"parallel.ep=2", "training.recompute.granularity=selective",
     "training.recompute.modules=[moe, core_attn]",
     "model.moe.balance=global_aux_loss"},
    {"parallel.ep=2", "parallel.pp=2",
     "model.moe={shared_ffn_hidden_size: 64, shared_gate: true}",
     "training.recompute.granularity=selective",
     "training.recompute.modules=[shared_experts, moe_act]"},
    {DROPOUT, "parallel.tp=2", "parallel.sp=true", "parallel.ep=2"},
};

/* Of the model above, with dense layers between those with experts: runs that
 * stages cut, stages of one kind only, runs of one layer. */
static const char *const MIXED_LAYOUTS[][6] = {
    {"model.moe.layer_freq=2"},
    {"model.moe.layer_freq=[1,0,0,1]", "parallel.pp=4",
     "model.moe.z_loss_coeff=0.1"},
    {"model.moe.layer_freq=[0,1,1,1]", "parallel.ep=2"},
    {"model.moe.layer_freq=([0]*2+[1]*2)", "parallel.pp=2", "parallel.ep=2"},
    {"model.moe.layer_freq=[0,1,1,0]", "parallel.pp=2", "parallel.vpp=2",
     "parallel.tp=2", "parallel.sp=true"},
    {"model.moe.layer_freq=[0,1,1,0]", "parallel.pp=4", "parallel.ep=2",
     "parallel.pp_layout=E|tt|t|tL"},
    {"model.moe.layer_freq=[1,0,0,1]", "parallel.pp=2",
     "parallel.schedule=zb-v", "training.recompute.granularity=selective"},
    {"model.moe.layer_freq=[0,1,0,1]", "parallel.ep=2", "parallel.dp=2",
     "parallel.sharding=optim_grads_params",
     "training.recompute.granularity=full", "training.precision=bf16"},
    {"model.moe.layer_freq=[0,1,1,1]", "parallel.ep=2", "parallel.pp=2",
     "model.moe={score: sigmoid, expert_bias: true, z_loss_coeff: 0.1, "
     "shared_ffn_hidden_size: 64}"},
};

/* --set arguments, up to NULL. */
static const char *const LAYOUTS[][6] = {
    {NULL},
    {"parallel.tp=2"},
    {"parallel.tp=4"},
    {"parallel.tp=8"},
    {"parallel.tp=2", "parallel.sp=true"},
    {"parallel.tp=4", "parallel.sp=true"},
    {"parallel.pp=2"},
    {"parallel.pp=4"},
    {"parallel.pp=4", "parallel.schedule=gpipe"},
    {"parallel.dp=2"},
    {"parallel.dp=4"},
    {"parallel.dp=2", "parallel.tp=2", "parallel.sharding=optim",
     "training.optimizer={type: sgd, momentum: 0.9, weight_decay: 0.1}"},
    {"parallel.dp=2", "parallel.tp=2", "training.precision=fp16",
     "training.loss_scale=1024", "parallel.sharding=optim_grads_params"},
    {"parallel.dp=2", "parallel.tp=2", "parallel.pp=2",
     "training.precision=bf16", "training.grad_dtype=bf16",
     "parallel.sharding=optim_grads"},
    {"parallel.pp=2", "training.precision=fp16",
     "training.optimizer={type: sgd, momentum: 0.9, clip_grad: 0}"},
    {"parallel.pp=2", "training.precision=bf16",
     "training.optimizer={type: adam, weight_decay: 0.1}"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.overlap.tp=false"},
    {"training.global_batch_size=8", "training.rampup=[2, 2, 100]",
     "parallel.pp=2", "training.eval.interval=2", "data.valid=synthetic"},
    {"training.global_batch_size=12", "training.rampup=[4, 4, 100]",
     "parallel.dp=2", "parallel.pp=2", "parallel.vpp=2"},
    {"training.global_batch_size=16", "training.rampup=[8, 4, 100]",
     "parallel.pp=2", "parallel.schedule=dualpipe-v",
     "training.eval.interval=2", "data.valid=synthetic"},
    {"parallel.cp=2", "parallel.dp=2", "training.eval.interval=2",
     "data.valid=synthetic", "parallel.sharding=optim_grads_params",
     "training.recompute.granularity=full"},
    {"data={train: tokens, loss_mask: mask}", "parallel.cp=2",
     "parallel.tp=2", "parallel.sp=true", "parallel.pp=2"},
    {"parallel.tp=2", "parallel.sp=true", "parallel.pp=2", "parallel.dp=2"},
    {"parallel.pp=2", "training.precision=bf16", "model.qk_norm=true",
     "parallel.tp=8"},
    {"training.recompute={granularity: full, num_layers: 3}",
     "model.hidden_dropout=0.3"},
    {"training.recompute={granularity: full, num_layers: 2}", "parallel.pp=2",
     "parallel.schedule=zb-v", "model.num_layers=8", "parallel.dp=2",
     "parallel.sharding=optim_grads_params"},
    {"training.recompute={granularity: full, method: block, num_layers: 1}",
     "parallel.pp=2"},
    {"training.recompute={granularity: full, method: block, num_layers: 2}",
     "parallel.dp=2", "parallel.sharding=optim_grads_params",
     "training.offload.activations=[mlp]"},
    {"training.offload={activations: [core_attn, mlp], optimizer: 0.5}",
     "parallel.pp=2", "parallel.schedule=zb-v", "training.precision=bf16"},
    {"training.offload={activations: [mlp], optimizer: 1}", "parallel.tp=2",
     "parallel.sp=true", "parallel.dp=2", "parallel.sharding=optim_grads_params",
     "training.optimizer.type=adamw"},
    {"parallel.dp=4", "parallel.sharding=optim"},
    {"parallel.dp=4", "parallel.sharding=optim_grads"},
    {"parallel.dp=4", "parallel.sharding=optim_grads_params"},
    {"parallel.dp=3", "parallel.sharding=optim_grads_params",
     "training.global_batch_size=6"},
    /* nothing here is divisible by 3 */
    {"parallel.dp=3", "parallel.sharding=optim", "parallel.tp=2",
     "parallel.sp=true", "training.global_batch_size=6",
     "training.optimizer={type: adamw, weight_decay: 0.1}"},
    {"parallel.dp=3", "parallel.sharding=optim_grads", "parallel.tp=4",
     "training.precision=bf16", "training.grad_dtype=bf16",
     "training.global_batch_size=3"},
    {"parallel.dp=3", "parallel.cp=2", "parallel.pp=2",
     "parallel.schedule=zb-v", "parallel.sharding=optim_grads",
     "training.global_batch_size=12"},
    {"parallel.dp=3", "parallel.tp=4", "parallel.cp=2", "parallel.cp_comm=a2a",
     "parallel.sharding=optim_grads_params", "training.global_batch_size=3"},
    {"parallel.dp=3", "parallel.tp=8", "parallel.sharding=optim_grads_params",
     "training.global_batch_size=3"},
    {"parallel.dp=3", "parallel.pp=2", "training.precision=fp16",
     "parallel.sharding=optim_grads_params", "training.global_batch_size=6",
     "training.recompute.granularity=full"},
    {"parallel.dp=3", "parallel.overlap={grads: false, params: false}",
     "parallel.sharding=optim_grads_params", "training.global_batch_size=3",
     "training.offload.optimizer=0.5", "training.optimizer.type=adamw"},
    {"parallel.dp=5", "parallel.sharding=optim", "parallel.pp=2",
     "training.global_batch_size=5", "model.vocab_size=91",
     "model.vocab_divisor=1"},
    {"parallel.dp=2", "parallel.pp=2", "parallel.vpp=2",
     "parallel.sharding=optim_grads_params"},
    {"parallel.dp=2", "parallel.pp=2", "parallel.schedule=zb-v",
     "parallel.sharding=optim_grads_params",
     "training.recompute.granularity=full"},
    {"parallel.dp=2", "parallel.tp=2", "parallel.sharding=optim_grads",
     "training.precision=bf16"},
    {"parallel.dp=2", "parallel.tp=2", "parallel.sp=true", "parallel.pp=2",
     "parallel.sharding=optim_grads_params"},
    {"parallel.pp=3", "parallel.pp_first_layers=1",
     "parallel.pp_last_layers=1"},
    {"parallel.pp=2", "parallel.vpp=2"},
    {"parallel.pp=2", "parallel.vpp=2", "parallel.microbatch_group=3",
     "training.global_batch_size=5"},
    {"parallel.pp=2", "parallel.vpp=2", "parallel.tp=2", "parallel.sp=true"},
    {"parallel.pp=4", "parallel.pp_layout=E|tt|tt|L"},
    {"parallel.pp=2", "parallel.pp_layout=Ett|tt||L"},
    {"parallel.pp=4", "parallel.schedule=zb-h1"},
    {"parallel.pp=4", "parallel.schedule=zb-h1",
     "parallel.pp_layout=E|tt|tt|L"},
    {"parallel.pp=2", "parallel.schedule=zb-v"},
    {"parallel.pp=2", "parallel.schedule=dualpipe-v"},
    {"parallel.pp=2", "parallel.schedule=" MEGAC_SOURCE_DIR
     "/tests/golden/schedule/bfs-2-2-4.csv"},
    {"parallel.pp=2", "parallel.schedule=zb-v", "parallel.tp=2",
     "parallel.sp=true", "parallel.dp=2"},
    {"parallel.pp=4", "parallel.vpp=2", "model.num_layers=8",
     "parallel.dp=2", "training.global_batch_size=8"},
    {"parallel.tp=2", "parallel.pp=2", "parallel.dp=2",
     "parallel.order=tp-cp-ep-pp-dp"},
    {"parallel.pp=4", "parallel.dp=2", "parallel.tp=2",
     "parallel.order=pp-dp-tp", "parallel.sharding=optim_grads_params"},
    {"parallel.pp=2", "parallel.dp=2", "parallel.cp=2", "parallel.tp=2",
     "parallel.order=dp-pp-cp-tp", "parallel.sharding=optim"},
    {"parallel.cp=2"},
    {"parallel.cp=4"},
    {"parallel.cp=2", "parallel.tp=2", "parallel.sp=true"},
    {"parallel.cp=2", "parallel.dp=2", "parallel.pp=2",
     "parallel.sharding=optim_grads_params", "training.precision=bf16"},
    {"parallel.cp=2", "training.recompute.granularity=full"},
    {"parallel.cp=2", "training.recompute.granularity=selective",
     "parallel.pp=2", "parallel.schedule=zb-v"},
    {"parallel.cp=2", "parallel.cp_comm=a2a"},
    {"parallel.cp=4", "parallel.cp_comm=a2a"},
    {"parallel.cp=4", "parallel.cp_comm=a2a", "model.num_query_groups=2"},
    {"parallel.cp=2", "parallel.cp_comm=a2a", "parallel.tp=2",
     "parallel.sp=true"},
    {"parallel.cp=2", "parallel.cp_comm=a2a", "parallel.dp=2",
     "parallel.sharding=optim", "training.precision=bf16"},
    {"model.sliding_window=7", "parallel.tp=2", "parallel.sp=true",
     "parallel.pp=2"},
    {"model.sliding_window=1"},
    {"model.sliding_window=3", "parallel.cp=2", "parallel.cp_comm=a2a"},
    {"model.sliding_window=2", "parallel.cp=4"},
    {"model.sliding_window=20", "parallel.cp=2", "parallel.tp=2",
     "parallel.sp=true", "training.recompute.granularity=selective"},
    {"parallel.cp=2", "parallel.cp_comm=all_gather"},
    {"parallel.cp=4", "parallel.cp_comm=all_gather", "parallel.tp=2",
     "parallel.sp=true"},
    {"parallel.cp=2", "parallel.cp_comm=all_gather", "parallel.dp=2",
     "parallel.pp=2", "parallel.sharding=optim_grads_params",
     "training.precision=bf16"},
    {"parallel.cp=2", "parallel.cp_comm=all_gather", "parallel.pp=2",
     "parallel.schedule=zb-v", "training.recompute.granularity=selective"},
    {"parallel.cp=4", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]"},
    {"parallel.cp=4", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]",
     "parallel.tp=2", "parallel.sp=true", "model.num_query_groups=2"},
    {"parallel.cp=4", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]",
     "parallel.dp=2", "parallel.sharding=optim_grads",
     "training.recompute.granularity=full"},
    {"parallel.cp=8", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[4, 2]",
     "training.precision=bf16", "model.num_query_groups=2"},
    {"parallel.cp=4", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]",
     "parallel.tp=2", "parallel.order=cp-tp-dp-pp", "model.sliding_window=5"},
    {"parallel.cp=4", "parallel.cp_comm=[p2p, all_gather, a2a, a2a+p2p]",
     "parallel.cp_sizes=[2, 2]"},
    {DROPOUT, "parallel.cp=4", "parallel.cp_comm=[all_gather, a2a, a2a+p2p, p2p]",
     "parallel.cp_sizes=[2, 2]"},
    {DROPOUT, "training.eval.interval=2", "data.valid=synthetic",
     "parallel.pp=2"},
    {"parallel.cp=4", "parallel.cp_comm=[a2a, a2a+p2p, a2a+p2p, a2a]",
     "parallel.cp_sizes=[2, 2]", "parallel.pp=2", "parallel.tp=2",
     "model.num_query_groups=2"},
    {"parallel.cp=2", "parallel.cp_comm=[p2p, all_gather, p2p, all_gather]",
     "parallel.dp=2", "parallel.pp=2", "parallel.vpp=2",
     "parallel.sharding=optim_grads_params"},
    {"parallel.cp=2", "parallel.cp_comm=[a2a, a2a, p2p, p2p]", "parallel.pp=2",
     "parallel.schedule=zb-v", "training.recompute.granularity=full"},
    {"parallel.cp=4", "parallel.cp_comm=all_gather", "parallel.dp=2",
     "parallel.order=dp-cp-tp-pp", "model.sliding_window=9",
     "parallel.sharding=optim"},
    {DROPOUT, "parallel.tp=2", "parallel.sp=true", "parallel.pp=2",
     "parallel.dp=2"},
    {DROPOUT, "parallel.tp=8", "parallel.pp=2", "parallel.vpp=2"},
    {DROPOUT, "parallel.cp=4", "training.recompute.granularity=selective"},
    {DROPOUT, "parallel.cp=2", "parallel.cp_comm=a2a", "parallel.tp=2",
     "training.recompute.granularity=full"},
    {DROPOUT, "parallel.pp=4", "parallel.schedule=zb-h1", "parallel.dp=2",
     "parallel.sharding=optim_grads_params"},
    {DROPOUT, "parallel.pp=2", "parallel.schedule=dualpipe-v",
     "training.precision=bf16", "parallel.cp=2"},
};

static inline int layout_length(const char *const *sets)
{
    int n = 0;

    while (n < 6 && sets[n])
        n++;
    return n;
}

#endif
