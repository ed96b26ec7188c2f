"""checkify: errors as values, in every form of control flow and under every transform, against JAX
and against what plain Python would have raised."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.checkify as jax_checkify
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.experimental import checkify as ck

WRAPS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "plain": lambda library, checkify, f, errors: checkify.checkify(f, errors),
    "jit outside": lambda library, checkify, f, errors: library.jit(checkify.checkify(f, errors)),
    "jit inside": lambda library, checkify, f, errors: checkify.checkify(library.jit(f), errors),
}


def outcome(library: Any, checkify: Any, wrap: str, f: Any, errors: str, *args: Any) -> Any:
    """Message (without the line) and result of a checked call."""
    function = lambda *args: f(library, checkify, *args)  # noqa: E731
    checked = WRAPS[wrap](library, checkify, function, getattr(checkify, errors))
    error, result = checked(*map(library.numpy.asarray, args))
    return essence(error.get()), np.asarray(result)


def essence(message: str | None) -> Any:
    """What a message says: kind, numbers, name of the operation; None where there is none."""
    if message is None:
        return None
    text = re.sub(r" At \S+:\d+\.", "", message)
    if "out-of-bounds" in text:
        found = re.search(r"shape (\(.*?\)).*index (-?\d+) .* axis (\d+) with size (\d+)", text)
        assert found
        return found.groups()
    return text.replace("(`check` failed).", "(`check` failed)").rstrip(".")


# against JAX ----------------------------------------------------------------------------------

V = np.array([1.0, 2.0, 4.0], np.float32)
M = np.arange(6, dtype=np.float32).reshape(2, 3)
ZERO, ONE, FIVE, MINUS = (np.int32(n) for n in (0, 1, 5, -5))


def user(library: Any, checkify: Any, x: Any) -> Any:
    checkify.check(x.sum() > 0, "sum of {} is {total}", x, total=x.sum())
    checkify.check(x[0] != 2, "x[0] is {}", x[0])
    return x * 2


def scanned(library: Any, checkify: Any, xs: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        checkify.check(carry + x < 6, "carry {} x {}", carry, x)
        return carry + x, carry * 2

    return library.lax.scan(body, xs[0] * 0, xs)[1]


def scanned_backwards(library: Any, checkify: Any, xs: Any) -> Any:
    body = lambda carry, x: (carry, library.numpy.log(x))  # noqa: E731
    return library.lax.scan(body, 0, xs, reverse=True)[1]


def looped(library: Any, checkify: Any, n: Any) -> Any:
    def cond(k: Any) -> Any:
        checkify.check(k != 4, "condition at {}", k)
        return k < n

    def body(k: Any) -> Any:
        checkify.check(k != 2, "body at {}", k)
        return k + 1

    return library.lax.while_loop(cond, body, n * 0)


def branched(library: Any, checkify: Any, x: Any) -> Any:
    def one(x: Any) -> Any:
        checkify.check(x > 5, "{} is not > 5", x)
        return x

    def other(x: Any) -> Any:
        checkify.check(x < -5, "{} is not < -5, {}", x, x + 1)
        checkify.check(x > -9, "{} is not > -9", x)
        return x * 2

    return library.lax.cond(x > 0, one, other, x)


def nested(library: Any, checkify: Any, x: Any) -> Any:
    def step(carry: Any, k: Any) -> Any:
        body = lambda c: library.lax.cond(k > 1, lambda: c / (k - 2), lambda: c + 1)  # noqa: E731
        return library.lax.while_loop(lambda c: c < k, body, carry), k

    return library.lax.scan(step, x, library.numpy.arange(4.0))[0]


CASES: list[tuple[Any, str, tuple[Any, ...]]] = [
    *[(user, "user_checks", (x,)) for x in (V, -V, V[[1, 0, 2]])],
    *[(scanned, "user_checks", (x,)) for x in (V, V[:2], V[::-1].copy())],
    *[(looped, "user_checks", (n,)) for n in (ONE, FIVE)],
    *[(branched, "user_checks", (np.float32(x),)) for x in (7, 1, -7, -1, -10)],
    (lambda library, checkify, x: library.numpy.sin(x), "float_checks", (V * np.inf,)),
    (lambda library, checkify, x: library.numpy.log(x - 3), "nan_checks", (V,)),
    (lambda library, checkify, x: library.numpy.log(x + 3), "nan_checks", (V,)),
    (lambda library, checkify, x: x / (x - 2), "float_checks", (V,)),
    (lambda library, checkify, x: x / (x - 2), "nan_checks", (V,)),
    (lambda library, checkify, x: x / (x - 3), "float_checks", (V,)),
    (lambda library, checkify, x: (x - 2) / (x - 2), "nan_checks", (V,)),
    (lambda library, checkify, x: library.numpy.dot(x, x), "nan_checks", (V * np.nan,)),
    (scanned_backwards, "nan_checks", (V,)),
    (scanned_backwards, "nan_checks", (V - 3,)),
    (nested, "float_checks", (np.float32(0),)),
    *[(lambda library, checkify, x, i: x[i], "index_checks", (V, i)) for i in (ZERO, FIVE, MINUS)],
    *[
        (lambda library, checkify, x, i: x[:, i], "index_checks", (M, np.array(i, np.int32)))
        for i in ([0, 2], [1, 3], [[0], [-4]])
    ],
    (
        lambda library, checkify, x, i: x[i, i + 1],
        "index_checks",
        (M, np.array([0, 1, 2], np.int32)),
    ),
    *[
        (lambda library, checkify, x, i: x.at[i].set(3.0), "index_checks", (V, i))
        for i in (ONE, FIVE, MINUS)
    ],
    (
        lambda library, checkify, x, i: x.at[i].add(3.0),
        "index_checks",
        (V, np.array([1, 9], np.int32)),
    ),
    (
        lambda library, checkify, x, i: library.lax.dynamic_slice(x, (0, i), (1, 2)),
        "index_checks",
        (M, np.int32(2)),
    ),
    (
        lambda library, checkify, x, i: library.lax.dynamic_update_slice(x, x[:1], (i, i - i)),
        "index_checks",
        (M, FIVE),
    ),
    (
        lambda library, checkify, x, i: library.numpy.take_along_axis(x, i, 0),
        "index_checks",
        (V, np.array([7], np.int32)),
    ),
    (lambda library, checkify, x: x / 0, "user_checks", (V,)),
    (user, "automatic_checks", (-V,)),
    (user, "all_checks", (-V,)),
    *[(function, "div_checks", (V,)) for function in (user, scanned)],
    *[(function, "div_checks", (np.float32(4),)) for function in (looped, branched)],
]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_errors_are_those_of_jax(case: int, wrap: str) -> None:
    function, errors, args = CASES[case]
    want, want_result = outcome(jax, jax_checkify, wrap, function, errors, *args)
    found, result = outcome(xcube, ck, wrap, function, errors, *args)
    assert found == want
    np.testing.assert_allclose(result, want_result, rtol=1e-6)


# messages -------------------------------------------------------------------------------------


def test_a_message_names_the_line_of_the_user() -> None:
    def function(x: Any) -> Any:
        y = jnp.log(x)  # a NaN here
        ck.check(x > 0, "x is {}", x)  # a check here
        return y

    lines, first = inspect.getsourcelines(function)
    for errors, text in ((ck.nan_checks, "a NaN here"), (ck.user_checks, "a check here")):
        number = first + next(n for n, line in enumerate(lines) if text in line)
        error, _ = xcube.jit(ck.checkify(function, errors))(-1.0)
        assert str(error.get()).endswith(f"At test_checkify.py:{number}.")


def test_the_first_error_counts_across_kinds() -> None:
    def function(x: Any) -> Any:
        y = jnp.log(x)
        ck.check(x > 0, "later")
        return y / 0

    for wrap in (lambda f: f, xcube.jit):
        assert "nan" in wrap(ck.checkify(function, ck.all_checks))(-1.0)[0].get()
        assert "later" in wrap(ck.checkify(function, ck.user_checks))(-1.0)[0].get()
        assert "zero" in wrap(ck.checkify(function, ck.all_checks))(1.0)[0].get()


def test_exceptions_have_categories() -> None:
    error, _ = ck.checkify(lambda x: ck.check(x > 0, "no"))(jnp.float32(-1))
    assert type(error.get_exception()) is ck.FailedCheckError
    with pytest.raises(ck.JaxRuntimeError, match="`check` failed") as caught:
        error.throw()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, ck.FailedCheckError)
    none, _ = ck.checkify(lambda x: x)(1.0)
    assert (none.get(), none.get_exception(), none.throw()) == (None, None, None)
    assert str(none) == "Error(None)"
    assert ck.init_error.get() is None


@pytest.mark.parametrize("library", ["jax", "xcube"])
def test_wrong_uses_raise_what_jax_raises(library: str) -> None:
    lib, checkify = (jax, jax_checkify) if library == "jax" else (xcube, ck)
    x = lib.numpy.float32(1)
    with pytest.raises(TypeError, match="scalar"):
        checkify.check(lib.numpy.ones(2) > 0, "shape")
    with pytest.raises(TypeError, match="scalar"):
        checkify.check(x, "dtype")
    with pytest.raises(TypeError, match="array"):
        checkify.check(x > 0, "{}", "text")
    with pytest.raises(TypeError, match="takes an Error"):
        checkify.check_error("text")
    with pytest.raises(ValueError, match="functionaliz"):
        lib.jit(lambda x: checkify.check(x > 0, "x"))(x)
    with pytest.raises(ValueError, match="functionaliz"):
        lib.lax.map(lambda x: (checkify.check(x > 0, "x"), x)[1], lib.numpy.ones(2))


def test_a_format_without_its_arguments_is_refused_when_traced() -> None:
    with pytest.raises(IndexError):
        ck.check(True, "{} {}", jnp.float32(1))
    with pytest.raises(KeyError):
        ck.checkify(lambda: ck.check(True, "{name}"))()


# outside of programs --------------------------------------------------------------------------


def positive(x: Any) -> Any:
    ck.check(x > 0, "x is {}", x)
    return x * x


@pytest.mark.parametrize(
    "call",
    [
        positive,
        xcube.grad(positive),
        lambda x: xcube.jvp(positive, (x,), (x,)),
        lambda x: xcube.vmap(positive)(jnp.stack([jnp.float32(1), x])),
        lambda x: xcube.vmap(xcube.vmap(positive))(jnp.stack([jnp.ones(2), x * jnp.ones(2)])),
        lambda x: xcube.vmap(xcube.grad(positive))(x[None]),
        lambda x: ck.check_error(xcube.jit(ck.checkify(positive))(x)[0]),
        lambda x: ck.check_error(xcube.vmap(ck.checkify(positive))(x[None])[0]),
    ],
)
def test_checks_raise_at_once(call: Callable[[Any], Any]) -> None:
    call(jnp.float32(2))
    with pytest.raises(ck.JaxRuntimeError, match="x is -3"):
        call(jnp.float32(-3))


def test_a_debug_check_counts_under_checkify_only() -> None:
    def function(x: Any) -> Any:
        ck.debug_check(x > 0, "x is {}", x)
        return x + 1

    x = jnp.float32(-1)
    assert function(x) == xcube.jit(function)(x) == xcube.grad(lambda x: x * function(x))(x) + 1
    np.testing.assert_array_equal(xcube.vmap(function)(x[None]), [0.0])
    for wrap in (lambda f: f, xcube.jit):
        assert "x is -1" in wrap(ck.checkify(function))(x)[0].get()


# transforms -----------------------------------------------------------------------------------


def test_mapped_checkify_tells_every_example() -> None:
    error, result = xcube.jit(xcube.vmap(ck.checkify(positive)))(jnp.array([1.0, -2.0, -3.0]))
    np.testing.assert_array_equal(result, [1.0, 4.0, 9.0])
    assert isinstance(error.get_exception(), ck.BatchedError)
    lines = str(error.get()).splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "at mapped index 1: x is -2.0",
        "at mapped index 2: x is -3.0",
    ]
    assert xcube.vmap(ck.checkify(positive))(jnp.ones(3))[0].get() is None


@pytest.mark.parametrize("axes", [0, 1])
def test_maps_of_maps_tell_the_whole_index(axes: int) -> None:
    checked = xcube.vmap(xcube.vmap(ck.checkify(positive)), axes)
    error, _ = checked(jnp.array([[1.0, 2.0], [3.0, -4.0]]))
    assert str(error.get()).startswith("at mapped index 1, 1: x is -4.0")


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit], ids=["eager", "jit"])
def test_checkify_of_a_map_tells_the_first_example(wrap: Any) -> None:
    checked = wrap(ck.checkify(xcube.vmap(positive)))
    assert "x is -2.0" in checked(jnp.array([1.0, -2.0, -3.0]))[0].get()
    assert checked(jnp.ones(3))[0].get() is None
    assert checked(jnp.ones(0))[0].get() is None


def test_derivatives_are_those_of_the_function() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            ck.check(carry > 0, "carry is {}", carry)
            return carry * x, jnp.sin(carry)

        last, rows = lax.scan(body, x, jnp.arange(3))
        return last + jnp.sum(rows)

    plain = lambda x: sum(np.sin(x**k) for k in (1, 2, 3)) + x**4  # noqa: E731
    want = (plain(1.5 + 1e-5) - plain(1.5 - 1e-5)) / 2e-5
    checked = xcube.grad(lambda x: ck.checkify(function, ck.all_checks)(x)[1])
    error, found = ck.checkify(xcube.grad(function))(1.5)
    pair = xcube.grad(lambda x: ck.checkify(function)(x)[::-1], has_aux=True)(-1.5)
    assert error.get() is None
    assert "carry is -1.5" in pair[1].get()
    for gradient in (found, checked(1.5), xcube.jit(checked)(1.5)):
        np.testing.assert_allclose(gradient, want, rtol=1e-4)


def test_a_checkpoint_is_checked_and_keeps_its_derivative() -> None:
    function = xcube.checkpoint(lambda x: jnp.sin(positive(x)))
    error, result = xcube.jit(ck.checkify(function))(-2.0)
    assert "x is -2.0" in error.get()
    np.testing.assert_allclose(result, np.sin(4.0), rtol=1e-6)
    gradient = xcube.jit(xcube.grad(lambda x: ck.checkify(function)(x)[1]))(2.0)
    np.testing.assert_allclose(gradient, np.cos(4.0) * 4, rtol=1e-5)


def test_custom_rules_stay_though_their_functions_are_checked() -> None:
    @xcube.custom_jvp
    def forward(x: Any) -> Any:
        return positive(x)

    forward.defjvp(lambda primals, tangents: (primals[0] ** 2, 7 * tangents[0]))

    @xcube.custom_vjp
    def reverse(x: Any) -> Any:
        return positive(x)

    reverse.defvjp(lambda x: (x * x, None), lambda _, ct: (8 * ct,))
    for function, slope in ((forward, 7.0), (reverse, 8.0)):
        for wrap in (lambda f: f, xcube.jit):
            error, result = wrap(ck.checkify(function))(-2.0)
            assert ("x is -2.0" in error.get(), float(result)) == (True, 4.0)
            checked = wrap(xcube.grad(lambda x, f=function: ck.checkify(f)(x)[1]))
            assert checked(2.0) == slope


def test_an_error_is_a_value_that_control_flow_carries() -> None:
    checked = ck.checkify(positive)

    @xcube.jit
    def errors(xs: Any) -> Any:
        return lax.map(lambda x: checked(x)[0], xs)

    error = errors(jnp.array([1.0, -2.0, 3.0]))
    assert str(error.get()).startswith("at mapped index 1: x is -2.0")
    leaves, treedef = xcube.tree.flatten(error)
    assert xcube.tree.unflatten(treedef, leaves).get() == error.get()


def test_errors_thrown_again_join_those_of_an_outer_checkify() -> None:
    def outer(x: Any) -> Any:
        ck.check(x != 5, "x is five")
        error, y = xcube.jit(ck.checkify(lambda x: jnp.log(positive(x)), ck.all_checks))(x)
        ck.check_error(error)
        ck.check(y < 2, "y is {}", y)
        return y

    checked = xcube.jit(ck.checkify(outer, ck.all_checks))
    says = {5.0: "x is five", -1.0: "x is -1.0", 1.0: None, 9.0: "y is 4.39"}
    for x, text in says.items():
        message = checked(x)[0].get()
        assert message is None if text is None else text in message
    assert "x is -1.0" in ck.checkify(outer)(-1.0)[0].get()
    assert ck.checkify(outer, ck.nan_checks)(-1.0)[0].get() is None


def test_pytrees_and_ordinary_arguments_pass() -> None:
    def function(tree: Any, name: str, *, power: int) -> Any:
        ck.check(tree["a"] > 0, name + " {tree}", tree=tree)
        return {"out": tree["a"] ** power}

    error, result = ck.checkify(function)({"a": jnp.float32(-2)}, "found", power=2)
    assert "found {'a': -2.0}" in str(error.get()).replace("np.float32(-2.0)", "-2.0")
    assert result["out"] == 4


def test_programs_are_traced_and_compiled_once() -> None:
    traced: list[int] = []

    @xcube.jit
    def inner(x: Any) -> Any:
        traced.append(1)
        return positive(x)

    checked = ck.checkify(inner)
    for x in (1.0, 2.0, -1.0):
        error, _ = checked(jnp.float32(x))
    assert "x is -1.0" in str(error.get())
    assert len(traced) == 1


def test_mapped_branches_and_loops_are_checked_where_examples_run_them() -> None:
    def branch(x: Any) -> Any:
        def one(x: Any) -> Any:
            ck.check(x > 0, "one of {}", x)
            return x

        def other(x: Any) -> Any:
            ck.check(x < 0, "other of {}", x)
            return -x

        return lax.cond(x >= 0, one, other, x)

    def loop(n: Any) -> Any:
        def body(k: Any) -> Any:
            ck.check(k < n, "turn {} of {}", k, n)
            ck.check(k < 3, "turn {}", k)
            return k + 1

        return lax.while_loop(lambda k: k < n, body, 0)

    for function, passing, failing, text in (
        (branch, [3.0, -2.0], [3.0, -2.0, 0.0], "one of 0.0"),
        (loop, [1, 3, 2], [1, 4, 2], "turn 3"),
    ):
        for wrap in (lambda f: f, xcube.jit):
            checked = wrap(ck.checkify(xcube.vmap(function)))
            assert checked(jnp.array(passing))[0].get() is None
            assert text in checked(jnp.array(failing))[0].get()
    with pytest.raises(ck.JaxRuntimeError, match="one of 0"):
        xcube.vmap(branch)(jnp.array([3.0, -2.0, 0.0]))
