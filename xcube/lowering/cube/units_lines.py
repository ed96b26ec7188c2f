"""What the units of a group hold, a line for each value: the algebra of `units_run.py`.

A value that all units share stays one value (`Even`). Indices that lie known distances apart are
kept as the first and the distances (`Spread`), so that accesses of neighbours are found. Everything
else is lines with one lane for each unit (`Lines`), several where the unit itself holds a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Type

_MOST = 1 << 20  # what divides 0, as far as anyone asks


@dataclass(frozen=True, slots=True)
class Even:
    """The same for all units. `multiple`: a number that divides an index, which is at least 0 then;
    0 if nothing is known."""

    value: Value
    multiple: int = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """An index: base + offsets[unit]. `multiple`: of the base, as in `Even`."""

    base: Value
    offsets: tuple[int, ...]
    multiple: int = 0


@dataclass(frozen=True, slots=True)
class Lines:
    """A line of one lane for each unit, for every lane of the unit's own value."""

    parts: tuple[Value, ...]


Held = Even | Spread | Lines


class Algebra:
    """Operations on what units hold; `width` units are a group."""

    def __init__(self, build: Builder, width: int) -> None:
        self.build, self.width = build, width

    # forms

    def even(self, value: Value) -> Even:
        """A value that all units share, with what is known of a literal."""
        constant = value.constant
        if value.dtype != "index" or constant is None or constant < 0:
            return Even(value)
        return Even(value, int(constant) or _MOST)

    def whole(self, number: int) -> Even:
        """An index known at comptime."""
        return self.even(self.build.constant(number, "index"))

    def spread(self, base: Value, offsets: Sequence[int], multiple: int) -> Held:
        """Indices at distances from a base; even if there are none."""
        first = offsets[0]
        if any(offset != first for offset in offsets):
            return Spread(base, tuple(offsets), multiple)
        shifted = base + first if first else base
        return Even(shifted, math.gcd(multiple, first) if first >= 0 and multiple else 0)

    def each(self) -> Held:
        """0, 1, 2, ...: the number of a unit in its group."""
        return self.spread(self.build.constant(0, "index"), range(self.width), _MOST)

    def parts(self, held: Held, lanes: int) -> list[Value]:
        """A line, or a scalar for all units, for each lane of a unit's value."""
        if isinstance(held, Lines):
            return list(held.parts)
        if isinstance(held, Spread):
            return [self.build.splat(held.base, self.width) + self.constants(held.offsets)]
        value = held.value
        if value.constant is not None:
            return [self.build.constant(value.constant, value.dtype)] * lanes
        return [self.build.extract(value, lane) for lane in range(lanes)]

    def lines(self, held: Held, lanes: int) -> list[Value]:
        """A line for each lane of a unit's value."""
        return [self.build.splat(part, self.width) for part in self.parts(held, lanes)]

    def line(self, held: Held) -> Value:
        """The line of a unit's scalar."""
        return self.lines(held, 1)[0]

    def constants(self, offsets: Sequence[int]) -> Value:
        """A line of indices, one for each unit."""
        step = offsets[1] - offsets[0]
        if tuple(offsets) == tuple(offsets[0] + step * k for k in range(self.width)):
            return self.build.lane(self.width) * step + offsets[0]
        return self.build.join([self.build.constant(offset, "index") for offset in offsets])

    # operations

    def operate(self, s: ir.Let, args: Sequence[Held], mask: Value | None) -> Held:
        """One operation of all units; those outside the mask must not be divided by 0."""
        type = s.target.type
        if type == _INDEX and len(args) == 2 and (rule := _RULES.get(s.op)) is not None:
            known = rule(self, *args)
            if known is not None:
                return known
        if s.op in ir.PLACES:
            return Even(self.build.place(s.op), 1)
        if all(isinstance(arg, Even) for arg in args):
            values = [arg.value for arg in args]  # type: ignore[union-attr]
            return self.even(self.build.operate(s.op, values, type, s.attrs))
        if (shape := _SHAPES.get(s.op)) is not None:
            return Lines(tuple(shape(self, s, args)))
        if s.op.startswith("reduce_"):
            return Lines((self._halved(s, args[0]),))
        if s.op == "bitcast" and s.args[0].type.lanes != type.lanes:
            return Lines(tuple(self._regrouped(s, args[0])))
        return Lines(tuple(self._elementwise(s, args, mask)))

    def _elementwise(self, s: ir.Let, args: Sequence[Held], mask: Value | None) -> list[Value]:
        lanes = s.target.type.lanes
        columns = [self.parts(a, x.type.lanes) for a, x in zip(args, s.args, strict=True)]
        if s.op in ("div", "rem") and s.target.type.dtype == "index" and mask is not None:
            columns[1] = [self._divisor(value, mask) for value in columns[1]]
        type = Type(s.target.type.dtype, self.width)
        rows = [[column[lane] for column in columns] for lane in range(lanes)]
        return [self._row(s, row, type) for row in rows]

    def _row(self, s: ir.Let, row: list[Value], type: Type) -> Value:
        """One lane of the units' values, of which some may be shared in this lane."""
        if all(value.lanes == 1 for value in row):
            row = [self.build.splat(value, self.width) for value in row]
        return self.build.operate(s.op, row, type, s.attrs)

    def _divisor(self, value: Value, mask: Value) -> Value:
        return value if value.constant else self.build.select(mask, value, 1)

    def _halved(self, s: ir.Let, arg: Held) -> Value:
        """The lanes of each unit's line combined, in the order of a line's reduction."""
        parts, op = self.lines(arg, s.args[0].type.lanes), s.op.removeprefix("reduce_")
        while (half := len(parts) // 2) > 0:
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [self.build.op(op, low, high) for low, high in pairs]
        return parts[0]

    def _regrouped(self, s: ir.Let, arg: Held) -> list[Value]:
        """The same bits in lanes of another width."""
        source, target = s.args[0].type, s.target.type
        wide, narrow = max(source, target, key=_bits), min(source, target, key=_bits)
        count, bits = _bits(wide) // _bits(narrow), _bits(narrow)
        big, small = f"u{_bits(wide)}", f"u{bits}"
        parts = self.lines(arg, source.lanes)
        if source is narrow:
            raw = [part.bitcast(small).cast(big) for part in parts]
            rows = [raw[k : k + count] for k in range(0, len(raw), count)]
            return [self._ored(row, bits).bitcast(target.dtype) for row in rows]
        words = [part.bitcast(big) for part in parts]
        pieces = [(word >> k * bits).cast(small) for word in words for k in range(count)]
        return [piece.bitcast(target.dtype) for piece in pieces]

    def _ored(self, row: list[Value], bits: int) -> Value:
        total = row[0]
        for k, part in enumerate(row[1:], 1):
            total = total | part << k * bits
        return total


_INDEX = Type("index")


def _bits(type: Type) -> int:
    return ir.BITS[type.dtype]


# what is known of indices -----------------------------------------------------------------------


def _based(held: Held, width: int) -> Spread | None:
    """Base and offsets of what is even or spread."""
    if isinstance(held, Even):
        return Spread(held.value, (0,) * width, held.multiple)
    return held if isinstance(held, Spread) else None


def _add(algebra: Algebra, x: Held, y: Held) -> Held | None:
    a, b = _based(x, algebra.width), _based(y, algebra.width)
    if a is None or b is None:
        return None
    offsets = [m + n for m, n in zip(a.offsets, b.offsets, strict=True)]
    multiple = math.gcd(a.multiple, b.multiple) if a.multiple and b.multiple else 0
    return algebra.spread(a.base + b.base, offsets, multiple)


def _subtract(algebra: Algebra, x: Held, y: Held) -> Held | None:
    a, b = _based(x, algebra.width), _based(y, algebra.width)
    if a is None or b is None:
        return None
    offsets = [m - n for m, n in zip(a.offsets, b.offsets, strict=True)]
    return algebra.spread(a.base - b.base, offsets, 0)


def _multiply(algebra: Algebra, x: Held, y: Held) -> Held | None:
    if isinstance(x, Even) and isinstance(y, Even):
        return Even(x.value * y.value, min(x.multiple * y.multiple, _MOST))
    spread, factor = (x, y) if isinstance(x, Spread) else (y, x)
    if not isinstance(spread, Spread) or not isinstance(factor, Even):
        return None
    if (number := factor.value.constant) is None:
        return None
    offsets = [offset * int(number) for offset in spread.offsets]
    multiple = min(spread.multiple * int(number), _MOST) if number > 0 else 0
    return algebra.spread(spread.base * factor.value, offsets, multiple)


def _divided(algebra: Algebra, x: Held, divisor: int, quotient: bool) -> Held | None:
    """By a number that divides what divides the base, or the other way round: nothing is carried
    from the offsets to the base then. Nothing is negative."""
    a = _based(x, algebra.width)
    if a is None or divisor < 1 or not a.multiple or min(a.offsets) < 0:
        return None
    if divisor % a.multiple == 0 and max(a.offsets) < a.multiple:
        if quotient:
            return Even(a.base // divisor, 1)
        return algebra.spread(a.base % divisor, a.offsets, a.multiple)
    if a.multiple % divisor:
        return None
    if quotient:
        offsets = [offset // divisor for offset in a.offsets]
        return algebra.spread(a.base // divisor, offsets, a.multiple // divisor)
    offsets = [offset % divisor for offset in a.offsets]
    return algebra.spread(algebra.build.constant(0, "index"), offsets, _MOST)


def _by_constant(
    quotient: bool, divisor: Callable[[int], int]
) -> Callable[[Algebra, Held, Held], Held | None]:
    def rule(algebra: Algebra, x: Held, y: Held) -> Held | None:
        number = y.value.constant if isinstance(y, Even) else None
        return None if number is None else _divided(algebra, x, divisor(int(number)), quotient)

    return rule


def _shift(algebra: Algebra, x: Held, y: Held) -> Held | None:
    number = y.value.constant if isinstance(y, Even) else None
    if number is None or not 0 <= number < 32:
        return None
    return _multiply(algebra, x, algebra.whole(1 << int(number)))


def _power(mask: int) -> int:
    """The divisor whose remainders a mask keeps, 0 if there is none."""
    return mask + 1 if mask > 0 and not mask & (mask + 1) else 0


_RULES: dict[str, Callable[[Algebra, Held, Held], Held | None]] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "shl": _shift,
    "div": _by_constant(True, lambda number: number),
    "rem": _by_constant(False, lambda number: number),
    "shr": _by_constant(True, lambda number: 1 << number if 0 <= number < 32 else 0),
    "and": _by_constant(False, _power),
}


# lanes that move --------------------------------------------------------------------------------


def _splat(algebra: Algebra, s: ir.Let, args: Sequence[Held]) -> list[Value]:
    return algebra.lines(args[0], 1) * s.target.type.lanes


def _picked(algebra: Algebra, s: ir.Let, args: Sequence[Held]) -> list[Value]:
    parts = algebra.lines(args[0], s.args[0].type.lanes)
    return [parts[lane] for lane in s.attrs]


def _joined(algebra: Algebra, s: ir.Let, args: Sequence[Held]) -> list[Value]:
    pairs = zip(args, s.args, strict=True)
    return [line for held, atom in pairs for line in algebra.lines(held, atom.type.lanes)]


_SHAPES: dict[str, Callable[[Algebra, ir.Let, Sequence[Held]], list[Value]]] = {
    "splat": _splat,
    "extract": _picked,
    "shuffle": _picked,
    "join": _joined,
}
