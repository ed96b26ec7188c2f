"""custom_vmap and sequential_vmap: the same programs with xcube and with JAX; then derivatives,
which JAX has in forward mode only, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_compose import assert_same

import xcube
import xcube.numpy as jnp
from xcube.custom_batching import custom_vmap, sequential_vmap
from xcube.errors import ShapeError, TraceError, UnexpectedTracerError

jax = pytest.importorskip("jax")

X = np.array([0.3, -0.7, 1.1], np.float32)
Y = np.array([2.0, 3.0, 5.0], np.float32)
CASES: list[Any] = []


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Adds a case to the table."""
    CASES.append(pytest.param(function, id=function.__name__))
    return function


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_jax(case: Callable[[Any], Any]) -> None:
    with jax.disable_jit():  # its values are the same, and JAX need not compile
        want = case(jax)
    assert_same(case(xcube), want)


def _marked(lib: Any, seen: list[Any] | None = None) -> Any:
    """sin(x) * y, ten times that under vmap."""
    np_ = lib.numpy
    f = lib.custom_batching.custom_vmap(lambda x, y: np_.sin(x) * y)

    def rule(axis_size: int, in_batched: Any, x: Any, y: Any) -> Any:
        if seen is not None:
            seen.append((axis_size, in_batched, x.shape, y.shape))
        return 10 * np_.sin(x) * y, in_batched[0] or in_batched[1]

    f.def_vmap(rule)
    return f


@case
def the_rule_runs_under_vmap_and_only_there(lib: Any) -> Any:
    seen: list[Any] = []
    f = _marked(lib, seen)
    found = [f(0.5, y=2.0), lib.jit(f)(0.5, 2.0)]
    for axes in ((0, None), (None, 0), (0, 0)):
        args = [X if axis == 0 else lib.numpy.float32(0.5) for axis in axes]
        found += [lib.vmap(f, axes)(*args), lib.jit(lib.vmap(lib.jit(f), axes))(*args)]
    return found, seen


@case
def other_axes_come_in_front(lib: Any) -> Any:
    f = _marked(lib)
    table = lib.numpy.outer(X, Y)
    return lib.vmap(f, (1, 0), out_axes=1)(table, Y), lib.vmap(f, (0, None))(table, Y)


@case
def maps_of_maps_apply_the_rule_once(lib: Any) -> Any:
    f = _marked(lib)
    return lib.vmap(lambda x: lib.vmap(lambda y: f(x, y))(Y))(X)


@case
def forward_mode_of_the_rule(lib: Any) -> Any:
    f = _marked(lib)
    one = lib.numpy.ones(3)
    push = lambda x, y, dx, dy: lib.jvp(f, (x, y), (dx, dy))  # noqa: E731
    return (
        lib.jvp(f, (X, Y), (one, one)),
        lib.jvp(lib.vmap(f), (X, Y), (one, Y)),
        lib.vmap(push)(X, Y, one, Y),
        lib.vmap(lib.jit(push))(X, Y, one, Y),
        lib.vmap(lambda x, dx: lib.jvp(lambda x: f(x, 2.0), (x,), (dx,)))(X, Y),
    )


@case
def trees_of_arguments_and_results(lib: Any) -> Any:
    f = lib.custom_batching.custom_vmap(lambda p, n: {"a": p["x"] * n, "n": n})

    def rule(size: int, batched: Any, p: Any, n: Any) -> Any:
        return {"a": 3 * p["x"] * n, "n": n}, {"a": batched[0]["x"], "n": batched[1]}

    f.def_vmap(rule)
    two = lib.numpy.int32(2)
    return f({"x": X}, two), lib.vmap(f, (0, None), {"a": 0, "n": None})({"x": X}, two)


@case
def one_example_after_another(lib: Any) -> Any:
    f = lib.custom_batching.sequential_vmap(lambda x, y: {"out": x["a"] * y + x["b"]})
    args = {"a": X, "b": lib.numpy.float32(1)}, lib.numpy.outer(X, Y)
    mapped = lib.vmap(f, ({"a": 0, "b": None}, 0))
    outer = lib.vmap(mapped, (None, 2))(args[0], lib.numpy.ones((3, 2, 4)))
    return mapped(*args), lib.jit(mapped)(*args), outer


@case
def inside_a_rule_for_cotangents(lib: Any) -> Any:
    np_ = lib.numpy
    inner = _marked(lib)
    f = lib.custom_vjp(lambda x, y: inner(x, y))
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda s, ct: (np_.cos(s[0]) * ct, s[1] * ct))
    total = lambda x, y: lib.vmap(f)(x, y).sum()  # noqa: E731
    return lib.vmap(f)(X, Y), lib.grad(total, (0, 1))(X, Y), lib.vmap(lib.grad(f, (0, 1)))(X, Y)


@case
def inside_loops_and_branches(lib: Any) -> Any:
    f = _marked(lib)
    lax = lib.lax
    loop = lambda x: lax.fori_loop(0, 2, lambda _, c: f(c, 2.0), x)  # noqa: E731
    branch = lambda x: lax.cond(True, lambda x: f(x, x), lambda x: x, x)  # noqa: E731
    return [lib.vmap(g)(X) for g in (loop, branch)], loop(X), branch(X)


# on its own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit, lambda f: xcube.checkpoint(f)])
def test_reverse_mode_is_that_of_the_rule_under_vmap_and_of_the_function_elsewhere(
    wrap: Any,
) -> None:
    f = wrap(_marked(xcube))
    total = lambda x, y: xcube.vmap(f)(x, y).sum()  # noqa: E731
    dx, dy = xcube.grad(total, (0, 1))(X, Y)
    np.testing.assert_allclose(dx, 10 * np.cos(X) * Y, 1e-5)
    np.testing.assert_allclose(dy, 10 * np.sin(X), 1e-5)
    np.testing.assert_allclose(xcube.grad(f)(0.5, 2.0), 2 * np.cos(0.5), 1e-5)
    second = xcube.grad(xcube.grad(f))(0.5, 2.0)
    np.testing.assert_allclose(second, -2 * np.sin(0.5), 1e-5)


def test_the_gradient_under_vmap_is_that_of_the_function() -> None:
    f = _marked(xcube)
    for wrap in (lambda f: f, xcube.jit):
        gradient = xcube.vmap(wrap(xcube.grad(f)))(X, Y)
        np.testing.assert_allclose(gradient, np.cos(X) * Y, 1e-5)


def test_outside_of_traces_python_sees_values() -> None:
    f = custom_vmap(lambda x: x if x > 0 else -x)
    f.def_vmap(lambda size, batched, x: (jnp.abs(x), True))
    assert (float(f(-2.0)), float(xcube.grad(f)(-2.0))) == (2, -1)
    np.testing.assert_array_equal(xcube.vmap(sequential_vmap(jnp.abs))(X), np.abs(X))


def test_rules_may_use_arrays_of_their_own() -> None:
    f = custom_vmap(lambda x: x)
    f.def_vmap(lambda size, batched, x: (x * jnp.asarray(Y), True))
    loop = lambda x: xcube.lax.fori_loop(0, 2, lambda _, c: f(c), x)  # noqa: E731
    for wrap in (lambda f: f, xcube.jit):
        np.testing.assert_allclose(xcube.vmap(wrap(f))(X), X * Y, 1e-6)
        np.testing.assert_allclose(xcube.vmap(wrap(loop))(X), X * Y * Y, 1e-6)


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        (lambda n, b, x: x, TypeError, "must return a pair, the results and which of them"),
        (
            lambda n, b, x: ((x, x), (True, True)),
            ValueError,
            "the results of the rule <lambda>",
        ),
        (lambda n, b, x: (x, (True,)), ValueError, "what says which results are batched,"),
        (lambda n, b, x: (x[:2], True), ShapeError, r"must be f32\[3\].*got f32\[2\]"),
        (lambda n, b, x: (x, False), ShapeError, r"must be f32\[\].*got f32\[3\]"),
    ],
)
def test_a_rule_must_give_what_the_function_gives(rule: Any, error: Any, words: str) -> None:
    f = custom_vmap(lambda x: 2 * x)
    f.def_vmap(rule)
    for g in (f, xcube.jit(f)):
        with pytest.raises(error, match=words):
            xcube.vmap(g)(X)


def test_calls_that_do_not_fit_are_refused() -> None:
    f = custom_vmap(lambda x: x)
    with pytest.raises(AttributeError, match=r"<lambda> has no rule. At test_custom_b.*def_vmap"):
        f(1.0)
    f.def_vmap(lambda size, batched, x: (x, True))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        f(y=1.0)

    def closing(y: Any, x: Any) -> Any:
        g = custom_vmap(lambda x: x * y)
        g.def_vmap(lambda size, batched, x: (x, True))
        return g(x)

    with pytest.raises(TraceError, match="closes over a value that is batched"):
        xcube.vmap(closing)(X, X)
    push = lambda x: xcube.jvp(lambda y: closing(y, x), (2.0,), (1.0,))  # noqa: E731
    with pytest.raises(UnexpectedTracerError, match="custom_vmap: detected differentiation"):
        xcube.vmap(push)(X)
    np.testing.assert_allclose(xcube.grad(closing)(2.0, 3.0), 3.0)
    np.testing.assert_allclose(xcube.grad(xcube.jit(closing))(2.0, 3.0), 3.0)
