"""What the units of a plane do with matrix units, where the plane is a group whose values are
lines: rows are gathered, and a product is as many products of lines as there are elements along the
depth, each made of what units hold elsewhere (`matrix.py`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.units_lines import Lines

if TYPE_CHECKING:
    from xcube.lowering.cube.units_run import Group

_UNITS = range(ir.PLANE)
_LANES = 4  # of the sums that a unit holds


def load_matrices(group: Group, s: ir.LoadMatrices) -> None:
    """Elements of rows that other units name."""
    build, dtype = group.build, s.buffer.dtype
    memory, (rows,) = group.cube.memories[s.buffer.space, s.buffer.number], group.lines(s.index)
    parts = []
    for lane in range(s.target.type.lanes):
        found = [matrix.loaded(unit, lane, dtype, s.transposed) for unit in _UNITS]
        named = build.shuffle(rows, [number * matrix.LINES + row for number, row, _ in found])
        place = named + group.algebra.constants([element for *_, element in found])
        parts.append(build.load(memory, place, 1, group.mask))
    group.values[s.target.number] = Lines(tuple(parts))


def multiply_matrices(group: Group, s: ir.MultiplyMatrices) -> None:
    """One product of a plane, in single precision."""
    build, dtype = group.build, s.left.type.dtype
    left, right = ([_exact(part) for part in group.lines(atom)] for atom in (s.left, s.right))
    held = tuple(map(_holders, ("left", "right"), (dtype,) * 2, (len(left), len(right))))
    sums = group.lines(s.sum)
    for lane in range(_LANES):
        places = [matrix.sum_of(unit, lane) for unit in _UNITS]
        for deep in range(matrix.depth(dtype)):
            x = _picked(build, left, [held[0][row, deep] for row, _ in places])
            y = _picked(build, right, [held[1][deep, column] for _, column in places])
            sums[lane] = build.fma(x, y, sums[lane])
    group.values[s.target.number] = Lines(tuple(sums))


@cache
def _holders(which: str, dtype: str, lanes: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(unit, lane) of each element of an operand."""
    place = matrix.left if which == "left" else matrix.right
    pairs = [(unit, lane) for unit in _UNITS for lane in range(lanes)]
    return {place(unit, lane, dtype): (unit, lane) for unit, lane in pairs}


def _picked(build: Builder, parts: list[Value], holders: list[tuple[int, int]]) -> Value:
    """What other units hold, all of them in the same lane."""
    (lane,) = {lane for _, lane in holders}
    return build.shuffle(parts[lane], [unit for unit, _ in holders])


def _exact(part: Value) -> Value:
    """An operand as matrix units take it: f32 is rounded to tf32."""
    if part.dtype != "f32":
        return part.cast("f32")
    bits = part.bitcast("u32")
    is_finite = (bits & 0x7F800000).ne(0x7F800000)
    return part.build.select(is_finite, (bits + 0x1000) & 0xFFFFE000, bits).bitcast("f32")


STATEMENTS: dict[type, Callable[[Any, Any], None]] = {
    ir.LoadMatrices: load_matrices,
    ir.MultiplyMatrices: multiply_matrices,
}
