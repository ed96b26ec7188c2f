"""Where a unit is: names like ABSOLUTE_POS, flat and by axis. Positions are run-time indices; the
number of units of a cube is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from xcube.cube.state import current
from xcube.cube.values import DTYPES, Symbol, Value, constant
from xcube.lowering.cube import ir

AXES = "xyz"


@dataclass(frozen=True)
class Meta:
    """Where a scalar of the launch comes from: "shape" or "stride" of an axis, "length" or "scalar"
    of a parameter, "cube_count" of an axis."""

    kind: str
    name: str = ""
    axis: int = 0


def _place(name: str) -> Value:
    return Value(current().build.place(name), True)


def _zero() -> Value:
    return constant(0, DTYPES["index"])


def unit_pos(axis: int) -> Any:
    """The unit's place in its cube along an axis."""
    if current().build.cube_dim[axis] == 1:
        return _zero()
    return _place(f"unit_pos.{AXES[axis]}")


def unit_pos_flat() -> Any:
    """The unit's number in its cube, x fastest."""
    x, y, _ = current().build.cube_dim
    return unit_pos(0) + unit_pos(1) * x + unit_pos(2) * (x * y)


def cube_dim(axis: int) -> int:
    """Units of a cube along an axis."""
    return current().build.cube_dim[axis]


def cube_dim_flat() -> int:
    """Units of a cube."""
    return math.prod(current().build.cube_dim)


def cube_count(axis: int) -> Any:
    """Cubes along an axis."""
    if axis >= current().grid:
        return constant(1, DTYPES["index"])
    if current().grid == 1:
        return cube_count_flat()
    return Value(current().scalar(Meta("cube_count", axis=axis)), True)


def cube_count_flat() -> Any:
    """Cubes of the launch."""
    return _place("cube_count.x")


def cube_pos(axis: int) -> Any:
    """The cube's place along an axis."""
    grid, flat = current().grid, cube_pos_flat()
    if axis >= grid:
        return _zero()
    before = math.prod([cube_count(k) for k in range(axis)])
    found = flat // before if axis else flat
    return found if axis == grid - 1 else found % cube_count(axis)


def cube_pos_flat() -> Any:
    """The cube's number, x fastest."""
    return _place("cube_pos.x")


def absolute_pos(axis: int) -> Any:
    """The unit's place in the launch along an axis."""
    return cube_pos(axis) * cube_dim(axis) + unit_pos(axis)


def absolute_pos_flat() -> Any:
    """The unit's number: those of a cube follow one another."""
    return cube_pos_flat() * cube_dim_flat() + unit_pos_flat()


class Place(Symbol):
    """A place with its axes x, y and z."""

    __slots__ = ()

    @property
    def x(self) -> Any:
        """Along the first axis."""
        return _AXES[self.name](0)

    @property
    def y(self) -> Any:
        """Along the second axis."""
        return _AXES[self.name](1)

    @property
    def z(self) -> Any:
        """Along the third axis."""
        return _AXES[self.name](2)


_AXES = {
    "ABSOLUTE_POS": absolute_pos,
    "CUBE_POS": cube_pos,
    "UNIT_POS": unit_pos,
    "CUBE_DIM": cube_dim,
    "CUBE_COUNT": cube_count,
}

ABSOLUTE_POS = Place("ABSOLUTE_POS", absolute_pos_flat)
CUBE_POS = Place("CUBE_POS", cube_pos_flat)
UNIT_POS = Place("UNIT_POS", unit_pos_flat)
CUBE_DIM = Place("CUBE_DIM", cube_dim_flat)
CUBE_COUNT = Place("CUBE_COUNT", cube_count_flat)
PLANE_DIM = ir.PLANE
UNIT_POS_PLANE = Symbol("UNIT_POS_PLANE", lambda: unit_pos_flat() % ir.PLANE)
PLANE_POS = Symbol("PLANE_POS", lambda: unit_pos_flat() // ir.PLANE)
