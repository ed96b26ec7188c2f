"""Attention by dot products, in the form of `jax.nn.dot_product_attention`: grouped queries, masks
of every kind, softmax in at least float32, and no matrix of scores where a device has kernels."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy.operands import array_operand
from xcube.primitives.attention import LOWEST, attention

_NAME = "dot_product_attention"
_IMPLEMENTATIONS = (None, "xla", "cudnn")

Sides = tuple[int | None, int | None]


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
    f[(b,) t, n, h], f[(b,) s, k, h], f[(b,) s, k, e] -> f[(b,) t, n, e]; each of the k heads of key
    and value serves n / k heads of query.

    `bias`, `mask`: f and bool, broadcast to [b, n, t, s]; a False is not attended to. `scale`:
    1 / sqrt(h) if None. `is_causal`: position i attends to 0..i. `local_window_size`: how far to
    the left and to the right. `*_seq_lengths`: i[b], the valid positions. `return_residual`: also
    give the logarithm of the softmax's denominator, f[(b,) t, n], without derivative.
    `implementation`: "xla" computes all scores; None and "cudnn" leave it to the device.
    Raises ShapeError and DtypeError if the arguments do not fit, ValueError for another
    implementation.

    >>> x = jnp.ones((1, 4, 2, 8))
    >>> dot_product_attention(x, x, x, is_causal=True).shape
    (1, 4, 2, 8)
    """
    query, key, value = (array_operand(_NAME, x, k) for k, x in enumerate((query, key, value)))
    _check(query, key, value, implementation)
    shape = (*query.shape[:-1], value.shape[-1])
    query, key, value = (x[None] if x.ndim == 3 else x for x in (query, key, value))
    scores = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    query, scale = _scaled(query, scale)
    left, right = _sides(is_causal, local_window_size)
    out, log_total = attention(
        query,
        key,
        value,
        None if bias is None else _four_axes("bias", bias, scores),
        None if mask is None else _four_axes("mask", _boolean(mask), scores),
        _lengths("key_value_seq_lengths", key_value_seq_lengths, scores[0]),
        scale=scale,
        left=left,
        right=right,
        is_composed=implementation == "xla",
    )
    if query_seq_lengths is not None:
        lengths = _lengths("query_seq_lengths", query_seq_lengths, scores[0])
        exists = lax.broadcasted_iota(np.int32, log_total.shape, 2) < lengths[:, None, None]
        out = jnp.where(jnp.swapaxes(exists, 1, 2)[..., None], out, 0)
        log_total = jnp.where(exists, log_total, LOWEST)
    if not return_residual:
        return out.reshape(shape)
    residual = lax.stop_gradient(jnp.swapaxes(log_total, 1, 2).astype(key.dtype))
    return out.reshape(shape), residual.reshape(shape[:-1])


def _check(query: Array, key: Array, value: Array, implementation: str | None) -> None:
    fits = (
        query.ndim == key.ndim == value.ndim
        and query.ndim in (3, 4)
        and key.shape[:-1] == value.shape[:-1]
        and (query.shape[:-3], query.shape[-1]) == (key.shape[:-3], key.shape[-1])
        and key.shape[-2] > 0
        and query.shape[-2] % key.shape[-2] == 0
    )
    if not fits:
        raise ShapeError(
            f"{_NAME}: shapes must be [(b,) t, n, h], [(b,) s, k, h], [(b,) s, k, e], n a multiple "
            f"of k; got {query.aval}, {key.aval}, {value.aval}.{at_user_line()}"
        )
    if not (query.dtype == key.dtype == value.dtype and dtypes.is_float(query.dtype)):
        raise DtypeError(
            f"{_NAME}: query, key and value must have one float dtype; got {query.aval}, "
            f"{key.aval}, {value.aval}.{at_user_line()}"
        )
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"{_NAME}: implementation must be None, 'xla' or 'cudnn'; got {implementation!r}."
            f"{at_user_line()}"
        )


def _scaled(query: Array, scale: Any) -> tuple[Array, float]:
    """The query and a scale that is known; one that is not is multiplied in."""
    if scale is None:
        return query, 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if isinstance(scale, numbers.Real):
        return query, float(scale)
    return (query * scale).astype(query.dtype), 1.0


def _sides(is_causal: bool, window: int | tuple[int, int] | None) -> Sides:
    """How far a query sees to the left and to the right."""
    left, right = (window, window) if window is None or isinstance(window, int) else window
    if is_causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def _boolean(mask: Any) -> Array:
    mask = array_operand(_NAME, mask)
    if mask.dtype != np.bool_:
        raise DtypeError(f"{_NAME}: mask must be bool; got {mask.dtype}.{at_user_line()}")
    return mask


def _four_axes(what: str, x: Any, shape: Shape) -> Array:
    x = array_operand(_NAME, x)
    whole = x.reshape((1,) * (4 - x.ndim) + x.shape)
    fits = whole.ndim == 4 and all(a in (1, b) for a, b in zip(whole.shape, shape, strict=True))
    if not fits:
        raise ShapeError(
            f"{_NAME}: {what} must broadcast to [b, n, t, s] = {list(shape)}; got {x.aval}."
            f"{at_user_line()}"
        )
    return whole


def _lengths(what: str, lengths: Any, examples: int) -> Any:
    """Lengths as i32[b]; None where there are none."""
    if lengths is None:
        return None
    lengths = array_operand(_NAME, lengths)
    if not dtypes.is_integer(lengths.dtype):
        raise DtypeError(f"{_NAME}: {what} must be integers; got {lengths.aval}.{at_user_line()}")
    if lengths.shape != (examples,):
        raise ShapeError(
            f"{_NAME}: {what} must have one length for each of {examples} examples; got "
            f"{lengths.aval}.{at_user_line()}"
        )
    return lengths.astype(np.int32)
