"""Runs a whole program in the cube interpreter, unit by unit, for devices that are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.ir import Jaxpr
from xcube.lowering import lower
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device.base import (
    Branch,
    Copy,
    Facts,
    HostCall,
    Launch,
    Loop,
    Operand,
    Ref,
    Register,
    Step,
    While,
)
from xcube.lowering.device.cpu import device

Array = np.ndarray[Any, Any]


class Pretended:
    """Facts of a device that is not there, for lowering."""

    def __init__(self, **facts: Any) -> None:
        self._facts = dataclasses.replace(device().facts(), **facts)

    def facts(self) -> Facts:
        return self._facts


def run(jaxpr: Jaxpr, inputs: Sequence[Array], **facts: Any) -> list[Array]:
    """Results of a closed jaxpr, lowered for a device of these facts."""
    program = lower(jaxpr, Pretended(**facts), forward=False)  # type: ignore[arg-type]
    sizes = (program.output_nbytes, program.arena_nbytes)
    memory = _Memory(program.kernels, inputs, program.constants, *sizes)
    memory.run(program.steps)
    return [
        memory.array(Operand(ref, aval.shape, aval.dtype)).copy()
        for ref, aval in zip(program.outputs, jaxpr.out_avals, strict=True)
    ]


class _Memory:
    def __init__(
        self,
        kernels: Sequence[Kernel],
        inputs: Sequence[Array],
        constants: Sequence[Any],
        outputs: Sequence[int],
        arena: int,
    ) -> None:
        self.kernels = kernels
        self.spaces: dict[tuple[str, int], Array] = {("arena", 0): _bytes(arena)}
        for number, x in enumerate(inputs):
            self.spaces["input", number] = _bytes(x.nbytes)
            self.spaces["input", number][: x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
        for number, x in enumerate(constants):
            self.spaces["constant", number] = np.append(_flat(np.asarray(x)), _bytes(0))
        for number, nbytes in enumerate(outputs):
            self.spaces["output", number] = _bytes(nbytes)
        self.registers: dict[int, Ref] = {}

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, Copy):
                source = self._at(step.source)[: step.nbytes].copy()
                self._at(step.target)[: step.nbytes] = source
            elif isinstance(step, Loop):
                self._begin(step.registers)
                for _ in range(step.turns):
                    self.run(step.body)
                    self._turn(step)
            elif isinstance(step, While):
                self._while(step)
            elif isinstance(step, Branch):
                index = int(self._at(step.index)[:4].view(np.int32)[0])
                self.run(step.branches[min(max(index, 0), len(step.branches) - 1)])
            else:
                self._call(step)

    def array(self, operand: Operand) -> Array:
        nbytes = int(np.prod(operand.shape, dtype=int)) * operand.dtype.itemsize
        return self._at(operand.ref)[:nbytes].view(operand.dtype).reshape(operand.shape)

    def _launch(self, launch: Launch) -> None:
        kernel = self.kernels[launch.kernel]
        check(kernel)
        dtypes = [np.dtype(NUMPY[buffer.dtype]) for buffer in kernel.buffers]
        places = [self._absolute(ref) for ref in launch.buffers]
        memory = [
            _whole(self._until_next(ref, places), dtype)
            for ref, dtype in zip(places, dtypes, strict=True)
        ]
        if launch.cubes:
            interpret(kernel, launch.cubes, memory, launch.scalars)

    def _while(self, step: While) -> None:
        self._begin(step.registers)
        while True:
            self.run(step.test)
            if not self._at(step.predicate)[0]:
                return
            self.run(step.body)
            self._turn(step)

    def _begin(self, registers: Sequence[Register]) -> None:
        self.registers.update({r.number: self._absolute(r.start) for r in registers})

    def _turn(self, step: Loop | While) -> None:
        for r in step.registers:
            self.registers[r.number] = _moved(self.registers[r.number], r.step)
        for read, write, spare in step.rotations:
            written, free = self.registers[write], self.registers[spare]
            self.registers.update({read: written, write: free, spare: written})

    def _call(self, step: HostCall) -> None:
        step([self.array(x).copy() for x in step.operands], [self.array(x) for x in step.results])

    def _absolute(self, ref: Ref) -> Ref:
        if ref.space != "register":
            return ref
        return _moved(self.registers[ref.index], ref.offset)

    def _until_next(self, ref: Ref, places: Sequence[Ref]) -> Array:
        """The memory from a place to the next one that the launch uses."""
        home = (ref.space, ref.index)
        starts = [p.offset for p in places if (p.space, p.index) == home and p.offset > ref.offset]
        end = min(starts, default=self.spaces[home].size)
        return self.spaces[home][ref.offset : end]

    def _at(self, ref: Ref) -> Array:
        ref = self._absolute(ref)
        return self.spaces[ref.space, ref.index][ref.offset :]


def _flat(x: Array) -> Array:
    return np.frombuffer(x.tobytes(), np.uint8)


def _moved(ref: Ref, nbytes: int) -> Ref:
    return Ref(ref.space, ref.index, ref.offset + nbytes)


def _bytes(nbytes: int) -> Array:
    """Room for so many bytes, with the padding that kernels may touch."""
    return np.zeros(nbytes + 512, np.uint8)


def _whole(memory: Array, dtype: np.dtype) -> Array:
    return memory[: memory.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
