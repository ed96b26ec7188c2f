"""A linked program of a GPU: takes input buffers, gives output buffers, and returns as soon as the
work is enqueued. Straight pieces run by themselves; the host drives what they cannot do, which is
where it waits: for a bool, for an index, for the operands of a Python function."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from xcube import errors
from xcube.lowering.device.base import Buffer, Executable, Operand
from xcube.lowering.device.cuda_context import Context
from xcube.lowering.device.cuda_graph import Strand, Tasks
from xcube.lowering.device.cuda_memory import DeviceBuffer, SizeClass
from xcube.lowering.device.cuda_plan import (
    Call,
    Item,
    Moved,
    Pick,
    Place,
    Plan,
    Straight,
    Turns,
    Until,
)
from xcube.lowering.device.cuda_transfer import Transfers

_POINTER = operator.attrgetter("pointer")


class Walker:
    """Runs plans. `pointers` are those of the bases; the walker moves the registers among them."""

    def __init__(self, context: Context, tasks: Tasks, transfers: Transfers, plan: Plan) -> None:
        self._transfers, self._plan = transfers, plan
        self._strands = {item: Strand(context, tasks, item) for item in _straights(plan)}

    def run(self, pointers: list[int]) -> None:
        """Enqueue the whole plan. The context is current."""
        self._walk(self._plan, pointers)

    def _walk(self, plan: Plan, pointers: list[int]) -> None:
        for item in plan:
            if isinstance(item, Straight):
                self._strands[item].run(pointers)
            elif isinstance(item, Turns):
                self._turns(item, pointers)
            elif isinstance(item, Until):
                self._until(item, pointers)
            elif isinstance(item, Pick):
                index = int(self._read(item.index, np.dtype(np.int32), pointers))
                self._walk(item.branches[max(0, min(index, len(item.branches) - 1))], pointers)
            else:
                self._call(item, pointers)

    def _turns(self, item: Turns, pointers: list[int]) -> None:
        _begin(item.starts, pointers)
        for times, plan, after in item.sections:
            for _ in range(times):
                self._walk(plan, pointers)
                _move(after, pointers)

    def _until(self, item: Until, pointers: list[int]) -> None:
        _begin(item.starts, pointers)
        self._walk(item.test, pointers)
        while self._read(item.predicate, np.dtype(np.bool_), pointers):
            self._walk(item.body, pointers)
            _move(item.after, pointers)
            self._walk(item.test, pointers)

    def _call(self, item: Call, pointers: list[int]) -> None:
        call = item.call
        operands = [
            self._array(place, operand, pointers)
            for place, operand in zip(item.operands, call.operands, strict=True)
        ]
        results = [np.empty(result.shape, result.dtype) for result in call.results]
        call(operands, results)
        for (base, offset), result in zip(item.results, results, strict=True):
            if result.nbytes:
                self._transfers.write(pointers[base] + offset, result)

    def _array(self, place: Place, operand: Operand, pointers: list[int]) -> np.ndarray:
        """An operand on the host, read only and the user's to keep."""
        nbytes = int(np.prod(operand.shape, dtype=np.int64)) * operand.dtype.itemsize
        memory = self._transfers.fetch(pointers[place[0]] + place[1], nbytes, True).wait()
        array = np.ndarray(operand.shape, operand.dtype, memory)
        array.flags.writeable = False
        return array

    def _read(self, place: Place, dtype: np.dtype, pointers: list[int]) -> np.generic:
        """One element at a place, once it is computed."""
        memory = self._transfers.fetch(pointers[place[0]] + place[1], dtype.itemsize, True).wait()
        return memory.view(dtype)[0]


class CudaExecutable(Executable):
    """A plan, and the memory that each run of it takes."""

    def __init__(
        self,
        context: Context,
        walker: Walker,
        transfers: Transfers,
        n_inputs: int,
        outputs: list[tuple[SizeClass, int]],
        arena: tuple[SizeClass, int] | None,
        scratch: tuple[SizeClass, int] | None,
        registers: int,
        constants: tuple[Buffer, ...],
        donated: dict[int, int],
    ) -> None:
        self._context, self._walker, self._transfers = context, walker, transfers
        self._n_inputs = n_inputs
        self._outputs = outputs
        self._arena, self._scratch = arena, scratch
        self._registers = [0] * registers
        self._constants = constants  # the plan holds their addresses
        self._donated = donated

    def __call__(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        if len(inputs) != self._n_inputs:
            raise errors.DeviceError(
                f"Executable: needs {self._n_inputs} input buffers; got {len(inputs)}."
            )
        self._context.check_alive()
        outputs: list[Buffer]
        if self._donated:
            inputs, outputs = self._take_over(list(inputs))
        else:
            outputs = [home.take(nbytes) for home, nbytes in self._outputs]
        # Arena and scratch may be given out again once everything is enqueued.
        arena = None if self._arena is None else self._arena[0].take(self._arena[1])
        scratch = None if self._scratch is None else self._scratch[0].take(self._scratch[1])
        pointers = [0, *map(_POINTER, inputs), *map(_POINTER, outputs)]
        if arena is not None:
            pointers.append(arena.pointer)
        pointers += self._registers
        pointers.append(0 if scratch is None else scratch.pointer)
        with self._context:
            self._walker.run(pointers)
        return outputs

    def _take_over(self, inputs: list[Buffer]) -> tuple[list[Buffer], list[Buffer]]:
        """Inputs and outputs where donated memory is shared; what others see is copied first."""
        outputs: list[Buffer] = []
        for index, (home, nbytes) in enumerate(self._outputs):
            source = self._donated.get(index)
            if source is None:
                outputs.append(home.take(nbytes))
                continue
            if inputs[source].nbytes < nbytes:
                raise errors.DeviceError(
                    f"Executable: donated input {source} must hold the {nbytes} bytes of output "
                    f"{index}; it has {inputs[source].nbytes}."
                )
            inputs[source] = self._own(inputs, source)
            outputs.append(inputs[source])
        return inputs, outputs

    def _own(self, inputs: list[Buffer], source: int) -> Buffer:
        buffer = inputs[source]
        assert isinstance(buffer, DeviceBuffer)
        if buffer.writable and inputs.count(buffer) == 1:
            buffer.host = None  # what was copied of it will not be true any more
            return buffer
        return self._transfers.copy(buffer)


def _straights(plan: Plan) -> list[Straight]:
    return [straight for item in plan for straight in _straights_of(item)]


def _straights_of(item: Item) -> list[Straight]:
    if isinstance(item, Straight):
        return [item]
    if isinstance(item, Turns):
        return [straight for _, plan, _ in item.sections for straight in _straights(plan)]
    if isinstance(item, Until):
        return [*_straights(item.test), *_straights(item.body)]
    if isinstance(item, Pick):
        return [straight for plan in item.branches for straight in _straights(plan)]
    return []


def _begin(starts: Moved, pointers: list[int]) -> None:
    for base, (source, offset) in starts:
        pointers[base] = pointers[source] + offset


def _move(after: Moved, pointers: list[int]) -> None:
    moved = [(base, pointers[source] + offset) for base, (source, offset) in after]
    for base, pointer in moved:
        pointers[base] = pointer
