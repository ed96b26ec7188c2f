"""Steps over planned memory: the last stage before a device links a program.

Every variable of the program lives in an input, an output, or a slot of one arena (see memory.py).
A donated input's memory becomes an output's where the program allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube.ir import Jaxpr, Literal, Var
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device.base import (
    Branch,
    Copy,
    HostCall,
    Launch,
    Loop,
    Operand,
    Ref,
    Register,
    Rotation,
    Step,
    While,
    every_step,
)
from xcube.lowering.kernels.work import Block, Control, Work
from xcube.lowering.memory import ALIGN, Layout, Room, layout
from xcube.primitives import lowered


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Kernels and steps with their memory.

    `keys`: the texts that identify the kernels. `outputs`: for each result of the jaxpr, which
    output buffer or which input it is. `donated`: output buffer -> input whose memory it takes.
    `constants`: arrays that it reads.
    """

    jaxpr: Jaxpr
    kernels: tuple[Kernel, ...]
    keys: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]
    output_nbytes: tuple[int, ...]
    arena_nbytes: int
    donated: dict[int, int] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches, those inside control flow included."""
        return tuple([step for step in every_step(self.steps) if isinstance(step, Launch)])

    def __str__(self) -> str:
        lines = [
            f"program {self.jaxpr.name}: {len(self.launches)} launches, "
            f"{len(self.kernels)} kernels, arena {self.arena_nbytes} bytes"
        ]
        for number, step in enumerate(self.steps):
            first, *rest = self._lines(step)
            lines += [f"{number:4} {first}", *(f"     {line}" for line in rest)]
        for output, source in self.donated.items():
            lines.append(f"     output {output} takes the memory of input {source}")
        return "\n".join(lines)

    __repr__ = __str__

    def _lines(self, step: Step) -> list[str]:
        if isinstance(step, Launch):
            buffers = " ".join(map(_place, step.buffers))
            return [f"{self.kernels[step.kernel].name:<16} cubes={step.cubes:<8} {buffers}"]
        if isinstance(step, Copy):
            return [f"copy {step.nbytes} bytes {_place(step.target)} <- {_place(step.source)}"]
        if isinstance(step, Loop):
            return [f"loop {step.turns} turns", *_state(step), *self._body(step.body)]
        if isinstance(step, While):
            head = ["while", *_state(step), *self._body(step.test)]
            return [*head, f"do, if {_place(step.predicate)}", *self._body(step.body)]
        if isinstance(step, Branch):
            lines = [f"branch on {_place(step.index)}"]
            for number, body in enumerate(step.branches):
                lines += [f"case {number}", *self._body(body)]
            return lines
        operands = " ".join(_place(operand.ref) for operand in step.operands)
        results = " ".join(_place(operand.ref) for operand in step.results)
        return [f"call {operands} -> {results}"]

    def _body(self, steps: Sequence[Step]) -> list[str]:
        return [f"  {line}" for step in steps for line in self._lines(step)]


def _state(step: Loop | While) -> list[str]:
    lines = [
        f"  register{r.number} from {_place(r.start)}" + (f" by {r.step} bytes" if r.step else "")
        for r in step.registers
    ]
    turns = [" -> ".join(f"register{n}" for n in rotation) for rotation in step.rotations]
    return [*lines, *(f"  each turn {turn}" for turn in turns)]


def _place(ref: Ref) -> str:
    if ref.space == "arena":
        return f"arena+{ref.offset}"
    return f"{ref.space}{ref.index}" + (f"+{ref.offset}" if ref.offset else "")


def plan(block: Block) -> Program:
    """Place every variable and make the steps."""
    jaxpr, taken = block.jaxpr, block.taken
    homes = {var: Ref("input", n) for n, var in enumerate(jaxpr.inputs)}
    results = (a for a in jaxpr.outputs if isinstance(a, Var) and a not in homes)
    results = list(dict.fromkeys(results))
    homes.update((var, Ref("output", n)) for n, var in enumerate(results))
    numbers = {var: n for n, var in enumerate(jaxpr.inputs)}
    writer = _Writer({homes[var]: homes[source] for var, source in taken.items()})
    found = layout(block, homes, writer.rooms)
    steps = writer.steps(block, found, homes, 0)
    return Program(
        jaxpr,
        tuple(writer.kernels),
        tuple(writer.numbers),
        tuple(steps),
        tuple([homes[atom] for atom in jaxpr.outputs if isinstance(atom, Var)]),
        tuple([var.aval.nbytes for var in results]),
        found.size,
        {n: numbers[taken[var]] for n, var in enumerate(results) if var in taken},
        tuple(writer.constants),
    )


class _Places:
    """Where the variables of one block are: in their homes, or in the arena from `base` on."""

    def __init__(self, homes: dict[Var, Ref], found: Layout, base: int) -> None:
        self.homes, self.found, self.base = homes, found, base

    def __getitem__(self, var: Var) -> Ref:
        root = self.found.roots.get(var, var)
        if (home := self.homes.get(root)) is not None:
            return home
        return Ref("arena", 0, self.base + self.found.offsets[root])

    def room(self, control: Control) -> int:
        return self.base + self.found.offsets.get(control, 0)


class _Writer:
    """Makes the steps of blocks; numbers their kernels and registers. `shared`: outputs that lie in
    an input's memory."""

    def __init__(self, shared: dict[Ref, Ref]) -> None:
        self.shared = shared
        self.kernels: list[Kernel] = []
        self.numbers: dict[str, int] = {}
        self.rooms: dict[Control, Room] = {}
        self.constants: list[Any] = []
        self.registers = 0

    def steps(self, block: Block, found: Layout, homes: dict[Var, Ref], base: int) -> list[Step]:
        places = _Places(homes, found, base)
        steps: list[Step] = []
        for work in block.works:
            if isinstance(work, Control):
                steps += self._control(work, places)
            else:
                steps.append(self._launch(work, places))
        return steps

    def _launch(self, work: Work, places: _Places) -> Launch:
        key = work.key
        if key not in self.numbers:
            self.numbers[key] = len(self.kernels)
            self.kernels.append(work.kernel)
        refs = tuple([places[var] for var in work.buffers])
        return Launch(self.numbers[key], refs, work.scalars, work.cubes, work.grain)

    def _control(self, control: Control, places: _Places) -> list[Step]:
        rule = control.equation.primitive.lower
        if isinstance(rule, lowered.Barrier):
            return []
        if isinstance(rule, lowered.HostCall):
            return [_host_call(control, places)]
        if isinstance(rule, lowered.Constant):
            places.homes[control.equation.outputs[0]] = Ref("constant", len(self.constants))
            self.constants.append(control.equation.params["held"].value)
            return []
        if rule.kind == "cond":
            return [self._branch(control, places)]
        return _LoopWriter(self, control, places).steps()

    def _branch(self, control: Control, places: _Places) -> Branch:
        eqn, room = control.equation, self.rooms[control]
        index, *operands = [places[_variable(atom)] for atom in eqn.inputs]
        results = [places[var] for var in eqn.outputs]
        base = places.room(control) + room.start
        branches = []
        for block, found in zip(control.blocks, room.layouts, strict=True):
            homes = dict(zip(block.jaxpr.inputs, operands, strict=True))
            homes.update(zip(map(_variable, block.jaxpr.outputs), results, strict=True))
            branches.append(tuple(self.steps(block, found, homes, base)))
        return Branch(index, tuple(branches))

    def register(self) -> int:
        self.registers += 1
        return self.registers - 1


class _LoopWriter:
    """Makes the steps of one loop: where what it carries lies, and what each turn moves on."""

    def __init__(self, writer: _Writer, control: Control, places: _Places) -> None:
        self.writer, self.control, self.places = writer, control, places
        self.eqn, self.room = control.equation, writer.rooms[control]
        self.base = places.room(control)
        self.registers: list[Register] = []
        self.rotations: list[Rotation] = []
        self.before: list[Step] = []
        self.head: list[Step] = []
        self.tail: list[Step] = []
        self.after: list[Step] = []

    def steps(self) -> list[Step]:
        params = self.eqn.params
        inputs = [self.places[_variable(atom)] for atom in self.eqn.inputs]
        if self.eqn.primitive.lower.kind == "scan":
            return self._scan(inputs, params["num_consts"], params["num_carry"])
        return self._while(inputs, params["cond_nconsts"], params["body_nconsts"])

    def _scan(self, inputs: Sequence[Ref], first: int, count: int) -> list[Step]:
        turns, (body,) = self.eqn.params["length"], self.control.blocks
        names, results = body.jaxpr.inputs, body.jaxpr.outputs
        homes = dict(zip(names[:first], inputs[:first], strict=True))
        for n in range(count):
            pair = names[first + n], _variable(results[n])
            homes |= self._carry(body, pair, inputs[first + n], self.eqn.outputs[n], turns)
        for name, ref in zip(names[first + count :], inputs[first + count :], strict=True):
            homes[name] = self._slice(name, ref, turns, is_read=True)
        for var, out in zip(results[count:], self.eqn.outputs[count:], strict=True):
            name = _variable(var)
            homes[name] = self._slice(name, self.places[out], turns, is_read=False)
        steps = (*self.head, *self._block(0, homes), *self.tail)
        loop = Loop(turns, steps, tuple(self.registers), tuple(self.rotations))
        return [*self.before, loop, *self.after]

    def _while(self, inputs: Sequence[Ref], first: int, second: int) -> list[Step]:
        test, body = self.control.blocks
        inits = inputs[first + second :]
        homes = dict(zip(body.jaxpr.inputs[:second], inputs[first : first + second], strict=True))
        state = body.jaxpr.inputs[second:]
        for n, out in enumerate(self.eqn.outputs):
            pair = state[n], _variable(body.jaxpr.outputs[n])
            homes |= self._carry(body, pair, inits[n], out)
        tested = dict(zip(test.jaxpr.inputs[:first], inputs[:first], strict=True))
        pairs = zip(test.jaxpr.inputs[first:], state, strict=True)
        tested.update((name, homes[var]) for name, var in pairs)
        found = _Places(tested, self.room.layouts[0], self.base + self.room.start)
        predicate = found[_variable(test.jaxpr.outputs[0])]
        steps = tuple(self._block(0, tested)), predicate, tuple(self._block(1, homes))
        loop = While(*steps, tuple(self.registers), tuple(self.rotations))
        return [*self.before, loop, *self.after]

    def _block(self, number: int, homes: dict[Var, Ref]) -> list[Step]:
        block, found = self.control.blocks[number], self.room.layouts[number]
        return self.writer.steps(block, found, homes, self.base + self.room.start)

    def _carry(
        self, body: Block, pair: tuple[Var, Var], init: Ref, out: Var, turns: int | None = None
    ) -> dict[Var, Ref]:
        """Where a turn reads and writes a carried value, which ends in its result's place."""
        (name, var), home, nbytes = pair, self.places[out], out.aval.nbytes
        if var in body.taken:
            self.before.append(Copy(home, init, nbytes))
            return {name: home, var: home}
        spare = Ref("arena", 0, self.base + self.room.slots[var])
        in_place = init == self.writer.shared.get(home, home)
        is_last = turns is not None and not in_place and turns % 2 == 1
        places = (home, spare) if is_last or (turns is None and not in_place) else (spare, home)
        read, write, rest = (self.writer.register() for _ in range(3))
        self.registers.append(Register(read, init))
        self.registers += [Register(r, p) for r, p in zip((write, rest), places, strict=True)]
        self.rotations.append((read, write, rest))
        if turns is None or (in_place and turns % 2 == 1):
            self.after.append(Copy(home, Ref("register", read), nbytes))
        return {name: Ref("register", read), var: Ref("register", write)}

    def _slice(self, name: Var, stacked: Ref, turns: int, is_read: bool) -> Ref:
        """Where a turn's slice of a stacked array is: there, or in a slot of its own."""
        nbytes = name.aval.nbytes
        start, step = stacked, nbytes
        if self.eqn.params["reverse"]:
            start = Ref(stacked.space, stacked.index, stacked.offset + (turns - 1) * nbytes)
            step = -nbytes
        number = self.writer.register()
        self.registers.append(Register(number, start, step))
        place = Ref("register", number)
        if nbytes % ALIGN == 0:
            return place
        slot = Ref("arena", 0, self.base + self.room.slots[name])
        if is_read:
            self.head.append(Copy(slot, place, nbytes))
        else:
            self.tail.append(Copy(place, slot, nbytes))
        return slot


def _host_call(control: Control, places: _Places) -> HostCall:
    eqn = control.equation
    operands = [_operand(_variable(atom), places) for atom in eqn.inputs]
    results = [_operand(var, places) for var in eqn.outputs]
    source = str(eqn.source) if eqn.source else ""
    return HostCall(eqn.params["function"], tuple(operands), tuple(results), source)


def _operand(var: Var, places: _Places) -> Operand:
    return Operand(places[var], var.aval.shape, var.aval.dtype)


def _variable(atom: Var | Literal) -> Var:
    assert isinstance(atom, Var), "control flow has no literals among its operands and results"
    return atom
