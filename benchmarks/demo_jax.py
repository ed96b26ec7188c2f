"""The demo's train step in plain JAX and optax: the same model, loss and optimizer on the same
parameters, so that both libraries are given the same function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xcube.demo import Config

Parameters = dict[str, Any]


def parameters(config: Config, leaves: Sequence[np.ndarray]) -> Parameters:
    """The leaves of the demo's model, in their order, by name."""
    given = iter(leaves)

    def layer() -> Parameters:
        return {"weight": jnp.array(next(given)), "bias": jnp.array(next(given))}

    names = ("attention_norm", "projection", "output", "mlp_norm", "first", "second")
    found = {
        "embedding": jnp.array(next(given)),
        "positions": jnp.array(next(given)),
        "blocks": [{name: layer() for name in names} for _ in range(config.layers)],
        "norm": layer(),
        "head": jnp.array(next(given)),
    }
    assert next(given, None) is None, "the model of the demo has changed: change its twin too"
    return found


def linear(p: Parameters, x: jax.Array) -> jax.Array:
    return x @ p["weight"] + p["bias"]


def layer_norm(p: Parameters, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * p["weight"] + p["bias"]


def attention(p: Parameters, x: jax.Array, heads: int) -> jax.Array:
    batch, time, features = x.shape
    parts = linear(p["projection"], x).reshape(batch, time, 3, heads, features // heads)
    query, key, value = (parts[:, :, k] for k in range(3))
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return linear(p["output"], mixed.reshape(x.shape))


def model(p: Parameters, tokens: jax.Array, heads: int) -> jax.Array:
    x = p["embedding"][tokens] + p["positions"][: tokens.shape[-1]]
    for block in p["blocks"]:
        x = x + attention(block, layer_norm(block["attention_norm"], x), heads)
        hidden = jax.nn.gelu(linear(block["first"], layer_norm(block["mlp_norm"], x)))
        x = x + linear(block["second"], hidden)
    return layer_norm(p["norm"], x) @ p["head"]


def loss(p: Parameters, windows: jax.Array, heads: int) -> jax.Array:
    scores = jax.nn.log_softmax(model(p, windows[:, :-1], heads))
    chosen = jax.nn.one_hot(windows[:, 1:], scores.shape[-1]) * scores
    return -jnp.sum(chosen) / (scores.size // scores.shape[-1])


def make_optimizer(config: Config) -> optax.GradientTransformation:
    warmup = max(1, round(config.warmup * config.steps))
    rate = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, max(config.steps, warmup + 1)
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            rate,
            b2=0.95,
            weight_decay=config.weight_decay,
            mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p),
        ),
    )


def make_train_step(config: Config) -> Callable[..., Any]:
    """((parameters, optimizer state), windows) -> ((parameters, optimizer state), loss)."""
    optimizer = make_optimizer(config)

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: Any, windows: jax.Array) -> Any:
        p, memory = state
        value, gradients = jax.value_and_grad(loss)(p, windows, config.heads)
        updates, memory = optimizer.update(gradients, memory, p)
        return (optax.apply_updates(p, updates), memory), value

    return train_step
