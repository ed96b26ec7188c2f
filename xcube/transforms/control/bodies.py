"""Bodies: Python functions of pytrees become closed jaxprs, once per signature, and jaxprs are
rearranged and cut, once per way of doing it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import config, dtypes, tree
from xcube.array import Array
from xcube.ir import Aval, Equation, Jaxpr, Literal, Var, effects_of
from xcube.primitives.lowered import Inline
from xcube.primitives.shape import full
from xcube.trace import Tracer, literal
from xcube.transforms.arguments import FlatCall, as_leaf, stage_flat
from xcube.transforms.collectives import bound_axes

Flags = tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A traced function: its closed jaxpr, the values it captured (the leading inputs), and the
    structure of its result."""

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: tree.TreeDef

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        return self.jaxpr.out_avals


_bodies: weakref.WeakKeyDictionary[Any, dict[Any, Body]] = weakref.WeakKeyDictionary()


def stage_body(
    operation: Hashable,
    origin: Any,
    function: Callable[..., Any],
    arg_trees: Sequence[tree.TreeDef],
    avals: Sequence[Aval],
) -> Body:
    """Trace a function of pytrees. `origin`, the user's function, and the operation decide what
    `function` does: tracing it again for the same signature gives the same body."""
    settings = config.current
    modes = (settings.enable_x64, settings.numpy_dtype_promotion, settings.device)
    known, key = (
        _bodies_of(origin),
        (operation, tuple(arg_trees), tuple(avals), modes, bound_axes()),
    )
    if (body := known.get(key)) is not None:
        return body
    treedef = tree.treedef_tuple([tree.treedef_tuple(arg_trees), _NO_KEYWORDS])
    jaxpr, out_tree = stage_flat(FlatCall(function, [], treedef), avals)
    body = Body(jaxpr.closed(), jaxpr.consts, out_tree)
    if not any(isinstance(value, Tracer) for value in body.consts):
        known[key] = body
    return body


_NO_KEYWORDS = tree.structure({})


def _bodies_of(origin: Any) -> dict[Any, Body]:
    try:
        return _bodies.setdefault(origin, {})
    except TypeError:  # not hashable or not weakly referable: traced every time
        return {}


def clear() -> None:
    """Forget every traced body."""
    _bodies.clear()


def operands(operation: str, name: str, what: str, value: Any) -> tuple[list[Any], tree.TreeDef]:
    """The leaves of what control flow is given, as operands, and their structure. Numbers become
    program scalars, Python's weakly typed. Raises TypeError if one is neither array nor number."""
    leaves, treedef = tree.flatten(value)

    def where(number: int) -> str:
        return what + tree.keystr(tree.leaves_with_path(value)[number][0])

    return [
        leaf if isinstance(leaf, Array | Literal) else _operand(operation, name, where, n, leaf)
        for n, leaf in enumerate(leaves)
    ], treedef


def _operand(operation: str, name: str, where: Callable[[int], str], number: int, leaf: Any) -> Any:
    if type(leaf) in (bool, int, float, complex):
        return literal(leaf)
    if isinstance(leaf, np.generic) or (isinstance(leaf, np.ndarray) and leaf.ndim == 0):
        value = np.asarray(leaf)
        if value.dtype.kind in "biufc":
            return literal(value[()], dtypes.canonicalize_dtype(value.dtype))
    return as_leaf(operation, name, leaf, lambda: where(number))


def as_array(x: Any) -> Array:
    """An operand as an array: program scalars become arrays without axes."""
    return x if isinstance(x, Array) else full((), x)


def name_of(function: Any) -> str:
    """What to call a function in messages."""
    return getattr(function, "__name__", type(function).__name__)


# flags and lists ------------------------------------------------------------------------------


def split_at(values: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Consecutive parts of these sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return [*parts, list(values[start:])]


def picked(values: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
    """The values that are flagged."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def merged(flags: Iterable[bool], chosen: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """One list: at flags the chosen values in order, elsewhere the others."""
    one, two = iter(chosen), iter(others)
    return [next(one) if flag else next(two) for flag in flags]


def spread(flags: Iterable[bool], values: Iterable[Any]) -> list[Any]:
    """The values in order at flags, None elsewhere."""
    rest = iter(values)
    return [next(rest) if flag else None for flag in flags]


def either(a: Iterable[bool], b: Iterable[bool]) -> Flags:
    """Flag by flag, whether one of two is set."""
    return tuple(x or y for x, y in zip(a, b, strict=True))


# which values are reached ---------------------------------------------------------------------


def settled(start: Flags, guess: Flags, step: Callable[[Flags], Iterable[bool]]) -> Flags:
    """The least flags that hold `start` and, for themselves, what `step` makes of them. A guess
    that proves right saves steps, of which each traces a body."""
    for flags in (guess, start):
        while True:
            found = either(start, step(flags))
            if found == flags:
                return flags
            if not all(new or not old for old, new in zip(flags, found, strict=True)):
                break  # the guess was too high
            flags = found
    raise AssertionError("what is reached from more is more")


def carried(jaxpr: Jaxpr, flags: Flags, first: int, count: int, smooth: bool = False) -> Flags:
    """The carries, `count` inputs from `first`, that flagged inputs reach in some steps."""
    while True:
        carry = either(flags[first : first + count], reached(jaxpr, flags, smooth)[:count])
        if carry == flags[first : first + count]:
            return carry
        flags = (*flags[:first], *carry, *flags[first + count :])


def reached(jaxpr: Jaxpr, flags: Iterable[bool], smooth: bool = False) -> Flags:
    """Which outputs depend on flagged inputs; if `smooth`, in a way that may have a derivative."""
    found = reached_vars(jaxpr, flags, smooth)
    return tuple([atom in found for atom in jaxpr.outputs])


def reached_vars(jaxpr: Jaxpr, flags: Iterable[bool], smooth: bool = False) -> set[Any]:
    """The variables that depend on flagged inputs, these included."""
    found = set(picked(jaxpr.inputs, flags))
    for eqn in jaxpr.equations:
        sources = [atom in found for atom in eqn.inputs]
        if any(sources) and not (smooth and eqn.primitive.jvp == "zero"):
            found.update(picked(eqn.outputs, _reached_by(eqn, sources, smooth)))
    return found


def _reached_by(eqn: Equation, sources: list[bool], smooth: bool) -> Iterable[bool]:
    if isinstance(eqn.primitive.lower, Inline):
        return reached(eqn.params[eqn.primitive.lower.name], sources, smooth)
    return [not smooth or dtypes.is_inexact(var.aval.dtype) for var in eqn.outputs]


def needed(jaxpr: Jaxpr, flags: Iterable[bool]) -> Flags:
    """Which inputs flagged outputs depend on."""
    found = {atom for atom in picked(jaxpr.outputs, flags) if isinstance(atom, Var)}
    for eqn in reversed(jaxpr.equations):
        if any(var in found for var in eqn.outputs):
            found.update(atom for atom in eqn.inputs if isinstance(atom, Var))
    return tuple([var in found for var in jaxpr.inputs])


# jaxprs ---------------------------------------------------------------------------------------


def cached(jaxpr: Jaxpr, key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for a jaxpr and key."""
    if key not in jaxpr._cache:
        jaxpr._cache[key] = make()
    return jaxpr._cache[key]


def rearranged(jaxpr: Jaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> Jaxpr:
    """The program with some of its inputs and outputs, by position, in another order."""
    return Jaxpr(
        tuple([jaxpr.inputs[k] for k in inputs]),
        jaxpr.equations,
        tuple([jaxpr.outputs[k] for k in outputs]),
        jaxpr.captured,
        jaxpr.name,
    )


def pruned(jaxpr: Jaxpr) -> Jaxpr:
    """The program without equations that neither reach an output nor have effects."""
    needed = {atom for atom in jaxpr.outputs if isinstance(atom, Var)}
    kept = []
    for eqn in reversed(jaxpr.equations):
        if effects_of(eqn) or any(var in needed for var in eqn.outputs):
            kept.append(eqn)
            needed.update(atom for atom in eqn.inputs if isinstance(atom, Var))
    return Jaxpr(jaxpr.inputs, tuple(kept[::-1]), jaxpr.outputs, jaxpr.captured, jaxpr.name)


def forwarded_inputs(jaxpr: Jaxpr) -> list[int | None]:
    """For each output, the position of the input that it is, if it is one."""
    position = {var: number for number, var in enumerate(jaxpr.inputs)}
    return [position.get(atom) if isinstance(atom, Var) else None for atom in jaxpr.outputs]
