"""The collectives that a mapped function calls: `psum`, `all_gather` and their like. Trees, tuples
of names, places of axes and arguments are dealt with here; what remains is one primitive of
`collectives` for each leaf and name."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Axis, Primitive, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul
from xcube.primitives.kinds import add
from xcube.primitives.reduce import reduce_max, reduce_min
from xcube.primitives.shape import full, reduce_sum, reshape, transpose
from xcube.primitives.view import canonical_axis, slice_in_dim
from xcube.trace import bind
from xcube.transforms.arguments import as_leaf, to_array
from xcube.transforms.collectives import (
    all_gather_p,
    all_to_all_p,
    axes_named,
    axis_index_p,
    pmax_p,
    pmin_p,
    ppermute_p,
    psum_p,
    psum_scatter_p,
)

# operands, axes and groups --------------------------------------------------------------------


Groups = tuple[tuple[int, ...], ...] | None


class _Over(NamedTuple):
    """What a collective runs over: named axes, axes of the operand by position, and groups of
    places along the one named axis."""

    named: tuple[Axis, ...]
    positions: tuple[int, ...]
    groups: Groups

    @property
    def members(self) -> int:
        """How many take part: all of the named axes, or those of the first group."""
        if self.groups is None:
            return math.prod(axis.size for axis in self.named)
        return len(self.groups[0])

    def bind(self, primitive: Primitive, x: Any, axis: Axis, **params: Any) -> Any:
        """A collective along one of the named axes."""
        if self.groups is None:
            return bind(primitive, x, axis_name=axis.name, group_sizes=None, **params)
        sizes, order = tuple(map(len, self.groups)), np.concatenate(self.groups)
        places = [_places(order), _places(np.argsort(order))]
        return bind(primitive, x, *places, axis_name=axis.name, group_sizes=sizes, **params)


def _places(numbers: Any) -> Array:
    return to_array.convert(np.asarray(numbers, np.int32))


def _over(operation: str, axis_name: Any, groups: Any = None) -> _Over:
    """Names and positions apart, and groups as tuples."""
    given = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    named = axes_named(operation, [name for name in given if not isinstance(name, int)])
    positions = tuple([name for name in given if isinstance(name, int)])
    if groups is None:
        return _Over(named, positions, None)
    places = sorted(place for group in groups for place in group)
    if positions or len(named) != 1 or places != list(range(named[0].size)):
        sizes = ", ".join(f"{axis.name!r} of size {axis.size}" for axis in named)
        raise ValueError(
            f"{operation}: axis_index_groups must cover all indices exactly once, along one named "
            f"axis; got {groups} for {axis_name!r} ({sizes}).{at_user_line()}"
        )
    return _Over(named, positions, tuple([tuple(group) for group in groups]))


def _even(operation: str, axis_name: Any, groups: Any = None, positions: bool = False) -> _Over:
    """Names alone, and groups of one size."""
    over = _over(operation, axis_name, groups)
    if over.groups is not None and len({len(group) for group in over.groups}) > 1:
        raise ValueError(
            f"{operation}: all axis_index_groups must have the same size; got {groups}."
            f"{at_user_line()}"
        )
    if over.positions and not positions:
        raise NameError(
            f"{operation}: Found an unbound axis name: {over.positions[0]}.{at_user_line()} Only a "
            f"reduction takes axes of the operand by position."
        )
    return over


def _operand(operation: str, leaf: Any) -> Array:
    return as_leaf(operation, operation, leaf, lambda: "one of them")


# reductions -----------------------------------------------------------------------------------


def _reduced(primitive: Primitive, reduce: Callable[..., Any], x: Any, over: _Over) -> Any:
    """x reduced over its own axes first, then over each named one."""
    if over.positions:
        x = reduce(x, [canonical_axis(primitive.name, d, x.aval) for d in over.positions])
    for axis in over.named:
        x = over.bind(primitive, x, axis)
    return x


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over the members of a mapped axis, for each leaf: d[*s] -> d[*s], bools as i32.

    `axis_name`: a name or a tuple of names; integers among them are axes of x, which are summed
    too. `axis_index_groups`: lists of places that are summed apart. A Python number gives a Python
    number: `psum(1, name)` is the size of the axis. Raises NameError if a name is not bound,
    ValueError unless the groups hold every place once.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: x / psum(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([0.25, 0.75], dtype=float32)
    """
    over = _over("psum", axis_name, axis_index_groups)

    def total(leaf: Any) -> Any:
        if isinstance(leaf, bool | int | float | complex) and not over.positions:
            _even("psum", axis_name, over.groups)
            return (int(leaf) if isinstance(leaf, bool) else leaf) * over.members
        x = _operand("psum", leaf)
        x = convert_element_type(x, np.int32) if dtypes.is_bool(x.dtype) else x
        return _reduced(psum_p, reduce_sum, x, over)

    return tree.map(total, x)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over the members of a mapped axis, for each leaf: d[*s] -> float d[*s].

    Raises as `psum`, and ValueError if the groups are not of one size.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: x - pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    over = _even("pmean", axis_name, axis_index_groups, positions=True)

    def mean(leaf: Any) -> Any:
        total = psum(leaf, axis_name, axis_index_groups=axis_index_groups)
        count = over.members * math.prod(np.shape(leaf)[d] for d in over.positions)
        if not isinstance(total, Array):
            return total / count
        if not dtypes.is_inexact(total.dtype):
            total = convert_element_type(total, float, total.aval.weak_type)
        return div(total, count)

    return tree.map(mean, x)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The maximum over the members of a mapped axis, for each leaf: d[*s] -> d[*s].

    Arguments and errors as of `psum`. The derivative is shared by the members that attain it.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: pmax(x, "i"), axis_name="i")(jnp.array([1, 3, 2]))
    Array([3, 3, 3], dtype=int32)
    """
    over = _over("pmax", axis_name, axis_index_groups)
    return tree.map(lambda leaf: _reduced(pmax_p, reduce_max, _operand("pmax", leaf), over), x)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The minimum over the members of a mapped axis, for each leaf: d[*s] -> d[*s].

    Arguments and errors as of `psum`. The derivative is shared by the members that attain it.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: pmin(x, "i"), axis_name="i")(jnp.array([1, 3, 2]))
    Array([1, 1, 1], dtype=int32)
    """
    over = _over("pmin", axis_name, axis_index_groups)
    return tree.map(lambda leaf: _reduced(pmin_p, reduce_min, _operand("pmin", leaf), over), x)


# parts of an operand --------------------------------------------------------------------------


def _along(primitive: Primitive, x: Any, axis: Axis, over: _Over) -> Any:
    """A primitive whose operand or result has one place for each member in front."""
    size = axis.size if over.groups is None else over.members
    return over.bind(primitive, x, axis, axis_size=size)


def _split(x: Any, over: _Over) -> Any:
    """x with its leading axis, of all members, as one axis for each name."""
    sizes = [axis.size for axis in over.named] if over.groups is None else [over.members]
    return reshape(x, (*sizes, *x.shape[1:]))


def _moved(x: Any, source: int, target: int) -> Any:
    """x with one axis moved to another place."""
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return transpose(x, order)


def _cut(x: Any, axis: int, count: int) -> Any:
    """x with an axis cut into so many parts: a new axis stands in front of it."""
    shape = x.shape
    return reshape(x, (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))


def _joined(x: Any, axis: int) -> Any:
    """x with an axis and the next as one."""
    shape = x.shape
    return reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _parts(operation: str, x: Array, axis: int, count: int, tiled: bool) -> Any:
    """x with one part of an axis for each member in front: d[.., n * k, ..] -> d[n, .., k, ..] if
    tiled, else d[.., n, ..] -> d[n, ..]."""
    length = x.shape[axis]
    if length % count if tiled else length != count:
        must = "be divisible by" if tiled else "equal"
        raise ShapeError(
            f"{operation}: axis {axis} of {x.aval} must {must} the {count} members of the named "
            f"axis; it has {length} elements.{at_user_line()}"
        )
    return _moved(_cut(x, axis, count) if tiled else x, axis, 0)


# gathers and exchanges ------------------------------------------------------------------------


def all_gather(
    x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False
) -> Any:
    """What all members of a mapped axis hold, for each leaf: d[*s] -> d[*s with n at `axis`], or,
    if tiled, concatenated along the axis.

    Raises NameError if a name is not bound, ShapeError if the axis does not lie in the result,
    ValueError unless the groups hold every place once and have one size.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: all_gather(x, "i"), axis_name="i")(jnp.arange(2))
    Array([[0, 1],
           [0, 1]], dtype=int32)
    """
    over = _even("all_gather", axis_name, axis_index_groups)

    def gathered(leaf: Any) -> Any:
        x = _operand("all_gather", leaf)
        place = canonical_axis("all_gather", axis, x.aval, 0 if tiled else 1)
        shape = x.shape
        for one in reversed(over.named):
            x = _along(all_gather_p, x, one, over)
        x = _moved(reshape(x, (over.members, *shape)), 0, place)
        return _joined(x, place) if tiled else x

    return tree.map(gathered, x) if over.named else x


def psum_scatter(
    x: Any,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    """The sum over the members of a mapped axis, of which each keeps its part, for each leaf:
    d[.., n, ..] -> d[.., ..], or, if tiled, d[.., n * k, ..] -> d[.., k, ..].

    Raises NameError if a name is not bound, ShapeError if the dimension does not fit the axis,
    ValueError unless the groups hold every place once and have one size.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: psum_scatter(x, "i"), axis_name="i")(jnp.arange(4).reshape(2, 2))
    Array([2, 4], dtype=int32)
    """
    over = _even("psum_scatter", axis_name, axis_index_groups)

    def scattered(leaf: Any) -> Any:
        x = _operand("psum_scatter", leaf)
        place = canonical_axis("psum_scatter", scatter_dimension, x.aval)
        x = _parts("psum_scatter", x, place, over.members, tiled)
        x = _split(x, over)
        for axis in over.named:
            x = _along(psum_scatter_p, x, axis, over)
        return x

    return tree.map(scattered, x) if over.named else x


def all_to_all(
    x: Any,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    """Exchange of parts, for each leaf: each member of a mapped axis sends the k-th part along
    `split_axis` to member k, and stacks what it receives at `concat_axis` of the result; if tiled,
    it concatenates it along that axis.

    Raises NameError if a name is not bound, ShapeError if an axis does not fit, ValueError unless
    the groups hold every place once and have one size.

    >>> import xcube, xcube.numpy as jnp
    >>> x = jnp.arange(4).reshape(2, 2)
    >>> xcube.vmap(lambda row: all_to_all(row, "i", 0, 0), axis_name="i")(x)
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    over = _even("all_to_all", axis_name, axis_index_groups)

    def exchanged(leaf: Any) -> Any:
        x = _operand("all_to_all", leaf)
        split = canonical_axis("all_to_all", split_axis, x.aval)
        concat = canonical_axis("all_to_all", concat_axis, x.aval)
        x = _parts("all_to_all", x, split, over.members, tiled)
        rest = x.shape[1:]
        x = _split(x, over)
        for axis in over.named:
            x = _along(all_to_all_p, x, axis, over)
            x = _moved(x, 0, len(over.named) - 1)
        x = _moved(reshape(x, (over.members, *rest)), 0, concat)
        return _joined(x, concat) if tiled else x

    return tree.map(exchanged, x) if over.named else x


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """A mapped axis and an axis of x exchanged, for each leaf: all_to_all from `axis` to `axis`.

    Raises as `all_to_all`.

    >>> import xcube, xcube.numpy as jnp
    >>> x = jnp.arange(4).reshape(2, 2)
    >>> xcube.vmap(lambda row: pswapaxes(row, "i", 0), axis_name="i")(x)
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


# places of an axis ----------------------------------------------------------------------------


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """What another member of a mapped axis holds, for each leaf: d[*s] -> d[*s].

    `perm`: pairs (source, target), which are places along the axis; a member that is no target gets
    zeros. Raises NameError if the name is not bound, ValueError unless there is one name, and
    sources and targets lie in the axis and are distinct.

    >>> import xcube, xcube.numpy as jnp
    >>> pairs = [(0, 1), (1, 2)]
    >>> xcube.vmap(lambda x: ppermute(x, "i", pairs), axis_name="i")(jnp.array([5, 6, 7]))
    Array([0, 5, 6], dtype=int32)
    """
    over = _even("ppermute", axis_name)
    pairs = tuple([(operator.index(source), operator.index(target)) for source, target in perm])
    places = range(over.members)
    good = all(
        len(set(side)) == len(side) and all(place in places for place in side)
        for side in zip(*pairs, strict=True)
    )
    if len(over.named) != 1 or not good:
        raise ValueError(
            f"ppermute: needs one named axis, and sources and destinations must be unique and lie "
            f"in 0..{over.members - 1}; got {axis_name!r} and {perm}.{at_user_line()}"
        )
    (axis,) = over.named
    sources, targets = np.full((2, axis.size), axis.size)
    for source, target in pairs:
        sources[target], targets[source] = source, target
    name, places = axis.name, (_places(sources), _places(targets))

    def permuted(leaf: Any) -> Any:
        x = _operand("ppermute", leaf)
        return bind(ppermute_p, x, *places, axis_name=name, group_sizes=None)

    return tree.map(permuted, x)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """What member `perm[k]` of a mapped axis holds, at member k, for each leaf: d[*s] -> d[*s].

    Raises NameError if the name is not bound, ValueError unless `perm` is a permutation of the
    places of the axis.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([5, 6, 7]))
    Array([7, 5, 6], dtype=int32)
    """
    size = axis_size(axis_name)
    if sorted(perm) != list(range(size)):
        raise ValueError(
            f"pshuffle: `perm` must be a permutation of 0..{size - 1}; got {perm}.{at_user_line()}"
        )
    return ppermute(x, axis_name, list(zip(perm, range(size), strict=True)))


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """What the member at place `source` of a mapped axis holds, for each leaf: d[*s] -> d[*s].

    Raises NameError if a name is not bound, ValueError unless the source lies in the axis.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: pbroadcast(x, "i", 1), axis_name="i")(jnp.array([5, 6, 7]))
    Array([6, 6, 6], dtype=int32)
    """
    size = axis_size(axis_name)
    if not 0 <= source < size:
        raise ValueError(
            f"pbroadcast: the source must lie in 0..{size - 1}; got {source}.{at_user_line()}"
        )

    def sent(leaf: Any) -> Any:
        every = all_gather(leaf, axis_name)
        return reshape(slice_in_dim(every, source, source + 1), every.shape[1:])

    return tree.map(sent, x)


def axis_index(axis_name: Any) -> Array:
    """The place of a member along a mapped axis, i32[]; with a tuple of names, the place in their
    product, the last name quickest.

    Raises NameError if a name is not bound.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: x * axis_index("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([ 0,  6, 14], dtype=int32)
    """
    axes = axes_named("axis_index", axis_name)
    if not axes:
        return full((), np.int32(0))
    place, *inner = [bind(axis_index_p, axis_name=axis.name) for axis in axes]
    for axis, index in zip(axes[1:], inner, strict=True):
        place = add(mul(place, axis.size), index)
    return place


def axis_size(axis_name: Any) -> int:
    """The size of a mapped axis, of the product of several.

    Raises NameError if a name is not bound.

    >>> import xcube, xcube.numpy as jnp
    >>> xcube.vmap(lambda x: x * axis_size("i"), axis_name="i")(jnp.array([5, 6, 7]))
    Array([15, 18, 21], dtype=int32)
    """
    return math.prod(axis.size for axis in axes_named("axis_size", axis_name))
