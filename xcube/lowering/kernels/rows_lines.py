"""How a map or rows program is cut into lines where a cube is a task of one thread: a choice by
sizes and what is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xcube.lowering.device.base import Facts
from xcube.lowering.expression import COSTLY
from xcube.lowering.kernels.lanes import (
    STREAM_BYTES,
    STREAM_LINE,
    is_flat,
    late_results,
    mask_of,
    score,
    streams,
    widest,
)
from xcube.lowering.kernels.space import Axis, Space

LIGHT = 24  # operations per element up to which lines are made long, to overlap latencies
COSTLY_LANES = 12  # gathered elements in the time of one costly function
PLACES = 4  # of a row that are read at a time
SHORTEST_PLACE = 1 << 8  # elements from there to the next such place


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The comptime choices: which axis the lanes lie along, how many, whether the last line of a
    loop is partial, whether the kernel is flat, whether results bypass the caches, in how many
    places at a time a row is read."""

    lane: Axis | None
    lanes: int
    ragged: bool
    flat: bool
    streaming: bool
    places: int = 1


def select(space: Space, facts: Facts) -> Blueprint:
    """The blueprint that a heuristic picks where a cube is a task of one thread."""
    lane = _lane_axis(space)
    if lane is None:
        return Blueprint(None, 1, False, False, False)
    narrow, vector_bytes = widest(space), facts.vector_bytes
    operations = sum(1 for node in space.order if node.op not in ("const", "load"))
    costly = any(node.op in COSTLY for node in space.order)
    factor = 1 if costly or operations > LIGHT else 4
    lanes = max(1, vector_bytes * factor // narrow)
    if space.folds and lane.kind == "row" and factor == 4:  # whole stretches of memory at a time
        lanes = max(1, vector_bytes * 8 // narrow)
    elif space.folds and factor == 1:  # two chains of accumulation at a time
        lanes = max(1, vector_bytes * 2 // narrow)
    places = _places(space, lane, vector_bytes // narrow) if factor == 4 else 1
    if places > 1:  # one register of each, in place of a line of several
        lanes = vector_bytes // narrow
    flat = is_flat(space, lane)
    while not flat and lanes > 4 and lanes // 2 >= lane.extent:
        lanes //= 2
    streaming = factor > 1 and not space.columns and _streams(space, lane, lanes, flat)
    return Blueprint(lane, lanes, not flat and lane.extent % lanes != 0, flat, streaming, places)


def _places(space: Space, lane: Axis, lanes: int) -> int:
    """In how many places a row is read at a time. Several keep more of the memory's requests on
    their way; rows that are read again, from the caches, need none."""
    alone = len(space.columns) == 1 and lane.kind == "column" and not late_results(space)
    long = lane.extent >= PLACES * SHORTEST_PLACE
    return PLACES if alone and long and lanes > 1 else 1


def _lane_axis(space: Space) -> Axis | None:
    """The innermost rows or columns: whichever more indices walk with stride one."""
    candidates = [axes[-1] for axes in (space.columns, space.rows) if axes]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    columns, rows = candidates
    if _rows_cost_more(space, rows):
        return rows
    return columns if score(space, columns) >= score(space, rows) else rows


def _rows_cost_more(space: Space, rows: Axis) -> bool:
    """Whether what is computed once a row, which lanes along the columns would not share, costs
    more than to gather the elements of many rows at a time."""
    mask = mask_of(space.columns)
    costly = sum(
        n.op in COSTLY and n.dims & rows.mask > 0 and not n.dims & mask for n in space.order
    )
    gathers = sum(
        n.op == "load" and bool(n.dims & mask) and rows.stride(n.attr[1]) not in (0, 1)
        for n in space.order
    )
    return costly * COSTLY_LANES > gathers * math.prod(axis.extent for axis in space.columns)


def _streams(space: Space, lane: Axis, lanes: int, flat: bool) -> bool:
    """Whether results bypass the caches; a flat map writes whole lines whatever its extent."""
    if not flat:
        return streams(space, lane, lanes)
    avals = [result.var.aval for result in space.results]
    wide = all(aval.dtype.itemsize * lanes >= STREAM_LINE for aval in avals)
    return wide and sum(aval.nbytes for aval in avals) >= STREAM_BYTES
