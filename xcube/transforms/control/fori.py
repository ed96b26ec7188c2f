"""fori_loop: a body applied for each of the numbers from lower to upper. With bounds that are known
while tracing it is a scan, which has a reverse-mode derivative; otherwise a while_loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.array import Array
from xcube.errors import DtypeError
from xcube.ir import at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.kinds import add
from xcube.primitives.select import lt
from xcube.primitives.view import iota
from xcube.trace import Tracer, aval_of, literal
from xcube.transforms.control import loops
from xcube.transforms.control.agreement import check_functions


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """Apply a body for each number from lower to upper (not included): body_fun(i, value) -> value.

    `body_fun` is traced once; the value is a pytree that keeps its structure, shapes and dtypes.
    lower, upper: integer scalars of one dtype. If both are known while tracing, the loop is a scan,
    can be differentiated in reverse mode, and takes `unroll` as scan does. Raises TypeError if the
    value changes its type or the bounds are no integers of one dtype, ValueError if `unroll` is
    given for bounds that are not known.

    >>> fori_loop(0, 5, lambda i, total: total + i, 0)
    Array(10, dtype=int32, weak_type=True)
    """
    check_functions("fori_loop", body_fun=body_fun)
    dtype = _bound_dtype(lower, upper)
    if _is_known(lower) and _is_known(upper):
        return _known(int(lower), int(upper), body_fun, init_val, unroll)
    if unroll not in (None, False, 1):
        raise ValueError(
            f"fori_loop: unroll needs bounds that are known while tracing; got unroll={unroll} and "
            f"{aval_of(lower)}, {aval_of(upper)}.{at_user_line()}"
        )
    return _traced(lower, upper, dtype, body_fun, init_val)


def _bound_dtype(lower: Any, upper: Any) -> np.dtype:
    """The one dtype of the bounds; that of a Python number gives way."""
    avals = [aval_of(bound) for bound in (lower, upper)]
    if any(aval.shape or not dtypes.is_integer(aval.dtype) for aval in avals):
        raise DtypeError(
            f"fori_loop: the bounds must be integer scalars; got {avals[0]} and {avals[1]}."
            f"{at_user_line()}"
        )
    strong = {aval.dtype for aval in avals if not aval.weak_type} or {avals[0].dtype}
    if len(strong) > 1:
        raise DtypeError(
            f"fori_loop: the bounds must have one dtype; got {avals[0]} and {avals[1]}."
            f"{at_user_line()} Convert one of them, as in x.astype(dtype)."
        )
    return strong.pop()


def _is_known(bound: Any) -> bool:
    return not isinstance(bound, Tracer) or bound.known is not None


def _known(lower: int, upper: int, body_fun: Any, init_val: Any, unroll: Any) -> Any:
    length = max(upper - lower, 0)
    if config.current.disable_jit and length == 0:
        return init_val
    loop = loops.Loop(
        "fori_loop",
        body_fun,
        lambda value, i: (body_fun(i, value), None),
        length,
        unroll=loops.unrolled("fori_loop", unroll or False, length),
    )
    result, _ = loops.run_scan(loop, init_val, _numbers(lower, length))
    return result


def _numbers(lower: int, length: int) -> Any:
    """lower, lower + 1, ...: weakly typed, as Python's numbers are."""
    numbers = iota(dtypes.default_dtype("int"), (length,), 0)
    numbers = add(numbers, lower) if lower else numbers
    return convert_element_type(numbers, numbers.dtype, True)


def _traced(lower: Any, upper: Any, dtype: np.dtype, body_fun: Any, init_val: Any) -> Any:
    def body(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        i, end, value = carry
        return add(i, 1), end, body_fun(i, value)

    first, end = (_of_dtype(bound, dtype) for bound in (lower, upper))
    origins = body_fun, body_fun
    functions = (lambda carry: lt(carry[0], carry[1])), body
    return loops.run_while("fori_loop", origins, functions, (first, end, init_val))[2]


def _of_dtype(bound: Any, dtype: np.dtype) -> Any:
    if isinstance(bound, Array):
        return convert_element_type(bound, dtype, bound.weak_type and bound.dtype == dtype)
    return literal(bound) if aval_of(bound).dtype == dtype else literal(bound, dtype)
