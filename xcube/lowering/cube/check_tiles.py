"""The rules of statements on tiles, for `check.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xcube.lowering.cube import ir, tiles
from xcube.lowering.cube.ir import Type

if TYPE_CHECKING:
    from xcube.lowering.cube.check import Checker


def _numbers(checker: Checker, *numbers: int) -> None:
    dim = checker.kernel.cube_dim
    checker.require(dim == (1, 1, 1), f"tiles belong to cubes of one unit; got cube_dim {dim}")
    for number in numbers:
        holds = 0 <= number < ir.TILES
        checker.require(holds, f"a unit has tiles 0..{ir.TILES - 1}; got {number}")


def _moved(checker: Checker, s: ir.LoadTile | ir.StoreTile) -> None:
    _numbers(checker, s.tile)
    dtype = s.buffer.dtype
    holds = dtype in ir.DTYPES and dtype not in ("bool", "index")
    checker.require(holds, f"rows of a tile must be numbers in memory; got {dtype}")
    checker.element(s.buffer, Type(dtype, tiles.width(dtype)), written=isinstance(s, ir.StoreTile))
    checker.access(s.buffer, s.index, tiles.width(dtype), None)
    checker.scalar_of(s.index, Type("index"), "the place of a tile")
    checker.scalar_of(s.stride, Type("index"), "the distance of a tile's rows")


def _multiply(checker: Checker, s: ir.MultiplyTiles) -> None:
    _numbers(checker, s.sum, s.left, s.right)
    holds = len({s.sum, s.left, s.right}) == 3
    rule = f"a multiplication takes three tiles; got {s.sum}, {s.left} and {s.right}"
    checker.require(holds, rule)
    known = ", ".join([" x ".join(kinds) for kinds in tiles.SUMS])
    got = " x ".join(s.kinds)
    checker.require(s.kinds in tiles.SUMS, f"elements of tiles must be {known}; got {got}")


CHECKS: dict[type, Callable[[Any, Any], None]] = {
    ir.ZeroTile: lambda checker, s: _numbers(checker, s.tile),
    ir.LoadTile: _moved,
    ir.StoreTile: _moved,
    ir.MultiplyTiles: _multiply,
}
