"""Convolutions in the forms that programs ask for: with fewer parameters, transposed, the windows
alone, and with a kernel of its own at each place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.primitives.contract import canonical_precision, dot_general
from xcube.primitives.convert import convert_element_type
from xcube.primitives.convolution import conv_general_dilated
from xcube.primitives.convolution_numbers import (
    conv_dimension_numbers,
    dilated,
    placed,
    transposed_pads,
)
from xcube.primitives.select import eq
from xcube.primitives.shape import broadcast_in_dim, reshape, transpose
from xcube.primitives.view import integers, iota, rev

_TRANSPOSED = {
    2: ("NC", "IO", "NC"),
    3: ("NHC", "HIO", "NHC"),
    4: ("NHWC", "HWIO", "NHWC"),
    5: ("NHWDC", "HWDIO", "NHWDC"),
}


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution without dilation, groups or another order of dimensions:
    d[batch, features, *space], d[output, features, *window] -> d[batch, output, *space].

    Raises ShapeError or DtypeError if something does not fit.

    >>> from xcube.primitives.shape import full
    >>> conv(full((1, 2, 8), 1.0), full((3, 2, 3), 1.0), (2,), "VALID").shape
    (1, 3, 3)
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution without groups or another order of dimensions:
    d[batch, features, *space], d[output, features, *window] -> d[batch, output, *space].

    Raises ShapeError or DtypeError if something does not fit.

    >>> from xcube.primitives.shape import full
    >>> x, w = full((1, 2, 8), 1.0), full((3, 2, 3), 1.0)
    >>> conv_with_general_padding(x, w, (1,), [(2, 2)], None, (2,)).shape
    (1, 3, 8)
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """A convolution whose input's places lie `strides` apart, features last unless
    `dimension_numbers` says otherwise: d[batch, *space, i], d[*window, i, o] ->
    d[batch, *larger, o].

    `padding`: the forward convolution's, if a name or with `use_consistent_padding`, else this
    one's. `transpose_kernel`: turn the window round and exchange the kernel's features, which
    makes this the input gradient of a convolution. Raises ShapeError or DtypeError if something
    does not fit.

    >>> from xcube.primitives.shape import full
    >>> conv_transpose(full((1, 4, 2), 1.0), full((3, 2, 5), 1.0), (2,), "SAME").shape
    (1, 8, 5)
    """
    if dimension_numbers is None:
        if lhs.ndim not in _TRANSPOSED:
            raise ShapeError(
                f"conv_transpose: needs dimension_numbers unless there are 0 to 3 dimensions of "
                f"space; got {lhs.aval}.{at_user_line()}"
            )
        dimension_numbers = _TRANSPOSED[lhs.ndim]
    numbers = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    spec, space = numbers.rhs_spec, lhs.ndim - 2
    apart = (1,) * space if rhs_dilation is None else integers(rhs_dilation)
    if isinstance(padding, str) or use_consistent_padding:
        pairs = [padding] * space if isinstance(padding, str) else padding
        windows = [dilated(rhs.shape[d], step) for d, step in zip(spec[2:], apart, strict=True)]
        padding = [transposed_pads(*p) for p in zip(windows, strides, pairs, strict=True)]
    if transpose_kernel:
        order = list(range(rhs.ndim))
        order[spec[0]], order[spec[1]] = spec[1], spec[0]
        rhs = transpose(rev(rhs, spec[2:]) if space else rhs, order)
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * space,
        padding,
        strides,
        apart,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The windows that a convolution would see, each flattened (features first) into features:
    d[batch, features, *space] -> d[batch, features * window, *space].

    Raises ShapeError or DtypeError if something does not fit.

    >>> from xcube.primitives.shape import full
    >>> conv_general_dilated_patches(full((1, 2, 5, 5), 1.0), (3, 3), (1, 1), "VALID").shape
    (1, 18, 3, 3)
    """
    window = integers(filter_shape)
    numbers = conv_dimension_numbers(lhs.shape, (1, 1, *window), dimension_numbers)
    features, size = lhs.shape[numbers.lhs_spec[1]], math.prod(window)
    one = eq(iota(np.int32, (size, size), 0), iota(np.int32, (size, size), 1))
    each = broadcast_in_dim(convert_element_type(one, lhs.dtype), (features, size, size), (1, 2))
    kernel = reshape(each, (features * size, 1, *window))
    pair = None if precision is None else canonical_precision(precision)
    return conv_general_dilated(
        lhs,
        transpose(kernel, placed(range(kernel.ndim), numbers.rhs_spec)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count=features,
        precision=pair,
        preferred_element_type=preferred_element_type,
    )


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Any:
    """A convolution with a kernel of its own at each place: d[batch, features, *space],
    d[output, features * window, *places] -> d[batch, output, *places].

    Raises ShapeError or DtypeError if something does not fit.

    >>> from xcube.primitives.shape import full
    >>> x, w = full((1, 2, 5), 1.0), full((4, 6, 3), 1.0)
    >>> conv_general_dilated_local(x, w, (1,), "VALID", (3,)).shape
    (1, 4, 3)
    """
    window = integers(filter_shape)
    numbers = conv_dimension_numbers(lhs.shape, (1, 1, *window), dimension_numbers)
    patches = conv_general_dilated_patches(
        lhs,
        window,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        precision=precision,
    )
    _, right, out = numbers
    sums, walks = ((out[1],), (right[1],)), (out[2:], right[2:])
    found = dot_general(patches, rhs, (sums, walks), precision)  # *places, batch, output
    space = found.ndim - 2
    return transpose(found, placed((space, space + 1, *range(space)), out))
