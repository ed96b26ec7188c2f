"""Kernels built again, statement by statement, with a builder: the walk that passes over kernels
share. A pass overrides what becomes of some statements; all others are copied as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt

DEFINES = ("target",)  # fields that name a new value

Kind = TypeVar("Kind")


class Rebuilder:
    """Copies statements to a builder. `values`, `variables` and `memories` map what the old kernel
    names to what stands for it in the new one."""

    def __init__(self, kernel: Kernel, build: Builder) -> None:
        self.kernel, self.build = kernel, build
        self.values: dict[int, Value] = {}
        self.variables: dict[int, Variable] = {}
        self.memories: dict[tuple[str, int], Buffer] = {}

    # parameters

    def parameters(self) -> None:
        """Declare the buffers and scalars of the old kernel, in their order."""
        for buffer in self.kernel.buffers:
            self.memories["global", buffer.number] = self.build.buffer(buffer.dtype, buffer.access)
        self.scalars()

    def scalars(self) -> None:
        """Declare the scalars of the old kernel, in their order."""
        for scalar in self.kernel.scalars:
            self.values[scalar.number] = self.build.scalar(scalar.type.dtype)

    # operands

    def value(self, atom: Atom) -> Value:
        """What stands for a literal or a name."""
        return Value(atom, self.build) if isinstance(atom, Const) else self.values[atom.number]

    def mask(self, atom: Atom | None) -> Value | None:
        return None if atom is None else self.value(atom)

    def memory(self, buffer: Buffer) -> Buffer:
        return self.memories[buffer.space, buffer.number]

    # statements

    def block(self, body: Sequence[Stmt]) -> None:
        """Build the statements of a block."""
        for statement in body:
            self.statement(statement)

    def statement(self, s: Stmt) -> None:
        """Build one statement."""
        if (source := source_of(s)) is not None:
            self.build.source = source
        rule = _RULES.get(type(s))
        if rule is not None:
            rule(self, s)
        else:
            self.copy(s)

    def let(self, s: ir.Let) -> None:
        args = tuple([self.value(atom).atom for atom in s.args])
        self.values[s.target.number] = emitted(self.build, s.op, args, s.target.type, s.attrs)

    def load(self, s: ir.Load) -> None:
        self.copy(s)

    def store(self, s: ir.Store) -> None:
        self.copy(s)

    def declare(self, s: ir.Declare) -> None:
        self.variables[s.variable.number] = self.build.variable(self.value(s.init))

    def assign(self, s: ir.Assign) -> None:
        self.variables[s.variable.number].set(self.value(s.value))

    def read(self, s: ir.Read) -> None:
        self.values[s.target.number] = self.variables[s.variable.number].get()

    def for_(self, s: ir.For) -> None:
        bounds = [self.value(atom) for atom in (s.start, s.stop, s.step)]
        for index in self.build.range(*bounds):
            self.values[s.index.number] = index
            self.block(s.body)

    def if_(self, s: ir.If) -> None:
        with self.build.when(self.value(s.condition)):
            self.block(s.then)
        if s.orelse:
            with self.build.otherwise():
                self.block(s.orelse)

    def loop(self, s: ir.Loop) -> None:
        with self.build.loop():
            self.block(s.body)

    def allocate(self, s: ir.Allocate) -> None:
        old = s.buffer
        over = None if old.over is None else self.memories["shared", old.over]
        if old.space == "local":
            array = self.build.local(old.dtype, old.size)
        else:
            array = self.build.shared(old.dtype, old.size, over)
        self.memories[old.space, old.number] = array

    def copy(self, s: Stmt) -> None:
        """The statement with its operands replaced, and with new names for what it defines."""
        self.build.emit(dataclasses.replace(s, **dict(self._fields(s))))

    def _fields(self, s: Stmt) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(s):
            old = getattr(s, field.name)
            if field.name in DEFINES and isinstance(old, Name):
                new = self.build.named(old.type)
                self.values[old.number] = Value(new, self.build)
                yield field.name, new
            else:
                yield field.name, self._operand(old)

    def _operand(self, old: Any) -> Any:
        if isinstance(old, Name):
            known = self.variables.get(old.number)
            return known.name if known is not None else self.values[old.number].atom
        if isinstance(old, Buffer):
            return self.memory(old)
        if isinstance(old, ir.Panel):
            index = self.value(old.index).atom
            return dataclasses.replace(old, buffer=self.memory(old.buffer), index=index)
        if type(old) is tuple:
            return tuple([self._operand(item) for item in old])
        return old


def emitted(
    build: Builder, op: str, args: Sequence[Atom], type: ir.Type, attrs: tuple[int, ...] = ()
) -> Value:
    """An operation put into the kernel as it is."""
    name = build.named(type)
    build.emit(ir.Let(name, op, tuple(args), attrs))
    return Value(name, build)


def source_of(s: Stmt) -> str | None:
    """The user's line of a statement; those that compute alone have none."""
    source = getattr(s, "source", None)
    return source if isinstance(source, str) else None


def at_source(s: Stmt | None, near: str | None = None) -> str:
    """The end of a message, " At file.py:12."; empty where no line is known."""
    source = (None if s is None else source_of(s)) or near
    return f" At {source}." if source else ""


def target_of(s: Stmt) -> Name | None:
    """The value that a statement defines."""
    target = getattr(s, "target", None)
    return target if isinstance(target, Name) else None


def blocks_of(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks inside a statement."""
    if isinstance(s, ir.If):
        return s.then, s.orelse
    return (s.body,) if isinstance(s, ir.For | ir.Loop) else ()


def every(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """The statements and those inside them, in the order in which they are written."""
    for s in body:
        yield s
        for block in blocks_of(s):
            yield from every(block)


def each(body: Sequence[Stmt], *kinds: type[Kind]) -> list[Kind]:
    """The statements of some kinds, those inside others included."""
    return [s for s in every(body) if isinstance(s, kinds)]


_RULES: dict[type, Callable[[Any, Any], None]] = {
    ir.Let: lambda self, s: self.let(s),
    ir.Load: lambda self, s: self.load(s),
    ir.Store: lambda self, s: self.store(s),
    ir.Declare: lambda self, s: self.declare(s),
    ir.Assign: lambda self, s: self.assign(s),
    ir.Read: lambda self, s: self.read(s),
    ir.For: lambda self, s: self.for_(s),
    ir.If: lambda self, s: self.if_(s),
    ir.Loop: lambda self, s: self.loop(s),
    ir.Allocate: lambda self, s: self.allocate(s),
}
