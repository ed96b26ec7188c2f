"""Reductions of few long rows are cut in two stages, so that all threads have work: chunks of the
columns first, then their results. The cut depends on the sizes and the kind of device, never on the
number of threads: results are the same on every machine of one kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xcube.ir import Aval, Equation, Jaxpr
from xcube.lowering.device.base import Facts
from xcube.primitives import reduce
from xcube.primitives.convert import convert_element_type
from xcube.primitives.shape import accumulator_dtype, reduce_sum, reshape, transpose
from xcube.primitives.view import concatenate, pad, slice_in_dim
from xcube.trace import stage

LARGE = 1 << 16  # elements from which cutting pays
FEW = 16  # tasks that keep all threads busy
LINE = 64  # neighbouring results that are one task where the columns lie across
CHUNKS, SHORTEST = 64, 32
BUSY = 8  # cubes of many units that a core has at a time
ALONG = 1 << 12  # elements of a chunk that such a cube walks along at least
ACROSS, STRIP = 1 << 9, 128  # ... or across, and bytes that it has side by side
WORTH = 4  # chunks from which a second stage pays
GRAIN = 16  # elements that a chunk has a multiple of, so that lines of memory stay whole

Neutral = Callable[[np.dtype], Any]

SPLITTABLE: dict[str, tuple[Callable[..., Any], Neutral]] = {
    "reduce_sum": (reduce_sum, lambda dtype: 0),
    "reduce_prod": (reduce.reduce_prod, lambda dtype: 1),
    "reduce_max": (reduce.reduce_max, reduce.lowest),
    "reduce_min": (reduce.reduce_min, reduce.highest),
    "reduce_or": (reduce.reduce_or, lambda dtype: 0),
    "reduce_and": (reduce.reduce_and, lambda dtype: dtype.kind == "b" or -1),
}


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The two-stage program of a large reduction with few results; None for anything else."""
    if eqn.primitive.name not in SPLITTABLE:
        return None
    x, axes = eqn.inputs[0].aval, eqn.params["axes"]
    columns = math.prod(x.shape[axis] for axis in axes)
    if x.size < LARGE or columns < 4 * SHORTEST or x.dtype.kind == "c":
        return None
    out, is_along = eqn.outputs[0].aval, x.ndim - 1 in axes
    if facts.units == 1:
        chunks = _chunks(out.size, columns, is_along)
    else:
        cubes = out.size if is_along else -(-out.size * x.dtype.itemsize // STRIP)
        chunks = _chunks_of_cubes(cubes, columns, ALONG if is_along else ACROSS, facts.cores)
    if chunks < 2:
        return None
    function, neutral = SPLITTABLE[eqn.primitive.name]
    if facts.units > 1:
        return stage(lambda v: [_two_stages_of_cubes(v, axes, chunks, function, out)], [x])
    return stage(lambda v: [_two_stages(v, axes, columns, chunks, function, neutral, out)], [x])


def _chunks(results: int, columns: int, is_along: bool) -> int:
    """Into how many parts the columns are cut; fewer than two where that would not help."""
    tasks = results if is_along else -(-results // LINE)
    return 0 if tasks >= FEW else min(CHUNKS, columns // SHORTEST)


def _chunks_of_cubes(cubes: int, columns: int, shortest: int, cores: int) -> int:
    """The same where a cube is no task of a thread but many units, which share a chunk. A number
    that divides the columns is taken if there is one near by."""
    if 2 * cubes > cores or columns < WORTH * shortest:
        return 0
    most = min(BUSY * cores // cubes, columns // shortest)
    near = (n for n in range(most, most // 2, -1) if columns % (n * GRAIN) == 0)
    return next(near, most)


def _two_stages(
    x: Any,
    axes: tuple[int, ...],
    columns: int,
    chunks: int,
    function: Callable[..., Any],
    neutral: Neutral,
    out: Aval,
) -> Any:
    kept = reduce.kept_axes(x.ndim, axes)
    rows = out.size
    wide = convert_element_type(x, accumulator_dtype(x.aval))
    flat = reshape(transpose(wide, (*kept, *axes)), (rows, columns))
    length = -(-columns // chunks)
    if x.ndim - 1 in axes:  # whole lines
        length = -(-length // LINE) * LINE
    chunks = -(-columns // length)
    missing = chunks * length - columns
    if missing:
        filling = np.asarray(neutral(wide.dtype)).astype(wide.dtype)[()]
        flat = pad(flat, filling, ((0, 0, 0), (0, missing, 0)))
    partial = function(reshape(flat, (rows, chunks, length)), (2,))
    return convert_element_type(reshape(function(partial, (1,)), out.shape), out.dtype)


def _two_stages_of_cubes(
    x: Any, axes: tuple[int, ...], chunks: int, function: Callable[..., Any], out: Aval
) -> Any:
    """Chunks and rows lie in partial results as they lie in memory: rows last where the columns lie
    across. Elements behind the last whole chunk go to the second stage as they are."""
    kept = reduce.kept_axes(x.ndim, axes)
    wide = convert_element_type(x, accumulator_dtype(x.aval))
    is_along = x.ndim - 1 in axes
    axis = 1 if is_along else 0
    flat = transpose(wide, (*kept, *axes) if is_along else (*axes, *kept))
    columns = x.size // out.size
    flat = reshape(flat, (out.size, columns) if is_along else (columns, out.size))
    length = columns // chunks // GRAIN * GRAIN
    whole = slice_in_dim(flat, 0, chunks * length, axis=axis)
    shape = (out.size, chunks, length) if is_along else (chunks, length, out.size)
    partial = function(reshape(whole, shape), (axis + 1,))
    if chunks * length < columns:
        rest = slice_in_dim(flat, chunks * length, columns, axis=axis)
        partial = concatenate([partial, rest], axis)
    return convert_element_type(reshape(function(partial, (axis,)), out.shape), out.dtype)
