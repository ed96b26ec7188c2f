"""Pooling as in flax.linen: the extremum or mean under windows over the spatial dimensions of
(*batch, *spatial, features)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import lax
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import at_user_line
from xcube.numpy.operands import array_operand
from xcube.primitives import reduce as reductions
from xcube.primitives.kinds import REAL

Padding = str | Sequence[tuple[int, int]]


def pool(
    inputs: Any,
    init: Any,
    reduce_fn: Callable[[Any, Any], Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> Array:
    """Windows over the last dimensions but one, folded by an associative function from `init` on:
    d[*batch, *spatial, features] -> d[*batch, *places, features]. No strides mean 1.

    `padding` is "SAME", "VALID" or a pair (low, high) for each spatial dimension. Raises ShapeError
    if there are fewer dimensions than the window needs.

    >>> pool(jnp.ones((1, 4, 6, 3)), 0.0, lax.add, (2, 2), (2, 2), "VALID").shape
    (1, 2, 3, 3)
    """
    x, spatial = array_operand("pool", inputs), len(window_shape)
    batch = x.ndim - spatial - 1
    steps = (1,) * spatial if strides is None else tuple(strides)
    if batch < 0 or len(steps) != spatial:
        raise ShapeError(
            f"pool: inputs must have dimensions for the window and one for features, and the "
            f"window a stride for each; got {x.aval}, window_shape={tuple(window_shape)} and "
            f"strides={steps}.{at_user_line()}"
        )
    around = [(0, 0)] * batch, [(0, 0)]
    pairs = padding if isinstance(padding, str) else [*around[0], *padding, *around[1]]
    sizes, moves = [(*[1] * batch, *side, 1) for side in (window_shape, steps)]
    return lax.reduce_window(x, init, reduce_fn, sizes, moves, pairs)


def max_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """The largest under each place of a window: d[*batch, *spatial, features] -> the same of
    places; NaN wins. What `padding` adds never does. The first largest has the derivative.

    >>> max_pool(jnp.arange(6.0).reshape(1, 6, 1), (2,), (2,)).ravel()
    Array([1., 3., 5.], dtype=float32)
    """
    x = _ordered("max_pool", inputs)
    return pool(x, reductions.lowest(x.dtype), lax.max, window_shape, strides, padding)


def min_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """The least under each place of a window: as `max_pool`.

    >>> min_pool(jnp.arange(6.0).reshape(1, 6, 1), (2,), (2,)).ravel()
    Array([0., 2., 4.], dtype=float32)
    """
    x = _ordered("min_pool", inputs)
    return pool(x, reductions.highest(x.dtype), lax.min, window_shape, strides, padding)


def _ordered(name: str, inputs: Any) -> Array:
    x = array_operand(name, inputs)
    if not REAL(x.dtype):
        raise DtypeError(f"{name}: orders real numbers; got {x.aval}.{at_user_line()}")
    return x


def avg_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """The mean under each place of a window: f[*batch, *spatial, features] -> the same of places.
    Zeros that `padding` adds are counted, unless `count_include_pad` is false.

    >>> avg_pool(jnp.arange(6.0).reshape(1, 6, 1), (2,), (2,)).ravel()
    Array([0.5, 2.5, 4.5], dtype=float32)
    """
    x = array_operand("avg_pool", inputs)
    fold = functools.partial(
        pool, reduce_fn=lax.add, window_shape=window_shape, strides=strides, padding=padding
    )
    total = fold(x, np.zeros((), x.dtype)[()])
    if count_include_pad:
        return total / math.prod(window_shape)
    spatial = x.shape[x.ndim - len(window_shape) - 1 : -1]
    return total / fold(jnp.ones((*spatial, 1), total.dtype), np.zeros((), total.dtype)[()])
