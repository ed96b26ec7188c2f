"""Functions of double floats that a target's library does not have, of the core operations and the
library's functions: relative errors near 1e-15, for digamma away from its roots."""

from __future__ import annotations

import math

from xcube.lowering.cube.build import Value
from xcube.lowering.cube.math_float import (
    INFINITY,
    NAN,
    absolute,
    fma,
    horner,
    nearest,
    where,
)
from xcube.lowering.cube.math_special import ERF_INV_CENTRE, ERF_INV_FAR, ERF_INV_TAIL

# B(2k) / 2k for k = 1, 2, ...
BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
SHIFT = 10


def call(name: str, *args: Value) -> Value:
    """A function of the target's library."""
    return args[0].build.op(name, *args)


def logistic(x: Value) -> Value:
    """1 / (1 + e^-x), by the exponential that cannot overflow."""
    small = call("exp", -absolute(x))
    return where(x < 0.0, small, 1.0) / (small + 1.0)


def digamma(x: Value) -> Value:
    """Reflected below 0; ten steps of the recurrence, then the series at 1 / x^2."""
    negative = x < 0.0
    y = where(negative, 1.0 - x, x)
    steps = 1.0 / y
    for k in range(1, SHIFT):
        steps = steps + 1.0 / (y + float(k))
    y = y + float(SHIFT)
    inverse = 1.0 / y
    squared = inverse * inverse
    tail = fma(inverse, 0.5, squared * horner(squared, BERNOULLI))
    result = where(y < INFINITY, call("log", y) - tail - steps, y)
    angle = (x - nearest(x)) * math.pi
    result = where(negative, result - math.pi / call("tan", angle), result)
    pole = (x <= 0.0) & x.build.op("floor", x).eq(x)
    return where(pole, NAN, result)


def erf_inv(x: Value) -> Value:
    """A polynomial of single precision, then two steps of Halley's iteration on erf or erfc."""
    magnitude = absolute(x)
    w = -call("log1p", -magnitude) - call("log1p", magnitude)
    root = x.build.op("sqrt", w)
    tail = where(root < 4.0, horner(root - 3.0, ERF_INV_TAIL), horner(root - 5.0, ERF_INV_FAR))
    y = magnitude * where(w < 5.0, horner(w - 2.5, ERF_INV_CENTRE), tail)
    for _ in range(2):
        near = call("erf", y) - magnitude
        far = (1.0 - magnitude) - call("erfc", y)
        error = where(magnitude < 0.5, near, far)
        step = error * call("exp", y * y) * (math.sqrt(math.pi) / 2)
        y = y - step / fma(y, step, 1.0)
    y = where(magnitude.eq(1.0), INFINITY, y)
    y = where(magnitude > 1.0, NAN, y)
    return where(x < 0.0, -y, where(x.eq(0.0), x, y))
