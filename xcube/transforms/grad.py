"""The public derivatives: jvp, linearize, vjp, grad, value_and_grad, on functions of pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Jaxpr, Linear, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.shape import full, zeros_of
from xcube.trace import aval_of, evaluate
from xcube.transforms.arguments import (
    FlatCall,
    as_leaf,
    as_result,
    check_callable,
    flatten_call,
    leaf_arrays,
)
from xcube.transforms.linearize import instantiate, jvp_flat, linearize_flat, tangent_aval
from xcube.transforms.transpose import backward
from xcube.transforms.vmap import named_like


def _flat_function(
    call: FlatCall, found: dict[str, Any], has_aux: bool
) -> Callable[..., list[Any]]:
    """The call as a flat function; its result's structure and auxiliary output go to `found`."""
    name = getattr(call.fun, "__name__", "function")

    def function(*leaves: Any) -> list[Any]:
        result = call.apply(leaves)
        if has_aux:
            result, found["aux"] = _pair(name, result)
        outs, found["tree"] = tree.flatten(result)
        return [as_result(name, out) for out in outs]

    return function


def _pair(name: str, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(
            f"has_aux: {name} must return a pair (result, auxiliary); got "
            f"{type(result).__name__}.{at_user_line()}"
        )
    return result[0], result[1]


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Value and directional derivative: (fun(*primals), J @ tangents[, aux]).

    Raises ShapeError or DtypeError where a tangent does not fit its primal.

    >>> import xcube.numpy as jnp
    >>> jvp(jnp.sin, (0.0,), (1.0,))
    (Array(0., dtype=float32, weak_type=True), Array(1., dtype=float32, weak_type=True))
    """
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise TypeError(
            f"jvp: primals and tangents must be tuples, one entry per argument; got "
            f"{type(primals).__name__} and {type(tangents).__name__}.{at_user_line()}"
        )
    call = flatten_call(fun, tuple(primals), {})
    primal_leaves = leaf_arrays("jvp", getattr(fun, "__name__", "function"), call)
    tangent_leaves = _tangent_leaves(call, primal_leaves, tuple(tangents))
    found: dict[str, Any] = {}
    function = _flat_function(call, found, has_aux)
    outs, out_tangents, aux = _with_aux(
        lambda f: jvp_flat(f, primal_leaves, tangent_leaves), function, found, has_aux
    )
    whole = [_or_zero(t, x) for t, x in zip(out_tangents, outs, strict=True)]
    pair = tree.unflatten(found["tree"], outs), tree.unflatten(found["tree"], whole)
    return (*pair, aux) if has_aux else pair


def _with_aux(run: Callable[..., Any], function: Any, found: dict[str, Any], has_aux: bool) -> Any:
    """Run a flat transform with the auxiliary leaves as further results, then take them off."""
    if not has_aux:
        return (*run(function), None)

    def extended(*leaves: Any) -> list[Any]:
        outs = function(*leaves)
        aux, found["aux_tree"] = tree.flatten(found.pop("aux"))
        found["count"], found["aux_arrays"] = len(outs), [isinstance(a, Array) for a in aux]
        found["aux_leaves"] = aux
        return [*outs, *(a for a in aux if isinstance(a, Array))]

    outs, rest = run(extended)
    n = found["count"]
    arrays = iter(outs[n:])
    leaves = [
        next(arrays) if flag else leaf
        for flag, leaf in zip(found["aux_arrays"], found["aux_leaves"], strict=True)
    ]
    rest = rest[:n] if isinstance(rest, list) else rest
    return outs[:n], rest, tree.unflatten(found["aux_tree"], leaves)


def _tangent_leaves(call: FlatCall, primals: list[Array], tangents: tuple[Any, ...]) -> list[Any]:
    leaves, treedef = tree.flatten((tangents, {}))
    if treedef != call.treedef:
        raise TypeError(
            f"jvp: primals and tangents must have one tree structure; got {call.treedef} and "
            f"{treedef}.{at_user_line()}"
        )
    return [
        _fit_tangent(call.describe(number), x, dx)
        for number, (x, dx) in enumerate(zip(primals, leaves, strict=True))
    ]


def _fit_tangent(where: str, x: Array, dx: Any) -> Any:
    expected = tangent_aval(x.aval)
    if getattr(dx, "dtype", None) == dtypes.float0:
        if expected.dtype == dtypes.float0:
            return None
    else:
        dx = as_leaf("jvp", "tangents", dx, lambda: where)
    if dx.shape != expected.shape:
        raise ShapeError(f"jvp: {where} is {x.aval}, its tangent {dx.shape}.{at_user_line()}")
    if dx.dtype != expected.dtype:
        raise DtypeError(
            f"jvp: {where} is {x.aval}, so its tangent must be {expected}; got dtype {dx.dtype}."
            f"{at_user_line()}"
        )
    return dx


def _differentiable(x: Array) -> bool:
    return dtypes.is_inexact(x.dtype)


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), the function of tangents that is its derivative there[, aux]).

    >>> import xcube.numpy as jnp
    >>> y, f_jvp = linearize(jnp.sin, 0.0)
    >>> f_jvp(2.0)
    Array(2., dtype=float32, weak_type=True)
    """
    call = flatten_call(fun, primals, {})
    leaves = leaf_arrays("linearize", getattr(fun, "__name__", "function"), call)
    nonzero = [_differentiable(x) for x in leaves]
    found: dict[str, Any] = {}
    outs, linear, flags, aux = _linearize(call, leaves, nonzero, found, has_aux)
    out_tree = found["tree"]

    def tangent_map(*tangents: Any) -> Any:
        dxs = _tangent_leaves(call, leaves, tangents)
        nonzero_dxs = [
            instantiate(dx, x) for dx, x, flag in zip(dxs, leaves, nonzero, strict=True) if flag
        ]
        results = iter(evaluate(linear, nonzero_dxs))
        whole = [
            next(results) if flag else _or_zero(None, out)
            for out, flag in zip(outs, flags, strict=True)
        ]
        return tree.unflatten(out_tree, whole)

    result = tree.unflatten(out_tree, outs)
    return (result, tangent_map, aux) if has_aux else (result, tangent_map)


def _linearize(
    call: FlatCall, leaves: list[Array], nonzero: list[bool], found: dict[str, Any], has_aux: bool
) -> tuple[list[Any], Jaxpr, list[bool], Any]:
    def run(function: Any) -> Any:
        outs, linear, flags = linearize_flat(function, leaves, nonzero)
        return outs, (linear, flags)

    function = _flat_function(call, found, has_aux)
    outs, (linear, flags), aux = _with_aux(run, function, found, has_aux)
    count = len(outs)
    kept = sum(flags[:count])
    if kept != len(linear.outputs):  # auxiliary results have no tangents to give
        linear = Jaxpr(
            linear.inputs, linear.equations, linear.outputs[:kept], linear.captured, linear.name
        )
    return outs, linear, flags[:count], aux


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), the function from a cotangent of the result to cotangents of primals[, aux]).

    >>> import xcube.numpy as jnp
    >>> y, f_vjp = vjp(jnp.sin, 0.0)
    >>> f_vjp(3.0)
    (Array(3., dtype=float32, weak_type=True),)
    """
    call = flatten_call(fun, primals, {})
    leaves = leaf_arrays("vjp", getattr(fun, "__name__", "function"), call)
    nonzero = [_differentiable(x) for x in leaves]
    found: dict[str, Any] = {}
    outs, linear, flags, aux = _linearize(call, leaves, nonzero, found, has_aux)
    out_tree = found["tree"]

    def cotangent_map(cotangent: Any) -> Any:
        cts = _cotangent_leaves(cotangent, out_tree, outs)
        kept = [ct for ct, flag in zip(cts, flags, strict=True) if flag]
        args, _ = tree.unflatten(call.treedef, _pull_back(linear, kept, leaves, nonzero))
        return args

    result = tree.unflatten(out_tree, outs)
    return (result, cotangent_map, aux) if has_aux else (result, cotangent_map)


def _pull_back(
    linear: Jaxpr, cts: list[Any], leaves: Sequence[Array], nonzero: Sequence[bool]
) -> list[Any]:
    """Cotangents of all leaves; float0 zeros where a leaf has no derivative."""
    grads = iter(backward(linear, [Linear(var.aval) for var in linear.inputs], cts))
    found = [next(grads) if flag else None for flag in nonzero]
    return [_cotangent(ct, x) for ct, x in zip(found, leaves, strict=True)]


def _cotangent(ct: Any, x: Array) -> Any:
    if ct is not None:
        return convert_element_type(ct, ct.dtype, x.weak_type)
    return _or_zero(None, x)


def _or_zero(tangent: Any, x: Any) -> Any:
    """A tangent or cotangent of x, where None is zero; a float0 one is a NumPy array, as in JAX."""
    if tangent is not None:
        return tangent
    aval = tangent_aval(aval_of(x))
    return np.zeros(aval.shape, dtypes.float0) if aval.dtype == dtypes.float0 else zeros_of(aval)


def _cotangent_leaves(cotangent: Any, out_tree: Any, outs: list[Any]) -> list[Any]:
    leaves, treedef = tree.flatten(cotangent)
    if treedef != out_tree:
        raise TypeError(
            f"vjp: the cotangent must have the structure of the result, {out_tree}; got {treedef}."
            f"{at_user_line()}"
        )
    return [_fit_cotangent(ct, out) for ct, out in zip(leaves, outs, strict=True)]


def _fit_cotangent(ct: Any, out: Any) -> Any:
    expected = tangent_aval(aval_of(out))
    if expected.dtype == dtypes.float0:
        return None
    ct = as_leaf("vjp", "cotangent", ct, lambda: "the cotangent")
    if ct.shape != expected.shape:
        raise ShapeError(
            f"vjp: the cotangent must be {expected} like the result; got {ct.aval}.{at_user_line()}"
        )
    if ct.dtype != expected.dtype:
        raise DtypeError(
            f"vjp: the cotangent must be {expected} like the result; got {ct.aval}.{at_user_line()}"
        )
    return ct


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that gives fun's scalar value and its gradient.

    `argnums`: the argument(s) to differentiate, each any pytree of float arrays. With `has_aux`
    fun returns (value, auxiliary) and the result is ((value, auxiliary), gradient).
    Raises ShapeError if the value is not a scalar, DtypeError if an argument is not float.

    >>> value_and_grad(lambda x: x * x)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable("grad", fun)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = getattr(fun, "__name__", "function")

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        positions = _positions(name, numbers, len(args))
        chosen = tuple(args[p] for p in positions)
        call = flatten_call(_closing_over(fun, args, kwargs, positions), chosen, {})
        leaves = leaf_arrays("grad", name, call)
        nonzero = [
            _check_input(name, call, n, x, holomorphic, allow_int) for n, x in enumerate(leaves)
        ]
        found: dict[str, Any] = {}
        outs, linear, flags, aux = _linearize(call, leaves, nonzero, found, has_aux)
        _check_output(name, outs, found["tree"], holomorphic)
        one = full((), np.ones((), outs[0].dtype)[()])
        cts = [_weak_like(one, outs[0])] if flags[0] else []
        grads, _ = tree.unflatten(call.treedef, _pull_back(linear, cts, leaves, nonzero))
        gradient = grads[0] if isinstance(argnums, int) else grads
        return ((outs[0], aux), gradient) if has_aux else (outs[0], gradient)

    return named_like(value_and_gradient, fun)


def _weak_like(ct: Any, out: Any) -> Any:
    return full((), 1.0, out.dtype) if out.weak_type else ct


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that gives the gradient of fun's scalar value (and the auxiliary output).

    >>> grad(lambda x: x * x * x)(2.0)
    Array(12., dtype=float32, weak_type=True)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return named_like(gradient, fun)


def _positions(name: str, numbers: tuple[int, ...], count: int) -> list[int]:
    if any(not -count <= n < count for n in numbers):
        raise ValueError(
            f"grad: argnums must name positional arguments of {name}, which got {count}; "
            f"got {numbers}.{at_user_line()}"
        )
    return [n % count for n in numbers]


def _closing_over(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], positions: list[int]
) -> Any:
    def function(*chosen: Any) -> Any:
        full_args = list(args)
        for position, value in zip(positions, chosen, strict=True):
            full_args[position] = value
        return fun(*full_args, **kwargs)

    return named_like(function, fun)


def _check_input(
    name: str, call: FlatCall, number: int, x: Array, holomorphic: bool, allow_int: bool
) -> bool:
    if holomorphic and not dtypes.is_complex(x.dtype):
        raise DtypeError(
            f"grad with holomorphic=True: inputs of {name} must be complex; "
            f"{call.describe(number)} is {x.aval}.{at_user_line()}"
        )
    if _differentiable(x):
        if dtypes.is_complex(x.dtype) or not holomorphic:
            return True
    elif allow_int:
        return False
    raise DtypeError(
        f"grad: inputs of {name} must be float or complex to be differentiated; "
        f"{call.describe(number)} is {x.aval}.{at_user_line()} Convert it to float, or set "
        f"allow_int=True."
    )


def _check_output(name: str, outs: list[Any], out_tree: Any, holomorphic: bool) -> None:
    if not outs:
        raise TypeError(
            f"grad: {name} must return one scalar; it returned {out_tree}.{at_user_line()} Is a "
            f"return statement missing?"
        )
    if len(outs) != 1 or out_tree.num_nodes != 1:
        raise TypeError(
            f"grad: {name} must return one scalar; got a tree {out_tree}.{at_user_line()} "
            f"Use has_aux=True to return more."
        )
    out = outs[0]
    if out.shape != ():
        raise ShapeError(
            f"grad: {name} must return a scalar; got {out.aval}.{at_user_line()} Sum it, or "
            f"take all derivatives with vjp or jvp under vmap."
        )
    if dtypes.is_complex(out.dtype) != holomorphic or not dtypes.is_inexact(out.dtype):
        hint = (
            "set holomorphic=True for complex functions" if not holomorphic else "drop holomorphic"
        )
        raise DtypeError(
            f"grad: the value of {name} must be {'complex' if holomorphic else 'a real float'}; "
            f"got {out.aval}.{at_user_line()} If that is meant, {hint}."
        )
