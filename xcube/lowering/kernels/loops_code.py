"""Loops over scalars -> cube code: carried scalars are variables, or lines of them where places lie
along the lanes; what does not change is computed before the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xcube.lowering.cube.build import Value, Variable
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.expression import Node, index_dims
from xcube.lowering.index import Dim, Index
from xcube.lowering.kernels.loops_state import PLACE, Kept, Loop
from xcube.lowering.kernels.nodes import Arguments, Emitter
from xcube.lowering.kernels.space import Axis

SMALL = 256
"""Numbers below are part of the code: the arrays that a step reads are unrolled anyway."""

Write = Callable[[Value, Sequence[Any]], None]


class Numbers(Arguments):
    """Arguments of which small numbers are constants; `cell` is for those that never are."""

    def scalar(self, key: Any, number: int) -> Value:
        if abs(number) < SMALL:
            return self.build.constant(number, "index")
        return super().scalar(key, number)

    def cell(self, key: Any, number: int) -> Value:
        return super().scalar(key, number)


class Coder(Emitter):
    """Emits loops; `places` is the axis of the places, `lanes` of which a line holds."""

    def __init__(self, arguments: Numbers, places: Axis, lanes: int) -> None:
        super().__init__(arguments, [places], places, lanes)
        self.arguments: Numbers = arguments
        self._places = places
        self._kept: dict[Loop, list[tuple[Buffer, int]]] = {}

    def run(self, loop: Loop, write: Write) -> list[Any]:
        """Emit a loop; what its variables hold behind it. `write` is given what a step writes."""
        axis = Axis((loop.number,), loop.length or 1, "step")
        outside, self.axes = self.axes, [*self.axes, axis]
        starts = self.values(loop.before)
        pairs = zip(loop.variables, starts, strict=True)
        variables = [self._variables(node, value) for node, value in pairs]
        self._share(loop)
        for place in self._steps(loop):
            self.open()
            self.at[id(axis)] = place
            self._recall(loop, variables)
            if loop.condition is not None:
                self._leave_unless(loop.condition)
            values = self.values((*loop.after, *loop.written))
            write(place, values[len(loop.after) :])
            self._assign(variables, values)
            self.close()
        self.axes = outside
        del self.at[id(axis)]
        return [_joined([part.get() for part in parts]) for parts in variables]

    def _steps(self, loop: Loop) -> Iterator[Value]:
        """Opens the loop around one step; gives the step's place among all."""
        if loop.length is None:
            with self.build.loop():
                yield self.build.constant(0, "index")
            return
        length = self.arguments.cell(("length", loop.number), loop.length)
        for step in self.build.range(0, length):
            yield length - 1 - step if loop.reverse else step

    def _variables(self, node: Node, value: Any) -> list[Variable]:
        lanes = self.lanes if node.dims & PLACE else 1
        return [self.build.variable(self.build.splat(part, lanes)) for part in _parts(value)]

    def _recall(self, loop: Loop, variables: Sequence[Sequence[Variable]]) -> None:
        for node, parts in zip(loop.variables, variables, strict=True):
            self.known(node, _joined([part.get() for part in parts]))

    def _assign(self, variables: Sequence[Sequence[Variable]], values: Sequence[Any]) -> None:
        for parts, value in zip(variables, values, strict=False):
            for variable, part in zip(parts, _parts(value), strict=True):
                variable.set(part)

    def _leave_unless(self, condition: Node) -> None:
        (holds,) = self.values([condition])
        if holds.lanes > 1:  # as long as any place wants a step
            holds = self.build.reduce("or", holds if self.mask is None else holds & self.mask)
        self.build.break_when(~holds)

    def _share(self, loop: Loop) -> None:
        """Compute now what does not differ between steps."""
        seen: set[Node] = set()
        stack, shared = list(loop.roots), []
        while stack:
            node = stack.pop()
            if node in seen or node.op == "const":
                continue
            seen.add(node)
            if node.dims & loop.bit:
                stack += reversed(node.below)
            else:
                shared.append(node)
        self.values(shared)

    # loops inside a step

    def _nested(self, loop: Loop) -> list[Any]:
        """What the variables of a loop inside hold behind it; it runs where it is first asked."""
        for known in reversed(self._memo):
            if loop in known:
                return known[loop]
        self._kept[loop] = arrays = [self._array(loop.length or 0, kept) for kept in loop.kept]

        def write(place: Value, values: Sequence[Any]) -> None:
            elements = iter(values)
            for kept, (array, lanes) in zip(loop.kept, arrays, strict=True):
                for k in range(len(kept)):
                    at = (place * len(kept) + k) * lanes
                    self.build.store(array, at, self.build.splat(next(elements), lanes))

        results = self._memo[-1][loop] = self.run(loop, write)
        return results

    def _array(self, length: int, kept: Kept) -> tuple[Buffer, int]:
        """Memory for what the steps of a loop write, and the lanes of an element."""
        lanes = self.lanes if any(node.dims & PLACE for _, node in kept) else 1
        dtype = kept[0][1].dtype if kept else "i32"
        return self.build.local(dtype, max(1, length * len(kept) * lanes)), lanes

    # nodes and indices

    def _compute(self, node: Node) -> Any:
        if node.op == "loop":
            loop, place = node.attr
            results = self._nested(loop)
            return self.build.constant(0, "i32") if place is None else results[place]
        if node.op == "kept":
            loop, place = node.attr
            array, lanes = self._kept[loop][place]
            return self.build.load(array, self.value(node.args[1]).cast("index") * lanes, lanes)
        return super()._compute(node)

    def _base_value(self, index: Index, inside: int, unit: int = 1) -> Value:
        """As for all kernels, but constants come last: neighbours then share what is before, and
        the target folds a constant into the address."""
        assert unit == 1, "loops count elements"
        total = self.build.constant(0, "index")
        for axis in self.axes:
            if axis.mask & inside or id(axis) not in self.at:
                continue
            if stride := axis.stride(index):
                total = total + self.at[id(axis)] * self._stride(axis, stride)
        for symbol, coefficient in index.terms:
            if not isinstance(symbol, Dim) and not _varies(symbol) & inside:
                total = total + self._scaled(index, symbol, coefficient)
        return total + self._offset(index)

    def _stride(self, axis: Axis, stride: int) -> Value:
        """A stride; between steps it holds the number of places."""
        key = ("stride", axis.dims, stride)
        if axis is not self._places and self._places.extent > 1:
            return self.arguments.cell(key, stride)
        return self.arguments.scalar(key, stride)

    def _offset(self, index: Index) -> Value:
        """The constant of an index; where places are neighbours it holds their number."""
        if not index.const:
            return self.build.constant(0, "index")
        key = (self._number(index), "const")
        if self._places.stride(index) == 1:
            return self.arguments.cell(key, index.const)
        return self.arguments.scalar(key, index.const)


def _varies(symbol: Any) -> int:
    """The dimensions that a symbol of an index varies along, as a bit mask."""
    return index_dims(Index(0, ((symbol, 1),)))


def _parts(value: Any) -> list[Value]:
    return [value.real, value.imag] if isinstance(value, Complex) else [value]


def _joined(parts: Sequence[Value]) -> Any:
    return parts[0] if len(parts) == 1 else Complex(*parts)
