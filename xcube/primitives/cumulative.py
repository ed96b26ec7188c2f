"""Cumulative operations along an axis: sum, product, extrema, logsumexp, and the linear recurrence
in which the derivatives of all of them are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Primitive, at_user_line
from xcube.primitives.elementwise import mul, sub
from xcube.primitives.kinds import FLOAT, NUMBER, REAL, Accepts, add, add_tangents, named
from xcube.primitives.lowered import Expand, Template
from xcube.primitives.select import eq, select
from xcube.primitives.shape import batch_all
from xcube.primitives.transcendental import exp
from xcube.primitives.view import pad
from xcube.trace import bind, literal


def _check_axis(name: str, x: Aval, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(
            f"{name}: axis must lie in 0..{x.ndim - 1} for {x}; got {axis}.{at_user_line()}"
        )


def shifted(x: Any, axis: int, distance: int, fill: Any, reverse: bool = False) -> Any:
    """x moved along an axis by a distance, away from its start (from its end if `reverse`): what
    falls out is lost, what is free is filled with a scalar."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-distance, distance, 0) if reverse else (distance, -distance, 0)
    return pad(x, literal(np.asarray(fill).astype(x.dtype)[()]), tuple(config))


def exclusive(x: Any, axis: int, fill: Any, reverse: bool = False) -> Any:
    """Cumulative values x without each place's own element: all moved by one, `fill` first."""
    return shifted(x, axis, 1, fill, reverse) if x.shape[axis] else x


# linear recurrence ----------------------------------------------------------------------------


def _recurrence_abstract(a: Aval, b: Aval, *, axis: int, reverse: bool) -> Aval:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ShapeError(
            f"linear_recurrence: both operands must have one shape and dtype; got {a}, {b}."
            f"{at_user_line()}"
        )
    _check_axis("linear_recurrence", b, axis)
    return b.strengthen()


def _recurrence_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool
) -> tuple[Any, Any]:
    (a, b), (da, db) = primals, tangents
    h = linear_recurrence(a, b, axis, reverse)
    terms = [] if da is None else [mul(da, exclusive(h, axis, 0, reverse))]
    terms += [] if db is None else [db]
    return h, linear_recurrence(a, add_tangents(terms, h), axis, reverse)


def _recurrence_transpose(ct: Any, a: Any, b: Linear, *, axis: int, reverse: bool) -> list[Any]:
    return [None, linear_recurrence(exclusive(a, axis, 0, not reverse), ct, axis, not reverse)]


def _recurrence_batch(
    mapped: Axis, args: Sequence[Any], batched: Sequence[bool], *, axis: int, reverse: bool
) -> tuple[Any, bool]:
    a, b = batch_all(mapped, args, batched)
    return linear_recurrence(a, b, axis + 1, reverse), True


def _recurrence(a: Any, b: Any, *, axis: int, reverse: bool) -> Any:
    """Doubling: after a step each place has folded in twice as many predecessors."""
    distance, length = 1, b.shape[axis]
    while distance < length:
        b = add(mul(a, shifted(b, axis, distance, 0, reverse)), b)
        a = mul(a, shifted(a, axis, distance, 0, reverse))
        distance *= 2
    return b


linear_recurrence_p = Primitive(
    "linear_recurrence",
    abstract=_recurrence_abstract,
    jvp=_recurrence_jvp,
    transpose=_recurrence_transpose,
    batch=_recurrence_batch,
    lower=Expand(_recurrence),
)


def linear_recurrence(a: Any, b: Any, axis: int, reverse: bool = False) -> Any:
    """h with h[k] = a[k] h[k - 1] + b[k] along an axis, h[-1] = 0: d[*s], d[*s] -> d[*s]; from the
    end if `reverse`.

    Raises ShapeError if shapes or dtypes differ or there is no such axis.

    >>> from xcube.primitives.shape import full
    >>> linear_recurrence(full((3,), 2.0), full((3,), 1.0), 0).shape
    (3,)
    """
    return bind(linear_recurrence_p, a, b, axis=int(axis), reverse=bool(reverse))


# cumulative operations ------------------------------------------------------------------------


def _cumulative(name: str, accepts: Accepts, doc: str, slopes: Any = None) -> Any:
    """`slopes(x, y, before)`: how much of the previous result's and of the element's tangent is in
    the result's; `before` gives the previous results from a filling."""

    def abstract(x: Aval, *, axis: int, reverse: bool) -> Aval:
        if not accepts(x.dtype):
            raise DtypeError(f"{name}: does not accept {x}.{at_user_line()}")
        _check_axis(name, x, axis)
        return x

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool
    ) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = function(x, axis, reverse)
        if dx is None:
            return y, None
        carried, own = slopes(x, y, lambda fill: exclusive(y, axis, fill, reverse))
        return y, linear_recurrence(carried, mul(own, dx), axis, reverse)

    def sum_transpose(ct: Any, x: Linear, *, axis: int, reverse: bool) -> list[Any]:
        return [function(ct, axis, not reverse)]

    def batch(
        mapped: Axis, args: Sequence[Any], batched: Any, *, axis: int, reverse: bool
    ) -> tuple[Any, bool]:
        return function(args[0], axis + 1, reverse), True

    primitive = Primitive(
        name,
        abstract,
        jvp if slopes else "linear",
        None if slopes else sum_transpose,
        batch,
        Template("cumulative"),
    )

    def bound(x: Any, axis: int = 0, reverse: bool = False) -> Any:
        return bind(primitive, x, axis=int(axis), reverse=bool(reverse))

    function = named(primitive, bound, doc)
    return function


def _extremum_slopes(x: Any, y: Any, before: Any) -> tuple[Any, Any]:
    """The element's share is 1 where it is a new extremum, 0.5 where it equals the previous one;
    NaN before the first one makes that new."""
    none, half, whole = (literal(share, y.dtype) for share in (0, 0.5, 1))
    own = select(eq(before(np.nan), y), select(eq(x, y), half, none), whole)
    return sub(1, own), own


def _weight(x: Any, y: Any) -> Any:
    """exp(x - y), the share of x in the logarithm y of a sum: 1 for inf in inf, 0 for -inf."""
    finite = select(eq(y, -np.inf), 0, y)
    return exp(select(eq(x, np.inf), 0, sub(x, finite)))


def _ordered(dtype: Any) -> bool:
    return NUMBER(dtype) and REAL(dtype)


cumsum = _cumulative("cumsum", NUMBER, "Sums up to each place along an axis: d[*s] -> d[*s].")
cumprod = _cumulative(
    "cumprod",
    NUMBER,
    "Products up to each place along an axis: d[*s] -> d[*s].",
    lambda x, y, before: (x, before(1)),
)
cummax = _cumulative(
    "cummax",
    _ordered,
    "The largest up to each place along an axis: d[*s] -> d[*s]; NaN wins.",
    _extremum_slopes,
)
cummin = _cumulative(
    "cummin",
    _ordered,
    "The least up to each place along an axis: d[*s] -> d[*s]; NaN wins.",
    _extremum_slopes,
)
cumlogsumexp = _cumulative(
    "cumlogsumexp",
    FLOAT,
    "log of the sums of exp up to each place along an axis: f[*s] -> f[*s].",
    lambda x, y, before: (_weight(before(-np.inf), y), _weight(x, y)),
)
