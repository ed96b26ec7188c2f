"""Which tile a contraction without packing gets: a function of its sizes, its dtype and the
device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from xcube.lowering.cube.ir import BITS
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.contract_product import LEAST, Product

FEW = 8  # rows of a matrix product that is walked like a vector's
WIDE = 1 << 16  # elements of a matrix from which its rows are read in stretches
STRETCH = 1 << 10  # elements of a stretch
Form = Literal["lines", "stream", "depth"]


@dataclass(frozen=True)
class Tile:
    """The comptime choices: where lines lie, places of the factor without lines, lines (or places)
    of the other one, lanes of a line, and for streams how many steps of the depth go together."""

    form: Form
    rows: int
    lines: int
    lanes: int
    steps: int = 1

    def __str__(self) -> str:
        return f"{self.form} {self.rows}x{self.lines}x{self.lanes}"


@dataclass(frozen=True)
class Sizes:
    """Places of a product: of the other factor alone, of what is across where lines lie along the
    depth, of the lanes, and of the depth; whether the depth is one loop."""

    form: Form
    rows: int
    across: int
    lanes: int
    depth: int
    plain: bool = True


def sizes_of(product: Product, columns: list[int]) -> Sizes:
    """The sizes that decide, of a product whose depth has loops of these extents."""
    along = 1 if product.along is None else product.along.extent
    across = 1 if product.across is None else product.across.extent
    form: Form = "lines" if product.lane.kind == "row" else "depth"
    depth = math.prod(columns)
    return Sizes(form, along, across, product.lane.extent, depth, len(columns) == 1)


def candidates(sizes: Sizes, dtype: str, facts: Facts) -> tuple[Tile, ...]:
    """Tiles worth trying, the heuristic's choice first: the sums, a line for each step and one
    scalar fit into the registers."""
    registers = 32 if facts.vector_bits in (128, 512) else 16
    lanes = facts.lanes(BITS[dtype] // 8)
    while lanes > LEAST and lanes // 2 >= sizes.lanes:
        lanes //= 2
    shapes = _depth_shapes(sizes) if sizes.form == "depth" else _line_shapes(sizes, lanes)
    fitting = [(r, v) for r, v in shapes if r * v + v < registers]
    tiles = [Tile(sizes.form, r, v, lanes) for r, v in fitting]
    if _is_stream(sizes):
        steps = max(2, min(8, registers // sizes.rows))
        tiles.insert(0, Tile("stream", sizes.rows, STRETCH // lanes, lanes, steps))
    return tuple(tiles)


def _is_stream(sizes: Sizes) -> bool:
    wide = sizes.lanes >= STRETCH and sizes.lanes * sizes.depth >= WIDE
    return sizes.form == "lines" and sizes.plain and sizes.rows <= FEW and wide


def _depth_shapes(sizes: Sizes) -> list[tuple[int, int]]:
    """About sixteen sums; a place of few is met with more of the others."""
    most = ((4, 4), (3, 4), (2, 6), (1, 8), (2, 4), (1, 4), (1, 1))
    shapes = [(min(r, sizes.rows), min(v, sizes.across)) for r, v in most if r <= sizes.rows]
    return list(dict.fromkeys(shapes))


def _line_shapes(sizes: Sizes, lanes: int) -> list[tuple[int, int]]:
    """Rows and lines of tiles; the fewer rows there are, the more lines."""
    count = math.ceil(sizes.lanes / lanes)
    most = ((6, 4), (8, 3), (8, 2), (4, 6), (3, 6), (2, 8), (1, 8), (8, 1), (4, 2), (2, 2), (1, 1))
    shapes = [_balanced(sizes.rows, r, min(v, count)) for r, v in most]
    return sorted(dict.fromkeys(shapes), key=lambda shape: _cost(sizes.rows, count, *shape))


def _balanced(rows: int, down: int, lines: int) -> tuple[int, int]:
    """As many rows in each tile."""
    return math.ceil(rows / math.ceil(rows / down)), lines


def _cost(rows: int, count: int, down: int, lines: int) -> float:
    """What a step of the depth takes in all tiles: products and loads go side by side, and a tile
    of few products waits for them; then fewer loads are better."""
    whole, rest = divmod(count, lines)
    tiles = math.ceil(rows / down)
    return tiles * (whole * _step(down, lines) + rest * _step(down, 1))


def _step(down: int, lines: int) -> float:
    return max(down * lines / 2, 4) + (down + lines) / 4
