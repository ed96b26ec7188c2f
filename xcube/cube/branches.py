"""Branches on run-time conditions: both sides are expanded, one after the other, from the same
names; what they assign meets in variables behind them. A condition that is known takes one side,
as Python does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube.cube.state import Scribe, current, fail, region
from xcube.cube.trees import Leaves, Tree, flatten, is_same, unflatten
from xcube.cube.values import (
    DTYPES,
    Core,
    Operators,
    Undefined,
    Value,
    as_bool,
    constant,
    converted,
    lifted,
    resolved,
    typed,
    yields,
)
from xcube.errors import DtypeError, KernelError
from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Stmt

VALUE = "the value"  # the name of what an expression of branches gives

Names = tuple[str, ...]
Locals = Mapping[str, Any]


def truth(what: str, test: Any) -> bool | Core:
    """A condition: known, or to be seen at run time."""
    value = resolved(test) if isinstance(test, Operators) else test
    if not isinstance(value, Value):
        return bool(value)
    known = value.core.constant
    return as_bool(what, value).core if known is None else bool(known)


def picked(names: Names, locals: Locals) -> dict[str, Any]:
    """Values of names, also of those that have none."""
    reason = "no path to here assigns it"
    return {name: locals.get(name, Undefined(name, reason)) for name in names}


@dataclass
class Side:
    """One side of a branch; `values`: of its names at its end, None if it is not reached."""

    block: tuple[Stmt, ...]
    values: dict[str, Any] | None


@dataclass
class Branches:
    """Walked through by a rewritten `if`: once for each side that is to be expanded. `names` are
    handed on, `reset` (those among them) are the same where both sides begin."""

    test: bool | Core
    names: Names
    reset: Names
    source: str | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[bool]:
        if isinstance(self.test, bool):
            yield self.test
            return
        build, sides = current().build, []
        for side in (True, False):
            build.open()
            with region() as here:
                self.found = None
                yield side
                found = None if here.dead else self.found
            sides.append(Side(build.close(), found))
        entry = {name: self.entry[name] for name in self.names}
        self.found = join(build, self.test, sides, entry, self.source)
        if all(side.values is None for side in sides):
            current().region.dead = True

    def begin(self, locals: Locals) -> list[Any]:
        """Values of the names where a side begins."""
        if not self.entry:
            self.entry = picked(self.reset, locals)
        return list(self.entry.values())

    def end(self, locals: Locals) -> None:
        """A side has ended here."""
        self.found = picked(self.names, locals)

    def merged(self, locals: Locals) -> list[Any]:
        """Values of the names behind the branches."""
        if isinstance(self.test, bool) or self.found is None:
            return list(picked(self.names, locals).values())
        return list(self.found.values())


def join(
    build: Scribe, test: Core, sides: Sequence[Side], entry: Mapping[str, Any], source: str | None
) -> dict[str, Any]:
    """Emit the branch; what names stand for behind it."""
    alive = [side for side in sides if side.values is not None]
    merges = [Merge(build, name, alive, old) for name, old in entry.items()]
    found = {merge.name: merge.value() for merge in merges}
    if any(side.block for side in sides):
        build.emit(ir.If(test.atom, sides[0].block, sides[1].block, source))
    return {name: value() for name, value in found.items()}


@dataclass
class Merge:
    """One name behind a branch; the variables it needs are declared before it."""

    build: Scribe
    name: str
    sides: Sequence[Side]
    entry: Any

    def value(self) -> Any:
        """A function that gives the value once the branch is emitted."""
        values = [side.values[self.name] for side in self.sides if side.values is not None]
        if not values:
            return lambda: self.entry
        if all(is_same(value, self.entry) for value in values):
            return lambda: self.entry
        taken = [flatten(value) for value in values]
        tree = taken[0][1]
        if any(other != tree for _, other in taken):
            return self._differ(values, [other for _, other in taken])
        leaves, old = [leaves for leaves, _ in taken], flatten(self.entry)
        before = old[0] if old[1] == tree else [None] * len(leaves[0])
        places = [self._leaf(row, old) for *row, old in zip(*leaves, before, strict=True)]
        return lambda: unflatten(tree, [place() for place in places])

    def _differ(self, values: Sequence[Any], trees: Sequence[Tree]) -> Any:
        if any(isinstance(value, Undefined) for value in values):
            return lambda: Undefined(self.name, "only one branch assigns it")
        must = f"if: {label(self.name)} must be alike in both branches of a run-time condition"
        got = " and ".join(map(str, trees))
        fail(
            KernelError, must, got, "Choose arrays and functions at comptime, numbers at run time."
        )

    def _leaf(self, row: Leaves, old: Any) -> Any:
        """A function that gives one number of the value."""
        if any(isinstance(x, Undefined) for x in row):
            return lambda: Undefined(self.name, "only one branch assigns it")
        if all(is_same(x, row[0]) for x in row) and not isinstance(resolved(row[0]), Value):
            return lambda: row[0]
        if old is not None and all(is_same(x, old) for x in row):
            return lambda: old
        type = self._type(row)
        known = old is not None and not isinstance(old, Undefined) and _fits(old, type)
        init = shaped(old, type).core if known else zero(type)
        variable = self.build.variable(init)
        for side, x in zip(self.sides, row, strict=True):
            if not (known and is_same(x, old)):
                self._assign(side, variable, x, type)
        return lambda: Value(variable.get())

    def _assign(self, side: Side, variable: Any, x: Any, type: ir.Type) -> None:
        self.build.open(side.block)
        variable.set(shaped(x, type).core)
        side.block = self.build.close()

    def _type(self, row: Leaves) -> ir.Type:
        """The type of numbers that meet."""
        values = [resolved(x) for x in row]
        known = [x for x in values if isinstance(x, Value)]
        if not known:
            return max([lifted(x).core.type for x in values], key=lambda t: _WEAK.index(t.dtype))
        found, *others = sorted(known, key=lambda x: x.weak is not None)
        type = found.core.type
        for other in others:
            open_one = type.dtype != other.dtype.name and yields(other, DTYPES[type.dtype])
            of = other.core.type
            type = self._common(type, of.of(type.dtype) if open_one else of)
        return type

    def _common(self, a: ir.Type, b: ir.Type) -> ir.Type:
        lanes = max(a.lanes, b.lanes)
        names, whole = {a.dtype, b.dtype}, {*ir.INTEGERS, "index"}
        if a.dtype != b.dtype and not ("index" in names and names <= whole):
            must = f"if: {label(self.name)} must have one dtype in both branches"
            way = f"Cast it in one of them: x.cast(cube.{a.dtype})."
            fail(DtypeError, must, f"{a} and {b}", way)
        if a.lanes != b.lanes and min(a.lanes, b.lanes) != 1:
            must = f"if: {label(self.name)} must have as many lanes in both branches"
            fail(DtypeError, must, f"{a} and {b}", "Make lines of one length.")
        return ir.Type("index" if "index" in names else a.dtype, lanes)


_WEAK = ("bool", "i32", "f32")  # dtypes of Python numbers, each of which the next one holds


def _fits(old: Any, type: ir.Type) -> bool:
    value = resolved(old)
    if isinstance(value, Value):
        return value.core.type == type
    return type.dtype in ir.FLOATS or (not isinstance(value, float) and type.dtype != "bool")


def shaped(given: Any, type: ir.Type) -> Value:
    """A number as a type that it fits."""
    value = converted(given, DTYPES[type.dtype])
    return Value(value.core.build.splat(value.core, type.lanes), value.natural)


def zero(type: ir.Type) -> Core:
    """Zeros of a type."""
    return constant(False if type.dtype == "bool" else 0, DTYPES[type.dtype], type.lanes).core


def label(name: str) -> str:
    """What a name stands for, for messages."""
    made = {"__result": "what a function returns", VALUE: VALUE}
    return made.get(name, f"`{name}`")


def describe(value: Any) -> str:
    """A value for messages."""
    leaves, tree = flatten(value)
    return typed(leaves[0]) if tree.kind == "leaf" else str(tree)
