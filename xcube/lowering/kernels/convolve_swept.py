"""The kernel of a convolution whose window is larger than its result, as the gradient of a kernel
is, where a cube is a task of one thread.

The input lies as [group, feature, *space, row], the window as [group, feature, *window, output]. A
tile is a product over places of the window: of rows that are neighbours in the input, at the last
dimension's places of the result too where those are, with lines of outputs. A cube goes over some
lines of the window for each of its tiles and each of the other places of the result in turn, and
then over the next ones, so that all stays near. Sums lie as [part of the window, group, panel of
outputs, tile, place, row, output], those of parts side by side. A last tile that would stand out
begins earlier.
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
CUBES = 32  # among which the work is shared, if there is enough to do
NEAR = 256  # places of the window that a tile meets before the next one has its turn


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


def parts_of(lines: int, wanted: int) -> int:
    """Into how many parts lines are cut, none of them empty. The sizes alone should decide what is
    wanted, so that sums are the same on every machine of a kind."""
    height = math.ceil(lines / max(1, min(lines, wanted)))
    return math.ceil(lines / height)


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
        self.groups, self.features, self.sizes = x.shape[0], x.shape[1], x.shape[2:-1]
        self.channels, self.wide = x.shape[-1], w.shape[-1]
        self.taps, self.run = self.sweep.taken(self.walk.counts, self.channels)
        self.lines = (self.features, *self.walk.window[:-1])
        self.dtype = dtypes.short_name(x.dtype)
        self.b = Builder("convolve_swept")
        self.arguments = Arguments(self.b)
        self.out = self.arguments.buffer(root.outputs[0], "inout")
        self.x, self.w = (self.arguments.buffer(atom) for atom in root.inputs)  # type: ignore[arg-type]

    def build(self) -> Work:
        """The launch."""
        b, sweep = self.b, self.sweep
        total = math.prod(self.lines)
        height, panels = math.ceil(total / sweep.parts), self.wide // sweep.outputs
        cube, count = b.place("cube_pos.x"), self._scalar("panels", panels)
        panel, rest = cube % count, cube // count
        groups = self._scalar("groups", self.groups)
        part, self.group = rest // groups, rest % groups
        self.column = panel * sweep.outputs
        begin = part * self._scalar("height", height)
        stop = b.op("min", begin + self._scalar("height", height), self._scalar("total", total))
        near = self._scalar("near", max(1, NEAR // max(1, self.walk.window[-1])))
        for first in b.range(begin, stop, near):
            self._tiles(cube, first > begin, first, b.op("min", first + near, stop))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        work = height * self.walk.window[-1] * math.prod(self.taps) * self.run * sweep.outputs
        cubes = sweep.parts * self.groups * panels
        return Work(b.finish(), variables, cells, cubes, max(1, TASK // max(1, work)))

    def _scalar(self, name: object, number: int) -> Value:
        return self.arguments.scalar(name, number)

    # products

    def _tiles(self, cube: Value, goes_on: Value, first: Value, last: Value) -> None:
        """Every tile of a cube, over some lines of the window."""
        b, sweep = self.b, self.sweep
        tiles = self._scalar("tiles", math.ceil(self.run / sweep.rows))
        taps = self._scalar("taps", math.prod(self.taps))
        for tile in b.range(0, tiles):
            row = b.op("min", tile * sweep.rows, self._scalar("last row", self.run - sweep.rows))
            for tap in b.range(0, taps):
                at = ((cube * tiles + tile) * taps + tap) * (sweep.rows * sweep.outputs)
                sums = self._before(goes_on, at)
                offset = row + self._offset(tap)
                for line in b.range(first, last):
                    self._line(line, offset, sums)
                for place, cell in self._cells(sums):
                    b.store(self.out, at + place, cell.get())

    def _cells(self, sums: Sequence[Sequence[Variable]]) -> list[tuple[int, Variable]]:
        """The sums of a tile, and where they are in memory."""
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
                cell.set(b.load(self.out, at + place, lanes=sweep.lanes))
        return sums

    @property
    def _pitches(self) -> list[int]:
        """Elements from one place of the input to the next, of every dimension of space."""
        sizes = range(len(self.sizes))
        return [self.channels * math.prod(self.sizes[d + 1 :]) for d in sizes]

    def _offset(self, tap: Value) -> Value:
        """Where the input of a place of the result begins."""
        offset = self.b.constant(0, "index")
        for d in range(len(self.taps) - 1, -1, -1):
            step = self._scalar(("tap", d), self.walk.strides[d] * self._pitches[d])
            count = self._scalar(("count", d), self.taps[d])
            offset, tap = offset + (tap % count if d else tap) * step, tap // count
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
