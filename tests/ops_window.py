"""Rows of folds under windows that slide over arrays, of positions in them, and of what is picked
there or put back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from op_table import Row, Sample

from xcube.primitives import window_reduce as folds
from xcube.primitives.window_reduce_linear import reduce_window_sum, window_pick, window_spread
from xcube.primitives.window_reduce_planes import Planes, Side, Window, window_planes_p
from xcube.trace import bind

Array = np.ndarray[Any, Any]

WINDOWS = {
    (5, 6): Window((3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1)),
    (2, 7, 3): Window((1, 3, 1), (1, 2, 1), ((0, 0), (1, 2), (0, 0)), (1, 2, 1)),
    (4, 3, 5): Window((2, 1, 2), (1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
}
PLACES = {shape: window.places(shape) for shape, window in WINDOWS.items()}
BY_PLACES = {places: shape for shape, places in PLACES.items()}


def seen(window: Window, shape: tuple[int, ...]) -> Iterator[tuple[Any, int, Any]]:
    """Place, position and index of every element under the window at each place."""
    for place in np.ndindex(*window.places(shape)):
        for position, number in enumerate(itertools.product(*map(range, window.sizes))):
            sides = zip(place, number, window.strides, window.dilation, window.padding, strict=True)
            index = tuple([o * s + k * d - low for o, k, s, d, (low, _) in sides])
            if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
                yield place, position, index


def folded(combine: Any, neutral: Any) -> Callable[[Array], Array]:
    def oracle(x: Array) -> Array:
        window = WINDOWS[x.shape]
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        out = np.full(window.places(x.shape), neutral, wide.dtype)
        for place, _, index in seen(window, x.shape):
            out[place] = combine(out[place], wide[index])
        return out

    return oracle


def position(x: Array) -> Array:
    window = WINDOWS[x.shape]
    out = np.zeros(window.places(x.shape), np.uint8)
    best = np.full(out.shape, -np.inf)
    for place, number, index in seen(window, x.shape):
        if x[index] > best[place]:
            best[place], out[place] = x[index], number
    return out


def picked(x: Array, positions: Array) -> Array:
    out = np.zeros(positions.shape)
    for place, number, index in seen(WINDOWS[x.shape], x.shape):
        if positions[place] == number:
            out[place] = x[index]
    return out


def spread(ct: Array, positions: Array | None = None) -> Array:
    shape = BY_PLACES[ct.shape]
    out = np.zeros(shape)
    for place, number, index in seen(WINDOWS[shape], shape):
        if positions is None or positions[place] == number:
            out[index] += ct[place]
    return out


def normal(shape: tuple[int, ...]) -> Sample:
    return lambda generator: (generator.normal(size=shape).astype(np.float32),)


def whole(shape: tuple[int, ...]) -> Sample:
    return lambda generator: (generator.integers(-100, 100, shape).astype(np.int32),)


def positioned(shape: tuple[int, ...], by_places: bool) -> Sample:
    def sample(generator: np.random.Generator) -> tuple[Array, Array]:
        window = WINDOWS[shape]
        size = PLACES[shape] if by_places else shape
        positions = generator.integers(0, window.count, PLACES[shape]).astype(np.uint8)
        return generator.normal(size=size).astype(np.float32), positions

    return sample


def _by_shape(function: Any, x: Any, *args: Any) -> Any:
    return function(x, *args, WINDOWS[x.shape])


def _spread(ct: Any, positions: Any = None) -> Any:
    shape = BY_PLACES[ct.shape]
    return window_spread(ct, positions, WINDOWS[shape], shape)


def _planes(x: Any) -> Any:
    planes = Planes(2, Side(7, 2, 2, 1, 1, 4), Side(3, 3, 1, 1, 1, 3), 1)
    params = {"operation": "add", "planes": planes, "shape": (2, 4, 3), "positions": None}
    return bind(window_planes_p, x, **params)


def _planes_summed(x: Array) -> Array:
    wide = np.pad(x.astype(float), ((0, 0), (1, 0), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(wide, (2, 3), (1, 2))
    return views[:, ::2].sum((-2, -1))


ALL = [normal(shape) for shape in WINDOWS]

ROWS = [
    Row(
        "reduce_window_sum",
        functools.partial(_by_shape, reduce_window_sum),
        ALL,
        folded(np.add, 0),
        differentiable=(0,),
    ),
    Row(
        "reduce_window_max",
        functools.partial(_by_shape, folds.reduce_window_max),
        ALL,
        folded(np.maximum, -np.inf),
        differentiable=(0,),
    ),
    Row(
        "reduce_window_min",
        functools.partial(_by_shape, folds.reduce_window_min),
        ALL,
        folded(np.minimum, np.inf),
        differentiable=(0,),
    ),
    *(
        Row(
            f"reduce_window_{name}",
            functools.partial(_by_shape, getattr(folds, f"reduce_window_{name}")),
            [whole(shape) for shape in WINDOWS],
            folded(getattr(np, f"bitwise_{name}"), neutral),
        )
        for name, neutral in (("and", -1), ("or", 0), ("xor", 0))
    ),
    Row(
        "window_position",
        lambda x: folds.window_position(x, WINDOWS[x.shape], "max"),
        ALL,
        position,
    ),
    Row(
        "window_pick",
        functools.partial(_by_shape, window_pick),
        [positioned(shape, False) for shape in WINDOWS],
        picked,
        differentiable=(0,),
    ),
    Row(
        "window_spread",
        _spread,
        [positioned(shape, True) for shape in WINDOWS] + [normal(n) for n in PLACES.values()],
        spread,
        differentiable=(0,),
    ),
    Row("window_planes", _planes, [normal((2, 7, 3))], _planes_summed, batchable=False),
]
