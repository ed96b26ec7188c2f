"""The kernels of convolutions against the oracle of their rows: edges of tiles, lines and blocks of
channels, maps behind them, derivatives, and processors that are not there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from ops_convolution import convolve as oracle
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.lowering import lower
from xcube.lowering.kernels import convolve
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
    "blocks of channels": ((1, 261, 7, 8), (33, 261, 3, 3), (1, 1), "same", {}),
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
COMPOSED: dict[str, tuple[Any, Any, Any, Any, dict[str, Any]]] = {
    "patches": ((2, 8, 33, 32), (16, 8, 4, 4), (4, 4), ((0, 0), (0, 0)), {}),
    "windows apart": ((2, 3, 31, 29), (16, 3, 2, 3), (5, 4), ((2, 3), (1, 0)), {}),
    "channels apart": ((2, 37, 17, 19), (37, 1, 3, 5), (1, 1), "same", {"feature_group_count": 37}),
    "channels apart, strides": (
        *((3, 16, 27, 28), (16, 1, 5, 3), (2, 3), ((-1, 2), (0, 4))),
        {"feature_group_count": 16, "rhs_dilation": (2, 1)},
    ),
    "channels apart, one dimension": (
        *((3, 130, 200), (130, 1, 4), (1,), ((3, 0),)),
        {"feature_group_count": 130},
    ),
}
BOTH = {**EDGES, **COMPOSED}
CASES = pytest.mark.parametrize("case", EDGES.values(), ids=EDGES)


def normal(*shape: int) -> Any:
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


def channels_last(x: Array, w: Array, params: dict[str, Any]) -> tuple[Any, Any]:
    """Operands and parameters in the order NHWC, HWIO."""
    space = "DHW"[-(x.ndim - 2) :]
    params["dimension_numbers"] = (f"N{space}C", f"{space}IO", f"N{space}C")
    return np.moveaxis(x, 1, -1), np.moveaxis(w, (0, 1), (-1, -2))


def expected(x: Array, w: Array, params: dict[str, Any]) -> Array:
    params = dict(params)
    strides, padding = params.pop("window_strides"), params.pop("padding")
    return oracle(x.astype(np.float64), w.astype(np.float64), strides, padding, **params)


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
        theirs = np.moveaxis(theirs, 1, -1)
        x, w = channels_last(x, w, params)
    function = lambda x, w: lax.conv_general_dilated(x, w, **params)  # noqa: E731
    assert "convolve" in families(function, x, w)
    same(xcube.jit(function)(x, w), theirs)


@pytest.mark.parametrize("case", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("is_last", [False, True])
def test_gradients(case: Any, is_last: bool) -> None:
    """They are linear: <ct, J d> = <J' ct, d> for both operands."""
    x, w, plain = drawn(case)
    ct, params = normal(*expected(x, w, plain).shape), dict(plain)
    args = (x, w, ct)
    if is_last:
        args = (*channels_last(x, w, params), np.moveaxis(ct, 1, -1))
    function = lambda *args: lax.conv_general_dilated(*args, **params)  # noqa: E731
    found = xcube.jit(lambda x, w, ct: xcube.vjp(function, x, w)[1](ct))(*args)
    dx, dw = (np.asarray(part, np.float64) for part in found)
    if is_last:
        dx, dw = np.moveaxis(dx, -1, 1), np.moveaxis(dw, (-1, -2), (0, 1))
    for part, operand in ((dx, x), (dw, w)):
        step = np.random.default_rng(9).normal(size=operand.shape)
        moved = expected(*((step, w) if operand is x else (x, step)), plain) * ct
        scale = np.linalg.norm(part) * np.linalg.norm(step)
        assert abs(moved.sum() - (part * step).sum()) <= 1e-6 * scale


def test_the_kernel_of_each_gradient() -> None:
    def names(case: Any) -> str:
        x, w, params = drawn(case)
        ct = np.moveaxis(normal(*expected(x, w, params).shape), 1, -1)
        x, w = channels_last(x, w, params)
        function = lambda *args: lax.conv_general_dilated(*args, **params)  # noqa: E731
        return families(lambda x, w, ct: xcube.vjp(function, x, w)[1](ct), x, w, ct)

    assert "convolve_swept" in names(EDGES["whole tiles"])
    assert "convolve_apart" in names(COMPOSED["channels apart"])
    assert "convolve_apart" in names(COMPOSED["channels apart, strides"])
    assert "concatenate" not in names(COMPOSED["patches"])  # of phases


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("name", ["ragged places", "few places, more lines"])
def test_other_processors(bits: int, name: str) -> None:
    x, w, params = drawn(EDGES[name])
    if name == "ragged places":
        x, w = x[:1, :, :5], w[:, :, :, :2]
        params["padding"] = ((1, 1), (0, 1))
    jaxpr = make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, **params))(x, w)
    (ours,) = run(jaxpr, [x, w], vector_bits=bits)
    same(ours, expected(x, w, params))


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize(
    ("shapes", "groups", "family"),
    [
        (((2, 9, 8, 5), (3, 2, 5, 21)), 1, "convolve_swept"),
        (((2, 13, 22, 9), (3, 3, 1, 9)), 9, "convolve_apart"),
    ],
)
def test_gradients_of_kernels_on_other_processors(
    shapes: Any, groups: int, family: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolve, "SMALL", 1)
    monkeypatch.setattr(convolve, "STRETCH", 1 << 10)
    x, w = (normal(*shape) for shape in shapes)
    params = {
        "window_strides": (1, 1),
        "padding": "SAME",
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        "feature_group_count": groups,
    }
    function = lambda x, w: lax.conv_general_dilated(x, w, **params)  # noqa: E731
    ct = normal(*shapes[0][:3], shapes[1][3])
    gradient = lambda x, w, ct: xcube.vjp(lambda w: function(x, w), w)[1](ct)  # noqa: E731
    assert family in families(gradient, x, w, ct, vector_bits=bits)
    (ours,) = run(make_jaxpr(gradient)(x, w, ct), [x, w, ct], vector_bits=bits)
    theirs = jax.vjp(lambda w: jax.lax.conv_general_dilated(x, w, **params), w)[1](ct)[0]
    same(ours, theirs)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.float16, jnp.bfloat16])
def test_dtypes(dtype: Any) -> None:
    with xcube.enable_x64(True):
        x, w, params = drawn(EDGES["ragged panels"])
        x, w = ((part * 4).astype(np.int32).astype(dtype) for part in (x, w))
        found = xcube.jit(lambda x, w: lax.conv_general_dilated(x, w, **params))(x, w)
        assert found.dtype == dtype
        theirs = expected(x, w, params)
        same(
            np.asarray(found).astype(np.float64),
            theirs,
            4e-3 if np.dtype(dtype).itemsize < 4 else 0,
        )


def test_a_map_behind_shares_the_kernel() -> None:
    x, w, params = drawn(EDGES["ragged panels"])
    b, more = normal(67), normal(1, 12, 13, 67)
    theirs = np.maximum(np.moveaxis(expected(x, w, params), 1, -1) + b, 0) + more
    params["dimension_numbers"] = ("NCHW", "OIHW", "NHWC")

    def function(x: Any, w: Any, b: Any, more: Any) -> Any:
        return jnp.maximum(lax.conv_general_dilated(x, w, **params) + b, 0) + more

    names = families(function, x, w, b, more)
    assert names.count("convolve") == 1 and names.split()[-1].startswith("convolve")
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
            key
            for key, k in zip(program.keys, program.kernels, strict=True)
            if k.name == "convolve"
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


def test_windows_apart_on_cubes_of_many_units() -> None:
    x, w = normal(2, 3, 4, 3), normal(5, 3, 2, 3)
    params = {"window_strides": (1, 1), "padding": ((1, 0), (2, 1)), "lhs_dilation": (3, 3)}
    jaxpr = make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, **params))(x, w)
    (ours,) = run(jaxpr, [x, w], units=32)
    same(ours, expected(x, w, params))
