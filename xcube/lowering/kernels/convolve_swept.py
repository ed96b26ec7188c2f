"""The kernel of a convolution whose window is larger than its result, as the gradient of a kernel is,
where a cube is a task of one thread.

The input lies as [group, feature, *space, row], the window as [group, feature, *window, output]. A
tile is a product over the places of the window: of rows that are neighbours in the input, at the last
dimension's places of the result too where those are, with lines of outputs. It goes over some lines
of the window for each of the other places of the result in turn, so that both stay near. Sums of
parts of the window lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.convolution_pull import Walk

TASK = 1 << 19  # products worth handing to a thread
CUBES = 64  # among which the work is shared, if there is enough to do
NEAR = 128  # places of the window that stay in the first cache, with what they meet


@dataclass(frozen=True)
class Sweep:
    """Rows, lines and lanes of a tile, whose sums are in registers; whether neighbouring places of
    the result meet neighbours in the input; into how many parts the window is cut."""

    rows: int
    lines: int
    lanes: int
    merged: bool
    parts: int

    @property
    def outputs(self) -> int:
        return self.lines * self.lanes

    def taken(self, counts: Shape, rows: int) -> tuple[Shape, int]:
        """Places of the result that take turns, and rows of each."""
        return (counts[:-1], counts[-1] * rows) if self.merged else (counts, rows)

    def __str__(self) -> str:
        return f"{self.rows}x{self.outputs}"


def parts_of(lines: int, tiles: int, products: int) -> int:
    """Into how many parts the window's lines are cut: the sizes alone decide, so that sums are the
    same on every machine of a kind."""
    enough = max(1, products // TASK)
    return max(1, min(lines, math.ceil(CUBES / tiles), math.ceil(enough / tiles)))


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a swept convolution."""
    return [_Launch(group).build()]


class _Launch:
    """The kernel in the making."""

    def __init__(self, group: Group) -> None:
        root = group.root
        assert root is not None
        self.sweep: Sweep = root.params["sweep"]
        self.walk: Walk = root.params["walk"]
        x, w = (atom.aval for atom in root.inputs)
        self.groups, self.features, self.sizes, self.channels = (
            *x.shape[:2],
            x.shape[2:-1],
            x.shape[-1],
        )
        self.wide = w.shape[-1]
        self.outputs = root.params["outputs"]
        self.taps, self.run = self.sweep.taken(self.walk.counts, self.channels)
        self.lines = (self.features, *self.walk.window[:-1])
        self.dtype = dtypes.short_name(x.dtype)
        self.b = Builder("convolve_swept")
        self.arguments = Arguments(self.b)
        self.out = self.arguments.buffer(root.outputs[0], "out")
        self.x, self.w = (self.arguments.buffer(atom) for atom in root.inputs)  # type: ignore[arg-type]

    def build(self) -> Work:
        """The launch."""
        b, sweep = self.b, self.sweep
        total = math.prod(self.lines)
        height = math.ceil(total / sweep.parts)
        panels = self.wide // sweep.outputs, math.ceil(self.run / sweep.rows)
        part, group, panel, tile = self._cube(panels)
        begin = part * self._scalar("height", height)
        stop = b.op("min", begin + self._scalar("height", height), self._scalar("total", total))
        run = self._scalar("run", self.run)
        own = tile * sweep.rows
        first = b.op("min", own, run - sweep.rows)
        self.group, self.column, self.first = group, panel * sweep.outputs, first
        self.scratch = b.shared(self.dtype, math.prod(self.taps) * sweep.rows * sweep.outputs)
        self._sweep(begin, stop)
        self._write(part, own, b.op("min", own + sweep.rows, run))
        cubes = sweep.parts * self.groups * math.prod(panels)
        work = height * self.walk.window[-1] * math.prod(self.taps) * sweep.rows * sweep.outputs
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, cubes, max(1, TASK // max(1, work)))

    def _scalar(self, name: object, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _cube(self, panels: tuple[int, int]) -> tuple[Value, Value, Value, Value]:
        """Part, group, panel of outputs and tile of rows, the last of which changes quickest."""
        cube = self.b.place("cube_pos.x")
        tiles, outputs = self._scalar("tiles", panels[1]), self._scalar("panels", panels[0])
        tile, cube = cube % tiles, cube // tiles
        panel, cube = cube % outputs, cube // outputs
        groups = self._scalar("groups", self.groups)
        return cube // groups, cube % groups, panel, tile

    # products

    def _sweep(self, begin: Value, stop: Value) -> None:
        b, sweep = self.b, self.sweep
        near = self._scalar("near", max(1, NEAR // max(1, self.walk.window[-1])))
        size = sweep.rows * sweep.outputs
        for first in b.range(begin, stop, near):
            last = b.op("min", first + near, stop)
            for tap in b.range(0, self._scalar("taps", math.prod(self.taps))):
                sums = self._before(first > begin, tap * size)
                offset = self._offset(tap)
                for line in b.range(first, last):
                    self._line(line, offset, sums)
                for at, cell in self._cells(sums):
                    b.store(self.scratch, tap * size + at, cell.get())

    def _cells(self, sums: Sequence[Sequence[Variable]]) -> list[tuple[int, Variable]]:
        """The sums of a tile, and where they are in its scratch."""
        sweep = self.sweep
        return [
            (r * sweep.outputs + v * sweep.lanes, cell)
            for r, row in enumerate(sums)
            for v, cell in enumerate(row)
        ]

    def _before(self, goes_on: Value, at: Value) -> list[list[Variable]]:
        """Zeros, or the sums of the lines before."""
        b, sweep = self.b, self.sweep
        zero = b.constant(0, self.dtype, sweep.lanes)
        sums = [[b.variable(zero) for _ in range(sweep.lines)] for _ in range(sweep.rows)]
        with b.when(goes_on):
            for place, cell in self._cells(sums):
                cell.set(b.load(self.scratch, at + place, lanes=sweep.lanes))
        return sums

    @property
    def _pitches(self) -> list[int]:
        """Elements from one place of the input to the next, of every dimension of space."""
        sizes = range(len(self.sizes))
        return [self.channels * math.prod(self.sizes[d + 1 :]) for d in sizes]

    def _offset(self, tap: Value) -> Value:
        """Where the input of a place of the result begins."""
        offset = self.first
        for d in range(len(self.taps) - 1, -1, -1):
            step = self._scalar(("tap", d), self.walk.strides[d] * self._pitches[d])
            if d == 0:
                return offset + tap * step
            count = self._scalar(("count", d), self.taps[d])
            offset, tap = offset + tap % count * step, tap // count
        return offset

    def _line(self, line: Value, offset: Value, sums: list[list[Variable]]) -> None:
        """Products of a line of the window."""
        b, sweep, walk = self.b, self.sweep, self.walk
        length, wide = self._scalar("length", walk.window[-1]), self._scalar("wide", self.wide)
        total = self._scalar("total", math.prod(self.lines))
        x = offset + self._start(line)
        w = ((self.group * total + line) * length) * wide + self.column
        step = self._scalar("step", walk.dilation[-1] * self.channels)
        for place in b.range(0, length):
            at, row = x + place * step, w + place * wide
            right = [b.load(self.w, row + v * sweep.lanes, sweep.lanes) for v in range(sweep.lines)]
            for r, cells in enumerate(sums):
                left = b.splat(b.load(self.x, at + r), sweep.lanes)
                for cell, value in zip(cells, right, strict=True):
                    cell.set(self._multiply_add(left, value, cell.get()))

    def _start(self, line: Value) -> Value:
        """Where the input of a line of the window begins, at the result's first place."""
        image = self._scalar("image", self.channels * math.prod(self.sizes))
        start = self.b.constant(0, "index")
        for d in range(len(self.lines) - 1, 0, -1):
            count = self._scalar(("line", d), self.lines[d])
            step = self._scalar(("apart", d), self.walk.dilation[d - 1] * self._pitches[d - 1])
            start, line = start + line % count * step, line // count
        return start + (self.group * self._scalar("features", self.features) + line) * image

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z

    # results

    def _write(self, part: Value, own: Value, until: Value) -> None:
        """The rows of a tile that are its own, at every place of the result."""
        b, sweep = self.b, self.sweep
        taps, run = self._scalar("taps", math.prod(self.taps)), self._scalar("run", self.run)
        outputs = self._scalar("outputs", self.outputs)
        block = part * self._scalar("groups", self.groups) + self.group
        stop = b.op("min", self.column + sweep.outputs, outputs)
        for tap in b.range(0, taps):
            for row in b.range(own, until):
                at = ((block * taps + tap) * run + row) * outputs
                here = (tap * sweep.rows + (row - self.first)) * sweep.outputs
                for column in b.range(self.column, stop, sweep.lanes):
                    mask = None
                    if self.outputs % sweep.lanes:
                        mask = b.lane(sweep.lanes, "i32") < (stop - column).cast("i32")
                    line = b.load(self.scratch, here + (column - self.column), lanes=sweep.lanes)
                    b.store(self.out, at + column, line, mask)
