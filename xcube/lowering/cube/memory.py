"""The memory that the interpreter lends a kernel: elements, which of them were written, and a
ledger of who touched what, from which races are told."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.errors import KernelError
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.ir import Buffer, Kernel

Line = np.ndarray[Any, Any]

_KINDS = ("read", "write", "atomic")
_CLASHES = {"read": ("write", "atomic"), "write": _KINDS, "atomic": ("read", "write")}
_JUNK = 0x5A  # content of padding and of memory never written


class Ledger:
    """Who touched each element, in each way, since the last barrier.

    A party is a unit or a cube. Entries are numbers that grow from barrier to barrier, so that
    forgetting all of them is one addition; the last number of a span means several parties.
    """

    def __init__(self, size: int, parties: int) -> None:
        self._entries = {kind: np.full(size, -1, np.int64) for kind in _KINDS}
        self._parties = parties
        self._base = 0

    def advance(self) -> None:
        """A barrier."""
        self._base += self._parties + 1

    def forget(self, first: int, count: int) -> None:
        """A barrier of some parties between one another; not of elements that several touched."""
        low = self._base + first
        for entries in self._entries.values():
            entries[(entries >= low) & (entries < low + count)] = -1

    def touch(self, kind: str, places: Line, party: int) -> tuple[int, str] | None:
        """Note a touch; gives the element and the way in which another party raced for it."""
        mine, several = self._base + party, self._base + self._parties
        for other in _CLASHES[kind]:
            seen = self._entries[other][places]
            if (clash := (seen >= self._base) & (seen != mine)).any():
                return int(places[clash][0]), other
        seen = self._entries[kind][places]
        alone = (seen < self._base) | (seen == mine)
        self._entries[kind][places] = np.where(alone, mine, several)
        return None


@dataclasses.dataclass(slots=True)
class Memory:
    """Elements of one buffer; `written` is None where all of them are."""

    values: Line
    written: Line | None
    units: Ledger | None = None
    cubes: Ledger | None = None

    @classmethod
    def holding(cls, array: Line, padding: int, filled: bool, units: int, cubes: int) -> Memory:
        """A global buffer: a copy of an array and the padding after it."""
        size = len(array) + padding
        memory = cls.unwritten(size, array.dtype, units)
        memory.values[: len(array)] = array
        memory.cubes = Ledger(size, cubes) if cubes > 1 else None
        if filled:
            memory.fill()
        return memory

    @classmethod
    def unwritten(cls, size: int, dtype: np.dtype[Any], units: int = 1) -> Memory:
        """An array of a cube or of a unit."""
        byte = 1 if dtype == np.bool_ else _JUNK
        values = np.full(size * dtype.itemsize, byte, np.uint8).view(dtype)
        ledger = Ledger(size, units) if units > 1 else None
        return cls(values, np.zeros(size, np.bool_), ledger)

    def fill(self) -> None:
        """From here on every element counts as written."""
        self.written = None

    def advance(self) -> None:
        """A barrier between units."""
        if self.units is not None:
            self.units.advance()

    def forget(self, first: int, count: int) -> None:
        """A barrier between some units."""
        if self.units is not None:
            self.units.forget(first, count)

    def is_written(self, places: Line, active: Line) -> Line:
        """Which lanes find a written element; lanes that are not active do."""
        result = np.ones(len(places), np.bool_)
        if self.written is not None:
            result[active] = self.written[places[active]]
        return result

    def write(self, places: Line, values: Line) -> None:
        self.values[places] = values
        if self.written is not None:
            self.written[places] = True

    def touch(self, kind: str, places: Line, unit: int, cube: int) -> tuple[int, str, str] | None:
        """Note a touch; gives element, way and party ("unit" or "cube") of a race."""
        for ledger, party, name in ((self.units, unit, "unit"), (self.cubes, cube, "cube")):
            if ledger is not None and (race := ledger.touch(kind, places, party)) is not None:
                return *race, name
        return None

    def copy_to(self, array: Line) -> None:
        """Give the elements back, without padding; elements never written keep their content."""
        array[...] = self.values[: len(array)]


def borrow(kernel: Kernel, arrays: Sequence[Line], cubes: int, padding: int) -> dict[int, Memory]:
    """A working copy of each global buffer; arrays that are the same memory share one.

    Raises KernelError if number, dtype, rank or overlap of the arrays do not fit the kernel.
    """
    if len(arrays) != len(kernel.buffers):
        raise KernelError(
            f"interpret: kernel {kernel.name} takes {len(kernel.buffers)} buffers; "
            f"got {len(arrays)}"
        )
    units = math.prod(kernel.cube_dim)
    memories: dict[int, Memory] = {}
    known: list[tuple[Line, Memory]] = []
    for buffer, array in zip(kernel.buffers, arrays, strict=True):
        _check_array(kernel, buffer, array)
        memory = _same_memory(kernel, buffer, array, known)
        if memory is None:
            memory = Memory.holding(array, padding, buffer.access != "out", units, cubes)
        elif buffer.access != "out":
            memory.fill()
        memories[buffer.number] = memory
        known.append((array, memory))
    return memories


def _check_array(kernel: Kernel, buffer: Buffer, array: Line) -> None:
    expected = NUMPY[buffer.dtype]
    if array.ndim != 1 or array.dtype != expected:
        raise KernelError(
            f"interpret: buffer {buffer.number} of kernel {kernel.name} must be a 1-D array of "
            f"{expected}; got {array.ndim}-D of {array.dtype}"
        )
    if buffer.access != "in" and not array.flags.writeable:
        raise KernelError(
            f"interpret: buffer {buffer.number} of kernel {kernel.name} is written, so its array "
            f"must be writable; got a read-only one"
        )


def _same_memory(
    kernel: Kernel, buffer: Buffer, array: Line, known: list[tuple[Line, Memory]]
) -> Memory | None:
    for other, memory in known:
        if not np.shares_memory(other, array):
            continue
        if _layout(other) == _layout(array):
            return memory
        raise KernelError(
            f"interpret: buffers must be the same array or apart; buffer {buffer.number} of "
            f"kernel {kernel.name} overlaps another one in part"
        )
    return None


def _layout(array: Line) -> tuple[Any, ...]:
    return array.ctypes.data, array.strides, array.shape, array.dtype
