"""Sorts and selections by cubes of many units, in the interpreter, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from run_program import run

import xcube
import xcube.numpy as jnp
from xcube import lax

RANDOM = np.random.default_rng(11)
FLOATS = RANDOM.standard_normal((3, 150)).astype(np.float32)
FLOATS[0, 7], FLOATS[1, 3], FLOATS[2, :2] = np.nan, -np.inf, (0.0, -0.0)
SAMPLES = {
    "floats": FLOATS,
    "ties": RANDOM.integers(0, 5, (2, 130)).astype(np.int32),
    "bytes": RANDOM.integers(-128, 128, (4, 33)).astype(np.int8),
    "unsigned": RANDOM.integers(0, 1 << 62, (1, 97)).astype(np.uint64),
    "one": np.ones((3, 1), np.float32),
}


def results(function: Any, *args: np.ndarray, units: int) -> list[np.ndarray]:
    jaxpr = xcube.make_jaxpr(function)(*args)
    inputs = [np.asarray(x) for x in (*jaxpr.consts, *args)]
    return run(jaxpr.closed(), inputs, vector_bits=128, units=units, cores=4)


@pytest.mark.parametrize("units", [8, 32])
@pytest.mark.parametrize("name", SAMPLES)
def test_rows_are_sorted(name: str, units: int) -> None:
    with xcube.enable_x64(True):
        x = SAMPLES[name]
        (found,) = results(lambda x: jnp.sort(x, 1), x, units=units)
        np.testing.assert_array_equal(found, np.sort(x, 1))
        (places,) = results(lambda x: jnp.argsort(x, 1), x, units=units)
        np.testing.assert_array_equal(places, np.argsort(x, 1, kind="stable"))


@pytest.mark.parametrize("units", [8, 32])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_the_largest_come_first(k: int, units: int) -> None:
    x = SAMPLES["ties"].astype(np.float32)
    values, places = results(lambda x: lax.top_k(x, k), x, units=units)
    order = np.argsort(-x, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_several_operands_move_together() -> None:
    keys, values = SAMPLES["ties"][0], np.arange(130, dtype=np.float32)
    found = results(lambda k, v: lax.sort((k, v), num_keys=1), keys, values, units=16)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(found[0], keys[order])
    np.testing.assert_array_equal(found[1], values[order])
