"""dot_general: products summed over pairs of dimensions, the one contraction to which matrix
products, inner products and einsum come down."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Primitive, Shape, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.kinds import add_tangents, is_linear
from xcube.primitives.lowered import Template
from xcube.primitives.shape import transpose
from xcube.primitives.view import integers
from xcube.trace import aval_of, bind

DotDimensionNumbers = tuple[tuple[Shape, Shape], tuple[Shape, Shape]]


class Precision(enum.Enum):
    """How exactly a device may multiply: DEFAULT as fast as it does well, HIGH and HIGHEST ask for
    more of the operands' bits where its matrix units drop some."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


_NAMED = {
    "default": Precision.DEFAULT,
    "fastest": Precision.DEFAULT,
    "bfloat16": Precision.DEFAULT,
    "high": Precision.HIGH,
    "bfloat16_3x": Precision.HIGH,
    "tensorfloat32": Precision.HIGH,
    "highest": Precision.HIGHEST,
    "float32": Precision.HIGHEST,
}


def canonical_precision(precision: Any) -> tuple[Precision, Precision] | None:
    """The precisions of the two operands: from None, a Precision or its name, or a pair of them.

    Raises ValueError for anything else.

    >>> canonical_precision("highest")
    (HIGHEST, HIGHEST)
    """
    if precision is None:
        return None
    pair = tuple(precision) if isinstance(precision, tuple | list) else (precision, precision)
    found = tuple([x if isinstance(x, Precision) else _NAMED.get(x) for x in pair])
    if len(found) != 2 or None in found:
        raise ValueError(
            f"precision: must be None, a Precision, one of {', '.join(_NAMED)}, or a pair of them; "
            f"got {precision!r}.{at_user_line()}"
        )
    return found  # type: ignore[return-value]


# typing ---------------------------------------------------------------------------------------


def kept_dims(rank: int, contracting: Shape, batch: Shape) -> Shape:
    """The dimensions of an operand that are neither summed nor walked together."""
    return tuple([d for d in range(rank) if d not in contracting and d not in batch])


def _dot_abstract(
    x: Aval,
    y: Aval,
    *,
    dimension_numbers: DotDimensionNumbers,
    precision: Any,
    preferred_element_type: np.dtype | None,
) -> Aval:
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    _check_dims(x, y, dimension_numbers)
    shape = (
        *(x.shape[d] for d in x_batch),
        *(x.shape[d] for d in kept_dims(x.ndim, x_sum, x_batch)),
        *(y.shape[d] for d in kept_dims(y.ndim, y_sum, y_batch)),
    )
    dtype = _result_dtype(x, y, preferred_element_type)
    return Aval(shape, dtype, x.weak_type and y.weak_type)


def _check_dims(x: Aval, y: Aval, numbers: DotDimensionNumbers) -> None:
    (x_sum, y_sum), (x_batch, y_batch) = numbers
    for aval, dims in ((x, (*x_sum, *x_batch)), (y, (*y_sum, *y_batch))):
        if len(set(dims)) != len(dims) or any(not 0 <= d < aval.ndim for d in dims):
            raise ShapeError(
                f"dot_general: contracting and batch dimensions must be distinct and lie in "
                f"0..{aval.ndim - 1} for {aval}; got {dims}.{at_user_line()}"
            )
    for what, left, right in (("contracting", x_sum, y_sum), ("batch", x_batch, y_batch)):
        sizes = [x.shape[d] for d in left], [y.shape[d] for d in right]
        if sizes[0] != sizes[1]:
            raise ShapeError(
                f"dot_general: the {what} dimensions must have the same sizes in both operands; "
                f"got {sizes[0]} in {x} and {sizes[1]} in {y} (dimensions {left} and {right})."
                f"{at_user_line()}"
            )


def _result_dtype(x: Aval, y: Aval, preferred: np.dtype | None) -> np.dtype:
    """The wider dtype of the operands, or the preferred one."""
    ranks = [_rank(aval.dtype) for aval in (x, y)]
    if ranks[0] == ranks[1] and x.dtype != y.dtype:
        raise DtypeError(
            f"dot_general: neither operand's dtype includes the other; got {x}, {y}."
            f"{at_user_line()} Convert one of them."
        )
    dtype = x.dtype if ranks[0] >= ranks[1] else y.dtype
    if preferred is None or preferred == dtype:
        return dtype
    narrower = dtypes.bits_of(preferred) < dtypes.bits_of(dtype)
    if narrower and not dtypes.is_float(dtype):
        raise DtypeError(
            f"dot_general: preferred_element_type must not be narrower than the product's "
            f"{dtype}; got {preferred} for {x}, {y}.{at_user_line()}"
        )
    return preferred


def _rank(dtype: np.dtype) -> tuple[Any, ...]:
    """The order of dtypes of products: complex, then range, then precision, then width."""
    part = dtypes.float_part(dtype) if dtypes.is_complex(dtype) else dtype
    info = dtypes.finfo(part) if dtypes.is_float(part) else None
    unsigned = part.kind == "u" or (dtypes.is_integer(part) and not dtypes.is_signed(part))
    return (
        dtypes.is_complex(dtype),
        int(info.maxexp) if info else -1,
        int(info.nmant) if info else -1,
        dtypes.bits_of(part),
        not unsigned,
    )


# rules ----------------------------------------------------------------------------------------


def _dot_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, y), (dx, dy) = primals, tangents
    out = dot_general(x, y, **params)
    terms = [] if dx is None else [dot_general(dx, y, **params)]
    terms += [] if dy is None else [dot_general(x, dy, **params)]
    return out, add_tangents(terms, out)


def _dot_transpose(
    ct: Any, x: Any, y: Any, *, dimension_numbers: DotDimensionNumbers, **params: Any
) -> list[Any]:
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    if is_linear(x):
        return [_cotangent(ct, x, y, dimension_numbers, True, params), None]
    swapped = ((y_sum, x_sum), (y_batch, x_batch))
    return [None, _cotangent(ct, y, x, swapped, False, params)]


def _cotangent(
    ct: Any,
    x: Linear,
    y: Any,
    numbers: DotDimensionNumbers,
    is_left: bool,
    params: dict[str, Any],
) -> Any:
    """Cotangent of x in x . y (in y . x if not `is_left`): ct . y over the dimensions that y kept,
    with its dimensions brought into the order of x; y . ct where that brings more of them there."""
    (x_sum, y_sum), (x_batch, y_batch) = numbers
    x_kept = kept_dims(x.aval.ndim, x_sum, x_batch)
    y_kept = kept_dims(aval_of(y).ndim, y_sum, y_batch)
    batch = tuple(range(len(x_batch)))
    first = len(x_batch) + (len(x_kept) if is_left else 0)
    ct_sum = tuple(range(first, first + len(y_kept)))
    y_left = [d for d in range(aval_of(y).ndim) if d in y_sum]  # their order in the result
    x_summed = [x_sum[y_sum.index(d)] for d in y_left]
    sums, batches = (ct_sum, y_kept), (batch, y_batch)
    if x_summed < list(x_kept):
        out = dot_general(y, ct, (sums[::-1], batches[::-1]), **params)
        order = [*x_batch, *x_summed, *x_kept]
    else:
        out = dot_general(ct, y, (sums, batches), **params)
        order = [*x_batch, *x_kept, *x_summed]
    back = transpose(out, [order.index(d) for d in range(len(order))])
    return convert_element_type(back, x.aval.dtype, x.aval.weak_type)


def _dot_batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    dimension_numbers: DotDimensionNumbers,
    **params: Any,
) -> tuple[Any, bool]:
    """Both batched: one more batch dimension. One batched: one more kept dimension, which the
    result has behind its batch dimensions and, for the right operand, behind the left one's."""
    x, y = args
    sums = [_moved(dims, flag) for dims, flag in zip(dimension_numbers[0], batched, strict=True)]
    walks = [_moved(dims, flag) for dims, flag in zip(dimension_numbers[1], batched, strict=True)]
    if all(batched):
        walks = [(0, *dims) for dims in walks]
        return dot_general(x, y, (tuple(sums), tuple(walks)), **params), True
    out = dot_general(x, y, (tuple(sums), tuple(walks)), **params)
    place = len(walks[0])
    if batched[1]:
        place += len(kept_dims(aval_of(x).ndim, sums[0], walks[0]))
    order = (place, *(d for d in range(out.ndim) if d != place))
    return transpose(out, order), True


def _moved(dims: Shape, by_one: bool) -> Shape:
    return tuple([d + 1 for d in dims]) if by_one else dims


dot_general_p = Primitive(
    "dot_general",
    abstract=_dot_abstract,
    jvp=_dot_jvp,
    transpose=_dot_transpose,
    batch=_dot_batch,
    lower=Template("contract"),
)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """Products summed over contracting dimensions, for each index of the batch dimensions:
    d[*batch, *m, *k], d[*batch, *n, *k] -> d[*batch, *m, *n], the dimensions in any order.

    `dimension_numbers`: ((lhs contracting, rhs contracting), (lhs batch, rhs batch)). Narrow
    floats are summed in f32; the result has the operands' dtype or `preferred_element_type`.
    Raises ShapeError if dimensions do not fit, DtypeError if the dtypes do not.

    >>> from xcube.primitives.shape import full
    >>> dot_general(full((2, 3), 1.0), full((3, 4), 1.0), (((1,), (0,)), ((), ()))).shape
    (2, 4)
    """
    sums, walks = dimension_numbers
    preferred = preferred_element_type
    if preferred is not None:
        preferred = dtypes.requested_dtype(preferred, "dot_general")
    return bind(
        dot_general_p,
        lhs,
        rhs,
        dimension_numbers=(
            (integers(sums[0]), integers(sums[1])),
            (integers(walks[0]), integers(walks[1])),
        ),
        precision=canonical_precision(
            config.current.default_matmul_precision if precision is None else precision
        ),
        preferred_element_type=preferred,
    )
