"""jit_p: the call of a jaxpr as one equation, which lowering inlines. Its rules are the transforms
of the jaxpr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.ir import Axis, Jaxpr, Linear, Primitive
from xcube.primitives.lowered import Inline
from xcube.trace import bind
from xcube.transforms.linearize import is_linearizing, jvp_jaxpr, linearize_jaxpr
from xcube.transforms.transpose import transpose_jaxpr
from xcube.transforms.vmap import batch_jaxpr


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, name: str) -> Any:
    nonzero = tuple(tangent is not None for tangent in tangents)
    given = [tangent for tangent in tangents if tangent is not None]
    if not is_linearizing(primals, tangents):
        joint, flags = jvp_jaxpr(jaxpr, nonzero)
        results = _call(joint, [*primals, *given], name)
        outs, rest = results[: len(flags)], iter(results[len(flags) :])
        return outs, [next(rest) if flag else None for flag in flags]
    known, linear, out_nonzero, forwarded = linearize_jaxpr(jaxpr, nonzero)
    results = _call(known, primals, name)
    outs, fresh = results[: len(jaxpr.outputs)], iter(results[len(jaxpr.outputs) :])
    residuals = [primals[p] if p >= 0 else next(fresh) for p in forwarded]
    out_tangents = iter(_call(linear, [*residuals, *given], name))
    return outs, [next(out_tangents) if flag else None for flag in out_nonzero]


def _call(jaxpr: Jaxpr, args: Sequence[Any], name: str) -> list[Any]:
    """The call of a jaxpr; what it captured becomes operands."""
    return bind(jit_p, *jaxpr.consts, *args, jaxpr=jaxpr.closed(), name=name)


def _transpose(cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, name: str) -> list[Any]:
    linear = tuple(isinstance(arg, Linear) for arg in args)
    nonzero = tuple(ct is not None for ct in cts)
    transposed, flags = transpose_jaxpr(jaxpr, linear, nonzero)
    known = [arg for arg, flag in zip(args, linear, strict=True) if not flag]
    given = [ct for ct in cts if ct is not None]
    results = iter(_call(transposed, [*known, *given], name))
    found = iter([next(results) if flag else None for flag in flags])
    return [next(found) if flag else None for flag in linear]


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, jaxpr: Jaxpr, name: str
) -> tuple[list[Any], Sequence[bool]]:
    batched_jaxpr, flags = batch_jaxpr(jaxpr, axis, tuple(batched))
    return _call(batched_jaxpr, args, name), flags


jit_p = Primitive(
    "jit",
    abstract=lambda *avals, jaxpr, name: jaxpr.out_avals,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Inline(),
    multiple=True,
)
