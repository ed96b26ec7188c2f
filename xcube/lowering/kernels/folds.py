"""Associative operations that cumulative kernels run along an axis: the parts of their state, how
an element becomes a state, how two states combine, and the element that a state stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import BITS, FLOATS, SIGNED
from xcube.lowering.kernels.nodes import PARTS, cast

State = tuple[Value, ...]

FOLDS = {
    "cumsum": "add",
    "cumprod": "mul",
    "cummax": "max",
    "cummin": "min",
    "cumlogsumexp": "logsumexp",
}
"""The operation behind each primitive."""

NEGLIGIBLE = -80.0  # exp of it is nothing beside 1 in any dtype


@dataclass(frozen=True)
class Fold:
    """An operation on elements of a dtype; every one is commutative.

    `name` is "add", "mul", "min", "max" or "logsumexp". Floats narrower than f32 are folded in f32.
    """

    name: str
    dtype: str

    @property
    def number(self) -> str:
        """The dtype that is computed in."""
        return "f32" if self.dtype in FLOATS and BITS[self.dtype] < 32 else self.dtype

    @property
    def parts(self) -> tuple[str, ...]:
        """Dtypes of a state."""
        if self.dtype in PARTS:
            return (PARTS[self.dtype],) * 2
        return (self.number,) * (2 if self.name == "logsumexp" else 1)

    def neutral(self, b: Builder, lanes: int) -> State:
        """The state of no elements."""
        if self.dtype in PARTS:
            values: tuple[float, ...] = (1.0 if self.name == "mul" else 0.0, 0.0)
        elif self.name == "logsumexp":
            values = (float("-inf"), 0.0)
        else:
            values = (_neutral(self.name, self.number),)
        return tuple([b.constant(v, d, lanes) for v, d in zip(values, self.parts, strict=True)])

    def lift(self, b: Builder, x: Any) -> State:
        """An element as a state."""
        if isinstance(x, Complex):
            return x.real, x.imag
        x = x.cast(self.number)
        return (x, b.constant(1.0, self.number, x.lanes)) if self.name == "logsumexp" else (x,)

    def combine(self, b: Builder, before: State, after: State) -> State:
        if self.name == "logsumexp":
            return _add_logarithms(b, before, after)
        result = cube_math.apply(b, self.name, self._joined(before), self._joined(after))
        return (result.real, result.imag) if isinstance(result, Complex) else (result,)

    def finish(self, b: Builder, state: State) -> Any:
        """The element that a state stands for."""
        if self.name == "logsumexp":
            most, total = state
            return cast(b, most + _real(b, "log", total), self.dtype)
        return cast(b, self._joined(state), self.dtype)

    def _joined(self, state: State) -> Any:
        return Complex(*state) if self.dtype in PARTS else state[0]


def _neutral(name: str, dtype: str) -> float | int:
    if name in ("add", "mul"):
        return int(name == "mul")
    if dtype in FLOATS:
        return float("-inf" if name == "max" else "inf")
    bits = BITS[dtype] - (dtype in SIGNED)
    if name == "min":
        return (1 << bits) - 1
    return -(1 << bits) if dtype in SIGNED else 0


def _add_logarithms(b: Builder, before: State, after: State) -> State:
    """Sums of exponentials as (largest exponent, sum relative to it)."""
    (m, s), (n, t) = before, after
    apart = m.ne(n)  # the difference of two infinities is none
    distance = b.select(apart, -_real(b, "abs", m - n), 0.0)
    near = _real(b, "exp", b.op("max", distance, NEGLIGIBLE))  # subnormals are slow
    weight = b.select(distance <= NEGLIGIBLE, 0.0, near)
    total = b.select(m >= n, b.fma(t, weight, s), b.fma(s, weight, t))
    return b.op("max", m, n), total


def _real(b: Builder, name: str, x: Value) -> Value:
    """A function of a real number."""
    value = cube_math.apply(b, name, x)
    assert isinstance(value, Value)
    return value
