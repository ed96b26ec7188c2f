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
from xcube.primitives.view import pad
from xcube.trace import stage

LARGE = 1 << 16  # elements from which cutting pays
FEW = 16  # tasks that keep all threads busy
LINE = 64  # neighbouring results that are one task where the columns lie across
CHUNKS, SHORTEST = 64, 32
MANY = 1 << 16  # units that keep a device busy whose cubes have many

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
    results = eqn.outputs[0].aval.size
    chunks = _chunks(results, columns, x.ndim - 1 in axes, facts.units)
    if x.size < LARGE or chunks < 2 or columns < 4 * SHORTEST or x.dtype.kind == "c":
        return None
    function, neutral = SPLITTABLE[eqn.primitive.name]
    out = eqn.outputs[0].aval
    return stage(lambda v: [_two_stages(v, axes, columns, chunks, function, neutral, out)], [x])


def _chunks(results: int, columns: int, is_along: bool, units: int) -> int:
    """Into how many parts the columns are cut; fewer than two where that would not help."""
    if units == 1:
        tasks = results if is_along else -(-results // LINE)
        return 0 if tasks >= FEW else min(CHUNKS, columns // SHORTEST)
    busy = results * min(units, -(-columns // SHORTEST)) if is_along else results
    longest = SHORTEST * (units if is_along else 1)
    return min(MANY // max(1, busy), columns // longest, 1024)


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
