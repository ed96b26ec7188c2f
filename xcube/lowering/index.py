"""Index algebra: integer expressions over the dimensions of an iteration space, with known ranges.

    index  = const + sum(coefficient * symbol)
    symbol = Dim(number, extent, low, high)   a loop index, known to lie in low..high
           | Dynamic(node, low, high)         an integer element known only at run time, clamped
           | Quotient(index, divisor) | Remainder(index, divisor)
           | Clamped(index, low, high)

Everything is affine where it can be, so that strides can be read off. Division by a constant
simplifies by ranges; where a dimension would have to be cut in two for that, `Split` asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dim:
    number: int
    extent: int
    low: int = 0
    high: int = -1

    @property
    def range(self) -> tuple[int, int]:
        return self.low, self.extent - 1 if self.high < 0 else self.high


@dataclass(frozen=True, slots=True)
class Dynamic:
    node: Any
    low: int
    high: int

    @property
    def range(self) -> tuple[int, int]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Quotient:
    index: Index
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        low, high = self.index.range
        return low // self.divisor, high // self.divisor


@dataclass(frozen=True, slots=True)
class Remainder:
    index: Index
    divisor: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, self.divisor - 1


@dataclass(frozen=True, slots=True)
class Clamped:
    index: Index
    low: int
    high: int

    @property
    def range(self) -> tuple[int, int]:
        low, high = self.index.range
        return min(max(low, self.low), self.high), min(max(high, self.low), self.high)


Symbol = Dim | Dynamic | Quotient | Remainder | Clamped
NESTED = (Quotient, Remainder, Clamped)


class Split(Exception):
    """Dimension `number` should be cut into (extent / inner, inner) to keep indices affine."""

    def __init__(self, number: int, inner: int) -> None:
        self.number, self.inner = number, inner
        super().__init__(number, inner)


@dataclass(frozen=True, slots=True)
class Index:
    """const + sum of coefficient * symbol; terms are sorted, coefficients are not zero."""

    const: int
    terms: tuple[tuple[Symbol, int], ...] = ()

    @property
    def range(self) -> tuple[int, int]:
        low = high = self.const
        for symbol, coefficient in self.terms:
            a, b = symbol.range
            low += min(a * coefficient, b * coefficient)
            high += max(a * coefficient, b * coefficient)
        return low, high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.const + other, self.terms) if other else self
        total = dict(self.terms)
        for symbol, coefficient in other.terms:
            total[symbol] = total.get(symbol, 0) + coefficient
        return _rejoined(Index(self.const + other.const, _terms(total)))

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return Index(0)
        return Index(self.const * factor, tuple((s, c * factor) for s, c in self.terms))

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: Index | int) -> Index:
        return -self + other

    def divmod(self, divisor: int, may_split: bool = False) -> tuple[Index, Index]:
        """Floor quotient and remainder by a positive constant."""
        if divisor == 1:
            return self, Index(0)
        whole, rest = _multiples(self, divisor)
        low, high = rest.range
        if low // divisor == high // divisor:
            return whole + low // divisor, rest - low // divisor * divisor
        if may_split:
            for symbol, coefficient in rest.terms:
                inner = divisor // coefficient if coefficient > 0 else 0
                if (
                    isinstance(symbol, Dim)
                    and inner > 1
                    and divisor % coefficient == 0
                    and symbol.extent % inner == 0
                    and symbol.extent > inner
                ):
                    raise Split(symbol.number, inner)
        quotient = Index(0, ((Quotient(rest, divisor), 1),))
        remainder = Index(0, ((Remainder(rest, divisor), 1),))
        return whole + quotient, remainder

    def __floordiv__(self, divisor: int) -> Index:
        return self.divmod(divisor)[0]

    def __mod__(self, divisor: int) -> Index:
        return self.divmod(divisor)[1]

    def coefficient(self, number: int) -> int:
        """The coefficient of a dimension."""
        return sum(c for s, c in self.terms if isinstance(s, Dim) and s.number == number)

    def limited(self, limits: dict[int, tuple[int, int]]) -> Index:
        """The index where some dimensions are known to lie in narrower ranges."""
        terms = tuple((_limit(symbol, limits), c) for symbol, c in self.terms)
        return self if terms == self.terms else Index(self.const, terms)

    @property
    def symbols(self) -> list[Symbol]:
        return [symbol for symbol, _ in self.terms]


def _limit(symbol: Symbol, limits: dict[int, tuple[int, int]]) -> Symbol:
    if isinstance(symbol, Dim):
        if symbol.number not in limits:
            return symbol
        low, high = limits[symbol.number]
        a, b = symbol.range
        return Dim(symbol.number, symbol.extent, max(a, low), min(b, high))
    if isinstance(symbol, Quotient | Remainder):
        return type(symbol)(symbol.index.limited(limits), symbol.divisor)
    return symbol


def _rejoined(index: Index) -> Index:
    """d * (x // d) + x % d is x."""
    for symbol, coefficient in index.terms:
        if not isinstance(symbol, Remainder):
            continue
        quotient = Quotient(symbol.index, symbol.divisor)
        rest = dict(index.terms)
        if rest.get(quotient) == coefficient * symbol.divisor:
            del rest[quotient], rest[symbol]
            return Index(index.const, _terms(rest)) + symbol.index * coefficient
    return index


def _key(term: tuple[Symbol, int]) -> tuple[int, int, int]:
    symbol = term[0]
    if isinstance(symbol, Dim):
        return 0, symbol.number, 0
    return 1, 0, 0


def _terms(total: dict[Symbol, int]) -> tuple[tuple[Symbol, int], ...]:
    return tuple(sorted(((s, c) for s, c in total.items() if c), key=_key))


def _multiples(index: Index, divisor: int) -> tuple[Index, Index]:
    """index = divisor * whole + rest, where every term of rest is not divisible."""
    whole = tuple((s, c // divisor) for s, c in index.terms if c % divisor == 0)
    rest = tuple((s, c) for s, c in index.terms if c % divisor)
    return Index(index.const // divisor, whole), Index(index.const % divisor, rest)


def dim(number: int, extent: int) -> Index:
    """The index of a dimension; 0 where it has one element."""
    return Index(0) if extent == 1 else Index(0, ((Dim(number, extent), 1),))


def fit(indices: Sequence[Index], sizes: Sequence[int], shape: Sequence[int]) -> Any:
    """Indices along some sizes as an index of a shape that differs from them by dimensions of one
    element only; None if it differs otherwise."""
    if [size for size in sizes if size != 1] != [size for size in shape if size != 1]:
        return None
    wide = iter([index for index, size in zip(indices, sizes, strict=True) if size != 1])
    return tuple([Index(0) if size == 1 else next(wide) for size in shape])


def clamp(index: Index, low: int, high: int) -> Index:
    """index limited to low..high, free where its range says so."""
    a, b = index.range
    if low <= a and b <= high:
        return index
    if b <= low or low >= high:
        return Index(low)
    if a >= high:
        return Index(high)
    return Index(0, ((Clamped(index, low, high), 1),))


def ravel(indices: list[Index] | tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Row-major position of a multi-dimensional index."""
    position, stride = Index(0), 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        position = position + index * stride
        stride *= size
    return position


def unravel(position: Index, shape: tuple[int, ...], may_split: bool = False) -> list[Index]:
    """Multi-dimensional index of a row-major position."""
    indices: list[Index] = []
    for size in reversed(shape[1:]):
        position, last = position.divmod(size, may_split)
        indices.append(last)
    return [*([position] if shape else []), *reversed(indices)]
