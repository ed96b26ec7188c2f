"""Error and gamma functions of single floats, of the core operations alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xcube.lowering.cube.build import Value
from xcube.lowering.cube.math_exp import EXP, exp_reduced, log, log1p_pair, reduce_exp
from xcube.lowering.cube.math_float import (
    INFINITY,
    NAN,
    absolute,
    at_most,
    builder_of,
    exact_product,
    exact_sum,
    fma,
    horner,
    nearest,
    power_of_two,
    scale,
    square_root,
    where,
    with_sign,
)
from xcube.lowering.cube.math_trig import PI_HIGH, PI_LOW, tan_reduced

# benchmarks/fit_math.py: erf(x)/x - 1 in x^2; -log erfc(x); erfc(x) e^(x^2) / u in u = 1/(x + 2).
ERF_SMALL = (
    *(0.12837917, -0.3761263, 0.11283626, -0.026855728),
    *(0.0051923767, -0.00080491515, 7.9925805e-05),
)
ERF_LARGE = (
    *(-0.0001634894, 1.1294605, 0.6334582, 0.108156465),
    *(-0.025038848, 0.0041402653, -0.0004280756, 2.0540887e-05),
)
ERFC = (
    *(0.5641661, 1.1296577, 1.9448117, 3.2114694, -0.45457906),
    *(15.495995, -55.249584, 61.47625, -22.836193),
)
# erf_inv(x) / x, with w = -log(1 - x^2): in w - 5/2, sqrt(w) - 3 and sqrt(w) - 5.
ERF_INV_CENTRE = (
    *(1.5014094, 0.24664071, -0.0041776937, -0.001253694, 0.00021859669),
    *(-4.4005164e-06, -3.5280523e-06, 3.4403797e-07, 2.8496348e-08),
)
ERF_INV_TAIL = (
    *(2.832977, 1.001675, 0.009435637, -0.0076313815, 0.0057629324),
    *(-0.0036452124, 0.0012929412, 7.401856e-05, -0.00015694312),
)
ERF_INV_FAR = (
    4.8499064,
    1.0103005,
    -0.00014173826,
    -0.00021554422,
    8.382527e-05,
    -1.9997016e-05,
)
# lgamma(1 + t)/t, lgamma(2 + t)/t, lgamma(11/2 + t); sin(pi f)/f in f^2.
LGAMMA_ONE = (
    *(
        -0.5772157,
        0.822467,
        -0.40068513,
        0.27058652,
        -0.20739773,
        0.16928878,
        -0.1438099,
    ),
    *(0.12979859, -0.1147075, 0.07018353, -0.06647561, 0.17298312, -0.15499),
)
LGAMMA_TWO = (
    *(0.42278433, 0.32246703, -0.06735142, 0.02058101, -0.0074045225, 0.0028951098),
    *(
        -0.001045043,
        0.00040636145,
        -0.0006911354,
        0.0006433015,
        0.00037372962,
        -0.00084080553,
    ),
    0.00032925,
)
LGAMMA_MIDDLE = (
    *(
        3.957814,
        1.6110932,
        0.09967109,
        -0.006601567,
        0.000653943,
        -7.736208e-05,
        1.0066001e-05,
    ),
    *(
        -1.4699449e-06,
        2.3636565e-07,
        -2.2082975e-08,
        1.3007383e-09,
        -1.6791829e-09,
        3.4800662e-10,
    ),
)
SINPI = (3.1415927, -5.167729, 2.5506525, -0.6045218, 0.10543968, -0.04359388)
# digamma(2 + t)/(2 + t - root), digamma(5 + t).
DIGAMMA_LOW = (
    *(
        0.7853075,
        -0.2607387,
        0.10899986,
        -0.049559038,
        0.023452539,
        -0.011272315,
        0.0055101328,
    ),
    *(
        -0.0029634095,
        0.0014915541,
        -0.00032362476,
        0.00013928788,
        -0.00040977396,
        0.00021232553,
    ),
)
DIGAMMA_MIDDLE = (
    *(1.5061177, 0.22132295, -0.024395231, 0.003571313, -0.0005853111, 0.00010211782),
    *(
        -1.8922576e-05,
        3.50735e-06,
        -5.2744286e-07,
        9.1913044e-08,
        -3.6837225e-08,
        9.671372e-09,
    ),
    -9.0412516e-10,
)
DIGAMMA_ROOT = 1.4616321325302124
DIGAMMA_ROOT_LOW = 1.4616321449683623 - DIGAMMA_ROOT
STIRLING = (1 / 12, -1 / 360, 1 / 1260)
DIGAMMA_TAIL = (1 / 12, -1 / 120, 1 / 252)
HALF_LOG_TWO_PI = math.log(2 * math.pi) / 2


def choose(index: Value, tables: Sequence[Sequence[float]]) -> list[Value]:
    """The coefficients tables[index], lane by lane; tables have one length."""
    build = builder_of(index)
    rows = [build.constant(value, "f32") for value in tables[0]]
    for k, table in enumerate(tables[1:], 1):
        rows = [where(index >= k, new, old) for new, old in zip(table, rows, strict=True)]
    return rows


def erf_small(x: Value) -> Value:
    """erf(x) - x for |x| <= 0.92."""
    return x * horner(x * x, ERF_SMALL)


def erf(x: Value) -> Value:
    """A polynomial below 0.9; above, 1 - e^-Q(x)."""
    magnitude = absolute(x)
    n, r = reduce_exp(-horner(at_most(magnitude, 4.0), ERF_LARGE))
    far = 1.0 - exp_reduced(r) * power_of_two(n)
    near = magnitude + erf_small(magnitude)
    return with_sign(where(magnitude < 0.9, near, far), x)


def erfc(x: Value) -> Value:
    """1 - erf(x) below 0.9; above, e^(-x^2) u P(u) with x^2 as a pair."""
    magnitude = absolute(x)
    bounded = at_most(magnitude, 10.25)
    square, square_low = exact_product(bounded, bounded)
    n, r = reduce_exp(-square)
    r = r - square_low
    shifted, lost = exact_sum(bounded, 2.0)
    u = 1.0 / shifted
    u = fma(u, fma(-u, lost, fma(-u, shifted, 1.0)), u)
    factor = u * horner(u, ERFC)
    exponential = fma(r * r, horner(r, EXP), r)
    far = scale(fma(factor, exponential, factor), n)
    near = (1.0 - x) - erf_small(x)
    return where(magnitude < 0.9, near, where(x < 0.0, 2.0 - far, far))


def erf_inv(x: Value) -> Value:
    """x P(w) with w = -log(1 - x^2), by two polynomials."""
    square, square_low = exact_product(x, x)
    w = -log1p_pair(-square, -square_low)
    tail = w >= 5.0
    t = where(tail, square_root(w) - 3.0, w - 2.5)
    rows = [where(tail, a, b) for a, b in zip(ERF_INV_TAIL, ERF_INV_CENTRE, strict=True)]
    result = x * horner(t, rows)
    magnitude = absolute(x)
    result = where(magnitude.eq(1.0), x * INFINITY, result)
    return where(magnitude > 1.0, NAN, result)


def fold(x: Value) -> tuple[Value, Value]:
    """(f, is whole): the distance f of x >= 0 to the nearest integer, 0 <= f <= 1/2."""
    f = absolute(x - nearest(x))
    return f, f.eq(0.0)


def lgamma(x: Value) -> Value:
    """log |gamma(x)|: reflected up to -1/2, three polynomials to 8, then Stirling's series."""
    reflected = x <= -0.5
    magnitude = absolute(x)
    a = where(reflected, magnitude, x)
    logarithm = log(magnitude)
    value = where(magnitude >= 8.0, stirling(magnitude, logarithm), lgamma_low(a, logarithm))
    f, is_pole = fold(magnitude)
    sine = f * horner(f * f, SINPI)
    mirror = log(math.pi / (where(reflected, magnitude, 1.0) * sine)) - value
    result = where(reflected, mirror, value)
    pole = is_pole & (x <= 0.0)
    return where(pole | magnitude.eq(INFINITY), INFINITY, result)


def lgamma_low(a: Value, logarithm: Value) -> Value:
    """lgamma for -1/2 < a < 8; roots at 1 and 2 are factors."""
    near_zero = a < 0.5
    index = where(a < 1.5, 0, where(a < 3.0, 1, 2), "i32")
    centre = where(near_zero, 0.0, where(a < 1.5, 1.0, where(a < 3.0, 2.0, 5.5)))
    t = a - centre
    polynomial = horner(t, choose(index, (LGAMMA_ONE, LGAMMA_TWO, LGAMMA_MIDDLE)))
    factor = where(a < 3.0, t, 1.0)
    return fma(factor, polynomial, where(near_zero, -logarithm, 0.0))


def stirling(x: Value, logarithm: Value) -> Value:
    """(x - 1/2) (log x - 1) + log(2 pi)/2 - 1/2 + 1/(12 x) - ..."""
    inverse = 1.0 / x
    series = fma(inverse, horner(inverse * inverse, STIRLING), HALF_LOG_TWO_PI - 0.5)
    return fma(x - 0.5, logarithm - 1.0, series)


def digamma(x: Value) -> Value:
    """Reflected below 0, one step of the recurrence below 1, two polynomials to 8, a series."""
    negative = x < 0.0
    y = where(negative, 1.0 - x, where(x < 1.0, x + 1.0, x))
    value = where(y < 8.0, digamma_low(y), digamma_series(y))
    correction = where(x < 1.0, 1.0 / x, 0.0)
    result = value - where(negative, pi_cotangent(x), correction)
    pole = (x <= 0.0) & x.build.op("floor", x).eq(x)
    return where(pole, NAN, result)


def digamma_low(y: Value) -> Value:
    """digamma for 1 <= y < 8; the root is a factor."""
    middle = y >= 3.0
    tables = zip(DIGAMMA_MIDDLE, DIGAMMA_LOW, strict=True)
    rows = [where(middle, a, b) for a, b in tables]
    polynomial = horner(y - where(middle, 5.0, 2.0), rows)
    from_root = (y - DIGAMMA_ROOT) - DIGAMMA_ROOT_LOW
    return where(middle, 1.0, from_root) * polynomial


def digamma_series(y: Value) -> Value:
    """log y - 1/(2 y) - 1/(12 y^2) + ..."""
    inverse = 1.0 / y
    squared = inverse * inverse
    tail = fma(inverse, 0.5, squared * horner(squared, DIGAMMA_TAIL))
    return where(y < INFINITY, log(y) - tail, y)


def pi_cotangent(x: Value) -> Value:
    """pi cot(pi x)."""
    f = x - nearest(x)
    magnitude = absolute(f)
    steep = magnitude > 0.25
    turn = where(steep, 0.5 - magnitude, magnitude)
    angle, angle_low = exact_product(turn, PI_HIGH)
    tangent = tan_reduced(angle, fma(turn, PI_LOW, angle_low))
    cotangent = where(steep, tangent * math.pi, math.pi / tangent)
    return where(f < 0.0, -cotangent, cotangent)
