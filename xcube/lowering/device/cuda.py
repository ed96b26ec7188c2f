"""CUDA devices: one for each GPU that the driver shows. Kernels are CUDA C++ texts made into cubins
(`cuda_compile`, `cuda_code`), memory comes from free lists before a pool (`cuda_memory`), programs
are planned (`cuda_plan`), run as graphs (`cuda_graph`) and driven by the host where they have to be
(`cuda_executable`). Everything is enqueued; only who reads elements waits."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xcube import errors
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device import cuda_driver, cuda_exchange
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
from xcube.lowering.device.cuda_code import Code
from xcube.lowering.device.cuda_context import Context
from xcube.lowering.device.cuda_executable import CudaExecutable, Walker
from xcube.lowering.device.cuda_graph import Tasks
from xcube.lowering.device.cuda_memory import Allocator, Block, DeviceBuffer, Foreign, SizeClass
from xcube.lowering.device.cuda_plan import Bases, Planner
from xcube.lowering.device.cuda_transfer import Transfers
from xcube.lowering.emit import cuda as emitter

_LINE_BITS = 128  # what one thread loads or stores at once
_UNITS = 256  # threads of a block that share a row

# What the hardware does natively: our word, and the compute capability from which it does.
_NATIVE = {
    "f16": (5, 3),
    "i8_dot": (6, 1),
    "matrix_f16": (7, 0),
    "matrix_i8": (7, 2),
    "bf16": (8, 0),
    "matrix_bf16": (8, 0),
    "matrix_tf32": (8, 0),
    "async_copy": (8, 0),
    "f8": (8, 9),
    "cluster": (9, 0),
    "tma": (9, 0),
}
_ALWAYS = ("f64", "gather", "masked_store", "plane", "shared_memory", "atomic_f32")

# Targets with instructions of their own generation only: compute capability and suffix.
_SPECIFIC = {(9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)}


class Cuda(Device):
    """One GPU; `driver` is the module of bindings, or what stands in for it."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self._context = Context(driver, ordinal)
        self.name = self._context.name
        self.kind = "cuda"
        self._facts = _facts(self._context)
        self._code = Code(self._context, _target(self._context))
        self._allocator = Allocator(self._context)
        self._transfers = Transfers(self._context, self._allocator)
        self._allocator.reader = self._transfers

    def facts(self) -> Facts:
        return self._facts

    @property
    def ordinal(self) -> int:
        """The driver's number for the GPU."""
        return self._context.ordinal

    @property
    def target(self) -> str:
        """What kernels are compiled for, e.g. "sm_90a"."""
        return self._code.target

    # memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Block:
        return self._allocator.allocate(nbytes)

    def from_host(self, array: np.ndarray, *, copy: bool = True) -> Block:
        """The elements on the GPU. The array is no longer needed when this returns; `copy` makes
        no difference, since the GPU cannot use the host's memory in place."""
        if array.dtype.hasobject or not array.dtype.isnative:
            raise errors.DtypeError(
                "from_host: elements must be numbers in the byte order of this machine; "
                f"got dtype {array.dtype!r}. Convert with array.astype first."
            )
        return self._transfers.upload(np.ascontiguousarray(array))

    def receive(self, buffer: Buffer, source: Device) -> Buffer:
        if isinstance(buffer, DeviceBuffer):
            return self.from_device(buffer)
        return super().receive(buffer, source)

    def from_device(self, buffer: DeviceBuffer) -> Block:
        """A copy of a buffer of this or another GPU, directly where the hardware can."""
        return self._transfers.copy(buffer)

    def wrap(self, pointer: int, nbytes: int, owner: object) -> Foreign:
        """A read-only buffer over another library's memory on this GPU, which `owner` keeps alive
        and which is ready now. Raises DeviceError if the address is not a multiple of 256."""
        return Foreign(pointer, nbytes, owner, self._allocator)

    def import_array(self, x: Any) -> tuple[DeviceBuffer, tuple[int, ...], np.dtype]:
        """Buffer, shape and dtype of another library's array on this GPU, by DLPack or
        `__cuda_array_interface__`; in its own memory unless its address is not a multiple of 256.

        Raises BufferError for an array that is not dense, DeviceError for one of another GPU.
        """
        return cuda_exchange.taken(x, self._allocator)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's name for the GPU."""
        return cuda_exchange.CUDA, self.ordinal

    def dlpack(
        self,
        buffer: Block | Foreign,
        shape: Sequence[int],
        dtype: np.dtype,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
    ) -> Any:
        """A DLPack capsule of a dense array in a buffer, ready on the consumer's stream. From here
        on programs do not overwrite the buffer. Raises BufferError for a dtype without a code."""
        return cuda_exchange.capsule(buffer, shape, dtype, stream, max_version)

    def array_interface(
        self, buffer: Block | Foreign, shape: Sequence[int], dtype: np.dtype
    ) -> dict[str, Any]:
        """`__cuda_array_interface__` of a dense array in a buffer, once it is computed. Programs do
        not overwrite the buffer any more. Raises BufferError for a dtype without a name."""
        return cuda_exchange.interface(buffer, shape, dtype)

    def synchronize(self) -> None:
        """Wait until everything that was started has finished.

        Raises DeviceError if some of it failed.
        """
        self._context.synchronize()

    def memory_stats(self) -> MemoryStats:
        return self._allocator.stats()

    def trim(self) -> int:
        with self._context:
            self._transfers.pinned.trim()
        return self._allocator.trim()

    # programs ---------------------------------------------------------------------------------

    def emit(self, kernel: Kernel, name: str = "kernel") -> str:
        return emitter.emit(kernel, name=name)

    def compile(self, sources: Sequence[tuple[str, str]]) -> list[int]:
        return self._code.handles(sources)

    def assembly(self, name: str, text: str) -> str:
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
        bases = Bases(n_inputs, len(output_nbytes), constants, arena_nbytes > 0, steps)
        conditional = self._context.version >= cuda_driver.SWITCHES
        plan = Planner(bases, len(kernels), conditional).program(steps)
        tasks = Tasks(self._code, kernels, self._facts.cores, scratch=bases.count)
        launches = [step for step in every_step(steps) if isinstance(step, Launch)]
        return CudaExecutable(
            self._context,
            Walker(self._context, tasks, self._transfers, plan),
            self._transfers,
            n_inputs,
            [(self._allocator.size_class(nbytes), nbytes) for nbytes in output_nbytes],
            self._room(arena_nbytes),
            self._room(tasks.scratch_nbytes(launches)),
            bases.registers,
            tuple(constants),
            donated,
        )

    def _room(self, nbytes: int) -> tuple[SizeClass, int] | None:
        """What each run takes beside its outputs, if anything."""
        return (self._allocator.size_class(nbytes), nbytes) if nbytes else None


def _capability(context: Context) -> tuple[int, int]:
    major, minor = (f"COMPUTE_CAPABILITY_{part}" for part in ("MAJOR", "MINOR"))
    return context.attribute(major), context.attribute(minor)


def _target(context: Context) -> str:
    """The target with everything that this GPU can do."""
    major, minor = _capability(context)
    return f"sm_{major}{minor}{'a' if (major, minor) in _SPECIFIC else ''}"


def _facts(context: Context) -> Facts:
    capability = _capability(context)
    native = [word for word, first in _NATIVE.items() if capability >= first]
    return Facts(
        name=context.name,
        kind="cuda",
        model=context.model,
        cores=context.attribute("MULTIPROCESSOR_COUNT"),
        vector_bits=_LINE_BITS,
        l1_bytes=context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=context.attribute("L2_CACHE_SIZE"),
        memory_bytes=context.memory_bytes,
        features=frozenset((*native, *_ALWAYS, _target(context))),
        units=_UNITS,
    )


def _check_donated(donated: dict[int, int], n_inputs: int, n_outputs: int) -> None:
    for output, source in donated.items():
        if not (0 <= output < n_outputs and 0 <= source < n_inputs):
            raise errors.LoweringError(
                f"link: output {output} takes over input {source}; "
                f"the program has {n_inputs} inputs and {n_outputs} outputs."
            )
    if len(set(donated.values())) != len(donated):
        raise errors.LoweringError(f"link: one input is donated to several outputs: {donated}.")


@functools.cache
def found() -> tuple[int, str]:
    """How many GPUs there are, and why there are none."""
    try:
        count = cuda_driver.count(cuda_driver.bindings())
    except errors.DeviceError as error:
        return 0, str(error)
    return count, "" if count else "cuda: the driver shows no GPU to this process."


_devices: dict[int, Cuda] = {}
_lock = threading.Lock()


def device(ordinal: int = 0) -> Cuda:
    """The device of a GPU, made at the first call.

    Raises DeviceError if there is no such GPU.
    """
    count, reason = found()
    if not 0 <= ordinal < count:
        told = reason or f"there are {count} GPUs, cuda:0 to cuda:{count - 1}."
        raise errors.DeviceError(f"device: there is no 'cuda:{ordinal}'; {told}")
    with _lock:
        if ordinal not in _devices:
            _devices[ordinal] = Cuda(cuda_driver.bindings(), ordinal)
        return _devices[ordinal]


def devices() -> list[Cuda]:
    """All GPUs; none if `found` has a reason."""
    return [device(ordinal) for ordinal in range(found()[0])]
