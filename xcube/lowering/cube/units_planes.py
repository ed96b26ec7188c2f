"""Operations of planes where a group of units is a plane: its values are the lanes of a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.build import Value
from xcube.lowering.cube.units_lines import Even, Held, Lines

if TYPE_CHECKING:
    from xcube.lowering.cube.units_run import Group


def plane(group: Group, s: ir.Plane) -> None:
    """What the units of a plane do together; units that are not there are left out."""
    lanes = group.lines(s.value)
    if s.op in planes.SHUFFLES:
        assert s.argument is not None, "the check asks for the number of a unit"
        found = [_shuffled(group, s.op, line, group.held(s.argument)) for line in lanes]
    elif s.op in planes.SCANS:
        found = [_scanned(group, s.op, line) for line in lanes]
    elif s.op in ("ballot", "elect"):
        found = [_VOTES[s.op](group, group.masked(line)) for line in lanes]
    else:
        found = [_reduced(group, planes.REDUCTIONS[s.op], line) for line in lanes]
    group.values[s.target.number] = _held(group, found)


def _held(group: Group, found: list[Value]) -> Held:
    if len(found) == 1 and found[0].lanes == 1:
        return Even(found[0])
    return Lines(tuple([group.build.splat(value, group.width) for value in found]))


def _reduced(group: Group, op: str, line: Value) -> Value:
    if group.mask is not None:
        line = group.build.select(group.mask, line, planes.identity(op, line.dtype))
    return group.build.reduce(op, line)


def _ballot(group: Group, line: Value) -> Value:
    build = group.build
    bits = build.constant(1, "u32", group.width) << build.lane(group.width, "u32")
    return build.reduce("or", build.select(line, bits, 0))


def _elected(group: Group, line: Value) -> Value:
    build, units = group.build, group.build.lane(group.width, "i32")
    return units.eq(build.reduce("min", build.select(line, units, group.width)))


_VOTES: dict[str, Callable[[Group, Value], Value]] = {"ballot": _ballot, "elect": _elected}


def _scanned(group: Group, op: str, line: Value) -> Value:
    build, combine, distance = group.build, planes.SCANS[op], 1
    units = build.lane(group.width, "i32")
    while distance < group.width:
        sums = build.op(combine, _before(group, line, distance), line)
        line, distance = build.select(units >= distance, sums, line), distance * 2
    if op.startswith("inclusive"):
        return line
    return build.select(units >= 1, _before(group, line, 1), int(combine == "mul"))


def _before(group: Group, line: Value, distance: int) -> Value:
    return group.build.shuffle(line, [max(k - distance, 0) for k in range(group.width)])


# shuffles -----------------------------------------------------------------------------------------


def _shuffled(group: Group, op: str, line: Value, argument: Held) -> Value:
    number = argument.value.constant if isinstance(argument, Even) else None
    origins = _ORIGINS[op]
    if number is not None and op not in ("broadcast", "shuffle"):
        return _moved(group, line, [origins(unit, int(number)) for unit in range(group.width)])
    return _looked_up(group, op, line, argument)


_ORIGINS: dict[str, Callable[[int, int], int]] = {
    "broadcast": lambda unit, other: other,
    "shuffle": lambda unit, other: other,
    "shuffle_xor": lambda unit, other: unit ^ other,
    "shuffle_up": lambda unit, other: unit - other,
    "shuffle_down": lambda unit, other: unit + other,
}


def _moved(group: Group, line: Value, origins: list[int]) -> Value:
    """Values of units whose numbers are known."""
    build = group.build
    inside = [k if 0 <= k < group.width else unit for unit, k in enumerate(origins)]
    found = build.shuffle(line, inside)
    if group.mask is None:
        return found
    return build.select(build.shuffle(group.mask, inside), found, line)


def _looked_up(group: Group, op: str, line: Value, argument: Held) -> Value:
    """Values of units whose numbers only the run knows, by way of memory."""
    build, width = group.build, group.width
    other, unit = group.algebra.line(argument), build.lane(width)
    combined = {"shuffle_xor": unit ^ other, "shuffle_up": unit - other}
    origin = {**combined, "shuffle_down": unit + other}.get(op, other)
    inside = (origin >= 0) & (origin < width)
    near = build.select(inside, origin, unit)
    values = group.cube.scratch(0, line.dtype)
    build.store(values, 0, line)
    found = build.load(values, near)
    if group.mask is None:
        return found
    flags = group.cube.scratch(1, "bool")
    build.store(flags, 0, group.mask)
    return build.select(build.load(flags, near), found, line)
