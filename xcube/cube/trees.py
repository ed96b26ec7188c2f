"""Values that hold numbers: tuples, lists, dicts, dataclasses and views, taken apart into their
run-time numbers and put together again, so that branches and loops can hand them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.cube.values import Operators, Undefined, Value, resolved

Leaves = list[Any]


@dataclass(frozen=True)
class Tree:
    """How a value is put together: its children, or its leaf's number, or what has no numbers."""

    kind: Any
    children: tuple[Tree, ...] = ()
    static: Any = None

    def __str__(self) -> str:
        if self.kind == "static":
            value = self.static.value
            return "None" if value is None else f"{type(value).__name__} {value!r}"
        if self.kind == "leaf":
            return "a number"
        name = getattr(self.kind, "__name__", str(self.kind))
        return f"{name} of {len(self.children)}"


LEAF = Tree("leaf")


def flatten(value: Any) -> tuple[Leaves, Tree]:
    """Numbers of a value, and how they are put together."""
    leaves: Leaves = []
    return leaves, _flatten(value, leaves)


def is_number(value: Any) -> bool:
    """Whether a value is one number or stands for one."""
    return isinstance(value, bool | int | float | np.generic | Operators)


def _flatten(value: Any, leaves: Leaves) -> Tree:
    if is_number(value):
        leaves.append(value)
        return LEAF
    parts = _parts(value)
    if parts is None:
        return Tree("static", static=_Same(value))
    kind, static, children = parts
    return Tree(kind, tuple([_flatten(child, leaves) for child in children]), static)


def _parts(value: Any) -> tuple[Any, Any, Sequence[Any]] | None:
    """Kind, what must stay the same, and children of a value that has children."""
    if hasattr(value, "__cube_parts__"):
        static, children = value.__cube_parts__()
        return type(value), static, children
    if isinstance(value, tuple | list):
        return type(value), None, value
    if isinstance(value, dict):
        return dict, tuple(value), list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple([field.name for field in dataclasses.fields(value)])
        return type(value), names, [getattr(value, name) for name in names]
    return None


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The value of some numbers."""
    return _build(tree, iter(leaves).__next__)


def _build(tree: Tree, take: Callable[[], Any]) -> Any:
    if tree.kind == "leaf":
        return take()
    if tree.kind == "static":
        return tree.static.value
    children = [_build(child, take) for child in tree.children]
    if hasattr(tree.kind, "__cube_parts__"):
        return tree.kind.__cube_build__(tree.static, children)
    if tree.kind is dict:
        return dict(zip(tree.static, children, strict=True))
    if isinstance(tree.kind, type) and dataclasses.is_dataclass(tree.kind):
        return remade(tree.kind, dict(zip(tree.static, children, strict=True)))
    return tree.kind(*children) if hasattr(tree.kind, "_fields") else tree.kind(children)


def remade(kind: type, fields: Mapping[str, Any]) -> Any:
    """A dataclass of these fields; its own checks of them are not for what kernels put there."""
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


@dataclass(frozen=True, eq=False)
class _Same:
    """A value without numbers; equal to itself, and to equal plain ones."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        return self.value is other.value or (
            isinstance(self.value, str | bytes | type(None)) and self.value == other.value
        )

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


def is_same(first: Any, second: Any) -> bool:
    """Whether two values are evidently the same, without a look at run time."""
    if first is second:
        return True
    (a, structure), (b, other) = flatten(first), flatten(second)
    if structure != other:
        return False
    return all(_is_same_number(x, y) for x, y in zip(a, b, strict=True))


def _is_same_number(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if isinstance(x, Undefined) or isinstance(y, Undefined):
        return isinstance(x, Undefined) and isinstance(y, Undefined)
    a, b = resolved(x), resolved(y)
    if isinstance(a, Value) and isinstance(b, Value):
        return a.core.atom == b.core.atom and repr(a.core.atom) == repr(b.core.atom)
    return type(a) is type(b) and not isinstance(a, Value) and a == b
