"""Functions that read or write at given places: take, put, diagonals, index arithmetic."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy.choice import chosen
from xcube.numpy.fused import fused
from xcube.numpy.index_entries import INDEX, is_mask, parse_mode
from xcube.numpy.indexing import getitem
from xcube.numpy.operands import array_operand, broadcast_shapes, canonical_axis, scalar
from xcube.primitives import view
from xcube.primitives.gather import gather
from xcube.primitives.select import select
from xcube.primitives.shape import broadcast_in_dim, full, reshape, transpose
from xcube.primitives.windows import GatherDimensionNumbers

# --- Functions -----------------------------------------------------------------------------------


def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Slices at indices along an axis, flattened if it is None: d[*s], i[*t] -> d[.., *t, ..].

    `mode`: "fill" (default: NaN or the lowest integer out of bounds), "clip" or "wrap".

    >>> import xcube.numpy as jnp
    >>> take(jnp.array([3, 4, 5]), jnp.array([2, 0]))
    Array([5, 3], dtype=int32)
    """
    x, where = array_operand("take", a), array_operand("take", indices, 1)
    if not dtypes.is_integer(where.dtype):
        raise TypeError(f"take: indices must be integers; got {where.aval}.{at_user_line()}")
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    k = canonical_axis("take", axis, x.ndim, x.aval)
    if mode == "wrap":
        where, mode = e.remainder(where, scalar(x.shape[k], where.dtype)), "clip"
    if mode == "clip" and dtypes.is_signed(where.dtype):
        where = e.clip(where, 0, max(x.shape[k] - 1, 0))
    index = (*([slice(None)] * k), where)
    return x.at[index].get(  # type: ignore[attr-defined]
        mode=mode or "fill",
        fill_value=fill_value,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None
) -> Array:
    """Elements at indices along an axis, the other axes walking together: d[*s], i[*t] -> d[*t].

    Raises ValueError if the ranks differ.
    """
    x, where = array_operand("take_along_axis", arr), array_operand("take_along_axis", indices, 1)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    if x.ndim != where.ndim:
        raise ValueError(
            f"take_along_axis: the indices must have the rank of the array; got {where.aval} for "
            f"{x.aval}.{at_user_line()}"
        )
    k = canonical_axis("take_along_axis", axis, x.ndim, x.aval)
    if x.size == 0 or where.size == 0:
        at = x.at[_along(x, where, k)]  # type: ignore[attr-defined]
        return at.get(mode=mode or "fill", fill_value=fill_value)
    return _gathered_along(x, where, k, parse_mode(mode or "fill"), fill_value)


def _gathered_along(x: Array, where: Array, axis: int, mode: Any, fill_value: Any) -> Array:
    """One gather in which axes of one size walk together; an axis that the indices have not is read
    whole, one that the array has not stays where it is."""
    sizes = list(zip(x.shape, where.shape, strict=True))
    for j, (m, n) in enumerate(sizes):
        if j != axis:
            broadcast_shapes("take_along_axis", (m,), (n,))
    others = [j for j in range(x.ndim) if j != axis]
    whole = [j for j in others if sizes[j][1] == 1 and sizes[j][0] != 1]
    lost = [j for j in others if sizes[j][0] == 1 and sizes[j][1] != 1]
    axes = [[j for j in range(x.ndim) if j not in gone] for gone in (lost, whole)]
    together = [j for j in others if j not in whole and j not in lost]
    numbers = GatherDimensionNumbers(
        offset_dims=tuple(whole),
        collapsed_slice_dims=(axes[0].index(axis),),
        start_index_map=(axes[0].index(axis),),
        operand_batching_dims=tuple([axes[0].index(j) for j in together]),
        start_indices_batching_dims=tuple([axes[1].index(j) for j in together]),
    )
    x, where = view.squeeze(x, lost), view.squeeze(from_front(where, sizes[axis][0]), whole)
    return gather(
        x,
        reshape(where, (*where.shape, 1)),
        numbers,
        tuple([x.shape[n] if j in whole else 1 for n, j in enumerate(axes[0])]),
        mode=mode,
        fill_value=fill_value,
    )


def from_front(where: Array, size: int) -> Array:
    """Indices that count from the front of an axis, where negative ones do from its end."""
    if not dtypes.is_signed(where.dtype):
        return where
    return select(e.less(where, 0), e.add(where, scalar(size, where.dtype)), where)


def _along(x: Array, where: Array, axis: int) -> tuple[Any, ...]:
    """Index arrays that walk the other axes, staying where an axis has length 1."""
    k = canonical_axis("take_along_axis", axis, x.ndim, x.aval)
    others = [
        broadcast_shapes("take_along_axis", (m,), (n,))[0]
        for j, (m, n) in enumerate(zip(x.shape, where.shape, strict=True))
        if j != k
    ]
    rank, index = x.ndim, []
    for j in range(rank):
        if j == k:
            index.append(where)
            continue
        size = others[j if j < k else j - 1]
        walk = view.iota(INDEX, (size,), 0) if x.shape[j] == size else full((size,), np.int32(0))
        index.append(reshape(walk, tuple(size if i == j else 1 for i in range(rank))))
    return tuple(index)


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: Any = None
) -> Array:
    """A new array with values at indices along an axis.

    Raises ValueError unless `inplace=False`.
    """
    _not_in_place("put_along_axis", inplace)
    x, where = array_operand("put_along_axis", arr), array_operand("put_along_axis", indices, 1)
    flat = reshape(x, (x.size,)) if axis is None else x
    index = _along(flat, where, 0 if axis is None else axis)
    return reshape(flat.at[index].set(values, mode=mode), x.shape)  # type: ignore[attr-defined]


def _not_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(
            f"{name}: arrays are immutable, so inplace must be False; got True.{at_user_line()} "
            f"Use the array that it returns."
        )


def put(a: Any, ind: Any, v: Any, mode: Any = None, *, inplace: bool = True) -> Array:
    """A new array with values, repeated as needed, at places in row-major order.

    Raises ValueError unless `inplace=False`.
    """
    _not_in_place("put", inplace)
    x, where, values = (array_operand("put", w, k) for k, w in enumerate((a, ind, v)))
    where, values = reshape(where, (where.size,)), reshape(values, (values.size,))
    if where.size == 0 or values.size == 0:
        return x
    copies = -(-where.size // values.size)
    rows = broadcast_in_dim(values, (copies, values.size), (1,))
    values = view.slice(reshape(rows, (copies * values.size,)), (0,), (where.size,))
    if mode == "wrap":
        where, mode = e.remainder(where, scalar(x.size, where.dtype)), None
    if mode == "clip":
        where = e.clip(where, 0, x.size - 1)
    flat = reshape(x, (x.size,))
    return reshape(flat.at[where].set(values, mode=mode), x.shape)  # type: ignore[attr-defined]


@fused()
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Elements (i, i + offset) of two axes, along a new last axis: d[*s, n, m] -> d[*s, k].

    Raises ShapeError unless there are two axes.
    """
    x = array_operand("diagonal", a)
    i, j = (canonical_axis("diagonal", k, x.ndim, x.aval) for k in (axis1, axis2))
    order = [k for k in range(x.ndim) if k not in (i, j)]
    x = transpose(x, (*order, i, j))
    rows, columns = x.shape[-2:]
    offset = operator.index(offset)
    size = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    walk = view.iota(INDEX, (size,), 0)
    down = e.add(walk, scalar(max(-offset, 0), INDEX))
    right = e.add(walk, scalar(max(offset, 0), INDEX))
    return getitem(x, (..., down, right))


@fused()
def diag(v: Any, k: int = 0) -> Array:
    """The diagonal k of a matrix, or a matrix with a vector on that diagonal.

    Raises ValueError unless there are one or two axes.
    """
    x = array_operand("diag", v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag: must be a vector or a matrix; got {x.aval}.{at_user_line()}")
    k = operator.index(k)
    size = x.shape[0] + abs(k)
    moved = view.pad(x, scalar(0, x.dtype), ((max(k, 0), max(-k, 0), 0),))
    rows, columns = (view.iota(INDEX, (size, size), axis) for axis in (0, 1))
    on = e.equal(e.add(rows, scalar(k, INDEX)), columns)
    spread = broadcast_in_dim(moved, (size, size), (1,))
    return select(on, spread, scalar(0, x.dtype, x.weak_type))


def diagflat(v: Any, k: int = 0) -> Array:
    """A matrix with all elements of an array on diagonal k."""
    x = array_operand("diagflat", v)
    return diag(reshape(x, (x.size,)), k)


@fused()
def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None
) -> Array:
    """The sum along a diagonal: d[n, m, *s] -> d[*s]."""
    return diagonal(a, offset, axis1, axis2).sum(-1, dtype=dtype)  # type: ignore[attr-defined]


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Array:
    """A new array with a value on its main diagonal.

    Raises ValueError unless `inplace=False`.
    """
    _not_in_place("fill_diagonal", inplace)
    x, value = array_operand("fill_diagonal", a), array_operand("fill_diagonal", val, 1)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ValueError(
            f"fill_diagonal: must be a matrix, or have axes of one length; got {x.aval}."
            f"{at_user_line()}"
        )
    size = min(x.shape)
    walk = view.iota(INDEX, (size,), 0)
    flat = reshape(value, (value.size,))
    if flat.size != 1 and flat.size < size:
        copies = -(-size // flat.size)
        flat = reshape(broadcast_in_dim(flat, (copies, flat.size), (1,)), (copies * flat.size,))
    new = flat if flat.size == 1 else view.slice(flat, (0,), (size,))
    return x.at[(walk,) * x.ndim].set(new)  # type: ignore[attr-defined]


def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """Places in row-major order as indices of each axis; those out of bounds are clamped.

    >>> [int(i) for i in unravel_index(5, (2, 3))]
    [1, 2]
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(operator.index(n) for n in shape)
    where = array_operand("unravel_index", indices)
    total = int(np.prod(sizes, dtype=np.int64))
    where = chosen(e.less(where, 0), e.add(where, total), where)
    where = e.clip(where, 0, max(total - 1, 0))
    result = []
    for size in reversed(sizes):
        result.append(e.remainder(where, max(size, 1)))
        where = e.floor_divide(where, max(size, 1))
    return tuple(reversed(result))


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Sequence[int], mode: str = "raise", order: str = "C"
) -> Array:
    """Indices of each axis as places in row-major (or "F": column-major) order.

    `mode`: "clip", "wrap", or "raise", which needs indices known while tracing.
    """
    sizes = [operator.index(n) for n in dims]
    parts = [array_operand("ravel_multi_index", k, i) for i, k in enumerate(multi_index)]
    if mode == "raise":
        for part, size in zip(parts, sizes, strict=True):
            known = np.asarray(part)
            if np.any((known < 0) | (known >= size)):
                raise ValueError(
                    f"ravel_multi_index: indices must lie in 0..{size - 1}; got {known}."
                    f"{at_user_line()}"
                )
    elif mode == "clip":
        parts = [e.clip(k, 0, n - 1) for k, n in zip(parts, sizes, strict=True)]
    else:
        parts = [e.remainder(k, n) for k, n in zip(parts, sizes, strict=True)]
    pairs = list(zip(parts, sizes, strict=True))
    pairs = pairs if order == "C" else pairs[::-1]
    return functools.reduce(
        lambda total, pair: e.add(e.multiply(total, pair[1]), pair[0]), pairs[1:], pairs[0][0]
    )


def ix_(*args: Any) -> tuple[Array, ...]:
    """Index arrays of the grid of sequences: x[ix_(rows, columns)]. Masks become their places."""
    arrays = []
    for k, value in enumerate(args):
        part = np.nonzero(value)[0] if is_mask(value) else value
        arrays.append(array_operand("ix_", part, k))
    rank = len(arrays)
    return tuple(
        reshape(x, tuple(x.size if i == k else 1 for i in range(rank)))
        for k, x in enumerate(arrays)
    )


class IndexExpression:
    """`s_[1:2, ...]` gives the index that is written in its brackets."""

    def __init__(self, always_tuple: bool) -> None:
        self._always_tuple = always_tuple

    def __getitem__(self, index: Any) -> Any:
        return (index,) if self._always_tuple and not isinstance(index, tuple) else index


s_ = IndexExpression(False)
index_exp = IndexExpression(True)
