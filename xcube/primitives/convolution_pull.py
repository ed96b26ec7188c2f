"""A convolution in terms of other operations: a contraction of the input's windows with the
kernel, where the windows are a view that no memory holds; or, where each group has few products
per result, their plain sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xcube.ir import Shape
from xcube.primitives.contract import dot_general
from xcube.primitives.convert import convert_element_type, optimization_barrier
from xcube.primitives.convolution_numbers import ConvDimensionNumbers, Pairs, dilated, strided
from xcube.primitives.convolution_windows import Walk, windows_of
from xcube.primitives.elementwise import mul
from xcube.primitives.kinds import add_tangents
from xcube.primitives.shape import (
    accumulator_dtype,
    broadcast_in_dim,
    reduce_sum,
    reshape,
    transpose,
)
from xcube.primitives.view import concatenate, expand_dims, pad, rev, slice, slice_in_dim
from xcube.trace import aval_of

MOST_PHASES = 8  # convolutions that one is cut into
FEW = 32  # products per result and group that are summed one by one

# the whole ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """The parameters of conv_general_dilated."""

    window_strides: Shape
    padding: Pairs
    lhs_dilation: Shape
    rhs_dilation: Shape
    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    precision: Any
    preferred_element_type: np.dtype | None

    @property
    def groups(self) -> int:
        """Convolutions of their own that this one is."""
        return self.feature_group_count * self.batch_group_count

    def dtype(self, x: Any) -> np.dtype:
        """The result's, of an input."""
        return x.dtype if self.preferred_element_type is None else self.preferred_element_type


Made = Callable[[Any, Any, Parameters], "Any | None"]
"""A convolution without gaps between places of its input by a device's own kernels, or None."""


def convolved(x: Any, w: Any, *, made: Made | None = None, **fields: Any) -> Any:
    """conv_general_dilated by contraction, or by a sum of products; its parts as they are `made`,
    where they are."""
    params = Parameters(**fields)
    axis = _phased_axis(x.shape, w.shape, params)
    if _is_apart(w.shape, params):
        return _spread(x, w, params)
    if axis is not None:
        numbers = params.dimension_numbers
        straight = ConvDimensionNumbers(*numbers[:2], (0, x.ndim - 1, *range(1, x.ndim - 1)))
        params = replace(params, dimension_numbers=straight)
        (found,) = optimization_barrier(_in_phases(x, w, axis, params, made))
        return turned(found, places_in(numbers.out_spec))
    found = None if made is None else made(x, w, params)
    return _composed(x, w, params) if found is None else found


def _composed(x: Any, w: Any, params: Parameters) -> Any:
    left, right, out = params.dimension_numbers
    dtype, groups, walk = params.dtype(x), params.groups, walk_of(x.shape, w.shape, params)
    products = math.prod(walk.window) * w.shape[right[1]]
    results = x.shape[left[0]] * w.shape[right[0]] * math.prod(walk.counts)
    is_summed = groups > 1 and 0 < products <= FEW and results > 0
    if is_summed:  # where operands lie, so that the sum does not walk them against the grain
        (x,) = optimization_barrier(_padded(x, left, params))
    x = transpose(x, (left[0], *left[2:], left[1]))  # batch, *space, features
    w = transpose(w, (right[0], *right[2:], right[1]))  # output, *window, features
    if not is_summed:
        x = _padded(x, (0, x.ndim - 1, *range(1, x.ndim - 1)), params)
        x, w = optimization_barrier(x, w) if math.prod(walk.window) > 1 else (x, w)
    x = _grouped(x, params.feature_group_count, params.batch_group_count)
    w = reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    if is_summed:
        found = _summed(x, w, walk, dtype)
    elif groups > 1 and 0 < results <= FEW * groups * params.batch_group_count and products > 0:
        found = _swept(x, w, walk, dtype)
    else:
        is_last = out[1] == len(out) - 1 or math.prod(walk.window) > 1
        found = _contracted(x, w, walk, is_last, params.precision, dtype)
    return transpose(found, places_in(out))


def turned(x: Any, order: Sequence[int]) -> Any:
    """A transposed array in memory of its own: what reads it does not walk against the grain."""
    (found,) = optimization_barrier(transpose(x, order))
    return found


def _padded(x: Any, spec: Sequence[int], params: Parameters) -> Any:
    """An input whose space is at spec[2:], with what lies around it and between its places."""
    config = [(0, 0, 0)] * x.ndim
    for d, (pair, step) in enumerate(zip(params.padding, params.lhs_dilation, strict=True)):
        config[spec[d + 2]] = (*pair, step - 1)
    return pad(x, 0, config)


def places_in(out: Sequence[int]) -> list[int]:
    """How [batch, *space, output] is transposed to an order of dimensions."""
    places = (0, len(out) - 1, *range(1, len(out) - 1))  # of batch, output, *space
    return [places[out.index(d)] for d in range(len(out))]


def gaps(params: Parameters) -> list[tuple[int, int, int]]:
    """The padding of an input's space."""
    pairs = zip(params.padding, params.lhs_dilation, strict=True)
    return [(low, high, step - 1) for (low, high), step in pairs]


def walk_of(x: Shape, w: Shape, params: Parameters) -> Walk:
    """The walk of a convolution over its padded input."""
    left, right, _ = params.dimension_numbers
    spread = [dilated(x[d], step) for d, step in zip(left[2:], params.lhs_dilation, strict=True)]
    pairs = zip(spread, params.padding, strict=True)
    sizes = tuple([max(0, size + low + high) for size, (low, high) in pairs])
    window, strides = tuple([w[d] for d in right[2:]]), params.window_strides
    counts = _counts(sizes, window, strides, params.rhs_dilation)
    return Walk(window, counts, strides, params.rhs_dilation)


def _counts(sizes: Shape, window: Shape, strides: Shape, dilation: Shape) -> Shape:
    walks = zip(sizes, map(dilated, window, dilation), strides, strict=True)
    return tuple([strided(*walk) for walk in walks])


def _grouped(x: Any, by_feature: int, by_batch: int) -> Any:
    """d[batch, *space, features] -> d[groups, batch', *space, features']."""
    batch, *space, features = x.shape
    if by_feature == 1:
        return reshape(x, (by_batch, batch // by_batch, *space, features))
    apart = reshape(x, (batch, *space, by_feature, features // by_feature))
    return transpose(apart, (x.ndim - 1, *range(x.ndim - 1), x.ndim))


def _contracted(x: Any, w: Any, walk: Walk, is_last: bool, precision: Any, dtype: Any) -> Any:
    """d[g, batch, *space, i], d[g, o, *window, i] -> d[batch, *counts, g * o], made with features
    or with space as the last dimension."""
    space, groups = len(walk.counts), x.shape[0]
    views = windows_of(x, 2, walk)
    lead = 0 if groups == 1 else 1
    if groups == 1:
        views, w = reshape(views, views.shape[1:]), reshape(w, w.shape[1:])
    walked, first = tuple(range(lead)), lead + 1
    weights = tuple(range(first, w.ndim))
    if is_last:
        numbers = ((tuple(range(first + space, views.ndim)), weights), (walked, walked))
        found = dot_general(views, w, numbers, precision, dtype)  # g, batch, *counts, o
        order = (*range(lead, lead + 1 + space), *walked, found.ndim - 1)
    else:
        inner = range(first + space, views.ndim)
        views = transpose(views, (*range(first), *inner, *range(first, first + space)))
        flat = (*views.shape[: views.ndim - space], math.prod(walk.counts))
        views = reshape(views, flat)
        numbers = ((weights, weights), (walked, walked))
        found = dot_general(w, views, numbers, precision, dtype)
        found = reshape(found, (*found.shape[:-1], *walk.counts))  # g, o, batch, *counts
        order = (*range(lead + 1, found.ndim), *walked, lead)
    found = transpose(found, order)
    return reshape(found, (*found.shape[: 1 + space], w.shape[lead] * groups))


def _summed(x: Any, w: Any, walk: Walk, dtype: Any) -> Any:
    """The same where a result has few products: their sum, one by one."""
    groups, batch, outputs, features = *x.shape[:2], w.shape[1], x.shape[-1]
    wide, space = accumulator_dtype(aval_of(x)), len(walk.counts)
    shape = (batch, *walk.counts, groups, outputs)
    terms = []
    for *places, feature in itertools.product(*map(range, (*walk.window, features))):
        part = _part(x, walk.counts, walk.strides, places, walk.dilation)
        part = slice(part, (0,) * (space + 2) + (feature,), (*part.shape[:-1], feature + 1))
        part = transpose(reshape(part, part.shape[:-1]), (*range(1, space + 2), 0))
        at = (0, 0, *places, feature)
        factor = slice(w, at, (groups, outputs, *[place + 1 for place in at[2:]]))
        factor = convert_element_type(reshape(factor, (groups, outputs)), wide)
        left = broadcast_in_dim(convert_element_type(part, wide), shape, range(space + 2))
        terms.append(mul(left, broadcast_in_dim(factor, shape, (space + 1, space + 2))))
    total = convert_element_type(add_tangents(terms, None), dtype)
    return reshape(total, (batch, *walk.counts, groups * outputs))


def _swept(x: Any, w: Any, walk: Walk, dtype: Any) -> Any:
    """The same where there are few results in a group: each place's as a sum of its own."""
    groups, batch, outputs = *x.shape[:2], w.shape[1]
    wide, space = accumulator_dtype(aval_of(x)), len(walk.counts)
    shape = (groups, batch, outputs, *w.shape[2:])
    right = convert_element_type(w, wide)
    right = broadcast_in_dim(right, shape, (0, *range(2, len(shape))))
    found = []
    for places in itertools.product(*map(range, walk.counts)):
        part = _part(x, walk.window, walk.dilation, places, walk.strides)
        part = convert_element_type(part, wide)
        left = broadcast_in_dim(part, shape, (0, 1, *range(3, len(shape))))
        found.append(reduce_sum(mul(left, right), range(3, len(shape))))
    every = concatenate([reshape(part, (1, *part.shape)) for part in found], 0)
    every = reshape(every, (*walk.counts, groups, batch, outputs))
    order = (space + 1, *range(space), space, space + 2)
    whole = transpose(convert_element_type(every, dtype), order)
    return reshape(whole, (batch, *walk.counts, groups * outputs))


def _part(
    x: Any, counts: Shape, strides: Shape, places: Sequence[int], steps: Sequence[int]
) -> Any:
    """The places of space that lie `strides` apart from one on: d[g, batch, *space, i] ->
    d[g, batch, *counts, i]."""
    starts = [place * step for place, step in zip(places, steps, strict=True)]
    ends = [s + (n - 1) * step + 1 for s, n, step in zip(starts, counts, strides, strict=True)]
    groups, batch, features = *x.shape[:2], x.shape[-1]
    return slice(x, (0, 0, *starts, 0), (groups, batch, *ends, features), (1, 1, *strides, 1))


# windows that never meet two places ------------------------------------------------------------


def _is_apart(w: Shape, params: Parameters) -> bool:
    """Whether places of the input lie so far apart that a window meets one of them at most."""
    window = [w[d] for d in params.dimension_numbers.rhs_spec[2:]]
    walks = zip(window, params.lhs_dilation, strict=True)
    plain = {*params.window_strides, *params.rhs_dilation} <= {1} and params.groups == 1
    some = max(params.lhs_dilation, default=1) > 1 and 0 not in w
    return plain and some and all(size <= step for size, step in walks)


def _spread(x: Any, w: Any, params: Parameters) -> Any:
    """The convolution with such an input: products of each place with the whole window, side by
    side."""
    left, right, out = params.dimension_numbers
    space, steps = x.ndim - 2, params.lhs_dilation
    window = [w.shape[d] for d in right[2:]]
    w = transpose(w, (right[1], *right[2:], right[0]))  # features, *window, output
    w = rev(w, tuple(range(1, space + 1)))
    behind = [(0, step - size, 0) for step, size in zip(steps, window, strict=True)]
    w = pad(w, 0, [(0, 0, 0), *behind, (0, 0, 0)])
    x = transpose(x, (left[0], *left[2:], left[1]))
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    x, w = optimization_barrier(x, w)
    found = dot_general(x, w, numbers, params.precision, params.dtype(x))
    turns = [d for n in range(space) for d in (n + 1, n + 1 + space)]
    found = transpose(found, (0, *turns, found.ndim - 1))
    sizes = [n * step for n, step in zip(x.shape[1:-1], steps, strict=True)]
    found = reshape(found, (x.shape[0], *sizes, w.shape[-1]))
    config = [(0, 0, 0)] * found.ndim
    for d, ((low, high), size) in enumerate(zip(params.padding, window, strict=True)):
        before = low - size + 1
        count = dilated(x.shape[d + 1], steps[d]) + low + high - size + 1
        config[d + 1] = (before, count - sizes[d] - before, 0)
    (found,) = optimization_barrier(pad(found, 0, config))
    return turned(found, places_in(out))


# phases ---------------------------------------------------------------------------------------


def _phased_axis(x: Shape, w: Shape, params: Parameters) -> int | None:
    """The first axis of space whose input lies apart, if results are better made in phases: each
    by the part of the window that meets input at all."""
    numbers = params.dimension_numbers
    dilation, strides = params.lhs_dilation, params.window_strides
    periods = [
        step // math.gcd(step, stride) for step, stride in zip(dilation, strides, strict=True)
    ]
    sizes = [
        n for shape, spec in zip((x, w), numbers, strict=False) for n in (shape[d] for d in spec)
    ]
    if max(dilation, default=1) == 1 or 0 in sizes or math.prod(periods) > MOST_PHASES:
        return None
    return next(d for d, step in enumerate(dilation) if step > 1)


def _in_phases(x: Any, w: Any, axis: int, params: Parameters, made: Made | None) -> Any:
    """The convolution whose result at q * period + r along an axis is a convolution without gaps
    at q, for each r: of the input with every so many-th place of the window."""
    left, right, out = params.dimension_numbers
    step, apart = params.lhs_dilation[axis], params.rhs_dilation[axis]
    stride, (low, high) = params.window_strides[axis], params.padding[axis]
    size, window = x.shape[left[axis + 2]], w.shape[right[axis + 2]]
    span = (size - 1) * step + 1 + low + high
    whole = max(0, (span - (window - 1) * apart - 1) // stride + 1)
    period, every = step // math.gcd(step, stride), step // math.gcd(step, apart)
    count, parts = max(1, -(-whole // period)), []
    for phase in range(period):
        start = phase * stride - low
        meets = [k for k in range(window) if (start + k * apart) % step == 0]
        first = meets[0] if meets else window  # no place of the window: sums of nothing
        taken = slice_in_dim(w, first, window, every, axis=right[axis + 2])
        spread, pace = every * apart // step, period * stride // step
        reach, before = dilated(len(meets), spread), -((start + first * apart) // step)
        after = (count - 1) * pace + reach - size - before
        changes = {
            "window_strides": pace,
            "padding": (before, after),
            "lhs_dilation": 1,
            "rhs_dilation": spread,
        }
        fields = {**vars(params)}
        for name, value in changes.items():
            fields[name] = (*fields[name][:axis], value, *fields[name][axis + 1 :])
        found = convolved(x, taken, made=made, **fields)
        parts.append(expand_dims(found, (out[axis + 2] + 1,)))
    return _interleaved(parts, whole, out[axis + 2])


def _interleaved(parts: Sequence[Any], whole: int, dim: int) -> Any:
    """Parts of d[..., q, 1, ...] in turns along a dimension, cut to its size."""
    together = concatenate(parts, dim + 1)
    shape = together.shape
    merged = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
    return slice_in_dim(reshape(together, merged), 0, whole, axis=dim)
