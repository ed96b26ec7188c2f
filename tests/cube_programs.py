"""Random kernels of many units that race for nothing: barriers, planes, atomics, branches and loops
that units take apart, lines, arrays of units and of cubes. What each unit computes depends on all
of it, so that a wrong lane shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Buffer, Kernel

SIZE = 5  # of arrays of a unit
DIMS = ((16, 1, 1), (32, 1, 1), (40, 1, 1), (8, 4, 1), (3, 5, 2), (1, 1, 7), (64, 1, 1), (1, 20, 1))


@dataclass
class Scope:
    """What may be used at a place, and what may stand there."""

    values: list[Value]
    whole: bool  # whether all units are there
    depth: int = 0
    jumps: bool = False  # whether a loop is around that units may leave one by one
    local: list[Buffer] = field(default_factory=list)

    def inner(self, whole: bool, jumps: bool) -> Scope:
        return Scope([*self.values], whole, self.depth + 1, jumps, self.local)


class Writer:
    """Writes one random kernel of the buffers b0 (i32), out (i32) and counts (i32, 4 elements)."""

    def __init__(self, seed: int, meets: bool = True) -> None:
        self.random = np.random.default_rng(seed)
        self.dim = DIMS[self.random.integers(len(DIMS))]
        self.meets = meets
        self.planes = meets and self.random.random() < 0.5
        self.build = Builder(f"random{seed}", self.dim)  # type: ignore[arg-type]

    @property
    def units(self) -> int:
        return self.dim[0] * self.dim[1] * self.dim[2]

    def kernel(self) -> Kernel:
        b, (wide, high, _) = self.build, self.dim
        self.data, self.out = b.buffer("i32"), b.buffer("i32", "out")
        self.counts, self.bound = b.buffer("i32", "inout"), b.scalar()
        x, y, z = (b.place(f"unit_pos.{axis}") for axis in "xyz")
        self.unit = x + y * wide + z * (wide * high)
        self.at = b.place("cube_pos.x") * self.units + self.unit
        self.shared = b.shared("i32", self.units)
        self.variables = [b.variable(b.load(self.data, self.at)), b.variable(self.unit.cast("i32"))]
        b.store(self.out, self.at, b.constant(-1, "i32"))
        scope = Scope([variable.get() for variable in self.variables], True)
        self.block(scope, 7)
        total = scope.values[0]
        for value in (*scope.values[1:], *[variable.get() for variable in self.variables]):
            total = total * 31 + value
        b.store(self.out, self.at, total)
        return b.finish()

    # choices

    def pick(self, scope: Scope) -> Value:
        return scope.values[self.random.integers(len(scope.values))]

    def condition(self, scope: Scope) -> Value:
        """Something that may differ between units."""
        kind = self.random.integers(3)
        if kind == 0:
            return self.unit < int(self.random.integers(self.units + 1))
        if kind == 1:
            return (self.pick(scope) & 3).eq(int(self.random.integers(4)))
        return self.pick(scope) < self.pick(scope)

    def few(self, scope: Scope) -> Value:
        """An index from 0 to 3."""
        return (self.pick(scope) & 3).cast("index")

    def block(self, scope: Scope, count: int) -> None:
        for _ in range(count):
            names = [name for name, allowed in KINDS.items() if allowed(self, scope)]
            getattr(self, names[self.random.integers(len(names))])(scope)

    # statements

    def arithmetic(self, scope: Scope) -> None:
        op = ("add", "sub", "mul", "xor", "min", "max", "div", "rem")[self.random.integers(8)]
        scope.values.append(self.build.op(op, self.pick(scope), self.pick(scope)))

    def line(self, scope: Scope) -> None:
        b = self.build
        pair = b.join([self.pick(scope), self.pick(scope), self.pick(scope), self.pick(scope)])
        mixed = b.shuffle(pair, [3, 1, 0, 2]) + pair * b.lane(4, "i32")
        bits = mixed.bitcast("i16").bitcast("i32")
        scope.values.append(b.reduce("add", bits ^ b.load(self.data, self.few(scope), 4)))

    def index(self, scope: Scope) -> None:
        b, number = self.build, int(self.random.integers(1, 9))
        place = (self.unit * number + self.few(scope)) % (2 * self.units)
        scope.values.append(b.load(self.data, place, mask=self.condition(scope)))
        scope.values.append((self.unit // number * 3 + self.unit % number).cast("i32"))

    def assign(self, scope: Scope) -> None:
        self.variable().set(self.pick(scope))

    def variable(self) -> Variable:
        return self.variables[self.random.integers(len(self.variables))]

    def read(self, scope: Scope) -> None:
        scope.values.append(self.variable().get())

    def array(self, scope: Scope) -> None:
        b = self.build
        if not scope.local:
            scope.local.append(b.local("i32", SIZE))
            for place in range(SIZE):
                b.store(scope.local[-1], place, self.pick(scope))
        array = scope.local[self.random.integers(len(scope.local))]
        b.store(array, self.few(scope), self.pick(scope), self.condition(scope))
        scope.values.append(b.load(array, self.few(scope)))
        scope.values.append(b.extract(b.load(array, 1, 2), 1))

    def branch(self, scope: Scope) -> None:
        with self.build.when(self.condition(scope)):
            self.block(scope.inner(False, scope.jumps), 3)
        if self.random.random() < 0.5:
            with self.build.otherwise():
                self.block(scope.inner(False, scope.jumps), 2)

    def counted(self, scope: Scope) -> None:
        """A loop over a range that may differ between units in each of its bounds."""
        start, stop, step = (self.few(scope) for _ in range(3))
        kind = self.random.integers(4)
        first = 0 if kind < 2 else self.unit if kind == 2 else start
        last = self.bound if kind == 0 else stop + 2 if kind < 3 else self.bound
        by = 1 if kind < 2 else int(self.random.integers(1, 4)) if kind == 2 else step + 1
        for index in self.build.range(first, last, by):
            inner = scope.inner(False, True)
            inner.values.append(index.cast("i32"))
            self.block(inner, 2)
            self.tally(inner)

    def repeated(self, scope: Scope) -> None:
        b, turn = self.build, self.build.variable(self.build.constant(0, "i32"))
        limit = self.pick(scope) & 3
        with b.loop():
            now = turn.get()
            b.break_when(now >= limit)
            turn.set(now + 1)
            inner = scope.inner(False, True)
            inner.values.append(now)
            self.block(inner, 2)
            self.tally(inner)

    def tally(self, scope: Scope) -> None:
        """What a turn of a loop leaves behind."""
        variable = self.variable()
        variable.set(variable.get() * 3 + self.pick(scope))

    def jump(self, scope: Scope) -> None:
        kind = (ir.Break, ir.Continue)[self.random.integers(2)]
        with self.build.when(self.condition(scope)):
            self.build.emit(kind())

    def leave(self, scope: Scope) -> None:
        with self.build.when(self.condition(scope) & self.condition(scope)):
            self.build.store(self.out, self.at, self.pick(scope))
            self.build.emit(ir.Return())

    def count(self, scope: Scope) -> None:
        op = ("add", "sub")[self.random.integers(2)]
        place = int(self.random.integers(2)) if self.random.random() < 0.5 else self.few(scope) & 1
        self.build.atomic(op, self.counts, place, self.pick(scope))
        highest = self.build.atomic("max", self.counts, self.few(scope) % 2 + 2, self.pick(scope))
        del highest  # depends on the order of units

    def meet(self, scope: Scope) -> None:
        b, distance = self.build, int(self.random.integers(1, self.units + 1))
        b.store(self.shared, self.unit, self.pick(scope))
        b.sync()
        scope.values.append(b.load(self.shared, (self.unit + distance) % self.units))
        b.sync()

    def meet_in_turns(self, scope: Scope) -> None:
        """A loop that all units take together, around a barrier."""
        for index in self.build.range(0, self.bound):
            inner = scope.inner(True, False)
            inner.values.append(index.cast("i32"))
            self.block(inner, 2)
            self.meet(inner)
            self.tally(inner)

    def meet_until(self, scope: Scope) -> None:
        """A loop that all units leave when they read so in shared memory."""
        b = self.build
        turn = b.variable(b.constant(0, "i32"))
        with b.loop():
            b.store(self.shared, self.unit, turn.get())
            b.sync()
            seen = b.load(self.shared, self.units - 1)
            b.sync()
            b.break_when(seen >= 2)
            turn.set(turn.get() + 1)
            inner = scope.inner(True, False)
            self.block(inner, 2)
            self.tally(inner)

    def plane(self, scope: Scope) -> None:
        b, value = self.build, self.pick(scope)
        op = tuple(planes.OPS)[self.random.integers(len(planes.OPS))]
        if planes.OPS[op] == ("bool",):
            value = self.condition(scope)
        argument = None
        if op in planes.SHUFFLES:
            steady = op == "broadcast" or self.random.random() < 0.5
            argument = int(self.random.integers(20)) if steady else self.few(scope)
        scope.values.append(b.plane(op, value, argument).cast("i32"))


KINDS: dict[str, Callable[[Writer, Scope], bool]] = {
    **dict.fromkeys(("arithmetic", "line", "index", "assign", "read"), lambda w, s: True),
    "array": lambda w, s: not s.depth or bool(s.local),
    **dict.fromkeys(("branch", "counted", "repeated"), lambda w, s: s.depth < 3),
    "jump": lambda w, s: s.jumps,
    "leave": lambda w, s: not w.meets,
    "count": lambda w, s: True,
    **dict.fromkeys(("meet", "meet_in_turns"), lambda w, s: w.meets and s.whole and s.depth < 2),
    "meet_until": lambda w, s: w.meets and s.whole and s.depth < 2,
    "plane": lambda w, s: w.planes and s.whole,
}
