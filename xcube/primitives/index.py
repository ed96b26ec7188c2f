"""dynamic_slice and dynamic_update_slice: one window of an array, at a place known at run time.
Reads and writes at many places are in gather.py and scatter.py."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Literal, Primitive, Shape, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.gather import gather, with_zeros
from xcube.primitives.kinds import add, is_linear
from xcube.primitives.lowered import Element
from xcube.primitives.scatter import scatter
from xcube.primitives.select import lt, select
from xcube.primitives.shape import batch_all, full, reshape, zeros_of
from xcube.primitives.view import all_of, canonical_axis, concatenate, integers, slice, squeeze
from xcube.primitives.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    batched_numbers,
)
from xcube.trace import aval_of, bind, literal

# starts ---------------------------------------------------------------------------------------


def _check_starts(name: str, x: Aval, sizes: Shape, starts: Sequence[Aval]) -> None:
    if any(start.shape or not dtypes.is_integer(start.dtype) for start in starts):
        raise DtypeError(
            f"{name}: the starts must be integer scalars; got {', '.join(map(str, starts))}."
            f"{at_user_line()}"
        )
    fits = len(starts) == len(sizes) == x.ndim and all(
        0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"{name}: needs one start and one window size in 0..size for each dimension of {x}; "
            f"got {len(starts)} starts and sizes {sizes}.{at_user_line()}"
        )


def _starts(name: str, x: Aval, starts: Any, allow_negative: bool | Sequence[bool]) -> list[Any]:
    """One scalar per dimension; negative ones count from the end where that is allowed."""
    if isinstance(starts, Array):
        if starts.ndim != 1:
            raise ShapeError(
                f"{name}: the starts must be scalars or one array of rank 1; got {starts.aval}."
                f"{at_user_line()}"
            )
        count = starts.shape[0]
        starts = [squeeze(slice(starts, (k,), (k + 1,)), (0,)) for k in range(count)]
    if len(starts) != x.ndim:
        raise ShapeError(
            f"{name}: needs one start for each dimension of {x}; got {len(starts)}.{at_user_line()}"
        )
    wraps = [allow_negative] * x.ndim if isinstance(allow_negative, bool) else allow_negative
    return [
        _wrapped(start, size) if wrap else _scalar(start)
        for start, size, wrap in zip(starts, x.shape, wraps, strict=True)
    ]


def _scalar(start: Any) -> Any:
    return start if isinstance(start, Array | Literal) else np.asarray(start)[()]


def _wrapped(start: Any, size: int) -> Any:
    """A start that counts from the end where it is negative."""
    if not isinstance(start, Array | Literal):
        number = operator.index(start)
        number += size if number < 0 else 0
        typed = isinstance(start, np.generic | np.ndarray)
        return literal(number, start.dtype) if typed else literal(number)
    dtype = start.aval.dtype
    if not (dtypes.is_integer(dtype) and dtypes.is_signed(dtype)):
        return start
    if size > dtypes.iinfo(dtype).max:
        start = convert_element_type(start, np.int64 if size >> 31 else np.int32)
        dtype = start.dtype
    return select(lt(start, 0), add(start, literal(size, dtype)), start)


def _stacked(size: int, starts: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, bool]:
    """Starts as the indices of a gather: i[n], or i[size, n] if any is batched."""
    found, some = {aval_of(start).dtype for start in starts}, any(batched)
    wide = (
        np.int64 if any(dtype.itemsize > 2 and dtype != np.int32 for dtype in found) else np.int32
    )
    dtype = next(iter(found)) if len(found) == 1 else np.dtype(wide)

    def column(start: Any, flag: bool) -> Any:
        column = convert_element_type(start, dtype)
        if flag:
            return reshape(column, (size, 1))
        return full((size, 1) if some else (1,), column)

    columns = [column(x, flag) for x, flag in zip(starts, batched, strict=True)]
    if not columns:
        return zeros_of(Aval((0,), np.dtype(np.int32))), False
    return concatenate(columns, 1 if some else 0), some


# dynamic_slice --------------------------------------------------------------------------------


def _slice_abstract(x: Aval, *starts: Aval, slice_sizes: Shape) -> Aval:
    _check_starts("dynamic_slice", x, slice_sizes, starts)
    return Aval(slice_sizes, x.dtype, x.weak_type)


def _slice_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, slice_sizes: Shape
) -> tuple[Any, Any]:
    x, *starts = primals
    out = bind(dynamic_slice_p, x, *starts, slice_sizes=slice_sizes)
    if tangents[0] is None:
        return out, None
    return out, bind(dynamic_slice_p, tangents[0], *starts, slice_sizes=slice_sizes)


def _slice_transpose(ct: Any, x: Linear, *starts: Any, slice_sizes: Shape) -> list[Any]:
    back = bind(dynamic_update_slice_p, zeros_of(x.aval), ct, *starts)
    return [back, *[None] * len(starts)]


def _slice_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, slice_sizes: Shape
) -> tuple[Any, bool]:
    x, *starts = args
    if not any(batched[1:]):
        sizes = (axis.size, *slice_sizes)
        return bind(dynamic_slice_p, x, literal(0), *starts, slice_sizes=sizes), True
    indices, _ = _stacked(axis.size, starts, batched[1:])
    dims = tuple(range(len(slice_sizes)))
    numbers = batched_numbers(GatherDimensionNumbers(dims, (), dims), batched[0], True)
    sizes = (min(axis.size, 1), *slice_sizes) if batched[0] else slice_sizes
    return gather(x, indices, numbers, sizes, mode=GatherScatterMode.CLIP), True


def _slice_element(e: Any, index: Any, *, slice_sizes: Shape) -> Any:
    shape = e.inputs[0].shape
    starts = [
        e.index(e.read(1 + d, ()), 0, size - n)
        for d, (size, n) in enumerate(zip(shape, slice_sizes, strict=True))
    ]
    return e.read(0, [start + i for start, i in zip(starts, index, strict=True)])


dynamic_slice_p = Primitive(
    "dynamic_slice",
    abstract=_slice_abstract,
    jvp=_slice_jvp,
    transpose=_slice_transpose,
    batch=_slice_batch,
    lower=Element(_slice_element),
)


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """The window of an array with a given size and a start known at run time, which is moved so
    that the window lies inside: d[*s], integer scalars or i[n] -> d[*slice_sizes].

    Raises ShapeError if sizes or starts do not fit the operand, DtypeError if starts are no
    integers.

    >>> dynamic_slice(full((4, 5), 1.0), (1, 9), (2, 3)).shape
    (2, 3)
    """
    starts = _starts("dynamic_slice", operand.aval, start_indices, allow_negative_indices)
    return bind(dynamic_slice_p, operand, *starts, slice_sizes=integers(slice_sizes))


# dynamic_update_slice -------------------------------------------------------------------------


def _update_abstract(x: Aval, update: Aval, *starts: Aval) -> Aval:
    if x.dtype != update.dtype:
        raise DtypeError(
            f"dynamic_update_slice: operand and update must have one dtype; got {x}, {update}."
            f"{at_user_line()}"
        )
    _check_starts("dynamic_update_slice", x, update.shape, starts)
    return Aval(x.shape, x.dtype, x.weak_type and update.weak_type)


def _update_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x, update, *starts), (dx, dupdate, *_) = primals, tangents
    out = bind(dynamic_update_slice_p, x, update, *starts)
    if dx is None and dupdate is None:
        return out, None
    parts = with_zeros(dx, x), with_zeros(dupdate, update)
    return out, bind(dynamic_update_slice_p, *parts, *starts)


def _update_transpose(ct: Any, x: Any, update: Any, *starts: Any) -> list[Any]:
    aval = update.aval if is_linear(update) else aval_of(update)
    back, back_update = None, None
    if is_linear(x):
        back = bind(dynamic_update_slice_p, ct, zeros_of(aval), *starts)
    if is_linear(update):
        back_update = bind(dynamic_slice_p, ct, *starts, slice_sizes=aval.shape)
    return [back, back_update, *[None] * len(starts)]


def _update_batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, bool]:
    x, update = batch_all(axis, args[:2], batched[:2])
    starts, flags = args[2:], batched[2:]
    if not any(flags):
        return bind(dynamic_update_slice_p, x, update, literal(0), *starts), True
    indices, _ = _stacked(axis.size, starts, flags)
    return _scattered(
        x, update, indices, batched_numbers(_whole_window(x.ndim - 1), True, True)
    ), True


def _whole_window(rank: int) -> ScatterDimensionNumbers:
    """The numbers of a scatter that writes one window, a place in every dimension."""
    dims = tuple(range(rank))
    return ScatterDimensionNumbers(dims, (), dims)


def _scattered(x: Any, update: Any, indices: Any, numbers: ScatterDimensionNumbers) -> Any:
    clip = GatherScatterMode.CLIP
    return scatter(
        x, indices, update, numbers, indices_are_sorted=True, unique_indices=True, mode=clip
    )


def scattered_update(x: Any, update: Any, *starts: Any) -> Any:
    """dynamic_update_slice as a scatter, which computes the window alone where the result may lie
    in the operand's memory: d[*s], d[*w], i[] for each dimension -> d[*s]."""
    indices, _ = _stacked(1, starts, (False,) * len(starts))
    return _scattered(x, update, indices, _whole_window(len(starts)))


def _update_element(e: Any, index: Any) -> Any:
    old, sizes = e.read(0, index), e.inputs[1].shape
    if 0 in sizes:
        return old
    at, tests = [], []
    for d, (i, size, n) in enumerate(zip(index, e.inputs[0].shape, sizes, strict=True)):
        place = i - e.index(e.read(2 + d, ()), 0, size - n)
        if n < size:
            tests.append(e.inside(place, 0, n))
        at.append(e.clamp(place, 0, n - 1))
    new = e.read(1, at)
    return e.apply("select", all_of(e, tests), new, old) if tests else new


dynamic_update_slice_p = Primitive(
    "dynamic_update_slice",
    abstract=_update_abstract,
    jvp=_update_jvp,
    transpose=_update_transpose,
    batch=_update_batch,
    lower=Element(_update_element),
)


def dynamic_update_slice(
    operand: Any,
    update: Any,
    start_indices: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """An array with a window of it replaced, at a start known at run time, which is moved so that
    the window lies inside: d[*s], d[*n], integer scalars or i[n] -> d[*s].

    Raises ShapeError if update or starts do not fit the operand, DtypeError if dtypes differ or
    starts are no integers.

    >>> dynamic_update_slice(full((4, 5), 1.0), full((2, 2), 0.0), (1, 2)).shape
    (4, 5)
    """
    name = "dynamic_update_slice"
    starts = _starts(name, operand.aval, start_indices, allow_negative_indices)
    return bind(dynamic_update_slice_p, operand, update, *starts)


# along one axis -------------------------------------------------------------------------------


def _along(x: Any, start: Any, axis: int) -> list[Any]:
    return [start if d == axis else 0 for d in range(x.ndim)]


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """A window along one axis, whole along the others.

    Raises ShapeError if size or axis do not fit.

    >>> dynamic_slice_in_dim(full((4, 5), 1.0), 1, 2).shape
    (2, 5)
    """
    axis = canonical_axis("dynamic_slice_in_dim", axis, operand.aval)
    sizes = list(operand.shape)
    sizes[axis] = slice_size
    return dynamic_slice(operand, _along(operand, start_index, axis), sizes)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """One place along an axis; the axis stays with size 1, or goes if not `keepdims`.

    Raises ShapeError if there is no such axis.

    >>> dynamic_index_in_dim(full((4, 5), 1.0), 1, keepdims=False).shape
    (5,)
    """
    axis = canonical_axis("dynamic_index_in_dim", axis, operand.aval)
    window = dynamic_slice_in_dim(operand, index, 1, axis)
    return window if keepdims else squeeze(window, (axis,))


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """An array with a window along one axis replaced.

    Raises ShapeError if update or axis do not fit.

    >>> dynamic_update_slice_in_dim(full((4, 5), 1.0), full((2, 5), 0.0), 1, 0).shape
    (4, 5)
    """
    axis = canonical_axis("dynamic_update_slice_in_dim", axis, operand.aval)
    return dynamic_update_slice(operand, update, _along(operand, start_index, axis))


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """An array with one place along an axis replaced; the update may lack the axis.

    Raises ShapeError if update or axis do not fit.

    >>> dynamic_update_index_in_dim(full((4, 5), 1.0), full((5,), 0.0), 1, 0).shape
    (4, 5)
    """
    axis = canonical_axis("dynamic_update_index_in_dim", axis, operand.aval)
    if aval_of(update).ndim != operand.ndim:
        shape = list(aval_of(update).shape)
        shape.insert(axis, 1)
        update = reshape(update, shape)
    return dynamic_update_slice_in_dim(operand, update, index, axis)
