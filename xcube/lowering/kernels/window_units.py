"""Folds over windows where cubes have many units: each unit makes one element of the result."""

from __future__ import annotations

import math
from collections.abc import Iterator

from xcube.ir import Var
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.tile_units import units_of
from xcube.lowering.kernels.window_state import Problem
from xcube.lowering.kernels.work import Work
from xcube.primitives.window_reduce_planes import Side

UNITS = 256  # units of a cube


def build(problem: Problem, x: Var, out: Var, facts: Facts) -> Work:
    """The launch of a fold over windows."""
    units = units_of(facts, UNITS)
    b = Builder(f"window_{problem.name}", (units, 1, 1))
    arguments = Arguments(b)
    source, target = arguments.buffer(x), arguments.buffer(out, "out")
    at = b.place("cube_pos.x") * units + b.place("unit_pos.x")
    with b.when(at < arguments.scalar("size", out.aval.size)):
        inner = arguments.scalar("inner", problem.inner)
        places = arguments.scalar("column places", problem.columns.places)
        rest, lane = at // inner, at % inner
        row, column = rest // places, rest % places
        heights = arguments.scalar("row places", problem.rows.places)
        outer, row = row // heights, row % heights
        height = arguments.scalar("height", problem.rows.length)
        width = arguments.scalar("width", problem.columns.length)
        state = [b.variable(part) for part in problem.neutral(b, 1)]
        weight = arguments.scalar("column size", problem.columns.size)
        for k, y in _under(arguments, "row", problem.rows, row, height):
            for m, z in _under(arguments, "column", problem.columns, column, width):
                place = ((outer * height + y) * width + z) * inner + lane
                found = problem.lift(b, b.load(source, place), k * weight + m)
                before = tuple([part.get() for part in state])
                for part, value in zip(state, problem.combine(b, before, found), strict=True):
                    part.set(value)
        b.store(target, at, problem.finish(b, tuple([part.get() for part in state])))
    variables, cells = tuple(arguments.variables), tuple(arguments.cells)
    return Work(b.finish(), variables, cells, math.ceil(out.aval.size / units), 1)


def _under(
    arguments: Arguments, name: str, side: Side, place: Value, length: Value
) -> Iterator[tuple[Value, Value]]:
    """The elements under a window along one dimension, as far as they exist: number and index."""
    b = arguments.build
    apart = arguments.scalar((name, "apart"), side.apart)
    start = place * arguments.scalar((name, "stride"), side.stride)
    start = start - arguments.scalar((name, "low"), side.low)
    low = (b.op("max", -start, 0) + apart - 1) // apart
    high = (b.op("max", length - start, 0) + apart - 1) // apart
    high = b.op("min", high, arguments.scalar((name, "size"), side.size))
    for number in b.range(low, high):
        yield number, start + number * apart
