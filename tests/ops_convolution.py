"""Rows of convolutions over strides, dilations, paddings, groups and orders of dimensions. The
oracle is a loop over the window's places in NumPy, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
from op_table import Row
from ops_contract import sample, wide

from xcube import lax
from xcube.primitives.convolution_pull import Walk, windows_of

Array = np.ndarray[Any, Any]

# input, kernel, strides, padding, parameters; strings or None as dimension numbers
CASES: tuple[tuple[Any, Any, Any, Any, dict[str, Any]], ...] = (
    ((2, 3, 7, 6), (4, 3, 3, 2), (1, 1), ((1, 1), (0, 1)), {}),
    ((2, 3, 7, 6), (4, 3, 3, 2), (2, 3), ((2, 0), (1, 2)), {"rhs_dilation": (2, 1)}),
    ((2, 3, 5, 4), (4, 3, 3, 2), (1, 1), ((2, 1), (0, 1)), {"lhs_dilation": (2, 3)}),
    ((1, 2, 5), (3, 2, 3), (3,), ((1, 2),), {"lhs_dilation": (2,), "rhs_dilation": (2,)}),
    ((1, 2, 5), (3, 2, 3), (2,), ((1, 2),), {"lhs_dilation": (2,), "rhs_dilation": (2,)}),
    ((1, 2, 5), (3, 2, 2), (1,), ((0, 1),), {"lhs_dilation": (11,)}),
    ((2, 2, 8), (3, 2, 3), (1,), ((-1, 2),), {}),
    ((2, 4, 7), (6, 2, 3), (2,), ((1, 1),), {"feature_group_count": 2}),
    ((2, 4, 9), (8, 1, 3), (1,), ((1, 1),), {"feature_group_count": 4}),
    ((2, 8, 9), (6, 4, 11), (1,), ((6, 6),), {"feature_group_count": 2}),
    ((4, 3, 7), (6, 3, 3), (2,), ((1, 1),), {"batch_group_count": 2}),
    ((3, 4, 12), (6, 4, 9), (1,), ((0, 0),), {"batch_group_count": 3}),
    ((3, 5), (4, 5), (), (), {}),
    ((2, 3, 2), (4, 3, 5), (1,), ((0, 0),), {}),
    ((0, 3, 6), (4, 3, 5), (1,), ((0, 0),), {}),
    ((2, 0, 6), (4, 0, 5), (1,), ((0, 0),), {}),
    ((17, 13, 19), (11, 13, 1), (1,), ((0, 0),), {}),
    ((2, 3, 4, 3, 2), (3, 3, 2, 2, 1), (1, 2, 1), ((1, 0), (0, 1), (1, 1)), {}),
)


def convolve(
    x: Array,
    w: Array,
    strides: Any,
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Array:
    """The sum over places of the window, each with all places of the input that it meets."""
    space = x.ndim - 2
    spread, apart = lhs_dilation or (1,) * space, rhs_dilation or (1,) * space
    if batch_group_count > 1:
        xs, ws = np.split(x, batch_group_count), np.split(w, batch_group_count)
        parts = [
            convolve(a, b, strides, padding, spread, apart) for a, b in zip(xs, ws, strict=True)
        ]
        return np.concatenate(parts, 1)
    if feature_group_count > 1:
        xs, ws = np.split(x, feature_group_count, 1), np.split(w, feature_group_count)
        parts = [
            convolve(a, b, strides, padding, spread, apart) for a, b in zip(xs, ws, strict=True)
        ]
        return np.concatenate(parts, 1)
    filled = np.zeros(
        (*x.shape[:2], *[(n - 1) * d + 1 for n, d in zip(x.shape[2:], spread, strict=True)]),
        x.dtype,
    )
    filled[(..., *[slice(None, None, d) for d in spread])] = x
    filled = np.pad(filled, ((0, 0), (0, 0), *[(max(a, 0), max(b, 0)) for a, b in padding]))
    cuts = [
        slice(max(-a, 0), n - max(-b, 0))
        for n, (a, b) in zip(filled.shape[2:], padding, strict=True)
    ]
    filled = filled[(slice(None), slice(None), *cuts)]
    walks = zip(filled.shape[2:], w.shape[2:], apart, strides, strict=True)
    counts = [max(0, (n - (k - 1) * d - 1) // s + 1) for n, k, d, s in walks]
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    for place in itertools.product(*map(range, w.shape[2:])) if 0 not in out.shape else ():
        starts = [p * d for p, d in zip(place, apart, strict=True)]
        ends = [a + (n - 1) * s + 1 for a, n, s in zip(starts, counts, strides, strict=True)]
        part = filled[(..., *[slice(*walk) for walk in zip(starts, ends, strides, strict=True)])]
        out += np.einsum("nc...,oc->no...", part, w[(..., *place)])
    return out


def ordered(left: str, right: str, out: str) -> Row:
    """A convolution of two dimensions with its dimensions in another order."""
    x, w = {"N": 2, "C": 3, "H": 6, "W": 5}, {"O": 4, "I": 3, "H": 3, "W": 2}
    sizes = tuple([x[c] for c in left]), tuple([w[c] for c in right])

    def oracle(a: Array, b: Array) -> Array:
        a = np.transpose(wide(a), [left.index(c) for c in "NCHW"])
        b = np.transpose(wide(b), [right.index(c) for c in "OIHW"])
        return np.transpose(
            convolve(a, b, (1, 2), ((1, 1), (0, 0))), ["NCHW".index(c) for c in out]
        )

    strides, padding = ((1, 2), ((1, 1), (0, 0)))
    if right.index("W") < right.index("H"):
        strides, padding = strides[::-1], padding[::-1]
    return Row(
        f"convolution {left} {right} {out}",
        lambda a, b: lax.conv_general_dilated(
            a, b, strides, padding, dimension_numbers=(left, right, out)
        ),
        [sample(sizes[0], sizes[1], np.float32, np.float32)],
        oracle,
        differentiable=(0, 1),
    )


def typed(dtype: Any, preferred: Any, tolerance: float) -> Row:
    def oracle(x: Array, w: Array) -> Array:
        found = convolve(wide(x), wide(w), (1,), ((1, 1),))
        return found.astype(preferred or dtype) if np.dtype(dtype).kind in "iu" else found

    return Row(
        f"convolution of {np.dtype(dtype)} to {preferred}",
        lambda x, w: lax.conv_general_dilated(
            x, w, (1,), ((1, 1),), preferred_element_type=preferred
        ),
        [sample((2, 5, 9), (3, 5, 3), dtype, dtype)],
        oracle,
        rtol=tolerance,
        differentiable=(0, 1) if np.dtype(dtype).kind == "c" else (),
    )


def windows_row() -> Row:
    def oracle(x: Array) -> Array:
        every = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)[:, ::2]
        return np.swapaxes(every, 2, 3)

    return Row(
        "conv_windows",
        lambda x: windows_of(x, 1, Walk((3,), (3,), (2,), (1,))),
        [lambda rng: (rng.normal(size=(2, 8, 3)).astype(np.float32),)],
        oracle,
        differentiable=(0,),
    )


ROWS = [
    windows_row(),
    *(
        Row(
            f"convolution {x} {w} {strides} {padding} {params}",
            lambda x, w, args=(strides, padding), params=params: lax.conv_general_dilated(
                x, w, *args, **params
            ),
            [sample(x, w, np.float32, np.float32)],
            lambda x, w, args=(strides, padding), params=params: convolve(
                wide(x), wide(w), *args, **params
            ),
            differentiable=(0, 1),
        )
        for x, w, strides, padding, params in CASES
    ),
    ordered("NHWC", "HWIO", "NHWC"),
    ordered("CWNH", "IWOH", "HNCW"),
    Row(
        "convolution CN OI CN",
        lambda x, w: lax.conv_general_dilated(x, w, (), (), dimension_numbers=("CN", "OI", "CN")),
        [sample((3, 5), (4, 3), np.float32, np.float32)],
        lambda x, w: wide(w) @ wide(x),
        differentiable=(0, 1),
    ),
    typed(np.float64, None, 1e-12),
    typed(np.float16, None, 2e-3),
    typed(ml_dtypes.bfloat16, None, 1e-2),
    typed(ml_dtypes.bfloat16, np.float32, 2e-6),
    typed(np.int8, np.int32, 0.0),
    typed(np.int32, None, 0.0),
    typed(np.uint8, None, 0.0),
    typed(np.complex64, None, 2e-6),
]
