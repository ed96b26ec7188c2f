"""Reading by an index: its entries become a slice, a dynamic slice or a gather. Concrete arrays
take the same road once per structure of the index, as one program whose starts are operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, eager
from xcube.array import Array, DeviceArray
from xcube.ir import Jaxpr, at_user_line
from xcube.numpy.fused import run_keyed, typed
from xcube.numpy.index_entries import (
    FILL,
    NEW,
    PROMISE,
    Entry,
    Span,
    Window,
    array_of,
    axis_entries,
    clamped,
    from_front,
    index_dtype,
    inside_bounds,
    layout,
    parse,
)
from xcube.numpy.operands import scalar, typed_operand
from xcube.primitives import gather, view
from xcube.primitives.index import dynamic_slice
from xcube.primitives.select import select
from xcube.primitives.shape import broadcast_in_dim, full, reshape
from xcube.primitives.windows import GatherDimensionNumbers
from xcube.trace import EVAL, bind, current_trace, stage
from xcube.transforms.call import jit_p

PLAN_LIMIT = 8192

# --- Reading -------------------------------------------------------------------------------------


def getitem(x: Array, index: Any) -> Array:
    """x[index] with NumPy's rules; indices out of bounds are clamped to them.

    Raises IndexError if there are too many indices or one names an empty axis, TypeError for items
    that are no index and for an index that is a list.
    """
    if type(x) is DeviceArray and current_trace() is EVAL:
        key = static_key(index)
        if key is not None:
            return _run_plan(x, index, key)
        x, entries = parse(x, index)
        return once("getitem", x, entries, [], read, (None, None, False, False))[0]
    return read(*parse(x, index))[0]


def read(
    x: Array,
    entries: Sequence[Entry],
    mode: Any = None,
    fill_value: Any = None,
    is_sorted: bool = False,
    is_unique: bool = False,
) -> list[Array]:
    """The elements at the entries of an index, as the one result of a program."""
    entries = from_front(x, entries)
    if any(isinstance(entry, Array) and entry.ndim for entry in entries):
        return [_gathered(x, entries, mode, fill_value, is_sorted, is_unique)]
    return [_sliced(x, entries, mode, fill_value)]


def _sliced(x: Array, entries: Sequence[Entry], mode: Any, fill_value: Any) -> Array:
    """Slices and single positions."""
    spans = axis_entries(entries)
    y = _static_slice(x, spans, mode)
    if any(isinstance(entry, Array) for entry in spans):
        y = _dynamic_slice(y, spans)
    if mode == FILL:
        inside = inside_bounds(spans, x.shape)
        y = select(inside, y, _fill(x, fill_value)) if isinstance(inside, Array) else y
        y = full(y.shape, _fill(x, fill_value)) if inside is False else y
    dropped = tuple(k for k, entry in enumerate(spans) if not isinstance(entry, Span))
    return _with_new_axes(view.squeeze(y, dropped) if dropped else y, entries)


def _static_slice(x: Array, spans: Sequence[Entry], mode: Any = None) -> Array:
    """What is static of an index: slices, and positions that are ints as slices of length 1."""
    starts, limits, strides, reverse = [], [], [], []
    for axis, (entry, length) in enumerate(zip(spans, x.shape, strict=True)):
        span = Span(0, length, 1) if isinstance(entry, Array) else entry
        if isinstance(span, int):
            span = Span(clamped(span, length), 1, 1)
        low, step = span.start, span.step
        if step < 0:
            reverse.append(axis)
            low, step = span.start + (span.size - 1) * span.step, -step
        low = low if span.size else 0
        starts.append(low)
        limits.append(low + (span.size - 1) * step + 1 if span.size else low)
        strides.append(step)
    if starts != [0] * x.ndim or limits != list(x.shape) or strides != [1] * x.ndim:
        plain = all(step == 1 for step in strides)
        x = view.slice(x, starts, limits, None if plain else strides)
    moved = tuple(axis for axis in reverse if x.shape[axis] > 1)
    return view.rev(x, moved) if moved else x


def _dynamic_slice(x: Array, spans: Sequence[Entry]) -> Array:
    starts = [
        entry if isinstance(entry, Array) else scalar(0, index_dtype(length))
        for entry, length in zip(spans, x.shape, strict=True)
    ]
    sizes = [1 if isinstance(k, Array) else n for k, n in zip(spans, x.shape, strict=True)]
    return dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def _fill(x: Array, fill_value: Any) -> Any:
    """What stands in a result for an element out of bounds."""
    if fill_value is not None:
        return typed_operand("fill_value", fill_value, x.dtype, x.weak_type)
    return scalar(default_fill(x.dtype), x.dtype, x.weak_type)


def default_fill(dtype: np.dtype) -> Any:
    """What a read out of bounds gives: NaN, the lowest signed or highest unsigned integer, True."""
    if dtypes.is_inexact(dtype):
        return np.nan
    if dtypes.is_bool(dtype):
        return True
    limits = dtypes.iinfo(dtype)
    return int(limits.min if dtypes.is_signed(dtype) else limits.max)


def _with_new_axes(y: Array, entries: Sequence[Entry]) -> Array:
    """New axes among those of a result that has an axis for each span."""
    if all(entry is not NEW for entry in entries):
        return y
    shown = [entry for entry in entries if entry is NEW or isinstance(entry, Span)]
    return _with_axes(y, [k for k, entry in enumerate(shown) if entry is NEW])


def _with_axes(y: Array, places: Sequence[int]) -> Array:
    rank = y.ndim + len(places)
    kept = tuple(k for k in range(rank) if k not in places)
    sizes = iter(y.shape)
    target = tuple(1 if k in places else next(sizes) for k in range(rank))
    return broadcast_in_dim(y, target, kept)


def _gathered(
    x: Array,
    entries: Sequence[Entry],
    mode: Any,
    fill_value: Any,
    is_sorted: bool,
    is_unique: bool,
) -> Array:
    spans = axis_entries(entries)
    x = _static_slice(
        x, [Span(0, n, 1) if isinstance(s, int) else s for s, n in zip(spans, x.shape, strict=True)]
    )
    sizes = iter(x.shape)
    entries = [
        k if k is NEW else (Span(0, n, 1) if isinstance(k, Span) else k)
        for k in entries
        for n in ((0,) if k is NEW else (next(sizes),))
    ]
    if x.size == 0 and any(
        x.shape[k] == 0 for k, s in enumerate(axis_entries(entries)) if not isinstance(s, Span)
    ):
        return _from_nothing(x, entries)
    found = layout(x, entries)
    numbers = GatherDimensionNumbers(
        offset_dims=found.offsets, collapsed_slice_dims=found.axes, start_index_map=found.axes
    )
    slice_sizes = tuple(1 if k in found.axes else n for k, n in enumerate(x.shape))
    y = gather.gather(
        x,
        found.indices,
        numbers,
        slice_sizes,
        unique_indices=is_unique,
        indices_are_sorted=is_sorted,
        mode=PROMISE if mode is None else mode,
        fill_value=fill_value,
    )
    return _with_axes(y, found.new) if found.new else y


def _from_nothing(x: Array, entries: Sequence[Entry]) -> Array:
    """Reading from an empty axis is possible only if nothing is read."""
    found = layout(x, entries)
    if 0 not in found.shape:
        axis = next(k for k in found.axes if x.shape[k] == 0)
        raise IndexError(
            f"x[...]: axis {axis} of {x.aval} has size 0, so that no index is within its bounds; "
            f"got an array of indices.{at_user_line()}"
        )
    y = full(found.shape, scalar(0, x.dtype, x.weak_type))
    return _with_axes(y, found.new) if found.new else y


# --- Concrete arrays: one program per structure --------------------------------------------------

_plans: dict[Any, tuple[Jaxpr, list[DeviceArray]]] = {}
_programs: dict[Any, Jaxpr] = {}


def clear() -> None:
    """Forget the programs of indices."""
    _plans.clear()
    _programs.clear()


def static_key(index: Any) -> Any:
    """A hashable form of an index of ints, slices, None and '...'; None for other indices."""
    if type(index) is int:
        return index
    parts = []
    for item in index if type(index) is tuple else (index,):
        if type(item) is int or item is None or item is Ellipsis:
            parts.append(item)
        elif type(item) is slice:
            bounds = (item.start, item.stop, item.step)
            if not all(b is None or type(b) is int for b in bounds):
                return None
            parts.append(bounds)
        else:
            return None
    return tuple(parts)


def _run_plan(x: DeviceArray, index: Any, key: Any) -> Array:
    plan = _plans.get((x._aval, key))
    if plan is None:
        if len(_plans) >= PLAN_LIMIT:
            _plans.clear()
        plan = _plans[x._aval, key] = _plan(x, index)
    jaxpr, starts = plan
    return bind(jit_p, x, *starts, jaxpr=jaxpr, name="getitem")[0]


def _plan(x: DeviceArray, index: Any) -> tuple[Jaxpr, list[DeviceArray]]:
    """The program of a static index, and the starts that it takes as operands: indices that differ
    only in their starts share it."""
    _, entries = parse(x, index)
    form, starts = [], []
    sizes = iter(x.shape)
    for entry in entries:
        length = 0 if entry is NEW else next(sizes)
        if isinstance(entry, int):
            starts.append(index_dtype(length).type(clamped(entry, length)))
            form.append("at")
        elif entry is not NEW and entry.step == 1 and 0 < entry.size < length:
            starts.append(index_dtype(length).type(entry.start))
            form.append(entry.size)
        else:
            form.append(entry)
    key = (x._aval, tuple(form))
    if (jaxpr := _programs.get(key)) is None:
        avals = [x._aval, *[eager.operand(start).aval for start in starts]]
        jaxpr = stage(lambda x, *at: [_apply_form(x, form, at)], avals, "getitem")
        _programs[key] = jaxpr
    return jaxpr, [eager.operand(start) for start in starts]


def _apply_form(x: Array, form: Sequence[Any], starts: Sequence[Array]) -> Array:
    spans = [entry for entry in form if entry is not NEW]
    y = _static_slice(
        x,
        [k if isinstance(k, Span) else Span(0, n, 1) for k, n in zip(spans, x.shape, strict=True)],
    )
    given = iter(starts)
    at = [
        scalar(0, index_dtype(n)) if isinstance(k, Span) else next(given)
        for k, n in zip(spans, x.shape, strict=True)
    ]
    sizes = [
        n if isinstance(k, Span) else (1 if k == "at" else k)
        for k, n in zip(spans, y.shape, strict=True)
    ]
    if starts:
        y = dynamic_slice(y, at, sizes, allow_negative_indices=False)
    rest = iter(sizes)
    target = [
        1 if k is NEW else n
        for k in form
        for n in ((1,) if k is NEW else (next(rest),))
        if k != "at"
    ]
    return reshape(y, target)


def once(
    name: str,
    x: Array,
    entries: Sequence[Entry],
    operands: Sequence[Any],
    function: Callable[..., list[Array]],
    options: tuple[Any, ...],
) -> list[Array]:
    """Run a function of an array and the entries of an index as one program, staged once for each
    structure; traced operands inline it."""
    arrays = [a for k in entries if (a := array_of(k)) is not None]
    values = [x, *arrays, *operands]
    if current_trace() is not EVAL or not all(type(v) is DeviceArray for v in values):
        return function(x, entries, *operands, *options)
    form = tuple([_form(k) for k in entries])
    key = (form, typed(options))
    try:
        hash(key)
    except TypeError:  # an option that cannot be a key, such as an array as fill value
        return function(x, entries, *operands, *options)

    def staged(x: Array, *rest: Array) -> list[Array]:
        given = iter(rest[: len(arrays)])
        inner = [_filled_in(k, given) for k in form]
        return function(x, inner, *rest[len(arrays) :], *options)

    return run_keyed(name, staged, (function, key), values)


def _form(entry: Entry) -> Any:
    if isinstance(entry, Window):
        return (_ARRAY, entry.size)
    return _ARRAY if isinstance(entry, Array) else entry


def _filled_in(form: Any, arrays: Iterator[Array]) -> Entry:
    if form is _ARRAY:
        return next(arrays)
    return Window(form[1], next(arrays)) if isinstance(form, tuple) else form


class _ArrayMark:
    """Stands for an array in the form of an index."""


_ARRAY = _ArrayMark()
