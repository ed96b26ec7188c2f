"""Vectorisation: a jaxpr for one example becomes a jaxpr for a batch. A batched value keeps its
batch axis in front; `vmap` moves axes at the door."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from xcube import tree
from xcube.errors import ShapeError, TraceError
from xcube.ir import Aval, Axis, Equation, Jaxpr, at_user_line
from xcube.primitives.shape import batch_front, full, transpose
from xcube.trace import aval_of, bind, interpret, stage, written_at
from xcube.transforms.arguments import (
    FlatCall,
    check_callable,
    flatten_call,
    leaf_arrays,
    stage_flat,
)
from xcube.transforms.collectives import binding, names_used
from xcube.transforms.leaks import NoLeaks


def batch_values(
    jaxpr: Jaxpr, axis: Axis, args: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], list[bool]]:
    """Apply a jaxpr to a batch: results, and which of them have the batch axis in front."""
    named = axis.name is not None

    def rule(eqn: Equation, inputs: list[tuple[Any, bool]]) -> Sequence[tuple[Any, bool]]:
        values, flags = [value for value, _ in inputs], [flag for _, flag in inputs]
        if not any(flags) and not (named and axis.name in names_used(eqn)):
            outs = bind(eqn.primitive, *values, **eqn.params)
            return [(out, False) for out in (outs if eqn.primitive.multiple else [outs])]
        if eqn.primitive.batch is None:
            where = f" Written at {eqn.source}." if eqn.source else ""
            raise TraceError(f"vmap: {eqn.primitive.name} has no batching rule.{where}")
        with written_at(eqn.source):
            outs, out_flags = eqn.primitive.batch(axis, values, flags, **eqn.params)
        if eqn.primitive.multiple:
            return list(zip(outs, out_flags, strict=True))
        return [(outs, out_flags)]

    results = interpret(
        jaxpr, list(zip(args, batched, strict=True)), rule, lambda value: (value, False)
    )
    return [value for value, _ in results], [flag for _, flag in results]


def batch_jaxpr(
    jaxpr: Jaxpr, axis: Axis, batched: tuple[bool, ...], force: bool | tuple[bool, ...] = False
) -> tuple[Jaxpr, tuple[bool, ...]]:
    """The jaxpr form; `force` says of every output, or of all, that it gets a batch axis."""
    force = (force,) * len(jaxpr.outputs) if isinstance(force, bool) else force
    key = ("batch", axis, batched, force)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _batch_jaxpr(jaxpr, axis, batched, force)
    return jaxpr._cache[key]


def _batch_jaxpr(
    jaxpr: Jaxpr, axis: Axis, batched: tuple[bool, ...], force: tuple[bool, ...]
) -> Any:
    found: dict[str, Any] = {}
    avals = [
        aval.update(shape=(axis.size, *aval.shape)) if flag else aval
        for aval, flag in zip(jaxpr.in_avals, batched, strict=True)
    ]

    def function(*args: Any) -> list[Any]:
        outs, flags = batch_values(jaxpr, axis, args, batched)
        found["flags"] = tuple([flag or wanted for flag, wanted in zip(flags, force, strict=True)])
        return [
            to_batch(out, axis.size) if wanted and not flag else out
            for out, flag, wanted in zip(outs, flags, force, strict=True)
        ]

    return stage(function, avals, jaxpr.name), found["flags"]


def to_batch(value: Any, size: int) -> Any:
    """A value repeated along a new leading axis, program scalars included."""
    return batch_front(value, size) if aval_of(value).shape else full((size,), value)


def move_front(x: Any, axis: int) -> Any:
    """x with one axis moved to the front."""
    return transpose(x, (axis, *(a for a in range(x.ndim) if a != axis)))


def move_from_front(x: Any, axis: int) -> Any:
    """x with its leading axis moved to `axis` of the result."""
    order = list(range(1, x.ndim))
    order.insert(axis, 0)
    return transpose(x, order)


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Vectorised form of a function: maps it over an axis of each argument.

    `in_axes`: int, None, or a pytree prefix of the positional arguments; keyword arguments are
    mapped over axis 0. `out_axes`: likewise for the results. `axis_name`: by which collectives like
    `lax.psum` ask for the axis. `axis_size`: the size, where no argument is mapped.
    `spmd_axis_name` is accepted for compatibility: there is one device to map over. Raises
    TypeError if an axis is no integer or None, ValueError if `in_axes` or `out_axes` are nested
    differently, ShapeError if an axis does not lie in its array or the mapped sizes differ.

    >>> import xcube.numpy as jnp
    >>> vmap(lambda x, y: x * y, in_axes=(0, None))(jnp.arange(3), 2)
    Array([0, 2, 4], dtype=int32)
    """
    check_callable("vmap", fun)
    name = getattr(fun, "__name__", "function")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    _check_axes("in_axes", in_axes, isinstance(in_axes, int | tuple | None))
    _check_axes("out_axes", out_axes)
    _check_name(axis_name)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        call = flatten_call(fun, args, kwargs)
        leaves = leaf_arrays("vmap", name, call)
        axes = _input_axes(name, in_axes, args, kwargs)
        axis = Axis(_mapped_size(name, leaves, axes, axis_size, call), axis_name)
        outs, flags, out_tree = _batched_call(call, leaves, axes, axis)
        whole = tree.unflatten(out_tree, outs)
        places = _axis_of_each("out_axes", out_axes, whole)
        results = [
            _output(name, out, flag, place, axis.size)
            for out, flag, place in zip(outs, flags, places, strict=True)
        ]
        return tree.unflatten(out_tree, results)

    return named_like(mapped, fun)


def _batched_call(
    call: FlatCall, leaves: Sequence[Any], axes: Sequence[int | None], axis: Axis
) -> tuple[list[Any], list[bool], Any]:
    """Trace the call for one example and apply it to the batch: results, which of them have the
    batch axis in front, and their structure."""
    flags = [place is not None for place in axes]
    front = [
        x if place is None else move_front(x, place % x.ndim)
        for x, place in zip(leaves, axes, strict=True)
    ]
    avals = [_example(x) if flag else aval_of(x) for x, flag in zip(front, flags, strict=True)]
    name = getattr(call.fun, "__name__", "function")
    with binding(axis), NoLeaks(f"vmap of {name}"):
        jaxpr, out_tree = stage_flat(call, avals)
    return *batch_values(jaxpr, axis, front, flags), out_tree


def named_like(wrapper: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper with the name and documentation of what it wraps."""
    return functools.wraps(fun)(wrapper) if hasattr(fun, "__name__") else wrapper


def _check_axes(what: str, axes: Any, fits: bool = True) -> None:
    if not fits or not all(type(axis) is int for axis in tree.leaves(axes)):
        raise TypeError(
            f"vmap: {what} must be an int, None, or a container of them that is nested like the "
            f"{_MAPPED[what]}; got {axes!r}.{at_user_line()}"
        )


_MAPPED = {"in_axes": "tuple of positional arguments", "out_axes": "result"}


def _check_name(axis_name: Any) -> None:
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(
            f"vmap: axis_name must be hashable; got {axis_name!r}, an unhashable type."
            f"{at_user_line()}"
        ) from None


def _axis_of_each(what: str, axes: Any, whole: Any) -> list[int | None]:
    """The axis of each leaf. Raises ValueError unless the axes are nested as the values are."""
    try:
        return tree.broadcast_prefix(axes, whole, _is_none, name=what)
    except ValueError as error:
        detail = str(error).removeprefix("tree.broadcast_prefix: ")
        raise ValueError(
            f"vmap: {what} must be a tree prefix of the {_MAPPED[what]}; {detail}{at_user_line()}"
        ) from None


def _is_none(value: Any) -> bool:
    return value is None


def _example(x: Any) -> Aval:
    return x.aval.update(shape=x.shape[1:])


def _input_axes(name: str, in_axes: Any, args: Any, kwargs: Any) -> list[int | None]:
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ShapeError(
            f"vmap: in_axes must be an int, None or a tuple with one entry for each of the "
            f"{len(args)} positional arguments of {name}; got {in_axes}.{at_user_line()}"
        )
    axes = _axis_of_each("in_axes", in_axes, args)
    return [*axes, *([0] * len(tree.leaves(kwargs)))]


def _mapped_size(
    name: str, leaves: Sequence[Any], axes: Sequence[Any], axis_size: int | None, call: Any
) -> int:
    sizes: dict[int, str] = {}
    for number, (x, axis) in enumerate(zip(leaves, axes, strict=True)):
        if axis is None:
            continue
        if x.ndim == 0:
            raise ShapeError(
                f"vmap: {call.describe(number)} is {x.aval}, which has no axis to map."
                f"{at_user_line()} Give it None in in_axes."
            )
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(
                f"vmap: the axis to map of {call.describe(number)} must lie in "
                f"{-x.ndim}..{x.ndim - 1} for {x.aval}; got {axis}.{at_user_line()}"
            )
        sizes.setdefault(x.shape[axis], f"axis {axis} of {call.describe(number)}: {x.aval}")
    if axis_size is not None:
        sizes.setdefault(axis_size, "axis_size")
    if len(sizes) != 1:
        seen = "; ".join(f"{size} ({what})" for size, what in sizes.items()) or "none"
        way_out = "" if sizes else " Map at least one argument, or give axis_size."
        raise ShapeError(
            f"vmap: the mapped axes of {name}'s arguments must have one size; got {seen}."
            f"{at_user_line()}{way_out}"
        )
    return next(iter(sizes))


def _output(name: str, out: Any, flag: bool, axis: Any, size: int) -> Any:
    if axis is None:
        if flag:
            raise ShapeError(
                f"vmap: a result of {name} depends on the mapped axis, but out_axes is None for it."
                f"{at_user_line()}"
            )
        return out
    out = out if flag else to_batch(out, size)
    if not -out.ndim <= axis < out.ndim:
        raise ShapeError(
            f"vmap: out_axes must lie in {-out.ndim}..{out.ndim - 1} for {out.aval}; got {axis}."
            f"{at_user_line()}"
        )
    return move_from_front(out, axis % out.ndim)
