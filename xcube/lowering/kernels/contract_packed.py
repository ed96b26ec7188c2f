"""Large contractions: packing and a tiled kernel.

Operands are packed by ordinary maps (so whatever produces them fuses into the packing) into
blocks that the tile walks with comptime strides: A to [batch, panel of mr rows, block of kc,
row, k], or with rows innermost where they are neighbours in memory, B to [batch, panel of nr
columns, block of kc, k, column]. The tile keeps mr x nr accumulators in registers (Goto and van de
Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008); a cube computes a block of tiles
in an array of its own and then passes it, line by line, through the map that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Primitive, Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import walk
from xcube.lowering.kernels import contract_units, rows
from xcube.lowering.kernels.contract_matrix import Sizes
from xcube.lowering.kernels.nodes import Arguments, Emitter, cast
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work
from xcube.primitives.lowered import Element, Template

DEPTH = 1 << 12  # bytes of a row of a block: sums leave the registers as often as caches need it
LARGE_CACHE = 1 << 20  # of second level; with less of it blocks are half as deep
PAD = 16  # elements between rows of packed A, so that rows do not share cache sets
PANELS_M, PANELS_N = 16, 4  # of a cube
BLOCK = 128  # rows and columns of a block that many units share


@dataclass(frozen=True)
class Tile:
    """The comptime choices of a tiled contraction: rows and columns of the register tile, or of the
    block that a cube's units share, depth of a block, lanes of a line; whether packed A has the
    rows of a panel side by side, as memory has them where neighbours are rows."""

    mr: int
    nr: int
    kc: int
    lanes: int
    units: int = 1
    turned: bool = False

    @property
    def right(self) -> Tile:
        """How A is packed where it is packed like B."""
        return replace(self, nr=self.mr)

    @property
    def stride(self) -> int:
        return self.kc + PAD

    def __str__(self) -> str:
        return f"{self.mr}x{self.nr}x{self.kc}"


def choose(sizes: Sizes, dtype: np.dtype, facts: Facts) -> Tile:
    """The tile for a problem: registers decide its rows and columns, caches its depth."""
    if facts.units > 1:
        return _choose_units(sizes, dtype, facts)
    lanes = facts.lanes(dtype.itemsize)
    many = facts.vector_bits == 512 or facts.vector_bits == 128  # 32 registers, else 16
    mr, lines = (14, 2) if many else (6, 2)
    if sizes.rows < 4 * mr:  # as many rows in each panel
        mr = math.ceil(sizes.rows / math.ceil(sizes.rows / mr))
    most = DEPTH // dtype.itemsize // (1 if facts.l2_bytes >= LARGE_CACHE else 2)
    blocks = math.ceil(sizes.depth / most)
    kc = rows.round_up(math.ceil(sizes.depth / blocks), 64 if sizes.depth > 64 else 16)
    return Tile(mr, lines * lanes, kc, lanes)


def _choose_units(sizes: Sizes, dtype: np.dtype, facts: Facts) -> Tile:
    """Large blocks where they leave work for all cores."""
    side = BLOCK if dtype.itemsize == 4 else BLOCK // 2
    cubes = sizes.batch * math.ceil(sizes.rows / side) * math.ceil(sizes.columns / side)
    if cubes < facts.cores:
        side = BLOCK // 2
    return Tile(side, side, 16, contract_units.LINE, (side // contract_units.SIDE) ** 2)


# packing --------------------------------------------------------------------------------------


def _pack_a_shape(x: Aval, *, tile: Tile, dtype: np.dtype) -> Aval:
    batch, length, depth = x.shape
    panels, blocks = math.ceil(length / tile.mr), math.ceil(depth / tile.kc)
    return Aval((batch, panels, blocks, tile.mr, tile.stride), dtype)


def _pack_a_element(e: Any, index: Any, *, tile: Tile, dtype: np.dtype) -> Any:
    batch, panel, block, row, k = index
    return _packed(e, batch, panel * tile.mr + row, block * tile.kc + k, dtype)


def _pack_a_space(out: Aval, *, tile: Tile, dtype: np.dtype) -> Shape:
    """The padding between rows is never read."""
    return (*out.shape[:-1], tile.kc)


def _pack_b_shape(x: Aval, *, tile: Tile, dtype: np.dtype) -> Aval:
    batch, length, depth = x.shape
    panels, blocks = math.ceil(length / tile.nr), math.ceil(depth / tile.kc)
    return Aval((batch, panels, blocks, tile.kc, tile.nr), dtype)


def _pack_b_element(e: Any, index: Any, *, tile: Tile, dtype: np.dtype) -> Any:
    batch, panel, block, k, column = index
    return _packed(e, batch, panel * tile.nr + column, block * tile.kc + k, dtype)


def _packed(e: Any, batch: Any, line: Any, k: Any, dtype: np.dtype) -> Any:
    """The operand's element, zero outside it."""
    _, length, depth = e.inputs[0].shape
    tests = [(line, 0, length), (k, 0, depth)]
    value = e.guarded(tests, lambda: e.cast(e.read(0, (batch, line, k)), dtype))
    inside = [node for test in tests if (node := e.inside(*test)).op != "const"]
    for test in inside:
        value = e.apply("select", test, value, e.constant(0, dtype))
    return value


pack_a = Primitive("pack_a", _pack_a_shape, lower=Element(_pack_a_element, space=_pack_a_space))
pack_b = Primitive("pack_b", _pack_b_shape, lower=Element(_pack_b_element))


def _matmul_abstract(
    a: Aval, b: Aval, *, tile: Tile, sizes: Sizes, shape: Shape, kinds: tuple[str, ...]
) -> Aval:
    return Aval(shape, a.dtype)


matmul = Primitive("matmul", _matmul_abstract, lower=Template("matmul"))


class Contraction:
    """One contraction of packed operands, with the map behind it."""

    def __init__(self, group: Group, space: Space, sources: frozenset[Var]) -> None:
        root = group.root
        assert root is not None
        self.group, self.space, self.sources, self.root = group, space, sources, root
        self.tile: Tile = root.params["tile"]
        self.sizes: Sizes = root.params["sizes"]
        self.dtype = dtypes.short_name(root.inputs[0].aval.dtype)
        self.b = Builder("matmul")
        self.arguments = Arguments(self.b, sources)
        columns = space.of("n")
        self.lane: Axis | None = columns[0] if columns else None
        self.emit = Emitter(self.arguments, space.axes, self.lane, self.tile.lanes)
        self.blocks = math.ceil(self.sizes.depth / self.tile.kc)

    def build(self) -> Work:
        tile, sizes, b = self.tile, self.sizes, self.b
        shared = "inout" if self.sources else "out"
        for result in self.space.results:
            self.arguments.buffer(result.var, shared)
        self.a = self.arguments.buffer(self.root.inputs[0])  # type: ignore[arg-type]
        self.packed_b = self.arguments.buffer(self.root.inputs[1])  # type: ignore[arg-type]
        panels_m, panels_n = math.ceil(sizes.rows / tile.mr), math.ceil(sizes.columns / tile.nr)
        per_m, per_n = self._cube_panels(panels_m, panels_n)
        cubes_m, cubes_n = math.ceil(panels_m / per_m), math.ceil(panels_n / per_n)
        self.panels_m, self.panels_n = (
            self._scalar("panels_m", panels_m),
            self._scalar("panels_n", panels_n),
        )
        self.per_m, self.per_n = self._scalar("per_m", per_m), self._scalar("per_n", per_n)
        self.rows, self.columns = (
            self._scalar("rows", sizes.rows),
            self._scalar("columns", sizes.columns),
        )
        cube = b.place("cube_pos.x")
        count_m = self._scalar("cubes_m", cubes_m)
        cube, cube_m = cube // count_m, cube % count_m
        batch, cube_n = self._batch(cube, cubes_n)
        self.scratch = b.shared(self.dtype, PANELS_M * tile.mr * PANELS_N * tile.nr)
        first_m, first_n = cube_m * self.per_m, cube_n * self.per_n
        self._products(batch, first_m, first_n)
        self._epilogue(batch, first_m * tile.mr, first_n * tile.nr)
        work = 2 * per_m * tile.mr * per_n * tile.nr * sizes.depth
        grain = max(1, (1 << 19) // max(1, work))
        return Work(
            b.finish(),
            tuple(self.arguments.variables),
            tuple(self.arguments.cells),
            sizes.batch * cubes_m * cubes_n,
            grain,
        )

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _cube_panels(self, panels_m: int, panels_n: int) -> tuple[int, int]:
        """Panels of a cube: fewer where there would be too few cubes to share."""
        per_m, per_n = min(PANELS_M, panels_m), min(PANELS_N, panels_n)
        wanted = 16

        def cubes() -> int:
            return self.sizes.batch * math.ceil(panels_m / per_m) * math.ceil(panels_n / per_n)

        while cubes() < wanted and per_m * per_n > 4:
            if per_m >= per_n:
                per_m = math.ceil(per_m / 2)
            else:
                per_n = math.ceil(per_n / 2)
        return per_m, per_n

    def _batch(self, cube: Value, cubes_n: int) -> tuple[Value, Value]:
        if self.sizes.batch == 1:
            return self.b.constant(0, "index"), cube
        count = self._scalar("cubes_n", cubes_n)
        return cube // count, cube % count

    def _products(self, batch: Value, first_m: Value, first_n: Value) -> None:
        """The block of products in the cube's array, one block of the depth after the other."""
        b, tile = self.b, self.tile
        last = self._scalar("last", self.sizes.depth - (self.blocks - 1) * tile.kc)
        if self.blocks == 1:  # the sums never leave the registers in between
            self._tiles(batch, first_m, first_n, b.constant(0, "index"), last)
            return
        count = self._scalar("blocks", self.blocks)
        for block in b.range(0, count):
            whole = b.constant(tile.kc, "index")
            depth = b.select((block + 1).eq(count), last, whole)
            self._tiles(batch, first_m, first_n, block, depth)

    def _tiles(
        self, batch: Value, first_m: Value, first_n: Value, block: Value, depth: Value
    ) -> None:
        b, tile, count = self.b, self.tile, self.blocks
        stop_m = b.op("min", first_m + self.per_m, self.panels_m)
        stop_n = b.op("min", first_n + self.per_n, self.panels_n)
        blocks = self._scalar("blocks", count) if count > 1 else b.constant(1, "index")
        for m in b.range(first_m, stop_m):
            for n in b.range(first_n, stop_n):
                row = (batch * self.panels_m + m) * blocks + block
                column = (batch * self.panels_n + n) * blocks + block
                corner = (m - first_m) * (tile.mr * PANELS_N * tile.nr) + (n - first_n) * tile.nr
                panel_a, panel_b = row * self._panel, column * (tile.kc * tile.nr)
                self._micro(panel_a, panel_b, corner, depth, block)

    @property
    def _panel(self) -> int:
        """Elements of a block of a panel of A."""
        return self.tile.mr * (self.tile.kc if self.tile.turned else self.tile.stride)

    def _micro(
        self, panel_a: Value, panel_b: Value, corner: Value, depth: Value, block: Value
    ) -> None:
        """One register tile over one block of the depth."""
        b, tile = self.b, self.tile
        lines, width = tile.nr // tile.lanes, PANELS_N * tile.nr
        zero = b.constant(0, self.dtype, tile.lanes)
        sums = [[b.variable(zero) for _ in range(lines)] for _ in range(tile.mr)]
        if self.blocks > 1:
            with b.when(block > 0):
                for r, row in enumerate(sums):
                    for v, cell in enumerate(row):
                        at = corner + (r * width + v * tile.lanes)
                        cell.set(b.load(self.scratch, at, lanes=tile.lanes))
        for k in b.range(0, depth):
            at_a = panel_a + (k * tile.mr if tile.turned else k)
            self._rank_one(sums, at_a, panel_b + k * tile.nr)
        for r, row in enumerate(sums):
            for v, cell in enumerate(row):
                b.store(self.scratch, corner + (r * width + v * tile.lanes), cell.get())

    def _rank_one(self, sums: Any, at_a: Value, at_b: Value) -> None:
        b, tile = self.b, self.tile
        lines, step = range(tile.nr // tile.lanes), 1 if tile.turned else tile.stride
        right = [b.load(self.packed_b, at_b + v * tile.lanes, lanes=tile.lanes) for v in lines]
        for r in range(tile.mr):
            left = b.splat(b.load(self.a, at_a + r * step), tile.lanes)
            for v in lines:
                cell = sums[r][v]
                cell.set(self._multiply_add(left, right[v], cell.get()))

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z

    # the map behind

    def _epilogue(self, batch: Value, first_row: Value, first_column: Value) -> None:
        b, tile, emit = self.b, self.tile, self.emit
        width = PANELS_N * tile.nr
        stop_row = b.op("min", first_row + self.per_m * tile.mr, self.rows)
        stop_column = b.op("min", first_column + self.per_n * tile.nr, self.columns)
        emit.place(self.space.of("batch"), batch)
        nodes = [result.node for result in self.space.results]
        ragged = self.sizes.columns % tile.lanes != 0
        for row in b.range(first_row, stop_row):
            emit.open()
            emit.place(self.space.of("m"), row)
            start = (row - first_row) * width - first_column
            emit.hoist([n for n in nodes if n.op != "tile"], emit.lane_mask)
            for column in b.range(first_column, stop_column, tile.lanes):
                emit.open()
                if self.lane is not None:
                    emit.at[id(self.lane)] = column
                emit.mask_from(column, stop_column, ragged)
                line = b.load(self.scratch, start + column, lanes=tile.lanes)
                self._write(line)
                emit.close()
            emit.close()

    def _write(self, line: Value) -> None:
        results = self.space.results
        for node in walk([result.node for result in results]):
            if node.op == "tile":
                self.emit.known(node, cast(self.b, line, node.dtype))
        self.emit.write(results)
