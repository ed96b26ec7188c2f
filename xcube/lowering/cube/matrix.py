"""Matrix units in the kernel language: which element each unit of a plane holds, where an operand's
elements lie in shared memory, and the builders of the statements that copy, load and multiply.

A multiplication of a plane takes 16 rows (left), 8 columns (right) and 32 bytes of depth: bf16 and
f16 with 16 elements, f32 with 8, which are rounded to tf32 (10 bits behind the point, halves away
from zero). Products are added in f32 in no stated order. Unit u of a plane, u / 4 = g, u % 4 = t,
holds pairs of 16-bit elements, or single ones of 32 bits; `left`, `right` and `sum_of` say which.

In shared memory an operand lies in lines of 128 bytes, whose chunks of 16 bytes are exchanged by
the line's number modulo 8: eight units that load one chunk of eight neighbouring lines meet eight
different groups of banks. A panel begins at a multiple of 1024 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Operand, Value, Variable
from xcube.lowering.cube.ir import Buffer, Panel, Type

CHUNK, LINE = 16, 128  # bytes that move at once, and of a line of a panel
LINES = 8  # after which the exchange of chunks repeats
ROWS, COLUMNS = 16, 8  # of one multiplication of a plane
GROUP_ROWS = 64  # of one multiplication of a group
INPUTS = ("bf16", "f16", "f32")
STEPS = 16  # of one multiplication of a group at most, along depth that lies along rows


def width(dtype: str) -> int:
    """Elements of a chunk."""
    return CHUNK * 8 // ir.BITS[dtype]


def span(dtype: str) -> int:
    """Elements of a line."""
    return LINE * 8 // ir.BITS[dtype]


def depth(dtype: str) -> int:
    """Elements along the depth of one multiplication."""
    return 2 * width(dtype)


def _pair(dtype: str) -> int:
    """Neighbouring elements that one 32-bit register of a unit holds."""
    return 32 // ir.BITS[dtype]


# which elements a unit holds ----------------------------------------------------------------------


def left(unit: Any, lane: int, dtype: str) -> tuple[Any, Any]:
    """(row, depth) of a lane of the left operand.

    >>> [left(5, lane, "bf16") for lane in range(3)]
    [(1, 2), (1, 3), (9, 2)]
    """
    pair = _pair(dtype)
    register, within = divmod(lane, pair)
    row = unit // 4 + register % 2 * 8
    return row, unit % 4 * pair + (within + register // 2 * 4 * pair)


def right(unit: Any, lane: int, dtype: str) -> tuple[Any, Any]:
    """(depth, column) of a lane of the right operand.

    >>> [right(5, lane, "f32") for lane in range(2)]
    [(1, 1), (5, 1)]
    """
    pair = _pair(dtype)
    register, within = divmod(lane, pair)
    return unit % 4 * pair + (within + register * 4 * pair), unit // 4


def sum_of(unit: Any, lane: int) -> tuple[Any, Any]:
    """(row, column) of a lane of the sum; lanes 2 k and 2 k + 1 are neighbours in a row.

    >>> [sum_of(5, lane) for lane in range(4)]
    [(1, 2), (1, 3), (9, 2), (9, 3)]
    """
    return unit // 4 + lane // 2 * 8, unit % 4 * 2 + lane % 2


def group_sum_of(unit: Any, lane: int) -> tuple[Any, Any]:
    """(row, column) of a lane of the sums of a group, by the unit's number in the group.

    >>> group_sum_of(37, 6)
    (25, 10)
    """
    row, column = sum_of(unit % ir.PLANE, lane % 4)
    return unit // ir.PLANE * ROWS + row, column + lane // 4 * COLUMNS


def loaded(unit: int, lane: int, dtype: str, transposed: bool) -> tuple[int, int, int]:
    """(matrix, row, element of the row) that LoadMatrices puts in a lane of a unit.

    >>> loaded(5, 3, "bf16", False), loaded(5, 3, "bf16", True)
    ((1, 1, 3), (1, 3, 1))
    """
    matrix, within = divmod(lane, _pair(dtype))
    across, along = unit // 4, unit % 4 * _pair(dtype) + within
    return (matrix, along, across) if transposed else (matrix, across, along)


def chunk_at(line: Any, chunk: Any, dtype: str) -> Any:
    """The element at which a chunk of a line begins, from the panel's first element on.

    >>> chunk_at(9, 2, "bf16")
    600
    """
    return line * span(dtype) + (chunk ^ (line % LINES)) * width(dtype)


def exchanged(element: Any, dtype: str) -> Any:
    """Where an element lies whose place would be `element` if no chunks were exchanged.

    >>> exchanged(9 * 64 + 17, "bf16")
    601
    """
    line, within = element // span(dtype), element % span(dtype)
    chunk, rest = within // width(dtype), within % width(dtype)
    return chunk_at(line, chunk, dtype) + rest


# statements ---------------------------------------------------------------------------------------


def copy_async(
    build: Builder,
    target: Buffer,
    at: Operand,
    source: Buffer,
    index: Operand,
    valid: Value | None = None,
) -> None:
    """Begin to copy 16 bytes from global to shared memory; zeros where `valid` does not hold."""
    where = None if valid is None else valid.atom
    places = [_index(build, place) for place in (at, index)]
    build.emit(ir.CopyAsync(target, places[0], source, places[1], width(source.dtype), where))


def commit_copies(build: Builder) -> None:
    """End a batch of copies."""
    build.emit(ir.CommitCopies())


def wait_copies(build: Builder, pending: int) -> None:
    """Wait until at most `pending` batches are on their way."""
    build.emit(ir.WaitCopies(pending))


def load_matrices(
    build: Builder, buffer: Buffer, index: Value, count: int, transposed: bool = False
) -> Value:
    """1, 2 or 4 matrices of 8 rows of 16 bytes; unit u says where row u % 8 of matrix u / 8 is."""
    target = build.named(Type(buffer.dtype, count * _pair(buffer.dtype)))
    build.emit(ir.LoadMatrices(target, buffer, index.atom, transposed))
    return Value(target, build)


def multiply(build: Builder, left: Value, right: Value, sum: Value) -> Value:
    """left @ right + sum of a plane."""
    target = build.named(sum.type)
    build.emit(ir.MultiplyMatrices(target, left.atom, right.atom, sum.atom))
    return Value(target, build)


def panel(build: Builder, buffer: Buffer, index: Operand, deep: bool, apart: int = 0) -> Panel:
    """An operand of `multiply_panels`."""
    return Panel(buffer, _index(build, index), deep, apart)


def multiply_panels(
    build: Builder, sums: Variable, left: Panel | Value, right: Panel, steps: int, fresh: Value
) -> None:
    """A group begins to add left @ right to its sums, or to replace them by it; the left operand
    may be a line that units hold as `group_sum_of` says."""
    held = left if isinstance(left, Panel) else left.atom
    build.emit(ir.MultiplyPanels(sums.name, held, right, steps, fresh.atom))  # type: ignore[arg-type]


def wait_products(build: Builder, pending: int, *sums: Variable) -> None:
    """Wait until at most `pending` multiplications of the group go on; `sums` are read next."""
    build.emit(ir.WaitProducts(pending, tuple([variable.name for variable in sums])))


# boxes and barriers -------------------------------------------------------------------------------


def copy_tile(
    build: Builder,
    target: Buffer,
    at: Value,
    map: ir.TileMap,
    place: Sequence[Value],
    barriers: Buffer,
    barrier: Value,
) -> None:
    """Ask for a box of a global buffer; its bytes count at a barrier."""
    atoms = tuple([value.atom for value in place])
    build.emit(ir.CopyTile(target, at.atom, map, atoms, barriers, barrier.atom))


def box_bytes(map: ir.TileMap) -> int:
    """Bytes of a box, those outside the buffer included."""
    return math.prod(map.box) * ir.BITS[map.buffer.dtype] // 8


def set_barrier(build: Builder, barriers: Buffer, barrier: Operand, arrivals: int) -> None:
    """Make an element a barrier of so many arrivals."""
    build.emit(ir.SetBarrier(barriers, _index(build, barrier), arrivals))


def arrive(build: Builder, barriers: Buffer, barrier: Operand, nbytes: int = 0) -> None:
    """Arrive at a barrier, which waits for so many bytes, too."""
    build.emit(ir.Arrive(barriers, _index(build, barrier), nbytes))


def wait_for(build: Builder, barriers: Buffer, barrier: Operand, parity: Value) -> None:
    """Wait until the phase of a parity has ended."""
    build.emit(ir.Await(barriers, _index(build, barrier), parity.atom))


def sync_plane(build: Builder) -> None:
    """All units of the plane meet here."""
    build.emit(ir.SyncPlane())


def set_registers(build: Builder, count: int, grows: bool) -> None:
    """So many registers for each unit of the group from here on."""
    build.emit(ir.SetRegisters(count, grows))


def _index(build: Builder, index: Operand) -> ir.Atom:
    return (index if isinstance(index, Value) else build.constant(index, "index")).atom
