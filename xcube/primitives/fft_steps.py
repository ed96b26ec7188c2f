"""Discrete Fourier transforms of complex numbers along one axis, as compositions: products with
small matrices of roots of unity, and Bluestein's convolution where prime factors are large.
Roots of unity are tables of the program, computed in double precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.ir import Aval, Primitive
from xcube.primitives.contract import dot_general
from xcube.primitives.elementwise import mul
from xcube.primitives.lowered import Constant
from xcube.primitives.shape import broadcast_in_dim, reshape, transpose
from xcube.primitives.view import pad, scalar_like, slice_in_dim
from xcube.trace import bind

FEW = 64  # terms of a transform that is one product with a matrix
LARGEST = 13  # the largest prime factor of a length that is transformed by its factors

Core = Callable[..., Any]  # (x, axis, inverse, scale) -> scale times the sums along the axis

# tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Numbers that a program holds: what `make(*arguments)` gives, in a dtype."""

    make: Callable[..., np.ndarray]
    arguments: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def value(self) -> np.ndarray:
        """The numbers."""
        return _numbers(self)

    def __str__(self) -> str:
        return f"{self.make.__name__}{self.arguments}".replace(" ", "")


@functools.lru_cache(maxsize=64)
def _numbers(table: Table) -> np.ndarray:
    numbers = table.make(*table.arguments)
    assert numbers.shape == table.shape, (numbers.shape, table.shape)
    return np.ascontiguousarray(numbers.astype(table.dtype))


fft_table_p = Primitive(
    "fft_table",
    abstract=lambda *, held: Aval(held.shape, held.dtype),
    lower=Constant(),
)


def table(make: Callable[..., np.ndarray], arguments: Any, shape: Any, dtype: Any) -> Any:
    """The numbers that `make(*arguments)` gives, as an array of the program."""
    return bind(fft_table_p, held=Table(make, tuple(arguments), tuple(shape), np.dtype(dtype)))


def roots(numerators: np.ndarray, n: int) -> np.ndarray:
    """exp(-2 pi i k / n) in double precision, for integers k: by eighths of a turn, so that the
    angle is small and symmetries are exact."""
    k = np.asarray(numerators, np.int64) % n
    octant, rest = np.divmod(8 * k, n)
    flipped = octant % 2 == 1
    angle = (2 * np.pi / 8 / n) * np.where(flipped, n - rest, rest)
    c, s = np.cos(angle), np.sin(angle)
    quarter = (octant + 1) // 2 % 4
    s = np.where(flipped, -s, s)
    turned = (c + 1j * s) * np.array([1, 1j, -1, -1j])[quarter]
    return np.conj(turned)


def matrix(n: int, inverse: bool, scale: float) -> np.ndarray:
    """The transform as a matrix: [place, frequency]."""
    k = np.arange(n)
    return scale * turned(roots(k[:, None] * k, n), inverse)


def twists(rows: int, columns: int, inverse: bool) -> np.ndarray:
    """Factors between the two steps of a transform of rows * columns terms."""
    numerators = np.arange(rows)[:, None] * np.arange(columns)
    return turned(roots(numerators, rows * columns), inverse)


def chirp(n: int, inverse: bool, scale: float) -> np.ndarray:
    """exp(-pi i k^2 / n) for k < n."""
    k = np.arange(n, dtype=np.int64)
    return scale * turned(roots(k * k % (2 * n), 2 * n), inverse)


def chirp_spectrum(n: int, m: int, inverse: bool) -> np.ndarray:
    """The transform of m places of the conjugate chirp, wrapped around, over m."""
    wave = np.conj(chirp(n, False, 1.0))
    wrapped = np.zeros(m, np.complex128)
    wrapped[:n] = wave
    wrapped[m - n + 1 :] = wave[:0:-1]
    return turned(np.fft.fft(wrapped) / m, inverse)


def turned(values: np.ndarray, inverse: bool) -> np.ndarray:
    """The factors of the inverse transform are conjugate."""
    return np.conj(values) if inverse else values


# steps ----------------------------------------------------------------------------------------


def factors(n: int) -> list[int]:
    """Prime factors, the least first.

    >>> factors(360)
    [2, 2, 2, 3, 3, 5]
    """
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return [*found, n] if n > 1 else found


def is_smooth(n: int) -> bool:
    """Whether a length has small prime factors only."""
    return max(factors(n), default=1) <= LARGEST


@functools.lru_cache(maxsize=256)
def roomy(n: int) -> int:
    """The least 2^a 3^b 5^c >= n with few threes and fives: a length that is quick to transform."""
    odd = [3**b * 5**c for b in range(3) for c in range(3)]
    return min(f << max(0, math.ceil(math.log2(n / f))) for f in odd)


def along(x: Any, values: Any, axis: int) -> Any:
    """x times values along an axis."""
    return mul(x, broadcast_in_dim(values, x.shape, (axis,)))


def bluestein(x: Any, axis: int, inverse: bool, scale: float, core: Core) -> Any:
    """A transform of any length as a convolution with a chirp, by two longer transforms."""
    n = x.shape[axis]
    m = roomy(2 * n - 1)
    before = table(chirp, (n, inverse, 1.0), (n,), x.dtype)
    behind = table(chirp, (n, inverse, scale), (n,), x.dtype)
    spectrum = table(chirp_spectrum, (n, m, inverse), (m,), x.dtype)
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (0, m - n, 0)
    wide = pad(along(x, before, axis), scalar_like(0, x.dtype), config)
    product = along(core(wide, axis, inverse), spectrum, axis)
    back = core(product, axis, not inverse)
    return along(slice_in_dim(back, 0, n, axis=axis), behind, axis)


def transformed(x: Any, axis: int, inverse: bool, scale: float = 1.0) -> Any:
    """`scale` times the sums of x[j] exp(-2 pi i j k / n) along an axis, by products with small
    matrices; the exponent is positive if `inverse`."""
    n = x.shape[axis]
    if not is_smooth(n) and n > FEW:
        return bluestein(x, axis, inverse, scale, transformed)
    if n > FEW:
        return _by_factors(x, axis, inverse, scale)
    turn = table(matrix, (n, inverse, scale), (n, n), x.dtype)
    found = dot_general(x, turn, (((axis,), (0,)), ((), ())))
    order = list(range(x.ndim - 1))
    return transpose(found, (*order[:axis], x.ndim - 1, *order[axis:]))


def _by_factors(x: Any, axis: int, inverse: bool, scale: float) -> Any:
    """Two steps: columns of a matrix of the terms, then its rows."""
    n, rows = x.shape[axis], 1
    for factor in factors(n):
        if rows * factor > FEW:
            break
        rows *= factor
    columns = n // rows
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    terms = reshape(x, (*before, rows, columns, *behind))
    terms = transformed(terms, axis, inverse)
    twist = table(twists, (rows, columns, inverse), (rows, columns), x.dtype)
    terms = mul(terms, broadcast_in_dim(twist, terms.shape, (axis, axis + 1)))
    terms = transformed(terms, axis + 1, inverse, scale)
    order = list(range(terms.ndim))
    order[axis], order[axis + 1] = axis + 1, axis
    return reshape(transpose(terms, order), x.shape)
