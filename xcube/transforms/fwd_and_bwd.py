"""The two halves of a derivative as functions of their own, each compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube import tree
from xcube.transforms.arguments import check_callable
from xcube.transforms.grad import chosen, is_differentiable, numbers_of
from xcube.transforms.jit import jit
from xcube.transforms.linear_maps import PullBack, linearize_call
from xcube.transforms.vmap import named_like


def fwd_and_bwd(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool = False,
    jitted: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward): forward takes fun's arguments and gives (result, residuals[, aux]),
    backward takes (residuals, cotangent of the result) and gives the cotangents of the arguments
    with the numbers `argnums`, a tuple of them if `argnums` is one.

    `jitted`: both are compiled. Residuals are a pytree, that of `vjp`.

    >>> import xcube.numpy as jnp
    >>> forward, backward = fwd_and_bwd(lambda x, y: jnp.sin(x) * y, argnums=(0, 1))
    >>> y, residuals = forward(0.0, 2.0)
    >>> backward(residuals, 1.0)
    (Array(2., dtype=float32, weak_type=True), Array(0., dtype=float32, weak_type=True))
    """
    check_callable("fwd_and_bwd", fun)
    numbers_of("fwd_and_bwd", argnums)
    is_single = not isinstance(argnums, tuple | list)

    def forward(*args: Any, **kwargs: Any) -> Any:
        by = chosen("fwd_and_bwd", fun, argnums, args, kwargs)
        moving = [is_differentiable(x) for x in by.leaves]
        found = linearize_call(by.call, by.leaves, moving, has_aux)
        residuals = tree.Partial(PullBack(found.program), found.residuals)
        return (found.result, residuals, found.aux) if has_aux else (found.result, residuals)

    def backward(residuals: Any, cotangent: Any) -> Any:
        args = residuals(cotangent)
        return args[0] if is_single else args

    halves = named_like(forward, fun), backward
    return (jit(halves[0]), jit(halves[1])) if jitted else halves
