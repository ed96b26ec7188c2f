"""Floats taken apart: bits and signs, exact powers of two, unevaluated sums of two floats, and
Horner's rule. What the decompositions of `math_*.py` share; a pair is written (high, low). Two
sums are spelled so that `fma` rounds once and nothing is reassociated."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube.build import Builder, Operand, Value

INFINITY = float("inf")
NAN = float("nan")
SIGN = -0x80000000
SMALLEST_NORMAL = 2.0**-126
# n + ROUNDER has the integer n in its low mantissa bits, for |n| < 2**22.
ROUNDER = 12582912.0


def builder_of(*operands: Operand) -> Builder:
    return next(value.build for value in operands if isinstance(value, Value))


def fma(x: Operand, y: Operand, z: Operand) -> Value:
    """x * y + z, rounded once."""
    return builder_of(x, y, z).fma(x, y, z)


def where(condition: Value, then: Operand, orelse: Operand, dtype: str = "f32") -> Value:
    """Like `select`; two Python numbers become constants of `dtype`."""
    if not isinstance(then, Value) and not isinstance(orelse, Value):
        then = condition.build.constant(then, dtype)
    return condition.build.select(condition, then, orelse)


def absolute(x: Value) -> Value:
    return x.build.op("abs", x)


def square_root(x: Value) -> Value:
    return x.build.op("sqrt", x)


def nearest(x: Value) -> Value:
    """The nearest integer, ties to even."""
    return x.build.op("round", x)


def is_nan(x: Value) -> Value:
    return x.ne(x)


def at_most(x: Value, bound: float) -> Value:
    """min(x, bound); NaN stays. One instruction, where the core `min` takes three."""
    return where(x > bound, bound, x)


def at_least(x: Value, bound: float) -> Value:
    """max(x, bound); NaN stays."""
    return where(x < bound, bound, x)


def bits(x: Value) -> Value:
    return x.bitcast("i32")


def floats(x: Value) -> Value:
    return x.bitcast("f32")


def sign_bits(x: Value) -> Value:
    return bits(x) & SIGN


def with_sign(magnitude: Value, sign: Value) -> Value:
    """A value that is positive, or has the sign of `sign` already, with the sign of `sign`."""
    return floats(bits(magnitude) | sign_bits(sign))


def whole_bits(n: Value, offset: int = 0) -> Value:
    """Integer bits whose low 9 bits are n + offset, of a float with an integral value."""
    return bits(n + (ROUNDER + offset))


def power_of_two(n: Value) -> Value:
    """2**n for an integral float -126 <= n <= 127."""
    return floats(whole_bits(n, 127) << 23)


def scale(x: Value, n: Value) -> Value:
    """x * 2**n for an integral float -252 <= n <= 254; subnormal results are rounded once."""
    both = whole_bits(n, 254)
    half = both >> 1
    return x * floats(half << 23) * floats((both - half) << 23)


def horner(x: Value, coefficients: Sequence[Operand]) -> Value:
    """A polynomial; coefficients from the lowest power up."""
    result: Operand = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result if isinstance(result, Value) else x.build.constant(result, x.dtype)


def quick_sum(x: Operand, y: Value) -> tuple[Value, Value]:
    """x + y exactly, as a pair, if |x| >= |y| or x is 0."""
    total = x + y
    return total, (x - total) + y


def exact_sum(x: Value, y: Operand) -> tuple[Value, Value]:
    """x + y exactly, as a pair."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def exact_product(x: Value, y: Operand) -> tuple[Value, Value]:
    """x * y exactly, as a pair."""
    product = x * y
    return product, fma(x, y, -product)


def root_of_pair(high: Value, low: Operand = 0.0) -> tuple[Value, Value]:
    """The square root of a positive pair, as a pair."""
    root = square_root(high)
    return root, (fma(-root, root, high) + low) * (0.5 / root)
