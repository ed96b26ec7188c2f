"""The kernels of sort and top_k against stable sorts of NumPy and Python."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_works import Array, Compiled, equation, group, interpreted, lines

from xcube.ir import Aval
from xcube.lowering.kernels import radix, ranks, sort, top_k
from xcube.lowering.kernels.work import Work

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
REAL = (*FLOATS, *WHOLE, np.bool_)
FORMS = [((5,), 0), ((2, 70), 1), ((70, 2), 0), ((2, 7, 3), 1), ((2, 1), 1)]
WAYS = pytest.mark.parametrize("way", ["interpreted", "compiled"])


def sample(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    """Numbers with repetitions; floats with zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "c":
        return (np.round(rng.normal(size=shape)) + 1j * rng.normal(size=shape)).astype(dtype)
    if kind in "iub":
        low, high = (0, 1) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        few = rng.integers(max(low, -3), min(high, 3), shape, endpoint=True)
        wide = rng.integers(low, high, shape, np.int64 if low < 0 else np.uint64, endpoint=True)
        return np.where(rng.random(shape) < 0.5, few.astype(wide.dtype), wide).astype(dtype)
    x = rng.normal(size=shape)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], shape)
    return np.where(rng.random(shape) < 0.5, x, special).astype(dtype)


def run(works: list[Work], eqn: Any, operands: list[Array], way: str) -> list[Array]:
    if way == "interpreted":
        return interpreted(works, eqn, operands)
    return Compiled(works, eqn, eqn.outputs)(operands)


def sorted_(operands: list[Array], axis: int, way: str, num_keys: int = 1) -> list[Array]:
    avals = [Aval(x.shape, x.dtype) for x in operands]
    eqn = equation("sort", operands, avals, dimension=axis, num_keys=num_keys, is_stable=True)
    return run(sort.build(group(eqn), lines(16)), eqn, operands, way)


def comparable(x: Array) -> Array:
    """The same order in a dtype that NumPy sorts."""
    return x.astype(np.float64) if x.dtype == ml_dtypes.bfloat16 else x


def assert_same(got: Array, wanted: Array) -> None:
    """Equal, the signs of zeros included; one NaN is like another."""
    assert got.dtype == wanted.dtype
    got, wanted = comparable(got), comparable(wanted)
    np.testing.assert_array_equal(got, wanted)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))


@WAYS
@pytest.mark.parametrize("dtype", [*REAL, np.complex64])
def test_sort_orders_one_operand(dtype: Any, way: str) -> None:
    for shape, axis in FORMS:
        x = sample(shape, dtype)
        order = np.argsort(comparable(x), axis=axis, kind="stable")
        assert_same(sorted_([x], axis, way)[0], np.take_along_axis(x, order, axis))


@WAYS
@pytest.mark.parametrize("dtype", [*REAL, np.complex64])
def test_sort_carries_other_operands_and_keeps_ties(dtype: Any, way: str) -> None:
    for shape, axis in FORMS:
        x, other = sample(shape, dtype), sample(shape, np.complex64, 1)
        order = np.argsort(comparable(x), axis=axis, kind="stable")
        places = np.broadcast_to(
            np.arange(shape[axis], dtype=np.int32).reshape([-1, *[1] * (len(shape) - axis - 1)]),
            shape,
        )
        got = sorted_([x, other, np.ascontiguousarray(places)], axis, way)
        np.testing.assert_array_equal(got[2], order)
        assert_same(got[0], np.take_along_axis(x, order, axis))
        np.testing.assert_array_equal(got[1], np.take_along_axis(other, order, axis))


@WAYS
@pytest.mark.parametrize("n", [20, 300])
def test_sort_by_several_keys(n: int, way: str) -> None:
    first = np.random.default_rng(0).integers(-2, 2, n).astype(np.int8)
    second, third = np.round(sample((n,), np.float32)), sample((n,), np.bool_)
    places = np.arange(n, dtype=np.int32)
    got = sorted_([first, second, third, places], 0, way, num_keys=3)
    np.testing.assert_array_equal(got[3], np.lexsort([third, second, first]))


def test_sort_writes_only_what_is_read() -> None:
    x, places = sample((200,), np.float32), np.arange(200, dtype=np.int32)
    avals = [Aval(a.shape, a.dtype) for a in (x, places)]
    eqn = equation("sort", [x, places], avals, dimension=0, num_keys=1, is_stable=True)
    works = sort.build(group(eqn, eqn.outputs[1:]), lines(16))
    assert all(eqn.outputs[0] not in work.buffers for work in works)
    (got,) = Compiled(works, eqn, eqn.outputs[1:])([x, places])
    np.testing.assert_array_equal(got, np.argsort(x, kind="stable"))
    assert sort.build(group(eqn, ()), lines(16)) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8])
@pytest.mark.parametrize("n", [50_000, 70_001])
def test_sort_of_long_rows(n: int, dtype: Any) -> None:
    x = sample((3, n), dtype)
    order = np.argsort(x, axis=1, kind="stable")
    places = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape).copy()
    got = sorted_([x, places], 1, "compiled")
    np.testing.assert_array_equal(got[1], order)
    assert_same(sorted_([x], 1, "compiled")[0], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("dtypes", [(np.int8, np.float32), (np.uint16, np.int8, np.float64)])
def test_long_rows_by_keys_of_several_widths(dtypes: tuple[Any, ...]) -> None:
    keys = [sample((radix.LONG,), dtype, seed) for seed, dtype in enumerate(dtypes)]
    places = np.arange(radix.LONG, dtype=np.int32)
    got = sorted_([*keys, places], 0, "compiled", num_keys=len(keys))
    np.testing.assert_array_equal(got[-1], np.lexsort(keys[::-1]))


def test_one_kernel_serves_all_sizes() -> None:
    def key(shape: tuple[int, ...]) -> str:
        x = np.zeros(shape, np.float32)
        avals = [Aval(x.shape, x.dtype)] * 2
        eqn = equation("sort", [x, x], avals, dimension=1, num_keys=1, is_stable=True)
        return sort.build(group(eqn), lines())[0].key

    assert key((7, 101)) == key((30, 999))
    assert key((1, radix.LONG)) == key((3, 2 * radix.LONG)) != key((7, 101))
    assert key((7, 10)) == key((30, ranks.FEW))


# top_k ------------------------------------------------------------------------------------------


def largest(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    """By Python's sort: NaN above all, 0 above -0, the first of equal ones first."""

    def rank(number: Any) -> Any:
        if isinstance(number, float):
            return (
                number != number,
                0.0 if number != number else number,
                math.copysign(1, number),
            )
        return number

    def places(row: Array) -> Array:
        numbers = row.tolist()
        order = sorted(range(len(numbers)), key=lambda i: rank(numbers[i]), reverse=True)
        # reverse=True keeps the order of equal ones
        return np.array(order[:k], np.int32)

    wide = comparable(x)
    found = np.apply_along_axis(places, axis, wide)
    return np.take_along_axis(x, found, axis), found.astype(np.int32)


def positive_nan(x: Array) -> Array:
    """Zeros compare by sign, which a NaN's sign must not disturb."""
    return np.where(x != x, np.abs(x), x).astype(x.dtype) if x.dtype.kind not in "iub" else x


@WAYS
@pytest.mark.parametrize("dtype", REAL)
def test_top_k(dtype: Any, way: str) -> None:
    cases = [((7,), 0, 3), ((300,), 0, 5), ((2, 300), 1, 33), ((150, 2), 0, 2), ((90,), 0, 60)]
    for shape, axis, k in cases:
        x = positive_nan(sample(shape, dtype))
        wanted = largest(x, k, axis)
        avals = [Aval(y.shape, y.dtype) for y in wanted]
        eqn = equation("top_k", [x], avals, k=k, axis=axis)
        got = run(top_k.build(group(eqn), lines(16)), eqn, [x], way)
        np.testing.assert_array_equal(got[1], wanted[1])
        assert_same(got[0], wanted[0])


@pytest.mark.parametrize("k", [1, 10, 32, 33, 500])
@pytest.mark.parametrize("order", ["rising", "falling", "random", "equal"])
def test_top_k_of_long_rows(order: str, k: int) -> None:
    x = np.random.default_rng(0).normal(size=20_011).astype(np.float32)
    rising = np.sort(x)
    x = {"rising": rising, "falling": -rising, "random": x, "equal": np.zeros_like(x)}[order]
    places = np.argsort(-x, kind="stable")[:k].astype(np.int32)
    avals = [Aval((k,), x.dtype), Aval((k,), np.int32)]
    eqn = equation("top_k", [x], avals, k=k, axis=0)
    got = Compiled(top_k.build(group(eqn), lines()), eqn, eqn.outputs)([x])
    np.testing.assert_array_equal(got[1], places)
    np.testing.assert_array_equal(got[0], x[places])


def test_nan_of_either_sign_is_the_largest() -> None:
    x = np.array([np.inf, -np.nan, 1, np.nan], np.float32)
    eqn = equation("top_k", [x], [Aval((3,), x.dtype), Aval((3,), np.int32)], k=3, axis=0)
    assert interpreted(top_k.build(group(eqn), lines(16)), eqn, [x])[1].tolist() == [1, 3, 0]
