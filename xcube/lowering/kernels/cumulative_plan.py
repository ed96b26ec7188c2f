"""How many units share a cumulative operation: what a unit takes, which units are a team, and where
rows are cut into chunks. cumulative_units.py says what the words mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xcube import dtypes
from xcube.ir import Aval, Equation
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.folds import FOLDS, Fold
from xcube.lowering.kernels.nodes import PARTS

ACCESS = 16  # bytes of a line along memory
NARROW = 4  # bytes of a line that lies beside others: few, so that there are many columns
STRIPS = (64, 32)  # bytes side by side that a cube takes of every row of memory, most first
WIDE = 256  # the same where rows are cut, so that there are cubes enough
ALONG, ACROSS = 16, 64  # bytes of a unit's tile
HEAVY = 64  # the same along memory for an operation that costs more than to move its elements
MOST_PLACES = 16
BUSY = 1024  # units of each processor that keep memory busy
CUBES = 8  # cubes of each processor that share few long rows
MOST_CHUNKS = 2048


@dataclass(frozen=True, eq=False)
class Plan:
    """One operation and the comptime choices for it.

    `lanes` of a line, `lines` of a unit's tile, `team` units walk a row, `beside` rows or columns
    share a cube. `ragged`: some tile or cube is not whole. Chunks are of `stretch` tiles.
    """

    fold: Fold
    reverse: bool
    along: bool
    rows: int
    count: int
    columns: int
    lanes: int
    lines: int
    team: int = 1
    beside: int = 1
    ragged: bool = True
    stretch: int = 0

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return -(-self.count // (self.team * self.lines))

    @property
    def chunks(self) -> int:
        return -(-self.tiles // self.stretch)

    @property
    def blocks(self) -> int:
        """Cubes that share neither rows nor columns, for one chunk."""
        if self.along:
            return -(-self.rows // self.beside)
        return self.rows * -(-self.columns // self.beside)

    @property
    def wide(self) -> int:
        """Lanes of a state."""
        return 1 if self.along else self.lanes


def plan(aval: Aval, root: Equation, facts: Facts) -> Plan:
    """What a heuristic picks."""
    axis, itemsize = root.params["axis"], aval.dtype.itemsize
    rows, n = math.prod(aval.shape[:axis]), aval.shape[axis]
    inner = math.prod(aval.shape[axis + 1 :])
    fold = Fold(FOLDS[root.primitive.name], dtypes.short_name(aval.dtype))
    along, extent = inner == 1, n if inner == 1 else inner
    lanes = 1
    while fold.dtype not in PARTS and extent % (2 * lanes) == 0 and lanes < 8:
        if 2 * lanes * itemsize > (ACCESS if along else NARROW):
            break
        lanes *= 2
    count, columns = (n // lanes, 1) if along else (n, inner // lanes)
    lines = _lines(fold, along, lanes, itemsize)
    draft = Plan(fold, root.params["reverse"], along, rows, count, columns, lanes, lines)
    return _cut(_teams(draft, itemsize, facts), facts)


def _lines(fold: Fold, along: bool, lanes: int, itemsize: int) -> int:
    """Lines of a unit's tile."""
    if not along:
        return max(4, min(MOST_PLACES, ACROSS // (lanes * itemsize)))
    nbytes = HEAVY if fold.name == "logsumexp" else ALONG
    return max(1, max(4, min(MOST_PLACES, nbytes // itemsize)) // lanes)


def _teams(draft: Plan, itemsize: int, facts: Facts) -> Plan:
    """The plan with its cubes: along memory as many units as a row has work for, across memory as
    few as keep the device busy, beside each other as far as memory moves all that it reads."""
    if draft.along:
        team = min(facts.units, _power(-(-draft.count // draft.lines)))
        beside = min(facts.units // team, _power(draft.rows))
    else:
        least = _strip(draft, itemsize, facts)
        wanted = BUSY * facts.cores / (draft.rows * draft.columns)
        team = min(_power(-(-draft.count // draft.lines)), _power(max(1, math.ceil(wanted))))
        team = max(1, min(team, facts.units // least))
        beside = min(facts.units // team, _power(draft.columns))
    whole = (draft.rows if draft.along else draft.columns) % beside == 0
    ragged = not whole or draft.count % (team * draft.lines) != 0
    return replace(draft, team=team, beside=beside, ragged=ragged)


def _strip(draft: Plan, itemsize: int, facts: Facts) -> int:
    """Lines side by side that a cube takes at least."""
    strips = [max(1, nbytes // (draft.lanes * itemsize)) for nbytes in (*STRIPS, WIDE)]
    *narrow, wide = [min(_power(draft.columns), strip) for strip in strips]
    for strip in narrow:
        if 2 * draft.rows * -(-draft.columns // strip) >= 3 * facts.cores:
            return strip
    return wide


def _cut(draft: Plan, facts: Facts) -> Plan:
    """The plan with its rows cut into chunks where there are too few cubes."""
    if draft.blocks >= facts.cores:
        return replace(draft, stretch=draft.tiles)
    chunks = min(draft.tiles, MOST_CHUNKS, -(-facts.cores * CUBES // draft.blocks))
    return replace(draft, stretch=-(-draft.tiles // chunks))


def _power(number: int) -> int:
    """The lowest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
