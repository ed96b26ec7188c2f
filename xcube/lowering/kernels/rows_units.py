"""Maps and rows programs where a cube has many units that work side by side.

A flat map is one line of memory a unit. In every other program the units of a cube stand in two
dimensions: `across` along the lanes, where neighbours touch neighbouring lines, and `down`, along
rows, or along columns where the lanes lie on rows. The units that share a row's columns are a
group; they combine their states through shared memory. A unit walks a short row in straight code,
so that what a phase has read and computed is in registers in the next one, and a long row in loops,
several lines a turn, so that their loads overlap. `rows_turned.py` has the maps that transpose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import COSTLY
from xcube.lowering.kernels import rows_turned, states
from xcube.lowering.kernels.lanes import is_narrow, late_results, mask_of, size_of
from xcube.lowering.kernels.meeting import Meeting
from xcube.lowering.kernels.nodes import Arguments, Emitter, where
from xcube.lowering.kernels.rows_blueprint import HELD, Blueprint, select, walked
from xcube.lowering.kernels.space import Axis, Fold, Result, Space
from xcube.lowering.kernels.work import Work

TURN = 8  # lines of a turn of a loop at most

Scope = dict[Any, Any]
Line = tuple[Value, Value | None]  # where it begins, and whether it exists; None for always


def build(group: Group, space: Space, facts: Facts, sources: frozenset[Var]) -> Work:
    """The launch of a map or rows program; `sources` share memory with results."""
    turn = rows_turned.choose(space, facts)
    if turn is not None:
        return rows_turned.build(group, space, turn, sources)
    return _Template(group, space, select(space, facts), sources).build()


# the template ---------------------------------------------------------------------------------


class _Template:
    def __init__(
        self, group: Group, space: Space, blueprint: Blueprint, sources: frozenset[Var]
    ) -> None:
        self.space, self.blueprint, self.sources = space, blueprint, sources
        self.b = Builder(group.name, (blueprint.across, blueprint.down, 1))
        self.arguments = Arguments(self.b, sources)
        self.emit = Emitter(
            self.arguments,
            space.axes,
            blueprint.lane,
            blueprint.lanes,
            aligned=True,
            narrow=is_narrow(space),
        )
        self.phases = max([0, *(fold.depth for fold in space.folds)])
        self.late = late_results(space)
        self.x, self.y = (self._unit("x", blueprint.across), self._unit("y", blueprint.down))

    def build(self) -> Work:
        shared = "inout" if self.sources else "out"
        for result in self.space.results:  # results are the first buffers
            self.arguments.buffer(result.var, shared)
        lane = self.blueprint.lane
        if lane is None:
            cubes = self._single()
        elif self.blueprint.flat:
            cubes = self._flat(lane)
        elif not self.space.columns:
            cubes = self._map(lane)
        else:
            cubes = self._program(lane)
        cells, variables = tuple(self.arguments.cells), tuple(self.arguments.variables)
        return Work(self.b.finish(), variables, cells, cubes, 1)

    def _unit(self, axis: str, count: int) -> Value:
        return self.b.place(f"unit_pos.{axis}") if count > 1 else self.b.constant(0, "index")

    # maps: each gives the number of cubes

    def _single(self) -> int:
        self._fold_nothing()
        self.emit.write(self.space.results)
        return 1

    def _flat(self, lane: Axis) -> int:
        lanes = self.blueprint.lanes
        self.emit.at[id(lane)] = self.b.place("cube_pos.x") * lanes
        self.emit.write(self.space.results)
        return -(-lane.extent // lanes)

    def _map(self, lane: Axis) -> int:
        plan = self.blueprint
        lines, outer = lane.extent // plan.lanes, self._outer(lane)
        rows, chunks = size_of(outer), -(-lines // (plan.across * plan.held))
        cube, part = self._parts(chunks)
        row = cube * plan.down + self.y
        with where(self.b, self._below(row, "rows", rows, plan.whole)):
            self.emit.place(outer, row)
            self.emit.hoist(self.space.roots, lane.mask)
            first = part * (plan.across * plan.held) + self.x
            numbers = [first + number * plan.across for number in range(plan.held)]
            exist = [self._below(line, "lines", lines, plan.exact) for line in numbers]
            places = [line * plan.lanes for line in numbers]
            scopes = [Scope() for _ in places]
            self._write_lines(lane, list(zip(places, exist, strict=True)), scopes, None)
        return -(-rows // plan.down) * chunks

    def _outer(self, lane: Axis) -> list[Axis]:
        return [axis for axis in self.space.rows if axis is not lane]

    def _parts(self, chunks: int) -> tuple[Value, Value]:
        """The number of a cube as that of what is cut into chunks, and the number of its chunk."""
        cube = self.b.place("cube_pos.x")
        if chunks == 1:
            return cube, self.b.constant(0, "index")
        count = self.arguments.scalar("chunks", chunks)
        return self.emit.quotient(cube, count), self.emit.remainder(cube, count)

    def _below(self, number: Value, name: str, count: int, always: bool) -> Value | None:
        """Whether there is one of this number; None if there always is."""
        return None if always else number < self.arguments.scalar(name, count)

    # rows programs

    def _program(self, lane: Axis) -> int:
        self.walk = walked(self.space, lane)
        cubes = self._stand_along() if lane is self.walk else self._stand_across(lane)
        alone = self.meeting.members == 1
        self.scopes = [Scope() for _ in range(self.blueprint.held)]
        with where(self.b, self.present if alone else None):
            if alone:
                self.present = None
            for phase in range(1, self.phases + 1):
                self._phase([fold for fold in self.space.folds if fold.depth == phase])
            self._write_rows([r for r in self.space.results if r not in self.late])
            if self.late:
                self._last_phase()
        return cubes

    def _stand_along(self) -> int:
        """Units across share a row, which units down have each for themselves."""
        plan, rows = self.blueprint, size_of(self.space.rows)
        self.unit = self.x
        self.meeting = Meeting(self.emit, self.x, plan.across, self.y * plan.across, 1)
        row = self.b.place("cube_pos.x") * plan.down + self.y
        self.present = self._below(row, "rows", rows, plan.whole)
        self.emit.place(self.space.rows, self._nearest(row, "rows", rows, plan.whole))
        return -(-rows // plan.down)

    def _stand_across(self, lane: Axis) -> int:
        """Units down share the columns of a line of rows, one for each unit across."""
        plan, outer = self.blueprint, self._outer(lane)
        lines = lane.extent // plan.lanes
        self.unit = self.y
        self.meeting = Meeting(self.emit, self.y, plan.down, self.x, plan.across, plan.lanes)
        chunks = -(-lines // plan.across)
        cube, part = self._parts(chunks)
        line = part * plan.across + self.x
        self.present = self._below(line, "rows", lines, plan.whole)
        self.emit.place(outer, cube)
        line = self._nearest(line, "rows", lines, plan.whole)
        self.emit.at[id(lane)] = line * plan.lanes
        return size_of(outer) * chunks

    def _nearest(self, number: Value, name: str, count: int, always: bool) -> Value:
        """A number that there is: units without work of their own come along to the meetings."""
        if always:
            return number
        return self.b.op("min", number, self.arguments.scalar(name, count) - 1)

    # phases

    def _phase(self, folds: Sequence[Fold]) -> None:
        self.emit.hoist([n for fold in folds for n in fold.lifted], mask_of(self.space.columns))
        totals = self._held_phase(folds) if self.blueprint.held else self._looped_phase(folds)
        lane, lanes = self.blueprint.lane, self.blueprint.lanes
        if lane is self.walk:
            totals = [
                states.across_lanes(self.emit, fold, parts, lanes)
                for fold, parts in zip(folds, totals, strict=True)
            ]
        self.emit.folds.update(zip(folds, self.meeting.combined(folds, totals), strict=True))

    def _held_phase(self, folds: Sequence[Fold]) -> list[list[Any]]:
        """The states of a unit's lines, kept in registers together with what they were made of."""
        lines = [
            self._elements(folds, line, scope)
            for line, scope in zip(self._held_lines(), self.scopes, strict=True)
        ]
        found = []
        for fold, elements in zip(folds, zip(*lines, strict=True), strict=True):
            total = states.combine_all(self.emit, fold, elements)
            before = states.neutral(self.emit, fold, self.blueprint.lanes)
            found.append(states.combine(self.emit, fold, before, total))
        return found

    def _elements(self, folds: Sequence[Fold], line: Line, scope: Scope) -> list[list[Any]]:
        """One line's elements as states of the folds; neutral where the line does not exist."""
        place, exists = line
        lanes, found = self.blueprint.lanes, []
        self.emit.open(scope)
        self.emit.at[id(self.walk)] = place
        for fold in folds:
            parts = [states.splat(self.b, part, lanes) for part in self.emit.values(fold.lifted)]
            if exists is not None:
                nothing = states.neutral(self.emit, fold, lanes)
                parts = states.select(self.b, exists, parts, nothing)
            found.append(parts)
        self.emit.close()
        return found

    def _held_lines(self) -> list[Line]:
        """The lines of this unit; only its last one may be missing, and is then another's."""
        plan, members = self.blueprint, self.meeting.members
        step = self._step()
        lines: list[Line] = []
        for number in range(plan.held):
            always = plan.exact or number < plan.held - 1
            line, count = self.unit + number * members, self.walk.extent // step
            exists = self._below(line, "lines", count, always)
            lines.append((self._nearest(line, "lines", count, always) * step, exists))
        return lines

    def _step(self) -> int:
        """Elements of the walked axis that a line covers."""
        return self.blueprint.lanes if self.blueprint.lane is self.walk else 1

    def _looped_phase(self, folds: Sequence[Fold]) -> list[list[Any]]:
        lanes = self.blueprint.lanes
        running = [
            [states.variable(self.b, part) for part in states.neutral(self.emit, fold, lanes)]
            for fold in folds
        ]

        def turn(places: Sequence[Value]) -> None:
            lines = [self._elements(folds, (place, None), {}) for place in places]
            for fold, state, elements in zip(folds, running, zip(*lines, strict=True), strict=True):
                total = states.combine_all(self.emit, fold, elements)
                before = [states.read(part) for part in state]
                after = states.combine(self.emit, fold, before, total)
                for part, value in zip(state, after, strict=True):
                    states.assign(part, value)

        self._loops(turn)
        return [[states.read(part) for part in state] for state in running]

    def _loops(self, turn: Callable[[Sequence[Value]], None]) -> None:
        """Loops over all columns: those of the walked axis several at a time, then the rest."""
        with contextlib.ExitStack() as stack:
            for axis in self.space.columns:
                if axis is not self.walk:
                    stack.enter_context(self._loop(axis))
            step = self._step() * self.meeting.members
            end = self.arguments.scalar(("extent", self.walk.dims), self.walk.extent)
            first, count = self.unit * self._step(), self._lines_of_turn()
            if count > 1:
                stop = end - (count - 1) * step
                first = self._turns(first, stop, step, count, turn)
            for place in self.b.range(first, end, step):
                turn([place])

    def _lines_of_turn(self) -> int:
        """As many as registers hold together with what costly functions need."""
        costly = any(node.op in COSTLY for node in self.space.order)
        return min(TURN, (1 if costly else 2) * HELD // self.blueprint.lanes)

    def _turns(self, first: Value, stop: Value, step: int, count: int, turn: Any) -> Value:
        """A loop of whole turns; where the next line begins."""
        for place in self.b.range(first, stop, count * step):
            turn([place + number * step for number in range(count)])
        left = self.b.op("max", stop - first, 0)
        return first + (left + (count * step - 1)) // (count * step) * (count * step)

    @contextlib.contextmanager
    def _loop(self, axis: Axis) -> Iterator[None]:
        end = self.arguments.scalar(("extent", axis.dims), axis.extent)
        for place in self.b.range(0, end):
            self.emit.open()
            self.emit.at[id(axis)] = place
            yield
            self.emit.close()

    # results

    def _fold_nothing(self) -> None:
        """Reductions over columns of one element each."""
        for fold in sorted(self.space.folds, key=lambda fold: fold.depth):
            self.emit.folds[fold] = self.emit.values(fold.lifted)

    def _write_rows(self, results: Sequence[Result]) -> None:
        """Results that have one element for a row: the first unit of its group writes them."""
        if not results:
            return
        first = self.unit.eq(0) if self.meeting.members > 1 else None
        with where(self.b, first, self.present):
            self.emit.open()
            self.emit.write(results)
            self.emit.close()

    def _last_phase(self) -> None:
        self.emit.hoist([result.node for result in self.late], mask_of(self.space.columns))
        if self.blueprint.held:
            self._write_lines(self.walk, self._held_lines(), self.scopes, self.present)
            return

        def turn(places: Sequence[Value]) -> None:
            lines: list[Line] = [(place, None) for place in places]
            self._write_lines(self.walk, lines, [{} for _ in places], self.present)

        self._loops(turn)

    def _write_lines(
        self, axis: Axis, lines: Sequence[Line], scopes: Sequence[Scope], present: Value | None
    ) -> None:
        """Results along lines, those that exist; all is read before anything is written."""
        results = self.late if self.space.columns else self.space.results
        always = present is None and all(exists is None for _, exists in lines)
        if always:
            for (place, _), scope in zip(lines, scopes, strict=True):
                self.emit.open(scope)
                self.emit.at[id(axis)] = place
                self._compute(results)
                self.emit.close()
        for (place, exists), scope in zip(lines, scopes, strict=True):
            with where(self.b, exists, present):
                self.emit.open(scope)
                self.emit.open()
                self.emit.at[id(axis)] = place
                if not always:
                    self._compute(results)
                self.emit.write(results)
                self.emit.close()
                self.emit.close()

    def _compute(self, results: Sequence[Result]) -> None:
        """Values of results where the emitter is."""
        if not self.space.columns:
            self._fold_nothing()
        self.emit.values([result.node for result in results])
