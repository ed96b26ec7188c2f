"""custom_jvp: the same programs with xcube and with JAX; then what only a test of its own can say:
which rule runs, on what, and how it is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_compose import assert_same

import xcube
import xcube.numpy as jnp
from xcube.custom_derivatives import SymbolicZero, zero_from_primal
from xcube.errors import DtypeError, ShapeError, UnexpectedTracerError

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
    """sin(x) * y with ten times its tangent."""
    np_ = lib.numpy
    f = lib.custom_jvp(lambda x, y=2.0: np_.sin(x) * y)

    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return f(x, y), 10 * (np_.cos(x) * y * dx + np_.sin(x) * dy)

    f.defjvp(rule)
    return f


@case
def values_and_derivatives_by_both_arguments(lib: Any) -> Any:
    f = _scaled(lib)
    return f(0.5), f(0.5, y=3.0), lib.grad(f, (0, 1))(0.5, 3.0), lib.grad(f)(0.5)


@case
def forward_mode_and_linearization(lib: Any) -> Any:
    f = _scaled(lib)
    return lib.jvp(f, (X, X), (X, X)), lib.linearize(f, X, X)[1](X, X)


@case
def second_and_third_derivatives_are_those_of_the_rule(lib: Any) -> Any:
    f = _scaled(lib)
    g = lib.grad(lib.grad(f))
    return g(0.5, 2.0), lib.grad(g)(0.5, 2.0), lib.jvp(lib.grad(f), (0.5, 2.0), (1.0, 1.0))


@case
def batches_of_either_argument(lib: Any) -> Any:
    f = _scaled(lib)
    found = []
    for axes in ((0, None), (None, 0), (0, 0)):
        args = [X if axis == 0 else np.float32(0.5) for axis in axes]
        total = lambda x, y, axes=axes: lib.vmap(f, axes)(x, y).sum()  # noqa: E731
        found += [lib.vmap(lib.grad(f, (0, 1)), axes)(*args), lib.grad(total, (0, 1))(*args)]
        found.append(lib.grad(lib.jit(total), (0, 1))(*args))
    return found


@case
def trees_of_arguments_and_results(lib: Any) -> Any:
    @lib.custom_jvp
    def f(p: Any, n: Any) -> Any:
        return {"a": p["w"] * n, "b": (p["b"], n)}

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (p, n), (dp, dn) = primals, tangents
        out = f(p, n)
        return out, {"a": 3 * dp["w"], "b": (dp["b"], dn)}

    p = {"w": lib.numpy.asarray(X), "b": lib.numpy.float32(2), "none": None}
    n = lib.numpy.int32(3)
    value = lambda p: f(p, n)["a"].sum() + f(p, n)["b"][0]  # noqa: E731
    return f(p, n), lib.grad(value)(p), lib.grad(lib.jit(value))(p)


@case
def a_tangent_for_each_argument_by_defjvps(lib: Any) -> Any:
    f = lib.custom_jvp(lambda x, y, z: x * y * z)
    f.defjvps(lambda dx, out, x, y, z: 2 * dx * out, None, lambda dz, out, x, y, z: dz * y)
    g = lib.custom_jvp(lambda x: (x, x * x))
    g.defjvps(lambda dx, out, x: (3 * dx, dx * out[0]))
    return lib.grad(f, (0, 1, 2))(2.0, 3.0, 5.0), lib.jvp(g, (X,), (X,))


@case
def arguments_without_derivative(lib: Any) -> Any:
    @functools.partial(lib.custom_jvp, nondiff_argnums=(0,), nondiff_argnames=("power",))
    def f(g: Any, x: Any, power: int = 2, scale: Any = 1.0) -> Any:
        return g(x) ** power * scale

    @f.defjvp
    def rule(g: Any, power: int, primals: Any, tangents: Any) -> Any:
        (x, scale), (dx, _) = primals, tangents
        return f(g, x, power, scale), power * g(x) * dx * scale

    sin = lib.numpy.sin
    direct = lib.grad(lambda x: f(sin, x, 3, 2.0))(0.5)
    return f(sin, 0.5), f(sin, 0.5, power=3), direct, lib.jit(lib.grad(lambda x: f(sin, x)))(0.5)


@case
def a_traced_argument_without_derivative(lib: Any) -> Any:
    f = lib.custom_jvp(lambda scale, x: scale["k"] * x, nondiff_argnums=(0,))
    f.defjvp(lambda s, primals, tangents: (f(s, *primals), 7 * s["k"] * tangents[0]))
    batch = lambda x: lib.vmap(lambda k, x: f({"k": k}, x))(X, x).sum()  # noqa: E731
    inside = lib.jit(lambda k, x: lib.grad(lambda x: f({"k": k}, x))(x))
    return lib.grad(batch)(X), lib.grad(lambda k: f({"k": k}, 2.0))(3.0), inside(2.0, 3.0)


@case
def integers_have_empty_tangents(lib: Any) -> Any:
    f = lib.custom_jvp(lambda n, x: (n, x**n))

    def rule(primals: Any, tangents: Any) -> Any:
        (n, x), (dn, dx) = primals, tangents
        assert dn.dtype == jax.dtypes.float0
        return f(n, x), (dn, 5 * dx)

    f.defjvp(rule)
    value = lambda x: f(3, x)[1]  # noqa: E731
    return lib.grad(value)(2.0), lib.grad(lib.jit(value))(2.0)


@case
def zeros_that_are_known_to_be_zero(lib: Any) -> Any:
    f = lib.custom_jvp(lambda x, y: (x * y, y))
    kinds = []

    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        kinds.append([type(t).__name__ == "SymbolicZero" for t in tangents])
        zero = lib.custom_derivatives.zero_from_primal(y, symbolic_zeros=True)
        whole = dx if type(dy).__name__ == "SymbolicZero" else dy
        return f(x, y), (whole * 2, zero)

    f.defjvp(rule, symbolic_zeros=True)
    found = [lib.grad(lambda x, y: f(x, y)[0], n)(2.0, 3.0) for n in (0, 1)]
    jitted = lib.grad(lib.jit(lambda x: f(x, 3.0)[0]))(2.0)
    mapped = lib.grad(lambda x: lib.vmap(lambda x: f(x, 3.0)[0])(x).sum())(X)
    return found, jitted, mapped, kinds[:2]


@case
def python_sees_values_under_grad(lib: Any) -> Any:
    @lib.custom_jvp
    def f(x: Any) -> Any:
        return x if x > 0 else -x

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (dx,) = primals, tangents
        return f(x), 3 * dx if float(x) > 1 else 4 * dx

    return [lib.grad(f)(x) for x in (-2.0, 0.5, 2.0)]


@case
def inside_loops_and_branches(lib: Any) -> Any:
    f = _scaled(lib)
    lax = lib.lax
    loop = lambda x: lax.fori_loop(0, 3, lambda _, c: f(c), x)  # noqa: E731
    branch = lambda x: lax.cond(x > 0, f, lambda x: 3 * x, x)  # noqa: E731
    turns = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]  # noqa: E731
    forward = lib.jvp(turns, (0.1,), (1.0,))
    return lib.grad(loop)(0.1), lib.vmap(lib.grad(loop))(X), lib.vmap(lib.grad(branch))(X), forward


@case
def a_rule_inside_a_rule(lib: Any) -> Any:
    f = _scaled(lib)
    g = lib.custom_jvp(lambda x: f(x) + 1)
    g.defjvp(lambda primals, tangents: lib.jvp(lambda x: f(f(x)), primals, tangents))
    return lib.grad(g)(0.3), lib.grad(lib.grad(lib.jit(g)))(0.3), lib.vmap(lib.grad(g))(X)


@case
def a_collective_in_a_rule(lib: Any) -> Any:
    f = lib.custom_jvp(lambda x: x - lib.lax.pmean(x, "i"))
    f.defjvp(lambda primals, tangents: (f(*primals), lib.lax.psum(tangents[0], "i")))
    total = lambda x: (lib.vmap(f, axis_name="i")(x) * X).sum()  # noqa: E731
    return lib.jvp(lib.vmap(f, axis_name="i"), (X,), (X,)), lib.grad(total)(X)


# on its own -----------------------------------------------------------------------------------


def _linear(rule: Any, **options: Any) -> Any:
    f = xcube.custom_jvp(lambda x: 2 * x)
    f.defjvp(rule, **options)
    return f


def test_without_differentiation_the_function_runs_and_the_rule_does_not() -> None:
    f = _linear(lambda primals, tangents: pytest.fail("the rule was called"))
    np.testing.assert_array_equal(xcube.jit(xcube.vmap(f))(X), 2 * X)
    np.testing.assert_array_equal(f(X), 2 * X)
    assert float(xcube.grad(lambda x: x * f(3.0))(1.0)) == 6


def test_the_equation_shows_function_and_rule() -> None:
    def double_rule(primals: Any, tangents: Any) -> Any:
        return primals[0], tangents[0]

    text = str(xcube.make_jaxpr(_linear(double_rule))(1.0))
    assert "custom_jvp_call" in text
    assert "rule=double_rule" in text
    assert "mul 2.0" in text or "mul a 2.0" in text


def test_a_rule_is_staged_once_for_a_jitted_function() -> None:
    calls = []
    f = _linear(lambda primals, tangents: (calls.append(0) or f(*primals), tangents[0]))
    gradient = xcube.grad(xcube.jit(lambda x: f(x).sum()))
    for _ in range(3):
        np.testing.assert_array_equal(gradient(X), np.ones(3))
    assert len(calls) == 1


def test_rules_may_use_arrays_of_their_own() -> None:
    table = jnp.asarray(X)
    f = _linear(lambda primals, tangents: (f(*primals), tangents[0] * table * np.float32(2)))
    loop = lambda x: xcube.lax.fori_loop(0, 2, lambda _, c: f(c), x).sum()  # noqa: E731
    for wrap in (lambda f: f, xcube.jit, lambda f: xcube.jit(xcube.jit(f))):
        np.testing.assert_allclose(xcube.grad(wrap(lambda x: f(x).sum()))(X), 2 * X, 1e-6)
        np.testing.assert_allclose(xcube.grad(wrap(loop))(X), 4 * X * X, 1e-6)
        rows = wrap(lambda x: xcube.vmap(f)(x).sum())
        np.testing.assert_allclose(xcube.grad(rows)(np.ones((2, 3), "f4")), [2 * X, 2 * X], 1e-6)
        np.testing.assert_allclose(xcube.jvp(wrap(loop), (X,), (X,))[1], (4 * X**3).sum(), 1e-5)


def test_no_tangent_function_is_a_tangent_of_zero() -> None:
    f = xcube.custom_jvp(lambda x: (x, x * x))
    f.defjvps(None)
    out, tangent = xcube.jvp(f, (2.0,), (1.0,))
    assert [float(x) for x in (*out, *tangent)] == [2, 4, 0, 0]


def _closing(wrap: Any = lambda f: f) -> Any:
    def outer(y: Any, x: Any) -> Any:
        f = xcube.custom_jvp(lambda x: x * y)
        f.defjvp(lambda primals, tangents: (f(*primals), 100 * tangents[0] * y))
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


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit, lambda f: xcube.vmap(f, (0, None))])
def test_what_the_function_closes_over_has_no_derivative(wrap: Any) -> None:
    outer = _closing(wrap)
    message = "custom_jvp: detected differentiation of <lambda> with respect to a closed-over value"
    with pytest.raises(UnexpectedTracerError, match=message):
        xcube.grad(lambda y: outer(y, 2.0).sum())(jnp.asarray(X))


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        (lambda p, t: p[0], TypeError, "must return a pair, the primal result and its tangent"),
        (lambda p, t: (p[0], (t[0],)), TypeError, "the structure of the primal result"),
        (lambda p, t: (p[0], None), TypeError, "the structure of the primal result"),
        (lambda p, t: (p[0], jnp.ones(2)), ShapeError, r"must be f32\[3\]; got f32\[2\]"),
        (lambda p, t: (p[0], t[0] > 0), DtypeError, r"must be f32\[3\]; got bool\[3\]"),
    ],
)
def test_a_rule_must_give_a_fitting_tangent(rule: Any, error: Any, words: str) -> None:
    f = _linear(rule)
    for g in (f, xcube.jit(f), xcube.vmap(f)):
        if g is not f and "f32[2]" in words:
            continue
        with pytest.raises(error, match="custom_jvp: the rule <lambda> of <lambda>"):
            xcube.jvp(g, (X,), (X,))
    with pytest.raises(error, match=words):
        xcube.jvp(f, (X,), (X,))


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        (lambda p, t: ((p[0],), (t[0],)), TypeError, "the structure of the function's result"),
        (lambda p, t: (p[0][:2], t[0][:2]), ShapeError, r"must be f32\[3\].*got f32\[2\]"),
        (lambda p, t: (p[0] > 0, np.zeros(3, [("float0", "V")])), DtypeError, "must be"),
    ],
)
def test_the_primal_result_must_be_like_the_functions(rule: Any, error: Any, words: str) -> None:
    with pytest.raises((error, DtypeError), match=words):
        xcube.jvp(xcube.jit(_linear(rule)), (X,), (X,))


def test_calls_that_do_not_fit_are_refused() -> None:
    f = xcube.custom_jvp(lambda x: x)
    with pytest.raises(AttributeError, match=r"<lambda> has no rule. At test_custom_jvp.*defjvp"):
        f(1.0)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        f(y=1.0)
    with pytest.raises(TypeError, match=r"the argument at \[0\]\['k'\] is str"):
        f({"k": "text"})
    with pytest.raises(TypeError, match="must be a function; got int"):
        xcube.custom_jvp(3)  # type: ignore[arg-type]
    keyword = xcube.custom_jvp(lambda *, x: x)
    keyword.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with pytest.raises(TypeError, match="x can only be passed by keyword"):
        keyword(x=1.0)
    fixed = xcube.custom_jvp(lambda x, n: x, nondiff_argnums=(1,))
    with pytest.raises(TypeError, match=r"defjvps cannot be used with nondiff_argnums"):
        fixed.defjvps(None)


def test_the_decorated_function_looks_like_itself() -> None:
    @xcube.custom_jvp
    def documented(x: Any) -> Any:
        """What it does."""
        return x

    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")
    assert not hasattr(documented, "no_such_name")


def test_symbolic_zeros_know_their_type() -> None:
    zero = zero_from_primal({"a": jnp.ones((2, 3)), "n": 3}, symbolic_zeros=True)
    assert isinstance(zero["a"], SymbolicZero)
    assert (zero["a"].shape, zero["a"].ndim, zero["a"].size) == ((2, 3), 2, 6)
    assert zero["a"].dtype == np.float32
    assert zero["n"].dtype == jax.dtypes.float0
    assert SymbolicZero.from_primal_value(2.0).weak_type
    np.testing.assert_array_equal(zero_from_primal(jnp.ones(2)), np.zeros(2))


SAME_PARAMETERS = (
    *("custom_jvp", "custom_jvp.defjvp", "custom_jvp.defjvps", "custom_vjp", "custom_vjp.defvjp"),
    *("custom_gradient", "closure_convert", "custom_batching.custom_vmap.def_vmap"),
    *("custom_batching.custom_vmap", "custom_batching.sequential_vmap", "lax.custom_root"),
    *("lax.custom_linear_solve", "custom_derivatives.linear_call"),
    *("custom_derivatives.zero_from_primal", "custom_derivatives.CustomVJPPrimal"),
)


@pytest.mark.parametrize("name", SAME_PARAMETERS)
def test_parameters_are_named_as_in_jax(name: str) -> None:
    ours, theirs = (functools.reduce(getattr, name.split("."), library) for library in (xcube, jax))
    if isinstance(theirs, type):
        ours, theirs = ours.__init__, theirs.__init__
    rows = [inspect.signature(f).parameters.values() for f in (ours, theirs)]
    mine, other = [[(p.name, p.kind, p.default) for p in row] for row in rows]
    assert mine == other
