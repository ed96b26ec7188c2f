"""jit: when it traces and compiles, static and donated arguments, nesting, captured constants."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import nn, random
from xcube.lowering.device import default_device


class Counted:
    """A function that counts how often it runs, that is, is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.count = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self.function(*args, **kwargs)


def compiled_kernels() -> int:
    """How many native kernels this process has."""
    device: Any = default_device()
    if device.kind != "cpu":
        pytest.skip("counts the kernels of the CPU device")
    return len(device._code._addresses)


# tracing --------------------------------------------------------------------------------------


def test_a_signature_is_traced_once() -> None:
    counted = Counted(lambda x, y: x * y + 1)
    f = xcube.jit(counted)
    for _ in range(3):
        np.testing.assert_array_equal(f(jnp.arange(4.0), 2.0), [1, 3, 5, 7])
    assert counted.count == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(jnp.zeros(4), id="shape"),
        pytest.param(jnp.zeros(3, jnp.int32), id="dtype"),
        pytest.param(jnp.zeros((3, 1)), id="rank"),
        pytest.param(2.0, id="weak type"),
        pytest.param([jnp.zeros(3), jnp.zeros(3)], id="structure"),
    ],
)
def test_a_changed_signature_is_traced_again(other: Any) -> None:
    counted = Counted(lambda x: x)
    f = xcube.jit(counted)
    f(jnp.zeros(3))
    f(other)
    f(jnp.ones(3))
    f(other)
    assert counted.count == 2


def test_numpy_and_python_arguments_share_the_signature_of_arrays() -> None:
    counted = Counted(lambda x: x + 1)
    f = xcube.jit(counted)
    f(jnp.zeros(3))
    f(np.zeros(3, np.float32))
    f(np.zeros(3))  # NumPy's 64 bits are narrowed at the door
    assert counted.count == 1
    f(1.0)
    f(2.5)
    assert counted.count == 2


def test_two_jits_of_one_function_share_its_trace() -> None:
    count = 0

    def function(x: Any) -> Any:
        nonlocal count
        count += 1
        return x + 1

    xcube.jit(function)(jnp.zeros(2))
    xcube.jit(function)(jnp.zeros(2))
    assert count == 1


def test_the_cache_shows_its_size_and_can_be_cleared() -> None:
    f = xcube.jit(Counted(lambda x: x * 2))
    f(jnp.zeros(2))
    f(jnp.zeros(3))
    assert f._cache_size() == 2
    f.clear_cache()
    assert f._cache_size() == 0
    np.testing.assert_array_equal(f(jnp.ones(2)), [2, 2])


def test_a_function_that_is_gone_leaves_no_trace_behind() -> None:
    big = jnp.ones(1 << 20)

    def make() -> Any:
        return xcube.jit(lambda x: x + big)(jnp.ones(1 << 20))

    before = default_device().memory_stats().bytes_in_use
    for _ in range(3):
        make()
    gc.collect()
    assert default_device().memory_stats().bytes_in_use <= before + (1 << 20)


def test_keyword_arguments_take_part_in_the_signature() -> None:
    counted = Counted(lambda x, *, scale=1.0, shift=0.0: x * scale + shift)
    f = xcube.jit(counted)
    np.testing.assert_array_equal(f(jnp.ones(2), scale=3.0, shift=1.0), [4, 4])
    np.testing.assert_array_equal(f(jnp.ones(2), shift=2.0, scale=3.0), [5, 5])
    assert counted.count == 1
    np.testing.assert_array_equal(f(jnp.ones(2), scale=3.0), [3, 3])
    assert counted.count == 2


def test_results_keep_their_structure_and_weak_type() -> None:
    f = xcube.jit(lambda x: {"a": (x, [2 * x]), "b": None, "c": 3.0})
    result = f(1.5)
    assert list(result) == ["a", "b", "c"]
    assert result["b"] is None
    assert result["a"][1][0].weak_type
    assert not f(np.float32(1.5))["a"][1][0].weak_type
    assert float(result["c"]) == 3.0


def test_methods_can_be_jitted() -> None:
    @functools.partial(xcube.tree_util.register_dataclass, data_fields=["w"], meta_fields=["n"])
    @dataclass(frozen=True)
    class Model:
        w: Any
        n: int

        @xcube.jit
        def apply(self, x: Any) -> Any:
            return self.w * x + self.n

    model = Model(jnp.arange(3.0), 2)
    np.testing.assert_array_equal(model.apply(2.0), [2, 4, 6])
    np.testing.assert_array_equal(Model(jnp.ones(3), 5).apply(2.0), [7, 7, 7])
    assert xcube.jit(model.apply)(jnp.float32(1)).shape == (3,)


def test_a_decorated_function_keeps_its_name_and_docstring() -> None:
    @xcube.jit
    def named(x: Any) -> Any:
        """What it does."""
        return x

    assert (named.__name__, named.__doc__) == ("named", "What it does.")


# static arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "n"}])
def test_static_arguments_are_python_values(options: dict[str, Any]) -> None:
    count = 0

    def power(x: Any, n: int) -> Any:
        nonlocal count
        count += 1
        assert type(n) is int
        return x if n == 1 else x * power(x, n - 1)

    f = xcube.jit(power, **options)
    np.testing.assert_array_equal(f(jnp.asarray([2.0, 3.0]), 3), [8, 27])
    np.testing.assert_array_equal(f(jnp.asarray([2.0, 3.0]), n=3), [8, 27])
    count = 0
    f(jnp.asarray([1.0, 5.0]), 3)
    assert count == 0
    np.testing.assert_array_equal(f(jnp.asarray([2.0, 3.0]), 2), [4, 9])
    assert count == 2


def test_static_values_of_other_types_are_other_signatures() -> None:
    f = xcube.jit(lambda x, kind: x + (1 if isinstance(kind, bool) else 2), static_argnums=1)
    assert float(f(0.0, True)) == 1
    assert float(f(0.0, 1)) == 2
    assert float(f(0.0, 1.0)) == 2


def test_a_static_function_and_a_negative_position() -> None:
    f = xcube.jit(lambda x, g: g(x) + 1, static_argnums=-1)
    np.testing.assert_allclose(f(jnp.zeros(2), jnp.cos), [2, 2])
    np.testing.assert_allclose(f(jnp.zeros(2), jnp.sin), [1, 1])


def test_static_arguments_before_dynamic_ones() -> None:
    f = xcube.jit(lambda shape, x, y: jnp.full(shape, x) - y, static_argnums=(0,))
    np.testing.assert_array_equal(f((2,), 5.0, 1.0), [4, 4])


# donation -------------------------------------------------------------------------------------


def big(value: float = 1.0) -> Any:
    return jnp.full(1 << 18, value) + 0


def test_a_donated_array_is_deleted_and_its_memory_is_the_result() -> None:
    f = xcube.jit(lambda x, y: x + y, donate_argnums=0)
    x, y = big(), big(2)
    pointer = x.unsafe_buffer_pointer()
    z = f(x, y)
    assert x.is_deleted()
    assert not y.is_deleted()
    assert z.unsafe_buffer_pointer() == pointer
    assert float(z[0]) == 3
    with pytest.raises(RuntimeError, match="donat"):
        _ = x + 1


def test_a_donated_state_needs_no_second_copy() -> None:
    step = xcube.jit(lambda s, g: {"w": s["w"] - g, "n": s["n"] + 1}, donate_argnums=0)
    state, g = {"w": big(), "n": jnp.zeros(())}, big(0.5)
    pointer = state["w"].unsafe_buffer_pointer()
    for _ in range(4):
        state = step(state, g)
        assert state["w"].unsafe_buffer_pointer() == pointer
    assert float(state["w"][0]) == -1.0
    assert float(state["n"]) == 4


def test_a_numpy_view_of_a_donated_array_is_unharmed() -> None:
    f = xcube.jit(lambda x: x * 3, donate_argnums=0)
    x = big(2)
    view = np.asarray(x)
    z = f(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(view[:3], [2, 2, 2])
    assert float(z[0]) == 6


def test_other_holders_of_a_donated_buffer_are_unharmed() -> None:
    f = xcube.jit(lambda x: x * 3, donate_argnums=0)
    x = big(2)
    alias = xcube.jit(lambda x: x)(x)  # a result that is its argument
    z = f(x)
    assert float(alias[0]) == 2
    assert float(z[0]) == 6


def test_a_donated_array_that_is_a_result_lives_on_in_it() -> None:
    f = xcube.jit(lambda x, y: (x, y + x), donate_argnums=(0, 1))
    same, total = f(big(2), big(3))
    assert float(same[0]) == 2
    assert float(total[0]) == 5


def test_donated_memory_is_not_overwritten_while_it_is_read() -> None:
    f = xcube.jit(lambda x: (x[::-1] * 2, x.sum()), donate_argnums=0)
    x = jnp.arange(1000.0)
    backwards, total = f(x)
    np.testing.assert_array_equal(backwards, np.arange(1000.0)[::-1] * 2)
    assert float(total) == 499500
    g = xcube.jit(lambda x: jnp.concatenate([x[500:], x[:500]]), donate_argnums=0)
    np.testing.assert_array_equal(g(jnp.arange(1000.0)), np.roll(np.arange(1000.0), 500))


def test_positions_of_donated_arguments_count_static_ones() -> None:
    f = xcube.jit(lambda n, x, y: x * n + y, static_argnums=0, donate_argnums=2)
    x, y = big(), big(2)
    assert float(f(3, x, y)[0]) == 5
    assert not x.is_deleted()
    assert y.is_deleted()


@pytest.mark.parametrize("by_name", [False, True])
def test_donation_by_name(by_name: bool) -> None:
    f = xcube.jit(lambda x, state: state + x, donate_argnames="state")
    x, state = big(), big(2)
    z = f(x, state=state) if by_name else f(x, state)
    assert float(z[0]) == 3
    assert state.is_deleted()
    assert not x.is_deleted()


def test_one_array_cannot_be_donated_twice() -> None:
    f = xcube.jit(lambda x, y: x + y, donate_argnums=(0, 1))
    x = big()
    with pytest.raises(ValueError, match="two donated arguments"):
        f(x, x)


def test_an_array_both_donated_and_passed_plainly_is_read_whole() -> None:
    f = xcube.jit(lambda x, y: (x * 0 + 7, y.sum()), donate_argnums=0)
    x = big()
    seven, total = f(x, x)
    assert float(seven[0]) == 7
    assert float(total) == 1 << 18


def test_numbers_can_be_donated_again_and_again() -> None:
    f = xcube.jit(lambda x: x + 1, donate_argnums=0)
    assert [float(f(1.0)) for _ in range(3)] == [2, 2, 2]
    number: Any = jnp.asarray(1.0)
    number.delete()
    assert float(jnp.asarray(1.0) + 1.0) == 2


def test_donation_under_a_transform_changes_nothing() -> None:
    f = xcube.jit(lambda x: (x * x).sum(), donate_argnums=0)
    x: Any = jnp.arange(3.0)
    np.testing.assert_array_equal(xcube.grad(f)(x), [0, 2, 4])
    assert not x.is_deleted()


def test_a_failure_while_tracing_leaves_nothing_behind() -> None:
    fails = [True, False]

    def f(x: Any) -> Any:
        if fails.pop(0):
            raise RuntimeError("while tracing")
        return x + 1

    g = xcube.jit(f)
    with pytest.raises(RuntimeError, match="while tracing"):
        g(1.0)
    assert float(jnp.ones(()) + 1) == 2
    assert float(g(1.0)) == 2


# nesting and constants ------------------------------------------------------------------------


def test_nested_jit_is_one_equation_and_one_program() -> None:
    inner = xcube.jit(lambda x: jnp.sin(x) * 2)
    outer = xcube.jit(lambda x: inner(x) + inner(x + 1))
    jaxpr = xcube.make_jaxpr(outer)(jnp.zeros(3))
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["jit"]
    x = np.linspace(0, 1, 3, dtype=np.float32)
    np.testing.assert_allclose(outer(x), 2 * np.sin(x) + 2 * np.sin(x + 1), 1e-6)


def test_captured_arrays_are_constants_of_the_program() -> None:
    weights = jnp.arange(3.0)
    f = xcube.jit(lambda x: x * weights + jnp.asarray([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(f(2.0), [1, 4, 7])
    np.testing.assert_array_equal(f(3.0), [1, 5, 9])


def test_a_captured_tracer_makes_no_stale_program() -> None:
    def f(x: Any) -> Any:
        return xcube.jit(lambda y: y * x)(2.0)

    assert [float(xcube.grad(f)(v)) for v in (1.0, 5.0)] == [2, 2]
    assert [float(xcube.jit(f)(v)) for v in (1.0, 5.0)] == [2, 10]
    np.testing.assert_array_equal(xcube.vmap(f)(jnp.arange(3.0)), [0, 2, 4])


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: xcube.grad(lambda x: f(x).sum()),
    "vmap": xcube.vmap,
    "jvp": lambda f: lambda x: xcube.jvp(f, (x,), (x,))[1],
    "vjp": lambda f: lambda x: xcube.vjp(f, x)[1](x)[0],
    "linearize": lambda f: lambda x: xcube.linearize(f, x)[1](x),
    "jit": xcube.jit,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_jit_inside_a_transform_changes_nothing(name: str) -> None:
    plain = lambda x: jnp.sin(x) * x + 1  # noqa: E731
    x = jnp.linspace(0.1, 2.0, 5)
    transform = TRANSFORMS[name]
    want = transform(plain)(x)
    np.testing.assert_allclose(transform(xcube.jit(plain))(x), want, 1e-6)
    np.testing.assert_allclose(xcube.jit(transform(xcube.jit(plain)))(x), want, 1e-6)


def test_jit_traced_under_a_transform_is_traced_once() -> None:
    counted = Counted(lambda x: jnp.sin(x) * x)
    f = xcube.jit(counted)
    for value in (1.0, 2.0, 3.0):
        xcube.grad(f)(value)
    xcube.grad(xcube.grad(f))(1.0)
    assert counted.count == 1


def test_disable_jit_runs_python_each_time() -> None:
    counted = Counted(lambda x: x + 1)
    f = xcube.jit(counted)
    with xcube.disable_jit():
        f(1.0)
        f(1.0)
    assert counted.count == 2


# what is compiled -----------------------------------------------------------------------------


def mlp(x: Any, w: Any, v: Any) -> Any:
    hidden = jnp.tanh(jnp.dot(x, w))
    scores = jnp.dot(hidden, v)
    e = jnp.exp(scores - jnp.max(scores, 1, keepdims=True))
    return (e / jnp.sum(e, 1, keepdims=True)).mean(0)


def test_a_new_batch_size_compiles_no_kernel() -> None:
    rng = np.random.default_rng(0)
    w, v = (
        rng.normal(size=(64, 96)).astype(np.float32),
        rng.normal(size=(96, 32)).astype(np.float32),
    )
    f = xcube.jit(mlp)
    f(jnp.ones((64, 64)), w, v)
    before = compiled_kernels()
    for batch in (128, 48, 96):
        x = rng.normal(size=(batch, 64)).astype(np.float32)
        scores = np.tanh(x @ w) @ v
        e = np.exp(scores - scores.max(1, keepdims=True))
        np.testing.assert_allclose(f(x, w, v), (e / e.sum(1, keepdims=True)).mean(0), 1e-4)
    assert compiled_kernels() == before


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: jnp.tanh(x) * 2 + x, id="elementwise"),
        pytest.param(lambda x: x.sum(0), id="sum over rows"),
        pytest.param(lambda x: x.sum(1), id="sum over columns"),
        pytest.param(lambda x: x - x.mean(1, keepdims=True), id="row program"),
    ],
)
def test_one_kernel_serves_all_sizes(function: Any) -> None:
    """Of one class: rows at least as long as the longest line, few elements or many."""
    f = xcube.jit(function)
    for first, others in (
        ((64, 128), ((32, 256), (17, 384))),
        ((2048, 128), ((4096, 128), (8192, 128))),
    ):
        f(jnp.ones(first))
        before = compiled_kernels()
        for shape in others:
            f(jnp.ones(shape))
        assert compiled_kernels() == before


def test_equal_programs_share_their_kernels() -> None:
    xcube.jit(lambda x: jnp.cos(x) * 3 + x)(jnp.ones(100))
    before = compiled_kernels()
    xcube.jit(lambda y: jnp.cos(y) * 3 + y)(jnp.ones(200))
    assert compiled_kernels() == before


# shapes without running -----------------------------------------------------------------------


def test_eval_shape_runs_nothing() -> None:
    f = lambda x, y: {"dot": jnp.dot(x, y), "n": 1}  # noqa: E731
    x = xcube.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    found = xcube.eval_shape(f, x, xcube.ShapeDtypeStruct((1 << 20, 3), jnp.float32))
    assert found["dot"] == xcube.ShapeDtypeStruct((1 << 20, 3), jnp.float32)
    assert (found["n"].shape, found["n"].dtype, found["n"].weak_type) == ((), np.int32, True)


def test_make_jaxpr_prints_the_program(golden: Callable[[str, str], None]) -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = xcube.jit(lambda a: jnp.tanh(a) * 2)(x * w)
        return jnp.sum(jnp.where(hidden > 0, hidden, 0.5 * hidden) ** 2)

    x = jnp.ones((2, 3))
    golden("jaxpr/loss.txt", str(xcube.make_jaxpr(loss)(x, x)))
    golden("jaxpr/gradient.txt", str(xcube.make_jaxpr(xcube.grad(loss))(x, x)))
    golden(
        "jaxpr/batch.txt",
        str(xcube.make_jaxpr(xcube.vmap(loss, (None, 0)))(x, jnp.ones((4, 2, 3)))),
    )


def test_make_jaxpr_takes_static_arguments() -> None:
    jaxpr = xcube.make_jaxpr(lambda n, x: x * n, static_argnums=0)(3, 1.0)
    assert str(jaxpr) == "{ lambda ; a:f32[]. let b:f32[] = mul a 3.0:f32[] in (b,) }".replace(
        " let ", " let\n    "
    ).replace(" in (b,) }", "\n  in (b,) }")


# copies ---------------------------------------------------------------------------------------


def test_models_with_jitted_activations_are_copied_and_pickled() -> None:
    model, x = nn.MLP(2, 8, 1, key=random.key(0)), jnp.ones((3, 2))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other(x), model(x))
    assert copy.deepcopy(nn.gelu) is copy.copy(nn.gelu) is nn.gelu
