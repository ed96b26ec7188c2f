"""jaxpr -> jaxpr that can be stored: of primitives whose parameters are plain values. Calls with
rules of their own (custom derivatives, checkpoint) become plain calls of what they compute,
compositions that transforms define are expanded, and calls of Python are refused."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from dataclasses import replace
from typing import Any

from xcube import primitives
from xcube.errors import ExportError
from xcube.ir import Equation, Jaxpr, Primitive
from xcube.primitives.callback import HostOnly
from xcube.primitives.lowered import Expand, HostCall, Inline
from xcube.trace import stage
from xcube.transforms.call import jit_p
from xcube.transforms.control.cond import cond_p
from xcube.transforms.control.scan import scan_p
from xcube.transforms.control.while_loop import while_p
from xcube.transforms.custom.constants import Held, constant_p

FAMILIES = [
    importlib.import_module(f"{primitives.__name__}.{info.name}")
    for info in pkgutil.iter_modules(primitives.__path__)
]


def _is_plain(value: Any) -> bool:
    return isinstance(value, Primitive) and not isinstance(value.lower, HostCall | HostOnly)


def _defined(family: Any) -> list[Primitive]:
    """The primitives of a family: its values, or those that its functions bind."""
    found = [getattr(value, "primitive", value) for value in vars(family).values()]
    return [value for value in found if _is_plain(value)]


def _is_parameter(value: Any) -> bool:
    """Whether it is a class of parameters: an enumeration, a named tuple or a frozen dataclass
    whose instances are equal by their fields."""
    if not isinstance(value, type) or not value.__module__.startswith(primitives.__name__):
        return False
    kind = getattr(value, "__dataclass_params__", None)
    if kind is not None:
        return kind.frozen and kind.eq
    return issubclass(value, enum.Enum) or (issubclass(value, tuple) and hasattr(value, "_fields"))


PRIMITIVES: dict[str, Primitive] = {
    primitive.name: primitive
    for primitive in (
        *(value for family in FAMILIES for value in _defined(family)),
        *(jit_p, scan_p, while_p, cond_p, constant_p),
    )
}
"""What a stored program is made of: the primitives of every family in `primitives` that do not call
Python, calls, control flow, and arrays that rules brought along."""

PARAMETERS: dict[str, type] = {
    value.__name__: value
    for value in (Held, *(value for family in FAMILIES for value in vars(family).values()))
    if value is Held or _is_parameter(value)
}
"""The classes of parameters that are no plain values."""


def portable(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with every equation, inner ones included, one of `PRIMITIVES`.

    Raises ExportError for an equation that calls Python.
    """
    if "portable" not in jaxpr._cache:
        equations = tuple([found for eqn in jaxpr.equations for found in _equations(eqn)])
        jaxpr._cache["portable"] = replace(jaxpr, equations=equations, _cache={})
    return jaxpr._cache["portable"]


def _equations(eqn: Equation) -> list[Equation]:
    lower, params = eqn.primitive.lower, eqn.params
    if PRIMITIVES.get(eqn.primitive.name) is eqn.primitive:
        return [replace(eqn, params={key: _parameter(value) for key, value in params.items()})]
    if isinstance(lower, Inline):
        return [_call(eqn, params[lower.name])]
    if isinstance(lower, HostOnly) and not eqn.outputs:
        return _checks(eqn, lower)
    if isinstance(lower, Expand):
        return [_call(eqn, _expansion(eqn, lower))]
    raise ExportError(
        f"export: {eqn.primitive.name} calls Python, which cannot be stored.{_written(eqn)} Export "
        f"the parts of the function before and after it."
    )


def _parameter(value: Any) -> Any:
    if isinstance(value, Jaxpr):
        return portable(value)
    if type(value) is tuple and any(isinstance(item, Jaxpr) for item in value):
        return tuple([_parameter(item) for item in value])
    return value


def _call(eqn: Equation, jaxpr: Jaxpr) -> Equation:
    params = {"jaxpr": portable(jaxpr), "name": eqn.primitive.name}
    return replace(eqn, primitive=jit_p, params=params)


def _checks(eqn: Equation, lower: HostOnly) -> list[Equation]:
    """What stands for a check in a program: nothing for a debug_check."""
    try:
        _expansion(eqn, lower)
    except ValueError as error:
        raise ExportError(f"export: {error}") from error
    return []


def _expansion(eqn: Equation, lower: Expand) -> Jaxpr:
    """The composition that an equation stands for."""

    def expand(*args: Any) -> Any:
        result = lower.function(*args, **eqn.params)
        return result if eqn.primitive.multiple else [result]

    jaxpr = stage(expand, [atom.aval for atom in eqn.inputs], eqn.primitive.name)
    assert not jaxpr.captured, "a composition of its operands"
    return jaxpr


def _written(eqn: Equation) -> str:
    return f" Written at {eqn.source}." if eqn.source else ""
