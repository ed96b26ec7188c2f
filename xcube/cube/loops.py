"""Loops: expanded turn by turn where Python knows how they go, else one loop of the kernel, whose
body is expanded once; what it assigns lives in variables. A loop that turns out to depend on
run-time values while it is expanded goes on as one of the kernel from that turn on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xcube.cube.branches import Locals, Names, describe, label, picked, shaped, truth, zero
from xcube.cube.ranges import Range, Unrolled
from xcube.cube.state import current, fail, region
from xcube.cube.trees import Tree, flatten, is_same, unflatten
from xcube.cube.values import (
    Core,
    DType,
    Operators,
    Size,
    Undefined,
    Value,
    as_index,
    lifted,
    resolved,
    typed,
)
from xcube.errors import DtypeError, KernelError
from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Variable

TURNS = 1024  # that a loop is expanded to if nobody asks for more
RESULT = "__result"  # the name of what a function returns from inside a loop


# what a loop hands from turn to turn ----------------------------------------------------------


@dataclass
class Carried:
    """The names of a loop as variables. `hints`: types that numbers turned out to have."""

    entry: Mapping[str, Any]
    hints: dict[tuple[str, int], Any]
    variables: dict[str, tuple[list[Variable | None], Tree]] = field(default_factory=dict)
    reads: dict[str, list[Any]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def declare(self) -> None:
        """Variables of all names that have a value before the loop."""
        for name, value in self.entry.items():
            leaves, tree = flatten(value)
            if (result := self.hints.get((name, -1))) is not None:
                tree, types = result
                leaves = [Value(zero(type)) for type in types]
            if any(isinstance(leaf, Undefined) for leaf in leaves):
                continue
            made = [self._variable(name, number, leaf) for number, leaf in enumerate(leaves)]
            self.variables[name] = made, tree

    def _variable(self, name: str, number: int, leaf: Any) -> Variable | None:
        """The variable of a number; sizes have none unless a turn changes them."""
        hint = self.hints.get((name, number))
        if hint is None and isinstance(leaf, Size):
            return None
        init = lifted(leaf) if hint is None else shaped(_number(leaf, hint), hint)
        return current().build.variable(init.core)

    def values(self) -> dict[str, Any]:
        """What the names stand for now."""
        found: dict[str, Any] = {}
        for name, old in self.entry.items():
            if name not in self.variables:
                found[name] = _fresh(name, old)
                continue
            variables, tree = self.variables[name]
            self.reads[name] = [self._read(name, *pair) for pair in enumerate(variables)]
            found[name] = unflatten(tree, self.reads[name])
        return found

    def results(self) -> list[Any]:
        """What the names stand for behind the loop: as before it, if no turn changed them."""
        found = self.values()
        return [
            found[name] if name in self.changed else _fresh(name, x)
            for name, x in self.entry.items()
        ]

    def _read(self, name: str, number: int, variable: Variable | None) -> Any:
        if variable is None:
            return flatten(self.entry[name])[0][number]
        is_open = name != RESULT and (name, number) not in self.hints
        if is_open and not isinstance(resolved(flatten(self.entry[name])[0][number]), Value):
            return Value(variable.get(), weak=partial(self._hint, name, number, variable))
        return Value(variable.get())

    def _hint(self, name: str, number: int, variable: Variable, dtype: DType) -> None:
        """A number that began as Python's turns out to have a dtype."""
        self.hints[name, number] = variable.name.type.of(dtype.name)
        self._changed = True

    def store(self, locals: Locals) -> bool:
        """Assign what the names stand for; False if that needs variables of other types."""
        for name in self.entry:
            value = picked((name,), locals)[name]
            if name not in self.variables:
                self._note_result(name, value)
            else:
                self._store(name, value)
        return not self._changed

    _changed: bool = False

    def _note_result(self, name: str, value: Any) -> None:
        """What a function returns inside a loop begins as zeros."""
        if name == RESULT and not isinstance(value, Undefined):
            leaves, tree = flatten(value)
            self.hints[name, -1] = tree, [lifted(leaf).core.type for leaf in leaves]
            self._changed = True

    def _store(self, name: str, value: Any) -> None:
        variables, tree = self.variables[name]
        leaves, found = flatten(value)
        if found != tree:
            must = f"loop: {label(name)} must stay alike from turn to turn"
            got = f"{tree} before, then {describe(value)}"
            fail(KernelError, must, got, "Choose arrays and functions outside of the loop.")
        for number, (variable, leaf) in enumerate(zip(variables, leaves, strict=True)):
            if not is_same(leaf, self.reads[name][number]):
                self.changed.add(name)
                self._assign(name, number, variable, leaf)

    def _assign(self, name: str, number: int, variable: Variable | None, leaf: Any) -> None:
        if variable is None:
            self.hints[name, number] = ir.Type("index")
            self._changed = True
            return
        type = variable.name.type
        found = resolved(leaf)
        wanted = self._wanted(type, found)
        if wanted == type:
            variable.set(shaped(found, type).core)
            return
        if self._changed and (name, number) in self.hints:
            return  # this expansion is thrown away
        if (name, number) in self.hints or not self._is_weak(name, number, found, type):
            must = f"loop: {label(name)} must keep its type from turn to turn"
            way = f"Cast it: x.cast(cube.{type.dtype}), or begin with cube.{wanted.dtype}(...)."
            fail(DtypeError, must, f"{type} before, then {typed(leaf)}", way)
        self.hints[name, number] = wanted
        self._changed = True

    def _is_weak(self, name: str, number: int, found: Any, type: ir.Type) -> bool:
        """Whether a variable may take another type: it began as a Python number, or widens."""
        if name == RESULT:
            return False
        entry = resolved(flatten(self.entry[name])[0][number])
        return not isinstance(entry, Value) or entry.dtype.name == found.dtype.name

    def _wanted(self, type: ir.Type, found: Any) -> ir.Type:
        """The type that a variable should have to take a number."""
        if not isinstance(found, Value):
            floats = isinstance(found, float) and type.dtype not in ir.FLOATS
            return ir.Type("f32", type.lanes) if floats else type
        dtype = found.dtype.name
        if type.dtype == "index" and dtype in ir.INTEGERS:
            dtype = "index"
        return ir.Type(dtype, type.lanes if found.lanes == 1 else found.lanes)


def _number(leaf: Any, hint: ir.Type) -> Any:
    """A Python number that fits a type; its own type says so elsewhere."""
    return bool(leaf) if hint.dtype == "bool" and not isinstance(leaf, Operators) else leaf


def _fresh(name: str, old: Any) -> Any:
    if isinstance(old, Undefined):
        return Undefined(name, "a loop assigns it, and it has no value before the first turn")
    return old


# loops ----------------------------------------------------------------------------------------


@dataclass
class Loop:
    """What loops share: where a turn begins and ends, and what `break` and `continue` do."""

    names: Names
    lost: Names
    source: str | None
    entry: dict[str, Any] = field(default_factory=dict)
    carried: Carried | None = None
    jump: str = ""
    depth: int = 0
    restart: bool = False

    def begin(self, locals: Locals) -> list[Any]:
        """Values of the names where a turn begins."""
        if self.carried is None:
            self.entry = picked(self.names, locals)
            return list(self.entry.values())
        return list(self.carried.values().values())

    def end(self, locals: Locals) -> None:
        """A turn has ended here."""
        if self.carried is not None and not self.carried.store(locals):
            self.restart = True

    def leave(self, jump: str, locals: Locals) -> None:
        """`break` or `continue`."""
        state = current()
        if self.carried is not None:
            self.end(locals)
            state.build.emit(ir.Break() if jump == "break" else ir.Continue())
        elif len(state.regions) > self.depth:
            self.restart = True
        else:
            self.jump = jump
        state.region.dead = True

    def merged(self, locals: Locals) -> list[Any]:
        """Values of the names behind the loop, then those of targets."""
        if self.carried is None:
            return list(picked((*self.names, *self.lost), locals).values())
        lost = [Undefined(name, "its loop has ended at run time") for name in self.lost]
        return [*self.carried.results(), *lost]

    def kernel_loop(self) -> Iterator[None]:
        """Yields for each expansion of the body of a loop of the kernel: mostly one. What the
        loop becomes is emitted by `finish`."""
        build, hints = current().build, {}  # hints outlive the expansions that find them
        while True:
            build.open()
            self.carried, self.restart = Carried(self.entry, hints), False
            self.carried.declare()
            build.open()
            with region():
                yield
            body = build.close()
            if not self.restart:
                break
            build.close()
        self.finish(body)
        build.splice()

    def finish(self, body: tuple[ir.Stmt, ...]) -> None:
        """Emit the loop."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether a turn that was expanded is the last one; it counts as a part of the kernel."""
        state = current()
        if self.jump:
            state.region.dead, jump, self.jump = False, self.jump, ""
            return jump == "break"
        return state.region.dead


@dataclass
class For(Loop):
    """A `for`: yields its targets."""

    items: Any = None
    jumps: bool = False
    index: ir.Name | None = None
    bounds: tuple[Core, Core, Core] | None = None

    def __iter__(self) -> Iterator[Any]:
        self.depth = len(current().regions)
        if isinstance(self.items, Range):
            yield from self._at_run_time(self.items)
        elif not self.jumps:
            yield from self._turns()
        else:
            yield from self._expanded()

    def _turns(self) -> Iterator[Any]:
        """The items, no more than a loop is expanded to."""
        if isinstance(self.items, Unrolled) or not isinstance(self.items, range):
            yield from self.items
            return
        for turn, item in enumerate(self.items):
            if turn == TURNS:
                fail_long(f"{self.items}")
            yield item

    def _expanded(self) -> Iterator[Any]:
        state = current()
        for turn, item in enumerate(self._turns()):
            state.build.open()
            yield item
            if self.restart:
                state.build.close()
                state.region.dead = False
                yield from self._at_run_time(self._rest(turn))
                return
            state.build.splice()
            if self.is_over():
                return

    def _rest(self, turn: int) -> Range:
        if isinstance(self.items, range):
            rest = self.items[turn:]
            return Range(rest.start, rest.stop, rest.step)
        must = "break and continue: a loop that is expanded must leave by what is known then"
        got = f"a run-time condition in a loop over {type(self.items).__name__}"
        fail(KernelError, must, got, "Loop over cube.range, or use `if` for the rest of the turn.")

    def _at_run_time(self, items: Range) -> Iterator[Any]:
        build = current().build
        start, stop, step = items.start, items.stop, resolved(items.step)
        down = not isinstance(step, Value) and step < 0
        span, by = (_turns_down(start, stop, -step), 1) if down else (stop, step)
        first = as_index(0 if down else start)
        self.bounds = first.core, as_index(span).core, as_index(by).core
        for _ in self.kernel_loop():
            self.index = build.named(ir.Type("index"))
            counter = Value(Core(self.index, build), first.natural)
            yield start + counter * step if down else counter

    def finish(self, body: tuple[ir.Stmt, ...]) -> None:
        """Emit the loop."""
        assert self.index is not None and self.bounds is not None, "the body was expanded"
        start, stop, step = [bound.atom for bound in self.bounds]
        current().build.emit(ir.For(self.index, start, stop, step, body, self.source))


def _turns_down(start: Any, stop: Any, step: int) -> Any:
    """How many turns a range takes that goes down."""
    return (as_index(start) - as_index(stop) + (step - 1)) // step


def fail_long(what: str) -> None:
    """A loop is expanded for too long."""
    must = f"loop: a loop that is expanded must have at most {TURNS} turns"
    way = "Loop over cube.range(...), or over cube.unroll(...) if that is meant."
    fail(KernelError, must, f"more, in {what}", way)


@dataclass
class While(Loop):
    """A `while`: yields once for each expansion of its test and body."""

    going: bool = False

    def __iter__(self) -> Iterator[None]:
        state = current()
        self.depth = len(state.regions)
        for turn in itertools.count():
            if turn == TURNS:
                fail_long("a while whose condition is known")
            self.going = False
            state.build.open()
            yield
            if self.restart:
                break
            state.build.splice()
            if self.is_over() or not self.going:
                return
        state.build.close()
        state.region.dead = False
        yield from self.kernel_loop()

    def test(self, condition: Any) -> bool:
        """Whether the body is to be expanded; a run-time condition leaves the kernel's loop."""
        found, state = truth("while", condition), current()
        if isinstance(found, bool) and (self.carried is None or found):
            self.going = found
            return found
        if self.carried is None:
            self.restart = True
            return False
        if isinstance(found, bool):
            state.build.emit(ir.Break())
            return False
        state.build.emit(ir.If((~found).atom, (ir.Break(),), (), self.source))
        return True

    def finish(self, body: tuple[ir.Stmt, ...]) -> None:
        """Emit the loop."""
        current().build.emit(ir.Loop(body, self.source))
