"""What errors say: the type, the shapes in printed form, and the line of this file."""

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

F23 = r"f32\[2,3\]"


def assert_raises(kind: type[Exception], function: Callable[[], Any], *patterns: str) -> None:
    """The function fails with an error of this kind, which names what came and the line where it
    came, and matches all patterns."""
    with pytest.raises(kind) as caught:
        function()
    message = str(caught.value)
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in: {message}"
    first = inspect.getsourcelines(function)[1]
    lines = [int(n) for n in re.findall(r"test_errors\.py:(\d+)", message)]
    last = first + len(inspect.getsource(function).splitlines())
    assert any(first <= line < last for line in lines), f"no line of the test in: {message}"


def x23() -> Any:
    return jnp.ones((2, 3))


# shapes, dtypes, axes -------------------------------------------------------------------------


def test_shapes_that_do_not_fit() -> None:
    def function() -> Any:
        return x23() + jnp.ones((4,))

    assert_raises(ValueError, function, F23, r"f32\[4\]", "add")


def test_shapes_that_do_not_contract() -> None:
    def function() -> Any:
        return jnp.dot(x23(), jnp.ones((2, 5)))

    assert_raises(TypeError, function, F23, r"f32\[2,5\]", "dot")


def test_shapes_under_jit_name_the_line_inside_the_function() -> None:
    @xcube.jit
    def inside(x: Any) -> Any:
        y = x * 2
        return y + jnp.ones((4,))  # the fault

    with pytest.raises(errors.ShapeError, match=F23) as caught:
        inside(x23())
    source, first = inspect.getsourcelines(inside.__wrapped__)
    fault = first + next(n for n, text in enumerate(source) if "the fault" in text)
    assert f"test_errors.py:{fault}" in str(caught.value)


def test_a_reshape_that_does_not_hold_the_elements() -> None:
    def function() -> Any:
        return jnp.reshape(x23(), (4, 2))

    assert_raises(errors.ShapeError, function, F23, r"\(4, 2\)")


def test_a_concatenation_of_other_shapes() -> None:
    def function() -> Any:
        return jnp.concatenate([x23(), jnp.ones((2, 2))], axis=0)

    assert_raises(ValueError, function, F23, r"f32\[2,2\]")


@pytest.mark.parametrize("axis", [2, -3, (0, 5), (1, 1)])
def test_wrong_axes(axis: Any) -> None:
    def function() -> Any:
        return jnp.sum(x23(), axis=axis)

    assert_raises(ValueError, function, F23, "sum", r"5|-3|2|\(1, 1\)")


def test_strict_operations_want_one_dtype() -> None:
    def function() -> Any:
        return xcube.lax.add(x23(), jnp.ones((2, 3), jnp.int32))

    assert_raises(TypeError, function, F23, r"i32\[2,3\]", "add")


def test_operations_that_a_dtype_does_not_have() -> None:
    def function() -> Any:
        return xcube.lax.exp(jnp.ones((2, 3), jnp.int32))

    assert_raises(errors.DtypeError, function, r"i32\[2,3\]", "exp")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.array(["a"]), id="text"),
        pytest.param(np.array([object()]), id="objects"),
        pytest.param(np.array(["2020-01-01"], "datetime64[D]"), id="dates"),
        pytest.param(np.zeros(2, np.longdouble), id="longdouble"),
    ],
)
def test_unsupported_dtypes(value: Any) -> None:
    def function() -> Any:
        return jnp.asarray(value)

    assert_raises(TypeError, function)


def test_operands_that_are_no_arrays() -> None:
    def function() -> Any:
        return jnp.sin("text")

    assert_raises(TypeError, function, "sin", "str")


# tracing --------------------------------------------------------------------------------------


def test_branching_on_a_traced_value() -> None:
    def function() -> Any:
        return xcube.jit(lambda x: x if (x > 0).all() else -x)(x23())

    assert_raises(errors.TracerBoolConversionError, function, r"bool\[\]", "where", "static")


@pytest.mark.parametrize("convert", [int, float, complex])
def test_a_python_number_of_a_traced_value(convert: Any) -> None:
    def function() -> Any:
        return xcube.jit(lambda x: convert(x))(1.0)

    assert_raises(errors.ConcretizationTypeError, function, r"f32\[\]", convert.__name__, "static")


def test_a_size_from_a_traced_value() -> None:
    def function() -> Any:
        return xcube.jit(lambda n: jnp.zeros(n))(3)

    assert_raises(TypeError, function, "int32", "zeros", "while tracing")


def test_a_range_over_a_traced_value() -> None:
    def function() -> Any:
        return xcube.jit(lambda n: sum(range(n)))(3)

    assert_raises(errors.TracerIntegerConversionError, function, r"i32\[\]", "static")


def test_numpy_of_a_traced_value() -> None:
    def function() -> Any:
        return xcube.jit(lambda x: np.sin(x))(x23())

    assert_raises(errors.TracerArrayConversionError, function, F23, "xcube.numpy")


def test_a_boolean_mask_under_jit() -> None:
    def function() -> Any:
        return xcube.jit(lambda x: x[x > 0])(x23())

    assert_raises(errors.NonConcreteBooleanIndexError, function, r"bool\[2,3\]")


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(lambda f: xcube.jit(f)(x23()), id="jit"),
        pytest.param(lambda f: xcube.grad(lambda x: f(x).sum())(x23()), id="grad"),
        pytest.param(lambda f: xcube.vmap(f)(x23()), id="vmap"),
        pytest.param(lambda f: xcube.jvp(f, (x23(),), (x23(),)), id="jvp"),
        pytest.param(lambda f: xcube.make_jaxpr(f)(x23()), id="make_jaxpr"),
    ],
)
def test_a_tracer_that_outlives_its_function(transform: Any) -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x * 2)
        return x

    transform(keep)

    def function() -> Any:
        return kept[0] + 1

    assert_raises(errors.UnexpectedTracerError, function, r"f32\[")


def test_a_leaked_tracer_as_a_captured_value() -> None:
    kept: list[Any] = []
    xcube.jit(lambda x: kept.append(x) or x)(x23())

    def function() -> Any:
        return xcube.jit(lambda y: y + kept[0])(x23())

    assert_raises(errors.UnexpectedTracerError, function, F23)


def test_results_that_are_no_arrays() -> None:
    def function() -> Any:
        return xcube.jit(lambda x: "text")(1.0)

    assert_raises(errors.TraceError, function, "str")


def test_arguments_that_are_no_arrays() -> None:
    def function() -> Any:
        return xcube.jit(lambda x, name: x)(1.0, {"a": "text"})

    assert_raises(TypeError, function, "str", "argument 1", "'a'", "static")


def test_static_arguments_that_cannot_be_hashed() -> None:
    def function() -> Any:
        return xcube.jit(lambda x, sizes: x, static_argnums=1)(1.0, [2, 3])

    assert_raises(ValueError, function, "hashable", "list", "tuple")


# transforms -----------------------------------------------------------------------------------


def test_grad_of_what_is_no_scalar() -> None:
    def function() -> Any:
        return xcube.grad(lambda x: x * 2)(x23())

    assert_raises(TypeError, function, F23, "scalar")


def test_grad_of_an_integer() -> None:
    def function() -> Any:
        return xcube.grad(lambda x: x * 2.0)(3)

    assert_raises(TypeError, function, r"i32\[\]", "argument 0", "allow_int")


def test_grad_of_several_results() -> None:
    def function() -> Any:
        return xcube.grad(lambda x: (x, x))(3.0)

    assert_raises(TypeError, function, "one scalar", "has_aux")


def test_grad_of_an_argument_that_is_not_there() -> None:
    def function() -> Any:
        return xcube.grad(lambda x: x, argnums=2)(3.0)

    assert_raises(ValueError, function, "argnums", "2")


def test_tangents_of_another_shape() -> None:
    def function() -> Any:
        return xcube.jvp(jnp.sin, (x23(),), (jnp.ones(3),))

    assert_raises(ValueError, function, F23, r"3")


def test_tangents_of_another_dtype() -> None:
    def function() -> Any:
        return xcube.jvp(jnp.sin, (x23(),), (jnp.ones((2, 3), jnp.int32),))

    assert_raises(TypeError, function, F23, "int32")


def test_tangents_of_another_structure() -> None:
    def function() -> Any:
        return xcube.jvp(jnp.sin, (x23(),), ([x23()],))

    assert_raises(TypeError, function, "structure")


def test_cotangents_of_another_shape() -> None:
    pull_back = xcube.vjp(jnp.sin, x23())[1]

    def function() -> Any:
        return pull_back(jnp.ones(3))

    assert_raises(ValueError, function, F23, r"f32\[3\]")


def test_mapped_axes_of_other_sizes() -> None:
    def function() -> Any:
        return xcube.vmap(lambda x, y: x)(x23(), {"a": jnp.ones(3)})

    assert_raises(ValueError, function, F23, r"f32\[3\]", "argument 1", "'a'")


def test_a_mapped_axis_that_is_not_there() -> None:
    def function() -> Any:
        return xcube.vmap(lambda x: x, in_axes=2)(x23())

    assert_raises(ValueError, function, F23, "2")


def test_in_axes_for_other_arguments() -> None:
    def function() -> Any:
        return xcube.vmap(lambda x: x, in_axes=(0, 1))(x23())

    assert_raises(ValueError, function, "in_axes", r"\(0, 1\)")


def test_nothing_to_map() -> None:
    def function() -> Any:
        return xcube.vmap(lambda x: x, in_axes=None)(x23())

    assert_raises(ValueError, function, "vmap")


def test_a_mapped_result_where_none_is_wanted() -> None:
    def function() -> Any:
        return xcube.vmap(lambda x: x, out_axes=None)(x23())

    assert_raises(ValueError, function, "out_axes")


# memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_more_memory_than_there_is(compiled: bool) -> None:
    """1 PiB; the error is an exception, and other arrays live on."""
    ones = xcube.jit(lambda: jnp.ones((1 << 48,))) if compiled else lambda: jnp.ones((1 << 48,))
    kept = x23()
    with pytest.raises(errors.OutOfMemoryError, match=r"(?i)bytes|memory"):
        ones()
    with pytest.raises(MemoryError):
        ones()
    np.testing.assert_array_equal(kept + 1, np.full((2, 3), 2))


def test_an_array_that_was_deleted() -> None:
    x = x23()
    x.delete()
    with pytest.raises(RuntimeError, match=F23):
        x + 1


def test_assignment_to_an_element() -> None:
    x = x23()

    def function() -> Any:
        x[0] = 1

    assert_raises(TypeError, function, F23, r"\.at\[")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: xcube.jit(3), "first argument must be a function"),
        (lambda: xcube.grad(3.0), "first argument must be a function"),
        (lambda: xcube.jit(lambda x: x, static_argnames="m"), "must name parameters"),
        (lambda: xcube.jit(lambda x: x, static_argnums=5), "must lie in -1..0"),
        (lambda: xcube.vmap(lambda a, b: a)(jnp.ones(3), 2.0), "has no axis to map"),
        (lambda: xcube.grad(lambda x: None)(1.0), "return statement missing"),
        (lambda: xcube.jvp(jnp.sin, 1.0, 1.0), "must be tuples"),
        (lambda: xcube.jit(jnp.zeros)(3), "static_argnums"),
        (lambda: xcube.jit(jnp.eye)(3), "static_argnums"),
        (lambda: jnp.ones(3, device="nowhere"), "got 'nowhere'"),
        (lambda: jnp.asarray(np.array(["a"])), "dtype <U1"),
        (lambda: xcube.config.update("enable_x64", "yes"), "must be one of (False, True)"),
        (lambda: xcube.config.update("threads", -1), "must be 0 or more"),
        (lambda: xcube.config.update("log", frozenset({"nonsense"})), "log may name"),
    ],
)
def test_wrong_use_says_what_to_do(make, words):
    with pytest.raises(Exception, match=re.escape(words)):
        make()
