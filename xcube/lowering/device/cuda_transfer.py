"""Between the host's memory and a GPU's: uploads through pinned chunks, downloads into pinned
blocks that NumPy arrays then use, copies from GPU to GPU. All of them are enqueued on the GPU's
stream; only who needs the elements on the host waits."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from typing import Any

import numpy as np

from xcube import errors
from xcube.lowering.device.cuda_context import Context
from xcube.lowering.device.cuda_memory import Allocator, Block, DeviceBuffer, capacity_of

_DIRECT = 1 << 16  # bytes up to which the driver's own staging is quicker than ours
_CHUNK = 1 << 22
_IN_FLIGHT = 4  # chunks that may wait for their copy
_PINNED = 1 << 24  # bytes up to which a download is worth pinned memory, which is slow to make
_PINNED_LIMIT = 1 << 30
_KEPT = 1 << 16  # bytes up to which a copy on the host is kept with its buffer


class PinnedBlock:
    """Memory of the host that the GPU copies from and to at full speed."""

    __slots__ = ("_home", "nbytes", "pointer")

    def __init__(self, pointer: int, nbytes: int, home: list[int]) -> None:
        self.pointer, self.nbytes, self._home = pointer, nbytes, home

    def __del__(self) -> None:
        self._home.append(self.pointer)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        place = (self.pointer, False)
        return {"data": place, "shape": (self.nbytes,), "typestr": "|u1", "version": 3}


class PinnedMemory:
    """Free lists of pinned memory, up to a limit."""

    def __init__(self, context: Context, limit: int = _PINNED_LIMIT) -> None:
        self._context, self._limit = context, limit
        self._free: dict[int, list[int]] = {}
        self.reserved = 0

    def take(self, nbytes: int) -> PinnedBlock | None:
        """A block, or None if the limit is reached or the system has no more to pin."""
        capacity = capacity_of(nbytes)
        free = self._free.setdefault(capacity, [])
        try:
            return PinnedBlock(free.pop(), nbytes, free)
        except IndexError:
            pointer = self._pin(capacity)
        return PinnedBlock(pointer, nbytes, free) if pointer else None

    def trim(self) -> None:
        """Give unused memory back to the system."""
        for capacity, free in list(self._free.items()):
            while True:
                try:
                    pointer = free.pop()
                except IndexError:
                    break
                self._context.check(self._context.driver.cuMemFreeHost(pointer)[0], "cuMemFreeHost")
                self.reserved -= capacity

    def _pin(self, capacity: int) -> int:
        if self.reserved + capacity > self._limit:
            return 0
        code, pointer = self._context.driver.cuMemHostAlloc(capacity, 0)
        if code:
            return 0  # the caller then uses ordinary memory: slower, not wrong
        self.reserved += capacity
        return int(pointer)


class Download:
    """A copy on its way to the host: the memory it goes to, and the event of its arrival."""

    __slots__ = ("_context", "_event", "_lock", "memory")

    def __init__(self, context: Context, memory: np.ndarray, event: Any) -> None:
        self._context, self.memory, self._event = context, memory, event
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._event is None or self._context.is_over:
            return
        with contextlib.suppress(errors.DeviceError):  # the context remembers a fault
            self.wait()  # nobody else may be given the memory while the copy writes to it

    def wait(self) -> np.ndarray:
        """The bytes, once they are there. Raises DeviceError if what computes them failed."""
        with self._lock:
            if self._event is not None:
                self._context.check_alive()
                with self._context as context:
                    context.wait(self._event, "waiting for results")
                self._event = None
        return self.memory


class Transfers:
    """The copies of one GPU."""

    def __init__(self, context: Context, allocator: Allocator) -> None:
        self._context, self._allocator = context, allocator
        self._lock = threading.Lock()
        self._flying: deque[tuple[Any, PinnedBlock]] = deque()
        self._opened: set[int] = set()
        self.pinned = PinnedMemory(context)

    # to the GPU -------------------------------------------------------------------------------

    def upload(self, array: np.ndarray) -> Block:
        """A block with the elements of a dense array, which is not needed afterwards."""
        block = self._allocator.allocate(array.nbytes)
        if array.nbytes:
            self.write(block.pointer, array)
        return block

    def write(self, pointer: int, array: np.ndarray) -> None:
        """Copy a dense array to an address of the GPU."""
        address, nbytes = array.__array_interface__["data"][0], array.nbytes
        self._context.check_alive()
        with self._context:
            if nbytes <= _DIRECT:
                self._send(pointer, address, nbytes)
                return
            with self._lock:
                for start in range(0, nbytes, _CHUNK):
                    self._stage(pointer + start, address + start, min(_CHUNK, nbytes - start))

    def _stage(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy one chunk by way of pinned memory, if there is some."""
        context = self._context
        while len(self._flying) >= _IN_FLIGHT:
            self._land()
        chunk = self.pinned.take(_CHUNK)
        if chunk is None:
            self._send(pointer, address, nbytes)
            return
        ctypes.memmove(chunk.pointer, address, nbytes)
        self._send(pointer, chunk.pointer, nbytes)
        event = context.new_event()
        context.record(event)
        self._flying.append((event, chunk))

    def _land(self) -> None:
        """Wait until the oldest chunk is copied; its memory is free then."""
        event, _ = self._flying.popleft()
        self._context.wait(event, "copying to the GPU")

    def _send(self, pointer: int, address: int, nbytes: int) -> None:
        context = self._context
        code = context.driver.cuMemcpyHtoDAsync(pointer, address, nbytes, context.stream)[0]
        context.check(code, "copying to the GPU")

    # to the host ------------------------------------------------------------------------------

    def start(self, buffer: DeviceBuffer) -> None:
        """Start to copy a buffer to the host, unless a copy is there or on its way."""
        if buffer.host is None:
            buffer.host = self.fetch(buffer.pointer, buffer.nbytes)

    def read(self, buffer: DeviceBuffer, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The contents of a buffer as a read-only array. Small ones are copied once only.

        Raises DeviceError if the buffer is smaller than the array.
        """
        download = buffer.host or self.fetch(buffer.pointer, buffer.nbytes, at_once=True)
        memory = download.wait()
        buffer.host = download if buffer.nbytes <= _KEPT else None
        try:
            array = np.ndarray(shape, dtype, memory)
        except TypeError:
            raise errors.DeviceError(
                f"Buffer.numpy: the array must fit into the {buffer.nbytes} bytes of the buffer; "
                f"got shape {shape} of {np.dtype(dtype)}."
            ) from None
        array.flags.writeable = False
        return array

    def fetch(self, pointer: int, nbytes: int, at_once: bool = False) -> Download:
        """Start to copy bytes of the GPU to the host. `at_once`: wait for everything enqueued so
        far, which is quicker than an event for who would wait for this copy now."""
        context = self._context
        context.check_alive()
        with context:
            block = self.pinned.take(nbytes) if 0 < nbytes <= _PINNED else None
            memory = np.empty(nbytes, np.uint8) if block is None else np.asarray(block)
            if not nbytes:
                return Download(context, memory, None)
            address = memory.__array_interface__["data"][0]
            code = context.driver.cuMemcpyDtoHAsync(address, pointer, nbytes, context.stream)[0]
            context.check(code, "copying to the host")
            if at_once:
                code = context.driver.cuStreamSynchronize(context.stream)[0]
                context.check(code, "waiting for results")
                return Download(context, memory, None)
            event = context.new_event()
            context.record(event)
            return Download(context, memory, event)

    # between GPUs -----------------------------------------------------------------------------

    def copy(self, source: DeviceBuffer) -> Block:
        """A block with the contents of a buffer, of this GPU or of another one."""
        block = self._allocator.allocate(source.nbytes)
        if not source.nbytes:
            return block
        context, other = self._context, source.context
        context.check_alive()
        if other is not context:
            self._open(source)
            context.follow(other)
        with context:
            code = context.driver.cuMemcpyPeerAsync(
                *(block.pointer, context.handle, source.pointer, other.handle),
                *(source.nbytes, context.stream),
            )[0]
            context.check(code, "copying on or between GPUs")
        if other is not context:
            other.follow(context)  # before the source's memory is given out again
        return block

    def _open(self, source: DeviceBuffer) -> None:
        """Let this GPU read the other one's pool: once, and before the first copy."""
        if source.context.ordinal in self._opened:
            return
        with source.context:
            source.allocator.open_to(self._context)
        self._opened.add(source.context.ordinal)
