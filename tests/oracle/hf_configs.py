"""Draws config.json files of every family that megac imports, and writes
tests/data/hf/drawn.json: what transformers makes of each.

    python3 -m venv venv
    venv/bin/pip install torch transformers
    venv/bin/python tests/oracle/hf_configs.py

A draw is what a user's file may hold: a part of the keys, the others left out.
From it come the number of parameters of the model that transformers builds on
the meta device, and the facts that its modules show: biases, the width of a
head, a window, which layers have experts, rotary frequencies.  cases/import_hf
compares megac with the file.
"""
import copy
import json
import pathlib
import random

import torch
import transformers

HERE = pathlib.Path(__file__).parent
DRAWS = 12  # of each family


def sizes(rng):
    heads = rng.choice([4, 8, 12])
    return dict(hidden_size=heads * rng.choice([8, 16]),
                num_attention_heads=heads, num_hidden_layers=rng.randint(1, 6),
                intermediate_size=8 * rng.randint(4, 20),
                vocab_size=rng.randint(50, 300))


def some(rng, **keys):
    """Each key with one of its values, or not at all."""
    return {key: rng.choice(values) for key, values in keys.items()
            if rng.random() < 0.6}


def rope(rng):
    kind = rng.choice(["none", "linear", "llama3", "default"])
    scaling = dict(rope_type=kind)
    if kind == "linear":
        scaling |= dict(factor=rng.choice([2.0, 8.0]))
    if kind == "llama3":
        scaling |= dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                        original_max_position_embeddings=64)
    if kind == "none":
        return some(rng, rope_theta=[1e4, 5e5])
    if rng.random() < 0.5:
        return dict(rope_parameters=scaling | dict(rope_theta=1e5))
    if rng.random() < 0.5:
        scaling["type"] = scaling.pop("rope_type")
    return dict(rope_scaling=scaling) | some(rng, rope_theta=[1e5, 5e5])


def common(rng):
    keys = sizes(rng)
    heads = keys["num_attention_heads"]
    return keys | rope(rng) | dict(
        num_key_value_heads=rng.choice([heads, heads // 2, heads // 4])) | some(
        rng, max_position_embeddings=[128, 256], rms_norm_eps=[1e-6, 1e-5],
        tie_word_embeddings=[True, False], initializer_range=[0.01, 0.02],
        attention_dropout=[0.0, 0.1], hidden_act=["silu", "gelu"])


def windows(rng):
    return some(rng, use_sliding_window=[True, False], sliding_window=[16],
                max_window_layers=[0, 2, 6])


def experts(rng, layers):
    return some(rng, decoder_sparse_step=[1, 2], moe_intermediate_size=[16, 24],
                mlp_only_layers=[[], [layers - 1]], num_experts=[8, 16],
                norm_topk_prob=[True, False], num_experts_per_tok=[2, 4],
                router_aux_loss_coef=[0.0, 0.01])


def llama(rng):
    bias = rng.choice([{}, dict(attention_bias=True, mlp_bias=True),
                       dict(attention_bias=False)])
    return common(rng) | bias | some(rng, head_dim=[8, 16])


def mistral(rng):
    return common(rng) | some(rng, head_dim=[8, 16], sliding_window=[None, 32])


def qwen2(rng):
    return common(rng) | windows(rng)


def qwen3(rng):
    return common(rng) | windows(rng) | some(rng, head_dim=[8, 16])


def gpt2(rng):
    heads = rng.choice([4, 8])
    drop = rng.choice([0.0, 0.1])
    return dict(n_embd=heads * 8, n_head=heads) | some(
        rng, n_layer=[1, 3], n_positions=[64], n_inner=[None, 48],
        vocab_size=[99], activation_function=["gelu_new", "gelu", "relu"],
        attn_pdrop=[0.0, 0.2], layer_norm_epsilon=[1e-6]) | dict(
        resid_pdrop=drop, embd_pdrop=drop)


def mixtral(rng):
    return common(rng) | some(rng, num_local_experts=[4, 8],
                              num_experts_per_tok=[2, 3], head_dim=[8],
                              sliding_window=[None, 16],
                              router_aux_loss_coef=[0.0, 0.02])


def qwen2_moe(rng):
    keys = common(rng)
    return keys | experts(rng, keys["num_hidden_layers"]) | some(
        rng, qkv_bias=[True, False], shared_expert_intermediate_size=[32])


def qwen3_moe(rng):
    keys = common(rng)
    return keys | experts(rng, keys["num_hidden_layers"]) | some(
        rng, head_dim=[8, 16], use_sliding_window=[True, False],
        sliding_window=[16])


def sigmoid(rng):
    return common(rng) | dict(n_shared_experts=rng.choice([1, 2])) | some(
        rng, moe_intermediate_size=[16, 24], routed_scaling_factor=[1.0, 2.5],
        first_k_dense_replace=[0, 1, 2], head_dim=[8, 16])


def dots1(rng):
    groups = rng.choice([dict(), dict(n_group=4, topk_group=2)])
    return sigmoid(rng) | groups | dict(
        norm_topk_prob=True, n_routed_experts=8, num_experts_per_tok=4) | some(
        rng, sliding_window=[None, 16], max_window_layers=[0, 62])


def glm4_moe(rng):
    return sigmoid(rng) | dict(n_routed_experts=rng.choice([8, 16])) | some(
        rng, num_experts_per_tok=[2, 4], attention_bias=[True, False],
        use_qk_norm=[True, False], partial_rotary_factor=[0.5, 1.0])


def stablelm(rng):
    keys = common(rng)
    keys.pop("rms_norm_eps", None)
    return keys | some(rng, use_qkv_bias=[True, False], layer_norm_eps=[1e-6],
                       partial_rotary_factor=[0.25, 0.5])


FAMILIES = [llama, mistral, qwen2, qwen3, gpt2, mixtral, qwen2_moe, qwen3_moe,
            dots1, glm4_moe, stablelm]


# ---- what transformers makes of it ------------------------------------------

def build(keys):
    kind = transformers.CONFIG_MAPPING[keys["model_type"]]
    config = kind.from_dict(copy.deepcopy(keys))
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager")


def window_of(model):
    """What every layer's attention sees; None if they differ."""
    seen = {getattr(layer.self_attn, "sliding_window", None) or 0
            for layer in model.model.layers}
    config = model.config
    types = getattr(config, "layer_types", None)
    if seen == {0} and not types:
        return getattr(config, "sliding_window", None) or 0
    if types:
        seen = {config.sliding_window if t == "sliding_attention" else 0
                for t in types}
    return seen.pop() if len(seen) == 1 else None


def frequencies(model):
    rotary = type(model.model.rotary_emb)(model.config)
    return rotary.inv_freq.tolist()


def facts(model):
    names = dict(model.named_parameters())
    config = model.config
    balance = [b for n, b in model.named_buffers() if "score_correction" in n]
    got = dict(total=sum(p.numel() for p in [*names.values(), *balance]),
               tied=config.tie_word_embeddings,
               q_bias=any("q_proj.bias" in n or "c_attn.bias" in n
                          for n in names),
               o_bias=any("o_proj.bias" in n or "attn.c_proj.bias" in n
                          for n in names))
    if config.model_type == "gpt2":
        return got | dict(hidden_dropout=config.resid_pdrop,
                          attention_dropout=config.attn_pdrop)
    layers = model.model.layers
    return got | dict(
        attention_dropout=config.attention_dropout, window=window_of(model),
        eps=getattr(config, "rms_norm_eps", None) or config.layer_norm_eps, inv_freq=frequencies(model),
        experts=[hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts")
                 for layer in layers])


def main():
    rng = random.Random(1234)
    rows = []
    for family in FAMILIES:
        for _ in range(DRAWS):
            keys = dict(model_type=family.__name__) | family(rng)
            rows.append(dict(config=keys, facts=facts(build(keys))))
    lines = ",\n".join(json.dumps(row) for row in rows)
    path = HERE.parent / "data" / "hf" / "drawn.json"
    path.write_text(f'{{"by": "transformers {transformers.__version__}",\n'
                    f'"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
