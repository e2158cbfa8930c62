"""Weights from transformers to megac and back, in parts, and files/*.

    venv/bin/python tests/oracle/files.py --megac build/release/bin/megac

(the venv of oracle.py; transformers 5.24 passes as well).  For each model here, of a few thousand parameters:

* transformers' save_pretrained writes it in parts, in files/NAME, with the loss
  that PyTorch finds on the first batch of synthetic tokens; `megac run --load`
  finds the same within 1e-5.  files.sh does this without PyTorch.
* `megac ckpt import-hf` and `export-hf` bring it back, in other parts; from
  these from_pretrained makes a model of the same bits, with no key missing and
  none too many.
"""
import argparse
import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers

import oracle

HERE = pathlib.Path(__file__).parent / "files"
oracle.SEQ, oracle.VOCAB = 8, 32

SIZES = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2,
             num_attention_heads=2, intermediate_size=24,
             max_position_embeddings=8, attn_implementation="eager",
             initializer_range=0.2, bos_token_id=0, eos_token_id=1)
MOE = SIZES | dict(num_key_value_heads=1, num_hidden_layers=1, num_experts=4,
                   num_experts_per_tok=2, moe_intermediate_size=8,
                   rms_norm_eps=1e-6, rope_theta=1e4, head_dim=8,
                   decoder_sparse_step=1, tie_word_embeddings=False)
MODELS = {
    "llama": (transformers.LlamaConfig(
        **SIZES, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=False), torch.bfloat16),
    "llama_tied": (transformers.LlamaConfig(
        **SIZES, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=True), torch.float32),
    "gpt2": (transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2,
        n_inner=64, activation_function="gelu_new", resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
        initializer_range=0.2, bos_token_id=0, eos_token_id=1), torch.float16),
    "qwen2moe": (transformers.Qwen2MoeConfig(
        **MOE, shared_expert_intermediate_size=12, norm_topk_prob=False),
        torch.bfloat16),
    "qwen3moe": (transformers.Qwen3MoeConfig(
        **MOE, norm_topk_prob=True), torch.bfloat16),
    "mixtral": (transformers.MixtralConfig(
        **SIZES | dict(num_hidden_layers=1, intermediate_size=8,
                       hidden_size=24),
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
        rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=None,
        tie_word_embeddings=False), torch.bfloat16),
}


def make(name):
    """files/NAME as transformers writes it, and the loss."""
    config, dtype = MODELS[name]
    folder = HERE / name
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for p in model.parameters():
        p.data += 0.05 * torch.randn_like(p)
    model.tie_weights()
    model = model.to(dtype)
    shutil.rmtree(folder, ignore_errors=True)
    # the file of gpt2 on huggingface.co has neither head nor prefix
    saved = model.transformer if name == "gpt2" else model
    saved.save_pretrained(folder, max_shard_size="4KB")
    config.architectures, config.torch_dtype = [type(model).__name__], dtype
    config.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = load(folder, torch.float32)  # its rotary frequencies are exact
    with torch.no_grad():
        loss = oracle.loss_of(model, oracle.batch(0)).item()
    (folder / "loss").write_text(f"{loss:.7f}\n")
    return model, loss


def load(folder, dtype="auto"):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, torch_dtype=dtype)
    for problem, keys in info.items():
        if keys:
            sys.exit(f"{folder}: {problem}: {keys}")
    return model


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(
        torch.equal(a[key].float(), b[key].float()) for key in a)


def megac_loss(megac, folder, weights):
    subprocess.run([megac, "run", folder, "--load", weights, "--steps", "1",
                    "--", "--quiet"], check=True)
    with open(f"{folder}/metrics.jsonl") as f:
        return json.loads(f.readline())["loss"]


def compare(megac, name, work):
    model, loss = make(name)
    subprocess.run([megac, "compile", HERE / f"{name}.yaml", "-o",
                    f"{work}/out"], check=True)
    oracle.check("loss of the parts of transformers",
                 abs(megac_loss(megac, f"{work}/out", HERE / name) - loss),
                 1e-5)
    subprocess.run([megac, "ckpt", "import-hf", HERE / name, "-o",
                    f"{work}/in", "--max-shard-size", "20000"], check=True)
    for dtype in "fp32", "bf16", "fp16":
        subprocess.run([megac, "ckpt", "export-hf", f"{work}/in", "-o",
                        f"{work}/{dtype}", "--spec", f"{work}/out",
                        "--dtype", dtype, "--max-shard-size", "3KB"],
                       check=True)
        back = load(f"{work}/{dtype}")
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16,
                "fp16": torch.float16}[dtype]
        if back.dtype != kind or not same(back, copy.deepcopy(model).to(kind)):
            sys.exit(f"{name}: {dtype} comes back as another model")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megac", default="build/release/bin/megac")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    for name in args.models:
        print(name)
        with tempfile.TemporaryDirectory() as work:
            compare(args.megac, name, work)


if __name__ == "__main__":
    main()
