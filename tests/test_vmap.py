"""vmap at the door: axes of arguments and results, pytrees, keywords, nesting, faults; and whole
functions mapped over every choice of their arguments (test_ops.py maps every primitive so)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp
from xcube import lax, random

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


# whole functions ------------------------------------------------------------------------------

BATCH = 3
_RNG = np.random.default_rng(0)


def reals(*shape: int) -> np.ndarray:
    return _RNG.normal(size=(BATCH, *shape)).astype(np.float32)


def places(size: int, *shape: int) -> np.ndarray:
    """Indices of an axis, negative ones among them."""
    return _RNG.integers(-size, size, size=(BATCH, *shape)).astype(np.int32)


def shares(*shape: int) -> np.ndarray:
    return _RNG.uniform(size=(BATCH, *shape)).astype(np.float32)


def distinct(size: int, count: int) -> np.ndarray:
    return np.stack([_RNG.permutation(size)[:count] for _ in range(BATCH)]).astype(np.int32)


def keys() -> np.ndarray:
    return _RNG.integers(0, 1 << 31, size=(BATCH, 2)).astype(np.uint32)


# A function, and a batch of each of its arguments.
WHOLE: dict[str, tuple[Any, ...]] = {
    "sort": (lambda x: jnp.sort(x, axis=0), reals(4, 5)),
    "argsort": (lambda x: jnp.argsort(x, descending=True), reals(4, 5)),
    "lexsort": (lambda x, y: jnp.lexsort((x, y)), places(2, 9), places(2, 9)),
    "top_k": (lambda x: lax.top_k(x, 2), reals(4, 5)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x)), reals(4, 5)),
    "searchsorted": (jnp.searchsorted, np.sort(reals(9)), reals(2, 2)),
    "take": (lambda x, k: jnp.take(x, k, axis=1), reals(4, 5), places(5, 3)),
    "take, clipped": (lambda x, k: jnp.take(x, k, mode="clip"), reals(4, 5), places(30, 3)),
    "take_along_axis": (
        lambda x, k: jnp.take_along_axis(x, k, 1),
        reals(4, 5),
        places(5, 4, 2),
    ),
    "two indices": (lambda x, a, b: x[a, :, b], reals(4, 5, 6), places(4, 3), places(6, 2, 1)),
    "an index and views": (lambda x, k: x[None, k, ..., 1:3], reals(4, 5, 6), places(4)),
    "get, filled": (lambda x, k: x.at[k].get(mode="fill", fill_value=7), reals(4), places(9, 6)),
    "set": (lambda x, k, v: x.at[k].set(v), reals(4, 5), distinct(4, 2), reals(2, 5)),
    "add, dropped": (
        lambda x, k, v: x.at[k].add(v, mode="drop"),
        reals(4),
        places(9, 6),
        reals(6),
    ),
    "max": (
        lambda x, a, b, v: x.at[a, b].max(v),
        reals(4, 5),
        places(4, 6),
        places(5, 6),
        reals(6),
    ),
    "roll": (lambda x, k: jnp.roll(x, k, 0), reals(4, 5), places(4)),
    "dynamic_slice": (
        lambda x, a, b: lax.dynamic_slice(x, (a, b), (2, 3)),
        reals(4, 5),
        places(9),
        places(9),
    ),
    "dynamic_update_slice": (
        lambda x, u, a: lax.dynamic_update_slice(x, u, (a, 1)),
        reals(4, 5),
        reals(2, 3),
        places(9),
    ),
    "where": (jnp.where, reals(4, 1) > 0, reals(5), reals()),
    "clip": (jnp.clip, reals(4, 5), -shares(), shares(5)),
    "matmul": (jnp.matmul, reals(2, 4, 5), reals(5, 3)),
    "einsum": (
        lambda x, y, z: jnp.einsum("ij,jk,ik->k", x, y, z),
        reals(4, 5),
        reals(5, 3),
        reals(4, 3),
    ),
    "norm": (lambda x: jnp.linalg.norm(x, axis=0), reals(4, 5)),
    "convolve": (jnp.convolve, reals(7), reals(3)),
    "interp": (jnp.interp, reals(6), np.sort(reals(4)), reals(4)),
    "nonzero": (lambda x: jnp.nonzero(x > 0, size=5, fill_value=-1), reals(7)),
    "quantile": (jnp.quantile, reals(4, 5), shares(2)),
    "bincount": (lambda x, w: jnp.bincount(x, w, length=6), abs(places(5, 9)), reals(9)),
    "pad": (lambda x, v: jnp.pad(x, 1, constant_values=v), reals(4, 5), reals()),
    "normal": (lambda key: random.normal(key, (2, 3)), keys()),
    "uniform": (
        lambda key, low, high: random.uniform(key, (4,), minval=low, maxval=high),
        keys(),
        -shares(),
        shares(4),
    ),
    "permutation": (random.permutation, keys(), reals(5, 2)),
    "choice": (lambda key, p: random.choice(key, 6, (4,), p=p), keys(), shares(6)),
    "categorical": (random.categorical, keys(), reals(5, 3)),
    "split and fold": (lambda k, n: random.split(random.fold_in(k, n)), keys(), abs(places(9))),
}


def some(count: int) -> list[tuple[int, ...]]:
    """Every choice of at least one of so many arguments."""
    sizes = range(1, count + 1)
    return [choice for n in sizes for choice in itertools.combinations(range(count), n)]


@pytest.mark.parametrize("name", WHOLE)
def test_mapped_is_the_stacked_loop(name: str) -> None:
    function, *batches = WHOLE[name]
    for number, chosen in enumerate(some(len(batches))):
        place = -(number % 2)  # where the mapped axis is: in front, behind, in front, ...
        axes = tuple([place if k in chosen else None for k in range(len(batches))])
        args = [
            jnp.moveaxis(jnp.asarray(x), 0, place) if k in chosen else jnp.asarray(x[0])
            for k, x in enumerate(batches)
        ]
        got = xcube.tree.leaves(xcube.vmap(function, axes, place)(*args))
        loop = [
            xcube.tree.leaves(
                function(*[jnp.asarray(x[b if k in chosen else 0]) for k, x in enumerate(batches)])
            )
            for b in range(BATCH)
        ]
        for number_of_result, one in enumerate(got):
            want = np.stack([np.asarray(example[number_of_result]) for example in loop], place)
            assert one.dtype == want.dtype
            np.testing.assert_allclose(one, want, 1e-5, 1e-5, err_msg=f"{chosen} at {place}")


def test_random_numbers_of_a_batch_of_keys_are_those_of_jax() -> None:
    jax = pytest.importorskip("jax")
    batch = keys()
    got = xcube.vmap(lambda key: random.normal(key, (4,)))(batch)
    np.testing.assert_allclose(got, jax.vmap(lambda k: jax.random.normal(k, (4,)))(batch), 1e-5)


# faults ---------------------------------------------------------------------------------------


def identity(*args: Any, **kwargs: Any) -> Any:
    return (*args, *kwargs.values()) if len(args) + len(kwargs) > 1 else args[0]


def test_the_name_of_a_device_axis_is_accepted() -> None:
    np.testing.assert_array_equal(xcube.vmap(f, spmd_axis_name="x")(X), xcube.vmap(f)(X))


@pytest.mark.parametrize(
    ("options", "args", "error", "message"),
    [
        ({"in_axes": 0.5}, (X,), TypeError, "in_axes must be an int, None, or a container"),
        ({"in_axes": True}, (X,), TypeError, "got True"),
        ({"in_axes": {"a": 0}}, ({"a": X},), TypeError, "the tuple of positional arguments"),
        ({"in_axes": ("x",)}, (X,), TypeError, "in_axes"),
        ({"out_axes": 1.5}, (X,), TypeError, "out_axes must be an int, None, or a container"),
        ({"axis_name": ["i"]}, (X,), TypeError, "axis_name must be hashable"),
        ({"in_axes": (0, 0)}, (X,), ValueError, "1 positional arguments"),
        ({"in_axes": ({"a": 0},)}, ({"b": X},), ValueError, r"tree prefix .* at \[0\] .*'a'"),
        ({"in_axes": ((0, 0),)}, (X,), ValueError, r"tree prefix .* at \[0\] .* leaf"),
        ({"out_axes": (0, 0)}, (X,), ValueError, "out_axes must be a tree prefix of the result"),
        ({"out_axes": (0, 0, 0)}, (X, X), ValueError, "tuple of length 3"),
        ({"in_axes": None}, (X,), ValueError, "must have one size; got none"),
        ({"axis_size": 5}, (X,), ValueError, r"got 2 \(axis 0 of argument 0.*5 \(axis_size\)"),
        ({}, (X, X.T), ValueError, r"2 \(.*argument 0: f32\[2,3,4\]\); 4 \(.*argument 1"),
        ({"in_axes": 3}, (X,), ValueError, r"-3\.\.2 for f32\[2,3,4\]; got 3"),
        ({"in_axes": -4}, (X,), ValueError, "got -4"),
        ({"out_axes": 3}, (X,), ValueError, r"out_axes must lie in -3\.\.2"),
        ({"out_axes": None}, (X,), ValueError, "out_axes is None"),
    ],
)
def test_axes_that_do_not_fit(options: Any, args: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=rf"(?s)^vmap: .*{message}.*At test_vmap\.py"):
        xcube.vmap(identity, **options)(*args)
