"""What a fold over windows carries along: the value so far and, where positions are asked for,
where it was found in the window."""

from __future__ import annotations

from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Equation
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, FLOATS, SIGNED
from xcube.lowering.kernels.nodes import cast
from xcube.primitives.window_reduce_planes import Side

State = tuple[Value, ...]
NOWHERE = (1 << 31) - 1  # the position of a neutral element


@dataclass(frozen=True)
class Problem:
    """A fold over windows of (outer, rows, columns, inner): the operation's name, the window along
    rows and columns, dtypes of operand and result."""

    name: str
    outer: int
    inner: int
    rows: Side
    columns: Side
    source: str
    target: str
    has_positions: bool

    @property
    def number(self) -> str:
        """The dtype that is computed in."""
        return "f32" if self.source in FLOATS and BITS[self.source] < 32 else self.source

    @property
    def parts(self) -> tuple[str, ...]:
        """Dtypes of a state."""
        return (self.number, "i32") if self.has_positions else (self.number,)

    def neutral(self, b: Builder, lanes: int) -> State:
        """The state of no elements."""
        values = (_neutral(self.name, self.number), NOWHERE)
        pairs = zip(values, self.parts, strict=False)
        return tuple([b.constant(value, dtype, lanes) for value, dtype in pairs])

    def lift(self, b: Builder, x: Value, position: Value) -> State:
        """The state of elements at one position."""
        value = x.cast(self.number)
        return (value, b.splat(position.cast("i32"), x.lanes)) if self.has_positions else (value,)

    def moved(self, b: Builder, state: State, distance: Value) -> State:
        """A state whose positions are so much further."""
        if not self.has_positions:
            return state
        value, position = state
        further = position + b.splat(distance.cast("i32"), position.lanes)
        return value, b.select(position.eq(NOWHERE), position, further)

    def combine(self, b: Builder, before: State, after: State) -> State:
        if not self.has_positions:
            result = cube_math.apply(b, self.name, *before, *after)
            assert isinstance(result, Value)
            return (result,)
        ahead = self._is_ahead(after, before)
        return tuple([b.select(ahead, y, x) for x, y in zip(before, after, strict=True)])

    def _is_ahead(self, x: State, y: State) -> Value:
        """The better value, a NaN before all else, and among equals the smaller position."""
        better = x[0] > y[0] if self.name == "max" else x[0] < y[0]
        tie = x[0].eq(y[0])
        if self.number in FLOATS:
            x_nan, y_nan = x[0].ne(x[0]), y[0].ne(y[0])
            better = better | (x_nan & ~y_nan)
            tie = tie | (x_nan & y_nan)
        return better | (tie & (x[1] < y[1]))

    def finish(self, b: Builder, state: State) -> Value:
        """The element of the result."""
        if self.has_positions:
            return b.select(state[1].eq(NOWHERE), 0, state[1]).cast(self.target)
        result = cast(b, state[0], self.target)
        assert isinstance(result, Value)
        return result


def problem_of(eqn: Equation) -> Problem:
    """What an equation of `window_planes_p` asks for."""
    x, out, planes = eqn.inputs[0].aval, eqn.outputs[0].aval, eqn.params["planes"]
    return Problem(
        eqn.params["operation"],
        planes.outer,
        planes.inner,
        planes.rows,
        planes.columns,
        dtypes.short_name(x.dtype),
        dtypes.short_name(out.dtype),
        eqn.params["positions"] is not None,
    )


def _neutral(name: str, dtype: str) -> float | int:
    if name in ("add", "or", "xor"):
        return 0
    if dtype in FLOATS:
        return float("-inf" if name == "max" else "inf")
    bits = BITS[dtype] - (dtype in SIGNED)
    if name == "and":
        return -1 if dtype in SIGNED else (1 << bits) - 1
    if name == "min":
        return (1 << bits) - 1
    return -(1 << bits) if dtype in SIGNED else 0
