"""gather and scatter-add, each other's transposes, with scatter-sub: windows of an array read, or
added to, at places that an array of indices names. All indexing by arrays comes down to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.errors import DtypeError
from xcube.ir import Aval, Axis, Linear, Primitive, Shape, at_user_line
from xcube.primitives.bits import bitwise_and
from xcube.primitives.elementwise import named, neg
from xcube.primitives.kinds import NUMBER, Accepts, is_linear
from xcube.primitives.lowered import Element, Template
from xcube.primitives.select import clamp, eq, select
from xcube.primitives.shape import (
    batch_front,
    broadcast_in_dim,
    full,
    reshape,
    transpose,
    zeros_of,
)
from xcube.primitives.view import all_of, integers, iota, slice_in_dim, squeeze
from xcube.primitives.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    batched_numbers,
    gather_abstract,
    scatter_abstract,
    window_dropped,
    window_sizes,
)
from xcube.trace import aval_of, bind

# gather ---------------------------------------------------------------------------------------


def _gather_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, fill_value: Any, **params: Any
) -> tuple[Any, Any]:
    (x, indices), (dx, _) = primals, tangents
    out = gather(x, indices, **params, fill_value=fill_value)
    return out, None if dx is None else gather(dx, indices, **params, fill_value=0)


def _gather_transpose(
    ct: Any,
    x: Linear,
    indices: Any,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    fill_value: Any,
    **params: Any,
) -> list[Any]:
    numbers = ScatterDimensionNumbers(*dimension_numbers)
    if _is_one_a_row(dimension_numbers, x.aval, indices.shape, slice_sizes):
        return [_put_one_a_row(ct, x.aval, indices, dimension_numbers, params["mode"]), None]
    return [scatter_add(zeros_of(x.aval), indices, ct, numbers, **params), None]


def _is_one_a_row(
    numbers: GatherDimensionNumbers, x: Aval, indices: Shape, slice_sizes: Shape
) -> bool:
    """Whether one element was read of each row that indices walk together with."""
    walking = numbers.start_indices_batching_dims
    alone = all(size == 1 for d, size in enumerate(indices[:-1]) if d not in walking)
    rest = [d for d in range(x.ndim) if d not in numbers.operand_batching_dims]
    points = all(d in numbers.collapsed_slice_dims for d in numbers.start_index_map)
    whole = all(slice_sizes[d] == x.shape[d] for d in rest if d not in numbers.start_index_map)
    return bool(walking) and alone and points and whole


def _put_one_a_row(
    ct: Any, x: Aval, indices: Any, numbers: GatherDimensionNumbers, mode: GatherScatterMode
) -> Any:
    """The transpose of reading one element of each row: it is wherever a row's index says, with
    zeros around, which kernels compute where they need it."""
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    rows = dict(sorted((b, d) for d, b in pairs))
    starts = reshape(indices, (*[indices.shape[b] for b in rows], indices.shape[-1]))
    tests = []
    for k, d in enumerate(numbers.start_index_map):
        start = squeeze(slice_in_dim(starts, k, k + 1, axis=-1), (-1,))
        if mode is GatherScatterMode.CLIP:
            start = clamp(0, start, x.shape[d] - 1)
        place = iota(indices.dtype, x.shape, d)
        tests.append(eq(place, _laid(start, tuple(rows.values()), x.shape)))
    here = functools.reduce(bitwise_and, tests)
    batch = [d for d in range(ct.ndim) if d not in numbers.offset_dims]
    gone = {*numbers.operand_batching_dims, *numbers.collapsed_slice_dims}
    window = iter([d for d in range(x.ndim) if d not in gone])
    to = {d: next(window) for d in numbers.offset_dims}
    to.update((d, rows[b]) for b, d in enumerate(batch) if b in rows)
    kept = sorted(to)
    values = reshape(ct, tuple([ct.shape[d] for d in kept]))
    values = _laid(values, tuple([to[d] for d in kept]), x.shape)
    return select(here, values, full(x.shape, 0, ct.dtype))


def _laid(values: Any, dims: Shape, shape: Shape) -> Any:
    """An array whose axes are laid along dimensions of a shape, in whatever order."""
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return broadcast_in_dim(transpose(values, order), shape, sorted(dims))


def _gather_batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    indices_are_sorted: bool,
    unique_indices: bool,
    **params: Any,
) -> tuple[Any, bool]:
    (x, indices), (in_operand, in_indices) = args, batched
    if in_operand:
        slice_sizes = (min(axis.size, 1) if in_indices else axis.size, *slice_sizes)
    out = gather(
        x,
        indices,
        batched_numbers(dimension_numbers, in_operand, in_indices),
        slice_sizes,
        indices_are_sorted=indices_are_sorted and in_operand,
        unique_indices=unique_indices and in_operand,
        **params,
    )
    return out, True


def _gather_element(
    e: Any,
    index: Any,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    mode: GatherScatterMode,
    fill_value: Any,
    **params: Any,
) -> Any:
    numbers, shape, dtype = dimension_numbers, e.inputs[0].shape, e.inputs[0].dtype
    batch = [i for d, i in enumerate(index) if d not in numbers.offset_dims]
    window, dropped = iter([index[d] for d in numbers.offset_dims]), window_dropped(numbers)
    at = [0 if d in dropped else next(window) for d in range(len(shape))]
    walking = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for d, b in walking:
        at[d] = batch[b]
    tests = []
    for k, d in enumerate(numbers.start_index_map):
        start, last = e.read(1, [*batch, k]), shape[d] - slice_sizes[d]
        tests += _bounds(e, start, last)
        at[d] = e.index(start, 0, max(last, 0)) + at[d]
    if mode is not GatherScatterMode.FILL_OR_DROP or not tests:
        return e.read(0, at)
    filling = e.constant(_default_fill(dtype) if fill_value is None else fill_value, dtype)
    return e.apply("select", all_of(e, tests), e.read(0, at), filling)


def _bounds(e: Any, start: Any, last: int) -> list[Any]:
    """The tests for 0 <= start <= last that not all numbers of start's dtype pass."""
    dtype = e.inputs[1].dtype
    tests = []
    if dtypes.is_signed(dtype):
        tests.append(e.apply("ge", start, e.constant(0, dtype)))
    if last < dtypes.iinfo(dtype).max:
        tests.append(e.apply("le", start, e.constant(max(last, 0), dtype)))
    return tests


def _default_fill(dtype: np.dtype) -> Any:
    """NaN, the least signed or the greatest unsigned integer, or True."""
    if dtypes.is_bool(dtype):
        return True
    if dtypes.is_inexact(dtype):
        return np.nan
    info = dtypes.iinfo(dtype)
    return int(info.min if dtypes.is_signed(dtype) else info.max)


gather_p = Primitive(
    "gather",
    abstract=gather_abstract,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    lower=Element(_gather_element),
)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Any:
    """Windows of an array at the starts that indices name: d[*s], i[*b, n] -> d[*b with windows].

    `slice_sizes`: the window, per dimension of the operand. `mode`: what becomes of windows out of
    bounds ("promise_in_bounds" if not said); "fill" gives `fill_value`, or else NaN, the least
    signed or greatest unsigned integer. Raises ShapeError if the dimension numbers do not fit,
    DtypeError if the indices are no integers.

    >>> from xcube.primitives.shape import full
    >>> rows = GatherDimensionNumbers((1,), (0,), (0,))
    >>> gather(full((5, 3), 1.0), full((2, 1), 4), rows, (1, 3)).shape
    (2, 3)
    """
    how = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else GatherScatterMode.from_any(mode)
    filling = fill_value if how is GatherScatterMode.FILL_OR_DROP else None
    return bind(
        gather_p,
        operand,
        start_indices,
        dimension_numbers=GatherDimensionNumbers(*map(integers, dimension_numbers)),
        slice_sizes=integers(slice_sizes),
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
        mode=how,
        fill_value=filling,
    )


# scatter --------------------------------------------------------------------------------------

_SCATTER_DOC = """{does}: d[*s], i[*b, n], d[*b with windows] -> d[*s].

    `mode`: what becomes of windows out of bounds ("drop" if not said). Updates of one element are
    applied in the order of the indices. `unique_indices` promises that there is at most one.
    Raises ShapeError if the dimension numbers do not fit, DtypeError if the dtypes do not.

    >>> from xcube.primitives.shape import full
    >>> rows = ScatterDimensionNumbers((1,), (0,), (0,))
    >>> {name}(full((5, 3), 1.0), full((2, 1), 4), full((2, 3), 2.0), rows).shape
    (5, 3)
    """


def scatter_operation(
    name: str,
    *,
    accepts: Accepts,
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None,
    does: str,
) -> Any:
    """A scatter with a way to put an update into an element; all have one template.

    `jvp(primals, tangents, **params)` and `transpose` are those of the primitive.
    """

    def abstract(
        x: Aval, indices: Aval, updates: Aval, *, dimension_numbers: Any, **params: Any
    ) -> Aval:
        if not accepts(x.dtype):
            raise DtypeError(f"{name}: does not accept {x}.{at_user_line()}")
        return scatter_abstract(name, x, indices, updates, dimension_numbers)

    def batch(
        axis: Axis,
        args: Sequence[Any],
        batched: Sequence[bool],
        *,
        dimension_numbers: ScatterDimensionNumbers,
        **params: Any,
    ) -> tuple[Any, bool]:
        x, indices, updates = (
            value if flag or position == 1 else batch_front(value, axis.size)
            for position, (value, flag) in enumerate(zip(args, batched, strict=True))
        )
        numbers = batched_numbers(dimension_numbers, True, batched[1])
        return function(x, indices, updates, numbers, **params), True

    def function(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Any:
        return bind(
            primitive,
            operand,
            scatter_indices,
            updates,
            dimension_numbers=ScatterDimensionNumbers(*map(integers, dimension_numbers)),
            indices_are_sorted=bool(indices_are_sorted),
            unique_indices=bool(unique_indices),
            mode=GatherScatterMode.from_any(mode),
        )

    primitive = Primitive(name, abstract, jvp, transpose, batch, Template("scatter"))
    spelled = name.replace("-", "_")
    named(primitive, function, _SCATTER_DOC.format(does=does, name=spelled))
    function.__name__ = function.__qualname__ = spelled
    return function


def written(x: Any, indices: Any, updates: Shape, fill_value: Any = 0, **params: Any) -> Any:
    """What a scatter with these parameters writes to, read back in the shape of its updates;
    `fill_value` stands for dropped windows."""
    numbers: ScatterDimensionNumbers = params["dimension_numbers"]
    dropped = params["mode"] is not GatherScatterMode.CLIP
    return gather(
        x,
        indices,
        GatherDimensionNumbers(*numbers),
        window_sizes(aval_of(x).ndim, updates, numbers),
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=GatherScatterMode.FILL_OR_DROP if dropped else GatherScatterMode.CLIP,
        fill_value=fill_value if dropped else None,
    )


def with_zeros(tangent: Any, primal: Any) -> Any:
    """A tangent, zeros where it is None."""
    return zeros_of(aval_of(primal)) if tangent is None else tangent


def _additive_jvp(function: Callable[[], Any]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x, indices, updates), (dx, _, dupdates) = primals, tangents
        out = function()(x, indices, updates, **params)
        if dx is None and dupdates is None:
            return out, None
        if dupdates is None:
            return out, dx
        return out, function()(with_zeros(dx, x), indices, dupdates, **params)

    return jvp


def _additive_transpose(part: Callable[[Any], Any]) -> Callable[..., Any]:
    def transpose(ct: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
        back = None
        if is_linear(updates):
            back = part(written(ct, indices, updates.aval.shape, **params))
        return [ct if is_linear(x) else None, None, back]

    return transpose


scatter_add = scatter_operation(
    "scatter-add",
    accepts=NUMBER,
    jvp=_additive_jvp(lambda: scatter_add),
    transpose=_additive_transpose(lambda ct: ct),
    does="An array with updates added to windows of it",
)
scatter_sub = scatter_operation(
    "scatter-sub",
    accepts=NUMBER,
    jvp=_additive_jvp(lambda: scatter_sub),
    transpose=_additive_transpose(lambda ct: neg(ct)),
    does="An array with updates subtracted from windows of it",
)
