"""Taylor mode: elementary functions against mpmath, everything else against nested forward mode and
JAX's jet; how it composes, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jax_numpy
import mpmath
import numpy as np
import pytest
from jax.experimental.jet import jet as jax_jet

import xcube
import xcube.numpy as jnp
from xcube import lax, tree
from xcube.errors import DtypeError, ShapeError, UnexpectedTracerError
from xcube.experimental.jet import jet
from xcube.ir import count

ORDER = 6
STRAIGHT = [1.0] + [0.0] * (ORDER - 1)
CURVE = [0.8, -0.5, 0.3, 0.7]


def nested(function: Callable[[Any], Any], x: Any, terms: Sequence[float]) -> list[np.ndarray]:
    """Derivatives along the curve, each by forward mode over the one before."""

    def along(t: Any) -> Any:
        steps = [(t**k) * (c / math.factorial(k)) for k, c in enumerate(terms, 1)]
        return function(x + sum(steps[1:], steps[0]))

    found, derivative = [], along
    for _ in terms:
        derivative = (lambda f: lambda t: xcube.jvp(f, (t,), (1.0,))[1])(derivative)
        found.append(np.asarray(derivative(0.0)))
    return found


# elementary functions -------------------------------------------------------------------------

ELEMENTARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float]] = {
    "neg": (lax.neg, lambda x: -x, 0.4),
    "exp": (lax.exp, mpmath.exp, 0.4),
    "exp2": (lax.exp2, lambda x: mpmath.power(2, x), 0.4),
    "expm1": (lax.expm1, mpmath.expm1, 0.4),
    "log": (lax.log, mpmath.log, 0.4),
    "log2": (lax.log2, lambda x: mpmath.log(x, 2), 0.4),
    "log1p": (lax.log1p, mpmath.log1p, 0.4),
    "logistic": (lax.logistic, lambda x: 1 / (1 + mpmath.exp(-x)), -1.3),
    "sin": (lax.sin, mpmath.sin, 0.4),
    "cos": (lax.cos, mpmath.cos, 0.4),
    "tan": (lax.tan, mpmath.tan, 0.4),
    "asin": (lax.asin, mpmath.asin, 0.4),
    "acos": (lax.acos, mpmath.acos, 0.4),
    "atan": (lax.atan, mpmath.atan, -2.4),
    "sinh": (lax.sinh, mpmath.sinh, 0.4),
    "cosh": (lax.cosh, mpmath.cosh, 0.4),
    "tanh": (lax.tanh, mpmath.tanh, 1.4),
    "asinh": (lax.asinh, mpmath.asinh, -0.4),
    "acosh": (lax.acosh, mpmath.acosh, 1.9),
    "atanh": (lax.atanh, mpmath.atanh, 0.4),
    "erf": (lax.erf, mpmath.erf, 0.4),
    "erfc": (lax.erfc, mpmath.erfc, 0.4),
    "erf_inv": (lax.erf_inv, mpmath.erfinv, 0.4),
    "sqrt": (lax.sqrt, mpmath.sqrt, 0.4),
    "rsqrt": (lax.rsqrt, lambda x: 1 / mpmath.sqrt(x), 0.4),
    "cbrt": (lax.cbrt, mpmath.cbrt, 0.4),
    "square": (lax.square, lambda x: x * x, 0.4),
    "cube": (lambda x: lax.integer_pow(x, 3), lambda x: x**3, 0.0),
    "inverse square": (lambda x: lax.integer_pow(x, -2), lambda x: x**-2, -0.4),
    "power zero": (lambda x: lax.integer_pow(x, 0), lambda x: x**0, 0.4),
    "power 1.7": (lambda x: lax.pow(x, jnp.float64(1.7)), lambda x: x ** mpmath.mpf(1.7), 0.4),
    "whole power": (lambda x: lax.pow(x, jnp.int32(3)), lambda x: x**3, -0.4),
    "base 1.7": (lambda x: lax.pow(jnp.float64(1.7), x), lambda x: mpmath.mpf(1.7) ** x, 0.4),
    "x to x": (lambda x: lax.pow(x, x), lambda x: x**x, 0.4),
    "atan2": (lambda x: lax.atan2(x * x, 1 - x), lambda x: mpmath.atan2(x * x, 1 - x), 0.4),
    "quotient": (lambda x: (x + 2) / (1 + x * x), lambda x: (x + 2) / (1 + x * x), 0.4),
    "lgamma": (lax.lgamma, mpmath.loggamma, 1.4),
    "digamma": (lax.digamma, mpmath.digamma, 1.4),
    "polygamma": (lambda x: lax.polygamma(2, x), lambda x: mpmath.polygamma(2, x), 1.4),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_have_their_taylor_series(name: str) -> None:
    function, exact, x = ELEMENTARY[name]
    with mpmath.workdps(50), xcube.enable_x64():
        expected = [float(c) for c in mpmath.taylor(exact, mpmath.mpf(x), ORDER)]
        first, rest = jet(function, (jnp.float64(x),), (STRAIGHT,), factorial_scaled=False)
        found = [float(c) for c in (first, *rest)]
    np.testing.assert_allclose(found, expected, 2e-9, 1e-13)


# everything else ------------------------------------------------------------------------------


@xcube.custom_jvp
def with_own_rule(x: Any) -> Any:
    return jnp.sin(x)


with_own_rule.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2 * tangents[0]))


@xcube.custom_vjp
def with_own_pullback(x: Any) -> Any:
    return jnp.sin(x)


with_own_pullback.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (2 * ct,))


def of_three(x: Any) -> Any:
    """Three values that depend on x, not in order."""
    return jnp.stack([jnp.sin(x), x * x * 3, x + 0.1])


OTHER: dict[str, Callable[[Any], Any]] = {
    "abs": lambda x: jnp.abs(x - 1),
    "abs of complex": lambda x: jnp.abs(jnp.exp(1j * x) * (x + 2j)),
    "parts of complex": lambda x: (lambda z: z.real * z.imag)(lax.complex(x, x * x) ** 2),
    "max": lambda x: jnp.maximum(x, x * x),
    "max of equals": lambda x: jnp.maximum(x, x * 1.0),
    "min": lambda x: jnp.minimum(x, x * x),
    "clamp": lambda x: lax.clamp(0.1, x * x, 0.9),
    "rem": lambda x: lax.rem(x * 7, x + 0.5),
    "sign": lambda x: jnp.sign(x) * x,
    "where": lambda x: jnp.where(x > 0.1, x * x, x),
    "cast": lambda x: (x * x).astype(jnp.float32).astype(jnp.float64),
    "cast to int": lambda x: (x * 10).astype(jnp.int32) * x,
    "dot": lambda x: of_three(x) @ jnp.outer(of_three(x), of_three(x * x)),
    "views": lambda x: jnp.pad(of_three(x)[::-1].reshape(3, 1), 1, constant_values=2.0).T,
    "gather": lambda x: of_three(x)[jnp.array([1, 0, 1])],
    "scatter": lambda x: jnp.zeros(3).at[jnp.array([1, 1])].add(of_three(x)[:2]),
    "scatter set": lambda x: of_three(x).at[1].set(x**3),
    "slice": lambda x: lax.dynamic_slice(of_three(x), (1,), (2,)),
    "update": lambda x: lax.dynamic_update_slice(of_three(x), x[None] ** 2, (1,)),
    "sum": lambda x: of_three(x).sum(),
    "largest": lambda x: of_three(x).max(),
    "product": lambda x: of_three(x).prod(),
    "cumulative": lambda x: jnp.cumsum(of_three(x)) * jnp.cumprod(of_three(x)),
    "cumulative maximum": lambda x: lax.cummax(of_three(x), 0) * of_three(x),
    "logsumexp": lambda x: lax.cumlogsumexp(of_three(x), 0),
    "sort": lambda x: jnp.sort(of_three(x)) * jnp.arange(3.0),
    "top_k": lambda x: lax.top_k(of_three(x), 2)[0],
    "barrier": lambda x: lax.optimization_barrier((x * x, 3.0))[0],
    "stopped": lambda x: lax.stop_gradient(x) * x,
    "softmax": lambda x: xcube.nn.softmax(of_three(x)),
    "gelu": lambda x: xcube.nn.gelu(x),
    "jit": xcube.jit(lambda x: jnp.sin(x) * of_three(x)),
    "checkpoint": xcube.checkpoint(lambda x: jnp.sin(x) * x),
    "scan": lambda x: lax.scan(lambda c, a: (c * a * x, c), x, jnp.arange(1.0, 4.0)),
    "while": lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * c + x, x + 1),
    "cond": lambda x: lax.cond(x > 0, lambda y: y * jnp.sin(y), lambda y: y, x),
    "vmap": lambda x: xcube.vmap(lambda y: jnp.sin(x) * y)(of_three(x)),
}


@pytest.mark.parametrize("name", OTHER)
def test_series_are_those_of_nested_forward_mode(name: str) -> None:
    function = OTHER[name]
    flat = lambda x: jnp.concatenate([jnp.ravel(y) for y in tree.leaves(function(x))])  # noqa: E731
    with xcube.enable_x64():
        x = jnp.float64(0.4)
        first, found = jet(flat, (x,), (CURVE,))
        np.testing.assert_allclose(first, flat(x), 1e-12)
        for one, other in zip(found, nested(flat, x, CURVE), strict=True):
            np.testing.assert_allclose(one, other, 1e-6 if name == "cast" else 1e-9, 1e-11)


JAX: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "product": lambda np_: lambda x, y: np_.sin(x) * y,
    "quotient": lambda np_: lambda x, y: x / (2 + y * y),
    "matrix": lambda np_: lambda x, y: np_.tanh(x @ np_.outer(y, x)),
    "tree": lambda np_: lambda x, y: {"a": np_.exp(x), "b": (y.sum(), x > 0, np_.arange(2))},
    "constant": lambda np_: lambda x, y: np_.ones(2),
}


@pytest.mark.parametrize("name", JAX)
def test_series_are_those_of_jax(name: str) -> None:
    rng = np.random.default_rng(0)
    primals = tuple(rng.normal(size=3).astype(np.float32) for _ in range(2))
    series = tuple([rng.normal(size=3).astype(np.float32) for _ in range(4)] for _ in range(2))
    ours = jet(JAX[name](jnp), primals, series)
    theirs = jax_jet(JAX[name](jax_numpy), primals, series)
    assert str(tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, 2e-4, 2e-4)


# composition ----------------------------------------------------------------------------------


def wave(x: Any) -> Any:
    return jnp.sin(x) * x


def test_series_compose_with_other_transforms() -> None:
    derivatives = lambda x: jet(wave, (x,), ([1.0, 0.0, 0.0],))[1]  # noqa: E731
    with xcube.enable_x64():
        x = jnp.float64(0.3)
        plain = [float(term) for term in derivatives(x)]
        third = float(xcube.grad(xcube.grad(xcube.grad(wave)))(x))
        assert plain[2] == pytest.approx(third)
        assert [float(term) for term in xcube.jit(derivatives)(x)] == pytest.approx(plain)
        batch = xcube.vmap(derivatives)(jnp.array([0.1, 0.3]))
        assert [float(term[1]) for term in batch] == pytest.approx(plain)
        assert float(xcube.grad(lambda y: derivatives(y)[1])(x)) == pytest.approx(third)
        over = jet(xcube.grad(wave), (x,), ([1.0, 0.0],))[1]
        assert [float(term) for term in over] == pytest.approx(plain[1:])
        twice = jet(lambda y: jet(wave, (y,), ([1.0],))[1][0], (x,), ([1.0, 0.0],))[1]
        assert [float(term) for term in twice] == pytest.approx(plain[1:])


def test_a_jitted_function_stays_one_call() -> None:
    jitted = xcube.jit(lambda x, y: jnp.sin(x) * y)
    program = xcube.make_jaxpr(lambda x: jet(jitted, (x, 3.0), ([1.0, 0.0], [0.0, 0.0])))(0.3)
    assert [eqn.primitive.name for eqn in program.equations].count("jit") == 1


def test_cost_grows_with_the_square_of_the_order() -> None:
    function = lambda x: jnp.tanh(jnp.exp(jnp.sin(x)))  # noqa: E731

    def size(order: int) -> int:
        return count(xcube.make_jaxpr(lambda x: jet(function, (x,), ([x] * order,)))(0.3))

    assert size(16) < 4.4 * size(8)


def test_python_may_look_at_values() -> None:
    assert float(jet(lambda x: x * x if x > 0 else x, (3.0,), ([1.0],))[1][0]) == 6


@pytest.mark.parametrize("function", [with_own_rule, with_own_pullback])
def test_rules_for_tangents_are_not_for_series(function: Callable[[Any], Any]) -> None:
    expected = [float(term) for term in jet(jnp.sin, (0.4,), (CURVE,))[1]]
    for form in (function, xcube.jit(function)):
        assert [float(term) for term in jet(form, (0.4,), (CURVE,))[1]] == pytest.approx(expected)


def test_constants_and_numbers() -> None:
    (_, big, n), terms = jet(lambda x, n: (x * n, n > 1, n), (jnp.ones(3), 3), ([2.0], [0]))
    assert (bool(big), int(n)) == (True, 3)
    np.testing.assert_array_equal(terms[0][0], [6, 6, 6])
    assert [float(term[0]) for term in terms[1:]] == [0, 0]
    assert jet(lambda x: x, (3.0,), ([],))[1] == []


# wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("primals", "series", "kind", "words"),
    [
        ((1.0, 2.0), ([1.0], [1.0, 2.0]), ValueError, r"of one length; got 2 primals .* \[1, 2\]"),
        ((1.0,), (), ValueError, "got 1 primals and series of lengths"),
        ((3,), ([1.0],), DtypeError, r"term 1 of primal 0 must be zero, for i32\[\] is constant"),
        ((3.0,), ([0.0, np.ones(2)],), ShapeError, r"term 2 of primal 0 .* f32\[\]; got f32\[2\]"),
        ((3.0,), ([np.float16(1)],), DtypeError, r"must be like the primal, f32\[\]; got f16\[\]"),
        ((3.0,), ([1j],), DtypeError, r"must be like the primal, f32\[\]; got c64\[\]"),
        (("x",), ([1.0],), TypeError, "primal 0 is str"),
    ],
)
def test_wrong_use_is_refused(primals: Any, series: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        jet(lambda *xs: xs[0], primals, series)


def test_a_series_must_not_outlive_its_function() -> None:
    kept: list[Any] = []
    jet(lambda x: (kept.append(x), x)[1], (3.0,), ([1.0],))
    assert repr(kept[0]) == "JetTracer(primal=3.0, order=1)"
    with pytest.raises(UnexpectedTracerError, match="outlived the function given to jet"):
        kept[0] + 1
