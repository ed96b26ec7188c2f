"""What the units of a cube do together when they sort: sums across units, and a tile of words in
shared memory that is put in order by a few bits at a time, equal ones staying in their order.

Each unit takes neighbouring words, counts their digits in counters of its own, and the sums of all
counters, first by digit, then by unit, are the places where words go. Arrays have gaps behind what
one unit takes, so that units that do the same side by side meet different banks of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts

DIGIT = 4  # bits that a tile is put in order by at once
GROUP = 16  # units whose sums one unit adds up
LINE = 16  # bytes of the widest access to shared memory


def units_of(facts: Facts, wanted: int) -> int:
    """A power of two of units: as many as wanted, if the device has so many."""
    most = min(facts.units, 1 << (wanted - 1).bit_length())
    return 1 << (most.bit_length() - 1)


class Sums:
    """Sums across the units of a cube."""

    def __init__(self, b: Builder, units: int, dtype: str = "u32") -> None:
        self.b, self.dtype = b, dtype
        self.group = min(GROUP, units)
        self.groups = units // self.group
        self.unit = b.place("unit_pos.x").cast("u32")
        self.own = b.shared(dtype, units + self.groups)
        self.totals = b.shared(dtype, self.groups)

    def before(self, amount: Value) -> tuple[Value, Value]:
        """The sum of the amounts of all units before this one, and that of all units. The units
        must meet before they ask again."""
        b, unit = self.b, self.unit
        place = unit + unit // self.group
        b.store(self.own, place, amount)
        b.sync()
        with b.when(unit < self.groups):
            self._add_group()
        b.sync()
        before, everything = b.load(self.own, place), b.constant(0, self.dtype)
        mine = unit // self.group
        for number in range(self.groups):
            total = b.load(self.totals, number)
            before = before + b.select(mine > number, total, 0)
            everything = everything + total
        return before, everything

    def _add_group(self) -> None:
        """One unit replaces the amounts of a group by the sums before them."""
        b, first = self.b, self.unit * (self.group + 1)
        places = [first + number for number in range(self.group)]
        amounts = [b.load(self.own, place) for place in places]
        total = b.constant(0, self.dtype)
        for place, amount in zip(places, amounts, strict=True):
            b.store(self.own, place, total)
            total = total + amount
        b.store(self.totals, self.unit, total)


class Tile:
    """`units` times `items` words of a dtype, with a 16-bit tag beside each if `tagged`. The n-th
    place of a unit lies n times `units` behind its first. Between writing and sorting, and between
    sorting and reading, the units must meet or have met."""

    def __init__(self, b: Builder, units: int, items: int, dtype: str, tagged: bool) -> None:
        assert units % items == 0 or items % units == 0
        self.b, self.units, self.items = b, units, items
        self.words = b.shared(dtype, units * _pitch(dtype, items))
        self.tags = b.shared("u16", units * _pitch("u16", items)) if tagged else None
        self.sums = Sums(b, units)
        self.unit = self.sums.unit
        self.counts = b.shared("u32", units * ((1 << DIGIT) + 1))

    def place(self, number: int) -> Value:
        """The n-th place of this unit, such that units side by side have neighbours."""
        return self.b.place("unit_pos.x") + number * self.units

    def put(self, number: int, word: Value, tag: Value | None = None) -> None:
        """Write a word, and its tag, to the n-th place of this unit."""
        self.b.store(self.words, self._nth(self.words, number), word.cast(self.words.dtype))
        if self.tags is not None and tag is not None:
            self.b.store(self.tags, self._nth(self.tags, number), tag.cast("u16"))

    def word(self, number: int) -> Value:
        """The word at the n-th place of this unit."""
        return self.b.load(self.words, self._nth(self.words, number))

    def tag(self, number: int) -> Value:
        """The tag at the n-th place of this unit, as an index."""
        assert self.tags is not None
        return self.b.load(self.tags, self._nth(self.tags, number)).cast("index")

    def neighbours(self) -> list[Value]:
        """The words of this unit if each takes as many neighbours, and before them the one before,
        or the first word of all."""
        b, unit = self.b, self.b.place("unit_pos.x")
        pitch = _pitch(self.words.dtype, self.items)
        before = (unit - 1) * pitch + self.items - 1
        first = b.load(self.words, b.select(unit.eq(0), 0, before))
        return [first, *self._mine(self.words)]

    def sort(self, digit: Callable[[Value], Value]) -> None:
        """Put the tile in order by a digit of each word, a u32 below 1 << DIGIT."""
        b = self.b
        words = self._mine(self.words)
        tags = None if self.tags is None else self._mine(self.tags)
        counters, ranks = self._count([digit(word) for word in words])
        b.sync()
        self._add_counters()
        b.sync()
        for number, (counter, rank) in enumerate(zip(counters, ranks, strict=True)):
            place = b.load(self.counts, counter) + rank
            b.store(self.words, self._at(self.words, place), words[number])
            if self.tags is not None and tags is not None:
                b.store(self.tags, self._at(self.tags, place), tags[number])
        b.sync()

    def _mine(self, array: Buffer) -> list[Value]:
        """The neighbouring elements that this unit takes."""
        b = self.b
        lanes = math.gcd(self.items, LINE * 8 // BITS[array.dtype])
        first = b.place("unit_pos.x") * _pitch(array.dtype, self.items)
        lines = [b.load(array, first + at, lanes) for at in range(0, self.items, lanes)]
        return [b.extract(line, lane) for line in lines for lane in range(lanes)]

    def _at(self, array: Buffer, place: Value) -> Value:
        """Where the element of a place lies."""
        gap = _pitch(array.dtype, self.items) - self.items
        return place + place // self.items * gap

    def _nth(self, array: Buffer, number: int) -> Value:
        """Where the element of the n-th place of this unit lies."""
        gap = _pitch(array.dtype, self.items) - self.items
        if self.units % self.items:
            return self._at(array, self.place(number))
        step = self.units + self.units // self.items * gap
        return self._at(array, self.place(0)) + number * step

    def _count(self, digits: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Count this unit's digits: the counter of each, and how many were alike before it."""
        b = self.b
        zero = b.constant(0, "u32")
        for digit in range(1 << DIGIT):
            b.store(self.counts, self._counter(b.constant(digit, "u32")), zero)
        counters = [self._counter(digit) for digit in digits]
        ranks = []
        for counter in counters:
            rank = b.load(self.counts, counter)
            b.store(self.counts, counter, rank + 1)
            ranks.append(rank)
        return counters, ranks

    def _counter(self, digit: Value) -> Value:
        """Where this unit's counter of a digit lies, in the order of digits and then of units."""
        number = digit * self.units + self.unit
        return number + (number >> DIGIT)

    def _add_counters(self) -> None:
        """Replace every counter by the sum of those before it."""
        b = self.b
        first = self.unit * ((1 << DIGIT) + 1)
        places = [first + number for number in range(1 << DIGIT)]
        amounts = [b.load(self.counts, place) for place in places]
        own = amounts[0]
        for amount in amounts[1:]:
            own = own + amount
        total, _ = self.sums.before(own)
        for place, amount in zip(places, amounts, strict=True):
            b.store(self.counts, place, total)
            total = total + amount


def _pitch(dtype: str, items: int) -> int:
    """Elements from where one unit's begin to where the next one's do."""
    return items + max(1, min(items, LINE * 8 // BITS[dtype]))
