"""Arrays inside kernels: a view says where the elements of a memory lie, by an offset and strides.
Parameters, shared and local arrays, slices and tiles are all views; reading and writing elements
builds loads and stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from xcube.cube import functions
from xcube.cube.state import current, fail
from xcube.cube.values import (
    DTYPES,
    DType,
    Operators,
    Size,
    Symbol,
    Value,
    as_index,
    constant,
    converted,
    dtype_of,
    resolved,
    typed,
)
from xcube.errors import DtypeError, KernelError, ShapeError
from xcube.lowering.cube import ir

Index = Any  # an integer, known or at run time
SHARED_LIMIT = 227 * 1024  # bytes that the cubes of the largest devices have
INDEX = "index"


@dataclass(frozen=True)
class Memory:
    """The elements of a parameter, or of an array of a cube or unit. `length`: how many there
    are, where that is known."""

    name: str
    buffer: ir.Buffer
    length: int | None = None

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return DTYPES[self.buffer.dtype]

    def note_write(self) -> None:
        """The kernel writes this."""
        if self.buffer.space == "global":
            current().written.add(self.name)


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """An array of a kernel: `shape`, `rank`, `length`, `stride(axis)`, `dtype`, `lanes`. `x[i, j]`
    is an element, a line if `lanes` > 1; `x[i]` of two axes is a row, `x[a:b]` a slice."""

    memory: Memory
    offset: Index
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    lanes: int = 1
    limits: tuple[Index, ...] | None = None
    whole: Index | None = None

    def __repr__(self) -> str:
        return f"<{self.memory.name}: {self.memory.dtype} of {self.rank} axes>"

    @property
    def dtype(self) -> DType:
        """Dtype of an element."""
        return self.memory.dtype

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def length(self) -> Index:
        """How many elements there are, or lines."""
        return math.prod(self.shape) if self.whole is None else self.whole

    def stride(self, axis: int) -> Index:
        """How far neighbours along an axis are apart, in elements."""
        return self.strides[axis]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __bool__(self) -> bool:
        must = "cube: an array must not be asked whether it is true"
        fail(KernelError, must, repr(self), "Compare an element, or its length.")

    def __iter__(self) -> Any:
        must = "cube: what walks through an array must be a loop over a range"
        fail(KernelError, must, repr(self), "Write for i in range(x.length): x[i].")

    # elements

    def __getitem__(self, key: Any) -> Any:
        """An element, a row, or a slice.

        Raises IndexError if a known index is none of the array's, ShapeError if there are too many.
        """
        found = self._at(key)
        return found if found.shape else found._load()

    def __setitem__(self, key: Any, value: Any) -> None:
        found = self._at(key)
        if found.shape:
            must = f"{self.memory.name}: an assignment must be to one element"
            fail(
                ShapeError, must, f"a part of {found.rank} axes", "Write a loop over its elements."
            )
        found._store(value)

    def get(self, *indices: Index, fill: Any = 0) -> Value:
        """The element, or `fill` outside of the array, where nothing is read."""
        found, inside = self._at(indices), self._inside(indices)
        value = found._load(functions.full(self.lanes, inside))
        other = converted(fill, self.dtype, "the fill")
        return value if other.core.constant == 0 else functions.select(inside, value, other)

    def put(self, *indices: Index, value: Any) -> None:
        """Write an element; nothing is written outside of the array."""
        found, inside = self._at(indices), self._inside(indices)
        found._store(value, functions.full(self.lanes, inside))

    def _inside(self, indices: Sequence[Index]) -> Value:
        limits = self.shape if self.limits is None else self.limits
        inside = constant(True, DTYPES["bool"])
        for index, limit in zip(indices, limits, strict=True):
            place = as_index(index)
            inside = inside & (place < as_index(limit))
            if not place.natural:
                inside = inside & (place >= 0)
        return inside

    def _load(self, mask: Value | None = None) -> Value:
        build, at = current().build, as_index(self.offset)
        lanes = max(self.lanes, at.lanes)
        cover = None if mask is None else functions.full(lanes, mask).core
        return Value(build.load(self.memory.buffer, at.core, lanes, cover))

    def _store(self, value: Any, mask: Value | None = None) -> None:
        at = as_index(self.offset)
        stored = converted(value, self.dtype, f"what is stored to {self.memory.name}")
        lanes = max(self.lanes, at.lanes)
        if stored.lanes not in (1, lanes):
            must = (
                f"{self.memory.name}: what is stored must have as many lanes as the array's lines"
            )
            way = "Store through x.as_lines(n), or lane by lane."
            fail(ShapeError, must, f"{stored.lanes} lanes for {lanes}", way)
        whole = functions.full(lanes, stored)
        self.memory.note_write()
        current().build.store(
            self.memory.buffer, at.core, whole.core, None if mask is None else mask.core
        )

    # parts

    def _at(self, key: Any) -> View:
        """What a key picks: a view without axes is an element."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > self.rank:
            must = f"{self.memory.name}: there must be at most {self.rank} indices"
            fail(ShapeError, must, f"{len(keys)}", "Leave some out, or annotate cube.Tensor.")
        offset, shape, strides = self.offset, [], []
        for axis, part in enumerate(keys):
            if isinstance(part, slice):
                start, stop = self._span(part, axis)
                offset = offset + start * self.strides[axis]
                shape.append(functions.maximum(stop - start, 0))
                strides.append(self.strides[axis])
            else:
                offset = offset + self._place(part, axis) * self.strides[axis]
        rest = slice(len(keys), None)
        return replace(
            self,
            offset=offset,
            shape=(*shape, *self.shape[rest]),
            strides=(*strides, *self.strides[rest]),
            limits=None,
            whole=None,
        )

    def _place(self, index: Index, axis: int) -> Index:
        """An index along an axis; a known one below zero counts from the end."""
        if not isinstance(index, Operators | int) or isinstance(index, bool):
            found = typed(index) if isinstance(index, float | bool) else type(index).__name__
            must = f"{self.memory.name}: an index must be an integer"
            fail(DtypeError, must, found, "Write an int, or cast: x.cast(cube.i32).")
        place, size = resolved(index), self.shape[axis]
        if isinstance(place, Value):
            return as_index(place)
        if isinstance(size, int) and not -size <= place < size:
            must = f"{self.memory.name}: an index must lie in 0..{size - 1}"
            fail(IndexError, must, f"{place}", "Make the array longer, or the index smaller.")
        return place + size if place < 0 else place

    def _span(self, part: slice, axis: int) -> tuple[Index, Index]:
        if part.step is not None:
            must = f"{self.memory.name}: a slice must have no step"
            fail(KernelError, must, typed(part.step), "Use x.view(shape, strides).")
        start = 0 if part.start is None else self._bound(part.start, axis)
        return start, self.shape[axis] if part.stop is None else self._bound(part.stop, axis)

    def _bound(self, bound: Index, axis: int) -> Index:
        place = resolved(bound)
        if isinstance(place, Value):
            return as_index(place)
        return place + self.shape[axis] if place < 0 else place

    def slice(self, start: Index, stop: Index) -> View:
        """The elements from `start` up to `stop` along the first axis."""
        return self[start:stop]

    def as_lines(self, lanes: int) -> View:
        """The array in lines of so many elements along its last axis, whose length is divided.

        Raises ShapeError if elements of a line would not be neighbours.
        """
        neighbours = isinstance(self.strides[-1], int) and self.strides[-1] == 1
        known = self.shape[-1] if isinstance(self.shape[-1], int) else 0
        if self.lanes != 1 or not neighbours or lanes < 1 or known % lanes:
            must = f"{self.memory.name}: lines must divide a last axis of neighbouring elements"
            got = f"{lanes} lanes, of {self!r}"
            fail(ShapeError, must, got, "Take lines of another length, or of another axis.")
        shape = (*self.shape[:-1], self.shape[-1] // lanes)
        whole = None if self.whole is None else self.whole // lanes
        strides = (*self.strides[:-1], lanes)
        return replace(self, shape=shape, strides=strides, lanes=lanes, whole=whole, limits=None)

    def view(self, shape: Sequence[Index], strides: Sequence[Index]) -> View:
        """Other axes over the same elements.

        Raises ShapeError if there are not as many strides as sizes.
        """
        if len(shape) != len(strides):
            must = f"{self.memory.name}: a view must have a stride for each size"
            got = f"{len(shape)} sizes and {len(strides)} strides"
            fail(ShapeError, must, got, "Write as many of both.")
        return replace(self, shape=tuple(shape), strides=tuple(strides), limits=None, whole=None)

    def permuted(self, *axes: int) -> View:
        """The axes in another order.

        Raises ShapeError if they are not all axes.
        """
        if sorted(axes) != list(range(self.rank)):
            must = f"{self.memory.name}: permuted axes must be 0..{self.rank - 1}, each once"
            fail(ShapeError, must, f"{axes}", "Name every axis.")
        order = [tuple([part[axis] for axis in axes]) for part in (self.shape, self.strides)]
        limits = None if self.limits is None else tuple([self.limits[axis] for axis in axes])
        return replace(self, shape=order[0], strides=order[1], limits=limits)

    def transposed(self) -> View:
        """The axes in reverse order."""
        return self.permuted(*reversed(range(self.rank)))

    def tile(self, shape: Sequence[int], at: Sequence[Index]) -> View:
        """The tile of a known shape at a place of the grid of tiles; what lies outside of the
        array is told by `get` and `put`.

        Raises ShapeError if shape or place have another number of axes.
        """
        if not len(shape) == len(at) == self.rank:
            must = f"{self.memory.name}: a tile must have {self.rank} sizes and places"
            fail(ShapeError, must, f"{len(shape)} and {len(at)}", "Name every axis.")
        starts = [place * size for place, size in zip(at, shape, strict=True)]
        limits = self.shape if self.limits is None else self.limits
        offset = self.offset
        for start, stride in zip(starts, self.strides, strict=True):
            offset = offset + start * stride
        rest = [
            functions.minimum(size, as_index(limit) - start)
            for size, limit, start in zip(shape, limits, starts, strict=True)
        ]
        return replace(self, offset=offset, shape=tuple(shape), limits=tuple(rest), whole=None)

    # how branches and loops hand a view on

    def __cube_parts__(self) -> tuple[Any, list[Any]]:
        sizes = [*self.shape, *self.strides, *(self.limits or ())]
        static = (self.memory, self.lanes, self.rank, self.limits is None)
        return static, [as_index(self.offset), *map(_size, sizes)]

    @classmethod
    def __cube_build__(cls, static: Any, children: Sequence[Any]) -> View:
        memory, lanes, rank, unlimited = static
        offset, *given = children
        sizes = tuple([_number(size) for size in given])
        limits = None if unlimited else sizes[2 * rank :]
        return cls(memory, offset, sizes[:rank], sizes[rank : 2 * rank], lanes, limits)


def _size(size: Index) -> Size:
    return Size("size", size.ask if isinstance(size, Symbol) else lambda: size)


def _number(size: Any) -> Index:
    """A size as it was, a Python number if it is known."""
    found = resolved(size)
    return found if isinstance(found, int) or not isinstance(size, Size) else size


# arrays of a cube or a unit -------------------------------------------------------------------


def shared_memory(dtype: Any, shape: int | Sequence[int]) -> View:
    """`cube.SharedMemory(dtype, shape)`: an array that the units of a cube share; its elements hold
    nothing at first.

    Raises KernelError if the shape is not known, or the arrays of a cube would not fit.
    """
    found, sizes = dtype_of(dtype), _known_shape("SharedMemory", shape)
    state, size = current(), math.prod(sizes)
    state.shared_bytes += size * found.bits // 8
    if state.shared_bytes > SHARED_LIMIT:
        must = f"SharedMemory: the arrays of a cube must fit {SHARED_LIMIT} bytes"
        way = "Share smaller tiles."
        fail(KernelError, must, f"{state.shared_bytes} bytes", way)
    if len(state.regions) > 1:
        must = "SharedMemory: it must be made where all units of a cube come by"
        fail(KernelError, must, "a run-time branch or loop", "Make it at the kernel's beginning.")
    return _array("shared memory", state.build.shared(found.name, size), sizes)


def local_array(dtype: Any, shape: int | Sequence[int]) -> View:
    """`cube.LocalArray(dtype, shape)`: an array of one unit; its elements hold nothing at first.

    Raises KernelError if the shape is not known.
    """
    found, sizes = dtype_of(dtype), _known_shape("LocalArray", shape)
    return _array("local array", current().build.local(found.name, math.prod(sizes)), sizes)


def constant_array(values: Sequence[Any], dtype: Any = None) -> View:
    """A table of known numbers that is read by run-time indices.

    Raises KernelError if there are none.
    """
    if not len(values):
        fail(KernelError, "constants: there must be a number", "none", "Write one.")
    numbers = [value.item() if hasattr(value, "item") else value for value in values]
    floats = any(isinstance(number, float) for number in numbers)
    table = local_array(dtype or ("f32" if floats else "i32"), len(numbers))
    for place, number in enumerate(numbers):
        table[place] = number
    return table


def _array(name: str, buffer: ir.Buffer, shape: tuple[int, ...]) -> View:
    return View(Memory(name, buffer, buffer.size), 0, shape, contiguous(shape))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array whose last axis has neighbouring elements."""
    return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def _known_shape(what: str, shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    found = [resolved(size) for size in sizes]
    if not found or any(not isinstance(size, int) or size < 1 for size in found):
        _refuse_shape(what, found)
    return tuple(found)


def _refuse_shape(what: str, found: Sequence[Any]) -> NoReturn:
    must = f"{what}: sizes must be known at expansion, and at least 1"
    got = ", ".join(map(typed, found)) or "none"
    fail(KernelError, must, got, "Use a comptime parameter, or cube.CUBE_DIM.")
