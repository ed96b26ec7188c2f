"""Tools around functions: trees as vectors, names of scopes, settings for a block, evaluation while
tracing, and the search for leaked tracers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import numpy as np
import pytest

import xcube
import xcube.experimental
import xcube.numpy as jnp
from xcube import config, scopes, tree
from xcube.errors import (
    ConcretizationTypeError,
    DtypeError,
    ShapeError,
    TypePromotionError,
    UnexpectedTracerError,
)
from xcube.flatten_util import ravel_pytree

X = np.array([0.5, -1.0, 2.0], np.float32)

# ravel_pytree ---------------------------------------------------------------------------------

TREES: dict[str, Any] = {
    "nested": {"b": np.ones((2, 2), np.float32), "a": [X, (None, 2.0)]},
    "one number": 3,
    "weak numbers": [1.0, 2.0],
    "mixed kinds": {"n": np.array([1, 2], np.int32), "x": np.float16(2.5)},
    "mixed numbers": [1, 2.0],
    "complex": [1.5, np.array([1j], np.complex64)],
    "bools": [True, np.array([2], np.int32)],
    "without leaves": [(), None],
    "an empty leaf": [np.zeros((0, 3), np.float32), X],
}


@pytest.mark.parametrize("name", TREES)
def test_trees_are_vectors_as_in_jax(name: str) -> None:
    vector, unravel = ravel_pytree(TREES[name])
    theirs, their_unravel = jax.flatten_util.ravel_pytree(TREES[name])
    assert (vector.dtype, vector.weak_type) == (theirs.dtype, theirs.weak_type)
    np.testing.assert_array_equal(vector, theirs)
    again, expected = unravel(vector * 2), their_unravel(theirs * 2)
    assert str(tree.structure(again)) == str(jax.tree.structure(expected))
    for one, other in zip(tree.leaves(again), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def test_vectors_go_through_transforms() -> None:
    parameters = {"w": jnp.asarray(X), "b": 2.0}
    _, unravel = ravel_pytree(parameters)
    gradient = xcube.grad(lambda t: (ravel_pytree(t)[0] ** 2).sum())(parameters)
    np.testing.assert_allclose(gradient["w"], 2 * X)
    jitted = xcube.jit(lambda t: unravel(ravel_pytree(t)[0] + 1))(parameters)
    np.testing.assert_allclose(jitted["w"], X + 1)
    assert xcube.vmap(unravel)(jnp.ones((5, 4)))["w"].shape == (5, 3)
    assert unravel == ravel_pytree({"w": 2 * X, "b": 3.0})[1]
    assert hash(unravel) == hash(ravel_pytree({"w": 2 * X, "b": 3.0})[1])


def test_unravel_checks_length_and_dtype() -> None:
    _, unravel = ravel_pytree([X, 1.0])
    assert unravel(np.ones(4, np.float16))[0].dtype == np.float16
    with pytest.raises(ShapeError, match=r"must have shape \(4,\); got f32\[5\]"):
        unravel(jnp.ones(5))
    _, unravel = ravel_pytree([X, 1])
    with pytest.raises(DtypeError, match=r"must have dtype float32, .*; got i32\[4\]"):
        unravel(jnp.arange(4))
    with pytest.raises(TypeError, match=r"argument 0 at \['a'\] is str"):
        ravel_pytree({"a": "text"})


# names ----------------------------------------------------------------------------------------


def test_scopes_nest_and_end() -> None:
    with xcube.named_scope("a"):
        with xcube.named_scope("b"):
            assert scopes.within("f") == "a/b/f"
        with pytest.raises(KeyError), xcube.named_scope("c"):
            raise KeyError
        assert scopes.within("f") == "a/f"
    assert scopes.within("f") == "f"


def test_scopes_are_decorators_and_belong_to_their_thread() -> None:
    @xcube.named_scope("layer")
    def named(x: Any) -> tuple[str, Any]:
        """A docstring."""
        return scopes.within("f"), x

    assert named(3) == ("layer/f", 3)
    assert (named.__name__, named.__doc__) == ("named", "A docstring.")
    found: list[str] = []
    with xcube.named_scope("a"):
        thread = threading.Thread(target=lambda: found.append(scopes.within("f")))
        thread.start()
        thread.join(30)
    assert found == ["f"]


def test_calls_are_named() -> None:
    def step(x: Any, scale: Any = 1) -> tuple[str, Any]:
        return scopes.within("f"), x * scale

    assert xcube.named_call(step)(2, scale=3) == ("step/f", 6)
    assert xcube.named_call(step, name="block")(2) == ("block/f", 2)
    assert xcube.named_call(step, name="block").__name__ == "step"
    gradient = xcube.grad(xcube.named_call(lambda x: jnp.sin(x), name="sine"))(0.0)
    assert float(gradient) == 1
    for wrong in (lambda: xcube.named_scope(3), lambda: xcube.named_call(step, name=3)):  # pyright: ignore
        with pytest.raises(TypeError, match="the name must be a string; got 3"):
            wrong()


def test_operations_know_their_scopes() -> None:
    with xcube.named_scope("layer"):
        (eqn,) = xcube.make_jaxpr(lambda x: x + 1)(2.0).equations
    assert eqn.source is not None and eqn.source.function == "layer/<lambda>"


# evaluation while tracing ---------------------------------------------------------------------


def test_known_values_are_computed_while_tracing() -> None:
    @xcube.jit
    def function(x: Any) -> Any:
        with xcube.ensure_compile_time_eval():
            steps = int(jnp.sum(jnp.arange(3)))
            traced = x * 2
        return traced * steps

    assert float(function(2.0)) == 12
    text = str(xcube.make_jaxpr(function)(2.0))
    assert "mul" in text and "iota" not in text
    with pytest.raises(ConcretizationTypeError):
        xcube.jit(lambda x: x * int(jnp.sum(jnp.arange(3))))(2.0)


# settings for a block -------------------------------------------------------------------------

BLOCKS: dict[str, tuple[Callable[..., Any], str, Any, Any]] = {
    "enable_x64": (xcube.enable_x64, "enable_x64", True, False),
    "disable_jit": (xcube.disable_jit, "disable_jit", True, False),
    "debug_nans": (xcube.debug_nans, "debug_nans", True, False),
    "debug_infs": (xcube.debug_infs, "debug_infs", True, False),
    "log_compiles": (xcube.log_compiles, "log_compiles", True, False),
    "check_tracer_leaks": (xcube.check_tracer_leaks, "check_tracer_leaks", True, False),
    "numpy_dtype_promotion": (
        xcube.numpy_dtype_promotion,
        "numpy_dtype_promotion",
        "strict",
        "standard",
    ),
    "default_matmul_precision": (
        xcube.default_matmul_precision,
        "default_matmul_precision",
        "highest",
        None,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_settings_hold_for_a_block(name: str) -> None:
    block, setting, inner, outer = BLOCKS[name]
    assert block is getattr(xcube, name)
    assert getattr(config.current, setting) == outer
    with block(inner):
        assert getattr(config.current, setting) == inner
        with block(outer):
            assert getattr(config.current, setting) == outer
        assert getattr(config.current, setting) == inner
    decorated = block(inner)(lambda: getattr(config.current, setting))
    assert (decorated(), getattr(config.current, setting)) == (inner, outer)
    with pytest.raises(ValueError, match=f"{setting} must be one of .*; got 'x'"):
        block("x").__enter__()


@pytest.mark.parametrize("name", [name for name, row in BLOCKS.items() if row[2] is True])
def test_flags_are_on_without_an_argument(name: str) -> None:
    block, setting, _, _ = BLOCKS[name]
    with block():
        assert getattr(config.current, setting) is True


def test_blocks_do_what_they_say() -> None:
    with xcube.numpy_dtype_promotion("strict"), pytest.raises(TypePromotionError):
        jnp.ones(2) + jnp.arange(2)
    with xcube.experimental.enable_x64():
        assert jnp.ones(2).dtype == np.float64
        with xcube.experimental.disable_x64():
            assert jnp.ones(2).dtype == np.float32
    with xcube.debug_nans(), pytest.raises(FloatingPointError):
        jnp.log(-jnp.ones(2))
    with xcube.debug_infs(), pytest.raises(FloatingPointError):
        1 / jnp.zeros(2)
    with xcube.default_matmul_precision("highest"):
        np.testing.assert_array_equal(jnp.ones((2, 2)) @ jnp.ones(2), [2, 2])


# leaks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["jit", "vmap", "grad", "linearize", "jvp", "make_jaxpr"])
def test_a_leaked_tracer_is_found(transform: str) -> None:
    kept: list[Any] = []

    def function(x: Any) -> Any:
        kept.append(x * 2)
        return jnp.sin(x).sum()

    calls: dict[str, Callable[[], Any]] = {
        "linearize": lambda: xcube.linearize(function, X),
        "jvp": lambda: xcube.jvp(function, (X,), (X,)),
    }
    call = calls.get(transform, lambda: getattr(xcube, transform)(function)(X))
    words = r"must not outlive .* f32\[3?\].*, held by \[0\] of a list\. At test_tools.py:\d+\."
    with pytest.raises(UnexpectedTracerError, match=words), xcube.checking_leaks():
        call()
    kept.clear()


def test_what_leaks_nothing_passes() -> None:
    def loss(x: Any) -> Any:
        y = xcube.lax.scan(lambda c, a: (jnp.sin(c) * a, c), x, jnp.asarray(X))[0]
        return xcube.nn.relu(y).sum() + xcube.checkpoint(jnp.cos)(x).sum()

    with xcube.checking_leaks():
        xcube.jit(xcube.value_and_grad(loss))(X)
        xcube.hessian(loss)(X)
        xcube.vmap(xcube.grad(loss))(np.stack([X, X]))
        xcube.jit(lambda x: xcube.vjp(jnp.sin, x)[1])(X)


def test_an_outer_trace_is_no_leak() -> None:
    @xcube.jit
    def function(x: Any) -> Any:
        with xcube.checking_leaks():
            return xcube.grad(lambda y: jnp.sin(y) * x)(x)

    assert float(function(0.0)) == 0


def test_an_error_in_the_function_is_not_hidden_by_its_leaks() -> None:
    kept: list[Any] = []
    with pytest.raises(KeyError), xcube.checking_leaks():
        xcube.grad(lambda x: (kept.append(x), {}["missing"])[1])(1.0)


@pytest.mark.parametrize("transform", ["jit", "vmap"])
def test_the_setting_alone_finds_leaks(transform: str) -> None:
    kept: list[Any] = []
    traced = getattr(xcube, transform)(lambda x: (kept.append(x), x)[1])
    words = rf"^{transform} of <lambda>: a traced value"
    with config.using(check_tracer_leaks=True), pytest.raises(UnexpectedTracerError, match=words):
        traced(X)


def test_compilations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Any) -> Any:
        return x * 2

    with xcube.log_compiles():
        for _ in range(2):
            xcube.jit(function)(X)
    device = jnp.ones(1).device.name
    assert [r.getMessage() for r in caplog.records] == [f"Compiling function(f32[3]) for {device}."]


def test_products_take_the_default_precision() -> None:
    product = xcube.jit(lambda x: x @ x)
    assert "precision" not in str(product.jaxpr(X))
    with xcube.default_matmul_precision("float32"):
        assert "precision=(HIGHEST, HIGHEST)" in str(product.jaxpr(X))
