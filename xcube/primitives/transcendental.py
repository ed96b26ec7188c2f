"""Exponentials, logarithms, trigonometric and hyperbolic functions, powers, and the special
functions around erf and gamma. A derivative is one line: `dx` is the operand's tangent, `y` the
result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.errors import DtypeError
from xcube.ir import Aval, Axis, Primitive, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, integer_pow, mul, neg, rsqrt, square, sub
from xcube.primitives.kinds import (
    FLOAT,
    add,
    add_tangents,
    binary,
    common_shape,
    match,
    unary,
)
from xcube.primitives.lowered import Element, Expand
from xcube.primitives.select import eq, lt, select
from xcube.primitives.shape import batch_all
from xcube.trace import aval_of, bind, literal

_LOG_2, _ROOT_PI = math.log(2), math.sqrt(math.pi)

# exponentials and logarithms ------------------------------------------------------------------

exp = unary("exp", lambda dx, y, x: mul(dx, y), doc="e to the power of x: d[*s] -> d[*s].")
exp2 = unary(
    "exp2",
    lambda dx, y, x: mul(_LOG_2, mul(dx, y)),
    doc="2 to the power of x: d[*s] -> d[*s].",
)
expm1 = unary(
    "expm1",
    lambda dx, y, x: mul(dx, add(y, 1)),
    doc="exp(x) - 1, accurate near 0: d[*s] -> d[*s].",
)
log = unary("log", lambda dx, y, x: div(dx, x), doc="The natural logarithm: d[*s] -> d[*s].")
log2 = unary(
    "log2",
    lambda dx, y, x: div(dx, mul(_LOG_2, x)),
    doc="The logarithm to base 2: d[*s] -> d[*s].",
)
log1p = unary(
    "log1p",
    lambda dx, y, x: div(dx, add(x, 1)),
    doc="log(1 + x), accurate near 0: d[*s] -> d[*s].",
)
logistic = unary(
    "logistic",
    lambda dx, y, x: mul(dx, mul(y, sub(1, y))),
    doc="1 / (1 + exp(-x)): d[*s] -> d[*s].",
)

# trigonometric --------------------------------------------------------------------------------

sin = unary("sin", lambda dx, y, x: mul(dx, cos(x)), doc="The sine of radians: d[*s] -> d[*s].")
cos = unary(
    "cos",
    lambda dx, y, x: neg(mul(dx, sin(x))),
    doc="The cosine of radians: d[*s] -> d[*s].",
)
tan = unary(
    "tan",
    lambda dx, y, x: mul(dx, add(square(y), 1)),
    doc="The tangent of radians: d[*s] -> d[*s].",
)
asin = unary(
    "asin",
    lambda dx, y, x: mul(dx, rsqrt(sub(1, square(x)))),
    doc="The angle in radians whose sine is x: d[*s] -> d[*s].",
)
acos = unary(
    "acos",
    lambda dx, y, x: mul(dx, neg(rsqrt(sub(1, square(x))))),
    doc="The angle in radians whose cosine is x: d[*s] -> d[*s].",
)
atan = unary(
    "atan",
    lambda dx, y, x: div(dx, add(square(x), 1)),
    doc="The angle in radians whose tangent is x: d[*s] -> d[*s].",
)
atan2 = binary(
    "atan2",
    lambda dx, z, x, y: mul(dx, div(y, add(square(x), square(y)))),
    lambda dy, z, x, y: mul(dy, div(neg(x), add(square(x), square(y)))),
    accepts=FLOAT,
    doc="The angle in radians of the point with ordinate x and abscissa y: f[*s], f[*s] -> f[*s].",
)

# hyperbolic -----------------------------------------------------------------------------------

sinh = unary(
    "sinh",
    lambda dx, y, x: mul(dx, cosh(x)),
    doc="The hyperbolic sine: d[*s] -> d[*s].",
)
cosh = unary(
    "cosh",
    lambda dx, y, x: mul(dx, sinh(x)),
    doc="The hyperbolic cosine: d[*s] -> d[*s].",
)
tanh = unary(  # (1 + y)(1 - y) keeps its digits where y is close to 1
    "tanh",
    lambda dx, y, x: mul(add(dx, mul(dx, y)), sub(1, y)),
    doc="The hyperbolic tangent: d[*s] -> d[*s].",
)
asinh = unary(
    "asinh",
    lambda dx, y, x: mul(dx, rsqrt(add(square(x), 1))),
    doc="The inverse of sinh: d[*s] -> d[*s].",
)
acosh = unary(
    "acosh",
    lambda dx, y, x: mul(dx, rsqrt(sub(square(x), 1))),
    doc="The inverse of cosh: d[*s] -> d[*s], NaN for real x < 1.",
)
atanh = unary(
    "atanh",
    lambda dx, y, x: mul(integer_pow(add(x, 1), -1), div(dx, sub(1, x))),
    doc="The inverse of tanh: d[*s] -> d[*s], NaN for real |x| > 1.",
)

# error function -------------------------------------------------------------------------------

erf = unary(
    "erf",
    lambda dx, y, x: mul(2 / _ROOT_PI, mul(dx, exp(neg(square(x))))),
    accepts=FLOAT,
    doc="The error function: f[*s] -> f[*s].",
)
erfc = unary(
    "erfc",
    lambda dx, y, x: mul(-2 / _ROOT_PI, mul(dx, exp(neg(square(x))))),
    accepts=FLOAT,
    doc="1 - erf(x), accurate for large x: f[*s] -> f[*s].",
)
erf_inv = unary(
    "erf_inv",
    lambda dx, y, x: mul(_ROOT_PI / 2, mul(dx, exp(square(y)))),
    accepts=FLOAT,
    doc="The inverse of erf: f[*s] -> f[*s].",
)

# power ----------------------------------------------------------------------------------------


def _pow_abstract(x: Aval, y: Aval) -> Aval:
    same = x.dtype == y.dtype
    if not dtypes.is_inexact(x.dtype) or not (same or dtypes.is_integer(y.dtype)):
        raise DtypeError(
            "pow: x must be float or complex, y an integer or of x's dtype; got "
            f"{x} and {y}.{at_user_line()}"
        )
    return Aval(common_shape("pow", (x, y)), x.dtype, x.weak_type and y.weak_type)


def _not_zero(x: Any) -> Any:
    return select(eq(x, 0), 1, x)


def _pow_slope(x: Any, y: Any) -> Any:
    """dz/dx. An integer exponent that is 0 has slope 0 for every x, 0 included."""
    if not dtypes.is_integer(aval_of(y).dtype):
        return mul(y, pow(x, sub(y, 1)))
    y = convert_element_type(y, aval_of(x).dtype)
    return select(eq(y, 0), 0, mul(_not_zero(y), pow(x, sub(y, 1))))


def _pow_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x, y), (dx, dy) = primals, tangents
    z = pow(x, y)
    terms = [] if dx is None else [mul(dx, _pow_slope(x, y))]
    terms += [] if dy is None else [mul(dy, mul(log(_not_zero(x)), z))]
    return z, add_tangents(terms, z)


def _pow_batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, bool]:
    front = batch_all(axis, args, batched)
    return pow(*front), True


def _pow_element(e: Any, index: Any) -> Any:
    return e.apply("pow", e.read(0, index), e.cast(e.read(1, index), e.inputs[0].dtype))


pow_p = Primitive(
    "pow",
    abstract=_pow_abstract,
    jvp=_pow_jvp,
    batch=_pow_batch,
    lower=Element(_pow_element),
)


def pow(x: Any, y: Any) -> Any:
    """x to the power of y: d[*s], d[*s] or i[*s] -> d[*s], for floats and complex numbers.

    Raises DtypeError if x is neither, or if y is neither an integer nor of x's dtype; ShapeError if
    the shapes differ.

    >>> pow(np.float32(2), 0.5).dtype
    dtype('float32')
    """
    whole = isinstance(y, int) and not isinstance(y, bool | np.generic)
    return bind(pow_p, *match(x, literal(y) if whole else y))


# gamma ----------------------------------------------------------------------------------------

lgamma = unary(
    "lgamma",
    lambda dx, y, x: mul(dx, digamma(x)),
    accepts=FLOAT,
    doc="log(|gamma(x)|): f[*s] -> f[*s].",
)
digamma = unary(
    "digamma",
    lambda dx, y, x: mul(dx, polygamma(1, x)),
    accepts=FLOAT,
    doc="The derivative of lgamma: f[*s] -> f[*s].",
)

# Bernoulli numbers B2, B4, ... of the Euler-Maclaurin tail, and how far the sum goes before it.
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6),
    *(-3617 / 510, 43867 / 798, -174611 / 330),
)
_TERMS = 10


def _polygamma_abstract(x: Aval, *, m: int) -> Aval:
    if not dtypes.is_float(x.dtype):
        raise DtypeError(f"polygamma: does not accept {x}.{at_user_line()}")
    return x


def _polygamma_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, m: int) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    return polygamma(m, x), None if dx is None else mul(dx, polygamma(m + 1, x))


def _polygamma(x: Any, *, m: int) -> Any:
    """psi_m by its series for x >= 1/2 and by reflection on the other side."""
    if x.dtype.itemsize < 4:
        return convert_element_type(_polygamma(convert_element_type(x, np.float32), m=m), x.dtype)
    left = lt(x, 0.5)
    mirrored = select(left, sub(1, x), x)
    sign = -1.0 if m % 2 == 0 else 1.0
    series = mul(sign * math.factorial(m), _hurwitz_zeta(m + 1, mirrored))
    reflected = sub(mul(-1.0 if m % 2 else 1.0, series), mul(math.pi, _cot_derivative(m, x)))
    return select(left, reflected, series)


def _hurwitz_zeta(s: int, x: Any) -> Any:
    """sum over k >= 0 of (x + k)^-s for x >= 1/2, by Euler and Maclaurin (DLMF 25.11.5)."""
    total = integer_pow(x, -s)
    for k in range(1, _TERMS):
        total = add(total, integer_pow(add(x, float(k)), -s))
    far = add(x, float(_TERMS))
    inverse = integer_pow(far, -1)
    power = integer_pow(far, -s)
    total = add(total, mul(power, add(mul(1 / (s - 1), far), 0.5)))
    factor = 1.0
    power = mul(power, inverse)
    for j, bernoulli in enumerate(_BERNOULLI, 1):
        factor *= s if j == 1 else (s + 2 * j - 3) * (s + 2 * j - 2)
        total = add(total, mul(bernoulli * factor / math.factorial(2 * j), power))
        power = mul(power, square(inverse))
    return total


def _cot_derivative(m: int, x: Any) -> Any:
    """The m-th derivative of cot(pi x), a polynomial in the cotangent c: c' = -pi (1 + c^2)."""
    coefficients = [0.0, 1.0]
    for _ in range(m):
        slope = [k * value for k, value in enumerate(coefficients)][1:]
        grown = [*slope, 0.0, 0.0]
        for k, value in enumerate(slope):
            grown[k + 2] += value
        coefficients = [-math.pi * value for value in grown]
    c = div(1.0, tan(mul(math.pi, x)))
    total = mul(coefficients[-1], c)
    for value in reversed(coefficients[1:-1]):
        total = mul(add(total, value), c)
    return add(total, coefficients[0])


polygamma_p = Primitive(
    "polygamma",
    abstract=_polygamma_abstract,
    jvp=_polygamma_jvp,
    batch=lambda axis, args, batched, *, m: (polygamma(m, args[0]), True),
    lower=Expand(_polygamma),
)


def polygamma(m: int, x: Any) -> Any:
    """The m-th derivative of digamma, for a Python integer m >= 0: f[*s] -> f[*s].

    Raises ValueError if m is negative, DtypeError if x is no float.

    >>> polygamma(1, np.float32(2)).dtype
    dtype('float32')
    """
    if m < 0:
        raise ValueError(f"polygamma: m must be at least 0; got {m}.{at_user_line()}")
    return digamma(x) if m == 0 else bind(polygamma_p, x, m=int(m))
