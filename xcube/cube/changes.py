"""Python's own lists, dicts and objects while a kernel is expanded: a statement in a run-time
branch or loop is expanded once, however often it runs; what is older must not change in it."""

from __future__ import annotations

import dataclasses
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from xcube.cube.operators import Operators
from xcube.cube.state import Region, current, fail
from xcube.errors import KernelError

CONTAINERS = list | dict | set | deque | bytearray
METHODS = frozenset(
    "append appendleft extend extendleft insert pop popleft popitem update setdefault remove clear "
    "add discard sort reverse rotate".split()
)


def refuse_item(target: Any) -> None:
    """An item of this is assigned; what a class of Python does then is its own.

    Raises KernelError if that changes what is older than a run-time branch or loop around it.
    """
    if not isinstance(getattr(type(target), "__setitem__", None), types.FunctionType):
        refuse(target)


def refuse_growth(target: Any) -> None:
    """A name is assigned in place, as by `+=`: containers change by that, numbers do not.

    Raises KernelError as `refuse_item` does.
    """
    if isinstance(target, CONTAINERS | np.ndarray):
        refuse(target)


def refuse_call(function: Any) -> None:
    """This is called.

    Raises KernelError, as `refuse_item` does, if it is a method that changes a container.
    """
    if isinstance(function, types.BuiltinMethodType) and function.__name__ in METHODS:
        refuse_growth(function.__self__)


def refuse(target: Any) -> None:
    """A value of Python changes.

    Raises KernelError if it is older than a run-time branch or loop around the statement.
    """
    if any(_was_there(region, target) for region in current().regions[1:]):
        must = (
            "cube: a Python list, dict or object must not change inside a run-time branch or loop, "
            "for it would change once, at expansion"
        )
        got = f"a {type(target).__name__} that was there before"
        way = "Use names, a cube.LocalArray, or a new value: g = [g[1], g[0]]."
        fail(KernelError, must, got, way)


def _was_there(region: Region, target: Any) -> bool:
    """Whether names reached a value when a region began."""
    if region.reached is None:
        region.reached = _reached([value for names in region.names for value in names.values()])
    return id(target) in region.reached or any(
        value is target for names in region.shared for value in names.values()
    )


def _reached(roots: Iterable[Any]) -> dict[int, Any]:
    """Values and what they hold, by their identity."""
    found: dict[int, Any] = {}
    rest = [*roots]
    while rest:
        value = rest.pop()
        if id(value) not in found:
            found[id(value)] = value
            rest.extend(_held(value))
    return found


def _held(value: Any) -> Iterable[Any]:
    """What a container or an object holds, at the first level."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, Operators | type | types.ModuleType | types.FunctionType):
        return ()
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return [getattr(value, name) for name in fields if hasattr(value, name)]
    return getattr(value, "__dict__", {}).values()
