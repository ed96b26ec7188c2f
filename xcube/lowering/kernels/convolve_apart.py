"""The kernel of a convolution whose window is larger than its result, of channels that do not meet,
as the gradient of a depthwise kernel is, where a cube is a task of one thread.

The input lies as [feature, *space, channel], the window as [feature, *window, channel]: lines lie
along channels. A cube goes over some lines of the window, the last dimension's places of the result
side by side in registers and the others in turn, and then over the next ones, so that all stays
near. Sums lie as [part of the window, *place, channel], those of parts side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.convolution_pull import Walk

TASK = 1 << 16  # lines of products worth handing to a thread
NEAR = 64  # places of the window that meet one place of the result before the next has its turn


@dataclass(frozen=True)
class Strip:
    """Lines of channels whose sums are in registers, their lanes, and into how many parts the
    window is cut."""

    lines: int
    lanes: int
    parts: int

    @property
    def channels(self) -> int:
        return self.lines * self.lanes

    def __str__(self) -> str:
        return f"{self.lines}x{self.lanes}"


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of such a convolution."""
    return [_Launch(group).build()]


class _Launch:
    """The kernel in the making, and where its cube is."""

    def __init__(self, group: Group) -> None:
        root = group.root
        assert root is not None
        self.strip: Strip = root.params["strip"]
        self.walk: Walk = root.params["walk"]
        x = root.inputs[0].aval
        self.sizes, self.channels = x.shape[1:-1], x.shape[-1]
        self.lines = (x.shape[0], *self.walk.window[:-1])
        self.turns, self.places = self.walk.counts[:-1], self.walk.counts[-1]
        self.dtype = dtypes.short_name(x.dtype)
        self.b = Builder("convolve_apart")
        self.arguments = Arguments(self.b)
        self.out = self.arguments.buffer(root.outputs[0], "inout")
        self.x, self.w = (self.arguments.buffer(atom) for atom in root.inputs)  # type: ignore[arg-type]
        self.wide = self._scalar("channels", self.channels)

    def build(self) -> Work:
        """The launch."""
        b, strip = self.b, self.strip
        total, strips = math.prod(self.lines), math.ceil(self.channels / strip.channels)
        height = math.ceil(total / strip.parts)
        cube, count = b.place("cube_pos.x"), self._scalar("strips", strips)
        part, self.column = cube // count, cube % count * strip.channels
        begin = part * self._scalar("height", height)
        stop = b.op("min", begin + self._scalar("height", height), self._scalar("total", total))
        near = self._scalar("near", max(1, NEAR // max(1, self.walk.window[-1])))
        turns = self._scalar("turns", math.prod(self.turns))
        self.masks = self._masks()
        for first in b.range(begin, stop, near):
            last = b.op("min", first + near, stop)
            for turn in b.range(0, turns):
                at = (part * turns + turn) * self.places * self.wide + self.column
                self._turn(at, self._offset(turn), (first, last), first > begin)
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        work = height * self.walk.window[-1] * math.prod(self.walk.counts) * strip.lines
        grain = max(1, TASK // max(1, work))
        return Work(b.finish(), variables, cells, strip.parts * strips, grain)

    def _scalar(self, name: object, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _masks(self) -> list[Value | None]:
        """Which lanes of each line are channels."""
        strip = self.strip
        if self.channels % strip.channels == 0:
            return [None] * strip.lines
        lane, left = self.b.lane(strip.lanes, "i32"), self.wide - self.column
        return [lane < (left - v * strip.lanes).cast("i32") for v in range(strip.lines)]

    def _turn(self, at: Value, offset: Value, lines: tuple[Value, Value], goes_on: Value) -> None:
        """Some lines of the window at some places of the result."""
        b, strip = self.b, self.strip
        zero = b.constant(0, self.dtype, strip.lanes)
        sums = [[b.variable(zero) for _ in self.masks] for _ in range(self.places)]
        with b.when(goes_on):
            for place, cells in enumerate(sums):
                found = self._read(self.out, at + place * self.wide)
                for cell, line in zip(cells, found, strict=True):
                    cell.set(line)
        for line in b.range(*lines):
            self._line(line, offset, sums)
        for place, cells in enumerate(sums):
            for v, (cell, mask) in enumerate(zip(cells, self.masks, strict=True)):
                to = at + place * self.wide + v * strip.lanes
                b.store(self.out, to, cell.get(), mask)

    def _read(self, buffer: object, at: Value) -> list[Value]:
        lanes = self.strip.lanes
        return [
            self.b.load(buffer, at + v * lanes, lanes, mask)  # type: ignore[arg-type]
            for v, mask in enumerate(self.masks)
        ]

    def _line(self, line: Value, offset: Value, sums: Sequence[Sequence[Variable]]) -> None:
        """Products of a line of the window."""
        b, walk = self.b, self.walk
        length = self._scalar("length", walk.window[-1])
        x, w = self._start(line) + offset, line * length * self.wide + self.column
        step = self._scalar("step", walk.dilation[-1]) * self.wide
        apart = self._scalar("stride", walk.strides[-1]) * self.wide
        for place in b.range(0, length):
            at = x + place * step
            right = self._read(self.w, w + place * self.wide)
            for number, cells in enumerate(sums):
                left = self._read(self.x, at + number * apart)
                for cell, a, c in zip(cells, left, right, strict=True):
                    cell.set(self._multiply_add(a, c, cell.get()))

    @property
    def _pitches(self) -> list[int]:
        """Elements from one place of the input to the next, of every dimension of space."""
        sizes = range(len(self.sizes))
        return [self.channels * math.prod(self.sizes[d + 1 :]) for d in sizes]

    def _offset(self, turn: Value) -> Value:
        """Where the input of a place of the result begins, at the last dimension's first place."""
        offset = self.column
        for d in range(len(self.turns) - 1, -1, -1):
            step = self._scalar(("turn", d), self.walk.strides[d] * self._pitches[d])
            count = self._scalar(("count", d), self.turns[d])
            offset, turn = offset + (turn % count if d else turn) * step, turn // count
        return offset

    def _start(self, line: Value) -> Value:
        """Where the input of a line of the window begins, at the result's first place."""
        start = self.b.constant(0, "index")
        for d in range(len(self.lines) - 1, 0, -1):
            count = self._scalar(("line", d), self.lines[d])
            step = self._scalar(("apart", d), self.walk.dilation[d - 1] * self._pitches[d - 1])
            start, line = start + line % count * step, line // count
        return start + line * self._scalar("image", self.channels * math.prod(self.sizes))

    def _multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.fma(x, y, z) if self.dtype.startswith("f") else x * y + z
