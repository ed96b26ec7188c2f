"""Operands of contractions on tiles, as the tiles read them: lines of 64 bytes along the depth, or
words of 32 bits along it side by side.

Both are made by ordinary maps, so whatever produces an operand fuses into them. The map that walks
memory along its neighbours is the quick one; a kernel that turns blocks of words in a tile's size
then makes the other form of what it wrote.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xcube.ir import Aval, Primitive, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube import tiles
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.contract_packed import padded
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.lowered import Element, Template
from xcube.trace import bind

LEAST = 1 << 13  # elements from which a launch that turns blocks pays
SIDE = tiles.WORDS  # lines and words of a block that is turned
BLOCKS = 32  # that a cube turns
_U32 = np.dtype(np.uint32)


def lines_of(x: Any, lines: int, deep: bool) -> Any:
    """x[batch, line, depth] -> [batch, panel of lines, 64 bytes of the depth, line, element];
    `deep`: neighbours in memory lie along the depth."""
    if deep or math.prod(x.shape) < LEAST:
        return bind(pack_lines, x, lines=lines)
    return bind(turn_words, bind(pack_words, x, lines=lines), dtype=x.dtype)


def words_of(x: Any, lines: int, deep: bool) -> Any:
    """x[batch, line, depth] -> u32[batch, panel of lines, 64 bytes of the depth, word, line]."""
    if not deep or math.prod(x.shape) < LEAST:
        return bind(pack_words, x, lines=lines)
    return bind(turn_words, bind(pack_lines, x, lines=lines), dtype=_U32)


def width(dtype: np.dtype) -> int:
    """Elements of a step of the depth."""
    return tiles.ROW // dtype.itemsize


# maps ---------------------------------------------------------------------------------------------


def _panels(x: Aval, lines: int) -> tuple[int, int, int]:
    batch, length, depth = x.shape
    return batch, math.ceil(length / lines), math.ceil(depth / width(x.dtype))


def _lines_shape(x: Aval, *, lines: int) -> Aval:
    return Aval((*_panels(x, lines), lines, width(x.dtype)), x.dtype)


def _lines_element(e: Any, index: Any, *, lines: int) -> Any:
    batch, panel, step, line, k = index
    dtype = e.inputs[0].dtype
    return padded(e, batch, panel * lines + line, step * width(dtype) + k, dtype)


def _words_shape(x: Aval, *, lines: int) -> Aval:
    return Aval((*_panels(x, lines), tiles.WORDS, lines), _U32)


def _words_element(e: Any, index: Any, *, lines: int) -> Any:
    batch, panel, step, word, line = index
    dtype = e.inputs[0].dtype
    count, unsigned = tiles.WORD // dtype.itemsize, np.dtype(f"u{dtype.itemsize}")
    found = None
    for number in range(count):
        k = step * width(dtype) + word * count + number
        part = padded(e, batch, panel * lines + line, k, dtype)
        bits = e.cast(e.bitcast(part, unsigned), _U32)
        shifted = e.apply("shl", bits, e.constant(8 * dtype.itemsize * number, _U32))
        found = bits if found is None else e.apply("or", found, shifted)
    return found


# the kernel that turns ----------------------------------------------------------------------------


def _turn_shape(x: Aval, *, dtype: np.dtype) -> Aval:
    *outer, down, across = x.shape
    if dtype == _U32:
        return Aval((*outer, tiles.WORDS, down), dtype)
    return Aval((*outer, across, width(dtype)), dtype)


pack_lines = Primitive("pack_lines", _lines_shape, lower=Element(_lines_element))
pack_words = Primitive("pack_words", _words_shape, lower=Element(_words_element))
turn_words = Primitive("turn_words", _turn_shape, lower=Template("turn_words"))


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a kernel that turns blocks of words."""
    root = group.root
    assert root is not None and not sources
    (source,), (target,) = root.inputs, root.outputs
    to_words = target.aval.dtype == _U32
    lines = target.aval.shape[-1 if to_words else -2]
    span = width((source if to_words else target).aval.dtype)
    count = target.aval.nbytes // (lines * tiles.ROW)
    arguments = Arguments(Builder("turn_words"))
    b, blocks = arguments.build, arguments.scalar("blocks", count)
    out, x = arguments.buffer(target, "out"), arguments.buffer(source)  # type: ignore[arg-type]
    rooms = b.shared("u32", SIDE * SIDE), b.shared("u32", SIDE * SIDE)
    start = b.place("cube_pos.x") * BLOCKS
    for block in b.range(start, b.op("min", start + BLOCKS, blocks)):
        for first in range(0, lines, SIDE):
            places = ((block * lines + first) * span, span), (block * lines * SIDE + first, lines)
            read, written = places if to_words else reversed(places)
            tiles.load(b, 0, x, *read)
            _turn(b, *rooms)
            tiles.store(b, 0, out, *written)
    cells, variables = tuple(arguments.cells), tuple(arguments.variables)
    return [Work(b.finish(), variables, cells, math.ceil(count / BLOCKS), 1)]


def _turn(b: Builder, straight: Buffer, turned: Buffer) -> None:
    """The words of tile 0, by way of two arrays, with rows and columns exchanged."""
    tiles.store(b, 0, straight, 0, SIDE)
    for number in range(SIDE):
        b.store(turned, number * SIDE, b.load(straight, b.lane(SIDE) * SIDE + number))
    tiles.load(b, 0, turned, 0, SIDE)
