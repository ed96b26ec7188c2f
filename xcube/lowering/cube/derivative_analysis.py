"""What a derivative of a kernel depends on: which values have tangents, and which values must be
computed again on the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.derivative_rules import FLAT, LINEAR
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt

Place = tuple[str, int]  # the space and number of a buffer


PLANE_LINEAR = frozenset(
    "sum broadcast shuffle shuffle_xor shuffle_up shuffle_down inclusive_sum exclusive_sum".split()
)


def place_of(buffer: Buffer) -> Place:
    return buffer.space, buffer.number


def is_float(dtype: str) -> bool:
    return dtype in ir.FLOATS


@dataclass
class Marks:
    """Names (variables included) and buffers for which something holds."""

    names: set[int] = field(default_factory=set)
    places: set[Place] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.names) + len(self.places)

    def has(self, atom: Atom) -> bool:
        return isinstance(atom, Name) and atom.number in self.names

    def add(self, *atoms: Atom | None) -> None:
        self.names.update(atom.number for atom in atoms if isinstance(atom, Name))


def grown(marks: Marks, grow: Callable[[], None]) -> Marks:
    """The marks, grown until nothing is added."""
    size = -1
    while size != len(marks):
        size = len(marks)
        grow()
    return marks


# tangents -------------------------------------------------------------------------------------


def active(kernel: Kernel, buffers: Sequence[int]) -> Marks:
    """What has a tangent where the global buffers of these numbers have."""
    marks = Marks(places={("global", number) for number in buffers})
    statements = list(rebuild.every(kernel.body))

    def grow() -> None:
        for s in statements:
            if (rule := _ACTIVE.get(type(s))) is not None:
                rule(marks, s)

    return grown(marks, grow)


def _active_let(marks: Marks, s: ir.Let) -> None:
    operands = s.args[1:] if s.op == "select" else s.args
    if is_float(s.target.type.dtype) and s.op not in FLAT and any(map(marks.has, operands)):
        marks.add(s.target)


def _active_load(marks: Marks, s: ir.Load) -> None:
    if place_of(s.buffer) in marks.places:
        marks.add(s.target)


def _active_store(marks: Marks, s: ir.Store) -> None:
    if marks.has(s.value):
        marks.places.add(place_of(s.buffer))


def _active_atomic(marks: Marks, s: ir.Atomic) -> None:
    _active_store(marks, s)  # type: ignore[arg-type]
    _active_load(marks, s)  # type: ignore[arg-type]


def _active_assign(marks: Marks, s: ir.Assign) -> None:
    if marks.has(s.value):
        marks.add(s.variable)


def _active_declare(marks: Marks, s: ir.Declare) -> None:
    if marks.has(s.init):
        marks.add(s.variable)


def _active_read(marks: Marks, s: ir.Read) -> None:
    if marks.has(s.variable):
        marks.add(s.target)


def _active_plane(marks: Marks, s: ir.Plane) -> None:
    if is_float(s.target.type.dtype) and marks.has(s.value):
        marks.add(s.target)


_ACTIVE: dict[type, Callable[[Marks, Any], None]] = {
    ir.Let: _active_let,
    ir.Load: _active_load,
    ir.Store: _active_store,
    ir.Atomic: _active_atomic,
    ir.Assign: _active_assign,
    ir.Declare: _active_declare,
    ir.Read: _active_read,
    ir.Plane: _active_plane,
}


def disguised(kernel: Kernel, tangents: Marks) -> ir.Let | None:
    """An operation that makes a float of the bits of integers that were made of active floats: it
    would have a derivative that nobody sees."""
    lets = [s for s in rebuild.every(kernel.body) if isinstance(s, ir.Let)]
    made = Marks()

    def grow() -> None:
        for s in lets:
            if s.target.type.dtype in ir.INTEGERS:
                turned = s.op in ("cast", "bitcast") and tangents.has(s.args[0])
                made.add(*([s.target] if turned or any(map(made.has, s.args)) else []))

    grown(made, grow)
    return next((s for s in lets if s.op == "bitcast" and made.has(s.args[0])
                 and is_float(s.target.type.dtype)), None)  # fmt: skip


# values ---------------------------------------------------------------------------------------


def needed(kernel: Kernel, tangents: Marks) -> Marks:
    """What must be computed again on the way back: addresses, conditions and bounds, and what the
    derivatives of operations are made of."""
    marks = Marks()
    statements = list(rebuild.every(kernel.body))
    for s in statements:
        marks.add(*_asked(s, tangents))

    def grow() -> None:
        for s in reversed(statements):
            marks.add(*_behind(s, marks))

    return grown(marks, grow)


def _asked(s: Stmt, tangents: Marks) -> Iterator[Atom | None]:
    """What the way back asks of a statement's operands."""
    if isinstance(s, ir.If):
        yield s.condition
    elif isinstance(s, ir.For):
        yield from (s.start, s.stop, s.step)
    elif isinstance(s, ir.Load):
        if place_of(s.buffer) in tangents.places:
            yield from (s.index, s.mask)
    elif isinstance(s, ir.Store):
        if s.buffer.space == "global" or place_of(s.buffer) in tangents.places:
            yield from (s.index, s.mask)
    elif isinstance(s, ir.Atomic):
        yield s.index
    elif isinstance(s, ir.Plane):
        yield s.argument if tangents.has(s.target) else None
    elif isinstance(s, ir.Let) and tangents.has(s.target):
        yield from asked_of(s, tangents)


def asked_of(s: ir.Let, tangents: Marks) -> Iterator[Atom]:
    """What the derivatives of an active operation are made of."""
    if s.op == "select":
        yield s.args[0]
    elif s.op == "mul":
        x, y = s.args
        yield from ([y] if tangents.has(x) else [])
        yield from ([x] if tangents.has(y) else [])
    elif s.op == "fma":
        x, y, _ = s.args
        yield from ([y] if tangents.has(x) else [])
        yield from ([x] if tangents.has(y) else [])
    elif s.op == "div" and not tangents.has(s.args[1]):
        yield s.args[1]
    elif s.op not in LINEAR:
        yield from (*s.args, s.target)


def _behind(s: Stmt, marks: Marks) -> Iterator[Atom | None]:
    """What a needed result needs."""
    if isinstance(s, ir.Let):
        if marks.has(s.target):
            yield from s.args
    elif isinstance(s, ir.Read):
        if marks.has(s.target):
            yield s.variable
    elif isinstance(s, ir.Declare | ir.Assign):
        if marks.has(s.variable):
            yield s.init if isinstance(s, ir.Declare) else s.value
    elif isinstance(s, ir.Load):
        if marks.has(s.target):
            marks.places.add(place_of(s.buffer))
            yield from (s.index, s.mask)
    elif isinstance(s, ir.Store) and place_of(s.buffer) in marks.places:
        yield from (s.index, s.value, s.mask)
    elif isinstance(s, ir.Plane) and marks.has(s.target):
        yield from (s.value, s.argument)


# scopes ---------------------------------------------------------------------------------------


def defined(body: Sequence[Stmt]) -> set[int]:
    """Names that statements define, those inside them included."""
    found: set[int] = set()
    for s in rebuild.every(body):
        for field_name in s.__dataclass_fields__:
            if field_name == "target" or (field_name, type(s)) in _DEFINING:
                name = getattr(s, field_name)
                found.update([name.number] if isinstance(name, Name) else [])
    return found


def used(body: Sequence[Stmt]) -> set[int]:
    """Names of values and variables that statements read or assign to, those inside included."""
    return {atom.number for s in rebuild.every(body) for atom in atoms(s) if isinstance(atom, Name)}


def atoms(s: Stmt) -> Iterator[Atom]:
    """What a statement refers to, but for what it defines and for statements inside it."""
    for name in s.__dataclass_fields__:
        if name == "target" or (name, type(s)) in _DEFINING:
            continue
        value = getattr(s, name)
        if isinstance(value, Name | Const):
            yield value
        elif name == "args":
            yield from value


_DEFINING = {("index", ir.For), ("variable", ir.Declare)}


def assigned(body: Sequence[Stmt]) -> set[int]:
    """Variables that statements assign to."""
    return {s.variable.number for s in rebuild.every(body) if isinstance(s, ir.Assign)}
