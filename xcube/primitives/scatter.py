"""The scatters that are no sums: windows of an array replaced by updates, multiplied by them, or
limited to their maximum or minimum. scatter_add and scatter_sub are in gather.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube.errors import TraceError
from xcube.ir import Shape, at_user_line
from xcube.primitives.bits import bitwise_or
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul
from xcube.primitives.gather import scatter_add, scatter_operation, with_zeros, written
from xcube.primitives.kinds import ANY, NUMBER, REAL, add_tangents, is_linear
from xcube.primitives.select import eq, ne, select
from xcube.primitives.shape import broadcast_in_dim, full, reshape, zeros_of
from xcube.primitives.view import iota
from xcube.trace import aval_of

# replace --------------------------------------------------------------------------------------


def _winners(shape: Shape, indices: Any, updates: Shape, **params: Any) -> tuple[Any, Any]:
    """bools: which elements of the operand stay, and which elements of the updates are in the
    result. Each update has a number, and the numbers are scattered like the updates."""
    window = params["dimension_numbers"].update_window_dims
    kept = [d for d in range(len(updates)) if d not in window]
    sizes = [updates[d] for d in kept]
    count = math.prod(sizes)
    dtype = np.dtype(np.uint32 if count < 1 << 32 else np.uint64)
    numbers = reshape(iota(dtype, (count,)), sizes)
    places = broadcast_in_dim(numbers, updates, kept)
    none = np.iinfo(dtype).max
    winners = scatter(full(shape, none, dtype), indices, places, **params)
    back = written(winners, indices, updates, none, **params)
    return eq(winners, full(shape, none, dtype)), eq(back, places)


def _set_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, indices, updates), (dx, _, dupdates) = primals, tangents
    out = scatter(x, indices, updates, **params)
    if dx is None and dupdates is None:
        return out, None
    dx, dupdates = with_zeros(dx, x), with_zeros(dupdates, updates)
    if params["unique_indices"]:
        return out, scatter(dx, indices, dupdates, **params)
    stays, wins = _winners(aval_of(x).shape, indices, aval_of(updates).shape, **params)
    return out, scatter_add(select(stays, dx, 0), indices, select(wins, dupdates, 0), **params)


def _set_transpose(ct: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    aval = updates.aval if is_linear(updates) else aval_of(updates)
    back, back_updates = None, None
    if is_linear(x):
        back = scatter(ct, indices, zeros_of(aval), **params)
    if is_linear(updates):
        back_updates = written(ct, indices, aval.shape, **params)
        if not params["unique_indices"]:
            _, wins = _winners(ct.shape, indices, aval.shape, **params)
            back_updates = select(wins, back_updates, 0)
    return [back, None, back_updates]


scatter = scatter_operation(
    "scatter",
    accepts=ANY,
    jvp=_set_jvp,
    transpose=_set_transpose,
    does="An array with windows of it replaced by updates, the last one where they overlap",
)

# multiply -------------------------------------------------------------------------------------


def _require_unique(params: dict[str, Any]) -> None:
    if not params["unique_indices"]:
        raise TraceError(
            "scatter_mul: its derivative by the updates needs at most one update per element; got "
            f"unique_indices=False.{at_user_line()} Pass unique_indices=True if that holds."
        )


def _mul_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, indices, updates), (dx, _, dupdates) = primals, tangents
    out = scatter_mul(x, indices, updates, **params)
    terms = [] if dx is None else [scatter_mul(dx, indices, updates, **params)]
    if dupdates is not None:
        _require_unique(params)
        spread = scatter_add(zeros_of(aval_of(x)), indices, dupdates, **params)
        terms.append(mul(x, spread))
    return out, add_tangents(terms, out)


def _mul_transpose(ct: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    if is_linear(x):
        return [scatter_mul(ct, indices, updates, **params), None, None]
    _require_unique(params)
    return [None, None, written(mul(ct, x), indices, updates.aval.shape, **params)]


scatter_mul = scatter_operation(
    "scatter-mul",
    accepts=NUMBER,
    jvp=_mul_jvp,
    transpose=_mul_transpose,
    does="An array with windows of it multiplied by updates",
)

# extrema --------------------------------------------------------------------------------------


def _extremum_jvp(function: Callable[[], Any]) -> Callable[..., Any]:
    """All that equal the result, the operand's element and updates of it, share its tangent; so do
    all that are NaN."""

    def is_chosen(x: Any, out: Any, dtype: Any) -> Any:
        return convert_element_type(bitwise_or(eq(x, out), ne(x, x)), dtype)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x, indices, updates), (dx, _, dupdates) = primals, tangents
        out = function()(x, indices, updates, **params)
        if dx is None and dupdates is None:
            return out, None
        dx, dupdates = with_zeros(dx, x), with_zeros(dupdates, updates)
        result = written(out, indices, aval_of(updates).shape, **params)
        mine, theirs = is_chosen(x, out, out.dtype), is_chosen(updates, result, out.dtype)
        sharers = scatter_add(mine, indices, theirs, **params)
        total = scatter_add(mul(mine, dx), indices, mul(theirs, dupdates), **params)
        return out, div(total, sharers)

    return jvp


scatter_min = scatter_operation(
    "scatter-min",
    accepts=REAL,
    jvp=_extremum_jvp(lambda: scatter_min),
    transpose=None,
    does="An array with windows of it replaced by updates that are less; NaN wins",
)
scatter_max = scatter_operation(
    "scatter-max",
    accepts=REAL,
    jvp=_extremum_jvp(lambda: scatter_max),
    transpose=None,
    does="An array with windows of it replaced by updates that are greater; NaN wins",
)
