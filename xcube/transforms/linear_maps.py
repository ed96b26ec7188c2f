"""The derivative of a call at a point, as data: a linear program of tangents with its residuals.
What `linearize` and `vjp` return are pytrees of residuals, with a function that pushes tangents
forward through the program or pulls cotangents back; Jacobians send whole bases through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Jaxpr, Linear, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.shape import zeros_of
from xcube.trace import aval_of, evaluate
from xcube.transforms.arguments import FlatCall, as_leaf, as_result
from xcube.transforms.leaks import NoLeaks
from xcube.transforms.linearize import linearize_flat, tangent_aval
from xcube.transforms.transpose import backward

Flags = tuple[bool, ...]


def name_of(fun: Any) -> str:
    """The name of a function in messages."""
    return getattr(fun, "__name__", "function")


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """jaxpr: closed, (residuals, tangents of inputs where `moving`) -> tangents of results where
    `moved`; all other tangents are zero."""

    jaxpr: Jaxpr
    call: Any  # the structure of (args, kwargs)
    result: Any  # the structure of the result
    in_avals: tuple[Aval, ...]
    out_avals: tuple[Aval, ...]
    moving: Flags
    moved: Flags

    def push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Tangents of all results, from those of all inputs."""
        given = [
            zero_tangent(aval) if dx is None else dx
            for dx, aval, flag in zip(tangents, self.in_avals, self.moving, strict=True)
            if flag
        ]
        found = iter(evaluate(self.jaxpr, [*residuals, *given]))
        return [
            next(found) if flag else zero_tangent(aval)
            for aval, flag in zip(self.out_avals, self.moved, strict=True)
        ]

    def pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Cotangents of all inputs, from those of all results."""
        linear = [Linear(tangent_aval(a)) for a in _where(self.moving, self.in_avals)]
        cts = _where(self.moved, cotangents)
        parts = backward(self.jaxpr, [*residuals, *linear], cts)[len(residuals) :]
        found = iter(parts)
        return [
            _cotangent(next(found) if flag else None, aval)
            for aval, flag in zip(self.in_avals, self.moving, strict=True)
        ]


def _where(flags: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def _cotangent(ct: Any, aval: Aval) -> Any:
    if ct is None:
        return zero_tangent(aval)
    return convert_element_type(ct, aval_of(ct).dtype, aval.weak_type)


def zero_tangent(primal: Aval) -> Any:
    """The zero tangent of what has an aval; a float0 one is a NumPy array, as in JAX."""
    aval = tangent_aval(primal)
    return np.zeros(aval.shape, dtypes.float0) if aval.dtype == dtypes.float0 else zeros_of(aval)


# linearizing a call ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Linearized:
    """The results of a call, its auxiliary results, and the derivative there."""

    outs: list[Any]
    aux: Any
    program: LinearProgram
    residuals: list[Any]

    @property
    def result(self) -> Any:
        """The results as the function returned them."""
        return tree.unflatten(self.program.result, self.outs)


def linearize_call(
    call: FlatCall, leaves: Sequence[Array], moving: Sequence[bool], has_aux: bool = False
) -> Linearized:
    """Run a call and record its derivative by the leaves that are moving."""
    found: dict[str, Any] = {}
    function = flat_function(call, found, has_aux)
    with NoLeaks(f"the derivative of {name_of(call.fun)}"):
        outs, linear, flags = linearize_flat(function, leaves, moving)
    outs, aux = without_aux(found, outs)
    moved = tuple(flags[: len(outs)])
    program = LinearProgram(
        _first_results(linear.closed(), sum(moved)),
        call.treedef,
        found["tree"],
        tuple([aval_of(x) for x in leaves]),
        tuple([aval_of(out) for out in outs]),
        tuple(moving),
        moved,
    )
    return Linearized(outs, aux, program, linear.consts)


def _first_results(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The jaxpr without its results behind the first ones: auxiliary results give no tangents."""
    if count == len(jaxpr.outputs):
        return jaxpr
    return Jaxpr(jaxpr.inputs, jaxpr.equations, jaxpr.outputs[:count], jaxpr.captured, jaxpr.name)


def flat_function(call: FlatCall, found: dict[str, Any], has_aux: bool) -> Callable[..., list[Any]]:
    """The call as a flat function, auxiliary arrays behind its results; structures, and auxiliary
    leaves that are no arrays, go to `found`."""
    name = name_of(call.fun)

    def function(*leaves: Any) -> list[Any]:
        result, aux = call.apply(leaves), ()
        if has_aux:
            result, aux = _pair(name, result)
        outs, found["tree"] = tree.flatten(result)
        found["aux"], found["aux_tree"] = tree.flatten(aux)
        arrays = [leaf for leaf in found["aux"] if isinstance(leaf, Array)]
        found["aux"] = [_ARRAY if isinstance(leaf, Array) else leaf for leaf in found["aux"]]
        return [*[as_result(name, out) for out in outs], *arrays]

    return function


_ARRAY = object()  # stands for an array among auxiliary leaves


def _pair(name: str, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(
            f"has_aux: {name} must return a pair (result, auxiliary); got "
            f"{type(result).__name__}.{at_user_line()}"
        )
    return result[0], result[1]


def without_aux(found: dict[str, Any], values: list[Any]) -> tuple[list[Any], Any]:
    """The results of a flat function, and the tree of auxiliary ones, which stood behind them."""
    count = found["tree"].num_leaves
    arrays = iter(values[count:])
    leaves = [next(arrays) if leaf is _ARRAY else leaf for leaf in found["aux"]]
    return values[:count], tree.unflatten(found["aux_tree"], leaves)


# what users hold ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PushForward:
    """(residuals, *tangents) -> tangents of the result."""

    program: LinearProgram

    def __call__(self, residuals: Sequence[Any], *tangents: Any) -> Any:
        leaves = tangent_leaves("linearize", self.program.call, self.program.in_avals, tangents)
        return tree.unflatten(self.program.result, self.program.push(residuals, leaves))


@dataclass(frozen=True, eq=False)
class PullBack:
    """(residuals, cotangent of the result) -> cotangents of the arguments."""

    program: LinearProgram

    def __call__(self, residuals: Sequence[Any], cotangent: Any) -> Any:
        program = self.program
        leaves = cotangent_leaves("vjp", program.result, program.out_avals, cotangent)
        args, _ = tree.unflatten(program.call, program.pull(residuals, leaves))
        return args


def tangent_leaves(
    operation: str, treedef: Any, avals: Sequence[Aval], tangents: tuple[Any, ...]
) -> list[Any]:
    """The leaves of tangents, None for zero, if they fit the primals, of such avals."""
    leaves, found = tree.flatten((tangents, {}))
    if found != treedef:
        raise TypeError(
            f"{operation}: primals and tangents must have one tree structure; got {treedef} and "
            f"{found}.{at_user_line()}"
        )
    return [
        _fit_tangent(operation, lambda n=n: FlatCall(tuple, leaves, treedef).describe(n), aval, dx)
        for n, (aval, dx) in enumerate(zip(avals, leaves, strict=True))
    ]


def _fit_tangent(operation: str, describe: Callable[[], str], primal: Aval, dx: Any) -> Any:
    expected = tangent_aval(primal)
    if getattr(dx, "dtype", None) == dtypes.float0:
        if expected.dtype == dtypes.float0:
            return None
    else:
        dx = as_leaf(operation, "tangents", dx, describe)
    if dx.shape != expected.shape:
        raise ShapeError(
            f"{operation}: {describe()} is {primal}, so its tangent must be {expected}; got "
            f"{dx.aval}.{at_user_line()}"
        )
    if dx.dtype != expected.dtype:
        raise DtypeError(
            f"{operation}: {describe()} is {primal}, so its tangent must be {expected}; got dtype "
            f"{dx.dtype}.{at_user_line()}"
        )
    return dx


def cotangent_leaves(
    operation: str, treedef: Any, avals: Sequence[Aval], cotangent: Any
) -> list[Any]:
    """The leaves of a cotangent, None for zero, if it fits the result, of such avals."""
    leaves, found = tree.flatten(cotangent)
    if found != treedef:
        raise ShapeError(
            f"{operation}: the cotangent must have the structure of the result, {treedef}; got "
            f"{found}.{at_user_line()}"
        )
    paths = [path for path, _ in tree.leaves_with_path(cotangent)]
    return [
        _fit_cotangent(operation, f"the cotangent{tree.keystr(path)}", ct, aval)
        for path, ct, aval in zip(paths, leaves, avals, strict=True)
    ]


def _fit_cotangent(operation: str, where: str, ct: Any, primal: Aval) -> Any:
    expected = tangent_aval(primal)
    if expected.dtype == dtypes.float0:
        return None
    ct = as_leaf(operation, "the derivative", ct, lambda: where)
    if (ct.shape, ct.dtype) != (expected.shape, expected.dtype):
        raise ShapeError(
            f"{operation}: {where} must be {expected} like the result; got {ct.aval}."
            f"{at_user_line()}"
        )
    return ct
