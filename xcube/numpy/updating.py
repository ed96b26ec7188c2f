"""Writing by an index: `x.at[index].set(y)` and the like give a new array, by an update of a slice
or by a scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, eager
from xcube.array import Array, DeviceArray
from xcube.ir import Literal, Shape, at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy.fused import number
from xcube.numpy.index_entries import (
    FILL,
    NEW,
    Entry,
    Span,
    Window,
    array_of,
    axis_entries,
    clamped,
    from_front,
    index_dtype,
    inside_bounds,
    is_mask,
    known_mask,
    layout,
    parse,
    parse_mode,
)
from xcube.numpy.indexing import PLAN_LIMIT, once, read, static_key
from xcube.numpy.operands import (
    as_array,
    broadcast_shapes,
    cast,
    operand,
    result_type_of,
    scalar,
    stretch,
)
from xcube.primitives import gather, scatter
from xcube.primitives.index import dynamic_slice, dynamic_update_slice
from xcube.primitives.select import select
from xcube.primitives.shape import broadcast_in_dim, full, reshape
from xcube.primitives.windows import ScatterDimensionNumbers
from xcube.trace import EVAL, current_trace

# --- Writing -------------------------------------------------------------------------------------

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": e.add,
    "multiply": e.multiply,
    "min": e.minimum,
    "max": e.maximum,
}


_SCATTER: dict[str, Callable[..., Any]] = {
    "set": scatter.scatter,
    "add": gather.scatter_add,
    "multiply": scatter.scatter_mul,
    "min": scatter.scatter_min,
    "max": scatter.scatter_max,
}


def update(
    x: Array,
    index: Any,
    values: Any,
    operation: str,
    mode: Any = None,
    is_sorted: bool = False,
    is_unique: bool = False,
) -> Array:
    """A new array with the elements at `index` combined with values; those out of bounds stay."""
    y = _values(x, operation, values)
    if (mask := _traced_mask(index)) is not None:
        return _update_where(x, mask, y, operation)
    result, weak = x.dtype, x.weak_type
    if operation != "set":
        x, y = _common(x, y)
    chosen = parse_mode(mode)
    shaped, entries = _entries_to_write(x, index)
    options = (operation, FILL if chosen is None else chosen, is_sorted, is_unique)
    y = as_array(y) if current_trace() is EVAL else y
    written = once("update", shaped, entries, [y], _write, options)[0]
    return cast(reshape(written, x.shape), result, weak)


def _entries_to_write(x: Array, index: Any) -> tuple[Array, list[Entry]]:
    if type(x) is not DeviceArray or current_trace() is not EVAL:
        return parse(x, index)
    key = static_key(index)
    if key is None:
        shaped, entries = parse(x, index)
        return shaped, _moving(shaped, entries)
    found = _places.get((x._aval, key))
    if found is None:
        if len(_places) >= PLAN_LIMIT:
            _places.clear()
        found = _places[x._aval, key] = _moving(*parse(x, index))
    return x, found


_places: dict[Any, list[Entry]] = {}


def _moving(x: Array, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with places as operands, so that updates elsewhere share one program."""
    if any(
        k.ndim if isinstance(k, Array) else isinstance(k, Span) and k.step != 1 for k in entries
    ):
        return list(entries)
    sizes = iter(x.shape)
    result: list[Entry] = []
    for entry in entries:
        length = 0 if entry is NEW else next(sizes)
        dtype = index_dtype(length)
        if isinstance(entry, int) and -(1 << 31) <= entry < max(1 << 31, length):
            entry = eager.operand(dtype.type(entry))
        elif isinstance(entry, Span) and entry.step == 1 and 0 < entry.size < length:
            entry = Window(entry.size, eager.operand(dtype.type(entry.start)))
        result.append(entry)
    return result


def _values(x: Array, operation: str, values: Any) -> Any:
    """Values as an operand; Python numbers in the dtype of the array that takes them over."""
    if type(values) is float and dtypes.is_inexact(x.dtype):
        return number(values, x.dtype)
    if type(values) is int and not dtypes.is_bool(x.dtype):
        dtypes.scalar_dtype(values)
        return number(values, x.dtype)
    return operand(f"x.at[...].{operation}", values)


def _common(x: Array, y: Any) -> tuple[Array, Any]:
    dtype, _ = result_type_of([x, y])
    return (x, y) if dtype == x.dtype else (cast(x, dtype), cast(y, dtype))


def _traced_mask(index: Any) -> Any:
    mask: Any = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not is_mask(mask) or isinstance(mask, np.ndarray | DeviceArray) or mask.ndim == 0:
        return None
    return mask if getattr(mask, "known", None) is None else None


def _update_where(x: Array, mask: Array, y: Any, operation: str) -> Array:
    """A traced mask with one value for all its elements needs no shape: it is a choice."""
    if y.aval.shape != () or mask.shape != x.shape[: mask.ndim]:
        known_mask(mask)
    result, weak = x.dtype, x.weak_type
    x, y = _common(x, y) if operation != "set" else (x, cast(y, x.dtype))
    wide = broadcast_in_dim(mask, x.shape, tuple(range(mask.ndim)))
    new = _COMBINE[operation](x, y)
    new = stretch(as_array(new), x.shape)
    return cast(select(wide, cast(new, x.dtype, x.weak_type), x), result, weak)


def _write(
    x: Array,
    entries: Sequence[Entry],
    y: Array,
    operation: str,
    mode: Any,
    is_sorted: bool,
    is_unique: bool,
) -> list[Array]:
    entries, y = from_front(x, entries), cast(y, x.dtype)
    spans = axis_entries(entries)
    simple = not any(isinstance(k, Array) and k.ndim for k in spans)
    if simple and all(k.step == 1 for k in spans if isinstance(k, Span | Window)):
        return [_write_slice(x, entries, y, operation, mode)]
    return [_scattered(x, entries, y, operation, mode, is_sorted, is_unique)]


def _write_slice(x: Array, entries: Sequence[Entry], y: Array, operation: str, mode: Any) -> Array:
    """A block of neighbouring elements is combined and put back."""
    spans = axis_entries(entries)
    shown = tuple(
        1 if k is NEW else k.size for k in entries if k is NEW or isinstance(k, Span | Window)
    )
    block = tuple(k.size if isinstance(k, Span | Window) else 1 for k in spans)
    y = reshape(_fitted(y, shown, x), block)
    inside = inside_bounds(spans, x.shape) if mode == FILL else True
    if inside is False or 0 in block:
        return x
    starts: list[Any] = []
    for entry, length in zip(spans, x.shape, strict=True):
        if (start := array_of(entry)) is not None:
            starts.append(start)
        else:
            place = entry.start if isinstance(entry, Span) else clamped(entry, length)
            starts.append(scalar(place, index_dtype(length)))
    if operation != "set" or inside is not True:
        old = dynamic_slice(x, starts, block, allow_negative_indices=False)
        y = cast(_COMBINE[operation](old, y), x.dtype, x.weak_type)
        y = y if inside is True else select(inside, y, old)
    y = cast(y, x.dtype, x.weak_type)
    if block == x.shape:
        return y
    return dynamic_update_slice(x, y, starts, allow_negative_indices=False)


def _fitted(y: Any, shape: Shape, x: Array) -> Array:
    """Values broadcast to the shape of what they replace."""
    if isinstance(y, Literal):
        return full(shape, y)
    extra = y.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in y.shape[:extra]):
        y = reshape(y, y.shape[extra:])
    if broadcast_shapes(f"x.at[...] of {x.aval}", y.shape, shape) != shape:
        broadcast_shapes(
            f"x.at[...] of {x.aval}: the values' and the elements'", y.shape, (*shape, -1)
        )
    return stretch(y, shape)


def _scattered(
    x: Array,
    entries: Sequence[Entry],
    y: Array,
    operation: str,
    mode: Any,
    is_sorted: bool,
    is_unique: bool,
) -> Array:
    found = layout(x, entries)
    rank = len(found.shape) + len(found.new)
    sizes = iter(found.shape)
    shown = tuple(1 if k in found.new else next(sizes) for k in range(rank))
    y = reshape(_fitted(y, shown, x), found.shape)
    if 0 in found.shape or x.size == 0:
        return x
    numbers = ScatterDimensionNumbers(
        update_window_dims=found.offsets,
        inserted_window_dims=found.axes,
        scatter_dims_to_operand_dims=found.axes,
    )
    return _SCATTER[operation](
        x,
        found.indices,
        y,
        numbers,
        indices_are_sorted=is_sorted,
        unique_indices=is_unique,
        mode=mode,
    )


class At:
    """`x.at`: index it, then `set`, `add`, ... to get an array in which those elements changed."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._array, index)

    def __repr__(self) -> str:
        return f"{self._array!r}.at"


class AtIndex:
    """`x.at[index]`. Every method gives a new array, the elements at the index updated. `mode`:
    "drop" (default: updates out of bounds are dropped), "clip" or "promise_in_bounds"."""

    __slots__ = ("_array", "_index")

    def __init__(self, array: Array, index: Any) -> None:
        self._array, self._index = array, index

    def __repr__(self) -> str:
        return f"{self._array!r}.at[{self._index!r}]"

    def _update(self, operation: str, values: Any, options: dict[str, Any]) -> Array:
        return update(
            self._array,
            self._index,
            values,
            operation,
            options.pop("mode", None),
            options.pop("indices_are_sorted", False),
            options.pop("unique_indices", False),
            **_no_more(operation, options),
        )

    def get(
        self,
        *,
        mode: Any = None,
        fill_value: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        wrap_negative_indices: bool = True,
        out_sharding: None = None,
    ) -> Array:
        """The elements at the index. `mode` "fill" gives `fill_value` out of bounds, NaN or the
        lowest integer by default; "clip", the default, the nearest element.

        >>> import xcube.numpy as jnp
        >>> jnp.arange(3).at[5].get(mode="fill", fill_value=-1)
        Array(-1, dtype=int32)
        """
        chosen = parse_mode("fill" if mode is None and fill_value is not None else mode)
        x, entries = parse(self._array, self._index)
        options = (chosen, fill_value, indices_are_sorted, unique_indices)
        return once("get", x, entries, [], read, options)[0]

    def set(self, values: Any, **options: Any) -> Array:
        """x[index] = values.

        >>> import xcube.numpy as jnp
        >>> jnp.zeros(3).at[1].set(5.0)
        Array([0., 5., 0.], dtype=float32)
        """
        return self._update("set", values, options)

    def add(self, values: Any, **options: Any) -> Array:
        """x[index] += values, once for each time that an element is named."""
        return self._update("add", values, options)

    def subtract(self, values: Any, **options: Any) -> Array:
        """x[index] -= values, once for each time that an element is named."""
        return self._update("add", e.negative(values), options)

    def multiply(self, values: Any, **options: Any) -> Array:
        """x[index] *= values, once for each time that an element is named."""
        return self._update("multiply", values, options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Array:
        """x[index] /= values, once for each time that an element is named."""
        return e.divide(self._array, self._factors(values, options))

    def power(self, values: Any, **options: Any) -> Array:
        """x[index] **= values, once for each time that an element is named."""
        return e.power(self._array, self._factors(values, options))

    def _factors(self, values: Any, options: dict[str, Any]) -> Array:
        x = self._array
        ones = full(x.shape, scalar(1, x.dtype, x.weak_type))
        return AtIndex(ones, self._index)._update("multiply", values, options)

    def min(self, values: Any, **options: Any) -> Array:
        """x[index] = minimum(x[index], values)."""
        return self._update("min", values, options)

    def max(self, values: Any, **options: Any) -> Array:
        """x[index] = maximum(x[index], values)."""
        return self._update("max", values, options)

    def apply(self, func: Callable[[Any], Any], **options: Any) -> Array:
        """x[index] = func(x[index])."""
        return self.set(func(self.get()), **options)


def _no_more(operation: str, options: dict[str, Any]) -> dict[str, Any]:
    known = {"wrap_negative_indices", "out_sharding"}
    if unknown := set(options) - known:
        raise TypeError(
            f"x.at[...].{operation}: unknown option {', '.join(sorted(unknown))}.{at_user_line()}"
        )
    return {}
