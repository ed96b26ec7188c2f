"""Collectives: operations along the named axis of an enclosing `vmap`. A function that is mapped
sees one example; a collective lets it ask for what all examples hold. While the function is traced
its axis is bound to its name, and a collective is an equation that knows the name; when the axis is
mapped, the equation's batching rule makes an ordinary operation of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube.ir import Aval, Axis, Equation, Jaxpr, Primitive, at_user_line, subjaxprs
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul
from xcube.primitives.gather import gather
from xcube.primitives.reduce import reduce_max, reduce_min
from xcube.primitives.select import eq
from xcube.primitives.shape import batch_front, full, reduce_sum, reshape, transpose
from xcube.primitives.view import concatenate, iota, slice_in_dim, split
from xcube.primitives.windows import GatherDimensionNumbers, GatherScatterMode
from xcube.trace import aval_of, bind

# the axes that are bound ----------------------------------------------------------------------


class _Bound(threading.local):
    axes: tuple[Axis, ...] = ()


_bound = _Bound()


def bound_axes() -> tuple[Axis, ...]:
    """The named axes of the enclosing maps, the innermost last: what is traced may depend on it."""
    return _bound.axes


@contextlib.contextmanager
def binding(axis: Axis) -> Iterator[None]:
    """Bind an axis to its name while a function is traced; it hides an outer axis of that name."""
    before = _bound.axes
    if axis.name is not None:
        _bound.axes = (*(outer for outer in before if outer.name != axis.name), axis)
    try:
        yield
    finally:
        _bound.axes = before


def names_used(eqn: Equation) -> frozenset[Hashable]:
    """Names of the axes that an equation's collectives run along, inner jaxprs included."""
    own = (eqn.params["axis_name"],) if eqn.primitive in COLLECTIVES else ()
    return frozenset(own).union(*map(_names_in, subjaxprs(eqn)))


def _names_in(jaxpr: Jaxpr) -> frozenset[Hashable]:
    if "names_used" not in jaxpr._cache:
        jaxpr._cache["names_used"] = frozenset().union(*map(names_used, jaxpr.equations))
    return jaxpr._cache["names_used"]


def axes_named(operation: str, axis_name: Any) -> tuple[Axis, ...]:
    """The bound axes under a name or a tuple of names."""
    names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    bound = {axis.name: axis for axis in _bound.axes}
    for name in names:
        if name not in bound:
            known = ", ".join(map(repr, bound)) or "none"
            raise NameError(
                f"{operation}: Found an unbound axis name: {name}. The names bound here: {known}."
                f"{at_user_line()} Map the function that calls {operation} with "
                f"vmap(..., axis_name={name!r})."
            )
    return tuple([bound[name] for name in names])


# primitives -----------------------------------------------------------------------------------


def _swap(x: Any) -> Any:
    """x with its two leading axes exchanged."""
    return transpose(x, (1, 0, *range(2, x.ndim)))


def _repeat(x: Any, size: int) -> Any:
    return batch_front(x, size) if aval_of(x).shape else full((size,), x)


def _rows(x: Any, places: Any) -> Any:
    """The rows of x at places along its leading axis; zeros where a place lies outside."""
    numbers = GatherDimensionNumbers(tuple(range(1, x.ndim)), (0,), (0,))
    indices, mode = reshape(places, (*places.shape, 1)), GatherScatterMode.FILL_OR_DROP
    return gather(x, indices, numbers, (1, *x.shape[1:]), mode=mode, fill_value=0)


Whole = Callable[..., tuple[Any, bool]]
Other = Callable[[], Primitive]


def _collective(
    name: str,
    whole: Whole,
    *,
    takes: bool = False,
    gives: bool = False,
    jvp: Callable[..., Any] | None = None,
    back: Other | None = None,
    reverses: bool = False,
) -> Primitive:
    """A primitive along one named axis: x, and places of the axis, the same in all members.

    `whole(x, is_batched, size, *places) -> (out, is_batched)`: what it is for the whole batch.
    `takes`, `gives`: whether operand and result have an axis in front, one place for each member.
    `back`: the transpose, which takes the places, in reverse order if `reverses`.
    """

    def abstract(x: Aval, *places: Aval, axis_size: int = 0, **params: Any) -> Aval:
        shape = x.shape[1:] if takes else x.shape
        return x.update(shape=(axis_size, *shape) if gives else shape)

    def linear(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = bind(primitive, *primals, **params)
        return out, bind(primitive, tangents[0], *primals[1:], **params)

    def transposed(ct: Any, x: Any, *places: Any, **params: Any) -> list[Any]:
        order = places[::-1] if reverses else places
        return [bind(back(), ct, *order, **params), *[None] * len(places)]  # type: ignore[misc]

    def batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool], **params: Any) -> Any:
        x, *places = args
        places = [_row(p) if flag else p for p, flag in zip(places, batched[1:], strict=True)]
        if params["axis_name"] == axis.name:
            return _mapped(whole, axis.size, x, batched[0], places, params["group_sizes"])
        if not batched[0]:
            return bind(primitive, x, *places, **params), False
        out = bind(primitive, _swap(x) if takes else x, *places, **params)
        return _swap(out) if gives else out, True

    primitive = Primitive(name, abstract, jvp or linear, transposed if back else None, batch)
    return primitive


def _row(x: Any) -> Any:
    """The first row of x."""
    return reshape(slice_in_dim(x, 0, 1), x.shape[1:])


def _mapped(
    whole: Whole,
    size: int,
    x: Any,
    is_batched: bool,
    places: Sequence[Any],
    group_sizes: tuple[int, ...] | None,
) -> tuple[Any, bool]:
    """A collective along the mapped axis. With groups, the places are those of their members, group
    after group, and where each member stands among them; a group is a batch of its own."""
    if group_sizes is None:
        return whole(x, is_batched, size, *places)
    order, stand = places
    rows = _rows(x if is_batched else _repeat(x, size), order)
    parts = []
    for group, count in zip(split(rows, group_sizes), group_sizes, strict=True):
        out, flag = whole(group, True, count)
        parts.append(out if flag else _repeat(out, count))
    return _rows(concatenate(parts, 0), stand), True


def _whole_sum(x: Any, is_batched: bool, size: int) -> tuple[Any, bool]:
    return reduce_sum(x, (0,)) if is_batched else mul(x, size), False


def _whole_scatter(x: Any, is_batched: bool, size: int) -> tuple[Any, bool]:
    return _whole_sum(x, is_batched, size)[0], True


def _whole_gather(x: Any, is_batched: bool, size: int) -> tuple[Any, bool]:
    return x if is_batched else _repeat(x, size), False


def _whole_exchange(x: Any, is_batched: bool, size: int) -> tuple[Any, bool]:
    return _swap(x if is_batched else _repeat(x, size)), True


def _whole_permutation(
    x: Any, is_batched: bool, size: int, sources: Any, targets: Any
) -> tuple[Any, bool]:
    return _rows(x if is_batched else _repeat(x, size), sources), True


def _extreme(name: str, reduce: Callable[..., Any]) -> Primitive:
    """The largest or least; its tangent is the mean of those of the members that attain it."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        x, *places = primals
        y = bind(primitive, x, *places, **params)
        attains = convert_element_type(eq(x, y), aval_of(x).dtype)
        weight = div(attains, bind(psum_p, attains, *places, **params))
        return y, bind(psum_p, mul(tangents[0], weight), *places, **params)

    def whole(x: Any, is_batched: bool, size: int) -> tuple[Any, bool]:
        return reduce(x, (0,)) if is_batched else x, False

    primitive = _collective(name, whole, jvp=jvp)
    return primitive


def _index_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, axis_name: Hashable
) -> tuple[Any, bool]:
    return iota(np.int32, (axis.size,)), True


psum_p = _collective("psum", _whole_sum, back=lambda: psum_p)
pmax_p = _extreme("pmax", reduce_max)
pmin_p = _extreme("pmin", reduce_min)
ppermute_p = _collective("ppermute", _whole_permutation, back=lambda: ppermute_p, reverses=True)
all_gather_p = _collective("all_gather", _whole_gather, gives=True, back=lambda: psum_scatter_p)
psum_scatter_p = _collective(
    "reduce_scatter", _whole_scatter, takes=True, back=lambda: all_gather_p
)
all_to_all_p = _collective(
    "all_to_all", _whole_exchange, takes=True, gives=True, back=lambda: all_to_all_p
)
axis_index_p = Primitive(
    "axis_index",
    abstract=lambda *, axis_name: Aval((), np.int32),
    jvp="zero",
    batch=_index_batch,
)
COLLECTIVES = frozenset(
    (psum_p, pmax_p, pmin_p, ppermute_p, all_gather_p, psum_scatter_p, all_to_all_p, axis_index_p)
)
