"""What the kernels of attention share: the sizes of a problem, the register tile, scores with bias
and masks, and 2^x for scores.

Scores lie as [key, line of queries]: lanes belong to different queries, so that what a softmax
does along a row is done lane by lane. They are in units of log 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xcube.ir import Var
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.cube.math_exp import exp2_reduced
from xcube.lowering.cube.math_float import fma, horner, where
from xcube.lowering.kernels.nodes import Arguments
from xcube.primitives.attention import Form

LOG2_E = 1 / math.log(2)
MASKED = -1e38  # a score that does not count: far below any other, yet finite
UNSEEN = -0.9e38  # no row that has a score that counts has its largest below
_TAYLOR = tuple([math.log(2) ** k / math.factorial(k) for k in range(14)])

Lines = list[list[Variable]]


@dataclass(frozen=True)
class Tile:
    """The comptime choices: keys and lines of queries of a register tile, lanes of a line, keys of
    a block whose scores lie in memory at a time."""

    keys: int
    lines: int
    lanes: int
    block: int

    @property
    def width(self) -> int:
        """Queries of a tile."""
        return self.lines * self.lanes

    def __str__(self) -> str:
        return f"{self.keys}x{self.width}x{self.block}"


@dataclass(frozen=True)
class Sizes:
    """Of query [b, t, n, h], key [b, s, m, h] and value [b, s, m, e]."""

    b: int
    t: int
    n: int
    h: int
    s: int
    m: int
    e: int

    @property
    def group(self) -> int:
        """Heads of query that share a head of key and value."""
        return self.n // self.m


@dataclass(frozen=True)
class Problem:
    """An attention that kernels are made for; `dtype` is that of sums, `result` that of the
    weighted values. `period`: row r of the queries is at position r % period, where heads of a
    group are rows of one; 0 where a row is at its own."""

    form: Form
    sizes: Sizes
    tile: Tile
    dtype: str
    result: str
    period: int = 0

    @property
    def rows(self) -> int:
        """Keys, up to whole tiles."""
        return -(-self.sizes.s // self.tile.keys) * self.tile.keys

    @property
    def tiles(self) -> int:
        """Tiles of queries of a head."""
        return -(-self.sizes.t // self.tile.width)

    def padded(self, size: int) -> int:
        """A size up to whole lines."""
        return -(-size // self.tile.lanes) * self.tile.lanes

    @property
    def is_restricted(self) -> bool:
        """Whether some keys may not count for a query."""
        form = self.form
        sides = form.left is not None or form.right is not None
        return sides or form.mask or form.lengths


def decay(x: Value) -> Value:
    """2^x for x <= 0, within 2 units in the last place; 0 where that is below the normal numbers.
    The power of two is added to the exponent's bits, where adding a large number has put it."""
    f64 = x.dtype == "f64"
    rounder, mantissa, whole = (1.5 * 2.0**52, 52, "i64") if f64 else (1.5 * 2.0**23, 23, "i32")
    least = -1021.0 if f64 else -125.0
    small = x < least
    shifted = where(small, least, x) + rounder
    r = where(small, least, x) - (shifted - rounder)
    power = horner(r, _TAYLOR) if f64 else exp2_reduced(r)
    bits = power.bitcast(whole) + (shifted.bitcast(whole) << mantissa)
    return where(small, 0.0, bits.bitcast(x.dtype))


def zeros(b: Builder, problem: Problem, rows: int, lines: int) -> Lines:
    """Sums of a register tile."""
    zero = b.constant(0, problem.dtype, problem.tile.lanes)
    return [[b.variable(zero) for _ in range(lines)] for _ in range(rows)]


@dataclass(frozen=True)
class Walk:
    """Where an operand of products lies: element (r, i) is at `start + r * row + i * step`."""

    buffer: Buffer
    start: Value
    step: Value | int
    row: int = 0

    def moved(self, distance: Value) -> Walk:
        """The same further on."""
        return replace(self, start=self.start + distance)


def multiply(b: Builder, sums: Lines, left: Walk, right: Walk, count: Value | int) -> None:
    """sums[row][line] += left[row, i] right[i, line], for i below `count`."""
    type = sums[0][0].name.type
    lanes, dtype = type.lanes, type.dtype
    for i in b.range(0, count):
        at, beside = left.start + i * left.step, right.start + i * right.step
        lines = [
            b.load(right.buffer, beside + v * lanes, lanes).cast(dtype) for v in range(len(sums[0]))
        ]
        for r, cells in enumerate(sums):
            x = b.splat(b.load(left.buffer, at + r * left.row).cast(dtype), lanes)
            for line, cell in zip(lines, cells, strict=True):
                cell.set(fma(x, line, cell.get()))


def parts(b: Builder, count: int, most: int) -> Iterator[tuple[Value, int]]:
    """Pairs (first, size) of parts of `count`, none above `most`: one loop over parts of one size,
    and the rest."""
    halves = range(most, most // 2, -1)
    size = next((n for n in halves if count % n == 0), min(most, count))
    for first in b.range(0, count // size * size, size):
        yield first, size
    if count % size:
        yield b.constant(count // size * size, "index"), count % size


class Scores:
    """Scores of one tile of queries after the other, with bias and masks."""

    def __init__(self, arguments: Arguments, problem: Problem, operands: Sequence[Var]) -> None:
        self.b, self.arguments, self.problem = arguments.build, arguments, problem
        others = iter(operands)
        form = problem.form
        flags = (form.bias, form.mask, form.lengths)
        self.bias, self.mask, self.lengths = [next(others) if f else None for f in flags]
        self.keys = arguments.scalar("s", problem.sizes.s)
        self.is_ragged = problem.rows != problem.sizes.s

    def enter(self, batch: Value, head: Value) -> None:
        """Go to a head of an example."""
        self.starts = {
            var: self._start(var, batch, head) for var in (self.bias, self.mask) if var is not None
        }
        self.limit = self.keys
        if self.lengths is not None:
            length = self.b.load(self.arguments.buffer(self.lengths), batch).cast("index")
            self.limit = self.b.op("min", length, self.keys)

    def place(self, first: Value) -> None:
        """Go to the tile of queries from `first` on."""
        b, tile = self.b, self.problem.tile
        self.first = first
        lane = b.lane(tile.lanes, "i32")
        rows = [lane + (first + v * tile.lanes).cast("i32") for v in range(tile.lines)]
        end = self._scalar("t", self.problem.sizes.t).cast("i32")
        self.exist = [row < end for row in rows]
        self.positions, self.lowest, self.highest = rows, first, first + (tile.width - 1)
        if self.problem.period:
            period = self._scalar("period", self.problem.period)
            self.positions = [row % period.cast("i32") for row in rows]
            self.lowest, self.highest = b.constant(0, "index"), period - 1

    def range(self) -> tuple[Value, Value]:
        """The keys that count for some query of the tile, in whole tiles."""
        b, form, step = self.b, self.problem.form, self.problem.tile.keys
        total = self._scalar("rows", self.problem.rows)
        low, high = b.constant(0, "index"), total
        if self.lengths is not None:
            high = b.op("max", self.limit, 0)
        if form.right is not None:
            end = self.highest + self._scalar("right", form.right) + 1
            high = b.op("max", b.op("min", high, end), 0)
        if form.left is not None:
            low = b.op("max", self.lowest - self._scalar("left", form.left), 0) // step * step
        high = b.op("min", (high + (step - 1)) // step * step, total)
        return b.op("min", low, high), high

    def all_see(self) -> Value:
        """Whether every query of the tile sees a key, masks apart."""
        b, form = self.b, self.problem.form
        found = b.constant(True, "bool")
        for position in (self.lowest, self.highest):  # in between there are as many, or more
            low, high = b.constant(0, "index"), self.limit
            if form.right is not None:
                high = b.op("min", high, position + self._scalar("right", form.right) + 1)
            if form.left is not None:
                low = b.op("max", low, position - self._scalar("left", form.left))
            found = found & (low < high)
        return found

    def adjust(self, block: Buffer, place: Value, key: Value) -> None:
        """Bias and masks for the products of a tile of keys from `key` on, which lie in an array
        from `place` on."""
        if self.bias is not None or self.mask is not None:
            self._adjust(block, place, key)
            return
        tests = self._partial(key)
        if tests:
            partial = tests[0]
            for test in tests[1:]:
                partial = partial | test
            with self.b.when(partial):
                self._adjust(block, place, key)

    # parts

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _start(self, var: Var, batch: Value, head: Value) -> Value:
        """Where the rows of bias or mask begin that belong to a head."""
        b, n, t, s = var.aval.shape
        by_batch, by_head = n * t * s if b > 1 else 0, t * s if n > 1 else 0
        name = "bias" if var is self.bias else "mask"
        start = batch * self._scalar(f"{name} b", by_batch)
        return start + head * self._scalar(f"{name} n", by_head)

    def _line(self, var: Var, key: Value, v: int) -> Value:
        """Bias or mask of one key for a line of queries."""
        b, tile = self.b, self.problem.tile
        _, _, t, s = var.aval.shape
        buffer, start = self.arguments.buffer(var), self.starts[var]
        if s > 1:
            start = start + (b.op("min", key, self.keys - 1) if self.is_ragged else key)
        if t == 1:
            return b.splat(b.load(buffer, start), tile.lanes)
        if s == 1 and not self.problem.period:
            at = start + (self.first + v * tile.lanes)
            return b.load(buffer, at, tile.lanes, self.exist[v])
        step = self.keys if s > 1 else b.constant(1, "index")
        places = self.positions[v].cast("index") * step + start
        return b.load(buffer, places, tile.lanes, self.exist[v])

    def _partial(self, key: Value) -> list[Value]:
        """Tests of which one holds where not all scores of a tile count."""
        form, count, tests = self.problem.form, self.problem.tile.keys, []
        if form.right is not None:
            tests.append(key + (count - 1) > self.lowest + self._scalar("right", form.right))
        if form.left is not None:
            tests.append(key < self.highest - self._scalar("left", form.left))
        if self.is_ragged or self.lengths is not None:
            tests.append(key + count > self.limit)
        return tests

    def _adjust(self, block: Buffer, place: Value, key: Value) -> None:
        b, tile = self.b, self.problem.tile
        for r in b.range(0, tile.keys):
            for v in range(tile.lines):
                at = place + r * tile.width + v * tile.lanes
                score = self._adjusted(b.load(block, at, tile.lanes), key + r, v)
                b.store(block, at, score)

    def _adjusted(self, score: Value, key: Value, v: int) -> Value:
        """A line of scores with its bias, replaced where it does not count; of a key that is not
        there nothing is left."""
        b = self.b
        if self.bias is not None:
            score = fma(self._line(self.bias, key, v).cast(self.problem.dtype), LOG2_E, score)
        for test in self._tests(key, v):
            score = b.select(test, score, MASKED)
        return b.select(key < self.keys, score, -math.inf) if self.is_ragged else score

    def _tests(self, key: Value, v: int) -> list[Value]:
        """What must hold for a score to count."""
        form, position, column = self.problem.form, self.positions[v], key.cast("i32")
        tests = [] if self.lengths is None else [key < self.limit]
        tests += [] if self.mask is None else [self._line(self.mask, key, v)]
        if form.right is not None:
            tests.append(position + self._scalar("right", form.right).cast("i32") >= column)
        if form.left is not None:
            tests.append(position - self._scalar("left", form.left).cast("i32") <= column)
        return tests
