"""kernel -> kernel of its cotangents: each unit goes back through what it did.

A block is run forward, as far as the way back needs its values, and then backward. Branches and
loops are entered again on the way back, and what happens inside them is computed anew there; a loop
whose turns depend on one another keeps the state of TAPE turns and runs up to them from its start.
What a unit reads gets its cotangents by atomic additions, or plain ones where no other unit reads
it. What it writes has cotangents to read, which end there: what was written over has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.derivative_again import Recomputer
from xcube.lowering.cube.derivative_analysis import (
    Place,
    active,
    assigned,
    defined,
    needed,
    place_of,
    used,
)
from xcube.lowering.cube.derivative_layout import Layout, laid_out
from xcube.lowering.cube.derivative_normal import OLD, normal, refuse, refuse_disguised
from xcube.lowering.cube.derivative_rules import PARTIALS, PLANES, TRANSPOSES
from xcube.lowering.cube.ir import Atom, Buffer, Kernel, Stmt, Type

TAPE = 64  # turns whose state a unit keeps


@dataclass(frozen=True)
class Reverse:
    """The kernel of cotangents. Its buffers: the old ones that are only read, then those of
    `read_back`, which begin as they did; then cotangents as `layout` says."""

    kernel: Kernel
    layout: Layout


def reverse(
    kernel: Kernel, wanted: Sequence[int], present: Sequence[int], disjoint: bool = False
) -> Reverse:
    """The kernel that gives cotangents of the buffers `wanted` for those of the written buffers
    `present`. `disjoint` promises that no two units write one element.

    Raises TraceError where there is none, with the reason and the user's line.
    """
    plain = normal(kernel)
    found = laid_out(plain, wanted, present, disjoint)
    build = Builder(f"{kernel.name}_cotangent", kernel.cube_dim, kernel.resident)
    build.keeps_calls = True
    _Reverse(plain, build, wanted, found).both(plain.body)
    return Reverse(build.finish(), found)


class _Reverse(Recomputer):
    """`cts` are cotangents of values of the block at hand, `cells` those of values around it, and
    `backs` those of variables; `adjoints` maps buffers to those of their cotangents."""

    def __init__(
        self,
        kernel: Kernel,
        build: Builder,
        wanted: Sequence[int],
        layout: Layout,
    ) -> None:
        self.marks, self.layout = active(kernel, list(wanted)), layout
        refuse_disguised(kernel, self.marks)
        super().__init__(kernel, build, needed(kernel, self.marks))
        targets = [rebuild.target_of(s) for s in self.statements]
        self.types = {name.number: name.type for name in targets if name is not None}
        self.adjoints: dict[Place, Buffer] = {}
        self.cts: dict[int, Value] = {}
        self.cells: dict[int, Variable] = {}
        self.backs: dict[int, Variable] = {}
        self._declare_buffers()

    def _declare_buffers(self) -> None:
        buffers, layout = self.kernel.buffers, self.layout
        for buffer in buffers:
            if buffer.access == "in" or buffer.number in layout.kept:
                new = self.build.buffer(buffer.dtype, buffer.access)
                self.memories["global", buffer.number] = new
        for number, changed in zip(layout.cotangents, layout.changed, strict=True):
            adjoint = self.build.buffer(buffers[number].dtype, "inout" if changed else "in")
            self.adjoints["global", number] = adjoint
        for number in layout.sums:
            self.adjoints["global", number] = self.build.buffer(buffers[number].dtype, "inout")
        self.scalars()

    # blocks

    def both(self, body: Sequence[Stmt]) -> None:
        """A block forward and backward. A branch at its end is entered once for both."""
        for s in body:
            self._open(s)
        *before, last = body or (None,)
        if not isinstance(last, ir.If):
            self.forward(body)
            self.backward(body)
            return
        self.forward(before)  # type: ignore[arg-type]
        with self._inside(last):
            self._branches(last)
        self.backward(before)  # type: ignore[arg-type]

    def _open(self, s: Stmt) -> None:
        """Cotangents of the variables and arrays of a block."""
        if isinstance(s, ir.Declare) and self.marks.has(s.variable):
            zero = self._zero(s.variable.type)
            self.backs[s.variable.number] = self.build.variable(zero)
        elif isinstance(s, ir.Allocate) and place_of(s.buffer) in self.marks.places:
            adjoint = self.build.local(s.buffer.dtype, s.buffer.size)
            self.adjoints[place_of(s.buffer)] = adjoint
            for i in self.build.range(0, s.buffer.size):
                self.build.store(adjoint, i, self._zero(Type(s.buffer.dtype)))

    # backward

    def backward(self, body: Sequence[Stmt]) -> None:
        """The cotangents of a block that ran forward."""
        for s in reversed(body):
            if (source := rebuild.source_of(s)) is not None:
                self.build.source = source
            if (rule := _BACK.get(type(s))) is not None:
                rule(self, s)

    def add(self, atom: Atom, ct: Value) -> None:
        """Add to the cotangent of an operand."""
        if not self.marks.has(atom):
            return
        number = atom.number  # type: ignore[union-attr]
        if (cell := self.cells.get(number)) is not None:
            cell.set(cell.get() + ct)
        else:
            self.cts[number] = self.cts[number] + ct if number in self.cts else ct

    def known(self, atom: Atom) -> Value | None:
        """An operand if its value is needed."""
        return self.values.get(atom.number) if isinstance(atom, ir.Name) else self.value(atom)

    def back_let(self, s: ir.Let) -> None:
        if (ct := self.cts.pop(s.target.number, None)) is None:
            return
        if (rule := TRANSPOSES.get(s.op)) is not None:
            for atom, part in zip(s.args, rule(self.build, s, self.value, ct), strict=True):
                if part is not None:
                    self.add(atom, part)
        elif s.op in PARTIALS:
            y, args = self.values.get(s.target.number), [self.known(atom) for atom in s.args]
            for atom, partial in zip(s.args, PARTIALS[s.op], strict=True):
                if self.marks.has(atom):
                    self.add(atom, ct * partial(y, *args))
        else:
            way = "Give the call a rule of its own: custom_vjp."
            refuse(self.kernel, s, f"{s.op} has no derivative", way, self.build.source)

    # memory

    def back_load(self, s: ir.Load) -> None:
        ct, adjoint = self.cts.pop(s.target.number, None), self.adjoints.get(place_of(s.buffer))
        if ct is None or adjoint is None:
            return
        index, mask = self.value(s.index), self.mask(s.mask)
        alone = s.buffer.space == "local" or s.buffer.number in (
            *self.layout.own,
            *self.layout.kept,
        )
        if alone and index.lanes == 1:
            if s.buffer.space == "local" or s.buffer.number not in self.layout.once:
                ct = self.build.load(adjoint, index, ct.lanes, mask) + ct
            self.build.store(adjoint, index, ct, mask)
        else:
            self._add_lanes(adjoint, index, ct, mask)

    def _add_lanes(self, adjoint: Buffer, index: Value, ct: Value, mask: Value | None) -> None:
        """Lane by lane, for lanes may meet."""
        build = self.build
        for lane in range(ct.lanes):
            at = build.extract(index, lane) if index.lanes > 1 else index + lane
            part = build.extract(ct, lane)
            with (
                contextlib.nullcontext() if mask is None else build.when(build.extract(mask, lane))
            ):
                if adjoint.space == "local":
                    build.store(adjoint, at, build.load(adjoint, at) + part)
                else:
                    build.atomic("add", adjoint, at, part)

    def back_store(self, s: ir.Store) -> None:
        if (adjoint := self.adjoints.get(place_of(s.buffer))) is None:
            return
        index, mask, type = self.value(s.index), self.mask(s.mask), s.value.type
        ct = self.build.load(adjoint, index, type.lanes, mask)
        if adjoint.access != "in":
            self.build.store(adjoint, index, self._zero(type), mask)
        self.add(s.value, ct)

    def back_atomic(self, s: ir.Atomic) -> None:
        adjoint = self.adjoints.get(place_of(s.buffer))
        if self.cts.pop(s.target.number, None) is not None:
            refuse(self.kernel, s, OLD, "Give the call a rule of its own: custom_vjp.")
        if adjoint is None or not self.marks.has(s.value):
            return
        if s.op not in ("add", "sub"):
            reason = f"atomic {s.op} of floats has no derivative"
            refuse(self.kernel, s, reason, "Use atomic_add, or give the call one: custom_vjp.")
        ct = self.build.load(adjoint, self.value(s.index), s.value.type.lanes)
        self.add(s.value, ct if s.op == "add" else -ct)

    # variables

    def back_read(self, s: ir.Read) -> None:
        if (ct := self.cts.pop(s.target.number, None)) is not None:
            back = self.backs[s.variable.number]
            back.set(back.get() + ct)

    def back_assign(self, s: ir.Assign) -> None:
        if (back := self.backs.get(s.variable.number)) is not None:
            ct = back.get()
            back.set(self._zero(s.variable.type))
            self.add(s.value, ct)

    def back_declare(self, s: ir.Declare) -> None:
        if (back := self.backs.get(s.variable.number)) is not None:
            self.add(s.init, back.get())

    def back_plane(self, s: ir.Plane) -> None:
        if (ct := self.cts.pop(s.target.number, None)) is None:
            return
        if (rule := PLANES.get(s.op)) is None:
            reason = f"plane {s.op} of floats is not gone back through"
            refuse(self.kernel, s, reason, "Use plane_sum, or give the call a rule: custom_vjp.")
        argument = None if s.argument is None else self.value(s.argument)
        self.add(s.value, rule(self.build, argument, ct))

    # branches and loops

    @contextlib.contextmanager
    def _inside(self, s: Stmt) -> Iterator[None]:
        """Cotangents of values of the block at hand, to which blocks inside it add."""
        inner = [x for block in rebuild.blocks_of(s) for x in block]
        free = (used(inner) - defined(inner)) & self.marks.names & set(self.types)
        mine = [n for n in sorted(free) if n not in self.cells]
        for number in mine:
            begin = self.cts.pop(number, None)
            zero = self._zero(self.types[number]) if begin is None else begin
            self.cells[number] = self.build.variable(zero)
        yield
        for number in mine:
            self.cts[number] = self.cells.pop(number).get()

    def _branches(self, s: ir.If) -> None:
        with self.build.when(self.value(s.condition)):
            self.both(s.then)
        if s.orelse:
            with self.build.otherwise():
                self.both(s.orelse)

    def back_if(self, s: ir.If) -> None:
        if self._is_idle(s):
            return
        with self._inside(s), self.anew(s):
            self._branches(s)

    def back_loop(self, s: ir.Loop) -> None:
        if not self._is_idle(s):
            reason = "a loop that runs until a break carries derivatives"
            way = "Write `for i in range(limit)` and break out of it, or use custom_vjp."
            refuse(self.kernel, s, reason, way)

    def _is_idle(self, s: Stmt) -> bool:
        """Whether no cotangent comes into a statement."""
        for x in rebuild.every([s]):
            if isinstance(x, ir.Store | ir.Atomic) and place_of(x.buffer) in self.adjoints:
                return False
            if isinstance(x, ir.Assign) and self.marks.has(x.variable):
                return False
        return True

    def back_for(self, s: ir.For) -> None:
        if self._is_idle(s):
            return
        build = self.build
        start, stop, step = (self.value(atom) for atom in (s.start, s.stop, s.step))
        turns = (stop - start + (step - 1)) // step
        state = sorted(assigned(s.body) & set(self.outer(s)))
        with self._inside(s), self.anew(s):
            if state:
                self._by_tape(s, start, step, turns, state)
                return
            in_order = self._is_unordered(s)
            for k in build.range(*((start, stop, step) if in_order else (0, turns))):
                self.values[s.index.number] = k if in_order else start + (turns - 1 - k) * step
                self.both(s.body)

    def _is_unordered(self, s: ir.For) -> bool:
        """Whether no turn hands a cotangent to another."""
        if assigned(s.body) & set(self.backs):
            return False
        changed = {place for place, buffer in self.adjoints.items() if buffer.access != "in"}
        inner = [x for x in rebuild.every(s.body) if isinstance(x, ir.Store)]
        return not any(place_of(x.buffer) in changed for x in inner)

    def _by_tape(
        self, s: ir.For, start: Value, step: Value, turns: Value, state: Sequence[int]
    ) -> None:
        """Turns back, TAPE of them at a time: run up to them, keep the states of each, go back."""
        build = self.build
        types = {n: self.variables[n].name.type for n in state}
        tapes = {n: build.local(t.dtype, TAPE * t.lanes) for n, t in types.items()}
        chunks = (turns + (TAPE - 1)) // TAPE
        for chunk in build.range(0, chunks):
            first = (chunks - 1 - chunk) * TAPE
            count = build.op("min", turns - first, TAPE)
            self.restore({n: self.saved[id(s)][n] for n in state})
            for k in build.range(0, first):
                self.values[s.index.number] = start + k * step
                self.forward(s.body)
            for k in build.range(0, count):
                self.values[s.index.number] = start + (first + k) * step
                for n, tape in tapes.items():
                    build.store(tape, k * types[n].lanes, self.variables[n].get())
                self.forward(s.body)
            for k in build.range(0, count):
                at = count - 1 - k
                self.values[s.index.number] = start + (first + at) * step
                kept = {
                    n: build.load(tape, at * types[n].lanes, types[n].lanes)
                    for n, tape in tapes.items()
                }
                self.restore(kept)
                self.both(s.body)

    def _zero(self, type: Type) -> Value:
        return self.build.constant(0, type.dtype, type.lanes)


_BACK: dict[type, Callable[[_Reverse, Any], None]] = {
    ir.Let: _Reverse.back_let,
    ir.Load: _Reverse.back_load,
    ir.Store: _Reverse.back_store,
    ir.Atomic: _Reverse.back_atomic,
    ir.Read: _Reverse.back_read,
    ir.Assign: _Reverse.back_assign,
    ir.Declare: _Reverse.back_declare,
    ir.Plane: _Reverse.back_plane,
    ir.If: _Reverse.back_if,
    ir.For: _Reverse.back_for,
    ir.Loop: _Reverse.back_loop,
}
