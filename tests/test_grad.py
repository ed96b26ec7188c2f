"""grad, value_and_grad, vjp, jvp, linearize at the door: arguments, structures, results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.errors import ConcretizationTypeError, TracerArrayConversionError

X = np.array([0.5, -1.0, 2.0], np.float32)


def test_the_gradient_has_the_structure_of_the_argument() -> None:
    tree = {"a": (jnp.asarray(X), [jnp.float32(2)]), "b": None}
    gradient = xcube.grad(lambda t: (t["a"][0] ** 2).sum() * t["a"][1][0])(tree)
    assert xcube.tree.structure(gradient) == xcube.tree.structure(tree)
    np.testing.assert_allclose(gradient["a"][0], 4 * X)
    np.testing.assert_allclose(gradient["a"][1][0], 5.25)


def test_argnums_choose_arguments_and_shape_the_result() -> None:
    f = lambda a, b, c: a * b + b * c  # noqa: E731
    assert float(xcube.grad(f)(2.0, 3.0, 5.0)) == 3
    assert float(xcube.grad(f, 1)(2.0, 3.0, 5.0)) == 7
    assert [float(g) for g in xcube.grad(f, (2, 0))(2.0, 3.0, 5.0)] == [3, 3]
    assert [float(g) for g in xcube.grad(f, [1])(2.0, 3.0, 5.0)] == [7]
    assert float(xcube.grad(f, -1)(2.0, 3.0, 5.0)) == 3


def test_keyword_arguments_are_not_differentiated() -> None:
    gradient = xcube.grad(lambda x, scale: (x * scale).sum())(jnp.asarray(X), scale=3)
    np.testing.assert_array_equal(gradient, [3, 3, 3])


def test_value_and_gradient_come_together_with_the_auxiliary() -> None:
    def f(x: Any) -> Any:
        return (x**2).sum(), {"first": x[0], "name": "text"}

    (value, aux), gradient = xcube.value_and_grad(f, has_aux=True)(jnp.asarray(X))
    assert float(value) == 5.25
    assert (float(aux["first"]), aux["name"]) == (0.5, "text")
    np.testing.assert_array_equal(gradient, 2 * X)
    np.testing.assert_array_equal(aux["first"] + 1, 1.5)


def test_auxiliary_results_may_be_jitted_through() -> None:
    both = xcube.jit(xcube.value_and_grad(lambda x: ((x * x).sum(), x + 1), has_aux=True))
    (_, aux), gradient = both(X)
    np.testing.assert_array_equal(aux, X + 1)
    np.testing.assert_array_equal(gradient, 2 * X)


def test_python_may_look_at_values_outside_jit() -> None:
    def power(x: Any, n: int) -> Any:
        result = x
        for _ in range(n - 1):
            result = result * x
            if jnp.abs(result) > 100:
                break
        return result

    assert float(xcube.grad(power)(2.0, 3)) == 12
    assert float(xcube.grad(power)(20.0, 9)) == 40
    seen: list[float] = []
    xcube.grad(lambda x: [seen.append(x.item()), int(x), bool(x), x * 2][-1])(3.0)
    assert seen == [3.0]


@pytest.mark.parametrize(
    "function",
    [np.sin, float, complex, lambda x: x * np.asarray(x), lambda x: x.tolist() * x],
)
def test_what_would_lose_a_derivative_is_an_error(function: Any) -> None:
    kinds = (ConcretizationTypeError, TracerArrayConversionError)
    for transform in (xcube.grad, xcube.jacfwd):
        with pytest.raises(kinds, match=r"would have no derivative.* stop_gradient\(x\)"):
            transform(function)(2.0)
    assert xcube.grad(lambda x: float(lax.stop_gradient(x)) * x)(3.0) == 3.0


def test_a_jvp_pushes_several_tangents() -> None:
    value, tangent = xcube.jvp(
        lambda x, y: {"p": x * y}, (2.0, jnp.asarray(X)), (1.0, jnp.asarray(X))
    )
    np.testing.assert_allclose(value["p"], 2 * X)
    np.testing.assert_allclose(tangent["p"], 3 * X)


def test_a_linear_map_is_used_many_times() -> None:
    traced = 0

    def f(x: Any) -> Any:
        nonlocal traced
        traced += 1
        return jnp.sin(x) * x

    _, push = xcube.linearize(f, jnp.asarray(X))
    slope = np.cos(X) * X + np.sin(X)
    for k in range(3):
        np.testing.assert_allclose(push(jnp.asarray(X) * k), slope * X * k, 1e-5)
    np.testing.assert_allclose(xcube.vmap(push)(jnp.eye(3)), np.diag(slope), 1e-5, 1e-7)
    assert traced == 1


def test_a_pullback_is_used_many_times() -> None:
    _, pull_back = xcube.vjp(lambda x, w: (x * w, x.sum()), jnp.asarray(X), jnp.asarray(2 * X))
    for k in (1.0, 3.0):
        dx, dw = pull_back((jnp.full(3, k), jnp.float32(1)))
        np.testing.assert_allclose(dx, 2 * X * k + 1)
        np.testing.assert_allclose(dw, X * k)


def test_float0_stands_for_the_tangents_of_integers() -> None:
    dtype = xcube.vjp(lambda n: n * 2.0, 3)[1](1.0)[0].dtype
    zero = np.zeros((), dtype)
    value, tangent = xcube.jvp(lambda x, n: x * n, (2.0, 3), (1.0, zero))
    assert (float(value), float(tangent)) == (6, 3)
    gradient = xcube.grad(lambda x, n: x * n, (0, 1), allow_int=True)(2.0, 3)
    assert gradient[1].dtype == dtype


def test_gradients_stop_where_nothing_depends() -> None:
    gradient = xcube.grad(lambda x: (x * xcube.lax.stop_gradient(x)).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(gradient, X)
    gradient = xcube.grad(lambda x: jnp.floor(x).sum() + jnp.sign(x).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(gradient, [0, 0, 0])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_the_gradient_has_the_dtype_of_the_argument(dtype: Any) -> None:
    gradient = xcube.grad(lambda x: (x.astype(jnp.float32) ** 2).sum())(jnp.asarray(X, dtype))
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient.astype(jnp.float32), 2 * X)


def test_captured_arrays_take_part_in_second_derivatives() -> None:
    w = jnp.asarray(X)
    hessian = xcube.vmap(
        lambda v: xcube.jvp(xcube.grad(lambda x: ((x * w) ** 3).sum()), (w,), (v,))[1]
    )
    np.testing.assert_allclose(hessian(jnp.eye(3)), np.diag(6 * X**4), 1e-5)


def test_a_gradient_compiles_to_few_launches() -> None:
    """Forward and backward of an elementwise loss are one pass over the data, and a sum."""

    def loss(x: Any) -> Any:
        return jnp.sum(jnp.tanh(x * 2) ** 2)

    text = str(xcube.inspect(xcube.jit(xcube.value_and_grad(loss)))(jnp.ones((64, 64))).program)
    assert text.splitlines()[0].split(":")[1].split()[0] in ("1", "2"), text


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=6), st.integers(-2, 2))
def test_derivatives_of_polynomials_are_exact(coefficients: list[int], at: int) -> None:
    def polynomial(x: Any) -> Any:
        result = 0.0 * x
        for c in coefficients:
            result = result * x + float(c)
        return result

    exact, f = np.polynomial.Polynomial(coefficients[::-1]), polynomial
    for order in range(1, 4):
        f = xcube.grad(f)
        assert float(f(float(at))) == exact.deriv(order)(at)
