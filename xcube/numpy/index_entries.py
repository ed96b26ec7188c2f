"""The entries of an index: one for each axis and each new axis, and how they lie in the result."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array, DeviceArray
from xcube.errors import NonConcreteBooleanIndexError
from xcube.ir import Shape, at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy.choice import chosen
from xcube.numpy.creation import asarray
from xcube.numpy.operands import broadcast_shapes, cast, host_array, scalar
from xcube.primitives import view
from xcube.primitives.bits import bitwise_and
from xcube.primitives.shape import broadcast_in_dim, full, reshape
from xcube.primitives.windows import GatherScatterMode
from xcube.transforms.arguments import to_array

INDEX = np.dtype(np.int32)
WIDE_INDEX = np.dtype(np.int64)
CLIP, FILL = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP
PROMISE = GatherScatterMode.PROMISE_IN_BOUNDS


def index_dtype(length: int) -> np.dtype:
    """The dtype that holds every position of an axis and its length."""
    return INDEX if length < 1 << 31 else WIDE_INDEX


def parse_mode(mode: Any) -> GatherScatterMode | None:
    """A mode= argument; None is the default of what is done. Raises ValueError for others."""
    if mode is None or isinstance(mode, GatherScatterMode):
        return mode
    found = _MODES.get(mode)
    if found is None:
        raise ValueError(
            f"mode: must be one of {', '.join(map(repr, _MODES))}; got {mode!r}.{at_user_line()}"
        )
    return found


_MODES = {"fill": FILL, "drop": FILL, "clip": CLIP, "promise_in_bounds": PROMISE}


# --- Entries -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A slice of an axis: `size` elements from `start` on, `step` apart."""

    start: int
    size: int
    step: int

    def is_whole(self, length: int) -> bool:
        """Whether it is the whole axis in its order."""
        return self.start == 0 and self.step == 1 and self.size == length


@dataclass(frozen=True, slots=True)
class Window:
    """A slice of an axis within bounds whose start is an operand; only updates have it."""

    size: int
    start: Any
    step: int = 1


class New:
    """A new axis of length 1."""


NEW = New()
Entry = Any  # Span | Window | NEW | int | Array


def parse(x: Array, index: Any) -> tuple[Array, list[Entry]]:
    """The entries of an index, one for each axis and each new axis; the array comes back with an
    axis of length 1 for each scalar mask.

    Raises IndexError or TypeError if the index does not fit the array.
    """
    if isinstance(index, list):
        raise TypeError(
            f"x[...]: an index must not be a list.{at_user_line()} Make it an array, as in "
            f"x[xcube.numpy.array(items)], or a tuple, as in x[items,]."
        )
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    count = sum(_axes_of(item) for item in items)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise IndexError(f"x[...]: an index must have at most one ellipsis.{at_user_line()}")
    if count > x.ndim:
        raise IndexError(
            f"x[...]: an index must name at most the {x.ndim} axes of {x.aval}; got {count}."
            f"{at_user_line()}"
        )
    if not ellipses:
        items.append(Ellipsis)
    entries: list[Entry] = []
    axis = masks = 0
    for item in items:
        if item is Ellipsis:
            entries += [Span(0, n, 1) for n in x.shape[axis : axis + x.ndim - count]]
            axis += x.ndim - count
        elif item is None:
            entries.append(NEW)
        elif isinstance(item, bool):
            x = reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
            entries.append(to_array.convert(np.zeros(int(item), np.int32)))
            axis, masks = axis + 1, masks + 1
        elif isinstance(item, slice):
            entries.append(_span(item, x.shape[axis]))
            axis += 1
        elif is_mask(item):
            entries += _mask_entries(item, x, axis)
            axis += item.ndim
        else:
            if x.shape[axis] == 0 and np.ndim(item) == 0:
                raise _empty_axis(x, axis - masks, item)
            entries.append(item if isinstance(item, int) else to_array.convert(item))
            axis += 1
    return x, entries


def _empty_axis(x: Array, axis: int, item: Any) -> IndexError:
    got = item.aval if isinstance(item, Array) else item
    return IndexError(
        f"x[...]: axis {axis} of {x.aval} has size 0, so that no index is within its bounds; got "
        f"{got}.{at_user_line()}"
    )


def _item(item: Any) -> Any:
    """An item of an index in one of the known forms. Raises TypeError for others."""
    if item is None or item is Ellipsis or isinstance(item, slice | bool):
        return item
    if hasattr(item, "__jax_array__"):
        item = item.__jax_array__()
    if isinstance(item, list | tuple):
        item = asarray(item) if len(item) else np.zeros(0, np.int32)
    if isinstance(item, np.ma.MaskedArray):
        host_array("x[...]", item)
    if isinstance(item, np.bool_) or (is_mask(item) and item.ndim == 0):
        return bool(known_mask(item))
    if isinstance(item, np.ndarray | Array):
        if item.dtype.kind in "iub":
            return int(item) if item.ndim == 0 and isinstance(item, np.ndarray) else item
        raise _bad_item(f"dtype {item.dtype}")
    try:
        return operator.index(item)
    except TypeError:
        raise _bad_item(type(item).__name__) from None


def _bad_item(got: str) -> TypeError:
    return TypeError(
        f"x[...]: items of an index must be integers, slices, None, '...', or arrays of integers "
        f"or bools; got {got}.{at_user_line()}"
    )


def _axes_of(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if is_mask(item) else 1


def is_mask(item: Any) -> bool:
    """Whether an item is an array of bools."""
    return isinstance(item, np.ndarray | Array) and item.dtype == dtypes.BOOL


def _span(item: slice, length: int) -> Span:
    try:
        start, stop, step = item.indices(length)
    except TypeError:
        raise IndexError(
            f"x[a:b]: the bounds of a slice must be ints known while tracing; got {item}."
            f"{at_user_line()} Use xcube.lax.dynamic_slice where the start is traced."
        ) from None
    return Span(start, len(range(start, stop, step)), step)


def known_mask(mask: Any) -> np.ndarray:
    """The elements of a mask. Raises NonConcreteBooleanIndexError if it is traced."""
    known = mask
    if isinstance(mask, Array) and not isinstance(mask, DeviceArray):
        known = getattr(mask, "known", None)
    if known is None:
        raise NonConcreteBooleanIndexError(
            f"x[mask]: a mask must be known while tracing, for it decides the shape of the result; "
            f"got the traced array {mask.aval}.{at_user_line()} Use xcube.numpy.where(mask, x, y), "
            f"or xcube.numpy.nonzero(mask, size=n)."
        )
    return np.asarray(known)


def _mask_entries(mask: Any, x: Array, axis: int) -> list[Entry]:
    expected = x.shape[axis : axis + mask.ndim]
    if mask.shape != expected:
        raise IndexError(
            f"x[mask]: a mask must have the shape of the axes that it stands for, {expected} of "
            f"{x.aval}; got {mask.shape}.{at_user_line()}"
        )
    return [to_array.convert(k.astype(np.int32)) for k in np.nonzero(known_mask(mask))]


def from_front(x: Array, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with index arrays as `index_dtype`, negative ones counted from the front."""
    sizes = iter(x.shape)
    return [entry if entry is NEW else _nonnegative(entry, next(sizes)) for entry in entries]


def _nonnegative(entry: Entry, length: int) -> Entry:
    if not isinstance(entry, Array):
        return entry
    signed = dtypes.is_signed(entry.dtype)
    dtype = index_dtype(length)
    entry = cast(entry, dtype)
    if not signed:
        return entry
    return chosen(e.less(entry, 0), e.add(entry, scalar(length, dtype)), entry)


def axis_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of the operand's axes."""
    return [entry for entry in entries if entry is not NEW]


def clamped(position: int, length: int) -> int:
    """A position of an axis counted from the front and moved inside."""
    return min(max(position + length if position < 0 else position, 0), max(length - 1, 0))


def inside_bounds(spans: Sequence[Entry], shape: Shape) -> Any:
    """Whether all single positions lie within bounds: a bool, or a bool scalar array."""
    result: Any = True
    for entry, length in zip(spans, shape, strict=True):
        if isinstance(entry, int) and not -length <= entry < length:
            return False
        if isinstance(entry, Array) and entry.ndim == 0:
            here = bitwise_and(
                e.greater_equal(entry, scalar(0, entry.dtype)),
                e.less(entry, scalar(length, index_dtype(length))),
            )
            result = here if result is True else bitwise_and(result, here)
    return result


def array_of(entry: Entry) -> Any:
    """The array that an entry needs as an operand, None if it is static."""
    if isinstance(entry, Window):
        return entry.start
    return entry if isinstance(entry, Array) else None


# --- Layout of gathers and scatters --------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How an index with arrays reads or writes: `indices` holds one column for each axis in `axes`;
    `offsets` are the result's axes that are whole axes of the operand; `new` its new axes."""

    indices: Array
    axes: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: Shape
    new: tuple[int, ...]


def layout(x: Array, entries: Sequence[Entry]) -> Layout:
    """The layout of an index: positions and arrays broadcast to one block of axes, which stands
    where they stand, or in front if a slice parts them (NumPy's rule)."""
    order = _result_order(entries)
    spans = axis_entries(entries)
    block = broadcast_shapes("x[...]", *[_shape_of(k) for k in spans if not isinstance(k, Span)])
    batch: list[tuple[str, int, int]] = []  # (kind, axis of the operand or of the block, length)
    offsets, sizes, new = [], [], []
    for kind, axis in order:
        if kind == "new":
            new.append(len(sizes) + len(new))
        elif kind == "block":
            batch += [("block", k, n) for k, n in enumerate(block)]
            sizes += block
        elif spans[axis].is_whole(x.shape[axis]):
            offsets.append(len(sizes))
            sizes.append(x.shape[axis])
        else:
            batch.append(("span", axis, spans[axis].size))
            sizes.append(spans[axis].size)
    axes = tuple(
        k
        for k, entry in enumerate(spans)
        if not isinstance(entry, Span) or not entry.is_whole(x.shape[k])
    )
    dtype = index_dtype(max((x.shape[k] for k in axes), default=0))
    columns = [cast(_column(spans[k], k, x.shape[k], block, batch), dtype) for k in axes]
    indices = columns[0] if len(columns) == 1 else view.concatenate(columns, columns[0].ndim - 1)
    return Layout(indices, axes, tuple(offsets), tuple(sizes), tuple(new))


def _shape_of(entry: Entry) -> Shape:
    return entry.shape if isinstance(entry, Array) else ()


def _result_order(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """The result's axes in order: ("span", axis), ("new", -1), and one ("block", -1)."""
    positions = [
        k for k, entry in enumerate(entries) if entry is not NEW and not isinstance(entry, Span)
    ]
    together = bool(positions) and positions[-1] - positions[0] == len(positions) - 1
    order: list[tuple[str, int]] = [] if together or not positions else [("block", -1)]
    axis = 0
    for k, entry in enumerate(entries):
        if entry is NEW:
            order.append(("new", -1))
            continue
        if isinstance(entry, Span):
            order.append(("span", axis))
        elif together and k == positions[0]:
            order.append(("block", -1))
        axis += 1
    return order


def _column(
    entry: Entry, axis: int, length: int, block: Shape, batch: Sequence[tuple[str, int, int]]
) -> Array:
    """One coordinate of every point of the batch: i[*batch, 1]."""
    target, dtype = (*(n for _, _, n in batch), 1), index_dtype(length)
    if isinstance(entry, Span):
        place = batch.index(("span", axis, entry.size))
        steps = view.iota(dtype, (entry.size,), 0)
        positions = e.add(e.multiply(steps, scalar(entry.step, dtype)), scalar(entry.start, dtype))
        return broadcast_in_dim(positions, target, (place,))
    if isinstance(entry, int):
        return full(target, scalar(entry + length if entry < 0 else entry, dtype))
    first = next((k for k, (kind, _, _) in enumerate(batch) if kind == "block"), 0)
    places = tuple(range(first + len(block) - entry.ndim, first + len(block)))
    return broadcast_in_dim(entry, target, places)
