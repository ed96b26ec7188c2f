"""Convolutions beside JAX: named paddings, every form at the door, derivatives of derivatives,
sizes that kernels are made for, faults, and the kernels of processors that are not there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from run_program import run

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.errors import DtypeError, ShapeError
from xcube.transforms.jit import make_jaxpr

PADDINGS = ("SAME", "SAME_LOWER", "VALID")


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    scale = np.abs(theirs).max(initial=1.0)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 3), (2, 1))])
def test_named_paddings(padding: str, strides: Any, dilation: Any) -> None:
    x, w = normal(2, 3, 10, 9), normal(4, 3, 3, 4)
    ours = lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation)
    same(ours, jax.lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation))


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2), (0, 1))])
@pytest.mark.parametrize("params", [{}, {"rhs_dilation": (2, 1)}, {"transpose_kernel": True}])
@pytest.mark.parametrize("consistent", [False, True])
def test_conv_transpose(padding: Any, params: Any, consistent: bool) -> None:
    args = normal(2, 5, 4, 3), normal(3, 2, 3, 3), (2, 3), padding
    params = {**params, "use_consistent_padding": consistent}
    same(lax.conv_transpose(*args, **params), jax.lax.conv_transpose(*args, **params))


def test_short_forms() -> None:
    x, w = normal(2, 3, 10), normal(4, 3, 3)
    same(lax.conv(x, w, (2,), "SAME"), jax.lax.conv(x, w, (2,), "SAME"))
    args = x, w, (2,), [(1, 2)], (2,), (3,)
    same(lax.conv_with_general_padding(*args), jax.lax.conv_with_general_padding(*args))


@pytest.mark.parametrize("numbers", [None, ("NHWC", "WHIO", "CNHW")])
def test_patches_and_local(numbers: Any) -> None:
    x = normal(2, 3, 6, 7)
    args = x, (3, 2), (1, 2), "SAME"
    params = {"dimension_numbers": numbers}
    theirs = jax.lax.conv_general_dilated_patches(*args, **params)
    same(lax.conv_general_dilated_patches(*args, **params), theirs)
    _, right, out = lax.conv_dimension_numbers(x.shape, (1, 1, 3, 2), numbers)
    sizes = dict(zip(right, (5, *(theirs.shape[d] for d in out[1:])), strict=True))
    w = normal(*(sizes[d] for d in range(4)))
    args = x, w, (1, 2), "SAME", (3, 2)
    ours = lax.conv_general_dilated_local(*args, **params)
    same(ours, jax.lax.conv_general_dilated_local(*args, **params))


def test_shapes_without_arrays() -> None:
    args = (2, 9, 8, 3), (3, 4, 3, 5), (2, 1), "SAME", ("NHWC", "HWIO", "NCHW")
    for name in ("conv_general_shape_tuple", "conv_transpose_shape_tuple"):
        assert getattr(lax, name)(*args) == tuple(getattr(jax.lax, name)(*args))
    for padding in PADDINGS:
        args = (9, 8, 1), (3, 4, 3), (2, 3, 2), padding
        assert lax.padtype_to_pads(*args) == jax.lax.padtype_to_pads(*args)


@pytest.mark.parametrize(
    ("x", "w", "stride", "groups"),
    [
        ((2, 64, 14, 15), (64, 64, 3, 3), 1, 1),
        ((2, 64, 15, 14), (96, 64, 1, 1), 1, 1),
        ((1, 3, 37, 41), (64, 3, 7, 7), 2, 1),
        ((2, 48, 13, 17), (48, 1, 3, 3), 1, 48),
        ((2, 48, 13, 17), (96, 1, 5, 5), 2, 48),
        ((2, 32, 16, 16), (48, 32, 3, 3), 2, 1),
        ((2, 3, 32, 32), (40, 3, 16, 16), 16, 1),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_sizes_of_networks(x: Any, w: Any, stride: int, groups: int, is_last: bool) -> None:
    pad, args = w[2] // 2 if stride < w[2] else 0, (normal(*x), normal(*w))
    numbers = ("NHWC", "HWIO", "NHWC") if is_last else ("NCHW", "OIHW", "NCHW")
    if is_last:
        args = args[0].transpose(0, 2, 3, 1), args[1].transpose(2, 3, 1, 0)

    def function(library: Any, x: Any, w: Any) -> Any:
        return library.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(pad, pad)] * 2,
            dimension_numbers=numbers,
            feature_group_count=groups,
        )

    theirs, back = jax.vjp(lambda *args: function(jax.lax, *args), *args)
    ct = normal(*theirs.shape)
    ours = xcube.jit(lambda *args: function(lax, *args))(*args)
    same(ours, theirs)
    gradients = xcube.jit(lambda x, w, ct: xcube.vjp(lambda *a: function(lax, *a), x, w)[1](ct))
    for mine, their in zip(gradients(*map(jnp.asarray, (*args, ct))), back(ct), strict=True):
        same(mine, their, 1e-4)


def test_a_bias_and_relu_behind() -> None:
    x, w, b = normal(2, 8, 9, 9), normal(16, 8, 3, 3), normal(16)

    def function(top: Any, numpy: Any) -> Any:
        found = top.lax.conv(x, w, (1, 1), "SAME")
        return numpy.maximum(found + numpy.asarray(b)[:, None, None], 0)

    same(xcube.jit(lambda: function(xcube, jnp))(), function(jax, jax.numpy))


@pytest.mark.parametrize(
    ("w", "params"),
    [
        ((4, 3, 3, 3), {}),
        ((6, 1, 3, 3), {"feature_group_count": 3}),
        ((4, 3, 2, 3), {"lhs_dilation": (2, 1)}),
    ],
)
def test_cubes_of_many_units(w: Any, params: Any) -> None:
    x, w = normal(2, 3, 5, 6), normal(*w)
    strides, padding = (1, 1), ((1, 1), (0, 2))
    jaxpr = make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **params))(
        x, w
    )
    (ours,) = run(jaxpr, [x, w], units=32)
    same(ours, jax.lax.conv_general_dilated(x, w, strides, padding, **params))


# faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "params", "words"),
    [
        ((2, 3, 5), (4, 3), {}, "same number of dimensions"),
        ((2, 3, 5), (4, 2, 3), {}, "input features of one group"),
        ((2, 3, 5), (4, 3, 3), {"feature_group_count": 2}, "must divide the input's features"),
        ((2, 4, 5), (3, 2, 3), {"feature_group_count": 2}, "divide the output features"),
        ((3, 4, 5), (4, 4, 3), {"batch_group_count": 2}, "divide the batch"),
        ((2, 3, 5), (4, 3, 3), {"window_strides": (1, 1)}, "one per dimension of space"),
        ((2, 3, 5), (4, 3, 3), {"window_strides": (0,)}, "must be positive"),
        ((2, 3, 5), (4, 3, 3), {"padding": "FULL"}, "must be 'SAME'"),
        ((2, 3, 5), (4, 3, 3), {"padding": [(-3, -3)]}, "cut off more than there is"),
        ((2, 3, 5), (4, 3, 3), {"lhs_dilation": (2,)}, "Give .low, high. pairs"),
        ((2, 3, 5), (4, 3, 3), {"dimension_numbers": ("NCW", "OIW", "NCX")}, "same dimensions"),
        ((2, 3, 5), (4, 3, 3), {"dimension_numbers": ("NCW", "OOW", "NCW")}, "each letter once"),
    ],
)
def test_what_does_not_fit_is_told(x: Any, w: Any, params: Any, words: str) -> None:
    params = {"window_strides": (1,), "padding": "SAME", **params}
    with pytest.raises(ShapeError, match=words):
        lax.conv_general_dilated(normal(*x), normal(*w), **params)


def test_operands_must_have_one_dtype() -> None:
    x, w = normal(2, 3, 5), normal(4, 3, 3).astype(np.float16)
    with pytest.raises(DtypeError, match="one dtype"):
        lax.conv(x, w, (1,), "SAME")
