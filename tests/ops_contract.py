"""Rows of dot_general in every layout of batch, contracting and kept dimensions. The oracle is
NumPy's einsum in float64."""

from __future__ import annotations

import string
from typing import Any

import ml_dtypes
import numpy as np
from op_table import Row, Sample

from xcube.primitives import contract

Shape = tuple[int, ...]
bfloat16 = ml_dtypes.bfloat16

LAYOUTS: tuple[tuple[Shape, Shape, Any], ...] = (
    ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((2, 3), (4, 3), (((1,), (1,)), ((), ()))),
    ((3, 2), (3, 4), (((0,), (0,)), ((), ()))),
    ((3, 2), (4, 3), (((0,), (1,)), ((), ()))),
    ((17, 40), (40, 33), (((1,), (0,)), ((), ()))),
    ((3,), (3,), (((0,), (0,)), ((), ()))),
    ((4, 3), (3,), (((1,), (0,)), ((), ()))),
    ((3,), (3, 4), (((0,), (0,)), ((), ()))),
    ((2,), (3,), (((), ()), ((), ()))),
    ((), (), (((), ()), ((), ()))),
    ((2,), (), (((), ()), ((), ()))),
    ((5, 2, 3), (5, 3, 4), (((2,), (1,)), ((0,), (0,)))),
    ((2, 5, 3), (3, 4, 5), (((2,), (0,)), ((1,), (2,)))),
    ((2, 3, 5, 6), (6, 4, 3, 2), (((3, 1), (0, 2)), ((0,), (3,)))),
    ((2, 3, 5, 6), (6, 4, 3, 2), (((1, 3), (2, 0)), ((0,), (3,)))),
    ((2, 3, 4, 5), (3, 2, 6, 5), (((3,), (3,)), ((0, 1), (1, 0)))),
    ((2, 3), (2, 3), (((0, 1), (0, 1)), ((), ()))),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1)))),
    ((2, 3), (3, 2), (((), ()), ((1, 0), (0, 1)))),
    ((2, 3), (2, 4), (((), ()), ((0,), (0,)))),
    ((1, 3, 1), (3,), (((1,), (0,)), ((), ()))),
    ((2, 0), (0, 4), (((1,), (0,)), ((), ()))),
    ((0, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((0, 2, 3), (0, 3, 4), (((2,), (1,)), ((0,), (0,)))),
)
# lhs, rhs, preferred, result
TYPES: tuple[tuple[Any, Any, Any, Any], ...] = (
    (np.int8, np.int8, None, np.int8),
    (np.int8, np.int8, np.int32, np.int32),
    (np.uint8, np.uint8, None, np.uint8),
    (np.int32, np.int32, None, np.int32),
    (np.uint32, np.uint32, None, np.uint32),
    (np.float16, np.float16, None, np.float16),
    (bfloat16, bfloat16, None, bfloat16),
    (bfloat16, bfloat16, np.float32, np.float32),
    (np.float32, bfloat16, None, np.float32),
    (np.float32, np.int8, None, np.float32),
    (np.float32, np.float32, np.float64, np.float64),
    (np.float64, np.float64, None, np.float64),
    (np.complex64, np.complex64, None, np.complex64),
    (np.complex64, np.float32, None, np.complex64),
)


def einsum(x: Any, y: Any, numbers: Any) -> Any:
    """dot_general by letters: one per dimension, the same one for dimensions that go together."""
    (x_sum, y_sum), (x_batch, y_batch) = numbers
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(x.ndim)]
    right = [next(letters) for _ in range(y.ndim)]
    for a, b in zip((*x_sum, *x_batch), (*y_sum, *y_batch), strict=True):
        right[b] = left[a]
    batch = [left[d] for d in x_batch]
    kept = [c for d, c in enumerate(left) if d not in (*x_sum, *x_batch)]
    kept += [c for d, c in enumerate(right) if d not in (*y_sum, *y_batch)]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join((*batch, *kept))}", x, y)


def wide(x: np.ndarray) -> np.ndarray:
    """x where NumPy sums without loss: double width, or all of an integer's bits."""
    if x.dtype.kind in "iu":
        return x.astype(np.int64)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def sample(left: Shape, right: Shape, left_type: Any, right_type: Any) -> Sample:
    """Two arrays; whole numbers stay small enough for every dtype."""

    def make(rng: np.random.Generator, shape: Shape, dtype: Any) -> np.ndarray:
        kind = np.dtype(dtype).kind
        if kind in "iu":
            return np.asarray(rng.integers(0, 5, shape)).astype(dtype)
        x = np.asarray(rng.normal(size=shape))
        return (x + 1j * rng.normal(size=shape)).astype(dtype) if kind == "c" else x.astype(dtype)

    return lambda rng: (make(rng, left, left_type), make(rng, right, right_type))


def layout_rows() -> list[Row]:
    return [
        Row(
            f"dot_general{left}{right}{numbers}",
            lambda x, y, numbers=numbers: contract.dot_general(x, y, numbers),
            [sample(left, right, np.float32, np.float32)],
            lambda x, y, numbers=numbers: einsum(wide(x), wide(y), numbers),
            differentiable=(0, 1),
        )
        for left, right, numbers in LAYOUTS
    ]


def _tolerance(dtype: Any) -> float:
    return {np.float16: 2e-3, bfloat16: 1e-2}.get(dtype, 2e-6)


def type_rows() -> list[Row]:
    numbers = (((1,), (0,)), ((), ()))
    return [
        Row(
            f"dot_general {np.dtype(left)} {np.dtype(right)} {np.dtype(result)}",
            lambda x, y, preferred=preferred: contract.dot_general(
                x, y, numbers, preferred_element_type=preferred
            ),
            [sample((3, 20), (20, 4), left, right)],
            lambda x, y, result=result: einsum(wide(x), wide(y), numbers).astype(
                result if np.dtype(result).kind in "iu" else wide(np.zeros(1, result)).dtype
            ),
            rtol=_tolerance(result),
            differentiable=(0, 1) if np.dtype(left).kind == np.dtype(right).kind == "c" else (),
        )
        for left, right, preferred, result in TYPES
    ]


def bool_row() -> Row:
    numbers = (((1,), (0,)), ((), ()))
    return Row(
        "dot_general bool",
        lambda x, y: contract.dot_general(x, y, numbers),
        [lambda rng: (rng.random((3, 5)) < 0.4, rng.random((5, 4)) < 0.4)],
        lambda x, y: x @ y,
    )


ROWS = [*layout_rows(), *type_rows(), bool_row()]
