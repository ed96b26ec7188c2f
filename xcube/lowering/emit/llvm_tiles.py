"""Tiles as LLVM intrinsics of x86 (AMX). Their shape is a state of the thread: `prologue` sets it
where a kernel begins, `epilogue` gives the tiles back, which spares the system to save them."""

from __future__ import annotations

from collections.abc import Callable

from xcube.lowering.cube import ir, tiles
from xcube.lowering.cube.ir import Atom
from xcube.lowering.emit.llvm_text import Code, size_of

# Palette 1; then bytes of a row for each tile as 16 bits, and rows for each as 8.
_PALETTE = (1, 0)
_ROW_BYTES = (tiles.ROW * 0x0001_0001_0001_0001,) * 2 + (0, 0)
_ROWS = (tiles.ROWS * 0x0101_0101_0101_0101, 0)

_LETTERS = {"i8": "s", "u8": "u"}


class Tiles:
    """The tiles of one kernel; `used` tells whether it has any."""

    def __init__(self, name: str, code: Code, atom: Callable[[Atom], str]) -> None:
        self._name, self._code, self._atom = name, code, atom
        self.used = False

    def emit(self, statement: ir.Tile) -> None:
        """Emit a statement on tiles."""
        self.used = True
        match statement:
            case ir.ZeroTile(tile=tile):
                self._code.run("llvm.x86.tilezero", ("i8",), str(tile))
            case ir.LoadTile():
                self._move("llvm.x86.tileloadd64", statement)
            case ir.StoreTile():
                self._move("llvm.x86.tilestored64", statement)
            case ir.MultiplyTiles():
                self._multiply(statement)

    def _move(self, function: str, s: ir.LoadTile | ir.StoreTile) -> None:
        code, size = self._code, size_of(s.buffer.dtype)
        base = f"%b{s.buffer.number}" if s.buffer.space == "global" else f"%a{s.buffer.number}"
        start = code.add(f"mul nsw i64 {self._atom(s.index)}, {size}")
        pointer = code.add(f"getelementptr i8, ptr {base}, i64 {start}")
        stride = code.add(f"mul nsw i64 {self._atom(s.stride)}, {size}")
        code.run(function, ("i8", "ptr", "i64"), str(s.tile), pointer, stride)

    def _multiply(self, s: ir.MultiplyTiles) -> None:
        operands = [str(tile) for tile in (s.sum, s.left, s.right)]
        self._code.run(f"llvm.x86.{_instruction(s.kinds)}", ("i8",) * 3, *operands)

    def globals(self) -> list[str]:
        """The constant that says which shape tiles have."""
        if not self.used:
            return []
        for function, operands in (("ldtilecfg", "ptr"), ("tilerelease", "")):
            self._code.declared[function] = f"declare void @llvm.x86.{function}({operands})"
        words = ", ".join([f"i64 {word}" for word in (*_PALETTE, *_ROW_BYTES, *_ROWS)])
        return [f"{self._shape} = private unnamed_addr constant [8 x i64] [{words}], align 64"]

    def prologue(self) -> list[str]:
        """What a kernel does first."""
        return [f"  call void @llvm.x86.ldtilecfg(ptr {self._shape})"] if self.used else []

    def epilogue(self) -> list[str]:
        """What a kernel does last."""
        return ["  call void @llvm.x86.tilerelease()"] if self.used else []

    @property
    def _shape(self) -> str:
        return f'@"{self._name}.tiles"'


def _instruction(kinds: tuple[str, str]) -> str:
    """The name of a multiplication.

    >>> _instruction(("bf16", "bf16")), _instruction(("u8", "i8"))
    ('tdpbf16ps', 'tdpbusd')
    """
    if kinds == ("bf16", "bf16"):
        return "tdpbf16ps"
    return f"tdpb{_LETTERS[kinds[0]]}{_LETTERS[kinds[1]]}d"
