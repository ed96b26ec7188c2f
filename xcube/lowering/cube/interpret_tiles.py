"""What the interpreter does at statements on tiles, which a unit holds as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xcube.lowering.cube import ir, tiles
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.memory import Memory

if TYPE_CHECKING:
    from xcube.lowering.cube.interpreter import Unit

Line = np.ndarray[Any, Any]
_LEAST = float(np.finfo(np.float32).smallest_normal)


def _zero(unit: Unit, s: ir.ZeroTile) -> None:
    unit.tiles[s.tile] = np.zeros((tiles.ROWS, tiles.ROW), np.uint8)


def _load(unit: Unit, s: ir.LoadTile) -> None:
    memory, places = _places(unit, s)
    unread = places[~memory.is_written(places, np.ones(len(places), np.bool_))]
    if len(unread):
        rule = f"an element must be written before it is read; element {unread[0]} is not"
        raise unit.fault(s, rule)
    unit.touch(s, memory, "read", places)
    values = np.ascontiguousarray(memory.values[places].reshape(tiles.ROWS, -1))
    unit.tiles[s.tile] = values.view(np.uint8)


def _store(unit: Unit, s: ir.StoreTile) -> None:
    memory, places = _places(unit, s)
    values = _held(unit, s, s.tile).view(memory.values.dtype)
    unit.touch(s, memory, "write", places)
    memory.write(places, values.ravel())


def _multiply(unit: Unit, s: ir.MultiplyTiles) -> None:
    left, right = (
        _held(unit, s, tile).view(NUMPY[kind]).astype(np.float64)
        for tile, kind in zip((s.left, s.right), s.kinds, strict=True)
    )
    word = tiles.word(s.kinds[1])
    deep = right.reshape(tiles.WORDS, tiles.WORDS, word).swapaxes(1, 2).reshape(-1, tiles.WORDS)
    kind = tiles.SUMS[s.kinds]
    before = _held(unit, s, s.sum).view(NUMPY[kind])
    if kind == "f32":
        found = _flushed(before) + _flushed(left) @ _flushed(deep)
        after = _flushed(found.astype(np.float32)).astype(np.float32)
    else:
        after = (before + (left @ deep).astype(np.int64)).astype(np.int32)
    unit.tiles[s.sum] = after.view(np.uint8)


def _flushed(values: Line) -> Line:
    """Numbers in double precision, those below all normal ones of f32 as zero."""
    wide = values.astype(np.float64)
    return np.where(np.abs(wide) < _LEAST, 0.0, wide)


def _places(unit: Unit, s: ir.LoadTile | ir.StoreTile) -> tuple[Memory, Line]:
    memory = unit.memory(s.buffer)
    rows = unit.whole(s.index) + np.arange(tiles.ROWS) * unit.whole(s.stride)
    places = (rows[:, None] + np.arange(tiles.width(s.buffer.dtype))).ravel()
    return memory, unit.inside(s, memory, places)


def _held(unit: Unit, s: ir.Tile, tile: int) -> Line:
    if (found := unit.tiles.get(tile)) is None:
        raise unit.fault(s, f"a tile must be loaded or zero before it is used; tile {tile} is not")
    return found


STEPS: dict[type, Callable[[Any, Any], None]] = {
    ir.ZeroTile: _zero,
    ir.LoadTile: _load,
    ir.StoreTile: _store,
    ir.MultiplyTiles: _multiply,
}
