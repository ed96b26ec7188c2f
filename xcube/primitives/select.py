"""Comparison and choice, element by element: eq ... ge, select_n, clamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Literal, Primitive, at_user_line
from xcube.primitives.bits import bitwise_and
from xcube.primitives.kinds import (
    FLOAT,
    REAL,
    add_tangents,
    common_shape,
    compare,
    is_linear,
    unary,
)
from xcube.primitives.lowered import Element
from xcube.primitives.shape import batch_all, batch_front, broadcast_in_dim, full
from xcube.trace import aval_of, bind, literal

# comparison -----------------------------------------------------------------------------------

eq = compare("eq", doc="x == y: d[*s], d[*s] -> bool[*s]; NaN equals nothing.")
ne = compare("ne", doc="x != y: d[*s], d[*s] -> bool[*s]; NaN differs from everything.")
lt = compare("lt", accepts=REAL, doc="x < y: d[*s], d[*s] -> bool[*s].")
le = compare("le", accepts=REAL, doc="x <= y: d[*s], d[*s] -> bool[*s].")
gt = compare("gt", accepts=REAL, doc="x > y: d[*s], d[*s] -> bool[*s].")
ge = compare("ge", accepts=REAL, doc="x >= y: d[*s], d[*s] -> bool[*s].")
is_finite = unary(
    "is_finite",
    accepts=FLOAT,
    result=lambda dtype: np.dtype(np.bool_),
    doc="Whether x is neither infinite nor NaN: f[*s] -> bool[*s].",
)

# select ---------------------------------------------------------------------------------------


def _select_abstract(which: Aval, *cases: Aval) -> Aval:
    allowed = dtypes.is_bool(which.dtype) or which.dtype == np.int32
    if not cases or not allowed or (dtypes.is_bool(which.dtype) and len(cases) > 2):
        raise DtypeError(
            "select_n: the selector must be int32, or bool for at most two cases; got "
            f"{which} for {len(cases)} cases.{at_user_line()}"
        )
    if len({case.dtype for case in cases}) > 1:
        raise DtypeError(
            f"select_n: the cases must have one dtype; got {', '.join(map(str, cases))}."
            f"{at_user_line()}"
        )
    shape = common_shape("select_n", cases)
    if which.shape and shape and which.shape != shape:
        raise ShapeError(
            f"select_n: the selector must be a scalar or have the shape {shape} of the cases; got "
            f"{which}.{at_user_line()}"
        )
    weak = all(case.weak_type for case in cases)
    dtype = next(case.dtype for case in cases)
    return Aval(shape or which.shape, dtype, weak)


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = select_n(*primals)
    if all(tangent is None for tangent in tangents[1:]):
        return out, None
    zero = literal(0, out.dtype)
    return out, select_n(primals[0], *[zero if dx is None else dx for dx in tangents[1:]])


def _select_transpose(ct: Any, which: Any, *cases: Any) -> list[Any]:
    zero = literal(0, ct.dtype)

    def part(k: int) -> Any:
        return select_n(which, *[ct if k == i else zero for i in range(len(cases))])

    return [
        None,
        *[part(k) if is_linear(case) else None for k, case in enumerate(cases)],
    ]


def _select_batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, bool]:
    which, *cases = args
    front = batch_all(axis, cases, batched[1:])
    if batched[0]:
        shape = common_shape("select_n", [aval_of(case) for case in front])
        if which.ndim < len(shape):
            which = broadcast_in_dim(which, shape, (0,))
    elif aval_of(which).shape:
        which = batch_front(which, axis.size)
    return select_n(which, *front), True


def _select_element(e: Any, index: Any) -> Any:
    which, *cases = [e.read(k, index) for k in range(len(e.inputs))]
    if dtypes.is_bool(e.inputs[0].dtype):
        return e.apply("select", which, cases[-1], cases[0])
    chosen = cases[-1]
    for k in reversed(range(len(cases) - 1)):
        here = e.apply("le", which, e.constant(k, np.int32))
        chosen = e.apply("select", here, cases[k], chosen)
    return chosen


select_n_p = Primitive(
    "select_n",
    abstract=_select_abstract,
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=_select_batch,
    lower=Element(_select_element),
)


def select_n(which: Any, *cases: Any) -> Any:
    """cases[which], element by element: bool[*s] or int32[*s] or a scalar of these, d[*s]... ->
    d[*s]. False chooses the first of two cases; an int outside of the cases is clamped to them.

    Raises DtypeError if the selector is neither bool nor int32 or the dtypes of the cases differ,
    ShapeError if the shapes do not fit.

    >>> select_n(np.True_, np.float32(1), np.float32(2)).dtype
    dtype('float32')
    """
    cases, shape = tuple(_alike(cases)), aval_of(which).shape
    if shape and not any(aval_of(case).shape for case in cases):
        cases = tuple(full(shape, case) if isinstance(case, Array) else case for case in cases)
    return bind(select_n_p, which, *cases)


def _alike(operands: Sequence[Any]) -> list[Any]:
    """Operands of one operation: Python numbers take the dtype of the first array, scalar arrays
    the shape of the first array that is none."""
    arrays = [x for x in operands if isinstance(x, Array)]
    typed = next(iter(arrays), next((x for x in operands if isinstance(x, Literal)), None))
    shape = next((x.shape for x in arrays if x.ndim), ())

    def fit(x: Any) -> Any:
        if isinstance(x, Array):
            return x if x.ndim or not shape else full(shape, x)
        if isinstance(x, Literal | np.generic | np.ndarray) or typed is None:
            return x if isinstance(x, Literal) else literal(x)
        return literal(x, typed.aval.dtype)

    return [fit(x) for x in operands]


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """on_true where pred, else on_false: bool[*s], d[*s], d[*s] -> d[*s]."""
    return select_n(pred, on_false, on_true)


# clamp ----------------------------------------------------------------------------------------


def extremum_of(e: Any, name: str, dtype: np.dtype, x: Any, y: Any) -> Any:
    """The scalar max or min; complex numbers are ordered by real, then by imaginary part."""
    if dtypes.is_bool(dtype):
        return e.apply("or" if name == "max" else "and", x, y)
    if not dtypes.is_complex(dtype):
        return e.apply(name, x, y)
    beats = "gt" if name == "max" else "lt"
    (a, b), (c, d) = [(e.apply("real", z), e.apply("imag", z)) for z in (x, y)]
    first = e.apply("select", e.apply("eq", a, c), e.apply(beats, b, d), e.apply(beats, a, c))
    return e.apply("select", first, x, y)


def _clamp_abstract(low: Aval, x: Aval, high: Aval) -> Aval:
    operands = f"{low}, {x}, {high}"
    if not low.dtype == x.dtype == high.dtype:
        raise DtypeError(
            f"clamp: min, x and max must have one dtype; got {operands}.{at_user_line()}"
        )
    if any(bound.shape and bound.shape != x.shape for bound in (low, high)):
        raise ShapeError(
            f"clamp: min and max must be scalars or have the shape of x; got {operands}."
            f"{at_user_line()}"
        )
    return Aval(x.shape, x.dtype, low.weak_type and x.weak_type and high.weak_type)


def _clamp_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    low, x, high = primals
    z = clamp(low, x, high)
    tests = (
        lambda: bitwise_and(gt(low, x), lt(low, high)),
        lambda: bitwise_and(gt(x, low), lt(x, high)),
        lambda: lt(high, x),
    )
    terms = [
        select(test(), dx, literal(0, z.dtype))
        for test, dx in zip(tests, tangents, strict=True)
        if dx is not None
    ]
    return z, add_tangents(terms, z)


def _clamp_batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, bool]:
    x = args[1] if batched[1] else batch_front(args[1], axis.size)
    shape = aval_of(x).shape

    def bound(value: Any, flag: bool) -> Any:
        if not flag:
            return batch_front(value, axis.size) if aval_of(value).shape else value
        return value if value.shape == shape else broadcast_in_dim(value, shape, (0,))

    return clamp(bound(args[0], batched[0]), x, bound(args[2], batched[2])), True


def _clamp_element(e: Any, index: Any) -> Any:
    low, x, high = (e.read(k, index) for k in range(3))
    dtype = e.inputs[0].dtype
    return extremum_of(e, "min", dtype, extremum_of(e, "max", dtype, x, low), high)


clamp_p = Primitive(
    "clamp",
    abstract=_clamp_abstract,
    jvp=_clamp_jvp,
    batch=_clamp_batch,
    lower=Element(_clamp_element),
)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """x, but at least min and at most max: d[] or d[*s], d[*s], d[] or d[*s] -> d[*s]. Where a
    bound is reached exactly the tangent of x is zero.

    Raises DtypeError if the dtypes differ, ShapeError if a bound is neither a scalar nor of x's
    shape.

    >>> clamp(0, np.float32(2), 1).dtype
    dtype('float32')
    """
    dtype = aval_of(x).dtype

    def fit(bound: Any) -> Any:
        plain = not isinstance(bound, Array | Literal | np.generic | np.ndarray)
        return literal(bound, dtype) if plain else bound

    return bind(clamp_p, fit(min), x, fit(max))
