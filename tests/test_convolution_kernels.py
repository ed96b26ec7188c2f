"""The kernels of convolutions against the oracle of their rows: edges of tiles, lines and blocks of
channels, maps behind them, derivatives, and processors that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops_convolution import convolve
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.lowering import lower
from xcube.transforms.jit import make_jaxpr

Array = np.ndarray[Any, Any]

# input, kernel, strides, padding, parameters, in the order NCHW, OIHW
EDGES: dict[str, tuple[Any, Any, Any, Any, dict[str, Any]]] = {
    "whole tiles": ((2, 16, 28, 28), (32, 16, 3, 3), (1, 1), "same", {}),
    "ragged places": ((2, 3, 9, 31), (32, 3, 3, 3), (1, 1), "same", {}),
    "few places, more lines": ((3, 5, 7, 3), (48, 5, 3, 3), (1, 1), "same", {}),
    "one place": ((7, 16, 5, 1), (40, 16, 3, 3), (1, 1), "same", {}),
    "one line": ((1, 8, 3, 40), (64, 8, 3, 3), (1, 1), ((0, 0), (1, 1)), {}),
    "few outputs": ((2, 8, 17, 16), (5, 8, 3, 3), (1, 1), "same", {}),
    "ragged panels": ((1, 7, 12, 13), (67, 7, 3, 3), (1, 1), "same", {}),
    "blocks of channels": ((1, 131, 7, 8), (33, 131, 3, 3), (1, 1), "same", {}),
    "one channel": ((2, 1, 20, 20), (8, 1, 5, 5), (1, 1), "same", {}),
    "strides": ((2, 3, 30, 29), (64, 3, 7, 7), (2, 2), "same", {}),
    "strides that differ": ((2, 8, 11, 19), (12, 8, 3, 5), (1, 3), "same", {}),
    "dilation": ((2, 8, 19, 18), (12, 8, 3, 3), (1, 2), "same", {"rhs_dilation": (2, 3)}),
    "crops": ((2, 8, 12, 11), (12, 8, 3, 3), (1, 1), ((-1, 2), (3, -2)), {}),
    "gaps": ((2, 8, 17, 20), (12, 8, 3, 3), (1, 1), ((1, 2), (2, 1)), {"lhs_dilation": (2, 2)}),
    "groups": ((2, 12, 14, 15), (27, 4, 3, 3), (1, 1), "same", {"feature_group_count": 3}),
    "one dimension": ((3, 8, 101), (24, 8, 5), (2,), "same", {}),
    "three dimensions": ((2, 6, 5, 6, 7), (16, 6, 3, 2, 3), (2, 1, 1), "same", {}),
}
CASES = pytest.mark.parametrize("case", EDGES.values(), ids=EDGES)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def pairs(w: tuple[int, ...], padding: Any, dilation: Any) -> Any:
    """Half of the window on both sides."""
    if padding != "same":
        return padding
    spans = [(size - 1) * step for size, step in zip(w[2:], dilation, strict=True)]
    return tuple([(span // 2, span - span // 2) for span in spans])


def drawn(case: Any) -> tuple[Array, Array, dict[str, Any]]:
    x, w, strides, padding, more = case
    padding = pairs(w, padding, more.get("rhs_dilation", (1,) * (len(w) - 2)))
    return normal(*x), normal(*w), {"window_strides": strides, "padding": padding, **more}


def expected(x: Array, w: Array, params: dict[str, Any]) -> Array:
    params = dict(params)
    strides, padding = params.pop("window_strides"), params.pop("padding")
    return convolve(x.astype(np.float64), w.astype(np.float64), strides, padding, **params)


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def families(function: Any, *args: Any, **facts: Any) -> str:
    """The names of a program's kernels."""
    program = lower(make_jaxpr(function)(*args), Pretended(**facts))  # type: ignore[arg-type]
    return " ".join(kernel.name for kernel in program.kernels)


@CASES
@pytest.mark.parametrize("is_last", [False, True])
def test_values(case: Any, is_last: bool) -> None:
    x, w, params = drawn(case)
    theirs = expected(x, w, params)
    if is_last:
        space = "DHW"[-(x.ndim - 2) :]
        params["dimension_numbers"] = (f"N{space}C", f"{space}IO", f"N{space}C")
        x, theirs = np.moveaxis(x, 1, -1), np.moveaxis(theirs, 1, -1)
        w = np.moveaxis(w, (0, 1), (-1, -2))
    function = lambda x, w: lax.conv_general_dilated(x, w, **params)  # noqa: E731
    assert "convolve" in families(function, x, w)
    same(xcube.jit(function)(x, w), theirs)


@CASES
def test_gradients(case: Any) -> None:
    """They are linear: <ct, J d> = <J' ct, d> for both operands."""
    x, w, params = drawn(case)
    ct = normal(*expected(x, w, params).shape)
    pull = xcube.jit(
        lambda x, w, ct: xcube.vjp(
            lambda *args: lax.conv_general_dilated(*args, **params), x, w
        )[1](ct)
    )
    dx, dw = (np.asarray(part, np.float64) for part in pull(x, w, ct))
    for found, operand, place in ((dx, x, 0), (dw, w, 1)):
        step = np.random.default_rng(9).normal(size=operand.shape)
        args = (step, w) if place == 0 else (x, step)
        moved = expected(*args, params) * ct
        scale = np.linalg.norm(found) * np.linalg.norm(step)
        assert abs(moved.sum() - (found * step).sum()) <= 1e-6 * scale


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("name", ["ragged places", "few places, more lines", "gaps", "groups"])
def test_other_processors(bits: int, name: str) -> None:
    x, w, params = drawn(EDGES[name])
    if name == "ragged places":
        x, w = x[:1, :, :5], w[:, :, :, :2]
        params["padding"] = ((1, 1), (0, 1))
    jaxpr = make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, **params))(x, w)
    (ours,) = run(jaxpr, [x, w], vector_bits=bits)
    same(ours, expected(x, w, params))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.float16, jnp.bfloat16])
def test_dtypes(dtype: Any) -> None:
    with xcube.enable_x64(True):
        x, w, params = drawn(EDGES["ragged panels"])
        x, w = ((part * 4).astype(np.int32).astype(dtype) for part in (x, w))
        found = xcube.jit(lambda x, w: lax.conv_general_dilated(x, w, **params))(x, w)
        assert found.dtype == dtype
        theirs = expected(x, w, params)
        same(np.asarray(found).astype(np.float64), theirs, 4e-3 if np.dtype(dtype).itemsize < 4 else 0)


def test_a_map_behind_shares_the_kernel() -> None:
    x, w, params = drawn(EDGES["ragged panels"])
    b, more = normal(67), normal(1, 12, 13, 67)
    params["dimension_numbers"] = ("NCHW", "OIHW", "NHWC")

    def function(x: Any, w: Any, b: Any, more: Any) -> Any:
        return jnp.maximum(lax.conv_general_dilated(x, w, **params) + b, 0) + more

    names = families(function, x, w, b, more)
    assert names.count("convolve") == 1 and names.split()[-1].startswith("convolve")
    params.pop("dimension_numbers"), params.update()
    theirs = np.maximum(np.moveaxis(expected(x, w, params), 1, -1) + b, 0) + more
    params["dimension_numbers"] = ("NCHW", "OIHW", "NHWC")
    same(xcube.jit(function)(x, w, b, more), theirs)


def test_a_map_behind_that_cuts_the_outputs() -> None:
    x, w, params = drawn(EDGES["whole tiles"])
    numbers = ("NCHW", "OIHW", "NHWC")

    def function(x: Any, w: Any) -> Any:
        found = lax.conv_general_dilated(x, w, **params, dimension_numbers=numbers)
        return found, jnp.tanh(found + jnp.tile(jnp.arange(4.0), 8))

    theirs = np.moveaxis(expected(x, w, params), 1, -1)
    plain, bent = xcube.jit(function)(x, w)
    same(plain, theirs)
    same(bent, np.tanh(theirs + np.tile(np.arange(4.0), 8)))


def test_one_kernel_serves_all_sizes_of_images() -> None:
    def kernel(size: int, batch: int, outputs: int) -> Any:
        params = {"window_strides": (1, 1), "padding": "SAME"}
        args = normal(batch, 8, size, 28), normal(outputs, 8, 3, 3)
        jaxpr = make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, **params))(*args)
        program = lower(jaxpr, Pretended())  # type: ignore[arg-type]
        return [
            key for key, k in zip(program.keys, program.kernels, strict=True) if k.name == "convolve"
        ]

    assert kernel(28, 2, 32) == kernel(19, 5, 64)


def test_what_is_small_or_does_not_overlap_is_a_composition() -> None:
    for x, w, strides in (
        ((1, 2, 4, 4), (8, 2, 3, 3), (1, 1)),
        ((2, 8, 32, 32), (16, 8, 4, 4), (4, 4)),
        ((2, 8, 32, 32), (16, 8, 1, 1), (1, 1)),
    ):
        function = lambda x, w, s=strides: lax.conv(x, w, s, "VALID")  # noqa: E731
        assert "convolve" not in families(function, normal(*x), normal(*w))
