"""Scatters on devices whose cubes have many units: every update has units of its own.

Neighbouring units take neighbours of a window, or windows of neighbouring positions. What happens
where several updates meet depends on the operation:

- sums and extrema are atomic. Integers and extrema do not depend on the order of updates; sums of
  floats are rounded in an order that may differ from run to run.
- of updates that replace an element, the last one stays, as in a loop over them: a first launch
  leaves the number of the last position at each destination, and only that position is written.
- products have no atomic operation: cubes own destinations, as on other devices (scatter.py).

With `unique_indices` no updates meet: every element is read, combined and written once, and the
result is the same on every run. So it is where there is but one position."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Literal, Var
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.scatter_places import BOOLEAN, Places
from xcube.lowering.kernels.scatter_plan import Loop, Plan
from xcube.lowering.kernels.work import Work

ATOMIC = {"add": "add", "sub": "add", "min": "min", "max": "max"}
PLANE = 32  # neighbours of a window that units take at once, where there are many windows
FEW = 64  # positions up to which all units of a cube share a window
TURNS = 32  # lines that a unit takes of one window at most
MANY = 1 << 20  # updates from which a unit takes several positions
SEVERAL = 4


def is_parallel(plan: Plan, root: Equation, short: str) -> bool:
    """Whether there are kernels here for a scatter: not for products that may meet."""
    return _is_alone(plan, root) or plan.name != "mul" or short == "bool"


def build(plan: Plan, root: Equation, out: Var, facts: Facts) -> list[Work]:
    """The launches that apply the updates of a scatter, of which there are some."""
    launch = _Maker(plan, root, out, facts)
    if _is_alone(plan, root):
        return [launch.stores()]
    if plan.name != "set":
        return [launch.atomics()]
    if isinstance(root.inputs[2], Literal):  # all updates are alike
        return [launch.atomics()]
    lanes = facts.lanes(np.dtype(launch.number).itemsize)
    owners = Var(Aval((-(-launch.owners // lanes), lanes), np.dtype(launch.number)))
    return [_zeros(owners), launch.claims(owners), launch.stores(owners)]


def copy(x: Var, out: Var, vector_bytes: int) -> Work:
    """The operand as the first state of the result: a cube for each line."""
    b = Builder("scatter_copy")
    arguments = Arguments(b)
    target, source = arguments.buffer(out, "out"), arguments.buffer(x)
    lanes = max(1, vector_bytes * 8 // BITS[source.dtype])
    size = out.aval.size * (1 + (dtypes.short_name(out.aval.dtype) in PARTS))
    while size % lanes:
        lanes //= 2
    at = b.place("cube_pos.x") * lanes
    b.store(target, at, b.load(source, at, lanes))
    return Work(b.finish(), tuple(arguments.variables), (), size // lanes, 1)


def _zeros(owners: Var) -> Work:
    """No position at any destination."""
    b = Builder("scatter_zeros")
    arguments = Arguments(b)
    target = arguments.buffer(owners, "out")
    cubes, lanes = owners.aval.shape
    b.store(target, b.place("cube_pos.x") * lanes, b.constant(0, target.dtype, lanes))
    return Work(b.finish(), tuple(arguments.variables), (), cubes, 1)


def _is_alone(plan: Plan, root: Equation) -> bool:
    """Whether no element is updated twice."""
    return plan.count == 1 or (root.params["unique_indices"] and not plan.clips)


class _Maker:
    """The kernels of one scatter."""

    def __init__(self, plan: Plan, root: Equation, out: Var, facts: Facts) -> None:
        self.plan, self.root, self.out, self.units = plan, root, out, facts.units
        self.short = dtypes.short_name(out.aval.dtype)
        self.meets = bool(plan.nested) or plan.inner.indexed  # windows may overlap in part
        self.number = "uint32" if plan.count < 1 << 32 else "uint64"

    @property
    def owners(self) -> int:
        """Destinations: elements if windows may overlap in part, else windows."""
        if self.meets:
            return self.out.aval.size * (1 + (self.short in PARTS))
        return math.prod(loop.extent for loop in self.plan.batches) * self._rows

    @property
    def _rows(self) -> int:
        """Destinations of a batch."""
        first = next(iter(self.plan.starts), None)
        return 1 if first is None else first.weight * (first.last + 1)

    def stores(self, owners: Var | None = None) -> Work:
        """Updates as plain reads and writes: all of them, or those of the last positions."""
        asked = owners is not None and self.meets  # every element has an owner of its own
        plan = dataclasses.replace(self.plan, lanes=1) if asked else self.plan
        kernel = _Kernel(plan, self.root, self.out, self.units)
        places, buffer = kernel.places, kernel.buffer(owners)
        for p, start, row in kernel.positions():
            with self._where(kernel, buffer, row, p, not self.meets):
                for at, source in kernel.elements(start, places.offset(p, "updates")):
                    with self._where(kernel, buffer, at, p, self.meets):
                        value = places.update(source, kernel.lanes, None)
                        places.apply(kernel.target, at, value, kernel.lanes)
        return kernel.work()

    def _where(
        self, kernel: _Kernel, owners: Buffer | None, at: Value, p: Value, asks: bool
    ) -> Any:
        """A block for a position that owns a destination, if that is to be asked here."""
        if owners is None or not asks:
            return contextlib.nullcontext()
        at = at if self.meets else self._destination(kernel, at)
        owner = kernel.b.load(owners, at)
        return kernel.b.when(owner.eq((p + 1).cast(owner.dtype)))

    def _destination(self, kernel: _Kernel, row: Value) -> Value:
        return kernel.places.batch * kernel.places.scalar("rows", self._rows) + row

    def claims(self, owners: Var) -> Work:
        """The number of the last position, from 1 on, at every destination."""
        plan = self.plan
        if not self.meets:
            plan = dataclasses.replace(plan, outer=(), inner=Loop(1))
        kernel = _Kernel(dataclasses.replace(plan, lanes=1), self.root, owners, self.units)
        b = kernel.b
        for p, start, row in kernel.positions():
            mine = (p + 1).cast(kernel.target.dtype)
            if not self.meets:
                b.atomic("max", kernel.target, self._destination(kernel, row), mine)
                continue
            for at, _ in kernel.elements(start, kernel.places.offset(p, "updates")):
                b.atomic("max", kernel.target, at, mine)
        return kernel.work()

    def atomics(self) -> Work:
        """Updates that may meet, each indivisible."""
        name = self.plan.name
        op = "exchange" if name == "set" else ATOMIC.get(name, name)
        if self.short == "bool" and name != "set":
            op = BOOLEAN[name]
        plan = dataclasses.replace(self.plan, lanes=1)
        kernel = _Kernel(plan, self.root, self.out, self.units)
        for p, start, _ in kernel.positions():
            for at, source in kernel.elements(start, kernel.places.offset(p, "updates")):
                value = kernel.places.update(source, 1, None)
                value = -value if name == "sub" else value
                kernel.b.atomic(op, kernel.target, at, value)
        return kernel.work()


class _Kernel:
    """One launch over positions and the elements of their windows: `across` units lie along a
    window, of which a cube takes `chunk` elements, `down` positions side by side."""

    def __init__(self, plan: Plan, root: Equation, target: Var, units: int) -> None:
        lanes = plan.lanes
        while plan.inner.extent % lanes:
            lanes //= 2
        self.plan, self.lanes = dataclasses.replace(plan, lanes=lanes), lanes
        is_line = 1 in (plan.inner.operand, plan.inner.updates)
        wide = units if plan.count <= FEW else min(PLANE, units)
        self.across = min(wide, _power(plan.inner.extent // lanes)) if is_line else 1
        self.down = units // self.across
        self.chunk = min(plan.inner.extent, self.across * lanes * TURNS)
        several = SEVERAL if plan.count * plan.inner.extent >= MANY else 1
        self.block = self.down * several
        self.b = Builder(f"scatter_{plan.name}", (units, 1, 1))
        self.arguments = Arguments(self.b)
        self.target = self.arguments.buffer(target, "inout")
        _, indices, updates = root.inputs
        short = dtypes.short_name(root.outputs[0].aval.dtype)
        self.places = Places(self.arguments, self.plan, indices, updates, short)
        self._place()

    def buffer(self, owners: Var | None) -> Buffer | None:
        """The buffer of the owners, where there are any."""
        return None if owners is None else self.arguments.buffer(owners)

    def _place(self) -> None:
        """This unit's positions and columns."""
        b, inner, cube = self.b, self.plan.inner, self.b.place("cube_pos.x")
        unit, scalar = b.place("unit_pos.x"), self.arguments.scalar
        count = scalar("count", self.plan.count)
        self.blocks = -(-self.plan.count // self.block)
        blocks = scalar("blocks", self.blocks)
        first, cube = cube % blocks * self.block, cube // blocks
        self.first = first + unit // self.across
        self.stop = b.op("min", first + self.block, count)
        self.column = unit % self.across * self.lanes
        self.columns = scalar("columns", inner.extent)
        self.chunks = -(-inner.extent // self.chunk)
        if self.chunks > 1:
            number = scalar("chunks", self.chunks)
            begin, cube = cube % number * self.chunk, cube // number
            self.column = begin + self.column
            self.columns = b.op("min", begin + self.chunk, self.columns)
        self.places.enter(cube)

    def positions(self) -> Iterator[tuple[Value, Value, Value]]:
        """This unit's positions, first elements of windows that fit, and their destinations."""
        for p in self.b.range(self.first, self.stop, self.down):
            start, fits, row = self.places.destination(p)
            with contextlib.nullcontext() if fits is None else self.b.when(fits):
                yield p, start, row

    def elements(self, start: Value, source: Value) -> Iterator[tuple[Value, Value]]:
        """Where this unit's lines of a window lie in the operand and in the updates."""
        inner = self.plan.inner
        for target, there in self.places.nested(start, source):
            if inner.extent == 1:
                yield target, there
                continue
            for i in self.b.range(self.column, self.columns, self.across * self.lanes):
                yield (
                    target + self._scaled(i, "operand", inner.operand),
                    there + self._scaled(i, "updates", inner.updates),
                )

    def _scaled(self, i: Value, name: str, stride: int) -> Value:
        return i if stride == 1 else i * self.arguments.scalar(("inner", name), stride)

    def work(self) -> Work:
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        cubes = self.plan.rows * self.chunks * self.blocks
        return Work(self.b.finish(), variables, cells, cubes, 1)


def _power(number: int) -> int:
    """The lowest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
