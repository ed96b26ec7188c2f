"""Reductions of long rows, read in several places at a time: values against NumPy, first places,
and which programs read so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube.lowering.kernels import rows_lines

if xcube.default_backend() != "cpu":
    pytest.skip("how a cube of one thread reads its rows", allow_module_level=True)

LENGTHS = [1023, 1024, 1025, 1087, 4096, 8191, 70_001]
FUNCTIONS: list[Callable[..., Any]] = [np.sum, np.max, np.min, np.argmax, np.argmin, np.var]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
def test_every_length(length: int, dtype: Any) -> None:
    x = np.random.default_rng(length).integers(-9, 9, (3, length)).astype(dtype)
    for function in FUNCTIONS:
        for axis in (1, None):
            got = getattr(jnp, function.__name__)(jnp.asarray(x, dtype), axis)
            np.testing.assert_allclose(got, function(x, axis).astype(got.dtype), rtol=1e-5)


@pytest.mark.parametrize("first", [0, 5, 255, 256, 1024, 2047, 4099])
def test_the_first_of_equal_elements_and_of_nan(first: int) -> None:
    x = np.zeros(4100, np.float32)
    x[first:] = 1
    assert jnp.argmax(jnp.asarray(x)) == first
    assert jnp.argmin(jnp.asarray(-x)) == first
    x[first::7] = np.nan
    assert jnp.argmax(jnp.asarray(x)) == jnp.argmin(jnp.asarray(x)) == first
    assert np.isnan(jnp.max(jnp.asarray(x)))


def places(function: Any, x: Any) -> int:
    """In how many places the first kernel's innermost loop reads."""
    text = str(xcube.inspect(function)(x).kernels[0].cube)
    return text.count("load b1")


def test_only_rows_that_are_read_once_are_read_so() -> None:
    x = jnp.zeros((64, 4096))
    assert places(lambda x: x.max(1), x) == rows_lines.PLACES + 1
    assert places(lambda x: x[:, :512].max(1), x) == 1
    assert places(lambda x: x.max(0), x) == 1
    assert places(lambda x: x - x.max(1, keepdims=True), x) == 2
