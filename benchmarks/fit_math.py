"""Fits the polynomials of `xcube.lowering.cube.math`: prints each table, lowest power first, with
its largest weighted error. Each fit minimises the largest error by iteratively reweighted least
squares (Lawson), then rounds one coefficient after the other to single precision, refitting the
rest.

Run: python benchmarks/fit_math.py [NAME ...]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
POINTS = 2000
ROUNDS = 120
LOG2 = math.log(2)


@dataclass(frozen=True)
class Fit:
    """`terms` coefficients of a polynomial for `function` on [low, high]; `weight(x, f(x))` turns
    an error of the polynomial into the relative error of the result it serves."""

    function: Function
    low: float
    high: float
    terms: int
    weight: Callable[[np.ndarray, np.ndarray], np.ndarray]


def precise(function: Callable[[mpmath.mpf], mpmath.mpf]) -> Function:
    """A function of arrays, evaluated with 40 digits."""

    def evaluate(x: np.ndarray) -> np.ndarray:
        with mpmath.workdps(40):
            return np.array([float(function(mpmath.mpf(float(v)))) for v in x])

    return evaluate


def root(
    function: Callable[[mpmath.mpf], mpmath.mpf],
) -> Callable[[mpmath.mpf], mpmath.mpf]:
    """t -> f(sqrt t) / sqrt t, the even part of an odd function."""
    return lambda t: function(mpmath.sqrt(t)) / mpmath.sqrt(t)


def lawson(matrix: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Coefficients with the smallest largest weighted error."""
    scale = np.abs(matrix).max(0)
    importance = np.ones(len(values))
    best, best_error = np.zeros(matrix.shape[1]), np.inf
    for _ in range(ROUNDS):
        rows = weight * np.sqrt(importance)
        system = (matrix / scale) * rows[:, None]
        found = np.linalg.lstsq(system, values * rows, rcond=None)[0] / scale
        error = np.abs(weight * (matrix @ found - values))
        if error.max() < best_error:
            best, best_error = found, error.max()
        importance *= error / error.mean() + 1e-3
        importance *= len(values) / importance.sum()
    return best


def solve(fit: Fit) -> tuple[list[float], float]:
    """The rounded coefficients of a fit and their largest weighted error."""
    angles = np.pi * (np.arange(POINTS) + 0.5) / POINTS
    x = 0.5 * (fit.low + fit.high) + 0.5 * (fit.high - fit.low) * np.cos(angles)
    values = fit.function(x)
    weight = fit.weight(x, values)
    powers = x[:, None] ** np.arange(fit.terms)
    fixed: list[float] = []
    while len(fixed) < fit.terms:
        left = values - powers[:, : len(fixed)] @ np.array(fixed)
        free = lawson(powers[:, len(fixed) :], left, weight)
        fixed.append(float(np.float32(free[0])))
    error = np.abs(weight * (powers @ np.array(fixed) - values)).max()
    return fixed, float(error)


def relative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 1 / np.abs(y)


def after_one(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For 1 + x y."""
    return np.abs(x) / np.abs(1 + x * y)


m = mpmath
HALF = LOG2 / 2 + 1e-4
QUARTER = (math.pi / 4 + 0.02) ** 2
FITS = {
    "EXP": Fit(precise(lambda r: (m.exp(r) - 1 - r) / r**2), -HALF, HALF, 5,
               lambda r, y: r**2 / np.exp(r)),
    "EXP2": Fit(precise(lambda r: (m.exp(r * m.log(2)) - 1) / r), -0.501, 0.501, 6,
                lambda r, y: np.abs(r) / np.exp2(r)),
    "LOG": Fit(precise(lambda f: (m.log1p(f) - f + f**2 / 2) / f**3), 0.5**0.5 - 1, 2**0.5 - 1, 8,
               lambda f, y: np.abs(f**3 / np.log1p(f))),
    "ATANH_TAIL": Fit(precise(lambda t: (root(m.atanh)(t) - 1 - t / 3) / t**2), 1e-9, 0.0296, 3,
                      lambda t, y: t**2),
    "TANH": Fit(precise(lambda t: (root(m.tanh)(t) - 1) / t), 1e-9, 0.65**2, 5, after_one),
    "SINH": Fit(precise(lambda t: (root(m.sinh)(t) - 1) / t), 1e-9, 1.0, 4, after_one),
    "ASINH": Fit(precise(lambda t: (root(m.asinh)(t) - 1) / t), 1e-9, 0.25, 6, after_one),
    "ATANH": Fit(precise(lambda t: (root(m.atanh)(t) - 1) / t), 1e-9, 0.25, 7, after_one),
    "SIN": Fit(precise(lambda t: (root(m.sin)(t) - 1) / t), 1e-9, QUARTER, 3, after_one),
    "COS": Fit(precise(lambda t: (m.cos(m.sqrt(t)) - 1 + t / 2) / t**2), 1e-6, QUARTER, 3,
               lambda t, y: t**2 / np.cos(np.sqrt(t))),
    "TAN": Fit(precise(lambda t: (root(m.tan)(t) - 1) / t), 1e-9, QUARTER, 7, after_one),
    "SINPI": Fit(precise(lambda t: (m.sin(m.pi * m.sqrt(t)) / m.sqrt(t))), 1e-9, 0.25, 6, relative),
    "ASIN": Fit(precise(lambda t: (root(m.asin)(t) - 1) / t), 1e-9, 0.25, 5, after_one),
    "ATAN": Fit(precise(lambda t: (root(m.atan)(t) - 1) / t), 1e-9, 1.0, 9, after_one),
    "ERF_SMALL": Fit(precise(lambda t: root(m.erf)(t) - 1), 1e-9, 0.92**2, 7,
                     lambda t, y: 1 / (1 + y)),
    "ERF_LARGE": Fit(precise(lambda x: -m.log(m.erfc(x))), 0.88, 4.0, 8,
                     lambda x, y: np.exp(-y) / (1 - np.exp(-y))),
    "ERFC": Fit(precise(lambda u: _erfcx(1 / u - 2) / u), 1 / 12.2, 1 / 2.89, 9, relative),
    "ERF_INV_CENTRE": Fit(precise(lambda w: _erf_inv_ratio(w + 2.5)), -2.5 + 1e-9, 2.5, 9,
                          relative),
    "ERF_INV_TAIL": Fit(precise(lambda w: _erf_inv_ratio((w + 3) ** 2)), 5**0.5 - 3, 4.1 - 3, 9,
                        relative),
    "ERF_INV_FAR": Fit(precise(lambda w: _erf_inv_ratio((w + 5) ** 2)), -1.0, 1.2, 6, relative),
    "LGAMMA_ONE": Fit(precise(lambda t: m.loggamma(1 + t) / t), -0.5, 0.5, 13, relative),
    "LGAMMA_TWO": Fit(precise(lambda t: m.loggamma(2 + t) / t), -0.5, 1.0, 13, relative),
    "LGAMMA_MIDDLE": Fit(precise(lambda t: m.loggamma(5.5 + t)), -2.5, 2.5, 13, relative),
    "DIGAMMA_LOW": Fit(precise(lambda t: _digamma_ratio(2 + t)), -1.0, 1.0, 13, relative),
    "DIGAMMA_MIDDLE": Fit(precise(lambda t: m.digamma(5 + t)), -2.0, 3.0, 13, relative),
}  # fmt: skip
_DIGAMMA_ROOT = mpmath.findroot(mpmath.digamma, 1.4616321449683623)


def _erfcx(a: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(a * a) * mpmath.erfc(a)


def _erf_inv_ratio(w: mpmath.mpf) -> mpmath.mpf:
    """erf_inv(x) / x where w = -log(1 - x^2)."""
    with mpmath.workdps(60):
        x = mpmath.sqrt(-mpmath.expm1(-w))
        return mpmath.erfinv(x) / x


def _digamma_ratio(x: mpmath.mpf) -> mpmath.mpf:
    if abs(x - _DIGAMMA_ROOT) < 1e-12:
        return mpmath.polygamma(1, x)
    return mpmath.digamma(x) / (x - _DIGAMMA_ROOT)


def main() -> None:
    for name in sys.argv[1:] or FITS:
        coefficients, error = solve(FITS[name])
        values = ", ".join(str(np.float32(c)) for c in coefficients)
        print(f"{name} = ({values})  # {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
