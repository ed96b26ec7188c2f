"""`custom_gradient`: a function that returns its value together with its pullback, which may share
work with it by closing over intermediate values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xcube import tree
from xcube.ir import Jaxpr, at_user_line
from xcube.trace import aval_of, evaluate
from xcube.transforms.arguments import FlatCall, as_result, check_callable, stage_flat
from xcube.transforms.custom.calling import name_of
from xcube.transforms.custom.custom_vjp import custom_vjp
from xcube.transforms.linearize import tangent_aval


@tree.register_pytree_node_class
class Residuals:
    """A staged pullback; the values that it closes over are its leaves."""

    def __init__(self, jaxpr: Jaxpr, out_tree: Any, consts: list[Any]) -> None:
        self.jaxpr, self.out_tree, self.consts = jaxpr, out_tree, consts

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """Leaves and the rest."""
        return self.consts, (self.jaxpr, self.out_tree)

    @classmethod
    def tree_unflatten(cls, rest: Any, consts: Any) -> Residuals:
        """The residuals with other leaves."""
        jaxpr, out_tree = rest
        return cls(jaxpr, out_tree, list(consts))


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose value and pullback `fun` gives: `fun(*args) -> (value, pullback)` with
    `pullback(cotangent) -> cotangents`, a tuple, or the cotangent alone of a single argument.

    Calling it raises TypeError if fun gives no pair. The pullback is staged: no Python control flow
    on the values that it closes over.

    >>> import xcube
    >>> import xcube.numpy as jnp
    >>> square = custom_gradient(lambda x: (x ** 2, lambda ct: (ct * x,)))
    >>> square(3.0), xcube.grad(square)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    check_callable("custom_gradient", fun)

    def pair(args: Any, kwargs: Any) -> tuple[Any, Any]:
        result = fun(*args, **kwargs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"custom_gradient: {name_of(fun)} must return a pair, its value and its pullback; "
                f"got {result!r}.{at_user_line()}"
            )
        return result[0], result[1]

    def value(*args: Any, **kwargs: Any) -> Any:
        return pair(args, kwargs)[0]

    def forward(*args: Any, **kwargs: Any) -> tuple[Any, Residuals]:
        out, pullback = pair(args, kwargs)
        leaves, treedef = tree.flatten(((out,), {}))
        arrays = [as_result(name_of(fun), leaf) for leaf in leaves]
        avals = [tangent_aval(aval_of(x)) for x in arrays]
        jaxpr, out_tree = stage_flat(FlatCall(pullback, arrays, treedef), avals)
        return out, Residuals(jaxpr.closed(), out_tree, jaxpr.consts)

    def backward(residuals: Residuals, cotangent: Any) -> Any:
        cts = tree.leaves(cotangent)
        results = evaluate(residuals.jaxpr, [*residuals.consts, *cts])
        cotangents = tree.unflatten(residuals.out_tree, results)
        return (cotangents,) if tree.treedef_is_leaf(residuals.out_tree) else cotangents

    wrapped = custom_vjp(functools.wraps(fun)(value) if hasattr(fun, "__name__") else value)
    wrapped.defvjp(forward, backward)
    return wrapped
