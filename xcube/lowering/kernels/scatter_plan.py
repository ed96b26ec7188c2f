"""A scatter as loops with strides: which loops there are, and how they are shared among cubes so
that no two cubes write the same element."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from xcube import dtypes
from xcube.ir import Equation, Shape
from xcube.lowering.cube.ir import BITS
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import PARTS

TASK = 20_000  # operations worth handing to a thread
TASKS = 32  # cubes at which even a large machine is busy
THREADS = 32  # the same of each processor where a cube is one of many threads
SCAN = 64  # bytes of a window whose update takes about as long as another cube's look at its index
MOST_RANGES = 16
LINE = 256  # bytes of neighbouring destinations that one cube should own
PIECE = 128  # bytes of a window that are worth a cube of their own


@dataclass(frozen=True)
class Loop:
    """A dimension with its strides, in elements; `indexed` windows move along their dimension."""

    extent: int
    operand: int = 0
    indices: int = 0
    updates: int = 0
    indexed: bool = False

    def holds(self, inner: Loop) -> bool:
        """Whether one loop can walk both, `inner` being the faster."""
        return not (self.indexed or inner.indexed) and all(
            outer == stride * inner.extent
            for outer, stride in (
                (self.operand, inner.operand),
                (self.indices, inner.indices),
                (self.updates, inner.updates),
            )
        )


@dataclass(frozen=True)
class Start:
    """One number of an index vector: the stride of its dimension in the operand, the last place
    where a window fits, and its weight in the number of a destination."""

    stride: int
    last: int
    weight: int


@dataclass(frozen=True)
class Plan:
    """The loops, and how they are shared among cubes.

    `batches` and `outer` are spread over the cubes, `nested` and `inner` run inside them for every
    position. `lanes` lie along `inner`, `chunk` elements of it belong to a cube. Positions are
    cut into `parts`, or destinations into `ranges`, each of `1 << shift` neighbours in turn.
    """

    name: str
    clips: bool
    batches: tuple[Loop, ...]
    positions: tuple[Loop, ...]
    outer: tuple[Loop, ...]
    nested: tuple[Loop, ...]
    inner: Loop
    starts: tuple[Start, ...]
    lanes: int
    chunk: int
    parts: int = 1
    ranges: int = 1
    shift: int = 0

    @property
    def count(self) -> int:
        """Positions of one batch."""
        return _size(self.positions)

    @property
    def chunks(self) -> int:
        return -(-self.inner.extent // self.chunk)

    @property
    def part(self) -> int:
        """Positions of a part."""
        return -(-self.count // self.parts)

    @property
    def rows(self) -> int:
        """Cubes that share nothing but the operand's memory."""
        return _size(self.batches) * _size(self.outer)

    @property
    def cubes(self) -> int:
        return self.rows * self.chunks * self.parts * self.ranges

    @property
    def cost(self) -> int:
        """Operations of a cube."""
        window = _size(self.nested) * -(-self.chunk // self.lanes)
        return self.part * 4 + self.part * window * 4 // self.ranges


def plan(eqn: Equation, facts: Facts) -> Plan:
    """The loops of a scatter's updates, of which there are some, and how cubes share them."""
    drafted = draft(eqn, facts.vector_bytes)
    return _shared(drafted, eqn.params["unique_indices"], eqn.outputs[0].aval.dtype.itemsize, facts)


def draft(eqn: Equation, vector_bytes: int) -> Plan:
    """The loops of a scatter's updates."""
    x, indices, updates = (atom.aval for atom in eqn.inputs)
    name = eqn.primitive.name.removeprefix("scatter").lstrip("-_") or "set"
    numbers, short = eqn.params["dimension_numbers"], dtypes.short_name(x.dtype)
    pairs = short in PARTS and name != "mul"  # parts are independent of each other
    batches, positions, windows = _loops(x.shape, indices.shape, updates.shape, numbers)
    starts = _starts(x.shape, updates.shape, numbers)
    if pairs:
        batches, positions, windows = (_doubled(loops) for loops in (batches, positions, windows))
        starts = [replace(start, stride=2 * start.stride) for start in starts]
        windows.append(Loop(2, operand=1, updates=1))
    batches, positions, windows = map(_merged, (batches, positions, windows))
    inner = _inner(windows)
    others = [loop for loop in windows if loop is not inner]
    lanes = 1
    if inner.operand == inner.updates == 1 and (pairs or short not in PARTS):
        lanes = max(1, vector_bytes * 8 // max(16, BITS[PARTS.get(short, short)]))
        while lanes > 1 and lanes // 2 >= inner.extent:
            lanes //= 2
    return Plan(
        name=name,
        clips=eqn.params["mode"].name == "CLIP",
        batches=tuple(batches),
        positions=tuple(positions),
        outer=tuple([loop for loop in others if not loop.indexed]),
        nested=tuple([loop for loop in others if loop.indexed]),
        inner=inner,
        starts=tuple(starts),
        lanes=lanes,
        chunk=inner.extent,
    )


def _loops(
    operand: Shape, indices: Shape, updates: Shape, numbers: Any
) -> tuple[list[Loop], list[Loop], list[Loop]]:
    """Batches, positions and windows, outermost first."""
    strides, index_strides = _strides(operand), _strides(indices)
    update_strides = _strides(updates)
    window_dims = numbers.update_window_dims
    scattered = [d for d in range(len(updates)) if d not in window_dims]
    walking = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    batches, positions = [], []
    for d, extent in enumerate(indices[:-1]):
        loop = Loop(extent, 0, index_strides[d], update_strides[scattered[d]])
        if d in walking:
            batches.append(replace(loop, operand=strides[walking[d]]))
        else:
            positions.append(loop)
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(operand)) if d not in dropped]
    indexed = set(numbers.scatter_dims_to_operand_dims)
    windows = [
        Loop(updates[u], strides[d], 0, update_strides[u], d in indexed)
        for d, u in zip(kept, window_dims, strict=True)
    ]
    return batches, positions, windows


def _starts(operand: Shape, updates: Shape, numbers: Any) -> list[Start]:
    strides = _strides(operand)
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(operand)) if d not in dropped]
    sizes = {d: updates[u] for d, u in zip(kept, numbers.update_window_dims, strict=True)}
    starts: list[Start] = []
    weight = 1
    for d in reversed(numbers.scatter_dims_to_operand_dims):
        starts.append(Start(strides[d], operand[d] - sizes.get(d, 1), weight))
        weight *= operand[d]
    return starts[::-1]


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _size(loops: Iterable[Loop]) -> int:
    return math.prod(loop.extent for loop in loops)


def _doubled(loops: Iterable[Loop]) -> list[Loop]:
    """Loops over numbers that are pairs in memory; indices are none."""
    return [replace(loop, operand=2 * loop.operand, updates=2 * loop.updates) for loop in loops]


def _merged(loops: Iterable[Loop]) -> list[Loop]:
    """As few loops as possible; those of one element vanish."""
    merged: list[Loop] = []
    for loop in loops:
        if loop.extent == 1:
            continue
        if merged and merged[-1].holds(loop):
            merged[-1] = replace(loop, extent=loop.extent * merged[-1].extent)
        else:
            merged.append(loop)
    return merged


def _inner(windows: list[Loop]) -> Loop:
    """The innermost loop: one whose elements are neighbours, else the longest."""
    lines = [loop for loop in windows if loop.operand == loop.updates == 1]
    return max(lines or windows or [Loop(1)], key=lambda loop: loop.extent)


def _shared(draft: Plan, unique: bool, itemsize: int, facts: Facts) -> Plan:
    """The plan with its work shared among cubes; where a cube is one of many threads, more of them
    look through the indices together."""
    many = facts.units > 1
    tasks = THREADS * facts.cores if many else TASKS
    window = _size(draft.nested) * draft.inner.extent
    work = draft.rows * draft.count * (4 + window)
    wanted = min(tasks, work // TASK) // draft.rows
    if wanted < 2:
        return draft
    if unique and not draft.clips:
        return replace(draft, parts=min(wanted, draft.count))
    if not many:
        draft = _in_chunks(draft, wanted, itemsize)
        wanted = -(-facts.cores // draft.chunks)  # where columns keep all busy, each looks once
    most = tasks if many else min(window * itemsize // SCAN, MOST_RANGES)
    if most > 1 and draft.starts and not draft.nested and not draft.inner.indexed:
        rows = draft.starts[0].weight * (draft.starts[0].last + 1)
        ranges = 1 << (min(wanted, rows, most).bit_length() - 1)
        block = max(1, LINE // (window * itemsize))
        shift = min(block, rows // ranges).bit_length() - 1
        return replace(draft, ranges=ranges, shift=shift)
    return _in_chunks(draft, wanted, itemsize) if many else draft


def _in_chunks(draft: Plan, wanted: int, itemsize: int) -> Plan:
    """The plan with its innermost loop shared among as many cubes as are wanted, if that is the
    same loop for every position."""
    if draft.inner.indexed:
        return draft
    least = max(draft.lanes, PIECE // itemsize) if draft.lanes > 1 else 64
    chunk = max(least, -(-draft.inner.extent // wanted))
    chunk = -(-chunk // draft.lanes) * draft.lanes
    return replace(draft, chunk=min(chunk, draft.inner.extent))
