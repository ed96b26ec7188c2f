"""custom_root and custom_linear_solve against calculus and, differentially, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_compose import assert_same

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.errors import ShapeError

jax = pytest.importorskip("jax")

A = np.array([[2.0, 1.0], [0.5, 3.0]], np.float32)
B = np.array([1.0, 2.0], np.float32)
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


def _square_root(lib: Any) -> Any:
    """The square root by Newton's method, which has no derivative of its own in reverse mode."""

    def solve(f: Any, x: Any) -> Any:
        return lib.lax.while_loop(
            lambda x: lib.numpy.abs(f(x)) > 1e-5, lambda x: x - f(x) / (2 * x), x
        )

    def root(a: Any) -> Any:
        return lib.lax.custom_root(
            lambda x: x * x - a, lib.numpy.ones_like(a), solve, lambda g, y: y / g(1.0)
        )

    return root


@case
def derivatives_of_a_root(lib: Any) -> Any:
    f, a = _square_root(lib), lib.numpy.float32(2)
    return (
        f(a),
        lib.grad(f)(a),
        lib.jvp(f, (a,), (a,)),
        lib.grad(lib.grad(f))(a),
        lib.jit(lib.grad(lib.jit(f)))(a),
        lib.vmap(lib.grad(f))(B),
        lib.grad(lambda b: lib.vmap(f)(b).sum())(B),
    )


@case
def a_root_of_a_tree_with_auxiliary_data(lib: Any) -> Any:
    np_ = lib.numpy

    def f(a: Any) -> Any:
        def equation(x: Any) -> Any:
            return {"u": x["u"] ** 2 - a["u"], "v": x["v"] * x["u"] - a["v"]}

        def solve(f: Any, x: Any) -> Any:
            u = np_.sqrt(a["u"])
            return {"u": u, "v": a["v"] / u}, {"error": f(x)["v"]}

        def tangent_solve(g: Any, y: Any) -> Any:
            zero, one = np_.zeros_like(y["u"]), np_.ones_like(y["u"])
            first = g({"u": one, "v": zero})
            u = y["u"] / first["u"]
            return {"u": u, "v": (y["v"] - first["v"] * u) / g({"u": zero, "v": one})["v"]}

        guess = {"u": np_.ones_like(a["u"]), "v": np_.ones_like(a["v"])}
        return lib.lax.custom_root(equation, guess, solve, tangent_solve, has_aux=True)

    a = {"u": lib.numpy.float32(4), "v": lib.numpy.float32(3)}
    value = lambda a: f(a)[0]["v"] + f(a)[1]["error"]  # noqa: E731
    return f(a)[0], f(a)[1]["error"], lib.grad(value)(a), lib.grad(lib.jit(value))(a)


def _cramer(lib: Any) -> Any:
    """Solves two equations given as a function."""

    def solve(matvec: Any, b: Any) -> Any:
        (a, c), (d, e) = (matvec(lib.numpy.asarray(unit, b.dtype)) for unit in ((1, 0), (0, 1)))
        det = a * e - c * d
        return lib.numpy.stack([(e * b[0] - d * b[1]) / det, (a * b[1] - c * b[0]) / det])

    return solve


def _solver(lib: Any, **options: Any) -> Any:
    solve = _cramer(lib)
    back = {} if options.get("symmetric") else {"transpose_solve": solve}
    return lambda a, b: lib.lax.custom_linear_solve(
        lambda x: lib.numpy.dot(a, x), b, solve, **back, **options
    )


@case
def derivatives_of_a_solution(lib: Any) -> Any:
    f = _solver(lib)
    a, b = lib.numpy.asarray(A), lib.numpy.asarray(B)
    return (
        f(a, b),
        lib.vjp(f, a, b)[1](b),
        lib.vjp(lib.jit(f), a, b)[1](b),
        lib.jvp(f, (a, b), (a.T, b)),
        lib.grad(lambda a: (lib.grad(lambda a: f(a, b)[0])(a) ** 2).sum())(a),
        lib.jit(lib.grad(lambda a: lib.jvp(lambda a: f(a, b)[0], (a,), (a.T,))[1]))(a),
    )


@case
def batches_of_systems(lib: Any) -> Any:
    f = _solver(lib)
    a, b = lib.numpy.stack([A, A.T, A + 1]), lib.numpy.stack([B, B + 1, -B])
    found = []
    for axes in ((0, None), (None, 0), (0, 0)):
        args = [x if axis == 0 else x[0] for x, axis in zip((a, b), axes, strict=True)]
        total = lambda a, b, axes=axes: (lib.vmap(f, axes)(a, b) ** 2).sum()  # noqa: E731
        found += [lib.vmap(f, axes)(*args), lib.grad(total, (0, 1))(*args)]
    return found


@case
def symmetric_systems_with_auxiliary_data(lib: Any) -> Any:
    inner = _cramer(lib)
    solve = lambda matvec, b: (inner(matvec, b), {"norm": (b * b).sum()})  # noqa: E731
    a = lib.numpy.asarray(A + A.T)

    def f(a: Any, b: Any) -> Any:
        s = a + a.T
        return lib.lax.custom_linear_solve(
            lambda x: lib.numpy.dot(s, x), b, solve, symmetric=True, has_aux=True
        )

    value = lambda a, b: f(a, b)[0].sum()  # noqa: E731
    return f(a, B), lib.grad(value, (0, 1))(a, B), lib.grad(lib.jit(value), (0, 1))(a, B)


@case
def systems_of_trees(lib: Any) -> Any:
    def f(k: Any, b: Any) -> Any:
        matvec = lambda x: {"p": k * x["p"], "q": 2 * x["q"] + x["p"][0]}  # noqa: E731

        def solve(matvec: Any, b: Any) -> Any:
            p = b["p"] / k
            return {"p": p, "q": (b["q"] - p[0]) / 2}

        def back(vecmat: Any, b: Any) -> Any:
            q = b["q"] / 2
            return {"p": (b["p"] - lib.numpy.asarray([1.0, 0.0]) * q) / k, "q": q}

        return lib.lax.custom_linear_solve(matvec, b, solve, back)

    b = {"p": lib.numpy.asarray(B), "q": lib.numpy.float32(3)}
    total = lambda k, b: f(k, b)["p"].sum() + f(k, b)["q"] ** 2  # noqa: E731
    return f(2.0, b), lib.grad(total, (0, 1))(lib.numpy.float32(2), b)


# on its own -----------------------------------------------------------------------------------


def test_the_gradient_of_a_solution_is_that_of_the_inverse() -> None:
    f = _solver(xcube)
    da, db = xcube.grad(lambda a, b: f(a, b).sum(), (0, 1))(jnp.asarray(A), jnp.asarray(B))
    inverse = np.linalg.inv(A)
    np.testing.assert_allclose(db, inverse.T.sum(1), 1e-5)
    np.testing.assert_allclose(da, -np.outer(inverse.T.sum(1), inverse @ B), 1e-5)


def test_auxiliary_data_may_be_integers() -> None:
    def f(a: Any) -> Any:
        solve = lambda f, x: (jnp.sqrt(a), {"steps": 3})  # noqa: E731
        return lax.custom_root(lambda x: x * x - a, 1.0, solve, lambda g, y: y / g(1.0), True)

    (value, aux), gradient = xcube.value_and_grad(f, has_aux=True)(4.0)
    assert (float(value), int(aux["steps"]), float(gradient)) == (2, 3, 0.25)


def test_reverse_mode_needs_a_transposed_solver() -> None:
    f = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda m, b: b / 2)  # noqa: E731
    np.testing.assert_allclose(xcube.jvp(f, (B,), (B,))[1], B / 2)
    with pytest.raises(TypeError, match="reverse mode needs transpose_solve, or symmetric=True"):
        xcube.grad(lambda b: f(b).sum())(B)


def test_what_is_unlike_its_model_is_refused() -> None:
    solve = lambda f, x: x  # noqa: E731
    with pytest.raises(TypeError, match=r"custom_root: f: its result must have the structure"):
        lax.custom_root(lambda x: (x,), 1.0, solve, solve)
    with pytest.raises(ShapeError, match=r"custom_root: solve: its result must have the shape of"):
        lax.custom_root(lambda x: x, B, lambda f, x: x[0], solve)
    with pytest.raises(TypeError, match=r"custom_root: tangent_solve: its result must have"):
        lax.custom_root(lambda x: x, B, solve, lambda g, y: (y, y))
    with pytest.raises(ValueError, match=r"custom_root: solve: with has_aux it must return a pair"):
        lax.custom_root(lambda x: x, B, solve, solve, has_aux=True)
    with pytest.raises(ShapeError, match=r"custom_linear_solve: matvec: its result must have"):
        lax.custom_linear_solve(lambda x: x[:1], B, solve)
    with pytest.raises(TypeError, match=r"custom_linear_solve: the first argument must be a func"):
        lax.custom_linear_solve(A, B, solve)
    with pytest.raises(TypeError, match=r"initial_guess must be an array or a number"):
        lax.custom_root(lambda x: x, "text", solve, solve)
