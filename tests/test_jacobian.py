"""Jacobians, Hessians, transposes of linear functions and the two halves of a derivative: against
JAX, against finite differences, and the laws that hold among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp
from xcube import lax, tree
from xcube.errors import DtypeError, ShapeError, TraceError

X = np.array([0.5, -1.0, 2.0], np.float32)
W = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.7]], np.float32)
Z = np.array([1 + 2j, -0.5j], np.complex64)
F0 = np.zeros((), jax.dtypes.float0)


def agree(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    """Equal structures, dtypes and weak types; close values."""
    ours_leaves, structure = tree.flatten(ours)
    theirs_leaves, theirs_structure = jax.tree.flatten(theirs)
    assert str(structure) == str(theirs_structure)
    for one, other in zip(ours_leaves, theirs_leaves, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.weak_type == getattr(other, "weak_type", False)
        np.testing.assert_allclose(one, other, tolerance, tolerance)


# against JAX ----------------------------------------------------------------------------------

# f(np), arguments, options of all four transforms
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], dict[str, Any]]] = {
    "vector": (lambda np_: lambda x: np_.sin(x) * x[0], (X,), {}),
    "scalar": (lambda np_: lambda x: x**3, (2.0,), {}),
    "matrix": (lambda np_: lambda w, x: np_.tanh(w @ x), (W, X), {}),
    "by both": (lambda np_: lambda w, x: np_.tanh(w @ x), (W, X), {"argnums": (0, 1)}),
    "in reverse": (lambda np_: lambda w, x: [w @ x, x[1:]], (W, X), {"argnums": (-1, 0)}),
    "one in a tuple": (lambda np_: lambda w, x: w @ x, (W, X), {"argnums": (1,)}),
    "trees": (
        lambda np_: lambda t: {"o": t["x"] * t["y"][0].sum(), "p": (t["y"][0] ** 2, None)},
        ({"x": X, "y": [W]},),
        {},
    ),
    "not depending": (lambda np_: lambda x, y: {"a": y * 2, "b": np_.ones(2)}, (X, X), {}),
    "dtypes": (lambda np_: lambda x: (x.astype(np.float16), x), (X,), {}),
    "empty": (lambda np_: lambda x: x * 2, (np.zeros((0,), np.float32),), {}),
    "holomorphic": (lambda np_: lambda z: z * z[0], (Z,), {"holomorphic": True}),
    "auxiliary": (lambda np_: lambda x: (x * x, {"n": x, "m": x[0]}), (X,), {"has_aux": True}),
    "branch": (lambda np_: lambda x: x * 2 if x > 0 else x, (3.0,), {}),
}


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "jacobian", "hessian"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians_are_those_of_jax(transform: str, name: str) -> None:
    make, args, options = FUNCTIONS[name]
    ours = getattr(xcube, transform)(make(jnp), **options)
    theirs = getattr(jax, transform)(make(jax_numpy), **options)
    agree(ours(*args), theirs(*args))


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "branch"])
def test_jacobians_are_the_same_under_jit(transform: str, name: str) -> None:
    make, args, options = FUNCTIONS[name]
    function = getattr(xcube, transform)(make(jnp), **options)
    plain, jitted = function(*args), xcube.jit(function)(*args)
    assert tree.structure(plain) == tree.structure(jitted)
    for one, other in zip(tree.leaves(plain), tree.leaves(jitted), strict=True):
        assert (one.aval, other.aval) == (other.aval, one.aval)
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_complex_jacobians_follow_the_convention_of_jax() -> None:
    agree(xcube.jacrev(lambda z: jnp.abs(z) ** 2)(Z), jax.jacrev(lambda z: abs(z) ** 2)(Z))
    agree(xcube.jacfwd(lambda x: x * 1j)(X), jax.jacfwd(lambda x: x * 1j)(X))


def test_integers_have_blocks_of_zeros() -> None:
    n = np.arange(3, dtype=np.int32)
    function = lambda n, x: n * x  # noqa: E731
    options: dict[str, Any] = {"argnums": (0, 1), "allow_int": True}
    agree(xcube.jacrev(function, **options)(n, X), jax.jacrev(function, **options)(n, X))
    agree(xcube.jacfwd(lambda x: x.astype(np.int32))(X), jax.jacfwd(lambda x: x.astype("i4"))(X))


def test_what_jax_cannot_is_empty_or_zero() -> None:
    assert xcube.jacfwd(lambda t: 1.0)(()) == ()
    assert xcube.jacrev(lambda t: {"a": 1.0})([]) == {"a": []}
    assert xcube.jacrev(lambda x: None)(X) is None


def test_auxiliary_results_need_not_be_arrays() -> None:
    for transform in (xcube.jacfwd, xcube.jacrev):
        jacobian, aux = transform(lambda x: (x * x, ("text", 3, x)), has_aux=True)(X)
        assert aux[:2] == ("text", 3)
        np.testing.assert_array_equal(aux[2], X)
        np.testing.assert_allclose(jacobian, np.diag(2 * X))


def test_keyword_arguments_stay_as_they_are() -> None:
    for transform in (xcube.jacfwd, xcube.jacrev):
        np.testing.assert_allclose(transform(lambda x, k: x * k)(X, k=3), 3 * np.eye(3))


def test_the_function_runs_once() -> None:
    runs = []
    for transform in (xcube.jacfwd, xcube.jacrev):
        transform(lambda x: (runs.append(1), jnp.sin(x))[1])(X)
    assert len(runs) == 2


def test_forward_mode_goes_through_loops_of_unknown_length() -> None:
    function = lambda x: lax.while_loop(lambda c: c.sum() < 10, lambda c: c * c + x, x)  # noqa: E731
    theirs = jax.jacfwd(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 10, lambda c: c * c + x, x)
    )
    agree(xcube.jacfwd(function)(abs(X)), theirs(abs(X)))


# mathematics ----------------------------------------------------------------------------------


def loss(x: Any) -> Any:
    return jnp.log(jnp.sum(jnp.exp(jnp.sin(x) * x[::-1]))) + x[0] ** 2 * x[1]


def test_a_hessian_is_symmetric_and_that_of_finite_differences() -> None:
    with xcube.enable_x64():
        x, h = jnp.asarray(X, jnp.float64), 1e-5
        hessian = np.asarray(xcube.hessian(loss)(x))
        slopes = [
            (np.asarray(xcube.grad(loss)(x + d)) - np.asarray(xcube.grad(loss)(x - d))) / (2 * h)
            for d in h * jnp.eye(3)
        ]
    np.testing.assert_allclose(hessian, hessian.T, 1e-12, 1e-12)
    np.testing.assert_allclose(hessian, np.stack(slopes), 1e-6, 1e-8)


def test_every_way_to_a_second_and_third_derivative_agrees() -> None:
    with xcube.enable_x64():
        x = jnp.asarray(X, jnp.float64)
        expected = np.asarray(xcube.hessian(loss)(x))
        for outer in (xcube.jacfwd, xcube.jacrev):
            for inner in (xcube.jacfwd, xcube.jacrev, xcube.grad):
                np.testing.assert_allclose(outer(inner(loss))(x), expected, 1e-10, 1e-12)
        third = np.asarray(xcube.jacrev(xcube.hessian(loss))(x))
        np.testing.assert_allclose(xcube.jacfwd(xcube.hessian(loss))(x), third, 1e-10, 1e-12)
    for axes in ((1, 0, 2), (0, 2, 1), (2, 1, 0)):
        np.testing.assert_allclose(third, third.transpose(axes), 1e-9, 1e-11)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(-2, 2, width=32), min_size=5, max_size=5))
def test_pushing_and_pulling_are_transposes(numbers: list[float]) -> None:
    v, w = np.asarray(numbers[:3], np.float32), np.asarray(numbers[3:], np.float32)
    function = lambda x: jnp.tanh(jnp.asarray(W) @ x) * x[:2]  # noqa: E731
    _, push = xcube.linearize(function, X)
    _, pull = xcube.vjp(function, X)
    jacobian = np.asarray(xcube.jacrev(function)(X))
    assert float(w @ np.asarray(push(v))) == pytest.approx(
        float(np.asarray(pull(w)[0]) @ v), abs=1e-4
    )
    np.testing.assert_allclose(push(v), jacobian @ v, 1e-4, 1e-5)


def test_batches_of_jacobians_are_stacked_ones() -> None:
    xs = np.stack([X, 2 * X, X - 1])
    for transform in (xcube.jacfwd, xcube.jacrev, xcube.hessian):
        function = transform(lambda x: jnp.sin(x) * x[0])
        expected = np.stack([np.asarray(function(x)) for x in xs])
        np.testing.assert_allclose(xcube.vmap(function)(xs), expected, 1e-5, 1e-6)


# what vjp and linearize give ------------------------------------------------------------------


def test_derivatives_are_pytrees_that_jit_takes_and_returns() -> None:
    pull = xcube.jit(lambda x: xcube.vjp(jnp.sin, x)[1])(X)
    np.testing.assert_allclose(pull(np.ones(3, np.float32))[0], np.cos(X), 1e-6)
    push = xcube.jit(lambda x: xcube.linearize(jnp.sin, x)[1])(X)
    np.testing.assert_allclose(push(X), np.cos(X) * X, 1e-6)
    apply = xcube.jit(lambda f, ct: f(ct))
    np.testing.assert_allclose(apply(pull, 2 * np.ones(3, np.float32))[0], 2 * np.cos(X), 1e-6)
    (residual,) = tree.leaves(xcube.vjp(jnp.sin, X)[1])
    np.testing.assert_allclose(residual, np.cos(X), 1e-6)


def test_a_batch_of_pullbacks_is_a_pullback_of_a_batch() -> None:
    pulls = xcube.vmap(lambda x: xcube.vjp(lambda y: y**2, x)[1])(X)
    np.testing.assert_allclose(xcube.vmap(lambda f, ct: f(ct)[0])(pulls, X), 2 * X * X, 1e-6)


def test_integer_results_take_any_cotangent() -> None:
    value, pull = xcube.vjp(lambda x: (x.astype(np.int32), x * 2), 1.5)
    assert [float(v) for v in value] == [1, 3]
    for ct in (F0, 1):
        assert float(pull((ct, 1.0))[0]) == 2


def test_what_vjp_takes_and_refuses() -> None:
    (value, pull, aux) = xcube.vjp(lambda x, n: (x * n, {"n": n}), 2.0, 3, has_aux=True)
    dx, dn = pull(1.0)
    assert (float(value), float(aux["n"]), float(dx), dn.dtype) == (6, 3, 3, F0.dtype)
    for ct, words in (
        ((1.0,), r"structure of the result"),
        (1, r"the cotangent must be f32\[\] like the result; got i32\[\]"),
        (np.ones(2, np.float32), r"must be f32\[\] like the result; got f32\[2\]"),
    ):
        with pytest.raises(ValueError, match=words):
            pull(ct)
    with pytest.raises(ShapeError, match=r"the cotangent\['a'\]\[1\] must be f32\[3\]"):
        xcube.vjp(lambda x: {"a": (x, x)}, X)[1]({"a": (X, X[:2])})


def test_axes_to_reduce_over_are_refused_as_in_jax() -> None:
    for transform in (
        lambda **options: xcube.vjp(jnp.sin, 1.0, **options),
        lambda **options: xcube.linear_transpose(lambda x: x, 1.0, **options),
        lambda **options: xcube.grad(jnp.sin, **options),
    ):
        transform(reduce_axes=())
        with pytest.raises(NotImplementedError, match=r"reduce_axes must be empty; got \('i',\)"):
            transform(reduce_axes=("i",))


# wrong use ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an integer forward": (
        lambda: xcube.jacfwd(lambda x: x)(1),
        DtypeError,
        r"jacfwd: inputs of <lambda> must be real floats; argument 0 is i32\[\]",
    ),
    "a complex number forward": (
        lambda: xcube.jacfwd(lambda x: x)(1j),
        DtypeError,
        r"must be real floats; .* c64\[\].*holomorphic=True",
    ),
    "an integer backward": (
        lambda: xcube.jacrev(lambda x: x * 1.0)({"a": 1}),
        DtypeError,
        r"jacrev: .* argument 0 at \['a'\] is i32\[\].*allow_int",
    ),
    "an integer result": (
        lambda: xcube.jacrev(lambda x: x.astype(int))(X),
        DtypeError,
        r"results of <lambda> must be real floats; got i32\[3\]",
    ),
    "a complex result": (lambda: xcube.jacrev(lambda x: x * 1j)(X), DtypeError, r"c64\[3\]"),
    "a real holomorphic input": (
        lambda: xcube.jacfwd(lambda x: x, holomorphic=True)(1.0),
        DtypeError,
        r"must be complex; argument 0 is f32\[\]",
    ),
    "a real holomorphic result": (
        lambda: xcube.jacrev(lambda x: jnp.abs(x), holomorphic=True)(1j),
        DtypeError,
        r"results of absolute|results of <lambda> must be complex; got f32\[\]",
    ),
    "no such argument": (
        lambda: xcube.jacfwd(lambda x: x, argnums=2)(1.0),
        ValueError,
        r"argnums must name positional arguments of <lambda>, which got 1; got \(2,\)",
    ),
    "argnums that are no numbers": (
        lambda: xcube.hessian(lambda x: x, argnums="x"),  # pyright: ignore
        TypeError,
        r"argnums must be an integer or a tuple of them; got 'x'",
    ),
    "no function": (lambda: xcube.jacrev(3.0), TypeError, "first argument must be a function"),
    "no pair": (
        lambda: xcube.jacfwd(lambda x: x, has_aux=True)(X),
        TypeError,
        r"must return a pair",
    ),
    "grad of a vector": (lambda: xcube.grad(lambda x: x)(X), TypeError, "jacrev or jacfwd"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_use_is_refused(name: str) -> None:
    make, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        make()


# linear_transpose -----------------------------------------------------------------------------

LINEAR: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...], Any]] = {
    "product": (lambda np_, lax_: lambda x: W @ x, (X,), W[:, 0]),
    "trees": (
        lambda np_, lax_: lambda t: {"s": t["a"] * 3, "r": -t["b"]},
        ({"a": X, "b": X},),
        None,
    ),
    "views": (
        lambda np_, lax_: lambda x: np_.concatenate([x[::-1], x[1:] / 2]),
        (X,),
        X[[0, 1, 2, 0, 1]],
    ),
    "unused": (lambda np_, lax_: lambda x, y: x * 2, (X, W), X),
    "constant": (lambda np_, lax_: lambda x: np_.ones(3), (X,), X),
    "affine": (lambda np_, lax_: lambda x: x + 1, (X,), X),
    "masked": (lambda np_, lax_: lambda x: np_.where(np_.arange(3) > 0, x, 0), (X,), X),
    "complex": (lambda np_, lax_: lambda z: np_.conj(z) * 1j, (Z,), Z),
    "integers": (lambda np_, lax_: lambda n: n * 2, (np.arange(3),), np.arange(3)),
    "scan": (
        lambda np_, lax_: lambda x: lax_.scan(lambda c, a: (c * a, c), x, np_.arange(1.0, 4.0)),
        (X,),
        (X, np.stack([X, X, X])),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_transposes_are_those_of_jax(name: str) -> None:
    make, args, ct = LINEAR[name]
    ct = {"s": X, "r": 2 * X} if ct is None else ct
    shapes = tree.map(lambda x: xcube.ShapeDtypeStruct(x.shape, jnp.asarray(x).dtype), args)
    for primals in (args, shapes):
        found = xcube.linear_transpose(make(jnp, lax), *primals)(tree.map(jnp.asarray, ct))
        theirs = jax.linear_transpose(make(jax_numpy, jax.lax), *args)
        agree(found, theirs(jax.tree.map(jax_numpy.asarray, ct)))


def test_a_transpose_runs_nothing_of_the_function() -> None:
    huge = xcube.ShapeDtypeStruct((1 << 50,), jnp.float32)
    transposed = xcube.linear_transpose(lambda x: x[:2] * 3, huge)
    found = xcube.eval_shape(transposed, jnp.ones(2))
    assert found[0].shape == (1 << 50,)


@pytest.mark.parametrize(
    ("function", "culprit"),
    [
        (jnp.sin, r"sin\(f32\[3\]\), written at test_jacobian.py:\d+, is not"),
        (lambda x: x * x, r"mul\(f32\[3\], f32\[3\]\)"),
        (lambda x: 1 / x, r"(div|integer_pow)\("),
        (lambda x: jnp.where(x > 0, x, 0), r"gt\("),
        (lambda x: x @ x, r"dot_general\("),
        (lambda x: xcube.jit(lambda y: y * y)(x), r"mul\("),
        (lambda x: lax.scan(lambda c, a: (c * c, None), x, None, length=2)[0], r"mul\("),
        (lambda x: lax.scan(lambda c, a: (x, c * a), x, jnp.stack([x, x]))[1], r"mul\("),
        (lambda x: lax.stop_gradient(x) * 2, r"stop_gradient\("),
    ],
)
def test_what_is_not_linear_has_no_transpose(function: Callable[..., Any], culprit: str) -> None:
    with pytest.raises(TraceError, match=rf"must be linear in its arguments; {culprit}.*Use vjp"):
        xcube.linear_transpose(function, X)


def test_what_is_not_linear_may_stand_beside() -> None:
    (ct,) = xcube.linear_transpose(lambda x: ((x > 0).sum(), x * x, 3 * x)[2], X)(X)
    np.testing.assert_allclose(ct, 3 * X)


def test_transposes_check_what_they_are_given() -> None:
    transposed = xcube.linear_transpose(lambda x: {"a": x * 2}, X)
    for ct, words in (
        (X, "structure of the result"),
        ({"a": X[:2]}, r"must be f32\[3\]; got|like"),
    ):
        with pytest.raises(TypeError, match=words):
            transposed(ct)
    with pytest.raises(DtypeError, match=r"all be float or complex.*\(f32\[3\]\) -> \(i32\[3\]\)"):
        xcube.linear_transpose(lambda x: x.astype(int), X)


# the two halves -------------------------------------------------------------------------------


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("argnums", [0, (1, 0)])
def test_two_halves_make_a_derivative(jitted: bool, argnums: Any) -> None:
    function = lambda w, x, scale=1.0: jnp.tanh(w @ x) * scale  # noqa: E731
    forward, backward = xcube.fwd_and_bwd(function, argnums, jitted=jitted)
    for scale in (1.0, 3.0):
        y, residuals = forward(W, X, scale=scale)
        np.testing.assert_allclose(y, scale * np.tanh(W @ X), 1e-5)
        expected = xcube.vjp(lambda w, x, scale=scale: function(w, x, scale), W, X)[1](y)
        found = backward(residuals, y)
        expected = expected[argnums] if isinstance(argnums, int) else expected[::-1]
        assert tree.structure(found) == tree.structure(expected)
        for one, other in zip(tree.leaves(found), tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_halves_are_traced_once_and_carry_auxiliary_results() -> None:
    traced = []

    def function(x: Any) -> Any:
        traced.append(1)
        return jnp.sin(x), {"x": x}

    forward, backward = xcube.fwd_and_bwd(function, 0, has_aux=True)
    for x in (X, 2 * X):
        y, residuals, aux = forward(x)
        np.testing.assert_array_equal(aux["x"], x)
        np.testing.assert_allclose(backward(residuals, y), np.sin(x) * np.cos(x), 1e-5, 1e-6)
    assert (len(traced), backward._cache_size()) == (1, 1)
