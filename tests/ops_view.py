"""Rows of the views: slice, pad, concatenate, rev, transpose, iota, squeeze, expand_dims, split,
tile. Oracles are NumPy's own indexing and joining."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from op_table import Row, Sample

from xcube.primitives import shape as shape_of
from xcube.primitives import view

Shape = tuple[int, ...]
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint32, np.bool_, np.complex64)


def array(rng: np.random.Generator, shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """Random elements that every dtype can hold."""
    numbers = rng.normal(size=shape) if dtype == np.float32 else rng.integers(0, 100, shape)
    return np.asarray(numbers).astype(dtype)


def arrays(*shapes: Shape, dtype: Any = np.float32) -> Sample:
    """A maker of arrays of these shapes."""
    return lambda rng: tuple(array(rng, shape, dtype) for shape in shapes)


def of_dtypes(*shapes: Shape) -> list[Sample]:
    """Makers of arrays of these shapes, one per dtype."""
    return [arrays(*shapes, dtype=dtype) for dtype in DTYPES]


# slice ----------------------------------------------------------------------------------------

SLICES: tuple[tuple[Shape, Shape, Shape, Shape | None], ...] = (
    ((5,), (1,), (4,), None),
    ((5,), (0,), (5,), (2,)),
    ((9,), (1,), (8,), (4,)),
    ((3, 4), (1, 0), (3, 4), (1, 3)),
    ((3, 4), (0, 2), (3, 2), (1, 2)),
    ((2, 0), (0, 0), (1, 0), None),
    ((2, 3, 40), (1, 0, 3), (2, 3, 37), (1, 2, 1)),
    ((), (), (), None),
)


def _sliced(x: Any, starts: Shape, limits: Shape, strides: Shape | None) -> np.ndarray:
    steps = strides or (1,) * len(starts)
    bounds = zip(starts, limits, steps, strict=True)
    return x[tuple(builtins.slice(*bound) for bound in bounds)]


def slice_rows() -> list[Row]:
    return [
        Row(
            f"slice{shape}{bounds}",
            lambda x, bounds=bounds: view.slice(x, *bounds),
            of_dtypes(shape),
            lambda x, bounds=bounds: _sliced(x, *bounds),
            differentiable=(0,),
        )
        for shape, *bounds in SLICES
    ] + [
        Row(
            "slice_in_dim",
            lambda x: view.slice_in_dim(x, -3, None, 2, axis=-1),
            of_dtypes((2, 5)),
            lambda x: x[:, -3::2],
            differentiable=(0,),
        )
    ]


# pad ------------------------------------------------------------------------------------------

PADDINGS: tuple[tuple[Shape, view.Padding], ...] = (
    ((4,), ((1, 2, 0),)),
    ((4,), ((-1, -2, 0),)),
    ((4,), ((0, 0, 2),)),
    ((4,), ((-2, 3, 1),)),
    ((4,), ((6, -5, 0),)),
    ((1,), ((0, 0, 3),)),
    ((3, 4), ((1, 1, 2), (-1, -1, 1))),
    ((3, 4), ((0, 0, 0), (0, -2, 0))),
    ((0, 3), ((1, 2, 1), (0, 1, 0))),
    ((3, 0), ((-1, 0, 0), (0, 0, 0))),
    ((2, 33), ((0, 1, 0), (5, 0, 0))),
    ((), ()),
)


def _padded(x: np.ndarray, value: Any, config: view.Padding) -> np.ndarray:
    """One dimension after the other, by placing and cutting."""
    for axis, (low, high, interior) in enumerate(config):
        moved = np.moveaxis(x, axis, 0)
        count = len(moved)
        spread = count + max(count - 1, 0) * interior
        room = np.full((spread + max(low, 0) + max(high, 0), *moved.shape[1:]), value, x.dtype)
        room[max(low, 0) : max(low, 0) + spread : interior + 1] = moved
        x = np.moveaxis(room[max(-low, 0) : len(room) - max(-high, 0)], 0, axis)
    return x


def pad_rows() -> list[Row]:
    return [
        Row(
            f"pad{shape}{config}",
            lambda x, value, config=config: view.pad(x, value, config),
            of_dtypes(shape, ()),
            lambda x, value, config=config: _padded(x, value, config),
            differentiable=(0, 1),
        )
        for shape, config in PADDINGS
    ]


# concatenate ----------------------------------------------------------------------------------

JOINS: tuple[tuple[int, Sequence[Shape]], ...] = (
    (0, ((3,),)),
    (0, ((3,), (2,))),
    (1, ((2, 3), (2, 1), (2, 4))),
    (0, ((2, 3), (1, 3))),
    (1, ((2, 0), (2, 3), (2, 0))),
    (0, ((0, 2), (0, 2))),
    (1, ((2, 17, 3), (2, 16, 3))),
    (0, ((2,),) * 9),
)


def concatenate_rows() -> list[Row]:
    return [
        Row(
            f"concatenate{axis}{list(shapes)}",
            lambda *xs, axis=axis: view.concatenate(xs, axis),
            of_dtypes(*shapes),
            lambda *xs, axis=axis: np.concatenate(xs, axis),
            differentiable=tuple(range(len(shapes))),
        )
        for axis, shapes in JOINS
    ] + [
        Row(
            f"split{sizes}",
            lambda x, sizes=sizes: view.split(x, sizes, 1),
            of_dtypes((2, 5)),
            lambda x, sizes=sizes: np.split(x, np.cumsum(sizes)[:-1], 1),
            differentiable=(0,),
        )
        for sizes in ((5,), (1, 4), (2, 0, 3))
    ]


# rev, transpose, iota, squeeze, expand_dims, tile ---------------------------------------------


def other_rows() -> list[Row]:
    reversals = [((5,), (0,)), ((2, 3), (1,)), ((2, 3, 40), (0, 2)), ((0, 2), (0, 1)), ((2,), ())]
    rows = [
        Row(
            f"rev{shape}{axes}",
            lambda x, axes=axes: view.rev(x, axes),
            of_dtypes(shape),
            lambda x, axes=axes: np.flip(x, axes),
            differentiable=(0,),
        )
        for shape, axes in reversals
    ]
    orders = [((), ()), ((3,), (0,)), ((2, 3), (1, 0)), ((2, 3, 40), (2, 0, 1)), ((0, 2), (1, 0))]
    rows += [
        Row(
            f"transpose{shape}{order}",
            lambda x, order=order: shape_of.transpose(x, order),
            of_dtypes(shape),
            lambda x, order=order: np.transpose(x, order),
            differentiable=(0,),
        )
        for shape, order in orders
    ]
    counted = ("int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "complex64")
    for dtype in counted:
        for shape, axis in (((7,), 0), ((2, 3), 0), ((2, 3), 1), ((0, 2), 0), ((3, 100), 1)):
            rows.append(
                Row(
                    f"iota{dtype}{shape}{axis}",
                    lambda d=dtype, s=shape, a=axis: view.iota(d, s, a),
                    [lambda rng: ()],
                    lambda d=dtype, s=shape, a=axis: np.indices(s)[a].astype(d),
                    batchable=False,
                )
            )
    for shape, axes in (((1, 3, 1), (0, -1)), ((1,), (0,)), ((1, 2, 1), (2,)), ((0, 1), (1,))):
        rows.append(
            Row(
                f"squeeze{shape}{axes}",
                lambda x, axes=axes: view.squeeze(x, axes),
                of_dtypes(shape),
                lambda x, axes=axes: np.squeeze(x, axes),
                differentiable=(0,),
            )
        )
    for shape, axes in (((), (0,)), ((3,), (0, -1)), ((2, 3), (1,)), ((0,), (0, 1, 2))):
        rows.append(
            Row(
                f"expand_dims{shape}{axes}",
                lambda x, axes=axes: view.expand_dims(x, axes),
                of_dtypes(shape),
                lambda x, axes=axes: np.expand_dims(x, axes),
                differentiable=(0,),
            )
        )
    for shape, reps in (((2, 3), (2, 3)), ((3,), (0,)), ((2, 0), (2, 2)), ((), ()), ((3,), (20,))):
        rows.append(
            Row(
                f"tile{shape}{reps}",
                lambda x, reps=reps: view.tile(x, reps),
                of_dtypes(shape),
                lambda x, reps=reps: np.tile(x, reps),
                differentiable=(0,),
            )
        )
    return rows


ROWS = [*slice_rows(), *pad_rows(), *concatenate_rows(), *other_rows()]
