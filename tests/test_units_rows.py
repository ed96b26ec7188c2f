"""Maps, rows programs and reductions where a cube has many units: the interpreter runs them, checks
every access and looks for races; NumPy says what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube import nn
from xcube.lowering import lower
from xcube.lowering.emit import cuda
from xcube.lowering.program import Program

Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(11)
GPU: dict[str, Any] = {"units": 256, "vector_bits": 128, "cores": 132, "kind": "cuda"}


def sample(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def agree(
    function: Callable[..., Any], want: Array, *args: Array, rtol: float = 2e-5, **facts: Any
) -> None:
    jaxpr = xcube.make_jaxpr(function)(*args)
    inputs = [np.asarray(x) for x in (*jaxpr.consts, *args)]
    (got,) = run(jaxpr.closed(), inputs, **{"units": 8, "cores": 2, "vector_bits": 128, **facts})
    assert got.shape == np.shape(want)
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=rtol * scale)


def program(function: Callable[..., Any], *shapes: Any, dtype: str = "float32") -> Program:
    """The program for a large GPU."""
    args = [xcube.ShapeDtypeStruct(shape, np.dtype(jnp.dtype(dtype))) for shape in shapes]
    return lower(xcube.make_jaxpr(function)(*args).closed(), Pretended(**GPU), forward=False)  # type: ignore[arg-type]


# values ---------------------------------------------------------------------------------------

SHAPES = [(1, 5), (3, 4), (5, 67), (7, 64), (9, 260), (70, 3), (300, 2)]


@pytest.mark.parametrize("units", [2, 8, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_along_and_across(shape: tuple[int, int], units: int) -> None:
    x = sample(*shape)
    wide = x.astype(np.float64)
    for axis in (0, 1):
        agree(lambda x, axis=axis: jnp.sum(x, axis), wide.sum(axis), x, units=units)
        agree(lambda x, axis=axis: jnp.argmax(x, axis), x.argmax(axis), x, units=units)
        agree(lambda x, axis=axis: nn.softmax(x, axis), softmax(wide, axis), x, units=units)


@pytest.mark.parametrize("axes", [(0, 2), (1,), (0, 1), (1, 2)])
def test_reductions_over_several_loops(axes: tuple[int, ...]) -> None:
    x = sample(5, 12, 9)
    agree(lambda x: jnp.sum(x, axes), x.astype(np.float64).sum(axes), x)
    turned = x.transpose(2, 0, 1)
    agree(lambda x: jnp.sum(x.transpose(2, 0, 1), axes), turned.astype(np.float64).sum(axes), x)


@pytest.mark.parametrize("shape", [(5000,), (4099,), (1030, 3), (1024, 3), (2, 9000)])
def test_few_results_take_two_stages(monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    from xcube.lowering import split

    monkeypatch.setattr(split, "LARGE", 1 << 10)
    monkeypatch.setattr(split, "ALONG", 1 << 8)
    monkeypatch.setattr(split, "ACROSS", 1 << 7)
    x = sample(*shape)
    axis = -1 if shape[0] == 2 else 0
    agree(lambda x: jnp.sum(x, axis), x.astype(np.float64).sum(axis), x, cores=8)
    agree(lambda x: jnp.max(x, axis), x.max(axis), x, cores=8)


TURNED: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "matrix": (lambda x: x.T * 2, lambda x: x.T * 2),
    "with a row": (lambda x: x.T + x[:, 0], lambda x: x.T + x[:, 0]),
    "two": (lambda x: x.T - (x * x).T, lambda x: x.T - (x * x).T),
    "inner": (
        lambda x: jnp.broadcast_to(x, (3, *x.shape)).transpose(0, 2, 1) + 1,
        lambda x: np.broadcast_to(x, (3, *x.shape)).transpose(0, 2, 1) + 1,
    ),
    "narrow": (
        lambda x: x.astype(jnp.bfloat16).T.astype(jnp.float32),
        lambda x: x.T.astype(jnp.bfloat16).astype(np.float32),
    ),
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("shape", [(16, 32), (37, 19), (6, 50)])
def test_transposing_maps(name: str, shape: tuple[int, int]) -> None:
    function, oracle = TURNED[name]
    x = sample(*shape)
    for units in (8, 64):
        agree(function, oracle(x), x, units=units)


def test_halves_are_turned_two_at_a_time() -> None:
    x = sample(64, 32).astype(jnp.bfloat16)
    want = (x.T * 2).astype(np.float64)
    agree(lambda x: x.T * 2, want, x, units=64)


@pytest.mark.parametrize("shape", [(6, 64), (5, 31), (257, 8), (3, 520)])
def test_maps_of_several_loops(shape: tuple[int, int]) -> None:
    x = sample(*shape)
    agree(lambda x: x * x[0] + x[:, :1], x * x[0] + x[:, :1], x, units=16)
    agree(lambda x: jnp.roll(x, 1, 1)[:, 1:], np.roll(x, 1, 1)[:, 1:], x, units=16)


# what the kernels look like on a GPU ------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", [nn.softmax, lambda x: jnp.sum(x, 0), lambda x: x.T + 0])
def test_accesses_are_known_to_be_aligned(function: Callable[..., Any], dtype: str) -> None:
    for kernel in program(function, (1024, 4096), dtype=dtype).kernels:
        text = cuda.emit(kernel)
        assert "load_" not in text and "store_" not in text


def test_a_short_row_is_read_once() -> None:
    (kernel,) = program(nn.softmax, (1024, 4096)).kernels
    text = cuda.emit(kernel)
    assert text.count("(const f32x4*)(b1") == 4 and "for (" not in text


def test_sizes_are_no_part_of_a_kernel() -> None:
    for function in (nn.softmax, lambda x: jnp.sum(x, 0), lambda x: x.T + 0):
        keys = [program(function, (rows, 4096)).keys for rows in (65536, 131072)]
        assert keys[0] == keys[1]


def test_reductions_across_have_cubes_for_all_cores() -> None:
    for shape in ((16384, 4096), (1 << 20, 64), (65536, 1000)):
        first = program(lambda x: jnp.sum(x, 0), shape).launches[0]
        assert first.cubes >= 100


def test_large_indices_are_divided_as_they_are() -> None:
    for rows, are_small in ((1 << 10, True), (1 << 20, False)):
        text = cuda.emit(program(lambda x: x + x[:, :1], (rows, 8192)).kernels[-1])
        assert ("div_u32" in text) == are_small


def test_quotients_of_bfloat16_by_a_number_of_a_row_are_rounded_right() -> None:
    significands = np.arange(128, 256, dtype=np.float32)
    ends = np.array([0, -0.0, np.inf, -np.inf, np.nan, 2.0**-133, 3e38, -(2.0**-126)], np.float32)
    y = np.concatenate([significands, significands * 2.0**-137, ends]).astype(jnp.bfloat16)
    for x in (significands, significands * 2.0**-130, significands * 2.0**115, ends):
        x = np.broadcast_to(x.astype(jnp.bfloat16), (y.size, x.size)).copy()
        with np.errstate(all="ignore"):
            want = (x.astype(np.float64) / y.astype(np.float64)[:, None]).astype(jnp.bfloat16)
        got = xcube.jit(lambda x, y: x / y[:, None])(x, y)
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32))
