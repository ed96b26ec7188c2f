"""Arrays made longer or shorter: repeat, pad, insert, delete, resize, trim_zeros."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy import reductions, statistics
from xcube.numpy.creation import linspace
from xcube.numpy.functional import apply_along_axis
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    as_array,
    canonical_axis,
    canonical_shape,
    cast,
    concrete,
    scalar,
    stretch,
    typed_operand,
)
from xcube.numpy.shaping import atleast_1d, broadcast_to, ravel, view_of
from xcube.numpy.sorting import searchsorted
from xcube.numpy.taking import take
from xcube.primitives import shape as primitive
from xcube.primitives import view

# --- Repetition ----------------------------------------------------------------------------------


@fused()
def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Array:
    """Each element along an axis repeated so many times; flattened if the axis is None.

    `total_repeat_length` states the length of the result where `repeats` is traced.

    >>> import xcube.numpy as jnp
    >>> repeat(jnp.arange(2), 2)
    Array([0, 0, 1, 1], dtype=int32)
    """
    x = array_operand("repeat", a)
    if axis is None:
        x, axis = ravel(x), 0
    k = canonical_axis("repeat", axis, max(x.ndim, 1), x.aval)
    x = atleast_1d(x)
    if isinstance(repeats, int | np.integer) and total_repeat_length is None:
        return _repeated(x, int(repeats), k)
    return _repeated_each(x, repeats, k, total_repeat_length)


def _repeated(x: Array, count: int, axis: int) -> Array:
    rank = x.ndim
    spread = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
    kept = tuple(k for k in range(rank + 1) if k != axis + 1)
    target = tuple(n * count if k == axis else n for k, n in enumerate(x.shape))
    return primitive.reshape(primitive.broadcast_in_dim(x, spread, kept), target)


def _repeated_each(x: Array, repeats: Any, axis: int, total: int | None) -> Array:
    length = x.shape[axis]
    if total is None:
        counts = np.broadcast_to(concrete("repeat", repeats, "repeats"), (length,))
        return take(x, np.repeat(np.arange(length), counts), axis)
    ends = reductions.cumsum(stretch(atleast_1d(array_operand("repeat", repeats, 1)), (length,)))
    place = view.iota(np.dtype(np.int32), (total,), 0)
    return take(x, searchsorted(ends, place, side="right"), axis, mode="clip")


# --- Padding -------------------------------------------------------------------------------------


@fused()
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """Elements added at both ends of each axis, by NumPy's modes or a function.

    Raises ValueError for an unknown mode or negative widths.

    >>> import xcube.numpy as jnp
    >>> pad(jnp.ones(1), 1)
    Array([0., 1., 0.], dtype=float32)
    """
    x = array_operand("pad", array)
    widths = _widths(x, pad_width)
    if callable(mode):
        return _padded_by(x, widths, mode, kwargs)
    if mode not in _PAD_MODES:
        raise ValueError(
            f"pad: mode must be one of {', '.join(_PAD_MODES)}; got {mode!r}.{at_user_line()}"
        )
    allowed = _PAD_MODES[mode]
    if unknown := set(kwargs) - allowed:
        raise ValueError(
            f"pad: mode {mode!r} takes {', '.join(sorted(allowed)) or 'no option'}; got "
            f"{', '.join(sorted(unknown))}.{at_user_line()}"
        )
    for axis, width in enumerate(widths):
        if width != (0, 0):
            x = _pad_axis(x, axis, width, mode, kwargs)
    return x


_PAD_MODES: dict[str, set[str]] = {
    "constant": {"constant_values"},
    "edge": set(),
    "empty": set(),
    "linear_ramp": {"end_values"},
    "maximum": {"stat_length"},
    "mean": {"stat_length"},
    "median": {"stat_length"},
    "minimum": {"stat_length"},
    "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"},
    "wrap": set(),
}


def _widths(x: Array, pad_width: Any) -> list[tuple[int, int]]:
    if isinstance(pad_width, dict):
        by_axis = {canonical_axis("pad", k, x.ndim, x.aval): w for k, w in pad_width.items()}
        pad_width = [by_axis.get(k, 0) for k in range(x.ndim)]
        pad_width = [(w, w) if isinstance(w, int) else tuple(w) for w in pad_width]
    try:
        pairs = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2)).tolist()
    except ValueError as error:
        raise ShapeError(
            f"pad: pad_width must fit ({x.ndim}, 2) for {x.aval}; got {pad_width}.{at_user_line()}"
        ) from error
    widths = [(operator.index(low), operator.index(high)) for low, high in pairs]
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: widths must not be negative; got {pad_width}.{at_user_line()}")
    return widths


def _per_axis(name: str, value: Any, ndim_: int, axis: int) -> tuple[Any, Any]:
    """The pair (before, after) of an option that may be a scalar, a pair, or a pair per axis."""
    if isinstance(value, Array):
        x = broadcast_to(value, (ndim_, 2))
        return x[axis, 0], x[axis, 1]  # type: ignore[index]
    rows = value if isinstance(value, tuple | list | np.ndarray) else (value,)
    if len(rows) == ndim_ and any(isinstance(r, tuple | list | np.ndarray) for r in rows):
        row = rows[axis]
    else:
        row = rows[0] if isinstance(rows[0], tuple | list | np.ndarray) else rows
    pair = tuple(row) if isinstance(row, tuple | list | np.ndarray) else (row,)
    return (pair[0], pair[-1])


def _pad_axis(x: Array, axis: int, width: tuple[int, int], mode: str, options: Any) -> Array:
    if mode in ("constant", "empty"):
        return _pad_constant(x, axis, width, options.get("constant_values", 0))
    if x.shape[axis] == 0:
        raise ValueError(
            f"pad: mode {mode!r} cannot extend the empty axis {axis} of {x.aval}.{at_user_line()}"
        )
    if mode == "edge":
        ends = [view_of(x, axis, 0, 1), view_of(x, axis, x.shape[axis] - 1, x.shape[axis])]
        return _surround(
            x, axis, [_repeated(end, w, axis) for end, w in zip(ends, width, strict=True)]
        )
    if mode == "wrap":
        return _pad_by_index(x, axis, width, x.shape[axis])
    if mode in ("reflect", "symmetric"):
        return _pad_mirror(x, axis, width, mode, options.get("reflect_type", "even"))
    if mode == "linear_ramp":
        return _pad_ramp(x, axis, width, options.get("end_values", 0))
    return _pad_statistic(x, axis, width, mode, options.get("stat_length"))


def _surround(x: Array, axis: int, parts: Sequence[Array]) -> Array:
    before, after = (cast(part, x.dtype) for part in parts)
    return view.concatenate([p for p in (before, x, after) if p.shape[axis]], axis)


def _pad_constant(x: Array, axis: int, width: tuple[int, int], value: Any) -> Array:
    low, high = _per_axis("constant_values", value, x.ndim, axis)
    sides = [(low, (width[0], 0)), (high, (0, width[1]))]
    if low is high or (isinstance(low, int | float) and low == high):
        sides = [(low, width)]
    for fill, (before, after) in sides:
        if before or after:
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (before, after, 0)
            x = view.pad(x, typed_operand("pad", fill, x.dtype), config)
    return x


def _pad_by_index(x: Array, axis: int, width: tuple[int, int], period: int) -> Array:
    places = np.arange(-width[0], x.shape[axis] + width[1]) % period
    return _at_places(x, axis, np.where(places < x.shape[axis], places, 0))


def _at_places(x: Array, axis: int, places: np.ndarray) -> Array:
    """Slices at static places along an axis: runs of neighbours become slices, joined."""
    steps = np.diff(places)
    cuts = [0, *(np.nonzero(np.abs(steps) != 1)[0] + 1).tolist(), len(places)]
    parts = []
    for low, high in itertools.pairwise(cuts):
        parts += _runs(x, axis, places[low:high].tolist())
    return parts[0] if len(parts) == 1 else view.concatenate(parts, axis)


def _runs(x: Array, axis: int, places: list[int]) -> list[Array]:
    parts: list[Array] = []
    while places:
        step = places[1] - places[0] if len(places) > 1 else 1
        end = next(
            (k for k in range(1, len(places)) if places[k] - places[k - 1] != step), len(places)
        )
        run, places = places[:end], places[end:]
        part = view_of(x, axis, min(run), max(run) + 1)
        parts.append(part if step == 1 else view.rev(part, (axis,)))
    return parts


def _pad_mirror(x: Array, axis: int, width: tuple[int, int], mode: str, kind: str) -> Array:
    length = x.shape[axis]
    if mode == "reflect" and length == 1:
        return _pad_axis(x, axis, width, "edge", {})
    period = 2 * length - (2 if mode == "reflect" else 0)
    offset = np.arange(-width[0], length + width[1])
    places = offset % period
    mirrored = np.where(places < length, places, period - places - (0 if mode == "reflect" else 1))
    result = _at_places(x, axis, mirrored)
    if kind == "even":
        return result
    if kind != "odd":
        raise ValueError(
            f"pad: reflect_type must be 'even' or 'odd'; got {kind!r}.{at_user_line()}"
        )
    return _odd(x, axis, result, offset, mode)


def _odd(x: Array, axis: int, mirrored: Array, offset: np.ndarray, mode: str) -> Array:
    """The odd extension is a point reflection at each end. Two of them are a translation by two
    spans that adds twice the rise; so fold m adds m times the rise to the mirror image, or, if m is
    odd, m + 1 times to its reflection in the first value."""
    length = x.shape[axis]
    fold = np.floor_divide(offset, length - 1 if mode == "reflect" else length)
    fold[(offset >= 0) & (offset < length)] = 0
    shape = tuple(len(offset) if k == axis else 1 for k in range(x.ndim))
    sign = np.where(fold % 2 == 0, 1, -1).astype(x.dtype).reshape(shape)
    rises = (fold + fold % 2).astype(x.dtype).reshape(shape)
    first, last = view_of(x, axis, 0, 1), view_of(x, axis, length - 1, length)
    moved = sign * mirrored + (1 - sign) * first + rises * (last - first)  # type: ignore[operator]
    return cast(moved, x.dtype)


def _pad_ramp(x: Array, axis: int, width: tuple[int, int], end_values: Any) -> Array:
    low, high = _per_axis("end_values", end_values, x.ndim, axis)
    first = view_of(x, axis, 0, 1)
    last = view_of(x, axis, x.shape[axis] - 1, x.shape[axis])
    parts = []
    for end, value, count in ((first, low, width[0]), (last, high, width[1])):
        flat = view.squeeze(end, (axis,))
        target = stretch(as_array(typed_operand("pad", value, x.dtype)), flat.shape)
        ramp = linspace(target, flat, count, endpoint=False, dtype=x.dtype, axis=axis)
        parts.append(ramp if end is first else view.rev(ramp, (axis,)))
    return _surround(x, axis, parts)


def _pad_statistic(x: Array, axis: int, width: tuple[int, int], mode: str, length: Any) -> Array:
    function = {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": reductions.mean,
        "median": statistics.median,
    }[mode]
    n = x.shape[axis]
    low, high = (n, n) if length is None else _per_axis("stat_length", length, x.ndim, axis)
    if min(low, high) < 1:
        raise ValueError(f"pad: stat_length must be positive; got {length}.{at_user_line()}")
    ends = (view_of(x, axis, 0, min(low, n)), view_of(x, axis, n - min(high, n), n))
    parts = []
    for end, count in zip(ends, width, strict=True):
        value = function(end, axis, keepdims=True)
        if dtypes.is_integer(x.dtype) and dtypes.is_inexact(value.dtype):
            value = e.rint(value)
        parts.append(_repeated(cast(value, x.dtype), count, axis))
    return _surround(x, axis, parts)


def _padded_by(
    x: Array, widths: Sequence[tuple[int, int]], function: Callable[..., Any], options: Any
) -> Array:
    config = [(low, high, 0) for low, high in widths]
    x = view.pad(x, scalar(0, x.dtype), config)
    for axis, width in enumerate(widths):
        x = apply_along_axis(function, axis, x, width, axis, options)
    return x


# --- Elements added and taken away ---------------------------------------------------------------


def resize(a: Any, new_shape: Any) -> Array:
    """The elements in row-major order, repeated or cut to fill another shape."""
    flat, sizes = ravel(a), canonical_shape("resize", new_shape)
    count = int(np.prod(sizes, dtype=np.int64))
    if flat.size == 0 or count == 0:
        return primitive.full(sizes, scalar(0, flat.dtype))
    copies = -(-count // flat.size)
    whole = flat if copies == 1 else _tiled(flat, copies)
    return primitive.reshape(view_of(whole, 0, 0, count), sizes)


def _tiled(flat: Array, copies: int) -> Array:
    rows = primitive.broadcast_in_dim(flat, (copies, flat.size), (1,))
    return primitive.reshape(rows, (copies * flat.size,))


def _places(name: str, obj: Any, length: int) -> np.ndarray:
    """Static places named by an int, a slice, a mask or a sequence of ints."""
    if isinstance(obj, slice):
        return np.arange(length)[obj]
    places = concrete(name, obj, "the places")
    if places.dtype == bool:
        return np.nonzero(places)[0]
    if np.any((places < -length) | (places > length)):
        raise IndexError(
            f"{name}: places must lie in {-length}..{length}; got {places}.{at_user_line()}"
        )
    return np.where(places < 0, places + length, places).astype(np.int64)


def delete(
    arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Array:
    """The array without some slices along an axis; flattened if it is None.

    Raises IndexError if a place is outside of the axis.
    """
    x = array_operand("delete", arr)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    k = canonical_axis("delete", axis, x.ndim, x.aval)
    gone = np.atleast_1d(_places("delete", obj, x.shape[k]))
    if np.any(gone >= x.shape[k]):
        raise IndexError(
            f"delete: places must be below {x.shape[k]} for axis {k} of {x.aval}; got {gone}."
            f"{at_user_line()}"
        )
    kept = np.delete(np.arange(x.shape[k]), gone)
    return _at_places(x, k, kept) if kept.size else view_of(x, k, 0, 0)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Array:
    """The array with values inserted before places of an axis; flattened if it is None.

    Raises IndexError if a place is outside of the axis.
    """
    x = array_operand("insert", arr)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    k = canonical_axis("insert", axis, x.ndim, x.aval)
    given = _places("insert", obj, x.shape[k])
    new = as_array(typed_operand("insert", values, x.dtype))
    if given.ndim == 0 and new.ndim:
        new = _moved_to(new, x, k)
    places = np.atleast_1d(given)
    if places.size == 1 and new.ndim == x.ndim:
        places = np.repeat(places, new.shape[k])
    count = places.size
    target = tuple(count if j == k else n for j, n in enumerate(x.shape))
    new = broadcast_to(new, target)
    order = np.argsort(places, kind="stable")
    inserted = places[order] + np.arange(count)
    source = np.empty(x.shape[k] + count, np.int64)
    old = np.ones(source.size, bool)
    old[inserted] = False
    source[old], source[inserted] = np.arange(x.shape[k]), x.shape[k] + order
    return _at_places(view.concatenate([x, new], k), k, source)


def _moved_to(new: Array, x: Array, axis: int) -> Array:
    """Values for one place: the axis may be missing, or come first."""
    padded = primitive.reshape(new, (1,) * (x.ndim - new.ndim) + new.shape)
    order = list(range(1, x.ndim))
    order.insert(axis, 0)
    return primitive.transpose(padded, order)


def trim_zeros(filt: Any, trim: str = "fb") -> Array:
    """A one-dimensional array without zeros at its front ("f") or back ("b"), which must be known
    while tracing."""
    x = array_operand("trim_zeros", filt)
    nonzero = np.nonzero(concrete("trim_zeros", x, "the array"))[0]
    if nonzero.size == 0:
        return view_of(x, 0, 0, 0)
    low = int(nonzero[0]) if "f" in trim.lower() else 0
    high = int(nonzero[-1]) + 1 if "b" in trim.lower() else x.shape[0]
    return view_of(x, 0, low, high)
