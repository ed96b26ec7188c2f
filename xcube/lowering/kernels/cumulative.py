"""The template of cumulative operations: sums, products, extrema and logsumexp up to each element.

The operand is seen as (outer, n, inner). With inner > 1, lanes lie along it and each walks along n
by itself. With inner == 1 a line of neighbours is scanned in registers, by steps of 1, 2, 4, ...
lanes, and carries its last lane into the next line. One long axis is cut into chunks that run
in parallel, in three launches: the total of each chunk, what precedes each chunk, the results.
Devices whose cubes have many units are in cumulative_units.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xcube import dtypes
from xcube.ir import Aval, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import cumulative_units
from xcube.lowering.kernels.folds import FOLDS, Fold, State
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.work import Work

TASK = 20_000  # operations worth handing to a thread
LONG = 1 << 16  # elements of an axis worth cutting into chunks
CHUNK = 1 << 14  # elements of a chunk
MOST_CHUNKS = 512
FEW_TASKS = 8  # a launch of fewer would leave processors idle
LINES = 4  # lines along inner that one cube walks together, to overlap latencies


@dataclass(frozen=True, eq=False)
class _Plan:
    """One operation and the comptime choices for it: how many lanes, how many lines side by side,
    whether the last line is partial; and how an axis is cut."""

    fold: Fold
    reverse: bool
    outer: int
    n: int
    inner: int
    lanes: int
    lines: int
    ragged: bool
    chunk: int

    @property
    def chunks(self) -> int:
        return -(-self.n // self.chunk)

    @property
    def blocks(self) -> int:
        """Cubes side by side along inner."""
        return -(-self.inner // (self.lanes * self.lines))

    @property
    def cost(self) -> int:
        """Operations per element, roughly."""
        return 24 if self.fold.name == "logsumexp" else 2


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of a cumulative operation; `sources` share memory with the result."""
    assert group.root is not None
    (x,), (out,) = group.root.inputs, group.root.outputs
    assert isinstance(x, Var)
    if out.aval.size == 0:
        return []
    if facts.units > 1:
        return cumulative_units.build(group.root, facts, sources)
    plan = _plan(x.aval, group.root, facts.vector_bytes)
    if plan.chunks == 1:
        return [_Launch(plan, sources).results(x, out, [])]
    shape = (plan.outer, plan.chunks, plan.inner)
    totals = [Var(Aval(shape, dtypes.BY_SHORT[part])) for part in plan.fold.parts]
    return [
        _Launch(plan, sources).totals(x, totals),
        _Launch(plan, sources).offsets(totals),
        _Launch(plan, sources).results(x, out, totals),
    ]


def _plan(aval: Aval, root: Any, vector_bytes: int) -> _Plan:
    axis = root.params["axis"]
    outer, n = math.prod(aval.shape[:axis]), aval.shape[axis]
    inner = math.prod(aval.shape[axis + 1 :])
    fold = Fold(FOLDS[root.primitive.name], dtypes.short_name(aval.dtype))
    along = n if inner == 1 else inner
    lanes = max(1, vector_bytes * 8 // BITS[fold.parts[0]])
    while lanes > 1 and lanes // 2 >= along:
        lanes //= 2
    lines = 1 if inner == 1 else max(1, min(LINES, inner // lanes))
    chunk = n
    if n * inner >= LONG and outer * -(-inner // (lanes * lines)) < FEW_TASKS:
        chunk = max(CHUNK // inner, -(-n // MOST_CHUNKS), 1)
        chunk = -(-chunk // lanes) * lanes
    step = lanes * lines
    ragged = along % step != 0
    reverse = root.params["reverse"]
    return _Plan(fold, reverse, outer, n, inner, lanes, lines, ragged, min(chunk, n))


class _Launch:
    """One kernel in the making, and where its cube is: `row` of outer, `number` of the chunk,
    `column`, the first of its place along inner."""

    def __init__(self, plan: _Plan, sources: frozenset[Var]) -> None:
        self.plan, self.fold, self.sources = plan, plan.fold, sources
        self.b = Builder(f"cumulative_{plan.fold.name}")
        self.arguments = Arguments(self.b, sources)
        self.n = self._scalar("n", plan.n)
        self.inner = self._scalar("inner", plan.inner)

    # launches

    def results(self, x: Var, out: Var, offsets: list[Var]) -> Work:
        """Every element of the result; `offsets` precede each chunk."""
        shared = "inout" if self.sources else "out"
        target, source = self.arguments.buffer(out, shared), self.arguments.buffer(x)
        befores = [self.arguments.buffer(var) for var in offsets]
        self._place_in_chunk()
        if self.plan.inner == 1:
            self._scan_row(source, target, befores)
        else:
            self._walk_columns(source, target, befores)
        return self._work()

    def totals(self, x: Var, totals: list[Var]) -> Work:
        """The state of each chunk."""
        targets = [self.arguments.buffer(var, "out") for var in totals]
        source = self.arguments.buffer(x)
        self._place_in_chunk()
        if self.plan.inner == 1:
            self._fold_row(source, targets)
        else:
            self._fold_columns(source, targets)
        return self._work()

    def offsets(self, totals: list[Var]) -> Work:
        """Each chunk's state replaced by the state of all chunks before it."""
        b, plan = self.b, self.plan
        buffers = [self.arguments.buffer(var, "inout") for var in totals]
        lanes = 1 if plan.inner == 1 else plan.lanes
        blocks, cube = -(-plan.inner // lanes), b.place("cube_pos.x")
        count = self._scalar("blocks", blocks)
        chunks = self._scalar("chunks", plan.chunks)
        row, column = cube // count, cube % count * lanes
        mask = self._mask(column, self.inner, lanes)
        state = self._variables(self.fold.neutral(b, lanes))
        for number in b.range(0, chunks):
            at = (row * chunks + number) * self.inner + column
            here = tuple([b.load(buffer, at, lanes, mask) for buffer in buffers])
            before = _get(state)
            for buffer, part in zip(buffers, before, strict=True):
                b.store(buffer, at, part, mask)
            _set(state, self.fold.combine(b, before, here))
        return self._work(cubes=plan.outer * blocks, elements=plan.chunks * lanes)

    # where a cube is

    def _place_in_chunk(self) -> None:
        b, plan, cube = self.b, self.plan, self.b.place("cube_pos.x")
        if plan.blocks > 1:
            blocks = self._scalar("blocks", plan.blocks)
            cube, block = cube // blocks, cube % blocks
            self.column = block * (plan.lanes * plan.lines)
        else:
            self.column = b.constant(0, "index")
        if plan.chunks > 1:
            chunks = self._scalar("chunks", plan.chunks)
            self.row, number = cube // chunks, cube % chunks
            size = self._scalar("chunk", plan.chunk)
            self.start = number * size
            self.stop = b.op("min", self.start + size, self.n)
        else:
            self.row, self.start, self.stop = cube, b.constant(0, "index"), self.n
        self.chunk = cube  # the place of the chunk's state
        self.base = self.row * self.n * self.inner

    # inner > 1: each lane walks along n

    def _walk_columns(self, source: Buffer, target: Buffer, befores: list[Buffer]) -> None:
        b, fold = self.b, self.fold
        places = list(self._columns())
        states = [self._begin(befores, column, mask) for column, mask in places]
        for p in b.range(self.start, self.stop):
            row = self.base + self._memory_row(p) * self.inner
            for state, (column, mask) in zip(states, places, strict=True):
                x = self._load(source, row + column, mask)
                after = fold.combine(b, _get(state), fold.lift(b, x))
                _set(state, after)
                self._store(target, row + column, fold.finish(b, after), mask)

    def _fold_columns(self, source: Buffer, targets: list[Buffer]) -> None:
        b, fold = self.b, self.fold
        places = list(self._columns())
        states = [self._variables(fold.neutral(b, self.plan.lanes)) for _ in places]
        for p in b.range(self.start, self.stop):
            row = self.base + self._memory_row(p) * self.inner
            for state, (column, mask) in zip(states, places, strict=True):
                x = self._load(source, row + column, mask)
                _set(state, fold.combine(b, _get(state), fold.lift(b, x)))
        for state, (column, mask) in zip(states, places, strict=True):
            for buffer, part in zip(targets, _get(state), strict=True):
                b.store(buffer, self.chunk * self.inner + column, part, mask)

    def _columns(self) -> Iterator[tuple[Value, Value | None]]:
        """First column and mask of each line of this cube."""
        for line in range(self.plan.lines):
            column = self.column + line * self.plan.lanes
            ragged = self.plan.ragged
            yield column, self._mask(column, self.inner, self.plan.lanes) if ragged else None

    def _memory_row(self, p: Value) -> Value:
        """Where the p-th element in the order of the operation lies along n."""
        return self.n - 1 - p if self.plan.reverse else p

    # inner == 1: lines of neighbours

    def _scan_row(self, source: Buffer, target: Buffer, befores: list[Buffer]) -> None:
        b, fold, lanes = self.b, self.fold, self.plan.lanes
        carry = self._begin(befores, b.constant(0, "index"), None, 1)
        for at, mask in self._lines():
            line = self._scan_line(self._element(source, at, mask))
            before = _get(carry)
            _set(carry, fold.combine(b, before, self._last(line)))
            wide = tuple([b.splat(part, lanes) for part in before])
            self._store(target, at, fold.finish(b, fold.combine(b, wide, line)), mask)

    def _fold_row(self, source: Buffer, targets: list[Buffer]) -> None:
        b, fold, lanes = self.b, self.fold, self.plan.lanes
        state = self._variables(fold.neutral(b, lanes))
        for at, mask in self._lines():
            _set(state, fold.combine(b, _get(state), self._element(source, at, mask)))
        parts, width = _get(state), lanes
        while width > 1:
            width //= 2
            low = tuple([b.shuffle(part, range(width)) for part in parts])
            high = tuple([b.shuffle(part, range(width, 2 * width)) for part in parts])
            parts = fold.combine(b, low, high)
        for buffer, part in zip(targets, parts, strict=True):
            b.store(buffer, self.chunk, b.extract(part, 0))

    def _lines(self) -> Iterator[tuple[Value, Value | None]]:
        """First element and mask of each line, in the order of the operation: whole lines in a
        loop, then the partial one."""
        b, lanes = self.b, self.plan.lanes
        whole = self.stop
        if self.plan.ragged:
            whole = self.start + (self.stop - self.start) // lanes * lanes
        for p in b.range(self.start, whole, lanes):
            yield self._memory_line(p), None
        if self.plan.ragged:
            with b.when(whole < self.stop):
                place, left = b.lane(lanes, "i32"), (self.stop - whole).cast("i32")
                mask = place >= lanes - left if self.plan.reverse else place < left
                yield self._memory_line(whole), mask

    def _memory_line(self, p: Value) -> Value:
        """First element in memory of the line whose first in order is the p-th."""
        return self.base + (self.n - p - self.plan.lanes if self.plan.reverse else p)

    def _element(self, source: Buffer, at: Value, mask: Value | None) -> State:
        """A line of states, neutral where there are no elements."""
        state = self.fold.lift(self.b, self._load(source, at, mask))
        if mask is None:
            return state
        neutral = self.fold.neutral(self.b, self.plan.lanes)
        pairs = zip(state, neutral, strict=True)
        return tuple([self.b.select(mask, part, none) for part, none in pairs])

    def _scan_line(self, line: State) -> State:
        """Each lane combined with all before it, in log2(lanes) steps."""
        b, lanes, step = self.b, self.plan.lanes, 1
        neutral = self.fold.neutral(b, lanes)
        place = b.lane(lanes, "i32")
        while step < lanes:
            if self.plan.reverse:
                order = [min(k + step, lanes - 1) for k in range(lanes)]
                free = place >= lanes - step
            else:
                order = [max(k - step, 0) for k in range(lanes)]
                free = place < step
            pairs = zip(neutral, line, strict=True)
            moved = tuple([b.select(free, none, b.shuffle(part, order)) for none, part in pairs])
            line = self.fold.combine(b, moved, line)
            step *= 2
        return line

    def _last(self, line: State) -> State:
        lane = 0 if self.plan.reverse else self.plan.lanes - 1
        return tuple([self.b.extract(part, lane) for part in line])

    # states and elements

    def _begin(
        self, befores: list[Buffer], column: Value, mask: Value | None, lanes: int = 0
    ) -> list[Variable]:
        """A state that holds what precedes the chunk."""
        lanes = lanes or self.plan.lanes
        if not befores:
            return self._variables(self.fold.neutral(self.b, lanes))
        at = self.chunk * self.inner + column
        return self._variables(tuple([self.b.load(part, at, lanes, mask) for part in befores]))

    def _variables(self, state: State) -> list[Variable]:
        return [self.b.variable(part) for part in state]

    def _load(self, buffer: Buffer, at: Value, mask: Value | None) -> Any:
        lanes = self.plan.lanes
        if self.fold.dtype not in PARTS:
            return self.b.load(buffer, at, lanes, mask)
        pair = self._pair(at)
        real = self.b.load(buffer, pair, lanes, mask)
        return Complex(real, self.b.load(buffer, pair + 1, lanes, mask))

    def _store(self, buffer: Buffer, at: Value, value: Any, mask: Value | None) -> None:
        if not isinstance(value, Complex):
            self.b.store(buffer, at, value, mask)
            return
        pair = self._pair(at)
        self.b.store(buffer, pair, value.real, mask)
        self.b.store(buffer, pair + 1, value.imag, mask)

    def _pair(self, at: Value) -> Value:
        """Places of the real parts of a line of complex numbers."""
        lanes = self.plan.lanes
        return at * 2 if lanes == 1 else (at + self.b.lane(lanes)) * 2

    def _mask(self, start: Value, end: Value, lanes: int) -> Value | None:
        if lanes == 1:
            return None
        return self.b.lane(lanes, "i32") < (end - start).cast("i32")

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _work(
        self,
        cubes: int = 0,
        elements: int = 0,
    ) -> Work:
        plan = self.plan
        cubes = cubes or plan.outer * plan.chunks * plan.blocks
        elements = elements or plan.chunk * min(plan.inner, plan.lanes * plan.lines)
        grain = max(1, math.ceil(TASK / (elements * plan.cost)))
        variables = tuple(self.arguments.variables)
        cells = tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, cubes, grain)


def _get(state: list[Variable]) -> State:
    return tuple([part.get() for part in state])


def _set(state: list[Variable], values: State) -> None:
    for part, value in zip(state, values, strict=True):
        part.set(value)
