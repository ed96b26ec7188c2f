"""How the units of a cube are arranged for a map or rows program: a choice by sizes and facts."""

from __future__ import annotations

from dataclasses import dataclass

from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.lanes import is_flat, narrowest, score, size_of
from xcube.lowering.kernels.space import Axis, Space

LIKED = 16  # elements of a row that a unit likes to have
HELD = 32  # elements of a row that a unit keeps in registers at most
BROAD = 32  # units along the lanes where units share columns, at most


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The comptime choices: lines of `lanes` elements along the axis `lane`; `flat`, whether a cube
    is one unit and one line; units `across` and `down` of a cube; how many lines of a unit straight
    code walks (`held`), 0 where a loop does; whether each unit has all of these (`exact`), and
    whether each has a row, or line, to begin with (`whole`)."""

    lane: Axis | None = None
    lanes: int = 1
    flat: bool = False
    across: int = 1
    down: int = 1
    held: int = 1
    exact: bool = True
    whole: bool = True


def select(space: Space, facts: Facts) -> Blueprint:
    """The blueprint that a heuristic picks."""
    candidates = [*space.columns[-1:], *reversed(space.rows)]
    if not candidates:
        return Blueprint()
    lane = max(candidates, key=lambda axis: score(space, axis))
    lanes = max(1, facts.vector_bytes // narrowest(space))
    if is_flat(space, lane):
        return Blueprint(lane, lanes, flat=True)
    while lanes > 1 and lane.extent % lanes:
        lanes //= 2
    if not space.columns:
        return _select_map(space, lane, lanes, facts)
    if lane.kind == "column":
        return _select_along(space, lane, lanes, facts)
    return _select_across(space, lane, lanes, facts)


def _select_map(space: Space, lane: Axis, lanes: int, facts: Facts) -> Blueprint:
    """Several lines a unit where that leaves enough cubes and no unit without a line."""
    lines, rows = lane.extent // lanes, size_of(space.rows) // lane.extent
    across = min(facts.units, _power_from(lines))
    down = min(facts.units // across, _power_from(rows))
    held = max(1, LIKED // lanes)
    enough = 2 * facts.cores * facts.units
    while held > 1 and (lines % (across * held) or lines * rows // held < enough):
        held //= 2
    exact, whole = lines % (across * held) == 0, rows % down == 0
    return Blueprint(lane, lanes, False, across, down, held, exact, whole)


def _select_along(space: Space, lane: Axis, lanes: int, facts: Facts) -> Blueprint:
    """The lanes lie along the columns, whose lines the units across share."""
    lines, rows = lane.extent // lanes, size_of(space.rows)
    liked, across = max(1, LIKED // lanes), 1
    enough = facts.cores * facts.units
    while across < min(lines, facts.units) and (lines > across * liked or rows * across < enough):
        across *= 2
    down = min(facts.units // across, _power_from(rows))
    held = _held(space, -(-lines // across), lanes)
    exact, whole = held == 0 or lines == held * across, rows % down == 0
    return Blueprint(lane, lanes, False, across, down, held, exact, whole)


def _select_across(space: Space, lane: Axis, lanes: int, facts: Facts) -> Blueprint:
    """The lanes lie along rows: units across have rows of their own, units down share columns. The
    fewer across, the more cubes there are."""
    lines, outer = lane.extent // lanes, size_of(space.rows) // lane.extent
    columns = walked(space, lane).extent
    most = min(facts.units, _power_from(-(-columns // 2)))  # units that have columns to walk
    across = min(BROAD, _power_from(lines), facts.units)
    while across > 1 and outer * -(-lines // across) < facts.cores:
        across //= 2
    down = min(facts.units // across, most)
    while (
        across * down < facts.units and across < lines and outer * -(-lines // across) > facts.cores
    ):
        across *= 2
    held = _held(space, -(-columns // down), lanes)
    exact, whole = held == 0 or columns == held * down, lines % across == 0
    return Blueprint(lane, lanes, False, across, down, held, exact, whole)


def _held(space: Space, lines: int, lanes: int) -> int:
    """How many lines straight code walks; 0 where they are too many, or no single loop's."""
    return lines if lines * lanes <= HELD and len(space.columns) == 1 else 0


def walked(space: Space, lane: Axis) -> Axis:
    """The loop over columns that a group of units shares."""
    return lane if lane.kind == "column" else max(space.columns, key=lambda axis: axis.extent)


def _power_from(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()
