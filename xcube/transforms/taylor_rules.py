"""The table of Taylor rules: for each primitive, how the series of its results comes from those of
its operands. What has no row is differentiated, which is right for every primitive with a
derivative, and takes more operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Primitive
from xcube.primitives import cumulative, gather, reduce, scatter, sort
from xcube.primitives import elementwise as e
from xcube.primitives import transcendental as t
from xcube.primitives.contract import dot_general_p
from xcube.primitives.convert import (
    convert_element_type,
    convert_element_type_p,
    optimization_barrier_p,
)
from xcube.primitives.gather import gather_p
from xcube.primitives.index import dynamic_slice_p, dynamic_update_slice_p
from xcube.primitives.kinds import add
from xcube.primitives.select import clamp_p, select_n_p
from xcube.primitives.view import pad_p
from xcube.trace import aval_of, bind
from xcube.transforms import taylor_series as s
from xcube.transforms.linearize import apply_jvp, instantiate
from xcube.transforms.taylor_series import LOG_2, ROOT_PI, Series

Rule = Callable[..., Any]  # (series of each operand, **params) -> series, a list if several


def orders(args: Sequence[Series]) -> range:
    """The orders of the coefficients other than the first."""
    return range(1, len(args[0]))


# kinds of rules -------------------------------------------------------------------------------


def linear_in(primitive: Primitive, *places: int) -> Rule:
    """The result is linear in the operands at these places, all if there are none; the others are
    constant."""

    def rule(args: Sequence[Series], **params: Any) -> Any:
        chosen = places or range(len(args))
        values = [x[0] for x in args]
        outs = [bind(primitive, *values, **params)]
        for k in orders(args):
            terms = {n: args[n][k] for n in chosen}
            if all(term is None for term in terms.values()):
                outs.append(None)
                continue
            given = [instantiate(terms[n], x) if n in terms else x for n, x in enumerate(values)]
            outs.append(bind(primitive, *given, **params))
        return transposed(outs) if primitive.multiple else outs

    return rule


def transposed(outs: Sequence[Any]) -> list[Series]:
    """From a list of results for each order to a series for each result."""
    count = len(outs[0])
    whole = [[None] * count if out is None else out for out in outs]
    return [list(series) for series in zip(*whole, strict=True)]


def piecewise(primitive: Primitive) -> Rule:
    """The result is linear around the point: each coefficient is pushed forward there."""

    def rule(args: Sequence[Series], **params: Any) -> Any:
        values, outs, pushed = [x[0] for x in args], None, []
        for k in orders(args):
            terms = [x[k] for x in args]
            if all(term is None for term in terms):
                pushed.append(None)
            else:
                outs, term = apply_jvp(primitive, values, terms, params)
                pushed.append(term)
        return transposed([outs, *pushed]) if primitive.multiple else [outs, *pushed]

    return rule


def bilinear(primitive: Primitive) -> Rule:
    """The result is linear in each of two operands."""

    def rule(args: Sequence[Series], **params: Any) -> Series:
        x, y = args

        def multiply(a: Any, b: Any) -> Any:
            return None if a is None or b is None else bind(primitive, a, b, **params)

        return [s.convolved(x, y, k, multiply) for k in range(len(x))]

    return rule


def of_one(function: Callable[..., Series]) -> Rule:
    """A function of one series."""
    return lambda args, **params: function(args[0], **params)


def with_slope(primitive: Primitive, slope: Callable[[Series], Series]) -> Rule:
    """A function of one operand whose derivative is a function of the operand."""

    def rule(args: Sequence[Series]) -> Series:
        (u,) = args
        return s.integral(bind(primitive, u[0]), (u, slope(u[:-1])))

    return rule


def autonomous(primitive: Primitive, slope: s.Slope) -> Rule:
    """A function of one operand whose derivative is a function of the result."""
    return lambda args: s.grown(bind(primitive, args[0][0]), args[0], slope)


def to_power(primitive: Primitive, r: float) -> Rule:
    """A function of one operand that is its power."""
    return lambda args: s.power(bind(primitive, args[0][0]), args[0], r)


# rules of their own ---------------------------------------------------------------------------


def _pow(args: Sequence[Series]) -> Series:
    x, y = args
    first = t.pow(x[0], y[0])
    if s.is_constant(y):
        return s.power(first, x, convert_element_type(y[0], aval_of(x[0]).dtype))
    return s.raised(x, y, first)


def _atan2(args: Sequence[Series]) -> Series:
    y, x = args
    below = [series[:-1] for series in args]
    norm = s.plus(s.square(below[0]), s.square(below[1]))
    slopes = s.over(below[1], norm), s.times_number(-1, s.over(below[0], norm))
    return s.integral(t.atan2(y[0], x[0]), (y, slopes[0]), (x, slopes[1]))


def _circular(place: int, sine: Any, cosine: Any, sign: float) -> Rule:
    def rule(args: Sequence[Series]) -> Series:
        (u,) = args
        return s.pair(u, sine(u[0]), cosine(u[0]), sign)[place]

    return rule


def _convert(args: Sequence[Series], *, new_dtype: Any, weak_type: bool) -> Series:
    params = {"new_dtype": new_dtype, "weak_type": weak_type}
    if dtypes.is_inexact(new_dtype):
        return linear_in(convert_element_type_p)(args, **params)
    return [bind(convert_element_type_p, args[0][0], **params), *[None for _ in orders(args)]]


def _select(args: Sequence[Series]) -> Series:
    return linear_in(select_n_p, *range(1, len(args)))(args)


def _barrier(args: Sequence[Series]) -> list[Series]:
    """Each coefficient waits for those of its order."""
    outs = []
    for k in range(len(args[0])):
        terms = [x[k] for x in args]
        given = [term for term in terms if term is not None]
        passed = iter(bind(optimization_barrier_p, *given) if given else ())
        outs.append([None if term is None else next(passed) for term in terms])
    return transposed(outs)


def _abs(args: Sequence[Series]) -> Series:
    (u,) = args
    if not dtypes.is_complex(aval_of(u[0]).dtype):
        return piecewise(e.abs.primitive)(args)
    conjugate = [None if x is None else e.conj(x) for x in u]
    squared = [None if x is None else e.real(x) for x in s.times(u, conjugate)]
    return s.power(e.abs(u[0]), squared, 0.5)


# the table ------------------------------------------------------------------------------------


def _rules_of(*functions: Any, kind: Callable[[Primitive], Rule]) -> dict[Primitive, Rule]:
    primitives = [getattr(function, "primitive", function) for function in functions]
    return {primitive: kind(primitive) for primitive in primitives}


_ARITHMETIC: dict[Any, Rule] = {
    e.neg: of_one(lambda u: s.times_number(-1, u)),
    add: lambda args: s.plus(*args),
    e.sub: lambda args: s.minus(*args),
    e.mul: lambda args: s.times(*args),
    e.div: lambda args: s.over(*args),
    e.square: of_one(s.square),
    e.abs: _abs,
}
_POWERS: dict[Any, Rule] = {
    e.integer_pow_p: of_one(lambda u, y: s.whole_power(u, y)),
    e.sqrt: to_power(e.sqrt.primitive, 0.5),
    e.rsqrt: to_power(e.rsqrt.primitive, -0.5),
    e.cbrt: to_power(e.cbrt.primitive, 1 / 3),
    t.pow_p: _pow,
}
_EXPONENTIALS: dict[Any, Rule] = {
    t.exp: of_one(s.exp),
    t.exp2: autonomous(t.exp2.primitive, lambda v, k: s.scaled(LOG_2, v[k])),
    t.expm1: autonomous(t.expm1.primitive, lambda v, k: v[k] if k else add(v[0], 1)),
    t.logistic: autonomous(
        t.logistic.primitive, lambda v, k: s.convolved(v, s.shifted(1, -1, v), k)
    ),
    t.log: of_one(s.log),
    t.log2: of_one(lambda u: [t.log2(u[0]), *s.times_number(1 / LOG_2, s.log(u))[1:]]),
    t.log1p: of_one(lambda u: s.log(s.shifted(1, 1, u), t.log1p(u[0]))),
}
_TRIGONOMETRIC: dict[Any, Rule] = {
    t.sin: _circular(0, t.sin, t.cos, -1),
    t.cos: _circular(1, t.sin, t.cos, -1),
    t.tan: autonomous(t.tan.primitive, lambda v, k: s.shifted(1, 1, s.square(v))[k]),
    t.asin: with_slope(
        t.asin.primitive, lambda u: s.reciprocal_root(s.shifted(1, -1, s.square(u)))
    ),
    t.acos: with_slope(
        t.acos.primitive,
        lambda u: s.times_number(-1, s.reciprocal_root(s.shifted(1, -1, s.square(u)))),
    ),
    t.atan: with_slope(t.atan.primitive, lambda u: s.whole_power(s.shifted(1, 1, s.square(u)), -1)),
    t.atan2: _atan2,
}
_HYPERBOLIC: dict[Any, Rule] = {
    t.sinh: _circular(0, t.sinh, t.cosh, 1),
    t.cosh: _circular(1, t.sinh, t.cosh, 1),
    t.tanh: autonomous(
        t.tanh.primitive, lambda v, k: s.convolved(s.shifted(1, 1, v), s.shifted(1, -1, v), k)
    ),
    t.asinh: with_slope(
        t.asinh.primitive, lambda u: s.reciprocal_root(s.shifted(1, 1, s.square(u)))
    ),
    t.acosh: with_slope(
        t.acosh.primitive, lambda u: s.reciprocal_root(s.shifted(-1, 1, s.square(u)))
    ),
    t.atanh: with_slope(
        t.atanh.primitive, lambda u: s.whole_power(s.shifted(1, -1, s.square(u)), -1)
    ),
}
_SPECIAL: dict[Any, Rule] = {
    t.erf: with_slope(t.erf.primitive, lambda u: s.gauss(u, 2 / ROOT_PI, -1)),
    t.erfc: with_slope(t.erfc.primitive, lambda u: s.gauss(u, -2 / ROOT_PI, -1)),
    t.erf_inv: autonomous(t.erf_inv.primitive, lambda v, k: s.gauss(v, ROOT_PI / 2, 1)[k]),
    t.lgamma: with_slope(t.lgamma.primitive, lambda u: s.polygamma(0, u)),
    t.digamma: of_one(lambda u: s.polygamma(0, u)),
    t.polygamma_p: of_one(lambda u, m: s.polygamma(m, u)),
}
_STRUCTURE: dict[Any, Rule] = {
    convert_element_type_p: _convert,
    select_n_p: _select,
    optimization_barrier_p: _barrier,
    dot_general_p: bilinear(dot_general_p),
    pad_p: linear_in(pad_p, 0, 1),
    dynamic_slice_p: linear_in(dynamic_slice_p, 0),
    dynamic_update_slice_p: linear_in(dynamic_update_slice_p, 0, 1),
    gather_p: linear_in(gather_p, 0),
    gather.scatter_add: linear_in(gather.scatter_add.primitive, 0, 2),
    gather.scatter_sub: linear_in(gather.scatter_sub.primitive, 0, 2),
}
_PIECEWISE = _rules_of(
    *(e.max, e.min, clamp_p, e.rem, e.nextafter),
    *(reduce.reduce_max, reduce.reduce_min, cumulative.cummax, cumulative.cummin),
    *(sort.sort_p, sort.top_k_p, scatter.scatter, scatter.scatter_min, scatter.scatter_max),
    kind=piecewise,
)
_TABLES = (_ARITHMETIC, _POWERS, _EXPONENTIALS, _TRIGONOMETRIC, _HYPERBOLIC, _SPECIAL, _STRUCTURE)
RULES: dict[Primitive, Rule] = {
    getattr(operation, "primitive", operation): rule
    for table in (*_TABLES, _PIECEWISE)
    for operation, rule in table.items()
}
