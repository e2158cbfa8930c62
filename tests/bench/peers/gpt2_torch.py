"""GPT-2 124M in PyTorch, eager and compiled: what megac trains.

gpt2_torch.py PRECISION SEQ BATCH RUNS CLOCK prints "torch-eager MS OF"
and "torch-compile MS OF", the median of OF steps.  bf16 is autocast over fp32 parameters.
"""
import sys

from common import corpus, measure, settings

import torch
from torch import nn
from torch.nn import functional as F

precision, seq, batch, runs = settings()
L, H, HEADS, V = 12, 768, 12, 50304
torch.set_num_threads(1 if sys.argv[5] == "busy" else 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(H), nn.LayerNorm(H)
        self.qkv, self.out = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, x):                               # (B, S, H)
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                 for t in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        up = F.gelu(self.up(self.n2(x)), approximate="tanh")
        return x + self.down(up)


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, H), nn.Embedding(1024, H)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.n = nn.LayerNorm(H)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe.weight[:seq]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.n(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train(name, model, run, warm):
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    tokens, labels = (torch.from_numpy(x.copy()) for x in corpus(batch, seq))

    def step():
        with torch.autocast("cpu", torch.bfloat16, precision == "bf16"):
            loss = run(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    measure(name, step, runs, warm)


torch.manual_seed(0)
gpt2 = Gpt2()
train("torch-eager", gpt2, gpt2, 1)
train("torch-compile", gpt2, torch.compile(gpt2), 2)
