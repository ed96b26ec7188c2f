"""custom_vjp, custom_gradient, closure_convert, linear_call: the same programs with xcube and with
JAX; then what only a test of its own can say: which half runs, on what, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_compose import assert_same

import xcube
import xcube.numpy as jnp
from xcube.custom_derivatives import CustomVJPPrimal, linear_call
from xcube.errors import DtypeError, ShapeError, TraceError, UnexpectedTracerError

jax = pytest.importorskip("jax")

X = np.array([0.3, -0.7, 1.1], np.float32)
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


def _scaled(lib: Any) -> Any:
    """sin(x) * y with ten times its cotangent."""
    np_ = lib.numpy
    f = lib.custom_vjp(lambda x, y=2.0: np_.sin(x) * y)

    def backward(saved: Any, ct: Any) -> Any:
        x, y = saved
        return 10 * np_.cos(x) * y * ct, 10 * np_.sin(x) * ct

    f.defvjp(lambda x, y: (f(x, y), (x, y)), backward)
    return f


@case
def values_and_gradients_by_both_arguments(lib: Any) -> Any:
    f = _scaled(lib)
    return f(0.5), f(0.5, y=3.0), lib.grad(f, (0, 1))(0.5, 3.0), lib.grad(f)(0.5)


@case
def cotangents_of_arrays(lib: Any) -> Any:
    f = _scaled(lib)
    return lib.vjp(f, X, X)[1](X), lib.vjp(lib.jit(f), X, X)[1](X)


@case
def second_and_third_derivatives_are_those_of_the_rule(lib: Any) -> Any:
    f = _scaled(lib)
    g = lib.grad(lib.grad(f))
    return g(0.5, 2.0), lib.grad(g)(0.5, 2.0), lib.grad(lib.jit(g))(0.5, 2.0)


@case
def forward_over_a_rule_that_does_not_call_its_function(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: (x**3, x), lambda x, ct: (ct * x * x,))
    return lib.jvp(lib.grad(f), (2.0,), (1.0,)), lib.jvp(lib.jit(lib.grad(f)), (2.0,), (1.0,))


@case
def batches_of_either_argument(lib: Any) -> Any:
    f = _scaled(lib)
    found = []
    for axes in ((0, None), (None, 0), (0, 0)):
        args = [X if axis == 0 else np.float32(0.5) for axis in axes]
        total = lambda x, y, axes=axes: lib.vmap(f, axes)(x, y).sum()  # noqa: E731
        found += [lib.vmap(lib.grad(f, (0, 1)), axes)(*args), lib.grad(total, (0, 1))(*args)]
        found.append(lib.grad(lib.jit(total), (0, 1))(*args))
    nested = lambda x, y: lib.vmap(lambda a: lib.vmap(lambda b: f(a, b))(y))(x).sum()  # noqa: E731
    return found, lib.grad(nested, (0, 1))(X, X)


@case
def trees_with_none_for_arguments_and_cotangents(lib: Any) -> Any:
    @lib.custom_vjp
    def f(p: Any, scale: Any, n: Any) -> Any:
        return {"a": p["w"] * scale, "b": (p["b"], n)}

    def forward(p: Any, scale: Any, n: Any) -> Any:
        return f(p, scale, n), {"w": p["w"]}

    def backward(saved: Any, ct: Any) -> Any:
        return {"w": 3 * ct["a"], "b": None, "none": None}, None, None

    f.defvjp(forward, backward)
    p = {"w": lib.numpy.asarray(X), "b": lib.numpy.float32(2), "none": None}
    n = lib.numpy.int32(3)
    value = lambda p, s: f(p, s, n)["a"].sum() + f(p, s, n)["b"][0]  # noqa: E731
    return f(p, 2.0, n), lib.grad(value, (0, 1))(p, 2.0), lib.grad(lib.jit(value))(p, 2.0)


@case
def arguments_without_derivative(lib: Any) -> Any:
    @functools.partial(lib.custom_vjp, nondiff_argnums=(0,), nondiff_argnames=("power",))
    def f(g: Any, x: Any, power: int = 2) -> Any:
        return g(x) ** power

    f.defvjp(
        lambda g, x, power: (f(g, x, power), g(x)),
        lambda g, power, saved, ct: (power * saved * ct,),
    )
    sin = lib.numpy.sin
    return (
        f(sin, 0.5),
        lib.grad(lambda x: f(sin, x, power=3))(0.5),
        lib.jit(lib.grad(lambda x: f(sin, x)))(0.5),
        lib.vmap(lib.grad(lambda x: f(sin, x)))(X),
    )


@case
def integers_have_empty_cotangents(lib: Any) -> Any:
    f = lib.custom_vjp(lambda n, x: (n, x**n))

    def backward(saved: Any, cts: Any) -> Any:
        dn, dx = cts
        assert dn.dtype == jax.dtypes.float0
        return dn, 5 * dx

    f.defvjp(lambda n, x: (f(n, x), None), backward)
    value = lambda n, x: f(n, x)[1]  # noqa: E731
    both = lib.grad(value, (0, 1), allow_int=True)(3, 2.0)
    return both[1], lib.grad(lib.jit(value), 1)(3, 2.0)


@case
def zeros_that_are_known_to_be_zero(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x, y: (x * y, x, y))
    seen = []

    def forward(x: Any, y: Any) -> Any:
        seen.append((x.perturbed, y.perturbed))
        values = lib.custom_derivatives.custom_vjp_primal_tree_values((x, y))
        return f(*values), values

    def backward(saved: Any, cts: Any) -> Any:
        zeros = tuple(type(ct).__name__ == "SymbolicZero" for ct in cts)
        seen.append(zeros)
        return 2 * cts[0] * saved[1], cts[1] if zeros[1] else 7 * cts[1]

    f.defvjp(forward, backward, symbolic_zeros=True)
    first = [lib.grad(lambda x, y: f(x, y)[0], n)(2.0, 3.0) for n in (0, 1, (0, 1))]
    jitted = lib.grad(lib.jit(lambda x: f(x, 3.0)[0]))(2.0)
    return first, jitted, seen[:6]


@case
def python_sees_values_under_grad(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x: x if x > 0 else -x)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: ((3 if float(x) > 1 else 4) * ct,))
    return [lib.grad(f)(x) for x in (-2.0, 0.5, 2.0)]


@case
def inside_loops_branches_and_checkpoints(lib: Any) -> Any:
    f = _scaled(lib)
    lax = lib.lax
    loop = lambda x: lax.fori_loop(0, 3, lambda _, c: f(c), x)  # noqa: E731
    scan = lambda x: lax.scan(lambda c, y: (f(c, y), c * y), x, lib.numpy.asarray(X))[1].sum()  # noqa: E731
    branch = lambda x: lax.cond(x > 0, f, lambda x: 3 * x, x)  # noqa: E731
    saved = lib.checkpoint(lambda x: lib.numpy.sin(f(f(x))))
    x = lib.numpy.float32(0.1)
    found = [lib.grad(g)(x) for g in (loop, scan, branch, saved)]
    return found, [lib.vmap(lib.grad(g))(X) for g in (loop, scan, branch, saved)]


@case
def a_cotangent_of_another_precision(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct.astype(lib.numpy.float32),))
    return lib.vjp(f, X)[1](X)


@case
def a_list_of_cotangents(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (f(x, y), None), lambda _, ct: [ct, 2 * ct])
    return lib.grad(f, (0, 1))(2.0, 3.0)


@case
def a_collective_in_a_rule(lib: Any) -> Any:
    f = lib.custom_vjp(lambda x: x * 1)
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (lib.lax.psum(ct, "i"),))
    return lib.grad(lambda x: (lib.vmap(f, axis_name="i")(x) * X).sum())(X)


@case
def gradients_that_come_with_the_value(lib: Any) -> Any:
    np_ = lib.numpy

    @lib.custom_gradient
    def f(x: Any, y: Any) -> Any:
        shared = np_.exp(x)
        return {"out": shared * y}, lambda ct: (5 * shared * ct["out"], (ct["out"] * y))

    single = lib.custom_gradient(lambda x: (x**2, lambda ct: ct * x))
    value = lambda x, y: f(x, y)["out"].sum()  # noqa: E731
    return (
        f(X, X),
        lib.grad(value, (0, 1))(X, X),
        lib.grad(lib.jit(value), (0, 1))(X, X),
        lib.vmap(lib.grad(value), (0, None))(X, 2.0),
        lib.grad(single)(3.0),
        lib.grad(lib.grad(single))(3.0),
    )


@case
def closures_converted(lib: Any) -> Any:
    def total(y: Any, wrap: Any) -> Any:
        def g(x: Any) -> Any:
            return {"v": lib.numpy.sin(x["v"] * y) + X}

        converted, hoisted = lib.closure_convert(g, {"v": y})
        apply = lambda x, *rest: converted({"v": x}, *rest)["v"]  # noqa: E731
        f = lib.custom_vjp(apply)
        f.defvjp(
            lambda x, *rest: (apply(x, *rest), (x, rest)),
            lambda saved, ct: lib.vjp(apply, saved[0], *saved[1])[1](2 * ct),
        )
        return f(y, *hoisted).sum()

    return lib.grad(lambda y: total(y, None))(X), lib.grad(lib.jit(lambda y: total(y, None)))(X)


@case
def linear_functions_with_their_transposes(lib: Any) -> Any:
    call = lib.custom_derivatives.linear_call

    def div_add(x: Any, denom: Any) -> Any:
        return x + call(lambda r, x: x / r, lambda r, ct: 3 * ct / r, denom, x)

    def transpose(f: Any) -> Any:
        return lambda y: lib.vjp(f, 1.0)[1](y)[0]

    f = lambda x: div_add(x, 3.0)  # noqa: E731
    return (
        div_add(9.0, 3.0),
        transpose(f)(18.0),
        transpose(lib.jit(f))(18.0),
        lib.jvp(f, (1.0,), (2.0,)),
        lib.grad(lambda y: transpose(f)(y))(1.0),
    )


# on its own -----------------------------------------------------------------------------------


def _double(backward: Any = lambda saved, ct: (ct,), forward: Any = None, **options: Any) -> Any:
    f = xcube.custom_vjp(lambda x: 2 * x)
    f.defvjp(forward or (lambda x: (f(x), x)), backward, **options)
    return f


@pytest.mark.parametrize("optimize", [False, True])
def test_without_differentiation_the_function_runs_and_the_rule_does_not(optimize: bool) -> None:
    f = _double(forward=lambda x: pytest.fail("the rule was called"), optimize_remat=optimize)
    np.testing.assert_array_equal(xcube.jit(xcube.vmap(f))(X), 2 * X)
    np.testing.assert_array_equal(f(X), 2 * X)
    assert float(xcube.grad(lambda x: x * f(3.0))(1.0)) == 6


def test_under_checkpoint_the_forward_pass_runs_the_function() -> None:
    f = xcube.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.tanh(x), jnp.cos(x)), lambda c, ct: (c * ct,), optimize_remat=True)
    value, pull = xcube.vjp(xcube.checkpoint(f), X)
    np.testing.assert_allclose(value, np.sin(X), 1e-6)
    np.testing.assert_allclose(pull(np.ones(3, np.float32))[0], np.cos(X), 1e-6)
    mapped = xcube.jit(xcube.value_and_grad(lambda x: xcube.vmap(xcube.checkpoint(f))(x).sum()))
    np.testing.assert_allclose(mapped(X)[0], np.sin(X).sum(), 1e-6)
    np.testing.assert_allclose(mapped(X)[1], np.cos(X), 1e-6)


def test_the_equation_shows_function_and_rule() -> None:
    def fwd(x: Any) -> Any:
        return x, None

    def bwd(saved: Any, ct: Any) -> Any:
        return (ct,)

    text = str(xcube.make_jaxpr(_double(bwd, fwd))(1.0))
    assert "custom_vjp_call" in text
    assert "rule=fwd, bwd" in text


def test_both_halves_are_staged_once_for_a_jitted_function() -> None:
    calls = []
    f = _double(lambda _, ct: (calls.append("b") or ct,), lambda x: (calls.append("f") or x, None))
    gradient = xcube.jit(xcube.grad(xcube.jit(lambda x: f(x).sum())))
    for _ in range(3):
        np.testing.assert_array_equal(gradient(X), np.ones(3))
    assert calls == ["f", "b"]


def test_residuals_may_be_anything() -> None:
    f = _double(lambda saved, ct: (ct * saved["k"] * saved["n"],), lambda x: (2 * x, saved(x)))
    saved = lambda x: {"k": x, "n": 3, "text": "text", "none": None}  # noqa: E731
    for wrap in (lambda f: f, xcube.jit):
        np.testing.assert_allclose(xcube.grad(wrap(lambda x: f(x).sum()))(X), 3 * X, 1e-6)
        np.testing.assert_allclose(xcube.vmap(xcube.grad(wrap(f)))(X), 3 * X, 1e-6)
        rows = wrap(lambda x: xcube.vmap(f)(x).sum())
        np.testing.assert_allclose(xcube.grad(rows)(X), 3 * X, 1e-6)


def test_rules_may_use_arrays_of_their_own() -> None:
    table = jnp.asarray(X)
    f = _double(lambda k, ct: (ct * k * table,), lambda x: (2 * x, jnp.asarray(X + 1)))
    loop = lambda x: xcube.lax.fori_loop(0, 2, lambda _, c: f(c), x).sum()  # noqa: E731
    step = (X + 1) * X
    for wrap in (lambda f: f, xcube.jit, lambda f: xcube.jit(xcube.jit(f))):
        np.testing.assert_allclose(xcube.grad(wrap(lambda x: f(x).sum()))(X), step, 1e-5)
        np.testing.assert_allclose(xcube.grad(wrap(loop))(X), step * step, 1e-5)
        rows = wrap(lambda x: xcube.vmap(f)(x).sum())
        np.testing.assert_allclose(xcube.grad(rows)(np.ones((2, 3), "f4")), [step, step], 1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit])
@pytest.mark.parametrize("at", ["value", "gradient"])
def test_there_is_no_forward_mode(wrap: Any, at: str) -> None:
    f = _double()
    g = wrap(f if at == "value" else xcube.grad(f))
    with pytest.raises(TypeError, match=r"can't apply forward-mode autodiff \(jvp\)"):
        xcube.jvp(g, (1.0,), (1.0,))
    _, push = xcube.linearize(g, 1.0)
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        push(1.0)


def _closing(wrap: Any = lambda f: f) -> Any:
    def outer(y: Any, x: Any) -> Any:
        f = xcube.custom_vjp(lambda x: x * y)
        f.defvjp(lambda x: (f(x), x * y), lambda saved, ct: (100 * ct * y + 0 * saved,))
        return f(x)

    return wrap(outer)


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit, lambda f: xcube.jit(xcube.jit(f))])
def test_function_and_rule_may_close_over_values_of_an_enclosing_trace(wrap: Any) -> None:
    outer = _closing(wrap)
    total = lambda x: xcube.vmap(outer)(jnp.asarray(X), x).sum()  # noqa: E731
    np.testing.assert_allclose(xcube.grad(total)(np.ones(3, np.float32)), 100 * X, 1e-6)
    np.testing.assert_allclose(xcube.vmap(xcube.grad(outer, 1))(X, X), 100 * X, 1e-6)
    nested = lambda x: xcube.vmap(lambda z: xcube.vmap(outer, (0, None))(X, z))(x).sum()  # noqa: E731
    np.testing.assert_allclose(xcube.grad(nested)(X), np.full(3, 100 * X.sum()), 1e-5)
    step = lambda c, y: (outer(y, c), None)  # noqa: E731
    loop = xcube.grad(lambda x: xcube.lax.scan(step, x, jnp.asarray(X))[0])
    np.testing.assert_allclose(loop(1.0), np.prod(100 * X), 1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit, xcube.vmap])
def test_what_the_function_closes_over_has_no_derivative(wrap: Any) -> None:
    outer = _closing(wrap)
    message = "custom_vjp: detected differentiation of <lambda> with respect to a closed-over value"
    for f in (lambda y: outer(y, 2 * X).sum(), lambda y: outer(y, y).sum()):
        with pytest.raises(UnexpectedTracerError, match=message):
            xcube.grad(f)(jnp.asarray(X))


@pytest.mark.parametrize("wrap", [xcube.jit, xcube.vmap])
def test_a_rule_that_nobody_needs_may_fail(wrap: Any) -> None:
    def outer(y: Any, x: Any) -> Any:
        f = xcube.custom_vjp(lambda x: x * y)
        f.defvjp(lambda x: (f(x), None), lambda saved, ct: 1 / 0)
        g = xcube.custom_jvp(lambda x: x * y)
        g.defjvp(lambda primals, tangents: 1 / 0)
        return f(x) + g(x)

    np.testing.assert_allclose(wrap(outer)(X, X), 2 * X * X, 1e-6)
    with pytest.raises(ZeroDivisionError):
        xcube.grad(lambda x: wrap(outer)(jnp.asarray(X), x).sum())(X)


@pytest.mark.parametrize(
    ("backward", "error", "words"),
    [
        (lambda _, ct: ct, TypeError, r"a tuple with a cotangent for each argument"),
        (lambda _, ct: (ct, ct), TypeError, r"the structure PyTreeDef\(\(\*,\)\)"),
        (lambda _, ct: ({"a": ct},), TypeError, r"got PyTreeDef\(\(\{'a': \*\},\)\)"),
        (
            lambda _, ct: (jnp.ones(2),),
            ShapeError,
            r"at \[0\], f32\[3\], .*got f32\[2\]",
        ),
        (lambda _, ct: (ct * 1j,), DtypeError, r"must be real; got c64\[3\]"),
    ],
)
def test_a_backward_rule_must_give_fitting_cotangents(
    backward: Any, error: Any, words: str
) -> None:
    def bwd(saved: Any, ct: Any) -> Any:
        return backward(saved, ct)

    f = _double(bwd)
    for g in (f, xcube.jit(f)):
        with pytest.raises(error, match=f"custom_vjp: the backward rule bwd of <lambda>.*{words}"):
            xcube.vjp(g, X)[1](X)


@pytest.mark.parametrize(
    ("forward", "error", "words"),
    [
        (lambda x: x, TypeError, "must return a pair, the result and what"),
        (lambda x: ((x,), None), TypeError, "must have the structure of the function's result"),
        (lambda x: (x[:2], None), ShapeError, r"must be f32\[3\].*got f32\[2\]"),
        (lambda x: (x > 0, None), DtypeError, r"must be f32\[3\].*got bool\[3\]"),
    ],
)
def test_a_forward_rule_must_give_the_functions_result(
    forward: Any, error: Any, words: str
) -> None:
    f = _double(forward=forward)
    with pytest.raises(error, match=f"custom_vjp: the forward rule <lambda> of <lambda>.*{words}"):
        xcube.vjp(xcube.jit(f), X)


def test_cotangents_get_the_precision_of_their_arguments() -> None:
    f = _double(lambda _, ct: (ct.astype(jnp.bfloat16),))
    assert xcube.grad(f)(jnp.float32(1)).dtype == np.float32
    g = xcube.custom_vjp(lambda x: x.astype(jnp.float32))
    g.defvjp(lambda x: (g(x), None), lambda _, ct: (ct,))
    assert xcube.grad(g)(jnp.bfloat16(1)).dtype == jnp.bfloat16


def test_calls_that_do_not_fit_are_refused() -> None:
    f = xcube.custom_vjp(lambda x, k=1: x, nondiff_argnums=(1,))
    with pytest.raises(AttributeError, match=r"<lambda> has no rule. At test_custom_vjp.*defvjp"):
        f(1.0)
    f.defvjp(lambda x, k: (x, None), lambda k, saved, ct: (ct,))
    with pytest.raises(UnexpectedTracerError, match=r"must not be traced; got f32\[\]"):
        xcube.jit(f)(1.0, 2.0)
    with pytest.raises(NotImplementedError, match="optimize_remat cannot be combined"):
        f.defvjp(lambda x: x, lambda x: x, symbolic_zeros=True, optimize_remat=True)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        f(k=1)
    kept = _double(forward=lambda x: (2 * x.value, x), symbolic_zeros=True)
    with pytest.raises(TypeError, match="must not return a CustomVJPPrimal"):
        xcube.grad(kept)(1.0)
    with pytest.raises(TypeError, match="every leaf must be a CustomVJPPrimal; got float"):
        xcube.custom_derivatives.custom_vjp_primal_tree_values((CustomVJPPrimal(1, True), 2.0))
    with pytest.raises(TypeError, match="<lambda> must return a pair, its value and its pullback"):
        xcube.custom_gradient(lambda x: x)(1.0)
    converted, hoisted = xcube.closure_convert(lambda x: x["a"], {"a": 1.0})
    with pytest.raises(TypeError, match="the structure of the examples"):
        converted(1.0, *hoisted)


def test_a_linear_call_is_batched_with_its_transpose() -> None:
    scaled = lambda r, x: {"y": x * r}  # noqa: E731
    back = lambda r, ct: 7 * ct["y"] * r  # noqa: E731
    f = lambda r, x: linear_call(scaled, back, r, x)["y"]  # noqa: E731
    for axes in ((0, 0), (None, 0), (0, None)):
        args = [X if axis == 0 else np.float32(2) for axis in axes]
        mapped = lambda x, r=args[0], axes=axes: xcube.vmap(f, axes)(r, x)  # noqa: E731
        np.testing.assert_allclose(mapped(args[1]), args[0] * args[1], 1e-6)
        gradient = xcube.grad(lambda x, f=mapped: f(x).sum())(args[1])
        want = 7 * args[0] * np.ones(3) if axes[1] == 0 else 7 * X.sum()
        np.testing.assert_allclose(gradient, want, 1e-5)


def test_a_linear_call_is_linear_in_one_argument_only() -> None:
    f = lambda r, x: linear_call(lambda r, x: x * r, lambda r, ct: ct * r, r, x)  # noqa: E731
    with pytest.raises(TraceError, match="residual arguments have no derivative"):
        xcube.grad(f)(2.0, 3.0)
    wrong = lambda x: linear_call(lambda r, x: x, lambda r, ct: (ct, ct), 1.0, x)  # noqa: E731
    with pytest.raises(TypeError, match="must have the structure of the linear arguments"):
        wrong(1.0)
    narrow = lambda x: linear_call(lambda r, x: x, lambda r, ct: ct[:2], 1.0, x)  # noqa: E731
    with pytest.raises(ShapeError, match=r"f32\[3\] like the linear argument; got f32\[2\]"):
        narrow(X)
