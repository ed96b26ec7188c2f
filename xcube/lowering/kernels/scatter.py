"""The template of scatters: a copy of the operand, then updates in the order of their indices.

Every cube owns elements of the result that no other cube writes: a batch, a slice of the windows
that does not depend on the indices, or the destinations of a range, for which it looks through
all indices. So every element gets its updates one after the other: the last one stays, and
sums are rounded in the same order on every run. A window not wholly inside is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Atom, Literal, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import PARTS, Arguments, constant
from xcube.lowering.kernels.scatter_plan import TASK, Loop, Plan, plan
from xcube.lowering.kernels.work import Work

COPY = 1 << 14  # elements that one cube copies
BLOCK = 1024  # positions looked through before those found are applied
BOOLEAN = {"min": "and", "max": "or", "mul": "and", "add": "or"}


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of a scatter; an operand among `sources` has the result's memory already."""
    root = group.root
    assert root is not None
    (out,), (x, _, updates) = root.outputs, root.inputs
    if out.aval.size == 0:
        return []
    copy = _copy(x, out, facts.vector_bytes, x in sources)
    if updates.aval.size == 0:
        return [copy]
    return [copy, _Updates(plan(root, facts.vector_bytes), root.inputs, out).work()]


def _copy(x: Atom, out: Var, vector_bytes: int, done: bool) -> Work:
    """The operand as the first state of the result."""
    b = Builder("scatter_copy")
    arguments = Arguments(b)
    target, pairs = arguments.buffer(out, "out"), dtypes.short_name(out.aval.dtype) in PARTS
    size = out.aval.size * (1 + pairs)
    if isinstance(x, Literal):
        _store(b, target, b.constant(0, "index"), _literal(b, x), None)
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
        self.plan, self.out = plan, out
        self.b = Builder(f"scatter_{plan.name}")
        self.arguments = Arguments(self.b)
        self.target = self.arguments.buffer(out, "inout")
        self.operand, indices, self.updates = operands
        assert isinstance(indices, Var)
        self.indices = self.arguments.buffer(indices)
        if isinstance(self.updates, Var):
            self.arguments.buffer(self.updates)
        self.short = dtypes.short_name(out.aval.dtype)

    def work(self) -> Work:
        b, plan = self.b, self.plan
        self._place()
        if plan.ranges > 1:
            self._apply_range()
        else:
            for p in b.range(self.begin, self.end):
                start, fits, _ = self._destination(p)
                if fits is None:
                    self._window(start, self._updates_of(p))
                else:
                    with b.when(fits):
                        self._window(start, self._updates_of(p))
        grain = max(1, math.ceil(TASK / plan.cost))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, plan.cubes, grain)

    # where a cube is

    def _place(self) -> None:
        """First elements of this cube's share, and its positions."""
        b, plan, cube = self.b, self.plan, self.b.place("cube_pos.x")
        zero = b.constant(0, "index")
        self.at = {"operand": zero, "indices": zero, "updates": zero}
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
        loops = [("batch", n, loop) for n, loop in enumerate(plan.batches)]
        loops += [("outer", n, loop) for n, loop in enumerate(plan.outer)]
        for kind, number_of, loop in reversed(loops):
            extent = self._scalar((kind, number_of, "extent"), loop.extent)
            place, cube = cube % extent, cube // extent
            for name in self.at:
                if stride := getattr(loop, name):
                    unit = self._scalar((kind, number_of, name), stride)
                    self.at[name] = self.at[name] + place * unit

    # positions

    def _offset(self, p: Value, name: str) -> Value:
        """Where the p-th position lies in indices or updates."""
        total = self.at[name]
        for number, loop in reversed(list(enumerate(self.plan.positions))):
            place = p
            if number:
                extent = self._scalar(("position", number, "extent"), loop.extent)
                place, p = p % extent, p // extent
            stride = getattr(loop, name)
            if stride == 1 and len(self.plan.positions) == 1:
                total = total + place
            else:
                total = total + place * self._scalar(("position", number, name), stride)
        return total

    def _updates_of(self, p: Value) -> Value:
        return self._offset(p, "updates")

    def _destination(self, p: Value) -> tuple[Value, Value | None, Value]:
        """The first element of a position's window, whether the window fits, and the number of
        the destination."""
        b, at = self.b, self._offset(p, "indices")
        start, row = self.at["operand"], b.constant(0, "index")
        fits: Value | None = None
        for number, dim in enumerate(self.plan.starts):
            last = self._scalar(("start", number, "last"), dim.last)
            place = self._index(at + number)
            if self.plan.clips:
                place = b.op("max", b.op("min", place, last), 0)
            else:
                inside = (place >= 0) & (place <= last)
                fits = inside if fits is None else fits & inside
            start = start + place * self._scalar(("start", number, "stride"), dim.stride)
            if len(self.plan.starts) == 1:
                row = place
            else:
                row = row + place * self._scalar(("start", number, "weight"), dim.weight)
        return start, fits, row

    def _index(self, at: Value) -> Value:
        """A number of an index vector."""
        value = self.b.load(self.indices, at)
        if value.dtype == "u64":  # beyond every extent, once the sign is lost
            value = self.b.op("min", value, (1 << 63) - 1)
        return value.cast("index")

    def _apply_range(self) -> None:
        """Updates of the destinations that this cube owns: found block by block, then applied."""
        b = self.b
        places = b.local("index", BLOCK)
        mask = self._scalar("mask", self.plan.ranges - 1)
        shift = self._scalar("shift", self.plan.shift)
        for begin in b.range(self.begin, self.end, BLOCK):
            found = b.variable(b.constant(0, "index"))
            for p in b.range(begin, b.op("min", begin + BLOCK, self.end)):
                _, fits, row = self._destination(p)
                mine = ((row >> shift) & mask).eq(self.range)
                mine = mine if fits is None else mine & fits
                count = found.get()
                b.store(places, count, p)  # stays only if it counts
                found.set(count + mine.cast("index"))
            for number in b.range(0, found.get()):
                p = b.load(places, number)
                self._window(self._destination(p)[0], self._updates_of(p))

    # windows

    def _window(self, target: Value, source: Value) -> None:
        """One update: its window applied from `target` on."""
        self._nest(self.plan.nested, target, source)

    def _nest(self, loops: Sequence[Loop], target: Value, source: Value) -> None:
        if not loops:
            self._line(target, source)
            return
        number = len(self.plan.nested) - len(loops)
        loop, *rest = loops
        for i in self.b.range(0, self._scalar(("nested", number, "extent"), loop.extent)):
            here = i * self._scalar(("nested", number, "operand"), loop.operand)
            there = i * self._scalar(("nested", number, "updates"), loop.updates)
            self._nest(rest, target + here, source + there)

    def _line(self, target: Value, source: Value) -> None:
        """The innermost loop: whole lines, then the partial one."""
        b, inner, lanes = self.b, self.plan.inner, self.plan.lanes
        if inner.extent == 1:
            self._update(target, source, 1, None)
            return
        if lanes == 1:
            here, there = (
                self._scalar(("inner", name), getattr(inner, name))
                for name in ("operand", "updates")
            )
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
        b = self.b
        value = self._read_update(source, lanes, mask)
        if self.plan.name != "set":
            value = self._combined(_load(b, self.target, target, lanes, mask, value), value)
        _store(b, self.target, target, value, mask)

    def _read_update(self, source: Value, lanes: int, mask: Value | None) -> Any:
        b = self.b
        if isinstance(self.updates, Literal):
            return _literal(b, self.updates)
        buffer = self.arguments.buffer(self.updates)
        like = Complex(source, source) if self._is_pair else source
        return _load(b, buffer, source, lanes, mask, like)

    @property
    def _is_pair(self) -> bool:
        """Whether an update is a complex number rather than one of its parts."""
        return self.short in PARTS and self.plan.name == "mul"

    def _combined(self, old: Any, value: Any) -> Any:
        name = self.plan.name
        if self.short == "bool":
            return self.b.op(BOOLEAN[name], old, value)
        return cube_math.apply(self.b, name, old, value)

    def _scalar(self, key: Any, number: int) -> Value:
        return self.arguments.scalar(key, number)


def _literal(b: Builder, literal: Literal) -> Any:
    return constant(b, literal.value, dtypes.short_name(literal.aval.dtype))


def _load(b: Builder, buffer: Buffer, at: Value, lanes: int, mask: Value | None, like: Any) -> Any:
    """A line, or a complex number where `like` is one."""
    if isinstance(like, Complex):
        return Complex(b.load(buffer, at * 2), b.load(buffer, at * 2 + 1))
    return b.load(buffer, at, lanes, mask)


def _store(b: Builder, buffer: Buffer, at: Value, value: Any, mask: Value | None) -> None:
    if isinstance(value, Complex):
        b.store(buffer, at * 2, value.real)
        b.store(buffer, at * 2 + 1, value.imag)
    else:
        b.store(buffer, at, value, mask)
