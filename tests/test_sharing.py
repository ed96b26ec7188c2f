"""No two arrays that a user can see share memory unless a jitted function passed one through."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp


def scribble(x) -> None:
    """What a careless library does with memory it was lent."""
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
