"""Hyperbolic functions of single floats and their inverses, of the core operations alone."""

from __future__ import annotations

from xcube.lowering.cube.build import Value
from xcube.lowering.cube.math_exp import (
    exp_reduced,
    half_exp,
    log1p_pair,
    log_pair,
    reduce_exp,
)
from xcube.lowering.cube.math_float import (
    INFINITY,
    NAN,
    absolute,
    at_most,
    exact_product,
    exact_sum,
    fma,
    horner,
    power_of_two,
    quick_sum,
    root_of_pair,
    where,
    with_sign,
)

# benchmarks/fit_math.py: (f(x)/x - 1) / x^2 in powers of x^2.
TANH = (-0.3333326, 0.13330829, -0.05368791, 0.020469056, -0.005514777)
SINH = (0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06)
ASINH = (-0.16666666, 0.07499907, -0.044616096, 0.03003357, -0.020049585, 0.00925663)
ATANH = (
    *(0.33333337, 0.19999622, 0.14297815, 0.109294005),
    *(0.10524474, 0.01695987, 0.18513927),
)


def odd(x: Value, coefficients: tuple[float, ...]) -> Value:
    """x + x^3 P(x^2)."""
    squared = x * x
    return fma(x * squared, horner(squared, coefficients), x)


def tanh(x: Value) -> Value:
    """A polynomial below 5/8; above, 1 - 2 / (e^2x + 1)."""
    magnitude = absolute(x)
    doubled = at_most(magnitude + magnitude, 20.0)
    n, r = reduce_exp(doubled)
    far = 1.0 - 2.0 / fma(exp_reduced(r), power_of_two(n), 1.0)
    return with_sign(where(magnitude < 0.625, odd(magnitude, TANH), far), x)


def sinh(x: Value) -> Value:
    magnitude = absolute(x)
    half = half_exp(magnitude)
    far = half - 0.25 / half
    return with_sign(where(magnitude < 1.0, odd(magnitude, SINH), far), x)


def cosh(x: Value) -> Value:
    half = half_exp(absolute(x))
    return half + 0.25 / half


def asinh(x: Value) -> Value:
    """A polynomial below 1/2; above, log(a + sqrt(a^2 + 1)); from 2^13 on, log(2 a)."""
    magnitude = absolute(x)
    huge = magnitude > 8192.0
    a = where(huge, 1.0, magnitude)
    square, square_low = exact_product(a, a)
    total, total_low = exact_sum(square, 1.0)
    root, root_low = root_of_pair(total, square_low + total_low)
    high, low = quick_sum(root, a)
    low = low + root_low
    far = log_pair(where(huge, magnitude, high), where(huge, 0.0, low), where(huge, 1.0, 0.0))
    result = where(magnitude < 0.5, odd(magnitude, ASINH), far)
    return with_sign(where(magnitude < INFINITY, result, magnitude), x)


def acosh(x: Value) -> Value:
    """log1p(t + sqrt(2 t + t^2)) with t = x - 1; from 2^13 on, log(2 x)."""
    huge = x > 8192.0
    a = where(huge, 1.0, x)
    t = a - 1.0
    square, square_low = exact_product(t, t)
    total, total_low = exact_sum(t + t, square)
    root, root_low = root_of_pair(total, square_low + total_low)
    high, low = quick_sum(root, t)
    near = log1p_pair(high, where(t.eq(0.0), 0.0, low + root_low))
    far = log_pair(x, x * 0.0, 1.0)
    result = where(huge, far, near)
    return where(x < INFINITY, where(x < 1.0, NAN, result), x)


def atanh(x: Value) -> Value:
    """A polynomial below 1/2; above, log((1 + a) / (1 - a)) / 2, the quotient as a pair."""
    magnitude = absolute(x)
    top, top_low = quick_sum(1.0, magnitude)
    bottom = 1.0 - magnitude
    quotient = top / bottom
    residue = fma(-quotient, bottom, top) + top_low
    far = log_pair(quotient, residue / bottom) * 0.5
    result = where(magnitude < 0.5, odd(magnitude, ATANH), far)
    result = where(magnitude.eq(1.0), INFINITY, result)
    return with_sign(where(magnitude > 1.0, NAN, result), x)
