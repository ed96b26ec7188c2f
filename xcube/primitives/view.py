"""Views: parts, paddings, joins and numberings of arrays, without an index known only at run time.
One element of a result is one of an operand at an index that is plain arithmetic, or a filling."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Literal, Primitive, Shape, at_user_line
from xcube.primitives.kinds import NUMBER, is_linear
from xcube.primitives.lowered import Element
from xcube.primitives.select import select
from xcube.primitives.shape import (
    batch_all,
    batch_front,
    broadcast_in_dim,
    full,
    reduce_sum,
    reshape,
    zeros_of,
)
from xcube.trace import aval_of, bind, literal

Padding = tuple[tuple[int, int, int], ...]


def integers(values: Sequence[Any]) -> tuple[int, ...]:
    """A tuple of Python integers. Raises TypeError for anything that is no integer."""
    return tuple([operator.index(value) for value in values])


def scalar_like(value: Any, dtype: np.dtype) -> Any:
    """A Python number as a literal of a dtype; arrays and typed scalars as they are."""
    typed = isinstance(value, Array | Literal | np.generic | np.ndarray)
    return value if typed else literal(value, dtype)


# slice ----------------------------------------------------------------------------------------


def _slice_abstract(
    x: Aval, *, start_indices: Shape, limit_indices: Shape, strides: Shape | None
) -> Aval:
    steps = strides or (1,) * x.ndim
    fits = len(start_indices) == len(limit_indices) == len(steps) == x.ndim and all(
        0 <= start <= limit <= size and step > 0
        for start, limit, step, size in zip(
            start_indices, limit_indices, steps, x.shape, strict=True
        )
    )
    if not fits:
        raise ShapeError(
            f"slice: 0 <= start <= limit <= size and stride > 0 must hold for each dimension of "
            f"{x}; got start_indices={start_indices}, limit_indices={limit_indices}, "
            f"strides={strides}.{at_user_line()}"
        )
    bounds = zip(start_indices, limit_indices, steps, strict=True)
    shape = tuple(-((start - limit) // step) for start, limit, step in bounds)
    return Aval(shape, x.dtype, x.weak_type)


def _slice_transpose(
    ct: Any, x: Linear, *, start_indices: Shape, limit_indices: Shape, strides: Shape | None
) -> list[Any]:
    steps = strides or (1,) * ct.ndim
    spans = [(n - 1) * step + 1 if n else 0 for n, step in zip(ct.shape, steps, strict=True)]
    config = [
        (start, size - start - span, step - 1)
        for start, size, span, step in zip(start_indices, x.aval.shape, spans, steps, strict=True)
    ]
    return [pad(ct, 0, config)]


def _slice_batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Any,
    *,
    start_indices: Shape,
    limit_indices: Shape,
    strides: Shape | None,
) -> tuple[Any, bool]:
    steps = None if strides is None else (1, *strides)
    return slice(args[0], (0, *start_indices), (axis.size, *limit_indices), steps), True


def _slice_element(
    e: Any, index: Any, *, start_indices: Shape, limit_indices: Shape, strides: Shape | None
) -> Any:
    steps = strides or (1,) * len(start_indices)
    at = [i * step + start for i, step, start in zip(index, steps, start_indices, strict=True)]
    return e.read(0, at)


slice_p = Primitive(
    "slice",
    abstract=_slice_abstract,
    jvp="linear",
    transpose=_slice_transpose,
    batch=_slice_batch,
    lower=Element(_slice_element, cheap=True),
)


def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Any:
    """The part of an array from start to limit (exclusive) in steps, per dimension:
    d[*s] -> d[*ceil((limit - start) / stride)].

    Raises ShapeError unless 0 <= start <= limit <= size and stride > 0.

    >>> slice(full((4, 5), 1.0), (1, 0), (3, 5), (1, 2)).shape
    (2, 3)
    """
    starts, limits = integers(start_indices), integers(limit_indices)
    steps = None if strides is None else integers(strides)
    if steps is not None and all(step == 1 for step in steps) and len(steps) == len(starts):
        steps = None
    whole = steps is None and not any(starts) and limits == operand.shape
    if whole and len(starts) == operand.ndim:
        return operand
    return bind(slice_p, operand, start_indices=starts, limit_indices=limits, strides=steps)


def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Any:
    """A slice along one axis; negative bounds count from its end, None means its ends.

    Raises ShapeError if the bounds or the axis do not fit.

    >>> slice_in_dim(full((4, 5), 1.0), 1, -1, axis=1).shape
    (4, 3)
    """
    axis = canonical_axis("slice_in_dim", axis, operand.aval)
    size = operand.shape[axis]
    start = 0 if start_index is None else operator.index(start_index)
    limit = size if limit_index is None else operator.index(limit_index)
    starts, limits, steps = [0] * operand.ndim, list(operand.shape), [1] * operand.ndim
    starts[axis] = start + size if start < 0 else start
    limits[axis] = limit + size if limit < 0 else limit
    steps[axis] = operator.index(stride)
    return slice(operand, starts, limits, steps)


def canonical_axis(name: str, axis: Any, x: Aval, extra: int = 0) -> int:
    """An axis of x (of a result with `extra` more axes) as a number from 0."""
    ndim = x.ndim + extra
    number = operator.index(axis)
    if not -ndim <= number < ndim:
        raise ShapeError(
            f"{name}: the axis must lie in {-ndim}..{ndim - 1} for {x}; got {axis}.{at_user_line()}"
        )
    return number % ndim


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Consecutive parts along an axis, with the given sizes.

    Raises ShapeError unless the sizes add up to the axis.

    >>> [part.shape for part in split(full((5, 2), 1.0), (2, 3))]
    [(2, 2), (3, 2)]
    """
    axis, lengths = canonical_axis("split", axis, operand.aval), integers(sizes)
    if sum(lengths) != operand.shape[axis] or any(length < 0 for length in lengths):
        raise ShapeError(
            f"split: the sizes must add up to the {operand.shape[axis]} elements of axis {axis} of "
            f"{operand.aval}; got {lengths}.{at_user_line()}"
        )
    ends = np.cumsum(lengths).tolist()
    return [
        slice_in_dim(operand, end - length, end, axis=axis)
        for end, length in zip(ends, lengths, strict=True)
    ]


# pad ------------------------------------------------------------------------------------------


def _pad_abstract(x: Aval, value: Aval, *, padding_config: Padding) -> Aval:
    if x.dtype != value.dtype:
        raise DtypeError(
            f"pad: operand and padding_value must have one dtype; got {x}, {value}.{at_user_line()}"
        )
    fits = value.ndim == 0 and len(padding_config) == x.ndim
    fits = fits and all(interior >= 0 for _, _, interior in padding_config)
    shape = _padded(x.shape, padding_config) if fits else (-1,)
    if any(size < 0 for size in shape):
        raise ShapeError(
            f"pad: needs a scalar padding_value and a triple (low, high, interior >= 0) for each "
            f"dimension of {x} that leaves no negative size; got padding_config={padding_config} "
            f"and padding_value {value}.{at_user_line()}"
        )
    return Aval(shape, x.dtype, x.weak_type and value.weak_type)


def _padded(shape: Shape, config: Padding) -> Shape:
    return tuple(
        low + high + size + max(size - 1, 0) * interior
        for size, (low, high, interior) in zip(shape, config, strict=True)
    )


def _pad_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, padding_config: Padding
) -> tuple[Any, Any]:
    (x, value), (dx, dvalue) = primals, tangents
    dx = zeros_of(aval_of(x)) if dx is None else dx
    dvalue = literal(0, aval_of(value).dtype) if dvalue is None else dvalue
    return pad(x, value, padding_config), pad(dx, dvalue, padding_config)


def _pad_transpose(ct: Any, x: Any, value: Any, *, padding_config: Padding) -> list[Any]:
    back = None
    if is_linear(x):
        cropped = pad(ct, 0, [(-low, -high, 0) for low, high, _ in padding_config])
        steps = [interior + 1 for _, _, interior in padding_config]
        back = slice(cropped, (0,) * ct.ndim, cropped.shape, steps)
    if not is_linear(value):
        return [back, None]
    filled = select(_is_operand(x.aval if is_linear(x) else aval_of(x), padding_config), 0, ct)
    return [back, reduce_sum(filled, tuple(range(ct.ndim)))]


def _is_operand(x: Aval, config: Padding) -> Any:
    """bool: which elements of a padded array come from the operand."""
    return pad(full(x.shape, True), False, config)


def _pad_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, padding_config: Padding
) -> tuple[Any, bool]:
    x = args[0] if batched[0] else batch_front(args[0], axis.size)
    config = ((0, 0, 0), *padding_config)
    if not batched[1]:
        return pad(x, args[1], config), True
    padded = pad(x, 0, config)
    filling = broadcast_in_dim(args[1], padded.shape, (0,))
    return select(_is_operand(x.aval, config), padded, filling), True


def _pad_element(e: Any, index: Any, *, padding_config: Padding) -> Any:
    shape, filling = e.inputs[0].shape, e.read(1, ())
    if 0 in shape:
        return filling
    at, bounds, gaps = [], [], []
    for i, size, (low, high, interior) in zip(index, shape, padding_config, strict=True):
        step, place = interior + 1, i - low
        if low > 0 or high > 0:
            bounds.append((place, 0, (size - 1) * step + 1))
        if interior:
            zero = e.constant(0, np.int32)
            gaps.append(e.apply("eq", e.number(place % step, np.int32), zero))
        at.append(place // step if interior else place)
    value = e.guarded(bounds, lambda: e.read(0, at))
    tests = [e.inside(*bound) for bound in bounds] + gaps
    return _guarded(e, tests, value, filling)


def _guarded(e: Any, tests: Sequence[Any], value: Any, otherwise: Any) -> Any:
    """value where all tests hold."""
    if not tests:
        return value
    return e.apply("select", all_of(e, tests), value, otherwise)


def all_of(e: Any, tests: Sequence[Any]) -> Any:
    """The conjunction of at least one test."""
    holds = tests[0]
    for test in tests[1:]:
        holds = e.apply("and", holds, test)
    return holds


pad_p = Primitive(
    "pad",
    abstract=_pad_abstract,
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    lower=Element(_pad_element, cheap=True),
)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """An array with a scalar laid around and between its elements: (low, high, interior) per
    dimension; negative low and high cut off. d[*s], d[] -> d[*s + low + high + gaps].

    Raises DtypeError if the dtypes differ, ShapeError if a size would be negative.

    >>> pad(full((2, 3), 1.0), 0, [(1, 1, 0), (0, -1, 2)]).shape
    (4, 6)
    """
    config = tuple([integers(triple) for triple in padding_config])
    if not any(any(triple) for triple in config) and len(config) == operand.ndim:
        return operand
    value = scalar_like(padding_value, operand.dtype)
    return bind(pad_p, operand, value, padding_config=config)


# concatenate ----------------------------------------------------------------------------------


def _concatenate_abstract(*operands: Aval, dimension: int) -> Aval:
    first = operands[0]
    shown = ", ".join(map(str, operands))
    if len({x.dtype for x in operands}) > 1:
        raise DtypeError(
            f"concatenate: the operands must have one dtype; got {shown}.{at_user_line()}"
        )
    kept = {(*x.shape[:dimension], *x.shape[dimension + 1 :]) for x in operands}
    ranks = {x.ndim for x in operands}
    if not 0 <= dimension < first.ndim or len(kept) > 1 or len(ranks) > 1:
        raise ShapeError(
            f"concatenate: the operands must have one shape except along the dimension; got "
            f"dimension={dimension} for {shown}.{at_user_line()}"
        )
    shape = list(first.shape)
    shape[dimension] = sum(x.shape[dimension] for x in operands)
    return Aval(tuple(shape), first.dtype, all(x.weak_type for x in operands))


def _concatenate_transpose(ct: Any, *operands: Any, dimension: int) -> list[Any]:
    avals = [x.aval if is_linear(x) else aval_of(x) for x in operands]
    parts = split(ct, [x.shape[dimension] for x in avals], dimension)
    return [part if is_linear(x) else None for part, x in zip(parts, operands, strict=True)]


def _concatenate_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, dimension: int
) -> tuple[Any, bool]:
    front = batch_all(axis, args, batched)
    return concatenate(front, dimension + 1), True


def _concatenate_element(e: Any, index: Any, *, dimension: int) -> Any:
    place, end = index[dimension], e.outputs[0].shape[dimension]
    result = None
    for k in reversed(range(len(e.inputs))):
        size = e.inputs[k].shape[dimension]
        if size == 0:
            continue
        start = end - size
        at = list(index)
        at[dimension] = place - start
        here = e.guarded([(place, start, end)], lambda k=k, at=at: e.read(k, at))
        result = (
            here if result is None else e.apply("select", e.inside(place, 0, end), here, result)
        )
        end = start
    return e.constant(0, e.outputs[0].dtype) if result is None else result


concatenate_p = Primitive(
    "concatenate",
    abstract=_concatenate_abstract,
    jvp="linear",
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    lower=Element(_concatenate_element, cheap=True),
)


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Arrays joined along a dimension.

    Raises DtypeError if the dtypes differ, ShapeError if the other dimensions do, ValueError
    without operands.

    >>> concatenate([full((2, 3), 1.0), full((4, 3), 2.0)], 0).shape
    (6, 3)
    """
    if not operands:
        raise ValueError(f"concatenate: needs at least one operand; got none.{at_user_line()}")
    if len(operands) == 1 and isinstance(operands[0], Array):
        return operands[0]
    return bind(concatenate_p, *operands, dimension=operator.index(dimension))


# rev ------------------------------------------------------------------------------------------


def _rev_abstract(x: Aval, *, dimensions: Shape) -> Aval:
    if len(set(dimensions)) != len(dimensions) or any(not 0 <= d < x.ndim for d in dimensions):
        raise ShapeError(
            f"rev: dimensions must be distinct and lie in 0..{x.ndim - 1} for {x}; got "
            f"{dimensions}.{at_user_line()}"
        )
    return x


def _rev_element(e: Any, index: Any, *, dimensions: Shape) -> Any:
    shape = e.inputs[0].shape
    return e.read(0, [shape[d] - 1 - i if d in dimensions else i for d, i in enumerate(index)])


rev_p = Primitive(
    "rev",
    abstract=_rev_abstract,
    jvp="linear",
    transpose=lambda ct, x, *, dimensions: [rev(ct, dimensions)],
    batch=lambda axis, args, batched, *, dimensions: (
        rev(args[0], tuple(d + 1 for d in dimensions)),
        True,
    ),
    lower=Element(_rev_element, cheap=True),
)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """An array with the order of its elements reversed along dimensions: d[*s] -> d[*s].

    Raises ShapeError for dimensions out of range or repeated.

    >>> rev(full((2, 3), 1.0), (1,)).shape
    (2, 3)
    """
    dims = tuple(sorted(integers(dimensions)))
    return bind(rev_p, operand, dimensions=dims) if dims else operand


# iota -----------------------------------------------------------------------------------------


def _iota_abstract(*, dtype: np.dtype, shape: Shape, dimension: int) -> Aval:
    if not NUMBER(dtype):
        raise DtypeError(f"iota: counts in numbers; got dtype {dtype}.{at_user_line()}")
    if not 0 <= dimension < len(shape) or any(size < 0 for size in shape):
        raise ShapeError(
            f"iota: the dimension must lie in 0..{len(shape) - 1} and no size be negative; got "
            f"dimension={dimension}, shape={shape}.{at_user_line()}"
        )
    return Aval(shape, dtype)


def _iota_element(e: Any, index: Any, *, dtype: np.dtype, shape: Shape, dimension: int) -> Any:
    if not dtypes.is_complex(dtype):
        return e.number(index[dimension], dtype)
    part = dtypes.float_part(dtype)
    return e.apply("complex", e.number(index[dimension], part), e.constant(0, part))


iota_p = Primitive(
    "iota",
    abstract=_iota_abstract,
    jvp="zero",
    lower=Element(_iota_element, cheap=True),
)


def iota(dtype: Any, shape: Sequence[int], dimension: int = 0) -> Any:
    """0, 1, 2, ... along one dimension of a shape, repeated along the others: -> dtype[*shape].

    Raises DtypeError for bool, ShapeError if there is no such dimension.

    >>> iota("int32", (2, 3), 1).shape
    (2, 3)
    """
    counted = dtypes.requested_dtype(dtype, "iota")
    sizes, axis = integers(shape), operator.index(dimension)
    return bind(iota_p, dtype=counted, shape=sizes, dimension=axis)


# squeeze, expand_dims, tile -------------------------------------------------------------------


def _squeeze_abstract(x: Aval, *, dimensions: Shape) -> Aval:
    distinct = len(set(dimensions)) == len(dimensions)
    if not distinct or any(not 0 <= d < x.ndim or x.shape[d] != 1 for d in dimensions):
        raise ShapeError(
            f"squeeze: dimensions must be distinct and of size 1 in {x}; got {dimensions}."
            f"{at_user_line()}"
        )
    shape = tuple(size for d, size in enumerate(x.shape) if d not in dimensions)
    return Aval(shape, x.dtype, x.weak_type)


def _squeeze_element(e: Any, index: Any, *, dimensions: Shape) -> Any:
    kept = iter(index)
    return e.read(0, [0 if d in dimensions else next(kept) for d in range(e.inputs[0].ndim)])


squeeze_p = Primitive(
    "squeeze",
    abstract=_squeeze_abstract,
    jvp="linear",
    transpose=lambda ct, x, *, dimensions: [reshape(ct, x.aval.shape)],
    batch=lambda axis, args, batched, *, dimensions: (
        squeeze(args[0], tuple(d + 1 for d in dimensions)),
        True,
    ),
    lower=Element(_squeeze_element, cheap=True),
)


def squeeze(operand: Any, dimensions: Sequence[int]) -> Any:
    """An array without some dimensions of size 1; negative ones count from the end.

    Raises ShapeError if a dimension is not of size 1.

    >>> squeeze(full((1, 3, 1), 1.0), (0, -1)).shape
    (3,)
    """
    dims = sorted(canonical_axis("squeeze", d, operand.aval) for d in dimensions)
    return bind(squeeze_p, operand, dimensions=tuple(dims)) if dims else operand


def expand_dims(operand: Any, dimensions: Sequence[int]) -> Any:
    """An array with new dimensions of size 1, which stand at these places of the result.

    Raises ShapeError for dimensions out of range or repeated.

    >>> expand_dims(full((3,), 1.0), (0, -1)).shape
    (1, 3, 1)
    """
    aval, count = aval_of(operand), len(dimensions)
    new = {canonical_axis("expand_dims", d, aval, count) for d in dimensions}
    if len(new) != count:
        raise ShapeError(
            f"expand_dims: the new dimensions must be distinct; got {tuple(dimensions)} for {aval}."
            f"{at_user_line()}"
        )
    kept = [d for d in range(aval.ndim + count) if d not in new]
    sizes = dict(zip(kept, aval.shape, strict=True))
    shape = tuple([sizes.get(d, 1) for d in range(aval.ndim + count)])
    return broadcast_in_dim(operand, shape, kept)


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """An array repeated as a whole along each of its dimensions: d[*s] -> d[*s * reps].

    Raises ShapeError unless there is one count, not negative, for each dimension.

    >>> tile(full((2, 3), 1.0), (1, 2)).shape
    (2, 6)
    """
    counts, shape = integers(reps), operand.shape
    if len(counts) != len(shape) or any(count < 0 for count in counts):
        raise ShapeError(
            f"tile: needs a count >= 0 for each dimension of {operand.aval}; got {counts}."
            f"{at_user_line()}"
        )
    pairs = [size for pair in zip(counts, shape, strict=True) for size in pair]
    wide = broadcast_in_dim(operand, pairs, tuple(range(1, 2 * len(shape), 2)))
    return reshape(wide, [n * size for n, size in zip(counts, shape, strict=True)])
