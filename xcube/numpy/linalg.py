"""Linear algebra: norms, products and powers of matrices."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import contraction, reductions, shaping, taking
from xcube.numpy import elementwise as e
from xcube.numpy.contraction import matmul, outer, tensordot, vecdot
from xcube.numpy.creation import eye
from xcube.numpy.fused import fused
from xcube.numpy.operands import array_operand, as_array, canonical_axis, promoted_inexact
from xcube.numpy.shaping import matrix_transpose
from xcube.primitives.shape import broadcast_in_dim, reshape

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


@fused()
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """The norm of vectors along an axis or of matrices along two: d[*s] -> f[s without axes].
    `ord`: None for the 2-norm of all elements, inf, -inf, 0, a number p; for matrices also "fro".

    Raises ValueError for an order that the axes do not have.

    >>> import xcube.numpy as jnp
    >>> norm(jnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    array = as_array(promoted_inexact("norm", array_operand("norm", x))[0])
    if axis is None and ord is None:
        return _root_of_squares(array, None, keepdims)
    if axis is None:
        axes = tuple(range(array.ndim))
    else:
        given = axis if isinstance(axis, tuple | list) else (axis,)
        axes = tuple(canonical_axis("norm", k, array.ndim, array.aval) for k in given)
    if len(axes) == 1:
        return _vector_norm(array, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(array, "fro" if ord is None else ord, axes, keepdims)
    raise ValueError(
        f"norm: axis must be one or two axes where an order is given; got {axes} of {array.aval}."
        f"{at_user_line()}"
    )


def _root_of_squares(x: Array, axes: Any, keepdims: bool) -> Array:
    return e.sqrt(reductions.sum(e.modulus_of(x), axes, keepdims=keepdims))


def _vector_norm(x: Array, ord: Any, axes: Sequence[int], keepdims: bool) -> Array:
    axes = tuple(axes)
    if isinstance(ord, str):
        raise ValueError(f"norm: ord of vectors must be a number; got {ord!r}.{at_user_line()}")
    if isinstance(ord, int | float):
        if ord == 2:
            return _root_of_squares(x, axes, keepdims)
        if ord == np.inf:
            return reductions.max(e.abs(x), axes, keepdims=keepdims)
        if ord == -np.inf:
            return reductions.min(e.abs(x), axes, keepdims=keepdims)
        if ord == 0:
            kind = dtypes.float_part(x.dtype)
            return reductions.sum(e.not_equal(x, 0), axes, dtype=kind, keepdims=keepdims)
        if ord == 1:
            return reductions.sum(e.abs(x), axes, keepdims=keepdims)
    total = reductions.sum(e.power(e.abs(x), ord), axes, keepdims=keepdims)
    return e.power(total, e.divide(1.0, ord))


def _matrix_norm(x: Array, ord: Any, axes: Sequence[int], keepdims: bool) -> Array:
    rows, columns = axes
    if ord in ("fro", "f"):
        return _root_of_squares(x, (rows, columns), keepdims)
    sums = {
        1: (rows, columns),
        -1: (rows, columns),
        np.inf: (columns, rows),
        -np.inf: (columns, rows),
    }
    if ord not in sums:
        raise ValueError(
            f"norm: ord of matrices must be 'fro', 1, -1, inf or -inf; got {ord!r}.{at_user_line()}"
        )
    summed, compared = sums[ord]
    totals = reductions.sum(e.abs(x), summed, keepdims=True)
    best = (reductions.max if ord > 0 else reductions.min)(totals, compared, keepdims=True)
    return best if keepdims else shaping.squeeze(best, (rows, columns))


@fused()
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """The norm of vectors along axes taken together: d[*s] -> f[s without axes]."""
    array = as_array(promoted_inexact("vector_norm", array_operand("vector_norm", x))[0])
    if axis is None:
        result = _vector_norm(reshape(array, (array.size,)), ord, (0,), False)
        return reshape(result, (1,) * array.ndim) if keepdims else result
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [canonical_axis("vector_norm", k, array.ndim, array.aval) for k in given]
    return _vector_norm(array, ord, axes, keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of matrices in the last two axes: d[*s, n, m] -> f[*s]."""
    return norm(x, ord, (-2, -1), keepdims)


@fused()
def matrix_power(a: Any, n: int) -> Array:
    """The product of n copies of square matrices: d[*s, k, k] -> d[*s, k, k].

    Raises ShapeError for matrices that are not square, ValueError if n is negative.
    """
    x, count = array_operand("matrix_power", a), operator.index(n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"matrix_power: matrices must be square; got {x.aval}.{at_user_line()}")
    if count < 0:
        raise ValueError(f"matrix_power: n must not be negative; got {count}.{at_user_line()}")
    if count == 0:
        rank = x.ndim
        return broadcast_in_dim(eye(x.shape[-1], dtype=x.dtype), x.shape, (rank - 2, rank - 1))
    result: Any = None
    while count:
        if count % 2:
            result = x if result is None else matmul(result, x)
        count //= 2
        x = matmul(x, x) if count else x
    return result


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Array:
    """The product of matrices (the first and last may be vectors) in the cheapest order.

    Raises ValueError unless there are two arrays at least.
    """
    items = [array_operand("multi_dot", x, k) for k, x in enumerate(arrays)]
    if len(items) < 2:
        raise ValueError(
            f"multi_dot: at least two arrays must be given; got {len(items)}.{at_user_line()}"
        )
    split = _cheapest(tuple(_chain_sizes(items)))
    return _product(items, split, 0, len(items) - 1, precision)


def _chain_sizes(items: Sequence[Array]) -> list[int]:
    first, last = items[0], items[-1]
    sizes = [1 if first.ndim == 1 else first.shape[0]]
    sizes += [x.shape[0] for x in items[1:]]
    return [*sizes, 1 if last.ndim == 1 else last.shape[1]]


@functools.lru_cache(maxsize=256)
def _cheapest(sizes: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Where to split each part of a chain of matrix products, by dynamic programming."""
    count = len(sizes) - 1
    cost = {(k, k): 0 for k in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs = {
                k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                for k in range(i, j)
            }
            split[i, j] = min(costs, key=costs.__getitem__)
            cost[i, j] = costs[split[i, j]]
    return split


def _product(items: Sequence[Array], split: Any, i: int, j: int, precision: Any) -> Array:
    if i == j:
        return items[i]
    k = split[i, j]
    left = _product(items, split, i, k, precision)
    return contraction.dot(left, _product(items, split, k + 1, j, precision), precision=precision)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of length 3 along an axis."""
    return contraction.cross(x1, x2, axis=axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices in the last two axes: d[*s, n, m] -> d[*s, k]."""
    return taking.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sums of the diagonals of matrices in the last two axes: d[*s, n, m] -> d[*s]."""
    return taking.trace(x, offset, -2, -1, dtype)
