"""Loops inside kernels are cut so that a program can be interrupted."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.lowering import bounded
from xcube.lowering.kernels import loops


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MOST_TURNS", 10)
    monkeypatch.setattr(loops, "MOST_TURNS", 10)
    monkeypatch.setattr(bounded, "PIECE", 7)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [10, 11, 14, 23])
@pytest.mark.usefixtures("small")
def test_a_long_scan_in_pieces_is_the_scan(length: int, reverse: bool) -> None:
    xs = np.linspace(-1, 1, 2 * length, dtype=np.float32).reshape(length, 2)

    def run(start: Any, xs: Any) -> Any:
        step = lambda c, x: (c * 0.9 + x.sum(), (c, x * c))  # noqa: E731
        return lax.scan(step, start, xs, reverse=reverse)

    last, (carries, products) = xcube.jit(run)(np.float32(0.5), xs)
    state, rows = 0.5, [None] * length
    for turn in range(length)[::-1] if reverse else range(length):
        rows[turn] = state  # type: ignore[call-overload]
        state = state * 0.9 + float(xs[turn].sum())
    np.testing.assert_allclose(float(last), state, rtol=1e-5)
    np.testing.assert_allclose(carries, np.array(rows, np.float64), rtol=1e-5)
    np.testing.assert_allclose(products, np.array(rows)[:, None] * xs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("turns", [0, 1, 6, 7, 8, 30])
@pytest.mark.usefixtures("small")
def test_a_while_loop_in_spells_is_the_loop(turns: int) -> None:
    def run(n: Any, x: Any, factor: Any) -> Any:
        step = lambda s: (s[0] + 1, s[1] * factor + s[0])  # noqa: E731
        return lax.while_loop(lambda s: s[0] < n, step, (0, x))

    count, value = xcube.jit(run)(turns, np.float32(2), np.float32(0.5))
    expected = 2.0
    for turn in range(turns):
        expected = expected * 0.5 + turn
    assert int(count) == turns
    np.testing.assert_allclose(float(value), expected, rtol=1e-6)


ENDLESS = {
    "while": lambda x: lax.while_loop(
        lambda s: s[0] >= 0, lambda s: ((s[0] + 1) % 7, s[1]), (0, x)
    ),
    "scan": lambda x: lax.fori_loop(0, 2_000_000_000, lambda i, x: jnp.sin(x) + 1, x),
    "scan of scans": lambda x: lax.fori_loop(
        0, 100_000, lambda _, x: lax.fori_loop(0, 1_000_000, lambda i, x: x * 1.1 + 1, x), x
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of one thread to another")
@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_inside_a_kernel_ends_at_an_interrupt(name: str) -> None:
    run = xcube.jit(ENDLESS[name]).lower(np.float32(1)).compile()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(np.float32(1))
    timer.join()
