"""Exponentials, logarithms and powers of single floats, of the core operations alone."""

from __future__ import annotations

import math

from xcube.lowering.cube.build import Operand, Value
from xcube.lowering.cube.math_float import (
    INFINITY,
    NAN,
    SMALLEST_NORMAL,
    absolute,
    at_least,
    at_most,
    bits,
    floats,
    fma,
    horner,
    is_nan,
    nearest,
    power_of_two,
    quick_sum,
    scale,
    sign_bits,
    where,
    whole_bits,
    with_sign,
)

# benchmarks/fit_math.py: (e^r - 1 - r) / r^2, (2^r - 1) / r, (log(1+f) - f + f^2/2) / f^3 and
# (atanh(s)/s - 1 - s^2/3) / s^4.
EXP = (0.49999994, 0.16666521, 0.041668262, 0.008368674, 0.0013821041)
EXP2 = (0.6931472, 0.24022648, 0.055503596, 0.009618505, 0.0013391025, 0.00015327196)
LOG = (
    *(0.3333333, -0.2500082, 0.20001242, -0.16623409),
    *(0.1420158, -0.1315961, 0.12762217, -0.07636439),
)
ATANH_TAIL = (0.20000078, 0.1427339, 0.11713582)

LOG2_E = 1 / math.log(2)
LOG2_E_HIGH = 1.44269502162933349609375
LOG2_E_LOW = LOG2_E - LOG2_E_HIGH
LN2 = math.log(2)
# 12 bits, so that n * LN2_HIGH is exact for every exponent n.
LN2_HIGH = 0.693115234375
LN2_LOW = LN2 - LN2_HIGH
THIRD_HIGH = 0.3333333432674407958984375
THIRD_LOW = 1 / 3 - THIRD_HIGH
ROOT_HALF_BITS = 0x3F3504F3
MANTISSA = 0x007FFFFF


def reduce_exp(x: Value) -> tuple[Value, Value]:
    """(n, r): x = n ln 2 + r, n the nearest integer."""
    n = nearest(fma(x, LOG2_E, 0.0))
    return n, fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


def exp_reduced(r: Value) -> Value:
    """e^r for |r| <= ln(2) / 2."""
    return fma(r * r, horner(r, EXP), r) + 1.0


def exp(x: Value) -> Value:
    n, r = reduce_exp(at_least(at_most(x, 89.0), -104.0))
    return scale(exp_reduced(r), n)


def half_exp(x: Value) -> Value:
    """e^x / 2, which overflows where cosh does; x >= 0."""
    n, r = reduce_exp(at_most(x, 90.0))
    return scale(exp_reduced(r), n - 1.0)


def exp2(x: Value) -> Value:
    x = at_least(at_most(x, 129.0), -151.0)
    n = nearest(x)
    return scale(exp2_reduced(x - n), n)


def exp2_reduced(r: Value) -> Value:
    """2^r for |r| <= 1/2."""
    return fma(r, horner(r, EXP2), 1.0)


def expm1(x: Value) -> Value:
    n, r = reduce_exp(at_least(at_most(x, 89.0), -18.0))
    near = fma(r * r, horner(r, EXP), r)
    half = power_of_two(n - 1.0)
    far = fma(half, near, half - 0.5)
    return with_sign(where(n.eq(0.0), near, far + far), x)


def logistic(x: Value) -> Value:
    """1 / (1 + e^-x), by the exponential that cannot overflow, its quotient corrected once."""
    small = exp(-absolute(x))
    top = where(x < 0.0, small, 1.0)
    bottom, bottom_low = quick_sum(1.0, small)
    quotient = top / bottom
    residue = fma(-quotient, bottom_low, fma(-quotient, bottom, top))
    return fma(residue, 1.0 - quotient, quotient)


def split(x: Value) -> tuple[Value, Value]:
    """(e, f): x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x."""
    subnormal = x < SMALLEST_NORMAL
    offset = bits(where(subnormal, x * 2.0**23, x)) - ROOT_HALF_BITS
    e = (offset >> 23).cast("f32") - where(subnormal, 23.0, 0.0)
    return e, floats((offset & MANTISSA) + ROOT_HALF_BITS) - 1.0


def log_reduced(e: Value, f: Value, low: Operand | None = None) -> Value:
    """e ln 2 + log(1 + f) + low, with a small `low`."""
    squared = f * f
    tail = f * squared * horner(f, LOG)
    if low is not None:
        tail = tail + low
    return fma(e, LN2_HIGH, f + fma(squared, -0.5, fma(e, LN2_LOW, tail)))


def log_domain(x: Value, result: Value) -> Value:
    """A logarithm's `result` where x is positive and finite, and its limits elsewhere."""
    result = where(x.eq(INFINITY), x, result)
    return where(x > 0.0, result, where(x.eq(0.0), -INFINITY, NAN))


def log(x: Value) -> Value:
    return log_domain(x, log_reduced(*split(x)))


def log_pair(high: Value, low: Value, doublings: Operand = 0.0) -> Value:
    """log((high + low) 2^doublings) of a positive finite pair."""
    e, f = split(high)
    return log_reduced(e + doublings, f, low / high)


def log2(x: Value) -> Value:
    e, f = split(x)
    squared = f * f
    tail = fma(squared, -0.5, f * squared * horner(f, LOG))
    near = fma(f, LOG2_E_HIGH, fma(f, LOG2_E_LOW, tail * LOG2_E))
    return log_domain(x, e + near)


def log1p_pair(high: Value, low: Operand | None = None) -> Value:
    """log(1 + high + low) of a pair above -1 and below infinity."""
    offset = bits(high + 1.0) - ROOT_HALF_BITS
    e = (offset >> 23).cast("f32")
    # 4 * 2^-e: 2^-e itself is subnormal at the largest exponent.
    inverse = floats(0x40800000 - (offset & ~MANTISSA))
    f = where(e.eq(0.0), high, fma(high * 0.25, inverse, fma(inverse, 0.25, -1.0)))
    correction = None if low is None else (low / (high + 1.0))
    return log_reduced(e, f, correction)


def log1p(x: Value) -> Value:
    result = where(x.eq(INFINITY), x, with_sign(log1p_pair(x), x))
    return where(x > -1.0, result, where(x.eq(-1.0), -INFINITY, NAN))


def log2_pair(x: Value) -> tuple[Value, Value]:
    """The binary logarithm of a positive finite number to about 36 bits, as a pair.

    With s = f / (2 + f), log2(1 + f) is 2 atanh(s) / ln 2 = (2 / ln 2) s (1 + u).
    """
    e, f = split(x)
    inverse = 1.0 / (f + 2.0)
    s = f * inverse
    s_low = fma(-s, f, fma(s, -2.0, f)) * inverse
    t = s * s
    t_low = fma(s + s, s_low, fma(s, s, -t))
    factor, factor_low = quick_sum(THIRD_HIGH, t * horner(t, ATANH_TAIL))
    u = t * factor
    u_low = fma(t, factor, -u) + fma(t, factor_low + THIRD_LOW, t_low * factor)
    p = s * (2 * LOG2_E_HIGH)
    p_low = fma(s, 2 * LOG2_E_HIGH, -p) + fma(s, 2 * LOG2_E_LOW, s_low * (2 * LOG2_E_HIGH))
    q = p * u
    q_low = fma(p, u, -q) + fma(p, u_low, p_low * u)
    near, near_low = quick_sum(p, q)
    high, high_low = quick_sum(e, near)
    return high, high_low + (near_low + (p_low + q_low))


def power_magnitude(x: Value, y: Value) -> Value:
    """x^y for positive finite x."""
    high, low = log2_pair(x)
    y = at_least(at_most(y, 2.0**32), -(2.0**32))
    z = y * high
    z_low = fma(y, low, fma(y, high, -z))
    bounded = at_least(at_most(z, 160.0), -160.0)
    n = nearest(bounded)
    r = (bounded - n) + where(z.eq(bounded), z_low, 0.0)
    return scale(exp2_reduced(r), n)


def pow(x: Value, y: Value) -> Value:
    """x^y with all special cases of C's pow."""
    magnitude = absolute(x)
    edge = magnitude.eq(0.0) | magnitude.eq(INFINITY)
    limit = where((magnitude > 1.0) ^ (y < 0.0), INFINITY, 0.0)
    result = where(edge, limit, power_magnitude(magnitude, y))
    whole = x.build.op("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & x.build.op("trunc", half).ne(half)
    result = floats(bits(result) | where(odd, sign_bits(x), 0, "i32"))
    undefined = (x < 0.0) & (x > -INFINITY) & ~whole
    result = where(undefined, NAN, result)
    result = where(is_nan(x) | is_nan(y), x + y, result)
    return where(x.eq(1.0) | y.eq(0.0), 1.0, result)


ROUNDER_BITS = 0x4B400000
# Halley's series of (1 - e)^(-1/3): exact to e^4.
CUBE_ROOT = (1 / 3, 2 / 9, 14 / 81)


def cbrt(x: Value) -> Value:
    """By the inverse cube root, which needs no division: y <- y (1 - e)^(-1/3), e = 1 - a y^3."""
    magnitude = absolute(x)
    subnormal = magnitude < SMALLEST_NORMAL
    a = where(subnormal, magnitude * 2.0**24, magnitude)
    # The bits of a are about 2^23 (127 + log2 a); a third of their upper 22 bits fits a float.
    third = whole_bits((bits(a) >> 9).cast("f32") * (-1 / 3)) << 9
    y = floats(third + (0x54A21D2A - (ROUNDER_BITS << 9)))
    for _ in range(2):
        e = 1.0 - (a * y) * (y * y)
        y = fma(y * e, horner(e, CUBE_ROOT), y)
    root = a * (y * y)
    squared = root * root
    residue = fma(root, squared, -a) + root * fma(root, root, -squared)
    root = fma(residue * (-1 / 3), y * y, root)
    root = where(subnormal, root * 2.0**-8, root)
    keep = x.eq(0.0) | magnitude.eq(INFINITY)
    return where(keep, x, with_sign(root, x))
