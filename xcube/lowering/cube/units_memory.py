"""Loads, stores and atomic updates of a group of units: neighbours as lines, others as gathers and
scatters, indivisible updates one unit after the other.

An array of each unit becomes one of the group, in which equal elements of its units are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.build import Value
from xcube.lowering.cube.ir import Atom, Buffer, Type
from xcube.lowering.cube.units_lines import Even, Held, Lines, Spread

if TYPE_CHECKING:
    from xcube.lowering.cube.units_run import Group

_FOLDED = {"add": "add", "sub": "add", **{op: op for op in ("min", "max", "and", "or", "xor")}}


# places -------------------------------------------------------------------------------------------


def _memory(group: Group, buffer: Buffer) -> Buffer:
    if buffer.space == "local":
        return group.memories[buffer.number][0]
    return group.cube.memories[buffer.space, buffer.number]


def _places(group: Group, buffer: Buffer, index: Atom, lanes: int) -> list[Held]:
    """The index of each lane of an access, as it is in the group's memory."""
    held = group.held(index)
    if index.type.lanes == 1:
        steps = [group.algebra.whole(lane) for lane in range(lanes)]
        places = [_sum(group, held, step) for step in steps]
    else:
        parts = group.algebra.parts(held, lanes)
        places = [_place(group, part) for part in parts]
    return [_own(group, buffer, place) for place in places] if buffer.space == "local" else places


def _place(group: Group, part: Value) -> Held:
    return Even(part) if part.lanes < group.width else Lines((part,))


def _own(group: Group, buffer: Buffer, place: Held) -> Held:
    """The place of an element of each unit's own array."""
    start = group.memories[buffer.number][1]
    found = _sum(group, _times(group, place, group.width), group.algebra.each())
    return found if start is None else _sum(group, found, Even(start))


_X, _Y = (ir.Name(number, Type("index")) for number in (-1, -2))
_ADD, _MULTIPLY = (ir.Let(ir.Name(-3, Type("index")), op, (_X, _Y)) for op in ("add", "mul"))


def _sum(group: Group, x: Held, y: Held) -> Held:
    return group.algebra.operate(_ADD, [x, y], None)


def _times(group: Group, x: Held, factor: int) -> Held:
    return group.algebra.operate(_MULTIPLY, [x, group.algebra.whole(factor)], None)


def _masks(group: Group, mask: Atom | None, lanes: int) -> list[Value | None]:
    """Which units do each lane of an access; None is all of them."""
    if mask is None:
        return [group.mask] * lanes
    return [group.masked(line) for line in group.lines(mask)]


def _row(place: Held, lanes: int) -> Value | None:
    """Where the accesses of units to `lanes` neighbours each follow one another, else None."""
    if not isinstance(place, Spread):
        return None
    first = place.offsets[0]
    if place.offsets != tuple(range(first, first + lanes * len(place.offsets), lanes)):
        return None
    return place.base + first if first else place.base


def _each_lane(group: Group, mask: Value | None, lanes: int) -> Value | None:
    """A mask of units as one of their lanes, one unit's behind the other's."""
    if mask is None or lanes == 1:
        return mask
    return group.build.shuffle(mask, [k // lanes for k in range(lanes * group.width)])


# loads and stores ---------------------------------------------------------------------------------


def load(group: Group, s: ir.Load) -> None:
    """A load of every unit."""
    group.values[s.target.number] = _loaded(group, s)


def _loaded(group: Group, s: ir.Load) -> Held:
    build, buffer, lanes = group.build, s.buffer, s.target.type.lanes
    index, mask = group.held(s.index), None if s.mask is None else group.held(s.mask)
    memory = _memory(group, buffer)
    if buffer.space != "local" and isinstance(index, Even) and not isinstance(mask, Lines):
        where = None if mask is None else mask.value  # type: ignore[union-attr]
        return Even(build.load(memory, index.value, lanes, where))
    if lanes > 1 and s.mask is None and (start := _block(group, s, lanes)) is not None:
        where = _each_lane(group, group.mask, lanes)
        whole = build.load(memory, start, lanes * group.width, where)
        steps = [range(lane, lanes * group.width, lanes) for lane in range(lanes)]
        return Lines(tuple([build.shuffle(whole, step) for step in steps]))
    places, masks = _places(group, buffer, s.index, lanes), _masks(group, s.mask, lanes)
    return Lines(tuple([_part(group, memory, p, m) for p, m in zip(places, masks, strict=True)]))


def _block(group: Group, s: ir.Load | ir.Store, lanes: int) -> Value | None:
    """Where the units' lines begin that lie one behind the other in memory."""
    if s.buffer.space == "local" or s.index.type.lanes > 1:
        return None
    return _row(group.held(s.index), lanes)


def _part(group: Group, memory: Buffer, place: Held, mask: Value | None) -> Value:
    if (start := _row(place, 1)) is not None:
        return group.build.load(memory, start, group.width, mask)
    return group.build.load(memory, group.algebra.line(place), 1, mask)


def store(group: Group, s: ir.Store) -> None:
    """A store of every unit; of units that write one element, one wins."""
    build, buffer, lanes = group.build, s.buffer, s.value.type.lanes
    index, value, memory = group.held(s.index), group.held(s.value), _memory(group, buffer)
    if buffer.space != "local" and isinstance(index, Even) and isinstance(value, Even):
        mask = None if s.mask is None else group.held(s.mask)
        if not isinstance(mask, Lines):
            where = None if mask is None else mask.value  # type: ignore[union-attr]
            build.store(memory, index.value, value.value, where)
            return
    parts = group.lines(s.value)
    if lanes > 1 and s.mask is None and (start := _block(group, s, lanes)) is not None:
        order = [k % lanes * group.width + k // lanes for k in range(lanes * group.width)]
        whole = build.shuffle(build.join(parts), order)
        build.store(memory, start, whole, _each_lane(group, group.mask, lanes))
        return
    places, masks = _places(group, buffer, s.index, lanes), _masks(group, s.mask, lanes)
    for place, part, mask in zip(places, parts, masks, strict=True):
        start = _row(place, 1)
        build.store(memory, group.algebra.line(place) if start is None else start, part, mask)


def allocate(group: Group, s: ir.Allocate) -> None:
    """An array of each unit; one that outlives the run is there already."""
    buffer = s.buffer
    if buffer.number not in group.memories:
        array = group.build.local(buffer.dtype, buffer.size * group.width)
        group.memories[buffer.number] = array, None


def copy(group: Group, s: ir.CopyAsync) -> None:
    """A copy that is done at once."""
    name = ir.Name(-4, Type(s.source.dtype, s.lanes))
    valid = s.valid
    if valid is not None:
        held, wide = group.held(valid), ir.Name(-5, Type("bool", s.lanes))
        group.values[wide.number] = (
            Even(group.build.splat(held.value, s.lanes))
            if isinstance(held, Even)
            else Lines(tuple(group.lines(valid) * s.lanes))
        )
        valid = wide
    load(group, ir.Load(name, s.source, s.index, valid))
    store(group, ir.Store(s.target, s.at, name))


# atomic updates -----------------------------------------------------------------------------------


def atomic(group: Group, s: ir.Atomic) -> None:
    """An update by every unit."""
    if _folds(group, s):
        _update_once(group, s)
        return
    lanes, memory = s.value.type.lanes, _memory(group, s.buffer)
    places = [group.algebra.line(p) for p in _places(group, s.buffer, s.index, lanes)]
    rows = zip(places, group.lines(s.value), strict=True)

    def update(place: Value, value: Value) -> Value:
        return group.build.atomic(s.op, memory, place, value)

    parts = [in_turn(group, row, s.value.type.dtype, update) for row in rows]
    group.values[s.target.number] = Lines(tuple(parts))


def _folds(group: Group, s: ir.Atomic) -> bool:
    """Whether what the units bring can be combined first."""
    if s.op not in _FOLDED or s.value.type.lanes > 1 or s.target.number in group.cube.used:
        return False
    power = group.width & (group.width - 1) == 0
    return power and s.buffer.space != "local" and isinstance(group.held(s.index), Even)


def _update_once(group: Group, s: ir.Atomic) -> None:
    build, op, dtype = group.build, _FOLDED[s.op], s.value.type.dtype
    line = group.lines(s.value)[0]
    if group.mask is not None:
        line = build.select(group.mask, line, planes.identity(op, dtype))
    place = group.held(s.index)
    assert isinstance(place, Even), "one place for all units"
    build.atomic(s.op, _memory(group, s.buffer), place.value, build.reduce(op, line))


def compare_exchange(group: Group, s: ir.CompareExchange) -> None:
    """A comparison and exchange by every unit."""
    memory = _memory(group, s.buffer)
    (place,) = _places(group, s.buffer, s.index, 1)
    row = [group.algebra.line(place), *group.lines(s.expected), *group.lines(s.value)]

    def update(place: Value, expected: Value, value: Value) -> Value:
        return group.build.compare_exchange(memory, place, expected, value)

    found = in_turn(group, row, s.value.type.dtype, update)
    group.values[s.target.number] = Lines((found,))


def in_turn(group: Group, row: Sequence[Value], dtype: str, update: Callable[..., Value]) -> Value:
    """What units that are there get when each does something with its lanes of a row of lines, one
    after the other."""
    build, width = group.build, group.width
    arrays = [group.cube.scratch(number, line.dtype) for number, line in enumerate(row)]
    for array, line in zip(arrays, row, strict=True):
        build.store(array, 0, line)
    found = group.cube.scratch(len(row), dtype)
    here = None if group.mask is None else group.cube.scratch(len(row) + 1, "bool")
    if here is not None and group.mask is not None:
        build.store(here, 0, group.mask)
    for unit in build.range(0, width):
        present = build.constant(True, "bool") if here is None else build.load(here, unit)
        with build.when(present):
            given = [build.load(array, unit) for array in arrays]
            build.store(found, unit, update(*given))
    return build.load(found, 0, width)


STATEMENTS: dict[type, Callable[[Any, Any], None]] = {
    ir.Load: load,
    ir.Store: store,
    ir.Allocate: allocate,
    ir.Atomic: atomic,
    ir.CompareExchange: compare_exchange,
    ir.CopyAsync: copy,
    ir.CommitCopies: lambda group, s: None,
    ir.WaitCopies: lambda group, s: None,
}
