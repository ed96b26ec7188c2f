"""What the interpreter does at operations of planes: all units of a plane have stopped there, and
what they hold becomes what they get, by the plain statement of the rule in `planes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.arithmetic import NUMPY, evaluate
from xcube.lowering.cube.ir import Type

if TYPE_CHECKING:
    from xcube.lowering.cube.interpreter import Unit

Line = np.ndarray[Any, Any]


def plane(units: Sequence[Unit], s: ir.Plane) -> bool:
    """One operation of the units of a plane."""
    rows = np.stack([unit.value(s.value) for unit in units])
    if s.op in planes.SHUFFLES:
        assert s.argument is not None
        others = [unit.whole(s.argument) for unit in units]
        if s.op == "broadcast" and len(set(others)) > 1:
            raise units[0].fault(s, f"a broadcast must be of one unit; got {sorted(set(others))}")
        found = _shuffled(s.op, rows, others)
    else:
        found = np.stack([_combined(s, lane) for lane in rows.T], axis=1)
    for unit, line in zip(units, found, strict=True):
        unit.values[s.target.number] = line
    return True


def _shuffled(op: str, rows: Line, others: Sequence[int]) -> Line:
    found = rows.copy()
    for unit, other in enumerate(others):
        origin = _ORIGINS[op](unit, other)
        if 0 <= origin < len(rows):
            found[unit] = rows[origin]
    return found


_ORIGINS: dict[str, Callable[[int, int], int]] = {
    "broadcast": lambda unit, other: other,
    "shuffle": lambda unit, other: other,
    "shuffle_xor": lambda unit, other: unit ^ other,
    "shuffle_up": lambda unit, other: unit - other,
    "shuffle_down": lambda unit, other: unit + other,
}


def _combined(s: ir.Plane, x: Line) -> Line:
    """The results of the units, of one lane."""
    if s.op == "ballot":
        bits = sum(1 << unit for unit, value in enumerate(x) if value)
        return np.full(len(x), bits, np.uint32)
    if s.op == "elect":
        return np.arange(len(x)) == (np.argmax(x) if x.any() else -1)
    dtype = s.target.type.dtype
    if s.op in planes.SCANS:
        return _scanned(s.op, x, dtype)
    op = planes.REDUCTIONS[s.op]
    whole = np.concatenate([x, _missing(op, dtype, ir.PLANE - len(x))])
    return np.repeat(evaluate(f"reduce_{op}", [whole], Type(dtype)), len(x))


def _missing(op: str, dtype: str, count: int) -> Line:
    """What units that are not there contribute."""
    return np.full(count, planes.identity(op, dtype), NUMPY[dtype])


def _scanned(name: str, x: Line, dtype: str) -> Line:
    op = planes.SCANS[name]
    for distance in (1, 2, 4, 8, 16):
        if len(x) > distance:
            parts = x[:-distance], x[distance:]
            sums = evaluate(op, parts, Type(dtype, len(x) - distance))
            x = np.concatenate([x[:distance], sums])
    if name.startswith("inclusive"):
        return x
    return np.concatenate([np.array([op == "mul"]).astype(x.dtype), x[:-1]])
