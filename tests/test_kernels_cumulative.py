"""The kernels of cumulative operations against NumPy's ufunc.accumulate in double precision."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_works import Array, Compiled, equation, group, interpreted, lines

from xcube.ir import Aval
from xcube.lowering.kernels import cumulative

ACCUMULATE: dict[str, np.ufunc] = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}
NUMBERS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32)
DTYPES = {name: NUMBERS for name in ("cummax", "cummin")}
DTYPES |= {name: (*NUMBERS, np.complex64, np.complex128) for name in ("cumsum", "cumprod")}
DTYPES |= {"cumlogsumexp": NUMBERS[:4]}
CASES = [(name, dtype) for name, dtypes in DTYPES.items() for dtype in dtypes]
SHAPES = [((5,), 0), ((1,), 0), ((3, 21), 1), ((21, 3), 0), ((2, 7, 19), 1), ((4, 1, 3), 1)]
REVERSE = pytest.mark.parametrize("reverse", [False, True])


def sample(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 2
    if np.dtype(dtype).kind == "c":
        return (x + 1j * rng.normal(size=shape)).astype(dtype)
    return (np.abs(x) if np.dtype(dtype).kind == "u" else x).astype(dtype)


def expected(name: str, x: Array, axis: int, reverse: bool) -> Array:
    kind = x.dtype.kind
    dtype = x.dtype if kind in "iu" else np.complex128 if kind == "c" else np.float64
    wide = np.flip(x, axis) if reverse else x
    result = ACCUMULATE[name].accumulate(wide.astype(dtype), axis=axis, dtype=dtype)
    return np.flip(result, axis) if reverse else result


def run(name: str, x: Array, axis: int, reverse: bool, way: str, vector_bytes: int = 16) -> Array:
    eqn = equation(name, [x], [Aval(x.shape, x.dtype)], axis=axis, reverse=reverse)
    works = cumulative.build(group(eqn), lines(vector_bytes))
    if way == "interpreted":
        return interpreted(works, eqn, [x])[0]
    return Compiled(works, eqn, eqn.outputs)([x])[0]


def tolerance(dtype: np.dtype) -> float:
    if dtype.kind in "iu":
        return 0.0
    return (
        1e-11 if dtype in (np.float64, np.complex128) else max(1e-5, 2.0 ** (-3 * dtype.itemsize))
    )


def compare(got: Array, wanted: Array) -> None:
    scale = tolerance(got.dtype)
    with np.errstate(over="ignore"):
        wanted = wanted.astype(got.dtype).astype(wanted.dtype)
    np.testing.assert_allclose(got.astype(wanted.dtype), wanted, rtol=scale, atol=scale)


@REVERSE
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_results_are_those_of_numpy(name: str, dtype: Any, reverse: bool) -> None:
    for shape, axis in SHAPES:
        x = sample(shape, dtype)
        compare(run(name, x, axis, reverse, "interpreted"), expected(name, x, axis, reverse))


@REVERSE
@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize("name", ACCUMULATE)
def test_compiled_kernels_agree(name: str, vector_bytes: int, reverse: bool) -> None:
    for shape, axis in [((3, 100), 1), ((9, 130), 0), ((64, 64), 1), ((2, 5, 64), 1)]:
        x = sample(shape, np.float32)
        got = run(name, x, axis, reverse, "compiled", vector_bytes)
        np.testing.assert_allclose(got, expected(name, x, axis, reverse), rtol=2e-5, atol=2e-5)


@REVERSE
@pytest.mark.parametrize("name", ["cumsum", "cummax", "cumlogsumexp"])
def test_long_axes_are_cut_into_chunks(name: str, reverse: bool) -> None:
    for shape, axis in [((70_001,), 0), ((2, 66_000), 1), ((30_001, 3), 0), ((1, 9_001, 33), 1)]:
        x = sample(shape, np.float32)
        eqn = equation(name, [x], [Aval(x.shape, x.dtype)], axis=axis, reverse=reverse)
        works = cumulative.build(group(eqn), lines())
        assert len(works) == 3
        got = Compiled(works, eqn, eqn.outputs)([x])[0]
        np.testing.assert_allclose(got, expected(name, x, axis, reverse), rtol=1e-4, atol=1e-3)


@REVERSE
@pytest.mark.parametrize(("name", "dtype"), [("cumprod", np.complex64), ("cumsum", np.uint8)])
@pytest.mark.parametrize(("shape", "axis"), [((45,), 0), ((2, 45), 1), ((13, 3), 0)])
def test_chunks_touch_only_what_is_theirs(
    name: str, dtype: Any, shape: Any, axis: int, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cumulative, "LONG", 1)
    monkeypatch.setattr(cumulative, "CHUNK", 8)
    x = sample(shape, dtype)
    compare(run(name, x, axis, reverse, "interpreted"), expected(name, x, axis, reverse))


@pytest.mark.parametrize(("name", "axis"), list(itertools.product(ACCUMULATE, (0, 1))))
def test_nan_and_infinities_stay(name: str, axis: int) -> None:
    x = np.array([[-np.inf, -np.inf, 1, np.inf, 2, np.inf], [0, 1, np.nan, 2, 3, -np.inf]])
    for way in ("interpreted", "compiled"):
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(
                run(name, x, axis, False, way), expected(name, x, axis, False)
            )


def test_logarithms_far_apart_are_not_lost() -> None:
    x = np.array([-300.0, 0.0, -500.0, 90.0, 90.0], np.float32)
    wanted = [-300, 0, 0, 90, 90 + np.log(2)]
    np.testing.assert_allclose(run("cumlogsumexp", x, 0, False, "interpreted"), wanted, rtol=1e-6)


def test_narrow_floats_are_summed_in_single_precision() -> None:
    x = np.full(3000, 1, ml_dtypes.bfloat16)
    got = run("cumsum", x, 0, False, "compiled").astype(np.float32)
    assert got[-1] == np.float32(ml_dtypes.bfloat16(3000))


def test_one_kernel_serves_all_sizes() -> None:
    def key(shape: tuple[int, ...]) -> str:
        x = np.zeros(shape, np.float32)
        eqn = equation("cumsum", [x], [Aval(x.shape, x.dtype)], axis=1, reverse=False)
        return cumulative.build(group(eqn), lines())[0].key

    assert key((7, 101)) == key((30, 999)) == key((1, 77))


def test_nothing_is_launched_for_no_elements() -> None:
    x = np.zeros((0, 3), np.float32)
    eqn = equation("cumsum", [x], [Aval(x.shape, x.dtype)], axis=0, reverse=False)
    assert cumulative.build(group(eqn), lines()) == []
