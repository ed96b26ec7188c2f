"""Taylor mode: a trace whose values are truncated series, and whose operations go by a table of
rules. An operation without a row is differentiated: coefficient k + 1 of y is coefficient k of its
derivative over k + 1, and the derivative is the primitive's jvp rule, run on series one order
lower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xcube.errors import UnexpectedTracerError
from xcube.ir import Jaxpr, Primitive, at_user_line
from xcube.primitives.shape import full
from xcube.trace import Trace, Tracer, aval_of, bind, evaluate, new_birth, stage
from xcube.transforms.call import jit_p
from xcube.transforms.custom.custom_jvp import custom_jvp_call_p
from xcube.transforms.custom.custom_vjp import custom_vjp_call_p
from xcube.transforms.linearize import apply_jvp, instantiate, tangent_aval
from xcube.transforms.taylor_rules import RULES, linear_in
from xcube.transforms.taylor_series import Series, scaled

Flags = tuple[bool, ...]


class TaylorTracer(Tracer):
    """A series; its value is the first coefficient."""

    __slots__ = ("series",)

    def __init__(self, trace: TaylorTrace, series: Series) -> None:
        super().__init__(trace, aval_of(series[0]))
        self.series = series

    @property
    def known(self) -> Any:
        value = self.series[0]
        return value.known if isinstance(value, Tracer) else value

    def __repr__(self) -> str:
        return f"JetTracer(primal={self.series[0]}, order={len(self.series) - 1})"


class TaylorTrace(Trace):
    """Runs Taylor rules up to an order; never current."""

    def __init__(self, order: int) -> None:
        self.birth = new_birth()
        self.order = order
        self.open = True

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not self.open:
            raise UnexpectedTracerError(
                f"a Taylor series outlived the function given to jet.{at_user_line()} Return it "
                f"instead of storing it outside."
            )
        series = [self.split(arg) for arg in args]
        if primitive.jvp == "zero" or all(term is None for x in series for term in x[1:]):
            return bind(primitive, *[x[0] for x in series], **params)
        outs = _RULES.get(primitive, _rule_of(primitive))(series, **params)
        return [self.join(out) for out in outs] if primitive.multiple else self.join(outs)

    def split(self, value: Any) -> Series:
        """The coefficients of any value."""
        if isinstance(value, TaylorTracer) and value._trace is self:
            return value.series
        return [value, *[None] * self.order]

    def join(self, series: Series) -> Any:
        """A tracer, or the value alone where all else is zero."""
        first, *rest = series
        if all(term is None for term in rest):
            return first
        shape = aval_of(first).shape
        return TaylorTracer(self, [first, *[_of_shape(term, shape) for term in rest]])


def _of_shape(term: Any, shape: tuple[int, ...]) -> Any:
    """A coefficient in the shape of the value: that of a scalar operand is repeated."""
    return term if term is None or aval_of(term).shape == shape else full(shape, term)


def taylor_flat(
    function: Callable[..., Sequence[Any]], series: Sequence[Series], order: int
) -> list[Series]:
    """The series of the results of a flat function, from those of its arguments."""
    trace = TaylorTrace(order)
    outs = function(*[trace.join(x) for x in series])
    trace.open = False
    return [trace.split(out) for out in outs]


def _rule_of(primitive: Primitive) -> Callable[..., Any]:
    """The rule of a primitive that has no row in the table."""
    if primitive.jvp == "linear":
        return linear_in(primitive)
    return lambda args, **params: _differentiated(primitive, args, params)


def _differentiated(primitive: Primitive, args: list[Series], params: dict[str, Any]) -> Any:
    order = len(args[0]) - 1
    slopes = [[scaled(k, x[k]) for k in range(1, order + 1)] for x in args]
    moving = [any(term is not None for term in slope) for slope in slopes]
    tangents = [
        [instantiate(slope[0], x[0]), *slope[1:]]
        for x, slope, flag in zip(args, slopes, moving, strict=True)
        if flag
    ]
    nonzero: list[bool] = []

    def function(*values: Any) -> list[Any]:
        primals, given = values[: len(args)], iter(values[len(args) :])
        dxs = [next(given) if flag else None for flag in moving]
        outs, out_tangents = apply_jvp(primitive, primals, dxs, params)
        pairs = (outs, out_tangents) if primitive.multiple else ([outs], [out_tangents])
        nonzero.extend(dy is not None for dy in pairs[1])
        return [*pairs[0], *[dy for dy in pairs[1] if dy is not None]]

    found = taylor_flat(function, [*[x[:-1] for x in args], *tangents], order - 1)
    derivatives = iter(found[len(nonzero) :])
    results = [
        _integrated(y[0], next(derivatives) if flag else [None] * order)
        for y, flag in zip(found, nonzero, strict=False)
    ]
    return results if primitive.multiple else results[0]


def _integrated(first: Any, derivative: Series) -> Series:
    return [first, *[scaled(1 / k, term) for k, term in enumerate(derivative, 1)]]


# the jaxpr form -------------------------------------------------------------------------------


class Expanded(NamedTuple):
    """jaxpr: coefficients of inputs -> coefficients of outputs, both only where they are not zero;
    nonzero: which coefficients each output has."""

    jaxpr: Jaxpr
    nonzero: tuple[Flags, ...]


def _packed(series: Sequence[Series]) -> tuple[tuple[Flags, ...], list[Any]]:
    """Which coefficients there are, and these in a row."""
    nonzero = tuple([tuple([term is not None for term in x]) for x in series])
    return nonzero, [term for x in series for term in x if term is not None]


def _unpacked(nonzero: Sequence[Flags], values: Sequence[Any]) -> list[Series]:
    """The series of such coefficients."""
    found = iter(values)
    return [[next(found) if flag else None for flag in flags] for flags in nonzero]


def taylor_jaxpr(jaxpr: Jaxpr, nonzero: tuple[Flags, ...]) -> Expanded:
    """The jaxpr form of `taylor_flat`."""
    key = ("taylor", nonzero)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _taylor_jaxpr(jaxpr, nonzero)
    return jaxpr._cache[key]


def _taylor_jaxpr(jaxpr: Jaxpr, nonzero: tuple[Flags, ...]) -> Expanded:
    found: dict[str, tuple[Flags, ...]] = {}
    avals = [
        tangent_aval(aval) if k else aval
        for aval, flags in zip(jaxpr.in_avals, nonzero, strict=True)
        for k, flag in enumerate(flags)
        if flag
    ]

    def function(*values: Any) -> list[Any]:
        series, order = _unpacked(nonzero, values), len(nonzero[0]) - 1
        outs = taylor_flat(lambda *xs: evaluate(jaxpr, xs), series, order)
        found["nonzero"], results = _packed(outs)
        return results

    return Expanded(stage(function, avals, jaxpr.name), found["nonzero"])


def _called(args: Sequence[Series], *, jaxpr: Jaxpr, name: str) -> list[Series]:
    """A call: the program of all coefficients, as one call."""
    nonzero, values = _packed(args)
    expanded, out_nonzero = taylor_jaxpr(jaxpr, nonzero)
    return _unpacked(out_nonzero, bind(jit_p, *values, jaxpr=expanded, name=name))


def _inlined(args: Sequence[Series], *, call_jaxpr: Jaxpr, **params: Any) -> list[Series]:
    """A function with a rule of its own, which knows nothing of series: the function itself."""
    return taylor_flat(lambda *xs: evaluate(call_jaxpr, xs), args, len(args[0]) - 1)


_RULES = {
    **RULES,
    jit_p: _called,
    custom_jvp_call_p: _inlined,
    custom_vjp_call_p: _inlined,
}
