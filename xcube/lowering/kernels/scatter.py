"""The template of scatters: a copy of the operand, then updates in the order of their indices.

Every cube owns elements of the result that no other cube writes: a batch, a slice of the windows
that does not depend on the indices, or the destinations of a range, for which it looks through
all indices. So every element gets its updates one after the other: the last one stays, and
sums are rounded in the same order on every run. A window not wholly inside is dropped.
What devices do whose cubes have many units is in scatter_units.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence

from xcube import dtypes
from xcube.ir import Atom, Literal, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import scatter_units
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.scatter_places import Places, literal, store
from xcube.lowering.kernels.scatter_plan import TASK, Plan, draft, plan
from xcube.lowering.kernels.work import Work

COPY = 1 << 14  # elements that one cube copies
BLOCK = 1024  # positions looked through before those found are applied


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of a scatter; an operand among `sources` has the result's memory already."""
    root = group.root
    assert root is not None
    (out,), (x, _, updates) = root.outputs, root.inputs
    if out.aval.size == 0:
        return []
    many = facts.units > 1
    copy = _copy(x, out, facts.vector_bytes, many, x in sources)
    if updates.aval.size == 0:
        return [copy]
    drafted, short = draft(root, facts.vector_bytes), dtypes.short_name(out.aval.dtype)
    if many and scatter_units.is_parallel(drafted, root, short):
        return [copy, *scatter_units.build(drafted, root, out, facts)]
    return [copy, _Updates(plan(root, facts), root.inputs, out).work()]


def _copy(x: Atom, out: Var, vector_bytes: int, many: bool, done: bool) -> Work:
    """The operand as the first state of the result."""
    if many and isinstance(x, Var):
        work = scatter_units.copy(x, out, vector_bytes)
        return dataclasses.replace(work, cubes=0) if done else work
    b = Builder("scatter_copy")
    arguments = Arguments(b)
    target, pairs = arguments.buffer(out, "out"), dtypes.short_name(out.aval.dtype) in PARTS
    size = out.aval.size * (1 + pairs)
    if isinstance(x, Literal):
        store(b, target, b.constant(0, "index"), literal(b, x), None)
        return Work(b.finish(), tuple(arguments.variables), (), 1, 1)
    source = arguments.buffer(x)
    lanes = max(1, vector_bytes * 8 // max(8, BITS[source.dtype]))
    end, block = arguments.scalar("size", size), arguments.scalar("block", COPY)
    start = b.place("cube_pos.x") * block
    stop = b.op("min", start + block, end)
    whole = start + (stop - start) // lanes * lanes
    for i in b.range(start, whole, lanes):
        b.store(target, i, b.load(source, i, lanes))
    for i in b.range(whole, stop):
        b.store(target, i, b.load(source, i))
    cubes, variables = 0 if done else -(-size // COPY), tuple(arguments.variables)
    return Work(b.finish(), variables, tuple(arguments.cells), cubes, 1)


class _Updates:
    """The kernel that applies updates."""

    def __init__(self, plan: Plan, operands: Sequence[Atom], out: Var) -> None:
        self.plan = plan
        self.b = Builder(f"scatter_{plan.name}")
        self.arguments = Arguments(self.b)
        self.target = self.arguments.buffer(out, "inout")
        _, indices, updates = operands
        short = dtypes.short_name(out.aval.dtype)
        self.places = Places(self.arguments, plan, indices, updates, short)

    def work(self) -> Work:
        b, plan, places = self.b, self.plan, self.places
        self._place()
        if plan.ranges > 1:
            self._apply_range()
        else:
            for p in b.range(self.begin, self.end):
                start, fits, _ = places.destination(p)
                with contextlib.nullcontext() if fits is None else b.when(fits):
                    self._window(start, places.offset(p, "updates"))
        grain = max(1, math.ceil(TASK / plan.cost))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, plan.cubes, grain)

    def _place(self) -> None:
        """This cube's batch, and its share of positions and columns."""
        b, plan, cube = self.b, self.plan, self.b.place("cube_pos.x")
        zero = b.constant(0, "index")
        count = self._scalar("count", plan.count)
        self.begin, self.end, self.column = zero, count, zero
        if plan.ranges > 1:
            number = self._scalar("ranges", plan.ranges)
            self.range, cube = cube % number, cube // number
        if plan.parts > 1:
            number, size = self._scalar("parts", plan.parts), self._scalar("part", plan.part)
            self.begin, cube = cube % number * size, cube // number
            self.end = b.op("min", self.begin + size, count)
        self.columns = self._scalar("columns", plan.inner.extent)
        if plan.chunks > 1:
            number, size = self._scalar("chunks", plan.chunks), self._scalar("chunk", plan.chunk)
            self.column, cube = cube % number * size, cube // number
            self.columns = b.op("min", self.column + size, self.columns)
        self.places.enter(cube)

    def _apply_range(self) -> None:
        """Updates of the destinations that this cube owns: found block by block, then applied."""
        b, places = self.b, self.places
        found_at = b.local("index", BLOCK)
        mask = self._scalar("mask", self.plan.ranges - 1)
        shift = self._scalar("shift", self.plan.shift)
        for begin in b.range(self.begin, self.end, BLOCK):
            found = b.variable(b.constant(0, "index"))
            for p in b.range(begin, b.op("min", begin + BLOCK, self.end)):
                _, fits, row = places.destination(p)
                mine = ((row >> shift) & mask).eq(self.range)
                mine = mine if fits is None else mine & fits
                count = found.get()
                b.store(found_at, count, p)  # stays only if it counts
                found.set(count + mine.cast("index"))
            for number in b.range(0, found.get()):
                p = b.load(found_at, number)
                self._window(places.destination(p)[0], places.offset(p, "updates"))

    def _window(self, target: Value, source: Value) -> None:
        """One update: its window applied from `target` on."""
        for here, there in self.places.nested(target, source):
            self._line(here, there)

    def _line(self, target: Value, source: Value) -> None:
        """The innermost loop: whole lines, then the partial one."""
        b, inner, lanes = self.b, self.plan.inner, self.plan.lanes
        if inner.extent == 1:
            self._update(target, source, 1, None)
            return
        if lanes == 1:
            here, there = self.places.strides()
            for i in b.range(self.column, self.columns):
                self._update(target + i * here, source + i * there, 1, None)
            return
        whole = self.columns
        ragged = inner.extent % lanes != 0
        if ragged:
            whole = self.column + (self.columns - self.column) // lanes * lanes
        for i in b.range(self.column, whole, lanes):
            self._update(target + i, source + i, lanes, None)
        if ragged:
            with b.when(whole < self.columns):
                mask = b.lane(lanes, "i32") < (self.columns - whole).cast("i32")
                self._update(target + whole, source + whole, lanes, mask)

    def _update(self, target: Value, source: Value, lanes: int, mask: Value | None) -> None:
        value = self.places.update(source, lanes, mask)
        self.places.apply(self.target, target, value, lanes, mask)

    def _scalar(self, key: str, number: int) -> Value:
        return self.arguments.scalar(key, number)
