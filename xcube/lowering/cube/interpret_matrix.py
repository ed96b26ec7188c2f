"""What the interpreter does at statements that copy asynchronously and use matrix units. A copy
holds its target from its beginning to its wait: nobody finds a written element there before, and
both ends count as writes, so that a reader on either side of a barrier too few is found.
Products likewise read their panels twice. What a plane or a group does together runs once all of
its units stop there. Boxes land when the phase of their barrier ends, and must not be asked for
over a panel that is still read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.ir import Panel
from xcube.lowering.cube.memory import Memory

if TYPE_CHECKING:
    from xcube.lowering.cube.interpreter import Unit

Line = np.ndarray[Any, Any]
Copy = tuple[ir.CopyAsync, Memory, Line, Line]  # what began, where its elements go, and they
Product = tuple[ir.MultiplyPanels, list[tuple[Memory, Line]]]  # what began, and what it reads


@dataclass(slots=True)
class Flight:
    """What a unit has begun: copies of the open batch, batches on their way, products that go on,
    and the variables that nobody may touch until a wait names them."""

    copies: list[Copy] = field(default_factory=list)
    batches: list[list[Copy]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Barrier:
    """A barrier in memory: arrivals of a phase, those and the bytes that are still to come, the
    number of phases that have ended, and boxes that land when this one does."""

    arrivals: int
    left: int
    nbytes: int = 0
    phase: int = 0
    boxes: list[tuple[Memory, Line, Line]] = field(default_factory=list)

    def settle(self) -> None:
        """End the phase if all is there."""
        if self.left or self.nbytes:
            return
        for memory, places, values in self.boxes:
            memory.write(places, values)
        self.boxes.clear()
        self.phase, self.left = self.phase + 1, self.arrivals


Barriers = dict[tuple[int, int], Barrier]


# copies -----------------------------------------------------------------------------------------


def _begin_copy(unit: Unit, s: ir.CopyAsync) -> None:
    target = unit.memory(s.target)
    places = _chunk(unit, s, target, unit.whole(s.at), s.lanes)
    values = np.zeros(s.lanes, target.values.dtype)
    if s.valid is None or unit.value(s.valid)[0]:
        source = unit.memory(s.source)
        found = _chunk(unit, s, source, unit.whole(s.index), s.lanes)
        values = _read(unit, s, source, found)
    unit.touch(s, target, "write", places)
    assert target.written is not None
    target.written[places] = False
    unit.flight.copies.append((s, target, places, values))


def _commit_copies(unit: Unit, s: ir.CommitCopies) -> None:
    unit.flight.batches.append(unit.flight.copies)
    unit.flight.copies = []


def _wait_copies(unit: Unit, s: ir.WaitCopies) -> None:
    batches = unit.flight.batches
    while len(batches) > s.pending:
        for statement, memory, places, values in batches.pop(0):
            unit.touch(statement, memory, "write", places)
            memory.write(places, values)


def _chunk(unit: Unit, s: ir.Stmt, memory: Memory, start: int, lanes: int) -> Line:
    """Places of 16 bytes, which must be aligned."""
    if start % lanes:
        raise unit.fault(
            s, f"a copy or row of 16 bytes must begin at a multiple of {lanes}; got index {start}"
        )
    return unit.inside(s, memory, start + np.arange(lanes))


def _read(unit: Unit, s: ir.Stmt, memory: Memory, places: Line) -> Line:
    active = np.ones(len(places), np.bool_)
    if len(unread := places[~memory.is_written(places, active)]):
        raise unit.fault(
            s,
            f"an element must be written before it is read; element {unread[0]} is not, or a copy "
            "to it is on its way",
        )
    unit.touch(s, memory, "read", places)
    return memory.values[places]


# planes -----------------------------------------------------------------------------------------


@functools.cache
def _coordinates(which: str, dtype: str, lanes: int, transposed: bool = False) -> tuple[Line, ...]:
    """Coordinates of every lane of every unit of a plane."""
    if which == "loaded":
        rows = [
            [matrix.loaded(unit, lane, dtype, transposed) for lane in range(lanes)]
            for unit in range(ir.PLANE)
        ]
    elif which == "sum":
        rows = [[matrix.sum_of(unit, lane) for lane in range(lanes)] for unit in range(ir.PLANE)]
    else:
        place = matrix.left if which == "left" else matrix.right
        rows = [[place(unit, lane, dtype) for lane in range(lanes)] for unit in range(ir.PLANE)]
    found = np.array(rows)
    return tuple(found[..., axis] for axis in range(found.shape[-1]))


def _load_matrices(units: Sequence[Unit], s: ir.LoadMatrices) -> bool:
    dtype, lanes = s.buffer.dtype, s.target.type.lanes
    size = matrix.width(dtype)
    memory = units[0].memory(s.buffer)
    rows = []
    for unit in units[: matrix.LINES * lanes * ir.BITS[dtype] // 32]:
        places = _chunk(unit, s, memory, unit.whole(s.index), size)
        rows.append(_read(unit, s, memory, places))
    blocks = np.stack(rows).reshape(-1, matrix.LINES, size)
    values = blocks[_coordinates("loaded", dtype, lanes, s.transposed)]
    for unit, line in zip(units, values, strict=True):
        unit.values[s.target.number] = line
    return True


def _multiply_matrices(units: Sequence[Unit], s: ir.MultiplyMatrices) -> bool:
    dtype = s.left.type.dtype
    deep = matrix.depth(dtype)
    shapes = {"left": (matrix.ROWS, deep), "right": (deep, matrix.COLUMNS)}
    left, right = (
        _gathered(units, atom, which, dtype, shapes[which])
        for atom, which in ((s.left, "left"), (s.right, "right"))
    )
    sums = _gathered(units, s.sum, "sum", "f32", (matrix.ROWS, matrix.COLUMNS))
    result = (sums + left @ right).astype(np.float32)
    for unit, line in zip(units, result[_coordinates("sum", "f32", 4)], strict=True):
        unit.values[s.target.number] = line
    return True


def _sync_plane(units: Sequence[Unit], s: ir.SyncPlane) -> bool:
    for memory in units[0].cube.shared.values():
        memory.forget(units[0].number, len(units))
    return True


def _gathered(
    units: Sequence[Unit], atom: ir.Atom, which: str, dtype: str, shape: tuple[int, int]
) -> Line:
    """The matrix whose elements the units of a plane hold."""
    lines = np.stack([unit.value(atom) for unit in units])
    found = np.zeros(shape, np.float64)
    found[_coordinates(which, dtype, atom.type.lanes)] = lines if which == "sum" else _exact(lines)
    return found


def _exact(values: Line) -> Line:
    """Operands as matrix units take them: f32 is rounded to tf32."""
    if values.dtype == np.float32:
        bits = values.view(np.uint32)
        finite = (bits & 0x7F800000) != 0x7F800000
        values = np.where(finite, (bits + 0x1000) & 0xFFFFE000, bits).view(np.float32)
    return values.astype(np.float64)


# groups -----------------------------------------------------------------------------------------


def _multiply_panels(units: Sequence[Unit], s: ir.MultiplyPanels) -> bool:
    columns, lead = s.sums.type.lanes * 2, units[0]
    right, *reads = _panel(units, s, s.right, columns)
    if isinstance(s.left, Panel):
        left, read = _panel(units, s, s.left, matrix.GROUP_ROWS)
        reads.append(read)
    else:
        left = _held(units, s.left)
    product = left @ right.T
    lanes = range(s.sums.type.lanes)
    for number, unit in enumerate(units):
        rows, places = np.array([matrix.group_sum_of(number, lane) for lane in lanes]).T
        before = 0.0 if unit.value(s.fresh)[0] else unit.values[s.sums.number].astype(np.float64)
        unit.values[s.sums.number] = (before + product[rows, places]).astype(np.float32)
        unit.flight.products.append((s, reads if unit is lead else []))
        unit.flight.busy.add(s.sums.number)
    lead.cube.reading[lead.number] = lead.flight.products
    return True


def _held(units: Sequence[Unit], atom: ir.Name) -> Line:
    """A left operand that units hold like sums."""
    lanes = atom.type.lanes
    found = np.zeros((matrix.GROUP_ROWS, 2 * lanes))
    for number, unit in enumerate(units):
        rows, places = np.array([matrix.group_sum_of(number, lane) for lane in range(lanes)]).T
        found[rows, places] = unit.value(atom)
    return found


def _panel(
    units: Sequence[Unit], s: ir.MultiplyPanels, panel: Panel, rows: int
) -> tuple[Line, tuple[Memory, Line]]:
    """An operand [rows, depth], and which elements it is."""
    lead, dtype = units[0], panel.buffer.dtype
    start, line = lead.whole(panel.index), matrix.span(dtype)
    deep = s.steps * matrix.depth(dtype)
    if any(unit.whole(panel.index) != start for unit in units):
        raise lead.fault(s, "all units of a group must name the same panel")
    within = start % (matrix.LINES * line)
    if within % matrix.depth(dtype) or within + (deep if panel.deep else 1) > line:
        raise lead.fault(
            s, f"a panel must begin in a line whose number is a multiple of 8; got index {start}"
        )
    row, k = np.arange(rows)[:, None], np.arange(deep)[None, :]
    if panel.deep:
        flat = start + row * line + k
    else:
        flat = start + row // line * panel.apart + k * line + row % line
    memory = lead.memory(panel.buffer)
    places = lead.inside(s, memory, matrix.exchanged(flat, dtype).ravel())
    values = _exact(_read(lead, s, memory, places)).reshape(rows, deep)
    return values, (memory, places)


def _wait_products(unit: Unit, s: ir.WaitProducts) -> None:
    flight = unit.flight
    while len(flight.products) > s.pending:
        statement, reads = flight.products.pop(0)
        for memory, places in reads:
            unit.touch(statement, memory, "read", places)
    going_on = {statement.sums.number for statement, _ in flight.products}
    flight.busy -= {name.number for name in s.sums} - going_on


# boxes and barriers -----------------------------------------------------------------------------


def _copy_tile(unit: Unit, s: ir.CopyTile) -> None:
    memory, source = unit.memory(s.target), unit.memory(s.map.buffer)
    start, dtype = unit.whole(s.at), s.target.dtype
    if start % (matrix.LINES * matrix.span(dtype)):
        raise unit.fault(s, f"a box must go to a multiple of 1024 bytes; got element {start}")
    inside, places = _box(unit, s)
    values = np.zeros(inside.size, memory.values.dtype)
    values[inside] = _read(unit, s, source, unit.inside(s, source, places[inside]))
    target = matrix.exchanged(start + np.arange(inside.size), dtype)
    unit.inside(s, memory, target)
    _check_unread(unit, s, memory, target)
    memory.units = None  # barriers order what happens to it, in ways that a ledger does not see
    assert memory.written is not None
    memory.written[target] = False
    barrier = _barrier(unit, s)
    barrier.boxes.append((memory, target, values))
    barrier.nbytes -= values.nbytes
    barrier.settle()


def _box(unit: Unit, s: ir.CopyTile) -> tuple[Line, Line]:
    """Which elements of a box lie inside the buffer's sizes, and where they are."""
    sizes = [unit.whole(name) for name in s.map.sizes]
    strides = [1, *(unit.whole(name) for name in s.map.strides)]
    ranges = [unit.whole(at) + np.arange(n) for at, n in zip(s.place, s.map.box, strict=True)]
    grid = np.meshgrid(*reversed(ranges), indexing="ij")[::-1]
    inside = np.ones(grid[0].shape, np.bool_)
    places = np.zeros(grid[0].shape, np.int64)
    for index, size, stride in zip(grid, sizes, strides, strict=True):
        inside &= (index >= 0) & (index < size)
        places += index * stride
    return inside.ravel(), places.ravel()


def _check_unread(unit: Unit, s: ir.CopyTile, memory: Memory, target: Line) -> None:
    """Nobody may still read what a box overwrites."""
    for products in unit.cube.reading.values():
        for _, reads in products:
            for other, places in reads:
                if other is memory and np.isin(target, places).any():
                    raise unit.fault(s, "a box must not be copied over a panel that is still read")


def _barrier(unit: Unit, s: ir.CopyTile | ir.Arrive | ir.Await) -> Barrier:
    key = s.barriers.number, unit.whole(s.barrier)
    if (found := unit.cube.barriers.get(key)) is None:
        raise unit.fault(s, f"a barrier must be set before it is used; element {key[1]} is not")
    return found


def _set_barrier(unit: Unit, s: ir.SetBarrier) -> None:
    unit.inside(s, unit.memory(s.barriers), np.array([unit.whole(s.barrier)]))
    barrier = Barrier(s.arrivals, s.arrivals)
    unit.cube.barriers[s.barriers.number, unit.whole(s.barrier)] = barrier


def _arrive(unit: Unit, s: ir.Arrive) -> None:
    barrier = _barrier(unit, s)
    if not barrier.left:
        raise unit.fault(s, f"a phase takes {barrier.arrivals} arrivals; this is one more")
    barrier.left -= 1
    barrier.nbytes += s.nbytes
    barrier.settle()


def _await(units: Sequence[Unit], s: ir.Await) -> bool:
    (unit,) = units
    return _barrier(unit, s).phase % 2 != unit.whole(s.parity)


STEPS: dict[type, Callable[[Any, Any], None]] = {
    ir.CopyAsync: _begin_copy,
    ir.CommitCopies: _commit_copies,
    ir.WaitCopies: _wait_copies,
    ir.WaitProducts: _wait_products,
    ir.CopyTile: _copy_tile,
    ir.SetBarrier: _set_barrier,
    ir.Arrive: _arrive,
    ir.SetRegisters: lambda unit, s: None,
}

# What units do together: how many of them, and what; it says whether they go on.
TOGETHER: dict[type, tuple[int, Callable[[Any, Any], bool]]] = {
    ir.LoadMatrices: (ir.PLANE, _load_matrices),
    ir.MultiplyMatrices: (ir.PLANE, _multiply_matrices),
    ir.MultiplyPanels: (ir.GROUP, _multiply_panels),
    ir.SyncPlane: (ir.PLANE, _sync_plane),
    ir.Await: (1, _await),
}
