"""The model of the demo: a small causal transformer over bytes, and its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import random
from xcube.array import Array
from xcube.nn import (
    MLP,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    MultiHeadAttention,
    initializers,
    log_softmax,
    one_hot,
)


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its training; the defaults are learned in about a minute by two
    cores.

    `length`: bytes that the model sees at once. `batch`: pieces of text per step.
    """

    vocabulary: int = 256
    features: int = 128
    heads: int = 4
    layers: int = 2
    length: int = 64
    batch: int = 8
    steps: int = 1500
    learning_rate: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    @property
    def tokens_per_step(self) -> int:
        """Bytes that one step learns from."""
        return self.batch * self.length


class Block(Module):
    """Attention and a two-layer perceptron, each added to what it reads: f[b, t, features] -> the
    same."""

    attention_norm: LayerNorm
    attention: MultiHeadAttention
    mlp_norm: LayerNorm
    mlp: MLP

    def __init__(self, config: Config, *, key: Any) -> None:
        first, second = random.split(key)
        features = config.features
        self.attention_norm = LayerNorm(features)
        self.attention = MultiHeadAttention(features, config.heads, key=first, is_causal=True)
        self.mlp_norm = LayerNorm(features)
        self.mlp = MLP(features, 4 * features, features, key=second)

    def __call__(self, x: Any) -> Array:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(Module):
    """Scores of the next byte after each position: i[b, t] -> f[b, t, vocabulary]."""

    embedding: Embedding
    positions: Array
    blocks: tuple[Block, ...]
    norm: LayerNorm
    head: Linear

    def __init__(self, config: Config, *, key: Any) -> None:
        embed, place, head, *keys = random.split(key, 3 + config.layers)
        small = initializers.normal(0.02)
        self.embedding = Embedding(config.vocabulary, config.features, key=embed, initializer=small)
        self.positions = small(place, (config.length, config.features))
        self.blocks = tuple(Block(config, key=block) for block in keys)
        self.norm = LayerNorm(config.features)
        self.head = Linear(config.features, config.vocabulary, key=head, bias=False)

    def __call__(self, tokens: Any) -> Array:
        x = self.embedding(tokens) + self.positions[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(model: Transformer, windows: Any) -> Array:
    """Mean surprise at each next byte, in nats: i[b, length + 1] -> f[]."""
    scores = log_softmax(model(windows[:, :-1]))
    chosen = one_hot(windows[:, 1:], scores.shape[-1], dtype=np.float32) * scores
    return -jnp.sum(chosen) / (scores.size // scores.shape[-1])
