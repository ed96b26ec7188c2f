"""Comparison of whole arrays: isclose, allclose, array_equal, array_equiv."""

from __future__ import annotations

from typing import Any

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.numpy import elementwise as e
from xcube.numpy import reductions
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operands,
    as_array,
    broadcast_shapes,
    cast,
    promoted,
    scalar,
    typed_operand,
)
from xcube.primitives.shape import full


@fused(2)
def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Array:
    """Whether |a - b| <= atol + rtol * |b|, element by element: bool[*s]. Infinities equal only
    themselves.

    >>> isclose(1.0, 1.0 + 1e-7)
    Array(True, dtype=bool)
    """
    x, y = promoted("isclose", a, b)
    if not dtypes.is_inexact(x.aval.dtype):
        inner = dtypes.default_dtype("float")
        x, y = (as_array(cast(v, inner)) for v in (x, y))
    x, y = as_array(x), as_array(y)
    real = dtypes.float_part(x.dtype)
    rtol, atol = (typed_operand("isclose", t, real) for t in (rtol, atol))
    close = e.less_equal(e.abs(e.subtract(x, y)), e.add(atol, e.multiply(rtol, e.abs(y))))
    finite = e.logical_and(e.isfinite(x), e.isfinite(y))
    result = e.logical_or(e.logical_and(close, finite), e.equal(x, y))
    if not equal_nan:
        return result
    return e.logical_or(result, e.logical_and(e.isnan(x), e.isnan(y)))


@fused(2)
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Array:
    """Whether all elements are close, as a bool scalar.

    >>> import xcube.numpy as jnp
    >>> allclose(jnp.ones(2), 1.0)
    Array(True, dtype=bool)
    """
    return reductions.all(isclose(a, b, rtol, atol, equal_nan))


def _false() -> Array:
    return full((), scalar(False, dtypes.BOOL))


@fused(2)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Array:
    """Whether two arrays have one shape and equal elements, as a bool scalar."""
    try:
        x, y = array_operands("array_equal", (a1, a2))
    except TypeError:
        return _false()
    if x.shape != y.shape:
        return _false()
    same = e.equal(x, y)
    if equal_nan:
        same = e.logical_or(same, e.logical_and(e.isnan(x), e.isnan(y)))
    return reductions.all(same)


def array_equiv(a1: Any, a2: Any) -> Array:
    """Whether two arrays broadcast to one shape with equal elements, as a bool scalar."""
    x, y = array_operands("array_equiv", (a1, a2))
    try:
        broadcast_shapes("array_equiv", x.shape, y.shape)
    except ShapeError:
        return _false()
    return reductions.all(e.equal(x, y))
