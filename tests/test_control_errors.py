"""What control flow says when it is used wrongly: the kind of error that JAX raises, what must hold
with paths and types of both sides, and the line of this file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import errors

lax: Any = xcube.lax  # which is given what its types do not allow
X = np.array([1, 2, 3], np.float32)


def pair(c: Any, x: Any) -> Any:
    return c, x


WRONG: dict[str, tuple[type[Exception], Callable[[], Any], tuple[str, ...]]] = {
    "scan: a carry that changes type": (
        TypeError,
        lambda: lax.scan(
            lambda c, x: ({"a": c["a"], "b": [c["b"][0] * 1.5, c["b"][1][None]]}, x),
            {"a": 1.0, "b": [jnp.int32(1), X]},
            X,
        ),
        (r"carry\['b'\]\[0\] is i32\[\] given, f32\[\] returned", r"carry\['b'\]\[1\] is f32\[3\]"),
    ),
    "scan: a carry that changes structure": (
        TypeError,
        lambda: lax.scan(lambda c, x: ({"a": (c["a"], x)}, None), {"a": 1.0}, X),
        (r"structure", r"at \['a'\]", r"\(\*, \*\)"),
    ),
    "scan: no pair": (TypeError, lambda: lax.scan(lambda c, x: c + x, 0.0, X), (r"pair",)),
    "scan: three results": (TypeError, lambda: lax.scan(lambda c, x: (c, c, c), 0.0, X), ("pair",)),
    "scan: lengths differ": (
        ValueError,
        lambda: lax.scan(pair, 0.0, {"a": X, "b": X[:2]}),
        (r"xs\['a'\]: f32\[3\], xs\['b'\]: f32\[2\]",),
    ),
    "scan: another length": (
        ValueError,
        lambda: lax.scan(pair, 0.0, X, length=4),
        (r"f32\[3\] and length=4",),
    ),
    "scan: no length": (ValueError, lambda: lax.scan(pair, 0.0), (r"length must be given",)),
    "scan: no leading axis": (ValueError, lambda: lax.scan(pair, 0.0, 1.0), (r"leading axis",)),
    "scan: a traced length": (
        errors.ConcretizationTypeError,
        lambda: xcube.jit(lambda n: lax.scan(pair, 0.0, None, n))(3),
        (r"i32\[\]", "fori_loop"),
    ),
    "scan: no function": (TypeError, lambda: lax.scan(3, 0.0, X), (r"f must be a function.*int",)),
    "scan: no array": (TypeError, lambda: lax.scan(pair, {"a": "text"}, X), (r"\['a'\] is str",)),
    "scan: unroll": (ValueError, lambda: lax.scan(pair, 0.0, X, unroll=-1), (r"unroll.*-1",)),
    "while_loop: a value that changes type": (
        TypeError,
        lambda: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1][:2]), (0, X)),
        (r"carry\[1\] is f32\[3\] given, f32\[2\] returned",),
    ),
    "while_loop: a value that changes structure": (
        TypeError,
        lambda: lax.while_loop(lambda c: True, lambda c: (c, c), 1),
        (r"structure", r"\* given, \(\*, \*\) returned"),
    ),
    "while_loop: a condition of many": (
        TypeError,
        lambda: lax.while_loop(lambda c: c < 3, lambda c: c, X),
        (r"bool\[3\]", "all or any"),
    ),
    "while_loop: a condition that is no bool": (
        TypeError,
        lambda: lax.while_loop(lambda c: c, lambda c: c, 1),
        (r"i32\[\]",),
    ),
    "while_loop: a condition that is a tree": (
        TypeError,
        lambda: lax.while_loop(lambda c: (c < 1, c < 2), lambda c: c, 1),
        (r"bool\[\].*bool\[\]",),
    ),
    "while_loop: no function": (TypeError, lambda: lax.while_loop(1, 2, 3), (r"cond_fun",)),
    "while_loop: reverse mode": (
        ValueError,
        lambda: xcube.grad(lambda x: lax.while_loop(lambda c: c < 9, lambda c: c * 2, x))(1.0),
        (r"reverse", "scan", "fori_loop"),
    ),
    "while_loop: reverse mode of fori_loop with traced bounds": (
        ValueError,
        lambda: xcube.jit(xcube.grad(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * x, x)))(
            1.0, 3
        ),
        (r"reverse", "bounds that are known"),
    ),
    "fori_loop: dtypes of the bounds": (
        TypeError,
        lambda: lax.fori_loop(jnp.int8(0), jnp.int32(3), lambda i, c: c, 0),
        (r"i8\[\] and i32\[\]",),
    ),
    "fori_loop: bounds that are no integers": (
        TypeError,
        lambda: lax.fori_loop(0, 3.0, lambda i, c: c, 0),
        (r"i32\[\] and f32\[\]",),
    ),
    "fori_loop: bounds that are no scalars": (
        TypeError,
        lambda: lax.fori_loop(0, jnp.arange(3), lambda i, c: c, 0),
        (r"i32\[3\]",),
    ),
    "fori_loop: a value that changes type": (
        TypeError,
        lambda: lax.fori_loop(0, 3, lambda i, c: c * 1.5, jnp.int32(2)),
        (r"carry is i32\[\] given, f32\[\] returned",),
    ),
    "fori_loop: unroll with traced bounds": (
        ValueError,
        lambda: xcube.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c, 0, unroll=2))(3),
        (r"unroll=2",),
    ),
    "fori_loop: no function": (TypeError, lambda: lax.fori_loop(0, 3, 1, 0), ("body_fun",)),
    "cond: types of the branches": (
        TypeError,
        lambda: lax.cond(True, lambda: {"a": X, "b": 1}, lambda: {"a": X[:2], "b": 1}),
        (r"result\['a'\] is f32\[2\] from false_fun, f32\[3\] from true_fun",),
    ),
    "cond: structures of the branches": (
        TypeError,
        lambda: lax.cond(True, lambda: (1, 2), lambda: [1, 2]),
        (r"one structure", r"\[\*, \*\] from false_fun, \(\*, \*\) from true_fun"),
    ),
    "cond: a predicate of many": (TypeError, lambda: lax.cond(X > 1, int, int), (r"bool\[3\]",)),
    "cond: a list": (TypeError, lambda: lax.cond([True], int, int), (r"list",)),
    "cond: no predicate": (TypeError, lambda: lax.cond(None, int, int), (r"NoneType",)),
    "cond: a complex predicate": (TypeError, lambda: lax.cond(1j, int, int), (r"c64\[\]",)),
    "cond: no function": (TypeError, lambda: lax.cond(True, 1, int), (r"true_fun",)),
    "cond: operands twice": (
        TypeError,
        lambda: lax.cond(True, lambda x: x, lambda x: x, 1, operand=2),
        (r"not both",),
    ),
    "switch: types of the branches": (
        TypeError,
        lambda: lax.switch(0, [lambda: 1.0, lambda: 2.0, lambda: 3]),
        (r"f32\[\] from branch 0, i32\[\] from branch 2",),
    ),
    "switch: an index that is no integer": (
        TypeError,
        lambda: lax.switch(1.0, [lambda: 1, lambda: 2]),
        (r"f32\[\]",),
    ),
    "switch: an index of many": (
        TypeError,
        lambda: lax.switch(jnp.arange(2), [lambda: 1, lambda: 2]),
        (r"i32\[2\]", "vmap"),
    ),
    "switch: no branches": (ValueError, lambda: lax.switch(0, []), ("branch",)),
    "switch: no function": (TypeError, lambda: lax.switch(0, [int, 1]), ("branch 1",)),
    "map: lengths differ": (
        ValueError,
        lambda: lax.map(lambda x: x, (X, X[:2])),
        (r"xs\[0\]: f32\[3\], xs\[1\]: f32\[2\]",),
    ),
    "map: no function": (TypeError, lambda: lax.map(1, X), ("f must be",)),
    "associative_scan: lengths differ": (
        ValueError,
        lambda: lax.associative_scan(lambda a, b: a, (X, X[:2])),
        (r"elems\[0\]: f32\[3\], elems\[1\]: f32\[2\]",),
    ),
    "associative_scan: no function": (
        TypeError,
        lambda: lax.associative_scan(1, X),
        (r"fn must be",),
    ),
    "associative_scan: another dtype": (
        TypeError,
        lambda: lax.associative_scan(lambda a, b: a < b, X),
        (r"f32\[1\] given, bool\[1\] returned",),
    ),
    "associative_scan: no such axis": (
        ValueError,
        lambda: lax.associative_scan(jnp.add, X, axis=1),
        (r"axis",),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use(name: str) -> None:
    kind, function, patterns = WRONG[name]
    with pytest.raises(kind) as caught:
        function()
    message = str(caught.value)
    assert message.startswith(name.split(":")[0]), message
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in: {message}"
    first = inspect.getsourcelines(function)[1]
    lines = [int(n) for n in re.findall(r"test_control_errors\.py:(\d+)", message)]
    assert any(abs(line - first) < 10 for line in lines), f"no line of the test in: {message}"


def test_reverse_mode_of_while_names_the_loop() -> None:
    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c < 9, lambda c: c * 2, x)  # here

    with pytest.raises(ValueError, match="reverse") as caught:
        xcube.grad(loop)(1.0)
    source, first = inspect.getsourcelines(loop)
    line = first + next(n for n, text in enumerate(source) if "# here" in text)
    assert any(f"test_control_errors.py:{line}" in note for note in caught.value.__notes__)


def test_a_while_loop_without_cotangents_is_no_obstacle() -> None:
    """The loop gives integers, or floats that nothing differentiable is made of."""

    def count(x: Any) -> Any:
        steps = lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] * 2, c[1] + 1), (x, 0))[1]
        limit = lax.while_loop(lambda c: c < 9, lambda c: c * 2, lax.stop_gradient(x))
        return x * steps * limit

    assert float(xcube.grad(count)(1.0)) == 4 * 16


def test_an_operation_that_fails_in_a_body_names_its_line() -> None:
    def body(c: Any, x: Any) -> Any:
        return c + jnp.ones(4), x  # the fault

    with pytest.raises(errors.ShapeError, match=r"f32\[3\]") as caught:
        lax.scan(body, X, X)
    source, first = inspect.getsourcelines(body)
    line = first + next(n for n, text in enumerate(source) if "the fault" in text)
    assert f"test_control_errors.py:{line}" in str(caught.value)


def test_python_cannot_branch_on_what_a_body_is_given() -> None:
    def body(c: Any, x: Any) -> Any:
        return (c if c > 0 else -c), x

    with pytest.raises(errors.TracerBoolConversionError):
        lax.scan(body, 1.0, X)


def test_a_value_of_a_body_must_not_leave_it() -> None:
    kept = []

    def body(c: Any, x: Any) -> Any:
        kept.append(c * x)
        return c, x

    lax.scan(body, jnp.float32(1), X)
    with pytest.raises(errors.UnexpectedTracerError):
        assert kept[0] + 1
