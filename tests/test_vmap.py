"""vmap at the door: axes of arguments and results, pytrees, keywords, nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def f(x: Any) -> Any:
    """f32[*s] -> f32[*s]: no two axes look alike to it."""
    return x * 2 + jnp.sum(x, -1, keepdims=True)


@pytest.mark.parametrize("in_axis", range(-3, 3))
@pytest.mark.parametrize("out_axis", range(-3, 3))
def test_every_axis_of_argument_and_result(in_axis: int, out_axis: int) -> None:
    got = xcube.vmap(f, in_axis, out_axis)(X)
    parts = np.moveaxis(X, in_axis, 0)
    want = [part * 2 + part.sum(-1, keepdims=True) for part in parts]
    np.testing.assert_array_equal(got, np.stack(want, out_axis))


def test_arguments_that_are_not_mapped() -> None:
    got = xcube.vmap(lambda x, w: x @ w, (0, None))(X, np.ones((4, 2), np.float32))
    np.testing.assert_array_equal(got, X @ np.ones((4, 2)))
    got = xcube.vmap(lambda x, n: x + n, (1, None))(X, 3)
    np.testing.assert_array_equal(got, np.moveaxis(X, 1, 0) + 3)


def test_axes_of_pytrees() -> None:
    arguments = {"x": X, "y": (X[0], 5.0)}
    axes = ({"x": 0, "y": (None, None)},)
    got = xcube.vmap(lambda t: t["x"] + t["y"][0] * t["y"][1], axes)(arguments)
    np.testing.assert_array_equal(got, X + X[0] * 5)
    got = xcube.vmap(lambda t: t["a"] - t["b"], ({"a": 0, "b": -1},))({"a": X[0], "b": X[0].T})
    np.testing.assert_array_equal(got, np.zeros((3, 4)))
    got = xcube.vmap(lambda t, u: t["a"] + t["b"] + u, (1, 0))({"a": X[0], "b": X[1]}, X[0].T)
    np.testing.assert_array_equal(got, (2 * X[0] + X[1]).T)


def test_axes_of_results() -> None:
    function = lambda x: {"a": x, "b": (x * 2, 7)}  # noqa: E731
    got = xcube.vmap(function, out_axes={"a": 1, "b": (-1, None)})(X[0])
    np.testing.assert_array_equal(got["a"], X[0].T)
    np.testing.assert_array_equal(got["b"][0], 2 * X[0].T)
    assert int(got["b"][1]) == 7


def test_results_that_do_not_depend_are_repeated() -> None:
    got = xcube.vmap(lambda x: (x, jnp.arange(2), 3.0))(X[0])
    np.testing.assert_array_equal(got[1], np.tile(np.arange(2), (3, 1)))
    np.testing.assert_array_equal(got[2], [3, 3, 3])


def test_keyword_arguments_are_mapped_over_their_first_axis() -> None:
    got = xcube.vmap(lambda x, w: x.sum() * w)(X[0], w=np.arange(3.0))
    np.testing.assert_array_equal(got, X[0].sum(1) * np.arange(3))


def test_the_size_may_be_given() -> None:
    got = xcube.vmap(lambda: jnp.ones(2), axis_size=3)()
    assert got.shape == (3, 2)
    got = xcube.vmap(lambda x: x * 2, None, axis_size=2)(X[0])
    np.testing.assert_array_equal(got, np.stack([2 * X[0]] * 2))


def test_nested_maps_are_a_table() -> None:
    table = xcube.vmap(xcube.vmap(lambda a, b: a - 2 * b, (None, 0)), (0, None))
    a, b = np.arange(3.0, dtype=np.float32), np.arange(4.0, dtype=np.float32)
    np.testing.assert_array_equal(table(a, b), a[:, None] - 2 * b)
    three = xcube.vmap(xcube.vmap(xcube.vmap(jnp.multiply, (0, None)), (None, 0)), (0, 0))
    got = three(X[:, :, 0], X[:, 0, :])
    np.testing.assert_array_equal(got, np.einsum("bi,bj->bji", X[:, :, 0], X[:, 0, :]))


def test_an_outer_map_is_seen_by_an_inner_function() -> None:
    got = xcube.vmap(lambda x: xcube.vmap(lambda y: y * x.sum() + x[0])(x))(X[0])
    np.testing.assert_array_equal(got, [x * x.sum() + x[0] for x in X[0]])


def test_an_empty_batch() -> None:
    assert xcube.vmap(f)(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 4)
    assert xcube.vmap(lambda x: x.sum())(np.zeros((0, 3), np.float32)).shape == (0,)


def test_the_function_is_traced_once_whatever_the_batch() -> None:
    calls = 0

    def count(x: Any) -> Any:
        nonlocal calls
        calls += 1
        assert x.shape == (3, 4)
        return x

    xcube.vmap(count)(np.zeros((500, 3, 4), np.float32))
    assert calls == 1


def test_integers_bools_and_complex_numbers_are_mapped() -> None:
    n = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(xcube.vmap(lambda x: x // 2 + x % 3)(n), n // 2 + n % 3)
    np.testing.assert_array_equal(xcube.vmap(lambda x: ~(x > 2))(n), ~(n > 2))
    z = n * (1 + 1j)
    np.testing.assert_allclose(xcube.vmap(lambda x: x * jnp.conj(x))(z), z * z.conj())


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_indexing_by_a_mapped_number_is_a_gather(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    k = np.array(data.draw(st.lists(st.integers(0, sizes[0] - 1), min_size=1, max_size=5)))
    np.testing.assert_array_equal(xcube.vmap(lambda i: jnp.asarray(x)[i])(k), x[k])
    batch = np.stack([x + n for n in range(len(k))])
    want = np.stack([one[i] for one, i in zip(batch, k, strict=True)])
    np.testing.assert_array_equal(xcube.vmap(lambda x, i: x[i])(batch, k), want)
    updated = batch.copy()
    for one, i in zip(updated, k, strict=True):
        one[i] = -1
    np.testing.assert_array_equal(xcube.vmap(lambda x, i: x.at[i].set(-1))(batch, k), updated)
