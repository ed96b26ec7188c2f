"""Reductions over axes other than the sum: product, extrema and where they are, logic. The sum is
in shape.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Primitive, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.cumulative import cumprod, exclusive
from xcube.primitives.elementwise import div, mul
from xcube.primitives.kinds import ANY, NUMBER, REAL, WHOLE, Accepts, named
from xcube.primitives.lowered import Reduction
from xcube.primitives.select import eq, extremum_of
from xcube.primitives.shape import (
    accumulator_dtype,
    broadcast_in_dim,
    reduce_batch,
    reduce_sum,
    reduced_aval,
    reshape,
    transpose,
)
from xcube.trace import bind


def kept_axes(ndim: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes that a reduction leaves."""
    return tuple(axis for axis in range(ndim) if axis not in axes)


def _reduction(name: str, accepts: Accepts, jvp: Any, lower: Reduction, doc: str) -> Any:
    def abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
        if not accepts(x.dtype):
            raise DtypeError(f"{name}: does not accept {x}.{at_user_line()}")
        return reduced_aval(x, axes)

    primitive = Primitive(
        name,
        abstract,
        jvp,
        batch=reduce_batch(lambda x, axes: bind(primitive, x, axes=axes)),
        lower=lower,
    )
    return named(primitive, lambda x, axes: bind(primitive, x, axes=tuple(sorted(axes))), doc)


def _fold(combine: Any, neutral: Any, state: Any = lambda x: x.dtype) -> Reduction:
    """A fold with one scalar as accumulator; `neutral(dtype)` is its start."""
    return Reduction(
        state=lambda x: (state(x),),
        init=lambda e, x: (e.constant(neutral(state(x)), state(x)),),
        lift=lambda e, position, x: (e.cast(x, state(e.inputs[0])),),
        combine=lambda e, a, b: (combine(e, a[0], b[0]),),
        finish=lambda e, a, outs: (e.cast(a[0], outs[0].dtype),),
    )


# product --------------------------------------------------------------------------------------


def _product_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...]
) -> tuple[Any, Any]:
    """Each element's tangent times the product of all others, which stays right where elements are
    zero, and so do its own derivatives."""
    (x,), (dx,) = primals, tangents
    y = reduce_prod(x, axes)
    if dx is None:
        return y, None
    flat, dflat = _flattened(x, axes), _flattened(dx, axes)
    last = flat.ndim - 1
    before = exclusive(cumprod(flat, last), last, 1)
    after = exclusive(cumprod(flat, last, reverse=True), last, 1, reverse=True)
    return y, reduce_sum(mul(dflat, mul(before, after)), (last,))


def _flattened(x: Any, axes: tuple[int, ...]) -> Any:
    """x with the reduced axes flattened into a last one."""
    kept = kept_axes(x.ndim, axes)
    moved = transpose(x, (*kept, *axes))
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return reshape(moved, (*(x.shape[axis] for axis in kept), count))


reduce_prod = _reduction(
    "reduce_prod",
    NUMBER,
    _product_jvp,
    _fold(lambda e, a, b: e.apply("mul", a, b), lambda dtype: 1, accumulator_dtype),
    "x: d[*s] -> d[s without axes], the product over axes; 1 where nothing is multiplied.",
)

# extrema --------------------------------------------------------------------------------------


def lowest(dtype: np.dtype) -> Any:
    """The neutral value of max: -inf where the dtype has it, else its least value."""
    return _bound(dtype, -1)


def highest(dtype: np.dtype) -> Any:
    """The neutral value of min: inf where the dtype has it, else its greatest value."""
    return _bound(dtype, 1)


def _bound(dtype: np.dtype, side: int) -> Any:
    if dtypes.is_bool(dtype):
        return side > 0
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return int(info.max if side > 0 else info.min)
    if dtypes.is_complex(dtype):
        return complex(side * np.inf, side * np.inf)
    if np.isinf(np.asarray(np.inf).astype(dtype).astype(np.float64)):
        return side * np.inf
    info = dtypes.finfo(dtype)
    return float(info.max if side > 0 else info.min)


def _extremum_jvp(function: Any) -> Any:
    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...]
    ) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = function()(x, axes)
        if dx is None:
            return y, None
        winner = broadcast_in_dim(y, x.shape, kept_axes(x.ndim, axes))
        chosen = convert_element_type(eq(x, winner), dx.dtype)
        return y, div(reduce_sum(mul(dx, chosen), axes), reduce_sum(chosen, axes))

    return jvp


def _extremum_fold(name: str, neutral: Any) -> Reduction:
    def combine(e: Any, a: Any, b: Any) -> Any:
        return extremum_of(e, name, e.inputs[0].dtype, a, b)

    return _fold(combine, neutral)


reduce_max = _reduction(
    "reduce_max",
    ANY,
    _extremum_jvp(lambda: reduce_max),
    _extremum_fold("max", lowest),
    "x: d[*s] -> d[s without axes], the largest; NaN wins. Equal ones share the tangent.",
)
reduce_min = _reduction(
    "reduce_min",
    ANY,
    _extremum_jvp(lambda: reduce_min),
    _extremum_fold("min", highest),
    "x: d[*s] -> d[s without axes], the least; NaN wins. Equal ones share the tangent.",
)

# logic ----------------------------------------------------------------------------------------


def _logic(name: str, operation: str, ones: bool, doc: str) -> Any:
    def neutral(dtype: np.dtype) -> Any:
        if dtypes.is_bool(dtype):
            return ones
        return (-1 if dtypes.is_signed(dtype) else highest(dtype)) if ones else 0

    fold = _fold(lambda e, a, b: e.apply(operation, a, b), neutral)
    return _reduction(name, WHOLE, "zero", fold, doc)


reduce_and = _logic(
    "reduce_and", "and", True, "x: s[*d] -> s[d without axes], the bits that all have, over axes."
)
reduce_or = _logic(
    "reduce_or", "or", False, "x: s[*d] -> s[d without axes], the bits that any has, over axes."
)
reduce_xor = _logic(
    "reduce_xor", "xor", False, "x: s[*d] -> s[d without axes], the parity of each bit, over axes."
)

# positions ------------------------------------------------------------------------------------


def _position(name: str, beats: str, neutral: Any, doc: str) -> Any:
    """argmax or argmin: the accumulator is a value and its position."""

    def abstract(x: Aval, *, axes: tuple[int, ...], index_dtype: np.dtype) -> Aval:
        if not REAL(x.dtype) or not dtypes.is_integer(index_dtype):
            raise DtypeError(
                f"{name}: x must not be complex and index_dtype must be an integer; got {x} and "
                f"{index_dtype}.{at_user_line()}"
            )
        out = reduced_aval(x, axes, index_dtype)
        if len(axes) != 1 or x.shape[axes[0]] == 0:
            raise ShapeError(
                f"{name}: takes one axis that is not empty; got axes={axes} of {x}.{at_user_line()}"
            )
        return out.strengthen()

    def value_dtype(x: Aval) -> np.dtype:
        return np.dtype(np.uint8) if dtypes.is_bool(x.dtype) else accumulator_dtype(x)

    def combine(e: Any, a: Any, b: Any) -> tuple[Any, Any]:
        first = _is_ahead(e, beats, a, b, dtypes.is_float(e.inputs[0].dtype))
        return tuple(e.apply("select", first, x, y) for x, y in zip(a, b, strict=True))

    lower = Reduction(
        state=lambda x: (value_dtype(x), position_dtype(x)),
        init=lambda e, x: (
            e.constant(neutral(value_dtype(x)), value_dtype(x)),
            e.constant(highest(position_dtype(x)), position_dtype(x)),
        ),
        lift=lambda e, position, x: (
            e.cast(x, value_dtype(e.inputs[0])),
            e.number(position, position_dtype(e.inputs[0])),
        ),
        combine=combine,
        finish=lambda e, a, outs: (e.cast(a[1], outs[0].dtype),),
    )
    primitive = Primitive(
        name,
        abstract,
        "zero",
        batch=reduce_batch(lambda x, axes, index_dtype: function(x, axes, index_dtype)),
        lower=lower,
    )

    def bound(x: Any, axes: Sequence[int], index_dtype: Any = np.int32) -> Any:
        dtype = dtypes.requested_dtype(index_dtype, name)
        return bind(primitive, x, axes=tuple(axes), index_dtype=dtype)

    function = named(primitive, bound, doc)
    return function


def position_dtype(x: Aval) -> np.dtype:
    """The dtype in which positions along an axis of x are counted while reducing."""
    return np.dtype(np.int64 if x.size >> 31 else np.int32)


def _is_ahead(e: Any, beats: str, a: Any, b: Any, may_be_nan: bool) -> Any:
    """Whether (value, position) a comes before b: the better value, a NaN before all else, and
    among equals the smaller position."""
    better, tie = e.apply(beats, a[0], b[0]), e.apply("eq", a[0], b[0])
    if may_be_nan:
        a_nan, b_nan = (e.apply("ne", x, x) for x in (a[0], b[0]))
        better = e.apply("or", better, e.apply("and", a_nan, e.apply("not", b_nan)))
        tie = e.apply("or", tie, e.apply("and", a_nan, b_nan))
    return e.apply("or", better, e.apply("and", tie, e.apply("lt", a[1], b[1])))


argmax = _position(
    "argmax",
    "gt",
    lowest,
    "x: d[*s] -> index_dtype[s without the axis], the first place of the largest, or of NaN.",
)
argmin = _position(
    "argmin",
    "lt",
    highest,
    "x: d[*s] -> index_dtype[s without the axis], the first place of the least, or of NaN.",
)
