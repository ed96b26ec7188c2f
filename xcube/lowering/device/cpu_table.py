"""Programs as the tables of cells that the native walker runs; `cpu_walker` states the format."""

from __future__ import annotations

import ctypes
from array import array as cell_array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from xcube import errors
from xcube.lowering.device import cpu_walker
from xcube.lowering.device.base import (
    Branch,
    Buffer,
    Copy,
    HostCall,
    Launch,
    Loop,
    Operand,
    Ref,
    Register,
    Rotation,
    Step,
    While,
    every_step,
)

_CELL = (1 << 64) - 1


class Bases:
    """Numbers the pointers of a run: null, inputs, outputs, arena, registers."""

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        constants: tuple[Buffer, ...],
        arena_nbytes: int,
        steps: Sequence[Step],
    ) -> None:
        self.count = n_inputs + n_outputs + bool(arena_nbytes)
        loops = [step for step in every_step(steps) if isinstance(step, Loop | While)]
        numbers = [register.number for step in loops for register in step.registers]
        self.registers = 1 + max(numbers, default=-1)
        self._first = {
            "input": 1,
            "output": 1 + n_inputs,
            "arena": 1 + n_inputs + n_outputs,
            "register": 1 + self.count,
        }
        self._sizes = {
            "input": n_inputs,
            "output": n_outputs,
            "arena": int(bool(arena_nbytes)),
            "constant": len(constants),
            "register": self.registers,
        }
        self._constants = constants

    def number(self, register: int) -> int:
        """The base of a register."""
        return self._first["register"] + register

    def cells(self, ref: Ref) -> tuple[int, int]:
        """The base and the offset to add to it; a constant is an offset from null."""
        size = self._sizes[ref.space]
        if not 0 <= ref.index < size:
            raise errors.LoweringError(
                f"link: a step refers to {ref.space} {ref.index}; the program has {size}."
            )
        if ref.space == "constant":
            return 0, self._constants[ref.index].pointer + ref.offset
        return self._first[ref.space] + ref.index, ref.offset & _CELL


def table(
    kernels: Sequence[int], steps: Sequence[Step], bases: Bases
) -> tuple[cell_array[int], list[Callable[[int], None]]]:
    """The cells of a program, and the Python functions whose addresses they hold."""
    writer = _Writer(kernels, bases)
    records = writer.block(steps)
    sizes = [_places(step) for step in every_step(steps)]
    head = [bases.count, bases.registers, max(sizes, default=1), len(records)]
    return cell_array("Q", [*head, *records]), writer.functions


def _places(step: Step) -> int:
    if isinstance(step, Launch):
        return max(1, len(step.buffers))
    if isinstance(step, HostCall):
        return len(step.operands) + len(step.results) + 1
    return 1


class _Writer:
    def __init__(self, kernels: Sequence[int], bases: Bases) -> None:
        self.kernels, self.bases = kernels, bases
        self.functions: list[Callable[[int], None]] = []

    def block(self, steps: Iterable[Step]) -> list[int]:
        return [cell for step in steps for cell in self._record(step)]

    def _record(self, step: Step) -> list[int]:
        if isinstance(step, Launch):
            kind, cells = cpu_walker.LAUNCH, self._launch(step)
            if step.cubes <= 0:
                return []
        elif isinstance(step, Copy):
            kind = cpu_walker.COPY
            places = (*self.bases.cells(step.target), *self.bases.cells(step.source))
            cells = [*places, step.nbytes]
        elif isinstance(step, Loop):
            kind, cells = cpu_walker.LOOP, self._loop(step)
        elif isinstance(step, While):
            kind, cells = cpu_walker.WHILE, self._while(step)
        elif isinstance(step, Branch):
            kind, cells = cpu_walker.BRANCH, self._branch(step)
        else:
            kind, cells = cpu_walker.CALL, self._call(step)
        return [kind, 2 + len(cells), *cells]

    def _launch(self, launch: Launch) -> list[int]:
        if not 0 <= launch.kernel < len(self.kernels):
            raise errors.LoweringError(
                f"link: a launch refers to kernel {launch.kernel}; "
                f"the program has {len(self.kernels)}."
            )
        head = [self.kernels[launch.kernel], launch.cubes, max(1, launch.grain)]
        refs = [cell for ref in launch.buffers for cell in self.bases.cells(ref)]
        return [*head, len(launch.buffers), *refs, *[cell & _CELL for cell in launch.scalars]]

    def _loop(self, loop: Loop) -> list[int]:
        body = self.block(loop.body)
        counts = [len(loop.registers), len(loop.rotations)]
        state = self._state(loop.registers, loop.rotations)
        return [loop.turns, *counts, len(body), *state, *body]

    def _while(self, loop: While) -> list[int]:
        test, body = self.block(loop.test), self.block(loop.body)
        counts = [len(loop.registers), len(loop.rotations), len(test), len(body)]
        state = self._state(loop.registers, loop.rotations)
        return [*self.bases.cells(loop.predicate), *counts, *state, *test, *body]

    def _state(self, registers: Sequence[Register], rotations: Sequence[Rotation]) -> list[int]:
        cells: list[int] = []
        for register in registers:
            start = self.bases.cells(register.start)
            cells += [self.bases.number(register.number), *start, register.step & _CELL]
        return cells + [self.bases.number(n) for rotation in rotations for n in rotation]

    def _branch(self, branch: Branch) -> list[int]:
        bodies = [self.block(steps) for steps in branch.branches]
        head = [*self.bases.cells(branch.index), len(bodies), *map(len, bodies)]
        return head + [cell for body in bodies for cell in body]

    def _call(self, call: HostCall) -> list[int]:
        function = _host_function(call)
        self.functions.append(function)
        operands = (*call.operands, *call.results)
        refs = [cell for operand in operands for cell in self.bases.cells(operand.ref)]
        return [id(function), len(operands), *refs]


def _host_function(call: HostCall) -> Callable[[int], None]:
    """A function of the frame's address, where the pointers to operands and results lie."""
    operands = (*call.operands, *call.results)
    count = len(call.operands)

    def function(frame: int) -> None:
        pointers = (ctypes.c_void_p * len(operands)).from_address(frame)
        arrays = [_array(p, operand) for p, operand in zip(pointers, operands, strict=True)]
        call([_kept(array) for array in arrays[:count]], arrays[count:])

    return function


def _kept(array: np.ndarray) -> np.ndarray:
    """A copy that the user may keep: the program writes its memory again."""
    array = array.copy()
    array.flags.writeable = False
    return array


def _array(pointer: int | None, operand: Operand) -> np.ndarray:
    nbytes = int(np.prod(operand.shape, dtype=np.int64)) * operand.dtype.itemsize
    if nbytes == 0:
        return np.empty(operand.shape, operand.dtype)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer or 0))
    return memory.view(operand.dtype).reshape(operand.shape)
