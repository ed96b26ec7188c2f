"""Order: sort, argsort, searchsorted, partition, top_k, lexsort, digitize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy import reductions
from xcube.numpy.choice import chosen
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    as_array,
    canonical_axis,
    cast,
    promoted,
    scalar,
)
from xcube.primitives import select, view
from xcube.primitives.shape import broadcast_in_dim, full, reshape, transpose
from xcube.primitives.sort import sort as sort_primitive
from xcube.primitives.sort import top_k as top_k_primitive


def _with_axis(name: str, a: Any, axis: int | None) -> tuple[Array, int]:
    x = array_operand(name, a)
    if axis is None:
        return reshape(x, (x.size,)), 0
    return x, canonical_axis(name, axis, x.ndim, x.aval)


def _is_stable(name: str, kind: str | None, order: Any) -> None:
    if order is not None:
        raise ValueError(f"{name}: order must be None, for arrays have no fields.{at_user_line()}")


@fused()
def sort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """Elements in ascending order along an axis, NaN last: d[*s] -> d[*s].

    >>> import xcube.numpy as jnp
    >>> sort(jnp.array([2, 1, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    _is_stable("sort", kind, order)
    x, k = _with_axis("sort", a, axis)
    result = sort_primitive(x, dimension=k, is_stable=stable)
    return view.rev(result, (k,)) if descending else result


@fused()
def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """The places of the elements in ascending order along an axis, equals in their order.

    >>> import xcube.numpy as jnp
    >>> argsort(jnp.array([2, 1, 3]))
    Array([1, 0, 2], dtype=int32)
    """
    _is_stable("argsort", kind, order)
    x, k = _with_axis("argsort", a, axis)
    places = view.iota(dtypes.default_dtype("int"), x.shape, k)
    if descending:  # the reversed order of reversed elements keeps equals in their order
        x, places = view.rev(x, (k,)), view.rev(places, (k,))
    _, result = sort_primitive((x, places), dimension=k, is_stable=stable, num_keys=1)
    return view.rev(result, (k,)) if descending else result


def lexsort(keys: Any, axis: int = -1) -> Array:
    """The places of the elements in the order of the last key, equals by the key before it."""
    items = list(keys) if isinstance(keys, list | tuple) else list(array_operand("lexsort", keys))
    arrays = array_operands("lexsort", items)
    if not arrays:
        raise TypeError(f"lexsort: at least one key must be given; got none.{at_user_line()}")
    if arrays[0].ndim == 0:
        return full((), scalar(0, dtypes.default_dtype("int")))
    k = canonical_axis("lexsort", axis, arrays[0].ndim, arrays[0].aval)
    places = view.iota(dtypes.default_dtype("int"), arrays[0].shape, k)
    return sort_primitive((*arrays[::-1], places), dimension=k, num_keys=len(arrays))[-1]


def sort_complex(a: Any) -> Array:
    """Elements as complex numbers, in order of their real, then of their imaginary parts."""
    x = array_operand("sort_complex", a)
    return sort(
        cast(x, dtypes.complex_of(x.dtype if dtypes.is_inexact(x.dtype) else np.dtype(np.float32)))
    )


def top_k(a: Any, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """The k largest elements along an axis, in descending order, and their places.

    Raises ValueError unless the axis has k elements.
    """
    x, place = _with_axis("top_k", a, axis)
    if not 0 <= k <= x.shape[place]:
        raise ValueError(
            f"top_k: k must lie in 0..{x.shape[place]} for axis {place} of {x.aval}; got {k}."
            f"{at_user_line()}"
        )
    last = transpose(x, (*(j for j in range(x.ndim) if j != place), place))
    order = [*range(x.ndim - 1)]
    order.insert(place, x.ndim - 1)
    values, places = top_k_primitive(last, k)
    return transpose(values, order), transpose(places, order)


def partition(a: Any, kth: int, axis: int | None = -1) -> Array:
    """Elements along an axis so that place kth holds what sorting puts there, smaller ones before
    it. All are sorted here."""
    x, k = _with_axis("partition", a, axis)
    canonical_axis("partition: kth", kth, x.shape[k])
    return sort(x, k)


def argpartition(a: Any, kth: int, axis: int | None = -1) -> Array:
    """The places of the elements in the order of `partition`."""
    x, k = _with_axis("argpartition", a, axis)
    canonical_axis("argpartition: kth", kth, x.shape[k])
    return argsort(x, k)


# --- Searching sorted arrays ---------------------------------------------------------------------


@fused(2)
def searchsorted(
    a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan"
) -> Array:
    """Where values would be inserted into a sorted array to keep it sorted: d[n], d[*s] -> i[*s].
    `side` tells whether before ("left") or behind ("right") equals.

    Raises ValueError for another side or an array that has not one axis.

    >>> import xcube.numpy as jnp
    >>> searchsorted(jnp.array([1, 3, 5]), 3)
    Array(1, dtype=int32)
    """
    if side not in ("left", "right"):
        raise ValueError(
            f"searchsorted: side must be 'left' or 'right'; got {side!r}.{at_user_line()}"
        )
    x, values = (
        as_array(w) for w in promoted("searchsorted", *array_operands("searchsorted", (a, v)))
    )
    if x.ndim != 1:
        raise ValueError(f"searchsorted: a must have one axis; got {x.aval}.{at_user_line()}")
    if sorter is not None:
        x = x[array_operand("searchsorted", sorter, 2)]  # type: ignore[index]
    return _bisected(x, values, side)


def _bisected(x: Array, values: Array, side: str) -> Array:
    """Halving the interval that holds the answer, once per bit of the length."""
    integer = dtypes.default_dtype("int")
    low, high = (
        full(values.shape, scalar(0, integer)),
        full(values.shape, scalar(x.shape[0], integer)),
    )
    for _ in range(x.shape[0].bit_length()):
        middle = e.right_shift(e.add(low, high), 1)
        found = x.at[middle].get(mode="clip")  # type: ignore[attr-defined]
        before = _is_before(found, values, side)
        active = e.less(low, high)
        low = chosen(e.logical_and(active, before), e.add(middle, 1), low)
        high = chosen(e.logical_and(active, e.logical_not(before)), middle, high)
    return low


def _is_before(found: Array, value: Array, side: str) -> Any:
    """Whether the answer lies behind a place; NaN is larger than all numbers."""
    before = e.less(found, value) if side == "left" else e.less_equal(found, value)
    if not dtypes.is_inexact(found.dtype):
        return before
    if side == "left":
        return e.logical_or(before, e.logical_and(e.isnan(value), e.logical_not(e.isnan(found))))
    return e.logical_or(before, e.isnan(value))


@fused(2)
def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """The number of the bin of each value; bins ascend or descend: d[*s], d[n] -> i[*s]."""
    values, edges = array_operands("digitize", (x, bins))
    if edges.ndim != 1:
        raise ValueError(f"digitize: bins must have one axis; got {edges.aval}.{at_user_line()}")
    side = "right" if not right else "left"
    if edges.shape[0] == 0:
        return full(values.shape, scalar(0, dtypes.default_dtype("int")))
    up = searchsorted(edges, values, side)
    down = searchsorted(view.rev(edges, (0,)), values, "left" if side == "right" else "right")
    down = e.subtract(edges.shape[0], down)
    return chosen(e.greater_equal(edges[-1], edges[0]), up, down)  # type: ignore[index]


def ranked(x: Array, axis: int) -> Array:
    """Sorted along an axis, all NaN where one is: what quantiles read."""
    ordered = sort(x, axis)
    if not dtypes.is_inexact(x.dtype):
        return ordered
    missing = reductions.any(e.isnan(x), axis, keepdims=True)
    missing = broadcast_in_dim(missing, x.shape, tuple(range(x.ndim)))
    return select.select(missing, scalar(np.nan, x.dtype), ordered)


def order_of(arrays: Sequence[Array]) -> Array:
    """The places of rows in lexicographic order of columns given as arrays, the first deciding."""
    places = view.iota(np.dtype(np.int32), arrays[0].shape, 0)
    return sort_primitive((*arrays, places), dimension=0, num_keys=len(arrays))[-1]
