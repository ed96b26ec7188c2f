"""The four linear operations on which all other rules stand: broadcast_in_dim, reshape, transpose
and reduce_sum. They are one another's transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Aval, Axis, Literal, Primitive, Shape, at_user_line
from xcube.primitives.lowered import Element, Reduction
from xcube.trace import aval_of, bind, literal

# broadcast_in_dim -----------------------------------------------------------------------------


def _broadcast_abstract(x: Aval, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> Aval:
    fits = len(broadcast_dimensions) == x.ndim and all(
        x.shape[i] in (1, shape[d]) for i, d in enumerate(broadcast_dimensions)
    )
    if not fits:
        raise ShapeError(
            f"broadcast_in_dim: each dimension of {x} must be 1 or equal the dimension of {shape} "
            f"that it maps to; got broadcast_dimensions={broadcast_dimensions}.{at_user_line()}"
        )
    return Aval(shape, x.dtype, x.weak_type)


def _broadcast_transpose(
    ct: Any, x: Any, *, shape: Shape, broadcast_dimensions: tuple[int, ...]
) -> list[Any]:
    new = [d for d in range(len(shape)) if d not in broadcast_dimensions]
    grown = [
        d for i, d in enumerate(broadcast_dimensions) if x.aval.shape[i] == 1 and shape[d] != 1
    ]
    summed = reduce_sum(ct, tuple(sorted(new + grown)))
    return [reshape(summed, x.aval.shape)]


def _broadcast_batch(
    axis: Axis, args: Sequence[Any], batched: Any, *, shape: Shape, broadcast_dimensions: Any
) -> tuple[Any, bool]:
    dims = (0, *(d + 1 for d in broadcast_dimensions))
    return broadcast_in_dim(args[0], (axis.size, *shape), dims), True


def _broadcast_element(
    e: Any, index: Any, *, shape: Shape, broadcast_dimensions: tuple[int, ...]
) -> Any:
    sizes = e.inputs[0].shape
    at = [index[d] if size != 1 else 0 for size, d in zip(sizes, broadcast_dimensions, strict=True)]
    return e.read(0, at)


broadcast_in_dim_p = Primitive(
    "broadcast_in_dim",
    abstract=_broadcast_abstract,
    jvp="linear",
    transpose=_broadcast_transpose,
    batch=_broadcast_batch,
    lower=Element(_broadcast_element, cheap=True),
)


def broadcast_in_dim(x: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    """x with dimension i laid along dimension broadcast_dimensions[i] of the new shape."""
    shape, dims = tuple(shape), tuple(broadcast_dimensions)
    if aval_of(x).shape == shape and dims == tuple(range(len(shape))) and isinstance(x, Array):
        return x
    return bind(broadcast_in_dim_p, x, shape=shape, broadcast_dimensions=dims)


def full(shape: Sequence[int], value: Any, dtype: Any = None) -> Any:
    """A shape filled with one scalar."""
    scalar = value if isinstance(value, Array | Literal) else literal(value, dtype)
    return broadcast_in_dim(scalar, shape, ())


def zeros_of(aval: Aval) -> Any:
    """The zero of an aval."""
    zero = np.zeros((), aval.dtype)[()]
    return full(aval.shape, literal(0, aval.dtype) if aval.weak_type else zero)


def batch_front(x: Any, size: int) -> Any:
    """x repeated along a new leading axis; scalars of the program stay scalars."""
    if isinstance(x, Literal) or not isinstance(x, Array):
        return x
    shape = x.shape
    return broadcast_in_dim(x, (size, *shape), tuple(range(1, len(shape) + 1)))


def batch_all(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """The operands of a batching rule, those repeated along the axis that are not batched."""
    return [x if flag else batch_front(x, axis.size) for x, flag in zip(args, batched, strict=True)]


# reshape --------------------------------------------------------------------------------------


def _reshape_abstract(x: Aval, *, new_sizes: Shape) -> Aval:
    if math.prod(new_sizes) != x.size or any(size < 0 for size in new_sizes):
        raise ShapeError(
            f"reshape: the new shape must hold the {x.size} elements of {x}; got {new_sizes}."
            f"{at_user_line()}"
        )
    return Aval(new_sizes, x.dtype, x.weak_type)


def _reshape_element(e: Any, index: Any, *, new_sizes: Shape) -> Any:
    return e.read(0, e.unravel(e.ravel(index, new_sizes), e.inputs[0].shape))


reshape_p = Primitive(
    "reshape",
    abstract=_reshape_abstract,
    jvp="linear",
    transpose=lambda ct, x, *, new_sizes: [reshape(ct, x.aval.shape)],
    batch=lambda axis, args, batched, *, new_sizes: (
        reshape(args[0], (axis.size, *new_sizes)),
        True,
    ),
    lower=Element(_reshape_element, cheap=True),
)


def reshape(x: Any, new_sizes: Sequence[int]) -> Any:
    """The same elements in row-major order under another shape (no -1 here)."""
    sizes = tuple(new_sizes)
    return x if isinstance(x, Array) and x.shape == sizes else bind(reshape_p, x, new_sizes=sizes)


# transpose ------------------------------------------------------------------------------------


def _transpose_abstract(x: Aval, *, permutation: tuple[int, ...]) -> Aval:
    if sorted(permutation) != list(range(x.ndim)):
        raise ShapeError(
            f"transpose: the permutation must name each of the {x.ndim} axes of {x} once; "
            f"got {permutation}.{at_user_line()}"
        )
    return Aval(tuple(x.shape[p] for p in permutation), x.dtype, x.weak_type)


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def _transpose_batch(
    axis: Axis, args: Sequence[Any], batched: Any, *, permutation: tuple[int, ...]
) -> tuple[Any, bool]:
    return transpose(args[0], (0, *(p + 1 for p in permutation))), True


def _transpose_element(e: Any, index: Any, *, permutation: tuple[int, ...]) -> Any:
    return e.read(0, [index[d] for d in _inverse(permutation)])


transpose_p = Primitive(
    "transpose",
    abstract=_transpose_abstract,
    jvp="linear",
    transpose=lambda ct, x, *, permutation: [transpose(ct, _inverse(permutation))],
    batch=_transpose_batch,
    lower=Element(_transpose_element, cheap=True),
)


def transpose(x: Any, permutation: Sequence[int]) -> Any:
    """Axes permuted: axis i of the result is axis permutation[i] of x."""
    order = tuple(permutation)
    if order == tuple(range(len(order))) and isinstance(x, Array) and x.ndim == len(order):
        return x
    return bind(transpose_p, x, permutation=order)


# reduce_sum -----------------------------------------------------------------------------------


def reduced_aval(x: Aval, axes: tuple[int, ...], dtype: Any = None) -> Aval:
    """Aval without some axes. Raises ShapeError for axes out of range or repeated."""
    if len(set(axes)) != len(axes) or any(not 0 <= axis < x.ndim for axis in axes):
        raise ShapeError(
            f"reduction: axes must be distinct and lie in 0..{x.ndim - 1} for {x}; got {axes}."
            f"{at_user_line()}"
        )
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    return Aval(shape, x.dtype if dtype is None else dtype, x.weak_type)


def accumulator_dtype(x: Aval) -> Any:
    """Dtype in which sums of x are accumulated: at least 32 bits for floats."""
    narrow = dtypes.is_float(x.dtype) and x.dtype.itemsize < 4
    return np.dtype(np.float32) if narrow else x.dtype


def reduce_batch(primitive_function: Any) -> Any:
    """The batching rule of reductions: the axes move behind the batch axis."""

    def rule(axis: Axis, args: Any, batched: Any, *, axes: tuple[int, ...], **params: Any) -> Any:
        return primitive_function(args[0], tuple(a + 1 for a in axes), **params), True

    return rule


def _sum_transpose(ct: Any, x: Any, *, axes: tuple[int, ...]) -> list[Any]:
    kept = tuple(axis for axis in range(x.aval.ndim) if axis not in axes)
    return [broadcast_in_dim(ct, x.aval.shape, kept)]


_SUM = Reduction(
    state=lambda x: (accumulator_dtype(x),),
    init=lambda e, x: (e.constant(0, accumulator_dtype(x)),),
    lift=lambda e, position, x: (e.cast(x, accumulator_dtype(e.inputs[0])),),
    combine=lambda e, a, b: (e.apply("add", a[0], b[0]),),
    finish=lambda e, state, outs: (e.cast(state[0], outs[0].dtype),),
)

reduce_sum_p = Primitive(
    "reduce_sum",
    abstract=lambda x, *, axes: reduced_aval(x, axes),
    jvp="linear",
    transpose=_sum_transpose,
    batch=reduce_batch(lambda x, axes: reduce_sum(x, axes)),
    lower=_SUM,
)


def reduce_sum(x: Any, axes: Sequence[int]) -> Any:
    """x: d[*s] -> d[s without axes], the sum over axes."""
    return bind(reduce_sum_p, x, axes=tuple(axes)) if axes else x
