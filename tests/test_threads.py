"""Several Python threads trace, compile and call at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import eager

THREADS = 8


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The results of `work(0)`, `work(1)`, ... run by as many threads that start at once."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_one_function_called_for_the_first_time_by_all() -> None:
    f = xcube.jit(lambda x: jnp.tanh(x * 1.625) + jnp.sum(x))
    x = np.linspace(0, 1, 7, dtype=np.float32)
    want = np.tanh(x * 1.625) + x.sum()
    for result in together(lambda _: np.asarray(f(x))):
        np.testing.assert_allclose(result, want, 1e-6)


def test_one_function_called_with_other_shapes() -> None:
    f = xcube.jit(lambda x, y: jnp.dot(x, y).sum(0))

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for n in (number + 1, 40 + number):
            x, y = rng.normal(size=(n, 33)), rng.normal(size=(33, 40 + n))
            np.testing.assert_allclose(f(x, y), (x @ y).sum(0), 1e-3, 1e-3)

    together(work)


def test_other_functions_compiled_at_once() -> None:
    def work(number: int) -> None:
        factor = 1.0 + number / 7
        f = xcube.jit(lambda x: jnp.exp(-x * factor).sum() + factor)
        x = np.linspace(0, 2, 100, dtype=np.float32)
        for _ in range(5):
            want = np.exp(-x.astype(np.float64) * factor).sum() + factor
            np.testing.assert_allclose(float(f(x)), want, 1e-5)

    together(work)


def test_operations_one_by_one_in_all_threads() -> None:
    eager.clear()

    def work(number: int) -> float:
        x = jnp.arange(50.0) + number
        for _ in range(20):
            x = jnp.sin(x) * 2 + x[::-1]
        return float(x.sum())

    results = together(work)
    assert results == [work(number) for number in range(THREADS)]


def test_every_thread_has_its_own_current_trace() -> None:
    """While one thread traces, another evaluates."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        inside.set()
        assert go_on.wait(30)
        return x + jnp.ones(3)

    with ThreadPoolExecutor(1) as pool:
        traced = pool.submit(xcube.jit(slow), jnp.zeros(3))
        assert inside.wait(30)
        value = jnp.ones(3) + 1
        assert isinstance(value, xcube.Array)
        np.testing.assert_array_equal(value, [2, 2, 2])
        go_on.set()
        np.testing.assert_array_equal(traced.result(30), [1, 1, 1])


def test_gradients_in_all_threads() -> None:
    def work(number: int) -> None:
        weight = float(number + 1)
        gradient = xcube.grad(lambda x: (xcube.jit(jnp.sin)(x) * weight).sum())
        x = np.linspace(0, 1, 5, dtype=np.float32)
        for _ in range(5):
            np.testing.assert_allclose(gradient(x), np.cos(x) * weight, 1e-5)

    together(work)


def test_large_programs_run_at_once() -> None:
    """Programs that share the pool of worker threads."""
    f = xcube.jit(lambda x: (x * 2 + 1).sum(1))
    x = np.ones((512, 1024), np.float32)

    def work(number: int) -> None:
        for _ in range(10):
            np.testing.assert_array_equal(f(x * number), np.full(512, 1024 * (2 * number + 1)))

    together(work)


def test_a_failure_in_one_thread_leaves_the_others_alone() -> None:
    def work(number: int) -> float:
        if number % 2:
            with pytest.raises(TypeError):
                xcube.jit(lambda x: x if x > 0 else -x)(1.0)
        return float(xcube.jit(lambda x: x + number)(1.0))

    assert together(work) == [1.0 + number for number in range(THREADS)]


def test_caches_may_be_cleared_while_others_call() -> None:
    f = xcube.jit(lambda x: x * 3)

    def work(number: int) -> None:
        for _ in range(10):
            if number == 0:
                xcube.clear_caches()
            assert float(f(2.0)) == 6

    together(work)
