"""What is known of a kernel's units before its cubes become single units: which values differ
between them, which loops they leave one by one, and where they meet, that is, what belongs to the
cube as a whole and what each unit does by itself until the next barrier (a *run*)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt

Body = Sequence[Stmt]
_MANY = 8  # operations that are rather done again in another run than their result kept


# which values differ ------------------------------------------------------------------------------


class Difference:
    """Names whose values may differ between the units of a cube, and loops that units leave one by
    one (`divergent`, by identity). `kept`: variables that are known to be kept for each unit."""

    def __init__(self, kernel: Kernel, kept: frozenset[int] = frozenset()) -> None:
        self.dim, self.names, self.divergent = kernel.cube_dim, set(kept), set[int]()
        self._depths: dict[int, int] = {}  # branches that units take apart, at declarations
        self._loops: list[tuple[int, int]] = []
        before = -1
        while before != (before := len(self.names) + len(self.divergent)):
            self._block(kernel.body, 0)

    def of(self, atom: Atom | None) -> bool:
        """Whether an operand may differ."""
        return isinstance(atom, Name) and atom.number in self.names

    def is_place(self, op: str) -> bool:
        """Whether an operation tells units apart."""
        return op.startswith("unit_pos.") and self.dim["xyz".index(op[-1])] > 1

    def _block(self, body: Body, depth: int) -> None:
        for s in body:
            _SPREADS.get(type(s), _spread_target)(self, s, depth)

    def _note(self, name: Name, differs: bool) -> None:
        if differs:
            self.names.add(name.number)

    def _inside(self, s: ir.For | ir.Loop, depth: int) -> None:
        inner = depth + (id(s) in self.divergent)
        self._loops.append((id(s), inner))
        self._block(s.body, inner)
        self._loops.pop()


def _spread_target(d: Difference, s: Stmt, depth: int) -> None:
    """What other units have a part in."""
    if (target := rebuild.target_of(s)) is not None:
        d.names.add(target.number)


def _spread_let(d: Difference, s: ir.Let, depth: int) -> None:
    d._note(s.target, d.is_place(s.op) or any(map(d.of, s.args)))


def _spread_load(d: Difference, s: ir.Load, depth: int) -> None:
    d._note(s.target, s.buffer.space == "local" or d.of(s.index) or d.of(s.mask))


def _spread_declare(d: Difference, s: ir.Declare, depth: int) -> None:
    d._depths[s.variable.number] = depth
    d._note(s.variable, d.of(s.init))


def _spread_assign(d: Difference, s: ir.Assign, depth: int) -> None:
    d._note(s.variable, d.of(s.value) or depth > d._depths[s.variable.number])


def _spread_read(d: Difference, s: ir.Read, depth: int) -> None:
    d._note(s.target, d.of(s.variable))


def _spread_for(d: Difference, s: ir.For, depth: int) -> None:
    d._note(s.index, d.of(s.start) or d.of(s.step))
    apart = any(map(d.of, (s.start, s.stop, s.step)))
    if apart and any(True for _ in free_jumps(s.body)):
        d.divergent.add(id(s))
    d._inside(s, depth + apart)


def _spread_if(d: Difference, s: ir.If, depth: int) -> None:
    inner = depth + d.of(s.condition)
    d._block(s.then, inner)
    d._block(s.orelse, inner)


def _spread_jump(d: Difference, s: Stmt, depth: int) -> None:
    loop, inner = d._loops[-1]
    if depth > inner:
        d.divergent.add(loop)


def _spread_return(d: Difference, s: Stmt, depth: int) -> None:
    d.divergent.update([loop for loop, _ in d._loops])


_SPREADS: dict[type, Callable[[Difference, Any, int], None]] = {
    ir.Let: _spread_let,
    ir.Load: _spread_load,
    ir.Declare: _spread_declare,
    ir.Assign: _spread_assign,
    ir.Read: _spread_read,
    ir.For: _spread_for,
    ir.Loop: lambda d, s, depth: d._inside(s, depth),
    ir.If: _spread_if,
    ir.Break: _spread_jump,
    ir.Continue: _spread_jump,
    ir.Return: _spread_return,
}


def free_jumps(body: Body) -> Iterator[Stmt]:
    """Breaks and continues of a loop around a body."""
    for s in body:
        if isinstance(s, ir.Break | ir.Continue):
            yield s
        elif isinstance(s, ir.If):
            yield from free_jumps((*s.then, *s.orelse))


def has(body: Body, *kinds: type) -> bool:
    """Whether a body has a statement of some kinds, inside others too."""
    return any(isinstance(s, kinds) for s in rebuild.every(body))


# runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Run:
    """Statements that each unit does without meeting the others of its cube."""

    number: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Whole:
    """A statement that is done once for a cube. `blocks`: what is inside."""

    statement: Stmt
    blocks: tuple[tuple[Item, ...], ...] = ()


Item = Run | Whole


@dataclass(frozen=True)
class Plan:
    """A kernel as runs and what is done for the whole cube. `whole`: names that are known there;
    `again`: operations of a run that others do again; `kept`: names (values, variables) of a run
    that others use; `asked`: names of runs that decide about the cube as a whole."""

    items: tuple[Item, ...]
    runs: tuple[Run, ...]
    whole: frozenset[int]
    again: dict[int, ir.Let]
    kept: dict[int, Name]
    asked: dict[int, Name]
    arrays: frozenset[int]  # local arrays that outlive a run


def plan(kernel: Kernel) -> Plan:
    """Where the units of a kernel meet."""
    whole = _Wholes(kernel).names
    splitter = _Splitter(whole)
    items = splitter.items(kernel.body, in_loop=False)
    return _Lives(kernel, whole, items, splitter.runs).plan()


def _meets(s: Stmt, in_loop: bool) -> bool:
    """Whether a statement belongs to the cube: units meet inside, or it leaves a loop where they
    do."""
    return has((s,), ir.Sync) or (in_loop and any(True for _ in free_jumps((s,))))


class _Wholes:
    """Names that are the same for all units, and can be known outside of runs: found by assuming
    the best of variables until it proves wrong."""

    def __init__(self, kernel: Kernel) -> None:
        self.dim = kernel.cube_dim
        self.scalars = {scalar.number for scalar in kernel.scalars}
        self.variables = {s.variable.number for s in rebuild.each(kernel.body, ir.Declare)}
        self.names, self.left = set[int](), False
        before = -1
        while before != (before := len(self.variables)):
            self.names, self.left = set(self.scalars), False
            self._block(kernel.body, False)
        self.names |= self.variables

    def _known(self, atom: Atom | None) -> bool:
        return not isinstance(atom, Name) or atom.number in self.names

    def _block(self, body: Body, in_loop: bool) -> None:
        for s in body:
            if isinstance(s, ir.For | ir.If | ir.Loop):
                self._inside(s, in_loop)
            else:
                self._statement(s)

    def _inside(self, s: ir.For | ir.If | ir.Loop, in_loop: bool) -> None:
        if not _meets(s, in_loop):
            for inner in rebuild.each((s,), ir.Read, ir.Assign, ir.Declare):
                self.variables.discard(inner.variable.number)
            self.left |= has((s,), ir.Return)
            return
        if isinstance(s, ir.For):
            self.names.add(s.index.number)
        for block in rebuild.blocks_of(s):
            self._block(block, in_loop or not isinstance(s, ir.If))

    def _statement(self, s: Stmt) -> None:
        if isinstance(s, ir.Let):
            if self._is_known(s):
                self.names.add(s.target.number)
        elif isinstance(s, ir.Load):
            if self._is_steady(s):
                self.names.add(s.target.number)
        elif isinstance(s, ir.Read):
            if s.variable.number in self.variables:
                self.names.add(s.target.number)
        elif isinstance(s, ir.Declare | ir.Assign):
            value = s.init if isinstance(s, ir.Declare) else s.value
            if not self._known(value):
                self.variables.discard(s.variable.number)

    def _is_known(self, s: ir.Let) -> bool:
        place = s.op.startswith("unit_pos.") and self.dim["xyz".index(s.op[-1])] > 1
        return not place and all(map(self._known, s.args)) and not (self.left and _traps(s))

    def _is_steady(self, s: ir.Load) -> bool:
        buffer = s.buffer
        steady = buffer.space == "global" and buffer.access == "in"
        return steady and not self.left and self._known(s.index) and self._known(s.mask)


def _traps(s: ir.Let) -> bool:
    """Whether an operation must not be done where the kernel would not do it."""
    if s.op not in ("div", "rem") or s.target.type.dtype != "index":
        return False
    return not (isinstance(s.args[1], Const) and s.args[1].value)


class _Splitter:
    """Cuts bodies into runs and what the cube does."""

    def __init__(self, whole: set[int]) -> None:
        self.whole, self.runs = whole, list[Run]()

    def items(self, body: Body, in_loop: bool) -> tuple[Item, ...]:
        """The items of a block of the cube."""
        found: list[Item] = []
        own: list[Stmt] = []
        for s in body:
            if self._is_cubes(s, in_loop):
                self._end(found, own)
                found.append(self._inside(s, in_loop))
            elif self._is_whole(s):
                found.append(Whole(s))  # before the run that goes on: it knows nothing of it
            else:
                own.append(s)
        self._end(found, own)
        return tuple(found)

    def _end(self, found: list[Item], own: list[Stmt]) -> None:
        if own:
            run = Run(len(self.runs), tuple(own))
            self.runs.append(run)
            found.append(run)
            own.clear()

    def _inside(self, s: Stmt, in_loop: bool) -> Whole:
        deeper = in_loop or not isinstance(s, ir.If)
        blocks = tuple([self.items(block, deeper) for block in rebuild.blocks_of(s)])
        return Whole(s, blocks)

    def _is_cubes(self, s: Stmt, in_loop: bool) -> bool:
        if isinstance(s, ir.Return) or _meets(s, in_loop):
            return True
        if not (isinstance(s, ir.If) and has((s,), ir.Return)):
            return False
        return isinstance(s.condition, Name) and s.condition.number in self.whole

    def _is_whole(self, s: Stmt) -> bool:
        if isinstance(s, ir.Declare | ir.Assign):
            return s.variable.number in self.whole
        if isinstance(s, ir.Allocate):
            return s.buffer.space == "shared"
        target = rebuild.target_of(s)
        return target is not None and target.number in self.whole


@dataclass
class _Lives:
    """Which names of a run are used elsewhere."""

    kernel: Kernel
    whole: set[int]
    items: tuple[Item, ...]
    runs: list[Run]
    home: dict[int, int] = field(default_factory=dict)  # name -> run
    lets: dict[int, ir.Let] = field(default_factory=dict)
    again: dict[int, ir.Let] = field(default_factory=dict)
    kept: dict[int, Name] = field(default_factory=dict)

    def plan(self) -> Plan:
        """All that is known of the runs."""
        for run in self.runs:
            for s in rebuild.every(run.body):
                self.home.update({name.number: run.number for name in defined(s)})
            self.lets.update({s.target.number: s for s in run.body if isinstance(s, ir.Let)})
        for run in self.runs:
            for name in used(run.body):
                if self.home.get(name.number, run.number) != run.number:
                    self._use(name)
        asked = {
            name.number: name
            for s in _statements(self.items)
            for name in used((s,), inside=False)
            if name.number in self.home
        }
        arrays = self._arrays()
        whole = frozenset(self.whole)
        parts = tuple(self.runs), whole, self.again, self.kept, asked, arrays
        return Plan(self.items, *parts)

    def _use(self, name: Name) -> None:
        """A name of another run."""
        closure: dict[int, ir.Let] = {}
        if self._closure(name, closure):
            self.again.update(closure)
        else:
            self.kept[name.number] = name

    def _closure(self, name: Name, found: dict[int, ir.Let]) -> bool:
        """Collect the few operations on places and known names that a value is made of."""
        if name.number not in self.home or name.number in found:
            return True
        let = self.lets.get(name.number)
        if let is None or len(found) >= _MANY or let.op in ir.LIBRARY or _traps(let):
            return False
        found[name.number] = let
        return all(self._closure(a, found) for a in let.args if isinstance(a, Name))

    def _arrays(self) -> frozenset[int]:
        """Local arrays that are touched by a run that does not allocate them."""
        homes, found = dict[int, int](), set[int]()
        for run in self.runs:
            for s in rebuild.each(run.body, ir.Allocate):
                homes[s.buffer.number] = run.number
        for run in self.runs:
            for buffer in buffers_of(run.body):
                if buffer.space == "local" and homes[buffer.number] != run.number:
                    found.add(buffer.number)
        return frozenset(found)


def _statements(items: Iterable[Item]) -> Iterator[Stmt]:
    """What the cube does as a whole."""
    for item in items:
        if isinstance(item, Whole):
            yield item.statement
            for block in item.blocks:
                yield from _statements(block)


def defined(s: Stmt) -> list[Name]:
    """Names that a statement makes: a value, a variable, or the index of a loop."""
    if isinstance(s, ir.For):
        return [s.index]
    if isinstance(s, ir.Declare):
        return [s.variable]
    target = rebuild.target_of(s)
    return [] if target is None else [target]


def used(body: Body, inside: bool = True) -> Iterator[Name]:
    """Names that statements use, variables among them; `inside` others too."""
    for s in rebuild.every(body) if inside else body:
        for field_name in s.__dataclass_fields__:
            if field_name not in ("target", "index") or not isinstance(s, ir.For | ir.Let):
                yield from _names(getattr(s, field_name), field_name)


def _names(value: Any, field_name: str) -> Iterator[Name]:
    if field_name == "target":
        return
    if isinstance(value, Name):
        yield value
    elif type(value) is tuple:
        for item in value:
            yield from _names(item, field_name)
    elif isinstance(value, ir.Panel):
        yield from _names(value.index, "")


def buffers_of(body: Body) -> Iterator[Buffer]:
    """Buffers that statements touch."""
    for s in rebuild.every(body):
        for field_name in s.__dataclass_fields__:
            value = getattr(s, field_name)
            if isinstance(value, Buffer):
                yield value
