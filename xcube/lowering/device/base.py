"""What lowering asks of a device: memory, compiled kernels, and programs that run in one call.

A backend is an emitter and a device, nothing more. The emitter turns a cube kernel into text; the
device turns text into handles (`compile`), handles and launches into an `Executable` (`link`), and
owns the buffers that executables read and write. Everything here is plain data and abstract: no
device is imported, so that programs can be planned and printed without one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xcube.lowering.cube.ir import Kernel

Space = Literal["input", "output", "constant", "arena", "register"]


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a launch finds a buffer: which input, output or constant, a place in the arena, or what
    a loop's register points to.

    `offset` counts bytes and is allowed in every space; `index` is 0 for the arena.
    """

    space: Space
    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over `cubes` cubes.

    `kernel` indexes the program's kernels. `scalars` are 64-bit cells: integers in two's
    complement, floats already cast to bits. `grain` is the smallest number of cubes worth giving
    to one thread at a time; a launch of at most `grain` cubes runs on the calling thread.
    """

    kernel: int
    buffers: tuple[Ref, ...]
    scalars: tuple[int, ...]
    cubes: int
    grain: int = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """`nbytes` bytes from one place to another; nothing where both are the same place."""

    target: Ref
    source: Ref
    nbytes: int


@dataclass(frozen=True, slots=True)
class Register:
    """A pointer of a loop: `start` when the loop begins, and `step` bytes further each turn.
    Numbers are unique in a program."""

    number: int
    start: Ref
    step: int = 0


Rotation = tuple[int, int, int]
"""Registers (read, write, spare) of a value that a loop carries: what was written is read in the
next turn, which writes to the spare place, and what was written becomes spare in its turn."""


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` run `turns` times, which is known."""

    turns: int
    body: tuple[Step, ...]
    registers: tuple[Register, ...] = ()
    rotations: tuple[Rotation, ...] = ()


@dataclass(frozen=True, slots=True)
class While:
    """`test`, then, if the bool at `predicate` holds, `body`; and again."""

    test: tuple[Step, ...]
    predicate: Ref
    body: tuple[Step, ...]
    registers: tuple[Register, ...] = ()
    rotations: tuple[Rotation, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """One of the branches: that of the i32 at `index`, clamped to those there are."""

    index: Ref
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a host call."""

    ref: Ref
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class HostCall:
    """A Python function of NumPy arrays run between launches: `function(operands)` gives one
    array-like for each of `results`. `source`: where the user wrote it."""

    function: Callable[[Sequence[np.ndarray]], Sequence[Any]]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    source: str = ""

    def __call__(self, memory: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Call the function on `memory`, read-only arrays, and write its results to `targets`."""
        try:
            values = self.function(memory)
            for target, value in zip(targets, values, strict=True):
                target[...] = value
        except BaseException as error:
            if self.source:
                error.add_note(f"Raised in the callback at {self.source}.")
            raise


Step = Launch | Copy | Loop | While | Branch | HostCall


def inner_steps(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The bodies of a step; none for one that is no control flow."""
    if isinstance(step, Loop):
        return (step.body,)
    if isinstance(step, While):
        return step.test, step.body
    return step.branches if isinstance(step, Branch) else ()


def every_step(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps and those inside them, in the order in which they are written."""
    for step in steps:
        yield step
        for body in inner_steps(step):
            yield from every_step(body)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device is; sizes in bytes, `vector_bits` of the widest arithmetic register or memory
    access. `units`: how many units of a cube work side by side at most; 1 where a cube is a task.

    `features` names what the hardware does natively (for example "f16" for half precision
    arithmetic), as opposed to what it can be made to do by conversion.
    """

    name: str
    kind: str
    model: str
    cores: int
    vector_bits: int
    l1_bytes: int
    l2_bytes: int
    memory_bytes: int
    features: frozenset[str]
    units: int = 1

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest line."""
        return self.vector_bits // 8

    def lanes(self, itemsize: int) -> int:
        """How many elements of `itemsize` bytes fill one vector register.

        >>> Facts("cpu", "cpu", "any", 2, 256, 32768, 262144, 1 << 30, frozenset()).lanes(4)
        8
        """
        return max(1, self.vector_bits // (8 * itemsize))


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes handed out now and at most so far, bytes held from the system, and the limit."""

    bytes_in_use: int
    peak_bytes_in_use: int
    bytes_reserved: int
    limit: int


class Buffer(abc.ABC):
    """Memory on a device.

    `pointer` is its address there and `nbytes` the bytes that were asked for. `writable` says
    whether an executable may overwrite it: not if the memory belongs to somebody else, nor once
    somebody else can see it.
    """

    __slots__ = ("nbytes", "pointer", "writable")

    pointer: int
    nbytes: int
    writable: bool

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """Bytes that kernels may touch from `pointer` on, at least `nbytes`."""

    @property
    @abc.abstractmethod
    def foreign(self) -> bool:
        """Whether the memory belongs to another library."""

    @abc.abstractmethod
    def numpy(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The contents as a read-only NumPy array that keeps the buffer alive.

        Raises DeviceError if `shape` and `dtype` need more than `nbytes`.
        """


class Executable(abc.ABC):
    """A linked program: takes the input buffers, gives the output buffers."""

    @abc.abstractmethod
    def __call__(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run once.

        Raises DeviceError if the number of inputs is wrong, OutOfMemoryError if outputs or the
        arena do not fit, what a host call raised, and whatever a signal handler raised meanwhile
        (KeyboardInterrupt).
        """


class Device(abc.ABC):
    """One place that runs programs: `name` is unique ("cpu", "cuda:0"), `kind` the backend's."""

    name: str
    kind: str

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {self.facts().model!r})"

    @abc.abstractmethod
    def facts(self) -> Facts:
        """What the device is."""

    def has(self, feature: str) -> bool:
        """Whether the hardware does `feature` natively."""
        return feature in self.facts().features

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes` bytes with undefined contents.

        Raises OutOfMemoryError if the device cannot supply them.
        """

    @abc.abstractmethod
    def from_host(self, array: np.ndarray, *, copy: bool = True) -> Buffer:
        """The elements of `array` in row-major order on the device.

        With `copy=False` the device may use the array's own memory where it can.
        Raises OutOfMemoryError if they do not fit.
        """

    def receive(self, buffer: Buffer, source: Device) -> Buffer:
        """A copy of a buffer of another device; by way of the host unless there is a shorter one.

        Raises OutOfMemoryError if it does not fit.
        """
        return self.from_host(buffer.numpy((buffer.nbytes,), np.dtype(np.uint8)))

    @abc.abstractmethod
    def emit(self, kernel: Kernel, name: str = "kernel") -> str:
        """The text of a kernel in the device's language; `name` is its entry."""

    @abc.abstractmethod
    def compile(self, sources: Sequence[tuple[str, str]]) -> list[int]:
        """Handles of the kernels given as (name, text), in order.

        Raises LoweringError if a text is not valid.
        """

    @abc.abstractmethod
    def link(
        self,
        kernels: Sequence[int],
        steps: Sequence[Step],
        n_inputs: int,
        output_nbytes: Sequence[int],
        constants: Sequence[Buffer] = (),
        arena_nbytes: int = 0,
        donated: Mapping[int, int] | None = None,
        light: bool = False,
    ) -> Executable:
        """An executable that runs `steps` in order.

        `donated` maps an output to the input whose memory it takes over. `light` promises that
        one run is so short that other Python threads need not run meanwhile.
        Raises LoweringError if a step refers to what is not there.
        """

    @abc.abstractmethod
    def assembly(self, name: str, text: str) -> str:
        """The machine code of a kernel's text, for people to read."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until everything that was started has finished."""

    @abc.abstractmethod
    def memory_stats(self) -> MemoryStats:
        """How much memory is in use, was in use at most, is held, and may be used."""

    @abc.abstractmethod
    def trim(self) -> int:
        """Give memory that is held but unused back to the system; returns the bytes."""
