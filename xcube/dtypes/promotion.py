"""Promotion: the lattice of dtypes and Python scalars, and the least upper bound of several of its
points, which is the dtype of a result. A value is typed by a pair (dtype, weak): weak means that it
came from a Python scalar, whose width gives way to the width of what it meets."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from xcube import config, errors
from xcube.dtypes.defaults import (
    NARROWED,
    PYTHON_KIND,
    WIDE_DEFAULT,
    canonicalize_dtype,
    default_dtype,
    requested_dtype,
    scalar_dtype,
)
from xcube.dtypes.table import (
    ALL,
    BOOL,
    COMPLEXES,
    FLOATS,
    INTEGERS,
    KIND,
    NARROW_FLOATS,
    NARROW_INTEGERS,
    bfloat16,
    complex64,
    complex128,
    dtypes_of,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    unknown_dtype,
)

# A point of the lattice is a strong dtype, or int, float, complex for the weak scalars. Each point
# lists its immediate upper neighbours; the result of promotion is the least upper bound. Source:
# "Type promotion semantics" in JAX's documentation.
_STANDARD: dict[Any, tuple[Any, ...]] = {
    BOOL: (int,),
    int: (*NARROW_INTEGERS, *dtypes_of(uint8, int8)),
    np.dtype(uint8): dtypes_of(int16, uint16),
    np.dtype(uint16): dtypes_of(int32, uint32),
    np.dtype(uint32): dtypes_of(int64, uint64),
    np.dtype(uint64): (float,),
    np.dtype(int8): dtypes_of(int16),
    np.dtype(int16): dtypes_of(int32),
    np.dtype(int32): dtypes_of(int64),
    np.dtype(int64): (float,),
    float: (*NARROW_FLOATS, *dtypes_of(bfloat16, float16), complex),
    np.dtype(bfloat16): dtypes_of(float32),
    np.dtype(float16): dtypes_of(float32),
    np.dtype(float32): dtypes_of(float64, complex64),
    np.dtype(float64): dtypes_of(complex128),
    complex: dtypes_of(complex64),
    np.dtype(complex64): dtypes_of(complex128),
}
# With 32-bit defaults, uint32 and a narrower signed integer meet in int32: no operand had 64 bits.
_STANDARD_32 = _STANDARD | {np.dtype(uint32): dtypes_of(int32, uint64)}
_STRICT: dict[Any, tuple[Any, ...]] = {
    int: (float, *INTEGERS),
    float: (complex, *FLOATS),
    complex: COMPLEXES,
}


def _upper_bounds(edges: dict[Any, tuple[Any, ...]]) -> dict[Any, frozenset[Any]]:
    def above(point: Any) -> frozenset[Any]:
        return frozenset({point}).union(*(above(upper) for upper in edges.get(point, ())))

    return {point: above(point) for point in (*ALL, int, float, complex)}


_BOUNDS = {
    (True, True): _upper_bounds(_STRICT),
    (True, False): _upper_bounds(_STRICT),
    (False, True): _upper_bounds(_STANDARD),
    (False, False): _upper_bounds(_STANDARD_32),
}


def lattice_result_type(*pairs: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """The dtype and weakness of the result of an operation on values typed (dtype, weak).

    Raises TypePromotionError if the dtypes have no common type in the promotion in force.

    >>> lattice_result_type((np.dtype("float32"), True), (np.dtype("bfloat16"), False))
    (dtype(bfloat16), False)
    """
    settings = config.current
    return _result_type(pairs, settings.numpy_dtype_promotion, settings.enable_x64)


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype to which a binary operation casts both of its operands; `int`, `float` and
    `complex` stand for Python scalars, whose width gives way.

    Raises TypePromotionError if the two have no common type.

    >>> promote_types("int32", "float16"), promote_types("uint8", int)
    (dtype('float16'), dtype('uint8'))
    """
    settings = config.current
    try:
        return _promoted(a, b, settings.numpy_dtype_promotion, settings.enable_x64)
    except TypeError as error:
        if isinstance(error, errors.DtypeError):
            raise
        raise unknown_dtype((a, b), "promote_types") from error


def result_type(*operands: Any) -> np.dtype:
    """The dtype of an operation's result on arrays, NumPy values, Python scalars and dtypes.

    Raises ValueError without operands, DtypeError if one has no dtype, TypePromotionError if they
    have no common type.

    >>> result_type(np.arange(3), 1.5), result_type("int8", 3)
    (dtype('float32'), dtype('int8'))
    """
    if not operands:
        raise ValueError("result_type: at least one operand must be given; got none.")
    dtype, weak = lattice_result_type(*map(typed, operands))
    return default_dtype(KIND[dtype]) if weak else dtype


def typed(operand: Any) -> tuple[np.dtype, bool]:
    """The pair (dtype, weak) of an array, NumPy value, Python scalar or dtype.

    Raises DtypeError if the operand has no dtype.

    >>> typed(2.0), typed(np.float64(2.0)), typed("int64")
    ((dtype('float32'), True), (dtype('float32'), False), (dtype('int64'), False))
    """
    if type(operand) in PYTHON_KIND:
        return scalar_dtype(operand), type(operand) is not bool
    if isinstance(operand, (np.ndarray, np.generic)):
        return canonicalize_dtype(operand.dtype), False
    if isinstance(operand, (int, float, complex)):
        return scalar_dtype(operand), True
    if operand is None:
        return default_dtype("float"), False
    if isinstance(operand, np.dtype | str | type):
        return requested_dtype(operand, "result_type"), _is_weak_type(operand)
    dtype = getattr(operand, "dtype", None)
    if not isinstance(dtype, np.dtype):
        raise errors.DtypeError(
            "result_type: operands must be arrays, scalars or dtypes; "
            f"got {type(operand).__name__}."
        )
    return dtype, getattr(operand, "weak_type", False)


@functools.lru_cache(maxsize=4096)
def _result_type(
    pairs: tuple[tuple[np.dtype, bool], ...], promotion: str, x64: bool
) -> tuple[np.dtype, bool]:
    found = {dtype for dtype, _ in pairs}
    weak = all(weak for _, weak in pairs)
    if len(found) == 1:
        return pairs[0][0], weak and pairs[0][0] != BOOL
    if weak and promotion != "strict":
        dtype = _least_upper_bound(tuple(found), promotion, x64)
        return _concrete(dtype, x64), dtype != BOOL
    points = tuple(_point(dtype, weak) for dtype, weak in pairs)
    bound = _least_upper_bound(points, promotion, x64)
    return _concrete(bound, x64), bound in PYTHON_KIND


@functools.lru_cache(maxsize=4096)
def _promoted(a: Any, b: Any, promotion: str, x64: bool) -> np.dtype:
    points = tuple(
        dtype if _is_weak_type(dtype) else requested_dtype(dtype, "promote_types")
        for dtype in (a, b)
    )
    return _concrete(_least_upper_bound(points, promotion, x64), x64)


def _is_weak_type(dtype: Any) -> bool:
    # By identity: NumPy says that dtype("int64") == int.
    return dtype is int or dtype is float or dtype is complex


def _point(dtype: np.dtype, weak: bool) -> Any:
    return _WEAK_POINTS.get(KIND.get(dtype, ""), dtype) if weak else dtype


_WEAK_POINTS = {"int": int, "uint": int, "float": float, "complex": complex}


def _concrete(point: Any, x64: bool) -> np.dtype:
    if isinstance(point, np.dtype):
        return point
    wide = WIDE_DEFAULT[PYTHON_KIND[point]]
    return wide if x64 else NARROWED[wide]


def _least_upper_bound(points: tuple[Any, ...], promotion: str, x64: bool) -> Any:
    bounds = _BOUNDS[promotion == "strict", x64]
    if any(point not in bounds for point in points):
        unknown = next(point for point in points if point not in bounds)
        raise unknown_dtype(unknown, "promotion")
    common = frozenset.intersection(*(bounds[point] for point in points))
    for point in common:
        if common <= bounds[point]:
            return point
    raise errors.TypePromotionError(_no_common_type(points, promotion))


def _no_common_type(points: tuple[Any, ...], promotion: str) -> str:
    names = ", ".join(_spelled(points))
    reason = "these have none"
    if promotion == "strict":
        reason = "numpy_dtype_promotion='strict' allows none that is implicit"
    elif any(point in NARROW_FLOATS for point in points):
        reason = "floats of 8 bits and fewer are never promoted implicitly"
    elif any(point in NARROW_INTEGERS for point in points):
        reason = "integers of 4 bits and fewer are never promoted implicitly"
    return (
        f"promotion: operands must have a common dtype, but {reason}; got {names}. "
        "Cast one of them, as in x.astype('float32')."
    )


def _spelled(points: Iterable[Any]) -> list[str]:
    return [
        point.name if isinstance(point, np.dtype) else f"Python {point.__name__}"
        for point in points
    ]
