"""map and associative_scan: a function applied along an axis, one element after another or in
batches; and all partial results of an associative operation, in a logarithmic number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xcube import tree
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.primitives.shape import reshape
from xcube.primitives.view import canonical_axis, concatenate, expand_dims, rev, slice_in_dim
from xcube.transforms.arguments import to_array
from xcube.transforms.control import loops
from xcube.transforms.control.agreement import check_functions, check_result, paths_of
from xcube.transforms.control.bodies import name_of, operands
from xcube.transforms.vmap import vmap


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """f of each row of xs, stacked: leaves d[n, *s] -> leaves e[n, *t].

    f is traced once and applied to one row after another. With `batch_size` so many rows are done
    at a time, as by vmap; 0 means all of them. Raises ValueError if leading axes differ.

    >>> import xcube.numpy as jnp
    >>> map(lambda x: x * x, jnp.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    check_functions("map", f=f)
    rows, treedef = operands("map", name_of(f), "xs", xs)
    count = loops.steps("map", rows, treedef)
    if batch_size is None:
        return _one_by_one(f, tree.unflatten(treedef, rows), count)
    if batch_size < 0:
        raise ValueError(f"map: batch_size must be >= 0; got {batch_size}.{at_user_line()}")
    return _in_batches(f, tree.unflatten(treedef, rows), count, batch_size or max(count, 1))


def _one_by_one(f: Any, xs: Any, count: int, is_batched: bool = False) -> Any:
    step = vmap(f) if is_batched else f
    loop = loops.Loop("map", f, lambda _, x: ((), step(x)), count, variant=is_batched)
    return loops.run_scan(loop, (), xs)[1]


def _in_batches(f: Callable[[Any], Any], xs: Any, count: int, size: int) -> Any:
    """Whole batches one after another, then the rows that are left as one smaller batch."""
    batches, rest = divmod(count, size)
    whole, parts = batches * size, []
    if batches:
        stacked = tree.map(lambda x: _folded(slice_in_dim(x, 0, whole), batches), xs)
        parts.append(tree.map(_unfolded, _one_by_one(f, stacked, batches, True)))
    if rest or not batches:
        parts.append(vmap(f)(tree.map(lambda x: slice_in_dim(x, whole, count), xs)))
    return parts[0] if len(parts) == 1 else tree.map(lambda *ys: concatenate(ys, 0), *parts)


def _folded(x: Array, count: int) -> Any:
    return reshape(x, (count, x.shape[0] // count, *x.shape[1:]))


def _unfolded(x: Array) -> Any:
    return reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


# associative scan -----------------------------------------------------------------------------


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All partial results of an associative operation along an axis: place k holds the combination
    of elements 0 to k, or of those from the end if `reverse`.

    `fn(a, b)` combines two pytrees like elems element by element along the axis, on which it may be
    called with any length. Leaves d[*s] -> d[*s]. Source: Blelloch, Prefix sums and their
    applications, 1990. Raises ShapeError if the leaves differ in length along the axis, TypeError
    if fn returns other shapes or dtypes.

    >>> import xcube.numpy as jnp
    >>> associative_scan(jnp.add, jnp.arange(4))
    Array([0, 1, 3, 6], dtype=int32)
    """
    check_functions("associative_scan", fn=fn)
    leaves, treedef = tree.flatten(tree.map(to_array.convert, elems))
    if not leaves:
        return elems
    place = canonical_axis("associative_scan", axis, leaves[0].aval)
    _check_lengths(leaves, treedef, place)

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        result = fn(tree.unflatten(treedef, a), tree.unflatten(treedef, b))
        return _combined(name_of(fn), treedef, a, result)

    if reverse:
        leaves = [rev(x, (place,)) for x in leaves]
    found = _prefixes(combine, leaves, place)
    if reverse:
        found = [rev(x, (place,)) for x in found]
    return tree.unflatten(treedef, found)


def _check_lengths(leaves: list[Array], treedef: tree.TreeDef, axis: int) -> None:
    if any(x.ndim <= axis for x in leaves) or len({x.shape[axis] for x in leaves}) > 1:
        pairs = zip(paths_of(treedef), leaves, strict=True)
        raise ShapeError(
            f"associative_scan: all leaves must have one length along axis {axis}; got "
            f"{', '.join(f'elems{path}: {x.aval}' for path, x in pairs)}.{at_user_line()}"
        )


def _combined(name: str, treedef: tree.TreeDef, given: list[Any], result: Any) -> list[Any]:
    """The leaves of what fn returned. Raises TypeError unless they are like those it was given."""
    leaves, found = tree.flatten(tree.map(to_array.convert, result))
    expected = treedef, [x.aval for x in given]
    check_result("associative_scan", name, expected, (found, [x.aval for x in leaves]))
    return leaves


def _prefixes(
    combine: Callable[[list[Any], list[Any]], list[Any]], elems: list[Any], axis: int
) -> list[Any]:
    """The results at odd places are those of combined neighbours; each of the others follows from
    the one before it."""
    length = elems[0].shape[axis]
    if length < 2:
        return elems

    def part(x: Any, start: int, stop: int, step: int = 1) -> Any:
        return slice_in_dim(x, start, stop, step, axis)

    pairs = length // 2
    first = [part(x, 0, 2 * pairs, 2) for x in elems]
    odd = _prefixes(combine, combine(first, [part(x, 1, length, 2) for x in elems]), axis)
    even, later = [part(x, 0, 1) for x in elems], (length - 1) // 2
    if later:
        before = [part(x, 0, later) for x in odd]
        tails = combine(before, [part(x, 2, length, 2) for x in elems])
        even = [concatenate(both, axis) for both in zip(even, tails, strict=True)]
    return [_interleaved(a, b, axis) for a, b in zip(even, odd, strict=True)]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], ...: `even` may have one element more."""
    length = even.shape[axis] + odd.shape[axis]
    if even.shape[axis] > odd.shape[axis]:
        odd = concatenate([odd, slice_in_dim(even, -1, None, axis=axis)], axis)
    both = concatenate([expand_dims(even, (axis + 1,)), expand_dims(odd, (axis + 1,))], axis + 1)
    shape = list(even.shape)
    shape[axis] *= 2
    return slice_in_dim(reshape(both, shape), 0, length, axis=axis)
