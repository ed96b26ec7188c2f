"""Transforms of transforms: a case is one function of a library, run with xcube and with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy

jax = pytest.importorskip("jax")

Case = Callable[[Any], Any]
CASES: list[Any] = []

X = np.array([0.3, -0.7, 1.1], np.float32)
A = np.array([[0.5, -1.0, 0.2], [0.1, 0.4, -0.3]], np.float32)


def case(function: Case) -> Case:
    """Adds a case to the table."""
    CASES.append(pytest.param(function, id=function.__name__))
    return function


def assert_same(got: Any, want: Any) -> None:
    """Equal structures, shapes, dtypes, weak types and nearly equal values."""
    got_leaves, got_tree = xcube.tree_util.tree_flatten(got)
    want_leaves, want_tree = jax.tree_util.tree_flatten(want)
    assert str(got_tree) == str(want_tree)
    for one, other in zip(got_leaves, want_leaves, strict=True):
        assert np.shape(one) == np.shape(other)
        if hasattr(other, "dtype"):
            assert one.dtype == other.dtype
            assert getattr(one, "weak_type", False) == getattr(other, "weak_type", False)
        if np.asarray(other).dtype.kind not in "VU":
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), 2e-5, 2e-6)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_jax(case: Case) -> None:
    with jax.disable_jit():  # its values are the same, and JAX need not compile
        want = case(jax)
    assert_same(case(xcube), want)


# derivatives of derivatives -------------------------------------------------------------------


@case
def five_derivatives_of_a_scalar(lib: Any) -> Any:
    f = lambda x: lib.numpy.sin(x) * lib.numpy.exp(0.5 * x) / (1 + x * x)  # noqa: E731
    found = []
    for _ in range(5):
        found.append(f(0.7))
        f = lib.grad(f)
    return found


@case
def forward_over_forward_over_forward(lib: Any) -> Any:
    f = lambda x: lib.numpy.tanh(x) ** 3  # noqa: E731

    def derivative(g: Any) -> Any:
        return lambda x: lib.jvp(g, (x,), (1.0,))[1]

    return derivative(derivative(derivative(f)))(0.4)


def _energy(lib: Any) -> Any:
    np_ = lib.numpy
    return lambda x: np_.sum(np_.tanh(np_.dot(A, x)) ** 2) + np_.prod(x) * np_.max(x)


@case
def hessian_forward_over_reverse(lib: Any) -> Any:
    gradient = lib.grad(_energy(lib))
    return lib.vmap(lambda v: lib.jvp(gradient, (lib.numpy.asarray(X),), (v,))[1])(lib.numpy.eye(3))


@case
def hessian_reverse_over_reverse(lib: Any) -> Any:
    gradient = lib.grad(_energy(lib))
    _, pull_back = lib.vjp(gradient, lib.numpy.asarray(X))
    return lib.vmap(lambda v: pull_back(v)[0])(lib.numpy.eye(3))


@case
def hessian_reverse_over_forward(lib: Any) -> Any:
    f, x = _energy(lib), lib.numpy.asarray(X)
    directional = lambda x, v: lib.jvp(f, (x,), (v,))[1]  # noqa: E731
    return lib.vmap(lib.grad(directional), in_axes=(None, 0))(x, lib.numpy.eye(3))


@case
def hessian_linearized_and_compiled(lib: Any) -> Any:
    _, product = lib.linearize(lib.jit(lib.grad(_energy(lib))), lib.numpy.asarray(X))
    return lib.jit(lib.vmap(product))(lib.numpy.eye(3))


@case
def jvp_of_vjp(lib: Any) -> Any:
    def pulled(x: Any, ct: Any) -> Any:
        y, pull_back = lib.vjp(lambda x: lib.numpy.sin(x) * x, x)
        return y, pull_back(ct)[0]

    x = lib.numpy.asarray(X)
    return lib.jvp(pulled, (x, x + 1), (x * 2, x * 0 + 1))


@case
def vjp_of_jvp(lib: Any) -> Any:
    def pushed(x: Any, dx: Any) -> Any:
        return lib.jvp(lambda x: lib.numpy.exp(x) * x, (x,), (dx,))

    x = lib.numpy.asarray(X)
    _, pull_back = lib.vjp(pushed, x, x + 1)
    return pull_back((x, x * 3))


@case
def gradient_through_a_gradient_step(lib: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return lib.numpy.sum((lib.numpy.dot(A, w) - x) ** 2)

    def tuned(rate: Any) -> Any:
        w = lib.numpy.asarray(X)
        for _ in range(3):
            w = w - rate * lib.grad(loss)(w, lib.numpy.asarray(A[:, 0]))
        return loss(w, lib.numpy.asarray(A[:, 0]))

    return lib.value_and_grad(tuned)(0.1), lib.grad(lib.jit(tuned))(0.1)


# perturbation confusion and closures -------------------------------------------------------------


@case
def no_perturbation_confusion(lib: Any) -> Any:
    """d/dx (x * d/dy (x + y)) is 1, and not 2."""
    inner = lambda x: lib.grad(lambda y: x + y)(1.0)  # noqa: E731
    forward = lambda x: lib.jvp(lambda y: x + y, (1.0,), (1.0,))[1]  # noqa: E731
    return (
        lib.grad(lambda x: x * inner(x))(1.0),
        lib.jvp(lambda x: x * inner(x), (1.0,), (1.0,)),
        lib.grad(lambda x: x * forward(x))(1.0),
        lib.jvp(lambda x: x * forward(x), (1.0,), (1.0,)),
        lib.jit(lib.grad(lambda x: x * lib.jit(inner)(x)))(1.0),
    )


@case
def nested_closures_of_three_gradients(lib: Any) -> Any:
    def f(x: Any) -> Any:
        def g(y: Any) -> Any:
            def h(z: Any) -> Any:
                return x * y * y * z * z * z + lib.numpy.sin(x * z)

            return lib.grad(h)(y) * x

        return lib.grad(g)(x)

    return lib.grad(f)(1.3), lib.jit(lib.grad(lib.jit(f)))(1.3)


def _wrappers(lib: Any) -> dict[str, Any]:
    return {
        "jit": lib.jit,
        "grad": lambda f: lambda x: lib.grad(lambda x: lib.numpy.sum(f(x)))(x),
        "jvp": lambda f: lambda x: lib.jvp(f, (x,), (x * 0 + 1,))[1],
        "vmap": lambda f: lambda x: lib.vmap(f)(lib.numpy.stack([x, x * 2]))[1],
        "linearize": lambda f: lambda x: lib.linearize(f, x)[1](x),
    }


def _closure_case(outer: str, inner: str) -> None:
    def closure(lib: Any) -> Any:
        wrap = _wrappers(lib)

        def f(x: Any) -> Any:
            return wrap[inner](lambda y: lib.numpy.sin(x) * y * y + x)(lib.numpy.cos(x))

        return wrap[outer](f)(lib.numpy.asarray(X))

    CASES.append(pytest.param(closure, id=f"{inner}_closes_over_tracer_of_{outer}"))


def _nesting_case(names: tuple[str, ...]) -> None:
    def nested(lib: Any) -> Any:
        wrap = _wrappers(lib)
        f = lambda x: lib.numpy.exp(-x * x) * lib.numpy.sin(3 * x)  # noqa: E731
        for name in names:
            f = wrap[name](f)
        return f(lib.numpy.asarray(X))

    CASES.append(pytest.param(nested, id="_of_".join(reversed(names))))


_NAMES = ("jit", "grad", "jvp", "vmap", "linearize")
for _outer in _NAMES:
    for _inner in _NAMES:
        _closure_case(_outer, _inner)
        _nesting_case((_inner, _outer))
        _nesting_case((_inner, "jit", _outer))
_nesting_case(("grad", "vmap", "jit", "grad"))
_nesting_case(("vmap", "vmap", "grad", "jit", "vmap"))
_nesting_case(("linearize", "grad", "jvp", "vmap", "jit"))


@case
def three_levels_of_closures(lib: Any) -> Any:
    wrap = _wrappers(lib)
    results = []
    for one, two, three in (
        ("jit", "grad", "vmap"),
        ("vmap", "jit", "grad"),
        ("grad", "vmap", "jit"),
        ("jvp", "grad", "jit"),
    ):

        def f(x: Any, two: str = two, three: str = three) -> Any:
            def g(y: Any) -> Any:
                return wrap[three](lambda z: x * y * z + lib.numpy.sin(y * z))(y + x)

            return wrap[two](g)(x * 2)

        results.append(wrap[one](f)(lib.numpy.asarray(X)))
    return results


# gradients and batches ------------------------------------------------------------------------


@case
def gradient_for_each_example(lib: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return lib.numpy.sum(lib.numpy.tanh(w * x) ** 2)

    w = lib.numpy.asarray(X)
    each = lib.vmap(lib.grad(loss), in_axes=(None, 0))
    return each(w, A), lib.jit(each)(w, A)


@case
def gradient_of_a_batched_function(lib: Any) -> Any:
    def loss(w: Any) -> Any:
        outs = lib.vmap(lambda x: lib.numpy.dot(x, w))(A)
        return lib.numpy.sum(outs**2)

    return lib.grad(loss)(lib.numpy.asarray(X))


@case
def value_and_gradient_of_everything_compiled(lib: Any) -> Any:
    def loss(tree: Any, x: Any) -> Any:
        hidden = lib.numpy.tanh(lib.numpy.dot(x, tree["w"].T) + tree["b"])
        return lib.numpy.mean(hidden**2), {"hidden": hidden}

    parameters = {"w": lib.numpy.asarray(A), "b": lib.numpy.zeros(2)}
    both = lib.value_and_grad(loss, has_aux=True)
    x = lib.numpy.stack([lib.numpy.asarray(X), lib.numpy.asarray(X) * 2])
    return (
        both(parameters, x),
        lib.jit(both)(parameters, x),
        lib.jit(lib.vmap(both, (None, 0)))(parameters, x),
    )


@case
def outer_products_by_nested_vmap(lib: Any) -> Any:
    f = lambda a, b: a * b + lib.numpy.sin(a)  # noqa: E731
    outer = lib.vmap(lib.vmap(f, (None, 0)), (0, None))
    return outer(X, X * 2), lib.grad(lambda x: outer(x, x).sum())(lib.numpy.asarray(X))


@case
def gradient_through_indexing_sorting_and_selection(lib: Any) -> Any:
    def f(x: Any) -> Any:
        y = lib.numpy.sort(x)[::-1]
        z = lib.numpy.where(y > 0, y * y, lib.numpy.exp(y))
        return (z[1:] * x[:-1]).sum() + lib.numpy.max(x) * x.at[1].set(3.0).prod()

    return lib.value_and_grad(f)(lib.numpy.asarray(X)), lib.jit(lib.grad(f))(lib.numpy.asarray(X))


@case
def softmax_jacobian(lib: Any) -> Any:
    def softmax(x: Any) -> Any:
        e = lib.numpy.exp(x - lib.numpy.max(x, -1, keepdims=True))
        return e / lib.numpy.sum(e, -1, keepdims=True)

    y, pull_back = lib.vjp(softmax, lib.numpy.asarray(A))
    _, push = lib.linearize(softmax, lib.numpy.asarray(A))
    return y, pull_back(y * 2), push(y), lib.jit(lambda x: lib.vjp(softmax, x)[1](x))(A)


# Python control flow, pytrees, auxiliary results, integers ------------------------------------


@case
def python_control_flow_under_grad(lib: Any) -> Any:
    def f(x: Any) -> Any:
        y, count = x, 0
        while y < 10:
            y, count = y * (3 if count % 2 else x), count + 1
        return y if y > 20 else -y

    return (
        [lib.grad(f)(v) for v in (1.5, 2.5)],
        lib.grad(lib.grad(f))(1.5),
        lib.jvp(f, (2.5,), (1.0,)),
    )


@case
def auxiliary_results(lib: Any) -> Any:
    def f(x: Any) -> Any:
        return lib.numpy.sin(x) * x, {"double": x * 2, "n": 7}

    y, push, aux = lib.linearize(f, lib.numpy.asarray(X), has_aux=True)
    z, pull_back, more = lib.vjp(f, lib.numpy.asarray(X), has_aux=True)
    return y, push(lib.numpy.asarray(X)), aux["double"], z, pull_back(z), more["double"]


@case
def jvp_with_auxiliary_results(lib: Any) -> Any:
    return lib.jvp(
        lambda x: (x * x, x + 1), (lib.numpy.asarray(X),), (lib.numpy.asarray(X),), has_aux=True
    )


@case
def gradients_of_chosen_arguments(lib: Any) -> Any:
    f = lambda a, b, c: (a["x"] * b * c[0]).sum() + c[1]  # noqa: E731
    args = ({"x": lib.numpy.asarray(X)}, 2.0, (lib.numpy.asarray(X), 1.0))
    return lib.grad(f)(*args), lib.grad(f, (0, 2))(*args), lib.grad(f, argnums=-1)(*args)


@case
def integer_arguments_have_float0_tangents(lib: Any) -> Any:
    f = lambda x, n: x * n  # noqa: E731
    y, pull_back = lib.vjp(f, lib.numpy.asarray(X), lib.numpy.int32(3))
    dx, dn = pull_back(lib.numpy.asarray(X))
    gradient = lib.grad(lambda x, n: (x * n).sum(), (0, 1), allow_int=True)
    return y, dx, dn.dtype.names, dn.shape, gradient(lib.numpy.asarray(X), 2)[0]


@case
def integer_results_have_float0_tangents(lib: Any) -> Any:
    f = lambda x: (x * 2, lib.numpy.argmax(x))  # noqa: E731
    y, dy = lib.jvp(f, (lib.numpy.asarray(X),), (lib.numpy.asarray(X),))
    return y, dy[0], dy[1].dtype.names, dy[1].shape


@case
def complex_gradients(lib: Any) -> Any:
    z = lib.numpy.asarray(np.array([1 + 2j, -0.5j], np.complex64))
    holomorphic = lib.grad(lambda z: (z * z * lib.numpy.sin(z)).sum(), holomorphic=True)
    real = lib.grad(lambda z: (lib.numpy.abs(z) ** 2 + lib.numpy.real(z * z)).sum())
    return holomorphic(z), real(z), lib.jit(real)(z)


@case
def arguments_that_do_not_matter(lib: Any) -> Any:
    f = lambda x, y: lib.numpy.sum(x)  # noqa: E731
    x = lib.numpy.asarray(X)
    return (
        lib.grad(f, (0, 1))(x, x),
        lib.jvp(lambda x: lib.numpy.ones(2), (x,), (x,)),
        lib.vjp(lambda x: 3.0, x)[1](1.0),
        lib.linearize(lambda x, y: (y, 2.0), x, x)[1](x, x * 3),
    )


@case
def float16_and_bfloat16(lib: Any) -> Any:
    f = lambda x: (x * x).sum()  # noqa: E731
    return [
        lib.value_and_grad(f)(lib.numpy.asarray([1.0, 2.0], dtype))
        for dtype in (lib.numpy.float16, lib.numpy.bfloat16)
    ]


@case
def python_scalars_stay_weak(lib: Any) -> Any:
    f = lambda x: 2 * lib.numpy.sin(x) + x**2  # noqa: E731
    return (
        lib.grad(f)(1.0),
        lib.jvp(f, (1.0,), (1.0,)),
        lib.jit(f)(1.0),
        lib.vmap(f)(lib.numpy.arange(3.0)),
    )
