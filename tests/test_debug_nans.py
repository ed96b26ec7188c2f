"""debug_nans and debug_infs: what is refused, and which operation, turn and line is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import config, debug, lax

ONES = np.ones(3, np.float32)


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file.py:12` for the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return f"test_debug_nans.py:{first + next(n for n, line in enumerate(lines) if text in line)}"


def refusal(function: Callable[..., Any], *args: Any, setting: str = "debug_nans") -> str:
    """The message that a call is refused with."""
    with config.using(**{setting: True}), pytest.raises(FloatingPointError) as caught:
        function(*args)
    return str(caught.value)


# one operation --------------------------------------------------------------------------------

NANS = {
    "log": lambda jnp, x: jnp.log(x),
    "sqrt": lambda jnp, x: jnp.sqrt(x),
    "sub": lambda jnp, x: x / 0 - x / 0,
    "div": lambda jnp, x: (x - x) / (x - x),
}


@pytest.mark.parametrize("name", NANS)
def test_an_operation_that_gives_nan_is_refused_as_by_jax(name: str) -> None:
    function = NANS[name]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="invalid value \\(nan\\)"):
        function(jax.numpy, jax.numpy.asarray(-ONES))
    message = refusal(lambda x: function(jnp, x), jnp.asarray(-ONES))
    assert f"invalid value (nan) encountered in {name}" in message
    assert "f32[3]" in message


def test_the_message_tells_ranges_and_counts_and_the_line() -> None:
    def function(x: Any) -> Any:
        return jnp.sqrt(x)  # here

    message = refusal(function, jnp.array([4.0, -1.0, 0.0]))
    assert "f32[3] in 0..2, 1 nan = sqrt(f32[3] in -1..4)" in message
    assert line_of(function, "# here") in message


@pytest.mark.parametrize("value", [jnp.inf, -jnp.inf])
def test_infinities_have_a_setting_of_their_own(value: float) -> None:
    x = jnp.array([value, 1.0])
    assert "inf" in refusal(lambda: -x, setting="debug_infs")
    with config.using(debug_nans=True):
        np.testing.assert_array_equal(-x, [-value, -1.0])
    with config.using(debug_infs=True):
        assert np.isnan(jnp.sqrt(jnp.array([-1.0])))[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_every_float_is_looked_at(dtype: str) -> None:
    x = jnp.zeros(2, dtype)
    assert "nan" in refusal(lambda: x / x)


def test_nothing_is_refused_unless_it_is_asked_for() -> None:
    assert np.isnan(jnp.sqrt(jnp.float32(-1)))
    with config.using(debug_nans=True, debug_infs=True):
        np.testing.assert_array_equal(jnp.arange(3) // 0, jnp.arange(3) // 0)
        assert jnp.sum(jnp.ones(3)) == 3


# programs -------------------------------------------------------------------------------------


def test_a_jitted_function_names_the_equation_and_its_line() -> None:
    @xcube.jit
    def function(x: Any) -> Any:
        y = jnp.cos(x) - 2
        z = jnp.log(y)  # here
        return jnp.sum(z * 3)

    message = refusal(function, jnp.asarray(ONES))
    assert "encountered in log" in message
    assert line_of(function.__wrapped__, "# here") in message
    assert "log(f32[3] in -1.4597..-1.4597)" in message


def test_a_nan_that_no_result_holds_is_let_pass() -> None:
    function = xcube.jit(lambda x: jnp.where(x > 0, x, jnp.log(x)))
    with config.using(debug_nans=True):
        np.testing.assert_array_equal(function(jnp.asarray(ONES)), ONES)


def test_arguments_that_hold_it_are_named() -> None:
    function = xcube.jit(lambda x: x + 1)
    assert "arguments hold it already" in refusal(function, jnp.array([jnp.nan]))


def test_a_call_within_a_call_is_entered() -> None:
    inner = xcube.jit(lambda x: jnp.log(x - 2))
    outer = xcube.jit(lambda x: 2 * inner(x))
    message = refusal(outer, jnp.asarray(ONES))
    assert "encountered in log" in message
    assert "<lambda>" in message


def test_donated_arguments_are_kept_for_the_search() -> None:
    function = xcube.jit(lambda x: jnp.log(x) * 0 + jnp.sqrt(-x), donate_argnums=0)
    assert "encountered in sqrt" in refusal(function, jnp.asarray(ONES))


def test_debug_callbacks_are_not_called_again() -> None:
    seen: list[float] = []

    @xcube.jit
    def function(x: Any) -> Any:
        debug.callback(lambda x: seen.append(float(x)), x)
        return jnp.sqrt(-x)

    refusal(function, jnp.float32(2))
    assert seen == [2.0]


def test_a_program_with_effects_is_not_run_again() -> None:
    seen: list[float] = []

    @xcube.jit
    def function(x: Any) -> Any:
        kept = xcube.experimental.io_callback(lambda x: seen.append(x) or x, x, x)
        return jnp.sqrt(-kept)

    assert "effects (io)" in refusal(function, jnp.float32(2))
    assert len(seen) == 1


# control flow ---------------------------------------------------------------------------------


def scanned(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return jnp.sqrt(carry) - row, carry  # here

    return lax.scan(body, x, jnp.ones(5))


def looped(x: Any) -> Any:
    return lax.while_loop(lambda x: x < 99, lambda x: jnp.sqrt(x) - 1, x)  # here


def branched(x: Any) -> Any:
    return lax.cond(x > 0, lambda x: jnp.sqrt(-x), lambda x: x, x)  # here


@pytest.mark.parametrize("wrap", [xcube.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize(
    ("function", "where"),
    [(scanned, "turn 2 of scan"), (looped, "turn 2 of while"), (branched, "branch 1 of cond")],
)
def test_loops_and_branches_are_entered(wrap: Any, function: Any, where: str) -> None:
    message = refusal(wrap(function), jnp.float32(2))
    assert "encountered in sqrt" in message
    assert where in message
    assert line_of(function, "# here") in message


def test_the_turns_of_a_reversed_scan_are_counted_as_they_run() -> None:
    def body(carry: Any, x: Any) -> Any:
        return carry, jnp.log(x)

    function = xcube.jit(lambda xs: lax.scan(body, 0, xs, reverse=True)[1])
    assert "turn 1 of scan" in refusal(function, jnp.array([1.0, 2.0, -1.0, 3.0]))


def test_a_gradient_is_searched_too() -> None:
    function = xcube.jit(xcube.grad(lambda x: jnp.sqrt(x * 0)))
    message = refusal(function, jnp.float32(1))
    assert "encountered in" in message
