"""Collectives along mapped axes: against JAX where JAX maps them, else against what the members
would send each other, written out in NumPy; under every transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import config, lax
from xcube.ir import Axis
from xcube.transforms.collectives import binding, bound_axes

jax = pytest.importorskip("jax")

SIZE = 4
X = np.random.default_rng(0).normal(size=(SIZE, 8, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(2, SIZE, 8, 3)).astype(np.float32)
N = np.arange(SIZE * 8 * 3, dtype=np.int32).reshape(SIZE, 8, 3)
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
GROUPS = [[0, 3], [2, 1]]


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with config.using(check=True):
        yield


def assert_equal(got: Any, want: Any, rtol: float = 1e-5) -> None:
    got, want = xcube.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert np.dtype(one.dtype) == np.dtype(other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol, 1e-5)


Function = Callable[[Any, Any], Any]

# One example of one axis "i" of four members: functions of a library's lax and of x: d[8, 3].
ONE: dict[str, Function] = {
    "psum": lambda lax, x: x / lax.psum(x, "i"),
    "psum of a tree": lambda lax, x: lax.psum({"a": x, "b": (x[0], 2)}, "i"),
    "psum of a name in a tuple": lambda lax, x: lax.psum(x, ("i",)),
    "psum over no name": lambda lax, x: lax.psum(x, ()),
    "psum of own axes": lambda lax, x: x * lax.psum(x, (1, "i"))[:, None],
    "psum of what is not mapped": lambda lax, x: x + lax.psum(np.float32(3), "i"),
    "psum of bools": lambda lax, x: lax.psum(x > 0, "i"),
    "pmean": lambda lax, x: x - lax.pmean(x, "i"),
    "pmax": lambda lax, x: x - lax.pmax(x, "i"),
    "pmin": lambda lax, x: x - lax.pmin(x, ("i",)),
    "pmax of own axes": lambda lax, x: lax.pmax(x, (0, "i")),
    "all_gather": lambda lax, x: lax.all_gather(x, "i"),
    "all_gather behind": lambda lax, x: lax.all_gather(x, "i", axis=-1),
    "all_gather between": lambda lax, x: lax.all_gather(x, "i", axis=1),
    "all_gather tiled": lambda lax, x: lax.all_gather(x, "i", axis=1, tiled=True),
    "all_gather of what is not mapped": lambda lax, x: x[0, 0] + lax.all_gather(np.ones(3), "i"),
    "psum_scatter": lambda lax, x: lax.psum_scatter(x[:SIZE], "i"),
    "psum_scatter tiled": lambda lax, x: lax.psum_scatter(x, "i", tiled=True),
    "psum_scatter another axis": lambda lax, x: lax.psum_scatter(
        x.T, "i", scatter_dimension=1, tiled=True
    ),
    "ppermute": lambda lax, x: lax.ppermute(x, "i", RING),
    "pshuffle": lambda lax, x: lax.pshuffle(x, "i", [2, 0, 3, 1]),
    "pbroadcast": lambda lax, x: lax.pbroadcast(x, "i", 2),
    "pswapaxes": lambda lax, x: lax.pswapaxes(x[:SIZE], "i", 0),
    "all_to_all forward": lambda lax, x: lax.all_to_all(x[:SIZE], "i", 0, 1),
    "all_to_all backward": lambda lax, x: lax.all_to_all(x[:SIZE].T, "i", 1, 0),
    "axis_index": lambda lax, x: x * lax.axis_index("i"),
    "axis_size": lambda lax, x: x * lax.axis_size("i"),
}


@pytest.mark.parametrize("name", ONE)
def test_one_axis(name: str) -> None:
    f = ONE[name]
    got = xcube.vmap(lambda x: f(lax, x), axis_name="i")(X)
    assert_equal(got, jax.vmap(lambda x: f(jax.lax, x), axis_name="i")(X))


@pytest.mark.parametrize("name", ONE)
def test_one_axis_under_jit_and_an_outer_map(name: str) -> None:
    f = ONE[name]
    inner = xcube.vmap(xcube.jit(lambda x: f(lax, x)), axis_name="i", in_axes=-1, out_axes=-1)
    got = xcube.jit(xcube.vmap(inner))(np.moveaxis(Y, 1, -1))
    want = [jax.vmap(lambda x: f(jax.lax, x), axis_name="i", out_axes=-1)(y) for y in Y]
    assert_equal(got, jax.tree.map(lambda *parts: np.stack(parts), *want))


# Tiled exchanges of JAX's vmap are what its manual says only for equal axes: written out here.
def test_tiled_exchange_is_a_transposition_of_blocks() -> None:
    got = xcube.vmap(lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True), axis_name="i")(X)
    blocks = X.reshape(SIZE, SIZE, 2, 3)  # member, part, rows, columns
    want = [np.concatenate([blocks[j, i] for j in range(SIZE)], 1) for i in range(SIZE)]
    np.testing.assert_array_equal(got, want)


DIFFERENTIABLE = [name for name in ONE if not name.startswith(("pmax", "pmin", "psum of bools"))]
JAX_REFUSES = ("pbroadcast", "all_to_all forward", "all_to_all backward")  # their gradients


def smooth(library: Any, f: Function, x: Any) -> Any:
    """A scalar that depends on every result of f, and on each in another way."""
    numpy = jnp if library is xcube else jax.numpy
    leaves = library.tree.leaves(f(library.lax, numpy.sin(x)))
    return sum(numpy.sum(numpy.cos(numpy.asarray(leaf) * (2 + n))) for n, leaf in enumerate(leaves))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_inside_and_outside_of_the_map(name: str) -> None:
    f = ONE[name]

    def inside(library: Any) -> Any:
        return library.vmap(library.grad(lambda x: smooth(library, f, x)), axis_name="i")(X)

    mapped = xcube.vmap(lambda x: smooth(xcube, f, x), axis_name="i")
    outside = xcube.grad(lambda x: mapped(x).sum())(X)
    np.testing.assert_allclose(inside(xcube), outside, 1e-4, 1e-5)
    if name not in JAX_REFUSES:
        assert_equal(outside, inside(jax), 1e-4)
    _, tangent = xcube.jvp(xcube.jit(mapped), (X,), (np.cos(X),))
    np.testing.assert_allclose(np.sum(tangent), np.sum(np.cos(X) * outside), 1e-3)


def test_the_derivative_of_an_extreme_is_shared_by_those_that_attain_it() -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0], np.float32)
    scale = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    for collective, reduce in ((lax.pmax, jnp.max), (lax.pmin, jnp.min)):
        inside = xcube.vmap(xcube.grad(lambda x, s, c=collective: s * c(x, "i")), axis_name="i")(
            x, scale
        )
        want = xcube.grad(lambda x, r=reduce: jnp.sum(scale * r(x)))(x)
        np.testing.assert_allclose(inside, want)


# Functions of x: d[8, 3] under an outer axis "i" of two members and an inner one, "j", of four.
TWO: dict[str, Function] = {
    "psum of both": lambda lax, x: x + lax.psum(x, ("i", "j")),
    "psum of one, then of the other": lambda lax, x: lax.psum(x * lax.psum(x, "i"), "j"),
    "pmax of both": lambda lax, x: lax.pmax(x, ("j", "i")),
    "pmean of both": lambda lax, x: lax.pmean(x, ("i", "j")),
    "outer gather": lambda lax, x: lax.all_gather(x, "i", axis=1),
    "outer scatter": lambda lax, x: lax.psum_scatter(x, "i", tiled=True),
    "outer exchange": lambda lax, x: lax.all_to_all(x[:2], "i", 0, 1),
    "outer permutation": lambda lax, x: lax.ppermute(x, "i", [(0, 1), (1, 0)]),
    "gather of a gather": lambda lax, x: lax.all_gather(lax.all_gather(x, "j"), "i"),
    "index of both": lambda lax, x: x + lax.axis_index(("i", "j")),
    "index, reversed": lambda lax, x: x + lax.axis_index(("j", "i")) * lax.axis_size(("i", "j")),
}


@pytest.mark.parametrize("name", TWO)
def test_two_axes(name: str) -> None:
    f = TWO[name]

    def table(library: Any, outer: Any = lambda fun: fun) -> Any:
        inner = library.vmap(lambda x: f(library.lax, x), axis_name="j")
        return library.vmap(outer(inner), axis_name="i")(Y)

    assert_equal(table(xcube), table(jax))
    assert_equal(table(xcube, xcube.jit), table(jax))


def both(function: Callable[[Any], Any]) -> np.ndarray:
    inner = xcube.vmap(function, axis_name="j")
    return np.asarray(xcube.vmap(inner, axis_name="i")(Y))


# JAX's vmap refuses tuples here; its manual says: the members in the order of their joint index.
def test_a_tuple_of_names_is_one_axis_of_all_members() -> None:
    members = Y.reshape(8, 8, 3)
    names = ("i", "j")
    np.testing.assert_array_equal(both(lambda x: lax.all_gather(x, names))[1, 2], members)
    tiled = both(lambda x: lax.all_gather(x, names, axis=1, tiled=True))
    np.testing.assert_array_equal(tiled[0, 3], np.concatenate(list(members), 1))
    scattered = both(lambda x: lax.psum_scatter(x, names))
    np.testing.assert_allclose(scattered.reshape(8, 3), members.sum(0), 1e-5, 1e-6)
    exchanged = both(lambda x: lax.all_to_all(x, names, 0, 1)).reshape(8, 3, 8)
    np.testing.assert_array_equal(exchanged, np.moveaxis(members, 0, -1))
    np.testing.assert_array_equal(both(lambda x: lax.pbroadcast(x, names, 5))[0, 0], members[5])
    reversed_names = both(lambda x: lax.all_gather(x, ("j", "i")))[0, 0]
    np.testing.assert_array_equal(reversed_names, Y.swapaxes(0, 1).reshape(8, 8, 3))


def test_an_inner_axis_hides_an_outer_one_of_its_name() -> None:
    inner = xcube.vmap(lambda x: lax.psum(x, "i"), axis_name="i")
    got = xcube.vmap(lambda y: (inner(y), lax.psum(y, "i")), axis_name="i")(Y)
    np.testing.assert_allclose(got[0], np.broadcast_to(Y.sum(1, keepdims=True), Y.shape), 1e-5)
    np.testing.assert_allclose(got[1], np.broadcast_to(Y.sum(0), Y.shape), 1e-5)


# groups ---------------------------------------------------------------------------------------


def grouped(one: Callable[[np.ndarray], list[Any]], groups: Any = GROUPS) -> np.ndarray:
    """What the members get if each group is a batch of its own."""
    results: dict[int, Any] = {}
    for group in groups:
        results.update(zip(group, one(X[group]), strict=True))
    return np.stack([results[place] for place in range(SIZE)])


@pytest.mark.parametrize(
    ("collective", "one"),
    [
        pytest.param(lax.psum, lambda g: [g.sum(0)] * 2, id="psum"),
        pytest.param(lax.pmean, lambda g: [g.mean(0)] * 2, id="pmean"),
        pytest.param(lax.pmax, lambda g: [g.max(0)] * 2, id="pmax"),
        pytest.param(lax.all_gather, lambda g: [g] * 2, id="all_gather"),
        pytest.param(
            lambda x, name, **groups: lax.psum_scatter(x[:2], name, **groups),
            lambda g: list(g[:, :2].sum(0)),
            id="psum_scatter",
        ),
        pytest.param(
            lambda x, name, **groups: lax.all_to_all(x[:2], name, 0, 0, **groups),
            lambda g: list(g[:, :2].swapaxes(0, 1)),
            id="all_to_all",
        ),
    ],
)
def test_groups_are_batches_of_their_own(collective: Any, one: Any) -> None:
    function = lambda x: collective(x, "i", axis_index_groups=GROUPS)  # noqa: E731
    got = xcube.vmap(function, axis_name="i")(X)
    np.testing.assert_allclose(got, grouped(one), 1e-5, 1e-6)


def test_sums_of_groups_of_several_sizes_and_their_derivative() -> None:
    groups = [[1], [3, 0, 2]]
    function = lambda x: jnp.sum(lax.psum(jnp.sin(x), "i", axis_index_groups=groups) ** 2)  # noqa: E731
    mapped = xcube.vmap(function, axis_name="i")
    want = grouped(lambda g: [(np.sin(g).sum(0) ** 2).sum()] * len(g), groups)
    np.testing.assert_allclose(mapped(X), want, 1e-5)
    outside = xcube.grad(lambda x: mapped(x).sum())(X)
    inside = xcube.vmap(xcube.grad(function), axis_name="i")(X)
    np.testing.assert_allclose(inside, outside, 1e-5, 1e-5)


def test_the_size_of_a_group() -> None:
    seen = []
    xcube.vmap(lambda x: seen.append(lax.psum(1, "i", axis_index_groups=GROUPS)), 0, None, "i")(X)
    assert seen == [2]


# permutations ---------------------------------------------------------------------------------


def test_who_is_no_target_gets_zeros() -> None:
    got = xcube.vmap(lambda x: lax.ppermute(x, "i", [(3, 0), (0, 2)]), axis_name="i")(X)
    np.testing.assert_array_equal(got, np.stack([X[3], 0 * X[0], X[0], 0 * X[0]]))
    got = xcube.vmap(lambda x: x[0, 0] + lax.ppermute(5.0, "i", [(3, 0)]), axis_name="i")(X)
    np.testing.assert_allclose(got, X[:, 0, 0] + np.array([5, 0, 0, 0]))


def test_the_transpose_of_a_permutation_goes_back() -> None:
    pairs = [(3, 0), (0, 2)]
    function = lambda x, w: jnp.sum(w * lax.ppermute(x, "i", pairs))  # noqa: E731
    got = xcube.vmap(xcube.grad(function), axis_name="i")(X, X * 2)
    np.testing.assert_allclose(got, np.stack([2 * X[2], 0 * X[0], 0 * X[0], 2 * X[0]]))


# tracing --------------------------------------------------------------------------------------


def test_the_size_of_an_axis_is_a_python_number() -> None:
    def function(x: Any) -> Any:
        assert [lax.psum(1, "i"), lax.axis_size("i"), lax.psum(True, "i")] == [SIZE] * 3
        assert type(lax.psum(1, "i")) is int
        assert lax.pmean(3, "i") == 3.0
        return x.reshape(lax.axis_size("i"), -1)

    assert xcube.vmap(function, axis_name="i")(X).shape == (SIZE, SIZE, 6)


def test_a_jitted_function_is_traced_anew_for_every_axis() -> None:
    total = xcube.jit(lambda x: lax.psum(x, "i") + lax.axis_index("i") * lax.axis_size("i"))
    for size in (2, 3, 2):
        x = np.arange(size, dtype=np.float32)
        got = xcube.vmap(total, axis_name="i")(x)
        np.testing.assert_array_equal(got, x.sum() + x * size)
    assert total._cache_size() == 2
    with pytest.raises(NameError):
        total(1.0)


def test_a_call_that_depends_on_no_mapped_value_is_mapped_by_its_name() -> None:
    index = xcube.jit(lambda: lax.axis_index("i"))
    nested = xcube.jit(lambda: {"a": index() * 2, "b": lax.psum(jnp.ones(2), "i")})
    got = xcube.vmap(lambda: nested(), axis_name="i", axis_size=3)()
    np.testing.assert_array_equal(got["a"], [0, 2, 4])
    np.testing.assert_array_equal(got["b"], np.full((3, 2), 3))


def test_what_does_not_vary_may_leave_unmapped() -> None:
    function = lambda x: (lax.psum(x, "i"), lax.all_gather(x, "i"), lax.pmax(x, "i"))  # noqa: E731
    total, every, most = xcube.vmap(function, out_axes=None, axis_name="i")(X)
    np.testing.assert_allclose(total, X.sum(0), 1e-5)
    np.testing.assert_array_equal(every, X)
    np.testing.assert_array_equal(most, X.max(0))


def test_a_linear_program_keeps_its_collectives() -> None:
    function = lambda x: jnp.sin(x) * lax.psum(jnp.cos(x), "i")  # noqa: E731

    def inside(x: Any, dx: Any) -> Any:
        out, pushed = xcube.linearize(function, x)
        return out, pushed(dx), xcube.vjp(function, x)[1](dx)[0]

    got = xcube.vmap(inside, axis_name="i")(X, 2 * X)

    def reference(x: Any, dx: Any) -> Any:
        mine = lambda x: jax.numpy.sin(x) * jax.lax.psum(jax.numpy.cos(x), "i")  # noqa: E731
        return *jax.jvp(mine, (x,), (dx,)), jax.vjp(mine, x)[1](dx)[0]

    assert_equal(got, jax.vmap(reference, axis_name="i")(X, 2 * X), 1e-4)


def test_batch_normalisation_is_what_it_is_for() -> None:
    def normalise(x: Any) -> Any:
        mean = lax.pmean(x, "batch")
        return (x - mean) / jnp.sqrt(lax.pmean((x - mean) ** 2, "batch") + 1e-3)

    got = xcube.jit(xcube.vmap(normalise, axis_name="batch"))(X)
    want = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-3)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_names_are_bound_while_a_function_is_traced() -> None:
    seen = []
    inner = xcube.vmap(lambda x: seen.append(bound_axes()), 0, None, "j")
    xcube.vmap(lambda y: inner(y), 0, None, "i")(Y)
    assert seen == [(Axis(2, "i"), Axis(SIZE, "j"))]
    assert bound_axes() == ()
    with pytest.raises(ZeroDivisionError), binding(Axis(3, "k")):
        assert bound_axes() == (Axis(3, "k"),)
        raise ZeroDivisionError
    assert bound_axes() == ()


# control flow ---------------------------------------------------------------------------------

# Functions of x: d[8, 3] whose bodies ask for the axis "i", of what is mapped and what is not.
FLOW: dict[str, Function] = {
    "scan": lambda lax, x: lax.scan(
        lambda c, row: (c + lax.psum(row, "i"), lax.pmean(c * row, "i")), x[0], x
    ),
    "scan, permuting": lambda lax, x: lax.scan(
        lambda c, row: (lax.ppermute(c, "i", RING) * row, lax.all_gather(row, "i")), x[0], x
    ),
    "scan of what is not mapped": lambda lax, x: lax.scan(
        lambda c, row: (c + lax.axis_index("i"), lax.psum(row, "i")), 0, np.arange(4)
    ),
    "fori_loop": lambda lax, x: lax.fori_loop(
        0, 3, lambda k, c: c / 2 + lax.psum(c, "i") / SIZE * k, x
    ),
    "while_loop": lambda lax, x: lax.while_loop(
        lambda c: lax.pmax(c[1], "i") < 9, lambda c: (c[0] + lax.pmean(c[0], "i"), c[1] + 2), (x, 0)
    ),
    "while_loop of the index": lambda lax, x: lax.while_loop(
        lambda c: c < lax.axis_index("i"), lambda c: c + lax.axis_size("i") // 4, 0
    ),
    "cond": lambda lax, x: lax.cond(
        x[0, 0] > 0, lambda x: lax.psum(x, "i"), lambda x: x * lax.axis_index("i"), x
    ),
    "cond of what is not mapped": lambda lax, x: lax.cond(
        True, lambda: lax.axis_index("i"), lambda: lax.psum(np.int32(5), "i")
    ),
}


@pytest.mark.parametrize("name", FLOW)
def test_collectives_in_bodies(name: str) -> None:
    f = FLOW[name]
    want = jax.vmap(lambda x: f(jax.lax, x), axis_name="i")(X)
    mapped = xcube.vmap(lambda x: f(lax, x), axis_name="i")
    assert_equal(mapped(X), want)
    assert_equal(xcube.jit(mapped)(X), want)


@pytest.mark.parametrize("name", ["scan", "scan, permuting", "fori_loop", "cond"])
def test_derivatives_of_collectives_in_bodies(name: str) -> None:
    f = FLOW[name]

    def inside(library: Any) -> Any:
        return library.vmap(library.grad(lambda x: smooth(library, f, x)), axis_name="i")(X)

    mapped = xcube.vmap(lambda x: smooth(xcube, f, x), axis_name="i")
    outside = xcube.grad(lambda x: mapped(x).sum())(X)
    assert_equal(inside(xcube), inside(jax), 1e-4)
    np.testing.assert_allclose(outside, inside(xcube), 1e-4, 1e-5)


def test_collectives_are_computed_anew_under_checkpoint() -> None:
    f = lambda x: jnp.sum(jnp.sin(lax.psum(x, "i")) * x)  # noqa: E731
    plain = xcube.vmap(xcube.grad(f), axis_name="i")(X)
    saved = xcube.vmap(xcube.grad(xcube.checkpoint(f)), axis_name="i")(X)
    np.testing.assert_allclose(saved, plain, 1e-5)
    mapped = xcube.vmap(xcube.checkpoint(f), axis_name="i")
    outside = xcube.grad(lambda x: jnp.sum(mapped(x)))(X)
    np.testing.assert_allclose(outside, plain, 1e-4, 1e-5)


def test_a_rule_of_the_user_may_ask_for_the_axis() -> None:
    @xcube.custom_vjp
    def synchronised(x: Any) -> Any:
        return x

    synchronised.defvjp(lambda x: (x, None), lambda _, ct: (lax.pmean(ct, "i"),))
    scale = np.arange(SIZE, dtype=np.float32)
    function = lambda s, x: jnp.sum(s * synchronised(x))  # noqa: E731
    inside = xcube.vmap(xcube.grad(function, 1), (0, None), axis_name="i")(scale, X[0])
    np.testing.assert_allclose(inside, np.full((SIZE, 8, 3), scale.mean()))
    mapped = xcube.vmap(function, (0, 0), axis_name="i")
    outside = xcube.grad(lambda x: jnp.sum(mapped(scale, x)))(X)
    np.testing.assert_allclose(outside, np.full(X.shape, scale.mean()))


# faults ---------------------------------------------------------------------------------------

UNBOUND: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: lax.psum(x, "k"),
    "psum of a number": lambda x: lax.psum(1, "k"),
    "pmean": lambda x: lax.pmean(x, ("i", "k")),
    "pmax": lambda x: lax.pmax(x, "k"),
    "pmin": lambda x: lax.pmin(x, "k"),
    "all_gather": lambda x: lax.all_gather(x, "k"),
    "all_gather by position": lambda x: lax.all_gather(x, 0),
    "psum_scatter": lambda x: lax.psum_scatter(x, "k"),
    "ppermute": lambda x: lax.ppermute(x, "k", RING),
    "pshuffle": lambda x: lax.pshuffle(x, "k", [0]),
    "pbroadcast": lambda x: lax.pbroadcast(x, "k", 0),
    "pswapaxes": lambda x: lax.pswapaxes(x, "k", 0),
    "all_to_all": lambda x: lax.all_to_all(x, "k", 0, 0),
    "axis_index": lambda x: lax.axis_index("k"),
    "axis_size": lambda x: lax.axis_size("k"),
    "None": lambda x: lax.psum(x, None),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_an_unbound_name(name: str) -> None:
    with pytest.raises(NameError, match=r"Found an unbound axis name: .*test_collectives"):
        xcube.vmap(UNBOUND[name], axis_name="i")(X)
    with pytest.raises(NameError, match="unbound axis name"):
        UNBOUND[name](X)


def test_an_unbound_name_is_answered_with_those_that_are_bound() -> None:
    with pytest.raises(NameError, match=r"psum: Found .*: k\. The names bound here: 'i', 'j'\."):
        both(lambda x: lax.psum(x, "k"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2]]), "cover all indices"),
        (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [1, 2, 3]]), "cover all indices"),
        (lambda x: lax.psum(x, (0, "i"), axis_index_groups=GROUPS), "one named axis"),
        (lambda x: lax.pmean(x, "i", axis_index_groups=[[0], [1, 2, 3]]), "the same size"),
        (lambda x: lax.all_gather(x, "i", axis_index_groups=[[0], [1, 2, 3]]), "the same size"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), "sources and destinations must be"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)]), "sources and destinations must be"),
        (lambda x: lax.ppermute(x, "i", [(0, 4)]), "in 0..3"),
        (lambda x: lax.pshuffle(x, "i", [0, 1, 2, 2]), "permutation of 0..3"),
        (lambda x: lax.pshuffle(x, "i", [0, 1]), "permutation of 0..3"),
        (lambda x: lax.pbroadcast(x, "i", 4), "0..3"),
        (lambda x: lax.all_gather(x, "i", axis=3), "axis must lie in"),
        (lambda x: lax.psum_scatter(x, "i"), "equal the 4 members"),
        (lambda x: lax.psum_scatter(x[:6], "i", tiled=True), "divisible by the 4 members"),
        (lambda x: lax.all_to_all(x, "i", 0, 1), "equal the 4 members"),
        (lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True), "divisible by the 4 members"),
    ],
)
def test_arguments_that_do_not_fit(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        xcube.vmap(function, axis_name="i")(X)


def test_a_leaf_that_is_no_array() -> None:
    with pytest.raises(TypeError, match="psum"):
        xcube.vmap(lambda x: lax.psum("text", "i"), axis_name="i")(X)
