"""Cumulative operations on devices whose cubes have many units.

The operand is seen as rows of `count` places, each with `columns` lines beside it: along a
contiguous axis a place is a line of neighbours and there is one column; across memory a place is
an index of the axis, and lines lie side by side. A team of units walks the places of a row, tile by
tile: each unit scans a few places in registers, while those of its next tile are on their way; the
team then scans the units' totals through shared memory, and carries the last one to the next tile.
So every element is read once and written once.

Few long rows are cut into chunks of tiles, so that all cubes of the device have work: one launch
gives the total of each chunk, a second one combines the totals before a chunk and scans it. Which
operands are combined in which order depends on the sizes and the device alone, so results are the
same on every run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Aval, Equation, Var
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.cumulative_plan import Plan, plan
from xcube.lowering.kernels.folds import State
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.work import Work

REACH = 4  # states that a unit combines in one step of a team's scan


def build(root: Equation, facts: Facts, sources: frozenset[Var]) -> list[Work]:
    """The launches of a cumulative operation on some elements."""
    (x,), (out,) = root.inputs, root.outputs
    assert isinstance(x, Var)
    chosen = plan(x.aval, root, facts)
    if chosen.chunks == 1:
        return [_Launch(chosen, sources).results(x, out, [])]
    shape = (chosen.rows, chosen.chunks, chosen.columns * chosen.wide)
    totals = [Var(Aval(shape, dtypes.BY_SHORT[part])) for part in chosen.fold.parts]
    return [
        _Launch(chosen, sources).totals(x, totals),
        _Launch(chosen, sources).results(x, out, totals),
    ]


class _Launch:
    """One kernel in the making, and where its unit is: `row`, `column`, `chunk`, and `place` in its
    team. In shared memory `slot` is the unit's, `first` that of its team's first unit, and members
    of a team are `apart`."""

    def __init__(self, plan: Plan, sources: frozenset[Var]) -> None:
        self.plan, self.fold, self.sources = plan, plan.fold, sources
        self.b = Builder(f"cumulative_{plan.fold.name}", (plan.team * plan.beside, 1, 1))
        self.arguments = Arguments(self.b, sources)
        self._locate()
        if plan.team > 1:
            self._meet()

    # launches

    def results(self, x: Var, out: Var, totals: Sequence[Var]) -> Work:
        """Every element of the result; `totals` are those of all chunks."""
        target = self.arguments.buffer(out, "inout" if self.sources else "out")
        source = self.arguments.buffer(x)
        buffers = [self.arguments.buffer(var) for var in totals]
        carry = self._variables(self._before(buffers))
        for tile, lines in self._tiles(source):
            states = self._scanned(self._states(lines, tile))
            before, total = self._across(states[-1])
            start = self.fold.combine(self.b, _get(carry), before)
            if self.plan.tiles > 1:
                _set(carry, self.fold.combine(self.b, _get(carry), total))
            finished = [self._finished(start, state) for state in states]
            self._write(target, finished, tile)
        return self._work()

    def totals(self, x: Var, totals: Sequence[Var]) -> Work:
        """The state of each chunk."""
        targets = [self.arguments.buffer(var, "out") for var in totals]
        source, b = self.arguments.buffer(x), self.b
        state = self._variables(self.fold.neutral(b, self.plan.wide))
        for tile, lines in self._tiles(source):
            own = self._scanned(self._states(lines, tile))[-1]
            _set(state, self.fold.combine(b, _get(state), own))
        _, total = self._across(_get(state))
        with b.when(self.place.eq(0) & self.exists):
            for buffer, part in zip(targets, total, strict=True):
                b.store(buffer, self._total_at(self.chunk), part)
        return self._work()

    # where a unit is

    def _locate(self) -> None:
        b, plan, cube = self.b, self.plan, self.b.place("cube_pos.x")
        zero = b.constant(0, "index")
        self.unit = zero if plan.team * plan.beside == 1 else b.place("unit_pos.x")
        self.count = self._scalar("count", plan.count)
        self.columns = self._scalar("columns", plan.columns) if not plan.along else zero + 1
        self.column = self.chunk = zero
        if not plan.along:
            strips = self._scalar("strips", -(-plan.columns // plan.beside))
            strip, cube = cube % strips, cube // strips
            self.column = strip * plan.beside + self.unit % plan.beside
        if plan.chunks > 1:
            chunks = self._scalar("chunks", plan.chunks)
            self.chunk, cube = cube % chunks, cube // chunks
        if plan.along:
            self.place = self.unit % plan.team
            self.row = cube * plan.beside + self.unit // plan.team
            self.exists = self.row < self._scalar("rows", plan.rows)
        else:
            self.place, self.row = self.unit // plan.beside, cube
            self.exists = self.column < self.columns
        self.base = self.row * self.count * self.columns + self.column

    # tiles

    def _tiles(self, source: Buffer) -> Iterator[tuple[Value, list[Any]]]:
        """Each tile's number and the unit's lines of it; the next tile is read before."""
        b, plan = self.b, self.plan
        zero = b.constant(0, "index")
        coming = [self._nothing() for _ in range(plan.lines)]
        first, stop = zero, self._scalar("tiles", plan.tiles)
        if plan.chunks > 1:
            stretch = self._scalar("stretch", plan.stretch)
            first = self.chunk * stretch
            stop = b.op("min", first + stretch, stop)
        self._fetch(source, coming, first)
        if plan.tiles == 1:
            yield first, [self._line(cells) for cells in coming]
            return
        for tile in b.range(first, stop):
            lines = [self._line(cells) for cells in coming]
            with b.when(tile + 1 < stop):
                self._fetch(source, coming, tile + 1)
            yield tile, lines

    def _nothing(self) -> list[Variable]:
        """Room for a line that is not read yet; complex numbers have two."""
        dtype = PARTS.get(self.fold.dtype, self.fold.dtype)
        zero = self.b.constant(0, dtype, self.plan.lanes)
        return [self.b.variable(zero) for _ in range(1 + (self.fold.dtype in PARTS))]

    def _line(self, cells: Sequence[Variable]) -> Any:
        values = [cell.get() for cell in cells]
        return Complex(*values) if len(values) == 2 else values[0]

    def _fetch(self, source: Buffer, coming: Sequence[Sequence[Variable]], tile: Value) -> None:
        b, plan = self.b, self.plan
        for number, cells in enumerate(coming):
            with self._where(tile, number):
                at = self._at(tile, number)
                for half, cell in enumerate(cells):
                    at_half = at * len(cells) + half if len(cells) > 1 else at
                    cell.set(b.load(source, at_half, plan.lanes))

    def _write(self, target: Buffer, finished: Sequence[Any], tile: Value) -> None:
        lanes = self.plan.lanes if self.plan.along else 1
        for number in range(self.plan.lines):
            line = self._joined(finished[number * lanes : (number + 1) * lanes])
            with self._where(tile, number):
                at = self._at(tile, number)
                if isinstance(line, Complex):
                    self.b.store(target, at * 2, line.real)
                    self.b.store(target, at * 2 + 1, line.imag)
                else:
                    self.b.store(target, at, line)

    def _where(self, tile: Value, number: int) -> Any:
        """A block of statements for a line that exists."""
        if not self.plan.ragged:
            return contextlib.nullcontext()
        return self.b.when(self._is_there(tile, number))

    def _is_there(self, tile: Value, number: int) -> Value:
        return (self._position(tile, number) < self.count) & self.exists

    def _position(self, tile: Value, number: int) -> Value:
        """Which line of the row, in the order of the operation, is the unit's n-th one."""
        return (tile * self.plan.team + self.place) * self.plan.lines + number

    def _at(self, tile: Value, number: int) -> Value:
        """Where in memory a line begins."""
        position = self._position(tile, number)
        if self.plan.reverse:
            position = self.count - 1 - position
        return (self.base + position * self.columns) * self.plan.lanes

    # states

    def _states(self, lines: Sequence[Any], tile: Value) -> list[State]:
        """The unit's elements as states, in the order of the operation; neutral where there are no
        elements."""
        states: list[State] = []
        for number, line in enumerate(lines):
            state = self.fold.lift(self.b, line)
            if self.plan.ragged:
                neutral = self.fold.neutral(self.b, self.plan.lanes)
                state = self._chosen(self._is_there(tile, number), state, neutral)
            states += self._split(state)
        return states

    def _split(self, state: State) -> list[State]:
        """The states of a line along memory one by one; a line across memory is one state."""
        lanes = self.plan.lanes
        if not self.plan.along or lanes == 1:
            return [state]
        order = range(lanes - 1, -1, -1) if self.plan.reverse else range(lanes)
        return [tuple([self.b.extract(part, lane) for part in state]) for lane in order]

    def _joined(self, values: Sequence[Any]) -> Any:
        """Elements of a line, in the order of the operation, as they lie in memory."""
        line, *rest = values
        if not rest:
            return line
        order = range(len(values) - 1, -1, -1) if self.plan.reverse else range(len(values))
        line, lanes = self.b.splat(line, len(values)), self.b.lane(len(values), "i32")
        for lane, value in zip(order[1:], rest, strict=True):
            line = self.b.select(lanes.eq(lane), self.b.splat(value, len(values)), line)
        return line

    def _scanned(self, states: Sequence[State]) -> list[State]:
        """Each state combined with those before it."""
        scanned = [states[0]]
        for state in states[1:]:
            scanned.append(self.fold.combine(self.b, scanned[-1], state))
        return scanned

    def _finished(self, start: State, state: State) -> Any:
        return self.fold.finish(self.b, self.fold.combine(self.b, start, state))

    def _chosen(self, condition: Value, state: State, other: State) -> State:
        pairs = zip(state, other, strict=True)
        return tuple([self.b.select(condition, part, none) for part, none in pairs])

    # teams

    def _across(self, state: State) -> tuple[State, State]:
        """What precedes the unit's state in its team, and the state of the whole team. In each step
        the window of units that a unit knows grows by the same factor."""
        b, fold, team = self.b, self.fold, self.plan.team
        if team == 1:
            return fold.neutral(b, self.plan.wide), state
        before, distance, steps = None, 1, 0
        while distance < team:
            known = state if before is None else fold.combine(b, before, state)
            arrays, reach = self._put(known, steps % 2), min(REACH, team // distance)
            b.sync()
            for number in range(1, reach):
                earlier = self._member(arrays, self.slot, -number * distance)
                before = earlier if before is None else fold.combine(b, earlier, before)
            ends = [team - number * distance - 1 for number in range(reach - 1, -1, -1)]
            distance, steps = distance * reach, steps + 1
        assert before is not None
        total = self._scanned([self._member(arrays, self.first, end) for end in ends])[-1]
        if steps % 2:  # the next scan begins with the arrays that this one read last
            b.sync()
        return before, total

    def _meet(self) -> None:
        """Two sets of arrays in which a team shows its states, behind neutral ones that precede
        its first unit: the units there are room for the farthest look back."""
        b, plan = self.b, self.plan
        distance, back = 1, 0
        while distance < plan.team:
            reach = min(REACH, plan.team // distance)
            distance, back = distance * reach, max(back, (reach - 1) * distance)
        if plan.along:
            member, self.apart = self.unit // plan.team, 1
            self.first = member * (plan.team + back) + back
        else:
            self.first, self.apart = self.unit % plan.beside + back * plan.beside, plan.beside
        self.slot = self.first + self.place * self.apart
        size = (plan.team + back) * plan.beside * plan.wide
        self.arrays = [[b.shared(part, size) for part in self.fold.parts] for _ in range(2)]
        with b.when(self.place < back):
            at = (self.slot - back * self.apart) * plan.wide
            for arrays in self.arrays:
                for array, part in zip(arrays, self.fold.neutral(b, plan.wide), strict=True):
                    b.store(array, at, part)

    def _put(self, state: State, turn: int) -> list[Buffer]:
        """Show a state to the team, in one of the two sets of arrays."""
        for array, part in zip(self.arrays[turn], state, strict=True):
            self.b.store(array, self.slot * self.plan.wide, part)
        return self.arrays[turn]

    def _member(self, arrays: Sequence[Buffer], slot: Value, places: int) -> State:
        """The state shown so many places from a slot on."""
        at = (slot + places * self.apart) * self.plan.wide
        return tuple([self.b.load(array, at, self.plan.wide) for array in arrays])

    # chunks

    def _before(self, totals: Sequence[Buffer]) -> State:
        """The state of all chunks before this one: the team shares them."""
        b, fold, wide = self.b, self.fold, self.plan.wide
        if not totals:
            return fold.neutral(b, wide)
        state = self._variables(fold.neutral(b, wide))
        with b.when(self.exists):
            for number in b.range(self.place, self.chunk, self.plan.team):
                at = self._total_at(number)
                here = tuple([b.load(buffer, at, wide) for buffer in totals])
                _set(state, fold.combine(b, _get(state), here))
        return self._across(_get(state))[1]

    def _total_at(self, chunk: Value) -> Value:
        chunks = self._scalar("chunks", self.plan.chunks)
        return ((self.row * chunks + chunk) * self.columns + self.column) * self.plan.wide

    def _variables(self, state: State) -> list[Variable]:
        return [self.b.variable(part) for part in state]

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _work(self) -> Work:
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, self.plan.blocks * self.plan.chunks, 1)


def _get(state: Sequence[Variable]) -> State:
    return tuple([part.get() for part in state])


def _set(state: Sequence[Variable], values: State) -> None:
    for part, value in zip(state, values, strict=True):
        part.set(value)
