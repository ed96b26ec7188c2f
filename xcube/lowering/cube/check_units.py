"""The rules of what units do together or tell people, for `check.py`: operations of planes, compare
and exchange, prints and asserts."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xcube.errors import KernelError
from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.ir import Atom, Type

if TYPE_CHECKING:
    from xcube.lowering.cube.check import Checker

_INDEX, _BOOL = Type("index"), Type("bool")


def _plane(checker: Checker, s: ir.Plane) -> None:
    type = checker.use(s.value)
    dtypes = planes.OPS.get(s.op)
    if dtypes is None:
        checker.fail(f"an operation of planes must be in the table; got {s.op!r}")
    checker.require(
        type.dtype in dtypes,
        f"plane {s.op} must have a dtype of {', '.join(dtypes)}; got {type.dtype}",
    )
    wanted = type.of("u32") if s.op == "ballot" else type
    got = s.target.type
    checker.require(got == wanted, f"the result of plane {s.op} must be {wanted}; got {got}")
    if s.op in planes.SHUFFLES:
        if s.argument is None:
            checker.fail(f"plane {s.op} must have the number of a unit; got none")
        checker.scalar_of(s.argument, _INDEX, "the number of a unit")
    else:
        checker.require(s.argument is None, f"plane {s.op} must have no second operand")
    checker.define(s.target)


def _compare_exchange(checker: Checker, s: ir.CompareExchange) -> None:
    type = Type(s.buffer.dtype)
    checker.access(s.buffer, s.index, 1, None)
    checker.element(s.buffer, type)
    checker.scalar_of(s.expected, type, "what is expected of an element")
    checker.scalar_of(s.value, type, "a value to exchange")
    got = s.target.type
    checker.require(got == type, f"an exchange gives {type}; got {got}")
    checker.define(s.target)


def places_of(format: str) -> int:
    """How many values a text has places {} for.

    Raises KernelError if a place is more than that.
    """
    try:
        fields = [field for _, *field in string.Formatter().parse(format) if field[0] is not None]
    except ValueError as error:
        rule = f"a text must have places of the form {{}}; {error} in {format!r}"
        raise KernelError(rule) from error
    if any(name or spec or conversion for name, spec, conversion in fields):
        raise KernelError(f"a text must have places of the form {{}} alone; got {format!r}")
    return len(fields)


def _message(checker: Checker, format: str, args: tuple[Atom, ...]) -> None:
    try:
        places = places_of(format)
    except KernelError as error:
        checker.fail(str(error))
    checker.require(
        places == len(args), f"a text must have a place for each value; {places} for {len(args)}"
    )
    for atom in args:
        type = checker.use(atom)
        checker.require(type.lanes == 1, f"a value in a text must have 1 lane; got {type}")


def _assert(checker: Checker, s: ir.Assert) -> None:
    checker.scalar_of(s.condition, _BOOL, "what is asserted")
    _message(checker, s.message, s.args)


CHECKS: dict[type, Callable[[Any, Any], None]] = {
    ir.Plane: _plane,
    ir.CompareExchange: _compare_exchange,
    ir.Print: lambda checker, s: _message(checker, s.format, s.args),
    ir.Assert: _assert,
}
