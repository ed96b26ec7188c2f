"""kernel -> kernel of its tangents: beside every float that depends on what is differentiated runs
its tangent, through variables, arrays of cubes and units, loops, barriers and planes alike."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.derivative_analysis import (
    PLANE_LINEAR,
    Marks,
    active,
    is_float,
    place_of,
    used,
)
from xcube.lowering.cube.derivative_normal import OLD, normal, refuse, refuse_disguised
from xcube.lowering.cube.derivative_rules import LINEAR, PARTIALS
from xcube.lowering.cube.ir import Atom, Buffer, Kernel, Stmt


def read_back(kernel: Kernel) -> frozenset[int]:
    """The numbers of written global buffers that a kernel also reads."""
    reads = {
        s.buffer.number
        for s in rebuild.every(kernel.body)
        if isinstance(s, ir.Load) and s.buffer.space == "global" and s.buffer.access != "in"
    }
    asked = used(kernel.body)
    for s in rebuild.every(kernel.body):
        if isinstance(s, ir.Atomic | ir.CompareExchange) and s.target.number in asked:
            reads.add(s.buffer.number)
    return frozenset(reads)


def tangent(kernel: Kernel, buffers: Sequence[int]) -> Kernel:
    """The kernel of tangents where the inputs in buffers of these numbers have tangents.

    Its buffers: the old ones, of which those that are written are of no use to the caller and only
    there if `read_back` names them; then tangents of `buffers`, in order; then tangents of the
    other written float buffers.

    Raises TraceError where an operation has no derivative, with the user's line.
    """
    plain = normal(kernel)
    build = Builder(f"{kernel.name}_tangent", kernel.cube_dim, kernel.resident)
    build.keeps_calls = True
    pass_ = _Forward(plain, build, buffers)
    pass_.block(plain.body)
    return build.finish()


def results(kernel: Kernel) -> list[Buffer]:
    """The written float buffers."""
    return [b for b in kernel.buffers if b.access != "in" and is_float(b.dtype)]


class _Forward(rebuild.Rebuilder):
    """`tangents` maps values, `shadows` variables and buffers to those of their tangents."""

    def __init__(self, kernel: Kernel, build: Builder, buffers: Sequence[int]) -> None:
        super().__init__(kernel, build)
        self.kept, self.asked = read_back(kernel), used(kernel.body)
        self.tangents: dict[int, Value] = {}
        self.shadows: dict[tuple[str, int], Buffer] = {}
        self.seconds: dict[int, Variable] = {}
        for buffer in kernel.buffers:
            if buffer.access == "in" or buffer.number in self.kept:
                new = build.buffer(buffer.dtype, buffer.access)
                self.memories["global", buffer.number] = new
        for number in buffers:
            old = kernel.buffers[number]
            self.shadows["global", number] = build.buffer(old.dtype, old.access)
        for buffer in results(kernel):
            if buffer.number not in buffers:
                self.shadows["global", buffer.number] = build.buffer(buffer.dtype, buffer.access)
        self.scalars()
        self.marks: Marks = active(kernel, list(buffers))
        refuse_disguised(kernel, self.marks)

    def of(self, atom: Atom) -> Value | None:
        """The tangent of an operand; None if it is zero."""
        return self.tangents.get(atom.number) if isinstance(atom, ir.Name) else None

    def whole(self, atom: Atom) -> Value:
        """The tangent of an operand as a value."""
        found = self.of(atom)
        return self.build.constant(0, atom.type.dtype, atom.type.lanes) if found is None else found

    def statement(self, s: Stmt) -> None:
        if not isinstance(s, ir.Print | ir.Assert):
            super().statement(s)

    # values

    def let(self, s: ir.Let) -> None:
        super().let(s)
        if self.marks.has(s.target) and (found := self._let(s)) is not None:
            self.tangents[s.target.number] = found

    def _let(self, s: ir.Let) -> Value | None:
        given = [self.of(atom) for atom in s.args]
        if all(dx is None for dx in given):
            return None
        if s.op == "select":
            _, x, y = s.args
            return self.build.select(self.value(s.args[0]), self.whole(x), self.whole(y))
        if s.op in LINEAR:
            return self._linear(s, given)
        if s.op not in PARTIALS:
            way = "Give the call a rule of its own: custom_vjp."
            refuse(self.kernel, s, f"{s.op} has no derivative", way, self.build.source)
        y, args = self.values[s.target.number], [self.value(atom) for atom in s.args]
        total: Value | None = None
        for dx, partial in zip(given, PARTIALS[s.op], strict=True):
            if dx is not None:
                term = dx * partial(y, *args)
                total = term if total is None else total + term
        return total

    def _linear(self, s: ir.Let, given: list[Value | None]) -> Value | None:
        if s.op in ("add", "sub") and None in given:
            x, y = given
            return x if y is None else y if s.op == "add" else -y
        atoms = [dx.atom for dx in given if dx is not None]
        return rebuild.emitted(self.build, s.op, atoms, s.target.type, s.attrs)

    def copy(self, s: Stmt) -> None:
        if isinstance(s, ir.Atomic):
            self._atomic(s)
        elif isinstance(s, ir.CompareExchange) and is_float(s.buffer.dtype):
            refuse(self.kernel, s, "an exchange of floats has no derivative", "Use atomic_add.")
        elif isinstance(s, ir.Plane) and self.marks.has(s.target):
            self._plane(s)
        else:
            super().copy(s)

    # memory

    def load(self, s: ir.Load) -> None:
        super().copy(s)
        if (shadow := self.shadows.get(place_of(s.buffer))) is not None and self.marks.has(
            s.target
        ):
            index, mask = self.value(s.index), self.mask(s.mask)
            found = self.build.load(shadow, index, s.target.type.lanes, mask)
            self.tangents[s.target.number] = found

    def store(self, s: ir.Store) -> None:
        if place_of(s.buffer) in self.memories:
            super().copy(s)
        if (shadow := self.shadows.get(place_of(s.buffer))) is not None:
            index, mask = self.value(s.index), self.mask(s.mask)
            self.build.store(shadow, index, self.whole(s.value), mask)

    def _atomic(self, s: ir.Atomic) -> None:
        if place_of(s.buffer) in self.memories:
            if s.target.number in self.asked:
                refuse(self.kernel, s, OLD, "Differentiate a kernel that does not use it.")
            super().copy(s)
        if (shadow := self.shadows.get(place_of(s.buffer))) is None:
            return
        if s.op not in ("add", "sub"):
            reason = f"atomic {s.op} of floats has no derivative"
            refuse(self.kernel, s, reason, "Use atomic_add, or give the call one: custom_vjp.")
        if (dx := self.of(s.value)) is not None:
            self.build.atomic(s.op, shadow, self.value(s.index), dx)

    def allocate(self, s: ir.Allocate) -> None:
        super().allocate(s)
        place = place_of(s.buffer)
        if place not in self.marks.places:
            return
        make = self.build.local if s.buffer.space == "local" else self.build.shared
        self.shadows[place] = make(s.buffer.dtype, s.buffer.size)

    def _plane(self, s: ir.Plane) -> None:
        super().copy(s)
        if s.op not in PLANE_LINEAR:
            reason = f"plane {s.op} of floats has no derivative"
            refuse(self.kernel, s, reason, "Use plane_sum, or give the call one: custom_vjp.")
        argument = None if s.argument is None else self.value(s.argument)
        found = self.build.plane(s.op, self.whole(s.value), argument)
        self.tangents[s.target.number] = found

    # variables

    def declare(self, s: ir.Declare) -> None:
        super().declare(s)
        if self.marks.has(s.variable):
            self.seconds[s.variable.number] = self.build.variable(self.whole(s.init))

    def assign(self, s: ir.Assign) -> None:
        super().assign(s)
        if (second := self.seconds.get(s.variable.number)) is not None:
            second.set(self.whole(s.value))

    def read(self, s: ir.Read) -> None:
        super().read(s)
        if (second := self.seconds.get(s.variable.number)) is not None:
            self.tangents[s.target.number] = second.get()
