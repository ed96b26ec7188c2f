"""Forward mode: a tangent trace runs each primitive's jvp rule; with a younger staging trace for
the tangents it linearizes.

A `TangentTracer` pairs a primal, which belongs to older traces or is a plain value, with a
tangent. In `jvp` the tangents are plain values too. In `linearize` they are variables of a
*linear* staging trace that is younger than everything: operations on primals are done by
whoever owns them (evaluated, if nobody does), operations on tangents are recorded, and the
primals that the recorded ones captured are the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube import dtypes
from xcube.errors import TraceError, UnexpectedTracerError
from xcube.ir import Aval, Jaxpr, Primitive, at_user_line
from xcube.primitives.shape import zeros_of
from xcube.trace import (
    StagingTrace,
    Trace,
    Tracer,
    aval_of,
    bind,
    evaluate,
    new_birth,
    stage,
)


class TangentTracer(Tracer):
    """A primal with its tangent; a tangent that is None is zero."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: TangentTrace, primal: Any, tangent: Any) -> None:
        super().__init__(trace, aval_of(primal))
        self.primal, self.tangent = primal, tangent

    @property
    def known(self) -> Any:
        return self.primal.known if isinstance(self.primal, Tracer) else self.primal

    def __repr__(self) -> str:
        return f"GradTracer(primal={self.primal}, typeof(tangent)={self.aval})"


class TangentTrace(Trace):
    """Runs jvp rules; never current."""

    def __init__(self) -> None:
        self.birth = new_birth()
        self.open = True

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not self.open:
            raise _leak(self, args)
        pairs = [self.split(arg) for arg in args]
        primals = [primal for primal, _ in pairs]
        tangents = [tangent for _, tangent in pairs]
        if all(tangent is None for tangent in tangents):
            return bind(primitive, *primals, **params)
        outs, out_tangents = apply_jvp(primitive, primals, tangents, params)
        if primitive.multiple:
            pairs = zip(outs, out_tangents, strict=True)
            return [self.join(out, tangent) for out, tangent in pairs]
        return self.join(outs, out_tangents)

    def split(self, value: Any) -> tuple[Any, Any]:
        """Primal and tangent of any value."""
        if isinstance(value, TangentTracer) and value._trace is self:
            return value.primal, value.tangent
        return value, None

    def join(self, primal: Any, tangent: Any) -> Any:
        """A tracer, or the primal alone where the tangent is zero."""
        return primal if tangent is None else TangentTracer(self, primal, tangent)


def apply_jvp(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Any]:
    """Results and their tangents by the primitive's rule."""
    if primitive.jvp == "zero":
        outs = bind(primitive, *primals, **params)
        return outs, [None] * len(outs) if primitive.multiple else None
    if primitive.jvp == "linear":
        whole = [instantiate(t, x) for t, x in zip(tangents, primals, strict=True)]
        return bind(primitive, *primals, **params), bind(primitive, *whole, **params)
    if primitive.jvp is None or isinstance(primitive.jvp, str):
        raise TraceError(f"{primitive.name} has no derivative.{at_user_line()}")
    return primitive.jvp(primals, tangents, **params)


def instantiate(tangent: Any, primal: Any) -> Any:
    """A tangent as a value: zeros where it is None."""
    return zeros_of(tangent_aval(aval_of(primal))) if tangent is None else tangent


def tangent_aval(aval: Aval) -> Aval:
    """Aval of the tangents of an aval: float0 for integers and bools."""
    dtype = dtypes.tangent_dtype(aval.dtype)
    return aval if dtype == aval.dtype else Aval(aval.shape, dtype)


def _leak(trace: TangentTrace, args: Sequence[Any]) -> Exception:
    owned = (arg for arg in args if isinstance(arg, TangentTracer) and arg._trace is trace)
    what = ", ".join(str(arg.aval) for arg in owned)
    return UnexpectedTracerError(
        f"a value under differentiation, {what}, outlived the function that was differentiated."
        f"{at_user_line()} Return it (has_aux=True) instead of storing it outside."
    )


def jvp_flat(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Results of a flat function and their tangents (None where zero)."""
    trace = TangentTrace()
    outs = function(*[trace.join(x, dx) for x, dx in zip(primals, tangents, strict=True)])
    trace.open = False
    pairs = [trace.split(out) for out in outs]
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


def linearize_flat(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], nonzero: Sequence[bool]
) -> tuple[list[Any], Jaxpr, list[bool]]:
    """Results, the linear program from nonzero input tangents to nonzero output tangents (its
    captured values are the residuals), and which outputs have a tangent that is not zero."""
    trace, linear = TangentTrace(), StagingTrace("linear")
    inputs = [
        trace.join(x, linear.new_input(tangent_aval(aval_of(x))) if flag else None)
        for x, flag in zip(primals, nonzero, strict=True)
    ]
    outs = function(*inputs)
    trace.open = False
    pairs = [trace.split(out) for out in outs]
    out_nonzero = [tangent is not None for _, tangent in pairs]
    jaxpr = linear.jaxpr([tangent for _, tangent in pairs if tangent is not None])
    return [primal for primal, _ in pairs], jaxpr, out_nonzero


def linearize_jaxpr(
    jaxpr: Jaxpr, nonzero: tuple[bool, ...]
) -> tuple[Jaxpr, Jaxpr, tuple[bool, ...], tuple[int, ...]]:
    """The jaxpr form: known (inputs -> outputs, residuals), linear (residuals, nonzero tangents ->
    nonzero output tangents), which outputs have tangents, and, for each residual, the position
    of the known input that it is (or -1)."""
    key = ("linearize", nonzero)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _linearize_jaxpr(jaxpr, nonzero)
    return jaxpr._cache[key]


def _linearize_jaxpr(jaxpr: Jaxpr, nonzero: tuple[bool, ...]) -> Any:
    found: dict[str, Any] = {}

    def known(*primals: Any) -> list[Any]:
        outs, linear, out_nonzero = linearize_flat(
            lambda *xs: evaluate(jaxpr, xs), primals, nonzero
        )
        position = {id(x): number for number, x in enumerate(primals)}
        residuals = [value for _, value in linear.captured]
        found["linear"], found["nonzero"] = linear.closed(), tuple(out_nonzero)
        found["forwarded"] = tuple(position.get(id(value), -1) for value in residuals)
        fresh = [v for v in residuals if id(v) not in position]
        return [*outs, *fresh]

    known_jaxpr = stage(known, jaxpr.in_avals, jaxpr.name)
    return known_jaxpr, found["linear"], found["nonzero"], found["forwarded"]
