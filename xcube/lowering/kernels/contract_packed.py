"""Large contractions: packing and a tiled kernel.

Operands are packed by ordinary maps (so whatever produces them fuses into the packing) into
blocks that the tile walks with comptime strides: A to [batch, panel of mr rows, block of kc,
row, k], or with rows innermost where they are neighbours in memory, B to [batch, panel of nr
columns, block of kc, k, column]. The tile keeps mr x nr accumulators in registers (Goto and van de
Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008), in the frame of
`contract_blocks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Primitive, Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Value
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import contract_units, rows
from xcube.lowering.kernels.contract_blocks import Blocks, Frame
from xcube.lowering.kernels.contract_matrix import Sizes
from xcube.lowering.kernels.space import Space
from xcube.primitives.lowered import Element, Template

DEPTH = 1 << 12  # bytes of a row of a block: sums leave the registers as often as caches need it
LARGE_CACHE = 1 << 20  # of second level; with less of it blocks are half as deep
PAD = 16  # elements between rows of packed A, so that rows do not share cache sets
PANELS = (16, 4)  # of a cube at most
CUBES = 16  # that share a contraction, where there are as many tiles
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
    return padded(e, batch, panel * tile.mr + row, block * tile.kc + k, dtype)


def _pack_a_space(out: Aval, *, tile: Tile, dtype: np.dtype) -> Shape:
    """The padding between rows is never read."""
    return (*out.shape[:-1], tile.kc)


def _pack_b_shape(x: Aval, *, tile: Tile, dtype: np.dtype) -> Aval:
    batch, length, depth = x.shape
    panels, blocks = math.ceil(length / tile.nr), math.ceil(depth / tile.kc)
    return Aval((batch, panels, blocks, tile.kc, tile.nr), dtype)


def _pack_b_element(e: Any, index: Any, *, tile: Tile, dtype: np.dtype) -> Any:
    batch, panel, block, k, column = index
    return padded(e, batch, panel * tile.nr + column, block * tile.kc + k, dtype)


def padded(e: Any, batch: Any, line: Any, k: Any, dtype: np.dtype) -> Any:
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


class Contraction(Blocks):
    """One contraction of packed operands: a register tile is an outer product for each element of
    the depth."""

    def __init__(self, group: Group, space: Space, sources: frozenset[Var]) -> None:
        root = group.root
        assert root is not None
        tile: Tile = root.params["tile"]
        self.tile = tile
        self.dtype = dtypes.short_name(root.inputs[0].aval.dtype)
        frame = Frame(tile.mr, tile.nr, tile.kc, tile.lanes, PANELS, CUBES, self.dtype)
        super().__init__(group, space, sources, frame, root.params["sizes"].depth)

    def micro(self, m: Value, n: Value, corner: Value, steps: Value, block: Value) -> None:
        b, tile, count = self.b, self.tile, self.blocks
        blocks = self.scalar("blocks", count) if count > 1 else b.constant(1, "index")
        panel_a = (m * blocks + block) * self._panel
        panel_b = (n * blocks + block) * (tile.kc * tile.nr)
        lines = tile.nr // tile.lanes
        zero = b.constant(0, self.dtype, tile.lanes)
        sums = [[b.variable(zero) for _ in range(lines)] for _ in range(tile.mr)]
        if count > 1:
            with b.when(block > 0):
                for cell, at in self._places(sums, corner):
                    cell.set(b.load(self.scratch, at, lanes=tile.lanes))
        for k in b.range(0, steps):
            at_a = panel_a + (k * tile.mr if tile.turned else k)
            self._rank_one(sums, at_a, panel_b + k * tile.nr)
        for cell, at in self._places(sums, corner):
            b.store(self.scratch, at, cell.get())

    def _places(self, sums: Any, corner: Value) -> list[tuple[Any, Value]]:
        """The sums, with where they are in the cube's array."""
        return [
            (cell, corner + (r * self.width + v * self.tile.lanes))
            for r, row in enumerate(sums)
            for v, cell in enumerate(row)
        ]

    @property
    def _panel(self) -> int:
        """Elements of a block of a panel of A."""
        return self.tile.mr * (self.tile.kc if self.tile.turned else self.tile.stride)

    def _rank_one(self, sums: Any, at_a: Value, at_b: Value) -> None:
        b, tile = self.b, self.tile
        lines, step = range(tile.nr // tile.lanes), 1 if tile.turned else tile.stride
        right = [b.load(self.right, at_b + v * tile.lanes, lanes=tile.lanes) for v in lines]
        for r in range(tile.mr):
            left = b.splat(b.load(self.left, at_a + r * step), tile.lanes)
            for v in lines:
                cell = sums[r][v]
                cell.set(self._multiply_add(left, right[v], cell.get()))

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z
