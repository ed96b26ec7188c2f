"""sort, of several arrays by one or more of them as keys, and top_k."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Primitive, at_user_line
from xcube.primitives.gather import gather
from xcube.primitives.lowered import Template
from xcube.primitives.shape import batch_all, reshape
from xcube.primitives.view import canonical_axis, iota
from xcube.primitives.windows import GatherDimensionNumbers, GatherScatterMode
from xcube.trace import aval_of, bind


def take_along(x: Any, places: Any, axis: int) -> Any:
    """x with other elements along an axis: d[*s], i[*s with n] -> d[*s with n], all in bounds."""
    rank = places.ndim
    others = tuple([d for d in range(rank) if d != axis])
    return gather(
        x,
        reshape(places, (*places.shape, 1)),
        GatherDimensionNumbers((), (axis,), (axis,), others, others),
        tuple([1 if d == axis else min(1, size) for d, size in enumerate(x.shape)]),
        mode=GatherScatterMode.PROMISE_IN_BOUNDS,
        unique_indices=True,
    )


def _place_dtype(size: int) -> np.dtype:
    return np.dtype(np.int64 if size >> 31 else np.int32)


# sort -----------------------------------------------------------------------------------------


def _sort_abstract(
    *operands: Aval, dimension: int, is_stable: bool, num_keys: int
) -> tuple[Aval, ...]:
    shapes = {x.shape for x in operands}
    if len(shapes) != 1 or not 0 <= dimension < operands[0].ndim:
        raise ShapeError(
            f"sort: the operands must have one shape and the dimension be one of it; got "
            f"dimension={dimension} for {', '.join(map(str, operands))}.{at_user_line()}"
        )
    if not 1 <= num_keys <= len(operands):
        raise ValueError(
            f"sort: num_keys must lie in 1..{len(operands)}, the number of operands; got "
            f"{num_keys}.{at_user_line()}"
        )
    return operands


def _sort_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    dimension: int,
    is_stable: bool,
    num_keys: int,
) -> tuple[Any, Any]:
    shape = aval_of(primals[0]).shape
    places = iota(_place_dtype(shape[dimension]), shape, dimension)
    *outs, order = bind(
        sort_p, *primals, places, dimension=dimension, is_stable=is_stable, num_keys=num_keys
    )
    return outs, [None if dx is None else take_along(dx, order, dimension) for dx in tangents]


def _sort_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, dimension: int, **params: Any
) -> tuple[Any, Any]:
    front = batch_all(axis, args, batched)
    return bind(sort_p, *front, dimension=dimension + 1, **params), [True] * len(front)


sort_p = Primitive(
    "sort",
    abstract=_sort_abstract,
    jvp=_sort_jvp,
    batch=_sort_batch,
    lower=Template("sort"),
    multiple=True,
)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """An array in ascending order along a dimension: d[*s] -> d[*s]; NaN comes last, -0 equals 0,
    complex numbers are ordered by real, then by imaginary part.

    A sequence of arrays of one shape is sorted together by the first `num_keys` of them, the first
    one mattering most, and gives a tuple. Raises ShapeError if shapes differ or there is no such
    dimension, ValueError if there are not so many keys.

    >>> from xcube.primitives.shape import full
    >>> [x.shape for x in sort([full((2, 3), 1.0), full((2, 3), 2)])]
    [(2, 3), (2, 3)]
    """
    single = isinstance(operand, Array)
    operands = [operand] if single else list(operand)
    if not operands:
        raise ValueError(f"sort: needs at least one operand; got none.{at_user_line()}")
    outs = bind(
        sort_p,
        *operands,
        dimension=canonical_axis("sort", dimension, operands[0].aval),
        is_stable=bool(is_stable),
        num_keys=operator.index(num_keys),
    )
    return outs[0] if single else tuple(outs)


# top_k ----------------------------------------------------------------------------------------


def _top_k_abstract(x: Aval, *, k: int, axis: int) -> tuple[Aval, Aval]:
    if dtypes.is_complex(x.dtype):
        raise DtypeError(f"top_k: does not order complex numbers; got {x}.{at_user_line()}")
    if not 0 <= axis < x.ndim or not 0 <= k <= x.shape[axis]:
        raise ShapeError(
            f"top_k: k must lie in 0..size of one axis of {x}; got k={k}, axis={axis}."
            f"{at_user_line()}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return Aval(shape, x.dtype, x.weak_type), Aval(shape, np.dtype(np.int32))


def _top_k_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, k: int, axis: int
) -> tuple[Any, Any]:
    values, places = top_k(primals[0], k, axis=axis)
    (dx,) = tangents
    return [values, places], [None if dx is None else take_along(dx, places, axis), None]


def _top_k_batch(
    mapped: Axis, args: Sequence[Any], batched: Any, *, k: int, axis: int
) -> tuple[Any, Any]:
    return top_k(args[0], k, axis=axis + 1), [True, True]


top_k_p = Primitive(
    "top_k",
    abstract=_top_k_abstract,
    jvp=_top_k_jvp,
    batch=_top_k_batch,
    lower=Template("top_k"),
    multiple=True,
)


def top_k(operand: Any, k: int, *, axis: int = -1) -> list[Any]:
    """The k largest along an axis, in descending order, and their places: d[*s, n] ->
    d[*s, k], i32[*s, k]. NaN counts as the largest; equal ones come in the order of their places.

    Raises ShapeError if the axis has fewer than k elements, DtypeError for complex numbers.

    >>> from xcube.primitives.shape import full
    >>> [x.shape for x in top_k(full((2, 5), 1.0), 3)]
    [(2, 3), (2, 3)]
    """
    number = canonical_axis("top_k", axis, operand.aval)
    return bind(top_k_p, operand, k=operator.index(k), axis=number)
