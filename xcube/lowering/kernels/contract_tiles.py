"""Contractions of bf16 or bytes on the tiles of a processor (`cube/tiles.py`).

Operands are packed (`contract_tiles_pack`), the left one to lines along the depth, the right one
to words along it. A register tile is up to two tiles down and two across, which multiply each
other; the frame around it is that of `contract_blocks`. Sums are f32 or i32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Primitive, Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube import tiles
from xcube.lowering.cube.build import Value
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.contract_blocks import Blocks, Frame
from xcube.lowering.kernels.contract_matrix import Sizes
from xcube.lowering.kernels.contract_tiles_pack import lines_of, words_of
from xcube.lowering.kernels.space import Space
from xcube.primitives.lowered import Template
from xcube.trace import bind

ACROSS = 2  # tiles of sums side by side
STEPS = 8  # of 64 bytes along the depth: panels of both operands fit the first cache
FEW = 8  # rows or columns that read a matrix once, where it lies
PANELS = (12, 8)  # register tiles of a cube at most: the more, the less is read from far away
TURNS = 4  # cubes for each core, where there are as many tiles
FEATURES = {"bf16": "amx_bf16", "i8": "amx_int8", "u8": "amx_int8"}


@dataclass(frozen=True)
class Tile:
    """The comptime choices: dtypes of the operands, tiles of sums down, lanes of a line."""

    kinds: tuple[str, str]
    down: int
    lanes: int

    @property
    def rows(self) -> int:
        return self.down * tiles.ROWS

    @property
    def columns(self) -> int:
        return ACROSS * tiles.WORDS

    @property
    def width(self) -> int:
        """Elements of a step of the depth."""
        return tiles.width(self.kinds[0])

    @property
    def sums(self) -> str:
        return tiles.SUMS[self.kinds]

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def choose(
    left: np.dtype, right: np.dtype, sums: np.dtype, sizes: Sizes, facts: Facts
) -> Tile | None:
    """The tile for operands and sums of these dtypes; None where the device has none for them, or
    too few lines use what is read."""
    kinds = dtypes.short_name(left), dtypes.short_name(right)
    known = tiles.SUMS.get(kinds)
    if facts.units > 1 or known is None or FEATURES[kinds[0]] not in facts.features:
        return None
    if sums.kind not in ("f" if known == "f32" else "iu") or sums.itemsize != tiles.WORD:
        return None
    if min(sizes.rows, sizes.columns) <= FEW:
        return None
    return Tile(kinds, 1 if sizes.rows <= tiles.ROWS else 2, facts.lanes(tiles.WORD))


def product(
    a: Any,
    b: Any,
    deep: tuple[bool, bool],
    tile: Tile,
    sizes: Sizes,
    shape: Shape,
    kinds: tuple[str, ...],
) -> Any:
    """a[batch, rows, depth], b[batch, columns, depth] -> sums; `deep`: whether neighbours of either
    lie along the depth."""
    left, right = lines_of(a, tile.rows, deep[0]), words_of(b, tile.columns, deep[1])
    return bind(tile_product, left, right, tile=tile, sizes=sizes, shape=shape, kinds=kinds)


def _product_shape(
    a: Aval, b: Aval, *, tile: Tile, sizes: Sizes, shape: Shape, kinds: tuple[str, ...]
) -> Aval:
    return Aval(shape, dtypes.BY_SHORT[tile.sums])


tile_product = Primitive("tile_product", _product_shape, lower=Template("matmul"))


# the kernel ---------------------------------------------------------------------------------------


class Contraction(Blocks):
    """One contraction of packed operands; a step is 64 bytes of the depth."""

    def __init__(self, group: Group, space: Space, sources: frozenset[Var], facts: Facts) -> None:
        root = group.root
        assert root is not None
        tile: Tile = root.params["tile"]
        self.tile = tile
        self.steps = math.ceil(root.params["sizes"].depth / tile.width)
        cubes = TURNS * facts.cores
        frame = Frame(
            tile.rows, tile.columns, STEPS, tile.lanes, PANELS, cubes, tile.sums, tiles.WORDS
        )
        super().__init__(group, space, sources, frame, self.steps)

    def micro(self, m: Value, n: Value, corner: Value, steps: Value, block: Value) -> None:
        b, tile = self.b, self.tile
        first = block * STEPS
        of_left, of_right = tile.rows * tile.width, tiles.WORDS * tile.columns
        count = self.scalar("steps", self.steps)
        left, right = (m * count + first) * of_left, (n * count + first) * of_right
        self._begin(corner, block)
        for k in b.range(0, steps):
            self._multiply(left + k * of_left, right + k * of_right)
        for number, at in self._sums(corner):
            tiles.store(b, number, self.scratch, at, self.width)

    def _begin(self, corner: Value, block: Value) -> None:
        """The sums so far; none in the first block."""
        b, sums = self.b, self._sums(corner)
        if self.blocks == 1:
            for number, _ in sums:
                tiles.zero(b, number)
            return
        with b.when(block > 0):
            for number, at in sums:
                tiles.load(b, number, self.scratch, at, self.width)
        with b.otherwise():
            for number, _ in sums:
                tiles.zero(b, number)

    def _multiply(self, left: Value, right: Value) -> None:
        """One step: tiles 4 and 5 are of the left operand, 6 and 7 of the right one."""
        b, tile = self.b, self.tile
        for j in range(ACROSS):
            tiles.load(b, 6 + j, self.right, right + j * tiles.WORDS, tile.columns)
        for i in range(tile.down):
            tiles.load(b, 4 + i, self.left, left + i * tiles.ROWS * tile.width, tile.width)
            for j in range(ACROSS):
                tiles.multiply(b, i * ACROSS + j, 4 + i, 6 + j, tile.kinds)

    def _sums(self, corner: Value) -> list[tuple[int, Value]]:
        """The tiles of sums, with where they are in the cube's array."""
        return [
            (i * ACROSS + j, corner + (i * tiles.ROWS * self.width + j * tiles.WORDS))
            for i in range(self.tile.down)
            for j in range(ACROSS)
        ]
