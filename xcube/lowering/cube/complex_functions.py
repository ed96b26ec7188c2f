"""Transcendental functions of complex numbers, on the branches of NumPy and C99."""

from __future__ import annotations

import math

from xcube.lowering.cube import math_exp, math_trig
from xcube.lowering.cube.build import Value
from xcube.lowering.cube.complex_parts import (
    Complex,
    add,
    call,
    choose,
    conj,
    div,
    each,
    is_infinite,
    mul,
    neg,
    over_i,
    polar,
    promote,
    reciprocal,
    sqrt,
    times_i,
    with_sign_of,
)
from xcube.lowering.cube.math_float import (
    INFINITY,
    absolute,
    exact_product,
    exact_sum,
    fma,
    where,
)

LN2 = math.log(2)
# e^x overflows above the first; tanh x is 1 to the last place above the second.
_LIMITS = {"f32": (88.0, 11.0), "f64": (709.0, 22.0)}
FAR = {"f32": 2.0**30, "f64": 2.0**100}


def sin_cos(x: Value) -> tuple[Value, Value]:
    """Both functions of a real part, for a half of their price where it can be had."""
    if x.dtype == "f32":
        return math_trig.sin_cos(x)
    return call("sin", x), call("cos", x)


def damped(factor: Value, size: Value) -> Value:
    """factor * size, where a factor of 0 wins over an infinite or undefined size."""
    sign = where(size < 0.0, -1.0, 1.0, size.dtype)
    return where(factor.eq(0.0), factor * sign, factor * size)


def exp(z: Complex) -> Complex:
    """e^a (cos b + i sin b), where e^a may overflow and the result not."""
    huge = z.real > _LIMITS[z.dtype][0]
    size = call("exp", where(huge, z.real * 0.5, z.real))
    rest = where(huge, size, 1.0)
    sine, cosine = sin_cos(z.imag)
    sine = where(z.imag.eq(0.0), z.imag, sine)
    vanishing = z.real.eq(-INFINITY) & ~call("is_finite", z.imag)
    result = Complex(cosine * size * rest, damped(damped(sine, size), rest))
    undirected = z.real.eq(INFINITY) & ~call("is_finite", z.imag)
    real = where(vanishing, 0.0, where(undirected, INFINITY, result.real))
    return Complex(real, where(vanishing, 0.0, result.imag))


def exp2(z: Complex) -> Complex:
    """2^a (cos(b ln 2) + i sin(b ln 2))."""
    return exp(each(lambda part: part * LN2, z))


def log_of_square(high: Value, low: Value) -> Value:
    """log(1 + high + low) / 2."""
    if high.dtype == "f32":
        return math_exp.log1p_pair(high, low) * 0.5
    return (call("log1p", high) + low / (high + 1.0)) * 0.5


def log(z: Complex) -> Complex:
    """log |z| + i arg z; near |z| = 1 by |z|^2 - 1, without cancellation."""
    parts = polar(z)
    far = fma(parts.exponent, LN2, call("log", parts.size))
    a, b = absolute(z.real), absolute(z.imag)
    large, small = where(a > b, a, b), where(a > b, b, a)
    near = (large > 0.5) & (large < 1.5) & (small < 1.5)
    large, small = where(near, large, 1.0), where(near, small, 0.0)
    square, square_low = exact_product(large, large)
    other, other_low = exact_product(small, small)
    excess, excess_low = exact_sum(square - 1.0, other)
    close = log_of_square(excess, excess_low + (square_low + other_low))
    return Complex(where(near, close, far), call("atan2", z.imag, z.real))


def log2(z: Complex) -> Complex:
    return each(lambda part: part * (1 / LN2), log(z))


def log1p(z: Complex) -> Complex:
    """log(1 + z): near 0 by |1 + z|^2 - 1 = 2 a + a^2 + b^2 as a pair."""
    near = (z.real > -0.5) & (z.real < 1.0) & (absolute(z.imag) < 1.0)
    a, b = where(near, z.real, 0.0), where(near, z.imag, 0.0)
    square, square_low = exact_product(a, a)
    other, other_low = exact_product(b, b)
    squares, squares_low = exact_sum(square, other)
    excess, excess_low = exact_sum(a + a, squares)
    close = log_of_square(excess, excess_low + (squares_low + (square_low + other_low)))
    moved = Complex(z.real + 1.0, z.imag)
    far = log(moved)
    return Complex(where(near, close, far.real), far.imag)


def expm1(z: Complex) -> Complex:
    """e^z - 1, whose real part is (e^a - 1) cos b - 2 sin(b/2)^2."""
    half = call("sin", z.imag * 0.5)
    whole = exp(z)
    near = fma(call("expm1", z.real), call("cos", z.imag), half * half * -2.0)
    small = absolute(z.real) < 1.0
    real = where(small, near, whole.real - 1.0)
    return Complex(real, where(z.imag.eq(0.0), z.imag, whole.imag))


def logistic(z: Complex) -> Complex:
    """1 / (1 + e^-z), by the exponential that does not grow."""
    left = z.real < 0.0
    shrinking = exp(choose(left, z, neg(z)))
    one = promote(1.0, z)
    return div(choose(left, shrinking, one), add(one, shrinking))


def sinh(z: Complex) -> Complex:
    sine, cosine = sin_cos(z.imag)
    real = damped(call("sinh", z.real), cosine)
    return Complex(real, damped(sine, call("cosh", z.real)))


def cosh(z: Complex) -> Complex:
    sine, cosine = sin_cos(z.imag)
    hyperbolic = call("sinh", z.real)
    flat = hyperbolic.eq(0.0)
    imag = where(flat, damped(hyperbolic, sine), damped(sine, hyperbolic))
    return Complex(cosine * call("cosh", z.real), imag)


def tanh(z: Complex) -> Complex:
    """(sinh a cosh a + i sin b cos b) / (sinh^2 a + cos^2 b), or 1 + 4 i sin b cos b / e^(2 a)."""
    limit = _LIMITS[z.dtype][1]
    size = absolute(z.real)
    far = size > limit
    a = where(far, 0.5, size)
    sine, cosine = sin_cos(z.imag)
    hyperbolic = call("sinh", a)
    bottom = fma(hyperbolic, hyperbolic, cosine * cosine)
    real = hyperbolic * call("cosh", a) / bottom
    product = sine * cosine
    tail = damped(call("exp", size * -2.0) * 4.0, product)
    imag = where(far, tail, product / bottom)
    real = with_sign_of(where(far, 1.0, real), z.real)
    real = where(z.real.eq(0.0), z.real, real)
    return Complex(real, where(z.imag.eq(0.0), z.imag, imag))


def sin(z: Complex) -> Complex:
    return over_i(sinh(times_i(z)))


def cos(z: Complex) -> Complex:
    return cosh(times_i(z))


def tan(z: Complex) -> Complex:
    return over_i(tanh(times_i(z)))


def roots_beside_one(z: Complex) -> tuple[Complex, Complex]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt(Complex(1.0 - z.real, -z.imag)), sqrt(Complex(z.real + 1.0, z.imag))


def asin(z: Complex) -> Complex:
    """By sqrt(1 - z) and sqrt(1 + z) (Kahan), which keep the signs of zeros."""
    minus, plus = roots_beside_one(z)
    infinite = is_infinite(z)
    run = where(infinite, absolute(z.imag), mul(minus, plus).real)
    size = call("asinh", mul(conj(minus), plus).imag)
    imag = with_sign_of(where(infinite, INFINITY, size), z.imag)
    return Complex(call("atan2", z.real, run), imag)


def acos(z: Complex) -> Complex:
    minus, plus = roots_beside_one(z)
    infinite = is_infinite(z)
    near = call("atan2", minus.real, plus.real) * 2.0
    real = where(infinite, call("atan2", absolute(z.imag), z.real), near)
    size = call("asinh", mul(conj(plus), minus).imag)
    return Complex(real, with_sign_of(where(infinite, INFINITY, size), -z.imag))


def asinh(z: Complex) -> Complex:
    return over_i(asin(times_i(z)))


def acosh(z: Complex) -> Complex:
    """i acos z or -i acos z, whichever has a real part >= 0."""
    angle = acos(z)
    return Complex(absolute(angle.imag), with_sign_of(angle.real, z.imag))


def atanh(z: Complex) -> Complex:
    """log(1 + 4 a / ((1 - a)^2 + b^2)) / 4 + i atan2(2 b, (1 - a)(1 + a) - b^2) / 2."""
    limit = FAR[z.dtype]
    far = (absolute(z.real) > limit) | (absolute(z.imag) > limit)
    a, b = where(far, 0.5, absolute(z.real)), where(far, 0.5, z.imag)
    below, above = 1.0 - a, a + 1.0
    quotient = a * 4.0 / fma(below, below, b * b)
    near = call("log1p", quotient) * 0.25
    beside = below.eq(0.0) & (absolute(b) < 2.0**-27)
    near = where(beside, fma(call("log", absolute(b)), -0.5, LN2 / 2), near)
    angle = call("atan2", b + b, fma(below, above, -(b * b))) * 0.5
    inverse = reciprocal(Complex(absolute(z.real), z.imag)).real
    inverse = where(is_infinite(z), 0.0, inverse)
    imag = with_sign_of(where(far, math.pi / 2, angle), z.imag)
    return Complex(with_sign_of(where(far, inverse, near), z.real), imag)


def atan(z: Complex) -> Complex:
    return over_i(atanh(times_i(z)))


def pow(z: Complex, w: Complex) -> Complex:
    """exp(w log z); z^0 is 1, and 0^w is 0 for a positive real part of w."""
    power = exp(mul(w, log(z)))
    at_zero = z.real.eq(0.0) & z.imag.eq(0.0)
    vanishes = at_zero & (w.real > 0.0)
    power = each(lambda part: where(vanishes, 0.0, part), power)
    is_one = w.real.eq(0.0) & w.imag.eq(0.0)
    return choose(is_one, promote(1.0, z), power)
