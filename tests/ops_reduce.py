"""Rows of the reductions and cumulative operations. Oracles compute in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from op_table import Row, Sample

from xcube.primitives import cumulative, reduce, shape

Axes = tuple[int, ...]
ALL_AXES: tuple[tuple[Axes, Axes], ...] = (  # shape, reduced axes
    ((5,), (0,)),
    ((2, 3), (0,)),
    ((2, 3), (1,)),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 4), (0, 1, 2)),
    ((1, 4), (0,)),
    ((3, 0), (1,)),
    ((3, 0), (0,)),
)


def normal(size: Axes, dtype: Any = np.float32) -> Sample:
    """One array of normal numbers."""
    return lambda rng: (rng.normal(size=size).astype(dtype),)


def with_zeros(size: Axes) -> Sample:
    """Normal numbers of which about a third are zero."""

    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        return (np.where(rng.random(size) < 0.3, 0, rng.normal(size=size)).astype(np.float32),)

    return sample


def with_ties(size: Axes, dtype: Any = np.float32) -> Sample:
    """Small whole numbers, so that many are equal."""
    return lambda rng: (rng.integers(0, 3, size).astype(dtype),)


def with_nan(size: Axes) -> Sample:
    """Normal numbers with a NaN in the second row."""

    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        x = rng.normal(size=size).astype(np.float32)
        x[1, 1:] = np.nan
        return (x,)

    return sample


def wide(x: Any) -> Any:
    """x in float64; integers and bools as they are."""
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def rows(
    name: str,
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    samples: Callable[[Axes], Sample] | None,
    cases: Sequence[tuple[Axes, Axes]] = ALL_AXES,
    **options: Any,
) -> list[Row]:
    """A row for each shape and axes."""
    return [
        Row(
            f"{name}{list(size)}{list(axes)}",
            lambda x, axes=axes: function(x, axes),
            [samples(size)],
            lambda x, axes=axes: oracle(wide(x), axes),
            **options,
        )
        for size, axes in cases
    ]


# --- Reductions ----------------------------------------------------------------------------------


def _max(x: Any, axes: Axes) -> Any:
    return np.max(x, axis=axes, initial=None if x.size else -np.inf)


def _min(x: Any, axes: Axes) -> Any:
    return np.min(x, axis=axes, initial=None if x.size else np.inf)


EXACT = {"rtol": 0, "atol": 0}
SMOOTH = {"rtol": 5e-6, "differentiable": (0,)}
SOME_AXES = (((2, 3), (1,)), ((2, 3, 4), (0, 2)))


def _product(x: Any, axes: Axes) -> Any:
    return np.prod(x, axis=axes)


def _sum(x: Any, axes: Axes) -> Any:
    return np.sum(x, axis=axes)


REDUCTION_ROWS = [
    *rows("reduce_sum", shape.reduce_sum, _sum, normal, **SMOOTH),
    *rows("reduce_prod", reduce.reduce_prod, _product, normal, **SMOOTH),
    *rows("reduce_prod with zeros", reduce.reduce_prod, _product, with_zeros, **SMOOTH),
    *rows("reduce_max", reduce.reduce_max, _max, normal, **SMOOTH),
    *rows("reduce_min", reduce.reduce_min, _min, normal, **SMOOTH),
    *rows("reduce_max with nan", reduce.reduce_max, _max, with_nan, SOME_AXES[:1]),
    *rows("reduce_min with nan", reduce.reduce_min, _min, with_nan, SOME_AXES[:1]),
]


def _low_precision_rows() -> list[Row]:
    """A sum of many small numbers is right only if it is accumulated in float32."""
    return [
        Row(
            f"reduce_sum[{np.dtype(dtype).name}, long]",
            lambda x: shape.reduce_sum(x, (0,)),
            [lambda rng, dtype=dtype: (rng.uniform(0, 1, 4096).astype(dtype),)],
            lambda x: np.sum(wide(x)),
            rtol=tolerance,
        )
        for dtype, tolerance in ((np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3))
    ] + [
        Row(
            f"reduce_prod[{np.dtype(dtype).name}, long]",
            lambda x: reduce.reduce_prod(x, (0,)),
            [lambda rng, dtype=dtype: (rng.uniform(0.97, 1.03, 256).astype(dtype),)],
            lambda x: np.prod(wide(x)),
            rtol=tolerance,
        )
        for dtype, tolerance in ((np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3))
    ]


def _integer_rows() -> list[Row]:
    found = []
    for dtype in (np.int8, np.int32, np.uint8, np.uint32):
        kind = np.dtype(dtype).name

        def sample(size: Axes, dtype: Any = dtype) -> Sample:
            info = np.iinfo(dtype)
            return lambda rng: (rng.integers(info.min, info.max, size, dtype, endpoint=True),)

        for name, function, ufunc in (
            ("reduce_max", reduce.reduce_max, np.maximum),
            ("reduce_min", reduce.reduce_min, np.minimum),
            ("reduce_and", reduce.reduce_and, np.bitwise_and),
            ("reduce_or", reduce.reduce_or, np.bitwise_or),
            ("reduce_xor", reduce.reduce_xor, np.bitwise_xor),
            ("reduce_prod", reduce.reduce_prod, np.multiply),
            ("reduce_sum", shape.reduce_sum, np.add),
        ):

            def oracle(x: Any, axes: Axes, ufunc: Any = ufunc) -> Any:
                return ufunc.reduce(x, axis=axes, dtype=x.dtype)

            found += rows(f"{name}[{kind}]", function, oracle, sample, SOME_AXES, **EXACT)
    return found


def _bool_rows() -> list[Row]:
    def sample(size: Axes) -> Sample:
        return lambda rng: (rng.random(size) < 0.5,)

    table = (
        ("reduce_and", reduce.reduce_and, np.logical_and),
        ("reduce_or", reduce.reduce_or, np.logical_or),
        ("reduce_xor", reduce.reduce_xor, np.logical_xor),
        ("reduce_max", reduce.reduce_max, np.logical_or),
        ("reduce_min", reduce.reduce_min, np.logical_and),
    )
    return [
        row
        for name, function, ufunc in table
        for row in rows(
            f"{name}[bool]",
            function,
            lambda x, axes, ufunc=ufunc: ufunc.reduce(x, axis=axes),
            sample,
        )
    ]


def _extreme(dtype: Any, side: str) -> Any:
    return getattr(np.iinfo(dtype), side)


EMPTY_ROWS = [
    Row(
        f"{name}[empty {np.dtype(dtype).name}]",
        lambda x, function=function: function(x, (1,)),
        [lambda rng, dtype=dtype: (np.zeros((2, 0, 3), dtype),)],
        lambda x, value=value: np.full((2, 3), value, x.dtype),
        **EXACT,
    )
    for name, function, dtype, value in (
        ("reduce_max", reduce.reduce_max, np.int32, _extreme(np.int32, "min")),
        ("reduce_min", reduce.reduce_min, np.uint8, _extreme(np.uint8, "max")),
        ("reduce_and", reduce.reduce_and, np.int16, -1),
        ("reduce_and", reduce.reduce_and, np.uint16, _extreme(np.uint16, "max")),
        ("reduce_or", reduce.reduce_or, np.int16, 0),
        ("reduce_prod", reduce.reduce_prod, np.int32, 1),
    )
]

# --- Positions -----------------------------------------------------------------------------------

ONE_AXIS = (((5,), (0,)), ((3, 4), (0,)), ((3, 4), (1,)), ((2, 3, 4), (1,)), ((1, 4), (0,)))


def _position_rows() -> list[Row]:
    found = []
    for name, function, plain in (
        ("argmax", reduce.argmax, np.argmax),
        ("argmin", reduce.argmin, np.argmin),
    ):

        def oracle(x: Any, axes: Axes, plain: Any = plain) -> Any:
            return plain(x, axis=axes[0])

        for kind, dtype in (("f32", np.float32), ("i32", np.int32), ("bf16", ml_dtypes.bfloat16)):

            def sample(size: Axes, dtype: Any = dtype) -> Sample:
                return with_ties(size, dtype)

            found += rows(f"{name}[{kind}]", function, oracle, sample, ONE_AXIS, **EXACT)
        found += rows(f"{name} with nan", function, oracle, with_nan, (((3, 4), (1,)),), **EXACT)
        found += [
            Row(
                f"{name}[{kind}]",
                lambda x, function=function: function(x, (0,), np.int64),
                [lambda rng, x=x: (x,)],
                lambda x, plain=plain: plain(x, axis=0),
                **EXACT,
            )
            for kind, x in (
                ("bool", np.array([False, True, False, True])),
                ("all -inf", np.full(3, -np.inf, np.float32)),
                ("all inf", np.full(3, np.inf, np.float32)),
                ("all lowest", np.full(3, np.iinfo(np.int32).min, np.int32)),
                ("all highest", np.full(3, np.iinfo(np.int32).max, np.int32)),
            )
        ]
    return found


# --- Cumulative operations -----------------------------------------------------------------------


def _logsumexp(x: Any, axis: int) -> Any:
    return np.logaddexp.accumulate(x, axis=axis)


CUMULATIVE = (
    ("cumsum", cumulative.cumsum, np.cumsum, normal),
    ("cumprod", cumulative.cumprod, np.cumprod, normal),
    ("cumprod with zeros", cumulative.cumprod, np.cumprod, with_zeros),
    ("cummax", cumulative.cummax, lambda x, axis: np.maximum.accumulate(x, axis=axis), normal),
    ("cummin", cumulative.cummin, lambda x, axis: np.minimum.accumulate(x, axis=axis), normal),
    ("cumlogsumexp", cumulative.cumlogsumexp, _logsumexp, normal),
)
CUMULATIVE_CASES = (((6,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1), ((1, 3), 0), ((0, 3), 1))


def _along(function: Callable[..., Any], axis: int, reverse: bool) -> Callable[..., Any]:
    """A NumPy accumulation, from the end if `reverse`."""

    def oracle(x: Any) -> Any:
        x = wide(x)
        if not reverse:
            return function(x, axis=axis)
        return np.flip(function(np.flip(x, axis), axis=axis), axis)

    return oracle


def _cumulative_rows() -> list[Row]:
    return [
        Row(
            f"{name}{list(size)}[{axis}{', reverse' if reverse else ''}]",
            lambda x, function=function, axis=axis, reverse=reverse: function(x, axis, reverse),
            [maker(size)],
            _along(plain, axis, reverse),
            rtol=5e-6,
            differentiable=(0,),
        )
        for name, function, plain, maker in CUMULATIVE
        for size, axis in CUMULATIVE_CASES
        for reverse in (False, True)
    ] + [
        Row(
            f"{name}[int32]",
            lambda x, function=function: function(x, 0),
            [with_ties((3, 4), np.int32)],
            lambda x, plain=plain: plain(x, axis=0),
            **EXACT,
        )
        for name, function, plain, _ in CUMULATIVE
        if name in ("cumsum", "cumprod", "cummax", "cummin")
    ]


def _recurrence(a: Any, b: Any) -> Any:
    h, before = np.zeros(b.shape), np.zeros(b.shape[1:])
    for k in range(b.shape[0]):
        before = h[k] = wide(a)[k] * before + wide(b)[k]
    return h


RECURRENCE_ROWS = [
    Row(
        f"linear_recurrence{list(size)}",
        lambda a, b: cumulative.linear_recurrence(a, b, 0),
        [lambda rng, size=size: tuple(rng.normal(size=(2, *size)).astype(np.float32))],
        _recurrence,
        rtol=5e-6,
        differentiable=(0, 1),
    )
    for size in ((1,), (5,), (4, 3), (0, 3))
] + [
    Row(
        "linear_recurrence[reverse]",
        lambda a, b: cumulative.linear_recurrence(a, b, 0, reverse=True),
        [lambda rng: tuple(rng.normal(size=(2, 5, 2)).astype(np.float32))],
        lambda a, b: _recurrence(a[::-1], b[::-1])[::-1],
        rtol=5e-6,
        differentiable=(0, 1),
    )
]

ROWS: list[Row] = [
    *REDUCTION_ROWS,
    *_low_precision_rows(),
    *_integer_rows(),
    *_bool_rows(),
    *EMPTY_ROWS,
    *_position_rows(),
    *_cumulative_rows(),
    *RECURRENCE_ROWS,
]
