"""One run of a group of units, which go through it together: each statement becomes one on lines
with a lane for each unit. Where units part, all go both ways, under masks: `mask` says which units
are there. A loop that units leave one by one (`divergent`) has two lines more: which units `stay`
in it, and which are still `on` in this turn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xcube.errors import LoweringError
from xcube.lowering.cube import ir, rebuild, units_matrix, units_memory, units_planes
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Atom, Buffer, Name, Stmt
from xcube.lowering.cube.units_analysis import has
from xcube.lowering.cube.units_lines import Algebra, Even, Held, Lines, Spread

if TYPE_CHECKING:
    from xcube.lowering.cube.units import Cube

_LOWEST = -(1 << 62)


@dataclass(slots=True)
class Stored:
    """A variable: one for all units, or a line for each lane; `mask`: who was there when it was
    declared."""

    variables: list[Variable]
    even: bool
    mask: Value | None


@dataclass(frozen=True, slots=True)
class Turns:
    """A loop that units leave one by one, or (None) one that they leave together."""

    stay: Variable | None = None
    on: Variable | None = None


class Group:
    """The units of a group on their way through a run."""

    def __init__(self, cube: Cube, base: Value, mask: Value | None) -> None:
        self.cube, self.base, self.mask = cube, base, mask
        self.build: Builder = cube.build
        self.width: int = cube.width
        self.algebra = Algebra(cube.build, cube.width)
        self.values: dict[int, Held] = {}
        self.variables: dict[int, Stored] = {}
        self.memories: dict[int, tuple[Buffer, Value | None]] = {}  # local arrays, and their start
        self.turns: list[Turns] = []
        self.alive: Variable | None = None  # who did not return; None if nobody does in this run

    # operands

    def held(self, atom: Atom) -> Held:
        """What units hold of a literal or a name."""
        if not isinstance(atom, Name):
            return self.algebra.even(Value(atom, self.build))
        known = self.values.get(atom.number)
        return known if known is not None else self.cube.known(atom)

    def lines(self, atom: Atom) -> list[Value]:
        """A line for each lane of an operand."""
        return self.algebra.lines(self.held(atom), atom.type.lanes)

    def masked(self, line: Value) -> Value:
        """A line of conditions that hold for units that are there alone."""
        return line if self.mask is None else self.mask & line

    # statements

    def block(self, body: Sequence[Stmt]) -> None:
        """Statements one after the other; behind one that units leave, those that are left."""
        for number, s in enumerate(body):
            if (source := rebuild.source_of(s)) is not None:
                self.build.source = source
            _STATEMENTS.get(type(s), Group.refuse)(self, s)
            self.cube.leave(self, s)
            rest = body[number + 1 :]
            if rest and self._left(s):
                with self.narrowed(self._present()):
                    self.block(rest)
                return

    def _left(self, s: Stmt) -> bool:
        """Whether some units may have left the block at a statement."""
        if has((s,), ir.Return):
            return True
        jumps = isinstance(s, ir.If) and has((s,), ir.Break, ir.Continue)
        return jumps and bool(self.turns) and self.turns[-1].on is not None

    def _present(self) -> Value:
        """Who is there behind a statement that some units left."""
        on = self.turns[-1].on if self.turns else self.alive
        assert on is not None, "units leave what says who left"
        return self.masked(on.get())

    @contextlib.contextmanager
    def narrowed(self, mask: Value) -> Iterator[None]:
        """Statements for units of a mask, if there are any."""
        before, self.mask = self.mask, mask
        with self.build.when(self.build.reduce("or", mask)):
            yield
        self.mask = before

    def let(self, s: ir.Let) -> None:
        if s.op.partition(".")[0] in ("unit_pos", "cube_dim"):
            self.values[s.target.number] = self.cube.place(self.algebra, self.base, s.op)
            return
        args = [self.held(atom) for atom in s.args]
        self.values[s.target.number] = self.algebra.operate(s, args, self.mask)

    # variables

    def declare(self, s: ir.Declare) -> None:
        number, type = s.variable.number, s.variable.type
        if (old := self.variables.get(number)) is not None:  # one that outlives the run
            self._set(old, s.init)
            return
        if number not in self.cube.differing:
            init = self.held(s.init)
            assert isinstance(init, Even), "the variable is the same for all units"
            self.variables[number] = Stored([self.build.variable(init.value)], True, self.mask)
            return
        lines = self.lines(s.init)
        assert len(lines) == type.lanes
        variables = [self.build.variable(line) for line in lines]
        self.variables[number] = Stored(variables, False, self.mask)

    def assign(self, s: ir.Assign) -> None:
        self._set(self.variables[s.variable.number], s.value)

    def _set(self, stored: Stored, value: Atom) -> None:
        if stored.even:
            held = self.held(value)
            assert isinstance(held, Even), "the variable is the same for all units"
            stored.variables[0].set(held.value)
            return
        for variable, line in zip(stored.variables, self.lines(value), strict=True):
            same = self.mask is None or self.mask is stored.mask
            variable.set(line if same else self.build.select(self.mask, line, variable.get()))  # type: ignore[arg-type]

    def read(self, s: ir.Read) -> None:
        stored = self.variables[s.variable.number]
        values = [variable.get() for variable in stored.variables]
        held = Even(values[0]) if stored.even else Lines(tuple(values))
        self.values[s.target.number] = held

    # branches

    def if_(self, s: ir.If) -> None:
        condition = self.held(s.condition)
        if isinstance(condition, Even):
            self._together(s, condition.value)
            return
        line = self.algebra.line(condition)
        before = self.mask
        sides = ((line, s.then), (~line, s.orelse)) if s.orelse else ((line, s.then),)
        for side, body in sides:
            if body:
                with self.narrowed(self.masked(side)):
                    self.block(body)
        self.mask = before

    def _together(self, s: ir.If, condition: Value) -> None:
        with self.build.when(condition):
            self.block(s.then)
        if s.orelse:
            with self.build.otherwise():
                self.block(s.orelse)

    # loops

    def for_(self, s: ir.For) -> None:
        start, stop, step = (self.held(atom) for atom in (s.start, s.stop, s.step))
        if not isinstance(step, Even) or (isinstance(start, Lines) and self.width > 1):
            self._apart(s, start, stop, step)
            return
        first, limit = self._range(start, stop)
        divergent = id(s) in self.cube.divergent
        turns = self._turns(divergent)
        for index in self.build.range(first, limit, step.value):
            self.values[s.index.number] = self._index(start, index, step)
            here = self._inside_range(s, start, stop)
            with self._turn(turns, here):
                self.block(s.body)

    def _range(self, start: Held, stop: Held) -> tuple[Value, Value]:
        """Where the first unit begins and the last one ends."""
        if isinstance(start, Even):
            first = start.value
        elif isinstance(start, Lines):
            first = start.parts[0]
        else:
            first = start.base + min(start.offsets)
        if isinstance(stop, Even):
            return first, stop.value
        line = self.algebra.line(stop)
        if self.mask is not None:
            line = self.build.select(self.mask, line, _LOWEST)
        return first, self.build.reduce("max", line)

    def _index(self, start: Held, index: Value, step: Even) -> Held:
        """What units hold of an index of which the first one's is known."""
        if not isinstance(start, Spread):
            multiple = start.multiple if isinstance(start, Even) else 0
            return Even(index, _common(multiple, step.multiple))
        lowest = min(start.offsets)
        offsets = [offset - lowest for offset in start.offsets]
        multiple = 0 if lowest else _common(start.multiple, step.multiple)
        return self.algebra.spread(index, offsets, multiple)

    def _inside_range(self, s: ir.For, start: Held, stop: Held) -> Value | None:
        """Which units are in a turn; None if all that are in the loop."""
        if isinstance(start, Even) and isinstance(stop, Even):
            return None
        index = self.algebra.line(self.values[s.index.number])
        return index < self.algebra.line(stop)

    def _apart(self, s: ir.For, start: Held, stop: Held, step: Held) -> None:
        """Each unit with an index of its own."""
        build, algebra = self.build, self.algebra
        turns = self._turns(True)
        index, by = build.variable(algebra.line(start)), algebra.line(step)
        limit = algebra.line(stop)
        with build.loop():
            assert turns.stay is not None
            here = self.masked(turns.stay.get() & (index.get() < limit))
            build.break_when(~build.reduce("or", here))
            self.values[s.index.number] = Lines((index.get(),))
            following = index.get() + by
            with self._turn(turns, here, alone=True):
                self.block(s.body)
            index.set(following)

    def loop(self, s: ir.Loop) -> None:
        turns = self._turns(id(s) in self.cube.divergent)
        with self.build.loop(), self._turn(turns, None):
            self.block(s.body)

    def _turns(self, divergent: bool) -> Turns:
        if not divergent:
            return Turns()
        all_units = self._everyone()
        return Turns(self.build.variable(all_units), self.build.variable(all_units))

    def _everyone(self) -> Value:
        if self.mask is not None:
            return self.mask
        return self.build.constant(True, "bool", self.width)

    @contextlib.contextmanager
    def _turn(self, turns: Turns, here: Value | None, alone: bool = False) -> Iterator[None]:
        """One turn of a loop for the units that stay in it, and are `here`; `alone`: the loop has
        been left already if there are none."""
        before = self.mask
        self.turns.append(turns)
        if turns.stay is None:
            if here is None:
                yield
            else:
                with self.narrowed(self.masked(here)):
                    yield
        else:
            stay = turns.stay.get()
            if not alone:
                self.build.break_when(~self.build.reduce("or", stay))
            present = stay if here is None else stay & here
            turns.on.set(present)  # type: ignore[union-attr]
            with self.narrowed(present):
                yield
        self.turns.pop()
        self.mask = before

    # leaving

    def break_(self, s: ir.Break) -> None:
        turns = self.turns[-1]
        if turns.on is None:
            self.build.emit(ir.Break())
            return
        self._leave(turns.on)
        self._leave(turns.stay)

    def continue_(self, s: ir.Continue) -> None:
        turns = self.turns[-1]
        if turns.on is None:
            self.build.emit(ir.Continue())
            return
        self._leave(turns.on)

    def return_(self, s: ir.Return) -> None:
        self._leave(self.alive)
        for turns in self.turns:
            self._leave(turns.on)
            self._leave(turns.stay)

    def _leave(self, line: Variable | None) -> None:
        """The units that are here are no longer on a line."""
        assert line is not None, "units leave what says who left"
        gone = self._everyone()
        line.set(line.get() & ~gone)

    def refuse(self, s: Stmt) -> None:
        raise LoweringError(
            f"{self.cube.kernel.name}: {type(s).__name__} takes what the CPU has no form for: "
            f"boxes, barriers in memory and groups, or words to people.{rebuild.at_source(s)} "
            f"Choose kernels by the device's features."
        )


def _common(x: int, y: int) -> int:
    """What divides a sum, if both parts are known."""
    return math.gcd(x, y) if x and y else 0


_NOTHING: Callable[[Any, Any], None] = lambda group, s: None  # noqa: E731

_STATEMENTS: dict[type, Callable[[Any, Any], None]] = {
    **{kind: Group.refuse for kind in (*ir.MATRIX, *ir.TILE, ir.Print, ir.Assert)},
    **units_memory.STATEMENTS,
    **units_matrix.STATEMENTS,
    ir.Let: Group.let,
    ir.Declare: Group.declare,
    ir.Assign: Group.assign,
    ir.Read: Group.read,
    ir.If: Group.if_,
    ir.For: Group.for_,
    ir.Loop: Group.loop,
    ir.Break: Group.break_,
    ir.Continue: Group.continue_,
    ir.Return: Group.return_,
    ir.Plane: units_planes.plane,
    ir.SyncPlane: _NOTHING,
}
