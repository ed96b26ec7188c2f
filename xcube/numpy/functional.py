"""Functions of functions: vectorize, apply_along_axis, apply_over_axes, frompyfunc."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from xcube import tree
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    broadcast_shapes,
    canonical_axis,
)
from xcube.numpy.shaping import expand_dims, squeeze
from xcube.numpy.ufunc import Ufunc
from xcube.primitives.shape import transpose
from xcube.transforms.vmap import vmap


def vectorize(
    pyfunc: Callable[..., Any] | None = None,
    *,
    excluded: Any = frozenset(),
    signature: str | None = None,
) -> Callable[..., Any]:
    """A function of elements (or, by `signature`, of arrays such as "(n),(n)->()") as a function of
    arrays that broadcasts its leading axes.

    `excluded`: numbers of arguments that are passed as they are. Raises ValueError for a signature
    that cannot be read, ShapeError for arguments that do not fit it.

    >>> import xcube.numpy as jnp
    >>> vectorize(lambda x, y: x * y)(jnp.arange(2), 3)
    Array([0, 3], dtype=int32)
    """
    if pyfunc is None:
        return functools.partial(vectorize, excluded=excluded, signature=signature)
    hidden = frozenset(excluded)
    cores = None if signature is None else _read_signature(signature)[0]

    @functools.wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mapped = [k for k, value in enumerate(args) if k not in hidden and value is not None]
        names = [()] * len(mapped) if cores is None else cores
        if len(names) != len(mapped):
            raise TypeError(
                f"vectorize: signature {signature!r} names {len(names)} arguments; got "
                f"{len(mapped)}.{at_user_line()}"
            )
        arrays = array_operands("vectorize", [args[k] for k in mapped])
        _check_cores(names, arrays, signature)
        call = _with_rest(pyfunc, args, mapped, kwargs)
        return _mapped(call, arrays, [len(name) for name in names])

    return wrapped


def _with_rest(
    function: Callable[..., Any], args: Sequence[Any], mapped: Sequence[int], kwargs: Any
) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        whole = list(args)
        for k, value in zip(mapped, given, strict=True):
            whole[k] = value
        return function(*whole, **kwargs)

    return call


def _read_signature(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    core = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?\)"
    cores = rf"{core}(?:\s*,\s*{core})*"
    if not re.fullmatch(rf"\s*{cores}\s*->\s*{cores}\s*", signature):
        raise ValueError(
            f"vectorize: a signature must look like '(n,k),(k)->(n)'; got {signature!r}."
            f"{at_user_line()}"
        )
    sides = [
        [tuple(re.findall(r"\w+", part)) for part in re.findall(core, side)]
        for side in signature.split("->")
    ]
    return sides[0], sides[1]


def _check_cores(names: Sequence[Any], arrays: Sequence[Array], signature: str | None) -> None:
    sizes: dict[str, int] = {}
    for name, x in zip(names, arrays, strict=True):
        if x.ndim < len(name):
            raise ShapeError(
                f"vectorize: an argument must have the axes {name} of {signature!r}; got {x.aval}."
                f"{at_user_line()}"
            )
        for letter, size in zip(name, x.shape[x.ndim - len(name) :], strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ShapeError(
                    f"vectorize: axes {letter!r} of {signature!r} must have one length; got "
                    f"{sizes[letter]} and {size}.{at_user_line()}"
                )


def _mapped(call: Callable[..., Any], arrays: Sequence[Array], cores: Sequence[int]) -> Any:
    """One vmap for each leading axis; an axis of length 1 that others have longer is not mapped."""
    loops = [x.shape[: x.ndim - core] for x, core in zip(arrays, cores, strict=True)]
    shape = broadcast_shapes("vectorize", *loops)
    rank = len(shape)
    squeezed, function = [], call
    axes: list[list[int | None]] = [[] for _ in range(rank)]
    for x, loop in zip(arrays, loops, strict=True):
        padded = (1,) * (rank - len(loop)) + loop
        absent = [
            k for k in range(rank) if padded[k] == 1 and (shape[k] != 1 or k < rank - len(loop))
        ]
        gone = [k - (rank - len(loop)) for k in absent if k >= rank - len(loop)]
        squeezed.append(squeeze(x, tuple(gone)) if gone else x)
        for k in range(rank):
            axes[k].append(None if k in absent else 0)
    for k in reversed(range(rank)):
        if all(axis is None for axis in axes[k]):
            function = _extended(function)
        else:
            function = vmap(function, in_axes=tuple(axes[k]))
    return function(*squeezed)


def _extended(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: tree.map(lambda y: expand_dims(y, 0), function(*args))


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Any:
    """A function of vectors applied to each vector along an axis; the axes of its result stand in
    the place of the axis."""
    x = array_operand("apply_along_axis", arr)
    k = canonical_axis("apply_along_axis", axis, x.ndim, x.aval)
    function: Callable[..., Any] = lambda v: func1d(v, *args, **kwargs)  # noqa: E731
    rest = tuple(n for j, n in enumerate(x.shape) if j != k)
    order = [j for j in range(x.ndim) if j != k]
    for _ in rest:
        function = vmap(function)
    result = function(transpose(x, (*order, k)))
    return tree.map(lambda y: _moved_back(y, len(rest), k), result)


def _moved_back(y: Array, count: int, axis: int) -> Array:
    """The axes of a result, behind `count` mapped ones, moved to a place among these."""
    new = range(count, y.ndim)
    return transpose(y, (*range(axis), *new, *range(axis, count)))


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Array:
    """func(a, axis) for one axis after another, each result with the rank of `a`.

    Raises ValueError if the function changes the rank otherwise.
    """
    x = array_operand("apply_over_axes", a)
    rank = x.ndim
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        result = array_operand("apply_over_axes", func(x, axis))
        if result.ndim == rank - 1:
            result = expand_dims(result, canonical_axis("apply_over_axes", axis, rank))
        if result.ndim != rank:
            raise ValueError(
                f"apply_over_axes: the function must reduce one axis or none; got {result.aval} "
                f"from {x.aval}.{at_user_line()}"
            )
        x = result
    return x


def frompyfunc(
    func: Callable[[Any, Any], Any], /, nin: int, nout: int, *, identity: Any = None
) -> Any:
    """A function of two elements as a ufunc, with `reduce`, `accumulate`, `outer` and `at`.

    Raises NotImplementedError unless it has two arguments and one result.

    >>> import xcube.numpy as jnp
    >>> frompyfunc(lambda x, y: x + y, 2, 1, identity=0).reduce(jnp.arange(4))
    Array(6, dtype=int32)
    """
    if (nin, nout) != (2, 1):
        raise NotImplementedError(
            f"frompyfunc: the function must have 2 arguments and 1 result; got {nin} and {nout}."
            f"{at_user_line()} Use xcube.numpy.vectorize for others."
        )
    elementwise = vectorize(func)
    name = getattr(func, "__name__", "function")
    return Ufunc(name, lambda x, y: elementwise(x, y), identity=identity)
