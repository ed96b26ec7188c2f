"""How a transform runs: its passes, after Stockham, and the factors between them.

A pass of radix r over n = r * span * rest terms (times `width` columns side by side) takes the
terms x[q + span (p + rest j)], j < r, transforms them, multiplies by roots of unity of order
r * rest and puts them at y[q + span (r p + k)], k < r, for all q < span and p < rest. The next pass
has r times the span; after the last, everything is in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xcube.primitives.fft_steps import factors, roots, turned


@dataclass(frozen=True)
class Pass:
    """`lanes` neighbours are handled at once; `woven`: a line holds several p, and results are put
    in order in registers; `ragged`: the last line along q is partial."""

    radix: int
    span: int
    rest: int
    lanes: int

    @property
    def woven(self) -> bool:
        return self.lanes > self.span and self.lanes % self.span == 0

    @property
    def ragged(self) -> bool:
        return not self.woven and self.span % self.lanes != 0

    @property
    def lines(self) -> int:
        """Lines along q and p of a woven pass."""
        return -(-self.span * self.rest // self.lanes)

    @property
    def factors(self) -> int:
        """Numbers of the table."""
        if self.rest == 1:
            return 0
        places = self.lines * self.lanes if self.woven else self.rest
        return 2 * (self.radix - 1) * places


@dataclass(frozen=True)
class Plan:
    """A transform of n terms in `width` columns side by side, by lines of `widest` at most. `real`:
    the terms are pairs of real ones, and there are n + 1 frequencies of these."""

    n: int
    width: int
    widest: int
    inverse: bool
    scale: float
    real: bool = False

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        found, span, rest = [], self.width, self.n
        for radix in _radices(self.n):
            rest //= radix
            found.append(Pass(radix, span, rest, self._lanes(span, rest)))
            span *= radix
        return tuple(found)

    def _lanes(self, span: int, rest: int) -> int:
        """Lines as wide as can be: whole ones along q, or with several p, or a partial one."""
        lanes = self.widest
        if span % lanes == 0 or (lanes % span == 0 and rest > 1):
            return lanes
        while lanes // 2 >= span:
            lanes //= 2
        return lanes

    @property
    def size(self) -> int:
        """Elements of the table: the factors of all passes, the scale, and the turns."""
        return self.scale_at + 1 + (2 * self.turns * self.widest if self.real else 0)

    @property
    def scale_at(self) -> int:
        """Where the scale is in the table."""
        return sum(p.factors for p in self.passes)

    @property
    def turns(self) -> int:
        """Lines of frequencies of real terms."""
        return -(-(self.n + 1) // self.widest)

    @property
    def front(self) -> int:
        """Elements of an array before the terms: mirrored lines begin there."""
        return self.widest if self.real else 0

    @property
    def room(self) -> int:
        """Elements of an array that holds the terms, with what partial lines write behind."""
        behind = max(p.radix * p.lanes for p in self.passes)
        return self.n * self.width + behind + 2 * self.front


def table(plan: Plan) -> np.ndarray:
    """The factors of all passes in the order in which they are read."""
    parts = [part for p in plan.passes for part in _factors(p, plan)]
    return np.concatenate([*parts, [plan.scale], *([_turns(plan)] if plan.real else [])])


def _turns(plan: Plan) -> np.ndarray:
    """exp(-2 pi i k / 2n) times -i for all frequencies, conjugate in the inverse transform, by
    lines of real and imaginary parts."""
    k = np.arange(plan.turns * plan.widest)
    found = turned(-1j * roots(k, 2 * plan.n), plan.inverse)
    lines = np.stack([np.real(found), np.imag(found)]).reshape(2, plan.turns, plan.widest)
    return lines.transpose(1, 0, 2).reshape(-1)


def _factors(p: Pass, plan: Plan) -> Iterator[np.ndarray]:
    if p.rest == 1:
        return
    places = np.arange(p.lines * p.lanes) // p.span if p.woven else np.arange(p.rest)
    powers = np.arange(1, p.radix)
    found = roots(places[:, None] * powers, p.radix * p.rest)
    lanes = p.lanes if p.woven else 1
    pairs = np.stack([np.real(found), np.imag(found)], -1).reshape(-1, lanes, p.radix - 1, 2)
    yield pairs.transpose(0, 2, 3, 1).reshape(-1)


def _radices(n: int) -> list[int]:
    """Eights, and fours or a two for what is left, then odd primes.

    >>> _radices(1000), _radices(16), _radices(1)
    ([8, 5, 5, 5], [4, 4], [1])
    """
    primes = factors(n)
    twos, odd = primes.count(2), [p for p in primes if p > 2]
    eights, left = divmod(twos, 3)
    if left == 1 and eights:
        found = [8] * (eights - 1) + [4, 4]
    else:
        found = [8] * eights + ([1 << left] if left else [])
    return [*found, *odd] or [1]
