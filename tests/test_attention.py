"""Attention by kernels: values against NumPy in float64 and JAX, derivatives against the
composition (whose own laws are in test_ops.py), every kind of mask, memory, and the kernels in the
interpreter for processors that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from ops_attention import expected
from run_program import run

import xcube
import xcube.numpy as jnp
from xcube import lax, nn
from xcube.ir import Jaxpr
from xcube.lowering import lower
from xcube.lowering.device.cpu import device
from xcube.primitives.attention import LOWEST, Form, attention
from xcube.transforms.jit import make_jaxpr

Array = np.ndarray[Any, Any]


class Problem:
    """Operands of one attention; sides and operands are as `attention` takes them."""

    def __init__(
        self,
        b: int,
        t: int,
        n: int,
        h: int,
        s: int,
        m: int,
        e: int,
        bias: tuple[int, ...] | None = None,
        mask: tuple[int, ...] | None = None,
        lengths: tuple[int, ...] | None = None,
        dtype: Any = np.float32,
        **sides: Any,
    ) -> None:
        generator = np.random.default_rng(b + t + s)
        shapes = (b, t, n, h), (b, s, m, h), (b, s, m, e)
        self.floats = [generator.normal(size=shape).astype(dtype) for shape in shapes]
        if bias is not None:
            self.floats.append(generator.normal(size=bias).astype(dtype))
        self.others: list[Array] = []
        if mask is not None:
            self.others.append(generator.random(mask) < 0.6)
            self.others[0][..., t // 2 if mask[2] > 1 else 0, :] = mask[3] == 1 < mask[2]
        if lengths is not None:
            self.others.append(np.array(lengths, np.int32))
        self.scale, self.sides = 0.3, sides
        self.has = bias is not None, mask is not None, lengths is not None
        self.weights = generator.normal(size=(b, t, n, e)).astype(np.float32)

    @property
    def form(self) -> Form:
        bias, mask, lengths = self.has
        sides = self.sides.get("left"), self.sides.get("right")
        return Form(self.scale, *sides, bias=bias, mask=mask, lengths=lengths)

    def __call__(self, *floats: Any, is_composed: bool = False) -> Any:
        given = iter([*floats[3:], *map(jnp.asarray, self.others)])
        others = [next(given) if flag else None for flag in self.has]
        args = [jnp.asarray(x) for x in floats[:3]]
        options = {"scale": self.scale, "is_composed": is_composed, **self.sides}
        return attention(*args, *others, **options)

    def loss(self, is_composed: bool) -> Callable[..., Any]:
        def loss(*floats: Any) -> Any:
            out, log_total = self(*floats, is_composed=is_composed)
            seen = jnp.where(log_total > LOWEST / 2, log_total, 0)
            return jnp.sum(jnp.sin(out) * self.weights) + jnp.sum(seen**2) / 50

        return loss

    def gradients(self, is_composed: bool) -> list[Array]:
        places = tuple(range(len(self.floats)))
        found = xcube.jit(xcube.grad(self.loss(is_composed), places))(*self.floats)
        return [np.asarray(x, np.float64) for x in found]


def close(got: Any, wanted: Any, rtol: float = 3e-6, atol: float = 0.0) -> None:
    """Equal to a share of the largest magnitude."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=rtol * scale + atol)


def staged(function: Callable[..., Any], *args: Any) -> tuple[Jaxpr, list[Array]]:
    """A closed jaxpr and its arguments."""
    jaxpr = make_jaxpr(function)(*args)
    return jaxpr.closed(), [*map(np.asarray, jaxpr.consts), *args]


def kernels_of(function: Callable[..., Any], *args: Any) -> list[str]:
    program = lower(staged(function, *args)[0], device())
    return [kernel.name for kernel in program.kernels]


PROBLEMS = {
    "one tile": Problem(1, 32, 1, 16, 32, 1, 16),
    "ragged": Problem(2, 37, 2, 5, 53, 1, 7),
    "causal": Problem(1, 131, 3, 8, 131, 3, 8, right=0),
    "more keys": Problem(1, 40, 2, 8, 257, 2, 3, right=0),
    "fewer keys": Problem(1, 257, 2, 8, 40, 2, 17, right=0),
    "one key": Problem(1, 1100, 1, 3, 1, 1, 4),
    "groups": Problem(2, 50, 6, 24, 70, 2, 33, right=0),
    "window": Problem(1, 200, 2, 8, 230, 2, 8, left=5, right=3),
    "window before": Problem(1, 120, 1, 8, 100, 1, 8, left=9, right=-4),
    "left alone": Problem(1, 277, 2, 8, 101, 1, 9, left=5),
    "lengths": Problem(3, 40, 2, 8, 300, 1, 8, lengths=(70, 0, 300)),
    "lengths causal": Problem(2, 150, 2, 8, 150, 2, 8, lengths=(33, 149), right=0),
    "bias": Problem(2, 40, 2, 8, 60, 1, 8, bias=(2, 2, 40, 60)),
    "bias of keys": Problem(2, 40, 2, 8, 160, 2, 8, bias=(2, 1, 1, 160), right=0),
    "bias of queries": Problem(2, 40, 2, 8, 160, 1, 8, bias=(1, 2, 40, 1)),
    "bias of heads": Problem(2, 40, 2, 8, 160, 1, 8, bias=(1, 2, 1, 1)),
    "mask": Problem(2, 40, 2, 8, 60, 1, 8, mask=(2, 2, 40, 60)),
    "mask of keys": Problem(2, 40, 2, 8, 60, 1, 8, mask=(2, 1, 1, 60)),
    "mask of queries": Problem(1, 40, 2, 8, 60, 1, 8, mask=(1, 2, 40, 1), right=2),
    "all": Problem(
        *(2, 40, 2, 8, 60, 2, 8), bias=(1, 1, 40, 60), mask=(2, 1, 40, 60), lengths=(60, 31),
        left=30, right=7,
    ),
    "one query": Problem(2, 1, 4, 16, 1100, 4, 32),
    "few queries": Problem(1, 13, 3, 5, 1100, 3, 7, mask=(1, 3, 13, 1100)),
    "few queries, left": Problem(1, 2, 2, 16, 600, 2, 16, left=7),
    "few queries, heads": Problem(1, 3, 6, 8, 500, 2, 8, bias=(1, 6, 1, 500)),
    "few queries, tiles": Problem(1, 9, 8, 3, 500, 1, 4, bias=(1, 1, 9, 500), right=488),
    "few queries, one axis": Problem(1, 9, 2, 3, 500, 1, 4, bias=(1, 1, 9, 1), lengths=(400,)),
    "few queries, groups": Problem(2, 3, 4, 16, 530, 2, 16, right=520),
    "few queries, window": Problem(1, 5, 2, 16, 300, 2, 16, left=3, right=-1),
    "few queries, lengths": Problem(3, 2, 2, 16, 700, 1, 16, lengths=(300, 0, 700)),
    "few queries, all": Problem(
        *(2, 3, 4, 16, 530, 2, 16), bias=(1, 4, 3, 1), mask=(2, 1, 3, 530), lengths=(511, 40)
    ),
    "few queries, bias": Problem(1, 2, 4, 16, 530, 2, 16, bias=(1, 1, 2, 530)),
}  # fmt: skip

KERNELS = {
    "causal": "attention",
    "one query": "attention_rows",
    "few queries, left": "attention_rows",
    "few queries, groups": "attention_few",
    "few queries, heads": "attention",
    "few queries, bias": None,
}

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


@each_problem
def test_values_are_those_of_numpy(problem: Problem) -> None:
    out, log_total = xcube.jit(problem)(*problem.floats)
    wanted, wanted_log = expected(*problem.floats, *problem.others, form=problem.form)
    close(out, wanted)
    np.testing.assert_allclose(log_total, wanted_log, rtol=2e-6, atol=2e-6)


@each_problem
def test_gradients_are_those_of_the_composition(problem: Problem) -> None:
    pairs = zip(problem.gradients(False), problem.gradients(True), strict=True)
    for got, wanted in pairs:
        close(got, wanted, rtol=5e-6, atol=1e-6)


def test_kernels_are_used_where_there_are_many_scores() -> None:
    for name, kernel in KERNELS.items():
        problem = PROBLEMS[name]
        found = [name for name in kernels_of(problem, *problem.floats) if "attention" in name]
        assert found == ([kernel] if kernel else [])
    problem = PROBLEMS["causal"]
    assert "attention_backward" in kernels_of(xcube.grad(problem.loss(False)), *problem.floats)
    assert "attention" not in kernels_of(
        Problem(1, 16, 2, 8, 16, 2, 8), *[np.ones((1, 16, 2, 8))] * 3
    )


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(ml_dtypes.bfloat16, 8e-3), (np.float16, 1e-3), (np.float64, 1e-13)]
)
@pytest.mark.parametrize("queries", [40, 2])
def test_other_floats(dtype: Any, rtol: float, queries: int) -> None:
    problem = Problem(2, queries, 2, 16, 600, 1, 32, bias=(1, 2, 1, 600), right=590, dtype=dtype)
    with xcube.enable_x64(dtype is np.float64):
        out, log_total = xcube.jit(problem)(*problem.floats)
        gradients, wanted_gradients = problem.gradients(False), problem.gradients(True)
    assert out.dtype == dtype
    assert log_total.dtype == (np.float64 if dtype is np.float64 else np.float32)
    wanted, wanted_log = expected(*problem.floats, form=problem.form)
    close(out, wanted, rtol)
    np.testing.assert_allclose(log_total, wanted_log, rtol=max(rtol / 100, 1e-13))
    for x, y in zip(gradients, wanted_gradients, strict=True):
        close(x, y, 8 * rtol, atol=rtol / 10)


@pytest.mark.parametrize("name", ["causal", "one query", "all"])
@pytest.mark.parametrize("places", [(0,), (1, 2), (0, 2)])
def test_some_gradients_are_those_of_all(name: str, places: tuple[int, ...]) -> None:
    problem = PROBLEMS[name]
    some = xcube.jit(xcube.grad(problem.loss(False), places))(*problem.floats)
    for place, got in zip(places, some, strict=True):
        close(got, problem.gradients(False)[place], 1e-6)


# transforms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [(0, 1, 2), (0,), (2,), (3,), (0, 3)])
@pytest.mark.parametrize("lead", [1, 2])
def test_vmap_is_a_loop(mapped: tuple[int, ...], lead: int) -> None:
    problem = Problem(2, 32, 2, 4, 40, 1, 4, bias=(lead, 2, 32, 40), mask=(1, 1, 1, 40))
    count, generator = 3, np.random.default_rng(1)
    batched = [
        generator.normal(size=(count, *x.shape)).astype(np.float32) if place in mapped else x
        for place, x in enumerate(problem.floats)
    ]
    axes = tuple([0 if place in mapped else None for place in range(4)])
    gradient = xcube.grad(problem.loss(False), (0, 1, 2, 3))
    found = xcube.jit(xcube.vmap(gradient, axes))(*batched)
    for k in range(count):
        args = [x[k] if place in mapped else x for place, x in enumerate(batched)]
        for got, wanted in zip(found, xcube.jit(gradient)(*args), strict=True):
            close(got[k], wanted, 5e-6, atol=1e-6)


def test_derivatives_of_second_order() -> None:
    problem = PROBLEMS["groups"]
    direction = [np.ones_like(x) for x in problem.floats]

    def curvature(is_composed: bool) -> Any:
        gradient = xcube.grad(problem.loss(is_composed), (0, 1, 2))
        return xcube.jit(lambda *xs: xcube.jvp(gradient, xs, tuple(direction))[1])(*problem.floats)

    for got, wanted in zip(curvature(False), curvature(True), strict=True):
        close(got, wanted, 1e-5)


def test_checkpointed_and_scanned() -> None:
    x = np.random.default_rng(2).normal(size=(1, 64, 2, 8)).astype(np.float32) / 4

    def layer(x: Any, _: Any) -> Any:
        return x + attention(x, x, x, scale=0.4, right=0)[0], None

    def looped(layer: Any) -> Callable[[Any], Any]:
        return lambda x: jnp.sum(lax.scan(layer, x, None, length=3)[0] ** 2)

    def unrolled(x: Any) -> Any:
        for _ in range(3):
            x = x + attention(x, x, x, scale=0.4, right=0, is_composed=True)[0]
        return jnp.sum(x**2)

    wanted = xcube.jit(xcube.grad(unrolled))(x)
    for function in (looped(layer), looped(xcube.checkpoint(layer))):
        close(xcube.jit(xcube.grad(function))(x), wanted, 5e-6)
    assert {"attention", "attention_backward"} <= set(kernels_of(xcube.grad(looped(layer)), x))


# programs -------------------------------------------------------------------------------------


def test_no_matrix_of_scores_is_in_memory() -> None:
    length = 4096
    x = np.zeros((1, length, 1, 8), np.float32)
    mask = np.ones((1, 1, 1, length), bool)

    def function(x: Any) -> Any:
        return jnp.sum(nn.dot_product_attention(x, x, x, mask=mask, is_causal=True))

    for wanted in (function, xcube.grad(function)):
        program = lower(staged(wanted, x)[0], device())
        assert program.arena_nbytes < length * length


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("name", ["plain", "all", "rows", "few"])
def test_kernels_on_other_processors(name: str, bits: int) -> None:
    """In the interpreter, which knows of accesses out of bounds."""
    problem = {
        "plain": Problem(1, 33, 2, 5, 32, 1, 7),
        "all": Problem(
            *(1, 33, 2, 5, 32, 1, 7), bias=(1, 1, 33, 32), mask=(1, 2, 33, 32), lengths=(30,),
            left=9, right=4,
        ),
        "rows": Problem(1, 2, 2, 16, 530, 1, 16, bias=(1, 1, 2, 530), lengths=(520,), right=510),
        "few": Problem(1, 9, 2, 3, 130, 1, 5, mask=(1, 1, 9, 130), lengths=(115,), right=110),
    }[name]  # fmt: skip
    places = tuple(range(len(problem.floats)))
    gradients = [xcube.grad(problem.loss(False), places)] if name in ("plain", "all") else []
    for function in (problem, *gradients):
        found = run(*staged(function, *problem.floats), vector_bits=bits)
        for got, wanted in zip(found, xcube.jit(function)(*problem.floats), strict=True):
            close(got, wanted, 2e-6)


def test_devices_with_many_units_compose() -> None:
    problem = Problem(1, 33, 2, 4, 32, 1, 4, right=0)
    found = run(*staged(problem, *problem.floats), units=256)
    for got, wanted in zip(found, xcube.jit(problem)(*problem.floats), strict=True):
        close(got, wanted, 2e-6)


# the function of nn ---------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.2},
    "window": {"local_window_size": (9, 4)},
    "causal window": {"local_window_size": 7, "is_causal": True},
    "lengths": {
        "query_seq_lengths": np.array([40, 3], np.int32),
        "key_value_seq_lengths": np.array([50, 7], np.int32),
    },
    "mask": {"mask": np.random.default_rng(4).random((1, 4, 40, 50)) < 0.8},
    "bias": {"bias": np.random.default_rng(5).normal(size=(1, 1, 40, 50)).astype(np.float32)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("implementation", [None, "xla", "cudnn"])
def test_nn_is_as_in_jax(options: dict[str, Any], implementation: str | None) -> None:
    q, k, v = Problem(2, 40, 4, 8, 50, 2, 8).floats
    options = {**options, "return_residual": True}
    found = nn.dot_product_attention(q, k, v, implementation=implementation, **options)
    for x, y in zip(found, jax.nn.dot_product_attention(q, k, v, **options), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def test_nn_takes_a_traced_scale_and_bias_of_few_axes() -> None:
    q, k, v = Problem(1, 40, 2, 8, 50, 2, 8).floats
    bias = np.random.default_rng(1).normal(size=(40, 50)).astype(np.float32)

    def ours(scale: Any) -> Any:
        return nn.dot_product_attention(q, k, v, bias, scale=scale)

    wanted = jax.nn.dot_product_attention(q, k, v, bias, scale=0.7)
    close(xcube.jit(ours)(0.7), wanted, 5e-6)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"key": np.ones((2, 6, 3, 8), np.float32)}, xcube.errors.ShapeError, "n a multiple of k"),
        ({"value": np.ones((2, 7, 4, 8), np.float32)}, xcube.errors.ShapeError, "shapes must be"),
        ({"query": np.ones((2, 6, 4, 8), np.float16)}, xcube.errors.DtypeError, "one float dtype"),
        ({"mask": np.ones((1, 1, 6, 6))}, xcube.errors.DtypeError, "mask must be bool"),
        ({"bias": np.ones((1, 1, 5, 6))}, xcube.errors.ShapeError, "bias must broadcast"),
        ({"key_value_seq_lengths": np.ones(3, int)}, xcube.errors.ShapeError, "one length for"),
        ({"query_seq_lengths": np.ones(2)}, xcube.errors.DtypeError, "must be integers"),
        ({"implementation": "flash"}, ValueError, "None, 'xla' or 'cudnn'; got 'flash'"),
    ],
)
def test_nn_refuses_what_does_not_fit(changes: dict[str, Any], error: Any, message: str) -> None:
    x = np.ones((2, 6, 4, 8), np.float32)
    with pytest.raises(error, match=message):
        nn.dot_product_attention(**{"query": x, "key": x, "value": x, **changes})
