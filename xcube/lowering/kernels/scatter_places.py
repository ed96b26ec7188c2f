"""What kernels of scatters share: from the number of a position to where its window begins in the
operand and in the updates, and what becomes of an element there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Atom, Literal, Var
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.nodes import PARTS, Arguments, constant
from xcube.lowering.kernels.scatter_plan import Loop, Plan

BOOLEAN = {"min": "and", "max": "or", "mul": "and", "add": "or"}


class Places:
    """The places of a plan in a kernel: `at` says where the cube's batch begins in each array, and
    `batch` is its number."""

    def __init__(
        self, arguments: Arguments, plan: Plan, indices: Atom, updates: Atom, short: str
    ) -> None:
        self.arguments, self.plan, self.updates, self.short = arguments, plan, updates, short
        self.b = arguments.build
        assert isinstance(indices, Var)
        self.indices = arguments.buffer(indices)
        if isinstance(updates, Var):
            arguments.buffer(updates)
        zero = self.b.constant(0, "index")
        self.at, self.batch = {"operand": zero, "indices": zero, "updates": zero}, zero

    def scalar(self, key: Any, number: int) -> Value:
        """A number of the plan as a scalar of the launch."""
        return self.arguments.scalar(key, number)

    def enter(self, cube: Value) -> Value:
        """Go to the batch and the outer loops' turn of a cube; what is left of its number."""
        for kind, loops in (("outer", self.plan.outer), ("batch", self.plan.batches)):
            weight = self.b.constant(1, "index")
            for number, loop in reversed(list(enumerate(loops))):
                extent = self.scalar((kind, number, "extent"), loop.extent)
                place, cube = cube % extent, cube // extent
                self._move(kind, number, loop, place)
                if kind == "batch":
                    self.batch, weight = self.batch + place * weight, weight * extent
        return cube

    def _move(self, kind: str, number: int, loop: Loop, place: Value) -> None:
        for name in self.at:
            if stride := getattr(loop, name):
                unit = self.scalar((kind, number, name), stride)
                self.at[name] = self.at[name] + place * unit

    def offset(self, p: Value, name: str) -> Value:
        """Where the p-th position lies in indices or updates."""
        total = self.at[name]
        for number, loop in reversed(list(enumerate(self.plan.positions))):
            place = p
            if number:
                extent = self.scalar(("position", number, "extent"), loop.extent)
                place, p = p % extent, p // extent
            stride = getattr(loop, name)
            if stride == 1 and len(self.plan.positions) == 1:
                total = total + place
            else:
                total = total + place * self.scalar(("position", number, name), stride)
        return total

    def destination(self, p: Value) -> tuple[Value, Value | None, Value]:
        """The first element of a position's window, whether the window fits, and the number of
        the destination."""
        b, at = self.b, self.offset(p, "indices")
        start, row = self.at["operand"], b.constant(0, "index")
        fits: Value | None = None
        for number, dim in enumerate(self.plan.starts):
            last = self.scalar(("start", number, "last"), dim.last)
            place = self._index(at + number)
            if self.plan.clips:
                place = b.op("max", b.op("min", place, last), 0)
            else:
                inside = (place >= 0) & (place <= last)
                fits = inside if fits is None else fits & inside
            start = start + place * self.scalar(("start", number, "stride"), dim.stride)
            if len(self.plan.starts) == 1:
                row = place
            else:
                row = row + place * self.scalar(("start", number, "weight"), dim.weight)
        return start, fits, row

    def _index(self, at: Value) -> Value:
        """A number of an index vector."""
        value = self.b.load(self.indices, at)
        if value.dtype == "u64":  # beyond every extent, once the sign is lost
            value = self.b.op("min", value, (1 << 63) - 1)
        return value.cast("index")

    def nested(self, target: Value, source: Value) -> Iterator[tuple[Value, Value]]:
        """Where each innermost loop of a window begins in the operand and in the updates."""
        yield from self._nest(self.plan.nested, target, source)

    def _nest(
        self, loops: Sequence[Loop], target: Value, source: Value
    ) -> Iterator[tuple[Value, Value]]:
        if not loops:
            yield target, source
            return
        number = len(self.plan.nested) - len(loops)
        loop, *rest = loops
        for i in self.b.range(0, self.scalar(("nested", number, "extent"), loop.extent)):
            here = i * self.scalar(("nested", number, "operand"), loop.operand)
            there = i * self.scalar(("nested", number, "updates"), loop.updates)
            yield from self._nest(rest, target + here, source + there)

    def strides(self) -> tuple[Value, Value]:
        """Strides of the innermost loop in the operand and in the updates."""
        inner = self.plan.inner
        return (
            self.scalar(("inner", "operand"), inner.operand),
            self.scalar(("inner", "updates"), inner.updates),
        )

    # elements

    def update(self, source: Value, lanes: int, mask: Value | None) -> Any:
        """The update at a place of the updates."""
        if isinstance(self.updates, Literal):
            value = literal(self.b, self.updates)
            pair = isinstance(value, Complex) and not self._is_pair
            return self._part(value, source, lanes) if pair else value
        buffer = self.arguments.buffer(self.updates)
        like = Complex(source, source) if self._is_pair else source
        return load(self.b, buffer, source, lanes, mask, like)

    def _part(self, value: Complex, source: Value, lanes: int) -> Value:
        """The part of a complex literal that lies at a place, for parts one by one."""
        place = source + self.b.lane(lanes) if lanes > 1 else source
        return self.b.select((place % 2).eq(0), value.real, value.imag)

    @property
    def _is_pair(self) -> bool:
        """Whether an update is a complex number rather than one of its parts."""
        return self.short in PARTS and self.plan.name == "mul"

    def apply(
        self, target: Buffer, at: Value, value: Any, lanes: int = 1, mask: Value | None = None
    ) -> None:
        """Put an update into the result."""
        if self.plan.name != "set":
            value = self._combined(load(self.b, target, at, lanes, mask, value), value)
        store(self.b, target, at, value, mask)

    def _combined(self, old: Any, value: Any) -> Any:
        name = self.plan.name
        if self.short == "bool":
            return self.b.op(BOOLEAN[name], old, value)
        return cube_math.apply(self.b, name, old, value)


def literal(b: Builder, value: Literal) -> Any:
    """A literal of the program in a kernel."""
    return constant(b, value.value, dtypes.short_name(value.aval.dtype))


def load(b: Builder, buffer: Buffer, at: Value, lanes: int, mask: Value | None, like: Any) -> Any:
    """A line, or a complex number where `like` is one."""
    if isinstance(like, Complex):
        return Complex(b.load(buffer, at * 2), b.load(buffer, at * 2 + 1))
    return b.load(buffer, at, lanes, mask)


def store(b: Builder, buffer: Buffer, at: Value, value: Any, mask: Value | None) -> None:
    """Write a line or a complex number."""
    if isinstance(value, Complex):
        b.store(buffer, at * 2, value.real)
        b.store(buffer, at * 2 + 1, value.imag)
    else:
        b.store(buffer, at, value, mask)
