"""What is linear under a window that slides over an array: sums, elements picked at positions, and
what windows hold put back to the elements under them.

The transpose of a sum of windows, and of picking, is `window_spread`. It is pulled: an element of
its result adds up what the windows that cover it hold for it, always in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Axis, Linear, Primitive, Shape
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul, rem, sub
from xcube.primitives.gather import scatter_add
from xcube.primitives.kinds import NUMBER, REAL, add
from xcube.primitives.lowered import Element
from xcube.primitives.shape import batch_all, reshape, zeros_of
from xcube.primitives.view import all_of, concatenate, iota, pad
from xcube.primitives.window_reduce_planes import Window, window_fold
from xcube.primitives.windows import ScatterDimensionNumbers
from xcube.trace import bind

MOST_COVERS = 64  # windows over one element that are looked at one by one

# sums -----------------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: Linear, *, window: Window) -> list[Any]:
    return [window_spread(ct, None, window, x.aval.shape)]


reduce_window_sum = window_fold(
    "reduce_window_sum",
    "add",
    lambda dtype: NUMBER(dtype) and REAL(dtype),
    "linear",
    _sum_transpose,
    "The sum under each place of a window: d[*s] -> d[*places].",
)

# picking, and its transpose -------------------------------------------------------------------


def _pick_abstract(x: Aval, positions: Aval, *, window: Window) -> Aval:
    return Aval(window.places(x.shape), x.dtype)


def _pick_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, window: Window
) -> tuple[Any, Any]:
    (x, positions), (dx, _) = primals, tangents
    y = window_pick(x, positions, window)
    return y, None if dx is None else window_pick(dx, positions, window)


def _pick_transpose(ct: Any, x: Linear, positions: Any, *, window: Window) -> list[Any]:
    return [window_spread(ct, positions, window, x.aval.shape), None]


def _pick_batch(
    mapped: Axis, args: Sequence[Any], batched: Sequence[bool], *, window: Window
) -> tuple[Any, bool]:
    x, positions = batch_all(mapped, args, batched)
    return window_pick(x, positions, window.batched()), True


def _pick_element(e: Any, index: Any, *, window: Window) -> Any:
    shape = e.inputs[0].shape
    zero = e.constant(0, e.outputs[0].dtype)
    if 0 in shape:
        return zero
    number = e.cast(e.read(1, index), np.int32)
    inner = e.unravel(e.index(number, 0, window.count - 1), window.sizes)
    at = [
        i * stride + k * apart - low
        for i, k, stride, apart, (low, _) in zip(
            index, inner, window.strides, window.dilation, window.padding, strict=True
        )
    ]
    bounds = [
        (place, 0, size)
        for place, size, padding in zip(at, shape, window.padding, strict=True)
        if padding != (0, 0)
    ]
    value = e.guarded(bounds, lambda: e.read(0, at))
    tests = [e.inside(*bound) for bound in bounds]
    return e.apply("select", all_of(e, tests), value, zero) if tests else value


window_pick_p = Primitive(
    "window_pick", _pick_abstract, _pick_jvp, _pick_transpose, _pick_batch, Element(_pick_element)
)


def window_pick(x: Any, positions: Any, window: Window) -> Any:
    """The element at a position under each place of a window: d[*s], i[*places] -> d[*places]; 0
    where the position lies outside of x."""
    return bind(window_pick_p, x, positions, window=window)


def _spread_abstract(ct: Aval, *positions: Aval, window: Window, shape: Shape) -> Aval:
    return Aval(shape, ct.dtype)


def _spread_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, window: Window, shape: Shape
) -> tuple[Any, Any]:
    _, *positions = primals
    y = bind(window_spread_p, *primals, window=window, shape=shape)
    if tangents[0] is None:
        return y, None
    return y, bind(window_spread_p, tangents[0], *positions, window=window, shape=shape)


def _spread_transpose(
    ct: Any, x: Linear, *positions: Any, window: Window, shape: Shape
) -> list[Any]:
    if not positions:
        return [reduce_window_sum(ct, window)]
    return [window_pick(ct, positions[0], window), None]


def _spread_batch(
    mapped: Axis, args: Sequence[Any], batched: Sequence[bool], *, window: Window, shape: Shape
) -> tuple[Any, bool]:
    front = batch_all(mapped, args, batched)
    wide = (mapped.size, *shape)
    return bind(window_spread_p, *front, window=window.batched(), shape=wide), True


def _spread_element(e: Any, index: Any, *, window: Window, shape: Shape) -> Any:
    """The sum over all windows that cover an element."""
    places, dtype = e.inputs[0].shape, e.outputs[0].dtype
    zero = e.constant(0, dtype)
    if 0 in places:
        return zero
    wide = np.dtype(np.float32) if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    total = None
    for chosen in itertools.product(*_covering(e, index, window, places)):
        value = _share(e, chosen, window)
        value = e.cast(e.apply("select", value[0], value[1], zero), wide)
        total = value if total is None else e.apply("add", total, value)
    return e.cast(total, dtype)


@dataclass(frozen=True, eq=False)
class _Cover:
    """A place of the window along one dimension, and which of its elements covers the index."""

    place: Any
    number: Any
    tests: list[Any]
    bounds: list[Any]


def _covering(e: Any, index: Any, window: Window, places: Shape) -> list[list[_Cover]]:
    sides = zip(
        index, window.sizes, window.strides, window.dilation, window.padding, places, strict=True
    )
    return [_covers(e, *side) for side in sides]


def _covers(
    e: Any, i: Any, size: int, stride: int, apart: int, padding: tuple[int, int], places: int
) -> list[_Cover]:
    p, span, found = i + padding[0], (size - 1) * apart + 1, []
    if stride == 1:
        for number in range(size):
            bound = (p - number * apart, 0, places)
            found.append(_Cover(bound[0], number, [e.inside(*bound)], [bound]))
        return found
    for back in range(-(-span // stride)):
        place, offset = p // stride - back, p % stride + back * stride
        bounds = [(place, 0, places), (offset, 0, span)]
        tests = [e.inside(*bound) for bound in bounds]
        if apart > 1:
            between = e.number(offset % apart, np.int32)
            tests.append(e.apply("eq", between, e.constant(0, np.int32)))
        found.append(_Cover(place, offset // apart, tests, bounds))
    return found


def _share(e: Any, chosen: Sequence[_Cover], window: Window) -> tuple[Any, Any]:
    """Whether the windows at one place count, and what they hold."""
    at = [cover.place for cover in chosen]
    bounds = [bound for cover in chosen for bound in cover.bounds]
    tests = [test for cover in chosen for test in cover.tests]
    value = e.guarded(bounds, lambda: e.read(0, at))
    if len(e.inputs) > 1:
        own = e.ravel([cover.number for cover in chosen], window.sizes)
        position = e.guarded(bounds, lambda: e.read(1, at))
        dtype = e.inputs[1].dtype
        tests.append(e.apply("eq", position, e.number(own, dtype)))
    return all_of(e, tests), value


window_spread_p = Primitive(
    "window_spread",
    _spread_abstract,
    _spread_jvp,
    _spread_transpose,
    _spread_batch,
    Element(_spread_element),
)


def window_spread(ct: Any, positions: Any, window: Window, shape: Shape) -> Any:
    """What is held for the places of a window, added up on the elements under it, or on those at
    `positions` alone: d[*places], i[*places] or None -> d[*shape]."""
    pairs = zip(window.spans, window.strides, strict=True)
    covers = math.prod([-(-span // stride) for span, stride in pairs])
    if positions is None:
        if covers > MOST_COVERS or set(window.strides) == {1}:
            return _spread_by_sums(ct, window, shape)
        return bind(window_spread_p, ct, window=window, shape=shape)
    if covers > MOST_COVERS:
        return _spread_by_scatter(ct, positions, window, shape)
    return bind(window_spread_p, ct, positions, window=window, shape=shape)


def _spread_by_sums(ct: Any, window: Window, shape: Shape) -> Any:
    """The sum of all windows over an element is a sum under a window over them, where they lie as
    far apart as they moved."""
    sides = zip(window.padding, window.spans, window.strides, ct.shape, shape, strict=True)
    config = []
    for (low, _), span, stride, places, size in sides:
        front, length = span - 1 - low, max(0, (places - 1) * stride + 1)
        config.append((front, size + span - 1 - front - length, stride - 1))
    ones = (1,) * len(shape)
    if set(window.strides) == {1} and min(min(low, high) for low, high, _ in config) >= 0:
        padding = tuple([(low, high) for low, high, _ in config])
        return reduce_window_sum(ct, Window(window.sizes, ones, padding, window.dilation))
    still = ((0, 0),) * len(shape)
    return reduce_window_sum(pad(ct, 0, config), Window(window.sizes, ones, still, window.dilation))


def _spread_by_scatter(ct: Any, positions: Any, window: Window, shape: Shape) -> Any:
    """Windows of many elements: each value is added where its position says."""
    rest, at = convert_element_type(positions, np.int32), []
    for axis in reversed(range(len(shape))):
        size, (low, _) = window.sizes[axis], window.padding[axis]
        number, rest = rem(rest, size), div(rest, size)
        start = mul(iota(np.int32, ct.shape, axis), window.strides[axis])
        place = add(start, sub(mul(number, window.dilation[axis]), low))
        at.append(reshape(place, (*ct.shape, 1)))
    dims = tuple(range(len(shape)))
    numbers = ScatterDimensionNumbers((), dims, dims)
    return scatter_add(zeros_of(Aval(shape, ct.dtype)), concatenate(at[::-1], ct.ndim), ct, numbers)
