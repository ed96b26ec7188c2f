"""top_k on devices whose cubes have many units. A cube narrows down, 8 bits at a time from the
highest, which key the last of the k best has, until little more than k elements are left that may
be among them; of equal keys the indices decide in the same way. These are sorted, in shared memory,
by key and index. Few long rows are cut into parts: the k best of each, then those of all of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Aval, Var
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import sort_units
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.sort_keys import follows
from xcube.lowering.kernels.sort_problem import Problem, Row
from xcube.lowering.kernels.tile_units import Sums, units_of
from xcube.lowering.kernels.work import Work

UNITS = 256  # units of a cube at most
WIDE = 8  # bits of a key that are looked at at once
COPIES = 8  # counters of one digit, so that units wait less for one another
BATCH = 4  # elements that a unit has on their way from memory together
ROOM = 128  # candidates that a cube sorts at least
MOST = 1024  # results of a row at most, else the row is sorted
SHORTEST = 8192  # elements of a part at least
CUBES = 4  # cubes that keep a core busy

Element = tuple[Value, Value]  # word, index
Test = Callable[[Value, Value], Value]


def build(problem: Problem, facts: Facts) -> list[Work]:
    """The launches of a top_k."""
    kept = problem.kept
    room = max(ROOM, 1 << (kept + kept // 4 - 1).bit_length())
    if kept > MOST or problem.n <= 2 * room:
        return sort_units.build(problem, facts)
    units = units_of(facts, UNITS)
    longest = max(SHORTEST, 8 * room)
    parts = min(facts.cores * CUBES // problem.rows, problem.n // longest)
    if parts < 2:
        return [_FromOperand(problem, units, room).build()]
    span = -(-problem.n // parts)
    found = _Found.of(problem, -(-problem.n // span))
    return [
        _FromOperand(problem, units, room, span).build(found),
        _FromParts(problem, units, room, found).build(),
    ]


@dataclass(frozen=True, eq=False)
class _Found:
    """The best of every part of every row: [row, part, k]."""

    words: Var
    indices: Var
    parts: int

    @classmethod
    def of(cls, problem: Problem, parts: int) -> _Found:
        size = (problem.rows * parts * problem.kept,)
        kinds = (_word_dtype(problem), problem.index_dtype)
        words, indices = [Var(Aval(size, dtypes.BY_SHORT[kind])) for kind in kinds]
        return cls(words, indices, parts)


def _word_dtype(problem: Problem) -> str:
    return "u64" if problem.keys[0].order.bits > 32 else "u32"


class _Select(abc.ABC):
    """The kernel that finds the best of a sequence of elements, one cube to a sequence: of `count`
    elements that `read` gives."""

    count: Value

    def __init__(self, problem: Problem, units: int, room: int) -> None:
        self.problem, self.units, self.room = problem, units, room
        b = self.b = Builder("top_k", (units, 1, 1))
        self.arguments = Arguments(b)
        self.unit = b.place("unit_pos.x").cast("u32")
        self.bits = max(WIDE, problem.keys[0].order.bits)
        self.word, self.place = _word_dtype(problem), problem.index_dtype
        self.histogram = b.shared("u32", COPIES << WIDE)
        self.sums = Sums(b, units)
        self.choice = b.shared("u32", 3)
        self.words, self.indices = b.shared(self.word, room), b.shared(self.place, room)
        self.taken = b.shared("u32", 1)

    @abc.abstractmethod
    def read(self, i: Value, mask: Value) -> Element:
        """The i-th element, the best having the least word, equal ones the least index."""

    def select(self) -> None:
        """Bring the best to the front of `words` and `indices`, in order."""
        b = self.b
        for at in b.range(self.unit, self.room, self.units):
            b.store(self.words, at, self._most(self.word))
            b.store(self.indices, at, self._most(self.place))
        with b.when(self.unit.eq(0)):
            b.store(self.taken, 0, b.constant(0, "u32"))
        self._collect(self._threshold())
        self._sort()

    def work(self, cubes: int) -> Work:
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, cubes, 1)

    def _most(self, dtype: str) -> Value:
        return ~self.b.constant(0, dtype)

    def elements(self) -> Iterator[tuple[Value, Value, Value]]:
        """All elements that this unit looks at, and whether there are such."""
        b, step = self.b, self.units * BATCH
        for start in b.range(self.unit, self.count, step):
            places = [start + number * self.units for number in range(BATCH)]
            masks = [place < self.count for place in places]
            pairs = list(zip(places, masks, strict=True))
            found = [self.read(place, mask) for place, mask in pairs]
            for (word, index), mask in zip(found, masks, strict=True):
                yield word, index, mask

    # the threshold

    def _threshold(self) -> Test:
        """A test that the best pass, and so few others that there is room for all."""
        b = self.b
        self.kept = self.arguments.scalar("kept", self.problem.kept).cast("u32")
        self.need = b.variable(self.kept)
        self.done = b.variable(self.count <= self.room)
        prefix = b.variable(b.constant(0, self.word))
        shift = b.variable(b.constant(self.bits, self.word))
        bound = b.variable(self._most(self.place))
        for _ in b.range(0, -(-self.bits // WIDE)):
            b.break_when(self.done.get())
            above, least = shift.get(), prefix.get()
            shift.set(above - WIDE)
            lower = shift.get()
            digit = self._narrow(
                lambda word, _: (word >> above).eq(least >> above),  # noqa: B023
                lambda word, _: word >> lower,  # noqa: B023
            )
            prefix.set(least | (digit.cast(self.word) << lower))
        equal, shift_of_equal = prefix.get(), shift.get()
        self._narrow_indices(equal, bound)
        highest = equal >> shift_of_equal
        most = bound.get()

        def is_good(word: Value, index: Value) -> Value:
            high = word >> shift_of_equal
            return (high < highest) | (high.eq(highest) & (index <= most))

        return is_good

    def _narrow_indices(self, equal: Value, bound: Variable) -> None:
        """Of elements with one and the same word, those up to a bound of the index."""
        b = self.b
        digits = -(-(self.problem.n - 1).bit_length() // WIDE)
        highest = self.arguments.scalar("index_bits", digits * WIDE).cast(self.place)
        prefix, shift = b.variable(b.constant(0, self.place)), b.variable(highest)
        for _ in b.range(0, self.arguments.scalar("index_digits", digits)):
            b.break_when(self.done.get())
            above, least = shift.get(), prefix.get()
            shift.set(above - WIDE)
            lower = shift.get()
            digit = self._narrow(
                lambda word, index: word.eq(equal) & (index >> above).eq(least >> above),  # noqa: B023
                lambda _, index: index >> lower,  # noqa: B023
            )
            prefix.set(least | (digit.cast(self.place) << lower))
            rest = (b.constant(1, self.place) << lower) - 1
            bound.set(prefix.get() | rest)

    def _narrow(self, matches: Test, digit: Test) -> Value:
        """The digit of the last of the best among matching elements, by counting. `need` becomes
        its rank among those with this digit, and `done` whether there is room for all of them."""
        b = self.b
        self._count(matches, digit)
        self._choose()
        b.sync()
        chosen, before, upto = [b.load(self.choice, number) for number in range(3)]
        need = self.need.get()
        self.done.set(self.kept - need + upto <= self.room)
        self.need.set(need - before)
        return chosen

    def _count(self, matches: Test, digit: Test) -> None:
        b = self.b
        for at in b.range(self.unit, COPIES << WIDE, self.units):
            b.store(self.histogram, at, b.constant(0, "u32"))
        b.sync()
        copy, one = self.unit % COPIES, b.constant(1, "u32")
        for word, index, present in self.elements():
            with b.when(present & matches(word, index)):
                number = digit(word, index).cast("u32") & ((1 << WIDE) - 1)
                b.atomic("add", self.histogram, number * COPIES + copy, one)
        b.sync()

    def _choose(self) -> None:
        """The digit at which the counts reach what is needed, the counts before and up to it."""
        b = self.b
        each = max(1, (1 << WIDE) // self.units)
        first, need = self.unit * each, self.need.get()
        known = first < 1 << WIDE
        digits = [b.select(known, first + number, 0) for number in range(each)]
        lines = [b.load(self.histogram, digit * COPIES, COPIES) for digit in digits]
        amounts = [b.select(known, b.reduce("add", line), 0) for line in lines]
        own = amounts[0]
        for amount in amounts[1:]:
            own = own + amount
        before, _ = self.sums.before(own)
        for digit, amount in zip(digits, amounts, strict=True):
            upto = before + amount
            with b.when((before < need) & (need <= upto)):
                for number, value in enumerate((digit, before, upto)):
                    b.store(self.choice, number, value)
            before = upto

    # candidates

    def _collect(self, is_good: Test) -> None:
        """The candidates, in any order."""
        b = self.b
        b.sync()
        for word, index, present in self.elements():
            with b.when(present & is_good(word, index)):
                at = b.atomic("add", self.taken, 0, b.constant(1, "u32"))
                b.store(self.words, at, word)
                b.store(self.indices, at, index)
        b.sync()

    def _sort(self) -> None:
        """Put the candidates in order: a bitonic sort."""
        b, pairs = self.b, self.room // 2
        one = b.constant(1, "u32")
        for size in b.range(1, self.room.bit_length()):
            for step in b.range(0, size):
                distance = one << (size - 1 - step).cast("u32")
                for pair in b.range(self.unit, pairs, self.units):
                    number = pair.cast("u32")
                    low = number & (distance - 1)
                    first = ((number - low) << 1) | low
                    upwards = ((first >> size.cast("u32")) & 1).eq(0)
                    self._exchange(first, first + distance, upwards)
                b.sync()

    def _exchange(self, first: Value, second: Value, upwards: Value) -> None:
        """Put two candidates in order, which may be downwards."""
        b = self.b
        one, other = [
            [b.load(array, place) for array in (self.words, self.indices)]
            for place in (first, second)
        ]
        with b.when(follows(one, other).eq(upwards)):
            for place, (word, index) in ((first, other), (second, one)):
                b.store(self.words, place, word)
                b.store(self.indices, place, index)


class _FromOperand(_Select):
    """The best of rows of the operand, or of parts of `span` elements."""

    def __init__(self, problem: Problem, units: int, room: int, span: int = 0) -> None:
        super().__init__(problem, units, room)
        b, cube = self.b, self.b.place("cube_pos.x")
        self.parts = -(-problem.n // span) if span else 1
        self.part, self.begin = b.constant(0, "index"), b.constant(0, "index")
        if span:
            parts = self.arguments.scalar("parts", self.parts)
            cube, self.part = cube // parts, cube % parts
        self.row = Row(self.arguments, problem, cube)
        self.count = self.row.n
        if span:
            size = self.arguments.scalar("span", span)
            self.begin = self.part * size
            self.count = b.op("min", self.row.n - self.begin, size)

    def read(self, i: Value, mask: Value) -> Element:
        index = self.begin + i
        word = self.row.word(self.problem.keys[0], index, mask)
        return word.cast(self.word), index.cast(self.place)

    def build(self, found: _Found | None = None) -> Work:
        """The launch, with the results in order or as they are `found` in parts."""
        b = self.b
        self.select()
        for i in b.range(self.unit, self.row.kept, self.units):
            word, index = b.load(self.words, i), b.load(self.indices, i)
            if found is None:
                self.row.write(i, index.cast("index"), word)
                continue
            at = b.place("cube_pos.x") * self.row.kept + i
            b.store(self.arguments.buffer(found.words, "out"), at, word)
            b.store(self.arguments.buffer(found.indices, "out"), at, index)
        return self.work(self.problem.rows * self.parts)


class _FromParts(_Select):
    """The best of the best of all parts of a row."""

    def __init__(self, problem: Problem, units: int, room: int, found: _Found) -> None:
        super().__init__(problem, units, room)
        self.row = Row(self.arguments, problem, self.b.place("cube_pos.x"))
        self.found = found
        self.count = self.arguments.scalar("parts", found.parts) * self.row.kept

    def read(self, i: Value, mask: Value) -> Element:
        at, found = self.row.number * self.count + i, (self.found.words, self.found.indices)
        word, index = [self.b.load(self.arguments.buffer(v), at, mask=mask) for v in found]
        return word, index

    def build(self) -> Work:
        """The launch."""
        b = self.b
        self.select()
        for i in b.range(self.unit, self.row.kept, self.units):
            self.row.write(i, b.load(self.indices, i).cast("index"), b.load(self.words, i))
        return self.work(self.problem.rows)
