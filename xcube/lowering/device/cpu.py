"""The CPU device: native kernels over plain memory, a whole program in one native call.

Kernels are LLVM texts (`cpu_code`), memory comes from size classes (`cpu_memory`), and launches run
on the calling thread or are shared with a pool (`cpu_runtime`, `cpu_pool`). An executable is a
table of cells for the native walker, behind a Python function that is made of native code.
"""

from __future__ import annotations

import ctypes
import operator
import threading
from array import array as cell_array
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from xcube import errors
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device import cpu_facts, cpu_runtime
from xcube.lowering.device.base import (
    Buffer,
    Device,
    Executable,
    Facts,
    Launch,
    MemoryStats,
    Step,
    every_step,
)
from xcube.lowering.device.cpu_code import Code
from xcube.lowering.device.cpu_memory import ALIGNMENT, Allocator, Block, Foreign, SizeClass
from xcube.lowering.device.cpu_pool import Pool
from xcube.lowering.device.cpu_table import Bases, table
from xcube.lowering.emit import llvm

_METH_FASTCALL = 0x80
_SMALL = 4096  # bytes up to which copying twice is quicker than asking an array for its address
_POINTER = operator.attrgetter("pointer")


class Cpu(Device):
    """The processor that Python runs on.

    `portable` lets idle threads wait by POSIX condition variables where the system has better.
    """

    def __init__(self, portable: bool = False) -> None:
        self.name = "cpu"
        self.kind = "cpu"
        self._allocator = Allocator()
        self._code = Code()
        self._facts = cpu_facts.facts(self.name, self._code, self._allocator.limit)
        text = cpu_runtime.text(self._code.architecture, portable=portable)
        native = self._code.module(text, cpu_runtime.EXPORTS, cpu_runtime.imports())
        self._pool = Pool(native)
        self._light = _Entry(b"run_light", native["enter_light"])
        self._heavy = _Entry(b"run_heavy", native["enter_heavy"])

    def facts(self) -> Facts:
        return self._facts

    def allocate(self, nbytes: int) -> Block:
        return self._allocator.allocate(nbytes)

    def from_host(self, array: np.ndarray, *, copy: bool = True) -> Buffer:
        if array.dtype.hasobject or not array.dtype.isnative:
            raise errors.DtypeError(
                "from_host: elements must be numbers in the byte order of this machine; "
                f"got dtype {array.dtype!r}. Convert with array.astype first."
            )
        if copy and array.nbytes <= _SMALL:
            block = self._allocator.allocate(array.nbytes)
            ctypes.memmove(block.pointer, array.tobytes(), array.nbytes)
            return block
        dense = np.ascontiguousarray(array)
        address = dense.__array_interface__["data"][0]
        if not copy and address % ALIGNMENT == 0:
            return Foreign(address, dense.nbytes, dense)
        block = self._allocator.allocate(dense.nbytes)
        ctypes.memmove(block.pointer, address, dense.nbytes)
        return block

    def wrap(self, pointer: int, nbytes: int, owner: object) -> Foreign:
        """A read-only buffer over another library's memory, which `owner` keeps alive.

        Raises DeviceError if the address is not a multiple of 64.
        """
        return Foreign(pointer, nbytes, owner)

    def emit(self, kernel: Kernel, name: str = "kernel") -> str:
        return llvm.emit(kernel, name=name)

    def compile(self, sources: Sequence[tuple[str, str]]) -> list[int]:
        return self._code.functions(sources)

    def assembly(self, name: str, text: str) -> str:
        """The machine code of a kernel as text, for people to read."""
        return self._code.assembly(name, text)

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
        donated = dict(donated or {})
        _check_donated(donated, n_inputs, len(output_nbytes))
        launches = [step for step in every_step(steps) if isinstance(step, Launch)]
        bases = Bases(n_inputs, len(output_nbytes), tuple(constants), arena_nbytes, steps)
        cells, functions = table(kernels, steps, bases)
        entry = self._light if light else self._heavy
        return CpuExecutable(
            table=cells,
            functions=functions,
            enter=entry.function(cells.buffer_info()[0]),
            pool=self._pool if any(step.cubes > step.grain for step in launches) else None,
            n_inputs=n_inputs,
            outputs=[(self._allocator.size_class(n), n) for n in output_nbytes],
            arena=(self._allocator.size_class(arena_nbytes), arena_nbytes),
            constants=tuple(constants),
            donated=donated,
        )

    def synchronize(self) -> None:
        """Nothing to wait for: a program has finished when its call returns."""

    @property
    def threads(self) -> int:
        """How many threads share a launch now, the calling one included."""
        return self._pool.threads

    def close(self) -> None:
        """Send the threads home; programs go on running, on the calling thread."""
        self._pool.close()

    def memory_stats(self) -> MemoryStats:
        return self._allocator.stats()

    def trim(self) -> int:
        return self._allocator.trim()


class CpuExecutable(Executable):
    """A table of steps and the native function that walks it."""

    def __init__(
        self,
        table: cell_array[int],
        functions: Sequence[Callable[[int], None]],
        enter: Callable[..., int],
        pool: Pool | None,
        n_inputs: int,
        outputs: list[tuple[SizeClass, int]],
        arena: tuple[SizeClass, int],
        constants: tuple[Buffer, ...],
        donated: dict[int, int],
    ) -> None:
        self._table = table
        self._functions = functions  # the table holds their addresses
        self._enter = enter
        self._pool = pool
        self._n_inputs = n_inputs
        self._outputs = outputs
        self._arena = arena if arena[1] else None
        self._constants = constants
        self._donated = donated

    def __call__(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        if len(inputs) != self._n_inputs:
            raise errors.DeviceError(
                f"Executable: needs {self._n_inputs} input buffers; got {len(inputs)}."
            )
        if self._pool is not None:
            self._pool.ensure()
        outputs: list[Buffer]
        if self._donated:
            inputs, outputs = self._take_over(list(inputs))
        else:
            outputs = [home.take(nbytes) for home, nbytes in self._outputs]
        if self._arena is None:
            self._enter(*map(_POINTER, inputs), *map(_POINTER, outputs))
        else:
            arena = self._arena[0].take(self._arena[1])
            self._enter(*map(_POINTER, inputs), *map(_POINTER, outputs), arena.pointer)
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
        if buffer.writable and inputs.count(buffer) == 1:
            return buffer
        home = self._outputs[0][0].allocator
        fresh = home.allocate(buffer.nbytes)
        ctypes.memmove(fresh.pointer, buffer.pointer, buffer.nbytes)
        return fresh


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Entry:
    """Makes Python functions of native code, each bound to the address of a table."""

    def __init__(self, name: bytes, address: int) -> None:
        self._definition = _MethodDefinition(name, address, _METH_FASTCALL, None)
        # Functions point to their definition even while the interpreter is taken down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._definition))
        self._make = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )(("PyCFunction_NewEx", ctypes.pythonapi))

    def function(self, table: int) -> Callable[..., int]:
        """A function of as many addresses as the table at `table` expects."""
        return self._make(ctypes.addressof(self._definition), table, None)


def _check_donated(donated: dict[int, int], n_inputs: int, n_outputs: int) -> None:
    for output, source in donated.items():
        if not (0 <= output < n_outputs and 0 <= source < n_inputs):
            raise errors.LoweringError(
                f"link: output {output} takes over input {source}; "
                f"the program has {n_inputs} inputs and {n_outputs} outputs."
            )
    if len(set(donated.values())) != len(donated):
        raise errors.LoweringError(f"link: one input is donated to several outputs: {donated}.")


_device: Cpu | None = None
_device_lock = threading.Lock()


def device() -> Cpu:
    """The one CPU device of this process, made at the first call."""
    global _device
    if _device is None:
        with _device_lock:
            if _device is None:
                _device = Cpu()
    return _device
