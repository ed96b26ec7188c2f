"""The road of contractions for devices that copy boxes of a buffer by themselves: cubes stay, and
take one tile after the other.

One unit asks for boxes of both operands, as far ahead as the ring of shared memory has room, across
tiles; two groups of planes multiply them, each half of a tile's rows, and pass their sums through
memory of their own to the map behind the product. Two barriers of each stage of the ring say that
it is full (its bytes are there) and empty (both groups have read it). Where a cube has a core for
itself, the group that asks gives its registers to the others; where two share it, a plane asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import GROUP, PLANE, Buffer, TileMap
from xcube.lowering.kernels.ring import Ring, Turn

if TYPE_CHECKING:
    from xcube.lowering.kernels.contract_matrix import Layout
    from xcube.lowering.kernels.contract_matrix_tile import Contraction

GROUPS = 2  # that multiply
PARTS = {1: 32, 2: 16}  # columns of sums that a plane passes on at a time, by cubes of a core
PAD = 8  # elements between rows of sums, so that they do not share banks
FEWER, MORE = 40, 232  # registers of units that ask and of units that multiply


class Stream:
    """The body of a contraction's kernel."""

    def __init__(self, tile: Contraction, buffers: Sequence[Buffer], tiles: Value) -> None:
        self.tile, self.b, self.tiles = tile, tile.b, tiles
        self.plan, self.unit = tile.plan, tile.unit
        sides = (self.plan.rows, self.plan.columns)
        self.operands = [
            _Boxes(tile, number, buffers[number], side) for number, side in enumerate(sides)
        ]
        self.ring = Ring(self.b, self.plan.stages, GROUPS)
        self.part = PARTS[self.plan.resident]
        planes = GROUPS * GROUP // PLANE
        self.passing = self.b.shared("f32", planes * matrix.ROWS * (self.part + PAD))

    def build(self) -> None:
        b, alone, asking = self.b, self.plan.resident == 1, GROUPS * GROUP
        with b.when(self.unit.eq(0)):
            self.ring.set()
        b.sync()
        with b.when(self.unit >= asking):
            if alone:
                matrix.set_registers(b, FEWER, grows=False)
            with b.when(self.unit.eq(asking)):
                self._ask()
        with b.otherwise():
            if alone:
                matrix.set_registers(b, MORE, grows=True)
            self._multiply()

    # who asks

    def _ask(self) -> None:
        b, turn = self.b, self.ring.turn(fills=True)
        nbytes = sum(matrix.box_bytes(operand.map) * operand.count for operand in self.operands)
        for number in self._each():
            part, batch, row, column = self.tile.place(number)
            first, last = self.tile.slices(part)
            for slice in b.range(first, last):
                stage = self.ring.begin(turn, nbytes)
                for operand, side in zip(self.operands, (row, column), strict=True):
                    at = stage * self.tile.stage
                    operand.ask(at, side, slice * self.tile.span, batch, self.ring.barriers, stage)
                turn.next()

    def _each(self) -> Sequence[Value]:
        b = self.b
        return b.range(b.place("cube_pos.x"), self.tiles, b.place("cube_count.x"))  # type: ignore[return-value]

    # who multiplies

    def _multiply(self) -> None:
        b, tile, emit = self.b, self.tile, self.tile.emit
        group, unit = self.unit // GROUP, self.unit % GROUP
        sums = b.variable(b.constant(0.0, "f32", self.plan.columns // 2))
        turn = self.ring.turn(fills=False)
        for number in self._each():
            part, batch, row, column = tile.place(number)
            self._sum(sums, turn, part, group, unit)
            emit.open()
            emit.place(tile.space.of("split"), part)
            emit.place(tile.space.of("batch"), batch)
            self._pass(sums, row + group * matrix.GROUP_ROWS, column)
            emit.close()

    def _sum(self, sums: Variable, turn: Turn, part: Value, group: Value, unit: Value) -> None:
        """The sums of one tile. A stage is empty once the products after it have begun."""
        b, tile = self.b, self.tile
        first, last = tile.slices(part)
        before = b.variable(b.constant(0, "index"))
        left, right = self.operands
        steps = tile.span // matrix.depth(tile.dtype)
        for slice in b.range(first, last):
            stage = self.ring.full(turn)
            at = stage * tile.stage
            panels = [
                matrix.panel(b, tile.ring, place, operand.layout.deep, tile.span * tile.span)
                for operand, place in (
                    (left, at + group * (matrix.GROUP_ROWS * tile.span)),
                    (right, at + self.plan.rows * tile.span),
                )
            ]
            matrix.multiply_panels(b, sums, panels[0], panels[1], steps, slice.eq(first))
            matrix.wait_products(b, 1)
            with b.when((slice > first) & unit.eq(0)):
                self.ring.done(before.get())
            before.set(stage)
            turn.next()
        matrix.wait_products(b, 0, sums)
        with b.when(unit.eq(0)):
            self.ring.done(before.get())

    def _pass(self, sums: Variable, row: Value, column: Value) -> None:
        """The map behind the product, a part of a plane's 16 rows at a time."""
        b, tile, width = self.b, self.tile, self.part + PAD
        plane, unit = self.unit % GROUP // PLANE, self.unit % PLANE
        row = row + plane * matrix.ROWS
        own = self.unit // PLANE * (matrix.ROWS * width)
        down, right = matrix.sum_of(unit, 0)
        line, lines = sums.get(), self.part // tile.lanes
        for start in range(0, self.plan.columns, self.part):
            for across in range(0, self.part, matrix.COLUMNS):
                lane = (start + across) // 2
                at = own + down * width + (right + across)
                put_pairs(b, self.passing, at, width, line, range(lane, lane + 4, 2))
            matrix.sync_plane(b)
            for first in range(0, matrix.ROWS * lines, PLANE):
                number = unit + first
                y, x = number // lines, number % lines * tile.lanes
                tile.line(self.passing, own + y * width + x, row + y, column + (x + start))
            matrix.sync_plane(b)


class _Boxes:
    """One operand: the boxes that a slice of it is."""

    def __init__(self, tile: Contraction, number: int, buffer: Buffer, side: int) -> None:
        self.tile, self.b, self.number, self.side = tile, tile.b, number, side
        self.layout: Layout = tile.layouts[number]
        self.within = 0 if number == 0 else tile.plan.rows * tile.span
        self.map = self._map(buffer)

    @property
    def count(self) -> int:
        """Boxes of a slice."""
        return 1 if self.layout.deep else self.side // self.tile.span

    def _map(self, buffer: Buffer) -> TileMap:
        tile, layout = self.tile, self.layout
        names = ("depth", ("rows", "columns")[self.number])
        pair = [tile.scalar(names[0], tile.sizes.depth), tile.scalar(names[1], self._rows())]
        sizes = pair if layout.deep else pair[::-1]
        outer = layout.rows if layout.deep else layout.depth
        strides = [tile.scalar(f"stride{self.number}", layout.stride(outer) or tile.span)]
        for dim in self._batch():
            sizes.append(tile.scalar(f"batch{self.number}.{dim}", layout.shape[dim]))
            step = layout.stride((dim,)) or 0
            strides.append(tile.scalar(f"step{self.number}.{dim}", step))
        lines = self.side if layout.deep else tile.span
        return self.b.map(buffer, sizes, strides, (tile.span, lines, *[1] * len(self._batch())))

    def _rows(self) -> int:
        sizes = self.tile.sizes
        return sizes.columns if self.number else sizes.rows

    def _batch(self) -> list[int]:
        """Dimensions of the batch that have more than one element, innermost first."""
        return [dim for dim in reversed(self.layout.batch) if self.layout.shape[dim] != 1]

    def ask(
        self, at: Value, side: Value, depth: Value, batch: Value, barriers: Buffer, stage: Value
    ) -> None:
        """Ask for the boxes of one slice."""
        span, dims = self.tile.span, self._batch()
        outer = []
        for dim in dims:
            count = self.tile.scalar(f"batch{self.number}.{dim}", self.layout.shape[dim])
            last = dim == dims[-1]
            outer.append(batch if last else batch % count)
            batch = batch if last else batch // count
        for number in range(self.count):
            inner = (depth, side) if self.layout.deep else (side + number * span, depth)
            target = at + (self.within + number * span * span)
            place = (*inner, *outer)
            matrix.copy_tile(self.b, self.tile.ring, target, self.map, place, barriers, stage)


def put_pairs(
    b: Builder, target: Buffer, at: Value, width: int, line: Value, lanes: Sequence[int]
) -> None:
    """Pairs of sums, each 8 rows below the one before."""
    for number, lane in enumerate(lanes):
        b.store(target, at + number * 8 * width, b.shuffle(line, (lane, lane + 1)))
