"""The public derivatives: jvp, linearize, vjp, grad, value_and_grad, on functions of pytrees."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import at_user_line
from xcube.primitives.shape import full
from xcube.trace import aval_of
from xcube.transforms.arguments import FlatCall, check_callable, flatten_call, leaf_arrays
from xcube.transforms.leaks import NoLeaks
from xcube.transforms.linear_maps import (
    Linearized,
    PullBack,
    PushForward,
    flat_function,
    linearize_call,
    name_of,
    tangent_leaves,
    without_aux,
    zero_tangent,
)
from xcube.transforms.linearize import jvp_flat
from xcube.transforms.vmap import named_like

# forward --------------------------------------------------------------------------------------


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Value and directional derivative: (fun(*primals), J @ tangents[, aux]).

    With `has_aux` fun returns (result, auxiliary), and only the result is differentiated.
    Raises ShapeError or DtypeError where a tangent does not fit its primal.

    >>> import xcube.numpy as jnp
    >>> jvp(jnp.sin, (0.0,), (1.0,))
    (Array(0., dtype=float32, weak_type=True), Array(1., dtype=float32, weak_type=True))
    """
    check_callable("jvp", fun)
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise TypeError(
            f"jvp: primals and tangents must be tuples, one entry per argument; got "
            f"{type(primals).__name__} and {type(tangents).__name__}.{at_user_line()}"
        )
    call = flatten_call(fun, tuple(primals), {})
    leaves = leaf_arrays("jvp", name_of(fun), call)
    given = tangent_leaves("jvp", call.treedef, [x.aval for x in leaves], tuple(tangents))
    found: dict[str, Any] = {}
    function = flat_function(call, found, has_aux)
    with NoLeaks(f"the derivative of {name_of(fun)}"):
        outs, out_tangents = jvp_flat(function, leaves, given)
    outs, aux = without_aux(found, outs)
    whole = [
        zero_tangent(aval_of(x)) if dx is None else dx
        for dx, x in zip(out_tangents[: len(outs)], outs, strict=True)
    ]
    pair = tree.unflatten(found["tree"], outs), tree.unflatten(found["tree"], whole)
    return (*pair, aux) if has_aux else pair


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), the function of tangents that is its derivative there[, aux]).

    The function is a pytree, which transformed functions may take and return: its leaves are the
    values that the derivative needs. Raises TypeError, ShapeError or DtypeError if it is called
    with tangents that do not fit the primals.

    >>> import xcube.numpy as jnp
    >>> y, f_jvp = linearize(jnp.sin, 0.0)
    >>> f_jvp(2.0)
    Array(2., dtype=float32, weak_type=True)
    """
    found = _linearized("linearize", fun, primals, has_aux)
    tangent_map = tree.Partial(PushForward(found.program), found.residuals)
    return (found.result, tangent_map, found.aux) if has_aux else (found.result, tangent_map)


# reverse --------------------------------------------------------------------------------------


def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()
) -> Any:
    """(fun(*primals), the function from a cotangent of the result to cotangents of primals[, aux]).

    The function is a pytree, which transformed functions may take and return: its leaves are the
    values that the derivative needs. Cotangents of integers and bools are zeros of dtype float0.
    Raises ShapeError if it is called with a cotangent that does not fit the result,
    NotImplementedError for `reduce_axes`, which JAX has no more.

    >>> import xcube.numpy as jnp
    >>> y, f_vjp = vjp(jnp.sin, 0.0)
    >>> f_vjp(3.0)
    (Array(3., dtype=float32, weak_type=True),)
    """
    check_reduce_axes("vjp", reduce_axes)
    found = _linearized("vjp", fun, primals, has_aux)
    cotangent_map = tree.Partial(PullBack(found.program), found.residuals)
    return (found.result, cotangent_map, found.aux) if has_aux else (found.result, cotangent_map)


def _linearized(
    operation: str, fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool
) -> Linearized:
    check_callable(operation, fun)
    call = flatten_call(fun, primals, {})
    leaves = leaf_arrays(operation, name_of(fun), call)
    return linearize_call(call, leaves, [is_differentiable(x) for x in leaves], has_aux)


def is_differentiable(x: Array) -> bool:
    """Whether a value has tangents other than zero."""
    return dtypes.is_inexact(x.dtype)


def check_reduce_axes(operation: str, reduce_axes: Sequence[Any]) -> None:
    """Raises NotImplementedError for axes to reduce over, which JAX has no more either."""
    if tuple(reduce_axes):
        raise NotImplementedError(
            f"{operation}: reduce_axes must be empty; got {reduce_axes!r}.{at_user_line()} Use "
            f"lax.psum on the gradient."
        )


# arguments by number --------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The arguments that a derivative is taken by, as the call of a function of them alone."""

    operation: str
    call: FlatCall
    leaves: list[Array]
    is_single: bool

    @property
    def name(self) -> str:
        """The function's name in messages."""
        return name_of(self.call.fun)

    def whole(self, leaves: Sequence[Any]) -> Any:
        """One value per leaf, nested as the arguments: a tuple unless one number was given."""
        args, _ = tree.unflatten(self.call.treedef, leaves)
        return args[0] if self.is_single else args

    def refuse(self, number: int, must: str, way_out: str) -> DtypeError:
        """The error for a leaf that cannot be differentiated by."""
        return DtypeError(
            f"{self.operation}: inputs of {self.name} must be {must}; "
            f"{self.call.describe(number)} is {self.leaves[number].aval}.{at_user_line()} {way_out}"
        )


def numbers_of(operation: str, argnums: Any) -> tuple[int, ...]:
    """Numbers of arguments, from one or from several. Raises TypeError for anything else."""
    try:
        return tuple(
            map(operator.index, argnums if isinstance(argnums, tuple | list) else [argnums])
        )
    except TypeError:
        raise TypeError(
            f"{operation}: argnums must be an integer or a tuple of them; got {argnums!r}."
            f"{at_user_line()}"
        ) from None


def chosen(
    operation: str, fun: Callable[..., Any], argnums: Any, args: tuple[Any, ...], kwargs: Any
) -> Chosen:
    """The call of a function of the arguments with these numbers; all others stay as they are.

    Raises ValueError if there is no such argument, TypeError if a leaf is no array.
    """
    numbers, count = numbers_of(operation, argnums), len(args)
    if any(not -count <= n < count for n in numbers):
        raise ValueError(
            f"{operation}: argnums must name positional arguments of {name_of(fun)}, which got "
            f"{count}; got {numbers}.{at_user_line()}"
        )
    places = [n % count for n in numbers]

    def function(*values: Any) -> Any:
        given = list(args)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        return fun(*given, **kwargs)

    call = flatten_call(named_like(function, fun), tuple([args[place] for place in places]), {})
    leaves = leaf_arrays(operation, name_of(fun), call)
    return Chosen(operation, call, leaves, not isinstance(argnums, tuple | list))


# gradients ------------------------------------------------------------------------------------


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that gives fun's scalar value and its gradient.

    `argnums`: the argument(s) to differentiate, each any pytree of float arrays. With `has_aux`
    fun returns (value, auxiliary) and the result is ((value, auxiliary), gradient). `holomorphic`:
    inputs and value are complex. `allow_int`: inputs may be integers, with gradients of float0.
    Raises ShapeError if the value is not a scalar, DtypeError if an argument is not float.

    >>> value_and_grad(lambda x: x * x)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_callable("grad", fun)
    numbers_of("grad", argnums)
    check_reduce_axes("grad", reduce_axes)

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        by = chosen("grad", fun, argnums, args, kwargs)
        moving = [_check_input(by, n, holomorphic, allow_int) for n in range(len(by.leaves))]
        found = linearize_call(by.call, by.leaves, moving, has_aux)
        _check_output(by.name, found, holomorphic)
        value = found.outs[0]
        gradient = by.whole(found.program.pull(found.residuals, [_one_like(value)]))
        return ((value, found.aux), gradient) if has_aux else (value, gradient)

    return named_like(value_and_gradient, fun)


def _one_like(value: Any) -> Any:
    return full((), 1.0, value.dtype) if value.weak_type else full((), np.ones((), value.dtype)[()])


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that gives the gradient of fun's scalar value (and the auxiliary output).

    Arguments and errors are those of `value_and_grad`.

    >>> grad(lambda x: x * x * x)(2.0)
    Array(12., dtype=float32, weak_type=True)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return named_like(gradient, fun)


def _check_input(by: Chosen, number: int, holomorphic: bool, allow_int: bool) -> bool:
    """Whether a leaf has tangents. Raises DtypeError if it must have and has not."""
    x = by.leaves[number]
    if holomorphic and not dtypes.is_complex(x.dtype):
        raise by.refuse(number, "complex", "Convert it, or drop holomorphic=True.")
    if not is_differentiable(x) and not allow_int:
        way_out = "Convert it to float, or set allow_int=True."
        raise by.refuse(number, "float or complex to be differentiated", way_out)
    return is_differentiable(x)


def _check_output(name: str, found: Linearized, holomorphic: bool) -> None:
    structure = found.program.result
    if not found.outs:
        raise TypeError(
            f"grad: {name} must return one scalar; it returned {structure}.{at_user_line()} Is a "
            f"return statement missing?"
        )
    if structure.num_nodes != 1:
        raise TypeError(
            f"grad: {name} must return one scalar; got a tree {structure}.{at_user_line()} "
            f"Use has_aux=True to return more."
        )
    out = found.outs[0]
    if out.shape != ():
        raise ShapeError(
            f"grad: {name} must return a scalar; got {out.aval}.{at_user_line()} Sum it, or take "
            f"the derivative of every element with jacrev or jacfwd."
        )
    if dtypes.is_complex(out.dtype) != holomorphic or not dtypes.is_inexact(out.dtype):
        hint = (
            "set holomorphic=True for complex functions" if not holomorphic else "drop holomorphic"
        )
        raise DtypeError(
            f"grad: the value of {name} must be {'complex' if holomorphic else 'a real float'}; "
            f"got {out.aval}.{at_user_line()} If that is meant, {hint}."
        )
