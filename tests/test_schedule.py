"""What becomes one kernel, in which order kernels run, and where their results live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.lowering import lower
from xcube.lowering.clusters import Group
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Copy, Facts, Launch, Loop
from xcube.lowering.kernels import repeats, select
from xcube.lowering.kernels.work import Work
from xcube.lowering.program import Program
from xcube.transforms.jit import make_jaxpr

X = np.linspace(-2, 2, 64 * 96, dtype=np.float32).reshape(64, 96)


@dataclass(frozen=True)
class Described:
    """A device that is known by its facts alone, so that programs are the same on every machine."""

    known: Facts
    name: str = "cpu"

    def facts(self) -> Facts:
        return self.known


WIDE = Described(
    Facts("cpu", "cpu", "described", 8, 512, 32 << 10, 1 << 20, 1 << 34, frozenset({"fma"}))
)


def program(
    function: Any, *args: Any, device: Any = WIDE, donated: tuple[bool, ...] = ()
) -> Program:
    return lower(make_jaxpr(function)(*args).closed(), device, donated)


def launches(function: Any, *args: Any) -> int:
    return len(program(function, *args).launches)


def softmax(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return e / jnp.sum(e, -1, keepdims=True)


def layer_norm(x: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def rms_norm(x: Any) -> Any:
    return x * (1 / jnp.sqrt(jnp.mean(x * x, -1) + 1e-5))[:, None]


def log_softmax(x: Any) -> Any:
    shifted = x - jnp.max(x, -1, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), -1, keepdims=True))


def chain(x: Any) -> Any:
    for k in range(12):
        x = jnp.tanh(x) * 1.5 + k
    return x


def views(x: Any) -> Any:
    y = jnp.pad(x[1:, ::2].T, ((0, 1), (1, 0))) + jnp.flip(x[:49, :64], 0)
    return y.reshape(-1)


def mean_and_variance(x: Any) -> Any:
    mean = jnp.mean(x, 0)
    return mean, jnp.mean(x * x, 0) - mean * mean


ONE_KERNEL = [softmax, layer_norm, rms_norm, log_softmax, chain, views, mean_and_variance]


@pytest.mark.parametrize("function", ONE_KERNEL)
def test_is_one_kernel(function: Any) -> None:
    assert launches(function, X) == 1, str(program(function, X))


@pytest.mark.parametrize("function", ONE_KERNEL)
@pytest.mark.parametrize("shape", [(64, 96), (3, 5), (1, 7), (9, 1), (65, 257)])
def test_one_kernel_computes_what_the_operations_do(function: Any, shape: tuple[int, ...]) -> None:
    if function is views:
        shape = (64, 96)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    whole, single = xcube.jit(function)(x), function(jnp.asarray(x))
    for one, two in zip(xcube.tree.leaves(whole), xcube.tree.leaves(single), strict=True):
        np.testing.assert_allclose(one, two, 2e-5, 2e-6)


@pytest.mark.parametrize(
    ("function", "most"),
    [
        pytest.param(xcube.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)), 1, id="elementwise loss"),
        pytest.param(xcube.grad(lambda x: jnp.sum(softmax(x) * X)), 1, id="softmax"),
        pytest.param(xcube.grad(lambda x: jnp.sum(layer_norm(x) * X)), 1, id="layer norm"),
        pytest.param(lambda x: jnp.dot(x, x.T) * 2 + 1, 3, id="dot and what follows"),
        pytest.param(lambda x: jnp.tanh(jnp.dot(x * 2, x.T)), 3, id="dot and what precedes"),
    ],
)
def test_takes_few_kernels(function: Any, most: int) -> None:
    assert launches(function, X) <= most, str(program(function, X))


def test_what_nobody_needs_is_not_computed() -> None:
    def function(x: Any) -> Any:
        jnp.exp(x).sum()
        return x + 1

    assert launches(function, X) == 1
    assert [eqn.primitive.name for eqn in program(function, X).jaxpr.equations] == ["add"]


def test_equal_operations_are_done_once() -> None:
    found = program(lambda x: jnp.exp(x) + jnp.exp(x), X).jaxpr
    assert [eqn.primitive.name for eqn in found.equations] == ["exp", "add"]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * 1, id="times one"),
        pytest.param(lambda x: jnp.negative(jnp.negative(x)), id="negated twice"),
        pytest.param(lambda x: x.T.T, id="transposed twice"),
        pytest.param(lambda x: x.reshape(-1).reshape(64, 96), id="reshaped twice"),
        pytest.param(lambda x: x / 1, id="over one"),
        pytest.param(lambda x: x.astype(jnp.float32), id="converted to itself"),
    ],
)
def test_does_nothing(function: Any) -> None:
    assert not program(function, X).jaxpr.equations
    np.testing.assert_array_equal(xcube.jit(function)(X), X)


def test_a_result_used_in_many_places_is_stored_once() -> None:
    def function(x: Any) -> Any:
        y = jnp.exp(x)
        return y, y.sum(0), y.T @ y

    found = program(function, X).jaxpr
    assert sum(eqn.primitive.name == "exp" for eqn in found.equations) == 1
    _, total, product = xcube.jit(function)(X)
    np.testing.assert_allclose(total, np.exp(X).sum(0), 1e-5)
    np.testing.assert_allclose(product, np.exp(X).T @ np.exp(X), 1e-4)


def test_memory_is_used_again_once_nothing_reads_it() -> None:
    def function(x: Any) -> Any:
        for _ in range(8):
            x = jnp.cumsum(jnp.tanh(x), 0)
        return x

    assert program(function, X).arena_nbytes <= 3 * X.nbytes


def test_a_chain_of_dots_needs_room_for_few() -> None:
    square = np.ones((128, 128), np.float32)

    def function(x: Any) -> Any:
        for _ in range(10):
            x = jnp.tanh(x @ x)
        return x

    found = program(function, square)
    assert found.arena_nbytes <= 5 * square.nbytes, str(found)
    assert len(found.kernels) <= 4, str(found)


def test_a_donated_argument_gives_its_memory() -> None:
    found = program(lambda x, y: (x * 2 + y, y.sum()), X, X, donated=(True, False))
    assert found.donated == {0: 0}
    found = program(lambda x: x.T.copy() + 1, X, donated=(True,))
    assert found.donated == {}, "the argument is read elsewhere than the result is written"


def test_a_result_that_is_an_argument_is_not_copied() -> None:
    found = program(lambda x, y: (y, x + 1, y), X, X)
    assert [ref.space for ref in found.outputs] == ["input", "output", "input"]
    assert len(found.launches) == 1


def test_a_long_program_is_cut_into_kernels_of_bounded_size() -> None:
    def function(x: Any) -> Any:
        for k in range(400):
            x = jnp.where(x > k, x * 0.5, x + 0.25)
        return x

    assert 4 < launches(function, X) < 40
    want = X
    for k in range(400):
        want = np.where(want > k, want * np.float32(0.5), want + np.float32(0.25))
    np.testing.assert_array_equal(xcube.jit(function)(X), want)


def test_a_deep_program_does_not_exhaust_the_stack() -> None:
    def function(x: Any) -> Any:
        for _ in range(3000):
            x = x + 1.0
        return x

    np.testing.assert_array_equal(xcube.jit(function)(np.zeros(3, np.float32)), [3000] * 3)


GOLDEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (softmax, (X,)),
    "layer_norm_gradient": (xcube.grad(lambda x: jnp.sum(layer_norm(x) ** 3)), (X,)),
    "mlp": (lambda x, w, b: jnp.tanh(x @ w + b).mean(0), (X, X.T.copy(), X[0, :64])),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_programs_are_as_written_down(name: str, golden: Callable[[str, str], None]) -> None:
    function, args = GOLDEN[name]
    found = program(function, *args)
    golden(f"program/{name}.txt", f"{found.jaxpr}\n\n{found}")


def test_the_device_of_this_machine_is_described_too() -> None:
    assert program(softmax, X, device=default_device()).launches


@pytest.mark.parametrize(
    "step",
    [
        lambda v: jnp.concatenate([v[1:], v[:1]]),
        lambda v: jnp.roll(v, 1),
        lambda v: v.reshape(3, 2).T.reshape(6),
        lambda v: jnp.pad(v, 1)[1:-1],
    ],
)
def test_a_long_chain_of_views_is_cut_into_kernels_of_bounded_size(step):
    def chain(count):
        def function(v):
            for _ in range(count):
                v = step(v)
            return v

        program = lower(make_jaxpr(function)(jnp.arange(6)), default_device())
        return max(len(key) for key in program.keys)

    assert chain(48) <= 2 * chain(12)


@pytest.mark.parametrize("size", [1000, 40_000])
def test_a_loop_writes_windows_where_they_are(size: int) -> None:
    def running(x: Any) -> Any:
        return lax.fori_loop(1, 600, lambda i, x: x.at[i].set(x[i - 1] + x[i]), x)

    x = np.arange(size, dtype=np.float32) % 3
    found = program(running, x)
    (loop,) = [step for step in found.steps if isinstance(step, Loop)]
    assert sum(step.cubes for step in loop.body if isinstance(step, Launch)) <= 3
    assert not any(isinstance(s, Copy) and s.nbytes == x.nbytes for s in loop.body)
    expected = x.copy()
    expected[:600] = np.cumsum(x[:600])
    np.testing.assert_array_equal(xcube.jit(running)(x), expected)


def test_layers_that_are_alike_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    template = select.TEMPLATES["rows"]

    def counting(group: Group, *rest: Any) -> list[Work]:
        built.append(group.name)
        return template(group, *rest)

    def layers(x: Any, shifts: Any) -> Any:
        for shift in shifts:
            x = jnp.exp(x - x.max(1, keepdims=True)) @ W + shift
        return x

    repeats.clear()
    monkeypatch.setitem(select.TEMPLATES, "rows", counting)
    shifts = [np.float32(n) * np.ones(64, np.float32) for n in range(4)]
    found = program(layers, np.ones((48, 64), np.float32), shifts)
    rows = [launch for launch in found.launches if "max" in found.kernels[launch.kernel].name]
    assert len(rows) == 4
    assert (
        sum("max" in name for name in built) == 2
    )  # the first layer, which adds nothing, and one of the others
    np.testing.assert_allclose(
        xcube.jit(layers)(np.ones((48, 64), np.float32) * 0.1, shifts), _layers(shifts), rtol=1e-5
    )


W = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64) / 64


def _layers(shifts: list[Any]) -> Any:
    x = np.ones((48, 64)) * 0.1
    for shift in shifts:
        x = np.exp(x - x.max(1, keepdims=True)) @ W.astype(np.float64) + shift
    return x
