"""States of reductions in registers: variables that hold them, and how the rules of a group combine
two of them, or all lanes of one. A state is a list of parts; a complex part is a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.expression import Expressions
from xcube.lowering.kernels.nodes import Emitter
from xcube.lowering.kernels.space import Fold


def neutral(emit: Emitter, fold: Fold, lanes: int) -> list[Any]:
    """The state of no elements, in every lane."""
    return [splat(emit.build, emit.value(node), lanes) for node in fold.init]


def combine(emit: Emitter, fold: Fold, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The reduction's rule, run on two states through placeholder nodes."""
    nodes = Expressions()
    left = [nodes.make(f"left{n}", d) for n, d in enumerate(fold.dtypes)]
    right = [nodes.make(f"right{n}", d) for n, d in enumerate(fold.dtypes)]
    results = fold.combine(nodes, left, right)
    emit.open()
    for node, value in zip((*left, *right), (*a, *b), strict=True):
        emit.known(node, value)
    values = emit.values(results)
    emit.close()
    return values


def combine_all(emit: Emitter, fold: Fold, states: Sequence[Sequence[Any]]) -> list[Any]:
    """States combined two by two, neighbours first."""
    while len(states) > 1:
        pairs = [states[k : k + 2] for k in range(0, len(states), 2)]
        states = [combine(emit, fold, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return list(states[0])


def across_lanes(emit: Emitter, fold: Fold, parts: Sequence[Any], lanes: int) -> list[Any]:
    """The lanes of a line of states, combined by halves."""
    while lanes > 1:
        half = lanes // 2
        low = [pick(emit.build, part, range(half)) for part in parts]
        high = [pick(emit.build, part, range(half, lanes)) for part in parts]
        parts, lanes = combine(emit, fold, low, high), half
    return list(parts)


def select(b: Builder, mask: Value, then: Sequence[Any], orelse: Sequence[Any]) -> list[Any]:
    """One of two states, in every lane."""
    return [_select(b, mask, x, y) for x, y in zip(then, orelse, strict=True)]


def _select(b: Builder, mask: Value, then: Any, orelse: Any) -> Any:
    if isinstance(then, Complex):
        real = b.select(mask, then.real, orelse.real)
        return Complex(real, b.select(mask, then.imag, orelse.imag))
    return b.select(mask, then, orelse)


def splat(b: Builder, value: Any, lanes: int) -> Any:
    """A part of a state in every lane."""
    if isinstance(value, Complex):
        return Complex(b.splat(value.real, lanes), b.splat(value.imag, lanes))
    return b.splat(value, lanes)


def pick(b: Builder, value: Any, lanes: range) -> Any:
    """Some lanes of a part of a state."""
    if isinstance(value, Complex):
        return Complex(pick(b, value.real, lanes), pick(b, value.imag, lanes))
    if len(lanes) == 1:
        return b.extract(value, lanes[0])
    return b.shuffle(value, list(lanes))


def variable(b: Builder, value: Any) -> Any:
    """A mutable part of a state."""
    if isinstance(value, Complex):
        return variable(b, value.real), variable(b, value.imag)
    return b.variable(value)


def read(part: Any) -> Any:
    """The value of a mutable part."""
    return Complex(read(part[0]), read(part[1])) if isinstance(part, tuple) else part.get()


def assign(part: Any, value: Any) -> None:
    """Give a mutable part its value."""
    if isinstance(part, tuple):
        assign(part[0], value.real)
        assign(part[1], value.imag)
    else:
        part.set(value)
