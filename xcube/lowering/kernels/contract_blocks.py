"""The frame of contractions of packed operands: a cube computes a block of register tiles in an
array of its own, one stretch of the depth after the other, and then passes it, line by line,
through the map that follows."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.expression import walk
from xcube.lowering.kernels.contract_matrix import Sizes
from xcube.lowering.kernels.nodes import Arguments, Emitter, cast
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work


@dataclass(frozen=True)
class Frame:
    """The comptime choices: rows and columns of a register tile, steps of the depth that caches
    hold, lanes of a line, register tiles of a cube down and across at most, cubes that share a
    contraction at least if it has as many tiles, dtype of the sums; elements between rows of the
    cube's array, so that they do not share cache sets."""

    rows: int
    columns: int
    steps: int
    lanes: int
    most: tuple[int, int]
    cubes: int
    sums: str
    pad: int = 0


class Blocks(abc.ABC):
    """One contraction, with the map behind it; `depth` is counted in steps."""

    def __init__(
        self, group: Group, space: Space, sources: frozenset[Var], frame: Frame, depth: int
    ) -> None:
        root = group.root
        assert root is not None
        self.group, self.space, self.sources, self.root = group, space, sources, root
        self.frame, self.depth = frame, depth
        self.sizes: Sizes = root.params["sizes"]
        self.b = Builder("matmul")
        self.arguments = Arguments(self.b, sources)
        columns = space.of("n")
        self.lane: Axis | None = columns[0] if columns else None
        self.emit = Emitter(self.arguments, space.axes, self.lane, frame.lanes)
        self.blocks = math.ceil(depth / frame.steps)

    @property
    def width(self) -> int:
        """Elements of a row of the cube's array."""
        return self.frame.most[1] * self.frame.columns + self.frame.pad

    @abc.abstractmethod
    def micro(self, m: Value, n: Value, corner: Value, steps: Value, block: Value) -> None:
        """One register tile, of the panels m and n, over the steps of one block of the depth: to
        the cube's array from `corner` on, added to what is there behind the first block."""

    def build(self) -> Work:
        """The launch."""
        frame, sizes, b = self.frame, self.sizes, self.b
        shared = "inout" if self.sources else "out"
        for result in self.space.results:
            self.arguments.buffer(result.var, shared)
        self.left = self.arguments.buffer(self.root.inputs[0])  # type: ignore[arg-type]
        self.right = self.arguments.buffer(self.root.inputs[1])  # type: ignore[arg-type]
        panels_m = math.ceil(sizes.rows / frame.rows)
        panels_n = math.ceil(sizes.columns / frame.columns)
        per_m, per_n = self._cube_panels(panels_m, panels_n)
        cubes_m, cubes_n = math.ceil(panels_m / per_m), math.ceil(panels_n / per_n)
        self.panels_m = self.scalar("panels_m", panels_m)
        self.panels_n = self.scalar("panels_n", panels_n)
        self.per_m, self.per_n = self.scalar("per_m", per_m), self.scalar("per_n", per_n)
        self.rows = self.scalar("rows", sizes.rows)
        self.columns = self.scalar("columns", sizes.columns)
        cube = b.place("cube_pos.x")
        count_m = self.scalar("cubes_m", cubes_m)
        cube, cube_m = cube // count_m, cube % count_m
        batch, cube_n = self._batch(cube, cubes_n)
        self.scratch = b.shared(frame.sums, frame.most[0] * frame.rows * self.width)
        first_m, first_n = cube_m * self.per_m, cube_n * self.per_n
        self._products(batch, first_m, first_n)
        self._epilogue(batch, first_m * frame.rows, first_n * frame.columns)
        work = 2 * per_m * frame.rows * per_n * frame.columns * sizes.depth
        grain = max(1, (1 << 19) // max(1, work))
        return Work(
            b.finish(),
            tuple(self.arguments.variables),
            tuple(self.arguments.cells),
            sizes.batch * cubes_m * cubes_n,
            grain,
        )

    def scalar(self, name: str, number: int) -> Value:
        """A number that the launch brings along."""
        return self.arguments.scalar(name, number)

    def _cube_panels(self, panels_m: int, panels_n: int) -> tuple[int, int]:
        """Panels of a cube: fewer where there would be too few cubes to share."""
        per_m, per_n = min(self.frame.most[0], panels_m), min(self.frame.most[1], panels_n)

        def cubes() -> int:
            return self.sizes.batch * math.ceil(panels_m / per_m) * math.ceil(panels_n / per_n)

        while cubes() < self.frame.cubes and per_m * per_n > 4:
            if per_m >= per_n:
                per_m = math.ceil(per_m / 2)
            else:
                per_n = math.ceil(per_n / 2)
        return per_m, per_n

    def _batch(self, cube: Value, cubes_n: int) -> tuple[Value, Value]:
        if self.sizes.batch == 1:
            return self.b.constant(0, "index"), cube
        count = self.scalar("cubes_n", cubes_n)
        return cube // count, cube % count

    # the products

    def _products(self, batch: Value, first_m: Value, first_n: Value) -> None:
        """The block of products in the cube's array, one block of the depth after the other."""
        b, steps = self.b, self.frame.steps
        last = self.scalar("last", self.depth - (self.blocks - 1) * steps)
        if self.blocks == 1:  # the sums never leave the registers in between
            self._tiles(batch, first_m, first_n, b.constant(0, "index"), last)
            return
        count = self.scalar("blocks", self.blocks)
        for block in b.range(0, count):
            whole = b.constant(steps, "index")
            here = b.select((block + 1).eq(count), last, whole)
            self._tiles(batch, first_m, first_n, block, here)

    def _tiles(
        self, batch: Value, first_m: Value, first_n: Value, block: Value, steps: Value
    ) -> None:
        b, frame = self.b, self.frame
        stop_m = b.op("min", first_m + self.per_m, self.panels_m)
        stop_n = b.op("min", first_n + self.per_n, self.panels_n)
        for m in b.range(first_m, stop_m):
            for n in b.range(first_n, stop_n):
                corner = (m - first_m) * (frame.rows * self.width) + (n - first_n) * frame.columns
                panel_m, panel_n = batch * self.panels_m + m, batch * self.panels_n + n
                self.micro(panel_m, panel_n, corner, steps, block)

    # the map behind

    def _epilogue(self, batch: Value, first_row: Value, first_column: Value) -> None:
        b, frame, emit = self.b, self.frame, self.emit
        stop_row = b.op("min", first_row + self.per_m * frame.rows, self.rows)
        stop_column = b.op("min", first_column + self.per_n * frame.columns, self.columns)
        emit.place(self.space.of("batch"), batch)
        nodes = [result.node for result in self.space.results]
        ragged = self.sizes.columns % frame.lanes != 0
        for row in b.range(first_row, stop_row):
            emit.open()
            emit.place(self.space.of("m"), row)
            start = (row - first_row) * self.width - first_column
            emit.hoist([n for n in nodes if n.op != "tile"], emit.lane_mask)
            for column in b.range(first_column, stop_column, frame.lanes):
                emit.open()
                if self.lane is not None:
                    emit.at[id(self.lane)] = column
                emit.mask_from(column, stop_column, ragged)
                line = b.load(self.scratch, start + column, lanes=frame.lanes)
                self._write(line)
                emit.close()
            emit.close()

    def _write(self, line: Value) -> None:
        results = self.space.results
        for node in walk([result.node for result in results]):
            if node.op == "tile":
                self.emit.known(node, cast(self.b, line, node.dtype))
        self.emit.write(results)
