"""Taylor mode: derivatives of high order in one pass, by truncated power series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import at_user_line
from xcube.primitives.shape import full, zeros_of
from xcube.trace import Tracer, aval_of, literal
from xcube.transforms.arguments import as_leaf, as_result, check_callable
from xcube.transforms.leaks import NoLeaks
from xcube.transforms.linear_maps import name_of
from xcube.transforms.taylor import taylor_flat
from xcube.transforms.taylor_series import Series, scaled


def jet(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    factorial_scaled: bool = True,
    **_: Any,
) -> tuple[Any, Any]:
    """(fun(*primals), its derivatives of the orders 1 to K) along a curve.

    `primals`: arrays. `series`: for each its K derivatives along the curve, f[*s] like the primal
    (Python numbers fit any shape); [1.0, 0.0, 0.0] is a straight line at speed one. In the result,
    each leaf is replaced by the list of its derivatives. With `factorial_scaled=False`, series and
    result hold coefficients of t^k instead, which are the derivatives over k!. As in JAX,
    functions with a custom_jvp or custom_vjp are differentiated themselves: such rules have no
    series.
    Raises ValueError if the series have not one length, ShapeError or DtypeError where a term does
    not fit its primal. Source: Griewank & Walther, Evaluating Derivatives, chapter 13.

    >>> import xcube.numpy as jnp
    >>> y, terms = jet(lambda x: x**3, (2.0,), ([1.0, 0.0, 0.0],))
    >>> [float(term) for term in terms]
    [12.0, 12.0, 6.0]
    """
    check_callable("jet", fun)
    order = _order(primals, series)
    values = [
        as_leaf("jet", name_of(fun), x, lambda n=n: f"primal {n}") for n, x in enumerate(primals)
    ]
    rows = enumerate(zip(values, series, strict=True))
    given = [_coefficients(n, x, terms, factorial_scaled) for n, (x, terms) in rows]
    structures: list[Any] = []

    def function(*xs: Any) -> list[Any]:
        outs, structure = tree.flatten(fun(*xs))
        structures.append(structure)
        return [as_result(name_of(fun), out) for out in outs]

    with NoLeaks(f"jet of {name_of(fun)}"):
        outs = taylor_flat(function, given, order)
    terms = [_terms(out, factorial_scaled) for out in outs]
    (structure,) = structures
    return tree.unflatten(structure, [x[0] for x in outs]), tree.unflatten(structure, terms)


def _order(primals: Sequence[Any], series: Sequence[Sequence[Any]]) -> int:
    """How many terms each primal has."""
    lengths = {len(terms) for terms in series}
    if len(primals) != len(series) or len(lengths) != 1:
        raise ValueError(
            f"jet: there must be one series for each primal, all of one length; got {len(primals)} "
            f"primals and series of lengths {[len(terms) for terms in series]}.{at_user_line()}"
        )
    return lengths.pop()


def _coefficients(number: int, x: Array, terms: Sequence[Any], factorial_scaled: bool) -> Series:
    """The coefficients of t^k of a primal's curve."""
    fitted = [_fit(f"term {k} of primal {number}", x, term) for k, term in enumerate(terms, 1)]
    factors = [1 / math.factorial(k) if factorial_scaled else 1 for k in range(1, len(terms) + 1)]
    return [x, *[scaled(*pair) for pair in zip(factors, fitted, strict=True)]]


def _fit(where: str, x: Array, term: Any) -> Any:
    """A term like its primal; None for zero."""
    is_number = isinstance(term, bool | int | float | complex)
    if is_number and term == 0:
        return None
    if not dtypes.is_inexact(x.dtype):
        return _fit_integer(where, x, term)
    if is_number and (dtypes.is_complex(x.dtype) or not isinstance(term, complex)):
        return full(x.shape, literal(term, x.dtype) if x.weak_type else x.dtype.type(term))
    term = as_leaf("jet", "the series", term, lambda: where)
    if (term.shape, term.dtype) != (x.shape, x.dtype):
        raise (ShapeError if term.shape != x.shape else DtypeError)(
            f"jet: {where} must be like the primal, {x.aval}; got {term.aval}.{at_user_line()}"
        )
    return term


def _fit_integer(where: str, x: Array, term: Any) -> None:
    """Integers and bools are constant: their terms must be zeros."""
    known = not isinstance(term, Tracer)
    is_float0 = getattr(term, "dtype", None) == dtypes.float0
    if not is_float0 and not (known and not np.any(np.asarray(term))):
        raise DtypeError(
            f"jet: {where} must be zero, for {x.aval} is constant; got {term!r}.{at_user_line()} "
            f"Convert the primal to float."
        )


def _terms(series: Series, factorial_scaled: bool) -> list[Any]:
    """The derivatives of a result, zeros where it has none."""
    first, *rest = series
    aval = aval_of(first)
    if not dtypes.is_inexact(aval.dtype):
        return [full(aval.shape, 0.0) for _ in rest]
    factors = [math.factorial(k) if factorial_scaled else 1 for k in range(1, len(series))]
    return [
        zeros_of(aval) if term is None else scaled(factor, term)
        for factor, term in zip(factors, rest, strict=True)
    ]
