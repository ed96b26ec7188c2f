"""The tangent map of a `custom_vjp` call: a linear equation that cannot be applied, for only its
transpose is known, the pullback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Aval, Axis, Primitive, at_user_line
from xcube.primitives.lowered import Expand
from xcube.trace import aval_of, bind
from xcube.transforms.custom.pullback import Pullback, apply_pullback
from xcube.transforms.custom.pullback_forms import BatchedPullback
from xcube.transforms.linearize import tangent_aval


def tangent_map(
    pullback: Pullback,
    residuals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """Tangents of the results (None where they have none), of which only the transpose is known."""
    avals = [tangent_aval(aval_of(out)) for out in results]
    has = tuple(aval.dtype != dtypes.float0 for aval in avals)
    given = [dx for dx in tangents if dx is not None]
    params = {
        "pullback": pullback,
        "num_res": len(residuals),
        "perturbed": tuple(dx is not None for dx in tangents),
        "out_avals": tuple(aval for aval, flag in zip(avals, has, strict=True) if flag),
        "differentiable": has,
    }
    outs = iter(bind(custom_lin_p, *residuals, *given, **params) if any(has) else ())
    return [next(outs) if flag else None for flag in has]


def _pull_back(
    cts: Sequence[Any],
    *args: Any,
    pullback: Pullback,
    num_res: int,
    perturbed: tuple[bool, ...],
    out_avals: tuple[Aval, ...],
    differentiable: tuple[bool, ...],
) -> list[Any]:
    given = iter(cts)
    cotangents = [next(given) if flag else None for flag in differentiable]
    results = apply_pullback(pullback, args[:num_res], cotangents)
    kept = [ct for ct, flag in zip(results, perturbed, strict=True) if flag]
    return [*[None] * num_res, *kept]


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    pullback: Pullback,
    num_res: int,
    perturbed: tuple[bool, ...],
    out_avals: tuple[Aval, ...],
    differentiable: tuple[bool, ...],
) -> tuple[list[Any], list[bool]]:
    flags = iter(batched[num_res:])
    operands = tuple(next(flags) if flag else False for flag in perturbed)
    params = {
        "pullback": BatchedPullback(pullback, axis, tuple(batched[:num_res]), operands),
        "num_res": num_res,
        "perturbed": perturbed,
        "out_avals": tuple(aval.update(shape=(axis.size, *aval.shape)) for aval in out_avals),
        "differentiable": differentiable,
    }
    return bind(custom_lin_p, *args, **params), [True] * len(out_avals)


def _forward_mode(*args: Any, **params: Any) -> Any:
    raise TypeError(
        f"custom_vjp: can't apply forward-mode autodiff (jvp) to a custom_vjp function; only its "
        f"backward rule is known, {params['pullback']}.{at_user_line()} Use reverse mode (grad, "
        f"vjp, jacrev), or give the function a custom_jvp rule."
    )


custom_lin_p = Primitive(
    "custom_lin",
    abstract=lambda *avals, out_avals, **params: out_avals,
    jvp=_forward_mode,
    transpose=_pull_back,
    batch=_batch,
    lower=Expand(_forward_mode),
    multiple=True,
)
