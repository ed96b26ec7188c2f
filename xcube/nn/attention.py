"""Attention by dot products, in the form of `jax.nn.dot_product_attention`: grouped queries, masks
of every kind, softmax in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Shape, at_user_line
from xcube.nn.functions import logsumexp, softmax
from xcube.numpy.operands import array_operand

_NAME = "dot_product_attention"


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """softmax(query keyᵀ scale + bias) value:
    f[(b,) t, n, h], f[(b,) s, k, h], f[(b,) s, k, h] -> f[(b,) t, n, h]; each of the k heads of key
    and value serves n / k heads of query.

    `bias`, `mask`: f and bool, broadcast to [b, n, t, s]; a False is not attended to. `scale`:
    1 / sqrt(h) if None. `is_causal`: position i attends to 0..i. `local_window_size`: how far to
    the left and to the right. `*_seq_lengths`: i[b], the valid positions. `return_residual`: also
    give the logarithm of the softmax's denominator, f[(b,) t, n]. `implementation` is accepted for
    compatibility. Raises ShapeError and DtypeError if the arguments do not fit.

    >>> x = jnp.ones((1, 4, 2, 8))
    >>> dot_product_attention(x, x, x, is_causal=True).shape
    (1, 4, 2, 8)
    """
    query, key, value = (array_operand(_NAME, x, k) for k, x in enumerate((query, key, value)))
    shape = query.shape
    query, key, value = (x[None] if x.ndim == 3 else x for x in (query, key, value))
    _check(query, key, value)
    scores = _scores(query, key, 1 / math.sqrt(shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + _four_axes("bias", bias, scores.shape).astype(scores.dtype)
    if mask is not None and array_operand(_NAME, mask).dtype != np.bool_:
        raise DtypeError(f"{_NAME}: mask must be bool; got {mask.dtype}.{at_user_line()}")
    lengths = query_seq_lengths, key_value_seq_lengths
    allowed = _allowed(scores.shape, mask, is_causal, lengths, local_window_size)
    if allowed is not None:
        scores = jnp.where(allowed, scores, _lowest(scores.dtype))
    scores = scores.astype(np.float32)
    result = _weighted(softmax(scores).astype(key.dtype), value)
    if query_seq_lengths is not None:
        valid = _before(query_seq_lengths, (shape[0], result.shape[1], 1, 1), 1)
        result = jnp.where(valid, result, 0)
    if not return_residual:
        return result.reshape(shape)
    residual = lax.stop_gradient(logsumexp(scores, axis=-1).astype(key.dtype))
    return result.reshape(shape), jnp.swapaxes(residual, 1, 2).reshape(shape[:-1])


def _check(query: Array, key: Array, value: Array) -> None:
    fits = (
        query.ndim == key.ndim == 4
        and key.shape == value.shape
        and (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
        and key.shape[2] > 0
        and query.shape[2] % key.shape[2] == 0
    )
    if not fits:
        raise ShapeError(
            f"{_NAME}: shapes must be [(b,) t, n, h], [(b,) s, k, h], [(b,) s, k, h], n a multiple "
            f"of k; got {query.aval}, {key.aval}, {value.aval}.{at_user_line()}"
        )
    if not (query.dtype == key.dtype == value.dtype and dtypes.is_float(query.dtype)):
        raise DtypeError(
            f"{_NAME}: query, key and value must have one float dtype; got {query.aval}, "
            f"{key.aval}, {value.aval}.{at_user_line()}"
        )


def _scores(query: Array, key: Array, scale: Any) -> Array:
    """[b, n, t, s], at least in float32."""
    (b, t, n, h), (_, s, k, _) = query.shape, key.shape
    wide = dtypes.promote_types(query.dtype, np.float32)
    if n == k:
        axes = (((3,), (3,)), ((0, 2), (0, 2)))
        return lax.dot_general(query, key, axes, preferred_element_type=wide) * scale
    grouped = query.reshape(b, t, k, n // k, h)
    axes = (((4,), (3,)), ((0, 2), (0, 2)))
    scores = lax.dot_general(grouped, key, axes, preferred_element_type=wide)
    return jnp.swapaxes(scores, 2, 3).reshape(b, n, t, s) * scale


def _weighted(weights: Array, value: Array) -> Array:
    """[b, t, n, h]."""
    (b, n, t, s), (_, _, k, h) = weights.shape, value.shape
    if n == k:
        axes = (((3,), (1,)), ((0, 1), (0, 2)))
        return jnp.swapaxes(lax.dot_general(weights, value, axes), 1, 2)
    grouped = weights.reshape(b, k, n // k, t, s)
    mixed = lax.dot_general(grouped, value, (((4,), (1,)), ((0, 1), (0, 2))))
    return jnp.swapaxes(mixed.reshape(b, n, t, h), 1, 2)


def _lowest(dtype: np.dtype) -> float:
    """A score that no softmax notices, yet far from overflow."""
    return -0.7 * min(float(dtypes.finfo(dtype).max), float(np.finfo(np.float32).max))


def _four_axes(what: str, x: Any, shape: Shape) -> Array:
    x = array_operand(_NAME, x)
    fits = x.ndim == 4 and all(a in (1, b) for a, b in zip(x.shape, shape, strict=True))
    if not fits:
        raise ShapeError(
            f"{_NAME}: {what} must broadcast to [b, n, t, s] = {list(shape)}; got {x.aval}."
            f"{at_user_line()}"
        )
    return x


def _before(lengths: Any, shape: Shape, axis: int) -> Array:
    """Whether a position along an axis lies before its example's length."""
    lengths = jnp.asarray(lengths)
    positions = lax.broadcasted_iota(lengths.dtype, shape, axis)
    return positions < lengths.reshape(-1, *(1,) * (len(shape) - 1))


def _allowed(
    shape: Shape, mask: Any, is_causal: bool, lengths: tuple[Any, Any], window: Any
) -> Any:
    """Which scores count, broadcastable to [b, n, t, s]; None if all do."""
    b, _, t, s = shape
    tests = [] if mask is None else [_four_axes("mask", mask, shape)]
    if is_causal or window is not None:
        row = lax.broadcasted_iota(np.int32, (1, 1, t, s), 2)
        column = lax.broadcasted_iota(np.int32, (1, 1, t, s), 3)
        tests += [row >= column] if is_causal else []
        if window is not None:
            left, right = (window, window) if isinstance(window, int) else window
            tests += [(row <= column + left) & (row >= column - right)]
    if lengths[0] is not None:
        tests.append(_before(lengths[0], (b, 1, t, 1), 2))
    if lengths[1] is not None:
        tests.append(_before(lengths[1], (b, 1, 1, s), 3))
    if not tests:
        return None
    allowed = tests[0]
    for test in tests[1:]:
        allowed = allowed & test
    return allowed
