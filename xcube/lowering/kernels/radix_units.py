"""Rows too long for one cube, sorted by 8 bits at a time, the lowest of the last key first. Rows
are cut into tiles, one to a cube, and every digit takes three launches: count the digits of each
tile; add up the counts, digit by digit; put each tile in order and move its runs of equal digits to
where the counts say. Words move between two arrays, and with them the one other operand that there
is, or the index of each element.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from xcube import dtypes
from xcube.ir import Aval, Var
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.sort_keys import Order
from xcube.lowering.kernels.sort_problem import Key, Problem, Row
from xcube.lowering.kernels.tile_units import DIGIT, Sums, Tile
from xcube.lowering.kernels.work import Work

WIDE = 8  # bits that rows are put in order by at once
COPIES = 8  # counters of one digit in a cube, so that units wait less for one another
FEW = 64  # tiles of a row whose counts one unit adds up at most
SPAN = 8  # counts that a unit adds up at once


def build(problem: Problem, units: int, items: int) -> list[Work]:
    """The launches of a sort."""
    return _Radix(problem, units, items).works()


def is_indexed(problem: Problem) -> bool:
    """Whether the index of an element is needed beside its key."""
    first = problem.keys[0]
    others = any(x is not first.var or first.is_part for x, _ in problem.wanted)
    return others or problem.indices is not None or len(problem.keys) > 1


def digit_of(b: Builder, order: Order, word: Value, shift: Value, bits: int) -> Value:
    """The digit of a word of an order from bit `shift` on."""
    key = order.settled(b, word.cast(order.key_dtype))
    return (key >> shift.cast(key.dtype)).cast("u32") & ((1 << bits) - 1)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One digit of one key: where words and what moves with them come from and go to; None is an
    operand or a result. `shift`: the digit's lowest bit."""

    key: Key
    shift: int
    words: Var | None
    moved: Var | None
    words_out: Var | None
    moved_out: Var | None


@dataclass(frozen=True, eq=False)
class _Radix:
    """A sort in the making. `counts` and `totals`: of [row, digit, tile] and [row, digit]."""

    problem: Problem
    units: int
    items: int
    scratch: dict[tuple[str, str, int], Var] = field(default_factory=dict)

    @property
    def tiles(self) -> int:
        return -(-self.problem.n // (self.units * self.items))

    @property
    def moved(self) -> Var | None:
        """The operand that moves with the words, if it is the only one to move."""
        problem = self.problem
        others = [x for x, _ in problem.wanted if x is not problem.keys[0].var]
        alone = len(others) == 1 and len(problem.keys) == 1 and problem.indices is None
        is_real = alone and dtypes.short_name(others[0].aval.dtype) not in PARTS
        return others[0] if is_real else None

    def works(self) -> list[Work]:
        return [work for step in self._passes() for work in self._launches(step)]

    def _passes(self) -> list[_Pass]:
        problem, steps = self.problem, list[_Pass]()
        dtype = problem.index_dtype
        if self.moved is not None:
            dtype = dtypes.short_name(self.moved.aval.dtype)
        moved = None
        for key in reversed(problem.keys):
            words = None
            for shift in range(0, key.order.width, WIDE):
                side = len(steps) % 2
                words_out = self._room("words", key.order.key_dtype, side)
                moved_out = self._room("moved", dtype, side) if is_indexed(problem) else None
                steps.append(_Pass(key, shift, words, moved, words_out, moved_out))
                words, moved = words_out, moved_out
        last = steps[-1]
        steps[-1] = _Pass(last.key, last.shift, last.words, last.moved, None, None)
        return steps

    def _room(self, name: str, dtype: str, side: int) -> Var:
        size = self.problem.rows * self.problem.n
        return self.scratch.setdefault(
            (name, dtype, side), Var(Aval((size,), dtypes.BY_SHORT[dtype]))
        )

    def _launches(self, step: _Pass) -> list[Work]:
        digits, dtype = self.problem.rows << WIDE, dtypes.BY_SHORT[self.problem.index_dtype]
        counts = Var(Aval((digits * self.tiles,), dtype))
        totals = Var(Aval((digits,), dtype))
        count = _Launch("sort_count", self, step)
        count.count(counts)
        add, cubes = _Launch("sort_add", self, step), digits
        if self.tiles > FEW:
            add.add_together(counts, totals)
        else:
            add.add(counts, totals)
            cubes = -(-digits // self.units)
        move = _Launch("sort_move", self, step)
        move.move(counts, totals)
        tiles = self.problem.rows * self.tiles
        return [count.work(tiles), add.work(cubes), move.work(tiles)]


class _Launch:
    """One kernel in the making."""

    def __init__(self, name: str, radix: _Radix, step: _Pass) -> None:
        self.radix, self.step, self.problem = radix, step, radix.problem
        self.units, self.items = radix.units, radix.items
        b = self.b = Builder(name, (self.units, 1, 1))
        self.arguments = Arguments(b)
        self.unit = b.place("unit_pos.x").cast("u32")
        self.tiles = self.arguments.scalar("tiles", radix.tiles)

    def work(self, cubes: int) -> Work:
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, cubes, 1)

    # kernels

    def count(self, counts: Var) -> None:
        """How often each digit is in the tile."""
        b, size = self.b, COPIES << WIDE
        self._open_tile()
        histogram = b.shared("u32", size)
        for at in b.range(self.unit, size, self.units):
            b.store(histogram, at, b.constant(0, "u32"))
        places = [self._place(number) for number in range(self.items)]
        present = [place < self.left for place in places]
        words = [self._word(self.begin + p, m) for p, m in zip(places, present, strict=True)]
        b.sync()
        copy = self.unit % COPIES
        for word, mask in zip(words, present, strict=True):
            with b.when(mask):
                at = self._digit(word) * COPIES + copy
                b.atomic("add", histogram, at, b.constant(1, "u32"))
        b.sync()
        target = self.arguments.buffer(counts, "out")
        for digit in b.range(self.unit, 1 << WIDE, self.units):
            line = b.load(histogram, digit * COPIES, COPIES)
            b.store(target, self._count_at(digit), b.reduce("add", line).cast(target.dtype))

    def add(self, counts: Var, totals: Var) -> None:
        """Replace the counts of a digit by the sums before them, and give their total; one unit
        does so for a digit."""
        b, number = self.b, self.b.place("cube_pos.x") * self.units + self.unit.cast("index")
        array, target = self.arguments.buffer(counts, "inout"), self.arguments.buffer(totals, "out")
        with b.when(number < self.arguments.scalar("digits", self.problem.rows << WIDE)):
            total = b.variable(b.constant(0, array.dtype))
            for at in b.range(number * self.tiles, (number + 1) * self.tiles):
                amount = b.load(array, at)
                b.store(array, at, total.get())
                total.set(total.get() + amount)
            b.store(target, number, total.get())

    def add_together(self, counts: Var, totals: Var) -> None:
        """The same where there are many tiles, by all units of a cube for a digit."""
        b, cube = self.b, self.b.place("cube_pos.x")
        array = self.arguments.buffer(counts, "inout")
        sums = Sums(b, self.units, array.dtype)
        carried = b.variable(b.constant(0, array.dtype))
        for start in b.range(0, self.tiles, self.units * SPAN):
            first = start + self.unit.cast("index") * SPAN
            masks = [first + number < self.tiles for number in range(SPAN)]
            places = [cube * self.tiles + first + number for number in range(SPAN)]
            pairs = list(zip(places, masks, strict=True))
            amounts = [b.load(array, place, mask=mask) for place, mask in pairs]
            own = amounts[0]
            for amount in amounts[1:]:
                own = own + amount
            before, everything = sums.before(own)
            total = carried.get() + before
            for (place, mask), amount in zip(pairs, amounts, strict=True):
                b.store(array, place, total, mask)
                total = total + amount
            carried.set(carried.get() + everything)
            b.sync()
        with b.when(self.unit.eq(0)):
            b.store(self.arguments.buffer(totals, "out"), cube, carried.get())

    def _part(self, shift: Value, word: Value) -> Value:
        """The bits of a word's digit that one pass over the tile looks at."""
        return (self._digit(word) >> shift) & ((1 << DIGIT) - 1)

    def move(self, counts: Var, totals: Var) -> None:
        """Put the tile in order and move its elements to where they belong in the row."""
        b = self.b
        self._open_tile()
        dtype = self.step.key.order.key_dtype
        tile = Tile(b, self.units, self.items, dtype, is_indexed(self.problem))
        self._fill(tile)
        begins = self._begins(counts, totals)
        for shift in b.range(0, WIDE, DIGIT):
            tile.sort(functools.partial(self._part, shift.cast("u32")))
        self._settle(begins, tile)
        for number in range(self.items):
            place = self._place(number)
            with b.when(place < self.left):
                word = tile.word(number)
                target = b.load(begins, self._digit(word)) + place.cast(begins.dtype)
                source = place if tile.tags is None else tile.tag(number)
                self._write(target.cast("index"), self.begin + source, word)

    # tiles

    def _open_tile(self) -> None:
        """Where the tile of this cube is: it begins at `begin` in its row, with `left` elements up
        to the row's end, or more than a tile."""
        b, cube = self.b, self.b.place("cube_pos.x")
        narrow, tiles = cube.cast("u32"), self.tiles.cast("u32")  # 64-bit division is slow
        self.row = Row(self.arguments, self.problem, (narrow // tiles).cast("index"))
        self.tile = (narrow % tiles).cast("index")
        size = self.units * self.items
        self.begin = self.tile * size
        self.left = b.op("min", self.row.n - self.begin, size)
        self.shift = self.arguments.scalar("shift", self.step.shift).cast("u32")

    def _place(self, number: int) -> Value:
        """The n-th place in the tile that this unit looks at."""
        return self.b.place("unit_pos.x") + number * self.units

    def _fill(self, tile: Tile) -> None:
        """The words of the tile; where the row has ended, the highest, as they would be sorted."""
        b, words = self.b, list[Value]()
        for number in range(self.items):
            present = self._place(number) < self.left
            word = self._word(self.begin + self._place(number), present)
            words.append(b.select(present, word, ~b.constant(0, word.dtype)))
        for number, word in enumerate(words):
            tile.put(number, word, self._place(number))

    def _begins(self, counts: Var, totals: Var) -> Buffer:
        """Where in the row the first element of each digit in this tile goes to."""
        b, number = self.b, 1 << WIDE
        sources = self.arguments.buffer(counts), self.arguments.buffer(totals)
        begins = b.shared(sources[0].dtype, number)
        each = max(1, number // self.units)
        first = self.unit * each
        digits = [first + k for k in range(each)]
        known = first < number
        amounts = [
            b.load(sources[1], self.row.number * number + digit.cast("index"), mask=known)
            for digit in digits
        ]
        own = amounts[0]
        for amount in amounts[1:]:
            own = own + amount
        before, _ = Sums(b, self.units, begins.dtype).before(own)
        with b.when(known):
            for digit, amount in zip(digits, amounts, strict=True):
                b.store(begins, digit, before + b.load(sources[0], self._count_at(digit)))
                before = before + amount
        return begins

    def _settle(self, begins: Buffer, tile: Tile) -> None:
        """Make of where each digit begins in the row how far its words are from there in the tile:
        one unit sees the first of them."""
        b = self.b
        digits = [self._digit(word) for word in tile.neighbours()]
        for number in range(self.items):
            digit, previous = digits[number + 1], digits[number]
            is_first = digit.ne(previous)
            if number == 0:
                is_first = is_first | self.unit.eq(0)
            with b.when(is_first):
                place = (self.unit * self.items + number).cast(begins.dtype)
                b.store(begins, digit, b.load(begins, digit) - place)
        b.sync()

    def _count_at(self, digit: Value) -> Value:
        """Where the count of a digit in this tile is."""
        digits = self.row.number * (1 << WIDE) + digit.cast("index")
        return digits * self.tiles + self.tile

    # elements

    def _digit(self, word: Value) -> Value:
        return digit_of(self.b, self.step.key.order, word, self.shift, WIDE)

    def _word(self, i: Value, mask: Value) -> Value:
        """The i-th word of the row."""
        if self.step.words is not None:
            buffer = self.arguments.buffer(self.step.words)
            return self.b.load(buffer, self.row.number * self.row.n + i, mask=mask)
        if self.step.moved is not None and self.radix.moved is None:
            i = self._moved(i, mask).cast("index")
        return self.row.word(self.step.key, i, mask)

    def _moved(self, i: Value, mask: Value | None = None) -> Value:
        """What moves with the i-th word of the row."""
        if self.step.moved is not None:
            buffer = self.arguments.buffer(self.step.moved)
            return self.b.load(buffer, self.row.number * self.row.n + i, mask=mask)
        if (x := self.radix.moved) is not None:
            at = self.row.first + i * self.row.step
            return self.b.load(self.arguments.buffer(x), at, mask=mask)
        return i.cast(self.problem.index_dtype)

    def _write(self, place: Value, source: Value, word: Value) -> None:
        """Make the source-th word of the row, and what moves with it, the one at a place."""
        step, b = self.step, self.b
        moved = self._moved(source) if is_indexed(self.problem) else None
        if step.words_out is None:
            return self._write_result(place, source, moved, word)
        at = self.row.number * self.row.n + place
        b.store(self.arguments.buffer(step.words_out, "out"), at, word)
        if step.moved_out is not None:
            assert moved is not None
            b.store(self.arguments.buffer(step.moved_out, "out"), at, moved)
        return None

    def _write_result(self, place: Value, source: Value, moved: Value | None, word: Value) -> None:
        with self.b.when(place < self.row.kept):
            if moved is None:
                self.row.write(place, source, word)
            elif (x := self.radix.moved) is None:
                self.row.write(place, moved.cast("index"), word)
            else:
                self.row.write(place, source, word, {x: moved})
