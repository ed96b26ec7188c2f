"""The template of users' kernels: results that begin as operands are copied, those that begin as
zeros are filled, and then the kernel runs as it was written."""

from __future__ import annotations

from xcube.ir import Atom, Equation, Literal, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube import decompose, scalars
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.ir import BITS
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.launch import Launched, Slot

COPY = 1 << 14  # elements that one cube copies where a cube is a task


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of a user's kernel; an operand among `sources` has the result's memory."""
    root = group.root
    assert root is not None
    avals = [atom.aval for atom in root.inputs]
    launched: Launched = root.params["handle"].launched(avals, facts)
    maker = _Maker(root, facts, sources)
    variables = tuple([maker.variable(slot) for slot in launched.slots])
    for slot in launched.blank:
        maker.variable(slot)
    kernel, cells = decompose.decompose(launched.kernel), launched.cells
    if scalars.asks_count(kernel):
        kernel, cells = scalars.count_given(kernel), (*cells, launched.cubes)
    return [*maker.before, Work(kernel, variables, cells, launched.cubes, 1)]


class _Maker:
    """Variables behind slots, and what must run before the kernel so that they hold what it finds
    there."""

    def __init__(self, root: Equation, facts: Facts, sources: frozenset[Var]) -> None:
        self.root, self.facts, self.sources = root, facts, sources
        self.before: list[Work] = []

    def variable(self, slot: Slot) -> Var:
        operand = None if slot.operand is None else self.root.inputs[slot.operand]
        if slot.output is None and slot.aval is None:
            assert operand is not None, "a slot has something behind it"
            return self._read(operand)
        own = None if slot.output is None else self.root.outputs[slot.output]
        target = Var(slot.aval) if own is None else own  # type: ignore[arg-type]
        if operand is not None and operand not in self.sources:
            self._begin(target, operand)
        elif slot.zeroed:
            self._begin(target, None)
        return target

    def _read(self, operand: Atom) -> Var:
        if isinstance(operand, Var):
            return operand
        target = Var(operand.aval)
        self._begin(target, operand)
        return target

    def _begin(self, target: Var, source: Atom | None) -> None:
        """Write a source, or zeros, to a target."""
        if target.aval.size:
            self.before.append(filled(target, source, self.facts))


def filled(target: Var, source: Atom | None, facts: Facts) -> Work:
    """The launch that writes another variable, a literal, or zeros everywhere."""
    b = Builder("launch_copy" if isinstance(source, Var) else "launch_fill")
    arguments = Arguments(b)
    to, size = arguments.buffer(target, "out"), target.aval.size
    lanes = max(1, facts.vector_bytes * 8 // max(8, BITS[to.dtype]))
    while size % lanes:
        lanes //= 2
    value = 0 if source is None else source.value.item() if isinstance(source, Literal) else None
    constant = None if value is None else b.constant(value, to.dtype, lanes)
    origin = arguments.buffer(source) if isinstance(source, Var) else None
    block = lanes if facts.units > 1 else max(lanes, COPY // lanes * lanes)
    stop = arguments.scalar("size", size)
    start = b.place("cube_pos.x") * block
    for i in b.range(start, b.op("min", start + block, stop), lanes):
        b.store(to, i, b.load(origin, i, lanes) if origin is not None else constant)  # type: ignore[arg-type]
    cubes = -(-size // block)
    return Work(b.finish(), tuple(arguments.variables), tuple(arguments.cells), cubes, 1)
