"""The kernel of a convolution of packed operands, where a cube is a task of one thread.

A register tile holds the sums of some places along some lines of the result, for some lines of
outputs; a step multiplies lines of the kernel with scalars of the input, whose places lie at
comptime distances. A line of places is one place of everything but the last dimension of space, the
batch included. Along the last one, a window is a stretch of memory. Then the sums pass, line by
line, through the map that follows; they are turned first where neighbours in the result are places.
Tiles at the ends begin earlier and write only what is their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import walk as nodes_below
from xcube.lowering.kernels.lanes import round_up
from xcube.lowering.kernels.nodes import Arguments, Emitter, cast
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work
from xcube.primitives.convolution_pull import Walk

TASK = 1 << 19  # products worth handing to a thread
CUBES = 64  # among which a convolution is shared, if there is enough to do


@dataclass(frozen=True)
class Tile:
    """The comptime choices: lines and places along a row whose sums are in registers, lines of
    outputs and their lanes, channels of a block."""

    rows: int
    places: int
    lines: int
    lanes: int
    channels: int

    @property
    def outputs(self) -> int:
        return self.lines * self.lanes

    def __str__(self) -> str:
        return f"{self.rows}x{self.places}x{self.outputs}x{self.channels}"


class Convolution:
    """One convolution of packed operands, with the map behind it."""

    def __init__(self, group: Group, space: Space, sources: frozenset[Var], facts: Facts) -> None:
        root = group.root
        assert root is not None
        self.space, self.sources, self.root = space, sources, root
        self.tile: Tile = root.params["tile"]
        self.walk: Walk = root.params["walk"]
        x, w = (atom.aval for atom in root.inputs)
        self.groups, self.blocks, self.sizes = x.shape[1], x.shape[2], x.shape[3:-1]
        self.panels = w.shape[1]
        kinds = root.params["kinds"]
        self.turned = kinds[-1] == "place"
        self.outputs = root.outputs[0].aval.shape[kinds.index("output")] // self.groups
        self.counts = (x.shape[0], *self.walk.counts[:-1])
        self.total = math.prod(self.counts)
        self.dtype = dtypes.short_name(x.dtype)
        self.by_stretch = w.size * w.dtype.itemsize <= facts.l2_bytes // 2
        self.b = Builder("convolve")
        self.arguments = Arguments(self.b, sources)
        columns = space.of(kinds[-1])
        self.lane: Axis | None = columns[0] if columns else None
        self.lanes = 1 if self.lane is None else self.tile.lanes
        self.emit = Emitter(self.arguments, space.axes, self.lane, self.lanes)

    def build(self) -> Work:
        """The launch."""
        b, tile = self.b, self.tile
        shared = "inout" if self.sources else "out"
        for result in self.space.results:
            self.arguments.buffer(result.var, shared)
        self.x, self.w = (self.arguments.buffer(atom) for atom in self.root.inputs)  # type: ignore[arg-type]
        height = self._height()
        stretches = math.ceil(self.total / height)
        panel, stretch = self._cube(stretches)
        begin = stretch * self._scalar("height", height)
        stop = b.op(
            "min", begin + self._scalar("height", height), self._scalar("total", self.total)
        )
        self.scratch = b.shared(self.dtype, self._pitch * tile.outputs)
        self.columns = self.scratch
        if self.turned:
            self.columns = b.shared(self.dtype, self._pitch * tile.outputs + tile.lanes)
            self._fill()
        self._panel(panel, begin, stop)
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        cubes = self.groups * self.panels * stretches
        grain = max(1, TASK // max(1, height * self._line_work()))
        return Work(b.finish(), variables, cells, cubes, grain)

    def _cube(self, stretches: int) -> tuple[Value, Value]:
        """A cube's panel of outputs, among those of all groups, and its stretch of lines: cubes
        that follow one another share the input, if all panels stay in the caches meanwhile."""
        cube = self.b.place("cube_pos.x")
        if self.by_stretch:
            count = self._scalar("all panels", self.groups * self.panels)
            return cube % count, cube // count
        count = self._scalar("stretches", stretches)
        return cube // count, cube % count

    def _scalar(self, name: object, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _line_work(self) -> int:
        """Products of a line and a panel."""
        depth = self.blocks * self.tile.channels * math.prod(self.walk.window)
        return self.walk.counts[-1] * self.tile.outputs * depth

    def _height(self) -> int:
        """Lines of a cube: whole tiles, enough to be worth it, and few enough to be shared."""
        enough = math.ceil(TASK / max(1, self._line_work()))
        shared = math.ceil(self.total * self.panels * self.groups / CUBES)
        height = max(enough, shared)
        return min(self.total, math.ceil(height / self.tile.rows) * self.tile.rows)

    # products

    def _panel(self, panel: Value, begin: Value, stop: Value) -> None:
        b, tile = self.b, self.tile
        number, group = panel, b.constant(0, "index")
        if self.groups > 1:
            panels = self._scalar("panels", self.panels)
            number, group = panel % panels, panel // panels
        depth = self.blocks * math.prod(self.walk.window) * tile.channels
        kernel = panel * self._scalar("panel", depth * tile.outputs)
        first_output = number * tile.outputs
        length = self._scalar("length", self.walk.counts[-1])
        last_line = self._scalar("last line", self.total - min(tile.rows, self.total))
        last_place = length - tile.places
        for line in b.range(begin, stop, tile.rows):
            first = b.op("min", line, last_line) if tile.rows > 1 else line
            starts = [self._start(first + r, group) for r in range(self._rows)]
            end = b.op("min", line + tile.rows, stop)
            for place in b.range(0, length, tile.places):
                at = b.op("min", place, last_place)
                offset = at * (self.walk.strides[-1] * tile.channels)
                self._sums([start + offset for start in starts], kernel)
                until = b.op("min", place + tile.places, length)
                self._epilogue((line, end, first), (place, until, at), group, first_output)

    @property
    def _rows(self) -> int:
        return min(self.tile.rows, self.total)

    @property
    def _pitches(self) -> list[int]:
        """Elements from one place to the next, of every dimension of space."""
        return [self.tile.channels * math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes))]

    def _start(self, line: Value, group: Value) -> Value:
        """Where the input of a line's first window begins."""
        plane = self.tile.channels * math.prod(self.sizes)
        image = self.groups * self.blocks * plane
        start = self.b.constant(0, "index")
        steps = [s * p for s, p in zip(self.walk.strides, self._pitches, strict=True)]
        for d in range(len(self.counts) - 1, 0, -1):
            count = self._scalar(("count", d), self.counts[d])
            start = start + line % count * self._scalar(("step", d), steps[d - 1])
            line = line // count
        start = start + line * self._scalar("image", image)
        if self.groups > 1:
            start = start + group * self._scalar("group", self.blocks * plane)
        return start

    def _sums(self, starts: Sequence[Value], kernel: Value) -> None:
        """The sums of a tile, left in scratch."""
        b, tile = self.b, self.tile
        zero = b.constant(0, self.dtype, tile.lanes)
        shape = range(self._rows * tile.places)
        sums = [[b.variable(zero) for _ in range(tile.lines)] for _ in shape]
        at = b.variable(kernel)
        plane = self._scalar("plane", tile.channels * math.prod(self.sizes))
        for block in b.range(0, self._scalar("blocks", self.blocks)):
            self._window([start + block * plane for start in starts], 0, at, sums)
        for number, cells in enumerate(sums):
            for v, cell in enumerate(cells):
                b.store(self.scratch, number * tile.outputs + v * tile.lanes, cell.get())
        if self.turned:
            self._turn()

    @property
    def _pitch(self) -> int:
        """Places of a tile, in whole lines."""
        return round_up(self._rows * self.tile.places, self.tile.lanes)

    def _fill(self) -> None:
        """Zeros in scratch behind the places of a tile."""
        tile = self.tile
        zero = self.b.constant(0, self.dtype, tile.lanes)
        begin = self._rows * tile.places * tile.outputs
        for at in range(begin, self._pitch * tile.outputs, tile.lanes):
            self.b.store(self.scratch, at, zero)

    def _turn(self) -> None:
        """The sums once more, as [output, place]."""
        b, tile = self.b, self.tile
        for first in b.range(0, self._pitch, tile.lanes):
            for output in b.range(0, tile.outputs, tile.lanes):
                places = [(first + n) * tile.outputs + output for n in range(tile.lanes)]
                square = [b.load(self.scratch, at, tile.lanes) for at in places]
                for n, line in enumerate(transposed(b, square)):
                    b.store(self.columns, (output + n) * self._pitch + first, line)

    def _window(
        self, starts: Sequence[Value], dim: int, at: Variable, sums: list[list[Variable]]
    ) -> None:
        """Products of what is left of the window from a dimension on; `at`: where the kernel's
        next element is."""
        b, walk, tile = self.b, self.walk, self.tile
        size, step = walk.window[dim], walk.dilation[dim]
        is_last = dim == len(walk.window) - 1
        if is_last and step == 1:
            run = self._scalar("run", size * tile.channels)
            self._stretch(starts, run, at, sums)
            return
        apart = self._scalar(("apart", dim), step * self._pitches[dim])
        for place in b.range(0, self._scalar(("window", dim), size)):
            inner = [start + place * apart for start in starts]
            if is_last:
                self._stretch(inner, b.constant(tile.channels, "index"), at, sums)
            else:
                self._window(inner, dim + 1, at, sums)

    def _stretch(
        self, starts: Sequence[Value], run: Value, at: Variable, sums: list[list[Variable]]
    ) -> None:
        """Products of neighbours in the input, with as many lines of the kernel."""
        b, tile = self.b, self.tile
        kernel = at.get()
        for k in b.range(0, run):
            row = kernel + k * tile.outputs
            right = [b.load(self.w, row + v * tile.lanes, tile.lanes) for v in range(tile.lines)]
            self._rank_one([start + k for start in starts], right, sums)
        at.set(kernel + run * tile.outputs)

    def _rank_one(
        self, starts: Sequence[Value], right: Sequence[Value], sums: list[list[Variable]]
    ) -> None:
        b, tile = self.b, self.tile
        step = self.walk.strides[-1] * tile.channels
        for number, cells in enumerate(sums):
            row, place = divmod(number, tile.places)
            left = b.splat(b.load(self.x, starts[row] + place * step), tile.lanes)
            for cell, line in zip(cells, right, strict=True):
                cell.set(self._multiply_add(left, line, cell.get()))

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z

    # the map behind

    def _epilogue(
        self,
        lines: tuple[Value, Value, Value],
        places: tuple[Value, Value, Value],
        group: Value,
        first_output: Value,
    ) -> None:
        """Write a tile: lines and places are given as (begin, end, where the tile begins)."""
        b, tile, emit = self.b, self.tile, self.emit
        outputs = self._scalar("outputs", self.outputs)
        begin, stop = first_output, b.op("min", first_output + tile.outputs, outputs)
        if self.groups > 1:
            begin, stop = begin + group * outputs, stop + group * outputs
        for line in b.range(lines[0], lines[1]):
            emit.open()
            emit.place(self.space.of("line"), line)
            row = (line - lines[2]) * tile.places - places[2]
            if self.turned:
                for output in b.range(begin, stop):
                    at = (output - begin) * self._pitch + row
                    self._write_line("output", output, at, places[:2])
            else:
                for place in b.range(places[0], places[1]):
                    at = (row + place) * tile.outputs - begin
                    self._write_line("place", place, at, (begin, stop))
            emit.close()

    def _write_line(self, kind: str, number: Value, row: Value, ends: tuple[Value, Value]) -> None:
        """Pass a row of scratch, from one column to another, through the map; the row begins where
        its column 0 would be."""
        b, emit = self.b, self.emit
        emit.open()
        emit.place(self.space.of(kind), number)
        emit.hoist([r.node for r in self.space.results if r.node.op != "tile"], emit.lane_mask)
        ragged = self.turned or self.outputs % self.lanes != 0
        for column in b.range(ends[0], ends[1], self.lanes):
            emit.open()
            if self.lane is not None:
                emit.at[id(self.lane)] = column
            emit.mask_from(column, ends[1], ragged)
            self._write(b.load(self.columns, row + column, self.lanes, emit.mask))
            emit.close()
        emit.close()

    def _write(self, line: Value) -> None:
        results = self.space.results
        for node in nodes_below([result.node for result in results]):
            if node.op == "tile":
                self.emit.known(node, cast(self.b, line, node.dtype))
        self.emit.write(results)


def transposed(b: Builder, lines: Sequence[Value]) -> list[Value]:
    """As many lines as they have lanes, the lanes of each number together."""
    count, step = len(lines), 1
    found = list(lines)
    while step < count:
        low = [j if not j & step else count + j - step for j in range(count)]
        high = [j + step if not j & step else count + j for j in range(count)]
        for i in range(count):
            if not i & step:
                pair = b.join([found[i], found[i + step]])
                found[i], found[i + step] = b.shuffle(pair, low), b.shuffle(pair, high)
        step *= 2
    return found
