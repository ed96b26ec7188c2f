"""A meeting: the members of a group of units combine their states through shared memory, and each
gets what they make together. All members write; if they are more than FEW, some combine several
states each; all read what is left. Every unit of the cube comes along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.lowering.cube.build import Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels import states
from xcube.lowering.kernels.nodes import Emitter
from xcube.lowering.kernels.space import Fold

FEW = 16  # members whose states everybody reads
WIDE = 4  # states of one lane that are read at once

Parts = list[Any]
Arrays = tuple[tuple[Buffer, ...], ...]


class Meeting:
    """Of `members` units, a power of two: member n writes at `base + n * stride`, a state of
    `lanes` lanes, and `unit` is the number of this one."""

    def __init__(
        self, emit: Emitter, unit: Value, members: int, base: Value, stride: int, lanes: int = 1
    ) -> None:
        self.emit, self.b, self.unit, self.members = emit, emit.build, unit, members
        self.base, self.stride, self.lanes = base, stride, lanes
        self.few = members if members <= FEW else 1 << (members.bit_length() - 1) // 2
        self._arrays: dict[Any, Buffer] = {}
        self._turn = 0

    def combined(self, folds: Sequence[Fold], totals: Sequence[Parts]) -> list[Parts]:
        """The states of all members, fold by fold, in every member."""
        if self.members == 1:
            return list(totals)
        self._turn += self.few == self.members  # who is late may still be reading
        first = [self._room(n, parts, self._turn % 2) for n, parts in enumerate(totals)]
        for arrays, parts in zip(first, totals, strict=True):
            self._put(arrays, self.unit, parts)
        self.b.sync()
        if self.few == self.members:
            return [self._all(*pair, self.few) for pair in zip(folds, first, strict=True)]
        second = [self._room(n, parts, 2) for n, parts in enumerate(totals)]
        with self.b.when(self.unit < self.few):
            for fold, source, target in zip(folds, first, second, strict=True):
                several = range(0, self.members, self.few)
                some = [self._get(source, self.unit + number) for number in several]
                self._put(target, self.unit, states.combine_all(self.emit, fold, some))
        self.b.sync()
        return [self._all(*pair, self.few) for pair in zip(folds, second, strict=True)]

    def _all(self, fold: Fold, arrays: Arrays, count: int) -> Parts:
        """The first `count` states together; several at once where they are neighbours."""
        width = min(WIDE, count) if self.stride == self.lanes == 1 else 1
        found = [self._get(arrays, number, width) for number in range(0, count, width)]
        total = states.combine_all(self.emit, fold, found)
        return states.across_lanes(self.emit, fold, total, width)

    def _room(self, number: int, parts: Parts, turn: int) -> Arrays:
        """Arrays for one state of each unit of the cube."""
        cube = self.b.cube_dim[0] * self.b.cube_dim[1] * self.lanes
        rooms = []
        for place, part in enumerate(parts):
            keys = [(turn, number, place, n, x.dtype) for n, x in enumerate(_scalars(part))]
            for key in keys:
                if key not in self._arrays:
                    self._arrays[key] = self.b.shared(key[-1], cube)
            rooms.append(tuple([self._arrays[key] for key in keys]))
        return tuple(rooms)

    def _place(self, member: Value | int) -> Value:
        return (self.base + member * self.stride) * self.lanes

    def _put(self, arrays: Arrays, member: Value, parts: Parts) -> None:
        for buffers, part in zip(arrays, parts, strict=True):
            for buffer, scalar in zip(buffers, _scalars(part), strict=True):
                self.b.store(buffer, self._place(member), scalar)

    def _get(self, arrays: Arrays, member: Value | int, width: int = 1) -> Parts:
        lanes = max(self.lanes, width)
        at = self._place(member)
        loaded = [[self.b.load(buffer, at, lanes=lanes) for buffer in pair] for pair in arrays]
        return [Complex(*pair) if len(pair) == 2 else pair[0] for pair in loaded]


def _scalars(part: Any) -> tuple[Value, ...]:
    return (part.real, part.imag) if isinstance(part, Complex) else (part,)
