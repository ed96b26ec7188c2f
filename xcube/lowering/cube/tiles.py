"""Tiles in the kernel language: registers of 16 rows of 64 bytes that a unit multiplies as
matrices; their layout, and the builders of the statements.

A tile is bytes; a multiplication says what they are. The left operand has 16 rows of words of 32
bits, neighbours along the depth; a word holds 2 elements of 16 bits or 4 of 8. Row k of the right
operand has the k-th word of the depth of 16 columns. So 16 words of depth, 32 or 64 elements, make
16 rows of 16 sums of 32 bits. Products of bf16 are exact and added in f32 in no stated order, where
numbers and sums too small for a normal f32 count as zero; products of bytes, signed or not, are
added in i32, which wraps.
"""

from __future__ import annotations

from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Operand, Value
from xcube.lowering.cube.ir import Buffer

ROWS, ROW = 16, 64  # rows of a tile, and bytes of one
WORD = 4  # bytes that lie along the depth in a row of the right operand
WORDS = ROW // WORD  # of a row
SUMS = {
    ("bf16", "bf16"): "f32",
    ("i8", "i8"): "i32",
    ("i8", "u8"): "i32",
    ("u8", "i8"): "i32",
    ("u8", "u8"): "i32",
}


def width(dtype: str) -> int:
    """Elements of a row.

    >>> width("bf16"), width("i8"), width("f32")
    (32, 64, 16)
    """
    return ROW * 8 // ir.BITS[dtype]


def word(dtype: str) -> int:
    """Elements of a word."""
    return WORD * 8 // ir.BITS[dtype]


def zero(build: Builder, tile: int) -> None:
    """Make all bytes of a tile zero."""
    build.emit(ir.ZeroTile(tile))


def load(build: Builder, tile: int, buffer: Buffer, index: Operand, stride: Operand) -> None:
    """Rows of a tile from memory, `stride` elements apart."""
    build.emit(ir.LoadTile(tile, buffer, _index(build, index), _index(build, stride)))


def store(build: Builder, tile: int, buffer: Buffer, index: Operand, stride: Operand) -> None:
    """Rows of a tile to memory, `stride` elements apart."""
    build.emit(ir.StoreTile(tile, buffer, _index(build, index), _index(build, stride)))


def multiply(build: Builder, sum: int, left: int, right: int, kinds: tuple[str, str]) -> None:
    """Add left @ right to the sums of a tile."""
    build.emit(ir.MultiplyTiles(sum, left, right, kinds))


def _index(build: Builder, index: Operand) -> ir.Atom:
    return (index if isinstance(index, Value) else build.constant(index, "index")).atom
