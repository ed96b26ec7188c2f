"""Trigonometric functions of single floats and their inverses, of the core operations alone.
Arguments are reduced by three pieces of pi/2, and beyond 2^17 by the bits of 2/pi (Payne and
Hanek), in a branch that runs only where some lane needs it."""

from __future__ import annotations

import itertools
import math

from xcube.lowering.cube.build import Value
from xcube.lowering.cube.math_float import (
    INFINITY,
    NAN,
    SIGN,
    absolute,
    bits,
    exact_product,
    exact_sum,
    floats,
    fma,
    horner,
    nearest,
    quick_sum,
    sign_bits,
    square_root,
    where,
    whole_bits,
    with_sign,
)

# benchmarks/fit_math.py: (f(x)/x - 1) / x^2 in powers of x^2; COS: (cos x - 1 + x^2/2) / x^4.
SIN = (-0.16666652, 0.008332014, -0.00019495656)
COS = (0.04166664, -0.001388713, 2.4412086e-05)
TAN = (
    0.33333358,
    0.1333237,
    0.054093525,
    0.021107197,
    0.011292191,
    -0.00049145997,
    0.004663608,
)
ASIN = (0.16666752, 0.074953094, 0.04546915, 0.024184778, 0.042158306)
ATAN = (
    *(-0.333333, 0.19998531, -0.14264052, 0.10951175, -0.08400475),
    *(0.057906546, -0.031127002, 0.010887361, -0.0017875476),
)

# pi/2 in three floats of 24 bits.
HALF_PI = (1.57079625129699707, 7.5497894158615964e-08, 5.3903025299577648e-15)
PI_HIGH, PI_LOW = 3.1415927410125732421875, math.pi - 3.1415927410125732421875
HALF_PI_HIGH, HALF_PI_LOW = PI_HIGH / 2, PI_LOW / 2
FAR = 2.0**17
# 32 zeros and 224 bits of 2/pi, in words of 32 bits.
TWO_OVER_PI = (
    *(0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1),
    *(0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB),
)

Pair = tuple[Value, Value]
Reduced = tuple[Value, Value, Value]


def reduce(x: Value) -> Reduced:
    """(q, r, low): x = q pi/2 + r + low, |r| below pi/4 + 2^-7, for x >= 0; two bits of q count.

    The rounding of r is lost.
    """
    n = nearest(x * (2 / math.pi))
    r = fma(n, -HALF_PI[1], fma(n, -HALF_PI[0], x))
    return where_far(x, (whole_bits(n), r, n * -HALF_PI[2]))


def reduce_exactly(x: Value) -> Reduced:
    """As `reduce`, with the rounding of r in low."""
    n = nearest(x * (2 / math.pi))
    product, product_low = exact_product(n, -HALF_PI[1])
    r, rest = exact_sum(fma(n, -HALF_PI[0], x), product)
    return where_far(x, (whole_bits(n), r, fma(n, -HALF_PI[2], rest + product_low)))


def where_far(x: Value, near: Reduced) -> Reduced:
    """The reduction `near`, replaced in the lanes whose x needs the bits of 2/pi."""
    build = x.build
    is_far = x > FAR
    parts = [build.variable(part) for part in near]
    with build.when(build.reduce("or", is_far)):
        for variable, far, part in zip(parts, reduce_far(x), near, strict=True):
            variable.set(where(is_far, far, part))
    quadrant, r, low = (part.get() for part in parts)
    return quadrant, r, low


def reduce_far(x: Value) -> Reduced:
    """The reduction of x >= 1 by its 24 bits times 96 bits of 2/pi, modulo 4.

    A window of 2/pi starts where the product has the weight 2; whole multiples of 4 are cut off.
    """
    word = x.bitcast("u32")
    exponent = word >> 23
    mantissa = (word & 0x7FFFFF) | 0x800000
    high, middle, low = window(exponent - 120)
    mulhi = x.build.op
    part = mantissa * middle
    bottom = part + mulhi("mulhi", mantissa, low)
    carry = (bottom < part).cast("u32")
    top = mantissa * high + mulhi("mulhi", mantissa, middle) + carry
    r, r_low = fraction((top << 2) | (bottom >> 30), bottom << 2)
    quadrant = (top >> 30) + ((top >> 29) & 1)
    return quadrant.bitcast("i32"), where(x < INFINITY, r, NAN), r_low


def window(position: Value) -> list[Value]:
    """Three words of 2/pi from a bit position on, 0 <= position < 160."""
    index, shift = position >> 5, position & 31
    words = [choose_word(index, first) for first in range(4)]
    return [
        (this << shift) | ((following >> 1) >> (31 - shift))
        for this, following in itertools.pairwise(words)
    ]


def choose_word(index: Value, first: int) -> Value:
    word = index.build.constant(TWO_OVER_PI[first], "u32")
    for k in range(1, 5):
        word = where(index.eq(k), TWO_OVER_PI[first + k], word, "u32")
    return word


def fraction(high: Value, low: Value) -> Pair:
    """pi/2 times a signed fraction of 64 bits, -1/2 <= fraction < 1/2, as a pair."""
    negative = (high.bitcast("i32") >> 31).bitcast("u32")
    high, low = high ^ negative, low ^ negative
    pieces = (high >> 8, ((high & 255) << 16) | (low >> 16), low & 0xFFFF)
    first, second, third = (
        piece.bitcast("i32").cast("f32") * weight
        for piece, weight in zip(pieces, (2.0**-24, 2.0**-48, 2.0**-64), strict=True)
    )
    total, rest = quick_sum(first, second)
    rest = rest + third
    r = total * HALF_PI_HIGH
    r_low = fma(total, HALF_PI_HIGH, -r) + fma(total, HALF_PI_LOW, rest * HALF_PI_HIGH)
    sign = (negative & 0x80000000).bitcast("i32")
    return floats(bits(r) ^ sign), floats(bits(r_low) ^ sign)


def sin_reduced(r: Value, low: Value) -> Pair:
    """(sin, cos) of r + low for |r| <= pi/4."""
    t = r * r
    sine = r + fma(r * t, horner(t, SIN), low)
    return sine, horner(t, (1.0, -0.5, *COS))


def in_quadrant(quadrant: Value, even: Value, odd: Value, sign: Value | None = None) -> Value:
    """`even` or `odd`, with the sign flipped in quadrants 2 and 3 and by a sign bit."""
    value = where((quadrant & 1).ne(0), odd, even)
    flip = quadrant << 30
    flip = flip & SIGN if sign is None else (flip ^ sign) & SIGN
    return floats(bits(value) ^ flip)


def sin(x: Value) -> Value:
    quadrant, r, low = reduce(absolute(x))
    return in_quadrant(quadrant, *sin_reduced(r, low), bits(x))


def cos(x: Value) -> Value:
    quadrant, r, low = reduce(absolute(x))
    return in_quadrant(quadrant + 1, *sin_reduced(r, low))


def sin_cos(x: Value) -> Pair:
    """Both, from one reduction."""
    quadrant, r, low = reduce(absolute(x))
    sine, cosine = sin_reduced(r, low)
    return (
        in_quadrant(quadrant, sine, cosine, bits(x)),
        in_quadrant(quadrant + 1, sine, cosine),
    )


def tan_reduced(r: Value, low: Value) -> Value:
    """tan(r + low) for |r| <= pi/4."""
    t = r * r
    return r + fma(r * t, horner(t, TAN), fma(t, low, low))


def tan(x: Value) -> Value:
    quadrant, r, low = reduce_exactly(absolute(x))
    tangent = tan_reduced(r, low)
    value = where((quadrant & 1).ne(0), -1.0 / tangent, tangent)
    return floats(bits(value) ^ sign_bits(x))


def arc_sine_parts(x: Value) -> tuple[Value, Value, Value]:
    """(is large, s, tail): asin |x| is s + tail, or pi/2 - 2 (s + tail) where |x| is large."""
    magnitude = absolute(x)
    large = magnitude > 0.5
    t = where(large, fma(magnitude, -0.5, 0.5), magnitude * magnitude)
    s = where(large, square_root(t), magnitude)
    return large, s, s * t * horner(t, ASIN)


def asin(x: Value) -> Value:
    large, s, tail = arc_sine_parts(x)
    high, low = quick_sum(HALF_PI_HIGH, -(s + s))
    from_top = high + (low - (tail + tail - HALF_PI_LOW))
    return with_sign(where(large, from_top, s + tail), x)


def acos(x: Value) -> Value:
    large, s, tail = arc_sine_parts(x)
    negative = x < 0.0
    s, tail = where(negative, -s, s), where(negative, -tail, tail)
    centre = (HALF_PI_HIGH - s) - (tail - HALF_PI_LOW)
    doubled, doubled_tail = s + s, tail + tail
    ends = where(negative, PI_HIGH, 0.0) + doubled + (where(negative, PI_LOW, 0.0) + doubled_tail)
    return where(large, ends, centre)


def atan_reduced(t: Value) -> Pair:
    """(t, tail): atan t = t + tail for 0 <= t <= 1."""
    squared = t * t
    return t, t * squared * horner(squared, ATAN)


def atan(x: Value) -> Value:
    magnitude = absolute(x)
    steep = magnitude > 1.0
    t, tail = atan_reduced(where(steep, 1.0 / magnitude, magnitude))
    from_top = (HALF_PI_HIGH - t) - (tail - HALF_PI_LOW)
    return with_sign(where(steep, from_top, t + tail), x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), with all signed zeros and infinities of C's atan2."""
    rise, run = absolute(y), absolute(x)
    small, large = y.build.op("min", rise, run), y.build.op("max", rise, run)
    slope = where(large.eq(0.0), large, where(small.eq(INFINITY), 1.0, small / large))
    t, tail = atan_reduced(slope)
    steep = rise > run
    left = bits(x) < 0
    flipped = steep ^ left
    t, tail = where(flipped, -t, t), where(flipped, -tail, tail)
    base = where(steep, HALF_PI_HIGH, where(left, PI_HIGH, 0.0))
    base_low = where(steep, HALF_PI_LOW, where(left, PI_LOW, 0.0))
    return with_sign((base + t) + (base_low + tail), y)
