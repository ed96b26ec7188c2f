"""Whether units of a launch touch elements of their own: an index as a sum of products of places,
launch scalars and loop indices, and whether it differs between any two units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.ir import Atom, Const, Kernel, Name

Symbol = tuple[object, ...]
Term = tuple[Symbol, ...]  # a product, sorted
Sum = dict[Term, int]

_AXES = ("cube_pos.x", "unit_pos.x", "unit_pos.y", "unit_pos.z")


class Affine:
    """Indices of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.dim = kernel.cube_dim
        self.scalars = {scalar.number for scalar in kernel.scalars}
        self.lets: dict[int, ir.Let] = {}
        self.loops: dict[int, ir.For] = {}
        for s in rebuild.every(kernel.body):
            if isinstance(s, ir.Let):
                self.lets[s.target.number] = s
            elif isinstance(s, ir.For):
                self.loops[s.index.number] = s
        self._sums: dict[int, Sum] = {}

    def sum(self, atom: Atom) -> Sum:
        """The index as a sum; what cannot be looked into is a symbol of its own."""
        if isinstance(atom, Const):
            return {(): int(atom.value)} if atom.value else {}
        if atom.number not in self._sums:
            self._sums[atom.number] = self._of(atom)
        return self._sums[atom.number]

    def key(self, atom: Atom) -> frozenset[tuple[Term, int]]:
        """Equal keys are equal numbers, in one unit and turn."""
        return frozenset(self.sum(atom).items())

    def goes_with(self, index: Atom, loop: ir.For | ir.Loop) -> bool:
        """Whether an index depends on the turn of a loop."""
        symbol = ("loop", loop.index.number) if isinstance(loop, ir.For) else None
        return any(symbol in term for term in self.sum(index))

    def is_own(self, index: Atom, lanes: int) -> bool:
        """Whether no two units, and no two turns of loops, have an element in common among the
        `lanes` neighbours from an index on, or among the elements of a line of indices."""
        found = self._scattered(index)
        if found is None:
            return False
        total, extent = found
        if index.type.lanes == 1:
            extent += lanes - 1
        if not extent:
            total = self._outer(total)
        weights: Counter[Symbol] = Counter()
        for term, factor in total.items():
            varies = any(symbol[0] in ("place", "loop") for symbol in term)
            if varies and len(term) == 1:
                weights[term[0]] += factor
            elif varies or any(symbol[0] not in ("scalar", "count") for symbol in term):
                return False
        return self._is_mixed_radix(weights, extent)

    def are_own(self, places: Sequence[tuple[Atom, int]]) -> bool:
        """The same of several accesses, (index, lanes), that a unit makes together."""
        sums = [dict(self.sum(index)) for index, _ in places]
        starts = [total.pop((), 0) for total in sums]
        if any(total != sums[0] for total in sums):
            return False
        first, reach = places[0][0], max(starts) - min(starts)
        widest = max(lanes for _, lanes in places)
        return self.is_own(first, widest + reach) and (reach == 0 or first.type.lanes == 1)

    def _outer(self, total: Sum) -> Sum:
        """The digits above a loop over the elements of a row, whose length is a scalar: all of them
        are multiples of it, or the sum is given back."""
        for term, factor in total.items():
            loop = self.loops.get(term[0][1]) if len(term) == 1 and factor == 1 else None  # type: ignore[arg-type]
            if loop is None or term[0][0] != "loop" or self.sum(loop.start):
                continue
            length = self.sum(loop.stop)
            if len(length) != 1 or self.sum(loop.step) != {(): 1}:
                continue
            ((row, times),) = length.items()
            rest = {key: value for key, value in total.items() if key != term}
            whole = [_quotient(key, row) for key in rest]
            if row and times == 1 and None not in whole:
                return dict(zip(whole, rest.values(), strict=True))  # type: ignore[arg-type]
        return total

    def _scattered(self, index: Atom) -> tuple[Sum, int] | None:
        """The index with turns of a loop through the whole grid replaced by where they begin, and
        how far apart the lanes of a line of indices are; None for a line that is no range."""
        total, extent = dict(self.sum(index)), 0
        if index.type.lanes > 1:
            if total.pop((("lane",),), 0) != 1:
                return None
            extent = index.type.lanes - 1
        for term, factor in list(total.items()):
            if len(term) == 1 and term[0][0] == "loop":
                loop = self.loops[term[0][1]]  # type: ignore[index]
                if self._strides(loop):
                    del total[term]
                    total = _plus(total, _times(self.sum(loop.start), factor))
        return total, extent

    def _strides(self, loop: ir.For) -> bool:
        """Whether a loop goes through the grid by as many steps as there are units."""
        units = self.dim[0] * self.dim[1] * self.dim[2]
        return self.sum(loop.step) == {(("count", "cube_count.x"),): units}

    def _is_mixed_radix(self, varying: Counter[Symbol], extent: int) -> bool:
        """Whether the places are digits of one number: each weighs at least as much as all below it
        can amount to."""
        sizes: dict[Symbol, float] = {("place", "cube_pos.x"): float("inf")}
        sizes.update({("place", f"unit_pos.{axis}"): size for axis, size in zip("xyz", self.dim)})  # noqa: B905
        for symbol in varying:
            if symbol[0] == "loop":
                loop = self.loops[symbol[1]]  # type: ignore[index]
                turns = _turns(loop)
                if turns is None:
                    return False
                varying[symbol] *= int(loop.step.value)  # type: ignore[union-attr]
                sizes[symbol] = turns
        if any(varying[symbol] == 0 for symbol, size in sizes.items() if size > 1):
            return False
        reach: float = extent
        digits = sorted((abs(w), sizes[symbol]) for symbol, w in varying.items())
        for weight, size in digits:
            if size > 1 and weight <= reach:
                return False
            reach += weight * (size - 1)
        return True

    def _of(self, name: Name) -> Sum:
        if name.number in self.loops:
            return {(("loop", name.number),): 1}
        if name.number in self.scalars:
            return {(("scalar", name.number),): 1}
        let = self.lets.get(name.number)
        return {(("other", name.number),): 1} if let is None else self._let(let)

    def _let(self, s: ir.Let) -> Sum:
        own: Sum = {(("other", s.target.number),): 1}
        if s.op == "add":
            return _plus(self.sum(s.args[0]), self.sum(s.args[1]))
        if s.op == "sub":
            return _plus(self.sum(s.args[0]), _times(self.sum(s.args[1]), -1))
        if s.op == "mul":
            return _product(self.sum(s.args[0]), self.sum(s.args[1]))
        if s.op in ("cast", "splat") and s.args[0].type.dtype in (*ir.INTEGERS, "index"):
            return self.sum(s.args[0])
        if s.op == "lane":
            return {(("lane",),): 1}
        if s.op in _AXES or s.op.startswith("cube_count"):
            kind = "place" if s.op in _AXES else "count"
            return {((kind, s.op),): 1}
        if s.op in ("div", "rem") and s.target.type.dtype == "index":
            return self._divided(s)
        if s.op.startswith("cube_dim"):
            return {(): self.dim["xyz".index(s.op[-1])]}
        return own

    def _divided(self, s: ir.Let) -> Sum:
        """x % n is x - x / n * n."""
        pair = tuple([self.key(atom) for atom in s.args])
        quotient: Sum = {(("quotient", *pair),): 1}
        if s.op == "div":
            return quotient
        whole = _product(quotient, self.sum(s.args[1]))
        return _plus(self.sum(s.args[0]), _times(whole, -1))


def _turns(loop: ir.For) -> int | None:
    """How many turns a loop takes, if that is known."""
    bounds: Sequence[Atom] = (loop.start, loop.stop, loop.step)
    if not all(isinstance(bound, Const) for bound in bounds):
        return None
    return len(range(*[int(bound.value) for bound in bounds]))  # type: ignore[union-attr]


def _quotient(term: Term, divisor: Term) -> Term | None:
    """A product without the factors of another; None if it does not have them."""
    left = list(term)
    for symbol in divisor:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def _plus(a: Sum, b: Sum) -> Sum:
    total = Counter(a)
    for term, factor in b.items():
        total[term] += factor
    return {term: factor for term, factor in total.items() if factor}


def _times(a: Sum, factor: int) -> Sum:
    return {term: number * factor for term, number in a.items()} if factor else {}


def _product(a: Sum, b: Sum) -> Sum:
    total: Sum = {}
    for x, m in a.items():
        for y, n in b.items():
            total = _plus(total, {tuple(sorted((*x, *y), key=repr)): m * n})
    return total
