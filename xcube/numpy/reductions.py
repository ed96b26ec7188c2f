"""Reductions over axes: sum, mean, var, max, any, argmax, cumulative sums, and their NaN forms."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    broadcast,
    broadcast_shapes,
    canonical_axes,
    canonical_axis,
    cast,
    dtype_argument,
    inexact_of,
    operand,
    scalar,
    stretch,
    typed_operand,
)
from xcube.primitives import cumulative, reduce, select
from xcube.primitives.shape import broadcast_in_dim, full, reduce_sum, reshape
from xcube.primitives.view import concatenate

Axis = Any  # None | int | Sequence[int]
_SINGLE = np.dtype(np.float32)


# --- The one reduction ---------------------------------------------------------------------------


def _reduce(
    name: str,
    function: Callable[..., Any],
    x: Array,
    axis: Axis,
    keepdims: bool,
) -> Array:
    axes = canonical_axes(name, axis, x.aval)
    result = function(x, axes) if axes else x
    return _kept(result, x, axes) if keepdims else result


def _kept(result: Array, x: Array, axes: tuple[int, ...]) -> Array:
    return reshape(result, tuple(1 if k in axes else n for k, n in enumerate(x.shape)))


def _masked(name: str, x: Array, where: Any, neutral: Any) -> Array:
    """Elements that do not take part become the neutral value."""
    if where is None:
        return x
    mask = cast(array_operand(name, where), dtypes.BOOL)
    mask, x = broadcast(name, [mask, x])
    return select.select(mask, x, scalar(neutral, x.dtype, x.weak_type))


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(
            f"{name}: out must be None, for arrays are immutable.{at_user_line()}"
        )


def _sum_dtype(dtype: np.dtype) -> np.dtype:
    """Sums and products of narrow integers have at least the default width."""
    if dtypes.is_bool(dtype):
        return dtypes.default_dtype("int")
    if not dtypes.is_integer(dtype):
        return dtype
    wide = dtypes.default_dtype("int" if dtypes.is_signed(dtype) else "uint")
    return wide if wide.itemsize > dtype.itemsize or dtype in dtypes.NARROW_INTEGERS else dtype


def _for_sum(name: str, a: Any, dtype: Any) -> Array:
    x = array_operand(name, a)
    return cast(x, dtype_argument(name, dtype, _sum_dtype(x.dtype)))


@fused()
def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Array:
    """The sum over axes: d[*s] -> d[s without axes]; bools and narrow integers sum in 32 bits.

    Raises ShapeError if there is no such axis.

    >>> import xcube.numpy as jnp
    >>> sum(jnp.arange(6).reshape(2, 3), axis=1)
    Array([ 3, 12], dtype=int32)
    """
    _no_out("sum", out)
    x = _for_sum("sum", a, dtype) if promote_integers else array_operand("sum", a)
    result = _reduce("sum", reduce_sum, _masked("sum", x, where, 0), axis, keepdims)
    return result if initial is None else e.add(result, typed_operand("sum", initial, result.dtype))


@fused()
def prod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Array:
    """The product over axes: d[*s] -> d[s without axes]."""
    _no_out("prod", out)
    x = _for_sum("prod", a, dtype) if promote_integers else array_operand("prod", a)
    result = _reduce("prod", reduce.reduce_prod, _masked("prod", x, where, 1), axis, keepdims)
    if initial is None:
        return result
    return e.multiply(result, typed_operand("prod", initial, result.dtype))


def _extremum(name: str, function: Any, join: Any, worst: Any, doc: str) -> Callable[..., Any]:
    def extremum(
        a: Any,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Array:
        _no_out(name, out)
        x = array_operand(name, a)
        axes = canonical_axes(name, axis, x.aval)
        if initial is None and builtins.any(x.shape[k] == 0 for k in axes):
            raise ValueError(
                f"{name}: initial must be given to reduce an empty axis; got {x.aval}."
                f"{at_user_line()}"
            )
        if where is not None and initial is None:
            raise ValueError(f"{name}: initial must be given together with where.{at_user_line()}")
        if where is not None:
            x = _masked(name, x, where, worst(x.dtype))
        result = function(x, axes) if axes else x
        result = _kept(result, x, axes) if keepdims else result
        return result if initial is None else join(result, typed_operand(name, initial, x.dtype))

    extremum.__name__ = extremum.__qualname__ = name
    extremum.__doc__, extremum.__module__ = doc, "xcube.numpy"
    return extremum


max = _extremum(
    "max",
    reduce.reduce_max,
    e.maximum,
    reduce.lowest,
    "The largest element over axes: d[*s] -> d[s without axes]; NaN wins.",
)
min = _extremum(
    "min",
    reduce.reduce_min,
    e.minimum,
    reduce.highest,
    "The smallest element over axes: d[*s] -> d[s without axes]; NaN wins.",
)
amax, amin = max, min


@fused()
def minmax(a: Any, axis: Axis = None, keepdims: bool = False) -> tuple[Array, Array]:
    """(min, max) over axes: d[*s] -> (d[s without axes], d[s without axes])."""
    return min(a, axis, keepdims=keepdims), max(a, axis, keepdims=keepdims)


@fused()
def ptp(a: Any, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """max - min over axes: d[*s] -> d[s without axes]."""
    _no_out("ptp", out)
    return e.subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


@fused()
def all(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Array:
    """Whether all elements over axes are not zero: d[*s] -> bool[s without axes]."""
    _no_out("all", out)
    x = _masked("all", e.to_bool(array_operand("all", a)), where, True)
    return _reduce("all", reduce.reduce_and, x, axis, keepdims)


@fused()
def any(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Array:
    """Whether an element over axes is not zero: d[*s] -> bool[s without axes]."""
    _no_out("any", out)
    x = _masked("any", e.to_bool(array_operand("any", a)), where, False)
    return _reduce("any", reduce.reduce_or, x, axis, keepdims)


@fused()
def count_nonzero(a: Any, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements over axes are not zero: d[*s] -> i[s without axes]."""
    return sum(e.to_bool(array_operand("count_nonzero", a)), axis, keepdims=keepdims)


# --- Means and variances -------------------------------------------------------------------------


def _wide(dtype: np.dtype) -> np.dtype:
    """Means of half floats are computed in single precision."""
    return _SINGLE if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


def _count(x: Array, axes: tuple[int, ...], where: Any, keepdims: bool) -> Any:
    if where is None:
        return math.prod(x.shape[k] for k in axes)
    mask = stretch(cast(array_operand("mean", where), dtypes.BOOL), x.shape)
    return sum(mask, axes, keepdims=keepdims)


@fused()
def mean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Array:
    """The mean over axes: d[*s] -> f[s without axes].

    >>> import xcube.numpy as jnp
    >>> mean(jnp.arange(4))
    Array(1.5, dtype=float32)
    """
    _no_out("mean", out)
    x = array_operand("mean", a)
    result_dtype = dtype_argument("mean", dtype, inexact_of(x.dtype))
    inner = _wide(inexact_of(result_dtype))
    x = cast(x, inner)
    axes = canonical_axes("mean", axis, x.aval)
    if where is not None:
        x = stretch(x, broadcast_shapes("mean", x.shape, operand("mean", where).aval.shape))
    total = sum(x, axes, keepdims=keepdims, where=where)
    count = _count(x, axes, where, keepdims)
    count = cast(operand("mean", count), inner)
    return cast(e.divide(total, count), result_dtype)


@fused()
def average(
    a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The weighted mean over axes: d[*s] -> f[s without axes]; `returned` adds the weights' sum.

    Raises ShapeError if the weights fit neither the array nor its axis.
    """
    x = array_operand("average", a)
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        count = x.size / (result.size or 1)
        total = full(result.shape, scalar(count, result.dtype))
        return (result, total) if returned else result
    w = array_operand("average", weights, 1)
    dtype = inexact_of(dtypes.result_type(x.dtype, w.dtype))
    x, w = cast(x, dtype), cast(w, dtype)
    if w.shape != x.shape:
        w = _along("average", w, x, axis)
    total = sum(w, axis, keepdims=keepdims)
    result = e.divide(sum(e.multiply(x, w), axis, keepdims=keepdims), total)
    return (result, stretch(total, result.shape)) if returned else result


def _along(name: str, w: Array, x: Array, axis: Axis) -> Array:
    axes = () if axis is None else canonical_axes(name, axis, x.aval)
    if w.ndim != len(axes) or w.shape != tuple(x.shape[k] for k in axes):
        raise ShapeError(
            f"{name}: weights must have the shape of the array or of its axes; got {w.aval} for "
            f"{x.aval} and axis={axis}.{at_user_line()}"
        )
    return broadcast_in_dim(w, x.shape, axes)


@fused()
def var(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Array:
    """The variance over axes, the sum of squares divided by n - ddof: d[*s] -> f[s without axes].

    >>> import xcube.numpy as jnp
    >>> var(jnp.arange(3.0), ddof=1)
    Array(1., dtype=float32)
    """
    _no_out("var", out)
    x = array_operand("var", a)
    real = dtypes.float_part(inexact_of(x.dtype))
    result_dtype = dtype_argument("var", dtype, real)
    inner = _wide(
        inexact_of(x.dtype)
        if dtype is None
        else dtypes.promote_types(inexact_of(x.dtype), result_dtype)
    )
    x = cast(x, inner)
    axes = canonical_axes("var", axis, x.aval)
    center = _mean_of(x, axes, where) if mean is None else array_operand("var", mean)
    squares = e.modulus_of(e.subtract(x, center))
    total = sum(squares, axes, keepdims=keepdims, where=where)
    divisor = _count(x, axes, where, keepdims) - _ddof(ddof, correction)
    return cast(_over(total, divisor), result_dtype)


def _ddof(ddof: Any, correction: Any) -> Any:
    if correction is None:
        return ddof
    if isinstance(ddof, int) and ddof == 0:
        return correction
    raise ValueError(f"var: ddof and correction must not both be given.{at_user_line()}")


def _over(total: Array, divisor: Any) -> Array:
    """total / divisor, NaN where there are no degrees of freedom left."""
    dtype, weak = total.dtype, total.weak_type
    if not isinstance(divisor, Array):
        safe = float(divisor) if divisor > 0 else math.nan
        return e.divide(total, scalar(safe, dtype, weak))
    divisor = cast(divisor, dtype)
    safe = select.select(e.greater(divisor, 0), divisor, scalar(math.nan, dtype))
    return e.divide(total, safe)


def _mean_of(x: Array, axes: tuple[int, ...], where: Any) -> Array:
    return mean(x, axes, keepdims=True, where=where)


@fused()
def std(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Array:
    """The standard deviation over axes, the root of `var`: d[*s] -> f[s without axes]."""
    _no_out("std", out)
    options: dict[str, Any] = {"where": where, "mean": mean, "correction": correction}
    return e.sqrt(var(a, axis, dtype, None, ddof, keepdims, **options))


# --- Positions -----------------------------------------------------------------------------------


def _position(name: str, function: Any, doc: str) -> Callable[..., Any]:
    def position(a: Any, axis: int | None = None, out: None = None, keepdims: Any = False) -> Array:
        _no_out(name, out)
        x = array_operand(name, a)
        flat = reshape(x, (x.size,)) if axis is None else x
        k = 0 if axis is None else canonical_axis(name, axis, x.ndim, x.aval)
        if flat.shape[k] == 0:
            raise ValueError(f"{name}: the axis must not be empty; got {x.aval}.{at_user_line()}")
        result = function(flat, (k,), dtypes.default_dtype("int"))
        if not keepdims:
            return result
        return reshape(result, (1,) * x.ndim) if axis is None else _kept(result, x, (k,))

    position.__name__ = position.__qualname__ = name
    position.__doc__, position.__module__ = doc, "xcube.numpy"
    return position


argmax = _position(
    "argmax",
    reduce.argmax,
    "Place of the largest element, the first of equals, along an axis: d[*s] -> i[s without axis].",
)
argmin = _position(
    "argmin",
    reduce.argmin,
    "Place of the least element, the first of equals, along an axis: d[*s] -> i[s without axis].",
)

# --- Cumulative ----------------------------------------------------------------------------------


def _cumulative(name: str, function: Any, doc: str) -> Callable[..., Any]:
    def accumulate(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
        _no_out(name, out)
        x = array_operand(name, a)
        x = reshape(x, (x.size,)) if axis is None else x
        k = 0 if axis is None else canonical_axis(name, axis, x.ndim, x.aval)
        default = dtypes.default_dtype("int") if x.dtype == dtypes.BOOL else x.dtype
        return function(cast(x, dtype_argument(name, dtype, default)), k)

    accumulate.__name__ = accumulate.__qualname__ = name
    accumulate.__doc__, accumulate.__module__ = doc, "xcube.numpy"
    return accumulate


cumsum = _cumulative(
    "cumsum", cumulative.cumsum, "Sums of the first elements along an axis: d[*s] -> d[*s]."
)
cumprod = _cumulative(
    "cumprod", cumulative.cumprod, "Products of the first elements along an axis: d[*s] -> d[*s]."
)


def _standard_cumulative(name: str, function: Any, start: int, doc: str) -> Callable[..., Any]:
    def accumulate(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Array:
        array = array_operand(name, x)
        if axis is None and array.ndim != 1:
            raise ValueError(
                f"{name}: axis must be given for {array.aval}, which has not one axis."
                f"{at_user_line()}"
            )
        k = canonical_axis(name, axis or 0, array.ndim, array.aval)
        result = function(array, k, dtype)
        if not include_initial:
            return result
        shape = tuple(1 if j == k else n for j, n in enumerate(array.shape))
        return concatenate([full(shape, scalar(start, result.dtype)), result], k)

    accumulate.__name__ = accumulate.__qualname__ = name
    accumulate.__doc__, accumulate.__module__ = doc, "xcube.numpy"
    return accumulate


cumulative_sum = _standard_cumulative(
    "cumulative_sum", cumsum, 0, "Sums of the first elements along an axis: d[*s] -> d[*s]."
)
cumulative_prod = _standard_cumulative(
    "cumulative_prod", cumprod, 1, "Products of the first elements along an axis: d[*s] -> d[*s]."
)

# --- NaN as missing ------------------------------------------------------------------------------


def _without_nan(name: str, a: Any, value: Any) -> Array:
    """The array with NaN replaced; `value` may be a function of the dtype."""
    x = array_operand(name, a)
    if not dtypes.is_inexact(x.dtype):
        return x
    neutral = value(x.dtype) if callable(value) else value
    return select.select(e.isnan(x), scalar(neutral, x.dtype, x.weak_type), x)


@fused()
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """`sum` in which NaN counts as 0."""
    return sum(_without_nan("nansum", a, 0), axis, dtype, out, keepdims, initial, where)


@fused()
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """`prod` in which NaN counts as 1."""
    return prod(_without_nan("nanprod", a, 1), axis, dtype, out, keepdims, initial, where)


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """`cumsum` in which NaN counts as 0."""
    return cumsum(_without_nan("nancumsum", a, 0), axis, dtype, out)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """`cumprod` in which NaN counts as 1."""
    return cumprod(_without_nan("nancumprod", a, 1), axis, dtype, out)


def _nan_extremum(name: str, plain: Any, neutral: float) -> Callable[..., Any]:
    def extremum(
        a: Any,
        axis: Axis = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Array:
        x = array_operand(name, a)
        result = plain(_without_nan(name, x, neutral), axis, out, keepdims, initial, where)
        if not dtypes.is_inexact(x.dtype) or initial is not None:
            return result
        missing = all(e.isnan(x), axis, keepdims=keepdims)
        return select.select(missing, scalar(math.nan, x.dtype, x.weak_type), result)

    extremum.__name__ = extremum.__qualname__ = name
    extremum.__doc__ = f"`{name[3:]}` of the elements that are not NaN; NaN where all are."
    extremum.__module__ = "xcube.numpy"
    return extremum


nanmax = _nan_extremum("nanmax", max, -math.inf)
nanmin = _nan_extremum("nanmin", min, math.inf)


def _nan_position(name: str, plain: Any, neutral: float) -> Callable[..., Any]:
    def position(a: Any, axis: int | None = None, out: None = None, keepdims: Any = False) -> Array:
        x = array_operand(name, a)
        result = plain(_without_nan(name, x, neutral), axis, out, keepdims)
        if not dtypes.is_inexact(x.dtype):
            return result
        missing = all(e.isnan(x), axis, keepdims=keepdims)
        return select.select(missing, scalar(-1, result.dtype), result)

    position.__name__ = position.__qualname__ = name
    position.__doc__ = f"`{name[3:]}` of the elements that are not NaN; -1 where all are."
    position.__module__ = "xcube.numpy"
    return position


nanargmax = _nan_position("nanargmax", argmax, -math.inf)
nanargmin = _nan_position("nanargmin", argmin, math.inf)


def _is_number(name: str, x: Array, where: Any) -> Array:
    mask = e.logical_not(e.isnan(x))
    return mask if where is None else e.logical_and(mask, where)


@fused()
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    where: Any = None,
) -> Array:
    """`mean` of the elements that are not NaN; NaN where all are."""
    x = array_operand("nanmean", a)
    if not dtypes.is_inexact(x.dtype):
        return mean(x, axis, dtype, out, keepdims, where=where)
    return mean(x, axis, dtype, out, keepdims, where=_is_number("nanmean", x, where))


@fused()
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
) -> Array:
    """`var` of the elements that are not NaN; NaN where too few are left."""
    x = array_operand("nanvar", a)
    if not dtypes.is_inexact(x.dtype):
        return var(x, axis, dtype, out, ddof, keepdims, where=where)
    return var(x, axis, dtype, out, ddof, keepdims, where=_is_number("nanvar", x, where))


@fused()
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
) -> Array:
    """`std` of the elements that are not NaN; NaN where too few are left."""
    return e.sqrt(nanvar(a, axis, dtype, out, ddof, keepdims, where))
