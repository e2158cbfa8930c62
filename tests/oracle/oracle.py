"""Compares megac with PyTorch and transformers, and writes golden/*.json.

    python3 -m venv venv
    venv/bin/pip install torch==2.6.0 transformers==4.56.2 safetensors numpy
    venv/bin/python tests/oracle/oracle.py --megac build/release/bin/megac

For each model here: the weights that megac saves at step 0 load into the class
of transformers as they are; on the same tokens the loss agrees within 1e-5 and
every gradient within 1e-4 (relative L2), also from weights far from their
initial values; 20 steps of torch.optim.AdamW (or the optimizer that the name
says) with clipping and a cosine schedule give the same losses within 1e-4.  golden/NAME.json holds PyTorch's
numbers, with which golden.c compares megac where there is no PyTorch.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
SEQ, BATCH, STEPS, VOCAB, SEED = 32, 4, 20, 96, 1234
LR, MIN_LR, WARMUP, CLIP = 3e-3, 3e-4, 3, 0.5

SIZES = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4,
             num_attention_heads=8, intermediate_size=128,
             attn_implementation="eager")
MODELS = {
    "llama": transformers.LlamaConfig(
        **SIZES, num_key_value_heads=4, max_position_embeddings=32,
        rms_norm_eps=1e-5),
    "llama3": transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, max_position_embeddings=64,
        rms_norm_eps=1e-5, rope_theta=500, tie_word_embeddings=True,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                          high_freq_factor=4.0,
                          original_max_position_embeddings=16)),
    "qwen2": transformers.Qwen2Config(
        **SIZES, num_key_value_heads=4, max_position_embeddings=32,
        rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False),
    "qwen3": transformers.Qwen3Config(
        **SIZES, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-6,
        max_position_embeddings=32, tie_word_embeddings=False),
    "mixtral": transformers.MixtralConfig(
        **SIZES | dict(intermediate_size=64), num_key_value_heads=4,
        num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5,
        rope_theta=1e4, max_position_embeddings=32, sliding_window=None,
        tie_word_embeddings=False),
    "qwen3moe": transformers.Qwen3MoeConfig(
        **SIZES, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-6,
        max_position_embeddings=32, tie_word_embeddings=False,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
        norm_topk_prob=True),
    "qwen2moe": transformers.Qwen2MoeConfig(
        **SIZES, num_key_value_heads=4, rms_norm_eps=1e-6, rope_theta=1e4,
        max_position_embeddings=32, tie_word_embeddings=False, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=48, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[1]),
    "qwen3moe_raw": transformers.Qwen3MoeConfig(
        **SIZES, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-6,
        max_position_embeddings=32, tie_word_embeddings=False,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        norm_topk_prob=False),
    "dots1": transformers.Dots1Config(
        **SIZES, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-6,
        max_position_embeddings=32, tie_word_embeddings=False,
        n_routed_experts=8, num_experts_per_tok=4, moe_intermediate_size=32,
        n_shared_experts=2, n_group=4, topk_group=2, first_k_dense_replace=1,
        norm_topk_prob=True, routed_scaling_factor=2.5, sliding_window=None),
    "glm4moe": transformers.Glm4MoeConfig(
        **SIZES, num_key_value_heads=4, head_dim=16, rms_norm_eps=1e-5,
        max_position_embeddings=32, tie_word_embeddings=False,
        attention_bias=True, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1),
    "stablelm": transformers.StableLmConfig(
        **SIZES, num_key_value_heads=4, max_position_embeddings=32,
        use_qkv_bias=True, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(
        **SIZES, num_key_value_heads=4, max_position_embeddings=32,
        rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=7,
        tie_word_embeddings=False),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=4, n_head=8,
        n_inner=256, activation_function="gelu_new", resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"),
    "gpt2drop": transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=4, n_head=8,
        n_inner=256, activation_function="gelu_new", resid_pdrop=0.2,
        embd_pdrop=0.2, attn_pdrop=0.1, attn_implementation="eager"),
}
MODELS["llama_adam"] = MODELS["llama_momentum"] = MODELS["llama"]
OPTIMIZERS = {
    "llama_adam": (torch.optim.Adam, dict(betas=(0.9, 0.95), eps=1e-8)),
    "llama_momentum": (torch.optim.SGD, dict(momentum=0.9)),
}
ADAMW = (torch.optim.AdamW, dict(betas=(0.9, 0.95), eps=1e-8))


def check(what, difference, limit):
    print(f"  {what}: {difference:.2e} (limit {limit:g})")
    if not difference <= limit:
        sys.exit(f"{what} is off by {difference:g}")


# ---- tokens -----------------------------------------------------------------

def mix(z):
    """SplitMix64, as in runtime/data.c."""
    mask = 2**64 - 1
    z = z + 0x9e3779b97f4a7c15 & mask
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & mask
    z = (z ^ z >> 27) * 0x94d049bb133111eb & mask
    return z ^ z >> 31


def sample(index):
    """The tokens of `data.train: synthetic`: one more than the sequence."""
    key = mix(mix(SEED) ^ index)
    return [(mix(key ^ i) >> 32) * VOCAB >> 32 for i in range(SEQ + 1)]


def batch(step):
    return torch.tensor([sample(step * BATCH + row) for row in range(BATCH)])


# ---- dropout ----------------------------------------------------------------

def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011); counters [4, ...]."""
    c0, c1, c2, c3 = (c.astype(np.uint64) for c in counter)
    k0, k1 = key
    low = np.uint64(2**32 - 1)
    shift = np.uint64(32)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0 = b >> shift ^ c1 ^ np.uint64(k0)
        c2 = a >> shift ^ c3 ^ np.uint64(k1)
        c1, c3 = b & low, a & low
        k0, k1 = k0 + 0x9E3779B9 & 2**32 - 1, k1 + 0xBB67AE85 & 2**32 - 1
    return np.stack([c0, c1, c2, c3])


def step_key(step):
    """The key of a step, counted from 1, as in base/dropout.c."""
    mask = 2**24 - 1
    hash = mix(SEED)
    key = step + hash & mask
    key = key * 0x9e3779b1 & mask
    key ^= key >> 13
    key = (key + (hash >> 32)) * 0x85ebca6b & mask
    return key ^ key >> 11


class Drawn(torch.nn.Module):
    """Dropout by the draws of base/dropout.h instead of PyTorch's."""
    step = 1

    def __init__(self, rate, layer, which):
        super().__init__()
        self.rate, self.stream = rate, 8 * layer + which

    def forward(self, x):
        """x is [batch, s, h], or [batch, head, query, key]."""
        sample = np.arange(x.shape[0]).reshape(-1, *[1] * (x.dim() - 1))
        position = np.arange(x.shape[-2])[:, None]
        head = np.arange(x.shape[1])[:, None, None] if x.dim() == 4 else 0
        last = np.arange(x.shape[-1])
        counter = np.broadcast_arrays(last // 4, position, head, sample)
        words = philox(counter, (step_key(Drawn.step), self.stream))
        word = np.take_along_axis(
            words, np.broadcast_to(last % 4, words.shape[1:])[None], 0)[0]
        keep = torch.from_numpy(word >= round(self.rate * 2**32))
        return torch.where(keep, x / (1 - self.rate), torch.zeros(()))


def draw_like_megac(model):
    if not isinstance(model.config, transformers.GPT2Config):
        return
    c = model.config
    model.transformer.drop = Drawn(c.embd_pdrop, 0, 0)
    for i, block in enumerate(model.transformer.h):
        block.attn.attn_dropout = Drawn(c.attn_pdrop, i, 1)
        block.attn.resid_dropout = Drawn(c.resid_pdrop, i, 2)
        block.mlp.dropout = Drawn(c.resid_pdrop, i, 3)


# ---- PyTorch ----------------------------------------------------------------

def model_from(name, weights, folder):
    """The class of transformers with megac's file, which must fit exactly."""
    MODELS[name].save_pretrained(folder)
    pathlib.Path(folder, "model.safetensors").write_bytes(
        pathlib.Path(weights).read_bytes())
    kind = transformers.AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, output_loading_info=True,
                                       attn_implementation="eager",
                                       torch_dtype=torch.float32)
    for problem, keys in info.items():
        if keys:
            sys.exit(f"{name}: {problem}: {keys}")
    draw_like_megac(model)
    return model


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def learning_rate(step):
    """Linear from 0, then half a cosine; `step` counts from 0."""
    if step <= WARMUP:
        return LR * step / WARMUP
    ratio = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * ratio))


def train(name, model):
    """Losses and gradient norms of all steps, and the first gradients."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    kind, settings = OPTIMIZERS.get(name, ADAMW)
    optimizer = kind([dict(params=matrices, weight_decay=0.1),
                      dict(params=vectors, weight_decay=0.0)],
                     lr=LR, **settings)
    losses, norms, first = [], [], None
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        Drawn.step = step + 1
        loss = loss_of(model, batch(step))
        loss.backward()
        first = first or {key: p.grad.clone()
                          for key, p in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(),
                                                    CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, first


# ---- megac ------------------------------------------------------------------

def run(megac, folder, *options):
    subprocess.run([megac, "run", folder, *options, "--", "--quiet"],
                   check=True)
    return [json.loads(line)
            for line in pathlib.Path(folder, "metrics.jsonl").open()]


def compare_gradients(name, got, expected):
    if got.keys() != expected.keys():
        sys.exit(f"{name}: tensors differ: {got.keys() ^ expected.keys()}")
    worst = max(((got[key] - g).norm() / g.norm()).item()
                for key, g in expected.items())
    check("worst gradient", worst, 1e-4)


def compare_perturbed(megac, name, folder):
    """Loss and gradients far from the initial weights, where biases are not
    zero and norms not one."""
    torch.manual_seed(1)
    weights = {key: w + 0.1 * torch.randn_like(w)
               for key, w in load_file(f"{folder}/zero/weights.safetensors")
               .items()}
    path = f"{folder}/perturbed.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    model = model_from(name, path, f"{folder}/perturbed")
    Drawn.step = 1
    loss = loss_of(model, batch(0))
    loss.backward()
    metrics = run(megac, folder, "--load", path, "--steps", "1",
                  "--save-step", "1", "--to", f"{folder}/perturbed")
    check("loss of perturbed weights",
          abs(metrics[0]["loss"] - loss.item()), 1e-5)
    compare_gradients(name, load_file(f"{folder}/perturbed/grads.safetensors"),
                      {key: p.grad for key, p in model.named_parameters()})


def summary(tensor):
    """Two numbers that no wrong gradient keeps: golden.c has the same."""
    flat = tensor.double().flatten()
    places = torch.arange(len(flat), dtype=torch.float64)
    return [flat.norm().item(), (flat * torch.cos(places)).sum().item()]


def compare(megac, name, folder):
    subprocess.run([megac, "compile", HERE / f"{name}.yaml", "-o", folder],
                   check=True)
    run(megac, folder, "--save-step", "0", "--to", f"{folder}/zero")
    metrics = run(megac, folder, "--save-step", "1", "--to", f"{folder}/one")
    model = model_from(name, f"{folder}/zero/weights.safetensors",
                       f"{folder}/hf")
    losses, norms, first = train(name, model)
    check("first loss", abs(metrics[0]["loss"] - losses[0]), 1e-5)
    compare_gradients(name, load_file(f"{folder}/one/grads.safetensors"),
                      first)
    check("loss of 20 steps", max(abs(m["loss"] - loss)
                                  for m, loss in zip(metrics, losses)), 1e-4)
    check("gradient norm of 20 steps",
          max(abs(m["grad_norm"] / norm - 1)
              for m, norm in zip(metrics, norms)), 1e-3)
    check("learning rate", max(abs(m["lr"] - learning_rate(i))
                               for i, m in enumerate(metrics)), 1e-9)
    compare_perturbed(megac, name, folder)
    return {"by": f"torch {torch.__version__}, "
                  f"transformers {transformers.__version__}",
            "loss": losses, "grad_norm": norms,
            "gradients": {key: summary(g) for key, g in first.items()}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megac", default="build/release/bin/megac")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    for name in args.models:
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            golden = compare(args.megac, name, f"{folder}/out")
        path = HERE / "golden" / f"{name}.json"
        path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
