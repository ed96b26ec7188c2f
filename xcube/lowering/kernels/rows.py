"""The template of maps and rows programs: loops over rows, inside them loops over columns.

A map has no columns. A rows program runs one loop over the columns for each phase: a phase's
reductions need the results of those before it, the last phase writes what depends on all.
Softmax, layer norm, argmax and plain sums are rows programs. Lanes lie along the loop that
most operands walk with stride one: along columns (accumulators are lines, combined at the end)
or along rows (each lane is a row). What cubes of many units do instead: `rows_units.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import COSTLY, Node, walk
from xcube.lowering.kernels import rows_tiles, rows_units, states
from xcube.lowering.kernels.lanes import late_results, mask_of, round_up
from xcube.lowering.kernels.nodes import PARTS, Arguments, Emitter
from xcube.lowering.kernels.rows_lines import Blueprint, select
from xcube.lowering.kernels.space import Axis, Fold, Result, Space, analyse
from xcube.lowering.kernels.work import Work

FLAT_BLOCK = 1 << 14  # elements of a cube of a flat map
SMALL_ROW = 1 << 11  # elements below which a cube takes several rows
CHUNK = 1 << 13  # elements along the lanes that one cube walks
SCRATCH = (1 << 12, 1 << 14)  # elements of a row kept for a later phase: one of these sizes
TASK = 50_000  # operations worth handing to a thread


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a map or rows program; `sources` share memory with results."""
    if all(var.aval.size == 0 for var in group.outputs):
        return []
    space = analyse(group)
    if facts.units > 1:
        return [rows_units.build(group, space, facts, sources)]
    if (tiles := rows_tiles.choose(space, facts)) is not None:
        return [rows_tiles.build(group, space, tiles, sources)]
    return [_Template(group, space, select(space, facts), sources).build()]


class _Template:
    def __init__(
        self, group: Group, space: Space, blueprint: Blueprint, sources: frozenset[Var]
    ) -> None:
        self.space, self.blueprint, self.sources = space, blueprint, sources
        self.b = Builder(group.name)
        self.arguments = Arguments(self.b, sources)
        self.emit = Emitter(self.arguments, space.axes, blueprint.lane, blueprint.lanes)
        self.phases = max([0, *(fold.depth for fold in space.folds)])
        self.cost = 1 + sum(_cost(node) for node in space.order)
        self.late = late_results(space)
        self.scratch: dict[Node, Buffer] = {}
        self.kept: dict[Node, None] = {}

    def build(self) -> Work:
        shared = "inout" if self.sources else "out"
        for result in self.space.results:  # results are the first buffers
            self.arguments.buffer(result.var, shared)
        lane = self.blueprint.lane
        if lane is not None and lane.kind == "column":
            self._allocate_scratch(lane)
        if lane is None:
            cubes = self._single()
        elif self.blueprint.flat:
            cubes = self._flat(lane)
        elif lane.kind == "column":
            cubes = self._lanes_on_columns(lane)
        else:
            cubes = self._lanes_on_rows(lane)
        work = cubes[1] * self.cost
        grain = max(1, math.ceil(TASK / max(1, work)))
        kernel = self.b.finish()
        cells = tuple(self.arguments.cells)
        variables = tuple(self.arguments.variables)
        return Work(kernel, variables, cells, cubes[0], grain)

    # whole kernels: each gives (cubes, elements of a cube)

    def _single(self) -> tuple[int, int]:
        """One element."""
        self._finish_rows()
        return 1, 1

    def _flat(self, lane: Axis) -> tuple[int, int]:
        block = min(FLAT_BLOCK, round_up(lane.extent, self.blueprint.lanes))
        b = self.b
        size = self.arguments.scalar("block", block)
        end = self.arguments.scalar("extent", lane.extent)
        start = b.place("cube_pos.x") * size
        stop = b.op("min", start + size, end)
        self.emit.hoist(self.space.roots, lane.mask)
        for i in b.range(start, stop, self.blueprint.lanes):
            self.emit.open()
            self.emit.at[id(lane)] = i
            self._write(self.space.results)
            self.emit.close()
        return math.ceil(lane.extent / block), block

    def _lanes_on_rows(self, lane: Axis) -> tuple[int, int]:
        outer = [axis for axis in self.space.rows if axis is not lane]
        columns = math.prod(axis.extent for axis in self.space.columns)
        chunk = self._chunk(lane, columns)
        chunks = math.ceil(lane.extent / chunk)
        end = self.arguments.scalar("extent", lane.extent)

        def lines(start: Value, stop: Value) -> None:
            self.emit.hoist(self.space.roots, lane.mask | mask_of(self.space.columns))
            for i in self.b.range(start, stop, self.blueprint.lanes):
                self.emit.open()
                self.emit.at[id(lane)] = i
                self.emit.mask_from(i, end, self.blueprint.ragged)
                self._run_phases(lane)
                self.emit.close()
            self.emit.mask = None

        zero = self.b.constant(0, "index")
        if chunks == 1:
            return self._walk(outer, lane.extent * columns, lambda: lines(zero, end))
        cube, part = self.b.place("cube_pos.x"), self.b.place("cube_pos.x")
        if outer:
            count = self.arguments.scalar("chunks", chunks)
            cube, part = cube // count, cube % count
        self.emit.place(outer, cube)
        size = self.arguments.scalar("chunk", chunk)
        lines(part * size, self.b.op("min", part * size + size, end))
        return math.prod(axis.extent for axis in outer) * chunks, chunk * columns

    def _chunk(self, lane: Axis, columns: int) -> int:
        """Elements along the lanes that one cube walks."""
        lanes = self.blueprint.lanes
        chunk = min(CHUNK, round_up(lane.extent, lanes))
        while columns > 64 and chunk > lanes * 2:
            chunk, columns = round_up(chunk // 2, lanes), columns // 2
        return chunk

    def _lanes_on_columns(self, lane: Axis) -> tuple[int, int]:
        columns = math.prod(axis.extent for axis in self.space.columns)
        return self._walk(self.space.rows, columns, lambda: self._run_phases(lane))

    def _walk(self, outer: Sequence[Axis], size: int, body: Any) -> tuple[int, int]:
        """Run `body` for every index of the outer axes: a cube takes several neighbours along the
        innermost of them where one is too small to be a task."""
        rows = math.prod(axis.extent for axis in outer)
        cube = self.b.place("cube_pos.x")
        if not outer or size >= SMALL_ROW:
            self.emit.place(outer, cube)
            body()
            return rows, size
        *above, along = outer
        block = max(1, min(along.extent, SMALL_ROW // max(1, size)))
        blocks = math.ceil(along.extent / block)
        if above:
            count = self.arguments.scalar("blocks", blocks)
            self.emit.place(above, cube // count)
            cube = cube % count
        extent = self.arguments.scalar(("extent", along.dims), along.extent)
        start = cube * self.arguments.scalar("block", block)
        stop = self.b.op("min", start + self.arguments.scalar("block", block), extent)
        for i in self.b.range(start, stop):
            self.emit.open()
            self.emit.at[id(along)] = i
            body()
            self.emit.close()
        return rows // along.extent * blocks, block * size

    # inside a cube

    def _run_phases(self, lane: Axis) -> None:
        columns = self.space.columns
        if not columns:
            self._fold_nothing()
            self._write(self.space.results)
            return
        for phase in range(1, self.phases + 1):
            folds = [fold for fold in self.space.folds if fold.depth == phase]
            self._phase(folds, lane)
        self._write([result for result in self.space.results if result not in self.late])
        if self.late:
            self._last_phase(self.late, lane)

    def _fold_nothing(self) -> None:
        """Reductions over columns of one element each."""
        for phase in range(1, self.phases + 1):
            for fold in self.space.folds:
                if fold.depth == phase:
                    self.emit.folds[fold] = self.emit.values(fold.lifted)

    def _phase(self, folds: Sequence[Fold], lane: Axis) -> None:
        roots = [node for fold in folds for node in fold.lifted]
        self.emit.hoist(roots, mask_of(self.space.columns))
        width = self.blueprint.lanes
        running = [[self._begin(fold) for fold in folds] for _ in range(self.blueprint.places)]

        def body(place: int = 0) -> None:
            self._recall(lane)
            for fold, state in zip(folds, running[place], strict=True):
                self._accumulate(fold, state, lane)
            self._keep(roots, lane)

        first = self._places_at_once(lane, body)
        self._column_loops(lane, body, first)
        for fold, *found in zip(folds, *running, strict=True):
            places = [[states.read(part) for part in state] for state in found]
            parts = states.combine_all(self.emit, fold, places)
            if lane.kind == "column":
                parts = states.across_lanes(self.emit, fold, parts, width)
            self.emit.folds[fold] = parts

    def _begin(self, fold: Fold) -> list[Any]:
        """The state of no elements, to be changed."""
        neutral = states.neutral(self.emit, fold, self.blueprint.lanes)
        return [states.variable(self.b, part) for part in neutral]

    def _places_at_once(self, lane: Axis, body: Any) -> Value:
        """Run `body` in several places of a row in turn; where the rest of the row begins."""
        places, lanes = self.blueprint.places, self.blueprint.lanes
        if places == 1:
            return self.b.constant(0, "index")
        size = lane.extent // (places * lanes) * lanes
        part = self.arguments.scalar("part", size)
        for i in self.b.range(0, part, lanes):
            for place in range(places):
                self.emit.open()
                self.emit.at[id(lane)] = i + part * place
                body(place)
                self.emit.close()
        return part * places

    def _allocate_scratch(self, lane: Axis) -> None:
        """Arrays for costly values of a row that are needed in more than one of its loops."""
        size = next((size for size in SCRATCH if lane.extent <= size), None)
        if size is None or len(self.space.columns) != 1:
            return
        for phase in range(1, self.phases + 1):
            here = [n for f in self.space.folds if f.depth == phase for n in f.lifted]
            later = [n for f in self.space.folds if f.depth > phase for n in f.lifted]
            later += [result.node for result in self.late]
            again = {id(node) for node in walk(later)}
            for node in walk(here):
                costly = node.op in COSTLY and node.dims & lane.mask and node.dtype not in PARTS
                if costly and id(node) in again and node not in self.scratch:
                    self.scratch[node] = self.b.shared(node.dtype, size)

    def _keep(self, roots: Sequence[Node], lane: Axis) -> None:
        """Write costly values of this loop for the loops behind it."""
        for node in walk(roots):
            if node in self.scratch and node not in self.kept:
                at = self.emit.at[id(lane)]
                self.b.store(self.scratch[node], at, self.emit.value(node))
                self.kept[node] = None

    def _recall(self, lane: Axis) -> None:
        """Read costly values that a loop before has written."""
        for node in self.kept:
            at = self.emit.at[id(lane)]
            line = self.b.load(self.scratch[node], at, lanes=self.blueprint.lanes)
            self.emit.known(node, line)

    def _last_phase(self, results: Sequence[Result], lane: Axis) -> None:
        self.emit.hoist([result.node for result in results], mask_of(self.space.columns))

        def body() -> None:
            self._recall(lane)
            self._write(results)

        self._column_loops(lane, body)

    def _column_loops(self, lane: Axis, body: Any, first: Value | None = None) -> None:
        """The nest of loops over the columns; along the lanes it steps by whole lines, and begins
        with `first`."""
        outer_mask = self.emit.mask

        def nest(axes: Sequence[Axis]) -> None:
            if not axes:
                body()
                return
            axis, *rest = axes
            end = self.arguments.scalar(("extent", axis.dims), axis.extent)
            start, step = self.b.constant(0, "index"), 1
            if axis is lane:
                step = self.blueprint.lanes
                start = start if first is None else first
            for i in self.b.range(start, end, step):
                self.emit.open()
                self.emit.at[id(axis)] = i
                if axis is lane:
                    self.emit.mask_from(i, end, self.blueprint.ragged)
                nest(rest)
                self.emit.close()

        self.emit.open()
        nest(self.space.columns)
        self.emit.close()
        self.emit.mask = outer_mask

    # folds

    def _accumulate(self, fold: Fold, state: Sequence[Any], lane: Axis) -> None:
        before = [states.read(part) for part in state]
        element = self.emit.values(fold.lifted)
        after = states.combine(self.emit, fold, before, element)
        if self.emit.mask is not None and lane.kind == "column":
            after = states.select(self.b, self.emit.mask, after, before)
        for part, value in zip(state, after, strict=True):
            states.assign(part, value)

    # results

    def _finish_rows(self) -> None:
        self._fold_nothing()
        self._write(self.space.results)

    def _write(self, results: Sequence[Result]) -> None:
        self.emit.write(results, self.blueprint.streaming)


def _cost(node: Node) -> int:
    return 12 if node.op in COSTLY else 0 if node.op == "const" else 1
