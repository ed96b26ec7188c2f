"""The template of folds over windows: (outer, rows, columns, inner) -> (outer, places along rows,
places along columns, inner).

Where a cube is a task of one thread, it makes some columns of some rows of the result: the rows
under the window are folded into scratch, as far as they exist, between neutral elements where the
window stands out at the sides; then the columns under the window are folded from there. Both loops
walk memory by lines. There are as many rows as fill the scratch, so that it is long written when it
is read, by lines that begin elsewhere. Of a window over rows alone the first half is all. Where a
cube has many units, each makes one element (window_units.py). The sizes of a window are scalars of
the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import window_units
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.window_state import Problem, State, problem_of
from xcube.lowering.kernels.work import Work
from xcube.primitives.window_reduce_planes import MOST_REACH

TASK = 50_000  # operations worth handing to a thread
TOGETHER = 1 << 14  # elements of neighbouring rows of the result that a thread makes, at least
LINES = 4  # lines that are folded together, to overlap latencies
SCRATCH = (1 << 12, 2 * MOST_REACH)  # elements of a row of scratch: one of these sizes
TILE = 1 << 13  # columns of a cube without scratch
STREAM_BYTES = 1 << 24  # results this large are written past the caches

Load = Callable[[Value, Value, int, "Value | None"], State]
"""The state of a line: (how many elements are before it in the window, place, lanes, mask)."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """Lanes of a line, how many places along rows and columns a cube makes, elements of scratch (0
    for a window over rows alone), whether results bypass the caches."""

    lanes: int
    block: int
    tile: int
    scratch: int
    streaming: bool


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a fold over windows."""
    assert group.root is not None
    (x,), (out,) = group.root.inputs, group.root.outputs
    assert isinstance(x, Var)
    if out.aval.size == 0:
        return []
    problem = problem_of(group.root)
    if facts.units > 1:
        return [window_units.build(problem, x, out, facts)]
    return [_Launch(problem, _plan(problem, out, facts.vector_bytes), x, out).build()]


def _plan(problem: Problem, out: Var, vector_bytes: int) -> _Plan:
    columns, inner = problem.columns, problem.inner
    along = inner if columns.stride > 1 and inner > 1 else columns.places * inner
    lanes = max(1, vector_bytes * 8 // BITS[problem.number])
    while lanes > 1 and lanes // 2 >= along:
        lanes //= 2
    tile, scratch = TILE, 0
    if not columns.is_still:
        reach = columns.span * inner
        scratch = SCRATCH[reach > SCRATCH[0] // 2]
        tile = max(1, (scratch // inner - columns.span) // columns.stride + 1)
    tile = columns.places if tile >= columns.places else max(1, tile // lanes * lanes)
    whole = columns.places * inner % lanes == 0 and tile * inner % lanes == 0
    whole &= lanes * out.aval.dtype.itemsize >= vector_bytes
    is_flat = columns.stride == 1 or inner == 1 or inner % lanes == 0
    streaming = whole and is_flat and out.aval.nbytes >= STREAM_BYTES
    pitch = ((tile - 1) * columns.stride + columns.span) * inner
    block = max(1, min(problem.rows.places, (scratch or TILE) // pitch))
    return _Plan(lanes, block, tile, scratch, streaming)


class _Launch:
    """The kernel in the making, and where its cube is: `outer`, rows from `row`
    to `end`, columns from `column` on, of the result."""

    def __init__(self, problem: Problem, plan: _Plan, x: Var, out: Var) -> None:
        self.problem, self.plan, self.out = problem, plan, out
        self.b = b = Builder(f"window_{problem.name}")
        self.arguments = Arguments(b)
        self.source = self.arguments.buffer(x)
        self.target = self.arguments.buffer(out, "out")
        cube, blocks = b.place("cube_pos.x"), self._scalar("blocks", self.blocks)
        rest, tiles = cube // blocks, self._scalar("tiles", self.tiles)
        self.inner = self._scalar("inner", problem.inner)
        block, tile = self._scalar("block", plan.block), self._scalar("tile", plan.tile)
        self.row, self.column = cube % blocks * block, rest % tiles * tile
        self.outer = rest // tiles
        self.height = self._scalar("row places", problem.rows.places)
        self.width = self._scalar("column places", problem.columns.places)
        self.end = b.op("min", self.row + block, self.height)
        self.count = b.op("min", tile, self.width - self.column)

    @property
    def tiles(self) -> int:
        return -(-self.problem.columns.places // self.plan.tile)

    @property
    def blocks(self) -> int:
        return -(-self.problem.rows.places // self.plan.block)

    def build(self) -> Work:
        if self.plan.scratch:
            self._by_scratch()
        else:
            self._rows_alone()
        return self._work()

    def _start(self, row: Value) -> Value:
        """Where this cube's part of a row of the result begins."""
        return ((self.outer * self.height + row) * self.width + self.column) * self.inner

    # rows

    def _rows_alone(self) -> None:
        zero = self.b.constant(0, "index")
        for row in self.b.range(self.row, self.end):
            load, low, high = self._rows(row, self.column * self.inner)
            start = self._start(row)
            for place, lines, mask in self._lines(zero, self.count * self.inner):
                for at, state in self._folded(place, lines, mask, load, low, high):
                    self._store(start + at, state, mask)

    def _rows(self, row: Value, column: Value) -> tuple[Load, Value, Value]:
        """How to load elements of the rows under the window, counted from an element of a row, and
        which of the window's rows exist."""
        b, rows = self.b, self.problem.rows
        height = self._scalar("height", self.problem.rows.length)
        apart = self._scalar("row apart", rows.apart)
        top = row * self._scalar("row stride", rows.stride) - self._scalar("row low", rows.low)
        low = (b.op("max", -top, 0) + apart - 1) // apart
        high = (b.op("max", height - top, 0) + apart - 1) // apart
        high = b.op("min", high, self._scalar("row size", rows.size))
        width = self._scalar("width", self.problem.columns.length) * self.inner
        origin = (self.outer * height + top) * width + column
        step = apart * width
        weight = self._scalar("column size", self.problem.columns.size)

        def load(number: Value, at: Value, lanes: int, mask: Value | None) -> State:
            x = b.load(self.source, origin + number * step + at, lanes, mask)
            return self.problem.lift(b, x, number * weight)

        return load, low, high

    # columns

    def _by_scratch(self) -> None:
        b, columns, inner = self.b, self.problem.columns, self.inner
        size = self.plan.scratch + self.plan.lanes * LINES
        arrays = [b.local(part, size) for part in self.problem.parts]
        stride, apart = self._stride(), self._scalar("column apart", columns.apart)
        count = self._scalar("column size", columns.size)
        width = self._scalar("width", self.problem.columns.length)
        left = self.column * stride - self._scalar("column low", columns.low)
        span = (self.count - 1) * stride + (count - 1) * apart + 1
        begin = b.op("min", b.op("max", -left, 0), span)
        end = b.op("max", b.op("min", span, width - left), begin)
        pitch = span * inner
        for row in b.range(self.row, self.end):
            origin = (row - self.row) * pitch
            self._fill(arrays, origin, origin + begin * inner)
            load, low, high = self._rows(row, left * inner)
            for place, lines, mask in self._lines(begin * inner, end * inner):
                for at, state in self._folded(place, lines, mask, load, low, high):
                    _put(b, arrays, origin + at, state, mask)
            self._fill(arrays, origin + end * inner, origin + pitch)
        for row in b.range(self.row, self.end):
            origin = (row - self.row) * pitch
            self._columns(arrays, origin, self._start(row), apart * inner, count)

    def _columns(
        self, arrays: list[Buffer], origin: Value, start: Value, apart: Value, size: Value
    ) -> None:
        """Fold a row of scratch along the columns and write the result."""
        b, problem, inner = self.b, self.problem, self.inner
        if problem.columns.stride > 1 and problem.inner > 1:
            for place in b.range(0, self.count):
                load = self._from_scratch(arrays, origin + place * self._stride() * inner, apart)
                self._sweep(load, inner, start + place * inner, size)
        else:
            load = self._from_scratch(arrays, origin, apart)
            self._sweep(load, self.count * inner, start, size)

    def _sweep(self, load: Load, count: Value, start: Value, size: Value) -> None:
        zero = self.b.constant(0, "index")
        for place, lines, mask in self._lines(zero, count):
            for at, state in self._folded(place, lines, mask, load, zero, size):
                self._store(start + at, state, mask)

    def _from_scratch(self, arrays: list[Buffer], origin: Value, apart: Value) -> Load:
        b, problem = self.b, self.problem
        strided = problem.columns.stride > 1 and problem.inner == 1

        def load(number: Value, at: Value, lanes: int, mask: Value | None) -> State:
            place = origin + number * apart
            if strided:
                parts = [self._strided(array, place, at, lanes, mask) for array in arrays]
            else:
                parts = [b.load(array, place + at, lanes, mask) for array in arrays]
            return problem.moved(b, tuple(parts), number)

        return load

    def _strided(
        self, array: Buffer, place: Value, at: Value, lanes: int, mask: Value | None
    ) -> Value:
        """A line of elements of scratch that lie a stride apart."""
        b = self.b
        start = place + at * self._stride()
        if self.problem.columns.stride != 2 or mask is not None or lanes == 1:
            line = b.lane(lanes) * self._stride() if lanes > 1 else b.constant(0, "index")
            return b.load(array, start + line, mask=mask)
        return b.shuffle(b.load(array, start, 2 * lanes), range(0, 2 * lanes, 2))

    # lines

    def _lines(self, start: Value, stop: Value) -> Iterator[tuple[Value, int, Value | None]]:
        """Place, number of lines and mask: of many lines together, then of one line at a time."""
        b, lanes = self.b, self.plan.lanes
        step = lanes * LINES
        whole = start + (stop - start) // step * step
        for place in b.range(start, whole, step):
            yield place, LINES, None
        for place in b.range(whole, stop, lanes):
            mask = None
            if lanes > 1:
                mask = b.lane(lanes, "i32") < (stop - place).cast("i32")
            yield place, 1, mask

    def _folded(
        self, place: Value, lines: int, mask: Value | None, load: Load, low: Value, high: Value
    ) -> Iterator[tuple[Value, State]]:
        """Place and fold of each line."""
        b, lanes, problem = self.b, self.plan.lanes, self.problem
        places = [place + line * lanes for line in range(lines)]
        neutral = problem.neutral(b, lanes)
        states = [[b.variable(part) for part in neutral] for _ in places]
        for number in b.range(low, high):
            for at, state in zip(places, states, strict=True):
                before = tuple([part.get() for part in state])
                after = problem.combine(b, before, load(number, at, lanes, mask))
                for part, value in zip(state, after, strict=True):
                    part.set(value)
        for at, state in zip(places, states, strict=True):
            yield at, tuple([part.get() for part in state])

    def _fill(self, arrays: list[Buffer], start: Value, stop: Value) -> None:
        """Neutral elements in scratch, and maybe some behind them."""
        neutral = self.problem.neutral(self.b, self.plan.lanes)
        for place in self.b.range(start, stop, self.plan.lanes):
            _put(self.b, arrays, place, neutral, None)

    def _store(self, at: Value, state: State, mask: Value | None) -> None:
        value = self.problem.finish(self.b, state)
        streaming = self.plan.streaming and mask is None
        self.b.store(self.target, at, value, mask, streaming)

    # scalars

    def _stride(self) -> Value:
        """1 and 2 are comptime: their loads are lines."""
        stride = self.problem.columns.stride
        return self.b.constant(stride, "index") if stride <= 2 else self._scalar("stride", stride)

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _work(self) -> Work:
        problem, plan = self.problem, self.plan
        cubes = problem.outer * self.blocks * self.tiles
        elements = plan.block * plan.tile * problem.inner
        steps = problem.rows.size + (problem.columns.size if plan.scratch else 0)
        grain = max(math.ceil(TASK / (elements * steps)), math.ceil(TOGETHER / elements))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, cubes, grain)


def _put(b: Builder, arrays: list[Buffer], at: Value, state: State, mask: Value | None) -> None:
    for array, part in zip(arrays, state, strict=True):
        b.store(array, at, part, mask)
