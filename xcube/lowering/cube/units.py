"""kernel -> kernel whose cubes are one unit, for devices where a cube is a task of one thread.

Units go through a run, which is what they do between two barriers, in groups of `width`: a loop
over groups, whose statements work on lines with a lane for each unit (`units_run.py`). What all
units share is done once (`units_analysis.py`); what outlives a run lies in arrays with a place for
each unit. Loops and branches around a barrier are the cube's own: they ask a unit that is there.
Where a kernel has operations of planes, a group is a plane.

Units that share a group are at the same statement at the same time. So units that wait for each
other (a lock) are gone through one by one, each up to the next barrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xcube.lowering.cube import ir, rebuild, units_analysis
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Atom, Buffer, Kernel, Name, Stmt, Type
from xcube.lowering.cube.units_analysis import Item, Run, Whole, has
from xcube.lowering.cube.units_lines import Algebra, Even, Held, Lines
from xcube.lowering.cube.units_run import Group, Stored

WIDTH = 16


def one_unit(kernel: Kernel, width: int = WIDTH) -> Kernel:
    """The kernel with cubes of one unit, itself if they are so already; `width`: units of a group.

    >>> build = Builder("double", (64, 1, 1))
    >>> data, at = build.buffer("f32", "inout"), build.place("unit_pos.x")
    >>> build.store(data, at, build.load(data, at) * 2)
    >>> one_unit(build.finish()).cube_dim
    (1, 1, 1)
    """
    if kernel.cube_dim == (1, 1, 1):
        return kernel
    return Cube(kernel, _width(kernel, width)).kernel_of_one()


def _width(kernel: Kernel, width: int) -> int:
    if has(kernel.body, ir.Plane, ir.SyncPlane, ir.LoadMatrices, ir.MultiplyMatrices):
        return ir.PLANE
    return 1 if _waits(kernel) else width


def _waits(kernel: Kernel) -> bool:
    """Whether units may wait for what others do: a loop with an exchange inside."""
    return any(
        isinstance(s, ir.CompareExchange) or (isinstance(s, ir.Atomic) and s.op == "exchange")
        for loop in rebuild.each(kernel.body, ir.Loop)
        for s in rebuild.every(loop.body)
    )


class Cube:
    """A cube's way through a kernel."""

    def __init__(self, kernel: Kernel, width: int) -> None:
        self.kernel, self.width = kernel, width
        self.plan = units_analysis.plan(kernel)
        difference = units_analysis.Difference(kernel, frozenset(self.plan.kept))
        self.differing, self.divergent = difference.names, difference.divergent
        self.used = {name.number for name in units_analysis.used(kernel.body)}
        self.units = math.prod(kernel.cube_dim)
        self.groups = -(-self.units // width)
        self.build = Builder(kernel.name, resident=kernel.resident)
        self.algebra = Algebra(self.build, width)
        self.memories: dict[tuple[str, int], Buffer] = {}
        self.values: dict[int, Held] = {}
        self.variables: dict[int, Variable] = {}
        self.rooms: dict[int, Buffer] = {}  # of names that outlive a run, for each unit
        self.asked: dict[int, Variable] = {}
        self._scratch: dict[tuple[int, str], Buffer] = {}
        self.alive: Buffer | None = None
        self.someone: Variable | None = None  # whether a unit did not return

    def kernel_of_one(self) -> Kernel:
        """The kernel of one unit."""
        for buffer in self.kernel.buffers:
            self.memories["global", buffer.number] = self.build.buffer(buffer.dtype, buffer.access)
        for scalar in self.kernel.scalars:
            self.values[scalar.number] = Even(self.build.scalar(scalar.type.dtype))
        self._rooms()
        self._items(self.plan.items)
        return self.build.finish()

    # rooms of what outlives a run

    def _rooms(self) -> None:
        units = self.groups * self.width
        for number, name in self.plan.kept.items():
            self.rooms[number] = self.build.local(name.type.dtype, units * name.type.lanes)
        for number, name in self.plan.asked.items():
            first = False if name.type.dtype == "bool" else 0
            zero = self.build.constant(first, name.type.dtype, name.type.lanes)
            self.asked[number] = self.build.variable(zero)
        for s in rebuild.each(self.kernel.body, ir.Allocate):
            if s.buffer.number in self.plan.arrays:
                array = self.build.local(s.buffer.dtype, units * s.buffer.size)
                self.memories["local", s.buffer.number] = array
        returns = [run for run in self.plan.runs if has(run.body, ir.Return)]
        if returns and len(self.plan.runs) > 1:
            self.alive = self.build.local("bool", units)
            self.someone = self.build.variable(self.build.constant(True, "bool"))
            everyone = self.build.constant(True, "bool", self.width)
            for base in self.build.range(0, units, self.width):
                self.build.store(self.alive, base, everyone)

    def scratch(self, number: int, dtype: str) -> Buffer:
        """An array with a place for each unit of a group, for use within a statement."""
        key = number, dtype
        if key not in self._scratch:
            self._scratch[key] = self.build.local(dtype, self.width, outermost=True)
        return self._scratch[key]

    # values

    def known(self, atom: Atom) -> Held:
        """What is known to the whole cube of an operand."""
        if not isinstance(atom, Name):
            return self.algebra.even(Value(atom, self.build))
        return self.values[atom.number]

    def asked_of(self, atom: Atom) -> Value:
        """The value of an operand that decides about the whole cube."""
        if isinstance(atom, Name) and atom.number in self.asked:
            return self.asked[atom.number].get()
        held = self.known(atom)
        assert isinstance(held, Even), "the cube asks what all units share"
        return held.value

    def place(self, algebra: Algebra, base: Value, op: str) -> Held:
        """Coordinates of the units of a group, or the sizes of a cube."""
        axis, dim = "xyz".index(op[-1]), self.kernel.cube_dim
        if op.startswith("cube_dim"):
            return algebra.whole(dim[axis])
        if dim[axis] == 1:
            return algebra.whole(0)
        unit = algebra.spread(base, range(self.width), self.width)
        below = math.prod(dim[:axis])
        if below > 1:
            unit = _divide(algebra, "div", unit, below)
        above = math.prod(dim[axis + 1 :])
        return unit if above == 1 else _divide(algebra, "rem", unit, dim[axis])

    # items

    def _items(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Run):
                self._run(item)
            else:
                self._whole(item)

    def _whole(self, item: Whole) -> None:
        s = item.statement
        if (source := rebuild.source_of(s)) is not None:
            self.build.source = source
        match s:
            case ir.Let() | ir.Load() | ir.Read():
                self.values[s.target.number] = self._computed(s)
            case ir.Declare():
                self.variables[s.variable.number] = self.build.variable(self.asked_of(s.init))
            case ir.Assign():
                self.variables[s.variable.number].set(self.asked_of(s.value))
            case ir.Allocate():
                self._allocate(s)
            case ir.If():
                self._if(s, item)
            case ir.For():
                bounds = [self.asked_of(atom) for atom in (s.start, s.stop, s.step)]
                for index in self.build.range(*bounds):
                    self.values[s.index.number] = Even(index)
                    self._items(item.blocks[0])
            case ir.Loop():
                with self.build.loop():
                    if self.someone is not None:
                        self.build.break_when(~self.someone.get())
                    self._items(item.blocks[0])
            case ir.Break() | ir.Continue() | ir.Return():
                self.build.emit(s)
            case _:
                assert isinstance(s, ir.Sync), f"not a statement of a cube: {s}"

    def _computed(self, s: ir.Let | ir.Load | ir.Read) -> Held:
        if isinstance(s, ir.Read):
            return Even(self.variables[s.variable.number].get())
        if isinstance(s, ir.Load):
            mask = None if s.mask is None else self.asked_of(s.mask)
            memory, index = self.memories["global", s.buffer.number], self.asked_of(s.index)
            return Even(self.build.load(memory, index, s.target.type.lanes, mask))
        if s.op.partition(".")[0] in ("unit_pos", "cube_dim"):
            return self.place(self.algebra, self.build.constant(0, "index"), s.op)
        return self.algebra.operate(s, [self.known(atom) for atom in s.args], None)

    def _allocate(self, s: ir.Allocate) -> None:
        old = s.buffer
        over = None if old.over is None else self.memories["shared", old.over]
        self.memories["shared", old.number] = self.build.shared(old.dtype, old.size, over)

    def _if(self, s: ir.If, item: Whole) -> None:
        with self.build.when(self.asked_of(s.condition)):
            self._items(item.blocks[0])
        if s.orelse:
            with self.build.otherwise():
                self._items(item.blocks[1])

    # runs

    def _run(self, run: Run) -> None:
        """All groups, one after the other."""
        if self.someone is not None and has(run.body, ir.Return):
            self.someone.set(False)
        if self.groups == 1:
            self._group(run, self.build.constant(0, "index"))
            return
        for base in self.build.range(0, self.groups * self.width, self.width):
            self._group(run, base)

    def _group(self, run: Run, base: Value) -> None:
        group = Group(self, base, self._mask(base))
        self._mask_returns(group, run)
        touched = self._kept_in(run)
        self._fetch(group, run, touched)
        if self.alive is not None:
            assert group.mask is not None
            with group.narrowed(group.mask):
                group.block(run.body)
        else:
            group.block(run.body)
        self._keep_variables(group, run, touched)

    def _mask(self, base: Value) -> Value | None:
        """Which units of a group there are, and did not return; None if all."""
        mask = None
        if self.units % self.width:
            mask = self.build.lane(self.width) < self.units - base
        if self.alive is None:
            return mask
        alive = self.build.load(self.alive, base, self.width)
        return alive if mask is None else mask & alive

    def _mask_returns(self, group: Group, run: Run) -> None:
        if has(run.body, ir.Return):
            everyone = self.build.constant(True, "bool", self.width)
            group.alive = self.build.variable(everyone if group.mask is None else group.mask)

    def _kept_in(self, run: Run) -> list[Name]:
        """Names with rooms that a run uses or makes."""
        made = {n.number for s in rebuild.every(run.body) for n in units_analysis.defined(s)}
        uses = {name.number for name in units_analysis.used(run.body)}
        return [name for number, name in self.plan.kept.items() if number in made | uses]

    def _fetch(self, group: Group, run: Run, kept: Sequence[Name]) -> None:
        """What other runs left, and what is rather done again."""
        homes = {n.number for s in rebuild.every(run.body) for n in units_analysis.defined(s)}
        declared = {s.variable.number for s in rebuild.each(self.kernel.body, ir.Declare)}
        for number, buffer in self.memories.items():
            if number[0] == "local":
                size = buffer.size // (self.groups * self.width)
                group.memories[number[1]] = buffer, group.base * size
        for name in kept:
            if name.number in declared:
                lines = [self.build.variable(line) for line in self._lines(group, name)]
                group.variables[name.number] = Stored(lines, False, group.mask)
            elif name.number not in homes:
                group.values[name.number] = Lines(tuple(self._lines(group, name)))
        uses = {name.number for name in units_analysis.used(run.body)} - homes
        for let in self._again(uses):
            group.let(let)

    def _again(self, wanted: set[int]) -> list[ir.Let]:
        """The operations that make names again, and what those are made of, in their order."""
        asked, found = list(wanted), set[int]()
        while asked:
            number = asked.pop()
            if number in self.plan.again and number not in found:
                found.add(number)
                args = self.plan.again[number].args
                asked += [atom.number for atom in args if isinstance(atom, Name)]
        lets = rebuild.each(self.kernel.body, ir.Let)
        return [let for let in lets if let.target.number in found]

    def _lines(self, group: Group, name: Name) -> list[Value]:
        """What a room holds for the units of a group."""
        places = self._places(group, name)
        return [self.build.load(self.rooms[name.number], at, self.width) for at in places]

    def _places(self, group: Group, name: Name) -> list[Value]:
        start = group.base * name.type.lanes
        return [start + lane * self.width for lane in range(name.type.lanes)]

    def leave(self, group: Group, s: Stmt) -> None:
        """Keep what a statement made, for other runs and for the cube."""
        for name in units_analysis.defined(s):
            if name.number in self.plan.kept and name.number not in group.variables:
                lines = group.lines(name)
                for at, line in zip(self._places(group, name), lines, strict=True):
                    self.build.store(self.rooms[name.number], at, line)
            if name.number in self.asked:
                self._answer(group, name)

    def _answer(self, group: Group, name: Name) -> None:
        """Tell the cube what the first unit of a group holds that is there."""
        held, answer, build = group.held(name), self.asked[name.number], self.build
        if isinstance(held, Even):
            answer.set(held.value)
            return
        if group.mask is None or self.width == 1:
            firsts = [build.extract(line, 0) for line in group.lines(name)]
        else:
            units = build.lane(self.width)
            first = build.reduce("min", build.select(group.mask, units, self.width - 1))
            arrays = [self.scratch(k, name.type.dtype) for k in range(name.type.lanes)]
            for array, line in zip(arrays, group.lines(name), strict=True):
                build.store(array, 0, line)
            firsts = [build.load(array, first) for array in arrays]
        answer.set(build.join(firsts))

    def _keep_variables(self, group: Group, run: Run, kept: Sequence[Name]) -> None:
        assigned = {s.variable.number for s in rebuild.each(run.body, ir.Assign, ir.Declare)}
        for name in kept:
            if name.number in assigned and name.number in group.variables:
                variables = group.variables[name.number].variables
                for at, variable in zip(self._places(group, name), variables, strict=True):
                    self.build.store(self.rooms[name.number], at, variable.get())
        if group.alive is not None and self.alive is not None and self.someone is not None:
            alive = group.alive.get()
            self.build.store(self.alive, group.base, alive)
            left = self.build.reduce("or", alive)
            self.someone.set(self.someone.get() | left)


_UNIT, _SIZE = (Name(number, Type("index")) for number in (-1, -2))


def _divide(algebra: Algebra, op: str, unit: Held, size: int) -> Held:
    let = ir.Let(Name(-3, Type("index")), op, (_UNIT, _SIZE))
    return algebra.operate(let, [unit, algebra.whole(size)], None)
