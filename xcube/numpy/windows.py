"""Window functions of signal processing: bartlett, blackman, hamming, hanning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xcube import dtypes
from xcube.array import Array
from xcube.numpy import elementwise as e
from xcube.numpy.operands import scalar
from xcube.primitives import view
from xcube.primitives.shape import full


def _window(name: str, function: Callable[[Array, int], Array], doc: str) -> Callable[[int], Array]:
    def window(M: int) -> Array:
        dtype = dtypes.default_dtype("float")
        if M <= 1:
            return full((max(M, 0),), scalar(1, dtype))
        return function(view.iota(dtype, (M,), 0), M)

    window.__name__ = window.__qualname__ = name
    window.__doc__, window.__module__ = doc, "xcube.numpy"
    return window


def _cosine(n: Array, M: int, turns: int = 1) -> Any:
    return e.cos(e.multiply(n, 2 * math.pi * turns / (M - 1)))


def _bartlett(n: Array, M: int) -> Array:
    return e.subtract(1, e.abs(e.divide(e.subtract(e.multiply(n, 2), M - 1), M - 1)))


def _raised(constant: float) -> Callable[[Array, int], Array]:
    return lambda n, M: e.subtract(constant, e.multiply(_cosine(n, M), 1 - constant))


def _blackman(n: Array, M: int) -> Array:
    first = e.subtract(0.42, e.multiply(_cosine(n, M), 0.5))
    return e.add(first, e.multiply(_cosine(n, M, 2), 0.08))


bartlett = _window("bartlett", _bartlett, "A triangle that is 0 at both ends: -> f[M].")
blackman = _window("blackman", _blackman, "Blackman's window of two cosines: -> f[M].")
hamming = _window("hamming", _raised(0.54), "A raised cosine, 0.08 at both ends: -> f[M].")
hanning = _window("hanning", _raised(0.5), "A raised cosine, 0 at both ends: -> f[M].")
