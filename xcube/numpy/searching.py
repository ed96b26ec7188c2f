"""Places and sets of elements: where, nonzero, unique and what is made of them. The size of the
result depends on the values; traced arrays need `size=`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xcube import dtypes
from xcube.array import Array, DeviceArray
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy import reductions, shaping
from xcube.numpy.choice import chosen
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    as_array,
    canonical_axis,
    cast,
    operand,
    promoted,
    raise_unknown,
    scalar,
    typed_operand,
)
from xcube.numpy.sorting import order_of, searchsorted, sort
from xcube.primitives import view
from xcube.primitives.shape import full, reshape, transpose
from xcube.transforms.arguments import to_array


def _known(name: str, x: Array) -> np.ndarray:
    """The elements, which decide the size of the result."""
    value = x if isinstance(x, DeviceArray) else getattr(x, "known", None)
    if value is None:
        raise_unknown(name, x, "the number of elements of the result, unless size= is given,")
    return np.asarray(value)


# --- where and nonzero ---------------------------------------------------------------------------


def where(
    condition: Any,
    x: Any = None,
    y: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """x where the condition is not zero, else y: bool[*s], d[*s], d[*s] -> d[*s]. With a condition
    alone, `nonzero`.

    Raises ValueError if only one of x and y is given.

    >>> import xcube.numpy as jnp
    >>> where(jnp.arange(3) > 1, 1.0, 0.0)
    Array([0., 0., 1.], dtype=float32, weak_type=True)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError(f"where: x and y must be given both or neither.{at_user_line()}")
    if size is not None or fill_value is not None:
        raise ValueError(
            f"where: size and fill_value belong to the form with one argument.{at_user_line()}"
        )
    return chosen(condition, x, y)


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Index arrays of the elements that are not zero, in row-major order: d[*s] -> (i[n], ...).

    `size` states how many there are in the result: more are cut, fewer are filled.

    >>> import xcube.numpy as jnp
    >>> nonzero(jnp.array([0, 3, 0, 5]))
    (Array([1, 3], dtype=int32),)
    """
    x = array_operand("nonzero", a)
    if x.ndim == 0:
        raise ValueError(
            f"nonzero: the array must have an axis; got {x.aval}.{at_user_line()} Use "
            f"xcube.numpy.atleast_1d first."
        )
    if size is None:
        return tuple(
            to_array.convert(k.astype(_default_int())) for k in np.nonzero(_known("nonzero", x))
        )
    return _nonzero_of_size(e.to_bool(x), int(size), fill_value)


def _default_int() -> np.dtype:
    return dtypes.default_dtype("int")


def _nonzero_of_size(mask: Array, size: int, fill_value: Any) -> tuple[Array, ...]:
    """Each element that counts is written to the place given by how many came before it."""
    integer = _default_int()
    fills = fill_value if isinstance(fill_value, tuple | list) else [fill_value] * mask.ndim
    if len(fills) != mask.ndim:
        raise ValueError(
            f"nonzero: fill_value must be a number or one per axis; got {fill_value}."
            f"{at_user_line()}"
        )
    if mask.size == 0 or size == 0:
        values = [cast(operand("nonzero", f or 0), integer) for f in fills]
        return tuple(full((size,), v) for v in values)
    flat = reshape(mask, (mask.size,))
    rank = reductions.cumsum(flat)
    target = chosen(flat, e.subtract(rank, 1), size)
    places = view.iota(integer, (mask.size,), 0)
    found = full((size,), scalar(0, integer)).at[target].set(places, mode="drop")  # type: ignore[attr-defined]
    filled = e.greater_equal(view.iota(integer, (size,), 0), rank[-1])  # type: ignore[index]
    result: list[Array] = []
    for length, fill in zip(mask.shape[::-1], fills[::-1], strict=True):
        axis_index = e.remainder(found, scalar(length, integer))
        found = e.floor_divide(found, scalar(length, integer))
        result.append(chosen(filled, cast(operand("nonzero", fill or 0), integer), axis_index))
    return tuple(reversed(result))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Places, in row-major order, of the elements that are not zero: d[*s] -> i[n]."""
    return nonzero(shaping.ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Indices of the elements that are not zero, as rows: d[*s] -> i[n, rank]."""
    x = array_operand("argwhere", a)
    if x.ndim == 0:
        flat = reshape(x, (1,))
        count = nonzero(flat, size=size, fill_value=fill_value)[0].shape[0]
        return full((count, 0), scalar(0, _default_int()))
    return shaping.stack(list(nonzero(x, size=size, fill_value=fill_value)), axis=1)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Array:
    """The elements where the condition holds, in row-major order: -> d[n]."""
    return compress(shaping.ravel(condition), shaping.ravel(arr), size=size, fill_value=fill_value)


def compress(
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
    out: None = None,
) -> Array:
    """The slices along an axis for which the condition holds; flattened if the axis is None."""
    mask, x = array_operands("compress", (condition, a))
    if mask.ndim != 1:
        raise ValueError(
            f"compress: the condition must have one axis; got {mask.aval}.{at_user_line()}"
        )
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    k = canonical_axis("compress", axis, x.ndim, x.aval)
    mask = e.to_bool(mask)
    if mask.shape[0] > x.shape[k]:
        raise ValueError(
            f"compress: the condition must not be longer than axis {k} of {x.aval}; got "
            f"{mask.aval}.{at_user_line()}"
        )
    places = nonzero(mask, size=size, fill_value=x.shape[k])[0]
    index = (*([slice(None)] * k), places)
    return x.at[index].get(mode="fill", fill_value=fill_value)  # type: ignore[attr-defined]


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Array:
    """A new array with values, repeated as needed, where the mask holds, in row-major order.

    Raises ValueError unless `inplace=False`.
    """
    if inplace:
        raise ValueError(
            f"place: arrays are immutable, so inplace must be False; got True.{at_user_line()}"
        )
    x, condition, values = array_operands("place", (arr, mask, vals))
    flat, values = reshape(e.to_bool(condition), (x.size,)), reshape(values, (values.size,))
    rank = e.subtract(reductions.cumsum(flat), 1)
    new = values[e.remainder(rank, values.size)]  # type: ignore[index]
    return reshape(chosen(flat, cast(new, x.dtype), reshape(x, (x.size,))), x.shape)


# --- unique --------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """Distinct values, where each is first, which of them each element is, how often each is."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Distinct values and how often each occurs."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Distinct values and which of them each element is."""

    values: Array
    inverse_indices: Array


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements (or slices along an axis) in ascending order, and on request where each
    occurs first, which of them each element is, and how often each occurs.

    `size` states how many there are in the result: more are cut, fewer are filled with
    `fill_value`, the smallest element by default.

    >>> import xcube.numpy as jnp
    >>> unique(jnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    """
    x = array_operand("unique", ar)
    if size is None:
        _known("unique", x)
    rows = reshape(x, (x.size,)) if axis is None else x
    k = 0 if axis is None else canonical_axis("unique", axis, x.ndim, x.aval)
    rows = transpose(rows, (k, *(j for j in range(rows.ndim) if j != k)))
    found = _distinct(rows, equal_nan, size, fill_value)
    values = found.values
    order = list(range(1, values.ndim))
    order.insert(k, 0)
    inverse = reshape(found.inverse_indices, x.shape) if axis is None else found.inverse_indices
    if axis is not None:
        inverse = reshape(inverse, tuple(n if j == k else 1 for j, n in enumerate(x.shape)))
        inverse = inverse if x.ndim > 1 else reshape(inverse, (x.shape[k],))
    results = [transpose(values, order)]
    results += [found.indices] if return_index else []
    results += [inverse] if return_inverse else []
    results += [found.counts] if return_counts else []
    return results[0] if len(results) == 1 else tuple(results)


def _distinct(rows: Array, equal_nan: bool, size: int | None, fill_value: Any) -> UniqueAll:
    integer = _default_int()
    count = rows.shape[0]
    if count == 0:
        return _none_distinct(rows, size, fill_value)
    flat = reshape(rows, (count, rows.size // count))
    order = _row_order(flat)
    ordered = flat[order]  # type: ignore[index]
    starts = _group_starts(ordered, equal_nan)
    group = e.subtract(reductions.cumsum(starts), 1)
    places = nonzero(starts, size=size, fill_value=count)[0]
    values = rows.at[order.at[places].get(mode="clip")].get(mode="clip")  # type: ignore[attr-defined]
    indices = order.at[places].get(mode="clip")  # type: ignore[attr-defined]
    ends = shaping.concatenate([places, full((1,), scalar(count, integer))])
    counts = e.subtract(ends[1:], ends[:-1])  # type: ignore[index]
    inverse = full((count,), scalar(0, integer)).at[order].set(group)  # type: ignore[attr-defined]
    if size is not None:
        values, indices = _filled(values, indices, places, count, fill_value)
    return UniqueAll(values, indices, inverse, counts)


def _none_distinct(rows: Array, size: int | None, fill_value: Any) -> UniqueAll:
    none = full((size or 0,), scalar(0, _default_int()))
    if size:
        if fill_value is None:
            raise ValueError(
                f"unique: fill_value must be given to fill {size} places from {rows.aval}."
                f"{at_user_line()}"
            )
        fill = cast(as_array(operand("unique", fill_value)), rows.dtype)
        values = shaping.broadcast_to(fill, (size, *rows.shape[1:]))
        return UniqueAll(values, none, full((0,), scalar(0, _default_int())), none)
    return UniqueAll(rows, none, none, none)


def _filled(
    values: Array, indices: Array, places: Array, count: int, fill_value: Any
) -> tuple[Array, Array]:
    """What lies behind the distinct values: the fill value, or the first of them."""
    is_filled = e.greater_equal(places, count)
    wide = reshape(is_filled, (values.shape[0],) + (1,) * (values.ndim - 1))
    fill = values[:1] if fill_value is None else fill_value  # type: ignore[index]
    fill = as_array(typed_operand("unique", fill, values.dtype))
    return chosen(wide, fill, values), chosen(is_filled, indices[0], indices)  # type: ignore[index]


def _row_order(flat: Array) -> Array:
    keys = [flat[:, k] for k in range(flat.shape[1])]  # type: ignore[index]
    if not keys:
        return view.iota(_default_int(), (flat.shape[0],), 0)
    return cast(order_of(keys), _default_int())


def _group_starts(ordered: Array, equal_nan: bool) -> Array:
    """Whether each row differs from the one before."""
    before, after = ordered[:-1], ordered[1:]  # type: ignore[index]
    differ = e.not_equal(before, after)
    if equal_nan and dtypes.is_inexact(ordered.dtype):
        differ = e.logical_and(
            differ, e.logical_not(e.logical_and(e.isnan(before), e.isnan(after)))
        )
    differ = reductions.any(differ, axis=1)
    return shaping.concatenate([full((1,), np.bool_(True)), differ])


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """Distinct values with first places, inverse and counts; every NaN is distinct."""
    options: dict[str, Any] = {"equal_nan": False, "size": size, "fill_value": fill_value}
    return UniqueAll(*unique(x, True, True, True, **options))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """Distinct values and how often each occurs; every NaN is distinct."""
    options: dict[str, Any] = {"equal_nan": False, "size": size, "fill_value": fill_value}
    return UniqueCounts(*unique(x, return_counts=True, **options))


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """Distinct values and which of them each element is; every NaN is distinct."""
    options: dict[str, Any] = {"equal_nan": False, "size": size, "fill_value": fill_value}
    return UniqueInverse(*unique(x, return_inverse=True, **options))


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Distinct values; every NaN is distinct."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


# --- Sets ----------------------------------------------------------------------------------------


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Whether each element is among the test elements: d[*s], d[*t] -> bool[*s]."""
    x, tests = (
        as_array(v) for v in promoted("isin", *array_operands("isin", (element, test_elements)))
    )
    flat = reshape(tests, (tests.size,))
    if tests.size == 0:
        return full(x.shape, np.bool_(invert))
    if tests.size <= 32 or dtypes.is_complex(x.dtype):
        equal = e.equal(reshape(x, (*x.shape, 1)), flat)
        found = reductions.any(equal, axis=-1)
    else:
        ordered = sort(flat)
        near = ordered.at[searchsorted(ordered, x)].get(mode="clip")  # type: ignore[attr-defined]
        found = e.equal(near, x)
    return e.logical_not(found) if invert else found


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements of both, in ascending order."""
    x, y = array_operands("union1d", (ar1, ar2))
    return unique(shaping.concatenate([x, y], axis=None), size=size, fill_value=fill_value)


def _sorted_pair(name: str, ar1: Any, ar2: Any, assume_unique: bool) -> tuple[Array, Array]:
    x, y = (shaping.ravel(v) for v in array_operands(name, (ar1, ar2)))
    return (x, y) if assume_unique else (unique(x), unique(y))


def setdiff1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Array:
    """The distinct elements of the first that are not in the second, in ascending order."""
    x, y = (shaping.ravel(v) for v in array_operands("setdiff1d", (ar1, ar2)))
    if size is None:
        x = x if assume_unique else unique(x)
        return compress(isin(x, y, invert=True), x)
    values, counts = unique(x, return_counts=True, size=x.size)
    kept = e.logical_and(isin(values, y, invert=True), e.greater(counts, 0))
    return compress(kept, values, size=size, fill_value=0 if fill_value is None else fill_value)


def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements that both have, in ascending order; on request where each first is."""
    x, y = (shaping.ravel(v) for v in array_operands("intersect1d", (ar1, ar2)))
    first, at = unique(x, return_index=True, size=None if size is None else x.size)
    kept = isin(first, y)
    if size is not None:
        once = shaping.concatenate([full((1,), np.bool_(True)), e.not_equal(first[1:], first[:1])])
        kept = e.logical_and(kept, once)
    fill = 0 if fill_value is None else fill_value
    common = compress(kept, first, size=size, fill_value=fill)
    if not return_indices:
        return common
    second, other = unique(y, return_index=True, size=None if size is None else y.size)
    here = compress(kept, at, size=size, fill_value=x.size)
    return common, here, other.at[searchsorted(second, common)].get(mode="clip")


def setxor1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Array:
    """The distinct elements that only one of both has, in ascending order."""
    x, y = _sorted_pair("setxor1d", ar1, ar2, assume_unique)
    values, counts = unique(shaping.concatenate([x, y]), return_counts=True)
    fill = 0 if fill_value is None else fill_value
    return compress(e.equal(counts, 1), values, size=size, fill_value=fill)


def bincount(
    x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None
) -> Array:
    """How often each whole number occurs, or the sum of its weights: i[n] -> d[m].

    `length` states the length of the result where x is traced.

    >>> import xcube.numpy as jnp
    >>> bincount(jnp.array([0, 2, 2]))
    Array([1, 0, 2], dtype=int32)
    """
    numbers = array_operand("bincount", x)
    if not dtypes.is_integer(numbers.dtype) or numbers.ndim != 1:
        raise TypeError(
            f"bincount: must be integers along one axis; got {numbers.aval}.{at_user_line()}"
        )
    if length is None:
        known = _known("bincount", numbers)
        length = max(int(known.max(initial=-1)) + 1, minlength)
    parts = array_operand("bincount", 1 if weights is None else weights, 1)
    if weights is not None and parts.shape != numbers.shape:
        raise ShapeError(
            f"bincount: weights must have the shape of x; got {parts.aval} for {numbers.aval}."
            f"{at_user_line()}"
        )
    zeros = full((length,), scalar(0, parts.dtype))
    counted = chosen(e.less(numbers, 0), 0, numbers)
    return zeros.at[counted].add(cast(parts, parts.dtype), mode="drop")  # type: ignore[attr-defined]
