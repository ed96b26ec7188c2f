"""No two arrays that a user can see share memory unless a jitted function passed one through."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import lax


def scribble(x) -> None:
    """What a careless library does with memory it was lent."""
    if x.device.kind != "cpu":
        pytest.skip("the host cannot write to a GPU's memory")
    ctypes.memset(x.buffer.pointer, 0x41, x.nbytes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: jnp.asarray(2.0),
        lambda: jnp.array(3),
        lambda: jnp.zeros(()),
        lambda: jnp.full((), 4.0),
        lambda: xcube.device_put(5.0),
        lambda: jnp.reshape(6.0, ()),
        lambda: xcube.jit(lambda x: x)(7.0),
    ],
)
def test_a_number_written_over_stays_that_number_elsewhere(make) -> None:
    expected = np.array(make())
    scribble(make())
    np.testing.assert_array_equal(np.asarray(make()), expected)
    assert float(xcube.grad(lambda a: a * a)(2.0)) == 4.0


def test_eager_results_are_not_their_operands() -> None:
    x = jnp.arange(3.0)
    for y in (jnp.copy(x), jnp.reshape(x, (3,)) + 0, x.copy()):
        scribble(y)
    np.testing.assert_array_equal(np.asarray(x), [0, 1, 2])


# values with two names ------------------------------------------------------------------------

X = np.linspace(-1, 1, 400, dtype=np.float32)


def _turned(x):
    return x + lax.optimization_barrier(x)[::-1]


def _looped(x):
    y = lax.optimization_barrier(x).reshape(20, 20)
    return lax.fori_loop(0, 5, lambda i, c: jnp.sin(c @ y) + 0.1, x.reshape(20, 20))


def _waited(x):
    y = lax.optimization_barrier(x)
    step = lambda s: (s[0] + 1, s[1] * y[::-1])  # noqa: E731
    return lax.while_loop(lambda s: s[0] < 3, step, (0, x))[1]


def _stepped(x):
    body = xcube.checkpoint(lambda x: jnp.sin(jnp.sin(x) * x[::-1]))
    return x - 0.1 * xcube.grad(lambda x: jnp.sum(body(x)))(x)


@pytest.mark.parametrize("function", [_turned, _looped, _waited, _stepped])
def test_memory_is_not_taken_over_while_another_name_of_it_is_read(function) -> None:
    expected = np.asarray(xcube.jit(function)(X))
    donated = xcube.jit(function, donate_argnums=0)(jnp.array(X))
    np.testing.assert_array_equal(np.asarray(donated), expected)
    turns = 3
    carried = xcube.jit(
        lambda x: lax.fori_loop(0, turns, lambda _, x: function(x).reshape(X.shape) * 0.3, x)
    )
    x = jnp.array(X)
    for _ in range(turns):
        x = xcube.jit(lambda x: function(x).reshape(X.shape) * 0.3)(x)
    np.testing.assert_allclose(np.asarray(carried(X)), np.asarray(x), rtol=1e-4, atol=1e-5)
