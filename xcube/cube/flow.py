"""What rewritten functions call: the object behind the name `__cube` in them. Branches and loops
are in `branches.py` and `loops.py`; here are the expressions that Python would decide by truth, and
what calls and statements become."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xcube.cube import changes, functions
from xcube.cube.branches import VALUE, Branches, Locals, Names, Side, join, truth
from xcube.cube.loops import For, While
from xcube.cube.operators import INDEX, Operators
from xcube.cube.ranges import any_range
from xcube.cube.state import current, fail, region
from xcube.cube.values import (
    Core,
    DType,
    Undefined,
    Value,
    as_bool,
    converted,
    dtype_of,
    resolved,
    typed,
)
from xcube.errors import DtypeError, KernelError
from xcube.lowering.cube import ir

Thunk = Callable[[], Any]

# Python's functions that mean something else for run-time numbers.
CALLEES: dict[Any, Any] = {
    builtins.range: any_range,
    builtins.min: functions.minimum,
    builtins.max: functions.maximum,
    builtins.abs: functions.absolute,
    builtins.len: functions.length,
    builtins.float: functions.as_float,
    builtins.int: functions.as_int,
    builtins.bool: functions.as_truth,
    builtins.any: functions.any_of,
    builtins.all: functions.all_of,
    **{
        getattr(math, name): getattr(functions, name)
        for name in "exp log sqrt sin cos tan tanh floor ceil hypot".split()
    },
}
NUMPY = {  # functions of NumPy that the language names otherwise
    **{"arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh"},
    **{"arctan": "atan", "arctanh": "atanh", "arctan2": "atan2", "isfinite": "is_finite"},
    **{"isinf": "is_inf", "isnan": "is_nan", "bitwise_count": "popcount"},
}
_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Flow:
    """The control flow of functions of one file."""

    file: str

    # statements

    def line(self, number: int) -> None:
        """Statements come from this line from here on."""
        current().build.source = f"{self.file}:{number}"

    def branches(self, test: Any, names: Names, reset: Names) -> Branches:
        """An `if`."""
        return Branches(truth("if", test), names, reset, current().build.source)

    def loop(
        self, items: Iterable[Any], names: Names, lost: Names, jumps: bool, locals: Locals
    ) -> For:
        """A `for`."""
        if isinstance(items, Operators):
            must = "for: what a loop walks through must be a range, or known at expansion"
            fail(KernelError, must, typed(items), "Write range(n).")
        found = For(names, lost, current().build.source, items=items, jumps=jumps)
        found.begin(locals)
        return found

    def while_(self, names: Names, locals: Locals) -> While:
        """A `while`."""
        found = While(names, (), current().build.source)
        found.begin(locals)
        return found

    def return_(self) -> None:
        """The unit ends here."""
        state = current()
        if len(state.regions) > 1:
            state.build.emit(ir.Return())
        state.region.dead = True

    def is_dead(self) -> bool:
        """Whether control does not get here."""
        return current().region.dead

    def assert_(self, test: Any, message: Thunk) -> None:
        """An `assert`: now where its condition is known, else a check of checked launches."""
        holds = truth("assert", test)
        if not isinstance(holds, bool):
            text = str(message()).replace("{", "{{").replace("}", "}}")
            current().build.check(holds, text)
        elif not holds:
            raise AssertionError(message())

    def raises(self) -> None:
        """A `raise` is reached.

        Raises KernelError if that depends on run-time values.
        """
        if len(current().regions) > 1:
            must = "raise: an exception must be raised by what is known at expansion"
            fail(KernelError, must, "one in a run-time branch", "Write an assert.")

    def annotated(self, value: Any, annotation: Any) -> Any:
        """What `name: dtype = value` assigns."""
        if not isinstance(annotation, DType):
            return value
        return converted(value, dtype_of(annotation), "the value of the annotated name")

    # expressions

    def choose(self, test: Any, then: Thunk, orelse: Thunk) -> Any:
        """`then if test else orelse`; what is not chosen is not done."""
        known = truth("if", test)
        if isinstance(known, bool):
            return then() if known else orelse()
        return chosen(known, then, orelse)

    def and_(self, first: Any, *others: Thunk) -> Any:
        """`first and second and ...`."""
        return self._short("and", first, others, False)

    def or_(self, first: Any, *others: Thunk) -> Any:
        """`first or second or ...`."""
        return self._short("or", first, others, True)

    def _short(self, what: str, first: Any, others: tuple[Thunk, ...], stops: bool) -> Any:
        """Operands are looked at while they are not `stops`."""
        test = truth(what, first)
        if not others:
            return first
        if isinstance(test, bool):
            return first if test is stops else self._short(what, others[0](), others[1:], stops)

        def rest() -> Value:
            return as_bool(what, self._short(what, others[0](), others[1:], stops))

        def stop() -> bool:
            return stops

        return chosen(test, stop, rest) if stops else chosen(test, rest, stop)

    def not_(self, given: Any) -> Any:
        """`not given`."""
        test = truth("not", given)
        return not test if isinstance(test, bool) else Value(~test)

    def chain(self, first: Any, *links: tuple[str, Thunk]) -> Any:
        """`first < second <= ...`; each operand is computed once."""
        (name, second), *others = links
        value = second()
        holds = _COMPARE[name](first, value)
        return self.and_(holds, lambda: self.chain(value, *others)) if others else holds

    def is_(self, first: Any, second: Any) -> bool:
        """`first is second`, of what is known."""
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Operators) and other is not None and not isinstance(one, Undefined):
                must = "is: identity must be asked of what is known at expansion"
                fail(KernelError, must, f"{typed(one)}, a run-time value", "Compare with ==.")
        return first is second

    def contains(self, item: Any, items: Any) -> bool:
        """`item in items`, of what is known."""
        if isinstance(item, Operators) and isinstance(resolved(item), Value):
            must = "in: what is looked for must be known at expansion"
            way = "Compare with each: x == a or x == b."
            fail(KernelError, must, f"{typed(item)}, a run-time value", way)
        return item in items

    def items(self, given: Any) -> Any:
        """What an item is read of."""
        return Table(given) if isinstance(given, np.ndarray) else given

    def holder(self, given: Any) -> Any:
        """What an item is assigned of."""
        changes.refuse_item(given)
        return given

    def owner(self, given: Any) -> Any:
        """What an attribute is assigned of."""
        changes.refuse(given)
        return given

    def grown(self, given: Any) -> None:
        """What `+=` and its like begin with."""
        changes.refuse_growth(given)

    def callee(self, function: Any) -> Any:
        """What is called instead of a function of Python."""
        changes.refuse_call(function)
        if isinstance(function, np.ufunc):
            return partial(_of_numpy, function)
        try:
            return CALLEES.get(function, function)
        except TypeError:
            return function


@dataclass(frozen=True)
class Table:
    """A NumPy array where an item of it is read."""

    array: np.ndarray

    def __getitem__(self, key: Any) -> Any:
        """The items; NumPy would say of a run-time index only that it is none."""
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, Operators):
                part.known(*INDEX)
        return self.array[key]


def _of_numpy(function: np.ufunc, *args: Any, **named: Any) -> Any:
    """A function of NumPy's, of what is known at expansion."""
    name = function.__name__
    for x in args:
        if isinstance(x, Operators) and isinstance(resolved(x), Value):
            must = f"np.{name}: NumPy's functions must be given what is known at expansion"
            word = NUMPY.get(name, name)
            way = f"Write cube.{word}(...)." if hasattr(functions, word) else "Write it out."
            fail(TypeError, must, f"{typed(x)}, a run-time value", way)
    return function(*args, **named)


def chosen(test: Core, then: Thunk, orelse: Thunk) -> Any:
    """One of two values, by a run-time condition; each is computed where it is asked for."""
    build, sides, pure = current().build, [], True
    for thunk in (then, orelse):
        build.open()
        with region():
            value = thunk()
        pure = pure and build.is_pure()
        sides.append(Side(build.close(), {VALUE: value}))
    if pure and all(_is_scalar(side) for side in sides):
        return _selected(test, sides)
    entry = {VALUE: Undefined(VALUE, "it is computed in branches")}
    return join(build, test, sides, entry, build.source)[VALUE]


def _is_scalar(side: Side) -> bool:
    assert side.values is not None
    return isinstance(side.values[VALUE], bool | int | float | Operators)


def _selected(test: Core, sides: list[Side]) -> Any:
    """Both values are computed; cheaper than a branch where nothing else is done."""
    for side in sides:
        for statement in side.block:
            test.build.emit(statement)
    then, orelse = [side.values[VALUE] for side in sides if side.values is not None]
    try:
        return functions.select(Value(test), then, orelse)
    except DtypeError as error:
        raise DtypeError(f"if: both values must have one dtype; {error}") from None
