"""The windows of an input that a convolution contracts with its kernel, as a view."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xcube.ir import Aval, Axis, Linear, Primitive, Shape
from xcube.primitives.kinds import add
from xcube.primitives.lowered import Element
from xcube.primitives.shape import full, reshape
from xcube.primitives.view import pad, slice
from xcube.trace import bind


def _windows_abstract(
    x: Aval, *, first: int, window: Shape, counts: Shape, strides: Shape, dilation: Shape
) -> Aval:
    lead, rest = x.shape[:first], x.shape[first + len(window) :]
    return Aval((*lead, *counts, *window, *rest), x.dtype, x.weak_type)


def _windows_element(
    e: Any,
    index: Any,
    *,
    first: int,
    window: Shape,
    counts: Shape,
    strides: Shape,
    dilation: Shape,
) -> Any:
    space = len(window)
    starts, places = index[first : first + space], index[first + space : first + 2 * space]
    walks = zip(starts, places, strides, dilation, strict=True)
    at = [start * stride + place * step for start, place, stride, step in walks]
    return e.read(0, [*index[:first], *at, *index[first + 2 * space :]])


def _windows_transpose(
    ct: Any,
    x: Linear,
    *,
    first: int,
    window: Shape,
    counts: Shape,
    strides: Shape,
    dilation: Shape,
) -> list[Any]:
    """Each place of the window gives a strided part of x its cotangent."""
    space, shape = len(window), x.aval.shape
    found = full(shape, 0, ct.dtype)
    for places in itertools.product(*map(range, window)):
        at = [0] * first + [0] * space + list(places) + [0] * (ct.ndim - first - 2 * space)
        ends = list(ct.shape)
        for d, place in enumerate(places):
            ends[first + space + d] = place + 1
        part = slice(ct, at, ends)
        part = reshape(part, (*ct.shape[: first + space], *ct.shape[first + 2 * space :]))
        config = [(0, 0, 0)] * x.aval.ndim
        for d, place in enumerate(places):
            low, reach = place * dilation[d], (counts[d] - 1) * strides[d] + 1
            config[first + d] = (low, shape[first + d] - low - reach, strides[d] - 1)
        found = add(found, pad(part, 0, config))
    return [found]


def _windows_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, first: int, **params: Any
) -> tuple[Any, bool]:
    return bind(conv_windows_p, args[0], first=first + 1, **params), True


conv_windows_p = Primitive(
    "conv_windows",
    abstract=_windows_abstract,
    jvp="linear",
    transpose=_windows_transpose,
    batch=_windows_batch,
    lower=Element(_windows_element, cheap=True),
)


@dataclass(frozen=True)
class Walk:
    """Sizes of the window, of the result, and how far apart windows and places in them lie."""

    window: Shape
    counts: Shape
    strides: Shape
    dilation: Shape


def windows_of(x: Any, first: int, walk: Walk) -> Any:
    """The windows at `counts` places along the dimensions from `first` on:
    d[*a, *space, *b] -> d[*a, *counts, *window, *b]."""
    window, counts = walk.window, walk.counts
    if 0 in (*counts, *window):
        shape = (*x.shape[:first], *counts, *window, *x.shape[first + len(window) :])
        return full(shape, 0, x.dtype)
    if max(window, default=1) == 1:
        ends = [(n - 1) * step + 1 for n, step in zip(counts, walk.strides, strict=True)]
        last = x.shape[first + len(window) :]
        limits, steps = (*x.shape[:first], *ends, *last), (*walk.strides, *(1 for _ in last))
        part = slice(x, (0,) * x.ndim, limits, (*(1,) * first, *steps))
        return reshape(part, (*x.shape[:first], *counts, *window, *last))
    return bind(
        conv_windows_p,
        x,
        first=first,
        window=window,
        counts=counts,
        strides=walk.strides,
        dilation=walk.dilation,
    )
