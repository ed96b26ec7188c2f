"""Python's arithmetic on values of the kernel IR: division and remainder that round down, powers,
lanes chosen at run time. What goes in here has one dtype and one number of lanes."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube import ir, math
from xcube.lowering.cube.build import Builder, Value


def apply(build: Builder, name: str, *args: Value | float) -> Value:
    """A function of real operands, by its name in `jax.lax`."""
    return math.apply(build, name, *args)  # type: ignore[return-value]


def floor_divide(x: Value, y: Value, natural: bool) -> Value:
    """x / y rounded down; `natural`: neither is below zero."""
    if x.dtype in ir.FLOATS:
        return apply(x.build, "round", (x - modulo(x, y, False)) / y)
    quotient = x.build.op("div", x, y)
    if natural or x.dtype in ir.UNSIGNED:
        return quotient
    return x.build.select(_is_below(x, y), quotient - 1, quotient)


def modulo(x: Value, y: Value, natural: bool) -> Value:
    """What `floor_divide` leaves: it has the sign of y."""
    rest = x.build.op("rem", x, y)
    if natural or x.dtype in ir.UNSIGNED:
        return rest
    return x.build.select(_is_below(x, y), rest + y, rest)


def _is_below(x: Value, y: Value) -> Value:
    """Whether the quotient that is rounded towards zero lies above the exact one."""
    rest = x.build.op("rem", x, y)
    return rest.ne(0) & ((rest < 0) ^ (y < 0))


def power(x: Value, exponent: Value | float) -> Value:
    """x to a power: repeated products where the exponent is an int."""
    if isinstance(exponent, int):
        return apply(x.build, "integer_pow", x, exponent)
    return apply(x.build, "pow", x, exponent)


def lane_at(line: Value, lane: Value) -> Value:
    """The lane of a line that a run-time number names; the last one if there is none."""
    build, found = line.build, line.build.extract(line, line.lanes - 1)
    for number in reversed(range(line.lanes - 1)):
        found = build.select(lane.eq(number), build.extract(line, number), found)
    return found


def with_lane(line: Value, lane: Value | int, value: Value) -> Value:
    """A line with another value in one lane."""
    build = line.build
    here = build.lane(line.lanes).eq(lane)
    return build.select(here, build.splat(value, line.lanes), line)


def joined(values: Sequence[Value]) -> Value:
    """A line of scalars."""
    return values[0].build.join(values)
