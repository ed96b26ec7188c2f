"""Maps that transpose, in blocks: values against NumPy, and which maps take blocks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube.lowering.kernels import lanes

if xcube.default_backend() != "cpu":
    pytest.skip("blocks are how a cube of one thread transposes", allow_module_level=True)

SHAPES = [(128, 128), (257, 131), (17, 1000), (1000, 17), (16, 513), (64, 4096)]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_, np.uint64]


def sample(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


def assert_equal(function: Any, *arrays: np.ndarray, in_blocks: bool = True) -> None:
    """The same values as NumPy's, made in blocks."""
    arguments = [jnp.asarray(x, x.dtype) for x in arrays]
    found = xcube.inspect(function)(*arguments)
    assert any("shared" in str(kernel.cube) for kernel in found.kernels) == in_blocks
    got = np.asarray(xcube.jit(function)(*arguments))
    np.testing.assert_array_equal(got, function(*arrays))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: Any) -> None:
    assert_equal(lambda x: x.T, sample((131, 257), dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_with_work_on_elements(shape: tuple[int, ...]) -> None:
    x, y = sample(shape), sample(shape[::-1])
    assert_equal(lambda x, y: (x.T + y) * 2 + x.T[:1], x, y)


@pytest.mark.parametrize("perm", [(0, 2, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0)])
def test_every_order_of_three(perm: tuple[int, ...]) -> None:
    assert_equal(lambda x: x.transpose(perm), sample((18, 33, 35)))


def test_two_operands_turned_and_one_reversed() -> None:
    x, y = sample((150, 90)), sample((150, 90), np.float64)
    assert_equal(lambda x, y: x.T + y.T * x.T, x, y)
    assert_equal(lambda x: x[::-1].T, x)


@pytest.mark.parametrize("columns", [160, 161])
def test_results_past_the_caches(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "STREAM_BYTES", 1)
    found = xcube.inspect(lambda x: x.T - 1)(jnp.zeros((columns, 96)))
    assert ("streaming" in str(found.kernels[0].cube)) == (columns == 160)
    assert_equal(lambda x: x.T - 1, sample((columns, 96)))


def test_an_operand_in_the_memory_of_the_result() -> None:
    x, y = sample((97, 301)), sample((301, 97))
    donated = xcube.jit(lambda x, y: x.T + y, donate_argnums=1)
    np.testing.assert_array_equal(donated(jnp.asarray(x), jnp.asarray(y)), x.T + y)


@pytest.mark.parametrize("shape", [(3, 10_000), (10_000, 3), (20, 20)])
def test_few_rows_take_none(shape: tuple[int, ...]) -> None:
    assert math.prod(shape) >= 400
    assert_equal(lambda x: x.T * 1, sample(shape), in_blocks=False)
