"""Statistics and sequences: quantiles, histograms, covariance, interpolation, convolution,
differences, integrals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy import contraction, reductions, shaping
from xcube.numpy import elementwise as e
from xcube.numpy.choice import chosen
from xcube.numpy.creation import linspace
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    array_operands,
    as_array,
    canonical_axes,
    canonical_axis,
    cast,
    inexact_of,
    operand,
    promoted,
    promoted_inexact,
    requested,
    scalar,
    stretch,
    typed_operand,
)
from xcube.numpy.searching import bincount
from xcube.numpy.sorting import argsort, ranked, searchsorted, sort
from xcube.primitives import view
from xcube.primitives.shape import full, reshape, transpose

# --- Quantiles -----------------------------------------------------------------------------------

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@fused()
def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """The q-quantiles over axes: d[*s], f[*t] -> f[*t, *(s without axes)].

    `method` tells what lies between two elements: "linear", "lower", "higher", "midpoint" or
    "nearest". NaN wins. Raises ValueError for another method.

    >>> import xcube.numpy as jnp
    >>> quantile(jnp.arange(5.0), 0.5)
    Array(2., dtype=float32)
    """
    return _quantile("quantile", a, q, axis, method, keepdims, False)


@fused()
def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """`quantile` of the elements that are not NaN."""
    return _quantile("nanquantile", a, q, axis, method, keepdims, True)


@fused()
def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """`quantile` with q in percent."""
    x, q = promoted_inexact("percentile", a, q)
    return _quantile("percentile", x, e.divide(q, 100), axis, method, keepdims, False)


@fused()
def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """`percentile` of the elements that are not NaN."""
    x, q = promoted_inexact("nanpercentile", a, q)
    return _quantile("nanpercentile", x, e.divide(q, 100), axis, method, keepdims, True)


@fused()
def median(
    a: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """The middle element, or the mean of the middle two, over axes."""
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, False)


@fused()
def nanmedian(
    a: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """`median` of the elements that are not NaN."""
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, True)


def _quantile(
    name: str, a: Any, q: Any, axis: Any, method: str, keepdims: bool, skip_nan: bool
) -> Array:
    if method not in _METHODS:
        raise ValueError(
            f"{name}: method must be one of {', '.join(_METHODS)}; got {method!r}.{at_user_line()}"
        )
    x, q = (as_array(v) for v in promoted_inexact(name, a, q))
    if dtypes.is_complex(x.dtype):
        raise ValueError(f"{name}: the array must not be complex; got {x.aval}.{at_user_line()}")
    axes = canonical_axes(name, axis, x.aval)
    rows, rest = _rows(x, axes)
    flat_q = reshape(q, (q.size,))
    if skip_nan:
        result = _among_numbers(rows, flat_q, method)
    else:
        result = _at_rank(ranked(rows, 1), flat_q, method)
    kept = tuple(1 if k in axes else n for k, n in enumerate(x.shape)) if keepdims else rest
    return reshape(result, (*q.shape, *kept))


def _rows(x: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """The array as rows: the axes that stay first, those that are reduced as one last axis."""
    kept = [k for k in range(x.ndim) if k not in axes]
    rest = tuple(x.shape[k] for k in kept)
    size = math.prod(x.shape[k] for k in axes)
    return reshape(transpose(x, (*kept, *axes)), (math.prod(rest), size)), rest


def _at_rank(ordered: Array, q: Array, method: str) -> Array:
    """Elements of sorted rows at the ranks q * (n - 1): d[m, n], f[k] -> d[k, m]."""
    count, size = ordered.shape
    if size == 0:
        return full((q.shape[0], count), scalar(math.nan, ordered.dtype))
    rank = e.multiply(q, scalar(size - 1, q.dtype))
    low, high = e.floor(rank), e.ceil(rank)
    below, above = _column(ordered, low), _column(ordered, high)
    weight = reshape(e.subtract(rank, low), (q.shape[0], 1))
    return _between(below, above, weight, method)


def _column(ordered: Array, place: Array) -> Array:
    where = cast(e.clip(place, 0, ordered.shape[1] - 1), np.dtype(np.int32))
    return transpose(ordered[:, where], (1, 0))  # type: ignore[index]


def _between(below: Array, above: Array, weight: Array, method: str) -> Array:
    if method == "lower":
        return below
    if method == "higher":
        return above
    if method == "nearest":
        return chosen(e.less_equal(weight, 0.5), below, above)
    if method == "midpoint":
        middle = e.add(e.multiply(below, 0.5), e.multiply(above, 0.5))
        return chosen(e.equal(weight, 0), below, middle)
    first = e.multiply(below, e.subtract(1, weight))
    return e.add(first, e.multiply(above, weight))


def _among_numbers(rows: Array, q: Array, method: str) -> Array:
    """Quantiles of what is not NaN in each row; sorting has put NaN last."""
    ordered = sort(rows, 1)
    count = reductions.sum(e.logical_not(e.isnan(rows)), 1)
    last = cast(e.subtract(count, 1), q.dtype)
    rank = e.multiply(reshape(q, (q.size, 1)), reshape(last, (1, last.size)))
    rank = e.maximum(rank, 0)
    low, high = e.floor(rank), e.ceil(rank)
    row = view.iota(np.dtype(np.int32), rank.shape, 1)
    below = ordered[row, cast(low, np.dtype(np.int32))]  # type: ignore[index]
    above = ordered[row, cast(high, np.dtype(np.int32))]  # type: ignore[index]
    return _between(below, above, e.subtract(rank, low), method)


# --- Histograms ----------------------------------------------------------------------------------


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:
    """The edges of `histogram`: d[*s] -> f[bins + 1]. `bins` is a number or the edges themselves.

    Raises NotImplementedError if it is the name of a method.
    """
    if isinstance(bins, str):
        raise NotImplementedError(
            f"histogram: bins must be a number or the edges; got {bins!r}.{at_user_line()}"
        )
    x = array_operand("histogram_bin_edges", a)
    dtype = inexact_of(x.dtype)
    if not isinstance(bins, int | np.integer) and np.ndim(bins) == 1:
        return as_array(typed_operand("histogram_bin_edges", bins, dtype))
    low, high = _range(cast(x, dtype), range)
    same = e.equal(low, high)
    half = scalar(0.5, dtype)
    low, high = chosen(same, e.subtract(low, half), low), chosen(same, e.add(high, half), high)
    return linspace(low, high, int(bins) + 1, dtype=dtype)


def _range(x: Array, range: Any) -> tuple[Any, Any]:
    if range is not None:
        return tuple(cast(as_array(operand("histogram", v)), x.dtype) for v in range)  # type: ignore[return-value]
    if x.size == 0:
        return full((), scalar(0, x.dtype)), full((), scalar(1, x.dtype))
    return reductions.min(x), reductions.max(x)


@fused()
def histogram(
    a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, Array]:
    """How many elements lie between neighbouring edges (the last edge included), and the edges.

    `weights`: what each element counts. `density`: scaled so that the integral is 1.

    >>> import xcube.numpy as jnp
    >>> histogram(jnp.array([0.0, 1.0, 1.0]), bins=2)[0]
    Array([1., 2.], dtype=float32)
    """
    x = array_operand("histogram", a)
    values = reshape(cast(x, inexact_of(x.dtype)), (x.size,))
    edges = histogram_bin_edges(values, bins, range)
    amounts = _amounts("histogram", weights, values, values.dtype)
    counts = _counted([values], [edges], amounts)
    if density:
        widths = e.subtract(edges[1:], edges[:-1])  # type: ignore[index]
        counts = e.divide(e.divide(counts, widths), reductions.sum(counts))
    return counts, edges


def _amounts(name: str, weights: Any, values: Array, dtype: np.dtype) -> Array:
    """What each element counts: its weight, or 1 of a dtype."""
    if weights is None:
        return full(values.shape, scalar(1, dtype))
    w = array_operand(name, weights)
    if w.size != values.shape[0]:
        raise ShapeError(
            f"{name}: weights must be one for each element; got {w.aval} for {values.aval}."
            f"{at_user_line()}"
        )
    return reshape(w, (w.size,))


def _counted(columns: Sequence[Array], edges: Sequence[Array], amounts: Array) -> Array:
    """Amounts summed by the bins of their points."""
    shape = tuple(part.shape[0] - 1 for part in edges)
    place: Any = 0
    inside: Any = None
    for x, part, size in zip(columns, edges, shape, strict=True):
        bin_ = e.subtract(searchsorted(part, x, side="right"), 1)
        bin_ = chosen(e.equal(x, part[-1]), size - 1, bin_)  # type: ignore[index]
        here = e.logical_and(e.greater_equal(bin_, 0), e.less(bin_, size))
        inside = here if inside is None else e.logical_and(inside, here)
        place = e.add(e.multiply(place, size), bin_)
    total = math.prod(shape)
    place = chosen(inside, place, total)
    return reshape(bincount(place, amounts, length=total), shape)


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Array, list[Array]]:
    """`histogram` of points with several coordinates: d[n, k] -> (f[*bins], edges of each).

    Raises ShapeError unless the sample has two axes.
    """
    points = array_operand("histogramdd", sample)
    if points.ndim != 2:
        raise ShapeError(
            f"histogramdd: the sample must have two axes; got {points.aval}.{at_user_line()}"
        )
    points = cast(points, inexact_of(points.dtype))
    rank = points.shape[1]
    each = list(bins) if isinstance(bins, tuple | list) else [bins] * rank
    ranges = list(range) if range is not None else [None] * rank
    columns = [points[:, k] for k in np.arange(rank).tolist()]  # type: ignore[index]
    edges = [histogram_bin_edges(x, b, r) for x, b, r in zip(columns, each, ranges, strict=True)]
    integer = dtypes.default_dtype("int")
    counts = _counted(columns, edges, _amounts("histogramdd", weights, columns[0], integer))
    if density:
        total = reductions.sum(counts)
        for k, part in enumerate(edges):
            widths = e.subtract(part[1:], part[:-1])  # type: ignore[index]
            counts = e.divide(counts, reshape(widths, (widths.size,) + (1,) * (rank - k - 1)))
        counts = e.divide(counts, total)
    return counts, edges


def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    weights: Any = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """`histogram` of points in the plane: d[n], d[n] -> (f[a, b], edges of x, edges of y)."""
    columns = [as_array(v) for v in promoted("histogram2d", *array_operands("histogram2d", (x, y)))]
    if isinstance(bins, np.ndarray | Array) and bins.ndim == 1:
        bins = [bins, bins]
    counts, edges = histogramdd(shaping.stack(columns, 1), bins, range, weights, density)
    return counts, edges[0], edges[1]


# --- Covariance ----------------------------------------------------------------------------------


@fused()
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Array:
    """The covariance matrix of variables given as rows: d[k, n] -> f[k, k].

    Raises ValueError for more than two axes.
    """
    x = _variables("cov", m, y, rowvar)
    x = x if dtype is None else cast(x, requested("cov", dtype))
    weights = _weights(fweights, aweights, x)
    if ddof is None:
        ddof = 0 if bias else 1
    if weights is None:
        total: Any = scalar(x.shape[1], x.dtype)
        center = reductions.mean(x, 1, keepdims=True)
        freedom: Any = scalar(x.shape[1] - ddof, x.dtype)
        deviation = e.subtract(x, center)
        scaled = e.conj(deviation)
    else:
        total = reductions.sum(weights)
        center = reductions.average(x, 1, weights)
        deviation = e.subtract(x, reshape(center, (x.shape[0], 1)))
        scaled = e.conj(e.multiply(deviation, weights))
        freedom = _freedom(total, weights, aweights, ddof)
    product = contraction.dot(deviation, transpose(scaled, (1, 0)))
    result = e.divide(product, freedom)
    return shaping.squeeze(result) if result.shape == (1, 1) else result


def _variables(name: str, m: Any, y: Any, rowvar: bool) -> Array:
    parts = [as_array(v) for v in promoted_inexact(name, *([m] if y is None else [m, y]))]
    if any(x.ndim > 2 for x in parts):
        raise ValueError(
            f"{name}: arrays must have at most two axes; got "
            f"{', '.join(str(x.aval) for x in parts)}.{at_user_line()}"
        )
    rows = []
    for x in parts:
        wide = shaping.atleast_2d(x)
        rows.append(
            transpose(wide, (1, 0)) if not rowvar and x.ndim == 2 and x.shape[0] != 1 else wide
        )
    return rows[0] if len(rows) == 1 else view.concatenate(rows, 0)


def _weights(fweights: Any, aweights: Any, x: Array) -> Any:
    given = [array_operand("cov", w) for w in (fweights, aweights) if w is not None]
    for w in given:
        if w.shape != x.shape[1:]:
            raise ShapeError(
                f"cov: weights must be one for each of the {x.shape[1]} observations; got {w.aval}."
                f"{at_user_line()}"
            )
    product = None
    for w in given:
        w = cast(e.abs(w), dtypes.float_part(x.dtype))
        product = w if product is None else e.multiply(product, w)
    return product


def _freedom(total: Array, weights: Array, aweights: Any, ddof: int) -> Any:
    if ddof == 0:
        return total
    if aweights is None:
        return e.subtract(total, ddof)
    share = reductions.sum(e.multiply(weights, cast(e.abs(aweights), weights.dtype)))
    return e.subtract(total, e.divide(e.multiply(share, ddof), total))


@fused()
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Array:
    """The matrix of correlation coefficients of variables given as rows: d[k, n] -> f[k, k]."""
    matrix = cov(x, y, rowvar)
    if matrix.ndim == 0:
        return e.divide(matrix, matrix)
    size = matrix.shape[0]
    variances = e.real(matrix[np.arange(size), np.arange(size)])  # type: ignore[index]
    deviation = cast(e.sqrt(variances), dtypes.float_part(matrix.dtype))
    result = e.divide(
        e.divide(matrix, reshape(deviation, (size, 1))), reshape(deviation, (1, size))
    )
    if dtypes.is_complex(result.dtype):
        parts = (e.clip(e.real(result), -1, 1), e.clip(e.imag(result), -1, 1))
        return e.add(parts[0], e.multiply(parts[1], 1j))
    return e.clip(result, -1, 1)


# --- Sequences -----------------------------------------------------------------------------------


@fused(3)
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Array:
    """Linear interpolation of the points (xp, fp), xp ascending: f[*s], f[n], d[n] -> d[*s].
    Outside of xp: `left` and `right`, by default the end values.

    Raises ShapeError unless xp and fp have one axis of one length.

    >>> import xcube.numpy as jnp
    >>> interp(0.5, jnp.array([0.0, 1.0]), jnp.array([0.0, 10.0]))
    Array(5., dtype=float32)
    """
    at, nodes = (as_array(v) for v in promoted_inexact("interp", x, xp))
    values = as_array(promoted_inexact("interp", fp)[0])
    if nodes.ndim != 1 or nodes.shape != values.shape or nodes.shape[0] == 0:
        raise ShapeError(
            f"interp: xp and fp must have one axis of one length, not 0; got {nodes.aval} and "
            f"{values.aval}.{at_user_line()}"
        )
    if period is not None:
        at, nodes, values = _periodic(at, nodes, values, period)
        left = right = None
    place = e.clip(searchsorted(nodes, at, side="right"), 1, max(nodes.shape[0] - 1, 1))
    before, after = e.subtract(place, 1), e.minimum(place, nodes.shape[0] - 1)
    x0, y0 = nodes[before], values[before]  # type: ignore[index]
    dx, dy = e.subtract(nodes[after], x0), e.subtract(values[after], y0)  # type: ignore[index]
    narrow = e.equal(dx, 0)
    slope = e.divide(dy, chosen(narrow, scalar(1, dx.dtype), dx))
    result = chosen(narrow, y0, e.add(y0, e.multiply(e.subtract(at, x0), slope)))
    if period is not None:
        return result
    low, high = values[0] if left is None else left, values[-1] if right is None else right  # type: ignore[index]
    result = chosen(e.less(at, nodes[0]), low, result)  # type: ignore[index]
    return chosen(e.greater(at, nodes[-1]), high, result)  # type: ignore[index]


def _periodic(at: Array, nodes: Array, values: Array, period: Any) -> tuple[Array, Array, Array]:
    size = e.abs(array_operand("interp", period))
    at, nodes = e.remainder(at, size), e.remainder(nodes, size)
    order = argsort(nodes)
    nodes, values = nodes[order], values[order]  # type: ignore[index]
    nodes = view.concatenate([e.subtract(nodes[-1:], size), nodes, e.add(nodes[:1], size)], 0)  # type: ignore[index]
    return at, nodes, view.concatenate([values[-1:], values, values[:1]], 0)  # type: ignore[index]


@fused()
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along an axis, n times: d[.., k, ..] -> d[.., k - n, ..].

    Raises ValueError if n is negative.
    """
    x = array_operand("diff", a)
    if n < 0:
        raise ValueError(f"diff: n must not be negative; got {n}.{at_user_line()}")
    if n == 0:
        return x
    if x.ndim == 0:
        raise ShapeError(f"diff: the array must have an axis; got {x.aval}.{at_user_line()}")
    k = canonical_axis("diff", axis, x.ndim, x.aval)
    ends = [_end(x, k, v) for v in (prepend, append)]
    x = shaping.concatenate([p for p in (ends[0], x, ends[1]) if p is not None], k)
    for _ in np.arange(n):
        after = shaping.view_of(x, k, min(1, x.shape[k]), x.shape[k])
        before = shaping.view_of(x, k, 0, max(x.shape[k] - 1, 0))
        x = e.not_equal(after, before) if x.dtype == dtypes.BOOL else e.subtract(after, before)
    return x


def _end(x: Array, axis: int, value: Any) -> Any:
    if value is None:
        return None
    end = array_operand("diff", value)
    if end.ndim:
        return end
    return stretch(end, tuple(1 if k == axis else n for k, n in enumerate(x.shape)))


@fused()
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Differences of neighbours of the flattened array, with values at both ends."""
    x = shaping.ravel(ary)
    middle = e.subtract(
        shaping.view_of(x, 0, min(1, x.size), x.size), shaping.view_of(x, 0, 0, max(x.size - 1, 0))
    )
    parts = [shaping.ravel(to_begin)] if to_begin is not None else []
    parts += [middle]
    parts += [shaping.ravel(to_end)] if to_end is not None else []
    return view.concatenate([cast(p, x.dtype) for p in parts], 0)


@fused()
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Central differences along axes, one-sided at the ends: f[*s] -> [f[*s]], one for each axis.
    `varargs`: the distance of neighbours, or their coordinates, for all axes or for each.

    Raises ShapeError if an axis is shorter than 2, TypeError for a wrong number of distances.
    """
    if edge_order not in (None, 1):
        raise NotImplementedError(
            f"gradient: edge_order must be 1; got {edge_order}.{at_user_line()}"
        )
    x = as_array(promoted_inexact("gradient", f)[0])
    axes = canonical_axes("gradient", axis, x.aval)
    spaces = list(varargs) if varargs else [1.0]
    spaces = spaces * len(axes) if len(spaces) == 1 else spaces
    if len(spaces) != len(axes):
        raise TypeError(
            f"gradient: there must be one distance, or one for each of the {len(axes)} axes; got "
            f"{len(varargs)}.{at_user_line()}"
        )
    results = [_slope(x, k, h) for k, h in zip(axes, spaces, strict=True)]
    return results[0] if len(results) == 1 else results


def _slope(x: Array, axis: int, space: Any) -> Array:
    n = x.shape[axis]
    if n < 2:
        raise ShapeError(
            f"gradient: axes must have two elements at least; got {x.aval}.{at_user_line()}"
        )
    h = cast(as_array(operand("gradient", space)), x.dtype)

    def part(low: int, high: int) -> Array:
        return shaping.view_of(x, axis, low, high)

    if h.ndim == 0:
        middle = e.divide(e.subtract(part(2, n), part(0, n - 2)), e.multiply(h, 2))
        first = e.divide(e.subtract(part(1, 2), part(0, 1)), h)
        last = e.divide(e.subtract(part(n - 1, n), part(n - 2, n - 1)), h)
        return view.concatenate([first, middle, last], axis)
    steps = diff(h)
    wide = tuple(-1 if k == axis else 1 for k in np.arange(x.ndim))
    left, right = (shaping.reshape(s, wide) for s in (steps[:-1], steps[1:]))  # type: ignore[index]
    a = e.divide(e.negative(right), e.multiply(left, e.add(left, right)))
    b = e.divide(e.subtract(right, left), e.multiply(left, right))
    c = e.divide(left, e.multiply(right, e.add(left, right)))
    middle = e.add(
        e.add(e.multiply(a, part(0, n - 2)), e.multiply(b, part(1, n - 1))),
        e.multiply(c, part(2, n)),
    )
    first = e.divide(e.subtract(part(1, 2), part(0, 1)), steps[0])  # type: ignore[index]
    last = e.divide(e.subtract(part(n - 1, n), part(n - 2, n - 1)), steps[-1])  # type: ignore[index]
    return view.concatenate([first, middle, last], axis)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral along an axis by the trapezoidal rule: d[*s] -> f[s without axis]."""
    values = as_array(promoted_inexact("trapezoid", y)[0])
    k = canonical_axis("trapezoid", axis, values.ndim, values.aval)
    n = values.shape[k]
    pairs = e.add(shaping.view_of(values, k, 1, n), shaping.view_of(values, k, 0, n - 1))
    if x is None:
        return e.multiply(reductions.sum(pairs, k), e.multiply(dx, 0.5))
    nodes = array_operand("trapezoid", x, 1)
    if nodes.ndim == 1:
        steps = shaping.reshape(
            diff(nodes), tuple(-1 if j == k else 1 for j in np.arange(values.ndim))
        )
    else:
        steps = diff(nodes, axis=axis)
    return e.multiply(reductions.sum(e.multiply(pairs, steps), k), 0.5)


@fused()
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Array:
    """Jumps between neighbours of more than half a period taken away by whole periods."""
    x = array_operand("unwrap", p)
    if not dtypes.is_integer(x.dtype) or not isinstance(period, int):
        x = as_array(promoted_inexact("unwrap", x)[0])
    k = canonical_axis("unwrap", axis, x.ndim, x.aval)
    step = diff(x, axis=k)
    half = e.floor_divide(period, 2) if dtypes.is_integer(x.dtype) else e.divide(period, 2)
    wrapped = e.subtract(e.remainder(e.add(step, half), period), half)
    if not dtypes.is_integer(x.dtype) or period % 2 == 0:
        at_edge = e.logical_and(e.equal(wrapped, e.negative(half)), e.greater(step, 0))
        wrapped = chosen(at_edge, half, wrapped)
    jump = half if discont is None else discont
    moved = chosen(e.less(e.abs(step), jump), 0, e.subtract(wrapped, step))
    zero = full(tuple(1 if j == k else n for j, n in enumerate(x.shape)), scalar(0, x.dtype))
    moved = view.concatenate([zero, cast(moved, x.dtype)], k)
    return e.add(x, reductions.cumsum(moved, k))


@fused(2)
def convolve(
    a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """The convolution of two sequences: d[n], d[m] -> d[n + m - 1], or its middle ("same", ...).

    Raises ValueError for another mode, ShapeError for sequences that are empty or have more axes.

    >>> import xcube.numpy as jnp
    >>> convolve(jnp.array([1, 2]), jnp.array([1, 1]))
    Array([1, 3, 2], dtype=int32)
    """
    x, y = _sequences("convolve", a, v, mode)
    if x.shape[0] < y.shape[0]:
        x, y = y, x
    return _slid(x, view.rev(y, (0,)), mode)


@fused(2)
def correlate(
    a: Any,
    v: Any,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """The cross-correlation of two sequences: d[n], d[m] -> d[n + m - 1], or its middle.

    Raises ValueError for another mode, ShapeError for sequences that are empty or have more axes.
    """
    x, y = _sequences("correlate", a, v, mode)
    y = e.conj(y)
    if x.shape[0] >= y.shape[0]:
        return _slid(x, y, mode)
    return view.rev(_slid(y, x, mode), (0,))


def _sequences(name: str, a: Any, v: Any, mode: str) -> tuple[Array, Array]:
    x, y = (as_array(w) for w in promoted(name, *array_operands(name, (a, v))))
    if mode not in ("full", "same", "valid"):
        raise ValueError(
            f"{name}: mode must be 'full', 'same' or 'valid'; got {mode!r}.{at_user_line()}"
        )
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(
            f"{name}: both must have one axis that is not empty; got {x.aval} and {y.aval}."
            f"{at_user_line()}"
        )
    return x, y


def _slid(x: Array, y: Array, mode: str) -> Array:
    """Products of y with each window of x, as a matrix of windows times y."""
    n, m = x.shape[0], y.shape[0]
    low, high = {
        "valid": (0, 0),
        "full": (m - 1, m - 1),
        "same": (m // 2, m - m // 2 - 1),
    }[mode]
    padded = view.pad(x, scalar(0, x.dtype), ((low, high, 0),))
    count = n + low + high - m + 1
    start = view.iota(np.dtype(np.int32), (count, m), 0)
    windows = padded[e.add(start, view.iota(np.dtype(np.int32), (count, m), 1))]  # type: ignore[index]
    return contraction.dot(windows, y)
