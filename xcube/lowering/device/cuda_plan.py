"""How a program's steps run on a GPU: what can be one graph, and what the host has to drive.

A *place* is a base and an offset in bytes; bases are the pointers of one run: null (constants are
offsets from it), inputs, outputs, the arena, and the registers of loops that the host drives.
Inside a *straight* piece all places are known in terms of the bases when it begins: loops of known
length are unrolled, and other control flow becomes conditional nodes of the graph. What is too
long, calls Python, or moves registers by an unknown number of turns stays with the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xcube import errors
from xcube.lowering.device.base import (
    Branch,
    Buffer,
    Copy,
    HostCall,
    Launch,
    Loop,
    Ref,
    Register,
    Rotation,
    Step,
    While,
    every_step,
)

LIMIT = 2048
"""Nodes of one graph at most; instantiating one takes several microseconds a node."""

MOVES = 8
"""Copies that one kernel makes at most."""

Place = tuple[int, int]
Scope = dict[int, Place]  # registers whose place is known


# what a graph does ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One kernel over `cubes` cubes."""

    kernel: int
    places: tuple[Place, ...]
    scalars: tuple[int, ...]
    cubes: int


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Copies (target, source, bytes) that do not touch each other's memory."""

    copies: tuple[tuple[Place, Place, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """`test`, and while the bool at `predicate` holds, `body` and `test` again."""

    test: tuple[Node, ...]
    predicate: Place
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choose:
    """The branch that the i32 at `index` names, clamped."""

    index: Place
    branches: tuple[tuple[Node, ...], ...]


Node = Run | Move | Repeat | Choose


# what the host does ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Straight:
    """Nodes without the host's help: a graph, or launches one by one."""

    nodes: tuple[Node, ...]

    @property
    def is_flat(self) -> bool:
        """Whether there are kernels only."""
        return all(isinstance(node, Run | Move) for node in self.nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Set `starts`, one after the other; then each section: how often, the plan, what moves after
    it, all at once."""

    starts: Moved
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Until:
    """Set `starts`; run `test`, and while the bool at `predicate` holds: `body`, move `after`, and
    `test` again."""

    starts: Moved
    test: Plan
    predicate: Place
    body: Plan
    after: Moved


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """The plan that the i32 at `index` names, clamped."""

    index: Place
    branches: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A Python function of the arrays at `operands`, its results to go to `results`."""

    call: HostCall
    operands: tuple[Place, ...]
    results: tuple[Place, ...]


Item = Straight | Turns | Until | Pick | Call
Plan = tuple[Item, ...]
Moved = tuple[tuple[int, Place], ...]  # bases and where they point from now on
Section = tuple[int, Plan, Moved]


class Bases:
    """Numbers the pointers of a run, `count` of them: null, inputs, outputs, arena, registers."""

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        constants: Sequence[Buffer],
        has_arena: bool,
        steps: Sequence[Step],
    ) -> None:
        loops = [step for step in every_step(steps) if isinstance(step, Loop | While)]
        numbers = [register.number for loop in loops for register in loop.registers]
        self._constants = tuple(constants)
        self._sizes = {
            "input": n_inputs,
            "output": n_outputs,
            "arena": int(has_arena),
            "register": 1 + max(numbers, default=-1),
            "constant": len(self._constants),
        }
        arena = 1 + n_inputs + n_outputs
        self._first = {"input": 1, "output": 1 + n_inputs, "arena": arena}
        self._first["register"] = arena + has_arena
        self.count = arena + has_arena + self.registers

    @property
    def registers(self) -> int:
        """How many registers there are."""
        return self._sizes["register"]

    def number(self, register: int) -> int:
        """The base of a register."""
        return self._first["register"] + register

    def place(self, ref: Ref, scope: Scope) -> Place:
        """Where a ref is, given the registers whose place is known.

        Raises LoweringError if the program does not have it.
        """
        size = self._sizes[ref.space]
        if not 0 <= ref.index < size:
            raise errors.LoweringError(
                f"link: a step refers to {ref.space} {ref.index}; the program has {size}."
            )
        if ref.space == "constant":
            return 0, self._constants[ref.index].pointer + ref.offset
        base, offset = self._first[ref.space] + ref.index, 0
        if ref.space == "register":
            base, offset = scope.get(ref.index, (base, 0))
        return base, offset + ref.offset


class Planner:
    """Makes the plan of a program. `kernels`: how many it has. `conditional`: whether graphs may
    hold control flow. `limit`: nodes of a graph at most."""

    def __init__(
        self, bases: Bases, kernels: int, conditional: bool = True, limit: int = LIMIT
    ) -> None:
        self._bases, self._kernels = bases, kernels
        self._conditional, self._limit = conditional, limit
        self._sizes: dict[int, int] = {}

    def program(self, steps: Sequence[Step]) -> Plan:
        """The plan of a whole program."""
        self._sizes = _sizes(steps)
        return self.plan(steps, {})

    def plan(self, steps: Sequence[Step], scope: Scope) -> Plan:
        """The plan of steps; `scope` becomes what is known behind them."""
        items: list[Item] = []
        nodes: list[Node] = []
        room = 0.0
        for step in steps:
            size = self._size(step)
            if nodes and size > room:
                items.append(Straight(tuple(nodes)))
                nodes = []
            if size > self._limit:
                items.append(self._driven(step, scope))
                continue
            room = (room if nodes else self._limit) - size
            nodes += self._flat(step, scope)
        if nodes:
            items.append(Straight(tuple(nodes)))
        return tuple(items)

    # sizes ------------------------------------------------------------------------------------

    def _size(self, step: Step) -> float:
        """Nodes that a step becomes in a graph; infinite if it cannot be in one."""
        if isinstance(step, Launch | Copy):
            return 1
        if isinstance(step, Loop):
            return step.turns * self._total(step.body) if step.turns else 0
        if isinstance(step, HostCall) or not self._conditional:
            return math.inf
        if isinstance(step, Branch):
            return 2 + sum(map(self._total, step.branches))
        if any(register.step for register in step.registers):
            return math.inf
        if any(read not in self._sizes for read, _, _ in step.rotations):
            return math.inf
        return 3 + 2 * self._total(step.test) + self._total(step.body) + len(step.rotations)

    def _total(self, steps: Sequence[Step]) -> float:
        return sum(map(self._size, steps))

    # in a graph -------------------------------------------------------------------------------

    def _block(self, steps: Sequence[Step], scope: Scope) -> list[Node]:
        return [node for step in steps for node in self._flat(step, scope)]

    def _flat(self, step: Step, scope: Scope) -> list[Node]:
        if isinstance(step, Launch):
            return self._run(step, scope)
        if isinstance(step, Copy):
            places = self._bases.place(step.target, scope), self._bases.place(step.source, scope)
            return _moves([(*places, step.nbytes)])
        if isinstance(step, Loop):
            self._begin(step.registers, scope)
            return self._unrolled(step, scope, step.turns)
        if isinstance(step, While):
            return self._repeat(step, scope)
        assert isinstance(step, Branch)
        index = self._bases.place(step.index, scope)
        bodies = [tuple(self._block(branch, dict(scope))) for branch in step.branches]
        return [Choose(index, tuple(bodies))]

    def _run(self, launch: Launch, scope: Scope) -> list[Node]:
        if not 0 <= launch.kernel < self._kernels:
            raise errors.LoweringError(
                f"link: a launch refers to kernel {launch.kernel}; the program has {self._kernels}."
            )
        places = tuple([self._bases.place(ref, scope) for ref in launch.buffers])
        if launch.cubes <= 0:
            return []
        return [Run(launch.kernel, places, launch.scalars, launch.cubes)]

    def _unrolled(self, loop: Loop, scope: Scope, turns: int) -> list[Node]:
        nodes: list[Node] = []
        for _ in range(turns):
            nodes += self._block(loop.body, scope)
            self._advance(loop.registers, loop.rotations, scope)
        return nodes

    def _repeat(self, loop: While, scope: Scope) -> list[Node]:
        """A loop of unknown length. Every turn must find its operands at the same places: what a
        rotation carries is copied to its spare place before the loop and after each turn."""
        self._begin(loop.registers, scope)
        before, after = [], []
        for read, write, spare in loop.rotations:
            before.append((scope[spare], scope[read], self._sizes[read]))
            after.append((scope[spare], scope[write], self._sizes[read]))
            scope[read] = scope[spare]
        test = tuple(self._block(loop.test, dict(scope)))
        body = (*self._block(loop.body, dict(scope)), *_moves(after))
        return [*_moves(before), Repeat(test, self._bases.place(loop.predicate, scope), body)]

    def _begin(self, registers: Sequence[Register], scope: Scope) -> None:
        for register in registers:
            scope[register.number] = self._bases.place(register.start, scope)

    def _advance(
        self, registers: Sequence[Register], rotations: Sequence[Rotation], scope: Scope
    ) -> None:
        """After a turn: registers step on, and rotations make what was written be read."""
        for register in registers:
            base, offset = self._place_of(register.number, scope)
            scope[register.number] = base, offset + register.step
        for read, write, spare in rotations:
            written, free = self._place_of(write, scope), self._place_of(spare, scope)
            scope[read], scope[write], scope[spare] = written, free, written

    def _place_of(self, register: int, scope: Scope) -> Place:
        return scope.get(register, (self._bases.number(register), 0))

    # by the host ------------------------------------------------------------------------------

    def _driven(self, step: Step, scope: Scope) -> Item:
        if isinstance(step, Loop):
            return self._turns(step, scope)
        if isinstance(step, While):
            return self._until(step, scope)
        if isinstance(step, Branch):
            index = self._bases.place(step.index, scope)
            return Pick(index, tuple([self.plan(body, dict(scope)) for body in step.branches]))
        assert isinstance(step, HostCall)
        operands = tuple([self._bases.place(operand.ref, scope) for operand in step.operands])
        results = tuple([self._bases.place(result.ref, scope) for result in step.results])
        return Call(step, operands, results)

    def _starts(self, registers: Sequence[Register], scope: Scope) -> Moved:
        """Assignments that begin a loop; its registers are bases from here on."""
        starts = []
        for register in registers:
            place = self._bases.place(register.start, scope)
            scope.pop(register.number, None)
            starts.append((self._bases.number(register.number), place))
        return tuple(starts)

    def _turns(self, loop: Loop, scope: Scope) -> Turns:
        """As many turns as fit into one straight piece at a time, and those that are left."""
        starts = self._starts(loop.registers, scope)
        at_once = int(min(loop.turns, self._limit // max(1, self._total(loop.body))))
        if not at_once:
            return Turns(starts, (self._section(loop, scope, loop.turns, 0),))
        times, left = divmod(loop.turns, at_once)
        sections = [self._section(loop, scope, times, at_once)]
        if left:
            sections.append(self._section(loop, scope, 1, left))
        return Turns(starts, tuple(sections))

    def _section(self, loop: Loop, scope: Scope, times: int, turns: int) -> Section:
        """So many turns at once, so many times; 0 at once: one turn, driven by the host."""
        inner = dict(scope)
        if turns:
            plan: Plan = (Straight(tuple(self._unrolled(loop, inner, turns))),)
        else:
            plan = self.plan(loop.body, inner)
            self._advance(loop.registers, loop.rotations, inner)
        return times, plan, self._after(loop.registers, inner)

    def _until(self, loop: While, scope: Scope) -> Until:
        starts = self._starts(loop.registers, scope)
        predicate = self._bases.place(loop.predicate, scope)
        inner = dict(scope)
        test = self.plan(loop.test, dict(scope))
        body = self.plan(loop.body, inner)
        self._advance(loop.registers, loop.rotations, inner)
        return Until(starts, test, predicate, body, self._after(loop.registers, inner))

    def _after(self, registers: Sequence[Register], scope: Scope) -> Moved:
        """What the registers become, in terms of the bases before; all at once."""
        numbers = [register.number for register in registers if register.number in scope]
        pairs = [(self._bases.number(number), scope[number]) for number in numbers]
        return tuple([(base, place) for base, place in pairs if place != (base, 0)])


def _moves(copies: Sequence[tuple[Place, Place, int]]) -> list[Node]:
    """Nodes for copies; none for what is in its place."""
    needed = [copy for copy in copies if copy[0] != copy[1] and copy[2]]
    return [Move(tuple(needed[k : k + MOVES])) for k in range(0, len(needed), MOVES)]


def _sizes(steps: Sequence[Step]) -> dict[int, int]:
    """Bytes of what registers point to, as far as copies from them tell. They do so for all that a
    loop of unknown length carries from turn to turn: it is copied to where it is wanted at last."""
    copies = (step for step in every_step(steps) if isinstance(step, Copy))
    return {c.source.index: c.nbytes for c in copies if c.source.space == "register"}
