"""Polynomials given by coefficients, highest power first: poly, polyval, polyadd, polymul, polydiv,
polyder, polyint, vander."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy import shaping
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    as_array,
    cast,
    promoted,
    promoted_inexact,
    scalar,
)
from xcube.numpy.statistics import convolve
from xcube.primitives import view
from xcube.primitives.shape import full, reshape


def _coefficients(name: str, p: Any) -> Array:
    x = shaping.atleast_1d(array_operand(name, p))
    if x.ndim != 1:
        raise ShapeError(f"{name}: coefficients must have one axis; got {x.aval}.{at_user_line()}")
    return x


@fused(2)
def polyval(p: Any, x: Any, *, unroll: int = 16) -> Array:
    """The values of a polynomial by Horner's rule: d[n], d[*s] -> d[*s].

    >>> import xcube.numpy as jnp
    >>> polyval(jnp.array([1, 0, 2]), 3)
    Array(11, dtype=int32)
    """
    coefficients, at = (
        as_array(v) for v in promoted("polyval", *array_operands("polyval", (p, x)))
    )
    if coefficients.ndim == 0:
        coefficients = reshape(coefficients, (1,))
    result = full(at.shape, scalar(0, at.dtype))
    for k in range(coefficients.shape[0]):
        result = e.add(e.multiply(result, at), coefficients[k])  # type: ignore[index]
    return result


def _aligned(name: str, a1: Any, a2: Any) -> list[Array]:
    """Coefficients of two polynomials, the shorter with zeros in front."""
    x, y = (as_array(v) for v in promoted(name, _coefficients(name, a1), _coefficients(name, a2)))
    size = max(x.shape[0], y.shape[0])
    return [view.pad(v, scalar(0, v.dtype), ((size - v.shape[0], 0, 0),)) for v in (x, y)]


def polyadd(a1: Any, a2: Any) -> Array:
    """The sum of two polynomials."""
    return e.add(*_aligned("polyadd", a1, a2))


def polysub(a1: Any, a2: Any) -> Array:
    """The difference of two polynomials."""
    return e.subtract(*_aligned("polysub", a1, a2))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Array:
    """The product of two polynomials."""
    x, y = (_coefficients("polymul", a) for a in (a1, a2))
    return convolve(x, y)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """(quotient, remainder) of two polynomials; the remainder keeps the length of u."""
    x, y = (as_array(w) for w in promoted_inexact("polydiv", *array_operands("polydiv", (u, v))))
    x, y = _coefficients("polydiv", x), _coefficients("polydiv", y)
    count = max(x.shape[0] - y.shape[0] + 1, 1)
    if x.shape[0] < y.shape[0]:
        return full((1,), scalar(0, x.dtype)), x
    parts = []
    for k in range(count):
        factor = e.divide(x[k], y[0])  # type: ignore[index]
        parts.append(reshape(factor, (1,)))
        x = x.at[k : k + y.shape[0]].subtract(e.multiply(factor, y))  # type: ignore[attr-defined]
    return view.concatenate(parts, 0), x


def polyder(p: Any, m: int = 1) -> Array:
    """The m-th derivative of a polynomial.

    Raises ValueError if m is negative.
    """
    x, times = _coefficients("polyder", p), operator.index(m)
    if times < 0:
        raise ValueError(f"polyder: m must not be negative; got {times}.{at_user_line()}")
    x = as_array(promoted_inexact("polyder", x)[0])
    for _ in range(times):
        powers = np.arange(x.shape[0] - 1, 0, -1).astype(x.dtype)
        x = e.multiply(shaping.view_of(x, 0, 0, max(x.shape[0] - 1, 0)), powers)
    return x


def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """The m-th antiderivative of a polynomial with constants k.

    Raises ValueError if m is negative or the constants are not m.
    """
    x, times = _coefficients("polyint", p), operator.index(m)
    if times < 0:
        raise ValueError(f"polyint: m must not be negative; got {times}.{at_user_line()}")
    x = as_array(promoted_inexact("polyint", x)[0])
    constants = shaping.atleast_1d(array_operand("polyint", 0 if k is None else k))
    constants = shaping.broadcast_to(constants, (times,)) if constants.size == 1 else constants
    if constants.shape != (times,):
        raise ValueError(
            f"polyint: there must be {times} constants; got {constants.aval}.{at_user_line()}"
        )
    for step in range(times):
        powers = np.arange(x.shape[0], 0, -1).astype(x.dtype)
        last = reshape(cast(constants[step], x.dtype), (1,))  # type: ignore[index]
        x = view.concatenate([e.divide(x, powers), last], 0)
    return x


def poly(seq_of_zeros: Any) -> Array:
    """The coefficients of the polynomial with these zeros: d[n] -> f[n + 1].

    Raises ShapeError unless the zeros have one axis.
    """
    zeros = as_array(promoted_inexact("poly", _coefficients("poly", seq_of_zeros))[0])
    result = full((1,), scalar(1, zeros.dtype))
    one = full((1,), scalar(1, zeros.dtype))
    for k in range(zeros.shape[0]):
        root = reshape(e.negative(zeros[k]), (1,))  # type: ignore[index]
        result = convolve(result, view.concatenate([one, root], 0))
    return result


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Array:
    """The matrix of powers of a vector, highest first: d[n] -> d[n, N].

    Raises ShapeError unless x has one axis.
    """
    column = array_operand("vander", x)
    if column.ndim != 1:
        raise ShapeError(f"vander: x must have one axis; got {column.aval}.{at_user_line()}")
    count = column.shape[0] if N is None else operator.index(N)
    if column.dtype == dtypes.BOOL:
        column = cast(column, dtypes.default_dtype("int"))
    powers = view.iota(np.dtype(np.int32), (1, count), 1)
    if not increasing:
        powers = e.subtract(count - 1, powers)
    return e.power(reshape(column, (column.shape[0], 1)), powers)
