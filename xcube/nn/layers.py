"""Layers: modules that hold their parameters and are called on arrays. Leading axes of an argument
are batch axes. Whoever needs random numbers is given a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax, random
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import at_user_line
from xcube.nn import initializers
from xcube.nn.attention import dot_product_attention
from xcube.nn.functions import gelu
from xcube.nn.initializers import Initializer
from xcube.nn.module import Module, static


def _require_features(name: str, x: Any, features: int) -> None:
    if x.shape[-1:] != (features,):
        raise ShapeError(
            f"{name}: the last axis must have {features} features; got {x.aval}.{at_user_line()}"
        )


class Linear(Module):
    """x weight + bias: f[*batch, in] -> f[*batch, out].

    Raises ShapeError if the last axis is not `in_features` long.

    >>> layer = Linear(3, 4, key=random.key(0))
    >>> layer
    Linear(weight=f32[3,4], bias=f32[4])
    >>> layer(jnp.ones((2, 3))).shape
    (2, 4)
    """

    weight: Array
    bias: Array | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        key: Any,
        bias: bool = True,
        dtype: Any = None,
        initializer: Initializer | None = None,
    ) -> None:
        make = initializer or initializers.lecun_normal()
        self.weight = make(key, (in_features, out_features), dtype)
        self.bias = jnp.zeros(out_features, self.weight.dtype) if bias else None

    def __call__(self, x: Any) -> Array:
        _require_features("Linear", x, self.weight.shape[0])
        y = jnp.dot(x, self.weight)
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """The row of each token: i[*d] -> f[*d, features].

    Raises DtypeError if the tokens are no integers.

    >>> table = Embedding(10, 4, key=random.key(0))
    >>> table(jnp.array([1, 2])).shape
    (2, 4)
    """

    weight: Array

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        key: Any,
        dtype: Any = None,
        initializer: Initializer | None = None,
    ) -> None:
        make = initializer or initializers.normal(1 / math.sqrt(features))
        self.weight = make(key, (num_embeddings, features), dtype)

    def __call__(self, tokens: Any) -> Array:
        tokens = jnp.asarray(tokens)
        if not dtypes.is_integer(tokens.dtype):
            raise DtypeError(
                f"Embedding: tokens must be integers; got {tokens.aval}.{at_user_line()}"
            )
        return jnp.take(self.weight, tokens, axis=0)

    def attend(self, x: Any) -> Array:
        """The score of each row for x: f[*batch, features] -> f[*batch, num_embeddings]."""
        _require_features("Embedding.attend", x, self.weight.shape[1])
        return jnp.dot(x, self.weight.T)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps), scaled and shifted: f[*batch, features] -> the same.
    Statistics are taken over the last axis, in float32 at least.

    Raises ShapeError if the last axis is not `features` long. Source: Ba et al., 2016.

    >>> LayerNorm(4)(jnp.array([1.0, 1.0, 3.0, 3.0])).round(2)
    Array([-1., -1.,  1.,  1.], dtype=float32)
    """

    weight: Array
    bias: Array | None
    eps: float = static()

    def __init__(
        self, features: int, *, bias: bool = True, eps: float = 1e-5, dtype: Any = None
    ) -> None:
        self.weight = jnp.ones(features, dtype)
        self.bias = jnp.zeros(features, dtype) if bias else None
        self.eps = eps

    def __call__(self, x: Any) -> Array:
        _require_features("LayerNorm", x, self.weight.shape[0])
        wide = x.astype(dtypes.promote_types(x.dtype, np.float32))
        centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        y = (centered * lax.rsqrt(variance + self.eps)).astype(x.dtype) * self.weight
        return y if self.bias is None else y + self.bias


class RMSNorm(Module):
    """x / sqrt(mean square + eps), scaled: f[*batch, features] -> the same. Statistics are taken
    over the last axis, in float32 at least.

    Raises ShapeError if the last axis is not `features` long. Source: Zhang and Sennrich, 2019.
    """

    weight: Array
    eps: float = static()

    def __init__(self, features: int, *, eps: float = 1e-6, dtype: Any = None) -> None:
        self.weight = jnp.ones(features, dtype)
        self.eps = eps

    def __call__(self, x: Any) -> Array:
        _require_features("RMSNorm", x, self.weight.shape[0])
        wide = x.astype(dtypes.promote_types(x.dtype, np.float32))
        square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * lax.rsqrt(square + self.eps)).astype(x.dtype) * self.weight


class Dropout(Module):
    """Each element 0 with probability `rate`, the others scaled up in return; without a key, x as
    it is.

    Raises ValueError unless 0 <= rate < 1. Source: Srivastava et al., 2014.

    >>> Dropout(0.5)(jnp.ones(3))
    Array([1., 1., 1.], dtype=float32)
    """

    rate: float = static()

    def __init__(self, rate: float) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"Dropout: rate must lie in [0, 1); got {rate}.{at_user_line()}")
        self.rate = rate

    def __call__(self, x: Any, *, key: Any = None) -> Array:
        if key is None or self.rate == 0:
            return x
        kept = random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(kept, x / (1 - self.rate), 0)


class Sequential(Module):
    """Layers one after another.

    >>> Sequential(jnp.sin, jnp.cos)(0.0).item()
    1.0
    """

    layers: tuple[Any, ...]

    def __init__(self, *layers: Any) -> None:
        self.layers = tuple(_Function(f) if _is_plain(f) else f for f in layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class _Function(Module):
    """A function as a layer without parameters."""

    function: Callable[..., Any] = static()

    def __call__(self, x: Any) -> Any:
        return self.function(x)


def _is_plain(layer: Any) -> bool:
    return callable(layer) and not isinstance(layer, Module)


class MLP(Module):
    """Two linear layers with an activation between: f[*batch, in] -> f[*batch, out]."""

    first: Linear
    second: Linear
    activation: Callable[..., Any] = static()

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        key: Any,
        activation: Callable[..., Any] = gelu,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        first, second = random.split(key)
        self.first = Linear(in_features, hidden_features, key=first, bias=bias, dtype=dtype)
        self.second = Linear(hidden_features, out_features, key=second, bias=bias, dtype=dtype)
        self.activation = activation

    def __call__(self, x: Any) -> Array:
        return self.second(self.activation(self.first(x)))


class MultiHeadAttention(Module):
    """Self-attention with several heads: f[batch, time, features] -> the same. The projections to
    query, key and value are one matrix.

    Raises ShapeError if `features` is no multiple of `num_heads`, or x does not have them.
    Source: Vaswani et al., 2017.

    >>> attention = MultiHeadAttention(8, 2, key=random.key(0), is_causal=True)
    >>> attention(jnp.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    projection: Linear
    output: Linear
    num_heads: int = static()
    is_causal: bool = static()

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        key: Any,
        is_causal: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        if features % num_heads:
            raise ShapeError(
                f"MultiHeadAttention: features must be a multiple of num_heads; got {features} and "
                f"{num_heads}.{at_user_line()}"
            )
        inner, outer = random.split(key)
        self.projection = Linear(features, 3 * features, key=inner, bias=bias, dtype=dtype)
        self.output = Linear(features, features, key=outer, bias=bias, dtype=dtype)
        self.num_heads, self.is_causal = num_heads, is_causal

    def __call__(self, x: Any, mask: Any = None) -> Array:
        *batch, time, features = x.shape
        parts = self.projection(x).reshape(
            *batch, time, 3, self.num_heads, features // self.num_heads
        )
        query, key, value = (parts[..., k, :, :] for k in range(3))
        mixed = dot_product_attention(query, key, value, mask=mask, is_causal=self.is_causal)
        return self.output(mixed.reshape(x.shape))
