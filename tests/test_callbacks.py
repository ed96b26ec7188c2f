"""Callbacks: pure_callback, io_callback, debug.callback, debug.print, debug.log, debug.breakpoint,
outside of programs and within, under every transform, against JAX and against plain Python."""

from __future__ import annotations

import bdb
import io
import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import ShapeDtypeStruct, config, debug, effects_barrier, errors, lax, pure_callback
from xcube.experimental import io_callback

X = np.arange(6, dtype=np.float32).reshape(2, 3)
EAGER_AND_JIT = pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit], ids=["eager", "jit"])


def like(x: Any) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(x.shape, x.dtype)


# pure_callback --------------------------------------------------------------------------------


@EAGER_AND_JIT
def test_a_callback_gives_pytrees_and_takes_pytrees(wrap: Any) -> None:
    def host(tree: Any, *, scale: Any) -> Any:
        return {"sum": tree["a"] + tree["b"], "rest": (tree["a"] * scale, np.int32(7))}

    def function(x: Any) -> Any:
        shapes = {"sum": like(x), "rest": (like(x), ShapeDtypeStruct((), np.int32))}
        return pure_callback(host, shapes, {"a": x, "b": 2 * x}, scale=3)

    found = wrap(function)(jnp.asarray(X))
    np.testing.assert_array_equal(found["sum"], 3 * X)
    np.testing.assert_array_equal(found["rest"][0], 3 * X)
    assert found["rest"][1].dtype == np.int32


@EAGER_AND_JIT
def test_operands_are_arrays_that_outlive_the_call(wrap: Any) -> None:
    kept: list[Any] = []

    def function(x: Any) -> Any:
        for k in range(4):  # four temporaries, which may share memory
            x = pure_callback(lambda y: kept.append(y) or y + 1, like(x), jnp.cos(x) + k)
        return x

    wrap(function)(jnp.asarray(X))
    assert all(isinstance(y, xcube.Array) for y in kept)
    want = X
    for k, y in enumerate(kept):
        want = np.cos(want) + k
        np.testing.assert_allclose(y, want, rtol=1e-6)
        want = want + 1


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "int64", "float16", "bfloat16", "float64", "complex64"]
)
def test_every_dtype_passes_both_ways(dtype: str) -> None:
    x = jnp.ones((2,), dtype)
    found = xcube.jit(lambda x: pure_callback(lambda y: np.asarray(y), like(x), x))(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)


def test_numbers_of_python_take_the_declared_default_dtype() -> None:
    found = pure_callback(lambda: 1.5, ShapeDtypeStruct((), np.float32))
    assert (found.dtype, float(found)) == (np.float32, 1.5)


def test_empty_arrays_and_typed_keys_pass() -> None:
    empty = jnp.zeros((0, 3))
    assert xcube.jit(lambda x: pure_callback(lambda y: y, like(x), x))(empty).shape == (0, 3)
    key = xcube.random.key(3)
    seen: list[Any] = []
    xcube.jit(lambda key: debug.callback(seen.append, key))(key)
    assert seen[0].dtype == key.dtype


METHODS = ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)])
def test_mapped_calls_see_the_shapes_that_jax_shows(method: str, axes: tuple[Any, Any]) -> None:
    def mapped(library: Any, shapes: list[Any]) -> Any:
        def host(x: Any, y: Any) -> Any:
            shapes.append((x.shape, y.shape))
            return np.asarray(x) + np.asarray(y)

        def function(x: Any, y: Any) -> Any:
            shape = library.ShapeDtypeStruct((2,), np.float32)
            return library.pure_callback(host, shape, x, y, vmap_method=method)

        return library.vmap(function, axes)

    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    x, y = (square if axis is not None else square[0] for axis in axes)
    if method == "legacy_vectorized" and None in axes:
        x, y = (square if a is not None else np.float32(3) for a in axes)
    want_shapes: list[Any] = []
    shapes: list[Any] = []
    want = mapped(jax, want_shapes)(x, y)
    np.testing.assert_array_equal(mapped(xcube, shapes)(x, y), want)
    assert shapes == want_shapes


def test_maps_nest() -> None:
    function = lambda x: pure_callback(np.sum, like(x[0]), x, vmap_method="sequential")  # noqa: E731
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = xcube.jit(xcube.vmap(xcube.vmap(function)))(x)
    np.testing.assert_array_equal(found, x.sum(-1))
    outer = xcube.vmap(xcube.vmap(lambda x: pure_callback(
        lambda y: np.asarray(y).sum(-1), like(x[0]), x, vmap_method="broadcast_all")))  # fmt: skip
    np.testing.assert_array_equal(outer(x), x.sum(-1))


@EAGER_AND_JIT
def test_a_custom_rule_gives_a_callback_its_derivative(wrap: Any) -> None:
    @xcube.custom_jvp
    def sine(x: Any) -> Any:
        return pure_callback(np.sin, like(x), x, vmap_method="expand_dims")

    sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))
    x = jnp.float32(0.3)
    np.testing.assert_allclose(wrap(xcube.grad(sine))(x), np.cos(0.3), rtol=1e-6)
    found = wrap(xcube.vmap(xcube.grad(sine)))(jnp.asarray(X[0]))
    np.testing.assert_allclose(found, np.cos(X[0]), rtol=1e-6)


def test_a_result_that_nothing_needs_need_not_be_computed() -> None:
    calls: list[int] = []

    @xcube.jit
    def function(x: Any) -> Any:
        pure_callback(lambda y: calls.append(1) or y, like(x), x)
        return x + 1

    function(jnp.asarray(X))
    assert calls == []


# wrong use ------------------------------------------------------------------------------------


@EAGER_AND_JIT
@pytest.mark.parametrize(
    ("declared", "host", "error", "says"),
    [
        (np.zeros(2, np.float32), lambda x: x, errors.ShapeError, r"f32\[2\].*got f32\[3\]"),
        (np.zeros(3, np.int32), lambda x: x, errors.DtypeError, r"i32\[3\].*got f32\[3\]"),
        (np.zeros(3, np.float32), lambda x: (x, x), errors.ShapeError, "declared, 1; got 2"),
        ({"a": np.zeros(2, np.float32)}, lambda x: {"a": x}, errors.ShapeError, r"\['a'\]"),
        (None, lambda x: x, errors.ShapeError, "declared, 0; got 1"),
    ],
)
def test_a_callback_must_give_what_was_declared(
    wrap: Any, declared: Any, host: Any, error: type[Exception], says: str
) -> None:
    function = wrap(lambda x: io_callback(host, declared, x))
    with pytest.raises(error, match=says) as caught:
        function(jnp.arange(3.0))
    assert "test_callbacks.py:" in str(caught.value)


@EAGER_AND_JIT
def test_an_exception_arrives_as_itself_with_the_line_of_the_call(wrap: Any) -> None:
    def host(x: Any) -> Any:
        raise KeyError("mine")

    def function(x: Any) -> Any:
        return pure_callback(host, like(x), x)

    with pytest.raises(KeyError, match="mine") as caught:
        wrap(function)(jnp.asarray(X))
    line = function.__code__.co_firstlineno + 1
    assert any(f"test_callbacks.py:{line}" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(wrap(lambda x: x + 1)(jnp.asarray(X)), X + 1)  # all lives on


@pytest.mark.parametrize("library", [jax, xcube], ids=["jax", "xcube"])
def test_wrong_uses_raise_what_jax_raises(library: Any) -> None:
    x, shape = library.numpy.float32(1), library.ShapeDtypeStruct((), np.float32)
    io_call = library.experimental.io_callback
    with pytest.raises(ValueError, match="not support JVP"):
        library.grad(lambda x: library.pure_callback(np.sin, shape, x))(x)
    with pytest.raises(ValueError, match="not support JVP"):
        library.grad(lambda x: io_call(np.sin, shape, x))(x)
    with pytest.raises(NotImplementedError, match="vmap"):
        library.vmap(lambda x: library.pure_callback(np.sin, shape, x))(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="annot `vmap` ordered"):
        library.vmap(lambda x: io_call(np.sin, shape, x, ordered=True))(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="vmap_method"):
        library.pure_callback(np.sin, shape, x, vmap_method="all")
    with pytest.raises(TypeError):
        library.pure_callback(np.sin, shape, "text")
    with pytest.raises(TypeError):
        library.debug.callback(3, x)


def test_a_callback_of_a_constant_may_stand_in_a_derivative() -> None:
    def function(x: Any) -> Any:
        return x * pure_callback(np.sin, like(x), lax.stop_gradient(x))

    np.testing.assert_allclose(xcube.grad(function)(2.0), np.sin(2.0), rtol=1e-6)


# io_callback ----------------------------------------------------------------------------------


@EAGER_AND_JIT
@pytest.mark.parametrize("ordered", [False, True])
def test_effects_happen_once_and_in_order(wrap: Any, ordered: bool) -> None:
    seen: list[Any] = []

    def function(x: Any) -> Any:
        for k in range(3):
            io_callback(lambda y: seen.append(float(y)), None, x + k, ordered=ordered)
        count = ShapeDtypeStruct((), np.int32)
        return io_callback(lambda: np.int32(len(seen)), count, ordered=ordered)

    assert wrap(function)(jnp.float32(1)) == 3
    effects_barrier()
    assert seen == [1.0, 2.0, 3.0]


def test_mapped_effects_happen_for_each_example() -> None:
    seen: list[float] = []
    host = lambda y, z: seen.append(float(y + z)) or y  # noqa: E731
    found = xcube.vmap(lambda y: io_callback(host, like(y), y, 10))(jnp.arange(3.0))
    assert seen == [10.0, 11.0, 12.0]
    np.testing.assert_array_equal(found, [0.0, 1.0, 2.0])


def test_effects_in_loops_and_branches_happen_where_they_run() -> None:
    seen: list[Any] = []
    note = lambda *values: seen.append(tuple(map(int, values)))  # noqa: E731

    @xcube.jit
    def function(n: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            io_callback(note, None, 0, carry)
            return carry + x, None

        total, _ = lax.scan(turn, 0, jnp.arange(3))

        def step(k: Any) -> Any:
            lax.cond(k % 2 == 0, lambda: io_callback(note, None, 1, k), lambda: None)
            return k + 1

        return lax.while_loop(lambda k: k < n, step, total)

    assert function(6) == 6
    assert seen == [(0, 0), (0, 0), (0, 1), (1, 4)]


# debug.callback -------------------------------------------------------------------------------


def watched(x: Any, seen: list[Any]) -> Any:
    y = jnp.sin(x)
    debug.callback(lambda y: seen.append(np.asarray(y).tolist()), y)
    return y * y


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f(1.0),
    "jit": lambda f: xcube.jit(f)(1.0),
    "grad": lambda f: xcube.grad(f)(1.0),
    "jit of grad": lambda f: xcube.jit(xcube.grad(f))(1.0),
    "value_and_grad of jit": lambda f: xcube.value_and_grad(xcube.jit(f))(1.0),
    "second derivative": lambda f: xcube.grad(xcube.grad(f))(1.0),
    "jvp": lambda f: xcube.jvp(f, (1.0,), (1.0,)),
    "linearize": lambda f: xcube.linearize(f, 1.0)[1](1.0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_derivative_calls_once_with_the_primal(name: str) -> None:
    seen: list[Any] = []
    TRANSFORMS[name](lambda x: watched(x, seen))
    np.testing.assert_allclose(seen, [np.sin(1.0)], rtol=1e-6)


def test_a_checkpoint_calls_where_jax_calls() -> None:
    def calls(library: Any) -> int:
        seen: list[Any] = []

        def function(x: Any) -> Any:
            y = library.numpy.sin(x)
            library.debug.callback(lambda y: seen.append(float(y)), y)
            return y * y

        library.jit(library.grad(library.checkpoint(function)))(1.0)
        library.effects_barrier()
        assert set(np.round(seen, 4)) == {np.round(np.sin(1.0), 4)}
        return len(seen)

    assert 1 <= calls(xcube) <= calls(jax)


@EAGER_AND_JIT
def test_vmap_calls_for_each_example_in_order(wrap: Any) -> None:
    seen: list[Any] = []

    def function(x: Any, y: Any) -> Any:
        debug.callback(lambda *values: seen.append(tuple(map(float, values))), x, y)
        return x

    wrap(xcube.vmap(function, (0, None)))(jnp.arange(3.0), 7.0)
    assert seen == [(0.0, 7.0), (1.0, 7.0), (2.0, 7.0)]
    seen.clear()
    wrap(xcube.vmap(xcube.vmap(function, (0, None)), (None, 0)))(jnp.arange(2.0), jnp.arange(2.0))
    assert seen == [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]


def test_loops_call_at_every_turn_and_their_gradient_once_more_or_not() -> None:
    seen: list[Any] = []

    def function(x: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            debug.callback(lambda k, c: seen.append((int(k), float(c))), k, carry)
            return carry * x, None

        return lax.scan(body, 1.0, jnp.arange(3))[0]

    assert xcube.jit(function)(2.0) == 8.0
    turns = [(0, 1.0), (1, 2.0), (2, 4.0)]
    assert seen == turns
    seen.clear()
    assert xcube.jit(xcube.grad(function))(2.0) == 12.0
    assert seen == turns


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit], ids=["eager", "jit"])
def test_a_mapped_loop_calls_for_each_turn_and_example(wrap: Any) -> None:
    seen: list[Any] = []

    def function(x: Any) -> Any:
        def body(carry: Any, k: Any) -> Any:
            debug.callback(lambda k, c: seen.append((int(k), float(c))), k, carry)
            return carry + x, None

        return lax.scan(body, 0.0, jnp.arange(2))[0]

    wrap(xcube.vmap(function))(jnp.array([1.0, 5.0]))
    assert seen == [(0, 0.0), (0, 0.0), (1, 1.0), (1, 5.0)]


def test_a_call_without_operands_is_made_at_every_turn() -> None:
    count = iter(range(9))
    number = lambda: np.int32(next(count))  # noqa: E731

    @xcube.jit
    def function() -> Any:
        shape = ShapeDtypeStruct((), np.int32)
        return lax.scan(lambda c, _: (c, io_callback(number, shape)), 0, length=3)[1]

    np.testing.assert_array_equal(function(), [0, 1, 2])
    np.testing.assert_array_equal(function(), [3, 4, 5])


def test_ordinary_values_pass_by_themselves() -> None:
    seen: list[Any] = []
    marker = object()
    xcube.jit(
        lambda x: debug.callback(lambda *a, **k: seen.append((a, k)), x, "s", None, m=marker)
    )(1)
    (((x, text, none), named),) = seen
    assert (int(x), text, none, named) == (1, "s", None, {"m": marker})


def test_options_may_come_first() -> None:
    seen: list[Any] = []
    debug.callback(ordered=True)(seen.append, jnp.int32(1), **{})
    assert len(seen) == 1
    with pytest.raises(TypeError, match="options only"):
        debug.callback(x=3)
    with pytest.raises(TypeError, match="options only"):
        debug.print(x=3)


def test_a_program_that_only_watches_stays() -> None:
    text = str(xcube.make_jaxpr(lambda x: debug.print("x is {}", x))(1.0))
    assert "debug_callback" in text
    assert "'x is {}'" in text
    assert xcube.make_jaxpr(lambda x: debug.print("{}", x))(1.0).effects == {"debug"}


# debug.print ----------------------------------------------------------------------------------

FORMATS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "fields": ("{} and {y:.3f} {z!r:>4}", (X,), {"y": np.float32(1.5), "z": "a"}),
    "tree": ("{tree}", (), {"tree": {"a": np.int32(1), "b": (np.float32(2), "c")}}),
    "no fields": ("values", (np.int32(1), X[0]), {}),
    "half": ("{}", (jnp.ones(2, "bfloat16"),), {}),
}


@EAGER_AND_JIT
@pytest.mark.parametrize("name", FORMATS)
def test_print_prints_what_jax_prints(name: str, wrap: Any, capsys: Any) -> None:
    fmt, args, kwargs = FORMATS[name]
    skip = {"skip_format_check": name == "no fields"}
    numbers = jax.tree.map(
        lambda x: np.asarray(x) if isinstance(x, xcube.Array) else x, (args, kwargs)
    )
    jax.debug.print(fmt, *numbers[0], **numbers[1], **skip)
    jax.effects_barrier()
    want = capsys.readouterr().out
    wrap(lambda: debug.print(fmt, *args, **kwargs, **skip))()
    assert capsys.readouterr().out == want


def test_print_unescapes_braces(capsys: Any) -> None:
    debug.print("{{}} is {}", 1)
    assert capsys.readouterr().out == "{} is 1\n"


@EAGER_AND_JIT
def test_print_shows_traced_values_under_the_options_of_its_time(wrap: Any, capsys: Any) -> None:
    with np.printoptions(precision=2):
        function = wrap(lambda x: debug.print("{x}", x=x / 3))
        function(jnp.float32(1) + jnp.zeros(2))
    function(jnp.float32(1) + jnp.zeros(2))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "[0.33 0.33]"
    assert second == ("[0.33 0.33]" if wrap is xcube.jit else "[0.33333334 0.33333334]")


@pytest.mark.parametrize("library", [jax, xcube], ids=["jax", "xcube"])
def test_formats_are_checked_when_they_are_traced(library: Any) -> None:
    x = library.numpy.float32(1)
    for wrap in (lambda f: f, library.jit):
        with pytest.raises(ValueError, match="argument"):
            wrap(lambda x: library.debug.print("no field", x))(x)
        with pytest.raises(ValueError, match="f-string"):
            wrap(lambda x: library.debug.print("{x}", x=x, y=x))(x)
        with pytest.raises(IndexError):
            wrap(lambda x: library.debug.print("{} {}", x))(x)
        with pytest.raises(KeyError):
            wrap(lambda x: library.debug.print("{y}", x=x))(x)


def test_log_records_name_the_line_of_the_call(caplog: Any) -> None:
    @xcube.jit
    def function(x: Any) -> None:
        debug.log("x is {}", x)

    with caplog.at_level(logging.INFO, logger="xcube.debug"):
        function(3)
    (record,) = caplog.records
    assert (record.getMessage(), record.levelno) == ("x is 3", logging.INFO)
    assert record.pathname == __file__
    assert record.lineno == function.__wrapped__.__code__.co_firstlineno + 2


# debug.breakpoint -----------------------------------------------------------------------------


@EAGER_AND_JIT
def test_a_breakpoint_opens_the_debugger_with_the_values(wrap: Any) -> None:
    commands, answers = io.StringIO("p y, w['a'], n\nlist\nc\n"), io.StringIO()

    def function(x: Any) -> Any:
        y, n = 2 * x, 5
        w = {"a": y + 1, 3: "unordered keys are no pytree"} if n < 0 else {"a": y + 1}
        debug.breakpoint(stdin=commands, stdout=answers)
        return y + len(w)

    assert wrap(function)(3) == 7
    shown = answers.getvalue()
    assert "6" in shown and "7" in shown and "5" in shown
    assert "->" in shown and "debug.breakpoint(" in shown


def test_quitting_the_debugger_ends_the_program() -> None:
    @xcube.jit
    def function(x: Any) -> Any:
        debug.breakpoint(stdin=io.StringIO("q\n"), stdout=io.StringIO())
        return x

    with pytest.raises(bdb.BdbQuit):
        function(3)


def test_callbacks_may_compute_and_call_programs() -> None:
    inner = xcube.jit(lambda x: x * 2)
    outer = xcube.jit(lambda x: pure_callback(lambda y: inner(y) + jnp.sum(y), like(x), x) + 1)
    np.testing.assert_array_equal(outer(jnp.asarray(X)), 2 * X + X.sum() + 1)


def test_disabled_jit_calls_at_once() -> None:
    seen: list[Any] = []
    with config.using(disable_jit=True):
        xcube.jit(lambda x: debug.callback(lambda y: seen.append(int(y)), x))(3)
    assert seen == [3]
