"""GPT-2 124M in JAX: the model, loss and optimizer that megac trains.

gpt2_jax.py PRECISION SEQ BATCH RUNS CLOCK prints "jax MILLISECONDS OF",
the median of OF steps.  bf16 keeps fp32 parameters and moments and multiplies in bf16.
"""
from common import corpus, measure, settings

import jax
import jax.numpy as jnp
import optax

precision, seq, batch, runs = settings()
L, H, HEADS, V = 12, 768, 12, 50304
kind = jnp.bfloat16 if precision == "bf16" else jnp.float32


def init(key):
    keys = iter(jax.random.split(key, 8))

    def normal(*shape):
        return 0.02 * jax.random.normal(next(keys), shape)

    zeros, ones = jnp.zeros, jnp.ones
    block = {"n1": ones((L, H)), "b1": zeros((L, H)),
             "qkv": normal(L, H, 3 * H), "qkvb": zeros((L, 3 * H)),
             "out": normal(L, H, H), "outb": zeros((L, H)),
             "n2": ones((L, H)), "b2": zeros((L, H)),
             "up": normal(L, H, 4 * H), "upb": zeros((L, 4 * H)),
             "down": normal(L, 4 * H, H), "downb": zeros((L, H))}
    return {"wte": normal(V, H), "wpe": normal(1024, H), "block": block,
            "n": ones(H), "b": zeros(H)}


def norm(x, scale, shift):
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) *
            scale + shift).astype(kind)


def linear(x, w, b):
    return x @ w.astype(kind) + b.astype(kind)


def layer(x, p):                                        # (B, S, H)
    q, k, v = jnp.split(linear(norm(x, p["n1"], p["b1"]), p["qkv"],
                               p["qkvb"]), 3, -1)
    q, k, v = (t.reshape(*t.shape[:2], HEADS, -1) for t in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(y.reshape(x.shape), p["out"], p["outb"])
    up = linear(norm(x, p["n2"], p["b2"]), p["up"], p["upb"])
    return x + linear(jax.nn.gelu(up), p["down"], p["downb"]), None


def loss(params, tokens, labels):
    x = (params["wte"][tokens] + params["wpe"][:seq]).astype(kind)
    x, _ = jax.lax.scan(layer, x, params["block"])
    x = norm(x, params["n"], params["b"])
    logits = (x @ params["wte"].T.astype(kind)).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits,
                                                           labels).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0),
                        optax.adamw(6e-4, b2=0.95, weight_decay=0.1))


def step(params, state, tokens, labels):
    value, grads = jax.value_and_grad(loss)(params, tokens, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


step = jax.jit(step, donate_argnums=(0, 1))
params = init(jax.random.key(0))
state = optimizer.init(params)
tokens, labels = corpus(batch, seq)


def run():
    global params, state
    params, state, value = step(params, state, tokens, labels)
    value.block_until_ready()


measure("jax", run, runs, 1)
