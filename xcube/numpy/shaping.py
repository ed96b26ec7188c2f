"""The same elements in another arrangement: reshape, transpose, join, split, repeat, roll, pad."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    as_array,
    broadcast,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    cast,
    concrete,
    promoted,
    requested,
    shape_of,
    stretch,
)
from xcube.numpy.operands import broadcast_shapes as common_shape
from xcube.primitives import shape as primitive
from xcube.primitives import view
from xcube.primitives.index import dynamic_slice

# --- Shape ---------------------------------------------------------------------------------------


def shape(a: Any) -> Shape:
    """Length of each axis."""
    return shape_of("shape", a)


def ndim(a: Any) -> int:
    """Number of axes."""
    return len(shape_of("ndim", a))


def size(a: Any, axis: int | None = None) -> int:
    """Number of elements, or length of an axis."""
    sizes = shape_of("size", a)
    return math.prod(sizes) if axis is None else sizes[canonical_axis("size", axis, len(sizes))]


def reshape(a: Any, shape: Any = None, order: str = "C", *, copy: bool | None = None) -> Array:
    """The same elements in row-major order under another shape; one size may be -1.

    Raises ShapeError if the numbers of elements differ.

    >>> import xcube.numpy as jnp
    >>> reshape(jnp.arange(4), (2, -1))
    Array([[0, 1],
           [2, 3]], dtype=int32)
    """
    x = array_operand("reshape", a)
    sizes = _inferred("reshape", x, canonical_shape("reshape", shape))
    if order in ("C", "K", "A"):
        return primitive.reshape(x, sizes)
    if order != "F":
        raise ValueError(f"reshape: order must be 'C' or 'F'; got {order!r}.{at_user_line()}")
    return transpose(primitive.reshape(transpose(x), sizes[::-1]))


def _inferred(name: str, x: Array, sizes: Shape) -> Shape:
    unknown = sizes.count(-1)
    known = math.prod(n for n in sizes if n != -1)
    fits = math.prod(sizes) == x.size if not unknown else known > 0 and x.size % known == 0
    if unknown > 1 or not fits or any(n < -1 for n in sizes):
        raise ShapeError(
            f"{name}: the new shape must hold the {x.size} elements of {x.aval}, at most one size "
            f"being -1; got {sizes}.{at_user_line()}"
        )
    return tuple(x.size // known if n == -1 else n for n in sizes) if unknown else sizes


def ravel(a: Any, order: str = "C", *, out_sharding: None = None) -> Array:
    """All elements along one axis: d[*s] -> d[n]."""
    return reshape(a, (-1,) if size(a) else (0,), order)


def transpose(a: Any, axes: Sequence[int] | None = None) -> Array:
    """Axes permuted, reversed by default: axis i of the result is axis axes[i] of a.

    Raises ShapeError unless `axes` names each axis once.
    """
    x = array_operand("transpose", a)
    if axes is None:
        return primitive.transpose(x, range(x.ndim)[::-1])
    order = tuple(canonical_axis("transpose", k, x.ndim, x.aval) for k in axes)
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(
            f"transpose: axes must name each axis of {x.aval} once; got {tuple(axes)}."
            f"{at_user_line()}"
        )
    return primitive.transpose(x, order)


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes exchanged: d[*s, n, m] -> d[*s, m, n]."""
    array = array_operand("matrix_transpose", x)
    if array.ndim < 2:
        raise ShapeError(
            f"matrix_transpose: the array must have two axes; got {array.aval}.{at_user_line()}"
        )
    return swapaxes(array, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Array:
    """Two axes exchanged."""
    x = array_operand("swapaxes", a)
    i, j = (canonical_axis("swapaxes", k, x.ndim, x.aval) for k in (axis1, axis2))
    order = list(range(x.ndim))
    order[i], order[j] = j, i
    return primitive.transpose(x, order)


def moveaxis(a: Any, source: Any, destination: Any) -> Array:
    """Axes moved to other places, the others keeping their order.

    Raises ShapeError unless as many places are given as axes.
    """
    x = array_operand("moveaxis", a)
    sources, places = (
        [canonical_axis("moveaxis", k, x.ndim, x.aval) for k in _several(axes)]
        for axes in (source, destination)
    )
    if len(sources) != len(places) or len(set(sources)) != len(sources):
        raise ShapeError(
            f"moveaxis: source and destination must be as many distinct axes; got {source} and "
            f"{destination}.{at_user_line()}"
        )
    order = [k for k in range(x.ndim) if k not in sources]
    for place, k in sorted(zip(places, sources, strict=True)):
        order.insert(place, k)
    return primitive.transpose(x, order)


def _several(axes: Any) -> Sequence[int]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def rollaxis(a: Any, axis: int, start: int = 0) -> Array:
    """An axis moved before axis `start`."""
    x = array_operand("rollaxis", a)
    k = canonical_axis("rollaxis", axis, x.ndim, x.aval)
    place = start + x.ndim if start < 0 else start
    return moveaxis(x, k, place - 1 if k < place else place)


def expand_dims(a: Any, axis: Any) -> Array:
    """Axes of length 1 inserted at the places `axis` of the result."""
    x = array_operand("expand_dims", a)
    given = _several(axis)
    rank = x.ndim + len(given)
    places = {canonical_axis("expand_dims", k, rank) for k in given}
    if len(places) != len(given):
        raise ShapeError(f"expand_dims: axes must be distinct; got {given}.{at_user_line()}")
    sizes = iter(x.shape)
    kept = tuple(k for k in range(rank) if k not in places)
    target = tuple(1 if k in places else next(sizes) for k in range(rank))
    return primitive.broadcast_in_dim(x, target, kept)


def squeeze(a: Any, axis: Any = None) -> Array:
    """Axes of length 1 taken away, all of them by default.

    Raises ShapeError if an axis is longer.
    """
    x = array_operand("squeeze", a)
    if axis is None:
        axes = tuple(k for k, n in enumerate(x.shape) if n == 1)
    else:
        axes = canonical_axes("squeeze", axis, x.aval)
    if any(x.shape[k] != 1 for k in axes):
        raise ShapeError(
            f"squeeze: axes must have length 1; got axis={axis} of {x.aval}.{at_user_line()}"
        )
    return view.squeeze(x, axes) if axes else x


def atleast_1d(*arys: Any) -> Any:
    """Arrays with an axis at least."""
    return _each(arys, "atleast_1d", lambda x: x if x.ndim else primitive.reshape(x, (1,)))


def atleast_2d(*arys: Any) -> Any:
    """Arrays with two axes at least, new ones in front."""
    return _each(arys, "atleast_2d", lambda x: primitive.reshape(x, (1,) * (2 - x.ndim) + x.shape))


def atleast_3d(*arys: Any) -> Any:
    """Arrays with three axes at least: d[n] -> d[1, n, 1], d[m, n] -> d[m, n, 1]."""

    def deepen(x: Array) -> Array:
        forms = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}
        return primitive.reshape(x, forms.get(x.ndim, x.shape))

    return _each(arys, "atleast_3d", deepen)


def _each(arrays: Sequence[Any], name: str, function: Callable[[Array], Array]) -> Any:
    results = [function(x) for x in array_operands(name, arrays)]
    return results[0] if len(results) == 1 else results


# --- Broadcasting --------------------------------------------------------------------------------


def broadcast_to(array: Any, shape: Any) -> Array:
    """The array repeated along new axes and along axes of length 1 to a shape.

    Raises ShapeError if it does not fit.
    """
    x = array_operand("broadcast_to", array)
    sizes = canonical_shape("broadcast_to", shape)
    if len(sizes) < x.ndim or common_shape("broadcast_to", x.shape, sizes) != sizes:
        raise ShapeError(
            f"broadcast_to: {x.aval} must broadcast to the shape; got {sizes}.{at_user_line()}"
        )
    return stretch(x, sizes)


def broadcast_arrays(*args: Any) -> list[Array]:
    """The arrays in one shape."""
    return broadcast("broadcast_arrays", array_operands("broadcast_arrays", args))


def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape to which shapes broadcast. Raises ShapeError if there is none.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    return common_shape(
        "broadcast_shapes", *[canonical_shape("broadcast_shapes", s) for s in shapes]
    )


# --- Joining -------------------------------------------------------------------------------------


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """Arrays joined along an axis; flattened first if it is None.

    Raises ShapeError if the other axes differ, ValueError if there is no array.

    >>> import xcube.numpy as jnp
    >>> concatenate([jnp.zeros(1), jnp.ones(2)])
    Array([0., 1., 1.], dtype=float32)
    """
    items = _items("concatenate", arrays)
    if axis is None:
        items, axis = [ravel(x) for x in items], 0
    return _joined("concatenate", items, axis, dtype)


def concat(arrays: Any, /, *, axis: int | None = 0) -> Array:
    """`concatenate`, by its name in the array API standard."""
    return concatenate(arrays, axis)


def _items(name: str, arrays: Any) -> list[Array]:
    if isinstance(arrays, Array) or (isinstance(arrays, np.ndarray) and arrays.ndim):
        items = list(array_operand(name, arrays))
    elif isinstance(arrays, list | tuple):
        items = array_operands(name, arrays)
    else:
        raise TypeError(
            f"{name}: arrays must be a sequence of arrays; got {type(arrays).__name__}."
            f"{at_user_line()}"
        )
    if not items:
        raise ValueError(f"{name}: at least one array must be given; got none.{at_user_line()}")
    return items


def _joined(name: str, items: Sequence[Array], axis: int, dtype: Any = None) -> Array:
    first = items[0]
    if any(x.ndim == 0 for x in items):
        raise ShapeError(f"{name}: arrays must have an axis; got {first.aval}.{at_user_line()}")
    k = canonical_axis(name, axis, first.ndim, first.aval)
    rests = {(*x.shape[:k], *x.shape[k + 1 :]) if x.ndim == first.ndim else None for x in items}
    if len(rests) > 1:
        raise ShapeError(
            f"{name}: arrays must have equal shapes but for axis {k}; got "
            f"{', '.join(str(x.aval) for x in items)}.{at_user_line()}"
        )
    if dtype is not None:
        wanted = requested(name, dtype)
        parts = [cast(x, wanted) for x in items]
    else:
        parts = [as_array(x) for x in promoted(name, *items)]
    return parts[0] if len(parts) == 1 else view.concatenate(parts, k)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """Arrays of one shape joined along a new axis.

    Raises ShapeError if the shapes differ.
    """
    items = _items("stack", arrays)
    if len({x.shape for x in items}) > 1:
        raise ShapeError(
            f"stack: arrays must have one shape; got {', '.join(str(x.aval) for x in items)}."
            f"{at_user_line()}"
        )
    k = canonical_axis("stack", axis, items[0].ndim + 1)
    return _joined("stack", [expand_dims(x, k) for x in items], k, dtype)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis, which they lose."""
    array = array_operand("unstack", x)
    k = canonical_axis("unstack", axis, array.ndim, array.aval)
    return tuple(view.squeeze(part, (k,)) for part in split(array, array.shape[k], k))


def vstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays joined as rows."""
    rows = atleast_2d(*_items("vstack", tup))
    return _joined("vstack", rows if isinstance(rows, list) else [rows], 0, dtype)


def hstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays joined along the second axis, along the first if they have one."""
    items = [atleast_1d(x) for x in _items("hstack", tup)]
    return _joined("hstack", items, 0 if items[0].ndim == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays joined along the third axis."""
    return _joined("dstack", [atleast_3d(x) for x in _items("dstack", tup)], 2, dtype)


def column_stack(tup: Any) -> Array:
    """Arrays joined as columns."""
    items = [transpose(atleast_2d(x)) if x.ndim < 2 else x for x in _items("column_stack", tup)]
    return _joined("column_stack", items, 1)


def block(arrays: Any) -> Array:
    """An array of nested lists of blocks: the innermost lists join along the last axis."""
    depth = _depth(arrays)
    rank = max(depth, _rank(arrays))
    return _block(arrays, depth, rank)


def _depth(arrays: Any) -> int:
    return 1 + max(map(_depth, arrays)) if isinstance(arrays, list) else 0


def _rank(arrays: Any) -> int:
    return max(map(_rank, arrays)) if isinstance(arrays, list) else ndim(arrays)


def _block(arrays: Any, depth: int, rank: int) -> Array:
    if not isinstance(arrays, list):
        x = array_operand("block", arrays)
        return primitive.reshape(x, (1,) * (rank - x.ndim) + x.shape)
    parts = [_block(item, depth - 1, rank) for item in arrays]
    return _joined("block", parts, rank - depth)


def append(arr: Any, values: Any, axis: int | None = None) -> Array:
    """Values joined behind an array; both flattened if the axis is None."""
    return concatenate([array_operand("append", arr), array_operand("append", values, 1)], axis)


# --- Splitting -----------------------------------------------------------------------------------


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """An array cut along an axis into equal sections, or at indices.

    Raises ValueError if it does not divide into equal sections.
    """
    x = array_operand("split", ary)
    k = canonical_axis("split", axis, x.ndim, x.aval)
    if isinstance(indices_or_sections, int | np.integer):
        sections = int(indices_or_sections)
        if sections < 1 or x.shape[k] % sections:
            raise ValueError(
                f"split: axis {k} of {x.aval} must divide into equal sections; got {sections}."
                f"{at_user_line()}"
            )
    return array_split(x, indices_or_sections, axis)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """An array cut along an axis at indices, or into sections whose lengths differ by at most 1."""
    x = array_operand("array_split", ary)
    k = canonical_axis("array_split", axis, x.ndim, x.aval)
    length = x.shape[k]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        if count < 1:
            raise ValueError(
                f"array_split: sections must be positive; got {count}.{at_user_line()}"
            )
        whole, rest = divmod(length, count)
        cuts = [part * whole + min(part, rest) for part in range(count + 1)]
    else:
        given = concrete("array_split", indices_or_sections, "indices").tolist()
        cuts = [0, *(min(max(i + length if i < 0 else i, 0), length) for i in given), length]
    pairs = itertools.pairwise(cuts)
    return [view_of(x, k, low, max(low, high)) for low, high in pairs]


def view_of(x: Array, axis: int, low: int, high: int, step: int = 1) -> Array:
    """x[low:high:step] along one axis, within bounds."""
    starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], limits[axis], strides[axis] = low, high, step
    if low == 0 and high == x.shape[axis] and step == 1:
        return x
    return view.slice(x, starts, limits, None if step == 1 else strides)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """`split` along the second axis, along the first if there is one."""
    x = array_operand("hsplit", ary)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """`split` along the first axis."""
    return split(ary, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Array]:
    """`split` along the third axis."""
    return split(ary, indices_or_sections, 2)


# --- Order ---------------------------------------------------------------------------------------


def flip(m: Any, axis: Any = None) -> Array:
    """Axes in reverse order, all by default."""
    x = array_operand("flip", m)
    axes = canonical_axes("flip", axis, x.aval)
    return view.rev(x, axes) if axes else x


def flipud(m: Any) -> Array:
    """The first axis in reverse order."""
    return flip(m, 0)


def fliplr(m: Any) -> Array:
    """The second axis in reverse order."""
    return flip(m, 1)


@fused()
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Turned by k quarter turns in the plane of two axes, from the first toward the second."""
    x = array_operand("rot90", m)
    i, j = (canonical_axis("rot90", axis, x.ndim, x.aval) for axis in axes)
    if i == j:
        raise ShapeError(f"rot90: the axes must be distinct; got {axes}.{at_user_line()}")
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return view.rev(x, (min(i, j), max(i, j)))
    return swapaxes(flip(x, j), i, j) if turns == 1 else flip(swapaxes(x, i, j), j)


@fused()
def roll(a: Any, shift: Any, axis: Any = None) -> Array:
    """Elements moved along axes, those that leave entering at the other end.

    >>> import xcube.numpy as jnp
    >>> roll(jnp.arange(3), 1)
    Array([2, 0, 1], dtype=int32)
    """
    x = array_operand("roll", a)
    if axis is None:
        return primitive.reshape(roll(ravel(x), _total(shift), 0), x.shape)
    axes = [canonical_axis("roll", k, x.ndim, x.aval) for k in _several(axis)]
    shifts = _shifts(shift, len(axes))
    for distance, k in zip(shifts, axes, strict=True):
        x = _rolled(x, distance, k)
    return x


def _total(shift: Any) -> Any:
    return sum(shift) if isinstance(shift, tuple | list) else shift


def _shifts(shift: Any, count: int) -> list[Any]:
    given = shift
    if isinstance(shift, np.ndarray | Array) and shift.ndim:
        given = list(shift)
    given = list(given) if isinstance(given, tuple | list) else [given] * count
    if len(given) != count:
        raise ShapeError(
            f"roll: shift and axis must be as many; got {len(given)} and {count}.{at_user_line()}"
        )
    return given


def _rolled(x: Array, distance: Any, axis: int) -> Array:
    length = x.shape[axis]
    if length == 0:
        return x
    if isinstance(distance, Array):
        start = (-distance) % length  # type: ignore[operator]
        starts = [start if k == axis else 0 for k in range(x.ndim)]
        double = view.concatenate([x, x], axis)
        return dynamic_slice(double, starts, x.shape, allow_negative_indices=False)
    cut = -operator.index(distance) % length
    if cut == 0:
        return x
    return view.concatenate([view_of(x, axis, cut, length), view_of(x, axis, 0, cut)], axis)


# --- Repetition ----------------------------------------------------------------------------------


@fused()
def tile(A: Any, reps: Any) -> Array:
    """The array repeated as a block so many times along each axis.

    >>> import xcube.numpy as jnp
    >>> tile(jnp.arange(2), 2)
    Array([0, 1, 0, 1], dtype=int32)
    """
    x = array_operand("tile", A)
    counts = canonical_shape("tile", reps)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    pairs = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    spread = primitive.broadcast_in_dim(
        primitive.reshape(x, sizes), tuple(pairs), tuple(range(1, 2 * rank, 2))
    )
    return primitive.reshape(spread, tuple(c * n for c, n in zip(counts, sizes, strict=True)))
