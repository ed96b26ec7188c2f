"""Contractions on devices whose cubes have many units: a cube computes a block of the product, the
block's slices of both operands pass through memory that its units share, and each unit keeps an
8 x 8 tile of sums in registers.

Both operands come packed as [batch, panel, block of the depth, k, row or column], so that a cube
reads its slices as they lie. While a slice is multiplied, the next one is on its way; two arrays of
shared memory take turns, so that units meet once for each slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.expression import walk
from xcube.lowering.kernels.nodes import Arguments, Emitter, cast
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work

SIDE = 8  # rows and columns of a unit's tile, in two halves that lie half a block apart
LINE = 4


class Contraction:
    """The launch of one contraction with the map behind it."""

    def __init__(self, group: Group, space: Space, sources: frozenset[Var]) -> None:
        root = group.root
        assert root is not None
        self.space, self.sources, self.root = space, sources, root
        self.tile, self.sizes = root.params["tile"], root.params["sizes"]
        self.dtype = dtypes.short_name(root.inputs[0].aval.dtype)
        self.b = Builder("matmul", (self.tile.units, 1, 1))
        self.arguments = Arguments(self.b, sources)
        columns = space.of("n")
        self.lane: Axis | None = columns[0] if columns else None
        self.emit = Emitter(self.arguments, space.axes, self.lane, LINE)

    def build(self) -> Work:
        tile, sizes, b = self.tile, self.sizes, self.b
        shared = "inout" if self.sources else "out"
        for result in self.space.results:
            self.arguments.buffer(result.var, shared)
        operands = [self.arguments.buffer(atom) for atom in self.root.inputs]  # type: ignore[arg-type]
        cubes_m, cubes_n = math.ceil(sizes.rows / tile.mr), math.ceil(sizes.columns / tile.nr)
        self.blocks = math.ceil(sizes.depth / tile.kc)
        self.count = self._scalar("blocks", self.blocks)
        cube = b.place("cube_pos.x")
        count_m, count_n = self._scalar("cubes_m", cubes_m), self._scalar("cubes_n", cubes_n)
        cube, cube_m = cube // count_m, cube % count_m
        batch, cube_n = cube // count_n, cube % count_n
        self.unit = b.place("unit_pos.x")
        across = tile.nr // SIDE
        self.down, self.right = self.unit // across * LINE, self.unit % across * LINE
        first = (batch * count_m + cube_m) * self.count * (tile.kc * tile.mr)
        second = (batch * count_n + cube_n) * self.count * (tile.kc * tile.nr)
        sums = self._products(operands, (first, second))
        self._epilogue(sums, batch, cube_m * tile.mr, cube_n * tile.nr)
        cubes = sizes.batch * cubes_m * cubes_n
        return Work(
            b.finish(), tuple(self.arguments.variables), tuple(self.arguments.cells), cubes, 1
        )

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    # products

    def _products(
        self, operands: Sequence[Buffer], starts: tuple[Value, Value]
    ) -> list[list[Variable]]:
        """The unit's sums: SIDE rows of SIDE / LINE lines."""
        b, tile = self.b, self.tile
        zero = b.constant(0, self.dtype, LINE)
        sums = [[b.variable(zero) for _ in range(SIDE // LINE)] for _ in range(SIDE)]
        sizes = (tile.kc * tile.mr, tile.kc * tile.nr)
        arrays = [b.shared(self.dtype, 2 * size) for size in sizes]
        coming = [
            [b.variable(self._read(buffer, start, n)) for n in range(self._lines(size))]
            for buffer, start, size in zip(operands, starts, sizes, strict=True)
        ]
        self._put(arrays, coming, sizes, b.constant(0, "index"))
        b.sync()
        for block in b.range(0, self.count):
            following = block + 1
            half, other = block % 2, following % 2
            with b.when(following < self.count):
                for buffer, start, size, line in zip(operands, starts, sizes, coming, strict=True):
                    at = start + following * size
                    for n, cell in enumerate(line):
                        cell.set(self._read(buffer, at, n))
            self._multiply(arrays, [half * size for size in sizes], sums)
            with b.when(following < self.count):
                self._put(arrays, coming, sizes, other)
            b.sync()
        return sums

    def _lines(self, size: int) -> int:
        """How many lines of a slice each unit moves."""
        return size // (LINE * self.tile.units)

    def _read(self, buffer: Buffer, start: Value, number: int) -> Value:
        at = start + self._place(number)
        return self.b.load(buffer, at, lanes=LINE)

    def _place(self, number: int) -> Value:
        return (self.unit + number * self.tile.units) * LINE

    def _put(
        self,
        arrays: Sequence[Buffer],
        coming: Sequence[Sequence[Variable]],
        sizes: Sequence[int],
        half: Value,
    ) -> None:
        for array, lines, size in zip(arrays, coming, sizes, strict=True):
            for number, cell in enumerate(lines):
                self.b.store(array, half * size + self._place(number), cell.get())

    def _multiply(
        self, arrays: Sequence[Buffer], starts: Sequence[Value], sums: list[list[Variable]]
    ) -> None:
        b, tile = self.b, self.tile
        for k in range(tile.kc):
            left = self._lines_at(arrays[0], starts[0] + self.down, k * tile.mr, tile.mr // 2)
            right = self._lines_at(arrays[1], starts[1] + self.right, k * tile.nr, tile.nr // 2)
            for row, cells in enumerate(sums):
                x = b.splat(b.extract(left[row // LINE], row % LINE), LINE)
                for y, cell in zip(right, cells, strict=True):
                    cell.set(self._multiply_add(x, y, cell.get()))

    def _lines_at(self, array: Buffer, start: Value, offset: int, apart: int) -> list[Value]:
        places = [offset + half * apart for half in range(SIDE // LINE)]
        return [self.b.load(array, start + place, lanes=LINE) for place in places]

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z

    # the map behind

    def _epilogue(
        self, sums: list[list[Variable]], batch: Value, first_row: Value, first_column: Value
    ) -> None:
        b, tile, emit = self.b, self.tile, self.emit
        stop_row = self._scalar("rows", self.sizes.rows)
        stop_column = self._scalar("columns", self.sizes.columns)
        ragged = self.sizes.columns % LINE != 0
        emit.place(self.space.of("batch"), batch)
        for number, cells in enumerate(sums):
            row = first_row + self.down + (number // LINE * (tile.mr // 2) + number % LINE)
            with b.when(row < stop_row):
                emit.open()
                emit.place(self.space.of("m"), row)
                for half, cell in enumerate(cells):
                    column = first_column + self.right + half * (tile.nr // 2)
                    with b.when(column < stop_column):
                        self._line(cell.get(), column, stop_column, ragged)
                emit.close()

    def _line(self, line: Value, column: Value, stop: Value, ragged: bool) -> None:
        self.emit.open()
        if self.lane is not None:
            self.emit.at[id(self.lane)] = column
        self.emit.mask_from(column, stop, ragged)
        self._write(line)
        self.emit.close()

    def _write(self, line: Any) -> None:
        results = self.space.results
        for node in walk([result.node for result in results]):
            if node.op == "tile":
                self.emit.known(node, cast(self.b, line, node.dtype))
        self.emit.write(results)
