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
from typing import Any, NamedTuple

from xcube import dtypes
from xcube.errors import TraceError, UnexpectedTracerError
from xcube.ir import Atom, Aval, Equation, Jaxpr, Primitive, Var, at_user_line
from xcube.primitives.lowered import Element
from xcube.primitives.shape import zeros_of
from xcube.trace import (
    StagingTrace,
    Trace,
    Tracer,
    aval_of,
    bind,
    evaluate,
    new_birth,
    owner,
    set_current,
    stage,
)

Flags = tuple[bool, ...]


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
    if primitive.jvp == "expand":
        outs, out_tangents = jvp_flat(_composition(primitive, params), primals, tangents)
        return (outs, out_tangents) if primitive.multiple else (outs[0], out_tangents[0])
    if primitive.jvp is None or isinstance(primitive.jvp, str):
        raise TraceError(f"{primitive.name} has no derivative.{at_user_line()}")
    return primitive.jvp(primals, tangents, **params)


def _composition(primitive: Primitive, params: dict[str, Any]) -> Callable[..., Sequence[Any]]:
    """The composition of other primitives that a primitive stands for, with a list of results."""

    def function(*args: Any) -> Sequence[Any]:
        result = primitive.lower.function(*args, **params)
        return result if primitive.multiple else [result]

    return function


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


def is_linearizing(primals: Sequence[Any], tangents: Sequence[Any]) -> bool:
    """Whether a jvp rule runs under `linearize`: its tangents are variables of a linear trace.

    That is the only staging trace that is never current, and younger than what owns the primals."""
    recorder = owner([tangent for tangent in tangents if tangent is not None])
    return isinstance(recorder, StagingTrace) and recorder.birth > owner(primals).birth


def instantiated(
    primals: Sequence[Any], tangents: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """The tangents, zeros as values where wanted. Under `linearize` the linear trace makes the
    zeros, so that they are no residuals."""
    rows = list(zip(primals, tangents, wanted, strict=True))
    if all(tangent is not None for _, tangent, flag in rows if flag):
        return list(tangents)
    given = [tangent for tangent in tangents if tangent is not None]
    recorder = owner(given if is_linearizing(primals, tangents) else ())
    with set_current(recorder):
        return [instantiate(tangent, x) if flag else tangent for x, tangent, flag in rows]


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
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    nonzero: Sequence[bool],
    force: Sequence[bool] = (),
) -> tuple[list[Any], Jaxpr, list[bool]]:
    """Results, the linear program from nonzero input tangents to nonzero output tangents (its
    captured values are the residuals), and which outputs have a tangent that is not zero. Where
    `force` says so an output has one even if it is zero."""
    trace, linear = TangentTrace(), StagingTrace("linear")
    inputs = [
        trace.join(x, linear.new_input(tangent_aval(aval_of(x))) if flag else None)
        for x, flag in zip(primals, nonzero, strict=True)
    ]
    outs = function(*inputs)
    trace.open = False
    pairs = _with_zeros([trace.split(out) for out in outs], force)
    out_nonzero = [tangent is not None for _, tangent in pairs]
    jaxpr = linear.jaxpr([tangent for _, tangent in pairs if tangent is not None])
    return [primal for primal, _ in pairs], jaxpr, out_nonzero


def _with_zeros(pairs: list[tuple[Any, Any]], force: Sequence[bool]) -> list[tuple[Any, Any]]:
    """The primals and tangents, where forced with zeros as values."""
    if True not in force:
        return pairs
    return [
        (x, instantiate(dx, x) if flag else dx) for (x, dx), flag in zip(pairs, force, strict=True)
    ]


# the jaxpr forms ------------------------------------------------------------------------------


class Joint(NamedTuple):
    """A jaxpr over primals and tangents: (inputs, nonzero tangents) -> (outputs, nonzero output
    tangents); nonzero: which outputs have tangents."""

    jaxpr: Jaxpr
    nonzero: Flags


def jvp_jaxpr(jaxpr: Jaxpr, nonzero: Flags, force: Flags = ()) -> Joint:
    """The jaxpr form of `jvp_flat`. Where `force` says so an output has a tangent even if it is
    zero."""
    key = ("jvp", nonzero, force)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _jvp_jaxpr(jaxpr, nonzero, force)
    return jaxpr._cache[key]


def _jvp_jaxpr(jaxpr: Jaxpr, nonzero: Flags, force: Flags) -> Joint:
    found: dict[str, Flags] = {}
    primal_avals = jaxpr.in_avals
    given = [tangent_aval(a) for a, flag in zip(primal_avals, nonzero, strict=True) if flag]

    def function(*values: Any) -> list[Any]:
        primals, rest = values[: len(primal_avals)], iter(values[len(primal_avals) :])
        tangents = [next(rest) if flag else None for flag in nonzero]
        pairs = zip(*jvp_flat(lambda *xs: evaluate(jaxpr, xs), primals, tangents), strict=True)
        whole = _with_zeros(list(pairs), force)
        found["nonzero"] = tuple([dx is not None for _, dx in whole])
        return [*[x for x, _ in whole], *[dx for _, dx in whole if dx is not None]]

    return Joint(stage(function, [*primal_avals, *given], jaxpr.name), found["nonzero"])


class Halves(NamedTuple):
    """A jaxpr linearized. known: inputs -> (outputs, fresh residuals); linear: (residuals, nonzero
    tangents) -> nonzero output tangents; nonzero: which outputs have tangents; forwarded: for each
    residual the known input that it is, -1 for fresh ones."""

    known: Jaxpr
    linear: Jaxpr
    nonzero: Flags
    forwarded: tuple[int, ...]


def linearize_jaxpr(jaxpr: Jaxpr, nonzero: Flags, force: Flags = ()) -> Halves:
    """The jaxpr form of `linearize_flat`. Residuals that are mere views of something no larger are
    not saved: the linear program has their equations."""
    key = ("linearize", nonzero, force)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _linearize_jaxpr(jaxpr, nonzero, force)
    return jaxpr._cache[key]


def _linearize_jaxpr(jaxpr: Jaxpr, nonzero: Flags, force: Flags) -> Halves:
    found: dict[str, Any] = {}

    def known(*primals: Any) -> list[Any]:
        outs, linear, out_nonzero = linearize_flat(
            lambda *xs: evaluate(jaxpr, xs), primals, nonzero, force
        )
        found["linear"], found["nonzero"] = linear.closed(), tuple(out_nonzero)
        return [*outs, *[value for _, value in linear.captured]]

    whole = stage(known, jaxpr.in_avals, jaxpr.name)
    count = len(jaxpr.outputs)
    outputs, residuals = whole.outputs[:count], whole.outputs[count:]
    residuals, linear = _recompute_views(whole, residuals, found["linear"])
    position = {var: number for number, var in enumerate(whole.inputs)}
    fresh = [var for var in residuals if var not in position]
    known_jaxpr = Jaxpr(
        whole.inputs, whole.equations, (*outputs, *fresh), whole.captured, whole.name
    )
    forwarded = tuple([position.get(var, -1) for var in residuals])
    return Halves(known_jaxpr, linear, found["nonzero"], forwarded)


def _recompute_views(
    known: Jaxpr, residuals: Sequence[Atom], linear: Jaxpr
) -> tuple[list[Var], Jaxpr]:
    """Residuals, and a linear program of them, without those that are views: their equations go to
    the linear program instead, and what they view is the residual."""
    producer = {var: eqn for eqn in known.equations for var in eqn.outputs}
    homes: dict[Var, Var] = {}  # from a variable of the known program to that of the linear one
    saved: list[Var] = []
    views: list[Equation] = []

    def fetch(atom: Atom) -> Atom:
        if not isinstance(atom, Var):
            return atom
        if atom not in homes:
            eqn = producer.get(atom)
            if eqn is not None and _is_view(eqn):
                inputs = tuple([fetch(source) for source in eqn.inputs])
                homes[atom] = Var(atom.aval)
                views.append(
                    Equation((homes[atom],), eqn.primitive, inputs, eqn.params, eqn.source)
                )
            else:
                homes[atom] = Var(atom.aval)
                saved.append(atom)
        return homes[atom]

    values = [fetch(atom) for atom in residuals]
    env: dict[Atom, Atom] = dict(zip(linear.inputs, values, strict=False))
    equations = [
        Equation(
            e.outputs, e.primitive, tuple([env.get(a, a) for a in e.inputs]), e.params, e.source
        )
        for e in linear.equations
    ]
    inputs = (*[homes[var] for var in saved], *linear.inputs[len(residuals) :])
    outputs = tuple([env.get(atom, atom) for atom in linear.outputs])
    return saved, Jaxpr(inputs, (*views, *equations), outputs, (), linear.name)


def _is_view(eqn: Equation) -> bool:
    """Whether the result costs nothing to compute and no memory to compute again."""
    lower, sources = eqn.primitive.lower, [a for a in eqn.inputs if isinstance(a, Var)]
    if not (isinstance(lower, Element) and lower.cheap) or len(sources) > 1:
        return False
    return all(var.aval.nbytes <= eqn.outputs[0].aval.nbytes for var in sources)
