"""Windows that slide over an array, folds of what lies under them by compositions, and the launches
that fold one or two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Primitive, Shape, at_user_line
from xcube.primitives.kinds import Accepts, named
from xcube.primitives.lowered import Expand, Template
from xcube.primitives.view import slice as slice_of
from xcube.trace import aval_of, bind

WIDE = 64  # elements in a row of memory from which on a window along an earlier dimension is rows
MOST_REACH = 1 << 13  # elements of memory, from a window's first column to its last
FEW = 8  # elements of a window's side up to which they are combined one after another


@dataclass(frozen=True)
class Window:
    """A window of an array's rank: along each dimension how many elements it shows, how far it
    moves at a time, how far its elements are apart, and (low, high), how far it may stand out."""

    sizes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape

    @property
    def count(self) -> int:
        """Elements under the window."""
        return math.prod(self.sizes)

    @property
    def spans(self) -> Shape:
        """From the first to the last element of each side, both counted."""
        pairs = zip(self.sizes, self.dilation, strict=True)
        return tuple([(size - 1) * step + 1 if size else 0 for size, step in pairs])

    @property
    def is_still(self) -> tuple[bool, ...]:
        """Along which dimensions the result is the operand."""
        sides = zip(self.sizes, self.strides, self.padding, strict=True)
        return tuple([side == (1, 1, (0, 0)) for side in sides])

    def places(self, shape: Shape) -> Shape:
        """How many places the window takes along each dimension of an array."""
        sides = zip(shape, self.padding, self.spans, self.strides, strict=True)
        return tuple(
            [
                max(0, low + size + high - span + step) // step
                for size, (low, high), span, step in sides
            ]
        )

    def batched(self) -> Window:
        """The window over an array with one more dimension in front."""
        return Window(
            (1, *self.sizes), (1, *self.strides), ((0, 0), *self.padding), (1, *self.dilation)
        )

    def padded(self, padding: tuple[tuple[int, int], ...] | None) -> Window:
        """The window with other paddings; None means none."""
        zeros = ((0, 0),) * len(self.sizes)
        return Window(
            self.sizes, self.strides, zeros if padding is None else padding, self.dilation
        )


def check_window(name: str, x: Aval, window: Window) -> None:
    """Raises ShapeError unless a window can slide over x."""
    fits = all(len(side) == x.ndim for side in vars(window).values())
    if not fits or min((*window.sizes, *window.strides, *window.dilation, 1)) < 1:
        raise ShapeError(
            f"{name}: needs a size, stride and dilation >= 1 and a pair of paddings for each "
            f"dimension of {x}; got window_dimensions={window.sizes}, "
            f"window_strides={window.strides}, padding={window.padding}, "
            f"window_dilation={window.dilation}.{at_user_line()}"
        )


# any operation, by compositions ---------------------------------------------------------------


def fold_windows(xs: Sequence[Any], window: Window, combine: Callable[..., Any]) -> list[Any]:
    """Arrays of one shape folded together under a window that does not stand out, by an associative
    `combine(befores, afters)` of lists of arrays, side by side from the last dimension on."""
    found = list(xs)
    for axis in reversed(range(len(window.sizes))):
        if not window.is_still[axis]:
            found = _fold_side(found, axis, window, combine)
    return found


def _fold_side(xs: list[Any], axis: int, window: Window, combine: Any) -> list[Any]:
    size, step, apart = window.sizes[axis], window.strides[axis], window.dilation[axis]
    places = window.places(xs[0].shape)[axis]
    if size <= FEW:
        found = _moved(xs, axis, 0, places, step)
        for number in range(1, size):
            found = combine(found, _moved(xs, axis, number * apart, places, step))
        return found
    wide = _doubled(xs, axis, size, apart, combine)
    return _moved(wide, axis, 0, places, step)


def _doubled(xs: list[Any], axis: int, size: int, apart: int, combine: Any) -> list[Any]:
    """Folds of `size` elements from each place on, of which halves are shared."""
    length = xs[0].shape[axis]
    if length < (size - 1) * apart + 1:
        return _moved(xs, axis, 0, 0, 1)
    if size == 1:
        return xs
    half = size // 2
    halves = _doubled(xs, axis, half, apart, combine)
    count = length - (2 * half - 1) * apart
    found = combine(_moved(halves, axis, 0, count, 1), _moved(halves, axis, half * apart, count, 1))
    if size % 2 == 0:
        return found
    count -= apart
    last = _moved(xs, axis, 2 * half * apart, count, 1)
    return combine(_moved(found, axis, 0, count, 1), last)


def _moved(xs: Sequence[Any], axis: int, start: int, count: int, step: int) -> list[Any]:
    """`count` elements along an axis of each array, `step` apart."""
    return [_along(x, axis, start, count, step) for x in xs]


def _along(x: Any, axis: int, start: int, count: int, step: int) -> Any:
    starts, limits, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], steps[axis] = start, step
    limits[axis] = start + (count - 1) * step + 1 if count else start
    return slice_of(x, starts, limits, steps)


# a fold's kernel: windows over planes ---------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """A window along one dimension of `length` elements: it shows `size` elements that are `apart`,
    and takes `places` places, `stride` after each other, the first one `low` before the start."""

    length: int
    size: int
    stride: int
    apart: int
    low: int
    places: int

    @property
    def is_still(self) -> bool:
        """Whether each place shows its own element."""
        moves = (self.size, self.stride, self.low) != (1, 1, 0)
        return not moves and self.places == self.length

    @property
    def span(self) -> int:
        """From the first to the last element, both counted."""
        return (self.size - 1) * self.apart + 1


@dataclass(frozen=True)
class Planes:
    """An array seen as (outer, rows, columns, inner), and the window along rows and columns."""

    outer: int
    rows: Side
    columns: Side
    inner: int


def _planes_abstract(
    x: Aval, *, operation: str, planes: Planes, shape: Shape, positions: np.dtype | None
) -> Aval:
    return Aval(shape, positions or x.dtype)


window_planes_p = Primitive("window_planes", _planes_abstract, "zero", lower=Template("window"))
"""A fold ("add", "max", ...) over windows of planes, or with a dtype of `positions` the first place
of the extremum in each window, rows first."""


def moving(window: Window) -> list[int]:
    """The dimensions along which the result is not the operand."""
    return [axis for axis, still in enumerate(window.is_still) if not still]


def are_near(x: Aval, window: Window, axes: Sequence[int]) -> bool:
    """Whether one launch folds these dimensions: nothing lies between them, and a window's elements
    in a row of memory are few."""
    if len(axes) < 2:
        return True
    first, second = axes
    reach = window.spans[second] * math.prod(x.shape[second + 1 :])
    return math.prod(x.shape[first + 1 : second]) == 1 and reach <= MOST_REACH


def fold_planes(x: Any, window: Window, name: str, axes: Sequence[int], dtype: Any = None) -> Any:
    """The fold along one or two dimensions in one launch."""
    shape, places = x.shape, window.places(x.shape)
    sides = _sides(shape, window, places)
    first, last = axes[0], axes[-1]
    outer, inner = math.prod(shape[:first]), math.prod(shape[last + 1 :])
    if len(axes) == 2:
        planes = Planes(outer, sides[first], sides[last], inner)
    elif inner >= WIDE:
        planes = Planes(outer, sides[first], _still(inner), 1)
    else:
        planes = Planes(outer, _still(1), sides[first], inner)
    pairs = enumerate(zip(places, shape, strict=True))
    kept = tuple([n if axis in axes else size for axis, (n, size) in pairs])
    return bind(window_planes_p, x, operation=name, planes=planes, shape=kept, positions=dtype)


def _sides(shape: Shape, window: Window, places: Shape) -> list[Side]:
    lows = [low for low, _ in window.padding]
    parts = (shape, window.sizes, window.strides, window.dilation, lows, places)
    return [Side(*side) for side in zip(*parts, strict=True)]


def _still(size: int) -> Side:
    return Side(size, 1, 1, 1, 0, size)


def _folded(x: Any, *, name: str, window: Window) -> Any:
    """Launches that fold two dimensions each where they can, the last ones first."""
    axes = moving(window)
    while axes:
        taken = axes[-2:] if are_near(aval_of(x), window, axes[-2:]) else axes[-1:]
        x = fold_planes(x, window, name, taken)
        del axes[-len(taken) :]
    return x


def window_fold(
    name: str, scalar: str, accepts: Accepts, jvp: Any, transpose: Any, doc: str
) -> Any:
    """A fold by the scalar operation `scalar` as a primitive's function."""

    def abstract(x: Aval, *, window: Window) -> Aval:
        if not accepts(x.dtype):
            raise DtypeError(f"{name}: does not accept {x}.{at_user_line()}")
        check_window(name, x, window)
        return Aval(window.places(x.shape), x.dtype, x.weak_type)

    def batch(
        mapped: Axis, args: Sequence[Any], batched: Sequence[bool], *, window: Window
    ) -> tuple[Any, bool]:
        return bind(primitive, args[0], window=window.batched()), True

    def expanded(x: Any, *, window: Window) -> Any:
        return _folded(x, name=scalar, window=window)

    primitive = Primitive(name, abstract, jvp, transpose, batch, Expand(expanded))
    return named(primitive, lambda x, window: bind(primitive, x, window=window), doc)
