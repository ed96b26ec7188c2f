"""Folds of all elements under a window that slides over an array, and where the extremum of a
window lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Axis, Primitive, Shape
from xcube.primitives.bits import bitwise_and, bitwise_or, bitwise_xor
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul, rem, sub
from xcube.primitives.elementwise import max as maximum
from xcube.primitives.elementwise import min as minimum
from xcube.primitives.kinds import NUMBER, REAL, WHOLE, Accepts, add
from xcube.primitives.lowered import Expand
from xcube.primitives.reduce import highest, lowest
from xcube.primitives.select import eq, gt, lt, ne, select
from xcube.primitives.shape import broadcast_in_dim, reshape, zeros_of
from xcube.primitives.view import iota, pad
from xcube.primitives.view import slice as slice_of
from xcube.primitives.window_reduce_linear import reduce_window_sum, window_pick
from xcube.primitives.window_reduce_planes import (
    Window,
    are_near,
    check_window,
    fold_planes,
    fold_windows,
    moving,
    window_fold,
)
from xcube.trace import aval_of, bind, literal

Combine = Callable[[Any, Any], Any]

# folds ----------------------------------------------------------------------------------------


def _extremum_jvp(name: str, function: Any) -> Any:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, window: Window) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = function()(x, window)
        if dx is None:
            return y, None
        return y, window_pick(dx, window_position(x, window, name), window)

    return jvp


reduce_window_max = window_fold(
    "reduce_window_max",
    "max",
    lambda dtype: NUMBER(dtype) and REAL(dtype),
    _extremum_jvp("max", lambda: reduce_window_max),
    None,
    "The largest under each place of a window; NaN wins. The first one has the tangent.",
)
reduce_window_min = window_fold(
    "reduce_window_min",
    "min",
    lambda dtype: NUMBER(dtype) and REAL(dtype),
    _extremum_jvp("min", lambda: reduce_window_min),
    None,
    "The least under each place of a window; NaN wins. The first one has the tangent.",
)
_whole: Accepts = lambda dtype: WHOLE(dtype) and NUMBER(dtype)  # noqa: E731
reduce_window_and = window_fold(
    "reduce_window_and", "and", _whole, "zero", None, "The bits that all under a window have."
)
reduce_window_or = window_fold(
    "reduce_window_or", "or", _whole, "zero", None, "The bits that any under a window has."
)
reduce_window_xor = window_fold(
    "reduce_window_xor", "xor", _whole, "zero", None, "The parity of bits under a window."
)

FOLDS: dict[str, tuple[Any, Combine, Callable[[np.dtype], Any]]] = {
    "add": (reduce_window_sum, add, lambda dtype: 0),
    "max": (reduce_window_max, maximum, lowest),
    "min": (reduce_window_min, minimum, highest),
    "and": (
        reduce_window_and,
        bitwise_and,
        lambda dtype: -1 if dtypes.is_signed(dtype) else highest(dtype),
    ),
    "or": (reduce_window_or, bitwise_or, lambda dtype: 0),
    "xor": (reduce_window_xor, bitwise_xor, lambda dtype: 0),
}
"""By the name of a primitive: its fold over windows, itself, and its neutral element."""

# positions ------------------------------------------------------------------------------------


def _position_abstract(x: Aval, *, window: Window, name: str) -> Aval:
    check_window("window_position", x, window)
    return Aval(window.places(x.shape), position_dtype(window))


def position_dtype(window: Window) -> np.dtype:
    """Of the places within a window."""
    return np.dtype(np.uint8 if window.count <= 1 << 8 else np.int32)


def _position_batch(
    mapped: Axis, args: Sequence[Any], batched: Sequence[bool], *, window: Window, name: str
) -> tuple[Any, bool]:
    return window_position(args[0], window.batched(), name), True


def _position_expanded(x: Any, *, window: Window, name: str) -> Any:
    axes = moving(window)
    if not axes:
        return broadcast_in_dim(literal(0, position_dtype(window)), x.shape, ())
    if len(axes) <= 2 and are_near(aval_of(x), window, axes):
        return fold_planes(x, window, name, axes, position_dtype(window))
    return _positions_by_places(x, window, name)


def _positions_by_places(x: Any, window: Window, name: str) -> Any:
    """The place of each extremum in the padded array, as a position in its window."""
    config = [(low, high, 0) for low, high in window.padding]
    wide = pad(x, FOLDS[name][2](x.dtype), config)
    size = math.prod(wide.shape)
    number = np.dtype(np.int64 if size >> 30 else np.int32)
    own = slice_of(
        reshape(iota(number, (size,)), wide.shape),
        [low for low, _, _ in config],
        [low + n for (low, _, _), n in zip(config, x.shape, strict=True)],
    )
    beats = gt if name == "max" else lt

    def first(befores: Any, afters: Any) -> Any:
        (x, i), (y, j) = befores, afters
        better, tie = beats(x, y), eq(x, y)
        if dtypes.is_float(x.dtype):
            better = bitwise_or(better, bitwise_and(ne(x, x), eq(y, y)))
            tie = bitwise_or(tie, bitwise_and(ne(x, x), ne(y, y)))
        ahead = bitwise_or(better, bitwise_and(tie, lt(i, j)))
        return [select(ahead, x, y), select(ahead, i, j)]

    places = pad(own, size, config)
    _, found = fold_windows([wide, places], window.padded(None), first)
    return _as_position(found, wide.shape, window)


def _as_position(places: Any, shape: Shape, window: Window) -> Any:
    """Row-major places in an array as positions in the windows there; 0 behind the array."""
    rest, position, weight = places, zeros_of(aval_of(places)), 1
    for axis in reversed(range(len(shape))):
        at, rest = rem(rest, shape[axis]), div(rest, shape[axis])
        start = mul(iota(places.dtype, places.shape, axis), window.strides[axis])
        step = div(sub(at, start), window.dilation[axis])
        position, weight = add(position, mul(step, weight)), weight * window.sizes[axis]
    found = select(lt(places, math.prod(shape)), position, 0)
    return convert_element_type(found, position_dtype(window))


window_position_p = Primitive(
    "window_position",
    _position_abstract,
    "zero",
    batch=_position_batch,
    lower=Expand(_position_expanded),
)


def window_position(x: Any, window: Window, name: str) -> Any:
    """Where the first extremum ("max" or "min", or NaN) lies under each place of a window,
    row-major within it: d[*s] -> position_dtype[*places]; 0 where nothing lies under it."""
    return bind(window_position_p, x, window=window, name=name)
