"""`linear_call`: a linear function that comes with its transpose. The equation holds the jaxprs of
both; transposing it swaps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube import tree
from xcube.errors import TraceError
from xcube.ir import Axis, Jaxpr, Primitive, at_user_line
from xcube.primitives.lowered import Inline
from xcube.primitives.shape import zeros_of
from xcube.trace import aval_of
from xcube.transforms.arguments import check_callable, flatten_call, leaf_arrays
from xcube.transforms.custom.calling import (
    bind_call,
    fit,
    leaf_path,
    name_of,
    stage_tree,
    with_unused,
)
from xcube.transforms.linearize import instantiate
from xcube.transforms.vmap import batch_jaxpr, to_batch

# the primitive --------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, num_known: int, **params: Any
) -> tuple[list[Any], list[Any]]:
    if any(dx is not None for dx in tangents[:num_known]):
        raise TraceError(
            f"linear_call: residual arguments have no derivative, and no more what the functions "
            f"close over.{at_user_line()} Pass them through stop_gradient, or write a custom_jvp."
        )
    params["num_known"] = num_known
    known, linear = primals[:num_known], primals[num_known:]
    dxs = [instantiate(dx, x) for dx, x in zip(tangents[num_known:], linear, strict=True)]
    outs = bind_call(linear_call_p, primals, params)
    return outs, bind_call(linear_call_p, [*known, *dxs], params)


def _transpose(
    cts: Sequence[Any], *args: Any, callee: Jaxpr, transposed: Jaxpr, num_known: int
) -> list[Any]:
    avals = transposed.in_avals[num_known:]
    whole = [zeros_of(aval) if ct is None else ct for ct, aval in zip(cts, avals, strict=True)]
    params = {"callee": transposed, "transposed": callee, "num_known": num_known}
    results = bind_call(linear_call_p, [*args[:num_known], *whole], params)
    return [*[None] * num_known, *results]


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    callee: Jaxpr,
    transposed: Jaxpr,
    num_known: int,
) -> tuple[list[Any], list[bool]]:
    """Everything linear is batched, so that the batched functions are transposes again."""
    linear = [
        x if flag else to_batch(x, axis.size)
        for x, flag in zip(args[num_known:], batched[num_known:], strict=True)
    ]
    known = tuple(batched[:num_known])

    def whole(jaxpr: Jaxpr) -> Jaxpr:
        flags = (*known, *[True] * (len(jaxpr.inputs) - num_known))
        return batch_jaxpr(jaxpr, axis, flags, force=True)[0]

    params = {"callee": whole(callee), "transposed": whole(transposed), "num_known": num_known}
    outs = bind_call(linear_call_p, [*args[:num_known], *linear], params)
    return outs, [True] * len(outs)


linear_call_p = Primitive(
    "linear_call",
    abstract=lambda *avals, callee, **params: callee.out_avals,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Inline("callee"),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


def linear_call(
    fun: Callable[..., Any],
    fun_transpose: Callable[..., Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
    """fun(residual_args, linear_args), linear in the second, with a transpose given by hand:
    fun_transpose(residual_args, cotangent) has the structure of linear_args.

    Raises TypeError if it has not, ShapeError or DtypeError if a leaf does not fit.

    >>> halve = lambda r, x: x / r
    >>> linear_call(halve, halve, 2.0, 3.0)
    Array(1.5, dtype=float32, weak_type=True)
    """
    check_callable("linear_call", fun)
    check_callable("linear_call", fun_transpose)
    name = name_of(fun)
    call = flatten_call(lambda *args: args, (residual_args, linear_args), {})
    residual, linear = call.apply(leaf_arrays("linear_call", name, call))
    callee, consts, out_tree = stage_tree(name, fun, residual, linear)
    result = tree.unflatten(out_tree, callee.out_avals)

    def transpose(residual: Any, cotangent: Any) -> Any:
        return _like(name_of(fun_transpose), fun_transpose(residual, cotangent), linear)

    transposed, more, _ = stage_tree(name_of(fun_transpose), transpose, residual, result)
    known = [*consts, *more, *tree.leaves(residual)]
    params = {
        "callee": with_unused(callee, len(consts), [aval_of(x) for x in more]),
        "transposed": with_unused(transposed, 0, [aval_of(x) for x in consts]),
        "num_known": len(known),
    }
    outs = bind_call(linear_call_p, [*known, *tree.leaves(linear)], params)
    return tree.unflatten(out_tree, outs)


def _like(name: str, result: Any, linear: Any) -> Any:
    where = f"linear_call: the result of {name}"
    leaves, treedef = tree.flatten(result)
    expected = tree.structure(linear)
    if treedef != expected:
        raise TypeError(
            f"{where} must have the structure of the linear arguments, {expected}; got "
            f"{treedef}.{at_user_line()}"
        )
    fitted = [
        fit(lambda n=n: f"{where}{leaf_path(treedef, n)}", leaf, aval_of(x), "the linear argument")
        for n, (leaf, x) in enumerate(zip(leaves, tree.leaves(linear), strict=True))
    ]
    return tree.unflatten(treedef, fitted)
