"""Transforms of a few complex numbers in registers."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from xcube.lowering.cube.build import Builder, Value

Pair = tuple[Value, Value]  # real and imaginary parts


def plus(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def minus(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def times(b: Builder, x: Pair, y: Pair) -> Pair:
    """The product of complex numbers."""
    real = b.fma(x[0], y[0], -(x[1] * y[1]))
    return real, b.fma(x[0], y[1], x[1] * y[0])


def butterfly(b: Builder, terms: Sequence[Pair]) -> list[Pair]:
    """The sums of terms[j] exp(-2 pi i j k / n), for all k."""
    if len(terms) == 1:
        return list(terms)
    return _even(b, terms) if len(terms) % 2 == 0 else _odd(b, terms)


def _even(b: Builder, terms: Sequence[Pair]) -> list[Pair]:
    """From the transforms of the terms at even and at odd places."""
    n = len(terms)
    even, odd = butterfly(b, terms[::2]), butterfly(b, terms[1::2])
    turned = [_turn(b, x, k, n) for k, x in enumerate(odd)]
    pairs = list(zip(even, turned, strict=True))
    return [plus(*pair) for pair in pairs] + [minus(*pair) for pair in pairs]


def _turn(b: Builder, x: Pair, k: int, n: int) -> Pair:
    """x exp(-2 pi i k / n)."""
    real, imag = x
    if k == 0:
        return x
    if 4 * k == n:
        return imag, -real
    if 8 * k == n:
        return (real + imag) * math.sqrt(0.5), (imag - real) * math.sqrt(0.5)
    if 8 * k == 3 * n:
        return (imag - real) * math.sqrt(0.5), (real + imag) * -math.sqrt(0.5)
    root = cmath.exp(-2j * math.pi * k / n)
    constant = [b.lift(part, real) for part in (root.real, root.imag)]
    return times(b, x, (constant[0], constant[1]))


def _odd(b: Builder, terms: Sequence[Pair]) -> list[Pair]:
    """From sums and differences of the terms at places j and n - j."""
    n, half, first = len(terms), len(terms) // 2, terms[0]
    sums = [plus(terms[j], terms[n - j]) for j in range(1, half + 1)]
    differences = [minus(terms[j], terms[n - j]) for j in range(1, half + 1)]
    total = first
    for pair in sums:
        total = plus(total, pair)
    found = [total] * n
    for k in range(1, half + 1):
        angles = [2 * math.pi * (j * k % n) / n for j in range(1, half + 1)]
        along = _weighted(b, sums, [math.cos(a) for a in angles], first)
        across = _weighted(b, differences, [math.sin(a) for a in angles])
        found[k] = along[0] + across[1], along[1] - across[0]
        found[n - k] = along[0] - across[1], along[1] + across[0]
    return found


def _weighted(
    b: Builder, terms: Sequence[Pair], weights: Sequence[float], total: Pair | None = None
) -> Pair:
    """total + the sum of terms times weights."""
    for (real, imag), weight in zip(terms, weights, strict=True):
        if total is None:
            total = real * weight, imag * weight
        else:
            total = b.fma(real, weight, total[0]), b.fma(imag, weight, total[1])
    assert total is not None
    return total
