"""The rules of statements that copy asynchronously and use matrix units, for `check.py`: what they
ask of a kernel's units, of buffers and of types, before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.ir import Atom, Buffer, Panel, TileMap, Type

if TYPE_CHECKING:
    from xcube.lowering.cube.check import Checker

_INDEX, _BOOL = Type("index"), Type("bool")
RANK, BOX = 5, 256  # dimensions of a map at most, and elements of a box along one


def _units(checker: Checker, what: str, size: int) -> None:
    units = math.prod(checker.kernel.cube_dim)
    checker.require(
        units % size == 0, f"{what} takes whole sets of {size} units; the cube has {units}"
    )


def _space(checker: Checker, buffer: Buffer, wanted: str, what: str) -> None:
    rule = f"{what} must be in {wanted} memory; got {buffer.space}"
    checker.require(buffer.space == wanted, rule)


def _place(checker: Checker, buffer: Buffer, index: Atom, lanes: int) -> None:
    checker.access(buffer, index, lanes, None)
    checker.scalar_of(index, _INDEX, "the place of a copy or a matrix")


def _input(checker: Checker, dtype: str, what: str) -> None:
    names = ", ".join(matrix.INPUTS)
    checker.require(dtype in matrix.INPUTS, f"{what} must have a dtype of {names}; got {dtype}")


def _copy(checker: Checker, s: ir.CopyAsync) -> None:
    _space(checker, s.target, "shared", "the target of a copy on its way")
    _space(checker, s.source, "global", "the source of a copy on its way")
    checker.element(s.target, Type(s.source.dtype))
    wanted = matrix.width(s.source.dtype)
    checker.require(
        s.lanes == wanted,
        f"a copy on its way must move 16 bytes, {wanted} lanes of {s.source.dtype}; got {s.lanes}",
    )
    _place(checker, s.target, s.at, s.lanes)
    _place(checker, s.source, s.index, s.lanes)
    if s.valid is not None:
        checker.scalar_of(s.valid, _BOOL, "whether a copy is valid")


def _pending(checker: Checker, s: ir.WaitCopies | ir.WaitProducts) -> None:
    checker.require(s.pending >= 0, f"a wait must leave 0 or more pending; got {s.pending}")


def _load(checker: Checker, s: ir.LoadMatrices) -> None:
    dtype, lanes = s.buffer.dtype, s.target.type.lanes
    _units(checker, "loading matrices", ir.PLANE)
    _space(checker, s.buffer, "shared", "the memory of matrices")
    _input(checker, dtype, "matrices")
    checker.element(s.buffer, s.target.type, written=False)
    counts = [count * (32 // ir.BITS[dtype]) for count in (1, 2, 4)]
    checker.require(
        lanes in counts, f"1, 2 or 4 matrices of {dtype} give {counts} lanes; got {lanes}"
    )
    checker.require(
        not s.transposed or ir.BITS[dtype] == 16,
        f"only matrices of 16-bit elements are transposed; got {dtype}",
    )
    _place(checker, s.buffer, s.index, matrix.width(dtype))
    checker.define(s.target)


def _multiply(checker: Checker, s: ir.MultiplyMatrices) -> None:
    _units(checker, "multiplying matrices", ir.PLANE)
    dtype = s.left.type.dtype
    _input(checker, dtype, "the left operand")
    lanes = matrix.ROWS * matrix.depth(dtype) // ir.PLANE
    checker.scalar_of(s.left, Type(dtype, lanes), "the left operand")
    checker.scalar_of(s.right, Type(dtype, lanes // 2), "the right operand")
    checker.scalar_of(s.sum, Type("f32", 4), "the sum")
    wanted, got = Type("f32", 4), s.target.type
    checker.require(got == wanted, f"a product of matrices is {wanted}; got {got}")
    checker.define(s.target)


def _panel(checker: Checker, panel: Panel, what: str) -> None:
    buffer = panel.buffer
    _space(checker, buffer, "shared", what)
    _input(checker, buffer.dtype, what)
    _place(checker, buffer, panel.index, matrix.width(buffer.dtype))
    checker.require(
        panel.deep or ir.BITS[buffer.dtype] == 16,
        f"{what} of {buffer.dtype} must lie along the depth",
    )
    block = matrix.LINES * matrix.span(buffer.dtype)
    checker.require(
        panel.deep or (panel.apart > 0 and panel.apart % block == 0),
        f"the blocks of {what} must be a multiple of {block} elements apart; got {panel.apart}",
    )


def _multiply_panels(checker: Checker, s: ir.MultiplyPanels) -> None:
    units = math.prod(checker.kernel.cube_dim)
    rule = f"multiplying panels takes a group of {ir.GROUP} units; the cube has {units}"
    checker.require(units >= ir.GROUP, rule)
    _panel(checker, s.right, "the right panel")
    if isinstance(s.left, Panel):
        _panel(checker, s.left, "the left panel")
        pair = s.left.buffer.dtype, s.right.buffer.dtype
    else:
        _left_line(checker, s.left, s.steps)
        pair = s.left.type.dtype, s.right.buffer.dtype
    checker.require(pair[0] == pair[1], f"panels must have one dtype; got {pair[0]} and {pair[1]}")
    type = checker.variable(s.sums)
    checker.require(
        type.dtype == "f32" and type.lanes % 4 == 0 and type.lanes <= 128,
        f"the sums of n columns, a multiple of 8 up to 256, are f32 of n / 2 lanes; got {type}",
    )
    deep = any(isinstance(panel, Panel) and panel.deep for panel in (s.left, s.right))
    most = matrix.span(pair[0]) // matrix.depth(pair[0]) if deep else matrix.STEPS
    checker.require(1 <= s.steps <= most, f"a panel has 1 to {most} steps; got {s.steps}")
    checker.scalar_of(s.fresh, _BOOL, "whether sums are fresh")


def _left_line(checker: Checker, left: ir.Name, steps: int) -> None:
    """A left operand that the units hold."""
    got, lanes = left.type, steps * matrix.depth(left.type.dtype) // 2
    checker.scalar_of(left, got, "the left operand")
    checker.require(
        ir.BITS[got.dtype] == 16 and got.lanes == lanes,
        f"a left operand that units hold is 16-bit floats of {lanes} lanes for {steps} steps; "
        f"got {got}",
    )


def _wait_products(checker: Checker, s: ir.WaitProducts) -> None:
    _pending(checker, s)
    for name in s.sums:
        checker.variable(name)


# boxes and barriers -------------------------------------------------------------------------------


def check_map(checker: Checker, number: int, map: TileMap) -> None:
    """A way to read a global buffer by boxes."""
    checker.require(map.number == number, f"map {number} must have its number; got {map.number}")
    known = map.buffer in checker.kernel.buffers
    checker.require(known, f"a map must be of a parameter; got {map.buffer}")
    rank, dtype = len(map.box), map.buffer.dtype
    _input(checker, dtype, "the buffer of a map")
    checker.require(
        2 <= rank <= RANK and len(map.sizes) == rank and len(map.strides) == rank - 1,
        f"a map must have 2 to {RANK} sizes, one stride fewer, and a box of as many; got "
        f"{len(map.sizes)}, {len(map.strides)} and {rank}",
    )
    line = matrix.span(dtype)
    checker.require(
        map.box[0] == line and all(1 <= size <= BOX for size in map.box),
        f"a box of {dtype} must be {line} elements wide and at most {BOX} in the other dimensions; "
        f"got {map.box}",
    )
    for name in (*map.sizes, *map.strides):
        known = name in checker.kernel.scalars and name.type == _INDEX
        checker.require(known, "sizes and strides of a map must be scalars of dtype index")


def _barrier(checker: Checker, s: ir.CopyTile | ir.SetBarrier | ir.Arrive | ir.Await) -> None:
    _space(checker, s.barriers, "shared", "a barrier")
    got = s.barriers.dtype
    checker.require(got == "u64", f"barriers must be elements of dtype u64; got {got}")
    _place(checker, s.barriers, s.barrier, 1)


def _copy_tile(checker: Checker, s: ir.CopyTile) -> None:
    _barrier(checker, s)
    _space(checker, s.target, "shared", "the target of a box")
    checker.element(s.target, Type(s.map.buffer.dtype))
    _place(checker, s.target, s.at, 1)
    checker.require(s.map in checker.kernel.maps, "a box must be of a map of the kernel")
    rank = len(s.map.box)
    checker.require(
        len(s.place) == rank, f"the place of a box must have {rank} indices; got {len(s.place)}"
    )
    for atom in s.place:
        checker.scalar_of(atom, _INDEX, "the place of a box")


def _set_barrier(checker: Checker, s: ir.SetBarrier) -> None:
    _barrier(checker, s)
    checker.require(s.arrivals >= 1, f"a barrier must take 1 arrival or more; got {s.arrivals}")


def _await(checker: Checker, s: ir.Await) -> None:
    _barrier(checker, s)
    checker.scalar_of(s.parity, _INDEX, "a parity")


def _set_registers(checker: Checker, s: ir.SetRegisters) -> None:
    _units(checker, "setting registers", ir.GROUP)
    holds = 24 <= s.count <= 256 and s.count % 8 == 0
    checker.require(holds, f"registers must be a multiple of 8 in 24..256; got {s.count}")


CHECKS: dict[type, Callable[[Any, Any], None]] = {
    ir.CopyAsync: _copy,
    ir.CommitCopies: lambda checker, s: None,
    ir.WaitCopies: _pending,
    ir.LoadMatrices: _load,
    ir.MultiplyMatrices: _multiply,
    ir.MultiplyPanels: _multiply_panels,
    ir.WaitProducts: _wait_products,
    ir.CopyTile: _copy_tile,
    ir.SetBarrier: _set_barrier,
    ir.Arrive: _barrier,
    ir.Await: _await,
    ir.SyncPlane: lambda checker, s: _units(checker, "a meeting of planes", ir.PLANE),
    ir.SetRegisters: _set_registers,
}
