"""conv_general_dilated: products of an input's windows with a kernel, summed; its gradients are
convolutions again, and mapped axes become batches, features or groups."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Primitive, Shape, at_user_line
from xcube.primitives.contract import canonical_precision
from xcube.primitives.convert import convert_element_type
from xcube.primitives.convolution_numbers import (
    ConvDimensionNumbers,
    Pairs,
    conv_dimension_numbers,
    conv_shape_tuple,
    dilated,
    padtype_to_pads,
    placed,
)
from xcube.primitives.convolution_pull import convolved
from xcube.primitives.kinds import add_tangents, is_linear
from xcube.primitives.lowered import Expand
from xcube.primitives.shape import reshape, transpose, zeros_of
from xcube.primitives.view import integers, rev
from xcube.trace import aval_of, bind

# typing ---------------------------------------------------------------------------------------


def _conv_abstract(
    x: Aval,
    w: Aval,
    *,
    window_strides: Shape,
    padding: Pairs,
    lhs_dilation: Shape,
    rhs_dilation: Shape,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: np.dtype | None,
) -> Aval:
    numbers = dimension_numbers
    _check_numbers(x, w, numbers)
    steps = (window_strides, lhs_dilation, rhs_dilation)
    _check_steps(x.ndim - 2, steps, padding)
    left, right = (
        [aval.shape[d] for d in spec] for aval, spec in ((x, numbers[0]), (w, numbers[1]))
    )
    _check_groups(x, w, left, right, feature_group_count, batch_group_count)
    wide = [*left[:2], *map(dilated, left[2:], lhs_dilation)]
    window = [*right[:2], *map(dilated, right[2:], rhs_dilation)]
    shape = conv_shape_tuple(wide, window, window_strides, padding, batch_group_count)
    dtype = _result_dtype(x, w, preferred_element_type)
    return Aval(placed(shape, numbers.out_spec), dtype, x.weak_type and w.weak_type)


def _check_numbers(x: Aval, w: Aval, numbers: ConvDimensionNumbers) -> None:
    fits = x.ndim == w.ndim >= 2 and all(sorted(s) == list(range(x.ndim)) for s in numbers)
    if not fits:
        raise ShapeError(
            f"conv_general_dilated: lhs and rhs must have one number of dimensions, at least 2, "
            f"and dimension_numbers must name each once; got {x}, {w} and {numbers}."
            f"{at_user_line()}"
        )


def _check_steps(space: int, steps: Sequence[Shape], padding: Pairs) -> None:
    fits = all(len(s) == space and min(s, default=1) > 0 for s in steps)
    if not fits or len(padding) != space:
        raise ShapeError(
            f"conv_general_dilated: window_strides, lhs_dilation and rhs_dilation must be positive "
            f"and, like padding, one per dimension of space ({space}); got "
            f"{', '.join(map(str, steps))} and {padding}.{at_user_line()}"
        )


def _check_groups(
    x: Aval, w: Aval, left: Sequence[int], right: Sequence[int], by_feature: int, by_batch: int
) -> None:
    groups = f"feature_group_count={by_feature}, batch_group_count={by_batch}"
    if min(by_feature, by_batch) < 1 or min(by_feature, by_batch) > 1:
        raise ShapeError(
            f"conv_general_dilated: group counts must be positive and one of them 1; got {groups}."
            f"{at_user_line()}"
        )
    rules = {
        "feature_group_count must divide the input's features": left[1] % by_feature == 0,
        "the kernel must have the input features of one group": (left[1] == right[1] * by_feature),
        "the groups must divide the output features": right[0] % (by_feature * by_batch) == 0,
        "batch_group_count must divide the batch": left[0] % by_batch == 0,
    }
    for rule, holds in rules.items():
        if not holds:
            raise ShapeError(
                f"conv_general_dilated: {rule}; got {left[1]} features and a batch of {left[0]} in "
                f"{x}, {right[1]} input and {right[0]} output features in {w}, and {groups}."
                f"{at_user_line()}"
            )


def _result_dtype(x: Aval, w: Aval, preferred: np.dtype | None) -> np.dtype:
    if x.dtype != w.dtype or dtypes.is_bool(x.dtype):
        raise DtypeError(
            f"conv_general_dilated: lhs and rhs must be numbers of one dtype; got {x}, {w}."
            f"{at_user_line()} Convert one of them."
        )
    if preferred is None:
        return x.dtype
    if not dtypes.is_float(x.dtype) and dtypes.bits_of(preferred) < dtypes.bits_of(x.dtype):
        raise DtypeError(
            f"conv_general_dilated: preferred_element_type must not be narrower than the product's "
            f"{x.dtype}; got {preferred} for {x}, {w}.{at_user_line()}"
        )
    return preferred


# derivatives ----------------------------------------------------------------------------------


def _conv_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, w), (dx, dw) = primals, tangents
    out = bind(conv_general_dilated_p, x, w, **params)
    terms = [] if dx is None else [bind(conv_general_dilated_p, dx, w, **params)]
    terms += [] if dw is None else [bind(conv_general_dilated_p, x, dw, **params)]
    return out, add_tangents(terms, out)


def _conv_transpose(ct: Any, x: Any, w: Any, **params: Any) -> list[Any]:
    wanted, other = (x, w) if is_linear(x) else (w, x)
    if 0 in ct.shape or 0 in wanted.aval.shape:
        found = zeros_of(wanted.aval)
    else:
        rule = _input_cotangent if is_linear(x) else _kernel_cotangent
        found = rule(ct, convert_element_type(other, ct.dtype), wanted.aval, **params)
        found = convert_element_type(found, wanted.aval.dtype, wanted.aval.weak_type)
    return [found, None] if is_linear(x) else [None, found]


def _input_cotangent(
    ct: Any,
    w: Any,
    x: Aval,
    *,
    window_strides: Shape,
    padding: Pairs,
    lhs_dilation: Shape,
    rhs_dilation: Shape,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
) -> Any:
    """ct convolved with the kernel turned round, its input features as output; ct's places lie as
    far apart as the windows did."""
    left, right, out = dimension_numbers
    groups = feature_group_count * batch_group_count
    pairs = []
    for d, (low, _) in enumerate(padding):
        size = dilated(x.shape[left[d + 2]], lhs_dilation[d])
        window = dilated(w.shape[right[d + 2]], rhs_dilation[d])
        before = window - 1 - low
        reach = dilated(ct.shape[out[d + 2]], window_strides[d])
        pairs.append((before, size + window - 1 - reach - before))
    turned = rev(w, right[2:]) if right[2:] else w
    if groups > 1:
        turned = merged(_fronted(turned, right[0], groups), right[1])
    back = bind(
        conv_general_dilated_p,
        ct,
        turned,
        window_strides=lhs_dilation,
        padding=tuple(pairs),
        lhs_dilation=window_strides,
        rhs_dilation=rhs_dilation,
        dimension_numbers=ConvDimensionNumbers(out, (right[1], right[0], *right[2:]), left),
        feature_group_count=groups,
        batch_group_count=1,
        precision=precision,
        preferred_element_type=None,
    )
    if batch_group_count == 1:
        return back
    return merged(_fronted(back, left[1], batch_group_count), left[0])


def _kernel_cotangent(
    ct: Any,
    x: Any,
    w: Aval,
    *,
    window_strides: Shape,
    padding: Pairs,
    lhs_dilation: Shape,
    rhs_dilation: Shape,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
) -> Any:
    """The input convolved with ct as the kernel, batch and features having changed places: what
    were groups of features are groups of the batch, and the other way round."""
    left, right, out = dimension_numbers
    pairs = []
    for d, (low, _) in enumerate(padding):
        size = dilated(x.shape[left[d + 2]], lhs_dilation[d])
        window = dilated(w.shape[right[d + 2]], rhs_dilation[d])
        reach = dilated(ct.shape[out[d + 2]], window_strides[d])
        pairs.append((low, reach + window - 1 - size - low))
    return bind(
        conv_general_dilated_p,
        x,
        ct,
        window_strides=rhs_dilation,
        padding=tuple(pairs),
        lhs_dilation=lhs_dilation,
        rhs_dilation=window_strides,
        dimension_numbers=ConvDimensionNumbers(
            (left[1], left[0], *left[2:]),
            (out[1], out[0], *out[2:]),
            (right[1], right[0], *right[2:]),
        ),
        feature_group_count=batch_group_count,
        batch_group_count=feature_group_count,
        precision=precision,
        preferred_element_type=None,
    )


# mapped axes ----------------------------------------------------------------------------------


def _conv_batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    **params: Any,
) -> tuple[Any, bool]:
    """Both mapped: more groups. The input alone: a longer batch. The kernel alone: more output
    features, within each group."""
    (x, w), (left, right, out) = args, dimension_numbers
    by_feature, by_batch, size = feature_group_count, batch_group_count, axis.size
    if all(batched):
        x = merged(x, left[1] if by_batch == 1 else left[0])
        w = merged(w, right[0])
        by_feature, by_batch = (size * by_feature, 1) if by_batch == 1 else (1, size * by_batch)
        place, groups = out[1], 1
    elif batched[0]:
        x, place, groups = merged(x, left[0], by_batch), out[0], 1
    else:
        groups = by_feature * by_batch
        w, place = merged(w, right[0], groups), out[1]
    found = bind(
        conv_general_dilated_p,
        x,
        w,
        dimension_numbers=dimension_numbers,
        feature_group_count=by_feature,
        batch_group_count=by_batch,
        **params,
    )
    return _fronted(found, place, size, groups), True


def merged(x: Any, dim: int, groups: int = 1) -> Any:
    """d[size, *s] -> d[*s], the first axis merged into dimension `dim` of s, within each of its
    groups in front of what they hold."""
    size, shape = x.shape[0], x.shape[1:]
    apart = reshape(x, (size, *shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))
    order = [*range(1, dim + 2), 0, *range(dim + 2, apart.ndim)]
    together = (*shape[:dim], size * shape[dim], *shape[dim + 1 :])
    return reshape(transpose(apart, order), together)


def _fronted(x: Any, dim: int, size: int, groups: int = 1) -> Any:
    """The inverse of `merged`."""
    shape = x.shape
    length = shape[dim] // size
    apart = reshape(x, (*shape[:dim], groups, size, length // groups, *shape[dim + 1 :]))
    order = [dim + 1, *range(dim + 1), *range(dim + 2, apart.ndim)]
    return reshape(transpose(apart, order), (size, *shape[:dim], length, *shape[dim + 1 :]))


conv_general_dilated_p = Primitive(
    "conv_general_dilated",
    abstract=_conv_abstract,
    jvp=_conv_jvp,
    transpose=_conv_transpose,
    batch=_conv_batch,
    lower=Expand(convolved, family="convolve"),
)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """Products of windows of an input with a kernel, summed over window and input features:
    d[batch, features, *space], d[output, features / groups, *window] -> d[batch, output, *space].

    `padding`: "SAME", "SAME_LOWER", "VALID" or (low, high) pairs. `lhs_dilation` and
    `rhs_dilation`: how far apart the input's and the window's places lie. `dimension_numbers`:
    the order of dimensions, as strings like ("NHWC", "HWIO", "NHWC"). The groups divide features
    or batch and the output features; each is a convolution of its own. Narrow floats are summed
    in f32. Raises ShapeError or DtypeError if something does not fit.

    >>> from xcube.primitives.shape import full
    >>> x, w = full((1, 2, 5, 5), 1.0), full((3, 2, 3, 3), 1.0)
    >>> conv_general_dilated(x, w, (1, 1), "SAME").shape
    (1, 3, 5, 5)
    """
    numbers = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    space = lhs.ndim - 2
    spread = (1,) * space if lhs_dilation is None else integers(lhs_dilation)
    apart = (1,) * space if rhs_dilation is None else integers(rhs_dilation)
    strides, preferred = integers(window_strides), preferred_element_type
    if preferred is not None:
        preferred = dtypes.requested_dtype(preferred, "conv_general_dilated")
    return bind(
        conv_general_dilated_p,
        lhs,
        rhs,
        window_strides=strides,
        padding=_pairs(lhs, rhs, numbers, strides, padding, spread, apart),
        lhs_dilation=spread,
        rhs_dilation=apart,
        dimension_numbers=ConvDimensionNumbers(*map(integers, numbers)),
        feature_group_count=operator.index(feature_group_count),
        batch_group_count=operator.index(batch_group_count),
        precision=canonical_precision(
            config.current.default_matmul_precision if precision is None else precision
        ),
        preferred_element_type=preferred,
    )


def _pairs(
    x: Any,
    w: Any,
    numbers: ConvDimensionNumbers,
    strides: Shape,
    padding: Any,
    lhs_dilation: Shape,
    rhs_dilation: Shape,
) -> Pairs:
    if not isinstance(padding, str):
        return tuple([_pair(item) for item in padding])
    if any(step != 1 for step in lhs_dilation):
        raise ShapeError(
            f"conv_general_dilated: a named padding needs an lhs_dilation of ones; got {padding!r} "
            f"and {lhs_dilation}.{at_user_line()} Give (low, high) pairs, or use conv_transpose."
        )
    space = x.ndim - 2
    _check_steps(space, (strides, lhs_dilation, rhs_dilation), ((0, 0),) * space)
    _check_numbers(aval_of(x), aval_of(w), numbers)
    sizes = [x.shape[d] for d in numbers.lhs_spec[2:]]
    windows = map(dilated, [w.shape[d] for d in numbers.rhs_spec[2:]], rhs_dilation)
    return tuple(padtype_to_pads(sizes, tuple(windows), strides, padding))


def _pair(item: Any) -> tuple[int, int]:
    if not isinstance(item, Sequence | np.ndarray) or len(item) != 2:
        raise ShapeError(
            f"conv_general_dilated: padding must be a name or (low, high) pairs; got {item!r} "
            f"among them.{at_user_line()}"
        )
    return operator.index(item[0]), operator.index(item[1])
