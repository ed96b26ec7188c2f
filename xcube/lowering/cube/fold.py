"""What the builder knows at comptime of an operation's result: constants combined, neutral operands
left out. Floats fold only where rounding cannot differ."""

from __future__ import annotations

import math as pymath
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from xcube.lowering.cube import ir

if TYPE_CHECKING:
    from xcube.lowering.cube.build import Builder, Scalar, Value

_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
}
_COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def fold(build: Builder, name: str, values: list[Value]) -> Value | None:
    """The result where it is known at comptime; floats fold only where rounding cannot differ."""
    first = values[0]
    constants = [value.constant for value in values]
    whole = first.dtype in ir.INTEGERS or first.dtype == "index"
    if name == "select":
        return None if constants[0] is None else values[1 if constants[0] else 2]
    if len(values) != 2:
        return None
    a, b = constants
    if a is not None and b is not None:
        return _fold_pair(build, name, first, a, b)
    if first.dtype == "bool":
        return _fold_bool(name, values, a, b)
    return _fold_whole(name, values, a, b) if whole else None


def _fold_pair(build: Builder, name: str, like: Value, a: Scalar, b: Scalar) -> Value | None:
    if name in _COMPARE:
        return build.constant(_COMPARE[name](a, b), "bool", like.lanes)
    if like.dtype in ir.FLOATS or name not in _EXACT:
        return _fold_quotient(build, name, like, a, b)
    return build.constant(_EXACT[name](int(a), int(b)), like.dtype, like.lanes)


def _fold_quotient(build: Builder, name: str, like: Value, a: Scalar, b: Scalar) -> Value | None:
    if like.dtype != "index" or name not in ("div", "rem") or not b:
        return None
    quotient = pymath.trunc(int(a) / int(b)) if abs(a) < 1 << 50 else None
    if quotient is None:
        return None
    result = quotient if name == "div" else int(a) - quotient * int(b)
    return build.constant(result, like.dtype, like.lanes)


def _fold_bool(name: str, values: list[Value], a: Scalar | None, b: Scalar | None) -> Value | None:
    if name not in ("and", "or"):
        return None
    neutral = name == "and"
    for constant, this, other in ((a, *values), (b, *reversed(values))):
        if constant is not None:
            return other if bool(constant) == neutral else this
    return None


def _fold_whole(name: str, values: list[Value], a: Scalar | None, b: Scalar | None) -> Value | None:
    x, y = values
    if b == 0 and name in ("add", "sub", "or", "xor", "shl", "shr"):
        return x
    if a == 0 and name in ("add", "or", "xor"):
        return y
    if b == 1 and name in ("mul", "div"):
        return x
    if a == 1 and name == "mul":
        return y
    if name == "mul" and (a == 0 or b == 0):
        return x if a == 0 else y
    return None
