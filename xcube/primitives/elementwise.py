"""Arithmetic, extrema, roots and integer powers, rounding, element by element. A derivative is one
line; `dx`, `dy` are tangents of the operands, `z` is the result. `add` is in kinds.py, comparison
and choice are in select.py, logic in bits.py, complex numbers in complex.py, conversions in
convert.py, all other functions in transcendental.py."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from xcube import dtypes
from xcube.errors import DtypeError
from xcube.ir import Aval, Primitive, at_user_line
from xcube.primitives.complex import conj, real
from xcube.primitives.convert import convert_element_type
from xcube.primitives.kinds import (
    FLOAT,
    NUMBER,
    REAL,
    add_tangents,
    binary,
    elementwise,
    is_linear,
    match,
    named,
    unary,
)
from xcube.primitives.lowered import Element
from xcube.primitives.select import eq, extremum_of, ge, select
from xcube.trace import aval_of, bind, literal

# arithmetic -----------------------------------------------------------------------------------

neg = unary(
    "neg",
    linear=lambda ct: neg(ct),
    accepts=NUMBER,
    doc="-x: d[*s] -> d[*s], for numbers.",
)
sub = binary(
    "sub",
    lambda dx, z, x, y: dx,
    lambda dy, z, x, y: neg(dy),
    transpose=lambda ct, x, y: [
        ct if is_linear(x) else None,
        neg(ct) if is_linear(y) else None,
    ],
    doc="x - y: d[*s], d[*s] -> d[*s], for numbers.",
)
mul = binary(
    "mul",
    lambda dx, z, x, y: mul(dx, y),
    lambda dy, z, x, y: mul(x, dy),
    transpose=lambda ct, x, y: [mul(ct, y), None] if is_linear(x) else [None, mul(x, ct)],
    doc="x * y: d[*s], d[*s] -> d[*s], for numbers.",
)
div = binary(
    "div",
    lambda dx, z, x, y: div(dx, y),
    lambda dy, z, x, y: mul(mul(neg(dy), x), integer_pow(y, -2)),
    transpose=lambda ct, x, y: [div(ct, y), None],
    doc="x / y: d[*s], d[*s] -> d[*s], for numbers; integers are rounded toward zero.",
)
rem = binary(
    "rem",
    lambda dx, z, x, y: dx,
    lambda dy, z, x, y: mul(neg(dy), _toward_zero(div(x, y))),
    accepts=lambda dtype: NUMBER(dtype) and REAL(dtype),
    doc="The remainder of x / y with the sign of x: d[*s], d[*s] -> d[*s].",
)


def _toward_zero(x: Any) -> Any:
    return mul(sign(x), floor(abs(x)))


def _abs_derivative(dx: Any, y: Any, x: Any) -> Any:
    if not dtypes.is_complex(aval_of(x).dtype):
        return select(ge(x, 0), dx, neg(dx))
    size = convert_element_type(select(eq(y, 0), 1, y), x.dtype)
    return real(mul(dx, div(conj(x), size)))


abs = unary(
    "abs",
    _abs_derivative,
    accepts=dtypes.is_signed,
    result=dtypes.float_part,
    doc="The absolute value: d[*s] -> d[*s], the parts' dtype for complex x. Its slope at 0 is 1.",
)
sign = unary(
    "sign",
    accepts=NUMBER,
    doc="-1, 0 or 1 for numbers, x/|x| for complex ones: d[*s] -> d[*s]; NaN stays NaN.",
)


def _share(z: Any, x: Any, y: Any) -> Any:
    """x's share in the chosen z: 1, 0.5 where y is equal, 0 where it was not chosen."""
    none, half, whole = (literal(share, z.dtype) for share in (0, 0.5, 1))
    return select(eq(x, z), select(eq(y, z), half, whole), none)


def _extremum(name: str, doc: str) -> Any:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = extremum(x, y)
        terms = [] if dx is None else [mul(dx, _share(z, x, y))]
        terms += [] if dy is None else [mul(dy, _share(z, y, x))]
        return z, add_tangents(terms, z)

    def rule(e: Any, index: Any) -> Any:
        return extremum_of(e, name, e.inputs[0].dtype, e.read(0, index), e.read(1, index))

    primitive = elementwise(name, jvp=jvp, rule=rule)
    extremum = named(primitive, lambda x, y: bind(primitive, *match(x, y)), doc)
    return extremum


max = _extremum("max", "The larger: d[*s], d[*s] -> d[*s]; NaN wins. Ties share the tangent.")
min = _extremum("min", "The smaller: d[*s], d[*s] -> d[*s]; NaN wins. Ties share the tangent.")

# powers and roots -----------------------------------------------------------------------------

square = unary(
    "square",
    lambda dx, y, x: mul(dx, mul(2, x)),
    accepts=NUMBER,
    doc="x * x: d[*s] -> d[*s], for numbers.",
)
sqrt = unary(
    "sqrt",
    lambda dx, y, x: mul(dx, div(0.5, y)),
    doc="The square root: d[*s] -> d[*s], for floats and complex numbers.",
)
rsqrt = unary(
    "rsqrt",
    lambda dx, y, x: mul(dx, mul(-0.5, div(y, x))),
    doc="1 / sqrt(x): d[*s] -> d[*s], for floats and complex numbers.",
)
cbrt = unary(
    "cbrt",
    lambda dx, y, x: mul(dx, mul(1 / 3, integer_pow(y, -2))),
    accepts=FLOAT,
    doc="The real cube root: f[*s] -> f[*s].",
)


def _integer_pow_abstract(x: Aval, *, y: int) -> Aval:
    if dtypes.is_bool(x.dtype) or (y < 0 and not dtypes.is_inexact(x.dtype)):
        raise DtypeError(
            f"integer_pow: x must be a number, and not an integer if y is negative; got {x} to the "
            f"power of {y}.{at_user_line()}"
        )
    return x


def _integer_pow_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, y: int) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    z = integer_pow(x, y)
    if dx is None or y == 0:
        return z, None
    slope = mul(y, integer_pow(x, y - 1)) if y not in (1, 2) else mul(y, x)
    return z, dx if y == 1 else mul(dx, slope)


def _integer_pow_element(e: Any, index: Any, *, y: int) -> Any:
    one, base = e.constant(1, e.inputs[0].dtype), e.read(0, index)
    power, left = None, -y if y < 0 else y
    while left:
        if left & 1:
            power = base if power is None else e.apply("mul", power, base)
        left >>= 1
        base = e.apply("mul", base, base) if left else base
    power = one if power is None else power
    return e.apply("div", one, power) if y < 0 else power


integer_pow_p = Primitive(
    "integer_pow",
    abstract=_integer_pow_abstract,
    jvp=_integer_pow_jvp,
    batch=lambda axis, args, batched, *, y: (integer_pow(args[0], y), True),
    lower=Element(_integer_pow_element),
)


def integer_pow(x: Any, y: int) -> Any:
    """x to the power of a Python integer, by repeated squaring: d[*s] -> d[*s].

    Raises DtypeError if x is bool, or an integer while y is negative.

    >>> integer_pow(2.0, 3).dtype
    dtype('float32')
    """
    return bind(integer_pow_p, x, y=int(y))


def reciprocal(x: Any) -> Any:
    """1 / x: d[*s] -> d[*s], for floats and complex numbers.

    Raises DtypeError if x is neither float nor complex.

    >>> reciprocal(2.0).dtype
    dtype('float32')
    """
    return integer_pow(x, -1)


# rounding -------------------------------------------------------------------------------------


class RoundingMethod(enum.IntEnum):
    """What `round` does with halves."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


floor = unary("floor", accepts=FLOAT, doc="The largest whole number <= x: f[*s] -> f[*s].")
ceil = unary("ceil", accepts=FLOAT, doc="The smallest whole number >= x: f[*s] -> f[*s].")
_ROUNDINGS = {
    RoundingMethod.AWAY_FROM_ZERO: "round_half_away",
    RoundingMethod.TO_NEAREST_EVEN: "round_half_even",
}
round_p = elementwise(
    "round",
    accepts=FLOAT,
    rule=lambda e, index, *, rounding_method: e.apply(
        _ROUNDINGS[rounding_method], e.read(0, index)
    ),
)


def round(x: Any, rounding_method: int = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """The nearest whole number, halves by `rounding_method`: f[*s] -> f[*s].

    Raises DtypeError if x is no float, ValueError if there is no such method.

    >>> round(2.5).dtype
    dtype('float32')
    """
    return bind(round_p, x, rounding_method=RoundingMethod(rounding_method))


nextafter = binary(
    "nextafter",
    lambda dx, z, x, y: dx,
    accepts=FLOAT,
    doc="The float next to x in the direction of y: f[*s], f[*s] -> f[*s].",
)
