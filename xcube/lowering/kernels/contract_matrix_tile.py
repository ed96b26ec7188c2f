"""The template of contractions on matrix units: a cube computes a tile of the product.

The depth is cut into slices of 128 bytes. Slices of both operands are copied asynchronously into a
ring of shared memory, a few ahead of the one that is multiplied, as `cube/matrix.py` lays operands
out; rows and a depth outside the operand become zeros. Planes share the tile and load operands of
their multiplications from the ring (mma), or groups of planes multiply panels of it in place
(wgmma); `contract_matrix_stream.py` has a third road, for devices that copy boxes by themselves.
At last the sums pass through the ring's memory, so that units walk whole lines of the result with
the map behind the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xcube import dtypes
from xcube.ir import Equation, Var
from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import GROUP, PLANE, Buffer
from xcube.lowering.expression import walk
from xcube.lowering.index import Dim
from xcube.lowering.kernels.contract_matrix_stream import Stream, put_pairs
from xcube.lowering.kernels.nodes import Arguments, Emitter, cast
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work

if TYPE_CHECKING:
    from xcube.lowering.device.base import Facts
    from xcube.lowering.kernels.contract_matrix import Layout, Plan, Sizes

RASTER = 16  # rows of tiles that neighbouring cubes share columns of, so that caches serve both
PAD = 8  # elements between rows of sums, so that they do not share banks


class Contraction:
    """The launch of one contraction with the map behind it."""

    def __init__(self, root: Equation, space: Space, sources: frozenset[Var], facts: Facts) -> None:
        self.root, self.space, self.sources, self.facts = root, space, sources, facts
        self.plan: Plan = root.params["plan"]
        self.sizes: Sizes = root.params["sizes"]
        self.layouts: tuple[Layout, Layout] = root.params["layouts"]
        self.dtype = dtypes.short_name(root.inputs[0].aval.dtype)
        self.span = matrix.span(self.dtype)
        self.b = Builder("matmul", (self.plan.units, 1, 1), self.plan.resident)
        self.arguments = Arguments(self.b, sources)
        columns = space.of("n")
        self.lane: Axis | None = columns[0] if columns else None
        narrow = min(result.var.aval.dtype.itemsize for result in space.results)
        self.lanes = min(8, facts.vector_bytes // max(2, narrow))
        self.emit = Emitter(self.arguments, space.axes, self.lane, self.lanes)

    def build(self) -> Work:
        plan, sizes, b = self.plan, self.sizes, self.b
        for result in self.space.results:
            self.arguments.buffer(result.var, "inout" if self.sources else "out")
        buffers = [self.arguments.buffer(atom) for atom in self.root.inputs]  # type: ignore[arg-type]
        self.unit = b.place("unit_pos.x")
        cubes_m, cubes_n = self._cubes()
        cubes = plan.splits * sizes.batch * cubes_m * cubes_n
        self.ring = b.shared(self.dtype, plan.stages * self.stage)
        if plan.road == "stream":
            Stream(self, buffers, self.scalar("tiles", cubes)).build()
            cubes = min(cubes, self.facts.cores * plan.resident)
        else:
            self._tile(buffers)
        return Work(
            b.finish(), tuple(self.arguments.variables), tuple(self.arguments.cells), cubes, 1
        )

    def _tile(self, buffers: Sequence[Buffer]) -> None:
        """One tile, whose slices all units copy and multiply."""
        part, batch, row, column = self.place(self.b.place("cube_pos.x"))
        self.operands = [
            _Operand(self, number, buffers[number], batch, first)
            for number, first in enumerate((row, column))
        ]
        first, last = self.slices(part)
        products = _Panels(self) if self.plan.road == "panels" else _Planes(self)
        self._slices(products, first, last)
        self._epilogue(products, (part, batch), row, column)

    # where a cube is

    @property
    def stage(self) -> int:
        """Elements of the ring that hold one slice of both operands."""
        return (self.plan.rows + self.plan.columns) * self.span

    def _cubes(self) -> tuple[int, int]:
        plan, sizes = self.plan, self.sizes
        return math.ceil(sizes.rows / plan.rows), math.ceil(sizes.columns / plan.columns)

    def scalar(self, name: str, number: int) -> Value:
        """A number of this launch."""
        return self.arguments.scalar(name, number)

    def place(self, tile: Value) -> tuple[Value, Value, Value, Value]:
        """Part of the depth, batch, first row and first column of a tile. Tiles go down RASTER rows
        of them before they go to the next column."""
        b, plan = self.b, self.plan
        cubes_m, cubes_n = self._cubes()
        short = "u32"  # divides faster than an index
        count_m = self.scalar("cubes_m", cubes_m).cast(short)
        count_n = self.scalar("cubes_n", cubes_n).cast(short)
        cube = tile.cast(short)
        part = batch = b.constant(0, short)
        if plan.splits * self.sizes.batch > 1:
            each = count_m * count_n
            batch, cube = cube // each, cube % each
        if plan.splits > 1:
            count = self.scalar("batch", self.sizes.batch).cast(short)
            part, batch = batch // count, batch % count
        band = count_n * RASTER
        first = cube // band * RASTER
        height = b.op("min", count_m - first, b.constant(RASTER, short))
        within = cube % band
        row, column = first + within % height, within // height
        return (
            part.cast("index"),
            batch.cast("index"),
            row.cast("index") * plan.rows,
            column.cast("index") * plan.columns,
        )

    def slices(self, part: Value) -> tuple[Value, Value]:
        """The first slice of a part of the depth and the one behind its last."""
        count = math.ceil(self.sizes.depth / self.span)
        slices = self.scalar("slices", count)
        if self.plan.splits == 1:
            return self.b.constant(0, "index"), slices
        each = self.scalar("each", math.ceil(count / self.plan.splits))
        first = part * each
        return first, self.b.op("min", first + each, slices)

    # products

    def _slices(self, products: Any, first: Value, last: Value) -> None:
        """Copy slices ahead and multiply one after the other. Panels are read while the units go
        on, so the slice before the current one must stay as it is, too."""
        b, stages = self.b, self.plan.stages
        panels = self.plan.road == "panels"
        ahead = stages - (2 if panels else 1)
        for number in range(ahead):
            self._fetch(first + number, last, b.constant(number, "index"))
        current = b.variable(b.constant(0, "index"))
        coming = b.variable(b.constant(ahead, "index"))
        for number in b.range(first, last):
            matrix.wait_copies(b, ahead - 1)
            b.sync()
            now, then = current.get(), coming.get()
            if panels:
                products.multiply(now * self.stage)
                self._fetch(number + ahead, last, then)
                products.wait(1)
            else:
                self._fetch(number + ahead, last, then)
                products.multiply(now * self.stage)
            current.set(b.select((now + 1).eq(stages), b.constant(0, "index"), now + 1))
            coming.set(b.select((then + 1).eq(stages), b.constant(0, "index"), then + 1))
        products.wait(0)
        matrix.wait_copies(b, 0)
        b.sync()

    def _fetch(self, number: Value, last: Value, stage: Value) -> None:
        """Begin to copy a slice of both operands, if there is one; a batch either way."""
        with self.b.when(number < last):
            at = stage * self.stage
            for operand in self.operands:
                operand.copy(at, number * self.span)
        matrix.commit_copies(self.b)

    # the map behind

    def _epilogue(
        self, products: Any, outer: tuple[Value, Value], row: Value, column: Value
    ) -> None:
        b, plan, emit = self.b, self.plan, self.emit
        width = plan.columns + PAD
        assert plan.rows * width * 4 <= plan.nbytes, f"the sums of {plan} do not fit its ring"
        sums = b.shared("f32", plan.rows * width, over=self.ring)
        products.put(sums, width)
        b.sync()
        part, batch = outer
        emit.place(self.space.of("split"), part)
        emit.place(self.space.of("batch"), batch)
        lines = plan.columns // self.lanes
        for number in b.range(self.unit, plan.rows * lines, plan.units):
            down, right = number // lines, number % lines * self.lanes
            self.line(sums, down * width + right, row + down, column + right)

    @property
    def is_whole(self) -> bool:
        """Whether every tile lies inside the result."""
        sizes, plan = self.sizes, self.plan
        return sizes.rows % plan.rows == 0 and sizes.columns % plan.columns == 0

    def line(self, sums: Buffer, at: Value, row: Value, column: Value) -> None:
        """The map behind the product at a line of sums, where the result has it."""
        stop = self.scalar("columns", self.sizes.columns)
        if self.is_whole:
            self._write(self.b.load(sums, at, lanes=self.lanes), row, column, stop)
            return
        with self.b.when((row < self.scalar("rows", self.sizes.rows)) & (column < stop)):
            self._write(self.b.load(sums, at, lanes=self.lanes), row, column, stop)

    def _is_aligned(self) -> bool:
        """Whether lines of results begin at multiples of their size."""
        positions = [result.position for result in self.space.results]
        plain = all(isinstance(symbol, Dim) for at in positions for symbol in at.symbols)
        steps = [axis.stride(at) for axis in self.space.axes if axis is not self.lane
                 for at in positions]  # fmt: skip
        steps += [self.sizes.columns, *(at.const for at in positions)]
        along = self.lane is not None and all(self.lane.stride(at) == 1 for at in positions)
        return plain and along and all(step % self.lanes == 0 for step in steps)

    def _write(self, line: Value, row: Value, column: Value, stop: Value) -> None:
        emit = self.emit
        emit.open()
        emit.place(self.space.of("m"), row)
        if self.lane is not None:
            emit.at[id(self.lane)] = column
        emit.mask_from(column, stop, self.sizes.columns % self.lanes != 0)
        results = self.space.results
        for node in walk([result.node for result in results]):
            if node.op == "tile":
                emit.known(node, cast(self.b, line, node.dtype))
        emit.write(results, self._is_aligned())
        emit.close()


class _Operand:
    """One operand of a contraction: where its slices come from and where they lie in the ring."""

    def __init__(
        self, tile: Contraction, number: int, buffer: Buffer, batch: Value, first: Value
    ) -> None:
        self.tile, self.b, self.buffer = tile, tile.b, buffer
        self.layout, self.number = tile.layouts[number], number
        self.dtype, self.span = tile.dtype, tile.span
        self.width = matrix.width(self.dtype)
        self.rows = (tile.plan.rows, tile.plan.columns)[number]
        self.within = 0 if number == 0 else tile.plan.rows * self.span
        self.first = first
        self.line, self.chunk = tile.unit // matrix.LINES, tile.unit % matrix.LINES
        self.lines = tile.plan.units // matrix.LINES  # that the units copy at a time
        assert self.rows % self.lines == 0 and (self.layout.deep or self.rows % self.span == 0)
        self.extent = tile.scalar(
            ("rows", "columns")[number], (tile.sizes.rows, tile.sizes.columns)[number]
        )
        self.depth = tile.scalar("depth", tile.sizes.depth)
        along = self.layout.rows if self.layout.deep else self.layout.depth
        self.stride = tile.scalar(f"stride{number}", self.layout.stride(along) or 0)
        self.start = self._start(batch)

    @property
    def apart(self) -> int:
        """Elements between blocks of one span of rows, where neighbours lie along rows."""
        return self.span * self.span

    def _start(self, batch: Value) -> Value:
        """Where the cube's batch begins, and in it the part that does not depend on the slice."""
        b, layout = self.b, self.layout
        total = b.constant(0, "index")
        for dim in reversed(layout.batch):
            size, stride = layout.shape[dim], layout.stride((dim,)) or 0
            if size == 1:
                continue
            place = batch
            if dim != layout.batch[0]:
                count = self.tile.scalar(f"batch{self.number}.{dim}", size)
                place, batch = batch % count, batch // count
            total = total + place * self.tile.scalar(f"step{self.number}.{dim}", stride)
        if layout.deep:
            return total + (self.first + self.line) * self.stride + self.chunk * self.width
        return total + self.line * self.stride + (self.first + self.chunk * self.width)

    def copy(self, at: Value, depth: Value) -> None:
        """Begin to copy the slice that starts at `depth` to place `at` of the ring."""
        place = at + (matrix.chunk_at(self.line, self.chunk, self.dtype) + self.within)
        for start in range(0, self.rows, self.lines):
            lines, step = divmod(start, self.span)
            if self.layout.deep:
                source = self.start + depth + self.stride * start
                row, k = self.first + self.line + start, depth + self.chunk * self.width
            else:
                source = self.start + (depth + step) * self.stride + lines * self.span
                row = self.first + (self.chunk * self.width + lines * self.span)
                k = depth + self.line + step
            valid = (row < self.extent) & (k < self.depth)
            target = place + start * self.span
            matrix.copy_async(self.b, self.tile.ring, target, self.buffer, source, valid)

    def chunk_of(self, at: Value, row: Value, depth: Value) -> Value:
        """The place in the ring of the 8 rows, or 8 places of the depth, that a unit of a plane
        names: those of a chunk at (row, depth), which the operand's neighbours lie along."""
        if self.layout.deep:
            line, chunk, block = row, depth // self.width, self.b.constant(0, "index")
        else:
            line, chunk = depth, row % self.span // self.width
            block = row // self.span * self.apart
        return at + self.within + block + matrix.chunk_at(line, chunk, self.dtype)


class _Planes:
    """Products of planes: each has its own part of the tile, as blocks of 16 rows, 8 columns."""

    def __init__(self, tile: Contraction) -> None:
        self.tile, b = tile, tile.b
        down, across = tile.plan.planes
        self.rows, self.columns = tile.plan.rows // down, tile.plan.columns // across
        plane, self.unit = tile.unit // PLANE, tile.unit % PLANE
        self.row, self.column = plane // across * self.rows, plane % across * self.columns
        zero = b.constant(0.0, "f32", 4)
        self.sums = [
            [b.variable(zero) for _ in range(0, self.columns, matrix.COLUMNS)]
            for _ in range(0, self.rows, matrix.ROWS)
        ]

    def multiply(self, at: Value) -> None:
        """One slice, that lies at a place of the ring: while one step is multiplied, the operands
        of the next one are loaded."""
        deep, span = matrix.depth(self.tile.dtype), self.tile.span
        coming = self._operands(at, 0)
        for start in range(0, span, deep):
            left, right = coming
            if start + deep < span:
                coming = self._operands(at, start + deep)
            for x, row in zip(left, self.sums, strict=True):
                for y, cell in zip(right, row, strict=True):
                    cell.set(matrix.multiply(self.tile.b, x, y, cell.get()))

    def _operands(self, at: Value, depth: int) -> tuple[list[Value], list[Value]]:
        left = [self._left(at, row, depth) for row in range(0, self.rows, matrix.ROWS)]
        pairs = [self._right(at, column, depth) for column in range(0, self.columns, matrix.ROWS)]
        return left, [half for pair in pairs for half in pair]

    def _left(self, at: Value, row: int, depth: int) -> Value:
        """16 rows: matrices of rows 0 and 8, and again further along the depth."""
        number, line = self.unit // matrix.LINES, self.unit % matrix.LINES
        return self._load(0, at, line, self.row + row, number % 2, depth, number // 2)

    def _right(self, at: Value, column: int, depth: int) -> tuple[Value, Value]:
        """Twice 8 columns: two matrices along the depth, and again 8 columns further."""
        b, number, line = self.tile.b, self.unit // matrix.LINES, self.unit % matrix.LINES
        four = self._load(1, at, line, self.column + column, number // 2, depth, number % 2)
        half = four.lanes // 2
        return b.shuffle(four, range(half)), b.shuffle(four, range(half, 2 * half))

    def _load(
        self, which: int, at: Value, line: Value, row: Value, down: Value, depth: int, deeper: Value
    ) -> Value:
        """Four matrices; `down` and `deeper` say which of them a unit's line is of."""
        operand = self.tile.operands[which]
        deep, width = operand.layout.deep, operand.width
        row, k = row + down * matrix.LINES, deeper * width + depth
        row, k = (row + line, k) if deep else (row, k + line)
        place = operand.chunk_of(at, row, k)
        return matrix.load_matrices(self.tile.b, self.tile.ring, place, 4, not deep)

    def wait(self, pending: int) -> None:
        """Nothing goes on."""

    def put(self, target: Buffer, width: int) -> None:
        """Write the sums to shared memory."""
        b = self.tile.b
        row, column = matrix.sum_of(self.unit, 0)
        start = (self.row + row) * width + (self.column + column)
        for down, cells in enumerate(self.sums):
            for across, cell in enumerate(cells):
                at = start + (down * matrix.ROWS * width + across * matrix.COLUMNS)
                put_pairs(b, target, at, width, cell.get(), range(0, 4, 2))


class _Panels:
    """Products of groups: each has 64 rows of the tile and all of its columns."""

    def __init__(self, tile: Contraction) -> None:
        self.tile = tile
        lanes = tile.plan.columns // 2
        self.sums: Variable = tile.b.variable(tile.b.constant(0.0, "f32", lanes))
        self.group, self.unit = tile.unit // GROUP, tile.unit % GROUP

    def multiply(self, at: Value) -> None:
        """Begin to multiply one slice."""
        b, tile = self.tile.b, self.tile
        left, right = tile.operands
        start = at + self.group * (matrix.GROUP_ROWS * tile.span)
        panels = [
            matrix.panel(b, tile.ring, place, operand.layout.deep, operand.apart)
            for operand, place in ((left, start), (right, at + right.within))
        ]
        steps = tile.span // matrix.depth(tile.dtype)
        fresh = b.constant(False, "bool")
        matrix.multiply_panels(b, self.sums, panels[0], panels[1], steps, fresh)

    def wait(self, pending: int) -> None:
        """Wait until so many slices are being multiplied; the sums can be read behind the last."""
        matrix.wait_products(self.tile.b, pending, *([] if pending else [self.sums]))

    def put(self, target: Buffer, width: int) -> None:
        """Write the sums to shared memory."""
        row, column = matrix.group_sum_of(self.unit, 0)
        start = (self.group * matrix.GROUP_ROWS + row) * width + column
        line = self.sums.get()
        for lane in range(0, line.lanes, 4):
            at = start + lane // 4 * matrix.COLUMNS
            put_pairs(self.tile.b, target, at, width, line, range(lane, lane + 4, 2))
