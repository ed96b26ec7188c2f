"""Products that sum over axes: dot, matmul, tensordot, einsum. Each pair is one dot_general; what
is not summed is multiplied element by element, so that it fuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.array import Array, DeviceArray
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy import reductions
from xcube.numpy.fused import fused, run_static
from xcube.numpy.operands import (
    array_operands,
    as_array,
    broadcast_shapes,
    canonical_axis,
    cast,
    promoted,
    requested,
    stretch,
)
from xcube.numpy.taking import diagonal
from xcube.primitives.contract import dot_general
from xcube.primitives.shape import reduce_sum, reshape, transpose
from xcube.primitives.view import concatenate
from xcube.trace import EVAL, current_trace

Axes = tuple[int, ...]


def _arrays(name: str, values: Sequence[Any]) -> list[Array]:
    """Arrays of one dtype."""
    return [as_array(x) for x in promoted(name, *array_operands(name, values))]


def _contract(
    x: Array, y: Array, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes], options: Any
) -> Array:
    precision, preferred = options
    wanted = None if preferred is None else requested("dot_general", preferred)
    return dot_general(x, y, (contract, batch), precision=precision, preferred_element_type=wanted)


def _mismatch(name: str, rule: str, x: Array, y: Array) -> ShapeError:
    return ShapeError(f"{name}: {rule}; got {x.aval} and {y.aval}.{at_user_line()}")


# --- dot and matmul ------------------------------------------------------------------------------


@fused(2)
def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum over the last axis of a and the second to last of b: d[*s, k], d[*t, k, n] ->
    d[*s, *t, n]; with a scalar, the product.

    Raises ShapeError if the axes differ in length.

    >>> import xcube.numpy as jnp
    >>> dot(jnp.arange(3), jnp.arange(3))
    Array(5, dtype=int32)
    """
    x, y = _arrays("dot", (a, b))
    if x.ndim == 0 or y.ndim == 0:
        result = e.multiply(x, y)
        return result if preferred_element_type is None else cast(result, preferred_element_type)
    k = max(y.ndim - 2, 0)
    if x.shape[-1] != y.shape[k]:
        raise _mismatch("dot", f"axis {x.ndim - 1} of a must equal axis {k} of b", x, y)
    options = (precision, preferred_element_type)
    return _contract(x, y, ((x.ndim - 1,), (k,)), ((), ()), options)


@fused(2)
def matmul(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The product of matrices: d[*s, n, k], d[*s, k, m] -> d[*s, n, m]; vectors stand for rows on
    the left and for columns on the right.

    Raises ShapeError if the inner axes differ in length or the outer do not broadcast.

    >>> import xcube.numpy as jnp
    >>> matmul(jnp.eye(2), jnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    x, y = _arrays("matmul", (a, b))
    if x.ndim == 0 or y.ndim == 0:
        raise _mismatch("matmul", "both arrays must have an axis; use * for scalars", x, y)
    inner = max(y.ndim - 2, 0)
    if x.shape[-1] != y.shape[inner]:
        raise _mismatch("matmul", f"axis {x.ndim - 1} of a must equal axis {inner} of b", x, y)
    options = (precision, preferred_element_type)
    if x.ndim <= 2 and y.ndim <= 2:
        return _contract(x, y, ((x.ndim - 1,), (inner,)), ((), ()), options)
    return _batched_matmul(x, y, options)


def _batched_matmul(x: Array, y: Array, options: Any) -> Array:
    """Axes of equal length are batched, axes that only one array has stay free."""
    rows, columns = x.shape[:-2], y.shape[:-2]
    batch = broadcast_shapes("matmul", rows, columns)
    rank = len(batch)
    x_name = "".join(_letter(k) for k in range(rank - len(rows), rank))
    y_name = "".join(_letter(k) for k in range(rank - len(columns), rank))
    x_name, x = _without_ones(x_name, x, batch, rank)
    y_name, y = _without_ones(y_name, y, batch, rank)
    left = x_name + ("MK" if x.ndim - len(x_name) == 2 else "K")
    right = y_name + ("KN" if y.ndim - len(y_name) == 2 else "K")
    target = "".join(_letter(k) for k in range(rank))
    target += ("M" if "M" in left else "") + ("N" if "N" in right else "")
    return _pair(left, x, right, y, target, options)


def _letter(k: int) -> str:
    return chr(97 + k)


def _without_ones(name: str, x: Array, batch: Sequence[int], rank: int) -> tuple[str, Array]:
    """Batch axes of length 1 that the result has longer are dropped."""
    start = rank - len(name)
    dropped = [k for k in range(len(name)) if x.shape[k] == 1 and batch[start + k] != 1]
    kept = "".join(c for k, c in enumerate(name) if k not in dropped)
    return kept, reshape(x, [n for k, n in enumerate(x.shape) if k not in dropped])


@fused(2)
def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum over the last axes of both: d[*s, k], d[*t, k] -> d[*s, *t].

    Raises ShapeError if these differ in length.
    """
    x, y = _arrays("inner", (a, b))
    if x.ndim == 0 or y.ndim == 0:
        return e.multiply(x, y)
    if x.shape[-1] != y.shape[-1]:
        raise _mismatch("inner", "the last axes must have one length", x, y)
    options = (precision, preferred_element_type)
    return _contract(x, y, ((x.ndim - 1,), (y.ndim - 1,)), ((), ()), options)


@fused(2)
def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of conj(a) * b over all elements: d[*s], d[*t] -> d[].

    Raises ShapeError if the numbers of elements differ.
    """
    x, y = _arrays("vdot", (a, b))
    x, y = (reshape(v, (v.size,)) for v in (e.conj(x), y))
    return dot(x, y, precision=precision, preferred_element_type=preferred_element_type)


@fused(2)
def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """The sum of conj(x1) * x2 over an axis: d[*s, k], d[*s, k] -> d[*s]."""
    x, y = _arrays("vecdot", (x1, x2))
    i, j = (canonical_axis("vecdot", axis, v.ndim, v.aval) for v in (x, y))
    if x.shape[i] != y.shape[j]:
        raise _mismatch("vecdot", f"axis {axis} of both must have one length", x, y)
    x, y = _moved_last(e.conj(x), i), _moved_last(y, j)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return einsum("...k,...k->...", x, y, **options)


def _moved_last(x: Array, axis: int) -> Array:
    return transpose(x, (*(k for k in range(x.ndim) if k != axis), axis))


def matvec(x1: Any, x2: Any, /) -> Array:
    """Matrices times vectors: d[*s, n, k], d[*s, k] -> d[*s, n]."""
    return einsum("...nk,...k->...n", x1, x2)


def vecmat(x1: Any, x2: Any, /) -> Array:
    """Conjugate vectors times matrices: d[*s, k], d[*s, k, n] -> d[*s, n]."""
    return einsum("...k,...kn->...n", e.conj(x1), x2)


@fused(2)
def outer(a: Any, b: Any, out: None = None) -> Array:
    """The products of all pairs of elements: d[*s], d[*t] -> d[size of s, size of t]."""
    x, y = _arrays("outer", (a, b))
    return e.multiply(reshape(x, (x.size, 1)), reshape(y, (1, y.size)))


@fused(2)
def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """The sum over so many last axes of a and first of b, or over pairs of axes.

    Raises ShapeError if the axes differ in length or number.

    >>> import xcube.numpy as jnp
    >>> tensordot(jnp.ones((2, 3)), jnp.ones((3, 4)), 1).shape
    (2, 4)
    """
    x, y = _arrays("tensordot", (a, b))
    if isinstance(axes, int | np.integer):
        left, right = tuple(range(x.ndim - int(axes), x.ndim)), tuple(range(int(axes)))
    else:
        left, right = (tuple(k) if isinstance(k, tuple | list) else (k,) for k in axes)
        left = tuple(canonical_axis("tensordot", k, x.ndim, x.aval) for k in left)
        right = tuple(canonical_axis("tensordot", k, y.ndim, y.aval) for k in right)
    fits = len(left) == len(right) and len(left) <= min(x.ndim, y.ndim)
    if not fits or any(x.shape[i] != y.shape[j] for i, j in zip(left, right, strict=True)):
        raise _mismatch(
            "tensordot", f"the axes {left} and {right} must pair axes of one length", x, y
        )
    return _contract(x, y, (left, right), ((), ()), (precision, preferred_element_type))


@fused(2)
def kron(a: Any, b: Any) -> Array:
    """The Kronecker product: d[*s], d[*t] -> d[*(s * t)]."""
    x, y = _arrays("kron", (a, b))
    rank = max(x.ndim, y.ndim)
    s, t = ((1,) * (rank - v.ndim) + v.shape for v in (x, y))
    left = reshape(x, [n for k in s for n in (k, 1)])
    right = reshape(y, [n for k in t for n in (1, k)])
    return reshape(e.multiply(left, right), [m * n for m, n in zip(s, t, strict=True)])


@fused(2)
def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """The cross product of vectors of length 3, or of length 2 (its third component).

    Raises ShapeError for other lengths.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _arrays("cross", (a, b))
    x = _moved_last(x, canonical_axis("cross", axisa, x.ndim, x.aval))
    y = _moved_last(y, canonical_axis("cross", axisb, y.ndim, y.aval))
    if x.shape[-1] not in (2, 3) or y.shape[-1] not in (2, 3):
        raise _mismatch("cross", "vectors must have length 2 or 3", x, y)
    (x0, x1, x2), (y0, y1, y2) = _components(x), _components(y)
    third = e.subtract(e.multiply(x0, y1), e.multiply(x1, y0))
    if x2 is None and y2 is None:
        return third
    zero = reductions.sum(x[..., :0], -1)  # type: ignore[index]
    x2, y2 = (zero if v is None else v for v in (x2, y2))
    first = e.subtract(e.multiply(x1, y2), e.multiply(x2, y1))
    second = e.subtract(e.multiply(x2, y0), e.multiply(x0, y2))
    shape = broadcast_shapes("cross", first.shape, second.shape, third.shape)
    place = canonical_axis("cross", axisc, len(shape) + 1)
    return _stacked([stretch(v, shape) for v in (first, second, third)], place)


def _components(x: Array) -> list[Any]:
    parts: list[Any] = [x[..., k] for k in range(x.shape[-1])]  # type: ignore[index]
    return [*parts, None][:3]


def _stacked(parts: Sequence[Array], axis: int) -> Array:
    shape = parts[0].shape
    sizes = (*shape[:axis], 1, *shape[axis:])
    return concatenate([reshape(v, sizes) for v in parts], axis)


# --- einsum --------------------------------------------------------------------------------------


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    **_ignored: Any,
) -> Array:
    """Einstein's summation: letters name axes; axes of one letter are walked together, and letters
    that the result does not name are summed over.

    Raises ValueError for subscripts that do not fit the operands.

    >>> import xcube.numpy as jnp
    >>> einsum("ij,j->i", jnp.eye(2), jnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    text, values = _written(subscripts, operands)
    arrays = array_operands("einsum", values)
    static = (text, optimize, precision, preferred_element_type)
    concrete = all(type(x) is DeviceArray for x in arrays) and current_trace() is EVAL
    if not concrete or isinstance(optimize, list) or isinstance(precision, list):
        return _summed(*arrays, static=static)
    return run_static("einsum", _summed, arrays, (), {"static": static}, static)


def _summed(*operands: Array, static: tuple[Any, ...]) -> Array:
    text, optimize, precision, preferred = static
    arrays = _arrays("einsum", operands)
    names, result = _names(text, arrays)
    _check_sizes(text, names, arrays)
    terms = list(zip(names, arrays, strict=True))
    for left, right in _order(names, arrays, result, optimize):
        y, x = terms.pop(max(left, right)), terms.pop(min(left, right))
        terms.append(_contract_pair(x, y, terms, result, (precision, preferred)))
    name, x = terms[0]
    x = _single(name, x, result)
    return x if preferred is None else cast(x, requested("einsum", preferred))


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "greedy") -> Any:
    """The order in which `einsum` contracts its operands; arguments of `numpy.einsum_path`."""
    text, values = _written(subscripts, operands)
    dummies = [np.broadcast_to(np.float32(0), x.shape) for x in _arrays("einsum", values)]
    return np.einsum_path(text, *dummies, optimize=optimize)


def _written(subscripts: Any, operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Subscripts as text; the form einsum(x, [0, 1], y, [1, 2], [0, 2]) is rewritten to it."""
    if isinstance(subscripts, str):
        return subscripts.replace(" ", ""), operands
    given = [subscripts, *operands]
    target = given.pop() if len(given) % 2 else None
    lists = given[1::2]
    text = ",".join(_as_letters(numbers) for numbers in lists)
    return text + ("" if target is None else "->" + _as_letters(target)), given[::2]


def _as_letters(numbers: Sequence[Any]) -> str:
    return "".join("..." if k is Ellipsis else chr((97 if k < 26 else 39) + k) for k in numbers)


def _names(text: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """A letter for each axis of the operands and of the result."""
    inputs, arrow, result = text.partition("->")
    names = inputs.split(",")
    if len(names) != len(arrays):
        raise ValueError(
            f"einsum: '{text}' must name as many operands as there are; got {len(arrays)}."
            f"{at_user_line()}"
        )
    ranks = [x.ndim - len(name.replace("...", "")) for name, x in zip(names, arrays, strict=True)]
    for name, rank, x in zip(names, ranks, arrays, strict=True):
        if rank < 0 or (rank > 0 and "..." not in name):
            raise ValueError(
                f"einsum: '{name}' of '{text}' must name each axis of its operand; got {x.aval}."
                f"{at_user_line()}"
            )
    width = max([r for r, name in zip(ranks, names, strict=True) if "..." in name], default=0)
    dots = "".join(chr(0x4E00 + k) for k in range(width))
    named = [
        name.replace("...", dots[width - rank :] if rank else "")
        for name, rank in zip(names, ranks, strict=True)
    ]
    if not arrow:
        letters = "".join(names).replace("...", "").replace(".", "")
        result = "..." + "".join(sorted(k for k in set(letters) if letters.count(k) == 1))
    target = result.replace("...", dots)
    unknown = set(target) - set("".join(named))
    if unknown or len(set(target)) != len(target):
        raise ValueError(
            f"einsum: the result of '{text}' must name axes of the operands, each once; got "
            f"'{result}'.{at_user_line()}"
        )
    return named, target


def _check_sizes(text: str, names: Sequence[str], arrays: Sequence[Array]) -> None:
    sizes: dict[str, int] = {}
    for name, x in zip(names, arrays, strict=True):
        for letter, size in zip(name, x.shape, strict=True):
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                shown = letter if ord(letter) < 0x4E00 else "..."
                raise ShapeError(
                    f"einsum: axes named '{shown}' in '{text}' must have one length; got "
                    f"{', '.join(str(v.aval) for v in arrays)}.{at_user_line()}"
                )


def _order(
    names: Sequence[str], arrays: Sequence[Array], result: str, optimize: Any
) -> list[tuple[int, int]]:
    """Pairs of terms to contract, each pair's product becoming the last term."""
    if len(arrays) <= 2:
        return [(0, 1)] * (len(arrays) - 1)
    if isinstance(optimize, list | tuple) and optimize and optimize[0] == "einsum_path":
        path = list(optimize)[1:]
    elif optimize is False:
        path = [(0, 1)] * (len(arrays) - 1)
    else:
        how = "optimal" if optimize == "optimal" or len(arrays) <= 4 else "greedy"
        letters = sorted(set("".join(names)))
        plain = {k: chr(65 + i) if i < 26 else chr(71 + i) for i, k in enumerate(letters)}
        text = ",".join("".join(plain[k] for k in name) for name in names)
        text += "->" + "".join(plain[k] for k in result)
        dummies = [np.broadcast_to(np.float32(0), x.shape) for x in arrays]
        path = np.einsum_path(text, *dummies, optimize=how)[0][1:]
    pairs: list[tuple[int, int]] = []
    count = len(arrays)
    for group in path:
        pairs += _as_pairs(sorted(group), count)
        count -= len(group) - 1
    return pairs


def _as_pairs(group: Sequence[int], count: int) -> list[tuple[int, int]]:
    """A group of terms contracted at once becomes pairs: the first two, then each with the last."""
    if len(group) < 2:
        return []
    pairs = [(group[0], group[1])]
    for done, place in enumerate(group[2:], 1):
        moved = place - done - 1
        pairs.append((moved, count - 1 - done))
    return pairs


def _contract_pair(
    left: tuple[str, Array],
    right: tuple[str, Array],
    others: Sequence[tuple[str, Array]],
    result: str,
    options: Any,
) -> tuple[str, Array]:
    (a, x), (b, y) = left, right
    needed = set(result).union(*(name for name, _ in others))
    a, x = _reduced(a, x, needed | set(b))
    b, y = _reduced(b, y, needed | set(a))
    x_ones = {k for k, n in zip(a, x.shape, strict=True) if n == 1}
    y_ones = {k for k, n in zip(b, y.shape, strict=True) if n == 1}
    a, x = _dropped(a, x, x_ones & set(b))
    b, y = _dropped(b, y, y_ones & set(a))
    a, x = _reduced(a, x, needed | set(b))  # letters of length 1 that only one has now
    b, y = _reduced(b, y, needed | set(a))
    kept = [k for k in (*a, *(k for k in b if k not in a)) if k in needed]
    last = not others
    target = "".join(k for k in result if k in kept) if last else "".join(kept)
    return target, _pair(a, x, b, y, target, options)


def _reduced(name: str, x: Array, needed: set[str]) -> tuple[str, Array]:
    """Repeated letters become diagonals, and letters that nobody else needs are summed over."""
    for letter in dict.fromkeys(name):
        while name.count(letter) > 1:
            i = name.index(letter)
            j = name.index(letter, i + 1)
            x = diagonal(x, 0, i, j)
            name = "".join(k for place, k in enumerate(name) if place not in (i, j)) + letter
    summed = tuple(place for place, letter in enumerate(name) if letter not in needed)
    return "".join(k for k in name if k in needed), reduce_sum(x, summed)


def _dropped(name: str, x: Array, letters: set[str]) -> tuple[str, Array]:
    """Without axes of length 1 that the other operand has."""
    if not letters:
        return name, x
    sizes = [n for k, n in zip(name, x.shape, strict=True) if k not in letters]
    return "".join(k for k in name if k not in letters), reshape(x, sizes)


def _pair(a: str, x: Array, b: str, y: Array, result: str, options: Any) -> Array:
    """x with axes a times y with axes b, summed over letters that the result does not name."""
    summed = [k for k in a if k in b and k not in result]
    if not summed and options[1] is None:
        return e.multiply(_laid(a, x, result), _laid(b, y, result))
    batch = [k for k in a if k in b and k in result]
    places = tuple(
        (tuple(a.index(k) for k in letters), tuple(b.index(k) for k in letters))
        for letters in (summed, batch)
    )
    product = _contract(x, y, places[0], places[1], options)
    order = batch + [k for k in a if k not in b] + [k for k in b if k not in a]
    return transpose(product, [order.index(k) for k in result])


def _laid(name: str, x: Array, result: str) -> Array:
    """x with its axes in the order of the result, of length 1 where it has none."""
    order = [k for k in result if k in name]
    x = transpose(x, [name.index(k) for k in order])
    sizes = dict(zip(order, x.shape, strict=True))
    return reshape(x, [sizes.get(k, 1) for k in result])


def _single(name: str, x: Array, result: str) -> Array:
    name, x = _reduced(name, x, set(result))
    return transpose(x, [name.index(k) for k in result])
